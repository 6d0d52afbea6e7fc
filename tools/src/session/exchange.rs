//! The exchange of two sides over TCP, before and after a run.
//!
//! Its items have a fixed length and no header. The C programs read an item with one `read`, so each
//! is written with one call.

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, bind, connect, listen, recv,
    send, socket_with, sockopt,
};

use crate::signal::{Interrupted, Stop, Timeout, Wake};

/// Timeout of each step of the exchange. A server waits for its client without limit.
pub(crate) const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Added to the timeout for each further queue pair, which the peer connects between the steps.
pub(crate) const TIMEOUT_PER_QP: Duration = Duration::from_millis(100);

/// Added to the timeout for each MiB of messages, whose memory the peer fills and registers between the
/// steps. Guests without KVM are slow.
pub(crate) const TIMEOUT_PER_MIB: Duration = Duration::from_secs(2);

/// Why the exchange failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("cannot listen on TCP port {port}")]
    Listen { port: u16, source: io::Error },
    #[error("cannot accept a client: {0}")]
    Accept(io::Error),
    #[error("no address for host {host}")]
    NoAddress { host: String, source: io::Error },
    #[error("cannot connect to {host}:{port}:{attempts}")]
    Connect { host: String, port: u16, attempts: String },
    #[error("cannot set keepalive on the connection: {0}")]
    KeepAlive(io::Error),
    #[error("cannot write {}", what.name)]
    Write { what: Item, source: io::Error },
    #[error("only {written} of the {} bytes of {} were written", what.len, what.name)]
    ShortWrite { what: Item, written: usize },
    #[error("cannot read {}", what.name)]
    Read { what: Item, source: io::Error },
    #[error("the peer closed the connection after {received} of the {} bytes of {}", what.len, what.name)]
    Closed { what: Item, received: usize },
    #[error("timeout after {received} of the {} bytes of {}: the peer sent nothing for {}", what.len, what.name, seconds(*timeout))]
    Stalled { what: Item, received: usize, timeout: Duration },
    #[error("the peer sent more than the {} bytes of {}", what.len, what.name)]
    TooMuch { what: Item },
    #[error("the exchange with the peer was interrupted")]
    Interrupted(#[from] Interrupted),
}

/// A part of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// What error messages call it.
    pub(crate) name: &'static str,
    /// Bytes.
    pub(crate) len: usize,
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f32())
}

/// A server's socket, on every address of the host.
#[derive(Debug)]
pub(crate) struct Server {
    socket: OwnedFd,
}

impl Server {
    /// Listens for IPv6 and IPv4 clients, or for IPv4 only if the kernel has no IPv6.
    pub(crate) fn listen(port: u16) -> Result<Self, ExchangeError> {
        Self::listen_for(port, 1)
    }

    /// `listen` with a backlog of `clients`.
    pub(crate) fn listen_for(port: u16, clients: i32) -> Result<Self, ExchangeError> {
        let open = |address: SocketAddr| -> rustix::io::Result<OwnedFd> {
            let socket = socket_for(&address)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            if address.is_ipv6() {
                sockopt::set_ipv6_v6only(&socket, false)?;
            }
            bind(&socket, &address)?;
            listen(&socket, clients)?;
            Ok(socket)
        };
        open((Ipv6Addr::UNSPECIFIED, port).into())
            .or_else(|errno| match errno {
                Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL => open((Ipv4Addr::UNSPECIFIED, port).into()),
                other => Err(other),
            })
            .map(|socket| Self { socket })
            .map_err(|errno| ExchangeError::Listen { port, source: errno.into() })
    }

    /// The port that the server listens on.
    #[cfg(test)]
    pub(crate) fn port(&self) -> u16 {
        let address = rustix::net::getsockname(&self.socket).unwrap();
        SocketAddr::try_from(address).unwrap().port()
    }

    /// Waits for a client.
    pub(crate) fn accept<'s>(&self, stop: &'s Stop) -> Result<Peer<'s>, ExchangeError> {
        loop {
            if let Some(peer) = self.accept_within(stop, None)? {
                return Ok(peer);
            }
        }
    }

    /// Waits for a client, up to a limit.
    pub(crate) fn accept_within<'s>(
        &self,
        stop: &'s Stop,
        limit: Option<Duration>,
    ) -> Result<Option<Peer<'s>>, ExchangeError> {
        let mut timeout = limit.map(Timeout::after);
        loop {
            let woken = stop.wait(self.socket.as_fd(), PollFlags::IN, timeout.as_mut());
            match woken.map_err(ExchangeError::Accept)? {
                Wake::Stopped => return Err(Interrupted.into()),
                Wake::TimedOut => return Ok(None),
                Wake::Ready => {}
            }
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => return Ok(Some(Peer { socket, stop, timeout: EXCHANGE_TIMEOUT })),
                // The client has already closed the connection.
                Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                Err(errno) => return Err(ExchangeError::Accept(errno.into())),
            }
        }
    }
}

/// The connection to the peer.
#[derive(Debug)]
pub(crate) struct Peer<'s> {
    socket: OwnedFd,
    stop: &'s Stop,
    /// Of each step.
    pub(crate) timeout: Duration,
}

impl<'s> Peer<'s> {
    /// A peer on `socket`, which is non-blocking.
    #[cfg(feature = "test-utils")]
    pub(crate) fn from_socket(socket: OwnedFd, stop: &'s Stop, timeout: Duration) -> Self {
        Self { socket, stop, timeout }
    }

    /// Connects to the first address of the host that answers.
    pub(crate) fn connect(host: &str, port: u16, stop: &'s Stop) -> Result<Self, ExchangeError> {
        let addresses = (host, port)
            .to_socket_addrs()
            .map_err(|source| ExchangeError::NoAddress { host: host.into(), source })?;
        let mut attempts = String::new();
        let mut refused = false;
        for address in addresses {
            match Self::connect_to(address, stop, EXCHANGE_TIMEOUT) {
                Ok(Some(socket)) => return Ok(Self { socket, stop, timeout: EXCHANGE_TIMEOUT }),
                Ok(None) => return Err(Interrupted.into()),
                Err(error) => {
                    refused |= error.kind() == io::ErrorKind::ConnectionRefused;
                    let between = if attempts.is_empty() { ' ' } else { ';' };
                    let _ = write!(attempts, "{between}{}: {error}", address.ip());
                }
            }
        }
        if refused {
            attempts += ": no server waits there: start it first";
        }
        Err(ExchangeError::Connect { host: host.into(), port, attempts })
    }

    fn connect_to(address: SocketAddr, stop: &Stop, timeout: Duration) -> io::Result<Option<OwnedFd>> {
        let socket = socket_for(&address)?;
        match connect(&socket, &address) {
            Ok(()) => return Ok(Some(socket)),
            Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        match stop.wait(socket.as_fd(), PollFlags::OUT, Some(&mut Timeout::after(timeout)))? {
            Wake::Stopped => Ok(None),
            Wake::TimedOut => {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("no response for {}", seconds(timeout))))
            }
            Wake::Ready => {
                sockopt::socket_error(&socket)??;
                Ok(Some(socket))
            }
        }
    }

    /// The address of the other end, if the socket has one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        rustix::net::getpeername(&self.socket).ok().flatten().and_then(|address| address.try_into().ok())
    }

    /// Extends the timeout for a run on several queue pairs.
    pub(crate) fn with_queue_pairs(self, queue_pairs: u32) -> Self {
        Self { timeout: self.timeout + TIMEOUT_PER_QP * queue_pairs.saturating_sub(1), ..self }
    }

    /// Extends the timeout for messages of `len` bytes.
    pub(crate) fn with_messages(self, len: u32) -> Self {
        Self { timeout: self.timeout + TIMEOUT_PER_MIB * (len >> 20), ..self }
    }

    /// Writes an item with one call.
    pub(crate) fn send(&self, bytes: &[u8], what: Item) -> Result<(), ExchangeError> {
        let failed = |source| ExchangeError::Write { what, source };
        let mut timeout = Timeout::after(self.timeout);
        loop {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(written) if written == bytes.len() => return Ok(()),
                Ok(written) => return Err(ExchangeError::ShortWrite { what, written }),
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            match self.stop.wait(self.socket.as_fd(), PollFlags::OUT, Some(&mut timeout)).map_err(failed)? {
                Wake::Stopped => return Err(Interrupted.into()),
                Wake::TimedOut => return Err(failed(io::ErrorKind::TimedOut.into())),
                Wake::Ready => {}
            }
        }
    }

    /// Reads one item, in any number of pieces.
    pub(crate) fn receive(&self, what: Item) -> Result<Vec<u8>, ExchangeError> {
        self.receive_until(what, Some(Timeout::after(self.timeout)))
    }

    /// Reads one item and waits for it without limit. The end of the connection ends the wait, and
    /// a host that no longer answers ends the connection.
    pub(crate) fn receive_patiently(&self, what: Item) -> Result<Vec<u8>, ExchangeError> {
        self.receive_until(what, None)
    }

    /// Lets the kernel probe a peer that is silent for 5 s, and end the connection after 5 probes.
    pub(crate) fn keep_alive(&self) -> Result<(), ExchangeError> {
        let set = || {
            sockopt::set_tcp_keepidle(&self.socket, Duration::from_secs(5))?;
            sockopt::set_tcp_keepintvl(&self.socket, Duration::from_secs(1))?;
            sockopt::set_tcp_keepcnt(&self.socket, 5)?;
            sockopt::set_socket_keepalive(&self.socket, true)
        };
        set().map_err(|errno: Errno| ExchangeError::KeepAlive(errno.into()))
    }

    /// The descriptor of the connection.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn receive_until(&self, what: Item, mut timeout: Option<Timeout>) -> Result<Vec<u8>, ExchangeError> {
        let failed = |source| ExchangeError::Read { what, source };
        // The sides take turns, so a further byte is an error (`ExchangeError::TooMuch`). The
        // buffer has room for one more byte to detect it.
        let mut bytes = vec![0; what.len + 1];
        let mut received = 0;
        while received < what.len {
            match self.stop.wait(self.socket.as_fd(), PollFlags::IN, timeout.as_mut()).map_err(failed)? {
                Wake::Stopped => return Err(Interrupted.into()),
                Wake::TimedOut => {
                    return Err(ExchangeError::Stalled { what, received, timeout: self.timeout });
                }
                Wake::Ready => {}
            }
            match recv(&self.socket, &mut bytes[received..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(ExchangeError::Closed { what, received }),
                Ok((count, _)) => received += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        if received > what.len {
            return Err(ExchangeError::TooMuch { what });
        }
        bytes.truncate(received);
        Ok(bytes)
    }
}

fn socket_for(address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// The error with its causes, as the program prints it.
    fn whole(error: ExchangeError) -> String {
        format!("{:#}", anyhow::Error::from(error))
    }

    #[test]
    fn timeout_grows_with_queue_pairs_and_messages() {
        let stop = Stop::new().unwrap();
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = Peer { socket: socket.into(), stop: &stop, timeout: EXCHANGE_TIMEOUT };
        let peer = peer.with_queue_pairs(11).with_messages(8 << 20);
        assert_eq!(peer.timeout, EXCHANGE_TIMEOUT + 10 * TIMEOUT_PER_QP + 8 * TIMEOUT_PER_MIB);
        assert_eq!(peer.with_queue_pairs(1).with_messages(65536).timeout, Duration::from_secs(27));
    }

    #[test]
    fn connection_refused_error_names_the_address() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let stop = Stop::new().unwrap();
        let text = whole(Peer::connect("127.0.0.1", free, &stop).unwrap_err());
        assert_eq!(
            text,
            format!(
                "cannot connect to 127.0.0.1:{free}: 127.0.0.1: Connection refused (os error 111): no server \
                 waits there: start it first"
            )
        );
    }

    #[test]
    fn unresolvable_host_is_reported() {
        let stop = Stop::new().unwrap();
        let text = whole(Peer::connect("no host has spaces", 1, &stop).unwrap_err());
        assert!(text.starts_with("no address for host no host has spaces: "), "{text}");
    }

    #[test]
    fn tcp_port_in_use_is_reported() {
        let first = Server::listen(0).unwrap();
        let port = first.port();
        let text = whole(Server::listen(port).unwrap_err());
        assert_eq!(text, format!("cannot listen on TCP port {port}: Address already in use (os error 98)"));
    }

    #[test]
    fn server_waits_forever_and_can_be_interrupted() {
        let stop = Stop::new().unwrap();
        let server = Server::listen(0).unwrap();
        stop.trigger();
        assert!(matches!(server.accept(&stop), Err(ExchangeError::Interrupted(_))));
    }
}
