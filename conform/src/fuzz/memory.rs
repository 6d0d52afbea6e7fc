//! Memory that fuzzed calls register and pass to the device.

use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Length of the accessible memory in bytes.
pub(super) const LENGTH: usize = 1 << 20;

/// Inaccessible memory before and after it, in bytes. A range that begins in the memory and is longer
/// than it reaches this, and the kernel can't pin it.
const GUARD: usize = 1 << 20;

/// Memory between inaccessible pages. Nothing in this process refers to its contents, so the kernel
/// and a device may write it at any time.
pub(super) struct Memory {
    mapping: *mut u8,
}

impl Memory {
    pub(super) fn new() -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses. The part whose protection
        // changes is within it.
        unsafe {
            let protection = ProtFlags::empty();
            let mapping = mmap_anonymous(ptr::null_mut(), 2 * GUARD + LENGTH, protection, MapFlags::PRIVATE)?;
            let memory = Self { mapping: mapping.cast() };
            mprotect(mapping.byte_add(GUARD), LENGTH, MprotectFlags::READ | MprotectFlags::WRITE)?;
            Ok(memory)
        }
    }

    /// The address of the first accessible byte, which begins a page.
    pub(super) fn start(&self) -> u64 {
        self.mapping.wrapping_add(GUARD).expose_provenance() as u64
    }

    /// The `len` bytes at an address, or `None` if they are not all within the accessible memory.
    pub(super) fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let at = usize::try_from(address.checked_sub(self.start())?).ok()?;
        if at.checked_add(len)? > LENGTH {
            return None;
        }
        let begin = self.mapping.wrapping_add(GUARD + at);
        // SAFETY: the range is within the accessible part of the mapping, which `self` owns. The kernel and
        // a device may write it at the same time, therefore the reads are volatile.
        Some((0..len).map(|at| unsafe { begin.add(at).read_volatile() }).collect())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference to it exists.
        let _ = unsafe { munmap(self.mapping.cast(), 2 * GUARD + LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_within_the_memory_can_be_read() {
        let memory = Memory::new().unwrap();
        let (start, end) = (memory.start(), memory.start() + LENGTH as u64);
        assert_eq!(memory.read(start, 4), Some(vec![0; 4]));
        assert_eq!(memory.read(end - 4, 4), Some(vec![0; 4]));
        for (address, len) in
            [(start - 1, 4), (end - 3, 4), (end, 1), (0, 4), (u64::MAX, 4), (start, usize::MAX)]
        {
            assert_eq!(memory.read(address, len), None, "{address:#x}, {len}");
        }
    }
}
