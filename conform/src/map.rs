//! Mapped memory of the device's file, which the kernel changes as well.

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use bareverbs_provider::barrier;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping, unmapped when dropped.
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
    /// Whether this process may read and write the memory.
    accessible: bool,
    /// The memory, if this value has not mapped it.
    #[cfg(any(test, feature = "soft"))]
    of_device: Option<bareverbs_provider::mapping::Mapping>,
}

impl Map {
    /// Maps `len` bytes of `file` from `offset` on.
    pub(crate) fn new(
        file: impl AsFd,
        offset: u64,
        len: usize,
        protection: ProtFlags,
    ) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
        let accessible = protection.contains(ProtFlags::READ | ProtFlags::WRITE);
        Ok(Self {
            start,
            len,
            accessible,
            #[cfg(any(test, feature = "soft"))]
            of_device: None,
        })
    }

    /// Memory of a device of this process. It is readable and writable, but used as the protection says.
    #[cfg(any(test, feature = "soft"))]
    pub(crate) fn of_soft_device(
        mapping: bareverbs_provider::mapping::Mapping,
        protection: ProtFlags,
    ) -> Self {
        let accessible = protection.contains(ProtFlags::READ | ProtFlags::WRITE);
        Self { start: mapping.as_ptr(), len: mapping.len(), accessible, of_device: Some(mapping) }
    }

    /// The address of its first byte.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// The address of `size` bytes at an offset, if this process may access them.
    fn at(&self, offset: usize, size: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.len);
        (inside && self.accessible).then(|| self.start.as_ptr().wrapping_add(offset))
    }

    /// The address of an index: a word at a multiple of 4 bytes.
    fn word(&self, offset: usize) -> Option<*mut u32> {
        let aligned = offset.is_multiple_of(4);
        self.at(offset, 4).filter(|_| aligned).map(|at| at.cast())
    }

    /// Reads an index that the kernel advances.
    pub(crate) fn index(&self, offset: usize) -> Option<u32> {
        // SAFETY: the word is aligned and within the mapping, which is readable and writable.
        // Indices are accessed by `index` and `publish` only.
        self.word(offset).map(|word| unsafe { barrier::read_peer_index(word) })
    }

    /// Stores an index after all earlier writes.
    pub(crate) fn publish(&self, offset: usize, value: u32) -> Option<()> {
        // SAFETY: as in `index`.
        self.word(offset).map(|word| unsafe { barrier::publish_own_index(word, value) })
    }

    /// Copies bytes of the mapping.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Option<()> {
        let from = self.at(offset, bytes.len())?;
        for (position, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: within the mapping, which is readable.
            *byte = unsafe { from.wrapping_add(position).read_volatile() };
        }
        Some(())
    }

    /// Copies bytes into the mapping.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) -> Option<()> {
        let to = self.at(offset, bytes.len())?;
        for (position, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping, which is writable.
            unsafe { to.wrapping_add(position).write_volatile(*byte) };
        }
        Some(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        #[cfg(any(test, feature = "soft"))]
        if self.of_device.is_some() {
            return;
        }
        // SAFETY: the mapping is this value's own, and no reference to its memory exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
