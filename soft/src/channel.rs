//! Completion channels and asynchronous events as descriptors.
//!
//! A channel is a pair of sockets that keep records apart. The program reads its end. Events are counted
//! when the program has read them, and the destruction of an object takes back its unread events, as in
//! the kernel. Events that the socket has no room for are sent before the next call or wait of the
//! context.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bareverbs_uapi::verbs_values::EventType;
use bareverbs_uapi::write::structs::{AsyncEventDesc, CompEventDesc};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_send_buffer_size};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use zerocopy::IntoBytes;

use crate::sys::lock;

/// A channel with so many events looks whether the program has read them.
const UNCOUNTED: usize = 32;

/// The contents of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelKind {
    Completion,
    Async,
}

impl ChannelKind {
    /// Length of a record in bytes.
    const fn record(self) -> usize {
        match self {
            Self::Completion => size_of::<CompEventDesc>(),
            Self::Async => size_of::<AsyncEventDesc>(),
        }
    }
}

/// The device's end of a channel.
#[derive(Debug)]
pub(crate) struct Channel {
    kind: ChannelKind,
    /// `None` once the channel has ended.
    sender: Mutex<Option<OwnedFd>>,
    /// Device number and inode of the program's end.
    identity: (u64, u64),
    /// The program's end, as long as an object uses the channel.
    reader: Mutex<Weak<OwnedFd>>,
    events: Mutex<Events>,
    /// Set if there was no room for an event. The context's.
    has_unsent: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Events {
    /// Those that wait for room, and of the sent ones those from the first on that the program may not
    /// have read and whose reading counts.
    queued: VecDeque<Event>,
    /// The first that many of them were sent.
    sent: usize,
    /// Whether the channel ends when all are sent.
    is_ending: bool,
}

#[derive(Clone, Debug)]
struct Event {
    record: [u8; size_of::<AsyncEventDesc>()],
    /// Counts the event when it was read.
    counter: Option<Arc<Counter>>,
}

/// The events of an object.
#[derive(Debug, Default)]
struct Counter {
    /// Those that the program has read.
    read: AtomicU32,
    /// Whether the object was destroyed: it raises no event any more. Changes under the lock of the events.
    is_closed: AtomicBool,
}

/// The channel as objects use it: with the program's end, which tells what was read.
#[derive(Clone, Debug)]
pub(crate) struct ChannelUse {
    channel: Arc<Channel>,
    reader: Arc<OwnedFd>,
}

/// Device number and inode of an open file.
fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Channel {
    /// A channel, and the program's end of it. It sets `has_unsent` when there was no room for an event.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE` or `ENOMEM`.
    pub(crate) fn new(kind: ChannelKind, has_unsent: Arc<AtomicBool>) -> Result<(Arc<Self>, OwnedFd), Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (program, device) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let identity = identity(program.as_fd())?;
        let sender = Mutex::new(Some(device));
        let reader = Mutex::new(Weak::new());
        let events = Mutex::default();
        Ok((Arc::new(Self { kind, sender, identity, reader, events, has_unsent }), program))
    }

    pub(crate) fn kind(&self) -> ChannelKind {
        self.kind
    }

    /// Whether `fd` is the program's end of the channel.
    pub(crate) fn is(&self, fd: BorrowedFd<'_>) -> bool {
        identity(fd) == Ok(self.identity)
    }

    /// The channel for an object that sends events to it. `fd` is the program's end.
    ///
    /// # Errors
    ///
    /// `EMFILE`, or `EBADF` if the descriptor is closed.
    pub(crate) fn used(self: &Arc<Self>, fd: BorrowedFd<'_>) -> Result<ChannelUse, Errno> {
        let mut known = lock(&self.reader);
        let reader = match known.upgrade() {
            Some(reader) => reader,
            None => Arc::new(rustix::io::fcntl_dupfd_cloexec(fd, 0)?),
        };
        *known = Arc::downgrade(&reader);
        Ok(ChannelUse { channel: Arc::clone(self), reader })
    }

    /// Whether the program has closed its end, although objects use the channel. `false` without procfs.
    pub(crate) fn is_abandoned(&self) -> bool {
        let Some(own) = lock(&self.reader).upgrade() else { return self.is_closed() };
        let (own, name) = (own.as_raw_fd().to_string(), format!("socket:[{}]", self.identity.1));
        let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") else { return false };
        !descriptors.flatten().any(|descriptor| {
            let is_end = std::fs::read_link(descriptor.path()).is_ok_and(|link| link.as_os_str() == &*name);
            is_end && descriptor.file_name() != *own
        })
    }

    /// Whether no one can read the channel.
    pub(crate) fn is_closed(&self) -> bool {
        let sender = lock(&self.sender);
        let Some(sender) = &*sender else { return true };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(sender, PollFlags::empty())];
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Ends the channel: the program's reads return the queued records, then the end of the file.
    ///
    /// The socket gets room for the last records, because a program that has read none waits for the
    /// descriptor only.
    pub(crate) fn end(&self) {
        let mut events = lock(&self.events);
        if let Some(sender) = &*lock(&self.sender) {
            // The kernel doubles the size. After an error, records wait for room as before.
            let _ =
                socket_send_buffer_size(sender).and_then(|size| set_socket_send_buffer_size(sender, size));
        }
        events.is_ending = true;
        self.flush(&mut events);
    }

    /// Sends an event of the port or the device, which no object counts.
    pub(crate) fn raise_of_port(&self, port: u32, event: EventType) {
        let mut events = lock(&self.events);
        self.count_read(&mut events);
        events.queued.push_back(Event { record: async_record(u64::from(port), event), counter: None });
        self.flush(&mut events);
    }

    /// Sends the events that there was no room for.
    pub(crate) fn resume(&self) {
        let mut events = lock(&self.events);
        if events.sent < events.queued.len() {
            self.count_read(&mut events);
            self.flush(&mut events);
        }
    }

    /// Sends the events that wait, as far as there is room. An ending channel ends behind the last one.
    fn flush(&self, events: &mut Events) {
        let mut place = lock(&self.sender);
        let Some(sender) = &*place else { return };
        while let Some(event) = events.queued.get(events.sent) {
            let record = &event.record[..self.kind.record()];
            match send(sender, record, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => {
                    events.sent += 1;
                    events.forget_uncounted();
                }
                Err(Errno::INTR) => {}
                // The program has closed its end.
                Err(Errno::PIPE) => break,
                Err(_) => {
                    self.has_unsent.store(true, Ordering::Release);
                    return;
                }
            }
        }
        if events.is_ending {
            *place = None;
        }
    }

    /// Forgets and counts the events that the program has read. Without an object that uses the
    /// channel, no event counts.
    fn count_read(&self, events: &mut Events) {
        let Some(reader) = lock(&self.reader).upgrade() else { return };
        let Ok(unread) = ioctl_fionread(&*reader) else { return };
        // Those that `queued` does not have precede it.
        let unread = usize::try_from(unread).unwrap_or(usize::MAX) / self.kind.record();
        let read = events.sent.saturating_sub(unread);
        for event in events.queued.drain(..read) {
            event.count();
        }
        events.sent -= read;
        events.forget_uncounted();
    }
}

impl Events {
    /// Forgets the oldest events that were sent, as far as their reading does not count.
    fn forget_uncounted(&mut self) {
        while self.sent > 0 && self.queued.front().is_some_and(|event| event.counter.is_none()) {
            self.queued.pop_front();
            self.sent -= 1;
        }
    }
}

impl ChannelUse {
    /// Queues an event.
    fn raise(&self, record: [u8; size_of::<AsyncEventDesc>()], counter: &Arc<Counter>) {
        let mut events = lock(&self.channel.events);
        if counter.is_closed.load(Ordering::Relaxed) {
            return;
        }
        if events.queued.len() >= UNCOUNTED {
            self.channel.count_read(&mut events);
        }
        events.queued.push_back(Event { record, counter: Some(Arc::clone(counter)) });
        self.channel.flush(&mut events);
    }

    /// Takes back the unread events with this counter, and counts those that were read. Later ones are not
    /// queued. After the end of the channel they stay: there is no way to put back those of others.
    fn purge(&self, counter: &Arc<Counter>) {
        let mut events = lock(&self.channel.events);
        counter.is_closed.store(true, Ordering::Relaxed);
        self.channel.count_read(&mut events);
        if lock(&self.channel.sender).is_none() {
            return;
        }
        let is_own = |event: &Event| event.counter.as_ref().is_some_and(|of| Arc::ptr_eq(of, counter));
        if events.queued.iter().any(is_own) {
            let mut unread = self.drain(&mut events);
            unread.retain(|event| !is_own(event));
            events.queued = unread;
            self.channel.flush(&mut events);
        }
    }

    /// Takes all unread events out of the socket. The program may read at the same time.
    fn drain(&self, events: &mut Events) -> VecDeque<Event> {
        let len = self.channel.kind.record();
        let mut unread = VecDeque::new();
        loop {
            let mut record = [0; size_of::<AsyncEventDesc>()];
            match recv(&*self.reader, &mut record[..len], RecvFlags::DONTWAIT) {
                Ok((read, _)) if read == len => {}
                Err(Errno::INTR) => continue,
                _ => break,
            }
            let sent = events.queued.iter().take(events.sent);
            let Some(at) = sent.clone().position(|event| event.record == record) else {
                unread.push_back(Event { record, counter: None });
                continue;
            };
            // The program has read what precedes it.
            for event in events.queued.drain(..at) {
                event.count();
            }
            unread.extend(events.queued.pop_front());
            events.sent -= at + 1;
        }
        for event in events.queued.drain(..events.sent) {
            event.count();
        }
        events.sent = 0;
        unread.append(&mut events.queued);
        unread
    }
}

impl Event {
    fn count(&self) {
        if let Some(counter) = &self.counter {
            counter.read.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn async_record(element: u64, event_type: EventType) -> [u8; size_of::<AsyncEventDesc>()] {
    let desc = AsyncEventDesc { element, event_type, reserved: 0 };
    let mut record = [0; size_of::<AsyncEventDesc>()];
    record.copy_from_slice(desc.as_bytes());
    record
}

/// The asynchronous events of a QP or an SRQ.
#[derive(Debug)]
pub(crate) struct ObjectSink {
    /// `None` in a context without a channel for them.
    events: Option<ChannelUse>,
    user_handle: u64,
    counter: Arc<Counter>,
}

impl ObjectSink {
    pub(crate) fn new(events: Option<ChannelUse>, user_handle: u64) -> Self {
        Self { events, user_handle, counter: Arc::default() }
    }

    /// Raises an event of the object.
    pub(crate) fn raise(&self, event: EventType) {
        if let Some(events) = &self.events {
            events.raise(async_record(self.user_handle, event), &self.counter);
        }
    }

    /// Takes back the unread events. Returns the number of those that were read.
    pub(crate) fn close(&self) -> u32 {
        if let Some(events) = &self.events {
            events.purge(&self.counter);
        }
        self.counter.read.load(Ordering::Relaxed)
    }
}

/// The events of a CQ.
#[derive(Debug)]
pub(crate) struct CqSink {
    /// `None` for a CQ without a completion channel.
    completions: Option<ChannelUse>,
    counter: Arc<Counter>,
    errors: ObjectSink,
}

impl CqSink {
    pub(crate) fn new(completions: Option<ChannelUse>, errors: Option<ChannelUse>, user_handle: u64) -> Self {
        Self { completions, counter: Arc::default(), errors: ObjectSink::new(errors, user_handle) }
    }

    /// The armed CQ has got a completion.
    pub(crate) fn completed(&self) {
        if let Some(completions) = &self.completions {
            let mut record = [0; size_of::<AsyncEventDesc>()];
            record[..size_of::<CompEventDesc>()].copy_from_slice(&self.errors.user_handle.to_ne_bytes());
            completions.raise(record, &self.counter);
        }
    }

    /// The CQ has lost a completion.
    pub(crate) fn failed(&self) {
        self.errors.raise(EventType::CQ_ERR);
    }

    /// Takes back the unread events. Returns the numbers of completion events and of asynchronous
    /// events that were read.
    pub(crate) fn close(&self) -> (u32, u32) {
        if let Some(completions) = &self.completions {
            completions.purge(&self.counter);
        }
        (self.counter.read.load(Ordering::Relaxed), self.errors.close())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion_channel() -> (ChannelUse, OwnedFd) {
        let (channel, program) = Channel::new(ChannelKind::Completion, Arc::default()).unwrap();
        (channel.used(program.as_fd()).unwrap(), program)
    }

    fn read(program: &OwnedFd) -> Option<u64> {
        let mut record = [0; 8];
        rustix::io::ioctl_fionbio(program, true).unwrap();
        match rustix::io::read(program, &mut record) {
            Ok(8) => Some(u64::from_ne_bytes(record)),
            Ok(0) | Err(Errno::AGAIN) => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn destruction_purges_unread_events_and_counts_read_ones() {
        let (channel, program) = completion_channel();
        let [one, two] = [1, 2].map(|handle| CqSink::new(Some(channel.clone()), None, handle));
        one.completed();
        two.completed();
        one.completed();
        two.completed();
        assert_eq!(read(&program), Some(1));
        assert_eq!(one.close(), (1, 0));
        assert_eq!((read(&program), read(&program), read(&program)), (Some(2), Some(2), None));
        assert_eq!(two.close(), (2, 0));
    }

    #[test]
    fn destroyed_object_raises_no_event() {
        let (channel, program) = completion_channel();
        let sink = CqSink::new(Some(channel), None, 1);
        assert_eq!(sink.close(), (0, 0));
        sink.completed();
        assert_eq!((read(&program), sink.close()), (None, (0, 0)));
    }

    #[test]
    fn objects_with_the_same_user_handle_count_their_own_events() {
        let (channel, program) = completion_channel();
        let [one, two] = [7, 7].map(|handle| CqSink::new(Some(channel.clone()), None, handle));
        one.completed();
        two.completed();
        assert_eq!(read(&program), Some(7));
        assert_eq!(two.close(), (0, 0));
        assert_eq!((read(&program), one.close()), (None, (1, 0)));
    }

    #[test]
    fn events_beyond_the_socket_buffer_are_sent_when_there_is_room() {
        let (channel, program) = completion_channel();
        let cq = CqSink::new(Some(channel.clone()), None, 3);
        const EVENTS: u32 = 5000;
        for _ in 0..EVENTS {
            cq.completed();
        }
        let mut count = 0;
        while read(&program).is_some() {
            count += 1;
            channel.channel.resume();
        }
        assert_eq!((count, cq.close()), (EVENTS, (EVENTS, 0)));
    }

    #[test]
    fn port_events_without_room_are_sent_later_and_others_are_forgotten() {
        let has_unsent = Arc::new(AtomicBool::new(false));
        let (channel, program) = Channel::new(ChannelKind::Async, Arc::clone(&has_unsent)).unwrap();
        let mut raised = 0;
        while !has_unsent.load(Ordering::Relaxed) {
            channel.raise_of_port(1, EventType::LID_CHANGE);
            raised += 1;
        }
        assert_eq!(lock(&channel.events).queued.len(), 1);
        let sent = std::iter::from_fn(|| read(&program)).count();
        channel.resume();
        assert_eq!((sent, read(&program), read(&program)), (raised - 1, Some(1), None));
        assert!(lock(&channel.events).queued.is_empty());
    }

    #[test]
    fn destruction_keeps_the_events_of_the_port() {
        let (channel, program) = Channel::new(ChannelKind::Async, Arc::default()).unwrap();
        let object = ObjectSink::new(Some(channel.used(program.as_fd()).unwrap()), 7);
        channel.raise_of_port(1, EventType::PORT_ERR);
        object.raise(EventType::QP_FATAL);
        channel.raise_of_port(2, EventType::PORT_ACTIVE);
        assert_eq!(object.close(), 0);
        assert_eq!((read(&program), read(&program), read(&program)), (Some(1), Some(2), None));
    }

    #[test]
    fn channel_end_follows_the_queued_events() {
        let (channel, program) = Channel::new(ChannelKind::Async, Arc::default()).unwrap();
        channel.raise_of_port(1, EventType::DEVICE_FATAL);
        channel.end();
        let mut record = [0; 16];
        assert_eq!(rustix::io::read(&program, &mut record), Ok(16));
        assert_eq!(rustix::io::read(&program, &mut record), Ok(0));
        assert!(channel.is_closed());
    }

    #[test]
    fn full_channel_has_room_for_its_last_event() {
        let has_unsent = Arc::new(AtomicBool::new(false));
        let (channel, program) = Channel::new(ChannelKind::Async, Arc::clone(&has_unsent)).unwrap();
        let mut raised = 0;
        while !has_unsent.load(Ordering::Relaxed) {
            channel.raise_of_port(1, EventType::LID_CHANGE);
            raised += 1;
        }
        channel.raise_of_port(2, EventType::DEVICE_FATAL);
        channel.end();
        assert_eq!(std::iter::from_fn(|| read(&program)).collect::<Vec<_>>(), {
            let mut all = vec![1; raised];
            all.push(2);
            all
        });
        assert!(channel.is_closed());
    }

    #[test]
    fn channel_ends_behind_events_that_wait_for_room() {
        let (channel, program) = Channel::new(ChannelKind::Async, Arc::default()).unwrap();
        for _ in 0..5000 {
            channel.raise_of_port(1, EventType::LID_CHANGE);
        }
        channel.raise_of_port(2, EventType::DEVICE_FATAL);
        channel.end();
        let mut all = Vec::new();
        while !channel.is_closed() {
            all.extend(std::iter::from_fn(|| read(&program)));
            channel.resume();
        }
        all.extend(std::iter::from_fn(|| read(&program)));
        assert_eq!((all.len(), all.last()), (5001, Some(&2)));
    }

    #[test]
    fn destruction_after_the_end_keeps_the_events_of_the_port() {
        let (channel, program) = Channel::new(ChannelKind::Async, Arc::default()).unwrap();
        let object = ObjectSink::new(Some(channel.used(program.as_fd()).unwrap()), 7);
        object.raise(EventType::QP_FATAL);
        channel.raise_of_port(1, EventType::DEVICE_FATAL);
        channel.end();
        assert_eq!(object.close(), 0);
        assert_eq!((read(&program), read(&program)), (Some(7), Some(1)));
    }

    #[test]
    fn channel_knows_its_descriptor_and_notices_its_close() {
        let (channel, program) = Channel::new(ChannelKind::Async, Arc::default()).unwrap();
        let (other, other_program) = Channel::new(ChannelKind::Async, Arc::default()).unwrap();
        assert!(channel.is(program.as_fd()) && !channel.is(other_program.as_fd()));
        assert!(!other.is_closed());
        let used = other.used(other_program.as_fd()).unwrap();
        assert!(!other.is_abandoned());
        drop(other_program);
        assert!(other.is_abandoned() && !other.is_closed());
        drop(used);
        assert!(other.is_closed() && !channel.is_closed());
    }
}
