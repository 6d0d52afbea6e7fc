//! Transitions to SQD, ERR and RESET.

use bareverbs_provider::traits::{Provider, QpControl, RecvQueue, SendQueue};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use rustix::io::Errno;

use super::QpCore;
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::qp::Qp;
use crate::qp::attr::QpAttr;

impl<P: Provider> QpCore<P> {
    /// As [`Qp::drain`].
    ///
    /// # Errors
    /// As for [`Qp::drain`].
    #[doc(alias = "IBV_QPS_SQD")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn drain(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp RTS→SQD";
        self.check_state(VERB, QpState::RTS)?;
        let attr = QpAttr { qp_state: QpState::SQD, en_sqd_async_notify: true, ..QpAttr::default() };
        self.modify_qp(VERB, &attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY).map_err(|error| {
            error.or_hint(|errno| {
                (errno == Errno::INVAL).then(|| {
                    "the QP may have failed, or the driver may not support SQD (ConnectX's does not)".into()
                })
            })
        })
    }

    /// As [`Qp::resume`].
    ///
    /// # Errors
    /// As for [`Qp::resume`].
    #[doc(alias = "IBV_QPS_RTS")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn resume(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp SQD→RTS";
        self.check_state(VERB, QpState::SQD)?;
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

    /// As [`Qp::set_error`].
    ///
    /// # Errors
    /// As for [`Qp::set_error`].
    #[doc(alias = "IBV_QPS_ERR")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn set_error(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp to ERR";
        if self.state() == QpState::RESET {
            return Err(Error::wrong_state(VERB, "the QP is in RESET and has no outstanding requests"));
        }
        let attr = QpAttr { qp_state: QpState::ERR, ..QpAttr::default() };
        self.modify_qp(VERB, &attr, QpAttrMask::STATE)
    }

    /// As [`Qp::reset`].
    ///
    /// # Errors
    /// As for [`Qp::reset`].
    #[doc(alias = "IBV_QPS_RESET")]
    #[doc(alias = "ibv_modify_qp")]
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
