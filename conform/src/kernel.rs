//! The running kernel.

use std::cell::RefCell;
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Duration;

use bareverbs::{Device, Error};
use bareverbs_netlink::{RdmaNetlink, ResourceSummary};
use bareverbs_uapi::netlink::{Content, messages};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use rustix::mm::ProtFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use crate::SuiteError;
use crate::environment::{Restricted, Restriction, restrict};
use crate::map::Map;
use crate::target::{CmFile, Target, UverbsFile};
use crate::write_buffer::WriteBuffer;

/// A device of the running kernel.
pub(crate) struct KernelDevice {
    name: String,
    path: PathBuf,
    driver_id: u32,
    index: u32,
    netlink: RefCell<RdmaNetlink>,
    /// `/dev/kmsg` behind its last record; `None` if this process may not read it.
    log: RefCell<Option<File>>,
}

impl KernelDevice {
    /// The device with that name, or the first one whose node can be opened.
    pub(crate) fn open(name: Option<&str>) -> Result<Self, SuiteError> {
        let device = match name {
            Some(name) => Device::find(name),
            None => first_with_node(bareverbs::devices()?),
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
        let mut netlink = RdmaNetlink::open()?;
        let index =
            netlink.devices()?.iter().find(|device| device.name == name).map_or(0, |device| device.index);
        Ok(Self {
            path: path.to_owned(),
            driver_id: driver_id.0,
            index,
            name,
            netlink: RefCell::new(netlink),
            log: RefCell::new(log),
        })
    }
}

/// The first device whose node can be opened. Unlike `Context::open_first`, it makes no command: the
/// checks also run on kernels whose commands fail.
fn first_with_node(devices: Vec<Device>) -> bareverbs::Result<Device> {
    let mut reasons = Vec::new();
    for device in devices {
        match open_node(&device) {
            Ok(()) => return Ok(device),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(if reasons.is_empty() { Error::NoDevice } else { Error::NoneOpened { reasons } })
}

fn open_node(device: &Device) -> bareverbs::Result<()> {
    let name = device.name().to_owned();
    let Some(path) = device.uverbs_path() else { return Err(Error::NoUverbs { device: name }) };
    let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    opened.map(drop).map_err(|errno| Error::Open { device: name, path: path.to_owned(), errno })
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

    fn open_cm(&self) -> Result<Box<dyn CmFile + '_>, Errno> {
        // The query loads the kernel's module.
        let _ = self.netlink.borrow_mut().global_char_device("rdma_cm");
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let path = Path::new("/dev/infiniband/rdma_cm");
        Ok(Box::new(KernelCmFile(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?)))
    }

    fn netlink(&self, message: &[u8]) -> Result<(), Errno> {
        let protocol = Some(netlink::RDMA);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(NETLINK_TIMEOUT))?;
        send(&socket, message, SendFlags::empty())?;
        let mut answer = vec![0; 1 << 16];
        loop {
            let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
            for message in messages(&answer[..len]) {
                match message.and_then(|message| message.content()) {
                    Ok(Content::Acknowledged(_)) => return Ok(()),
                    Ok(Content::Error(report) | Content::Done(report)) => {
                        return match report.errno {
                            0 => Ok(()),
                            errno => Err(Errno::from_raw_os_error(errno)),
                        };
                    }
                    Ok(_) => {}
                    Err(_) => return Err(Errno::BADMSG),
                }
            }
        }
    }

    fn netlink_index(&self) -> u32 {
        self.index
    }

    fn restrict(&self, restriction: Restriction) -> Result<Box<dyn Restricted>, String> {
        restrict(&self.name, restriction)
    }
}

/// Timeout of an answer of RDMA netlink.
const NETLINK_TIMEOUT: Duration = Duration::from_secs(10);

/// An open file of the kernel's connection manager.
struct KernelCmFile(OwnedFd);

impl CmFile for KernelCmFile {
    unsafe fn write(&self, command: &[u8]) -> Result<usize, Errno> {
        rustix::io::write(&self.0, command)
    }

    fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }

    fn is_readable(&self) -> Result<bool, Errno> {
        readable(self.0.as_fd())
    }
}

/// Executes a system call in a forked child. `Err`: the child could not be made, or was killed.
///
/// # Safety
///
/// `call` only makes a system call: the child of a process with threads may neither allocate nor lock.
unsafe fn in_child(call: impl FnOnce() -> Result<(), Errno>) -> Result<Result<(), Errno>, String> {
    // SAFETY: the child calls what the caller vouches for, and ends.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            let status = call().err().map_or(0, Errno::raw_os_error);
            // SAFETY: ends the child without handlers of the parent.
            unsafe { nix::libc::_exit(status) }
        }
        Ok(ForkResult::Parent { child }) => match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, 0)) => Ok(Ok(())),
            Ok(WaitStatus::Exited(_, status)) => Ok(Err(Errno::from_raw_os_error(status))),
            other => Err(format!("the child ended with {other:?}")),
        },
        Err(errno) => Err(format!("there is no child: {errno}")),
    }
}

/// Whether a descriptor is readable now.
fn readable(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents().contains(PollFlags::IN))
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

    unsafe fn write(&self, command: &WriteBuffer) -> Result<usize, Errno> {
        rustix::io::write(&self.fd, command.command())
    }

    unsafe fn ioctl_in_child(&self, number: u32, address: u64) -> Result<Result<(), Errno>, String> {
        // SAFETY: the caller upholds the contract of `ioctl`, which makes one system call.
        unsafe { in_child(|| self.ioctl(number, address)) }
    }

    unsafe fn write_in_child(&self, command: &WriteBuffer) -> Result<Result<(), Errno>, String> {
        // SAFETY: the caller upholds the contract of `write`, which makes one system call.
        unsafe { in_child(|| self.write(command).map(drop)) }
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

    fn is_readable(&self, fd: i32) -> Result<bool, Errno> {
        // SAFETY: as in `read`.
        readable(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn duplicate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
    }

    fn map(&self, offset: u64, len: usize, protection: ProtFlags) -> Result<Map, Errno> {
        Map::new(&self.fd, offset, len, protection)
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
