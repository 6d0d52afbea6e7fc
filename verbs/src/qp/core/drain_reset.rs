//! Transitions to SQD, ERR and RESET.

use bareverbs_provider::traits::{Provider, QpControl, RecvQueue, SendQueue};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use rustix::io::Errno;

use super::QpCore;
use crate::error::{Error, Result};
use crate::qp::attr::QpAttr;

impl<P: Provider> QpCore<P> {
    /// As [`Qp::drain`](crate::qp::Qp::drain).
    ///
    /// # Errors
    /// As for [`Qp::drain`](crate::qp::Qp::drain).
    pub fn drain(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp RTS→SQD";
        if self.pd.context().capabilities().iwarp {
            let reason = "SQD closes a connection of iWARP: wait for the completions of the sends instead";
            return Err(Error::wrong_state(VERB, reason));
        }
        self.kernel.check_state(VERB, QpState::RTS)?;
        let attr = QpAttr { qp_state: QpState::SQD, en_sqd_async_notify: true, ..QpAttr::default() };
        self.modify_qp(VERB, &attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY).map_err(|error| {
            error.or_hint(|errno| {
                (errno == Errno::INVAL).then(|| {
                    "the QP may have failed, or the driver may not support SQD (ConnectX's does not)".into()
                })
            })
        })
    }

    /// As [`Qp::resume`](crate::qp::Qp::resume).
    ///
    /// # Errors
    /// As for [`Qp::resume`](crate::qp::Qp::resume).
    pub fn resume(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp SQD→RTS";
        self.kernel.check_state(VERB, QpState::SQD)?;
        let attr = QpAttr { qp_state: QpState::RTS, ..QpAttr::default() };
        self.modify_qp(VERB, &attr, QpAttrMask::STATE).map_err(|error| {
            error.or_hint(|errno| {
                (errno == Errno::INVAL).then(|| {
                    "the send queue may still be draining (wait for the event SQ_DRAINED), or the \
                     QP may have failed"
                        .into()
                })
            })
        })?;
        self.sq.resume().map_err(|refused| Error::kernel(VERB, format!("QP {:#x}", self.qp_num()), refused))
    }

    /// As [`Qp::set_error`](crate::qp::Qp::set_error).
    ///
    /// # Errors
    /// As for [`Qp::set_error`](crate::qp::Qp::set_error).
    pub fn set_error(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp to ERR";
        self.kernel.check_not_reset(VERB)?;
        let attr = QpAttr { qp_state: QpState::ERR, ..QpAttr::default() };
        self.modify_qp(VERB, &attr, QpAttrMask::STATE)
    }

    /// As [`Qp::reset`](crate::qp::Qp::reset).
    ///
    /// # Errors
    /// As for [`Qp::reset`](crate::qp::Qp::reset).
    pub fn reset(&mut self) -> Result<()> {
        let attr = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
        self.modify_qp("modify_qp to RESET", &attr, QpAttrMask::STATE).map_err(|error| {
            error.or_hint(|errno| {
                (errno == Errno::INVAL && self.state() == QpState::SQD).then(|| {
                    "the send queue is still draining: wait for the event SQ_DRAINED, or move the \
                     QP to ERR first"
                        .into()
                })
            })
        })
    }

    /// Resets both queues to empty.
    ///
    /// # Safety
    ///
    /// The kernel must have executed a request to RESET, and no request to another state since.
    pub(super) unsafe fn reset_queues(&mut self) {
        // SAFETY: the caller's contract is that of `SendQueue::reset`.
        unsafe { self.sq.reset() };
        if let Some(queue) = &mut self.rq {
            // SAFETY: the caller's contract is that of `RecvQueue::reset`.
            unsafe { queue.reset() };
        }
    }
}
