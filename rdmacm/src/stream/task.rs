//! The stream for tasks: one implementation for all async runtimes.

use std::fmt;
use std::io;
use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bareverbs::{AnyProvider, Pd, Provider};

use super::session::Session;
use super::shared::{Direction, Shared};
use super::{RdmaListener, RdmaStream, Result, StreamOptions};
use crate::runtime::sealed::Readiness;
use crate::runtime::{Registration, Task, first, lookup};
use crate::steps::RESOLVE;
use crate::{Error, Name};

/// A descriptor that is registered with a runtime.
pub trait Reactor: sealed::Reactor {}

pub(crate) mod sealed {
    use super::*;

    pub trait Reactor: Sized + Send + Sync + Unpin {
        /// The runtime's way to wait for events of the connection manager.
        type Readiness: Readiness;

        /// Registers the descriptor.
        fn register(fd: OwnedFd) -> Result<Self>;

        /// Waits until the descriptor is readable. One waker is kept.
        fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    }
}

/// A [stream](super::RdmaStream) whose reads and writes are tasks' operations. The modules
/// [`tokio`](crate::tokio) and [`async_io`](crate::async_io) name it.
///
/// It implements the `AsyncRead` and `AsyncWrite` of its runtime. One task may read while another
/// one writes.
///
/// Shutting it down waits until the peer's device has acknowledged all bytes. Drop does not wait:
/// bytes that are not acknowledged may be lost.
pub struct AsyncStream<R, P: Provider = AnyProvider> {
    shared: Arc<Shared<P>>,
    reactor: R,
    /// That of the blocking stream.
    linger: Duration,
}

/// An error of the runtime.
fn refused(error: io::Error) -> Error {
    Error::System {
        what: "registering a stream with the runtime",
        errno: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO),
    }
}

impl<R: Reactor> AsyncStream<R> {
    /// Connects to a listener at `peer`. Of several addresses of a name, the first that accepts is
    /// used. Dropping the future ends the attempt. Otherwise the kernel gives up after about 70 to 100
    /// seconds on RoCE.
    ///
    /// # Errors
    /// As for [`RdmaStream::connect`] and [`AsyncStream::new`].
    #[doc(alias = "rconnect")]
    pub async fn connect(peer: impl Into<Name>, options: &StreamOptions) -> Result<Self> {
        options.check("AsyncStream::connect")?;
        let addrs = lookup::<R::Readiness>(peer.into()).await?;
        let stream = first(addrs, |addr| async move {
            let id = options.new_id()?;
            let registration = Registration::<R::Readiness>::new(id.channel())?;
            // The stream's own descriptor includes that of the channel.
            options.connect_with(&Task(&registration), id, addr, RESOLVE).await
        });
        Self::new(stream.await?)
    }
}

impl<R: Reactor, P: Provider> AsyncStream<R, P> {
    /// Registers the stream with the runtime of the calling task.
    ///
    /// # Errors
    /// [`StreamError::Cm`](super::StreamError::Cm) with [`Error::Invalid`]: there is no runtime. With
    /// [`Error::System`]: the runtime refused the descriptor, or `EMFILE`: the process has too many
    /// descriptors.
    pub fn new(stream: RdmaStream<P>) -> Result<Self> {
        let shared = Arc::clone(&stream.shared);
        let fd = shared.ready().try_clone().map_err(refused)?;
        let reactor = R::register(fd)?;
        // Tasks must not block their runtime.
        let linger = mem::replace(&mut shared.lock().linger, Duration::ZERO);
        Ok(Self { shared, reactor, linger })
    }

    /// Attempts until there is a result, and else has the task woken when another attempt is
    /// worthwhile.
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        mut attempt: impl FnMut(&mut Session<P>) -> Result<Option<T>>,
    ) -> Poll<io::Result<T>> {
        loop {
            // Before the attempt: another task that finds this one's bytes later wakes it.
            self.shared.tasks.set(direction, cx.waker());
            if let Some(result) = self.shared.attempt(Some(direction), &mut attempt)? {
                return Poll::Ready(Ok(result));
            }
            let both = Waker::from(Arc::clone(&self.shared.tasks));
            ready!(self.reactor.poll_readable(&mut Context::from_waker(&both)))?;
        }
    }

    fn poll_read_into(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll(cx, Direction::Read, |session| session.read(into))
    }

    fn poll_write_from(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(cx, Direction::Write, |session| session.write(bytes))
    }

    fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, Direction::Write, Session::flushed)
    }

    /// Ends the sending direction, and waits until the peer's device has acknowledged all bytes.
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.lock().session.shutdown(Shutdown::Write)?;
        self.poll_sent(cx)
    }
}

impl<R, P: Provider> AsyncStream<R, P> {
    /// The stream, for blocking use. It must not be used by tasks at the same time. Its drop waits for
    /// the peer's acknowledgement as before [`new`](Self::new).
    #[must_use]
    pub fn into_inner(self) -> RdmaStream<P> {
        self.shared.lock().linger = self.linger;
        RdmaStream { shared: self.shared }
    }

    /// The protection domain of the stream: that of memory which the peer
    /// [may write](RdmaStream::map).
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.shared.pd
    }

    /// The blocking interface of the same stream, for what needs no waiting: addresses, options,
    /// mappings.
    #[must_use]
    pub fn handle(&self) -> RdmaStream<P> {
        RdmaStream { shared: Arc::clone(&self.shared) }
    }
}

impl<R, P: Provider> AsFd for AsyncStream<R, P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.ready().as_fd()
    }
}

impl<R, P: Provider> fmt::Debug for AsyncStream<R, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncStream")
            .field("local", &self.shared.local)
            .field("peer", &self.shared.peer)
            .finish_non_exhaustive()
    }
}

/// A [listener](RdmaListener) whose streams tasks wait for.
pub struct AsyncListener<R: Reactor> {
    listener: RdmaListener,
    registration: Arc<Registration<R::Readiness>>,
}

impl<R: Reactor> AsyncListener<R> {
    /// Listens at an address, with default options. Port 0 lets the kernel choose.
    ///
    /// # Errors
    /// As for [`RdmaListener::bind`] and [`AsyncListener::new`].
    #[doc(alias = "rbind")]
    pub fn bind(addr: impl Into<SocketAddr>) -> Result<Self> {
        Self::new(RdmaListener::bind(addr.into())?)
    }

    /// Registers a listener with the runtime of the calling task.
    ///
    /// # Errors
    /// [`StreamError::Cm`](super::StreamError::Cm) with [`Error::Invalid`]: there is no runtime, or
    /// with [`Error::System`]: it refused the descriptor.
    pub fn new(listener: RdmaListener) -> Result<Self> {
        Ok(Self { registration: Registration::new(listener.id().channel())?, listener })
    }

    /// Waits for a stream. The future is cancel-safe: dropping it loses no stream.
    ///
    /// A request that is not one of a stream is rejected, and the wait continues.
    ///
    /// # Errors
    /// As for [`RdmaListener::accept_timeout`].
    #[doc(alias = "raccept")]
    pub async fn accept(&self) -> Result<AsyncStream<R>> {
        AsyncStream::new(self.listener.accept_with(&Task(&self.registration)).await?)
    }
}

impl<R: Reactor> Deref for AsyncListener<R> {
    type Target = RdmaListener;

    fn deref(&self) -> &RdmaListener {
        &self.listener
    }
}

impl<R: Reactor> fmt::Debug for AsyncListener<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncListener").field("local", &self.local_addr()).finish_non_exhaustive()
    }
}

#[cfg(feature = "tokio")]
mod tokio_impl {
    use std::pin::Pin;

    use tokio::io::unix::AsyncFd;
    use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

    use super::*;

    /// A descriptor that is registered with tokio.
    #[derive(Debug)]
    pub struct TokioReactor(AsyncFd<OwnedFd>);

    impl Reactor for TokioReactor {}

    impl sealed::Reactor for TokioReactor {
        type Readiness = crate::tokio::Readiness;

        fn register(fd: OwnedFd) -> Result<Self> {
            if tokio::runtime::Handle::try_current().is_err() {
                let reason = "no tokio runtime: call this in a task of one";
                return Err(Error::invalid("AsyncStream::new", reason).into());
            }
            // SAFETY: an `OwnedFd` is open, and the same, until it is dropped.
            #[expect(unsafe_code, reason = "tokio cannot see that the descriptor stays open")]
            let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
            Ok(Self(registered.map_err(|error| refused(error.into()))?))
        }

        fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            // The caller attempts after this, so that readiness which is cleared here is not lost.
            ready!(self.0.poll_read_ready(cx))?.clear_ready();
            Poll::Ready(Ok(()))
        }
    }

    impl<P: Provider> AsyncRead for AsyncStream<TokioReactor, P> {
        fn poll_read(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let len = ready!(self.poll_read_into(cx, into.initialize_unfilled()))?;
            into.advance(len);
            Poll::Ready(Ok(()))
        }
    }

    impl<P: Provider> AsyncWrite for AsyncStream<TokioReactor, P> {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_from(cx, bytes)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_end(cx)
        }
    }
}

#[cfg(feature = "tokio")]
pub use tokio_impl::TokioReactor;

#[cfg(feature = "async-io")]
mod async_io_impl {
    use std::pin::Pin;

    use async_io::Async;
    use futures_io::{AsyncRead, AsyncWrite};

    use super::*;

    /// A descriptor that is registered with async-io.
    #[derive(Debug)]
    pub struct AsyncIoReactor(Async<OwnedFd>);

    impl Reactor for AsyncIoReactor {}

    impl sealed::Reactor for AsyncIoReactor {
        type Readiness = crate::async_io::Readiness;

        fn register(fd: OwnedFd) -> Result<Self> {
            // The descriptor of an epoll instance has no blocking mode.
            Ok(Self(Async::new_nonblocking(fd).map_err(refused)?))
        }

        fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.poll_readable(cx)
        }
    }

    impl<P: Provider> AsyncRead for AsyncStream<AsyncIoReactor, P> {
        fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
            self.poll_read_into(cx, into)
        }
    }

    impl<P: Provider> AsyncWrite for AsyncStream<AsyncIoReactor, P> {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_from(cx, bytes)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.poll_end(cx)
        }
    }
}

#[cfg(feature = "async-io")]
pub use async_io_impl::AsyncIoReactor;
