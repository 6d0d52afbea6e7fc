use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::async_io::Async;

use super::{Readable, Runtime};

/// The [runtime](Runtime) of [async-io](::async_io), the reactor of smol and async-std (feature
/// `async-io`). It needs no set-up.
#[derive(Clone, Copy, Debug)]
pub struct AsyncIo;

impl Runtime for AsyncIo {
    fn register(&self, fd: Arc<OwnedFd>) -> io::Result<Box<dyn Readable>> {
        Ok(Box::new(Async::new_nonblocking(fd)?))
    }

    /// async-io has no threads for calls that block.
    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().name("bareverbs-blocking".into()).spawn(work).map(drop)
    }
}

impl Readable for Async<Arc<OwnedFd>> {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Async::poll_readable(self, cx)
    }
}
