//! Event channels.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use bareverbs_provider::wake::wake_all;
use bareverbs_uapi::rdma_cm::EventType;
use bareverbs_uapi::rdma_cm::structs::{DestroyIdReq, EventResp};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::command::{self, CmFile};
use crate::event::{Event, EventKind, parse, parse_request};
use crate::id::CmId;
use crate::inbox::Inboxes;
use crate::request::ConnectRequest;
use crate::{Error, Key, Result, key};

/// A channel of the connection manager: identifiers are created on it, and it delivers their
/// events.
///
/// A channel is one open file. Clones are the same channel, and threads may share it: each event
/// goes to one reader. The file stays open while an identifier of the channel exists. Its
/// descriptor works with `poll`, `epoll` and the reactors built on them, also edge-triggered, and
/// is always non-blocking.
///
/// Connections of [`connection`](crate::connection) that share a channel get their own events. Any
/// thread may read the channel. The calls of this type return the events of all other identifiers.
///
/// Events need no acknowledgement. Destroying an identifier waits for no reader; the kernel drops
/// its undelivered events, and [`EventChannel::try_wait`] those that it reads afterwards.
///
/// ```no_run
/// use bareverbs_rdmacm::event::EventKind;
/// use bareverbs_rdmacm::{CmId, EventChannel, PortSpace};
/// use std::net::Ipv4Addr;
/// use std::time::Duration;
///
/// let channel = EventChannel::new()?;
/// let id = CmId::new(&channel, PortSpace::Tcp)?;
/// id.resolve_addr(None, (Ipv4Addr::new(10, 1, 0, 1), 7174), Duration::from_secs(2))?;
/// let event = channel.wait()?;
/// assert_eq!(event.key, id.key());
/// println!("{:?}", event.kind);
/// # Ok::<(), bareverbs_rdmacm::Error>(())
/// ```
#[doc(alias = "rdma_event_channel")]
#[doc(alias = "rdma_destroy_event_channel")]
#[derive(Clone)]
pub struct EventChannel {
    inner: Arc<Inner>,
}

struct Inner {
    file: CmFile,
    /// Channels that nothing is migrated to while a reader waits have none.
    migrated: Option<Migrated>,
    inboxes: Mutex<Inboxes>,
    /// Notified when the thread that slept on the descriptor has delivered events.
    delivered: Condvar,
}

/// Wakes the readers of a channel after events were migrated to it: the kernel wakes none.
struct Migrated {
    /// Readable until a reader was woken.
    event: OwnedFd,
    /// Whether the event was written and not read since. So a reader that the file has woken makes no
    /// system call to look at the event.
    is_set: AtomicBool,
}

impl Migrated {
    fn new() -> Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::System { what: "creating an eventfd", errno })?;
        Ok(Self { event, is_set: AtomicBool::new(false) })
    }

    fn set(&self) {
        // It fails only if the counter is at its maximum, and then readers are awake.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        // After the write: a reader that clears the flag reads the event, which would stay readable
        // otherwise.
        self.is_set.store(true, Ordering::Release);
    }

    fn clear(&self) {
        if self.is_set.swap(false, Ordering::Acquire) {
            // It fails if another reader has read it, and the flag was set late.
            let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        }
    }
}

impl Inner {
    fn new(file: CmFile, migrated: Option<Migrated>) -> Arc<Self> {
        Arc::new(Self { file, migrated, inboxes: Mutex::default(), delivered: Condvar::new() })
    }
}

impl EventChannel {
    /// Opens a channel.
    ///
    /// # Errors
    /// [`Error::NoConnectionManager`]: the kernel has none for programs. [`Error::Open`]: the node
    /// is missing or not accessible. [`Error::System`]: the process has too many descriptors.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self> {
        let file = CmFile::open()?;
        Ok(Self { inner: Inner::new(file, Some(Migrated::new()?)) })
    }

    /// A channel of one identifier. Nothing is migrated to it while a reader waits.
    pub(crate) fn private() -> Result<Self> {
        Ok(Self { inner: Inner::new(CmFile::open()?, None) })
    }

    /// A channel without events, which refuses commands.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self { inner: Inner::new(CmFile::for_test(), None) }
    }

    pub(crate) fn file(&self) -> &CmFile {
        &self.inner.file
    }

    /// Whether both are the same channel.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Reads an event if there is one.
    ///
    /// Events of identifiers that were destroyed meanwhile are skipped. If one is a connection
    /// request, its child is destroyed, which rejects the request.
    ///
    /// # Errors
    /// [`Error::Command`] with `ESTALE`: the channel was opened before fork. With `EACCES`: the
    /// credentials of the process changed.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn try_wait(&self) -> Result<Option<Event>> {
        self.try_event(None)
    }

    fn lock(&self) -> MutexGuard<'_, Inboxes> {
        // No call panics between two changes that belong together.
        self.inner.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the events of a key to those who ask for this key only.
    pub(crate) fn claim(&self, key: Key) {
        self.lock().claim(key);
    }

    /// Ends [`claim`](Self::claim). Events that were delivered are for any caller then.
    pub(crate) fn unclaim(&self, key: Key) {
        let mut wakers = Vec::new();
        self.lock().unclaim(key, &mut wakers);
        wake_all(wakers);
        self.wake();
    }

    /// Drops the events of an identifier that is destroyed, and of its memberships. The children in
    /// them are destroyed, as the kernel does for events that were not read.
    pub(crate) fn purge(&self, key: Key, memberships: &[Key]) {
        let is_it = |uid| uid == key.get() || memberships.iter().any(|key| key.get() == uid);
        let mut wakers = Vec::new();
        let (_, events) = self.lock().remove(key, is_it, &mut wakers);
        wake_all(wakers);
        events.iter().for_each(|event| self.destroy_child(event));
    }

    /// Takes over the events of an identifier that was migrated from `old`.
    pub(crate) fn take_over(&self, old: &Self, key: Key, memberships: &[Key]) {
        let is_it = |uid| uid == key.get() || memberships.iter().any(|key| key.get() == uid);
        let mut wakers = Vec::new();
        let (claimed, events) = old.lock().remove(key, is_it, &mut wakers);
        let mut inboxes = self.lock();
        // Other readers of this channel may have read events from after the migration.
        let (_, newer) = inboxes.remove(key, is_it, &mut wakers);
        if claimed {
            inboxes.claim(key);
        }
        events.into_iter().chain(newer).for_each(|event| inboxes.deliver(event, &mut wakers));
        drop(inboxes);
        wake_all(wakers);
    }

    /// Reads events up to the next one of a key that is claimed, or else up to one of any key that is
    /// not.
    fn read_until(
        &self,
        inboxes: &mut Inboxes,
        key: Option<Key>,
        wakers: &mut Vec<Waker>,
    ) -> Result<Option<EventResp>> {
        loop {
            if let Some(event) = inboxes.take(key) {
                return Ok(Some(event));
            }
            if inboxes.sleeping {
                return Ok(None);
            }
            match command::get_event(self.file())? {
                Some(event) => inboxes.deliver(event, wakers),
                None => return Ok(None),
            }
        }
    }

    /// Reads all events into their inboxes, unless a thread sleeps on the descriptor, which does it.
    fn read_all(&self, inboxes: &mut Inboxes, wakers: &mut Vec<Waker>) -> Result<()> {
        while !inboxes.sleeping
            && let Some(event) = command::get_event(self.file())?
        {
            inboxes.deliver(event, wakers);
        }
        Ok(())
    }

    /// Takes an event as [`read_until`](Self::read_until) does.
    pub(crate) fn try_event(&self, key: Option<Key>) -> Result<Option<Event>> {
        self.take_event(key, None)
    }

    /// As [`try_event`](Self::try_event). If there is none, the waker is woken when there may be one.
    #[cfg(any(feature = "async-io", feature = "tokio"))]
    pub(crate) fn poll_event(&self, key: Option<Key>, waker: &Waker) -> Result<Option<Event>> {
        self.take_event(key, Some(waker))
    }

    fn take_event(&self, key: Option<Key>, waker: Option<&Waker>) -> Result<Option<Event>> {
        let mut clone = None;
        loop {
            let mut wakers = Vec::new();
            let (read, registered) = {
                let mut inboxes = self.lock();
                let read = self.read_until(&mut inboxes, key, &mut wakers);
                let registered = match (&read, waker) {
                    (Ok(None), Some(waker)) => inboxes.register(key, waker, &mut clone),
                    _ => true,
                };
                (read, registered)
            };
            wake_all(wakers);
            if let (false, Some(waker)) = (registered, waker) {
                clone = Some(waker.clone());
                continue;
            }
            let Some(resp) = read? else { return Ok(None) };
            if let Some(event) = self.dispatch(&resp) {
                return Ok(Some(event));
            }
        }
    }

    /// Delivers events after the descriptor has become readable, and wakes the tasks that wait for
    /// them. Returns whether it reads events, and not the tasks.
    #[cfg(any(feature = "async-io", feature = "tokio"))]
    pub(crate) fn serve(&self) -> bool {
        self.forget_migration();
        let mut wakers = Vec::new();
        let reads = {
            let mut inboxes = self.lock();
            let reads = inboxes.are_claimed();
            if !reads {
                // The tasks read by themselves. No more is read than is taken, so that the descriptor
                // stays readable.
                inboxes.take_unclaimed_wakers(&mut wakers);
            } else if self.read_all(&mut inboxes, &mut wakers).is_err() {
                // They get the error when they read.
                inboxes.take_wakers(&mut wakers);
            }
            reads
        };
        wake_all(wakers);
        reads
    }

    /// Wakes all tasks that wait, which then get the error of the runtime.
    #[cfg(any(feature = "async-io", feature = "tokio"))]
    pub(crate) fn wake_tasks(&self) {
        let mut wakers = Vec::new();
        self.lock().take_wakers(&mut wakers);
        wake_all(wakers);
    }

    fn destroy_child(&self, resp: &EventResp) {
        if resp.event == EventType::CONNECT_REQUEST {
            // The event was delivered, so destroying the listener did not destroy the child. If the
            // kernel refuses, the child ends with the file.
            let request = DestroyIdReq { id: resp.id, ..DestroyIdReq::zeroed() };
            let _ = command::destroy_id(self.file(), request);
        }
    }

    fn dispatch(&self, resp: &EventResp) -> Option<Event> {
        let Some((key, info)) = key::find(resp.uid) else {
            self.destroy_child(resp);
            return None;
        };
        let kind = if resp.event == EventType::CONNECT_REQUEST {
            let child = CmId::adopt(self, resp.id, info);
            EventKind::ConnectRequest(ConnectRequest::new(child, key, parse_request(resp, info.qp_type)))
        } else {
            parse(resp, info.qp_type)
        };
        Some(Event { key, kind })
    }

    /// Blocks until an event arrives.
    ///
    /// # Errors
    /// As for [`EventChannel::try_wait`].
    #[doc(alias = "rdma_get_cm_event")]
    pub fn wait(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.wait_until(None, None)? {
                return Ok(event);
            }
        }
    }

    /// Blocks until an event arrives, at most for `timeout`; `None` if none arrived.
    ///
    /// # Errors
    /// As for [`EventChannel::try_wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Event>> {
        // A timeout that overflows `Instant` means no timeout.
        match Instant::now().checked_add(timeout) {
            Some(end) => self.wait_until(None, Some(end)),
            None => self.wait().map(Some),
        }
    }

    /// Waits for an event that [`try_event`](Self::try_event) takes, at most until `end`.
    pub(crate) fn wait_until(&self, key: Option<Key>, end: Option<Instant>) -> Result<Option<Event>> {
        loop {
            let mut wakers = Vec::new();
            let mut inboxes = self.lock();
            let read = self.read_until(&mut inboxes, key, &mut wakers);
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let waits = matches!(read, Ok(None)) && left != Some(Duration::ZERO);
            if waits && inboxes.sleeping {
                self.wait_for_delivery(inboxes, left);
                continue;
            }
            inboxes.sleeping |= waits;
            drop(inboxes);
            wake_all(wakers);
            match read? {
                Some(resp) => {
                    if let Some(event) = self.dispatch(&resp) {
                        return Ok(Some(event));
                    }
                }
                None if waits => self.sleep(left)?,
                None => return Ok(None),
            }
        }
    }

    /// Waits until the thread that sleeps on the descriptor has delivered events, at most for `left`.
    fn wait_for_delivery(&self, inboxes: MutexGuard<'_, Inboxes>, left: Option<Duration>) {
        let delivered = &self.inner.delivered;
        match left {
            None => drop(delivered.wait(inboxes).unwrap_or_else(PoisonError::into_inner)),
            Some(left) => {
                drop(delivered.wait_timeout(inboxes, left).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Sleeps on the descriptor, at most for `left`, and delivers what has arrived. The caller has set
    /// `sleeping`.
    fn sleep(&self, left: Option<Duration>) -> Result<()> {
        let slept = self.poll(left);
        self.forget_migration();
        let (mut inboxes, mut wakers) = (self.lock(), Vec::new());
        inboxes.sleeping = false;
        // Tasks that the runtime has woken meanwhile have left the events to this thread. Other threads
        // read by themselves.
        let serves = inboxes.are_claimed() && inboxes.have_tasks();
        let read = if serves { self.read_all(&mut inboxes, &mut wakers) } else { Ok(()) };
        inboxes.take_unclaimed_wakers(&mut wakers);
        drop(inboxes);
        self.inner.delivered.notify_all();
        wake_all(wakers);
        slept.and(read)
    }

    /// Waits until the descriptor is readable, at most for `left`.
    fn poll(&self, left: Option<Duration>) -> Result<()> {
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let file = PollFd::new(self.file(), PollFlags::IN);
        let waited = match &self.inner.migrated {
            Some(migrated) => {
                let fds = &mut [file, PollFd::new(&migrated.event, PollFlags::IN)];
                rustix::event::poll(fds, left.as_ref())
            }
            None => rustix::event::poll(&mut [file], left.as_ref()),
        };
        match waited {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::System { what: "waiting for events", errno }),
        }
    }

    /// Wakes readers that wait, because the kernel does not when it moves events to the file.
    pub(crate) fn wake(&self) {
        if let Some(migrated) = &self.inner.migrated {
            migrated.set();
        }
    }

    /// A descriptor that is readable while an event waits or was migrated; `None` if the descriptor
    /// of the file is that.
    #[cfg(any(feature = "async-io", feature = "tokio"))]
    pub(crate) fn combined(&self) -> Result<Option<OwnedFd>> {
        use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};
        let Some(migrated) = &self.inner.migrated else { return Ok(None) };
        let combine = || {
            let combined = create(CreateFlags::CLOEXEC)?;
            for fd in [self.file().as_fd(), migrated.event.as_fd()] {
                add(&combined, fd, EventData::new_u64(0), EventFlags::IN)?;
            }
            Ok(combined)
        };
        combine().map(Some).map_err(|errno| Error::System { what: "creating an epoll instance", errno })
    }

    /// Ends the readiness of [`EventChannel::wake`]. The caller reads events afterwards.
    pub(crate) fn forget_migration(&self) {
        if let Some(migrated) = &self.inner.migrated {
            migrated.clear();
        }
    }
}

impl AsFd for EventChannel {
    /// The descriptor is readable while an event waits in the kernel. A thread that waits for one
    /// identifier of a shared channel also reads the events of the others: see
    /// [`Connection::own_channel`](crate::Connection::own_channel). When an identifier with undelivered events
    /// is migrated to the channel, the kernel does not report the descriptor as readable to a
    /// `poll` that already waits; [`EventChannel::wait`] and the types of
    /// the modules `tokio` and `async_io` are woken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventChannel").field(&self.inner.file.as_fd()).finish()
    }
}

#[cfg(test)]
mod tests {
    use bareverbs::QpType;

    use super::*;
    use crate::PortSpace;
    use crate::key::KeyInfo;

    #[test]
    fn events_from_before_a_migration_come_first() {
        for claimed in [false, true] {
            let key = key::create(KeyInfo { port_space: PortSpace::Tcp, qp_type: QpType::RC });
            let (old, new) = (EventChannel::for_test(), EventChannel::for_test());
            if claimed {
                old.claim(key);
            }
            let read = |channel: &EventChannel, status| {
                let event = EventResp { uid: key.get(), status, ..EventResp::zeroed() };
                channel.lock().deliver(event, &mut Vec::new());
            };
            read(&old, 1);
            // A thread of the new channel reads it before the older one is moved.
            read(&new, 2);
            new.take_over(&old, key, &[]);
            let mut inboxes = new.lock();
            let taken = std::iter::from_fn(|| inboxes.take(Some(key))).map(|event| event.status);
            assert_eq!(taken.collect::<Vec<_>>(), [1, 2], "{claimed}");
        }
    }
}
