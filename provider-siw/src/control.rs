//! Commands that name a queue pair.

use std::fmt;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write::structs::ModifyQpReq;

/// Commands that name a queue pair.
pub trait Control: Send + Sync + fmt::Debug {
    /// Moves the QP to ERR. After the return, the kernel takes no element of its queues. It may still
    /// flush some.
    ///
    /// # Errors
    ///
    /// The kernel's error. The QP may be in any state then.
    fn set_error(&self) -> Result<(), IoctlError>;

    /// Whether the kernel reports that the QP was in RTS and is no more. Linux 6.1 never does.
    fn has_ended(&self) -> bool;

    /// The number of RDMA reads at a time that the connection has (ORD).
    ///
    /// # Errors
    ///
    /// The kernel's error.
    fn max_reads(&self) -> Result<u32, IoctlError>;
}

/// The kernel's commands.
#[derive(Debug)]
pub(crate) struct KernelControl {
    file: Arc<DeviceFile>,
    qp: u32,
}

impl KernelControl {
    /// Commands for the QP with the kernel's handle `qp`.
    ///
    /// # Safety
    ///
    /// While the value is used, the handle must be that of a QP of `file` that the user of the value owns.
    pub(crate) unsafe fn new(file: Arc<DeviceFile>, qp: u32) -> Self {
        Self { file, qp }
    }
}

impl Control for KernelControl {
    fn set_error(&self) -> Result<(), IoctlError> {
        let request = ModifyQpReq {
            qp_handle: self.qp,
            attr_mask: QpAttrMask::STATE,
            qp_state: QpState::ERR,
            ..ModifyQpReq::zeroed()
        };
        // SAFETY: the request names no memory and does not move the QP to RESET. The user of the value owns
        // the QP, by the contract of `new`.
        //
        // An error of a removed device does not show that the kernel has destroyed the QP: commands begin to
        // fail before.
        unsafe { command::modify_qp(&self.file, &request) }
    }

    fn has_ended(&self) -> bool {
        let ended = |state| matches!(state, QpState::SQD | QpState::SQE | QpState::ERR);
        command::query_qp(&self.file, self.qp, QpAttrMask::STATE).is_ok_and(|resp| ended(resp.qp_state))
    }

    fn max_reads(&self) -> Result<u32, IoctlError> {
        // siw reports the size of the queue of outstanding reads as `max_dest_rd_atomic` (`siw_query_qp` of
        // `siw_verbs.c`).
        command::query_qp(&self.file, self.qp, QpAttrMask::STATE).map(|resp| resp.max_dest_rd_atomic.into())
    }
}
