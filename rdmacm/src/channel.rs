//! Event channels.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bareverbs_uapi::rdma_cm::EventType;
use bareverbs_uapi::rdma_cm::structs::{DestroyIdReq, EventResp};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::command::{self, CmFile};
use crate::event::{Event, EventKind, parse, parse_request};
use crate::id::CmId;
use crate::request::ConnectRequest;
use crate::{Error, Result, key};

/// A channel of the connection manager: identifiers are created on it, and it delivers their
/// events.
///
/// A channel is one open file. Clones are the same channel, and threads may share it: each event
/// goes to one reader. The file stays open while an identifier of the channel exists. Its
/// descriptor works with `poll`, `epoll` and the reactors built on them, also edge-triggered, and
/// is always non-blocking.
///
/// Events need no acknowledgement. Destroying an identifier waits for no reader; the kernel drops
/// its undelivered events, and [`EventChannel::get_event`] those that it reads afterwards.
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
    /// Readable while events were migrated to the file and no reader was woken: the kernel wakes
    /// none. Channels that nothing is migrated to while a reader waits have none.
    migrated: Option<OwnedFd>,
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
        let migrated = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::System { what: "creating an eventfd", errno })?;
        Ok(Self { inner: Arc::new(Inner { file, migrated: Some(migrated) }) })
    }

    /// A channel of one identifier. Nothing is migrated to it while a reader waits.
    pub(crate) fn private() -> Result<Self> {
        Ok(Self { inner: Arc::new(Inner { file: CmFile::open()?, migrated: None }) })
    }

    /// A channel without events, which refuses commands.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self { inner: Arc::new(Inner { file: CmFile::for_test(), migrated: None }) }
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
    pub fn get_event(&self) -> Result<Option<Event>> {
        while let Some(resp) = command::get_event(self.file())? {
            if let Some(event) = self.dispatch(&resp) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn dispatch(&self, resp: &EventResp) -> Option<Event> {
        let is_request = resp.event == EventType::CONNECT_REQUEST;
        let Some((key, info)) = key::find(resp.uid) else {
            if is_request {
                // The event was delivered, so destroying the listener did not destroy the child. If
                // the kernel refuses, the child ends with the file.
                let request = DestroyIdReq { id: resp.id, ..DestroyIdReq::zeroed() };
                let _ = command::destroy_id(self.file(), request);
            }
            return None;
        };
        let kind = if is_request {
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
    /// As for [`EventChannel::get_event`].
    #[doc(alias = "rdma_get_cm_event")]
    pub fn wait(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.wait_until(None)? {
                return Ok(event);
            }
        }
    }

    /// Blocks until an event arrives, at most for `timeout`; `None` if none arrived.
    ///
    /// # Errors
    /// As for [`EventChannel::get_event`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Event>> {
        // A timeout that overflows `Instant` means no timeout.
        match Instant::now().checked_add(timeout) {
            Some(end) => self.wait_until(Some(end)),
            None => self.wait().map(Some),
        }
    }

    /// Waits for an event, at most until `end`.
    pub(crate) fn wait_until(&self, end: Option<Instant>) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.get_event()? {
                return Ok(Some(event));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let migrated = self.inner.migrated.as_ref();
            let file = PollFd::new(self.file(), PollFlags::IN);
            let waited = match migrated {
                Some(migrated) => {
                    let fds = &mut [file, PollFd::new(migrated, PollFlags::IN)];
                    rustix::event::poll(fds, left.as_ref())
                }
                None => rustix::event::poll(&mut [file], left.as_ref()),
            };
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::System { what: "waiting for events", errno }),
            }
            self.forget_migration();
        }
    }

    /// Wakes readers that wait, because the kernel does not when it moves events to the file.
    pub(crate) fn wake(&self) {
        if let Some(migrated) = &self.inner.migrated {
            // It fails only if the counter is at its maximum, and then readers are awake.
            let _ = rustix::io::write(migrated, &1_u64.to_ne_bytes());
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
            for fd in [self.file().as_fd(), migrated.as_fd()] {
                add(&combined, fd, EventData::new_u64(0), EventFlags::IN)?;
            }
            Ok(combined)
        };
        combine().map(Some).map_err(|errno| Error::System { what: "creating an epoll instance", errno })
    }

    /// Ends the readiness of [`EventChannel::wake`]. The caller reads events afterwards.
    pub(crate) fn forget_migration(&self) {
        if let Some(migrated) = &self.inner.migrated {
            // It fails if there was no migration.
            let _ = rustix::io::read(migrated, &mut [0_u8; 8]);
        }
    }
}

impl AsFd for EventChannel {
    /// The descriptor is readable while an event waits. When an identifier with undelivered events
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
