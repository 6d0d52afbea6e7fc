//! Memory shared with the kernel or a device.

use std::any::Any;
use std::ptr::NonNull;

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::pages;
use crate::process::ForkGuard;

/// Access of the program to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Read and write: queues.
    ReadWrite,
    /// Read only: a device's clock.
    Read,
    /// Write only: doorbell registers.
    Write,
}

impl Protection {
    fn flags(self) -> ProtFlags {
        match self {
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Self::Read => ProtFlags::READ,
            Self::Write => ProtFlags::WRITE,
        }
    }
}

/// Size of a huge page in bytes.
pub const HUGE_PAGE: usize = 2 << 20;

/// Shared memory, unmapped when dropped, or returned to its owner, such as a
/// [`QueueBuffer`](crate::queue_buffer::QueueBuffer).
///
/// A forked child does not inherit the mapping, since its accesses would reach the parent's queues.
/// The child must not access the range: it is unmapped or belongs to a later mapping of the child.
///
/// The kernel or device may change the memory at any time. So the mapping provides raw pointers
/// only, and no Rust reference to its content may be created.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    protection: Protection,
    fork_guard: ForkGuard,
    /// The right to memory that this value has not mapped.
    lease: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: a mapping belongs to the process, not to the thread that created it, and `Mapping` itself
// accesses nothing.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` provides only its address, size and protection, which never change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on (`MAP_SHARED`).
    ///
    /// # Errors
    ///
    /// The error of `mmap` or `madvise`; `EINVAL` for a length of 0.
    pub fn new(file: impl AsFd, offset: u64, len: usize, protection: Protection) -> Result<Self, Errno> {
        let fork_guard = ForkGuard::new()?;
        let start = pages::map_file(file, offset, len, protection.flags())?;
        Self { start, len, protection, fork_guard, lease: None }.with_dont_fork()
    }

    /// Maps `len` zeroed bytes of this process's memory, in whole pages, for use by a device.
    ///
    /// # Errors
    ///
    /// The error of `mmap` or `madvise`; `EINVAL` for a length of 0.
    pub fn anonymous(len: usize) -> Result<Self, Errno> {
        Self::without_file(len, false)
    }

    /// Like [`Mapping::anonymous`], in huge pages of [`HUGE_PAGE`] bytes. `len` is rounded up to
    /// whole huge pages, which the kernel reserves at once.
    ///
    /// # Errors
    ///
    /// The error of `mmap` or `madvise`: `ENOMEM` if too few huge pages are free, `EINVAL` for a
    /// length of 0 and on kernels without huge pages of this size.
    pub fn huge(len: usize) -> Result<Self, Errno> {
        let len = len.checked_next_multiple_of(HUGE_PAGE).ok_or(Errno::NOMEM)?;
        Self::without_file(len, true)
    }

    fn without_file(len: usize, is_huge: bool) -> Result<Self, Errno> {
        let (fork_guard, protection) = (ForkGuard::new()?, Protection::ReadWrite);
        let start = pages::map_private(len, is_huge)?;
        Self { start, len, protection, fork_guard, lease: None }.with_dont_fork()
    }

    /// Memory that another value has mapped: a
    /// [`QueueBuffer`](crate::queue_buffer::QueueBuffer), or a queue of a device in this process.
    /// Drop ends the lease. A forked child may inherit copies of memory of the process, and none of
    /// a dma-buf.
    pub(crate) fn leased(
        start: NonNull<u8>,
        len: usize,
        lease: impl Any + Send + Sync,
    ) -> Result<Self, Errno> {
        let (fork_guard, protection) = (ForkGuard::new()?, Protection::ReadWrite);
        Ok(Self { start, len, protection, fork_guard, lease: Some(Box::new(lease)) })
    }

    fn with_dont_fork(self) -> Result<Self, Errno> {
        // SAFETY: the kernel gave this value the range, and the advice changes nothing in this
        // process.
        unsafe { pages::set_dont_fork(self.start, self.len) }?;
        Ok(self)
    }

    /// Access of the program to the mapping.
    #[must_use]
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// Address of the first byte; page aligned.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.lease.is_some() {
            // The owner of the memory frees it.
            return;
        }
        if !self.fork_guard.is_same_process() {
            // A forked child has not inherited the range, and may have mapped other memory there.
            return;
        }
        // SAFETY: the kernel gave this value the range, which is unmapped only here. Accesses go
        // through raw pointers, and the types that make them own the `Mapping`: rings by the
        // contracts of `Producer::new` and `Consumer::new`, `DeviceMemory` and the providers'
        // queues by a field. An error leaves the pages mapped.
        unsafe { pages::unmap(self.start, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_huge_page_lengths_are_rejected() {
        assert_eq!(Mapping::huge(0).map(drop), Err(Errno::INVAL));
        assert_eq!(Mapping::huge(usize::MAX).map(drop), Err(Errno::NOMEM));
    }
}
