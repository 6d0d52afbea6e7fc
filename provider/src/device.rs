//! The device file, and how the kernel is asked for something.

mod identity;

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use bareverbs_uapi::ioctl::VERBS_IOCTL;
use bareverbs_uapi::method::{Call, Method};
use bareverbs_uapi::write::{WriteCommand, invoke};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};

use crate::mapping::{Mapping, Protection};
use crate::process::ForkGuard;

/// A failed request to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct IoctlError {
    /// The ioctl method, write command or system call.
    pub method: &'static str,
    /// The kernel's error number.
    pub errno: Errno,
}

impl fmt::Display for IoctlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == FORKED {
            return write!(
                f,
                "{} was not put to the kernel: {}: this process was forked from the one that opened the device; open \
                 it anew here",
                self.method, self.errno
            );
        }
        write!(f, "{} was refused by the kernel: {}", self.method, self.errno)?;
        match hint(self.errno) {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// Why there is no [`DeviceFile`] of a path or descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel refused a system call.
    #[error(transparent)]
    Ioctl(#[from] IoctlError),
    /// It is another sort of file.
    #[error("it is not a uverbs character device, such as /dev/infiniband/uverbs0")]
    NotUverbs,
    /// It is a character device, and nothing says whether it is one of uverbs: the kernel gave it a
    /// dynamic number, and sysfs is not mounted.
    #[error(
        "character device {major}:{minor} may be any: mount sysfs at /sys, which tells whether it is a uverbs device"
    )]
    Unidentified {
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
}

/// What a call from a forked child of the process that opened the device is answered with; the
/// kernel's verbs never answer so.
const FORKED: Errno = Errno::STALE;

/// What an error number means when it comes from the verbs ABI.
fn hint(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::PROTONOSUPPORT => "this kernel does not know the method or one of its attributes",
        Errno::OPNOTSUPP => "the device does not support it",
        Errno::INVAL => "an argument is out of range, or the object is in a state that does not allow it",
        Errno::NOMEM => "no memory left, or more would be pinned than the limit on locked memory allows",
        Errno::PERM | Errno::ACCESS => "a privilege is missing",
        Errno::NOENT => "there is no such object in this context",
        Errno::BUSY => "another object still uses it",
        Errno::FAULT => "part of the memory is not mapped, or not with the access asked for",
        Errno::NOSPC => "the kernel's answer is longer than the space for it",
        Errno::MFILE => "this process has no descriptor left: close some, or raise the limit by `ulimit -n`",
        Errno::IO | Errno::NODEV => "the device is gone",
        _ => return None,
    })
}

/// An open device file.
///
/// Everything a program does with a device goes through its file: objects live in the context
/// behind it and are gone, all of them, when its last descriptor is closed.
///
/// It is of use in the process that opened it only. A child that was forked from that has the
/// descriptor too, and could destroy what its parent uses; there, every call is answered with
/// `ESTALE` and never reaches the kernel.
///
/// ```no_run
/// use bareverbs_provider::command::{self, DriverPayload};
/// use bareverbs_provider::device::DeviceFile;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = DeviceFile::open("/dev/infiniband/uverbs0", 14)?;
/// // SAFETY: no payload, so no addresses in it.
/// let context = unsafe { command::get_context(&file, DriverPayload::default()) }?;
/// println!("{} completion vectors", context.num_comp_vectors);
/// println!("{} queue pairs at most", command::query_device(&file)?.max_qp);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DeviceFile {
    fd: OwnedFd,
    driver_id: u32,
    fork_guard: ForkGuard,
    events: OnceLock<OwnedFd>,
}

impl DeviceFile {
    /// Opens the file at `path`, say `/dev/infiniband/uverbs0`, of a device of kernel driver
    /// `driver_id`.
    ///
    /// The driver's number comes with the device's description, from RDMA netlink or `sysfs`; the
    /// kernel refuses every call with a wrong one.
    ///
    /// # Errors
    ///
    /// [`OpenError::Ioctl`] with what `open` reports: `EACCES` where the file's permissions forbid
    /// it, `ENXIO` where the device is gone. Otherwise as for [`DeviceFile::from_fd`].
    pub fn open(path: impl AsRef<Path>, driver_id: u32) -> Result<Self, OpenError> {
        let fd = loop {
            match rustix::fs::open(path.as_ref(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
                Err(Errno::INTR) => {}
                result => break result.map_err(|errno| IoctlError { method: "open", errno })?,
            }
        };
        Self::from_fd(fd, driver_id)
    }

    /// Takes a device file that was opened elsewhere, by a privileged helper, say. It is of use in
    /// this process only.
    ///
    /// Other files are refused. The kernel reserves the character devices 231:192 to 231:223 for
    /// uverbs. It gives dynamic numbers to further devices, and these are looked up in sysfs at
    /// `/sys`.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotUverbs`]; [`OpenError::Unidentified`] for a dynamic number without sysfs;
    /// [`OpenError::Ioctl`] with what `fstat`, `mmap` and `madvise` report, as where there is no
    /// memory.
    pub fn from_fd(fd: OwnedFd, driver_id: u32) -> Result<Self, OpenError> {
        identity::check_uverbs(&fd)?;
        // SAFETY: the kernel says that the descriptor is of a uverbs character device.
        Ok(unsafe { Self::from_fd_unchecked(fd, driver_id) }?)
    }

    /// Takes a device file that was opened elsewhere, without a look at what it is.
    ///
    /// # Errors
    ///
    /// What `mmap` and `madvise` report.
    ///
    /// # Safety
    ///
    /// The descriptor must be that of a uverbs character device of the kernel, or of a file that
    /// fails every `ioctl` and every `mmap`, as `/dev/null` does.
    ///
    /// The safe functions of this crate rely on what a uverbs device does: a call writes to the
    /// memory of its own attributes only, a descriptor number in an answer is a new descriptor,
    /// handles are fresh, and mapped pages are the object's.
    pub unsafe fn from_fd_unchecked(fd: OwnedFd, driver_id: u32) -> Result<Self, IoctlError> {
        let fork_guard = ForkGuard::new().map_err(|errno| IoctlError { method: "madvise", errno })?;
        Ok(Self { fd, driver_id, fork_guard, events: OnceLock::new() })
    }

    /// Has the asynchronous events of objects that are made from here on sent to `stream`, not to
    /// the context's first stream, which in a context that another process made is that one's. Only
    /// the first call has an effect.
    pub fn send_events_to(&self, stream: OwnedFd) {
        let _ = self.events.set(stream);
    }

    /// The stream that [`DeviceFile::send_events_to`] was given.
    #[must_use]
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.get().map(AsFd::as_fd)
    }

    /// Gives the descriptor back.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Fails with `ESTALE` in a process that was forked from the one that opened the file.
    ///
    /// # Errors
    ///
    /// As said.
    #[inline]
    pub fn check_same_process(&self) -> Result<(), Errno> {
        if self.fork_guard.is_same_process() { Ok(()) } else { Err(FORKED) }
    }

    /// Number of the kernel driver whose namespace the calls use.
    #[must_use]
    pub fn driver_id(&self) -> u32 {
        self.driver_id
    }

    /// Carries out a call.
    ///
    /// # Errors
    ///
    /// The kernel's refusal. A call that a signal interrupted is made again: the kernel undoes what
    /// an interrupted call began.
    ///
    /// # Safety
    ///
    /// The call's own buffers are borrowed by it and need no care. But where the method makes the
    /// kernel or the device use other memory, by an address passed as a number or in a driver's
    /// payload, that memory must be as the method requires.
    pub unsafe fn execute<M: Method>(&self, call: &mut Call<'_, M>) -> Result<(), IoctlError> {
        // SAFETY: a `Call`'s bytes are a header with the true length, and all they point at is
        // borrowed; the rest is this function's contract.
        unsafe { self.execute_raw(call.as_mut_bytes()) }
            .map_err(|errno| IoctlError { method: M::INFO.rust, errno })
    }

    /// Carries out a write command through the ioctl method `InvokeWrite`.
    ///
    /// # Errors
    ///
    /// The kernel's error, under the command's own name.
    ///
    /// # Safety
    ///
    /// As for [`DeviceFile::execute`].
    pub unsafe fn invoke<C: WriteCommand>(
        &self,
        request: &C::Request,
        response: &mut C::Response,
    ) -> Result<(), IoctlError> {
        let mut call = invoke::<C>(self.driver_id, request, response);
        // SAFETY: a `Call`'s bytes are a header with the true length, and all they point at is
        // borrowed; for memory that the request names by an address the caller answers.
        unsafe { self.execute_raw(call.as_mut_bytes()) }
            .map_err(|errno| IoctlError { method: C::INFO.rust, errno })
    }

    /// Passes bytes to the kernel unchanged.
    ///
    /// # Errors
    ///
    /// The kernel's error number, except `EINTR`, after which the call is made again; `ESTALE` in a
    /// forked child.
    ///
    /// # Safety
    ///
    /// The kernel reads a header from `call` and then reads and writes as many bytes as the header
    /// says; they must lie in `call`. Every attribute that holds an address must hold one that the
    /// kernel may read or write as the attribute is meant.
    #[inline]
    pub unsafe fn execute_raw(&self, call: &mut [u8]) -> Result<(), Errno> {
        self.check_same_process()?;
        loop {
            // SAFETY: the kernel touches only what this function's contract allows it to.
            match unsafe { ioctl(&self.fd, VerbsIoctl(call.as_mut_ptr().cast())) } {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }

    /// Maps part of the device file.
    ///
    /// # Errors
    ///
    /// What `mmap` and `madvise` report.
    pub fn map(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, IoctlError> {
        let refused = |errno| IoctlError { method: "mmap", errno };
        self.check_same_process().map_err(refused)?;
        Mapping::new(&self.fd, offset, len, protection).map_err(refused)
    }
}

impl AsFd for DeviceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The one ioctl of device files.
struct VerbsIoctl(*mut c_void);

// SAFETY: the opcode is the one whose argument is a uverbs call, and the pointer is to such a call,
// which the kernel reads and writes. There is no output beside it.
unsafe impl Ioctl for VerbsIoctl {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        VERBS_IOCTL as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.0
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_error_names_method_errno_and_hint() {
        let refused = IoctlError { method: "RegMr", errno: Errno::NOMEM };
        let text = refused.to_string();
        assert!(text.starts_with("RegMr was refused by the kernel: "), "{text}");
        assert!(text.contains("os error 12"), "{text}");
        assert!(text.contains("limit on locked memory"), "{text}");
    }

    #[test]
    fn only_uverbs_devices_are_accepted() {
        let (read, write) = std::io::pipe().unwrap();
        let file = |path| OwnedFd::from(std::fs::File::open(path).unwrap());
        let executable = std::env::current_exe().unwrap();
        for fd in [read.into(), write.into(), file(executable.as_path()), file(Path::new("/"))] {
            let refused = DeviceFile::from_fd(fd, 14).map(drop).unwrap_err();
            assert_eq!(refused, OpenError::NotUverbs);
        }
        // Without sysfs nothing says what a character device is.
        for path in ["/dev/null", "/dev/zero", "/dev/urandom"] {
            for refused in [DeviceFile::from_fd(file(Path::new(path)), 14), DeviceFile::open(path, 14)] {
                let refused = refused.map(drop).unwrap_err();
                assert!(
                    matches!(refused, OpenError::NotUverbs | OpenError::Unidentified { major: 1, .. }),
                    "{refused}"
                );
            }
        }
    }

    #[test]
    fn non_uverbs_file_gives_enotty() {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        let file = unsafe { DeviceFile::from_fd_unchecked(null.into(), 14) }.unwrap();
        let mut call = Call::<bareverbs_uapi::uverbs::GetContext>::new(file.driver_id());
        // SAFETY: the call has no attributes.
        let refused = unsafe { file.execute(&mut call) }.expect_err("no uverbs file");
        assert_eq!(refused, IoctlError { method: "GetContext", errno: Errno::NOTTY });
    }

    #[test]
    fn open_of_missing_path_gives_enoent() {
        let refused = DeviceFile::open("/dev/infiniband/no-such-device", 14).expect_err("no such file");
        assert_eq!(refused, OpenError::Ioctl(IoctlError { method: "open", errno: Errno::NOENT }));
    }
}
