//! The datagram socket.

use std::collections::VecDeque;
use std::fmt;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bareverbs::runtime::Readable;
use bareverbs_provider::device::BeforeWait;
use bareverbs_provider::wait::{Caller, waits};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::error::system;
use super::peers::Peers;
use super::port::{Port, copy};
use super::wire::{Lookup, LookupKind, SLOT, with_scope};
use super::{DatagramError, DatagramSocketOptions, Result};
use crate::addr::local_to;
use crate::connection::Domains;
use crate::event::EventKind;
use crate::name::{first, ip};
use crate::ready::{add, combine, is_readable, refused, register};
use crate::steps::RESOLVE_TRY;
use crate::waiting::not_attached;
use crate::{CmId, Error, EventChannel, Name, PortSpace};

/// How long a call polls before it looks at the descriptors, as in rdma-core.
const POLLING_TIME: Duration = Duration::from_micros(10);

/// The time limit of the kernel for the resolution of a route, as in rdma-core.
const RESOLVE_ROUTE: Duration = Duration::from_secs(2);

/// Lookups that are handled at a time.
const BATCH: usize = 64;

/// What made the descriptor of a socket readable. Ports follow.
const UDP: u64 = 0;
const EVENT: u64 = 1;
const FIRST_PORT: u64 = 2;

/// A socket for datagrams over RDMA, used like [`std::net::UdpSocket`]. It is wire-compatible with
/// rdma-core's rsocket of type `SOCK_DGRAM`.
///
/// ```no_run
/// use bareverbs_rdmacm::datagram::DatagramSocket;
///
/// // One host:
/// let mut server = DatagramSocket::bind("10.1.0.1:7174")?;
/// let mut message = [0; 2048];
/// let (len, sender) = server.recv_from(&mut message).wait()?;
/// server.send_to(&message[..len], sender).wait()?;
///
/// // Another host:
/// let mut client = DatagramSocket::bind("0.0.0.0:0")?;
/// client.connect("10.1.0.1:7174")?;
/// client.send(b"hello").wait()?;
/// let (len, server) = client.recv_from(&mut message).wait()?;
/// # Ok::<(), bareverbs_rdmacm::datagram::DatagramError>(())
/// ```
///
/// Sends and receives return values. A thread calls their `wait` or `wait_timeout`, which take the
/// place of `set_read_timeout` and `set_nonblocking` of a `UdpSocket`. A task awaits them, if the
/// socket has a [runtime](DatagramSocketOptions::runtime).
///
/// # Delivery
///
/// A message is one packet, of at most [`max_message`](Self::max_message) bytes. As with UDP, it may be
/// lost, duplicated or reordered, and the sender does not notice. Messages to a peer whose queue pair
/// is unknown go by UDP. The peer answers with the number of its queue pair, and later messages go by
/// RDMA.
///
/// Calls of a connected socket, receives too, fail with `ECONNREFUSED`
/// ([`Errno::CONNREFUSED`](bareverbs::Errno)) after a message to a peer without a socket. A program that
/// repeats its messages treats it as a lost message.
///
/// # Sharing
///
/// A socket has one owner. Other tasks or threads give their messages to it, over a channel of the
/// program.
///
/// # Progress
///
/// A socket has no background thread. It answers the lookups of its peers while the program receives,
/// waits, or sends to a peer whose queue pair is unknown. Until then, messages of its peers go by UDP.
///
/// # Descriptor
///
/// [`AsFd`] gives a descriptor for `poll` and `epoll`. After a `wait_timeout` of 0 returned `None`, the
/// descriptor becomes readable when the call may succeed, also if the call is a send. It is never
/// writable.
///
/// # Failure
///
/// A failed send, such as one without a route on Soft-RoCE, ends the queue pair. The call returns the
/// error, the socket creates another queue pair, and looks its peers up again.
///
/// # Drop
///
/// Drop waits until the device has sent all messages, at most for 1 second.
#[doc(alias = "rsocket")]
pub struct DatagramSocket {
    ports: Vec<Port>,
    peers: Peers,
    connected: Option<SocketAddr>,
    /// Messages that came by UDP.
    inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    udp: UdpSocket,
    channel: EventChannel,
    ready: Arc<OwnedFd>,
    /// The descriptor as the runtime of the tasks has it.
    readable: Option<Box<dyn Readable>>,
    options: DatagramSocketOptions,
    domains: Domains,
    /// The bytes of a UDP message.
    message: Vec<u8>,
}

impl DatagramSocket {
    /// Binds to the first of the addresses that can be bound, with default options. Port 0 lets the
    /// kernel choose. An unspecified address is that of every device, of one IP family.
    ///
    /// The kernel's route chooses the local address of an unspecified one. To addresses of the same host
    /// it is not that of a soft device: bind to the device's address.
    ///
    /// # Errors
    /// [`DatagramError::Cm`] with
    /// - [`Error::Name`]: the name was not resolved.
    /// - [`Error::System`]: `EADDRINUSE` or `EADDRNOTAVAIL` of the UDP socket.
    /// - [`Error::Command`] with `ENODEV`: the network interface of the address has no RDMA device.
    /// - [`Error::Address`] with `ENODEV`: a loopback address.
    /// - [`Error::Unsupported`]: the device is one of iWARP.
    #[doc(alias = "rbind")]
    pub fn bind(name: impl Into<Name>) -> Result<Self> {
        DatagramSocketOptions::default().bind(name)
    }

    pub(super) fn new(addr: SocketAddr, options: &DatagramSocketOptions) -> Result<Self> {
        Self::on_channel(options.list().private_channel()?, addr, options)
    }

    fn on_channel(channel: EventChannel, addr: SocketAddr, options: &DatagramSocketOptions) -> Result<Self> {
        let bound = UdpSocket::bind(addr).and_then(|udp| udp.set_nonblocking(true).map(|()| udp));
        let udp = bound.map_err(|error| system("binding the UDP socket of a datagram socket", &error))?;
        let failed = |errno| Error::System { what: "creating the descriptor of a datagram socket", errno };
        let ready = combine(&[(udp.as_fd(), UDP), (channel.as_fd(), EVENT)]).map_err(failed)?;
        let ready = Arc::new(ready);
        let readable = register(options.runtime.as_ref(), &ready)?;
        let mut socket = Self {
            ports: Vec::new(),
            peers: Peers::default(),
            connected: None,
            inbox: VecDeque::new(),
            udp,
            channel,
            ready,
            readable,
            domains: options.list(),
            options: options.clone(),
            message: Vec::new(),
        };
        let local = socket.local_addr()?;
        if !local.ip().is_unspecified() {
            socket.port_of(local)?;
        }
        Ok(socket)
    }

    /// The local address. Its IP address is unspecified if the socket is bound to every device, and
    /// not connected.
    ///
    /// # Errors
    /// [`Error::System`]
    #[doc(alias = "rgetsockname")]
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let addr = self.udp.local_addr();
        Ok(addr.map_err(|error| system("reading the address of a datagram socket", &error))?)
    }

    /// The peer of [`connect`](Self::connect).
    #[doc(alias = "rgetpeername")]
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.connected
    }

    /// Sets the peer of [`send`](Self::send). Messages of other peers are dropped from now on. The
    /// first of the addresses whose route has an RDMA device is used. Nothing is sent.
    ///
    /// # Errors
    /// [`DatagramError::Cm`] with
    /// - [`Error::Name`]: the name was not resolved.
    /// - [`Error::System`] with `ENETUNREACH`: there is no route.
    /// - [`Error::Address`] or [`Error::Command`] with `ENODEV`: the network interface of the route has
    ///   no RDMA device.
    #[doc(alias = "rconnect")]
    pub fn connect(&mut self, peer: impl Into<Name>) -> Result<()> {
        const VERB: &str = "DatagramSocket::connect";
        first(peer.into().resolve(VERB)?, |addr| self.connect_to(plain(ip(VERB, addr)?)))
    }

    fn connect_to(&mut self, peer: SocketAddr) -> Result<()> {
        self.peer(peer)?;
        let connected = self.udp.connect(peer);
        connected.map_err(|error| system("connecting the UDP socket of a datagram socket", &error))?;
        self.connected = Some(peer);
        self.inbox.retain(|(sender, _)| *sender == peer);
        Ok(())
    }

    /// The longest message to a peer in bytes: 2032, or less if the MTU of the port is smaller. A
    /// message has a header of 8 bytes (IPv6: 24) within the MTU.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn max_message(&mut self, peer: SocketAddr) -> Result<usize> {
        let index = self.peer(plain(peer))?;
        Ok(self.ports[self.peers.get(index).port].max_message())
    }

    /// Sends a message to the peer of [`connect`](Self::connect). It waits while the send queue is full.
    ///
    /// # Errors
    /// [`DatagramError::NotConnected`], and those of [`send_to`](Self::send_to).
    #[doc(alias = "rsend")]
    pub fn send<'a>(&'a mut self, message: &'a [u8]) -> Sending<'a> {
        let peer = self.connected;
        Sending { socket: self, message, peer }
    }

    /// Sends a message to a peer. It waits while the send queue is full.
    ///
    /// # Errors
    /// - [`DatagramError::TooLong`]: the message is longer than [`max_message`](Self::max_message).
    /// - [`DatagramError::Cm`] with [`Error::System`]: the UDP socket refused a lookup. `ECONNREFUSED`:
    ///   the peer of a connected socket has no socket.
    /// - [`DatagramError::Cm`] with [`Error::Verbs`]: a send has failed. See [Failure](Self#failure).
    /// - The errors of [`connect`](Self::connect).
    #[doc(alias = "rsendto")]
    pub fn send_to<'a>(&'a mut self, message: &'a [u8], peer: SocketAddr) -> Sending<'a> {
        Sending { socket: self, message, peer: Some(plain(peer)) }
    }

    /// Receives a message into the start of `into`: of the peer of [`connect`](Self::connect), or of any
    /// peer if the socket is not connected. The result is its length and its sender. Bytes that do not
    /// fit are lost, and the length is that of the copied bytes.
    ///
    /// # Errors
    /// [`DatagramError::Cm`]: as for [`send_to`](Self::send_to), with `ECONNREFUSED`: an earlier message
    /// found no socket.
    #[doc(alias = "rrecv")]
    #[doc(alias = "rrecvfrom")]
    #[doc(alias = "recv")]
    pub fn recv_from<'a>(&'a mut self, into: &'a mut [u8]) -> Receiving<'a> {
        Receiving { socket: self, into }
    }

    fn try_send(&mut self, message: &[u8], peer: SocketAddr) -> Result<bool> {
        let mut index = self.peer(peer)?;
        if self.peers.get(index).destination.is_none() {
            // The answer to an earlier lookup may be there, and may add peers.
            self.settle()?;
            index = self.peer(peer)?;
        }
        let peer = self.peers.get(index);
        let port = &mut self.ports[peer.port];
        let (len, max) = (message.len(), port.max_message());
        if len > max {
            return Err(DatagramError::TooLong { len, max });
        }
        let Some(destination) = &peer.destination else {
            self.send_lookup(index, LookupKind::Data, message)?;
            return Ok(true);
        };
        let (sent, number) = (port.send(destination, message), peer.port);
        sent.map_err(|error| self.replace_port(number, error))
    }

    /// `spins`: for the polling time.
    fn try_recv(&mut self, into: &mut [u8], spins: bool) -> Result<Option<(usize, SocketAddr)>> {
        if let Some((sender, message)) = self.inbox.pop_front() {
            return Ok(Some((copy(&message, into), sender)));
        }
        let mut end = None;
        while !self.ports.is_empty() {
            for number in 0..self.ports.len() {
                match self.ports[number].recv(into, self.connected) {
                    Ok(None) => {}
                    Ok(received) => return Ok(received),
                    Err(error) => return Err(self.replace_port(number, error)),
                }
            }
            if !spins {
                break;
            }
            let now = Instant::now();
            if now >= *end.get_or_insert(now + POLLING_TIME) {
                break;
            }
        }
        Ok(None)
    }

    /// Attempts until there is a result. Pending: the time limit of the thread has passed, or the task is
    /// woken.
    fn poll_by<T>(
        &mut self,
        caller: Caller<'_>,
        mut attempt: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Poll<Result<T>> {
        let mut settled = false;
        loop {
            if let Some(result) = attempt(self)? {
                return Poll::Ready(Ok(result));
            }
            // Messages of others may arrive without end, so the limit counts also if there is more to
            // handle, and other tasks run. The descriptor is readable then.
            match caller {
                Caller::Thread(end) if settled && self.channel.file().is_past(end) => return Poll::Pending,
                Caller::Task(waker) if settled => {
                    waker.wake_by_ref();
                    return Poll::Pending;
                }
                _ => settled = true,
            }
            if !self.settle()? {
                match caller {
                    Caller::Thread(end) if self.channel.file().is_past(end) => return Poll::Pending,
                    Caller::Thread(end) if self.sleep(end)? => return Poll::Pending,
                    Caller::Thread(_) => {}
                    Caller::Task(waker) => {
                        let readable = self.readable.as_ref().ok_or_else(not_attached)?;
                        ready!(readable.poll_readable(&mut Context::from_waker(waker)))
                            .map_err(|error| refused(&error))?;
                    }
                }
                settled = false;
            }
        }
    }

    /// Sleeps until the descriptor is readable, at most until `end`. Returns whether the limit has
    /// passed in virtual time.
    fn sleep(&self, end: Option<Instant>) -> Result<bool> {
        match self.channel.file().before_wait(end, None, || is_readable(self.ready.as_fd()))? {
            BeforeWait::Block => {}
            before => return Ok(before == BeforeWait::TimedOut),
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut ready = [const { MaybeUninit::<epoll::Event>::uninit() }; 1];
        match epoll::wait(&self.ready, &mut ready, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(Error::System { what: WAITING, errno }.into()),
        }
    }

    /// Handles what the descriptors report, and arms them. `true`: another attempt is worthwhile.
    fn settle(&mut self) -> Result<bool> {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ready = [const { MaybeUninit::<epoll::Event>::uninit() }; 8];
        let (ready, _) = epoll::wait(&self.ready, &mut ready, Some(&NOW))
            .map_err(|errno| Error::System { what: WAITING, errno })?;
        let mut has_changed = false;
        for number in ready.iter().map(|event| event.data.u64()) {
            has_changed = true;
            match number {
                UDP => self.take_lookups()?,
                EVENT => self.take_events()?,
                _ => self.ports[(number - FIRST_PORT) as usize].armed = false,
            }
        }
        for number in 0..self.ports.len() {
            if !self.ports[number].armed {
                has_changed = true;
                self.ports[number].arm().map_err(|error| self.replace_port(number, error))?;
            }
        }
        Ok(has_changed)
    }

    /// Handles UDP messages: those of peers that look up this side's queue pair, and their answers.
    fn take_lookups(&mut self) -> Result<()> {
        let mut bytes = [0; SLOT + Lookup::MAX + 1];
        for _ in 0..BATCH {
            let (len, sender) = match self.udp.recv_from(&mut bytes) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(system("receiving a lookup of a datagram socket", &error).into()),
            };
            // The rest of a longer message is lost.
            if len == bytes.len() {
                continue;
            }
            let Some((lookup, message)) = Lookup::parse(&bytes[..len], sender) else { continue };
            self.take_lookup(plain(sender), lookup, message);
        }
        Ok(())
    }

    /// Errors are those of the sender's address: the message is lost then, as by UDP.
    fn take_lookup(&mut self, sender: SocketAddr, lookup: Lookup, message: &[u8]) {
        let Ok(index) = self.peer(sender) else { return };
        if lookup.kind == LookupKind::Data {
            if self.connected.is_none_or(|peer| peer == sender) && self.inbox.len() < self.options.recvs() {
                self.inbox.push_back((sender, message.to_vec()));
            }
            if self.send_lookup(index, LookupKind::Control, &[]).is_err() {
                return;
            }
        }
        let peer = self.peers.get_mut(index);
        if peer.qp_num != lookup.qp_num {
            (peer.qp_num, peer.destination) = (lookup.qp_num, None);
        }
        if peer.destination.is_none() && peer.resolving.is_none() {
            // Without a path, messages go by UDP, and the next answer starts the resolution again.
            let resolving = self.resolve(index).ok();
            self.peers.get_mut(index).resolving = resolving;
        }
    }

    /// Starts the resolution of the path to a peer.
    fn resolve(&self, index: usize) -> Result<CmId> {
        let peer = self.peers.get(index);
        let id = CmId::new(&self.channel, PortSpace::Udp)?;
        let mut source = self.ports[peer.port].local();
        source.set_port(0);
        id.resolve_addr(Some(source.into()), peer.addr, RESOLVE_TRY)?;
        Ok(id)
    }

    /// Handles the events of identifiers that resolve paths.
    fn take_events(&mut self) -> Result<()> {
        while let Some(event) = self.channel.try_wait()? {
            let Some(index) = self.peers.resolving(event.key) else { continue };
            let peer = self.peers.get_mut(index);
            let Some(id) = peer.resolving.take() else { continue };
            match event.kind {
                EventKind::AddrResolved if id.resolve_route(RESOLVE_ROUTE).is_ok() => {
                    peer.resolving = Some(id);
                }
                EventKind::RouteResolved => {
                    let port = &self.ports[peer.port];
                    let path = id.paths().ok().and_then(|paths| paths.first().copied());
                    peer.destination = path.and_then(|path| port.destination(&path, peer.qp_num).ok());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends a lookup. A full buffer of the UDP socket loses it.
    fn send_lookup(&mut self, index: usize, kind: LookupKind, message: &[u8]) -> Result<()> {
        let peer = self.peers.get(index);
        let port = &self.ports[peer.port];
        self.message.clear();
        Lookup { kind, qp_num: port.qp_num() }.append_to(&mut self.message, port.local());
        self.message.extend_from_slice(message);
        match self.udp.send_to(&self.message, peer.addr) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                Err(system("sending a lookup of a datagram socket", &error).into())
            }
            _ => Ok(()),
        }
    }

    /// The peer with an address, which is added if it is new.
    fn peer(&mut self, addr: SocketAddr) -> Result<usize> {
        match self.peers.find(addr) {
            Some(index) => Ok(index),
            None => {
                let local = self.local_to(addr)?;
                let port = self.port_of(local).map_err(|error| self.no_source(error, local, addr))?;
                Ok(self.peers.add(addr, port, self.connected))
            }
        }
    }

    /// The local address of messages to a peer.
    fn local_to(&self, peer: SocketAddr) -> Result<SocketAddr> {
        let mut local = self.local_addr()?;
        if local.ip().is_unspecified() {
            let routed =
                local_to(peer).map_err(|error| system("finding the local address to a peer", &error))?;
            local = SocketAddr::new(routed.ip(), local.port());
            if let (SocketAddr::V6(local), SocketAddr::V6(routed)) = (&mut local, routed) {
                local.set_scope_id(routed.scope_id());
            }
        }
        Ok(local)
    }

    /// The error of a socket that is bound to every device, if no device has the source address of the
    /// route. A soft device has the one address of its name only, and UDP sends from that of the route.
    fn no_source(&self, error: DatagramError, local: SocketAddr, peer: SocketAddr) -> DatagramError {
        let is_bound = self.local_addr().is_ok_and(|addr| !addr.ip().is_unspecified());
        if is_bound || error.errno() != Some(Errno::ADDRNOTAVAIL) {
            return error;
        }
        let reason = format!(
            "no device has {}, the source address of this host's route to {peer}: bind the socket to the address \
             of a device",
            local.ip()
        );
        Error::invalid("DatagramSocket", reason).into()
    }

    /// The port with a local address, which is added if it is new.
    fn port_of(&mut self, local: SocketAddr) -> Result<usize> {
        if let Some(number) = self.ports.iter().position(|port| port.local() == local) {
            return Ok(number);
        }
        let port = self.new_port(local, self.ports.len())?;
        self.ports.push(port);
        Ok(self.ports.len() - 1)
    }

    fn new_port(&self, local: SocketAddr, number: usize) -> Result<Port> {
        let port = Port::new(&self.channel, &self.domains, &self.options, local)?;
        add(&self.ready, &port, FIRST_PORT + number as u64)
            .map_err(|errno| Error::System { what: "adding a queue pair to a datagram socket", errno })?;
        Ok(port)
    }

    /// Replaces the queue pair of a port after an operation has failed. Returns the error of the
    /// operation. If no other queue pair can be created, the next call fails, too, and tries again.
    fn replace_port(&mut self, number: usize, error: DatagramError) -> DatagramError {
        self.peers.forget(number);
        if let Ok(port) = self.new_port(self.ports[number].local(), number) {
            self.ports[number] = port;
        }
        error
    }
}

impl DatagramSocketOptions {
    /// Binds to the first of the addresses that can be bound, as [`DatagramSocket::bind`] does.
    ///
    /// # Errors
    /// As for [`DatagramSocket::bind`]. [`Error::Invalid`]: an option is out of range.
    #[doc(alias = "rbind")]
    pub fn bind(&self, name: impl Into<Name>) -> Result<DatagramSocket> {
        const VERB: &str = "DatagramSocket::bind";
        self.check(VERB)?;
        first(name.into().resolve(VERB)?, |addr| DatagramSocket::new(ip(VERB, addr)?, self))
    }
}

const WAITING: &str = "waiting for a datagram socket";

/// The address of a peer without flow information, as peers are compared.
fn plain(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(_) => addr,
        SocketAddr::V6(v6) => with_scope(addr, v6.scope_id()),
    }
}

/// The send of a message, from [`DatagramSocket::send`] and [`DatagramSocket::send_to`].
#[derive(Debug)]
#[must_use = "the message is sent by `wait`, `wait_timeout` or `.await`"]
pub struct Sending<'a> {
    socket: &'a mut DatagramSocket,
    message: &'a [u8],
    peer: Option<SocketAddr>,
}

impl Sending<'_> {
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<()>> {
        let Self { socket, message, peer } = self;
        let peer = peer.ok_or(DatagramError::NotConnected)?;
        socket.poll_by(caller, |socket| Ok(socket.try_send(message, peer)?.then_some(())))
    }
}

waits!([] Sending<'_> => Result<()>);

/// The receive of a message, from [`DatagramSocket::recv_from`].
#[derive(Debug)]
#[must_use = "a message is received by `wait`, `wait_timeout` or `.await`"]
pub struct Receiving<'a> {
    socket: &'a mut DatagramSocket,
    into: &'a mut [u8],
}

impl Receiving<'_> {
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<(usize, SocketAddr)>> {
        let (Self { socket, into }, spins) = (self, matches!(caller, Caller::Thread(_)));
        socket.poll_by(caller, |socket| socket.try_recv(into, spins))
    }
}

waits!([] Receiving<'_> => Result<(usize, SocketAddr)>);

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl fmt::Debug for DatagramSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramSocket")
            .field("local", &self.udp.local_addr().ok())
            .field("peer", &self.connected)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::net::Ipv4Addr;
    use std::pin::pin;

    use super::*;

    #[test]
    fn receive_ends_although_the_udp_socket_always_has_messages() {
        let options = DatagramSocketOptions::default();
        let any = (Ipv4Addr::UNSPECIFIED, 0).into();
        let mut socket =
            DatagramSocket::on_channel(EventChannel::simulated_private(), any, &options).unwrap();
        let addr = (Ipv4Addr::LOCALHOST, socket.local_addr().unwrap().port());
        let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..3 * BATCH {
            peer.send_to(b"not a lookup", addr).unwrap();
        }
        assert!(socket.recv_from(&mut []).wait_timeout(Duration::ZERO).is_none());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(pin!(socket.recv_from(&mut [])).poll(&mut cx).is_pending());
        assert!(socket.settle().unwrap(), "each call takes one batch");
    }
}
