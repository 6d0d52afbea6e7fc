//! Memory shared with the kernel or a device.

use std::ptr::NonNull;

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::process::Home;

/// What the program may do with a mapping.
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

/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Shared memory, unmapped when dropped.
///
/// A forked child does not have it: what it did there would be done to its parent's queues. It is stopped by `SIGSEGV`
/// where it tries.
///
/// The other side may change it at any time, so it gives out raw pointers only: no Rust reference may be made to
/// what lies in it.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    home: Home,
    is_huge: bool,
}

// SAFETY: a mapping belongs to the process, not to the thread that made it, and `Mapping` itself accesses nothing.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared `Mapping` gives out nothing but its address and size.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on, shared.
    ///
    /// # Errors
    ///
    /// What `mmap` and `madvise` report; `EINVAL` too for a length of 0.
    pub fn new(file: impl AsFd, offset: u64, len: usize, protection: Protection) -> Result<Self, Errno> {
        let home = Home::here()?;
        // SAFETY: with a null hint and without MAP_FIXED the kernel picks an unused range, so no existing memory
        // changes.
        let start = unsafe {
            mmap(std::ptr::null_mut(), len, protection.flags(), MapFlags::SHARED, file.as_fd(), offset)
        }?;
        Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len, home, is_huge: false }
            .kept_from_children()
    }

    /// `len` bytes of zeros that a device may be given: memory of this process, in whole pages.
    ///
    /// # Errors
    ///
    /// What `mmap` and `madvise` report; `EINVAL` too for a length of 0.
    pub fn anonymous(len: usize) -> Result<Self, Errno> {
        let home = Home::here()?;
        let protection = Protection::ReadWrite.flags();
        // SAFETY: as in `new`.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len, home, is_huge: false }
            .kept_from_children()
    }

    /// The same in huge pages of [`HUGE_PAGE`] bytes each: as many as `len` bytes need, which are set aside at once.
    ///
    /// # Errors
    ///
    /// What `mmap` and `madvise` report: `ENOMEM` where not so many huge pages are free, `EINVAL` too for a length of 0 and
    /// on kernels without huge pages of this size.
    pub fn huge(len: usize) -> Result<Self, Errno> {
        let len = len.checked_next_multiple_of(HUGE_PAGE).ok_or(Errno::NOMEM)?;
        let (home, protection) = (Home::here()?, Protection::ReadWrite.flags());
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // SAFETY: as in `new`.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }?;
        Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len, home, is_huge: true }
            .kept_from_children()
    }

    fn kept_from_children(self) -> Result<Self, Errno> {
        // SAFETY: the range is this value's, and the advice changes nothing in this process.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontFork) }?;
        Ok(self)
    }

    /// The first byte; page aligned.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Whether it lies in huge pages.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        self.is_huge
    }

    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // A forked child has not inherited the range, and may have mapped something else there.
            return;
        }
        // SAFETY: the range was mapped by `new` and is unmapped only here; whoever holds a pointer into it keeps
        // the `Mapping` too, by the contract of those who take such pointers. An error leaves the pages mapped,
        // which harms nobody.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_huge_pages_and_more_than_can_be_are_refused() {
        assert_eq!(Mapping::huge(0).map(drop), Err(Errno::INVAL));
        assert_eq!(Mapping::huge(usize::MAX).map(drop), Err(Errno::NOMEM));
    }
}
