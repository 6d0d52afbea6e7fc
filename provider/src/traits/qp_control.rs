//! State changes of a QP, and the quirks of its driver.

use bareverbs_uapi::write::structs::{ExModifyQp, ModifyQpReq};
use rustix::io::Errno;

use crate::command::{self, DriverPayload};
use crate::device::{DeviceFile, IoctlError};
use crate::request::{Burst, Ece};

/// The control operations of a queue pair, implemented by its send queue. None is on the data path.
///
/// Every method has a default body: a provider without quirks and without vendor options
/// implements none.
///
/// # Safety
///
/// 1. **Modify** ([`modify`](Self::modify)). The provider requests exactly this change from the
///    kernel.
/// 2. **Resume** ([`resume`](Self::resume)). The device sees only requests that were published
///    before, by obligation 4 of [`SendQueue`](super::SendQueue).
/// 3. **Handle** ([`release_handle`](Self::release_handle)). After the return, the provider issues
///    commands that name the queue pair only in methods of this queue and of the receive queue, and no
///    other thread is issuing one. `verbs` relies on it when it destroys the queue pair: the kernel may
///    give the handle to another object.
///
/// The other methods are informative; no code may rely on their results for soundness.
///
/// Safe code can't change a queue pair:
///
/// ```compile_fail,E0133
/// # use bareverbs_provider::device::{DeviceFile, IoctlError};
/// # use bareverbs_provider::traits::QpControl;
/// # use bareverbs_uapi::write::structs::ModifyQpReq;
/// fn modify(queue: &mut impl QpControl, file: &DeviceFile) -> Result<(), IoctlError> {
///     queue.modify(file, &ModifyQpReq::zeroed())
/// }
/// ```
#[doc(alias = "ibv_modify_qp")]
pub unsafe trait QpControl {
    /// Validates a change before the command is issued. Default: every change is valid.
    ///
    /// # Errors
    ///
    /// The reason, if the driver is known to crash, hang or misbehave on this change, or to reject it for
    /// a rule of its own.
    fn validate_modify(&self, request: &ModifyQpReq) -> Result<(), &'static str> {
        let _ = request;
        Ok(())
    }

    /// Whether RESET must be issued twice, because the first command leaves posted requests behind
    /// (a driver bug). Default: `false`.
    ///
    /// If the kernel rejects the second command, `verbs` issues it again before the QP leaves
    /// RESET.
    fn needs_second_reset(&self) -> bool {
        false
    }

    /// Whether the QP must be moved to ERR before it is destroyed, because the kernel's destruction may
    /// wait long for outstanding sends (a driver bug). Default: `false`.
    ///
    /// Only then, because the move may suppress the acknowledgement of a message whose completion was
    /// polled already: the peer would repeat it in vain.
    fn needs_error_before_destroy(&self) -> bool {
        false
    }

    /// The caller is about to destroy the queue pair, or to give its handle away. If the kernel refuses to
    /// destroy it, the queues stay usable. Default: nothing, for providers that issue commands only in
    /// methods of the queue pair's own queues.
    fn release_handle(&mut self) {}

    /// ECE options as the device last reported them. `None` without ECE. Options that were
    /// [set](Self::set_ece) and not yet confirmed count as 0. Default: `None`.
    fn ece(&self) -> Option<Ece> {
        None
    }

    /// Requests ECE options with the next [`modify`](Self::modify). Default: ignored.
    fn set_ece(&mut self, options: u32) {
        let _ = options;
    }

    /// Executes the kernel's `MODIFY_QP`. Default: the command without a driver payload.
    ///
    /// # Errors
    ///
    /// The kernel rejects the change.
    ///
    /// # Safety
    ///
    /// As for [`command::modify_qp`]: the request names the queue pair of this send queue, by its
    /// handle in the context of `file`. The caller owns the QP. After a change to RESET, the caller
    /// resets both queues before it pushes a request.
    unsafe fn modify(&mut self, file: &DeviceFile, request: &ModifyQpReq) -> Result<(), IoctlError> {
        // SAFETY: the caller owns the QP that the request names, and resets its queues, by this
        // method's contract.
        unsafe { command::modify_qp(file, request) }
    }

    /// Executes the kernel's extended `MODIFY_QP`, with burst parameters of packet pacing. Default:
    /// `EOPNOTSUPP` for burst parameters other than 0, else the command without a driver payload.
    ///
    /// # Errors
    ///
    /// The kernel rejects the change.
    ///
    /// # Safety
    ///
    /// As for [`QpControl::modify`].
    unsafe fn modify_rate(
        &mut self,
        file: &DeviceFile,
        request: &ExModifyQp,
        burst: Burst,
    ) -> Result<(), IoctlError> {
        if burst != Burst::default() {
            return Err(IoctlError::new("ex::ModifyQp", Errno::OPNOTSUPP));
        }
        // SAFETY: the caller owns the QP that the request names, and resets its queues, by this
        // method's contract.
        unsafe { command::modify_qp_ex(file, request, DriverPayload::default()) }
    }

    /// Updates the queue after a successful modify. Default: nothing.
    fn modified(&mut self, request: &ModifyQpReq) {
        let _ = request;
    }

    /// Starts requests that were published in SQD, after the return to RTS. Default: nothing, for
    /// devices that start them without a doorbell.
    ///
    /// # Errors
    ///
    /// The kernel rejects the doorbell.
    fn resume(&mut self) -> Result<(), IoctlError> {
        Ok(())
    }
}
