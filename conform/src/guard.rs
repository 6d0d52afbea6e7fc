//! Memory that ends at a page without access.

use std::ptr;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Bytes whose end is the end of a page, followed by a page without access.
pub(crate) struct Guard {
    start: *mut u8,
    page: usize,
    len: usize,
}

impl Guard {
    /// Copies the bytes, at most a page, before the page without access.
    pub(crate) fn ending_with(bytes: &[u8]) -> Option<Self> {
        let page = rustix::param::page_size();
        if bytes.len() > page {
            return None;
        }
        // SAFETY: a new mapping at an address that the kernel chooses. Its first page is written
        // while nothing else refers to it; its second page is never accessed.
        unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let start = mmap_anonymous(ptr::null_mut(), 2 * page, protection, MapFlags::PRIVATE).ok()?;
            let guard = Self { start: start.cast(), page, len: bytes.len() };
            mprotect(start.byte_add(page), page, MprotectFlags::empty()).ok()?;
            ptr::copy_nonoverlapping(bytes.as_ptr(), guard.start.add(page - bytes.len()), bytes.len());
            Some(guard)
        }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `ending_with` initialized these bytes, and the mapping lives as long as this value.
        // Nothing writes to it while this reference exists: the kernel only reads a buffer of `write()`.
        unsafe { std::slice::from_raw_parts(self.start.add(self.page - self.len), self.len) }
    }

    /// The address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.start.wrapping_add(self.page - self.len).expose_provenance() as u64
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference to it exists.
        let _ = unsafe { munmap(self.start.cast(), 2 * self.page) };
    }
}
