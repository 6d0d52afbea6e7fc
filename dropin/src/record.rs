//! Descriptors of events. Programs poll and read them themselves, so the kernel's records name objects
//! by their addresses, and a read blocks.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::convention::Failure;

/// Makes reads of the descriptor block. `bareverbs` makes them not block.
pub(crate) fn set_blocking(fd: BorrowedFd<'_>) -> Result<(), Failure> {
    let is_nonblocking: c_int = 0;
    // SAFETY: the ioctl reads an integer.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONBIO, &raw const is_nonblocking) } {
        -1 => Err(Failure::last()),
        _ => Ok(()),
    }
}

/// Reads one record. `EINTR` and `EAGAIN` are failures, as in C.
pub(crate) fn read<const N: usize>(fd: c_int) -> Result<[u8; N], Failure> {
    let mut record = [0; N];
    // SAFETY: the array has `N` bytes.
    match unsafe { libc::read(fd, record.as_mut_ptr().cast(), N) } {
        -1 => Err(Failure::last()),
        length if length.cast_unsigned() == N => Ok(record),
        _ => Err(bareverbs::Errno::IO.into()),
    }
}

/// The object at this address.
pub(crate) fn object(address: [u8; 8]) -> *mut c_void {
    ptr::with_exposed_provenance_mut(u64::from_ne_bytes(address) as usize)
}
