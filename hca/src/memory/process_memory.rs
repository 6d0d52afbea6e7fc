//! Memory of this process that a device shares.

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::copy::{into_shared, out_of_shared};

/// Zeroed pages, accessed only by volatile and atomic accesses.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    base: NonNull<u8>,
    length: usize,
    /// Whether the caller unmaps the memory.
    borrowed: bool,
}

// SAFETY: others may write the memory at any time. All accesses of this module are volatile copies
// or atomics.
unsafe impl Send for ProcessMemory {}
// SAFETY: shared references access the memory by volatile copies and atomics only.
unsafe impl Sync for ProcessMemory {}

impl ProcessMemory {
    pub(crate) fn new(length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses affects no existing memory.
        let base = unsafe {
            mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length, borrowed: false })
    }

    /// Memory that the caller allocates and unmaps.
    ///
    /// # Safety
    ///
    /// The memory must be readable and writable until the value is dropped. All accesses to it must
    /// be volatile or atomic.
    pub(crate) unsafe fn borrowed(base: NonNull<u8>, length: usize) -> Self {
        Self { base, length, borrowed: true }
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

    /// Copies from offset `at`. Returns `false` if the range exceeds the memory.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let inside = self.holds(at, to.len());
        if inside {
            // SAFETY: the range is inside the mapping, which is valid until `self` is dropped.
            unsafe { out_of_shared(self.base.as_ptr().add(at), to) };
        }
        inside
    }

    /// Copies to offset `at`. Returns `false` if the range exceeds the memory.
    pub(crate) fn write(&self, at: usize, from: &[u8]) -> bool {
        let inside = self.holds(at, from.len());
        if inside {
            // SAFETY: the range is inside the mapping, which is valid until `self` is dropped.
            unsafe { into_shared(self.base.as_ptr().add(at), from) };
        }
        inside
    }

    /// A word for atomic access. Returns `None` if it is unaligned or exceeds the memory.
    pub(crate) fn word(&self, at: usize) -> Option<&AtomicU64> {
        if !self.holds(at, size_of::<u64>()) || !at.is_multiple_of(align_of::<AtomicU64>()) {
            return None;
        }
        // SAFETY: the word is aligned and inside a mapping that is valid until `self` is dropped.
        // No other reference to it is non-atomic.
        Some(unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) })
    }
}

impl Drop for ProcessMemory {
    fn drop(&mut self) {
        if self.borrowed {
            return;
        }
        // SAFETY: base and length are those of this type's mmap call. Holders of a pointer know
        // that it is valid only until the drop.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}
