//! The control connection of a run: TCP, or with `--cm` an RC queue pair, as perftest's `-R` has it.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bareverbs::{Access, Buffer, Context, Done, Endpoint, Gid, Op, Pd, PortNum, RegionMut};
use bareverbs_rdmacm::connection::{ConnectOptions, Connected, Connector, Listener};
use bareverbs_rdmacm::{Addresses, BoundDevice, EventChannel};
use rustix::event::PollFlags;

use super::wire::SETTINGS_LEN;
use crate::session::connected::{LIMIT, Next, next_completion_within, next_request, within};
use crate::session::exchange::{
    EXCHANGE_TIMEOUT, ExchangeError, Item, Peer, TIMEOUT_PER_MIB, TIMEOUT_PER_QP,
};
use crate::session::{RETRY_CNT, address};
use crate::signal::{Interrupted, Stop, Timeout};

/// The control connection.
#[derive(Debug)]
pub(crate) enum Control<'s> {
    Tcp(Peer<'s>),
    Cm(Box<CmPeer<'s>>),
}

impl<'s> Control<'s> {
    /// A control connection over TCP, on which the end of the peer's host shows.
    pub(crate) fn tcp(peer: Peer<'s>) -> Result<Self, ExchangeError> {
        peer.keep_alive()?;
        Ok(Self::Tcp(peer))
    }

    /// Extends the timeout for a run on several queue pairs with messages of up to `len` bytes.
    pub(crate) fn with_load(self, queue_pairs: u32, len: u32) -> Self {
        match self {
            Self::Tcp(peer) => Self::Tcp(peer.with_queue_pairs(queue_pairs).with_messages(len)),
            Self::Cm(mut peer) => {
                peer.timeout +=
                    TIMEOUT_PER_QP * queue_pairs.saturating_sub(1) + TIMEOUT_PER_MIB * (len >> 20);
                Self::Cm(peer)
            }
        }
    }

    /// The GID of this side, if the connection manager chose it.
    pub(crate) fn gid(&self) -> Option<Gid> {
        match self {
            Self::Tcp(_) => None,
            Self::Cm(peer) => peer.gid,
        }
    }

    /// The address of the other end.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(peer) => peer.address(),
            Self::Cm(peer) => peer.address,
        }
    }

    /// Whether another connection has the same peer and the same port of the device.
    pub(crate) fn is_of_peer(&self, other: &Addresses) -> bool {
        let Self::Cm(peer) = self else { return false };
        let theirs = other.peer.and_then(|peer| peer.ip());
        peer.device == other.device && peer.address.map(|ours| ours.ip()) == theirs.map(|theirs| theirs.ip())
    }

    /// The descriptor that shows the end of the connection, and the events that mean the end.
    pub(crate) fn end(&self) -> (BorrowedFd<'_>, PollFlags) {
        match self {
            Self::Tcp(peer) => (peer.as_fd(), PollFlags::RDHUP),
            Self::Cm(peer) => (peer.events.as_fd(), PollFlags::IN),
        }
    }

    pub(crate) fn send(&self, bytes: &[u8], what: Item) -> Result<(), ExchangeError> {
        match self {
            Self::Tcp(peer) => peer.send(bytes, what),
            Self::Cm(peer) => peer.send(bytes, what),
        }
    }

    /// Receives an item. A patient side waits for it without limit.
    pub(crate) fn receive(&self, what: Item, patient: bool) -> Result<Vec<u8>, ExchangeError> {
        match self {
            Self::Tcp(peer) if patient => peer.receive_patiently(what),
            Self::Tcp(peer) => peer.receive(what),
            Self::Cm(peer) => peer.receive(what, patient),
        }
    }
}

/// Receives that are posted, and messages that are kept. The sides take turns.
const RECEIVES: u32 = 2;
/// The time after which a silent peer is probed, as over TCP.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// A control connection by the connection manager.
#[derive(Debug)]
pub(crate) struct CmPeer<'s> {
    state: Mutex<State>,
    /// Readable when the connection has ended.
    events: EventChannel,
    stop: &'s Stop,
    /// Of each step.
    timeout: Duration,
    address: Option<SocketAddr>,
    gid: Option<Gid>,
    device: Option<BoundDevice>,
}

#[derive(Debug)]
struct State {
    connection: Connected<Endpoint<RegionMut>>,
    /// Messages that arrived while a send was under way.
    inbox: VecDeque<Vec<u8>>,
    /// The memory of a message to the peer. `None`: a send has failed.
    outgoing: Option<RegionMut>,
}

/// The memory of a message.
fn message_memory(pd: &Pd) -> Result<RegionMut> {
    Ok(RegionMut::register(pd, Buffer::zeroed(SETTINGS_LEN)?)?)
}

/// An endpoint with receives for the messages of the exchange.
fn endpoint(context: &Context, port: PortNum) -> Result<Endpoint<RegionMut>> {
    let pd: Pd = context.alloc_pd()?;
    let mut endpoint = Endpoint::options().port(port).sends(16).recvs(RECEIVES).build(&pd)?;
    for _ in 0..RECEIVES {
        endpoint.post(Op::recv(message_memory(&pd)?))?;
    }
    Ok(endpoint)
}

/// Rejects an address of another device than the one of the run.
fn check_device(context: &Context, ib_port: u8, found: BoundDevice) -> Result<()> {
    let device = found.find()?;
    let (name, expected, port) = (device.name(), context.device().name(), found.port.0);
    ensure!(
        name == expected && port == ib_port,
        "--cm: the address leads to port {port} of {name}, not to port {ib_port} of {expected}: use -d {name} -i {port}"
    );
    Ok(())
}

/// The parameters of connections without reads and rights.
pub(crate) const OPTIONS: ConnectOptions<'_> = ConnectOptions {
    private_data: &[],
    access: Access::empty(),
    rd_atomic: 0,
    retry_count: RETRY_CNT,
    rnr_retry_count: bareverbs::values::RnrRetry::INFINITE,
    min_rnr_timer: super::transport::MIN_RNR_TIMER,
    ece: None,
};

impl<'s> CmPeer<'s> {
    /// Connects to a server.
    pub(crate) fn connect(
        context: &Context,
        ib_port: u8,
        (host, port): (&str, u16),
        stop: &'s Stop,
    ) -> Result<Self> {
        let connector = Connector::new();
        let name = (host, port);
        let route = within(LIMIT, "resolution of the address", connector.resolve(name))?;
        check_device(context, ib_port, route.device()?)?;
        let endpoint = endpoint(context, route.port()?)?;
        let connection = within(LIMIT, "connection", route.connect(endpoint, &OPTIONS))?;
        Self::new(connection, stop)
    }

    /// Waits for a client.
    pub(crate) fn accept(context: &Context, ib_port: u8, port: u16, stop: &'s Stop) -> Result<Self> {
        let listener = Listener::bind(address::to_bind(None, port)?)?;
        let request = next_request(&listener, stop)?;
        check_device(context, ib_port, request.device()?)?;
        let endpoint = endpoint(context, request.port()?)?;
        let mut connection = within(LIMIT, "connection", request.accept(endpoint, &OPTIONS))?;
        connection.link.own_channel()?;
        Self::new(connection, stop)
    }

    fn new(connection: Connected<Endpoint<RegionMut>>, stop: &'s Stop) -> Result<Self> {
        let events = connection.link.id().channel().clone();
        let Addresses { peer, device, .. } = connection.link.id().addresses()?;
        let [local, _] = connection.link.id().gids()?;
        let outgoing = Some(message_memory(connection.queue.qp().pd())?);
        Ok(Self {
            state: Mutex::new(State { connection, inbox: VecDeque::new(), outgoing }),
            events,
            stop,
            timeout: EXCHANGE_TIMEOUT,
            address: peer.and_then(|peer| peer.ip()),
            gid: local.map(|local| local.gid),
            device,
        })
    }

    fn send(&self, bytes: &[u8], what: Item) -> Result<(), ExchangeError> {
        let failed = |error: anyhow::Error| match error.downcast::<Interrupted>() {
            Ok(interrupted) => interrupted.into(),
            Err(error) => ExchangeError::Write { what, source: io::Error::other(error) },
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        state.post(bytes).map_err(failed)?;
        let mut timeout = Timeout::after(self.timeout);
        loop {
            let next = next_completion_within(&mut state.connection, self.stop, Some(&mut timeout));
            match next.map_err(failed)? {
                Next::Completion(done) if done.is_recv() => state.keep(done).map_err(failed)?,
                Next::Completion(done) => {
                    state.outgoing = done.buffer;
                    return Ok(());
                }
                Next::End => return Err(failed(io::Error::from(io::ErrorKind::ConnectionReset).into())),
                Next::TimedOut => return Err(failed(io::Error::from(io::ErrorKind::TimedOut).into())),
            }
        }
    }

    fn receive(&self, what: Item, patient: bool) -> Result<Vec<u8>, ExchangeError> {
        let failed = |error: anyhow::Error| match error.downcast::<Interrupted>() {
            Ok(interrupted) => interrupted.into(),
            Err(error) => ExchangeError::Read { what, source: io::Error::other(error) },
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let mut timeout = Timeout::after(if patient { PROBE_INTERVAL } else { self.timeout });
        while state.inbox.is_empty() {
            let next = next_completion_within(&mut state.connection, self.stop, Some(&mut timeout));
            match next.map_err(failed)? {
                Next::Completion(done) => state.keep(done).map_err(failed)?,
                Next::End => return Err(ExchangeError::Closed { what, received: 0 }),
                // The connection fails if the peer's host no longer answers.
                Next::TimedOut if patient => {
                    state.connection.queue.probe().map_err(|error| failed(error.into()))?;
                    timeout = Timeout::after(PROBE_INTERVAL);
                }
                Next::TimedOut => {
                    return Err(ExchangeError::Stalled { what, received: 0, timeout: self.timeout });
                }
            }
        }
        let message = state.inbox.pop_front().unwrap_or_default();
        match message.len() {
            received if received < what.len => Err(ExchangeError::Closed { what, received }),
            received if received > what.len => Err(ExchangeError::TooMuch { what }),
            _ => Ok(message),
        }
    }
}

impl State {
    /// Posts a message. Devices differ in how many bytes they send inline.
    fn post(&mut self, bytes: &[u8]) -> Result<()> {
        let mut memory = self.outgoing.take().context("an earlier message was not sent")?;
        memory.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        self.connection.queue.post(Op::send(memory, ..bytes.len()))?;
        Ok(())
    }

    /// Keeps a message, and posts its receive again.
    fn keep(&mut self, done: Done<RegionMut>) -> Result<()> {
        ensure!(self.inbox.len() < RECEIVES as usize, "the peer sends messages before its turn");
        let message = done.message().context("a receive has a message")?.to_vec();
        self.inbox.push_back(message);
        self.connection.queue.post(Op::recv(done.into_buffer()))?;
        Ok(())
    }
}
