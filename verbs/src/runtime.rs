//! Async runtimes.
//!
//! Types that tasks wait on take a [`Runtime`] once, at set-up. It is used only when there is nothing
//! to return. [`Tokio`] (feature `tokio`) and [`AsyncIo`] (feature `async-io`) are those of this crate.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;

use crate::error::{Error, Result};

#[cfg(feature = "async-io")]
mod async_io;
#[cfg(feature = "tokio")]
mod tokio;

#[cfg(feature = "async-io")]
pub use self::async_io::AsyncIo;
#[cfg(feature = "tokio")]
pub use self::tokio::Tokio;

/// The interface of an async runtime: readiness of descriptors, and calls that block.
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// Registers a non-blocking descriptor with the reactor, for reading.
    ///
    /// # Errors
    /// The calling thread has no reactor (`tokio` outside its tasks), or the kernel refused the
    /// registration.
    fn register(&self, fd: Arc<OwnedFd>) -> io::Result<Box<dyn Readable>>;

    /// Runs `work`, which blocks, beside the tasks.
    ///
    /// # Errors
    /// No thread could be started, or the runtime has ended.
    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

impl Runtime for Arc<dyn Runtime> {
    fn register(&self, fd: Arc<OwnedFd>) -> io::Result<Box<dyn Readable>> {
        (**self).register(fd)
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        (**self).blocking(work)
    }
}

/// A descriptor that is registered with a reactor.
pub trait Readable: fmt::Debug + Send + Sync {
    /// Waits until the descriptor is readable or has an error, and clears the readiness. The caller
    /// then reads until nothing is left, and calls this again before it sleeps. What arrives after
    /// this call makes the descriptor readable again.
    ///
    /// One waker is kept: that of the last call.
    ///
    /// # Errors
    /// The runtime has ended.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// A descriptor of events that is registered with a runtime.
#[derive(Debug)]
pub(crate) struct Registration {
    runtime: Arc<dyn Runtime>,
    readable: Box<dyn Readable>,
}

impl Registration {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, fd: &Arc<OwnedFd>) -> Result<Self> {
        let readable = runtime.register(Arc::clone(fd)).map_err(|error| failed("attach", &error))?;
        Ok(Self { runtime, readable })
    }

    pub(crate) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    /// One waker is kept: that of the last call.
    pub(crate) fn poll_readable(&self, waker: &Waker) -> Poll<Result<()>> {
        let readable = self.readable.poll_readable(&mut Context::from_waker(waker));
        readable.map_err(|error| failed("await", &error))
    }
}

/// The error of a runtime. Without an errno, it says that there is no reactor.
pub(crate) fn failed(verb: &'static str, error: &io::Error) -> Error {
    match Errno::from_io_error(error) {
        Some(errno) => Error::system("waiting for events in an async task", errno),
        None => Error::invalid(verb, error.to_string()),
    }
}

/// The error of an await without a runtime.
#[cold]
pub(crate) fn not_attached(verb: &'static str) -> Error {
    Error::invalid(verb, "an await needs an async runtime: call `attach` first")
}

#[cfg(all(test, not(loom), any(feature = "async-io", feature = "tokio")))]
mod tests {
    use std::future::poll_fn;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;
    use crate::testing::ends;

    /// A descriptor without events, which has an error and no other event once the returned one is
    /// closed: as that of a completion channel whose device is removed.
    fn removable() -> (Arc<OwnedFd>, OwnedFd) {
        let (other, full) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        while rustix::io::write(&full, &[0; 4096]).is_ok() {}
        (Arc::new(full), other)
    }

    async fn removal_ends_waits(runtime: impl Runtime) {
        let (fd, other) = removable();
        let readable = runtime.register(fd).unwrap();
        poll_fn(|cx| {
            assert!(readable.poll_readable(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(other);
        poll_fn(|cx| readable.poll_readable(cx)).await.unwrap();
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn removal_of_the_device_ends_the_waits_of_tokio() {
        assert!(ends(|| {
            let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(removal_ends_waits(Tokio));
        }));
    }

    #[cfg(feature = "async-io")]
    #[test]
    fn removal_of_the_device_ends_the_waits_of_async_io() {
        assert!(ends(|| ::async_io::block_on(removal_ends_waits(AsyncIo))));
    }

    async fn readiness_is_returned_once(runtime: impl Runtime) {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let read = Arc::new(read);
        let readable = runtime.register(Arc::clone(&read)).unwrap();
        for _ in 0..2 {
            rustix::io::write(&write, &[7]).unwrap();
            poll_fn(|cx| readable.poll_readable(cx)).await.unwrap();
            assert_eq!(rustix::io::read(&read, &mut [0; 8]), Ok(1));
            poll_fn(|cx| {
                assert!(readable.poll_readable(cx).is_pending());
                Poll::Ready(())
            })
            .await;
        }
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn readiness_is_returned_once_by_tokio() {
        assert!(ends(|| {
            let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(readiness_is_returned_once(Tokio));
        }));
    }

    #[cfg(feature = "async-io")]
    #[test]
    fn readiness_is_returned_once_by_async_io() {
        assert!(ends(|| ::async_io::block_on(readiness_is_returned_once(AsyncIo))));
    }

    /// Runs work that ends after the call that has started it.
    async fn blocking_work_does_not_block_its_caller(runtime: impl Runtime) {
        let ((go, wait), (done, ended)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let work = move || done.send(wait.recv().unwrap()).unwrap();
        runtime.blocking(Box::new(work)).unwrap();
        go.send(7).unwrap();
        assert_eq!(ended.recv(), Ok(7));
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn blocking_work_does_not_block_a_task_of_tokio() {
        assert!(ends(|| {
            let runtime = ::tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(blocking_work_does_not_block_its_caller(Tokio));
        }));
    }

    #[cfg(feature = "async-io")]
    #[test]
    fn blocking_work_does_not_block_a_task_of_async_io() {
        assert!(ends(|| ::async_io::block_on(blocking_work_does_not_block_its_caller(AsyncIo))));
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn registration_outside_a_runtime_names_the_missing_reactor() {
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        let file = unsafe { bareverbs_provider::device::DeviceFile::from_fd_unchecked(file.into(), 0) };
        let mut channel = crate::cq::CompChannel::for_test(&Arc::new(file.unwrap()));
        let refused = channel.attach(Tokio).unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "attach", .. }), "{refused}");
        assert!(refused.to_string().contains("reactor"), "{refused}");
    }
}
