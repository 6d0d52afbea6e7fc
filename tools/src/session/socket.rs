//! Streams of the tools: RDMA or TCP, interruptible by signals.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bareverbs::{Access, Buffer, RegionMut, RemoteRegion};
use bareverbs_rdmacm::stream::{RdmaListener, RdmaStream, StreamError, StreamOptions};
use rustix::event::PollFlags;
use rustix::net::sockopt;

use crate::signal::{Interrupted, Stop, Wake};

/// Attempts between two checks for a signal.
const SPINS: u32 = 1 << 12;

/// How long a blocking call of a stream waits between two checks for a signal.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How long the end of a stream waits for the peer's device.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How calls wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// They are repeated without a pause.
    Spin,
    /// Non-blocking calls, and `poll` of the descriptor.
    Poll,
    /// Blocking calls over RDMA. Over TCP as `Poll`.
    Block,
}

/// A connected stream.
pub(crate) struct Socket<'a> {
    inner: Inner,
    stop: &'a Stop,
    waiting: Waiting,
}

enum Inner {
    Rdma(RdmaStream),
    Tcp(TcpStream),
}

impl Inner {
    /// The stream over RDMA.
    fn stream(&self) -> io::Result<&RdmaStream> {
        match self {
            Self::Rdma(stream) => Ok(stream),
            Self::Tcp(_) => Err(ErrorKind::Unsupported.into()),
        }
    }
}

/// What a call waits for.
#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

impl<'a> Socket<'a> {
    pub(crate) fn rdma(stream: RdmaStream, waiting: Waiting, stop: &'a Stop) -> Self {
        if waiting == Waiting::Block {
            stream.set_read_timeout(Some(CHECK_INTERVAL));
            stream.set_write_timeout(Some(CHECK_INTERVAL));
        } else {
            stream.set_nonblocking(true);
        }
        Self { inner: Inner::Rdma(stream), stop, waiting }
    }

    fn tcp(stream: TcpStream, waiting: Waiting, stop: &'a Stop) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { inner: Inner::Tcp(stream), stop, waiting })
    }

    /// Connects to a server over TCP.
    pub(crate) fn connect_tcp(peer: SocketAddr, waiting: Waiting, stop: &'a Stop) -> io::Result<Self> {
        Self::tcp(TcpStream::connect(peer)?, waiting, stop)
    }

    /// Probes an idle connection: over RDMA at this interval, over TCP also at that of the system.
    pub(crate) fn set_keepalive(&self, idle: Duration) -> Result<()> {
        match &self.inner {
            Inner::Rdma(stream) => stream.set_keepalive(Some(idle))?,
            Inner::Tcp(stream) => {
                sockopt::set_tcp_keepidle(stream, idle)?;
                sockopt::set_socket_keepalive(stream, true)?;
            }
        }
        Ok(())
    }

    /// Sends all of `bytes`.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.attempt(Direction::Write, |inner| match inner {
                Inner::Rdma(stream) => stream.write(&bytes[sent..]),
                Inner::Tcp(stream) => stream.write(&bytes[sent..]),
            })?;
        }
        Ok(())
    }

    /// Receives at least 1 byte, unless the peer has ended the stream.
    pub(crate) fn recv_some(&mut self, into: &mut [u8]) -> Result<usize> {
        self.attempt(Direction::Read, |inner| match inner {
            Inner::Rdma(stream) => stream.read(into),
            Inner::Tcp(stream) => stream.read(into),
        })
    }

    /// Fills `into`. Returns `false` if the peer has ended the stream before the first byte.
    pub(crate) fn recv_or_end(&mut self, into: &mut [u8]) -> Result<bool> {
        let mut received = 0;
        while received < into.len() {
            match self.recv_some(&mut into[received..])? {
                0 if received == 0 => return Ok(false),
                0 => bail!("the peer has ended the stream after {received} of {} bytes", into.len()),
                len => received += len,
            }
        }
        Ok(true)
    }

    /// Fills `into`.
    pub(crate) fn recv(&mut self, into: &mut [u8]) -> Result<()> {
        if !self.recv_or_end(into)? {
            bail!("the peer has ended the stream");
        }
        Ok(())
    }

    /// Memory of the stream's protection domain, which the peer may write.
    pub(crate) fn expose(&self, len: usize) -> Result<RemoteRegion> {
        let memory = RegionMut::register(self.stream()?.pd(), Buffer::zeroed(len)?)?;
        Ok(memory.expose(Access::REMOTE_WRITE).map_err(|refused| refused.error)?)
    }

    /// Maps memory for writes of the peer at offset 0. Returns the number of the mapping.
    pub(crate) fn map(&mut self, memory: &RemoteRegion) -> Result<u32> {
        let mut mapping = 0;
        self.attempt(Direction::Write, |inner| {
            mapping = inner.stream()?.map(memory, 0)?;
            Ok(0)
        })?;
        Ok(mapping)
    }

    /// Frees the number of a mapping.
    pub(crate) fn unmap(&self, mapping: u32) {
        if let Inner::Rdma(stream) = &self.inner {
            stream.unmap(mapping);
        }
    }

    /// Writes all of `bytes` to the memory that the peer has mapped at offset 0.
    pub(crate) fn write_mapped(&mut self, bytes: &[u8]) -> Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            written += self.attempt(Direction::Write, |inner| {
                Ok(inner.stream()?.write_mapped(&bytes[written..], written as u64)?)
            })?;
        }
        Ok(())
    }

    /// Whether the peer has ended the stream, or sent bytes.
    pub(crate) fn has_ended(&self) -> Result<bool> {
        Ok(self.stream()?.is_readable()?)
    }

    fn stream(&self) -> io::Result<&RdmaStream> {
        self.inner.stream()
    }

    /// Ends the stream after all bytes were sent.
    pub(crate) fn end(self) -> Result<()> {
        match &self.inner {
            Inner::Rdma(stream) => self.end_rdma(stream),
            Inner::Tcp(stream) => match stream.shutdown(std::net::Shutdown::Both) {
                Err(error) if error.kind() != ErrorKind::NotConnected => Err(error.into()),
                _ => Ok(()),
            },
        }
    }

    fn end_rdma(&self, stream: &RdmaStream) -> Result<()> {
        stream.shutdown(std::net::Shutdown::Both)?;
        let (mut sent, end) = (stream.sent(), Instant::now() + END_LIMIT);
        loop {
            self.stop.check()?;
            let left = end.saturating_duration_since(Instant::now());
            match sent.wait_timeout(left.min(CHECK_INTERVAL)) {
                None if left > CHECK_INTERVAL => {}
                None => bail!("the peer has not acknowledged all bytes within {END_LIMIT:?}"),
                Some(ended) => return Ok(ended?),
            }
        }
    }

    fn attempt(
        &mut self,
        direction: Direction,
        mut call: impl FnMut(&mut Inner) -> io::Result<usize>,
    ) -> Result<usize> {
        loop {
            // A call that never waits is interruptible, too.
            self.stop.check()?;
            for _ in 0..SPINS {
                match call(&mut self.inner) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) if is_interval(&error) => break,
                    result => return Ok(result?),
                }
                if self.waiting != Waiting::Spin {
                    self.wait(direction)?;
                }
            }
        }
    }

    /// Sleeps until the call is worthwhile.
    fn wait(&self, direction: Direction) -> Result<()> {
        let (fd, events): (BorrowedFd<'_>, _) = match (&self.inner, direction) {
            // The descriptor of a stream is readable in both cases.
            (Inner::Rdma(stream), _) => (stream.as_fd(), PollFlags::IN),
            (Inner::Tcp(stream), Direction::Read) => (stream.as_fd(), PollFlags::IN),
            (Inner::Tcp(stream), Direction::Write) => (stream.as_fd(), PollFlags::OUT),
        };
        match self.stop.wait(fd, events, None)? {
            Wake::Stopped => Err(Interrupted.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Socket<'_> {
    fn drop(&mut self) {
        // After a signal, the end of the stream waits for nothing.
        if let (Err(_), Inner::Rdma(stream)) = (self.stop.check(), &self.inner) {
            stream.set_linger(Duration::ZERO);
        }
    }
}

/// Whether a blocking call has waited for the interval. A connection may also fail by a timeout.
fn is_interval(error: &io::Error) -> bool {
    error
        .get_ref()
        .and_then(|inner| inner.downcast_ref())
        .is_some_and(|inner| matches!(inner, StreamError::TimedOut { .. }))
}

/// A listener for streams.
pub(crate) enum Server {
    Rdma(Box<RdmaListener>),
    Tcp(TcpListener),
}

impl Server {
    /// Listens for RDMA connections.
    pub(crate) fn rdma(addr: SocketAddr, options: &StreamOptions) -> Result<Self> {
        Ok(Self::Rdma(Box::new(options.listen(addr)?)))
    }

    /// Listens for TCP connections.
    pub(crate) fn tcp(addr: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    /// Waits for a client. Returns its address, too.
    pub(crate) fn accept<'a>(&self, waiting: Waiting, stop: &'a Stop) -> Result<(Socket<'a>, SocketAddr)> {
        loop {
            stop.check()?;
            let fd = match self {
                Self::Rdma(listener) => {
                    if let Some(stream) = listener.accept().wait_timeout(Duration::ZERO).transpose()? {
                        let peer = stream.peer_addr();
                        return Ok((Socket::rdma(stream, waiting, stop), peer));
                    }
                    listener.as_fd()
                }
                Self::Tcp(listener) => match listener.accept() {
                    Ok((stream, peer)) => return Ok((Socket::tcp(stream, waiting, stop)?, peer)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => listener.as_fd(),
                    Err(error) => return Err(error.into()),
                },
            };
            if stop.wait(fd, PollFlags::IN, None)? == Wake::Stopped {
                return Err(Interrupted.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// A stream over TCP, and its other end.
    fn pair(stop: &Stop) -> (Socket<'_>, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = Socket::connect_tcp(listener.local_addr().unwrap(), Waiting::Poll, stop).unwrap();
        (socket, listener.accept().unwrap().0)
    }

    #[test]
    fn end_within_an_item_is_an_error() {
        let stop = Stop::new().unwrap();
        let (mut socket, mut other) = pair(&stop);
        other.write_all(b"onetw").unwrap();
        drop(other);
        let mut item = [0; 3];
        assert!(socket.recv_or_end(&mut item).unwrap());
        assert_eq!(&item, b"one");
        let error = socket.recv_or_end(&mut item).unwrap_err().to_string();
        assert_eq!(error, "the peer has ended the stream after 2 of 3 bytes");
        assert!(!socket.recv_or_end(&mut item).unwrap());
        assert_eq!(socket.recv(&mut item).unwrap_err().to_string(), "the peer has ended the stream");
    }

    #[test]
    fn keepalive_probes_tcp_after_the_idle_time() {
        let stop = Stop::new().unwrap();
        let (socket, _other) = pair(&stop);
        socket.set_keepalive(Duration::from_secs(7)).unwrap();
        let Inner::Tcp(stream) = &socket.inner else { panic!("the stream is over TCP") };
        assert!(sockopt::socket_keepalive(stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(stream).unwrap(), Duration::from_secs(7));
    }
}
