//! Leaving and coming back: drain, error, reset.

use bareverbs_provider::contract::{Provider, RecvQueue, SendQueue};
use rustix::io::Errno;

use super::{Qp, QpAttr, Transport};
use crate::{Error, QpAttrMask, QpState, Result};

impl<T: Transport, P: Provider> Qp<T, P> {
    /// RTS → SQD: sends that the device has begun are carried out, later ones wait for
    /// [`Qp::resume`].
    ///
    /// When the last one that was begun is complete, [`QpAttr::sq_draining`] is over and the event
    /// [`SQ_DRAINED`](crate::EventType::SQ_DRAINED) is raised. Sends can be posted meanwhile;
    /// receives go on.
    ///
    /// ```no_run
    /// # fn pause(qp: &mut bareverbs::Qp<bareverbs::Rc>) -> bareverbs::Result<()> {
    /// use bareverbs::{AsyncEvent, EventType};
    ///
    /// let events = qp.pd().context().async_events();
    /// qp.drain()?;
    /// while !matches!(events.get()?, AsyncEvent::Qp { event: EventType::SQ_DRAINED, .. }) {}
    /// // Nothing of it is under way now.
    /// qp.resume()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; the kernel refuses, as where the queue pair has
    /// failed by itself.
    #[doc(alias = "IBV_QPS_SQD")]
    pub fn drain(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp RTS→SQD";
        self.check_state(VERB, QpState::RTS)?;
        let attr = QpAttr { qp_state: QpState::SQD, en_sqd_async_notify: true, ..QpAttr::default() };
        self.modify_qp(VERB, &attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY).map_err(|error| {
            error.or_hint(|errno| {
                (errno == Errno::INVAL).then(|| {
                    "the queue pair may have failed, or the driver know no such state, as ConnectX's does not".into()
                })
            })
        })
    }

    /// SQD → RTS: the sends that waited are carried out.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; the kernel refuses, as while the queue is still
    /// draining.
    pub fn resume(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp SQD→RTS";
        self.check_state(VERB, QpState::SQD)?;
        let attr = QpAttr { qp_state: QpState::RTS, ..QpAttr::default() };
        self.modify_qp(VERB, &attr, QpAttrMask::STATE).map_err(|error| {
            error.or_hint(|errno| {
                (errno == Errno::INVAL).then(|| {
                    "the queue may still be draining, which the event SQ_DRAINED ends, or have failed".into()
                })
            })
        })?;
        self.sq.resume().map_err(|refused| Error::kernel(VERB, format!("QP {:#x}", self.qp_num()), refused))
    }

    /// To ERR, from any state but RESET: everything that is posted, now or later, completes as
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR). Do this once more for receives that were
    /// posted after the queue pair had failed by itself, or through [`RecvHalf`](crate::RecvHalf):
    /// on Soft-RoCE nobody looks at them otherwise.
    ///
    /// # Errors
    /// [`Error::Invalid`] in RESET; the kernel refuses.
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn set_error(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp to ERR";
        if self.state() == QpState::RESET {
            return Err(Error::invalid(VERB, "the queue pair is in RESET, where nothing is under way"));
        }
        let attr = QpAttr { qp_state: QpState::ERR, ..QpAttr::default() };
        self.modify_qp(VERB, &attr, QpAttrMask::STATE)
    }

    /// To RESET, from any state: its queues are emptied without completions, and it can be brought
    /// up again. Poll before: what it completed and was not polled stays in the completion queues
    /// on Soft-RoCE, and is gone on ConnectX.
    ///
    /// Soft-RoCE's reset does not stop the timer of a message that waits for its peer's receive:
    /// for as long as the peer's `min_rnr_timer` says, it may strike in the queue pair's next life,
    /// where a fenced read or atomic that is under way then never completes (`rxe_qp_reset` of the
    /// kernel's `rxe_qp.c`).
    ///
    /// # Errors
    /// The kernel refuses, as Soft-RoCE does while the queue is still draining. The queue pair
    /// stays in its state then. On Soft-RoCE, RESET takes two requests. If the kernel refuses only
    /// the second, the queue pair is in RESET, and requests that were posted before stay in use.
    /// The next change of state issues the missing request first, and fails if the kernel refuses
    /// it again.
    #[doc(alias = "IBV_QPS_RESET")]
    pub fn reset(&mut self) -> Result<()> {
        let attr = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
        self.modify_qp("modify_qp to RESET", &attr, QpAttrMask::STATE).map_err(|error| {
            error.or_hint(|errno| {
                (errno == Errno::INVAL && self.state() == QpState::SQD).then(|| {
                    "the queue is still draining: wait for the event SQ_DRAINED, or bring it to ERR first"
                        .into()
                })
            })
        })
    }

    /// Takes both queues to be empty.
    ///
    /// # Safety
    ///
    /// The kernel must have carried out a request to RESET, and no request to another state since.
    pub(super) unsafe fn reset_queues(&mut self) {
        // SAFETY: the caller's promise is that of `SendQueue::reset`.
        unsafe { self.sq.reset() };
        if let Some(queue) = &mut self.rq {
            // SAFETY: the caller's promise is that of `RecvQueue::reset`.
            unsafe { queue.reset() };
        }
    }
}
