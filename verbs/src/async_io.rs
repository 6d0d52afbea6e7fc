//! Async wrappers for [async-io](::async_io), the reactor of smol and async-std (feature
//! `async-io`).
//!
//! Each type wraps the type of the same name. Polling and posting are unchanged.
//!
//! ```no_run
//! use bareverbs::cq::{Cq, CqInit};
//! use bareverbs::{async_io, Device};
//!
//! # async fn completions() -> bareverbs::Result<()> {
//! let context = Device::find("rxe0")?.open()?;
//! let channel = context.create_comp_channel()?;
//! let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(16) })?;
//! let mut channel = async_io::CompChannel::new(channel)?;
//! loop {
//!     let completion = channel.completion(&mut cq).await?;
//!     println!("request {} is complete", completion.wr_id);
//! }
//! # }
//! ```
//!
//! The example `async_io_echo` of this crate uses two endpoints.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll};

use ::async_io::Async;
use bareverbs_provider::wake::in_thread;

use crate::event_fd::EventFd;
use crate::owned::PoolBuffer;
use crate::readiness::sealed::{self, Events};
use crate::tasks::{self as runtime, failed};
use crate::{AnyProvider, Result, readiness};

/// A [completion channel](crate::cq::CompChannel) that tasks of async-io wait on.
pub type CompChannel = runtime::CompChannel<Readiness>;

/// A stream of [asynchronous events](crate::AsyncEvents) that tasks of async-io wait for.
pub type AsyncEvents = runtime::AsyncEvents<Readiness>;

/// An [endpoint](crate::owned::Endpoint) that tasks of async-io wait on. With the feature `futures`, a
/// stream of its results.
pub type Endpoint<B = PoolBuffer, P = AnyProvider> = runtime::Endpoint<Readiness, B, P>;

/// The future of `Endpoint::wait`.
pub type Wait<'e, B = PoolBuffer, P = AnyProvider> = runtime::Wait<'e, Readiness, B, P>;

/// [Datagrams](crate::owned::Datagrams) that tasks of async-io wait for. With the feature `futures`, a
/// stream of those that are received.
pub type Datagrams<B = PoolBuffer, P = AnyProvider> = runtime::Datagrams<Readiness, B, P>;

/// A file descriptor that is registered with the reactor.
#[derive(Debug)]
pub struct Readiness(Async<Descriptor>);

#[derive(Debug)]
struct Descriptor(Arc<EventFd>);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl sealed::Readiness for Readiness {
    const RUNTIME: &'static str = "async-io";

    fn new(Events(events): Events<'_>) -> Result<Self> {
        Async::new_nonblocking(Descriptor(Arc::clone(events))).map(Self).map_err(failed)
    }

    async fn until<T: Send>(&self, mut take: impl FnMut() -> Result<Option<T>> + Send) -> Result<T> {
        loop {
            if let Some(taken) = take()? {
                return Ok(taken);
            }
            self.0.readable().await.map_err(failed)?;
        }
    }

    /// async-io has no threads for blocking calls.
    async fn blocking<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        in_thread("bareverbs-command", call).map_err(failed)?.await
    }

    fn poll_drain(&self, cx: &mut Context<'_>, drain: &mut dyn FnMut() -> Result<()>) -> Poll<Result<()>> {
        let Poll::Ready(ready) = self.0.poll_readable(cx) else { return Poll::Pending };
        ready.map_err(failed)?;
        Poll::Ready(drain())
    }
}

impl readiness::Readiness for Readiness {}
