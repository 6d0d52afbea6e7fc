//! Descriptors that are registered with an async runtime.

/// A descriptor that is registered with an async runtime. `tokio::Readiness` and
/// `async_io::Readiness` of this crate implement it. It is sealed.
pub trait Readiness: sealed::Readiness {}

pub(crate) mod sealed {
    use std::future::Future;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use crate::Result;
    use crate::event_fd::EventFd;

    /// The events of a descriptor, for the crate only.
    #[derive(Debug)]
    #[cfg_attr(
        not(any(feature = "async-io", feature = "tokio")),
        expect(dead_code, reason = "only runtimes read it")
    )]
    pub struct Events<'a>(pub(crate) &'a Arc<EventFd>);

    /// A file descriptor that is registered with a runtime.
    pub trait Readiness: Sized + Send + Sync + 'static {
        /// Name of the runtime.
        const RUNTIME: &'static str;

        /// Registers the descriptor.
        fn new(events: Events<'_>) -> Result<Self>;

        /// Calls `take` whenever the descriptor may be readable, until it returns a value. Several
        /// tasks can wait.
        fn until<T: Send>(
            &self,
            take: impl FnMut() -> Result<Option<T>> + Send,
        ) -> impl Future<Output = Result<T>> + Send;

        /// Runs a call that blocks beside the tasks of the runtime. If the future is dropped, the call
        /// ends by itself.
        fn blocking<T: Send + 'static>(
            call: impl FnOnce() -> Result<T> + Send + 'static,
        ) -> impl Future<Output = Result<T>> + Send;

        /// Waits until the descriptor is readable. Then it calls `drain`, which reads until the
        /// descriptor is empty, and forgets the readiness from before that call. One task can wait.
        fn poll_drain(&self, cx: &mut Context<'_>, drain: &mut dyn FnMut() -> Result<()>)
        -> Poll<Result<()>>;
    }
}

#[cfg(all(test, not(loom), any(feature = "async-io", feature = "tokio")))]
mod tests {
    use std::future::{Future, poll_fn};
    use std::os::fd::OwnedFd;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Poll;

    use bareverbs_provider::device::DeviceFile;
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::sealed::{Events, Readiness};
    use crate::event_fd::EventFd;
    use crate::testing::ends;

    /// A descriptor without events, which has an error and no other event once the returned one is
    /// closed: as that of a completion channel whose device is removed.
    fn removable() -> (Arc<EventFd>, OwnedFd) {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        let file = Arc::new(unsafe { DeviceFile::from_fd_unchecked(null.into(), 0) }.unwrap());
        let (other, full) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        while rustix::io::write(&full, &[0; 4096]).is_ok() {}
        (Arc::new(EventFd::new(full, "test events", file).unwrap()), other)
    }

    async fn removal_ends_waits<R: Readiness>() {
        let (events, other) = removable();
        let readiness = R::new(Events(&events)).unwrap();
        let mut until = pin!(readiness.until(|| Ok(events.is_closed().then_some(()))));
        assert!(poll_fn(|cx| Poll::Ready(until.as_mut().poll(cx))).await.is_pending());
        drop(other);
        until.await.unwrap();

        let (events, other) = removable();
        let readiness = R::new(Events(&events)).unwrap();
        let mut drain = || Ok(());
        assert!(poll_fn(|cx| Poll::Ready(readiness.poll_drain(cx, &mut drain))).await.is_pending());
        drop(other);
        poll_fn(|cx| readiness.poll_drain(cx, &mut drain)).await.unwrap();
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn removal_of_the_device_ends_the_waits_of_tokio() {
        assert!(ends(|| {
            let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(removal_ends_waits::<crate::tokio::Readiness>());
        }));
    }

    #[cfg(feature = "async-io")]
    #[test]
    fn removal_of_the_device_ends_the_waits_of_async_io() {
        assert!(ends(|| ::async_io::block_on(removal_ends_waits::<crate::async_io::Readiness>())));
    }
}
