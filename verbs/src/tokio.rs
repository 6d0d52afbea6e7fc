//! Async wrappers for [tokio](https://docs.rs/tokio) (feature `tokio`).
//!
//! Each type wraps the type of the same name. It needs a runtime with I/O enabled, such as that of
//! `#[tokio::main]`. Polling and posting are unchanged.
//!
//! ```no_run
//! use bareverbs::cq::{Cq, CqInit};
//! use bareverbs::{tokio, Device};
//!
//! # async fn completions() -> bareverbs::Result<()> {
//! let context = Device::find("rxe0")?.open()?;
//! let channel = context.create_comp_channel()?;
//! let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(16) })?;
//! let mut channel = tokio::CompChannel::new(channel)?;
//! loop {
//!     let completion = channel.completion(&mut cq).await?;
//!     println!("request {} is complete", completion.wr_id);
//! }
//! # }
//! ```
//!
//! The example `tokio_echo` of this crate uses two endpoints.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::Handle;

use crate::event_fd::EventFd;
use crate::owned::PoolBuffer;
use crate::readiness::sealed::{self, Events};
use crate::tasks::{self as runtime, failed};
use crate::{AnyProvider, Error, Result, readiness};

/// A [completion channel](crate::cq::CompChannel) that tasks of tokio wait on.
pub type CompChannel = runtime::CompChannel<Readiness>;

/// A stream of [asynchronous events](crate::AsyncEvents) that tasks of tokio wait for.
pub type AsyncEvents = runtime::AsyncEvents<Readiness>;

/// An [endpoint](crate::owned::Endpoint) that tasks of tokio wait on. With the feature `futures`, a stream
/// of its results.
pub type Endpoint<B = PoolBuffer, P = AnyProvider> = runtime::Endpoint<Readiness, B, P>;

/// The future of `Endpoint::wait`.
pub type Wait<'e, B = PoolBuffer, P = AnyProvider> = runtime::Wait<'e, Readiness, B, P>;

/// [Datagrams](crate::owned::Datagrams) that tasks of tokio wait for. With the feature `futures`, a
/// stream of those that are received.
pub type Datagrams<B = PoolBuffer, P = AnyProvider> = runtime::Datagrams<Readiness, B, P>;

/// A file descriptor that is registered with tokio.
#[derive(Debug)]
pub struct Readiness(AsyncFd<Descriptor>);

#[derive(Debug)]
struct Descriptor(Arc<EventFd>);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The runtime of the calling task.
fn current() -> Result<Handle> {
    Handle::try_current().map_err(|_| Error::invalid("tokio", "no tokio runtime: call this in a task of one"))
}

impl sealed::Readiness for Readiness {
    const RUNTIME: &'static str = "tokio";

    fn new(Events(events): Events<'_>) -> Result<Self> {
        current()?;
        let descriptor = Descriptor(Arc::clone(events));
        // SAFETY: the descriptor stays open and unchanged while `descriptor` exists, which holds an
        // `Arc` of it.
        unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }
            .map(Self)
            .map_err(|error| failed(error.into()))
    }

    async fn until<T: Send>(&self, mut take: impl FnMut() -> Result<Option<T>> + Send) -> Result<T> {
        loop {
            // `clear_ready` clears only readiness from before `take`, so an event that arrives
            // after `take` is not lost. A completion channel of a removed device is not readable: it has
            // an error.
            let mut guard = self.0.ready(Interest::READABLE | Interest::ERROR).await.map_err(failed)?;
            if let Some(taken) = take()? {
                return Ok(taken);
            }
            guard.clear_ready();
        }
    }

    async fn blocking<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        match current()?.spawn_blocking(call).await {
            Ok(called) => called,
            Err(error) => match error.try_into_panic() {
                Ok(payload) => std::panic::resume_unwind(payload),
                Err(error) => Err(failed(error.into())),
            },
        }
    }

    fn poll_drain(&self, cx: &mut Context<'_>, drain: &mut dyn FnMut() -> Result<()>) -> Poll<Result<()>> {
        // An error alone, as of a completion channel whose device was removed, counts as the end of the
        // write side.
        let ready = match self.0.poll_read_ready(cx) {
            Poll::Pending => self.0.poll_write_ready(cx),
            ready => ready,
        };
        let Poll::Ready(ready) = ready else { return Poll::Pending };
        let mut guard = ready.map_err(failed)?;
        drain()?;
        // It clears only readiness from before `drain`.
        guard.clear_ready();
        Poll::Ready(Ok(()))
    }
}

impl readiness::Readiness for Readiness {}
