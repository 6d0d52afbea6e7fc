//! Queue pairs of whole Ethernet frames, and which frames come to them.

use bareverbs_provider::command;
use bareverbs_provider::contract::{Provider, SendQueue};
use bareverbs_uapi::abi::{Be16, Be32};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{FlowAttrType, FlowSpecType};
use bareverbs_uapi::write::structs::{
    FlowAttr, FlowEthFilter, FlowIpv4Filter, FlowSpecEth, FlowSpecIpv4, FlowSpecTcpUdp, FlowTcpUdpFilter,
};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::modify::{INIT, RTR, RTS};
use super::transport::private::Sealed;
use super::{Batch, PostReason, Qp, QpAttr, Transport};
use crate::{
    Error, Frame, MacAddress, Payload, QpAttrMask, QpState, Refusal, Result, SendFlags, SendRequest,
};

/// Whole Ethernet frames, past the kernel's network: what is sent goes out as it is, and what [flows](FlowRule) lead here
/// comes as it was. For the privileged (`CAP_NET_RAW`), on Ethernet ports of devices that have
/// [`Capabilities::raw_packets`](crate::Capabilities::raw_packets).
///
/// ```no_run
/// # fn example(pd: &bareverbs::Pd, cq: &bareverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// use bareverbs::{EthernetMatch, FlowRule, MacAddress, QpCap, QpInit, RawPacket, SendFlags};
///
/// let cap = QpCap { max_inline_data: 64, ..QpCap::default() };
/// let mut qp = pd.create_qp::<RawPacket>(&QpInit { cap, ..QpInit::new(cq, cq) })?;
/// qp.init(1)?;
/// qp.ready_to_receive()?;
/// qp.ready_to_send()?;
/// // Frames to this address come to the receives that are posted.
/// let own = MacAddress([2, 0, 0, 0, 0, 7]);
/// let rule = FlowRule::new(1, EthernetMatch { to: Some(own), ..EthernetMatch::default() });
/// qp.create_flow(&rule)?;
/// // Destination, source, type of the payload, payload.
/// let frame = [&[2, 0, 0, 0, 0, 8][..], &own.0, &[0x88, 0xb5], &[0; 46]].concat();
/// let mut batch = qp.start_send();
/// batch.send_frame_inline(1, &frame, SendFlags::SIGNALED)?;
/// batch.ring()?;
/// # Ok(())
/// # }
/// ```
///
/// What queue pairs of one context send does not come to that context's own.
///
/// Longer frames are gathered from registered memory, with their first bytes in [`Frame::header`].
///
/// With [`QpInit::max_tso_header`](crate::QpInit::max_tso_header) there are large sends: the headers of a segment of TCP, and
/// a payload that the device cuts into as many segments as it takes.
///
/// ```no_run
/// # use bareverbs::{Qp, RawPacket, PostError, Sge};
/// # fn example(qp: &mut Qp<RawPacket>, headers: &[u8], payload: Sge) -> Result<(), PostError> {
/// use bareverbs::{Frame, Payload, SendFlags, SendRequest};
///
/// // Headers of Ethernet, IPv4 and TCP without options: 54 bytes, for frames of 1,500 behind that of Ethernet.
/// let operation = Frame { header: headers, checksums: true, mss: Some(1460) };
/// let payload = Payload::Sges(&[payload]);
/// // SAFETY: the caller keeps the payload as it is until the request is complete.
/// unsafe { qp.post_send(&[SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload }]) }
/// # }
/// ```
///
/// A frame has no peer, and no operation but to be sent:
///
/// ```compile_fail,E0308
/// # use bareverbs::{Operation, Payload, Qp, RawPacket, SendFlags, SendRequest};
/// # fn send(qp: &mut Qp<RawPacket>) {
/// let operation = Operation::Send;
/// let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
/// // SAFETY: no elements, so no memory that the device could reach.
/// unsafe { qp.post_send(&[request]) }.unwrap();
/// # }
/// ```
#[doc(alias = "IBV_QPT_RAW_PACKET")]
#[derive(Clone, Copy, Debug)]
pub struct RawPacket;

impl Transport for RawPacket {
    const QP_TYPE: QpType = QpType::RAW_PACKET;
    type Operation<'a, P: Provider> = Frame<'a>;
}

impl Sealed for RawPacket {
    #[inline]
    unsafe fn push<P: Provider>(
        queue: &mut P::Sq,
        request: &SendRequest<'_, Frame<'_>>,
    ) -> Result<(), Refusal> {
        // SAFETY: the caller's promise is the same.
        unsafe { queue.push_frame(request) }
    }
}

/// Fields of an Ethernet header that frames must have; those that are `None` may be anything.
#[doc(alias = "ibv_flow_eth_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetMatch {
    /// Whom it is to.
    pub to: Option<MacAddress>,
    /// Whom it is from.
    pub from: Option<MacAddress>,
    /// Type of the payload, such as 0x0800 for IPv4.
    pub ether_type: Option<u16>,
}

/// Fields of an IPv4 header that frames must have; those that are `None` may be anything.
#[doc(alias = "ibv_flow_ipv4_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Match {
    /// Whom it is from.
    pub from: Option<std::net::Ipv4Addr>,
    /// Whom it is to.
    pub to: Option<std::net::Ipv4Addr>,
}

/// Ports of a TCP or UDP header; those that are `None` may be any.
#[doc(alias = "ibv_flow_tcp_udp_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMatch {
    /// Whom it is from.
    pub from: Option<u16>,
    /// Whom it is to.
    pub to: Option<u16>,
}

/// The header behind that of IP, and its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpperMatch {
    /// TCP.
    Tcp(PortMatch),
    /// UDP.
    Udp(PortMatch),
}

/// Which frames are to come to a queue pair; see [`Qp::create_flow`].
#[doc(alias = "ibv_flow_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// The port that they come from, counted from 1.
    pub port: u8,
    /// Of several rules that match, the one with the lowest number takes the frame.
    pub priority: u16,
    /// Their Ethernet header.
    pub ethernet: EthernetMatch,
    /// Their IPv4 header, which they must have then.
    pub ipv4: Option<Ipv4Match>,
    /// Their TCP or UDP header, which they must have then.
    pub upper: Option<UpperMatch>,
}

impl FlowRule {
    /// Frames with this Ethernet header, of the first priority.
    #[must_use]
    pub fn new(port: u8, ethernet: EthernetMatch) -> Self {
        Self { port, priority: 0, ethernet, ipv4: None, upper: None }
    }

    /// As the kernel takes it: the specifications, one behind the other, and how many they are.
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

/// All bits where there is a value, none otherwise.
fn mask<T, M: Default>(value: Option<T>, all: M) -> M {
    if value.is_some() { all } else { M::default() }
}

/// A flow of a queue pair, by [`Qp::create_flow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId(u32);

impl<P: Provider> Qp<RawPacket, P> {
    /// RESET → INIT: receives can be posted from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; [`Error::NoPort`]; the kernel refuses.
    pub fn init(&mut self, port: u8) -> Result<()> {
        self.check_state(INIT, QpState::RESET)?;
        self.pd().context().check_port(port.into())?;
        let attr = QpAttr { qp_state: QpState::INIT, port_num: port, ..QpAttr::default() };
        self.change(INIT, &attr, QpAttrMask::STATE | QpAttrMask::PORT)
    }

    /// INIT → RTR: frames are received from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; the kernel refuses.
    pub fn ready_to_receive(&mut self) -> Result<()> {
        self.step(RTR, QpState::INIT, QpState::RTR)
    }

    /// RTR → RTS: frames are sent from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; the kernel refuses.
    pub fn ready_to_send(&mut self) -> Result<()> {
        self.step(RTS, QpState::RTR, QpState::RTS)
    }

    fn step(&mut self, verb: &'static str, from: QpState, to: QpState) -> Result<()> {
        self.check_state(verb, from)?;
        self.change(verb, &QpAttr { qp_state: to, ..QpAttr::default() }, QpAttrMask::STATE)
    }

    /// Has the frames that match `rule` come to this queue pair, and no longer to the kernel's network. Frames for which
    /// no receive is posted are lost. It ends with the queue pair, or with [`Qp::destroy_flow`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a TCP or UDP header without an IP header; [`Error::NoPort`]; the kernel refuses, as without the
    /// privilege `CAP_NET_RAW`.
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&mut self, rule: &FlowRule) -> Result<FlowId> {
        const VERB: &str = "create_flow";
        let context = self.pd().context();
        context.check_port(rule.port.into())?;
        if rule.upper.is_some() && rule.ipv4.is_none() {
            let reason = "ports without an IP header: set `ipv4`, if only to its default";
            return Err(Error::invalid(VERB, reason));
        }
        let (specs, num_of_specs) = rule.specs();
        let flow = FlowAttr {
            attr_type: FlowAttrType::NORMAL,
            priority: rule.priority,
            num_of_specs,
            port: rule.port,
            ..FlowAttr::zeroed()
        };
        let flow = command::create_flow(context.file(), self.handle, flow, &specs).map_err(|refused| {
            Error::refused(VERB, format!("{rule:?}"), refused).or_hint(|errno| match errno {
                Errno::PERM => Some("flows are for those with the privilege CAP_NET_RAW".into()),
                Errno::INVAL => {
                    Some("the device may not match such headers, or have no such priority".into())
                }
                _ => None,
            })
        })?;
        self.flows.push(flow);
        Ok(FlowId(flow))
    }

    /// Ends a flow.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a flow of another queue pair, or one that has ended; the kernel refuses.
    #[doc(alias = "ibv_destroy_flow")]
    pub fn destroy_flow(&mut self, flow: FlowId) -> Result<()> {
        const VERB: &str = "destroy_flow";
        let at = self.flows.iter().position(|own| *own == flow.0);
        let at = at.ok_or_else(|| Error::invalid(VERB, "the flow is none of this queue pair"))?;
        command::destroy_flow(self.pd().context().file(), flow.0)
            .map_err(|refused| Error::refused(VERB, "a flow", refused))?;
        self.flows.swap_remove(at);
        Ok(())
    }
}

impl<P: Provider> Batch<'_, RawPacket, P> {
    /// A frame whose bytes are copied now, so that nothing has to stay registered.
    ///
    /// # Errors
    /// The request is refused, for instance since the queue pair was made for fewer bytes inline.
    pub fn send_frame_inline(
        &mut self,
        wr_id: u64,
        frame: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        let payload = Payload::Inline(&[frame]);
        let request = SendRequest { wr_id, operation: Frame::default(), flags, payload };
        // SAFETY: the request names no memory but what is copied before this returns.
        unsafe { self.push(&request) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_counts_only_what_it_names() {
        let ethernet = EthernetMatch { to: Some(MacAddress([1, 2, 3, 4, 5, 6])), ..EthernetMatch::default() };
        let (bytes, count) = FlowRule::new(1, ethernet).specs();
        assert_eq!((bytes.len(), count), (40, 1));
        assert_eq!(bytes[..8], [0x20, 0, 0, 0, 40, 0, 0, 0]);
        assert_eq!(bytes[8..24], [1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..], [[0xff; 6], [0; 6]].concat().into_iter().chain([0; 4]).collect::<Vec<_>>());
    }

    #[test]
    fn ports_are_as_on_the_wire() {
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
