//! The kernel's object of a QP and its state.

use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write::structs::QueryQpResp;

use crate::error::{Error, InvalidCause, Result};

/// The kernel's object of a QP, with queues in user space or without.
pub(crate) struct KernelQp {
    pub(crate) file: Arc<DeviceFile>,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    /// The state that the last transition set.
    pub(crate) state: QpState,
}

impl KernelQp {
    /// A QP in RESET.
    pub(crate) fn new(file: &Arc<DeviceFile>, handle: u32, qp_num: u32) -> Self {
        Self { file: Arc::clone(file), handle, qp_num, state: QpState::RESET }
    }

    pub(crate) fn query(&self, mask: QpAttrMask) -> Result<QueryQpResp> {
        command::query_qp(&self.file, self.handle, mask)
            .map_err(|refused| Error::kernel("query_qp", format!("QP {:#x}", self.qp_num), refused))
    }

    /// The state of the QP in the kernel, for error messages: a QP moves itself to ERR. If the
    /// query fails, the state that the last transition set. siw of Linux 6.1 reports RESET in each state.
    pub(crate) fn state_now(&self) -> QpState {
        if self.file.driver_id() == DriverId::SIW.0 {
            return self.state;
        }
        self.query(QpAttrMask::STATE).map_or(self.state, |resp| resp.qp_state)
    }

    pub(crate) fn check_state(&self, verb: &'static str, needed: QpState) -> Result<()> {
        if self.state == needed {
            return Ok(());
        }
        let now = self.state_now();
        let cause = InvalidCause::QpState { state: now, required: needed, moved_itself: now != self.state };
        Err(Error::invalid(verb, cause))
    }

    /// Fails in RESET, from where no QP goes to ERR.
    pub(crate) fn check_not_reset(&self, verb: &'static str) -> Result<()> {
        if self.state == QpState::RESET {
            return Err(Error::wrong_state(verb, "the QP is in RESET and has no outstanding requests"));
        }
        Ok(())
    }

    /// The error of a modify that the kernel refused.
    pub(crate) fn refused(&self, verb: &'static str, mask: QpAttrMask, refused: IoctlError) -> Error {
        Error::kernel(verb, format!("QP {:#x} in {:?}, {mask:?}", self.qp_num, self.state_now()), refused)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Plain;

    #[test]
    fn wrong_state_is_the_doing_of_the_caller_unless_the_kernel_has_another() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        let refused = qp.resume().unwrap_err().to_string();
        assert_eq!(refused, "modify_qp SQD→RTS: the QP is in RTS, not in SQD");
        crate::testing::succeed_ioctls();
        // The kernel reports RESET.
        let refused = qp.resume().unwrap_err().to_string();
        let moved = "the QP is in RESET, where it moved itself after an error, not in SQD";
        assert_eq!(refused, format!("modify_qp SQD→RTS: {moved}"));
    }
}
