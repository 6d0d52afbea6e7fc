//! The stream.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use bareverbs::{Pd, RemoteRegion};

use super::session::Session;
use super::shared::{Direction, Shared};
use super::{Result, StreamError};
use crate::waiting::{Waiter, Waiting};

/// A byte stream over a reliable connection, used like [`std::net::TcpStream`]. It is
/// wire-compatible with rdma-core's rsocket.
///
/// Data goes by RDMA write straight into the ring of the peer, and wakes the peer by immediate data.
/// [`Read`] and [`Write`] are also implemented for `&RdmaStream`, so that one thread reads while
/// another one writes.
///
/// Reads, writes and the calls that return a [`Result`] block, as those of a `TcpStream`, with the
/// limits of [`set_read_timeout`](Self::set_read_timeout) and
/// [`set_write_timeout`](Self::set_write_timeout). In tasks, a stream with a
/// [runtime](super::StreamOptions::runtime) is used by the traits of the runtime: `AsyncRead` and
/// `AsyncWrite` of tokio, or of futures-io for async-io. One task may read while another one writes.
/// [`shutdown`](Self::shutdown) does not wait, and [`sent`](Self::sent) is awaited; `poll_shutdown` of the
/// trait does both.
///
/// # Progress
///
/// A stream has no background thread. The peer gets credits for more bytes while this side reads,
/// writes or waits. If the program does none of these, the peer's writes wait; no bytes are lost.
///
/// # Descriptor
///
/// [`AsFd`] gives a descriptor for `poll` and `epoll`. After a call returned
/// [`WouldBlock`](io::ErrorKind::WouldBlock), the descriptor becomes readable when the call may
/// succeed, also if the call is a write. It is never writable.
///
/// # Drop
///
/// Drop of the last handle ends both directions. It waits until the peer's device has acknowledged
/// what was written, at most for the time of [`set_linger`](Self::set_linger). Nothing sends the
/// rest afterwards. [`close`](Self::close) reports whether the peer's device has everything.
#[doc(alias = "rsocket")]
pub struct RdmaStream {
    pub(super) shared: Arc<Shared>,
}

/// The [readiness](RdmaStream::readiness) of a stream: the calls that do not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readiness {
    /// There are bytes to read, or the stream has ended.
    pub readable: bool,
    /// There is room for bytes, or the stream has ended.
    pub writable: bool,
}

impl RdmaStream {
    /// The local address.
    #[doc(alias = "rgetsockname")]
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local
    }

    /// The address of the peer.
    #[doc(alias = "rgetpeername")]
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.shared.peer
    }

    /// The protection domain of the stream: that of memory which the peer [may write](Self::map).
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// Another handle of the same stream.
    #[doc(alias = "try_clone")]
    #[must_use]
    pub fn handle(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }

    /// Makes calls return [`WouldBlock`](io::ErrorKind::WouldBlock) instead of waiting, on all
    /// handles.
    #[doc(alias = "rfcntl")]
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.shared.lock().nonblocking = nonblocking;
    }

    /// The time that a read waits at most, on all handles. `None`: without limit.
    #[doc(alias = "SO_RCVTIMEO")]
    pub fn set_read_timeout(&self, limit: Option<Duration>) {
        self.shared.lock().timeouts[Direction::Read as usize] = limit;
    }

    /// The time that a write waits at most, on all handles. `None`: without limit.
    #[doc(alias = "SO_SNDTIMEO")]
    pub fn set_write_timeout(&self, limit: Option<Duration>) {
        self.shared.lock().timeouts[Direction::Write as usize] = limit;
    }

    /// Probes the connection at this interval, on all handles. If the peer's host is unreachable, the
    /// probe fails, and calls fail with [`StreamError::Verbs`]. With
    /// [`RetryCount::MAX`](bareverbs::values::RetryCount::MAX), no probe fails on Soft-RoCE: set a
    /// read timeout. The interval is 1 ms or more. `None`, or 0: no probes, the default.
    ///
    /// A probe is an RDMA write of 0 bytes. It takes no credit, and the peer's program does not notice
    /// it. On iWARP it is a read of one byte, if the peer is a stream of this library: without an answer in 3
    /// intervals, the stream fails with [`Error::Unreachable`](crate::Error::Unreachable). A dead peer of
    /// librdmacm is noticed by TCP only. Probes are sent while a call or a task waits for the stream. The
    /// [descriptor](Self#descriptor) is readable at each interval; the next [`recv`](Self::recv),
    /// [`send`](Self::send) or [`readiness`](Self::readiness) sends the probe.
    ///
    /// # Errors
    /// [`StreamError::Cm`] with [`Error::Invalid`](crate::Error::Invalid): the interval is below 1 ms.
    /// With [`Error::System`](crate::Error::System): the process has too many descriptors.
    #[doc(alias = "SO_KEEPALIVE")]
    #[doc(alias = "TCP_KEEPIDLE")]
    pub fn set_keepalive(&self, interval: Option<Duration>) -> Result<()> {
        self.shared.set_keepalive(super::options::keepalive_interval(interval)?)
    }

    /// The time that drop waits at most for the acknowledgement of written bytes. Default: 1 second,
    /// and 0 with a [runtime](super::StreamOptions::runtime).
    #[doc(alias = "SO_LINGER")]
    pub fn set_linger(&self, limit: Duration) {
        self.shared.lock().linger = limit;
    }

    /// Whether [`recv`](Self::recv) and [`send`](Self::send) would return at once. If neither would,
    /// the [descriptor](Self#descriptor) becomes readable when one may.
    ///
    /// A program that waits for both directions needs this call: [`is_writable`](Self::is_writable)
    /// may handle what arrives after [`is_readable`](Self::is_readable), and the descriptor does not
    /// report it again.
    ///
    /// # Errors
    /// [`StreamError::Verbs`].
    #[doc(alias = "rpoll")]
    #[doc(alias = "rselect")]
    #[doc(alias = "repoll_wait")]
    pub fn readiness(&self) -> Result<Readiness> {
        let ready = |session: &mut Session| {
            let readiness = Readiness { readable: session.is_readable(), writable: session.is_writable() };
            Ok((readiness.readable || readiness.writable).then_some(readiness))
        };
        // Either direction: what arrives is handled for the other threads, too.
        let found = self.shared.attempt(None, ready)?;
        Ok(found.unwrap_or_default())
    }

    /// Whether [`recv`](Self::recv) would return at once. If not, the [descriptor](Self#descriptor)
    /// becomes readable when it may.
    ///
    /// # Errors
    /// [`StreamError::Verbs`].
    #[doc(alias = "rpoll")]
    pub fn is_readable(&self) -> Result<bool> {
        Ok(self.shared.attempt(None, |session| Ok(session.is_readable().then_some(())))?.is_some())
    }

    /// Whether [`send`](Self::send) would return at once. If not, the [descriptor](Self#descriptor)
    /// becomes readable when it may.
    ///
    /// # Errors
    /// [`StreamError::Verbs`].
    #[doc(alias = "rpoll")]
    pub fn is_writable(&self) -> Result<bool> {
        Ok(self.shared.attempt(None, |session| Ok(session.is_writable().then_some(())))?.is_some())
    }

    /// Reads bytes. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// - [`StreamError::TimedOut`], [`StreamError::WouldBlock`].
    /// - [`StreamError::Protocol`]: the peer has broken the protocol.
    /// - [`StreamError::Verbs`]: an operation of the queue pair has failed, for example because the
    ///   peer is unreachable.
    #[doc(alias = "rrecv")]
    #[doc(alias = "rread")]
    pub fn recv(&self, into: &mut [u8]) -> Result<usize> {
        self.shared.call(Direction::Read, |session| session.read(into))
    }

    /// Writes bytes from the beginning of `bytes`. Returns their number, at least 1 unless `bytes`
    /// is empty. The bytes were copied; the peer may not have them yet.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv), and:
    /// - [`StreamError::Disconnected`]: the peer has ended the stream.
    /// - [`StreamError::Shutdown`]: this side has shut down writing.
    #[doc(alias = "rsend")]
    #[doc(alias = "rwrite")]
    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        self.shared.call(Direction::Write, |session| session.write(bytes))
    }

    /// Shuts down a direction, or both. The peer reads the end of the stream after all bytes that
    /// were written.
    ///
    /// # Errors
    /// [`StreamError::Verbs`]. A stream that has ended is not an error.
    #[doc(alias = "rshutdown")]
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.shared.shutdown(how)
    }

    /// Waits until the peer's device has acknowledged all bytes that were written.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send), without those of time limits.
    #[doc(alias = "wait_sent")]
    pub fn sent(&self) -> Waiting<'_, Result<()>> {
        Waiting::new(move |waiter| flushed(&self.shared, waiter))
    }

    /// Ends both directions and waits until the peer's device has acknowledged all bytes that were
    /// written.
    ///
    /// # Errors
    /// As for [`sent`](Self::sent). The stream has ended in any case.
    #[doc(alias = "rclose")]
    pub fn close(self) -> Waiting<'static, Result<()>> {
        Waiting::new(move |waiter| async move {
            self.shutdown(Shutdown::Both)?;
            flushed(&self.shared, waiter).await
        })
    }

    /// The error that has ended the stream, if one has.
    #[doc(alias = "SO_ERROR")]
    #[doc(alias = "rgetsockopt")]
    #[must_use]
    pub fn error(&self) -> Option<StreamError> {
        self.shared.lock().session.error().cloned()
    }

    /// Lets the peer write `memory` directly, as the bytes from `offset` on. Returns the number of
    /// the mapping. The iomap entry is sent to the peer before any byte that is written later.
    ///
    /// The memory is of [`pd`](Self::pd): writes to memory of another protection domain end the
    /// stream. The peer's [`iomap_size`](super::StreamOptions::iomap_size) limits the number of
    /// mappings.
    ///
    /// ```no_run
    /// use bareverbs::{Access, Buffer, RegionMut};
    /// use bareverbs_rdmacm::stream::RdmaStream;
    ///
    /// fn receive(stream: &RdmaStream) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    ///     let memory = RegionMut::register(stream.pd(), Buffer::zeroed(1 << 20)?)?;
    ///     let memory = memory.expose(Access::REMOTE_WRITE)?;
    ///     stream.map(&memory, 0)?;
    ///     // The peer calls `write_mapped`, and then writes a byte to the stream.
    ///     stream.recv(&mut [0])?;
    ///     let mut bytes = vec![0; memory.len()];
    ///     memory.read(0, &mut bytes)?;
    ///     Ok(bytes)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`StreamError::IomapFull`], and the errors of [`send`](Self::send).
    #[doc(alias = "riomap")]
    pub fn map(&self, memory: &RemoteRegion, offset: u64) -> Result<u32> {
        let remote = memory.remote(0)?;
        // The kernel registers less than 4 GiB only if told so; the entry has 32 bits.
        let len = u32::try_from(memory.len()).unwrap_or(u32::MAX);
        self.shared.call(Direction::Write, |session| session.map(remote, len, offset))
    }

    /// Frees the number of a mapping for other memory. The peer is not notified, and its access does
    /// not end: [`revoke`](RemoteRegion::revoke) the memory for that.
    #[doc(alias = "riounmap")]
    pub fn unmap(&self, mapping: u32) {
        self.shared.lock().session.unmap(mapping);
    }

    /// Writes `bytes` to the memory that the peer has mapped at `offset`. The peer is not notified.
    /// They arrive before any byte that is sent later. Returns the number of bytes.
    ///
    /// # Errors
    /// [`StreamError::NotMapped`], and the errors of [`send`](Self::send).
    #[doc(alias = "riowrite")]
    pub fn write_mapped(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.shared.call(Direction::Write, |session| session.write_mapped(bytes, offset))
    }
}

/// Waits until the peer's device has acknowledged all sends.
fn flushed(shared: &Shared, waiter: Waiter) -> impl Future<Output = Result<()>> + Send + use<'_> {
    poll_fn(move |cx| shared.poll_by(waiter.caller(cx), Direction::Write, Session::flushed))
}

impl Read for &RdmaStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv(into)?)
    }
}

impl Write for &RdmaStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.send(bytes)?)
    }

    /// Does nothing: written bytes are on their way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for RdmaStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for RdmaStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for RdmaStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.ready().as_fd()
    }
}

impl fmt::Debug for RdmaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaStream")
            .field("local", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}
