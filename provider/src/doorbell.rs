//! Doorbells of send queues whose driver rings them by a command: Soft-RoCE and Soft-iWARP.

use std::sync::Arc;

use bareverbs_uapi::write::structs::{CmdHdr, PostSendReq, PostSendResp, SendWr};
use bareverbs_uapi::write::{self, PostSend, WriteCommand};
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::device::{DeviceFile, ErrorOrigin};

/// Rings a send queue's doorbell: the kernel then processes the queue.
///
/// The trait guarantees nothing: the creator of a send queue guarantees that its doorbell returns as
/// [`Doorbell::ring`] and the provider document.
pub trait Doorbell: Send {
    /// Rings the doorbell.
    ///
    /// # Errors
    ///
    /// The kernel's error. Of Soft-RoCE, `EINVAL` means that the kernel did not process the queue, and that
    /// nothing else makes it do so before the QP changes its state. Of Soft-iWARP, `ENOTCONN` means that
    /// the QP is not in RTS, or that its state is changing.
    fn ring(&mut self) -> Result<(), Errno>;

    /// What the errors of the doorbell are of.
    fn error_origin(&self) -> ErrorOrigin {
        ErrorOrigin::Kernel
    }
}

/// Size of the command in words of four bytes, as the header has it.
const COMMAND_WORDS: usize = (size_of::<CmdHdr>() + size_of::<PostSendReq>()) / 4;

/// The command `POST_SEND` without requests, built once.
#[derive(Debug)]
pub struct KernelDoorbell {
    file: Arc<DeviceFile>,
    /// What the kernel reads and writes. Freed manually: moving the doorbell affects neither the
    /// address of the response nor its validity.
    exchange: *mut Exchange,
    /// Whether the kernel refuses `write()` in general.
    by_ioctl: bool,
}

#[derive(Debug)]
struct Exchange {
    command: Command,
    response: PostSendResp,
}

/// What `write()` passes.
#[derive(Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    header: CmdHdr,
    request: PostSendReq,
}

// SAFETY: the doorbell owns the allocation behind `exchange`, and only the kernel accesses it,
// during `ring`.
unsafe impl Send for KernelDoorbell {}

impl KernelDoorbell {
    /// The doorbell of the QP with the kernel's handle `qp`.
    ///
    /// It only makes the kernel process the requests published in that QP's ring, so any handle is
    /// allowed. An unknown handle fails; the handle of another QP makes the kernel execute that
    /// QP's published requests earlier.
    #[must_use]
    pub fn new(file: Arc<DeviceFile>, qp: u32) -> Self {
        let header = CmdHdr {
            command: PostSend::INFO.number,
            in_words: COMMAND_WORDS as u16,
            out_words: (size_of::<PostSendResp>() / 4) as u16,
        };
        let request = PostSendReq {
            qp_handle: qp,
            // The kernel rejects a size below that of its own struct, even without requests.
            wqe_size: size_of::<SendWr>() as u32,
            ..PostSendReq::zeroed()
        };
        let command = Command { header, request };
        let exchange = Box::into_raw(Box::new(Exchange { command, response: PostSendResp::zeroed() }));
        // SAFETY: just allocated, and not referenced elsewhere.
        unsafe {
            (*exchange).command.request.response = (&raw mut (*exchange).response).expose_provenance() as u64
        };
        Self { file, exchange, by_ioctl: false }
    }

    /// The doorbell by `INVOKE_WRITE`.
    #[cold]
    fn ring_by_ioctl(&mut self) -> Result<(), Errno> {
        // SAFETY: `exchange` is allocated, and no call that uses it is in progress.
        let Exchange { command, response } = unsafe { &mut *self.exchange };
        let mut call = write::invoke::<PostSend>(self.file.driver_id(), &command.request, response);
        // SAFETY: a `Call`'s bytes are a header with the correct length, and all memory that they point
        // to is borrowed.
        unsafe { self.file.execute_raw(call.as_mut_bytes()) }
    }
}

impl Doorbell for KernelDoorbell {
    #[inline]
    fn ring(&mut self) -> Result<(), Errno> {
        if self.by_ioctl {
            return self.ring_by_ioctl();
        }
        // SAFETY: `exchange` is allocated. The kernel writes to `response` alone.
        let command = unsafe { (*self.exchange).command.as_bytes() };
        // SAFETY: the header has the lengths of the request and the response, and the response is in
        // `exchange`, which the doorbell owns and nothing else accesses.
        match unsafe { self.file.write_raw(command) } {
            // The kernel has executed nothing: the credentials of the thread are not those of the open, a
            // security module forbids `write()`, the file has none, or the QP is below RTS. The answer of
            // the ioctl tells the last cause from the others.
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::INVAL)) => {
                let answer = self.ring_by_ioctl();
                self.by_ioctl = errno != Errno::INVAL || answer.is_ok();
                answer
            }
            result => result,
        }
    }

    fn error_origin(&self) -> ErrorOrigin {
        self.file.error_origin()
    }
}

impl Drop for KernelDoorbell {
    fn drop(&mut self) {
        // SAFETY: created by `Box::into_raw` in `new` and freed only here; no call is in progress.
        drop(unsafe { Box::from_raw(self.exchange) });
    }
}
