//! The doorbell of a send queue.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_provider::device::DeviceFile;
use bareverbs_uapi::write::structs::{PostSendReq, PostSendResp, SendWr};
use bareverbs_uapi::write::{self, PostSend};

/// Rings a send queue's doorbell: the kernel then processes the queue.
///
/// The trait guarantees nothing: the creator of an [`RxeSq`](crate::RxeSq) guarantees that its
/// doorbell returns as [`Doorbell::ring`] documents.
pub trait Doorbell: Send {
    /// Rings the doorbell.
    ///
    /// # Errors
    ///
    /// The kernel's error. `EINVAL` means that the kernel did not process the queue, and that
    /// nothing else makes it do so before the QP changes its state.
    fn ring(&mut self) -> Result<(), Errno>;
}

/// Bytes of the ioctl call: its header and three attributes (command number, request, response).
const CALL: usize = 24 + 3 * 16;

/// The command `POST_SEND` without requests, built once.
#[derive(Debug)]
pub struct KernelDoorbell {
    file: Arc<DeviceFile>,
    call: [u8; CALL],
    /// The request and response that `call` points to. Freed manually: moving the doorbell affects
    /// neither the addresses nor their validity.
    exchange: *mut Exchange,
}

#[derive(Debug)]
struct Exchange {
    request: PostSendReq,
    response: PostSendResp,
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
        let request = PostSendReq {
            qp_handle: qp,
            // The kernel rejects a size below that of its own struct, even without requests.
            wqe_size: size_of::<SendWr>() as u32,
            ..PostSendReq::zeroed()
        };
        let exchange = Box::into_raw(Box::new(Exchange { request, response: PostSendResp::zeroed() }));
        // SAFETY: just allocated, and not referenced elsewhere; both references end in this
        // function.
        let (request, response) = unsafe { (&(*exchange).request, &mut (*exchange).response) };
        let built = write::invoke::<PostSend>(file.driver_id(), request, response);
        let mut call = [0; CALL];
        call.copy_from_slice(built.as_bytes());
        Self { file, call, exchange }
    }
}

impl Doorbell for KernelDoorbell {
    #[inline]
    fn ring(&mut self) -> Result<(), Errno> {
        // SAFETY: the call's header has the call's true length, and its attributes point into
        // `exchange`, which the doorbell owns and nothing else accesses.
        unsafe { self.file.execute_raw(&mut self.call) }
    }
}

impl Drop for KernelDoorbell {
    fn drop(&mut self) {
        // SAFETY: created by `Box::into_raw` in `new` and freed only here; no call is in progress.
        drop(unsafe { Box::from_raw(self.exchange) });
    }
}
