//! Async runtimes.
//!
//! Types that tasks wait on take a [`Runtime`] once, at set-up. It is used only when there is nothing
//! to return. [`Tokio`] (feature `tokio`) and [`AsyncIo`] (feature `async-io`) are those of this crate.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

#[cfg(feature = "async-io")]
mod async_io;
#[cfg(feature = "tokio")]
mod tokio;

#[cfg(feature = "async-io")]
pub use self::async_io::AsyncIo;
#[cfg(feature = "tokio")]
pub use self::tokio::Tokio;

/// An async runtime: what this crate needs of it.
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

/// A descriptor that is registered with a reactor.
pub trait Readable: fmt::Debug + Send + Sync {
    /// Waits until the descriptor is readable or has an error, and forgets that it was. The caller
    /// then reads until nothing is left, and calls this again before it sleeps. What arrives after
    /// this call makes the descriptor readable again.
    ///
    /// One waker is kept: that of the last call.
    ///
    /// # Errors
    /// The runtime has ended.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}
