//! Registered memory of the program. The device accesses it by raw pointers only: the program and its
//! threads may access it at the same time.

use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;

use bareverbs_provider::Errno;
use bareverbs_provider::copy::{compare_swap_u64, copy_between, copy_in, copy_out, load_u64};
use rustix::mm::{Advice, MsyncFlags, madvise, msync};
use rustix::param;

/// The size of a page in bytes.
pub(super) fn page_size() -> u64 {
    param::page_size() as u64
}

/// Makes the pages of a range present, and writable if `writable`, as the kernel does when it pins them.
///
/// # Errors
///
/// `EFAULT` if a part of the range is not mapped, or not with this access.
pub(super) fn populate(start: u64, length: u64, writable: bool) -> Result<(), Errno> {
    let first = start - start % page_size();
    let size = (start - first).checked_add(length).ok_or(Errno::FAULT)?;
    let size = size.checked_next_multiple_of(page_size()).ok_or(Errno::FAULT)?;
    let place = with_exposed_provenance_mut::<c_void>(usize::try_from(first).map_err(|_| Errno::FAULT)?);
    let size = usize::try_from(size).map_err(|_| Errno::FAULT)?;
    let advice = if writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    // SAFETY: the advice faults pages in and changes no contents.
    let advise = |size| unsafe { madvise(place, size, advice) };
    match advise(size) {
        Ok(()) => Ok(()),
        // Before Linux 5.14, the kernel doesn't know the advice. It then only says whether the range is
        // mapped.
        // SAFETY: an asynchronous `msync` changes nothing.
        Err(Errno::INVAL) if advise(0).is_err() => unsafe { msync(place, size, MsyncFlags::ASYNC) },
        Err(errno) => Err(errno),
    }
    .map_err(|_| Errno::FAULT)
}

/// A part of a region, which was checked against its bounds.
///
/// The program keeps the memory of a region mapped with the access that it had at the registration
/// until it has deregistered the region: the contract of a registration, which the kernel enforces by
/// pinning the pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    start: u64,
    length: u64,
}

impl Range {
    /// `start` is an address of the program.
    pub(super) fn new(start: u64, length: u64) -> Self {
        Self { start, length }
    }

    /// The address of the first byte.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    fn pointer(&self) -> *mut u8 {
        with_exposed_provenance_mut(self.start as usize)
    }

    /// Copies the first bytes of the range.
    pub(super) fn read(&self, into: &mut [u8]) {
        assert!(into.len() as u64 <= self.length, "bytes beyond the range");
        // SAFETY: the bytes are within a region, which is mapped for reading, by the type's contract.
        unsafe { copy_out(self.pointer(), into) };
    }

    /// Writes the first bytes of the range. It is of a key with the right to write.
    pub(super) fn write(&self, from: &[u8]) {
        assert!(from.len() as u64 <= self.length, "bytes beyond the range");
        // SAFETY: the bytes are within a region, which is mapped for writing, by the type's contract.
        unsafe { copy_in(from, self.pointer()) };
    }

    /// Copies the range to the first bytes of another one, which is of a key with the right to write.
    pub(super) fn copy_to(&self, to: Self) {
        assert!(self.length <= to.length, "bytes beyond the range");
        let length = self.length as usize;
        if self.start.abs_diff(to.start) < self.length {
            let mut bytes = vec![0; length];
            self.read(&mut bytes);
            to.write(&bytes);
            return;
        }
        // SAFETY: the bytes are within regions, which are mapped for reading and for writing, by the type's
        // contract.
        unsafe { copy_between(self.pointer(), to.pointer(), length) };
    }

    /// Changes the first word atomically. Returns its old value, or `None` if it is not aligned. The range
    /// is of a key with the right to write.
    pub(super) fn update(&self, change: impl Fn(u64) -> u64) -> Option<u64> {
        if self.length < 8 || !self.start.is_multiple_of(8) {
            return None;
        }
        let place = self.pointer();
        // SAFETY: the aligned word is within a region, which is mapped for writing, by the type's contract.
        let mut old = unsafe { load_u64(place) };
        loop {
            let new = change(u64::from_le(old)).to_le();
            // SAFETY: as above.
            let found = unsafe { compare_swap_u64(place, old, new) };
            if found == old {
                return Some(u64::from_le(old));
            }
            old = found;
        }
    }
}
