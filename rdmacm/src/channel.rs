//! Event channels: the file of the connection manager, and its events in the kernel's form.

mod attached;
mod inbox;
#[cfg(test)]
mod testing;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Instant;

use bareverbs_provider::device::BeforeWait;
use bareverbs_provider::wake::wake_all;
use bareverbs_uapi::rdma_cm::EventType;
use bareverbs_uapi::rdma_cm::structs::{DestroyIdReq, EventResp};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use self::attached::Attached;
use self::inbox::Inboxes;
use crate::command::{self, CmFile};
use crate::key::{self, Key, KeyInfo};
use crate::ready::{combine, is_readable};
use crate::{Error, Result};

/// A channel of the connection manager: identifiers are created on it, and it delivers their
/// events.
///
/// A channel is one open file. Clones are the same channel, and threads may share it: each event
/// goes to one reader. The file stays open while an identifier of the channel exists. Its
/// descriptor works with `poll`, `epoll` and the reactors built on them, also edge-triggered, and
/// is always non-blocking.
///
/// Connections of [`connection`](crate::connection) that share a channel get their own events, and so do
/// the waits of a [`CmId`](crate::CmId) while they last. Any thread may read the channel meanwhile. The
/// calls of this type return all other events.
///
/// Events need no acknowledgement. Destroying an identifier waits for no reader; the kernel drops
/// its undelivered events, and [`EventChannel::try_wait`] those that it reads afterwards.
///
/// ```
/// # let device = bareverbs_test_support::example::ip_device().unwrap();
/// use bareverbs_rdmacm::event::EventKind;
/// use bareverbs_rdmacm::{CmId, EventChannel, PortSpace};
/// use std::net::Ipv4Addr;
/// use std::time::Duration;
///
/// let channel = EventChannel::new()?;
/// let id = CmId::new(&channel, PortSpace::Tcp)?;
/// id.resolve_addr(None, (Ipv4Addr::new(10, 1, 0, 1), 7174), Duration::from_secs(2))?;
/// let event = channel.next().wait()?;
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

/// An event of a live key, in the kernel's form.
pub(crate) struct RawEvent {
    pub(crate) key: Key,
    pub(crate) info: KeyInfo,
    pub(crate) resp: EventResp,
}

struct Inner {
    file: CmFile,
    /// Whether it was opened for one identifier.
    private: bool,
    /// That of a private channel is created by the first thread that waits for the events of any key.
    wake: OnceLock<WakeEvent>,
    inboxes: Mutex<Inboxes>,
    /// Notified when the thread that slept on the descriptor has delivered events, or the end of a claim
    /// has left some.
    delivered: Condvar,
    /// The runtime of the tasks that wait.
    attached: Mutex<Option<Arc<Attached>>>,
}

/// Wakes the readers of a channel while there may be events that the kernel does not report to readers
/// that wait: those that were migrated to the file, or were for the readers of one key.
struct WakeEvent {
    /// An eventfd that is readable until a reader was woken.
    event: OwnedFd,
    /// Whether the event was written and not read since. So a reader that the file has woken makes no
    /// system call to look at the event.
    is_set: AtomicBool,
}

impl WakeEvent {
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
    fn new(file: CmFile, private: bool) -> Arc<Self> {
        let (wake, inboxes, delivered) = (OnceLock::new(), Mutex::default(), Condvar::new());
        Arc::new(Self { file, private, wake, inboxes, delivered, attached: Mutex::default() })
    }
}

impl EventChannel {
    /// Opens a channel. With the feature `soft`, it also serves the devices that the process has
    /// created by [name](bareverbs::soft), if there is one by then. Without the kernel's connection
    /// manager, it serves them alone.
    ///
    /// # Errors
    /// [`Error::NoConnectionManager`]: the kernel has none for programs. [`Error::Open`]: the node
    /// is missing or not accessible. [`Error::System`]: the process has too many descriptors.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self> {
        let channel = Self { inner: Inner::new(CmFile::open()?, false) };
        channel.create_wake()?;
        Ok(channel)
    }

    /// Opens a channel for the devices of a fabric, such as one of a test.
    ///
    /// ```
    /// use bareverbs::soft::{Fabric, SoftDevice};
    /// use bareverbs_rdmacm::{CmId, EventChannel, PortSpace};
    ///
    /// let fabric = Fabric::new();
    /// let device = SoftDevice::new(&fabric);
    /// let id = CmId::new(&EventChannel::on(&fabric)?, PortSpace::Tcp)?;
    /// id.bind_addr((device.address(), 0))?;
    /// assert_eq!(id.addresses()?.local.unwrap().ip().unwrap().ip(), device.address());
    /// # Ok::<(), bareverbs_rdmacm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::System`]: the process has too many descriptors, or the fabric is that of a parent process.
    #[cfg(feature = "soft")]
    pub fn on(fabric: &bareverbs::soft::Fabric) -> Result<Self> {
        let channel = Self { inner: Inner::new(CmFile::on(fabric)?, false) };
        channel.create_wake()?;
        Ok(channel)
    }

    /// A channel of one identifier for the same devices as this one.
    pub(crate) fn private_for_same_devices(&self) -> Result<Self> {
        Ok(Self { inner: Inner::new(self.file().reopen()?, true) })
    }

    /// A channel of one identifier. Nothing is migrated to it while a reader waits.
    pub(crate) fn private(file: CmFile) -> Self {
        Self { inner: Inner::new(file, true) }
    }

    /// Whether it is a channel of one identifier.
    pub(crate) fn is_private(&self) -> bool {
        self.inner.private
    }

    /// Creates the eventfd that wakes readers, if there is none.
    fn create_wake(&self) -> Result<()> {
        if self.inner.wake.get().is_none() {
            // Another thread may have created one.
            let _ = self.inner.wake.set(WakeEvent::new()?);
        }
        Ok(())
    }

    pub(crate) fn file(&self) -> &CmFile {
        &self.inner.file
    }

    /// Whether both are the same channel.
    #[must_use]
    pub fn same_channel(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    fn lock(&self) -> MutexGuard<'_, Inboxes> {
        // No call panics between two changes that belong together.
        self.inner.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the events of a key to those who ask for this key only. `backlog` is that of a listener.
    pub(crate) fn claim(&self, key: Key, backlog: u32) {
        self.lock().claim(key, backlog);
    }

    /// Ends one [`claim`](Self::claim). After the last one, events that were delivered are for any
    /// caller.
    pub(crate) fn unclaim(&self, key: Key) {
        let mut wakers = Vec::new();
        if self.lock().unclaim(key, &mut wakers) {
            self.wake();
            // The thread that sleeps on the descriptor of a private channel may have begun without the
            // eventfd, if it waits for one key.
            self.inner.delivered.notify_all();
        }
        wake_all(wakers);
    }

    /// Drops the events of an identifier that is destroyed, and of its memberships. The children in
    /// them are destroyed, as the kernel does for events that were not read.
    pub(crate) fn purge(&self, keys: &[Key]) {
        let mut wakers = Vec::new();
        let (_, events) = self.lock().remove(keys, &mut wakers);
        self.destroy_children(&events);
        wake_all(wakers);
    }

    /// Takes over the events of an identifier that was migrated from `old`, and of its memberships, and
    /// wakes the readers. The first key is that of the identifier.
    pub(crate) fn take_over(&self, old: &Self, keys: &[Key]) {
        let mut wakers = Vec::new();
        let (claims, events) = old.lock().remove(keys, &mut wakers);
        let mut inboxes = self.lock();
        // Other readers of this channel may have read events from after the migration.
        let (_, newer) = inboxes.remove(keys, &mut wakers);
        // A listener is not migrated.
        (0..claims).for_each(|_| inboxes.claim(keys[0], 0));
        events.into_iter().chain(newer).for_each(|event| inboxes.deliver(event, &mut wakers));
        drop(inboxes);
        self.wake();
        wake_all(wakers);
    }

    /// Reads events into their inboxes until `is_enough`, unless a thread sleeps on the descriptor, which
    /// does it.
    fn read(
        &self,
        inboxes: &mut Inboxes,
        wakers: &mut Vec<Waker>,
        is_enough: impl Fn(&mut Inboxes) -> bool,
    ) -> Result<()> {
        while !inboxes.sleeping
            && !is_enough(inboxes)
            && let Some(event) = command::get_event(self.file())?
        {
            inboxes.deliver(event, wakers);
        }
        Ok(())
    }

    /// Takes the next event of a key that is claimed, or else one of any key that is not. Reads up to it.
    /// Returns the inboxes, too.
    ///
    /// The tasks that wait for the other events are woken first, without the lock. If a waker panics,
    /// the event is still in its inbox. Requests for which there is no room are rejected.
    fn take(&self, key: Option<Key>) -> (MutexGuard<'_, Inboxes>, Result<Option<EventResp>>) {
        let mut rejects = true;
        loop {
            let (mut inboxes, mut wakers) = (self.lock(), Vec::new());
            let read = self.read(&mut inboxes, &mut wakers, |inboxes| inboxes.has(key));
            // Once: peers may send requests without end. The next call rejects the rest.
            let refused = if rejects { inboxes.take_refused() } else { Vec::new() };
            if wakers.is_empty() && refused.is_empty() {
                let taken = read.map(|()| inboxes.take(key));
                return (inboxes, taken);
            }
            rejects &= refused.is_empty();
            drop(inboxes);
            self.destroy_children(&refused);
            wake_all(wakers);
        }
    }

    /// Takes an event as [`take`](Self::take) does. If there is none, the waker is woken when there
    /// may be one.
    fn take_or_register(&self, key: Option<Key>, waker: &Waker) -> Result<Option<RawEvent>> {
        let mut clone = None;
        loop {
            let (mut inboxes, taken) = self.take(key);
            let registered = !matches!(taken, Ok(None)) || inboxes.register(key, waker, &mut clone);
            drop(inboxes);
            if !registered {
                clone = Some(waker.clone());
                continue;
            }
            let Some(resp) = taken? else { return Ok(None) };
            if let Some(event) = self.live(resp) {
                return Ok(Some(event));
            }
        }
    }

    /// Delivers events after the descriptor has become readable, and wakes the tasks that wait for
    /// them. Returns whether it reads events, and not the tasks.
    ///
    /// # Panics
    /// If a waker panics, after all tasks were woken.
    fn serve(&self) -> bool {
        self.forget_wake();
        let mut wakers = Vec::new();
        let (reads, refused) = {
            let mut inboxes = self.lock();
            let reads = inboxes.are_claimed();
            if !reads {
                // The tasks read by themselves. No more is read than is taken, so that the descriptor
                // stays readable.
                inboxes.take_unclaimed_wakers(&mut wakers);
            } else if self.read(&mut inboxes, &mut wakers, |_| false).is_err() {
                // They get the error when they read.
                inboxes.take_wakers(&mut wakers);
            }
            (reads, inboxes.take_refused())
        };
        self.destroy_children(&refused);
        wake_all(wakers);
        reads
    }

    /// Wakes all tasks that wait. They poll the runtime then, which may have an error.
    fn wake_tasks(&self) {
        let mut wakers = Vec::new();
        self.lock().take_wakers(&mut wakers);
        wake_all(wakers);
    }

    fn destroy_children(&self, events: &[EventResp]) {
        events.iter().for_each(|event| self.destroy_child(event));
    }

    fn destroy_child(&self, resp: &EventResp) {
        if resp.event == EventType::CONNECT_REQUEST {
            // The event was delivered, so destroying the listener did not destroy the child. If the
            // kernel refuses, the child ends with the file.
            let request = DestroyIdReq { id: resp.id, ..DestroyIdReq::zeroed() };
            let _ = command::destroy_id(self.file(), request);
        }
    }

    /// The event, unless its identifier has been destroyed.
    fn live(&self, resp: EventResp) -> Option<RawEvent> {
        let Some((key, info)) = key::find(resp.uid) else {
            self.destroy_child(&resp);
            return None;
        };
        Some(RawEvent { key, info, resp })
    }

    /// Takes an event as [`take`](Self::take) does. The devices of a seeded fabric don't run.
    pub(crate) fn try_raw(&self, key: Option<Key>) -> Result<Option<RawEvent>> {
        loop {
            let taken = self.take(key).1?;
            let Some(resp) = taken else { return Ok(None) };
            if let Some(event) = self.live(resp) {
                return Ok(Some(event));
            }
        }
    }

    /// Waits in a thread for an event that [`take`](Self::take) takes, at most until `end`.
    pub(crate) fn wait_raw(&self, key: Option<Key>, end: Option<Instant>) -> Result<Option<RawEvent>> {
        if key.is_none() && !self.file().is_past(end) {
            // Before this thread looks for an event: the end of a claim may find one for it afterwards.
            self.create_wake()?;
        }
        let mut is_late = false;
        loop {
            let (mut inboxes, taken) = self.take(key);
            let waits = matches!(taken, Ok(None)) && !is_late && !self.file().is_past(end);
            if waits && inboxes.sleeping {
                is_late = self.wait_for_delivery(inboxes, end);
                continue;
            }
            // From here on until `sleep` resets it, no code of the application runs.
            inboxes.sleeping |= waits;
            drop(inboxes);
            match taken? {
                Some(resp) => {
                    if let Some(event) = self.live(resp) {
                        return Ok(Some(event));
                    }
                }
                None if waits => is_late = self.sleep(end)?,
                None => return Ok(None),
            }
        }
    }

    /// Waits until the thread that sleeps on the descriptor has delivered events, at most until `end`
    /// in real time. Returns whether that has passed.
    fn wait_for_delivery(&self, inboxes: MutexGuard<'_, Inboxes>, end: Option<Instant>) -> bool {
        let delivered = &self.inner.delivered;
        let Some(end) = end else {
            drop(delivered.wait(inboxes).unwrap_or_else(PoisonError::into_inner));
            return false;
        };
        let left = end.saturating_duration_since(Instant::now());
        delivered.wait_timeout(inboxes, left).unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Sleeps on the descriptor, at most until `end`, and delivers what has arrived. The caller has set
    /// `sleeping`. Returns whether the limit has passed in virtual time.
    fn sleep(&self, end: Option<Instant>) -> Result<bool> {
        let slept = self.poll(end);
        self.forget_wake();
        let (mut inboxes, mut wakers) = (self.lock(), Vec::new());
        inboxes.sleeping = false;
        // Tasks that the runtime has woken meanwhile have left the events to this thread. Other threads
        // read by themselves.
        let serves = inboxes.are_claimed() && inboxes.have_tasks();
        let read = if serves { self.read(&mut inboxes, &mut wakers, |_| false) } else { Ok(()) };
        inboxes.take_unclaimed_wakers(&mut wakers);
        let refused = inboxes.take_refused();
        drop(inboxes);
        self.inner.delivered.notify_all();
        self.destroy_children(&refused);
        wake_all(wakers);
        let is_late = slept?;
        read.map(|()| is_late)
    }

    /// Waits until the descriptor is readable, at most until `end`. Returns whether the limit has
    /// passed in virtual time.
    fn poll(&self, end: Option<Instant>) -> Result<bool> {
        let wake = self.inner.wake.get();
        let is_ready =
            || is_readable(self.file().as_fd()) || wake.is_some_and(|wake| is_readable(wake.event.as_fd()));
        match self.file().before_wait(end, None, is_ready)? {
            BeforeWait::Block => {}
            before => return Ok(before == BeforeWait::TimedOut),
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let file = PollFd::new(self.file(), PollFlags::IN);
        let waited = match wake {
            Some(wake) => {
                let fds = &mut [file, PollFd::new(&wake.event, PollFlags::IN)];
                rustix::event::poll(fds, left.as_ref())
            }
            None => rustix::event::poll(&mut [file], left.as_ref()),
        };
        match waited {
            Ok(_) | Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(Error::System { what: "waiting for events", errno }),
        }
    }

    /// Wakes readers that wait, because the kernel does not.
    fn wake(&self) {
        if let Some(wake) = self.inner.wake.get() {
            wake.set();
        }
    }

    /// A descriptor that is readable while an event waits or was migrated.
    fn descriptor(&self) -> Result<OwnedFd> {
        let failed = |errno| Error::System { what: "creating a descriptor of a channel", errno };
        let Some(wake) = self.inner.wake.get() else {
            return rustix::io::fcntl_dupfd_cloexec(self.file(), 0).map_err(failed);
        };
        combine(&[(self.file().as_fd(), 0), (wake.event.as_fd(), 1)]).map_err(failed)
    }

    /// Ends the readiness of [`EventChannel::wake`]. The caller reads events afterwards.
    fn forget_wake(&self) {
        if let Some(wake) = self.inner.wake.get() {
            wake.clear();
        }
    }
}

impl AsFd for EventChannel {
    /// The descriptor is readable while an event waits in the kernel. A thread that waits for one
    /// identifier of a shared channel also reads the events of the others: see
    /// [`Link::own_channel`](crate::Link::own_channel).
    ///
    /// When an identifier with undelivered events is migrated to the channel, the kernel does not wake
    /// a `poll` that already waits. [`EventChannel::next`] is woken.
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
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::Wake;
    use std::time::Duration;

    use bareverbs::qp::QpType;

    use super::inbox::REQUESTS;
    use super::*;
    use crate::event::{Event, EventKind};
    use crate::testing::Count;
    use crate::{CmId, PortSpace};

    fn new_key() -> Key {
        key::create(KeyInfo { port_space: PortSpace::Tcp, qp_type: QpType::RC })
    }

    fn event(key: Key, event: EventType) -> EventResp {
        EventResp { uid: key.get(), event, ..EventResp::zeroed() }
    }

    /// A task whose waker panics.
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("the test asked for it");
        }
    }

    /// Registers a task that waits for the events of a key, or of keys that are not claimed.
    fn register(channel: &EventChannel, key: Option<Key>, waker: &Waker) {
        assert!(channel.lock().register(key, waker, &mut Some(waker.clone())));
    }

    /// A key that a task with a panicking waker waits for.
    fn claim_by_panicking_task(channel: &EventChannel) -> Key {
        let key = new_key();
        channel.claim(key, 0);
        register(channel, Some(key), &Waker::from(Arc::new(Panics)));
        key
    }

    fn panics<T>(work: impl FnOnce() -> T) -> bool {
        catch_unwind(AssertUnwindSafe(work)).is_err()
    }

    #[test]
    fn requests_beyond_the_room_of_an_inbox_are_rejected() {
        let (channel, listener, other) = (EventChannel::simulated(), new_key(), new_key());
        channel.claim(listener, 0);
        channel.claim(other, 0);
        let (kernel, count) = (channel.file().kernel(), REQUESTS as u32);
        for id in 0..count + 2 {
            kernel.report(EventResp { id, ..event(listener, EventType::CONNECT_REQUEST) });
        }
        kernel.report(event(other, EventType::ADDR_RESOLVED));
        // The reader of another key reads them.
        assert!(channel.try_event(Some(other)).unwrap().is_some());
        assert_eq!(kernel.destroyed(), [count, count + 1]);
        // A request that was taken makes room for another one.
        drop(channel.try_event(Some(listener)).unwrap());
        assert_eq!(kernel.destroyed(), [count, count + 1, 0]);
        kernel.report(EventResp { id: count + 2, ..event(listener, EventType::CONNECT_REQUEST) });
        assert!(channel.try_event(Some(other)).unwrap().is_none());
        assert_eq!(kernel.destroyed().len(), 3);
    }

    #[test]
    fn events_from_before_a_migration_come_first() {
        for claimed in [false, true] {
            let key = new_key();
            let (old, new) = (EventChannel::for_test(), EventChannel::for_test());
            if claimed {
                old.claim(key, 0);
            }
            let read = |channel: &EventChannel, status| {
                let event = EventResp { uid: key.get(), status, ..EventResp::zeroed() };
                channel.lock().deliver(event, &mut Vec::new());
            };
            read(&old, 1);
            // A thread of the new channel reads it before the older one is moved.
            read(&new, 2);
            new.take_over(&old, &[key]);
            let mut inboxes = new.lock();
            let taken = std::iter::from_fn(|| inboxes.take(Some(key))).map(|event| event.status);
            assert_eq!(taken.collect::<Vec<_>>(), [1, 2], "{claimed}");
        }
    }

    #[test]
    fn reader_keeps_its_event_if_the_waker_of_another_task_panics() {
        let reads: [fn(&EventChannel) -> Option<Event>; 3] = [
            |channel| channel.try_wait().unwrap(),
            |channel| channel.next().wait_timeout(Duration::ZERO).transpose().unwrap(),
            |channel| Some(channel.next().wait().unwrap()),
        ];
        for read in reads {
            let channel = EventChannel::simulated();
            let (claimed, own) = (claim_by_panicking_task(&channel), new_key());
            channel.file().kernel().report(event(claimed, EventType::ADDR_RESOLVED));
            channel.file().kernel().report(event(own, EventType::ROUTE_RESOLVED));
            assert!(panics(|| read(&channel)));
            let event = read(&channel).expect("the event that the panic interrupted");
            assert!(event.key == own && matches!(event.kind, EventKind::RouteResolved));
            assert!(channel.try_event(Some(claimed)).unwrap().is_some());
        }
    }

    #[test]
    fn thread_whose_wakers_panic_does_not_count_as_asleep() {
        let channel = EventChannel::simulated();
        let (claimed, own) = (claim_by_panicking_task(&channel), new_key());
        channel.file().kernel().report(event(claimed, EventType::ADDR_RESOLVED));
        assert!(panics(|| channel.next().wait_timeout(Duration::from_secs(3600))));
        channel.file().kernel().report(event(own, EventType::ROUTE_RESOLVED));
        assert!(channel.try_wait().unwrap().is_some_and(|event| event.key == own));
    }

    #[test]
    fn children_of_a_destroyed_listener_are_destroyed_if_a_waker_panics() {
        let channel = EventChannel::simulated();
        let listener = CmId::new(&channel, PortSpace::Tcp).unwrap();
        listener.claim();
        let request = EventResp { id: 77, ..event(listener.key(), EventType::CONNECT_REQUEST) };
        channel.lock().deliver(request, &mut Vec::new());
        register(&channel, Some(listener.key()), &Waker::from(Arc::new(Panics)));
        assert!(panics(|| drop(listener)));
        assert_eq!(channel.file().kernel().destroyed(), [0, 77]);
    }

    #[test]
    fn migrated_id_is_on_its_new_channel_if_a_waker_panics() {
        let (old, new) = (EventChannel::simulated(), EventChannel::simulated());
        let mut id = CmId::new(&old, PortSpace::Tcp).unwrap();
        id.claim();
        register(&old, Some(id.key()), &Waker::from(Arc::new(Panics)));
        assert!(panics(|| id.migrate(&new)));
        assert!(id.channel().same_channel(&new));
        // Readers that sleep on the new channel are woken.
        assert_eq!(rustix::io::read(&new.inner.wake.get().unwrap().event, &mut [0; 8]), Ok(8));
        drop(id);
        assert_eq!([&old, &new].map(|channel| channel.file().kernel().destroyed().len()), [0, 1]);
    }

    #[test]
    fn end_of_a_claim_wakes_sleeping_threads_if_a_waker_panics() {
        let (channel, key) = (EventChannel::simulated(), new_key());
        channel.claim(key, 0);
        channel.lock().deliver(event(key, EventType::ADDR_RESOLVED), &mut Vec::new());
        register(&channel, Some(key), &Waker::from(Arc::new(Panics)));
        assert!(panics(|| channel.unclaim(key)));
        assert_eq!(rustix::io::read(&channel.inner.wake.get().unwrap().event, &mut [0; 8]), Ok(8));
    }

    #[test]
    fn end_of_a_claim_wakes_the_thread_that_sleeps_on_a_private_channel() {
        let (channel, key) = (EventChannel::simulated_private(), new_key());
        channel.claim(key, 0);
        channel.lock().deliver(event(key, EventType::ADDR_RESOLVED), &mut Vec::new());
        let (start, timeout) = (Instant::now(), Duration::from_secs(10));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| channel.next().wait_timeout(timeout).transpose().unwrap());
            while !channel.lock().sleeping {
                std::thread::yield_now();
            }
            channel.unclaim(key);
            assert!(waits.join().unwrap().is_some_and(|event| event.key == key));
        });
        assert!(start.elapsed() < timeout);
    }

    #[test]
    fn end_of_a_claim_wakes_a_thread_while_another_one_sleeps_for_its_key_on_a_private_channel() {
        let (channel, key, own) = (EventChannel::simulated_private(), new_key(), new_key());
        [key, own].iter().for_each(|key| channel.claim(*key, 0));
        channel.lock().deliver(event(key, EventType::ADDR_RESOLVED), &mut Vec::new());
        let (start, timeout) = (Instant::now(), Duration::from_secs(10));
        std::thread::scope(|scope| {
            let sleeps = scope.spawn(|| channel.wait_raw(Some(own), None).unwrap());
            while !channel.lock().sleeping {
                std::thread::yield_now();
            }
            let waits = scope.spawn(|| channel.next().wait_timeout(timeout).transpose().unwrap());
            // The second thread creates the eventfd before it waits.
            while channel.inner.wake.get().is_none() {
                std::thread::yield_now();
            }
            channel.unclaim(key);
            let taken = waits.join().unwrap();
            // The simulated file is an eventfd: its readiness ends the sleep of the first thread.
            channel.file().kernel().report(event(own, EventType::ROUTE_RESOLVED));
            rustix::io::write(channel.file(), &1_u64.to_ne_bytes()).unwrap();
            assert!(sleeps.join().unwrap().is_some_and(|event| event.key == own));
            assert!(taken.is_some_and(|event| event.key == key));
        });
        assert!(start.elapsed() < timeout);
    }

    #[test]
    fn id_is_not_migrated_to_the_channel_of_another_one() {
        let (own, private) = (EventChannel::simulated_private(), EventChannel::simulated_private());
        let mut id = CmId::new(&own, PortSpace::Tcp).unwrap();
        id.migrate(&own).unwrap();
        let refused = id.migrate(&private).unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "migrate", .. }), "{refused}");
        assert!(id.channel().same_channel(&own));
        id.migrate(&EventChannel::simulated()).unwrap();
    }

    #[test]
    fn delivery_to_a_task_wakes_it_once_and_leaves_the_event() {
        let channel = EventChannel::simulated();
        let (key, count) = (new_key(), Arc::new(Count::default()));
        channel.claim(key, 0);
        register(&channel, Some(key), &Waker::from(Arc::clone(&count)));
        channel.file().kernel().report(event(key, EventType::ADDR_RESOLVED));
        assert!(channel.try_wait().unwrap().is_none());
        assert_eq!(count.wakes(), 1);
        assert!(channel.try_event(Some(key)).unwrap().is_some());
    }

    #[test]
    fn claim_of_a_migrated_id_moves_with_it() {
        let (old, new, key) = (EventChannel::simulated(), EventChannel::simulated(), new_key());
        old.claim(key, 0);
        new.take_over(&old, &[key]);
        assert!(!old.lock().are_claimed());
        new.file().kernel().report(event(key, EventType::ADDR_RESOLVED));
        assert!(new.try_wait().unwrap().is_none());
        assert!(new.try_event(Some(key)).unwrap().is_some());
    }

    #[test]
    fn thread_that_sleeps_no_longer_lets_another_one_read() {
        let (channel, key) = (EventChannel::simulated(), new_key());
        channel.claim(key, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(channel.next().wait_timeout(Duration::from_millis(100)).is_none()));
            while !channel.lock().sleeping {
                std::thread::yield_now();
            }
            let start = Instant::now();
            let end = start.checked_add(Duration::from_secs(20));
            channel.file().kernel().report(event(key, EventType::ADDR_RESOLVED));
            // The descriptor of a simulated file is never readable, so the first thread sleeps on.
            assert!(channel.wait_raw(Some(key), end).unwrap().is_some());
            assert!(start.elapsed() < Duration::from_secs(10), "it was woken");
        });
    }

    #[test]
    fn thread_that_has_slept_wakes_tasks_that_read_by_themselves() {
        let (channel, count) = (EventChannel::simulated(), Arc::new(Count::default()));
        register(&channel, None, &Waker::from(Arc::clone(&count)));
        assert!(channel.next().wait_timeout(Duration::from_millis(1)).is_none());
        assert_eq!(count.wakes(), 1);
    }

    #[test]
    fn readiness_without_claims_wakes_tasks_and_reads_nothing() {
        let (channel, count) = (EventChannel::simulated(), Arc::new(Count::default()));
        register(&channel, None, &Waker::from(Arc::clone(&count)));
        channel.file().kernel().report(event(new_key(), EventType::ADDR_RESOLVED));
        assert!(!channel.serve());
        assert_eq!(count.wakes(), 1);
        assert!(channel.try_wait().unwrap().is_some());
    }

    #[test]
    fn wake_of_a_channel_is_read_once() {
        let channel = EventChannel::simulated();
        let event = &channel.inner.wake.get().unwrap().event;
        for _ in 0..2 {
            channel.wake();
            channel.forget_wake();
            assert_eq!(rustix::io::read(event, &mut [0; 8]), Err(Errno::AGAIN));
        }
    }

    #[test]
    fn readiness_by_a_wake_is_read_when_the_channel_is_served() {
        let channel = EventChannel::simulated();
        channel.wake();
        channel.serve();
        let event = &channel.inner.wake.get().unwrap().event;
        assert_eq!(rustix::io::read(event, &mut [0; 8]), Err(Errno::AGAIN));
    }

    #[test]
    fn error_of_the_file_wakes_the_tasks() {
        // A file that refuses commands is not an event channel.
        let (channel, key, count) = (EventChannel::for_test(), new_key(), Arc::new(Count::default()));
        channel.claim(key, 0);
        register(&channel, Some(key), &Waker::from(Arc::clone(&count)));
        channel.serve();
        assert_eq!(count.wakes(), 1);
    }

    #[test]
    fn requests_without_room_are_rejected_when_the_channel_is_served() {
        let (channel, listener) = (EventChannel::simulated(), new_key());
        channel.claim(listener, 0);
        let (kernel, count) = (channel.file().kernel(), REQUESTS as u32);
        for id in 0..=count {
            kernel.report(EventResp { id, ..event(listener, EventType::CONNECT_REQUEST) });
        }
        assert!(channel.serve());
        assert_eq!(kernel.destroyed(), [count]);
    }

    #[test]
    fn events_are_left_to_the_thread_that_sleeps_on_the_descriptor() {
        let (channel, key) = (EventChannel::simulated(), new_key());
        channel.claim(key, 0);
        channel.file().kernel().report(event(key, EventType::ADDR_RESOLVED));
        channel.lock().sleeping = true;
        assert!(channel.try_event(Some(key)).unwrap().is_none());
        assert!(channel.serve() && !channel.lock().has(Some(key)));
        channel.lock().sleeping = false;
        assert!(channel.try_event(Some(key)).unwrap().is_some());
    }

    #[test]
    fn request_to_a_destroyed_listener_is_rejected() {
        let (channel, listener) = (EventChannel::simulated(), new_key());
        key::retire(listener);
        channel.file().kernel().report(EventResp { id: 5, ..event(listener, EventType::CONNECT_REQUEST) });
        assert!(channel.try_wait().unwrap().is_none());
        assert_eq!(channel.file().kernel().destroyed(), [5]);
    }

    #[test]
    fn events_of_the_memberships_of_a_destroyed_id_are_dropped() {
        let (channel, own, membership) = (EventChannel::simulated(), new_key(), new_key());
        for key in [own, membership] {
            channel.lock().deliver(event(key, EventType::MULTICAST_JOIN), &mut Vec::new());
        }
        channel.purge(&[own, membership]);
        assert!(channel.try_wait().unwrap().is_none());
    }

    #[test]
    fn thread_that_has_slept_delivers_the_events_of_tasks() {
        let (channel, count) = (EventChannel::simulated(), Arc::new(Count::default()));
        let (own, other) = (new_key(), new_key());
        [own, other].iter().for_each(|key| channel.claim(*key, 0));
        register(&channel, Some(other), &Waker::from(Arc::clone(&count)));
        std::thread::scope(|scope| {
            let slept = scope.spawn(|| channel.wait_raw(Some(own), None).unwrap().is_some());
            while !channel.lock().sleeping {
                std::thread::yield_now();
            }
            // The task leaves its event, which is behind that of the thread, to the thread.
            channel.file().kernel().report(event(own, EventType::ADDR_RESOLVED));
            channel.file().kernel().report(event(other, EventType::ADDR_RESOLVED));
            // The descriptor of a simulated file is never readable.
            channel.wake();
            assert!(slept.join().unwrap());
        });
        assert_eq!(count.wakes(), 1);
        assert!(channel.lock().has(Some(other)));
    }
}
