//! Options of datagrams.

use std::time::Duration;

use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::LinkLayer;

use super::super::Spin;
use super::super::buffer::sealed::PdId;
use super::super::endpoint::{Queues, SafeTransport};
use super::super::options::EndpointOptions;
use super::{DatagramAddress, Datagrams};
use crate::qp::{Ud, UdInitAttr};
use crate::values::GidIndex;
use crate::{Pd, PortNum, Result};

const VERB: &str = "DatagramOptions::build";

/// The Q_Key that librdmacm uses for UD QPs, `RDMA_UDP_QKEY`.
const DEFAULT_QKEY: u32 = 0x0123_4567;

/// Options of [`Datagrams`], from [`Datagrams::options`].
///
/// | option | default |
/// |---|---|
/// | [`port`](Self::port) | 1 |
/// | [`gid_index`](Self::gid_index) | the port's [default GID](crate::Context::default_gid) |
/// | [`qkey`](Self::qkey) | 0x0123_4567 |
/// | [`sends`](Self::sends), [`recvs`](Self::recvs) | 16 |
/// | [`inline`](Self::inline) | 0 bytes |
/// | [`signal_every`](Self::signal_every) | a quarter of `sends` |
/// | [`sl`](Self::sl), [`traffic_class`](Self::traffic_class), [`pkey_index`](Self::pkey_index) | 0 |
/// | [`hop_limit`](Self::hop_limit) | 64; 1 for multicast groups |
/// | [`resolve_timeout`](Self::resolve_timeout) | 3 seconds |
/// | [`spin`](Self::spin) | adaptive, at most 20 µs |
///
/// ```
/// use bareverbs::{Datagrams, Device};
///
/// let pd = Device::find("soft0")?.open()?.alloc_pd()?;
/// let datagrams: Datagrams = Datagrams::options().recvs(256).inline(64).qkey(0x1234).build(&pd)?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`build` creates the datagrams"]
pub struct DatagramOptions {
    /// The options that RC has, too.
    common: EndpointOptions,
    qkey: u32,
    hop_limit: Option<u8>,
}

impl Default for DatagramOptions {
    fn default() -> Self {
        Self { common: EndpointOptions::default(), qkey: DEFAULT_QKEY, hop_limit: None }
    }
}

/// The setters of an [`EndpointOptions`] that UD has, too.
macro_rules! common_setters {
    ($($(#[$doc:meta])* $setter:ident($value:ident: $of:ty);)*) => {
        impl DatagramOptions {
            $($(#[$doc])*
            pub fn $setter(mut self, $value: $of) -> Self {
                self.common = self.common.$setter($value);
                self
            })*
        }
    };
}

common_setters! {
    /// The local port.
    port(port: impl Into<PortNum>);
    /// Index of the local GID in the port's GID table. Groups are joined on its network interface.
    gid_index(index: impl Into<GidIndex>);
    /// Index into the port's P_Key table.
    pkey_index(index: u16);
    /// Service level of destinations, 0 to 15; on RoCE the VLAN priority, 0 to 7. mlx5 uses the
    /// low 3 bits.
    sl(sl: u8);
    /// Traffic class of destinations; TOS (DSCP and ECN) of RoCE v2 packets.
    traffic_class(class: u8);
    /// Maximum of outstanding sends (`max_send_wr`).
    sends(sends: u32);
    /// Maximum of posted receives (`max_recv_wr`).
    recvs(recvs: u32);
    /// Maximum of an inline send, in bytes. A device may grant more, but not every device does:
    /// longer inline data is rejected on some.
    inline(bytes: u32);
    /// Every `signal_every`-th send of a run is signalled, even if it is
    /// [unsignalled](crate::owned::Op::unsignaled). 1 to `sends`.
    signal_every(operations: u32);
    /// How long the resolution of the Ethernet address of a destination is repeated on RoCE.
    ///
    /// The kernel waits one second for the answer of a neighbour, and fails with `ETIMEDOUT`. Then it is
    /// asked again, if less than `timeout` has passed. So [`Datagrams::destination`] blocks for at most
    /// `timeout` and one second. 0: it is asked once.
    resolve_timeout(timeout: Duration);
    /// How long a wait polls before it sleeps.
    spin(spin: Spin);
}

impl DatagramOptions {
    /// Hop limit of destinations: the number of routers that a packet may pass, plus 1; TTL of RoCE
    /// v2 packets. The default is 64, and 1 for multicast groups: their datagrams stay on the link.
    ///
    /// On Soft-RoCE the kernel replaces it by the hop limit of the IP route, except for multicast
    /// groups. On ConnectX, packets carry this value.
    pub fn hop_limit(mut self, limit: u8) -> Self {
        self.hop_limit = Some(limit);
        self
    }

    /// The Q_Key. The QP drops datagrams with another one. Peers must know it;
    /// [`Datagrams::address`] has it. If its highest bit is set, it is privileged: the kernel
    /// requires `CAP_NET_RAW`, unless
    /// [`set_privileged_qkey`](bareverbs_netlink::RdmaNetlink::set_privileged_qkey) is on.
    #[doc(alias = "RDMA_UDP_QKEY")]
    pub fn qkey(mut self, qkey: u32) -> Self {
        self.qkey = qkey;
        self
    }

    /// Creates the datagrams, with their CQ and their QP in RTS. Receives can be posted, and
    /// datagrams are received from now on.
    ///
    /// # Errors
    /// - [`Error::Limit`](crate::Error::Limit), [`Error::Invalid`](crate::Error::Invalid): an option
    ///   is out of range. The error names it.
    /// - [`Error::NoPort`](crate::Error::NoPort): the device has no such port.
    /// - [`Error::NoGid`](crate::Error::NoGid): the port has no such GID, or none.
    /// - [`Error::Kernel`](crate::Error::Kernel), [`Error::Provider`](crate::Error::Provider): a
    ///   command of the setup failed.
    pub fn build<B, P: Provider>(&self, pd: &Pd<P>) -> Result<Datagrams<B, P>> {
        let (mut parts, attr) = self.common.queues::<Ud, P>(VERB, pd, Ud::HAS_PROBES)?;
        let context = pd.context();
        let port = context.query_port(attr.port)?;
        let gid = context.gid(attr.port, attr.gid_index)?.gid;
        let qp = &mut parts.qp;
        let init = UdInitAttr { pkey_index: attr.pkey_index, ..UdInitAttr::new(attr.port, self.qkey) };
        qp.bring_up(&init, &(), &0)?;
        let address = DatagramAddress { lid: port.lid, ..DatagramAddress::new(gid, qp.qp_num(), self.qkey) };
        Ok(Datagrams {
            queues: Queues::new(parts),
            pd: PdId::of(pd.domain()),
            attr,
            resolve: self.common.resolve(),
            hop_limit: self.hop_limit,
            address,
            max_message: port.active_mtu.bytes(),
            is_ethernet: port.link_layer == LinkLayer::ETHERNET,
        })
    }
}
