//! Queue pairs of whole Ethernet frames.

use bareverbs_provider::contract::{Provider, SendQueue};
use bareverbs_uapi::uverbs::types::QpType;

use super::modify::{INIT, RTR, RTS};
use super::transport::private::Sealed;
use super::{Batch, FlowId, FlowRule, PostReason, Qp, QpAttr, Transport};
#[cfg(doc)]
use crate::Error;
use crate::{Frame, Payload, PushError, QpAttrMask, QpState, Result, SendFlags, SendRequest};

/// Whole Ethernet frames, past the kernel's network: what is sent goes out as it is, and what
/// [flows](FlowRule) lead here comes as it was. For the privileged (`CAP_NET_RAW`), on Ethernet
/// ports of devices that have [`Capabilities::raw_packets`](crate::Capabilities::raw_packets).
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
/// With [`QpInit::max_tso_header`](crate::QpInit::max_tso_header) there are large sends: the
/// headers of a segment of TCP, and a payload that the device cuts into as many segments as it
/// takes.
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
    ) -> Result<(), PushError> {
        // SAFETY: the caller's promise is the same.
        unsafe { queue.push_frame(request) }
    }
}

impl<P: Provider> Qp<RawPacket, P> {
    /// RESET → INIT: receives can be posted from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; [`Error::NoPort`]; the kernel refuses.
    pub fn init(&mut self, port: u8) -> Result<()> {
        self.check_state(INIT, QpState::RESET)?;
        self.pd().context().check_port(port.into())?;
        let attr = QpAttr { qp_state: QpState::INIT, port_num: port, ..QpAttr::default() };
        self.modify_qp(INIT, &attr, QpAttrMask::STATE | QpAttrMask::PORT)
    }

    /// INIT → RTR: frames are received from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; the kernel refuses.
    pub fn ready_to_receive(&mut self) -> Result<()> {
        self.transition(RTR, QpState::INIT, QpState::RTR)
    }

    /// RTR → RTS: frames are sent from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; the kernel refuses.
    pub fn ready_to_send(&mut self) -> Result<()> {
        self.transition(RTS, QpState::RTR, QpState::RTS)
    }

    fn transition(&mut self, verb: &'static str, from: QpState, to: QpState) -> Result<()> {
        self.check_state(verb, from)?;
        self.modify_qp(verb, &QpAttr { qp_state: to, ..QpAttr::default() }, QpAttrMask::STATE)
    }

    /// Has the frames that match `rule` come to this queue pair, and no longer to the kernel's
    /// network. Frames for which no receive is posted are lost. It ends with the queue pair, or
    /// with [`Qp::destroy_flow`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a TCP or UDP header without an IP header; [`Error::NoPort`]; the
    /// kernel refuses, as without the privilege `CAP_NET_RAW`.
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&mut self, rule: &FlowRule) -> Result<FlowId> {
        self.flows.create(self.pd.context(), self.handle, rule)
    }

    /// Ends a flow.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a flow of another queue pair, or one that has ended; the kernel
    /// refuses.
    #[doc(alias = "ibv_destroy_flow")]
    pub fn destroy_flow(&mut self, flow: FlowId) -> Result<()> {
        self.flows.destroy(self.pd.context(), flow)
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
