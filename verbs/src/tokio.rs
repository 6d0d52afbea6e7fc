//! Waiting in tasks of [tokio](https://docs.rs/tokio) (feature `tokio`).
//!
//! Each type wraps its namesake and needs a runtime whose I/O is enabled, as `#[tokio::main]` makes
//! it. Nothing else changes: queues are polled and requests posted as everywhere.
//!
//! ```no_run
//! use bareverbs::{Cq, CqInit, Device, tokio};
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
//! The program `tokio_echo` among the crate's examples plays with two endpoints.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::Handle;

use crate::event_fd::EventFd;
use crate::runtime::{adapters, failed};
use crate::{Error, Result};

/// A descriptor in the runtime's care.
struct Readiness(AsyncFd<Descriptor>);

struct Descriptor(Arc<EventFd>);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Readiness {
    fn new(events: &Arc<EventFd>) -> Result<Self> {
        if Handle::try_current().is_err() {
            return Err(Error::invalid(
                "tokio",
                "there is no runtime of tokio here: call this in one of its tasks",
            ));
        }
        let descriptor = Descriptor(Arc::clone(events));
        // SAFETY: the descriptor is open and the same for as long as the value that names it, which
        // owns a share of it.
        unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }
            .map(Self)
            .map_err(|error| failed(error.into()))
    }

    /// Calls `take` until it gives something, whenever there is something to read.
    async fn until<T>(&self, mut take: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        loop {
            // Only what comes after this is cleared below; so an event that comes after `take` is
            // not overlooked.
            let mut guard = self.0.readable().await.map_err(failed)?;
            if let Some(taken) = take()? {
                return Ok(taken);
            }
            guard.clear_ready();
        }
    }
}

adapters!("tokio");
