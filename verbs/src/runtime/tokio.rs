use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::Handle;

use super::{Readable, Runtime};

/// The [runtime](Runtime) [tokio](https://docs.rs/tokio) (feature `tokio`), with I/O enabled, as that
/// of `#[tokio::main]`.
#[derive(Clone, Copy, Debug)]
pub struct Tokio;

fn current() -> io::Result<Handle> {
    Handle::try_current().map_err(io::Error::other)
}

impl Runtime for Tokio {
    fn register(&self, fd: Arc<OwnedFd>) -> io::Result<Box<dyn Readable>> {
        current()?;
        // SAFETY: an `Arc<OwnedFd>` always has the same descriptor, and keeps it open.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Box::new(registered?))
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        drop(current()?.spawn_blocking(work));
        Ok(())
    }
}

impl Readable for AsyncFd<Arc<OwnedFd>> {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // An error alone, as of a completion channel whose device was removed, counts as the end of the
        // write side.
        let ready = match self.poll_read_ready(cx) {
            Poll::Pending => self.poll_write_ready(cx),
            ready => ready,
        };
        ready.map_ok(|mut guard| guard.clear_ready())
    }
}
