//! Flows: rules that steer frames to a QP.

use std::mem::{MaybeUninit, offset_of};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::Ordering;

use bareverbs::Error;
use bareverbs::error::Refused;
use bareverbs::flow::{
    FlowAttrType, FlowCounters, FlowFlags, FlowId, FlowIpv4Filter, FlowIpv6Filter, FlowRule,
    FlowTunnelFilter, Header, Layer, Masked,
};
use bareverbs::raw::RawObject;
use bareverbs::raw::uapi::verbs_values::FlowSpecType;

use crate::abi::flow::{
    ibv_flow, ibv_flow_attr, ibv_flow_spec_action_drop, ibv_flow_spec_action_tag,
    ibv_flow_spec_counter_action, ibv_flow_spec_esp, ibv_flow_spec_eth, ibv_flow_spec_gre,
    ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6, ibv_flow_spec_mpls,
    ibv_flow_spec_tcp_udp, ibv_flow_spec_tunnel,
};
use crate::abi::values::IBV_FLOW_SPEC_IPV4_EXT;
use crate::convention::{Failure, OrErrno, OrNull, callback, required};
use crate::flow_counters::CountersObject;
use crate::object::{Object, lock};
use crate::qp::{AnyQp, QpObject};

/// What a flow of C stands for.
pub(crate) enum Steered {
    /// A rule of `ibv_create_flow`. Its QP and its counters exist as long as it: their destruction is
    /// refused.
    Rule { qp: &'static QpObject, id: FlowId, counters: Option<&'static CountersObject> },
    /// A flow of a matcher; `None` only while it is destroyed.
    Matched(Option<RawObject>),
}

pub(crate) type FlowObject = Object<ibv_flow, Steered>;

impl QpObject {
    fn create_flow(&self, rule: &FlowRule<'_>, counters: Option<&FlowCounters>) -> Result<FlowId, Failure> {
        let id = match (&self.inner, counters) {
            (AnyQp::Queues(queues), None) => queues.with_core(|core| core.create_flow(rule)),
            (AnyQp::Queues(queues), Some(counters)) => {
                queues.with_core(|core| core.create_counted_flow(rule, counters))
            }
            (AnyQp::Rss(qp), None) => lock(qp).create_flow(rule),
            (AnyQp::Rss(qp), Some(counters)) => lock(qp).create_counted_flow(rule, counters),
            (AnyQp::Target(_), _) => return Err(Failure::INVALID),
        }?;
        self.abi.flows.fetch_add(1, Ordering::Relaxed);
        Ok(id)
    }

    /// Destroys a flow of this QP.
    fn destroy_flow(&self, id: FlowId) -> Result<(), Error> {
        match &self.inner {
            AnyQp::Queues(queues) => queues.with_core(|core| core.destroy_flow(id))?,
            AnyQp::Rss(qp) => lock(qp).destroy_flow(id)?,
            // It has none.
            AnyQp::Target(_) => {}
        }
        self.abi.flows.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

const IPV4_EXT: FlowSpecType = FlowSpecType(IBV_FLOW_SPEC_IPV4_EXT.cast_unsigned());

/// The bytes of a spec.
#[derive(Clone, Copy)]
struct Spec<'a>(&'a [u8]);

impl Spec<'_> {
    /// A field at this place.
    ///
    /// # Safety
    ///
    /// All bit patterns are valid for `T`.
    unsafe fn get<T: Copy>(self, at: usize) -> Result<T, Failure> {
        let bytes = self.0.get(at..at + size_of::<T>()).ok_or(Failure::INVALID)?;
        // SAFETY: there are enough bytes, of any alignment, and all are valid by the contract.
        Ok(unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) })
    }

    /// The value and the mask of a header, which have `known` bytes that the kernel knows at these places.
    ///
    /// # Safety
    ///
    /// All bit patterns are valid for `F`.
    unsafe fn filters<F>(self, value: usize, mask: usize, known: usize) -> Result<Masked<F>, Failure> {
        let filter = |at: usize| -> Result<F, Failure> {
            let bytes = self.0.get(at..at + known).ok_or(Failure::INVALID)?;
            let mut filter = MaybeUninit::<F>::zeroed();
            let length = known.min(size_of::<F>());
            // SAFETY: both have this length, and all bytes of `filter` are written, here or by `zeroed`.
            // All are valid by the contract.
            Ok(unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), filter.as_mut_ptr().cast(), length);
                filter.assume_init()
            })
        };
        Ok(Masked { value: filter(value)?, mask: filter(mask)? })
    }

    /// As `filters`, of a header that may be longer in the program: the mask follows the value, and its
    /// further bits must be 0.
    ///
    /// # Safety
    ///
    /// All bit patterns are valid for `F`.
    unsafe fn extensible<F>(self, value: usize, known: usize) -> Result<Masked<F>, Failure> {
        let length = self.0.len().saturating_sub(value) / 2;
        let mask = value + length;
        let further = self.0.get(mask + known..mask + length).ok_or(Failure::INVALID)?;
        if further.iter().any(|byte| *byte != 0) {
            return Err(Failure::UNSUPPORTED);
        }
        // SAFETY: by the contract.
        unsafe { self.filters(value, mask, known) }
    }
}

/// The header of a spec of a fixed length.
macro_rules! fixed {
    ($spec:expr, $variant:ident, $type:ident) => {{
        let known = offset_of!($type, mask) - offset_of!($type, val);
        // SAFETY: the filters of the kernel consist of integers.
        Header::$variant(unsafe { $spec.filters(offset_of!($type, val), offset_of!($type, mask), known) }?)
    }};
}

/// The header of a spec whose filters may be longer than those of the kernel.
macro_rules! extensible {
    ($spec:expr, $variant:ident, $type:ident, $known:expr) => {
        // SAFETY: the filters of the kernel consist of integers.
        Header::$variant(unsafe { $spec.extensible(offset_of!($type, val), $known) }?)
    };
}

/// What C asks for.
#[derive(Default)]
struct Parsed {
    headers: Vec<Layer>,
    tag: Option<u32>,
    drop: bool,
    counters: Option<&'static CountersObject>,
}

impl Parsed {
    /// # Safety
    ///
    /// The specs of the flow follow it, each as long as it says. A counters object that they name is null
    /// or live.
    unsafe fn new(attr: *const ibv_flow_attr, count: u8) -> Result<Self, Failure> {
        const HEADER: usize = size_of::<ibv_flow_spec_action_drop>();
        let mut parsed = Self::default();
        // SAFETY: by the contract.
        let mut next: *const u8 = unsafe { attr.add(1) }.cast();
        for _ in 0..count {
            // SAFETY: a spec begins with its type and its size, which it has.
            let spec = unsafe {
                let header = Spec(slice::from_raw_parts(next, HEADER));
                let size: u16 = header.get(offset_of!(ibv_flow_spec_action_drop, size))?;
                Spec(slice::from_raw_parts(next, size.into()))
            };
            if spec.0.len() < HEADER {
                return Err(Failure::INVALID);
            }
            // SAFETY: the spec has this length, and by the contract.
            next = unsafe {
                parsed.add(spec)?;
                next.add(spec.0.len())
            };
        }
        Ok(parsed)
    }

    /// The rule of a flow with these specs.
    fn rule(&self, attr: &ibv_flow_attr) -> FlowRule<'_> {
        FlowRule {
            kind: FlowAttrType(attr.attr_type),
            priority: attr.priority,
            flags: FlowFlags::from_bits_retain(attr.flags),
            tag: self.tag,
            drop: self.drop,
            ..FlowRule::with_headers(attr.port, &self.headers)
        }
    }

    /// # Safety
    ///
    /// A counters object that the spec names is null or live.
    unsafe fn add(&mut self, spec: Spec<'_>) -> Result<(), Failure> {
        // SAFETY: the type is an integer.
        let FlowSpecType(bits) =
            unsafe { spec.get(offset_of!(ibv_flow_spec_action_drop, spec_type)) }.map(FlowSpecType)?;
        let is_inner = bits & FlowSpecType::INNER.0 != 0;
        let header = match FlowSpecType(bits & !FlowSpecType::INNER.0) {
            FlowSpecType::ETH => fixed!(spec, Ethernet, ibv_flow_spec_eth),
            FlowSpecType::IPV4 => fixed!(spec, Ipv4, ibv_flow_spec_ipv4),
            IPV4_EXT => extensible!(spec, Ipv4, ibv_flow_spec_ipv4_ext, size_of::<FlowIpv4Filter>()),
            FlowSpecType::IPV6 => {
                extensible!(spec, Ipv6, ibv_flow_spec_ipv6, offset_of!(FlowIpv6Filter, reserved))
            }
            FlowSpecType::ESP => fixed!(spec, Esp, ibv_flow_spec_esp),
            FlowSpecType::TCP => fixed!(spec, Tcp, ibv_flow_spec_tcp_udp),
            FlowSpecType::UDP => fixed!(spec, Udp, ibv_flow_spec_tcp_udp),
            FlowSpecType::MPLS => fixed!(spec, Mpls, ibv_flow_spec_mpls),
            _ if is_inner => return Err(Failure::INVALID),
            FlowSpecType::VXLAN_TUNNEL => {
                extensible!(spec, Vxlan, ibv_flow_spec_tunnel, size_of::<FlowTunnelFilter>())
            }
            FlowSpecType::GRE => fixed!(spec, Gre, ibv_flow_spec_gre),
            other => {
                // SAFETY: by the contract.
                return unsafe { self.add_action(other, spec) };
            }
        };
        self.headers.push(if is_inner { Layer::Inner(header) } else { Layer::Outer(header) });
        Ok(())
    }

    /// # Safety
    ///
    /// As for `add`.
    unsafe fn add_action(&mut self, spec_type: FlowSpecType, spec: Spec<'_>) -> Result<(), Failure> {
        match spec_type {
            FlowSpecType::ACTION_TAG => {
                // SAFETY: the tag is an integer.
                self.tag = Some(unsafe { spec.get(offset_of!(ibv_flow_spec_action_tag, tag_id)) }?);
            }
            FlowSpecType::ACTION_DROP => self.drop = true,
            FlowSpecType::ACTION_COUNT if self.counters.is_none() => {
                let at = offset_of!(ibv_flow_spec_counter_action, counters);
                // SAFETY: the field is a pointer, which the program has written. It is null or that of
                // counters, which exist longer than the flow.
                self.counters = Some(unsafe { required(spec.get::<*const CountersObject>(at)?.as_ref())? });
            }
            // No program has an action: nothing creates them.
            FlowSpecType::ACTION_HANDLE => return Err(Failure::UNSUPPORTED),
            _ => return Err(Failure::INVALID),
        }
        Ok(())
    }
}

callback! {
    /// `ibv_create_flow`.
    fn create_flow(qp: Option<&'static QpObject>, attr: *const ibv_flow_attr) -> OrNull<ibv_flow> {
        let qp = required(qp)?;
        // SAFETY: the argument is null or a flow of C.
        let fixed = required(unsafe { attr.as_ref() })?;
        if fixed.comp_mask != 0 {
            return Err(Failure::INVALID);
        }
        // SAFETY: the specs follow, by the manual.
        let parsed = unsafe { Parsed::new(attr, fixed.num_of_specs) }?;
        let rule = parsed.rule(fixed);
        Object::create(|_| {
            let create = || qp.create_flow(&rule, parsed.counters.map(|counters| &counters.inner));
            let id = match parsed.counters {
                Some(counters) => counters.abi.bind(create),
                None => create(),
            }?;
            let abi = ibv_flow { comp_mask: 0, context: qp.abi.context(), handle: id.handle() };
            Ok((abi, Steered::Rule { qp, id, counters: parsed.counters }))
        })
    }

    /// `ibv_destroy_flow`.
    fn destroy_flow(flow: Option<NonNull<FlowObject>>) -> OrErrno {
        let flow = required(flow)?;
        // SAFETY: the argument is a live flow, which nothing else uses.
        if let Steered::Matched(kernel) = unsafe { &mut (*flow.as_ptr()).inner }
            && let Some(Err(refused)) = kernel.take().map(RawObject::destroy)
        {
            *kernel = Some(refused.object);
            return Err(refused.errno.into());
        }
        let destroy = |steered: Steered| {
            let Steered::Rule { qp, id, counters } = steered else { return Ok(()) };
            let destroyed = qp.destroy_flow(id);
            if let (Ok(()), Some(counters)) = (&destroyed, counters) {
                counters.abi.unbind();
            }
            destroyed.map_err(|error| Refused::new(error, Steered::Rule { qp, id, counters }))
        };
        // SAFETY: as above; the program uses it no longer.
        unsafe { Object::destroy(flow, destroy, |_, ()| ()) }
    }
}

#[cfg(test)]
mod tests {
    use bareverbs::flow::{FlowEthFilter, FlowTcpUdpFilter};
    use bareverbs::raw::uapi::abi::{Be16, Be32};

    use super::*;

    /// A flow and its specs, as C lays them out.
    #[derive(Default)]
    struct Flow {
        specs: Vec<u8>,
        count: u8,
    }

    impl Flow {
        /// Adds a spec of `bytes` that says another size.
        fn sized(mut self, spec_type: u32, bytes: &[u8], size: usize) -> Self {
            let start = self.specs.len();
            self.specs.extend_from_slice(&spec_type.to_ne_bytes());
            self.specs.extend_from_slice(&u16::try_from(size).unwrap().to_ne_bytes());
            self.specs.extend_from_slice(bytes);
            self.specs.resize(self.specs.len().max(start + size), 0);
            self.count += 1;
            self
        }

        fn with(self, spec_type: FlowSpecType, bytes: &[u8], size: usize) -> Self {
            self.sized(spec_type.0, bytes, size)
        }

        fn parsed(&self) -> Result<Parsed, Failure> {
            let memory = [&[0; size_of::<ibv_flow_attr>()][..], &self.specs].concat();
            // SAFETY: the specs follow, and name no counters.
            unsafe { Parsed::new(memory.as_ptr().cast(), self.count) }
        }
    }

    #[test]
    fn specs_of_c_become_headers_and_actions() {
        let mac = [[1, 2, 3, 4, 5, 6], [0; 6]].concat();
        let eth = [&mac[..], &[8, 0, 0, 7], &[0xff; 6], &[0; 6], &[0xff, 0xff, 0x0f, 0xff]].concat();
        let ports = [0, 7, 0, 0, 0xff, 0xf0, 0, 0];
        let parsed = Flow::default()
            .with(FlowSpecType::ETH, &eth, size_of::<ibv_flow_spec_eth>())
            .with(
                FlowSpecType::IPV4,
                &[&[0; 2][..], &[10, 0, 0, 1], &[0; 4], &[0xff; 4], &[0; 4]].concat(),
                size_of::<ibv_flow_spec_ipv4>(),
            )
            .with(
                FlowSpecType(IPV4_EXT.0 | FlowSpecType::INNER.0),
                &[&[0; 2][..], &[0; 8], &[17, 0, 0, 0], &[0; 8], &[0xff, 0, 0, 0]].concat(),
                size_of::<ibv_flow_spec_ipv4_ext>(),
            )
            .with(FlowSpecType::UDP, &ports, size_of::<ibv_flow_spec_tcp_udp>())
            .with(
                FlowSpecType::VXLAN_TUNNEL,
                &[0, 0, 0, 0, 0, 5, 0, 0xff, 0xff, 0xff],
                size_of::<ibv_flow_spec_tunnel>(),
            )
            .with(FlowSpecType::ACTION_TAG, &[0, 0, 9, 0, 0, 0], size_of::<ibv_flow_spec_action_tag>())
            .with(FlowSpecType::ACTION_DROP, &[], size_of::<ibv_flow_spec_action_drop>())
            .parsed()
            .unwrap();
        let eth_of = |dst_mac, ether_type, vlan| FlowEthFilter {
            dst_mac,
            ether_type: Be16::new(ether_type),
            vlan_tag: Be16::new(vlan),
            ..FlowEthFilter::zeroed()
        };
        let from = |ip| FlowIpv4Filter { src_ip: Be32::new(ip), ..FlowIpv4Filter::zeroed() };
        let of = |proto| FlowIpv4Filter { proto, ..FlowIpv4Filter::zeroed() };
        let to = |port| FlowTcpUdpFilter { dst_port: Be16::new(port), ..FlowTcpUdpFilter::zeroed() };
        let id = |id| FlowTunnelFilter { tunnel_id: Be32::new(id) };
        let headers = [
            Layer::Outer(Header::Ethernet(Masked {
                value: eth_of([1, 2, 3, 4, 5, 6], 0x0800, 7),
                mask: eth_of([0xff; 6], 0xffff, 0x0fff),
            })),
            Layer::Outer(Header::Ipv4(Masked { value: from(0x0a00_0001), mask: from(u32::MAX) })),
            Layer::Inner(Header::Ipv4(Masked { value: of(17), mask: of(0xff) })),
            Layer::Outer(Header::Udp(Masked { value: to(7), mask: to(0xfff0) })),
            Layer::Outer(Header::Vxlan(Masked { value: id(5), mask: id(0x00ff_ffff) })),
        ];
        assert_eq!(parsed.headers, headers);
        assert_eq!((parsed.tag, parsed.drop, parsed.counters.is_none()), (Some(9), true, true));
    }

    #[test]
    fn rule_has_the_attributes_of_the_flow() {
        let parsed = Flow::default()
            .with(FlowSpecType::TCP, &[0; 2], size_of::<ibv_flow_spec_tcp_udp>())
            .with(FlowSpecType::ACTION_TAG, &[0, 0, 9, 0, 0, 0], size_of::<ibv_flow_spec_action_tag>())
            .with(FlowSpecType::ACTION_DROP, &[], size_of::<ibv_flow_spec_action_drop>())
            .parsed()
            .unwrap();
        let rule = parsed.rule(&ibv_flow_attr {
            comp_mask: 0,
            attr_type: FlowAttrType::SNIFFER.0,
            size: 0,
            priority: 7,
            num_of_specs: 3,
            port: 2,
            flags: FlowFlags::DONT_TRAP.bits(),
        });
        let expected = FlowRule {
            kind: FlowAttrType::SNIFFER,
            priority: 7,
            flags: FlowFlags::DONT_TRAP,
            tag: Some(9),
            drop: true,
            ..FlowRule::with_headers(2, &parsed.headers)
        };
        assert_eq!((rule, parsed.headers.len()), (expected, 1));
    }

    #[test]
    fn malformed_specs_are_rejected() {
        let failed = |flow: Flow| flow.parsed().err().map(Failure::errno);
        let ipv6 = size_of::<ibv_flow_spec_ipv6>();
        let (invalid, unsupported) = (Some(libc::EINVAL), Some(libc::EOPNOTSUPP));
        assert_eq!(failed(Flow::default().with(FlowSpecType::IPV6, &[], ipv6)), None);
        // Shorter than its header, than its filters, or than a filter of the kernel.
        assert_eq!(failed(Flow::default().sized(FlowSpecType::ACTION_DROP.0, &[0; 2], 0)), invalid);
        assert_eq!(failed(Flow::default().with(FlowSpecType::TCP, &[0; 2], 12)), invalid);
        assert_eq!(failed(Flow::default().with(FlowSpecType::IPV6, &[0; 2], 40)), invalid);
        // A longer filter, with a bit that the kernel does not know.
        let longer = |last: u8| [&[0; 2 + 48][..], &[0; 47], &[last]].concat();
        assert_eq!(failed(Flow::default().with(FlowSpecType::IPV6, &longer(0), 8 + 96)), None);
        assert_eq!(failed(Flow::default().with(FlowSpecType::IPV6, &longer(1), 8 + 96)), unsupported);
        // Unknown; an action or a tunnel of an inner packet; no counters.
        assert_eq!(failed(Flow::default().sized(0x77, &[0; 2], 8)), invalid);
        for inner in [FlowSpecType::ACTION_DROP, FlowSpecType::GRE] {
            assert_eq!(failed(Flow::default().sized(inner.0 | FlowSpecType::INNER.0, &[0; 2], 24)), invalid);
        }
        assert_eq!(failed(Flow::default().with(FlowSpecType::ACTION_COUNT, &[0; 2], 16)), invalid);
        assert_eq!(failed(Flow::default().with(FlowSpecType::ACTION_HANDLE, &[0; 2], 16)), unsupported);
    }
}
