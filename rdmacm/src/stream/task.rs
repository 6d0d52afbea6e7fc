//! The traits of the runtimes, for tasks that read and write streams.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll};

use bareverbs_provider::wait::Caller;

use super::RdmaStream;
use super::session::Session;
use super::shared::Direction;

impl RdmaStream {
    fn poll_recv(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.shared
            .poll_by(Caller::Task(cx.waker()), Direction::Read, |session| session.read(into))
            .map_err(io::Error::from)
    }

    fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.shared
            .poll_by(Caller::Task(cx.waker()), Direction::Write, |session| session.write(bytes))
            .map_err(io::Error::from)
    }

    /// Ends the sending direction, and waits until the peer's device has acknowledged all bytes.
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.lock().session.shutdown(Shutdown::Write)?;
        self.shared
            .poll_by(Caller::Task(cx.waker()), Direction::Write, Session::flushed)
            .map_err(io::Error::from)
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncRead for RdmaStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let len = std::task::ready!(self.poll_recv(cx, into.initialize_unfilled()))?;
        into.advance(len);
        Poll::Ready(Ok(()))
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncWrite for RdmaStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(cx)
    }
}

#[cfg(feature = "async-io")]
impl futures_io::AsyncRead for RdmaStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_recv(cx, into)
    }
}

#[cfg(feature = "async-io")]
impl futures_io::AsyncWrite for RdmaStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(cx)
    }
}
