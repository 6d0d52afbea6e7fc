//! Flow steering: rules that direct Ethernet frames to a QP.

use bareverbs_provider::command;
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::abi::{Be16, Be32};
use bareverbs_uapi::verbs_values::{FlowAttrType, FlowSpecType};
use bareverbs_uapi::write::structs::{
    FlowAttr, FlowEthFilter, FlowIpv4Filter, FlowSpecEth, FlowSpecIpv4, FlowSpecTcpUdp, FlowTcpUdpFilter,
};
use rustix::io::Errno;
use zerocopy::IntoBytes;

#[cfg(doc)]
use crate::Qp;
use crate::{Context, Error, MacAddress, PortNum, Result};

/// Ethernet header fields that a frame must match; `None` matches any value.
#[doc(alias = "ibv_flow_eth_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetMatch {
    /// Destination address.
    pub to: Option<MacAddress>,
    /// Source address.
    pub from: Option<MacAddress>,
    /// EtherType, such as 0x0800 for IPv4.
    pub ether_type: Option<u16>,
}

/// IPv4 header fields that a frame must match; `None` matches any value.
#[doc(alias = "ibv_flow_ipv4_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Match {
    /// Source address.
    pub from: Option<std::net::Ipv4Addr>,
    /// Destination address.
    pub to: Option<std::net::Ipv4Addr>,
}

/// TCP or UDP ports that a frame must match; `None` matches any value.
#[doc(alias = "ibv_flow_tcp_udp_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMatch {
    /// Source port.
    pub from: Option<u16>,
    /// Destination port.
    pub to: Option<u16>,
}

/// The transport header, with its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpperMatch {
    /// TCP.
    Tcp(PortMatch),
    /// UDP.
    Udp(PortMatch),
}

/// A flow rule; see [`Qp::create_flow`] and [`RssQp::create_flow`](crate::RssQp::create_flow).
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
    /// TCP or UDP header to match. `Some` requires such a header.
    pub upper: Option<UpperMatch>,
}

impl FlowRule {
    /// A rule for this Ethernet header, of priority 0 (the highest).
    #[must_use]
    pub fn new(port: impl Into<PortNum>, ethernet: EthernetMatch) -> Self {
        Self { port: port.into(), priority: 0, ethernet, ipv4: None, upper: None }
    }

    /// Encodes the flow specs for the kernel, back to back, and counts them.
    fn specs(&self) -> (Vec<u8>, u8) {
        let mac =
            |address: Option<MacAddress>| (address.map_or([0; 6], |mac| mac.0), mask(address, [0xff; 6]));
        let short = |value: Option<u16>| (Be16::new(value.unwrap_or(0)), Be16::new(mask(value, 0xffff)));
        let EthernetMatch { to, from, ether_type } = self.ethernet;
        let ((dst_mac, dst_mask), (src_mac, src_mask), (ether_type, type_mask)) =
            (mac(to), mac(from), short(ether_type));
        let ethernet = FlowSpecEth {
            spec_type: FlowSpecType::ETH,
            size: size_of::<FlowSpecEth>() as u16,
            val: FlowEthFilter { dst_mac, src_mac, ether_type, ..FlowEthFilter::zeroed() },
            mask: FlowEthFilter {
                dst_mac: dst_mask,
                src_mac: src_mask,
                ether_type: type_mask,
                ..FlowEthFilter::zeroed()
            },
            ..FlowSpecEth::zeroed()
        };
        let (mut bytes, mut count) = (ethernet.as_bytes().to_vec(), 1);
        if let Some(Ipv4Match { from, to }) = self.ipv4 {
            let address = |value: Option<std::net::Ipv4Addr>| {
                (Be32::new(value.map_or(0, u32::from)), Be32::new(mask(value, u32::MAX)))
            };
            let ((src_ip, src_mask), (dst_ip, dst_mask)) = (address(from), address(to));
            let ipv4 = FlowSpecIpv4 {
                spec_type: FlowSpecType::IPV4,
                size: size_of::<FlowSpecIpv4>() as u16,
                val: FlowIpv4Filter { src_ip, dst_ip, ..FlowIpv4Filter::zeroed() },
                mask: FlowIpv4Filter { src_ip: src_mask, dst_ip: dst_mask, ..FlowIpv4Filter::zeroed() },
                ..FlowSpecIpv4::zeroed()
            };
            bytes.extend_from_slice(ipv4.as_bytes());
            count += 1;
        }
        if let Some(upper) = self.upper {
            let (spec_type, PortMatch { from, to }) = match upper {
                UpperMatch::Tcp(ports) => (FlowSpecType::TCP, ports),
                UpperMatch::Udp(ports) => (FlowSpecType::UDP, ports),
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
        (bytes, count)
    }
}

/// `all` if there is a value, else 0.
fn mask<T, M: Default>(value: Option<T>, all: M) -> M {
    if value.is_some() { all } else { M::default() }
}

/// The handle of a flow, from [`Qp::create_flow`].
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
pub(crate) struct Flows(Vec<u32>);

impl Flows {
    /// Creates a flow that steers to the QP with the handle `qp`.
    pub(crate) fn create<P: Provider>(
        &mut self,
        context: &Context<P>,
        qp: u32,
        rule: &FlowRule,
    ) -> Result<FlowId> {
        const VERB: &str = "create_flow";
        context.check_port(rule.port)?;
        if rule.upper.is_some() && rule.ipv4.is_none() {
            let reason = "matching ports requires an IP header: set `ipv4`, for example to its default";
            return Err(Error::invalid(VERB, reason));
        }
        let (specs, num_of_specs) = rule.specs();
        let flow = FlowAttr {
            attr_type: FlowAttrType::NORMAL,
            priority: rule.priority,
            num_of_specs,
            port: rule.port.0,
            ..FlowAttr::zeroed()
        };
        let flow = command::create_flow(context.file(), qp, flow, &specs).map_err(|refused| {
            Error::kernel(VERB, format!("{rule:?}"), refused).or_hint(|errno| match errno {
                Errno::PERM => Some("flows require CAP_NET_RAW".into()),
                Errno::INVAL => Some("the device may not support these headers or this priority".into()),
                _ => None,
            })
        })?;
        self.0.push(flow);
        Ok(FlowId(flow))
    }

    /// Destroys a flow of this QP.
    pub(crate) fn destroy<P: Provider>(&mut self, context: &Context<P>, flow: FlowId) -> Result<()> {
        const VERB: &str = "destroy_flow";
        let at = self.0.iter().position(|own| *own == flow.0);
        let at = at.ok_or_else(|| Error::invalid(VERB, "the flow belongs to another QP"))?;
        // SAFETY: the flow is one of this QP's, as checked above.
        unsafe { command::destroy_flow(context.file(), flow.0) }
            .map_err(|refused| Error::kernel(VERB, "a flow", refused))?;
        self.0.swap_remove(at);
        Ok(())
    }

    /// Destroys all flows of this QP.
    pub(crate) fn destroy_all(&mut self, file: &DeviceFile) {
        for flow in self.0.drain(..) {
            // SAFETY: the flow is one of this QP's, and its handle is dropped here.
            let _ = unsafe { command::destroy_flow(file, flow) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_rule_masks_only_given_fields() {
        let ethernet = EthernetMatch { to: Some(MacAddress([1, 2, 3, 4, 5, 6])), ..EthernetMatch::default() };
        let (bytes, count) = FlowRule::new(1, ethernet).specs();
        assert_eq!((bytes.len(), count), (40, 1));
        assert_eq!(bytes[..8], [0x20, 0, 0, 0, 40, 0, 0, 0]);
        assert_eq!(bytes[8..24], [1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..], [[0xff; 6], [0; 6]].concat().into_iter().chain([0; 4]).collect::<Vec<_>>());
    }

    #[test]
    fn flow_rule_ports_are_big_endian() {
        let upper = Some(UpperMatch::Udp(PortMatch { from: None, to: Some(0x1234) }));
        let rule = FlowRule {
            ipv4: Some(Ipv4Match::default()),
            upper,
            ..FlowRule::new(1, EthernetMatch::default())
        };
        let (bytes, count) = rule.specs();
        assert_eq!((bytes.len(), count), (40 + 32 + 16, 3));
        assert_eq!(bytes[72..], [0x41, 0, 0, 0, 16, 0, 0, 0, 0x12, 0x34, 0, 0, 0xff, 0xff, 0, 0]);
    }
}
