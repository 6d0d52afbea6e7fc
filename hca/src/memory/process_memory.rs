//! Memory of this process that it shares with a device.

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::copy::{into_shared, out_of_shared};

/// Zeroed pages, reached only by volatile and atomic accesses.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    base: NonNull<u8>,
    length: usize,
    /// Whether somebody else unmaps it.
    lent: bool,
}

// SAFETY: the memory is written by anyone at any time; all accesses of this module are volatile
// copies or atomic.
unsafe impl Send for ProcessMemory {}
// SAFETY: shared references reach the memory by volatile copies and atomics only.
unsafe impl Sync for ProcessMemory {}

impl ProcessMemory {
    pub(crate) fn new(length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no memory of ours.
        let base = unsafe {
            mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length, lent: false })
    }

    /// Memory that somebody else allocated and unmaps.
    ///
    /// # Safety
    ///
    /// It must be readable and writable for as long as the value lives, and be accessed only as the
    /// module says.
    pub(crate) unsafe fn lent(base: NonNull<u8>, length: usize) -> Self {
        Self { base, length, lent: true }
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    fn holds(&self, at: usize, length: usize) -> bool {
        at.checked_add(length).is_some_and(|end| end <= self.length)
    }

    /// Copies out; `false` if the range isn't inside.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let inside = self.holds(at, to.len());
        if inside {
            // SAFETY: the range was just checked to lie in the mapping, which lives as long as
            // `self`.
            unsafe { out_of_shared(self.base.as_ptr().add(at), to) };
        }
        inside
    }

    /// Copies in; `false` if the range isn't inside.
    pub(crate) fn write(&self, at: usize, from: &[u8]) -> bool {
        let inside = self.holds(at, from.len());
        if inside {
            // SAFETY: `holds` found the range in the mapping, which lives as long as `self`.
            unsafe { into_shared(self.base.as_ptr().add(at), from) };
        }
        inside
    }

    /// A word for atomic use; `None` unless it is aligned and inside.
    pub(crate) fn word(&self, at: usize) -> Option<&AtomicU64> {
        if !self.holds(at, size_of::<u64>()) || !at.is_multiple_of(align_of::<AtomicU64>()) {
            return None;
        }
        // SAFETY: aligned, inside of a mapping that lives as long as `self`, and never reached
        // through a reference that isn't atomic.
        Some(unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) })
    }
}

impl Drop for ProcessMemory {
    fn drop(&mut self) {
        if self.lent {
            return;
        }
        // SAFETY: base and length are those of our own mmap call, and whoever holds a pointer was
        // told when it ends.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}
