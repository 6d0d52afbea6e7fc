//! Devices of this process behind a [`DeviceFile`](super::DeviceFile).

use std::fmt::Debug;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::BeforeWait;
use crate::mapping::{Mapping, Protection};
use crate::process::ForkGuard;

/// A context of a device that this process contains. It executes the calls of the uverbs ABI in place
/// of the kernel, with the driver payloads and rings of the kernel's driver.
///
/// # Safety
///
/// The safe functions of the providers rely on these obligations, as they rely on the kernel:
///
/// 1. A call accesses only the memory that the kernel would: its own bytes, the memory that its
///    attributes name, memory of registrations, and memory of queues. Addresses of a call are
///    checked: an address without memory is `EFAULT`.
/// 2. A descriptor number in a response is a new descriptor, which the caller owns.
/// 3. The handle of a new object is that of no living object of its class in the context.
/// 4. [`map`](Backend::map) returns the memory of the queue to which a response gave the offset, at
///    most once. Only that queue uses the memory.
/// 5. A call that fails has the effects that it has in the kernel's driver if it fails with that
///    error number. An object whose destruction fails still exists. An object whose creation fails
///    doesn't. A doorbell of rxe that fails with `EINVAL` has not read the queue.
/// 6. An object that was destroyed accesses neither its queues nor registered memory. Dropping the
///    context destroys all of its objects.
/// 7. No method, and not the drop, is left by a panic.
/// 8. The memory of a request is not accessed after its completion is in the CQ, also not for a request
///    that was flushed. Nor is memory through a window after the completion of its invalidation.
pub unsafe trait Backend: Debug + Send + Sync {
    /// Executes an ioctl. `call` is its header and attributes.
    ///
    /// # Errors
    ///
    /// The error number of the kernel; never `EINTR`.
    ///
    /// # Safety
    ///
    /// As for [`DeviceFile::execute_raw`](super::DeviceFile::execute_raw).
    unsafe fn ioctl(&self, call: &mut [u8]) -> Result<(), Errno>;

    /// Executes a write command.
    ///
    /// # Errors
    ///
    /// The error number of the kernel; never `EINTR`.
    ///
    /// # Safety
    ///
    /// As for [`DeviceFile::write_raw`](super::DeviceFile::write_raw).
    unsafe fn write(&self, command: &[u8]) -> Result<(), Errno>;

    /// The memory of the queue at `offset`, of which the first `len` bytes are mapped.
    ///
    /// # Errors
    ///
    /// `EINVAL` if no queue has this offset, if it is shorter, or if its memory was given out before.
    fn map(&self, offset: u64, len: usize) -> Result<Arc<Mapping>, Errno>;

    /// A descriptor of the context, for `AsFd`. It takes neither ioctls nor commands.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// Runs a device that runs in waits only, before a thread blocks at most until `end`, and until the
    /// virtual time `alarm`, when the wait is ready, too. `is_ready`: whether the wait would end at once. It
    /// makes no calls of the device.
    ///
    /// # Errors
    ///
    /// `EDEADLK` if nothing can end the wait, an error number of the device otherwise.
    fn before_wait(
        &self,
        end: Option<Instant>,
        alarm: Option<Duration>,
        is_ready: &dyn Fn() -> bool,
    ) -> Result<BeforeWait, Errno> {
        let _ = (end, alarm, is_ready);
        Ok(BeforeWait::Block)
    }

    /// The virtual time of a device that runs in waits only: polling its queues does not let it go on.
    fn virtual_now(&self) -> Option<Duration> {
        None
    }
}

/// The instant at which virtual times begin.
pub(super) fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// A reference to a backend. A forked child doesn't release it: the locks of the child's copy may be
/// held by threads that the child doesn't have.
#[derive(Debug)]
pub(super) struct SharedBackend {
    backend: ManuallyDrop<Arc<dyn Backend>>,
    fork_guard: ForkGuard,
}

impl SharedBackend {
    pub(super) fn new(backend: Arc<dyn Backend>, fork_guard: ForkGuard) -> Self {
        Self { backend: ManuallyDrop::new(backend), fork_guard }
    }

    pub(super) fn map(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        if protection != Protection::ReadWrite {
            return Err(Errno::PERM);
        }
        let memory = self.backend.map(offset, len)?;
        if memory.len() < len {
            return Err(Errno::INVAL);
        }
        Mapping::leased(memory.as_ptr(), len, memory)
    }
}

impl Deref for SharedBackend {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        &**self.backend
    }
}

impl Drop for SharedBackend {
    fn drop(&mut self) {
        if self.fork_guard.is_same_process() {
            // SAFETY: dropped only here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.backend) };
        }
    }
}
