//! XRC QPs: the requester (INI) and the responder (TGT).

use bareverbs_provider::command::{self, QpHandle};
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::request::XrcTargetRequest;
use bareverbs_provider::traits::{Provider, SendQueue};
use bareverbs_provider::work::{PushError, XrcOperation};
use bareverbs_uapi::uverbs::types::QpType;

use super::transport::private::{Sealed, Typed};
use super::{
    Batch, InitAttr, Operation, Operations, Payload, Qp, QpAttr, QpAttrMask, QpState, RtrAttr, RtsAttr,
    SendFlags, SendRequest, Transport, UcRtrAttr,
};
use crate::error::{Error, PostReason, Refused, Result};
use crate::provider::AnyProvider;
use crate::qp::core::kernel_qp::KernelQp;
use crate::qp::core::modify::{
    INIT, MODIFY, RTR, RTS, check_24_bits, check_init, check_modify, check_peer, check_rtr, explain_modify,
};
use crate::values::AckTimeout;
use crate::xrcd::Xrcd;

/// The requester of an extended reliable connection (XRC). Each request names the SRQ of the peer
/// that takes it; see [`Xrcd`].
///
/// It supports the operations of RC, except binding and invalidating memory windows of its own
/// side. The receive attributes of [`QpInit`](crate::qp::QpInit) are ignored, including `recv_cq`. It
/// is connected to an [`XrcTarget`], and brought up with requester attributes:
///
/// ```
/// # use bareverbs::Pd;
/// # use bareverbs::ah::AhAttr;
/// # use bareverbs::cq::Cq;
/// # use bareverbs::qp::{InitAttr, QpInit, RtsAttr, SendFlags, UcRtrAttr};
/// # use bareverbs::xrc::XrcSend;
/// # fn example(pd: &Pd, cq: &Cq, to: AhAttr, target: u32, srq: u32) -> bareverbs::Result<()> {
/// let mut qp = pd.create_qp::<XrcSend>(&QpInit::new(cq, cq))?;
/// qp.init(&InitAttr::new(1))?;
/// qp.ready_to_receive(&UcRtrAttr::new(to, target))?;
/// qp.ready_to_send(&RtsAttr::default())?;
/// let mut batch = qp.start_send();
/// batch.send_to_srq_inline(1, srq, b"to one of many", SendFlags::SIGNALED)?;
/// batch.ring()?;
/// # Ok(())
/// # }
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let cq = pd.context().create_cq(&bareverbs::cq::CqInit::new(32))?;
/// # example::unsupported(example(&pd, &cq, AhAttr::default(), 17, 1));
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// A request without a destination SRQ does not compile:
///
/// ```compile_fail,E0308
/// # use bareverbs::qp::{Operation, Payload, Qp, SendFlags, SendRequest};
/// # use bareverbs::xrc::XrcSend;
/// # fn send(qp: &mut Qp<XrcSend>) {
/// let operation = Operation::Send;
/// let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
/// // SAFETY: no elements, so no memory that the device could reach.
/// unsafe { qp.post_send(&[request]) }.unwrap();
/// # }
/// ```
#[doc(alias = "IBV_QPT_XRC_SEND")]
#[derive(Clone, Copy, Debug)]
pub struct XrcSend;

impl Operations for XrcSend {
    type Operation<'a, P: Provider> = XrcOperation;
}

impl Transport for XrcSend {
    const QP_TYPE: QpType = QpType::XRC_INI;
}

impl Typed for XrcSend {
    const VALUE: Self = Self;
}

impl Sealed for XrcSend {
    #[inline(always)]
    fn qp_type(self) -> QpType {
        Self::QP_TYPE
    }

    #[inline]
    unsafe fn push<P: Provider>(
        self,
        queue: &mut P::Sq,
        request: &SendRequest<'_, XrcOperation>,
    ) -> Result<(), PushError> {
        // SAFETY: the caller's contract is the same.
        unsafe { queue.push_xrc(request) }
    }
}

impl<P: Provider> Qp<XrcSend, P> {
    /// RESET → INIT.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RESET, the P_Key index is beyond the port's table, or
    ///   `access` has rights that apply to MRs only.
    /// - [`Error::NoPort`]
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_INIT")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn init(&mut self, attr: &InitAttr) -> Result<()> {
        self.core.reset_to_init(attr)
    }

    /// INIT → RTR. The peer is the [`XrcTarget`] with the QPN `dest_qp_num`.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not INIT; no global route on RoCE or no LID on
    ///   InfiniBand; the address is a multicast group; a value is out of range; the MTU is above
    ///   the port's.
    /// - [`Error::NoPort`], [`Error::NoGid`]
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTR")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_receive(&mut self, attr: &UcRtrAttr) -> Result<()> {
        let address = self.core.check_peer(&attr.address, attr.path_mtu, attr.dest_qp_num, attr.rq_psn)?;
        self.core.init_to_rtr((&UcRtrAttr { address, ..*attr }).into())
    }

    /// RTR → RTS. The requester executes sends in RTS.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RTR, or the PSN has more than 24 bits.
    /// - [`Error::Limit`]: `max_rd_atomic` is above the device's limit.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTS")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_send(&mut self, attr: &RtsAttr) -> Result<()> {
        self.core.rtr_to_rts_reliable(attr)
    }
}

impl<P: Provider> Batch<'_, XrcSend, P> {
    /// A send to the peer's SRQ `remote_srq`. Its bytes are copied now and need not be registered.
    ///
    /// # Errors
    /// The [`PostReason`] of the rejection, for instance if the bytes exceed the QP's
    /// `max_inline_data`.
    #[doc(alias = "ibv_wr_send")]
    #[doc(alias = "ibv_wr_set_xrc_srqn")]
    #[doc(alias = "ibv_wr_set_inline_data")]
    pub fn send_to_srq_inline(
        &mut self,
        wr_id: u64,
        remote_srq: u32,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        let operation = XrcOperation { remote_srq, operation: Operation::Send };
        let request = SendRequest { wr_id, operation, flags, payload: Payload::Inline(&[bytes]) };
        // SAFETY: the request names no memory except bytes that are copied before this returns.
        unsafe { self.push(&request) }
    }
}

/// Attributes of RTR → RTS for XRC target QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcTargetRtsAttr {
    /// PSN of the first packet sent, 24 bits. An XRC target sends acknowledgements only.
    pub sq_psn: u32,
    /// As [`RtsAttr::timeout`].
    pub timeout: AckTimeout,
}

impl Default for XrcTargetRtsAttr {
    /// The default [`AckTimeout`] (537 ms), PSN 0.
    fn default() -> Self {
        Self { sq_psn: 0, timeout: AckTimeout::default() }
    }
}

/// The responder of an extended reliable connection (XRC target). It has no queues: the kernel and
/// the device serve it, and it needs no polling. [`Xrcd::create_target`] creates one.
///
/// Incoming requests consume receives of the [`XrcSrq`](crate::xrc::XrcSrq) that they name. Requests
/// without a receive, such as writes and reads, access the memory of that SRQ's protection domain.
///
/// ```no_run
/// # use bareverbs::ah::AhAttr;
/// # use bareverbs::qp::{InitAttr, RtrAttr};
/// # use bareverbs::xrc::{XrcTarget, XrcTargetRtsAttr};
/// # fn example(target: &mut XrcTarget, to: AhAttr, sender: u32) -> bareverbs::Result<()> {
/// target.init(&InitAttr::new(1))?;
/// target.ready_to_receive(&RtrAttr::new(to, sender))?;
/// target.ready_to_send(&XrcTargetRtsAttr::default())?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "IBV_QPT_XRC_RECV")]
pub struct XrcTarget<P: Provider = AnyProvider> {
    xrcd: Xrcd<P>,
    kernel: KernelQp,
    user_data: u64,
    destroyed: bool,
}

impl<P: Provider> Xrcd<P> {
    /// Creates an XRC target QP in the domain, in the state RESET. `user_data` is reported in its
    /// [asynchronous events](crate::AsyncEvent::Qp).
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the command, for instance if the device has no more
    /// QPs.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_target(&self, user_data: u64) -> Result<XrcTarget<P>> {
        XrcTarget::create(self, user_data)
    }

    /// Opens the XRC target QP `qp_num` of the domain, which another process has created. The QP
    /// exists until all processes have closed it. Its creator makes the state transitions.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the command, with `EINVAL` if the domain has no such
    /// QP.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_target(&self, qp_num: u32, user_data: u64) -> Result<XrcTarget<P>> {
        XrcTarget::open(self, qp_num, user_data)
    }
}

impl<P: Provider> XrcTarget<P> {
    pub(crate) fn create(xrcd: &Xrcd<P>, user_data: u64) -> Result<Self> {
        let request = XrcTargetRequest { xrcd: xrcd.handle(), user_handle: user_data };
        let QpHandle { handle, qp_num, .. } = xrcd
            .context()
            .provider()
            .create_xrc_target(&request)
            .map_err(|reason| Error::create("create_qp", format!("{:?}", QpType::XRC_TGT), reason))?;
        Ok(Self::of(xrcd, handle, qp_num, user_data))
    }

    pub(crate) fn open(xrcd: &Xrcd<P>, qp_num: u32, user_data: u64) -> Result<Self> {
        const VERB: &str = "open_qp";
        check_24_bits(VERB, "qp_num", qp_num)?;
        let request = XrcTargetRequest { xrcd: xrcd.handle(), user_handle: user_data };
        let opened =
            command::open_xrc_target(xrcd.context().file(), &request, qp_num).map_err(|refused| {
                Error::kernel(VERB, format!("QP {qp_num:#x}"), refused).or_hint(|errno| {
                    (errno == rustix::io::Errno::INVAL)
                        .then(|| "the XRC domain may have no such target QP".to_owned())
                })
            })?;
        let mut target = Self::of(xrcd, opened.handle, qp_num, user_data);
        target.kernel.state = target.query()?.qp_state;
        Ok(target)
    }

    fn of(xrcd: &Xrcd<P>, handle: u32, qp_num: u32, user_data: u64) -> Self {
        let kernel = KernelQp::new(xrcd.context().file(), handle, qp_num);
        Self { xrcd: xrcd.clone(), kernel, user_data, destroyed: false }
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.kernel.handle
    }

    /// Releases the handle: drop no longer closes the kernel object. The kernel closes it when the
    /// device file is closed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(mut self) -> u32 {
        self.destroyed = true;
        self.kernel.handle
    }

    /// The QP number (QPN), 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.kernel.qp_num
    }

    /// The state that the last transition through this handle set, or the state at open.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.kernel.state
    }

    /// The value reported in asynchronous events.
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// The XRC domain of the target.
    #[must_use]
    pub fn xrcd(&self) -> &Xrcd<P> {
        &self.xrcd
    }

    /// RESET → INIT.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RESET, the P_Key index is beyond the port's table, or
    ///   `access` has rights that apply to MRs only.
    /// - [`Error::NoPort`]
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_INIT")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn init(&mut self, attr: &InitAttr) -> Result<()> {
        self.kernel.check_state(INIT, QpState::RESET)?;
        check_init(self.xrcd.context(), attr)?;
        self.modify_qp(INIT, attr.into())
    }

    /// INIT → RTR. The responder executes requests of the [`XrcSend`] QP `dest_qp_num` in RTR and
    /// RTS.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not INIT; no global route on RoCE or no LID on
    ///   InfiniBand; the address is a multicast group; a value is out of range; the MTU is above
    ///   the port's.
    /// - [`Error::Limit`], [`Error::NoPort`], [`Error::NoGid`]
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTR")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_receive(&mut self, attr: &RtrAttr) -> Result<()> {
        self.kernel.check_state(RTR, QpState::INIT)?;
        let context = self.xrcd.context();
        let address = check_peer(context, &attr.address, attr.path_mtu, attr.dest_qp_num, attr.rq_psn)?;
        check_rtr(context, attr)?;
        self.modify_qp(RTR, (&RtrAttr { address, ..*attr }).into())
            .map_err(|error| self.xrcd.context().path_error(error, &address))
    }

    /// RTR → RTS. The responder also works in RTR.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RTR, or a value is out of range.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTS")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_send(&mut self, attr: &XrcTargetRtsAttr) -> Result<()> {
        self.kernel.check_state(RTS, QpState::RTR)?;
        check_24_bits(RTS, "sq_psn", attr.sq_psn)?;
        let XrcTargetRtsAttr { sq_psn, timeout } = *attr;
        let attr = QpAttr { qp_state: QpState::RTS, sq_psn, timeout, ..QpAttr::default() };
        self.modify_qp(RTS, (attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN | QpAttrMask::TIMEOUT))
    }

    /// Modifies any attributes. The kernel decides whether the transition is valid.
    ///
    /// ```no_run
    /// # use bareverbs::qp::{QpAttr, QpAttrMask, QpState};
    /// # use bareverbs::xrc::XrcTarget;
    /// # fn example(target: &mut XrcTarget) -> bareverbs::Result<()> {
    /// let attr = QpAttr { qp_state: QpState::ERR, ..QpAttr::default() };
    /// target.modify(&attr, QpAttrMask::STATE)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: a value is out of range, or `cur_qp_state` is not the current state.
    /// - [`Error::Limit`]: more outstanding reads and atomics than the device supports.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        check_modify(self.xrcd.context(), self.state(), attr, mask)?;
        self.modify_qp(MODIFY, (*attr, mask)).map_err(|error| {
            let now = || self.kernel.state_now();
            explain_modify(self.xrcd.context(), error, QpType::XRC_TGT, now, attr, mask)
        })
    }

    /// Any state except RESET → ERR. The responder stops.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is RESET.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_ERR")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn set_error(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp to ERR";
        self.kernel.check_not_reset(VERB)?;
        self.modify_qp(VERB, (QpAttr { qp_state: QpState::ERR, ..QpAttr::default() }, QpAttrMask::STATE))
    }

    /// Any state → RESET. The target can be brought up again.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RESET")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn reset(&mut self) -> Result<()> {
        let attr = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
        self.modify_qp("modify_qp to RESET", (attr, QpAttrMask::STATE))
    }

    /// Queries the attributes from the kernel.
    ///
    /// # Errors
    /// As for [`Qp::query`](crate::qp::Qp::query).
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr> {
        Ok(QpAttr::from_kernel(&self.kernel.query(QpAttrMask::STATE)?)?)
    }

    /// Closes this handle. Returns the number of its [events](crate::AsyncEvent::Qp) that this
    /// process has read. The QP is destroyed when the last process closes it. Drop also closes the
    /// handle, and ignores errors.
    ///
    /// # Errors
    /// The target and [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_destroy_qp")]
    #[expect(clippy::result_large_err, reason = "the error returns the target without an allocation")]
    pub fn destroy(mut self) -> Result<u32, Refused<Self>> {
        // SAFETY: it was not destroyed before. If this succeeds, it is dropped next.
        match unsafe { self.destroy_inner() } {
            Ok(events) => Ok(events),
            Err(refused) => {
                let asked = format!("QP {:#x}", self.qp_num());
                Err(Refused::new(Error::kernel("destroy_qp", asked, refused), self))
            }
        }
    }

    /// # Safety
    ///
    /// It must not have been destroyed before. If this succeeds, it must not be used afterwards,
    /// except to drop it.
    unsafe fn destroy_inner(&mut self) -> Result<u32, IoctlError> {
        // SAFETY: `self` owns the handle and does not use it after success; the QP has no rings.
        let resp = unsafe { command::destroy_qp(&self.kernel.file, self.kernel.handle) }?;
        self.destroyed = true;
        Ok(resp.events_reported)
    }

    fn modify_qp(&mut self, verb: &'static str, (attr, mask): (QpAttr, QpAttrMask)) -> Result<()> {
        let request = attr.to_kernel(self.handle(), mask);
        // SAFETY: the request names the QP of this handle, which has no rings to reset.
        unsafe { command::modify_qp(&self.kernel.file, &request.base) }
            .map_err(|refused| self.kernel.refused(verb, mask, refused))?;
        if mask.contains(QpAttrMask::STATE) {
            self.kernel.state = attr.qp_state;
        }
        Ok(())
    }
}

impl<P: Provider> Drop for XrcTarget<P> {
    fn drop(&mut self) {
        if !self.destroyed {
            // SAFETY: it was not destroyed before, and is being dropped.
            let _ = unsafe { self.destroy_inner() };
        }
    }
}
