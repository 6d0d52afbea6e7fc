//! The doorbell of a send queue.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_provider::device::DeviceFile;
use bareverbs_uapi::write::structs::{PostSendReq, PostSendResp, SendWr};
use bareverbs_uapi::write::{self, PostSend};

/// Rings a send queue's doorbell: the kernel then processes the queue.
///
/// The trait vouches for nothing: who makes an [`RxeSq`](crate::RxeSq) promises that its doorbell
/// answers as [`Doorbell::ring`] says.
pub trait Doorbell: Send {
    /// Rings it.
    ///
    /// # Errors
    ///
    /// The kernel's answer; `EINVAL` means that it did not process the queue and that nothing else
    /// makes it do so before the queue pair's state changes.
    fn ring(&mut self) -> Result<(), Errno>;
}

/// Bytes of the call: its header and three attributes, the command's number, request and response.
const CALL: usize = 24 + 3 * 16;

/// The command `POST_SEND` without requests, built once.
#[derive(Debug)]
pub struct KernelDoorbell {
    file: Arc<DeviceFile>,
    call: [u8; CALL],
    /// What `call` points at. Freed by hand, so that moving the doorbell leaves the addresses and
    /// their validity alone.
    exchange: *mut Exchange,
}

#[derive(Debug)]
struct Exchange {
    request: PostSendReq,
    response: PostSendResp,
}

// SAFETY: the doorbell owns what `exchange` points at, and only the kernel accesses it, during
// `ring`.
unsafe impl Send for KernelDoorbell {}

impl KernelDoorbell {
    /// The doorbell of the queue pair with the kernel's handle `qp`.
    ///
    /// It makes the kernel look at what was published in that queue pair's ring and does nothing
    /// else, so any handle may be given: a wrong one is refused, or has another queue pair's
    /// requests carried out at once rather than later.
    #[must_use]
    pub fn new(file: Arc<DeviceFile>, qp: u32) -> Self {
        let request = PostSendReq {
            qp_handle: qp,
            // The kernel refuses a size below its own struct's even where there are no requests.
            wqe_size: size_of::<SendWr>() as u32,
            ..PostSendReq::zeroed()
        };
        let exchange = Box::into_raw(Box::new(Exchange { request, response: PostSendResp::zeroed() }));
        // SAFETY: just allocated, and referenced by nothing else; both references end in this
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
        // `exchange`, which lives as long as the doorbell and is accessed by nothing else.
        unsafe { self.file.execute_raw(&mut self.call) }
    }
}

impl Drop for KernelDoorbell {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `new` and freed only here; no call is under way.
        drop(unsafe { Box::from_raw(self.exchange) });
    }
}
