//! The target of the checks: a device of the kernel, or a soft device.

use std::os::fd::OwnedFd;
use std::time::Duration;

use bareverbs_netlink::ResourceSummary;
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::environment::{Restricted, Restriction};
use crate::map::Map;
use crate::write_buffer::WriteBuffer;

/// A device that answers calls.
pub(crate) trait Target {
    /// Its name in reports.
    fn name(&self) -> String;

    /// The kernel's version in reports.
    fn kernel(&self) -> String;

    /// The driver id that calls must state.
    fn driver_id(&self) -> u32;

    /// Whether objects may be released after the return of the call that destroys them.
    fn releases_late(&self) -> bool {
        true
    }

    /// Timeout of a completion or an event. The guests of tests are slow.
    fn timeout(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// Opens its uverbs file.
    fn open(&self) -> Result<Box<dyn UverbsFile + '_>, Errno>;

    /// The objects of the device by class, of all processes.
    fn resources(&self) -> Result<ResourceSummary, String>;

    /// Warnings that the kernel logged since the last call.
    fn warnings(&self) -> Vec<String>;

    /// Opens the file of the connection manager. `ENOSYS`: the target has none.
    fn open_cm(&self) -> Result<Box<dyn CmFile + '_>, Errno>;

    /// Sends a message to RDMA netlink. The kernel's answer, without its data. `ENOSYS`: the target
    /// has none.
    fn netlink(&self, message: &[u8]) -> Result<(), Errno>;

    /// The device's index in RDMA netlink; 0 if there is none.
    fn netlink_index(&self) -> u32;

    /// Why the target's answer to a check differs from that of a kernel of its series.
    fn difference(&self, _check: &str) -> Option<&'static str> {
        None
    }

    /// Restricts the calling process. `Err`: why this is not possible.
    fn restrict(&self, restriction: Restriction) -> Result<Box<dyn Restricted>, String>;
}

/// An open uverbs file.
pub(crate) trait UverbsFile {
    /// Executes an ioctl.
    ///
    /// # Safety
    ///
    /// `address` has a call, or no memory. The kernel reads and writes the memory that the call
    /// names: each address in it has memory that permits the access for the given length, or no
    /// memory. Memory that the call registers stays until the file is closed.
    unsafe fn ioctl(&self, number: u32, address: u64) -> Result<(), Errno>;

    /// Writes a command.
    ///
    /// # Safety
    ///
    /// As for [`UverbsFile::ioctl`].
    unsafe fn write(&self, command: &WriteBuffer) -> Result<usize, Errno>;

    /// Executes an ioctl in a forked child. `Err`: why there is no child.
    ///
    /// # Safety
    ///
    /// As for [`UverbsFile::ioctl`], with the child's copy of the memory.
    unsafe fn ioctl_in_child(&self, number: u32, address: u64) -> Result<Result<(), Errno>, String>;

    /// Writes a command in a forked child. `Err`: why there is no child.
    ///
    /// # Safety
    ///
    /// As for [`UverbsFile::ioctl_in_child`].
    unsafe fn write_in_child(&self, command: &WriteBuffer) -> Result<Result<(), Errno>, String>;

    /// Closes a descriptor that a call made.
    fn close(&self, fd: i32);

    /// A descriptor of the file itself, and one of an unrelated file.
    fn other_fds(&self) -> [i32; 2];

    /// A read of a descriptor that a call made.
    fn read(&self, fd: i32, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Whether a descriptor that a call made is readable.
    fn is_readable(&self, fd: i32) -> Result<bool, Errno>;

    /// A duplicate of the file's descriptor. `ENOSYS`: the target has none.
    fn duplicate(&self) -> Result<OwnedFd, Errno>;

    /// Maps the file.
    fn map(&self, offset: u64, len: usize, protection: ProtFlags) -> Result<Map, Errno>;
}

/// An open file of the connection manager, non-blocking.
pub(crate) trait CmFile {
    /// Writes a command.
    ///
    /// # Safety
    ///
    /// Each address in the command has memory that permits the kernel's accesses, or no memory.
    unsafe fn write(&self, command: &[u8]) -> Result<usize, Errno>;

    fn descriptor(&self) -> i32;

    /// Whether an event is queued.
    fn is_readable(&self) -> Result<bool, Errno>;
}
