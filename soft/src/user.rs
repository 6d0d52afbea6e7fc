//! Copies from and to addresses of the program, as the kernel makes them: an address without memory,
//! or without the right to it, is `EFAULT`.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::sys::last_errno;

/// Whether `process_vm_readv` and `process_vm_writev` are unavailable.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Reads from the program's memory.
///
/// # Errors
///
/// `EFAULT`; errors of `memfd_create` where a seccomp filter forbids `process_vm_readv`.
pub(crate) fn read(address: u64, to: &mut [u8]) -> Result<(), Errno> {
    copy(address, Copy::In(to))
}

/// Writes to the program's memory. Part of the bytes may be written before an error.
///
/// # Errors
///
/// `EFAULT`; errors of `memfd_create` where a seccomp filter forbids `process_vm_writev`.
///
/// # Safety
///
/// The memory, if there is any, is that of an output of the call: nothing else accesses it.
pub(crate) unsafe fn write(address: u64, from: &[u8]) -> Result<(), Errno> {
    copy(address, Copy::Out(from))
}

enum Copy<'a> {
    In(&'a mut [u8]),
    Out(&'a [u8]),
}

fn copy(address: u64, mut copy: Copy<'_>) -> Result<(), Errno> {
    let (own, len) = match &mut copy {
        Copy::In(to) => (to.as_mut_ptr(), to.len()),
        Copy::Out(from) => (from.as_ptr().cast_mut(), from.len()),
    };
    if len == 0 {
        return Ok(());
    }
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    if !FORBIDDEN.load(Ordering::Relaxed) {
        let local = libc::iovec { iov_base: own.cast(), iov_len: len };
        let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: len };
        // SAFETY: has no requirement.
        let process = unsafe { libc::getpid() };
        // SAFETY: `local` is the memory of `copy`, which is mutable where it is written. The kernel
        // checks `remote`; the caller of `write` guarantees that no one else accesses it.
        let copied = unsafe {
            match copy {
                Copy::In(_) => libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0),
                Copy::Out(_) => {
                    libc::process_vm_writev(process, &raw const local, 1, &raw const remote, 1, 0)
                }
            }
        };
        if copied == len.cast_signed() {
            return Ok(());
        }
        match (copied, last_errno()) {
            (-1, Errno::NOSYS | Errno::PERM) => FORBIDDEN.store(true, Ordering::Relaxed),
            _ => return Err(Errno::FAULT),
        }
    }
    copy_by_file(address, own, len, matches!(copy, Copy::In(_)))
}

/// Copies through a file: `read` and `write` check addresses too. Each copy has its own file, because a
/// forked child would share it.
fn copy_by_file(address: usize, own: *mut u8, len: usize, inward: bool) -> Result<(), Errno> {
    let file = memfd_create("bareverbs-soft", MemfdFlags::CLOEXEC)?;
    let program: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
    let (from, to) = if inward { (program, own) } else { (own, program) };
    for (memory, is_write) in [(from, true), (to, false)] {
        // SAFETY: `own` is valid for the copy in its direction, and the kernel checks `program`.
        let copied = unsafe {
            if is_write {
                libc::pwrite(file.as_raw_fd(), memory.cast_const().cast(), len, 0)
            } else {
                libc::pread(file.as_raw_fd(), memory.cast(), len, 0)
            }
        };
        if copied != len.cast_signed() {
            return Err(if copied == -1 && last_errno() != Errno::FAULT {
                last_errno()
            } else {
                Errno::FAULT
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bareverbs_provider::mapping::Mapping;
    use rustix::mm::{MprotectFlags, mprotect};

    /// An address that is certainly unmapped: the zero page.
    const NOWHERE: u64 = 64;

    type Read = fn(u64, &mut [u8]) -> Result<(), Errno>;
    type Write = fn(u64, &[u8]) -> Result<(), Errno>;

    fn copies(read: Read, write: Write) {
        let memory = Mapping::anonymous(8192).unwrap();
        let start = memory.as_ptr().as_ptr().expose_provenance() as u64;
        write(start + 4090, b"twelve bytes").unwrap();
        let mut bytes = [0; 12];
        read(start + 4090, &mut bytes).unwrap();
        assert_eq!(&bytes, b"twelve bytes");
        let second = memory.as_ptr().as_ptr().wrapping_add(4096).cast();
        // SAFETY: nothing accesses the second page from here on.
        unsafe { mprotect(second, 4096, MprotectFlags::empty()) }.unwrap();
        for address in [start + 4090, NOWHERE, u64::MAX - 3] {
            assert_eq!(read(address, &mut bytes), Err(Errno::FAULT), "{address:#x}");
            assert_eq!(write(address, &bytes), Err(Errno::FAULT), "{address:#x}");
        }
        let constant: &'static [u8] = b"read-only";
        let address = constant.as_ptr().expose_provenance() as u64;
        assert_eq!(write(address, b"x"), Err(Errno::FAULT));
        assert_eq!(read(NOWHERE, &mut []), Ok(()));
    }

    #[test]
    fn unmapped_and_read_only_addresses_are_efault() {
        // SAFETY: the test writes to memory of its own and to addresses that the kernel refuses.
        copies(read, |address, from| unsafe { write(address, from) });
    }

    #[test]
    fn copies_through_a_file_check_addresses() {
        let read: Read = |address, to| {
            if to.is_empty() {
                Ok(())
            } else {
                copy_by_file(address as usize, to.as_mut_ptr(), to.len(), true)
            }
        };
        let write: Write =
            |address, from| copy_by_file(address as usize, from.as_ptr().cast_mut(), from.len(), false);
        copies(read, write);
        let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        let kept = names.filter(|name| name.to_string_lossy().contains("memfd:bareverbs-soft")).count();
        assert_eq!(kept, 0, "a forked child would share the file");
    }
}
