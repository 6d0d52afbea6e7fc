//! Async wrappers for [async-io](::async_io), the reactor of smol and async-std (feature
//! `async-io`).
//!
//! Each type wraps the type of the same name. Polling and posting are unchanged.
//!
//! ```no_run
//! use bareverbs::{Cq, CqInit, Device, async_io};
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

use ::async_io::Async;

use crate::Result;
use crate::event_fd::EventFd;
use crate::runtime::{adapters, failed};

/// A file descriptor that is registered with the reactor.
struct Readiness(Async<Descriptor>);

struct Descriptor(Arc<EventFd>);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Readiness {
    fn new(events: &Arc<EventFd>) -> Result<Self> {
        Async::new_nonblocking(Descriptor(Arc::clone(events))).map(Self).map_err(failed)
    }

    /// Calls `take` whenever the descriptor is readable, until `take` returns a value.
    async fn until<T>(&self, mut take: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        loop {
            if let Some(taken) = take()? {
                return Ok(taken);
            }
            self.0.readable().await.map_err(failed)?;
        }
    }
}

adapters!("async-io");
