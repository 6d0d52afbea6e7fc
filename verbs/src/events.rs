//! Asynchronous events.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::DeviceFile;
use bareverbs_uapi::verbs_values::EventType;
use bareverbs_uapi::write::structs::AsyncEventDesc;

use crate::event_fd::{EventFd, EventStream, NextEvent, Record};
use crate::runtime::Runtime;
use crate::{Error, PortNum, Result};

/// The stream of a context's asynchronous events.
///
/// Its file descriptor works with `poll`, `epoll` and the reactors built on them, and is always
/// non-blocking. Clones share the stream: each event is read by one of them.
///
/// ```
/// use bareverbs::device::EventType;
/// use bareverbs::{AsyncEvent, Device};
///
/// let context = Device::find("soft0")?.open()?;
/// let events = context.async_events();
/// # let [(mut qp, _), _peer] = bareverbs_test_support::example::qps(&context.alloc_pd()?)?;
/// # qp.drain()?;
/// match events.next().wait()? {
///     AsyncEvent::Qp { event: EventType::SQ_DRAINED, user_data } => println!("queue pair {user_data} is drained"),
///     AsyncEvent::Port { event, port } => println!("port {port}: {event:?}"),
///     other => println!("{other:?}"),
/// }
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncEvents {
    events: EventStream,
}

impl AsyncEvents {
    pub(crate) fn create(file: &Arc<DeviceFile>) -> Result<Self> {
        let fd = command::async_event_alloc(file)
            .map_err(|refused| Error::kernel("open_device", "the asynchronous event descriptor", refused))?;
        Self::over_fd(file, fd)
    }

    pub(crate) fn over_fd(file: &Arc<DeviceFile>, fd: OwnedFd) -> Result<Self> {
        Ok(Self { events: EventStream::new(EventFd::new(fd, "asynchronous events", Arc::clone(file))?) })
    }

    /// A stream without events.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn for_test(file: &Arc<DeviceFile>) -> Self {
        let never = std::fs::File::open("/dev/null").expect("/dev/null");
        Self::over_fd(file, never.into()).expect("a descriptor")
    }

    /// Registers the stream with an async runtime, before the first await. Clones that are made later
    /// share the registration. Threads can wait as before.
    ///
    /// Several tasks may wait, also on clones. Each event is returned to one of them.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the calling thread has no reactor.
    /// - [`Error::System`]: the runtime refused the registration (`EEXIST`: a clone is registered).
    #[doc(alias = "tokio::AsyncEvents::new")]
    #[doc(alias = "async_io::AsyncEvents::new")]
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
    /// - [`Error::Invalid`]: a task awaits it, and the stream is not [attached](Self::attach).
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    #[doc(alias = "wait")]
    #[doc(alias = "wait_timeout")]
    pub fn next(&self) -> NextEvent<'_, AsyncEvent> {
        self.events.next()
    }

    /// Reads an event if there is one.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn try_wait(&self) -> Result<Option<AsyncEvent>> {
        Ok(self.events.fd().try_read::<AsyncEventDesc>()?.map(AsyncEvent::from))
    }
}

impl Record for AsyncEvent {
    type Desc = AsyncEventDesc;

    const WAIT: &'static str = "AsyncEvents::next";
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.fd().as_fd()
    }
}

/// An asynchronous event. No completion reports it.
///
/// It names its object by the `user_data` of the object's creation.
#[doc(alias = "ibv_async_event")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A CQ overran: completions are lost.
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    Cq {
        /// The event type.
        event: EventType,
        /// User data of the queue.
        user_data: u64,
    },
    /// A QP event: an error, `SQ_DRAINED`, a path migration, `COMM_EST` or `QP_LAST_WQE_REACHED`.
    Qp {
        /// The event type.
        event: EventType,
        /// User data of the queue pair.
        user_data: u64,
    },
    /// An SRQ failed or fell below its limit.
    Srq {
        /// The event type.
        event: EventType,
        /// User data of the queue.
        user_data: u64,
    },
    /// A WQ failed and takes no more frames.
    ///
    /// The mlx5 driver of 6.12 and 7.2 leaks a reference to a WQ whose event it has reported
    /// (`mlx5_ib_wq_event` of `qp.c`). Destroying that WQ never returns.
    #[doc(alias = "IBV_EVENT_WQ_FATAL")]
    Wq {
        /// The event type.
        event: EventType,
        /// User data of the queue.
        user_data: u64,
    },
    /// A port came up or went down, or its tables changed.
    Port {
        /// The event type.
        event: EventType,
        /// The port.
        port: PortNum,
    },
    /// The device failed or is being removed.
    #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
    Device {
        /// The event type.
        event: EventType,
    },
    /// An event type that is unknown to this crate.
    Other {
        /// The event type.
        event: EventType,
        /// User data of the object, or the port number.
        element: u64,
    },
}

impl AsyncEvent {
    /// The event type.
    #[must_use]
    pub fn event(&self) -> EventType {
        match *self {
            Self::Cq { event, .. }
            | Self::Qp { event, .. }
            | Self::Srq { event, .. }
            | Self::Wq { event, .. }
            | Self::Port { event, .. }
            | Self::Device { event }
            | Self::Other { event, .. } => event,
        }
    }
}

impl From<AsyncEventDesc> for AsyncEvent {
    fn from(record: AsyncEventDesc) -> Self {
        let (event, user_data) = (record.event_type, record.element);
        match event {
            EventType::CQ_ERR => Self::Cq { event, user_data },
            EventType::QP_FATAL
            | EventType::QP_REQ_ERR
            | EventType::QP_ACCESS_ERR
            | EventType::COMM_EST
            | EventType::SQ_DRAINED
            | EventType::PATH_MIG
            | EventType::PATH_MIG_ERR
            | EventType::QP_LAST_WQE_REACHED => Self::Qp { event, user_data },
            EventType::SRQ_ERR | EventType::SRQ_LIMIT_REACHED => Self::Srq { event, user_data },
            EventType::WQ_FATAL => Self::Wq { event, user_data },
            EventType::PORT_ACTIVE
            | EventType::PORT_ERR
            | EventType::LID_CHANGE
            | EventType::PKEY_CHANGE
            | EventType::SM_CHANGE
            | EventType::CLIENT_REREGISTER
            | EventType::GID_CHANGE
            | EventType::DEVICE_SPEED_CHANGE => match u8::try_from(user_data) {
                Ok(port) => Self::Port { event, port: PortNum(port) },
                Err(_) => Self::Other { event, element: user_data },
            },
            EventType::DEVICE_FATAL => Self::Device { event },
            event => Self::Other { event, element: user_data },
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(feature = "tokio", not(loom)))]
    use zerocopy::IntoBytes;

    use super::*;

    fn event(event_type: EventType, element: u64) -> AsyncEvent {
        AsyncEventDesc { element, event_type, ..AsyncEventDesc::zeroed() }.into()
    }

    #[test]
    fn async_event_contains_its_object_or_port() {
        let (qp, port) = (EventType::QP_ACCESS_ERR, EventType::PORT_ERR);
        assert_eq!(event(qp, 77), AsyncEvent::Qp { event: qp, user_data: 77 });
        let wq = EventType::WQ_FATAL;
        assert_eq!(event(wq, 6), AsyncEvent::Wq { event: wq, user_data: 6 });
        assert_eq!(event(port, 1), AsyncEvent::Port { event: port, port: PortNum(1) });
        assert_eq!(event(EventType::CQ_ERR, 5), AsyncEvent::Cq { event: EventType::CQ_ERR, user_data: 5 });
    }

    #[test]
    fn unknown_event_types_are_preserved() {
        let unknown = EventType(99);
        assert_eq!(event(unknown, 3), AsyncEvent::Other { event: unknown, element: 3 });
    }

    /// A reactor keeps one waker of a descriptor.
    #[cfg(all(feature = "tokio", not(loom)))]
    #[test]
    fn tasks_that_wait_for_one_stream_are_all_woken() {
        assert!(crate::testing::ends(|| {
            let null = std::fs::File::open("/dev/null").unwrap();
            // SAFETY: `/dev/null` fails every ioctl and mmap.
            let file = unsafe { DeviceFile::from_fd_unchecked(null.into(), 0) }.unwrap();
            let (read, write) = rustix::pipe::pipe().unwrap();
            let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(async {
                let mut events = AsyncEvents::over_fd(&Arc::new(file), read).unwrap();
                events.attach(crate::runtime::Tokio).unwrap();
                let clone = events.clone();
                let tasks =
                    [events, clone].map(|events| ::tokio::spawn(async move { events.next().await.unwrap() }));
                // Both wait before the first event arrives.
                ::tokio::task::yield_now().await;
                for element in [1, 2] {
                    let event_type = EventType::SQ_DRAINED;
                    let event = AsyncEventDesc { element, event_type, ..AsyncEventDesc::zeroed() };
                    rustix::io::write(&write, event.as_bytes()).unwrap();
                }
                let mut ended = Vec::new();
                for task in tasks {
                    let AsyncEvent::Qp { user_data, .. } = task.await.unwrap() else {
                        panic!("another event")
                    };
                    ended.push(user_data);
                }
                ended.sort_unstable();
                assert_eq!(ended, [1, 2]);
            });
        }));
    }

    #[cfg(all(feature = "tokio", not(loom)))]
    #[test]
    fn wait_that_is_dropped_keeps_no_waker() {
        struct Task;

        impl std::task::Wake for Task {
            fn wake(self: Arc<Self>) {}
        }

        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        let file = unsafe { DeviceFile::from_fd_unchecked(null.into(), 0) }.unwrap();
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let mut events = AsyncEvents::over_fd(&Arc::new(file), read).unwrap();
        events.attach(crate::runtime::Tokio).unwrap();
        let task = Arc::new(Task);
        let waker = std::task::Waker::from(Arc::clone(&task));
        let mut next = Box::pin(events.next());
        let mut context = std::task::Context::from_waker(&waker);
        assert!(std::future::Future::poll(next.as_mut(), &mut context).is_pending());
        drop((next, waker));
        assert_eq!(Arc::strong_count(&task), 1);
    }
}
