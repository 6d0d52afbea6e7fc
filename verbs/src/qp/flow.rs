//! Flow steering: rules that direct Ethernet frames to a QP.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::abi::{Be16, Be32};
use bareverbs_uapi::verbs_values::{FlowAttrType, FlowSpecType};
use bareverbs_uapi::write::structs::{
    FlowAttr, FlowEthFilter, FlowIpv4Filter, FlowIpv6Filter, FlowSpecActionDrop, FlowSpecEth, FlowSpecIpv4,
    FlowSpecIpv6, FlowSpecTcpUdp, FlowTcpUdpFilter,
};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::flow_counters::{CountersShared, FlowCounters};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::values::{MacAddress, PortNum};

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

/// A flow rule; see [`Qp::create_flow`](crate::qp::Qp::create_flow) and
/// [`RssQp::create_flow`](crate::rss::RssQp::create_flow).
#[doc(alias = "ibv_flow_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// The port that receives the frames.
    pub port: PortNum,
    /// Priority. If several rules match, the rule with the lowest number takes the frame.
    pub priority: u16,
    /// Ethernet header to match.
    pub ethernet: EthernetMatch,
    /// IPv4 header to match. `Some` requires an IPv4 header.
    pub ipv4: Option<Ipv4Match>,
    /// IPv6 header to match. `Some` requires an IPv6 header, and excludes `ipv4`.
    pub ipv6: Option<Ipv6Match>,
    /// TCP or UDP header to match. `Some` requires such a header.
    pub l4: Option<L4Match>,
    /// Whether frames that match are dropped, in place of steering them to the QP.
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_DROP")]
    pub drop: bool,
}

impl FlowRule {
    /// A rule for this Ethernet header, of priority 0 (the highest).
    #[must_use]
    pub fn new(port: impl Into<PortNum>, ethernet: EthernetMatch) -> Self {
        Self { port: port.into(), priority: 0, ethernet, ipv4: None, ipv6: None, l4: None, drop: false }
    }

    /// Rejects rules that no frame can match, and values wider than their field.
    fn check(&self, verb: &'static str) -> Result<()> {
        let invalid = |reason: &'static str| Err(Error::invalid(verb, reason));
        if self.ipv4.is_some() && self.ipv6.is_some() {
            return invalid("no frame has an IPv4 and an IPv6 header: set one of `ipv4` and `ipv6`");
        }
        if self.l4.is_some() && self.ipv4.is_none() && self.ipv6.is_none() {
            let reason =
                "matching ports requires an IP header: set `ipv4` or `ipv6`, for example to its default";
            return invalid(reason);
        }
        Error::check_range(verb, "VLAN id", self.ethernet.vlan.unwrap_or(0).into(), VLAN_ID.into())?;
        let label = self.ipv6.and_then(|ipv6| ipv6.flow_label).unwrap_or(0);
        Error::check_range(verb, "flow label", label.into(), FLOW_LABEL.into())
    }

    /// Encodes the flow specs for the kernel, back to back, and counts them.
    fn specs(&self) -> (Vec<u8>, u8) {
        let mac =
            |address: Option<MacAddress>| (address.map_or([0; 6], |mac| mac.0), mask(address, [0xff; 6]));
        let short = |value: Option<u16>| (Be16::new(value.unwrap_or(0)), Be16::new(mask(value, 0xffff)));
        let EthernetMatch { dst_mac, src_mac, ether_type, vlan } = self.ethernet;
        let (vlan_tag, vlan_mask) = (Be16::new(vlan.unwrap_or(0)), Be16::new(mask(vlan, VLAN_ID)));
        let ((dst_mac, dst_mask), (src_mac, src_mask), (ether_type, type_mask)) =
            (mac(dst_mac), mac(src_mac), short(ether_type));
        let ethernet = FlowSpecEth {
            spec_type: FlowSpecType::ETH,
            size: size_of::<FlowSpecEth>() as u16,
            val: FlowEthFilter { dst_mac, src_mac, ether_type, vlan_tag },
            mask: FlowEthFilter {
                dst_mac: dst_mask,
                src_mac: src_mask,
                ether_type: type_mask,
                vlan_tag: vlan_mask,
            },
            ..FlowSpecEth::zeroed()
        };
        let (mut bytes, mut count) = (ethernet.as_bytes().to_vec(), 1);
        if let Some(Ipv4Match { src_ip: from, dst_ip: to, protocol, tos }) = self.ipv4 {
            let address = |value: Option<Ipv4Addr>| {
                (Be32::new(value.map_or(0, u32::from)), Be32::new(mask(value, u32::MAX)))
            };
            let ((src_ip, src_mask), (dst_ip, dst_mask)) = (address(from), address(to));
            let ((proto, proto_mask), (tos, tos_mask)) = (byte(protocol), byte(tos));
            let ipv4 = FlowSpecIpv4 {
                spec_type: FlowSpecType::IPV4,
                size: size_of::<FlowSpecIpv4>() as u16,
                val: FlowIpv4Filter { src_ip, dst_ip, proto, tos, ..FlowIpv4Filter::zeroed() },
                mask: FlowIpv4Filter {
                    src_ip: src_mask,
                    dst_ip: dst_mask,
                    proto: proto_mask,
                    tos: tos_mask,
                    ..FlowIpv4Filter::zeroed()
                },
                ..FlowSpecIpv4::zeroed()
            };
            bytes.extend_from_slice(ipv4.as_bytes());
            count += 1;
        }
        if let Some(Ipv6Match { src_ip: from, dst_ip: to, next_header, traffic_class, flow_label }) =
            self.ipv6
        {
            let address =
                |value: Option<Ipv6Addr>| (value.map_or([0; 16], |ip| ip.octets()), mask(value, [0xff; 16]));
            let ((src_ip, src_mask), (dst_ip, dst_mask)) = (address(from), address(to));
            let ((next_hdr, next_mask), (class, class_mask)) = (byte(next_header), byte(traffic_class));
            let ipv6 = FlowSpecIpv6 {
                spec_type: FlowSpecType::IPV6,
                size: size_of::<FlowSpecIpv6>() as u16,
                val: FlowIpv6Filter {
                    src_ip,
                    dst_ip,
                    flow_label: Be32::new(flow_label.unwrap_or(0)),
                    next_hdr,
                    traffic_class: class,
                    ..FlowIpv6Filter::zeroed()
                },
                mask: FlowIpv6Filter {
                    src_ip: src_mask,
                    dst_ip: dst_mask,
                    flow_label: Be32::new(mask(flow_label, FLOW_LABEL)),
                    next_hdr: next_mask,
                    traffic_class: class_mask,
                    ..FlowIpv6Filter::zeroed()
                },
                ..FlowSpecIpv6::zeroed()
            };
            bytes.extend_from_slice(ipv6.as_bytes());
            count += 1;
        }
        if let Some(l4) = self.l4 {
            let (spec_type, PortMatch { src_port: from, dst_port: to }) = match l4 {
                L4Match::Tcp(ports) => (FlowSpecType::TCP, ports),
                L4Match::Udp(ports) => (FlowSpecType::UDP, ports),
            };
            let ((src_port, src_mask), (dst_port, dst_mask)) = (short(from), short(to));
            let ports = FlowSpecTcpUdp {
                spec_type,
                size: size_of::<FlowSpecTcpUdp>() as u16,
                val: FlowTcpUdpFilter { dst_port, src_port },
                mask: FlowTcpUdpFilter { dst_port: dst_mask, src_port: src_mask },
                ..FlowSpecTcpUdp::zeroed()
            };
            bytes.extend_from_slice(ports.as_bytes());
            count += 1;
        }
        if self.drop {
            let drop = FlowSpecActionDrop {
                spec_type: FlowSpecType::ACTION_DROP,
                size: size_of::<FlowSpecActionDrop>() as u16,
                ..FlowSpecActionDrop::zeroed()
            };
            bytes.extend_from_slice(drop.as_bytes());
            count += 1;
        }
        (bytes, count)
    }
}

/// Bits of a VLAN tag that are the VLAN id.
const VLAN_ID: u16 = 0xfff;

/// Bits of a flow label.
const FLOW_LABEL: u32 = 0xf_ffff;

/// A byte and its mask.
fn byte(value: Option<u8>) -> (u8, u8) {
    (value.unwrap_or(0), mask(value, 0xff))
}

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
        rule: &FlowRule,
        counters: Option<&FlowCounters>,
    ) -> Result<FlowId> {
        const VERB: &str = "create_flow";
        context.check_port(rule.port)?;
        rule.check(VERB)?;
        let (mut specs, num_of_specs) = rule.specs();
        let flow = FlowAttr {
            attr_type: FlowAttrType::NORMAL,
            priority: rule.priority,
            num_of_specs,
            port: rule.port.0,
            ..FlowAttr::zeroed()
        };
        let asked = format!("{rule:?}");
        let made = match counters {
            Some(counters) => counters.create_flow((VERB, &asked), context, qp, flow, &mut specs),
            None => command::create_flow(context.file(), qp, flow, &specs)
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
    use super::*;

    #[test]
    fn flow_rule_masks_only_given_fields() {
        let ethernet =
            EthernetMatch { dst_mac: Some(MacAddress([1, 2, 3, 4, 5, 6])), ..EthernetMatch::default() };
        let (bytes, count) = FlowRule::new(1, ethernet).specs();
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
        let (bytes, count) = rule.specs();
        assert_eq!((bytes.len(), count), (40 + 32 + 16, 3));
        assert_eq!(bytes[72..], [0x41, 0, 0, 0, 16, 0, 0, 0, 0x12, 0x34, 0, 0, 0xff, 0xff, 0, 0]);
    }

    #[test]
    fn flow_rule_encodes_vlan_tos_protocol_ipv6_and_drop() {
        let ethernet = EthernetMatch { vlan: Some(5), ..EthernetMatch::default() };
        let ipv4 = Ipv4Match { protocol: Some(17), tos: Some(0x2e), ..Ipv4Match::default() };
        let (bytes, count) = FlowRule { ipv4: Some(ipv4), drop: true, ..FlowRule::new(1, ethernet) }.specs();
        assert_eq!((bytes.len(), count), (40 + 32 + 8, 3));
        assert_eq!((&bytes[22..24], &bytes[38..40]), (&[0, 5][..], &[0x0f, 0xff][..]));
        assert_eq!((&bytes[56..60], &bytes[68..72]), (&[17, 0x2e, 0, 0][..], &[0xff, 0xff, 0, 0][..]));
        assert_eq!(bytes[72..], [1, 0x10, 0, 0, 8, 0, 0, 0]);

        let dst_ip = Some(Ipv6Addr::LOCALHOST);
        let ipv6 =
            Ipv6Match { dst_ip, next_header: Some(6), flow_label: Some(0x12345), ..Ipv6Match::default() };
        let rule = FlowRule { ipv6: Some(ipv6), ..FlowRule::new(1, EthernetMatch::default()) };
        let (bytes, count) = rule.specs();
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
        let reason = |rule: FlowRule| rule.check("create_flow").unwrap_err().to_string();
        let both = FlowRule { ipv4: Some(Ipv4Match::default()), ipv6: Some(Ipv6Match::default()), ..rule };
        assert!(reason(both).contains("IPv4 and an IPv6"));
        assert!(reason(FlowRule { l4, ..rule }).contains("requires an IP header"));
        assert!(FlowRule { l4, ipv6: Some(Ipv6Match::default()), ..rule }.check("create_flow").is_ok());
        let wide = EthernetMatch { vlan: Some(4096), ..EthernetMatch::default() };
        assert!(reason(FlowRule::new(1, wide)).contains("12 bits"));
        let label = Ipv6Match { flow_label: Some(1 << 20), ..Ipv6Match::default() };
        assert!(reason(FlowRule { ipv6: Some(label), ..rule }).contains("20 bits"));
    }
}
