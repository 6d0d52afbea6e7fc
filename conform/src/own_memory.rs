//! The memory of this process at addresses that may be invalid.

use std::io::{IoSlice, IoSliceMut};

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::getpid;
use rustix::io::Errno;

/// Reads memory as a kernel reads a user's: `EFAULT` without memory.
pub(crate) fn read(address: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    if len == 0 {
        return Ok(bytes);
    }
    let remote = [RemoteIoVec { base: address as usize, len }];
    match process_vm_readv(getpid(), &mut [IoSliceMut::new(&mut bytes)], &remote) {
        Ok(read) if read == len => Ok(bytes),
        _ => Err(Errno::FAULT),
    }
}

/// Writes memory as a kernel writes a user's.
pub(crate) fn store(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    let remote = [RemoteIoVec { base: address as usize, len: bytes.len() }];
    match process_vm_writev(getpid(), &[IoSlice::new(bytes)], &remote) {
        Ok(written) if written == bytes.len() => Ok(()),
        _ => Err(Errno::FAULT),
    }
}
