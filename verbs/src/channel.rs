//! Completion channels.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use bareverbs_provider::command;
use bareverbs_provider::device::{BeforeWait, DeviceFile};
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::write::structs::CompEventDesc;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::event_fd::{EventFd, EventStream, NextEvent, Record, endless};
use crate::runtime::Runtime;

/// A channel of completion events, for threads that sleep instead of polling.
///
/// Any number of CQs can use one channel. Its file descriptor works with `poll`, `epoll` and the
/// reactors built on them, and is always non-blocking.
///
/// ```
/// use bareverbs::Device;
/// use bareverbs::cq::{Arm, Cq, CqInit};
///
/// let context = Device::find("soft0")?.open()?;
/// let channel = context.create_comp_channel()?;
/// let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(16) })?;
/// let mut armed = false;
/// loop {
///     while let Some(completion) = cq.poll_one() {
///         println!("request {} is complete", completion.wr_id);
///     }
///     if armed {
///         channel.next().wait()?;
///     } else {
///         // Completions before the arm raise no event: poll once more.
///         cq.arm(Arm::Any)?;
///     }
///     armed = !armed;
/// #   break;
/// }
/// # Ok::<(), bareverbs::Error>(())
/// ```
#[doc(alias = "ibv_comp_channel")]
#[doc(alias = "ibv_destroy_comp_channel")]
#[derive(Clone, Debug)]
pub struct CompChannel {
    events: EventStream,
}

/// A completion event: an armed CQ has a matching completion.
///
/// An event names its CQ by [`CompEvent::user_data`], not by a pointer. So it needs no
/// acknowledgement and may outlive the CQ. When a CQ is destroyed, its unread events are discarded.
#[doc(alias = "ibv_ack_cq_events")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompEvent {
    /// [`CqInit::user_data`](crate::cq::CqInit::user_data) of the CQ.
    pub user_data: u64,
}

impl<P: Provider> Context<P> {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// [`Error::Kernel`], for example if the process has no file descriptor left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        CompChannel::create(self.file())
    }
}

impl CompChannel {
    pub(crate) fn create(file: &Arc<DeviceFile>) -> Result<Self> {
        let fd = command::create_comp_channel(file)
            .map_err(|refused| Error::kernel("create_comp_channel", "a completion channel", refused))?;
        Self::over_fd(file, fd)
    }

    pub(crate) fn over_fd(file: &Arc<DeviceFile>, fd: OwnedFd) -> Result<Self> {
        Ok(Self { events: EventStream::new(EventFd::new(fd, "completion events", Arc::clone(file))?) })
    }

    /// A channel without events.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn for_test(file: &Arc<DeviceFile>) -> Self {
        // Of a descriptor that `epoll` accepts.
        let no_events = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
        let events = EventFd::new(no_events, "completion events", Arc::clone(file));
        Self { events: EventStream::new(events.expect("a descriptor")) }
    }

    /// A channel whose events the test writes to a pipe.
    #[cfg(test)]
    pub(crate) fn with_pipe(file: &Arc<DeviceFile>) -> (Self, std::os::fd::OwnedFd) {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).expect("a pipe");
        let events = EventFd::new(read, "completion events", Arc::clone(file));
        (Self { events: EventStream::new(events.expect("a descriptor")) }, write)
    }

    /// A channel without events. Once the returned descriptor is closed, it is that of a removed device:
    /// reading it fails with `EIO`, and it has the events of a closed file. It is a pseudoterminal.
    #[cfg(test)]
    pub(crate) fn removable(file: &Arc<DeviceFile>) -> (Self, std::os::fd::OwnedFd) {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

        use rustix::fs::{Mode, OFlags};

        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let events = rustix::fs::open("/dev/ptmx", flags, Mode::empty()).expect("a pseudoterminal");
        let unlocked = 0;
        // SAFETY: the ioctls read an integer or take one, and the second returns a new descriptor.
        let other = unsafe {
            assert_eq!(libc::ioctl(events.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked), 0);
            let other = libc::ioctl(events.as_raw_fd(), libc::TIOCGPTPEER, flags.bits());
            assert!(other >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(other)
        };
        let events = EventFd::new(events, "completion events", Arc::clone(file)).expect("a descriptor");
        (Self { events: EventStream::new(events) }, other)
    }

    pub(crate) fn file(&self) -> &Arc<DeviceFile> {
        self.events().file()
    }

    /// Whether the device was removed.
    pub(crate) fn is_closed(&self) -> bool {
        self.events().is_closed()
    }

    pub(crate) fn events(&self) -> &Arc<EventFd> {
        self.events.fd()
    }

    /// Lets a device that runs in waits only run, before a thread sleeps until there is an event or it
    /// is woken, at most until `end`, and until the time `alarm` of the device.
    pub(crate) fn before_sleep(
        &self,
        end: Option<Instant>,
        alarm: Option<Instant>,
        is_woken: impl Fn() -> bool,
    ) -> Result<BeforeWait> {
        let is_ready = || is_woken() || self.events().is_readable();
        self.file().before_wait(end, alarm, is_ready).map_err(|errno| endless("completion events", errno))
    }

    /// Blocks until there is an event, at most until `end`.
    pub(crate) fn read(&self, end: Option<Instant>) -> Result<Option<CompEvent>> {
        Ok(self.events().read::<CompEventDesc>(end)?.map(CompEvent::from))
    }

    /// Registers the channel with an async runtime, before the first await. Clones that are made later
    /// share the registration. Threads can wait as before.
    ///
    /// Several tasks may wait, also on clones. Each event is returned to one of them.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the calling thread has no reactor.
    /// - [`Error::System`]: the runtime refused the registration (`EEXIST`: a clone is registered).
    #[doc(alias = "tokio::CompChannel::new")]
    #[doc(alias = "async_io::CompChannel::new")]
    pub fn attach(&mut self, runtime: impl Runtime) -> Result<()> {
        self.events.attach(runtime)
    }

    /// The next event, to be awaited or waited for.
    ///
    /// # Errors
    /// The errors of the wait:
    ///
    /// - [`Error::System`] with `EIO`: the device was removed.
    /// - [`Error::Kernel`] with `ESTALE`: this process was forked from the one that opened the
    ///   device.
    /// - [`Error::Invalid`]: a task awaits it, and the channel is not [attached](Self::attach).
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "wait")]
    #[doc(alias = "wait_timeout")]
    pub fn next(&self) -> NextEvent<'_, CompEvent> {
        self.events.next()
    }

    /// Reads an event if there is one.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn try_wait(&self) -> Result<Option<CompEvent>> {
        Ok(self.events().try_read::<CompEventDesc>()?.map(CompEvent::from))
    }
}

impl Record for CompEvent {
    type Desc = CompEventDesc;

    const WAIT: &'static str = "CompChannel::next";
}

impl From<CompEventDesc> for CompEvent {
    fn from(record: CompEventDesc) -> Self {
        Self { user_data: record.cq_handle }
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events().as_fd()
    }
}
