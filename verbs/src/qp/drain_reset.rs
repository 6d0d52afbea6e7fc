//! Transitions to SQD, ERR and RESET.

use bareverbs_provider::traits::Provider;

use super::{Qp, Transport};
use crate::error::Result;
#[cfg(doc)]
use crate::{Error, qp::QpAttr};

impl<T: Transport, P: Provider> Qp<T, P> {
    /// RTS → SQD. The device completes sends that it has started. Later sends wait for
    /// [`Qp::resume`].
    ///
    /// When the last started send completes, [`QpAttr::sq_draining`] becomes false and the event
    /// [`SQ_DRAINED`](crate::device::EventType::SQ_DRAINED) is raised. Sends can be posted in SQD.
    /// Receives continue.
    ///
    /// ```
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [(mut qp, _cq), _peer] = example::qps(&pd)?;
    /// use bareverbs::AsyncEvent;
    /// use bareverbs::device::EventType;
    ///
    /// let events = qp.pd().context().async_events();
    /// qp.drain()?;
    /// while !matches!(events.next().wait()?, AsyncEvent::Qp { event: EventType::SQ_DRAINED, .. }) {}
    /// // No send is in flight now.
    /// qp.resume()?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RTS, or the device speaks iWARP, where SQD closes the
    ///   connection.
    /// - [`Error::Kernel`]: the kernel rejects the transition, for instance because the QP is in
    ///   ERR.
    #[doc(alias = "IBV_QPS_SQD")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn drain(&mut self) -> Result<()> {
        self.core.drain()
    }

    /// SQD → RTS. The device executes the waiting sends.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not SQD.
    /// - [`Error::Kernel`]: the kernel rejects the transition, for instance while the queue is
    ///   draining.
    #[doc(alias = "IBV_QPS_RTS")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn resume(&mut self) -> Result<()> {
        self.core.resume()
    }

    /// Any state except RESET → ERR. All posted requests, earlier and later ones, complete with
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
    ///
    /// Soft-RoCE flushes receives only on a transition to ERR. Call this again for receives that
    /// were posted after the QP had moved itself to ERR, or through [`RecvHalf`](crate::qp::RecvHalf).
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is RESET.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_ERR")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn set_error(&mut self) -> Result<()> {
        self.core.set_error()
    }

    /// Any state → RESET. The queues are emptied without completions. The QP can be brought up
    /// again.
    ///
    /// Poll first. Earlier completions that were not polled stay in the CQ on Soft-RoCE, and are
    /// discarded on ConnectX.
    ///
    /// Soft-RoCE's reset does not stop the RNR timer of a message that waits for a receive of the
    /// peer (`rxe_qp_reset` of the kernel's `rxe_qp.c`). The timer may expire after the QP was
    /// brought up again, within the time of the peer's `min_rnr_timer`. A fenced read or atomic
    /// that is in flight then never completes.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the device speaks iWARP, whose QPs have no reset.
    /// - [`Error::Kernel`]: the kernel rejects the transition, as Soft-RoCE does while the queue is
    ///   draining. The state is then unchanged.
    ///
    /// On Soft-RoCE, RESET takes two requests. If the kernel refuses only the second, the QP is in
    /// RESET, and earlier posted requests stay in use. The next transition first issues the missing
    /// request, and fails if the kernel refuses it again.
    #[doc(alias = "IBV_QPS_RESET")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn reset(&mut self) -> Result<()> {
        self.core.reset()
    }
}
