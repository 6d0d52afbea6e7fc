//! Address vectors and address handles.

use std::ptr::NonNull;
use std::sync::OnceLock;

use bareverbs::ah::{Ah, AhAttr, GlobalRoute, Rate};
use bareverbs::cq::{WcFlags, WorkCompletion};
use bareverbs::qp::GRH_BYTES;
use bareverbs::values::GidIndex;
use bareverbs::{Gid, PortNum};

use crate::abi::cq::ibv_wc;
use crate::abi::gid::ibv_gid;
use crate::abi::path::{ibv_ah, ibv_ah_attr, ibv_global_route};
use crate::context::{ContextArgument, ContextObject};
use crate::convention::{Failure, OrErrno, OrMinusOne, OrNull, export, refuse, required};
use crate::memory::PdObject;
use crate::object::{Object, pointer};

/// The struct of C, and the address vector of the device if the program has asked for it.
#[repr(C)]
pub(crate) struct AhHead {
    pub(crate) abi: ibv_ah,
    vector: OnceLock<Vec<u8>>,
}

pub(crate) type AhObject = Object<AhHead, Ah>;

impl AhObject {
    /// The address vector of the device, which exists as long as the handle.
    pub(crate) fn address_vector(&self) -> &[u8] {
        self.abi.vector.get_or_init(|| self.inner.address_vector())
    }
}

/// Service levels have 4 bits.
const MAX_SERVICE_LEVEL: u8 = 0xf;

/// Flow labels have 20 bits.
const MAX_FLOW_LABEL: u32 = 0xf_ffff;

/// The address vector of C.
pub(crate) fn from_c(attr: &ibv_ah_attr) -> AhAttr {
    let grh = GlobalRoute {
        dgid: Gid(attr.grh.dgid.0),
        sgid_index: GidIndex(attr.grh.sgid_index),
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
    };
    AhAttr {
        port: PortNum(attr.port_num),
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: Rate(attr.static_rate),
        grh: (attr.is_global != 0).then_some(grh),
    }
}

/// The address vector of a handle. Only the bits that a packet has count, as for the C providers: UCX sets
/// all of a flow label.
fn of_handle(attr: &ibv_ah_attr) -> AhAttr {
    let mut path = from_c(attr);
    path.sl &= MAX_SERVICE_LEVEL;
    if let Some(grh) = &mut path.grh {
        grh.flow_label &= MAX_FLOW_LABEL;
    }
    path
}

/// The address vector for C.
pub(crate) fn to_c(attr: &AhAttr) -> ibv_ah_attr {
    let route = |grh: GlobalRoute| ibv_global_route {
        dgid: ibv_gid(grh.dgid.0),
        flow_label: grh.flow_label,
        sgid_index: grh.sgid_index.0,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
    };
    let none = ibv_global_route {
        dgid: ibv_gid([0; 16]),
        flow_label: 0,
        sgid_index: 0,
        hop_limit: 0,
        traffic_class: 0,
    };
    ibv_ah_attr {
        grh: attr.grh.map_or(none, route),
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate.0,
        is_global: attr.grh.is_some().into(),
        port_num: attr.port.0,
    }
}

fn create(pd: &PdObject, attr: &AhAttr) -> Result<*mut ibv_ah, Failure> {
    Object::create(|_| {
        let ah = pd.inner.create_ah(attr)?;
        let abi = ibv_ah { context: pd.abi.context, pd: pointer(Some(pd)), handle: ah.handle() };
        Ok((AhHead { abi, vector: OnceLock::new() }, ah))
    })
}

/// What the completion of a received datagram says of its sender.
fn sender(completion: &ibv_wc) -> WorkCompletion {
    WorkCompletion {
        slid: completion.slid,
        sl: completion.sl,
        dlid_path_bits: completion.dlid_path_bits,
        wc_flags: WcFlags::from_bits_retain(completion.wc_flags),
        ..WorkCompletion::default()
    }
}

/// The path to the sender of a received datagram.
fn path_to_sender(
    context: &ContextObject,
    port: u8,
    completion: &ibv_wc,
    grh: Option<&[u8; GRH_BYTES]>,
) -> Result<AhAttr, Failure> {
    let completion = sender(completion);
    // Without a GRH, no byte of it is read.
    let is_read = completion.wc_flags.contains(WcFlags::GRH);
    let grh = if is_read { required(grh)? } else { &[0; GRH_BYTES] };
    Ok(context.context.ah_attr_from_wc(port, &completion, grh)?)
}

export! {
    fn ibv_create_ah(pd: Option<&PdObject>, attr: Option<&ibv_ah_attr>) -> OrNull<ibv_ah> {
        create(required(pd)?, &of_handle(required(attr)?))
    }

    fn ibv_init_ah_from_wc(
        context: ContextArgument<'_>,
        port: u8,
        completion: Option<&ibv_wc>,
        grh: Option<&[u8; GRH_BYTES]>,
        attr: Option<&mut ibv_ah_attr>,
    ) -> OrMinusOne {
        let path = path_to_sender(context.required()?, port, required(completion)?, grh)?;
        *required(attr)? = to_c(&path);
        Ok(0)
    }

    fn ibv_create_ah_from_wc(
        pd: Option<&PdObject>,
        completion: Option<&ibv_wc>,
        grh: Option<&[u8; GRH_BYTES]>,
        port: u8,
    ) -> OrNull<ibv_ah> {
        let pd = required(pd)?;
        let context = ContextArgument::of(pd.abi.context).required()?;
        create(pd, &path_to_sender(context, port, required(completion)?, grh)?)
    }

    fn ibv_destroy_ah(ah: Option<NonNull<AhObject>>) -> OrErrno {
        // SAFETY: the argument is a live address handle, which the program uses no longer.
        unsafe { Object::destroy(required(ah)?, Ah::destroy, |_, ()| ()) }
    }
}

refuse! {
    OrErrno: ibv_resolve_eth_l2_from_gid;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_is_that_of_the_completion() {
        // SAFETY: the structs of the ABI have numbers and pointers only.
        let mut completion: ibv_wc = unsafe { std::mem::MaybeUninit::zeroed().assume_init() };
        (completion.slid, completion.sl, completion.dlid_path_bits, completion.wc_flags) = (1, 2, 3, 1);
        let found = sender(&completion);
        assert_eq!((found.slid, found.sl, found.dlid_path_bits, found.wc_flags), (1, 2, 3, WcFlags::GRH));
    }

    #[test]
    fn address_vector_is_the_same_in_both_structs() {
        let grh = ibv_global_route {
            dgid: ibv_gid([7; 16]),
            flow_label: 0xf5_4321,
            sgid_index: 2,
            hop_limit: 3,
            traffic_class: 4,
        };
        let of_c = ibv_ah_attr {
            grh,
            dlid: 5,
            sl: 0xa6,
            src_path_bits: 7,
            static_rate: 8,
            is_global: 1,
            port_num: 9,
        };
        let path = from_c(&of_c);
        assert_eq!(from_c(&to_c(&path)), path);
        let route = path.grh.unwrap();
        assert_eq!((route.dgid, route.sgid_index), (Gid([7; 16]), GidIndex(2)));
        assert_eq!((route.flow_label, route.hop_limit, route.traffic_class), (0xf5_4321, 3, 4));
        assert_eq!((path.dlid, path.sl, path.src_path_bits), (5, 0xa6, 7));
        assert_eq!((path.static_rate, path.port), (Rate(8), PortNum(9)));
        let handle = of_handle(&of_c);
        assert_eq!((handle.sl, handle.grh.map(|grh| grh.flow_label)), (6, Some(0x5_4321)));
        assert_eq!(from_c(&ibv_ah_attr { is_global: 0, ..of_c }).grh, None);
    }
}
