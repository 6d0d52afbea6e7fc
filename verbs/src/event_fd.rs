//! File descriptors from which the kernel's event records are read.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Poll, Wake, Waker, ready};
use std::time::{Duration, Instant};

use bareverbs_provider::device::{BeforeWait, DeviceFile, IoctlError};
use bareverbs_provider::wake::wake_all;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::runtime::{Registration, Runtime, not_attached};
use crate::sync::{Mutex, lock};
use crate::wait::{Caller, waits};
use crate::{Error, Result};

/// A non-blocking file descriptor of kernel events. With several readers, a blocking read could
/// hang if another reader takes the event.
#[derive(Debug)]
pub(crate) struct EventFd {
    /// Shared with the registration at a runtime.
    fd: Arc<OwnedFd>,
    what: &'static str,
    /// Kept open: the kernel ends the events when the device file is closed.
    file: Arc<DeviceFile>,
}

impl EventFd {
    pub(crate) fn new(fd: OwnedFd, what: &'static str, file: Arc<DeviceFile>) -> Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true).map_err(|errno| {
            Error::system(format!("setting O_NONBLOCK on the descriptor of {what}"), errno)
        })?;
        Ok(Self { fd: Arc::new(fd), what, file })
    }

    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// The device file of the descriptor.
    pub(crate) fn file(&self) -> &Arc<DeviceFile> {
        &self.file
    }

    /// Reads a record if there is one. The kernel returns whole records only.
    pub(crate) fn try_read<T: FromBytes + IntoBytes>(&self) -> Result<Option<T>> {
        // A read in a forked child would take the parent's events.
        let foreign = |errno| Error::kernel("read", self.what, IoctlError::new("read", errno));
        self.file.check_same_process().map_err(foreign)?;
        let mut record = T::new_zeroed();
        loop {
            match rustix::io::read(&*self.fd, record.as_mut_bytes()) {
                Ok(length) if length == size_of::<T>() => return Ok(Some(record)),
                // The device of this process is gone. The kernel fails with this errno.
                Ok(0) => return Err(Error::system(format!("reading {}", self.what), Errno::IO)),
                Ok(_) => return Err(Error::system(format!("reading {}", self.what), Errno::PROTO)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::system(format!("reading {}", self.what), errno)),
            }
        }
    }

    /// Whether the kernel has ended the events: no record is left, and none follows.
    pub(crate) fn is_closed(&self) -> bool {
        let (mut fds, now) =
            ([PollFd::new(&*self.fd, PollFlags::empty())], Timespec { tv_sec: 0, tv_nsec: 0 });
        // The kernel reports these, although they are not asked for.
        let closed = PollFlags::ERR | PollFlags::HUP;
        rustix::event::poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(closed)
    }

    /// Whether a read would not block.
    pub(crate) fn is_readable(&self) -> bool {
        is_readable(self.as_fd())
    }

    /// Blocks until there is a record, at most until `end`.
    pub(crate) fn read<T: FromBytes + IntoBytes>(&self, end: Option<Instant>) -> Result<Option<T>> {
        loop {
            if let Some(record) = self.try_read()? {
                return Ok(Some(record));
            }
            // Before a look at the clock: a limit in virtual time is none in real time.
            match self.file.before_wait(end, None, || self.is_readable()) {
                Ok(BeforeWait::Block) => {}
                Ok(BeforeWait::Ready) => continue,
                Ok(BeforeWait::TimedOut) => return Ok(None),
                Err(errno) => return Err(endless(self.what, errno)),
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match rustix::event::poll(&mut [PollFd::new(&*self.fd, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::system(format!("waiting for {}", self.what), errno)),
            }
        }
    }
}

/// Whether a read of the descriptor would not block.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
}

/// The error of a wait on a device that runs in waits only.
pub(crate) fn endless(what: &str, errno: Errno) -> Error {
    if errno != Errno::DEADLK {
        return Error::system(format!("waiting for {what}"), errno);
    }
    Error::system(
        format!(
            "waiting for {what}: no packet and no timer of the seeded fabric is left that could end the wait, \
             or 20,000 timers expired without a completion: set `rnr_retry`, or post a receive"
        ),
        errno,
    )
}

/// A stream of events that threads and tasks wait for.
#[derive(Clone, Debug)]
pub(crate) struct EventStream {
    fd: Arc<EventFd>,
    registration: Option<Arc<Shared>>,
}

/// A registration that several tasks wait by. The reactor keeps one waker, that of all of them.
#[derive(Debug)]
struct Shared {
    registration: Registration,
    tasks: Arc<Tasks>,
}

/// The waits of tasks, with their wakers.
struct Tasks(Mutex<Waits>);

#[derive(Default)]
struct Waits {
    last_id: u64,
    wakers: Vec<(u64, Waker)>,
}

impl Tasks {
    /// Adds a wait, or renews its waker.
    fn add(&self, id: &mut Option<u64>, waker: Waker) {
        let mut waits = lock(&self.0);
        let id = *id.get_or_insert_with(|| {
            waits.last_id += 1;
            waits.last_id
        });
        waits.wakers.retain(|(other, _)| *other != id);
        waits.wakers.push((id, waker));
    }

    fn remove(&self, id: u64) {
        lock(&self.0).wakers.retain(|(other, _)| *other != id);
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        let wakers = mem::take(&mut lock(&self.0).wakers);
        wake_all(wakers.into_iter().map(|(_, waker)| waker));
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tasks").field(&lock(&self.0).wakers.len()).finish()
    }
}

impl EventStream {
    pub(crate) fn new(fd: EventFd) -> Self {
        Self { fd: Arc::new(fd), registration: None }
    }

    pub(crate) fn attach(&mut self, runtime: impl Runtime) -> Result<()> {
        // A runtime accepts no descriptor twice.
        self.registration = None;
        let registration = Registration::new(Arc::new(runtime), self.fd.fd())?;
        let tasks = Arc::new(Tasks(Mutex::new(Waits::default())));
        self.registration = Some(Arc::new(Shared { registration, tasks }));
        Ok(())
    }

    pub(crate) fn fd(&self) -> &Arc<EventFd> {
        &self.fd
    }

    pub(crate) fn next<E: Record>(&self) -> NextEvent<'_, E> {
        NextEvent { stream: self, id: None, _event: PhantomData }
    }

    /// Reads an event, or waits for one.
    fn poll_by<E: Record>(&self, id: &mut Option<u64>, caller: Caller<'_>) -> Poll<Result<E>> {
        let waker = match caller {
            Caller::Thread(end) => {
                return self
                    .fd
                    .read::<E::Desc>(end)?
                    .map_or(Poll::Pending, |desc| Poll::Ready(Ok(desc.into())));
            }
            Caller::Task(waker) => waker,
        };
        loop {
            if let Some(desc) = self.fd.try_read::<E::Desc>()? {
                return Poll::Ready(Ok(desc.into()));
            }
            let Some(shared) = &self.registration else {
                return Poll::Ready(Err(not_attached(E::WAIT)));
            };
            shared.tasks.add(id, waker.clone());
            let all = Waker::from(Arc::clone(&shared.tasks));
            ready!(shared.registration.poll_readable(&all))?;
        }
    }
}

/// A type of events. It is sealed.
pub trait Record: From<Self::Desc> {
    /// As the kernel writes it.
    type Desc: FromBytes + IntoBytes;

    /// The name of the wait, for errors.
    const WAIT: &'static str;
}

/// The next event of a [`CompChannel`](crate::cq::CompChannel) or of
/// [`AsyncEvents`](crate::AsyncEvents), which a task awaits or a thread [waits for](Self::wait).
///
/// Dropping it loses no event.
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct NextEvent<'e, E> {
    stream: &'e EventStream,
    /// Of the wait, once a task has waited.
    id: Option<u64>,
    _event: PhantomData<fn() -> E>,
}

impl<E: Record> NextEvent<'_, E> {
    pub(crate) fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<E>> {
        self.stream.poll_by(&mut self.id, caller)
    }
}

impl<E> NextEvent<'_, E> {
    pub(crate) fn events(&self) -> &Arc<EventFd> {
        &self.stream.fd
    }
}

impl<E> Drop for NextEvent<'_, E> {
    fn drop(&mut self) {
        if let (Some(id), Some(shared)) = (self.id, &self.stream.registration) {
            shared.tasks.remove(id);
        }
    }
}

waits!([E: Record] NextEvent<'_, E> => Result<E>);

impl<E> fmt::Debug for NextEvent<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextEvent").field("stream", self.stream).finish()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe() -> (EventFd, OwnedFd) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        let file = Arc::new(unsafe { DeviceFile::from_fd_unchecked(null.into(), 0) }.unwrap());
        (EventFd::new(read, "test events", file).unwrap(), write)
    }

    #[test]
    fn event_read_times_out_without_an_event() {
        let (events, _write) = pipe();
        assert!(events.try_read::<u64>().unwrap().is_none());
        let begin = Instant::now();
        assert!(events.read::<u64>(begin.checked_add(Duration::from_millis(20))).unwrap().is_none());
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn event_ends_the_wait() {
        let (events, write) = pipe();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            rustix::io::write(&write, &7_u64.to_ne_bytes()).unwrap();
            write
        });
        assert_eq!(events.read::<u64>(None).unwrap(), Some(7));
        drop(writer.join().unwrap());
    }

    #[test]
    fn closed_stream_reads_as_that_of_a_removed_device() {
        let (events, write) = pipe();
        rustix::io::write(&write, &7_u64.to_ne_bytes()).unwrap();
        drop(write);
        assert!(events.is_closed());
        assert_eq!(events.try_read::<u64>().unwrap(), Some(7));
        assert_eq!(events.read::<u64>(None).unwrap_err().errno(), Some(Errno::IO));
    }

    #[test]
    fn truncated_record_is_an_error() {
        let (events, write) = pipe();
        rustix::io::write(&write, &[1, 2, 3]).unwrap();
        assert_eq!(events.try_read::<u64>().unwrap_err().errno(), Some(Errno::PROTO));
    }
}
