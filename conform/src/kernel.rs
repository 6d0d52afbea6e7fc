//! The running kernel.

use std::cell::RefCell;
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::ptr;

use bareverbs::Device;
use bareverbs::netlink::{RdmaNetlink, ResourceSummary};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::SuiteError;
use crate::target::{Target, UverbsFile};

/// A device of the running kernel.
pub(crate) struct KernelDevice {
    name: String,
    path: PathBuf,
    driver_id: u32,
    netlink: RefCell<RdmaNetlink>,
    /// `/dev/kmsg` behind its last record; `None` if this process may not read it.
    log: RefCell<Option<File>>,
}

impl KernelDevice {
    /// The device with that name, or the first one.
    pub(crate) fn open(name: Option<&str>) -> Result<Self, SuiteError> {
        let device = match name {
            Some(name) => Device::find(name),
            None => Device::first(),
        }?;
        let name = device.name().to_owned();
        let (Some(path), Some(driver_id)) = (device.uverbs_path(), device.driver_id()) else {
            return Err(SuiteError::NoUverbs { device: name });
        };
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut log = OpenOptions::new().read(true).custom_flags(nonblocking).open("/dev/kmsg").ok();
        if log.as_mut().is_some_and(|log| log.seek(SeekFrom::End(0)).is_err()) {
            log = None;
        }
        Ok(Self {
            path: path.to_owned(),
            driver_id: driver_id.0,
            name,
            netlink: RefCell::new(RdmaNetlink::open()?),
            log: RefCell::new(log),
        })
    }
}

/// Words of kernel messages that report a fault of the kernel.
const FAULTS: [&str; 14] = [
    "WARNING:",
    "BUG:",
    "Oops",
    "general protection fault",
    "refcount_t:",
    "KASAN",
    "KCSAN",
    "UBSAN",
    "kernel BUG at",
    "INFO: task",
    "possible recursive locking",
    "possible circular locking",
    "unable to handle",
    "list_add corruption",
];

/// Whether a message reports a fault of the kernel.
pub(crate) fn is_fault(message: &str) -> bool {
    FAULTS.iter().any(|fault| message.contains(fault))
}

/// Number of messages after a fault that are quoted with it.
const QUOTED: usize = 24;

impl Target for KernelDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn kernel(&self) -> String {
        rustix::system::uname().release().to_string_lossy().into_owned()
    }

    fn driver_id(&self) -> u32 {
        self.driver_id
    }

    fn open(&self) -> Result<Box<dyn UverbsFile + '_>, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&self.path, flags, rustix::fs::Mode::empty())?;
        let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
        Ok(Box::new(KernelFile { fd, null }))
    }

    fn resources(&self) -> Result<ResourceSummary, String> {
        self.netlink.borrow_mut().resources(&self.name).map_err(|error| error.to_string())
    }

    fn warnings(&self) -> Vec<String> {
        let mut messages = Vec::new();
        let mut log = self.log.borrow_mut();
        let Some(file) = log.as_mut() else { return messages };
        let mut record = vec![0; 8192];
        loop {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(len) => {
                    let text = String::from_utf8_lossy(&record[..len]);
                    let message = text.split_once(';').map_or(&*text, |(_, message)| message);
                    messages.push(message.lines().next().unwrap_or_default().to_owned());
                }
                // The record was overwritten: the next read returns the oldest one.
                Err(error) if error.raw_os_error() == Some(Errno::PIPE.raw_os_error()) => {}
                Err(_) => break,
            }
        }
        match messages.iter().position(|message| is_fault(message)) {
            Some(first) => messages.into_iter().skip(first).take(QUOTED).collect(),
            None => Vec::new(),
        }
    }
}

struct KernelFile {
    fd: OwnedFd,
    null: OwnedFd,
}

/// An ioctl of any number with any argument.
struct RawIoctl {
    number: u32,
    address: u64,
}

// SAFETY: the argument is passed as it is, and there is no output. The caller of
// `UverbsFile::ioctl` upholds that the memory at the address permits the kernel's accesses.
unsafe impl Ioctl for RawIoctl {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.number as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.address as usize)
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

impl UverbsFile for KernelFile {
    unsafe fn ioctl(&self, number: u32, address: u64) -> Result<(), Errno> {
        // SAFETY: the caller upholds the contract of the call's addresses.
        unsafe { ioctl(&self.fd, RawIoctl { number, address }) }
    }

    unsafe fn write(&self, command: &[u8]) -> Result<usize, Errno> {
        rustix::io::write(&self.fd, command)
    }

    fn close(&self, fd: i32) {
        // SAFETY: a call on this file returned the descriptor as new, and each is closed once: the
        // session removes it from its list.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }

    fn other_fds(&self) -> [i32; 2] {
        [self.fd.as_raw_fd(), self.null.as_raw_fd()]
    }

    fn read(&self, fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the session owns the descriptor, so it is open until `close`.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK)?;
        rustix::io::read(fd, buffer)
    }

    fn map(&self, offset: u64, len: usize) -> Result<(), Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of a new mapping, which nothing else refers to and
        // which is unmapped at once.
        unsafe {
            let address = mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, &self.fd, offset)?;
            munmap(address, len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_from_other_messages() {
        assert!(is_fault("WARNING: CPU: 0 PID: 1 at drivers/infiniband/core/verbs.c:1"));
        assert!(is_fault("BUG: kernel NULL pointer dereference, address: 0"));
        assert!(!is_fault("rdma_rxe: loaded"));
        assert!(!is_fault("infiniband rxe0: rxe_create_cq: returned err = -22"));
    }
}
