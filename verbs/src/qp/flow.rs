//! Flow steering: rules that direct Ethernet frames to a QP.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::abi::{Be16, Be32};
use bareverbs_uapi::verbs_values::FlowSpecType;
use bareverbs_uapi::write::structs::FlowAttr;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::flow_counters::{CountersShared, FlowCounters};
use super::flow_specs::Specs;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::values::{MacAddress, PortNum};

pub use bareverbs_uapi::verbs_values::{FlowAttrType, FlowFlags};
pub use bareverbs_uapi::write::structs::{
    FlowEthFilter, FlowGreFilter, FlowIpv4Filter, FlowIpv6Filter, FlowMplsFilter, FlowSpecEspFilter,
    FlowTcpUdpFilter, FlowTunnelFilter,
};

/// Ethernet header fields that a frame must match; `None` matches any value.
#[doc(alias = "ibv_flow_eth_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetMatch {
    /// Destination address.
    pub dst_mac: Option<MacAddress>,
    /// Source address.
    pub src_mac: Option<MacAddress>,
    /// EtherType, such as 0x0800 for IPv4.
    pub ether_type: Option<u16>,
    /// VLAN id, 0 to 4,095. `Some` requires a VLAN tag; the EtherType is that after the tag.
    pub vlan: Option<u16>,
}

/// IPv4 header fields that a frame must match; `None` matches any value.
#[doc(alias = "ibv_flow_ipv4_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Match {
    /// Source address.
    pub src_ip: Option<Ipv4Addr>,
    /// Destination address.
    pub dst_ip: Option<Ipv4Addr>,
    /// Protocol of the payload, such as 17 for UDP.
    pub protocol: Option<u8>,
    /// Type of service: DSCP and ECN.
    pub tos: Option<u8>,
}

/// IPv6 header fields that a frame must match; `None` matches any value.
#[doc(alias = "ibv_flow_ipv6_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Match {
    /// Source address.
    pub src_ip: Option<Ipv6Addr>,
    /// Destination address.
    pub dst_ip: Option<Ipv6Addr>,
    /// Next header, such as 17 for UDP.
    pub next_header: Option<u8>,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: Option<u8>,
    /// Flow label, 20 bits.
    pub flow_label: Option<u32>,
}

/// TCP or UDP ports that a frame must match; `None` matches any value.
#[doc(alias = "ibv_flow_tcp_udp_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMatch {
    /// Source port.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
}

/// The transport header, with its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum L4Match {
    /// TCP.
    Tcp(PortMatch),
    /// UDP.
    Udp(PortMatch),
}

/// A header of a frame, bit by bit: the frame matches if its bits are those of `value` where `mask`
/// has a 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masked<T> {
    /// The bits.
    pub value: T,
    /// Which of them are compared.
    pub mask: T,
}

/// A header to match bit by bit. The device may support some headers and fields only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Header {
    /// Ethernet.
    #[doc(alias = "IBV_FLOW_SPEC_ETH")]
    Ethernet(Masked<FlowEthFilter>),
    /// IPv4.
    #[doc(alias = "IBV_FLOW_SPEC_IPV4_EXT")]
    Ipv4(Masked<FlowIpv4Filter>),
    /// IPv6.
    #[doc(alias = "IBV_FLOW_SPEC_IPV6")]
    Ipv6(Masked<FlowIpv6Filter>),
    /// ESP, of IPsec.
    #[doc(alias = "IBV_FLOW_SPEC_ESP")]
    Esp(Masked<FlowSpecEspFilter>),
    /// TCP.
    #[doc(alias = "IBV_FLOW_SPEC_TCP")]
    Tcp(Masked<FlowTcpUdpFilter>),
    /// UDP.
    #[doc(alias = "IBV_FLOW_SPEC_UDP")]
    Udp(Masked<FlowTcpUdpFilter>),
    /// VXLAN, a tunnel; its identifier has 24 bits.
    #[doc(alias = "IBV_FLOW_SPEC_VXLAN_TUNNEL")]
    Vxlan(Masked<FlowTunnelFilter>),
    /// GRE, a tunnel.
    #[doc(alias = "IBV_FLOW_SPEC_GRE")]
    Gre(Masked<FlowGreFilter>),
    /// An MPLS label.
    #[doc(alias = "IBV_FLOW_SPEC_MPLS")]
    Mpls(Masked<FlowMplsFilter>),
}

impl Header {
    /// Encodes the flow spec for the kernel.
    fn encode(&self, is_inner: bool, specs: &mut Specs) {
        let inner = if is_inner { FlowSpecType::INNER.0 } else { 0 };
        let mut push = |spec_type: FlowSpecType, value: &[u8], mask: &[u8]| {
            specs.push(FlowSpecType(spec_type.0 | inner), &[value, mask]);
        };
        match self {
            Self::Ethernet(Masked { value, mask }) => {
                push(FlowSpecType::ETH, value.as_bytes(), mask.as_bytes());
            }
            Self::Ipv4(Masked { value, mask }) => push(FlowSpecType::IPV4, value.as_bytes(), mask.as_bytes()),
            Self::Ipv6(Masked { value, mask }) => push(FlowSpecType::IPV6, value.as_bytes(), mask.as_bytes()),
            Self::Esp(Masked { value, mask }) => push(FlowSpecType::ESP, value.as_bytes(), mask.as_bytes()),
            Self::Tcp(Masked { value, mask }) => push(FlowSpecType::TCP, value.as_bytes(), mask.as_bytes()),
            Self::Udp(Masked { value, mask }) => push(FlowSpecType::UDP, value.as_bytes(), mask.as_bytes()),
            Self::Vxlan(Masked { value, mask }) => {
                push(FlowSpecType::VXLAN_TUNNEL, value.as_bytes(), mask.as_bytes());
            }
            Self::Gre(Masked { value, mask }) => push(FlowSpecType::GRE, value.as_bytes(), mask.as_bytes()),
            Self::Mpls(Masked { value, mask }) => push(FlowSpecType::MPLS, value.as_bytes(), mask.as_bytes()),
        }
    }
}

/// A header of the frame, or one of the packet in its tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Of the frame itself, and of tunnels.
    Outer(Header),
    /// Of the packet in a tunnel.
    #[doc(alias = "IBV_FLOW_SPEC_INNER")]
    Inner(Header),
}

/// A flow rule; see [`Qp::create_flow`](crate::qp::Qp::create_flow) and
/// [`RssQp::create_flow`](crate::rss::RssQp::create_flow).
///
/// The simple headers compare whole fields. Those of `headers` compare bits, and are matched too:
///
/// ```
/// use bareverbs::flow::{FlowIpv4Filter, FlowRule, Header, Layer, Masked};
/// use bareverbs::raw::uapi::abi::Be32;
///
/// let address = |ip: [u8; 4]| FlowIpv4Filter { src_ip: Be32::new(u32::from_be_bytes(ip)), ..FlowIpv4Filter::zeroed() };
/// let from_10 = Masked { value: address([10, 0, 0, 0]), mask: address([255, 0, 0, 0]) };
/// let headers = [Layer::Outer(Header::Ipv4(from_10))];
/// let rule = FlowRule { tag: Some(7), ..FlowRule::with_headers(1, &headers) };
/// assert!(rule.ethernet.is_none());
/// ```
#[doc(alias = "ibv_flow_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRule<'a> {
    /// Which frames the rule is about: those that match the headers, or all that no rule matches.
    pub kind: FlowAttrType,
    /// The port that receives the frames.
    pub port: PortNum,
    /// Priority. If several rules match, the rule with the lowest number takes the frame.
    pub priority: u16,
    /// [`FlowFlags::DONT_TRAP`]: rules of a lower priority get the frames too.
    /// [`FlowFlags::EGRESS`]: the rule is about frames that are sent.
    pub flags: FlowFlags,
    /// Ethernet header to match.
    pub ethernet: Option<EthernetMatch>,
    /// IPv4 header to match. `Some` requires an IPv4 header.
    pub ipv4: Option<Ipv4Match>,
    /// IPv6 header to match. `Some` requires an IPv6 header, and excludes `ipv4`.
    pub ipv6: Option<Ipv6Match>,
    /// TCP or UDP header to match. `Some` requires such a header.
    pub l4: Option<L4Match>,
    /// Further headers to match, in their order in a frame.
    pub headers: &'a [Layer],
    /// The tag of the frames' completions ([`Completion::flow_tag`](crate::cq::Completion::flow_tag)),
    /// 24 bits. `None`: 0.
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_TAG")]
    pub tag: Option<u32>,
    /// Whether frames that match are dropped, in place of steering them to the QP.
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_DROP")]
    pub drop: bool,
}

impl FlowRule<'static> {
    /// A rule for this Ethernet header, of priority 0 (the highest).
    #[must_use]
    pub fn new(port: impl Into<PortNum>, ethernet: EthernetMatch) -> Self {
        Self { ethernet: Some(ethernet), ..Self::with_headers(port, &[]) }
    }
}

impl<'a> FlowRule<'a> {
    /// A rule for these headers, of priority 0 (the highest). Without any it matches all frames.
    #[must_use]
    pub fn with_headers(port: impl Into<PortNum>, headers: &'a [Layer]) -> Self {
        Self {
            kind: FlowAttrType::NORMAL,
            port: port.into(),
            priority: 0,
            flags: FlowFlags::empty(),
            ethernet: None,
            ipv4: None,
            ipv6: None,
            l4: None,
            headers,
            tag: None,
            drop: false,
        }
    }

    /// Rejects rules that no frame can match, and values wider than their field.
    fn check(&self, verb: &'static str) -> Result<()> {
        let invalid = |reason: &'static str| Err(Error::invalid(verb, reason));
        if self.ipv4.is_some() && self.ipv6.is_some() {
            return invalid("no frame has an IPv4 and an IPv6 header: set one of `ipv4` and `ipv6`");
        }
        let is_ipv4_or_6 = |layer: &Layer| matches!(layer, Layer::Outer(Header::Ipv4(_) | Header::Ipv6(_)));
        let has_ip = self.ipv4.is_some() || self.ipv6.is_some() || self.headers.iter().any(is_ipv4_or_6);
        if self.l4.is_some() && !has_ip {
            let reason =
                "matching ports requires an IP header: set `ipv4` or `ipv6`, for example to its default";
            return invalid(reason);
        }
        let has_headers = self.ethernet.is_some() || has_ip || !self.headers.is_empty();
        if self.kind != FlowAttrType::NORMAL && (has_headers || self.tag.is_some() || self.drop) {
            // The driver ignores them (`mlx5_ib_create_flow` of mlx5's `fs.c`).
            return invalid("a default rule or a sniffer has no headers and actions: omit them");
        }
        let vlan = self.ethernet.and_then(|ethernet| ethernet.vlan).unwrap_or(0);
        Error::check_range(verb, "VLAN id", vlan.into(), VLAN_ID.into())?;
        Error::check_range(verb, "flow tag", self.tag.unwrap_or(0).into(), FLOW_TAG.into())?;
        let label = self.ipv6.and_then(|ipv6| ipv6.flow_label).unwrap_or(0);
        Error::check_range(verb, "flow label", label.into(), FLOW_LABEL.into())?;
        // A counter may follow.
        if self.specs().count.is_none_or(|count| count == u8::MAX) {
            return invalid("a rule has at most 254 headers and actions");
        }
        Ok(())
    }

    /// Encodes the flow specs for the kernel, back to back, and counts them.
    fn specs(&self) -> Specs {
        let mut specs = Specs::default();
        let simple = [
            self.ethernet.map(EthernetMatch::header),
            self.ipv4.map(Ipv4Match::header),
            self.ipv6.map(Ipv6Match::header),
            self.l4.map(L4Match::header),
        ];
        for header in simple.into_iter().flatten() {
            header.encode(false, &mut specs);
        }
        for layer in self.headers {
            match layer {
                Layer::Outer(header) => header.encode(false, &mut specs),
                Layer::Inner(header) => header.encode(true, &mut specs),
            }
        }
        if let Some(tag) = self.tag {
            specs.push(FlowSpecType::ACTION_TAG, &[tag.as_bytes(), &[0; 4]]);
        }
        if self.drop {
            specs.push(FlowSpecType::ACTION_DROP, &[]);
        }
        specs
    }
}

impl EthernetMatch {
    fn header(self) -> Header {
        let of =
            |mac: fn(Option<MacAddress>) -> [u8; 6], number: fn(Option<u16>, u16) -> Be16| FlowEthFilter {
                dst_mac: mac(self.dst_mac),
                src_mac: mac(self.src_mac),
                ether_type: number(self.ether_type, u16::MAX),
                vlan_tag: number(self.vlan, VLAN_ID),
            };
        let value =
            of(|address| address.map_or([0; 6], |mac| mac.0), |number, _| Be16::new(number.unwrap_or(0)));
        let mask = of(|address| mask(address, [0xff; 6]), |number, all| Be16::new(mask(number, all)));
        Header::Ethernet(Masked { value, mask })
    }
}

impl Ipv4Match {
    fn header(self) -> Header {
        let Self { src_ip, dst_ip, protocol, tos } = self;
        let address = |value: Option<Ipv4Addr>| Be32::new(value.map_or(0, u32::from));
        let all = |value: Option<Ipv4Addr>| Be32::new(mask(value, u32::MAX));
        Header::Ipv4(Masked {
            value: FlowIpv4Filter {
                src_ip: address(src_ip),
                dst_ip: address(dst_ip),
                proto: protocol.unwrap_or(0),
                tos: tos.unwrap_or(0),
                ..FlowIpv4Filter::zeroed()
            },
            mask: FlowIpv4Filter {
                src_ip: all(src_ip),
                dst_ip: all(dst_ip),
                proto: mask(protocol, u8::MAX),
                tos: mask(tos, u8::MAX),
                ..FlowIpv4Filter::zeroed()
            },
        })
    }
}

impl Ipv6Match {
    fn header(self) -> Header {
        let Self { src_ip, dst_ip, next_header, traffic_class, flow_label } = self;
        let address = |value: Option<Ipv6Addr>| value.map_or([0; 16], |ip| ip.octets());
        Header::Ipv6(Masked {
            value: FlowIpv6Filter {
                src_ip: address(src_ip),
                dst_ip: address(dst_ip),
                flow_label: Be32::new(flow_label.unwrap_or(0)),
                next_hdr: next_header.unwrap_or(0),
                traffic_class: traffic_class.unwrap_or(0),
                ..FlowIpv6Filter::zeroed()
            },
            mask: FlowIpv6Filter {
                src_ip: mask(src_ip, [0xff; 16]),
                dst_ip: mask(dst_ip, [0xff; 16]),
                flow_label: Be32::new(mask(flow_label, FLOW_LABEL)),
                next_hdr: mask(next_header, u8::MAX),
                traffic_class: mask(traffic_class, u8::MAX),
                ..FlowIpv6Filter::zeroed()
            },
        })
    }
}

impl L4Match {
    fn header(self) -> Header {
        let ports = |PortMatch { src_port, dst_port }| {
            let value = |port: Option<u16>| Be16::new(port.unwrap_or(0));
            let all = |port: Option<u16>| Be16::new(mask(port, u16::MAX));
            Masked {
                value: FlowTcpUdpFilter { dst_port: value(dst_port), src_port: value(src_port) },
                mask: FlowTcpUdpFilter { dst_port: all(dst_port), src_port: all(src_port) },
            }
        };
        match self {
            Self::Tcp(match_of) => Header::Tcp(ports(match_of)),
            Self::Udp(match_of) => Header::Udp(ports(match_of)),
        }
    }
}

/// Bits of a VLAN tag that are the VLAN id.
const VLAN_ID: u16 = 0xfff;

/// Bits of a flow label.
const FLOW_LABEL: u32 = 0xf_ffff;

/// Bits of a flow tag.
const FLOW_TAG: u32 = 0xff_ffff;

/// `all` if there is a value, else 0.
fn mask<T, M: Default>(value: Option<T>, all: M) -> M {
    if value.is_some() { all } else { M::default() }
}

/// The handle of a flow, from [`Qp::create_flow`](crate::qp::Qp::create_flow).
#[doc(alias = "ibv_flow")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId(u32);

impl FlowId {
    /// Its kernel handle.
    #[must_use]
    pub fn handle(self) -> u32 {
        self.0
    }
}

/// The flows that steer to a QP.
#[derive(Debug, Default)]
pub(crate) struct Flows(Vec<Flow>);

#[derive(Debug)]
struct Flow {
    handle: u32,
    /// The counters are destroyed after the flow.
    counters: Option<Arc<CountersShared>>,
}

impl Flow {
    /// # Safety
    ///
    /// The flow must not have been destroyed before. If this succeeds, the handle must not be used
    /// afterwards.
    unsafe fn destroy(&self, file: &DeviceFile) -> Result<(), IoctlError> {
        // SAFETY: the caller's contract is the same.
        let destroy = || unsafe { command::destroy_flow(file, self.handle) };
        match &self.counters {
            Some(counters) => counters.destroy_flow(destroy),
            None => destroy(),
        }
    }
}

impl Flows {
    /// Creates a flow that steers to the QP with the handle `qp`, and counts into `counters`.
    pub(crate) fn create<P: Provider>(
        &mut self,
        context: &Context<P>,
        qp: u32,
        rule: &FlowRule<'_>,
        counters: Option<&FlowCounters>,
    ) -> Result<FlowId> {
        const VERB: &str = "create_flow";
        context.check_port(rule.port)?;
        rule.check(VERB)?;
        let mut specs = rule.specs();
        let flow = FlowAttr {
            attr_type: rule.kind,
            priority: rule.priority,
            port: rule.port.0,
            flags: rule.flags,
            ..FlowAttr::zeroed()
        };
        let asked = format!("{rule:?}");
        let made = match counters {
            Some(counters) => counters.create_flow((VERB, &asked), context, qp, flow, &mut specs),
            None => command::create_flow(context.file(), qp, specs.counted(flow), &specs.bytes)
                .map_err(|refused| Error::kernel(VERB, asked, refused)),
        };
        let handle = made.map_err(|error| {
            error.or_hint(|errno| match errno {
                Errno::PERM => Some("flows require CAP_NET_RAW".into()),
                Errno::INVAL => Some("the device may not support these headers or this priority".into()),
                _ => None,
            })
        })?;
        self.0.push(Flow { handle, counters: counters.map(|counters| Arc::clone(counters.shared())) });
        Ok(FlowId(handle))
    }

    /// Destroys a flow of this QP.
    pub(crate) fn destroy<P: Provider>(&mut self, context: &Context<P>, flow: FlowId) -> Result<()> {
        const VERB: &str = "destroy_flow";
        let at = self.0.iter().position(|own| own.handle == flow.0);
        let at = at.ok_or_else(|| Error::foreign(VERB, "the flow belongs to another QP"))?;
        // SAFETY: the flow is one of this QP's, as checked above.
        unsafe { self.0[at].destroy(context.file()) }
            .map_err(|refused| Error::kernel(VERB, format!("flow handle {}", flow.0), refused))?;
        self.0.swap_remove(at);
        Ok(())
    }

    /// Destroys all flows of this QP, and keeps those that the kernel refuses to destroy.
    pub(crate) fn destroy_all(&mut self, file: &DeviceFile) {
        // SAFETY: the flow is one of this QP's, and its handle is dropped if it was destroyed.
        self.0.retain(|flow| unsafe { flow.destroy(file) }.is_err());
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::write::structs::{
        FlowSpecEsp, FlowSpecEth, FlowSpecGre, FlowSpecIpv4, FlowSpecIpv6, FlowSpecMpls, FlowSpecTcpUdp,
        FlowSpecTunnel,
    };

    use super::*;

    fn any<T: Copy>(zeros: T) -> Masked<T> {
        Masked { value: zeros, mask: zeros }
    }

    fn encoded(rule: FlowRule<'_>) -> (Vec<u8>, u8) {
        let Specs { bytes, count } = rule.specs();
        (bytes, count.unwrap())
    }

    #[test]
    fn flow_rule_masks_only_given_fields() {
        let ethernet =
            EthernetMatch { dst_mac: Some(MacAddress([1, 2, 3, 4, 5, 6])), ..EthernetMatch::default() };
        let (bytes, count) = encoded(FlowRule::new(1, ethernet));
        assert_eq!((bytes.len(), count), (40, 1));
        assert_eq!(bytes[..8], [0x20, 0, 0, 0, 40, 0, 0, 0]);
        assert_eq!(bytes[8..24], [1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..], [[0xff; 6], [0; 6]].concat().into_iter().chain([0; 4]).collect::<Vec<_>>());
    }

    #[test]
    fn flow_rule_ports_are_big_endian() {
        let l4 = Some(L4Match::Udp(PortMatch { src_port: None, dst_port: Some(0x1234) }));
        let rule =
            FlowRule { ipv4: Some(Ipv4Match::default()), l4, ..FlowRule::new(1, EthernetMatch::default()) };
        let (bytes, count) = encoded(rule);
        assert_eq!((bytes.len(), count), (40 + 32 + 16, 3));
        assert_eq!(bytes[72..], [0x41, 0, 0, 0, 16, 0, 0, 0, 0x12, 0x34, 0, 0, 0xff, 0xff, 0, 0]);
    }

    #[test]
    fn flow_rule_encodes_vlan_tos_protocol_ipv6_and_drop() {
        let ethernet = EthernetMatch { vlan: Some(5), ..EthernetMatch::default() };
        let ipv4 = Ipv4Match { protocol: Some(17), tos: Some(0x2e), ..Ipv4Match::default() };
        let (bytes, count) = encoded(FlowRule { ipv4: Some(ipv4), drop: true, ..FlowRule::new(1, ethernet) });
        assert_eq!((bytes.len(), count), (40 + 32 + 8, 3));
        assert_eq!((&bytes[22..24], &bytes[38..40]), (&[0, 5][..], &[0x0f, 0xff][..]));
        assert_eq!((&bytes[56..60], &bytes[68..72]), (&[17, 0x2e, 0, 0][..], &[0xff, 0xff, 0, 0][..]));
        assert_eq!(bytes[72..], [1, 0x10, 0, 0, 8, 0, 0, 0]);

        let dst_ip = Some(Ipv6Addr::LOCALHOST);
        let ipv6 =
            Ipv6Match { dst_ip, next_header: Some(6), flow_label: Some(0x12345), ..Ipv6Match::default() };
        let rule = FlowRule { ipv6: Some(ipv6), ..FlowRule::new(1, EthernetMatch::default()) };
        let (bytes, count) = encoded(rule);
        assert_eq!((bytes.len(), count), (40 + 88, 2));
        let (value, mask) = bytes[48..].split_at(40);
        assert_eq!(value[16..36], [&Ipv6Addr::LOCALHOST.octets()[..], &[0, 1, 0x23, 0x45]].concat());
        assert_eq!((value[36], &mask[..16]), (6, &[0; 16][..]));
        assert_eq!(mask[16..40], [&[0xff; 16][..], &[0, 0xf, 0xff, 0xff, 0xff, 0, 0, 0]].concat());
    }

    #[test]
    fn impossible_flow_rules_are_rejected() {
        let rule = FlowRule::new(1, EthernetMatch::default());
        let l4 = Some(L4Match::Tcp(PortMatch::default()));
        let reason = |rule: FlowRule<'_>| rule.check("create_flow").unwrap_err().to_string();
        let both = FlowRule { ipv4: Some(Ipv4Match::default()), ipv6: Some(Ipv6Match::default()), ..rule };
        assert!(reason(both).contains("IPv4 and an IPv6"));
        assert!(reason(FlowRule { l4, ..rule }).contains("requires an IP header"));
        assert!(FlowRule { l4, ipv6: Some(Ipv6Match::default()), ..rule }.check("create_flow").is_ok());
        let wide = EthernetMatch { vlan: Some(4096), ..EthernetMatch::default() };
        assert!(reason(FlowRule::new(1, wide)).contains("12 bits"));
        let label = Ipv6Match { flow_label: Some(1 << 20), ..Ipv6Match::default() };
        assert!(reason(FlowRule { ipv6: Some(label), ..rule }).contains("20 bits"));
    }
    #[test]
    fn flow_rule_encodes_masks_tunnels_inner_headers_and_tag() {
        let filter = |spi| FlowSpecEspFilter { spi: u32::to_be(spi), ..FlowSpecEspFilter::zeroed() };
        let esp = Header::Esp(Masked { value: filter(7), mask: filter(0xff) });
        let vni = |id| FlowTunnelFilter { tunnel_id: Be32::new(id) };
        let headers = [
            Layer::Outer(Header::Vxlan(Masked { value: vni(5), mask: vni(0xff_fff0) })),
            Layer::Inner(Header::Gre(any(FlowGreFilter::zeroed()))),
            Layer::Inner(Header::Mpls(any(FlowMplsFilter::zeroed()))),
            Layer::Outer(esp),
        ];
        let (bytes, count) =
            encoded(FlowRule { tag: Some(0x0001_0203), ..FlowRule::with_headers(1, &headers) });
        assert_eq!((bytes.len(), count), (16 + 24 + 16 + 24 + 16, 5));
        assert_eq!(bytes[..16], [0x50, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 5, 0, 0xff, 0xff, 0xf0]);
        assert_eq!(bytes[16..24], [0x51, 1, 0, 0, 24, 0, 0, 0]);
        assert_eq!(bytes[40..48], [0x60, 1, 0, 0, 16, 0, 0, 0]);
        assert_eq!(
            bytes[56..80],
            [0x34, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0]
        );
        assert_eq!(bytes[80..], [0, 0x10, 0, 0, 16, 0, 0, 0, 3, 2, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn specs_have_the_sizes_of_the_kernel() {
        let all = [
            (Header::Ethernet(any(FlowEthFilter::zeroed())), size_of::<FlowSpecEth>()),
            (Header::Ipv4(any(FlowIpv4Filter::zeroed())), size_of::<FlowSpecIpv4>()),
            (Header::Ipv6(any(FlowIpv6Filter::zeroed())), size_of::<FlowSpecIpv6>()),
            (Header::Esp(any(FlowSpecEspFilter::zeroed())), size_of::<FlowSpecEsp>()),
            (Header::Tcp(any(FlowTcpUdpFilter::zeroed())), size_of::<FlowSpecTcpUdp>()),
            (Header::Udp(any(FlowTcpUdpFilter::zeroed())), size_of::<FlowSpecTcpUdp>()),
            (Header::Vxlan(any(FlowTunnelFilter::zeroed())), size_of::<FlowSpecTunnel>()),
            (Header::Gre(any(FlowGreFilter::zeroed())), size_of::<FlowSpecGre>()),
            (Header::Mpls(any(FlowMplsFilter::zeroed())), size_of::<FlowSpecMpls>()),
        ];
        for (header, size) in all {
            let (bytes, _) = encoded(FlowRule::with_headers(1, &[Layer::Outer(header)]));
            assert_eq!((bytes.len(), usize::from(bytes[4])), (size, size), "{header:?}");
        }
    }

    #[test]
    fn default_rules_have_no_headers_and_lists_an_end() {
        let rule = FlowRule { kind: FlowAttrType::SNIFFER, ..FlowRule::with_headers(1, &[]) };
        let reason = |rule: FlowRule<'_>| rule.check("create_flow").unwrap_err().to_string();
        assert!(rule.check("create_flow").is_ok());
        assert!(reason(FlowRule { tag: Some(1), ..rule }).contains("no headers and actions"));
        assert!(reason(FlowRule { ethernet: Some(EthernetMatch::default()), ..rule }).contains("no headers"));
        let kind = FlowAttrType::NORMAL;
        assert!(reason(FlowRule { tag: Some(1 << 24), kind, ..rule }).contains("24 bits"));
        let many = [Layer::Outer(Header::Tcp(any(FlowTcpUdpFilter::zeroed()))); 256];
        assert!(reason(FlowRule { headers: &many, kind, ..rule }).contains("at most"));
        assert!(FlowRule { headers: &many[..254], kind, ..rule }.check("create_flow").is_ok());
    }
}
