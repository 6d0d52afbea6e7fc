//! Raw packet QPs: Ethernet frames.

use bareverbs_provider::traits::{Provider, SendQueue};
use bareverbs_provider::work::PushError;
use bareverbs_uapi::uverbs::types::QpType;

use super::transport::private::{Sealed, Typed};
use super::{Batch, Frame, Operations, Payload, Qp, QpState, SendFlags, SendRequest, Transport};
use crate::error::{PostReason, Result};
use crate::flow::{FlowCounters, FlowId, FlowRule};
use crate::qp::core::modify::{RTR, RTS};
use crate::values::PortNum;

/// Raw Ethernet frames that bypass the kernel's network stack. The device sends frames unmodified.
/// [Flows](FlowRule) steer received frames to the QP. Requires `CAP_NET_RAW`, an Ethernet port, and
/// a device with [`Capabilities::raw_packets`](crate::device::Capabilities::raw_packets).
///
/// ```
/// # fn example(pd: &bareverbs::Pd, cq: &bareverbs::cq::Cq) -> bareverbs::Result<()> {
/// use bareverbs::flow::{EthernetMatch, FlowRule};
/// use bareverbs::qp::{QpCap, QpInit, RawPacket, SendFlags};
/// use bareverbs::values::MacAddress;
///
/// let cap = QpCap { max_inline_data: 64, ..QpCap::default() };
/// let mut qp = pd.create_qp::<RawPacket>(&QpInit { cap, ..QpInit::new(cq, cq) })?;
/// qp.init(1)?;
/// qp.ready_to_receive()?;
/// qp.ready_to_send()?;
/// // Frames to this address consume the posted receives.
/// let own = MacAddress([2, 0, 0, 0, 0, 7]);
/// let rule = FlowRule::new(1, EthernetMatch { dst_mac: Some(own), ..EthernetMatch::default() });
/// qp.create_flow(&rule)?;
/// // Destination address, source address, EtherType, payload.
/// let frame = [&[2, 0, 0, 0, 0, 8][..], &own.0, &[0x88, 0xb5], &[0; 46]].concat();
/// let mut batch = qp.start_send();
/// batch.send_frame_inline(1, &frame, SendFlags::SIGNALED)?;
/// batch.ring()?;
/// # Ok(())
/// # }
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let cq = pd.context().create_cq(&bareverbs::cq::CqInit::new(32))?;
/// # example::unsupported(example(&pd, &cq));
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// Frames that QPs of a context send are not received by QPs of the same context.
///
/// Longer frames are gathered from registered memory, with their first bytes in [`Frame::header`].
///
/// With [`QpInit::max_tso_header`](crate::qp::QpInit::max_tso_header), the QP supports TCP segmentation
/// offload: a request has the headers of a TCP segment and a payload, which the device splits into
/// as many segments as needed.
///
/// ```no_run
/// # use bareverbs::error::PostError;
/// # use bareverbs::qp::{Qp, RawPacket, Sge};
/// # fn example(qp: &mut Qp<RawPacket>, headers: &[u8], payload: Sge) -> Result<(), PostError> {
/// use bareverbs::qp::{Frame, Payload, SendFlags, SendRequest};
///
/// // Ethernet, IPv4 and TCP headers without options: 54 bytes. The MTU is 1,500 bytes.
/// let operation = Frame { header: headers, checksums: true, mss: Some(1460) };
/// let payload = Payload::Sges(&[payload]);
/// // SAFETY: the caller does not change the payload before the request completes.
/// unsafe { qp.post_send(&[SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload }]) }
/// # }
/// ```
///
/// A frame has no peer, and the only operation is a send:
///
/// ```compile_fail,E0308
/// # use bareverbs::qp::{Operation, Payload, Qp, RawPacket, SendFlags, SendRequest};
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

impl Operations for RawPacket {
    type Operation<'a, P: Provider> = Frame<'a>;
}

impl Transport for RawPacket {
    const QP_TYPE: QpType = QpType::RAW_PACKET;
}

impl Typed for RawPacket {
    const VALUE: Self = Self;
}

impl Sealed for RawPacket {
    #[inline(always)]
    fn qp_type(self) -> QpType {
        Self::QP_TYPE
    }

    #[inline]
    unsafe fn push<P: Provider>(
        self,
        queue: &mut P::Sq,
        request: &SendRequest<'_, Frame<'_>>,
    ) -> Result<(), PushError> {
        // SAFETY: the caller's contract is the same.
        unsafe { queue.push_frame(request) }
    }
}

impl<P: Provider> Qp<RawPacket, P> {
    /// RESET → INIT. Receives can be posted in INIT and later states.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): the state is not RESET.
    /// - [`Error::NoPort`](crate::Error::NoPort)
    /// - [`Error::Kernel`](crate::Error::Kernel): the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_INIT")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn init(&mut self, port: impl Into<PortNum>) -> Result<()> {
        self.core.reset_to_init_frames(port.into())
    }

    /// INIT → RTR. The QP receives frames in RTR and later states.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): the state is not INIT.
    /// - [`Error::Kernel`](crate::Error::Kernel): the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTR")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_receive(&mut self) -> Result<()> {
        self.core.transition(RTR, QpState::INIT, QpState::RTR)
    }

    /// RTR → RTS. The QP sends frames in RTS.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): the state is not RTR.
    /// - [`Error::Kernel`](crate::Error::Kernel): the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTS")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_send(&mut self) -> Result<()> {
        self.core.transition(RTS, QpState::RTR, QpState::RTS)
    }

    /// Steers frames that match `rule` to this QP instead of the kernel's network stack. A frame is
    /// dropped if no receive is posted. The flow ends when the QP is destroyed, or with
    /// [`Qp::destroy_flow`].
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): a TCP or UDP header without an IP header.
    /// - [`Error::NoPort`](crate::Error::NoPort)
    /// - [`Error::Kernel`](crate::Error::Kernel): the kernel rejects the command, with `EPERM` without
    ///   `CAP_NET_RAW`.
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&mut self, rule: &FlowRule<'_>) -> Result<FlowId> {
        self.core.create_flow(rule)
    }

    /// As [`Qp::create_flow`], and counts the frames that match. Frames that the rule drops are
    /// counted too. Several flows can use the same counters.
    ///
    /// # Errors
    /// As for [`Qp::create_flow`]; [`Error::Invalid`](crate::Error::Invalid) for counters of another
    /// context; [`Error::Unsupported`](crate::Error::Unsupported) if the device has no flow counters.
    #[doc(alias = "ibv_attach_counters_point_flow")]
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_COUNT")]
    pub fn create_counted_flow(&mut self, rule: &FlowRule<'_>, counters: &FlowCounters) -> Result<FlowId> {
        self.core.create_counted_flow(rule, counters)
    }

    /// Destroys a flow.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): the flow belongs to another QP, or was destroyed
    ///   already.
    /// - [`Error::Kernel`](crate::Error::Kernel): the kernel rejects the command.
    #[doc(alias = "ibv_destroy_flow")]
    pub fn destroy_flow(&mut self, flow: FlowId) -> Result<()> {
        self.core.destroy_flow(flow)
    }
}

impl<P: Provider> Batch<'_, RawPacket, P> {
    /// A frame whose bytes are copied now. They need not be registered.
    ///
    /// # Errors
    /// The [`PostReason`] of the rejection, for instance if the bytes exceed the QP's
    /// `max_inline_data`.
    #[doc(alias = "ibv_wr_send")]
    #[doc(alias = "ibv_wr_set_inline_data")]
    pub fn send_frame_inline(
        &mut self,
        wr_id: u64,
        frame: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        let payload = Payload::Inline(&[frame]);
        let request = SendRequest { wr_id, operation: Frame::default(), flags, payload };
        // SAFETY: the request names no memory except bytes that are copied before this returns.
        unsafe { self.push(&request) }
    }
}
