//! Datagram sockets over RDMA or UDP, interruptible by signals.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bareverbs_rdmacm::datagram::{DatagramError, DatagramSocket, DatagramSocketOptions};
use rustix::event::PollFlags;

use super::LONGEST;
use crate::cli::udpong::Udpong;
use crate::signal::{Interrupted, Stop, Timeout, Wake};

/// Bytes of the buffers, unless `-B` sets them.
const BUFFER: u32 = 1 << 19;

/// A bound socket.
pub(super) struct Socket<'a> {
    inner: Inner,
    stop: &'a Stop,
    /// Whether calls poll, and do not sleep.
    spin: bool,
}

enum Inner {
    Rdma(Box<DatagramSocket>),
    Udp(UdpSocket),
}

impl<'a> Socket<'a> {
    /// Receives at an address.
    pub(super) fn bind(addr: SocketAddr, options: &Udpong, stop: &'a Stop) -> Result<Self> {
        let inner = if options.uses_sockets() {
            let udp = UdpSocket::bind(addr).with_context(|| format!("cannot bind to {addr}"))?;
            udp.set_nonblocking(true)?;
            Inner::Udp(udp)
        } else {
            let bytes = options.buffer.unwrap_or(BUFFER) as usize;
            let sizes = DatagramSocketOptions::default().send_buffer(bytes).recv_buffer(bytes);
            let socket = sizes.bind(addr).with_context(|| format!("cannot bind to {addr}"))?;
            Inner::Rdma(Box::new(socket))
        };
        Ok(Self { inner, stop, spin: options.spins() })
    }

    /// Sends to a server, and receives from it.
    pub(super) fn connect(server: SocketAddr, options: &Udpong, stop: &'a Stop) -> Result<Self> {
        let any = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let local = options.device.address().unwrap_or(any);
        let mut socket = Self::bind((local, 0).into(), options, stop)?;
        match &mut socket.inner {
            Inner::Rdma(inner) => inner.connect(server)?,
            Inner::Udp(inner) => inner.connect(server)?,
        }
        Ok(socket)
    }

    /// The longest message to the server in bytes.
    pub(super) fn max_message(&mut self) -> Result<usize> {
        match &mut self.inner {
            Inner::Rdma(inner) => {
                let server = inner.peer_addr().context("the socket is connected")?;
                Ok(inner.max_message(server)?)
            }
            Inner::Udp(_) => Ok(LONGEST),
        }
    }

    /// Sends a message to the server.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<()> {
        self.attempt(PollFlags::OUT, |inner| match inner {
            Inner::Rdma(inner) => inner.send(message).wait_timeout(Duration::ZERO).transpose(),
            Inner::Udp(inner) => of_udp(inner.send(message).map(drop)),
        })
    }

    /// Sends a message to a client.
    pub(super) fn send_to(&mut self, message: &[u8], client: SocketAddr) -> Result<()> {
        self.attempt(PollFlags::OUT, |inner| match inner {
            Inner::Rdma(inner) => inner.send_to(message, client).wait_timeout(Duration::ZERO).transpose(),
            Inner::Udp(inner) => of_udp(inner.send_to(message, client).map(drop)),
        })
    }

    /// Receives a message.
    pub(super) fn recv_from(&mut self, into: &mut [u8]) -> Result<(usize, SocketAddr)> {
        self.attempt(PollFlags::IN, |inner| inner.recv_from(into))
    }

    /// Receives a message within a time limit, for which it sleeps. `None`: there was none.
    pub(super) fn recv(&mut self, into: &mut [u8], limit: Duration) -> Result<Option<usize>> {
        let end = Instant::now() + limit;
        loop {
            self.stop.check()?;
            if let Some((len, _)) = self.inner.recv_from(into)? {
                return Ok(Some(len));
            }
            let mut timeout = Timeout::after(end.saturating_duration_since(Instant::now()));
            match self.stop.wait(self.inner.as_fd(), PollFlags::IN, Some(&mut timeout))? {
                Wake::Stopped => return Err(Interrupted.into()),
                Wake::TimedOut => return Ok(None),
                Wake::Ready => {}
            }
        }
    }

    fn attempt<T>(
        &mut self,
        events: PollFlags,
        mut call: impl FnMut(&mut Inner) -> Result<Option<T>, DatagramError>,
    ) -> Result<T> {
        loop {
            // A call that never waits is interruptible, too.
            self.stop.check()?;
            if let Some(result) = call(&mut self.inner)? {
                return Ok(result);
            }
            if !self.spin {
                // The descriptor of an RDMA socket is readable in both cases.
                let events = if matches!(self.inner, Inner::Rdma(_)) { PollFlags::IN } else { events };
                if self.stop.wait(self.inner.as_fd(), events, None)? == Wake::Stopped {
                    return Err(Interrupted.into());
                }
            }
        }
    }
}

impl Inner {
    /// Receives a message, if there is one.
    fn recv_from(&mut self, into: &mut [u8]) -> Result<Option<(usize, SocketAddr)>, DatagramError> {
        match self {
            Self::Rdma(inner) => inner.recv_from(into).wait_timeout(Duration::ZERO).transpose(),
            Self::Udp(inner) => of_udp(inner.recv_from(into)),
        }
    }
}

impl AsFd for Inner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Rdma(inner) => inner.as_fd(),
            Self::Udp(inner) => inner.as_fd(),
        }
    }
}

/// The result of a call of a UDP socket. `None`: it would wait.
fn of_udp<T>(result: std::io::Result<T>) -> Result<Option<T>, DatagramError> {
    match result {
        Ok(result) => Ok(Some(result)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
            Err(bareverbs_rdmacm::Error::System { what: "the UDP socket", errno }.into())
        }
    }
}
