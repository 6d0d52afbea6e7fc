//! The device file: ioctls and mappings.

#[cfg(feature = "backend")]
mod backend;
mod identity;

use std::ffi::c_void;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
#[cfg(feature = "backend")]
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Instant;

use bareverbs_uapi::ioctl::VERBS_IOCTL;
use bareverbs_uapi::method::{Call, Method};
use bareverbs_uapi::write::{WriteCommand, invoke};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};

#[cfg(feature = "backend")]
pub use self::backend::Backend;
use crate::mapping::{Mapping, Protection};
use crate::process::ForkGuard;

/// A failed ioctl or system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct IoctlError {
    /// The ioctl method, write command or system call.
    pub method: &'static str,
    /// The error number.
    pub errno: Errno,
    /// What the error number is of.
    pub origin: ErrorOrigin,
}

/// What has refused a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// The kernel.
    #[default]
    Kernel,
    /// A device that this process contains.
    Device,
}

impl fmt::Display for ErrorOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "the kernel",
            Self::Device => "the device",
        })
    }
}

impl fmt::Display for IoctlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.without_causes())?;
        match causes(self.method, self.errno) {
            Some(causes) if self.errno != FORKED => write!(f, " ({causes})"),
            _ => Ok(()),
        }
    }
}

impl IoctlError {
    /// The error of a call that the kernel refused.
    #[must_use]
    pub const fn new(method: &'static str, errno: Errno) -> Self {
        Self { method, errno, origin: ErrorOrigin::Kernel }
    }

    /// The text without the causes that the errno has in general, for a caller that knows the cause.
    #[must_use]
    pub fn without_causes(self) -> String {
        let Self { method, errno, origin } = self;
        if errno == FORKED {
            return format!(
                "{method} was not issued: {errno}: the device was opened before fork; open it in this process"
            );
        }
        format!("{method} was refused by {origin}: {errno}")
    }
}

/// Reason why a path or descriptor can't be opened as a [`DeviceFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A system call failed.
    #[error(transparent)]
    Ioctl(#[from] IoctlError),
    /// The file is not a uverbs character device.
    #[error("it is not a uverbs character device such as /dev/infiniband/uverbs0")]
    NotUverbs,
    /// A character device with a dynamic device number, which can't be identified because sysfs is
    /// not mounted at `/sys`.
    #[error("character device {major}:{minor} cannot be identified: mount sysfs at /sys")]
    Unidentified {
        /// Major device number.
        major: u32,
        /// Minor device number.
        minor: u32,
    },
}

/// Error of every call in a child that was forked from the process that opened the device. The
/// kernel's verbs never return it.
const FORKED: Errno = Errno::STALE;

/// The causes of an error number of the verbs ABI, the most likely first.
fn causes(method: &str, errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::PROTONOSUPPORT => "this kernel does not support the method or one of its attributes",
        Errno::OPNOTSUPP => "the device does not support it",
        Errno::INVAL => {
            "an argument is out of range, the state of the object does not allow it, or the device has no more \
             such objects"
        }
        // `mmap` fails so in a process that locks all of its memory.
        Errno::AGAIN if method == "mmap" => "the limit on locked memory (RLIMIT_MEMLOCK) is exceeded",
        Errno::NOMEM if method == "mmap" => {
            "out of memory, or the limit on the address space (RLIMIT_AS) or on mappings (vm.max_map_count) is \
             exceeded"
        }
        Errno::NOMEM => {
            "the kernel or the device is out of memory, the limit on locked memory (RLIMIT_MEMLOCK) is \
             exceeded, or the device has no more such objects"
        }
        // `ib_umem_get` of the kernel's `umem.c` for memory; CAP_NET_RAW for raw packets, flows and
        // privileged Q_Keys.
        Errno::PERM => "RLIMIT_MEMLOCK is 0, or a capability such as CAP_NET_RAW is missing",
        Errno::ACCESS => "the memory does not permit the access, or a security module forbids it",
        Errno::AGAIN => "the device or the RDMA cgroup (rdma.max) has no more such objects",
        Errno::NOENT => "the context has no such object",
        Errno::BUSY => "another object still uses it",
        Errno::FAULT => "part of the memory is not mapped, does not permit the access or can't be pinned",
        Errno::NOSPC => "the response of the kernel exceeds its buffer",
        Errno::MFILE => "no free file descriptor: close some descriptors or raise the limit with `ulimit -n`",
        Errno::IO | Errno::NODEV | Errno::NXIO => {
            "the device was removed, or has failed: drop its objects and open a device again"
        }
        _ => return None,
    })
}

/// An open device file.
///
/// All objects belong to the context behind the file. The kernel destroys them when the last
/// descriptor of the file is closed.
///
/// The file is usable only in the process that opened it. A forked child inherits the descriptor
/// and could destroy its parent's objects, so every call in the child fails with `ESTALE` before it
/// reaches the kernel.
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
    source: Source,
    driver_id: u32,
    fork_guard: ForkGuard,
    events: OnceLock<OwnedFd>,
}

/// What a thread does that is about to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforeWait {
    /// It blocks.
    Block,
    /// The wait has ended.
    Ready,
    /// The time limit of the wait has passed.
    TimedOut,
}

/// What executes the calls.
#[derive(Debug)]
enum Source {
    Kernel(File),
    #[cfg(feature = "backend")]
    Backend(backend::SharedBackend),
}

impl DeviceFile {
    /// Opens the file at `path`, such as `/dev/infiniband/uverbs0`, of a device with kernel driver
    /// `driver_id`.
    ///
    /// RDMA netlink and `sysfs` report the driver id of a device. The kernel rejects every call
    /// with a wrong id.
    ///
    /// # Errors
    ///
    /// [`OpenError::Ioctl`] with the error of `open`: `EACCES` if the file's permissions forbid it,
    /// `ENXIO` if the device was removed. Otherwise as for [`DeviceFile::from_fd`].
    pub fn open(path: impl AsRef<Path>, driver_id: u32) -> Result<Self, OpenError> {
        let fd = loop {
            match rustix::fs::open(path.as_ref(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
                Err(Errno::INTR) => {}
                result => break result.map_err(|errno| IoctlError::new("open", errno))?,
            }
        };
        Self::from_fd(fd, driver_id)
    }

    /// Takes a device file that was opened elsewhere, for instance by a privileged helper. It is
    /// usable in this process only.
    ///
    /// Other files are rejected. The kernel reserves the character devices 231:192 to 231:223 for
    /// uverbs. Further devices have dynamic numbers, which are looked up in sysfs at `/sys`.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotUverbs`]; [`OpenError::Unidentified`] for a dynamic number without sysfs;
    /// [`OpenError::Ioctl`] with the error of `fstat`, `mmap` or `madvise`, for instance `ENOMEM`.
    pub fn from_fd(fd: OwnedFd, driver_id: u32) -> Result<Self, OpenError> {
        Self::check_uverbs(fd.as_fd())?;
        // SAFETY: the kernel says that the descriptor is of a uverbs character device.
        Ok(unsafe { Self::from_fd_unchecked(fd, driver_id) }?)
    }

    /// Checks that a descriptor refers to a uverbs character device, as [`DeviceFile::from_fd`]
    /// does.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotUverbs`]; [`OpenError::Unidentified`] for a dynamic number without sysfs;
    /// [`OpenError::Ioctl`] with the error of `fstat`.
    pub fn check_uverbs(fd: BorrowedFd<'_>) -> Result<(), OpenError> {
        identity::check_uverbs(fd)
    }

    /// Takes a device file that was opened elsewhere, without checking the type of the file.
    ///
    /// # Errors
    ///
    /// The error of `mmap` or `madvise`.
    ///
    /// # Safety
    ///
    /// The descriptor must refer to a uverbs character device of the kernel, or to a file that
    /// fails every `ioctl` and every `mmap`, such as `/dev/null`.
    ///
    /// The safe functions of this crate rely on the behaviour of a uverbs device. A call writes
    /// only to the memory of its own attributes. A descriptor number in a response is a new
    /// descriptor. Handles are fresh, and mapped pages belong to the object.
    pub unsafe fn from_fd_unchecked(fd: OwnedFd, driver_id: u32) -> Result<Self, IoctlError> {
        let fork_guard = ForkGuard::new().map_err(|errno| IoctlError::new("madvise", errno))?;
        Ok(Self { source: Source::Kernel(fd.into()), driver_id, fork_guard, events: OnceLock::new() })
    }

    /// A context of a device that this process contains. The device has the ABI of kernel driver
    /// `driver_id`.
    ///
    /// # Errors
    ///
    /// The error of `mmap` or `madvise`.
    #[cfg(feature = "backend")]
    pub fn with_backend(backend: Arc<dyn Backend>, driver_id: u32) -> Result<Self, IoctlError> {
        let fork_guard = ForkGuard::new().map_err(|errno| IoctlError::new("madvise", errno))?;
        let source = Source::Backend(backend::SharedBackend::new(backend, fork_guard));
        Ok(Self { source, driver_id, fork_guard, events: OnceLock::new() })
    }

    /// Sends the asynchronous events of objects created from now on to `stream`. The default is the
    /// context's first stream, which belongs to the creator if another process created the context.
    /// Only the first call has an effect.
    pub fn send_events_to(&self, stream: OwnedFd) {
        let _ = self.events.set(stream);
    }

    /// The stream passed to [`DeviceFile::send_events_to`].
    #[must_use]
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.get().map(AsFd::as_fd)
    }

    /// The same file, with the ioctl namespace of another driver.
    #[must_use]
    pub fn with_driver_id(self, driver_id: u32) -> Self {
        Self { driver_id, ..self }
    }

    /// Checks that this process is the one that opened the file.
    ///
    /// # Errors
    ///
    /// `ESTALE` in a process that was forked from the one that opened the file.
    #[inline]
    pub fn check_same_process(&self) -> Result<(), Errno> {
        if self.fork_guard.is_same_process() { Ok(()) } else { Err(FORKED) }
    }

    /// Lets a device of this process run, before a thread blocks until a descriptor of the context is
    /// readable, at most until `end`. `is_ready`: whether it would return at once. With `alarm`, a
    /// [time](Self::now) of the device, the wait of a device that runs in waits only is ready then, too.
    ///
    /// # Errors
    ///
    /// `EDEADLK` if the device runs in waits only, and nothing can end this one. An error number of
    /// the device.
    #[inline]
    pub fn before_wait(
        &self,
        end: Option<Instant>,
        alarm: Option<Instant>,
        is_ready: impl Fn() -> bool,
    ) -> Result<BeforeWait, Errno> {
        match &self.source {
            #[cfg(feature = "backend")]
            Source::Backend(backend) if self.fork_guard.is_same_process() => {
                let alarm = alarm.map(|alarm| alarm.saturating_duration_since(backend::start()));
                backend.before_wait(end, alarm, &is_ready)
            }
            _ => {
                let _ = (end, alarm, is_ready);
                Ok(BeforeWait::Block)
            }
        }
    }

    /// Whether the device runs in waits only, so that polling its queues does not let it go on.
    #[must_use]
    #[inline]
    pub fn runs_in_waits(&self) -> bool {
        match &self.source {
            #[cfg(feature = "backend")]
            Source::Backend(backend) => self.fork_guard.is_same_process() && backend.virtual_now().is_some(),
            Source::Kernel(_) => false,
        }
    }

    /// The time of the device: that of the clock or, of a device that runs in waits only, its virtual time
    /// after an arbitrary instant.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Instant {
        #[cfg(feature = "backend")]
        if let Source::Backend(backend) = &self.source
            && self.fork_guard.is_same_process()
            && let Some(now) = backend.virtual_now()
        {
            return backend::start().checked_add(now).unwrap_or_else(backend::start);
        }
        Instant::now()
    }

    /// What the errors of the file's calls are of.
    #[must_use]
    #[inline]
    pub fn error_origin(&self) -> ErrorOrigin {
        match &self.source {
            Source::Kernel(_) => ErrorOrigin::Kernel,
            #[cfg(feature = "backend")]
            Source::Backend(_) => ErrorOrigin::Device,
        }
    }

    /// The error of a call of this file.
    fn error(&self, method: &'static str, errno: Errno) -> IoctlError {
        IoctlError { method, errno, origin: self.error_origin() }
    }

    /// Id of the kernel driver whose ioctl namespace the calls use.
    #[must_use]
    pub fn driver_id(&self) -> u32 {
        self.driver_id
    }

    /// Executes a call.
    ///
    /// # Errors
    ///
    /// The kernel's error. A call that a signal interrupted is repeated: the kernel rolls back an
    /// interrupted call.
    ///
    /// # Safety
    ///
    /// The buffers of the call are borrowed and need no care. If the method makes the kernel or the
    /// device access other memory, by an address passed as a number or in a driver's payload, that
    /// memory must meet the method's requirements.
    pub unsafe fn execute<M: Method>(&self, call: &mut Call<'_, M>) -> Result<(), IoctlError> {
        // SAFETY: a `Call`'s bytes are a header with the correct length, and all memory that they
        // point to is borrowed; the rest is this function's contract.
        unsafe { self.execute_raw(call.as_mut_bytes()) }.map_err(|errno| self.error(M::INFO.rust, errno))
    }

    /// Executes a write command through the ioctl method `InvokeWrite`.
    ///
    /// # Errors
    ///
    /// The kernel's error, with the name of the command.
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
        // SAFETY: a `Call`'s bytes are a header with the correct length, and all memory that they
        // point to is borrowed; the caller guarantees memory that the request refers to by
        // address.
        unsafe { self.execute_raw(call.as_mut_bytes()) }.map_err(|errno| self.error(C::INFO.rust, errno))
    }

    /// Passes bytes to the kernel unchanged.
    ///
    /// # Errors
    ///
    /// The kernel's error number, except `EINTR`, after which the call is repeated. `ESTALE` in a
    /// forked child.
    ///
    /// # Safety
    ///
    /// The kernel reads a header from `call` and then reads and writes as many bytes as the header
    /// says; they must lie in `call`. Every attribute that holds an address must hold the address
    /// of memory that the kernel may read or write as the attribute requires.
    #[inline]
    pub unsafe fn execute_raw(&self, call: &mut [u8]) -> Result<(), Errno> {
        self.check_same_process()?;
        match &self.source {
            // SAFETY: this function's contract.
            Source::Kernel(file) => unsafe { kernel_ioctl(file, call) },
            #[cfg(feature = "backend")]
            // SAFETY: this function's contract.
            Source::Backend(backend) => unsafe { backend.ioctl(call) },
        }
    }

    /// Passes a write command to the kernel by `write()`. The kernel executes fewer instructions than
    /// for `InvokeWrite`, which has attributes to parse.
    ///
    /// # Errors
    ///
    /// The kernel's error number, except `EINTR`, after which the command is repeated. `ESTALE` in a
    /// forked child. `EACCES`: the credentials of this thread are not those that opened the file. The
    /// kernel then executes nothing, and `InvokeWrite` has no such rule.
    ///
    /// # Safety
    ///
    /// The bytes are a header with the command's number and lengths, and its request. Every address in
    /// the request, that of the response included, must be of memory that the kernel may read or write
    /// as the command requires.
    #[inline]
    pub unsafe fn write_raw(&self, command: &[u8]) -> Result<(), Errno> {
        self.check_same_process()?;
        match &self.source {
            // SAFETY: this function's contract.
            Source::Kernel(file) => unsafe { kernel_write(file, command) },
            #[cfg(feature = "backend")]
            // SAFETY: this function's contract.
            Source::Backend(backend) => unsafe { backend.write(command) },
        }
    }

    /// Maps part of the device file.
    ///
    /// # Errors
    ///
    /// The error of `mmap` or `madvise`.
    pub fn map(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, IoctlError> {
        let refused = |errno| self.error("mmap", errno);
        self.check_same_process().map_err(refused)?;
        match &self.source {
            Source::Kernel(file) => Mapping::new(file, offset, len, protection),
            #[cfg(feature = "backend")]
            Source::Backend(backend) => backend.map(offset, len, protection),
        }
        .map_err(refused)
    }
}

impl AsFd for DeviceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Kernel(file) => file.as_fd(),
            #[cfg(feature = "backend")]
            Source::Backend(backend) => backend.as_fd(),
        }
    }
}

/// # Safety
///
/// As for [`DeviceFile::execute_raw`].
#[inline]
unsafe fn kernel_ioctl(file: &File, call: &mut [u8]) -> Result<(), Errno> {
    loop {
        // SAFETY: the kernel touches only what this function's contract allows it to.
        match unsafe { ioctl(file, VerbsIoctl(call.as_mut_ptr().cast())) } {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// # Safety
///
/// As for [`DeviceFile::write_raw`].
#[inline]
unsafe fn kernel_write(mut file: &File, command: &[u8]) -> Result<(), Errno> {
    loop {
        // Not the `write` of rustix: its system call is declared to change no memory.
        match file.write(command) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}

/// The only ioctl of uverbs device files.
struct VerbsIoctl(*mut c_void);

// SAFETY: the argument of this opcode is a uverbs call, and the pointer points to one, which the
// kernel reads and writes. There is no other output.
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
        let refused = IoctlError::new("RegMr", Errno::NOMEM);
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
        // Without sysfs a character device can't be identified.
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
        assert_eq!(refused, IoctlError::new("GetContext", Errno::NOTTY));
    }

    #[test]
    fn open_of_missing_path_gives_enoent() {
        let refused = DeviceFile::open("/dev/infiniband/no-such-device", 14).expect_err("no such file");
        assert_eq!(refused, OpenError::Ioctl(IoctlError::new("open", Errno::NOENT)));
    }
}
