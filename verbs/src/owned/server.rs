//! Servers and clients that exchange messages: one SRQ, one CQ, many peers.
//!
//! A server and its clients speak one protocol over RC: messages with flow control and an orderly
//! end. A [`Client`] is the other end of a [`Server`]'s peer.
//!
//! | | |
//! |---|---|
//! | order | the messages of a peer arrive in the order of the calls, each once |
//! | flow control | a message is sent when the peer has a receive for it. Until then it waits in the sender's queue |
//! | no deadlock | two ends that both send without reading fill their queues; a full queue refuses a message at once |
//! | end | [`close`](Handle::close) and [`shutdown`](Handle::shutdown) lose no message that was sent before. [`drain`](Handle::drain) also answers each message of the peers. [`abort`](Handle::abort) ends one peer at once |
//! | a dead peer | ends its own connection ([`Event::Failed`]), and no other |
//!
//! # Server
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use std::net::TcpListener;
//! use std::time::Duration;
//!
//! use bareverbs::server::{Event, Server};
//! use bareverbs::{Address, Context};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pd = Context::open_first()?.alloc_pd()?;
//! let mut server = Server::options().peers(100).build(&pd)?;
//! let handle = server.handle().clone();
//! // Addresses go over TCP.
//! std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     for stream in TcpListener::bind("[::]:7471")?.incoming() {
//!         let (mut stream, mut client) = (stream?, [0; Address::LEN]);
//!         stream.read_exact(&mut client)?;
//!         let (_peer, address) = handle.admit(&Address::from_bytes(&client)?)?;
//!         stream.write_all(&address.to_bytes())?;
//!     }
//!     Ok(())
//! });
//! loop {
//!     match server.next().wait()? {
//!         Event::Message(mut message) => {
//!             message.bytes_mut().make_ascii_uppercase();
//!             let (peer, len) = (message.peer(), message.bytes().len());
//!             // A full queue refuses the answer at once: the client does not read its answers.
//!             if let Some(Err(_)) = message.reply_in_place(..len).wait_timeout(Duration::ZERO) {
//!                 server.handle().close(peer);
//!             }
//!         }
//!         Event::Failed(peer, error) => eprintln!("{peer:?} failed: {error}"),
//!         Event::Closed(peer) => println!("{peer:?} has finished"),
//!         Event::Ended => break,
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Client
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use std::net::TcpStream;
//!
//! use bareverbs::server::{Client, Event};
//! use bareverbs::{Address, Context};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pd = Context::open_first()?.alloc_pd()?;
//! let mut client = Client::options().build(&pd)?;
//! let (mut stream, mut server) = (TcpStream::connect("server:7471")?, [0; Address::LEN]);
//! stream.write_all(&client.address().to_bytes())?;
//! stream.read_exact(&mut server)?;
//! client.connect(&Address::from_bytes(&server)?)?;
//!
//! let mut question = client.take().expect("a buffer");
//! question.bytes_mut()[..5].copy_from_slice(b"hello");
//! client.send(question, ..5).detach();
//! if let Event::Message(answer) = client.next().wait()? {
//!     assert_eq!(answer.bytes(), b"hello");
//! }
//! let closing = client.shutdown();
//! // The server may need the connection until its last event.
//! while !matches!(client.next().wait()?, Event::Ended) {}
//! println!("{:?}", closing.wait()?);
//! # Ok(())
//! # }
//! ```
//!
//! # Tasks
//!
//! A task awaits [`Server::next`]. It needs a driver, which is spawned:
//! `tokio::spawn(server.handle().drive(bareverbs::runtime::Tokio)?)`. See
//! [drivers](super::Hub#drivers).
//!
//! Without a driver, an end handles credits only while one of its threads waits for an event, a
//! message or the shutdown. The messages that its peer has queued wait until then.
//!
//! With the feature `futures`, `Server` and `Client` are streams of events, and `Handle::sink`
//! returns a sink of messages.
//!
//! # Idle peers
//!
//! A dead peer is noticed by a request to it only. So idle peers are probed every 2 seconds, and a dead
//! one ends with [`Event::Failed`] within 10 seconds by default: see [`ServerOptions::keepalive`].

mod acquire;
pub(crate) mod flow;
#[cfg(feature = "futures")]
mod futures;
mod message;
pub(crate) mod options;
mod post;
pub(crate) mod reap;

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bareverbs_provider::traits::Provider;
use bareverbs_provider::wake::{FirstPanic, wake_all};

pub use self::acquire::PendingBuffer;
#[cfg(feature = "futures")]
pub use self::futures::MessageSink;
pub use self::message::{Event, Message};
pub use self::options::{ClientOptions, ServerOptions};
use self::reap::inbound::{Inbound, RawEvent};
use self::reap::{PeerConn, PeerState, Peers, Queued, WORD, flush, pump, words};
use super::hub::connection::Connection;
use super::hub::connection_inner::ConnectionInner;
use super::hub::reaper::{BATCH, ConnState, Deferred, Depths, Failure};
use super::hub::{Driver, Hub};
use super::operation::OpPayload;
use super::pool::Lender;
use super::{Op, Pending, PoolBuffer, Source};
use crate::address::Address;
use crate::debug::debug;
use crate::qp::{ConnectAttr, QpInit, WrId};
use crate::runtime::Runtime;
use crate::sync::{Mutex, lock};
use crate::wait::{Caller, waits};
use crate::{AnyProvider, Error, Pd, Result, WcStatus};

fn closed(verb: &'static str) -> Error {
    Error::Closed { verb, reason: "the connection of the peer has failed, or was ended by either side" }
}

/// A message to a peer of a server or a client, or an operation on its memory: posted, and to be awaited.
pub type PeerOperation<B = PoolBuffer, P = AnyProvider> = Pending<B, P, Peers<P>>;

/// Batches of completions that are reaped before others get their turn.
const ROUNDS: u32 = 4;

/// The id of a peer of a [`Server`]. Ids are not reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerId {
    index: u32,
    generation: u32,
}

/// The number of the peer's connection in the hub.
impl From<u64> for PeerId {
    fn from(id: u64) -> Self {
        let WrId { owner: generation, request: index } = id.into();
        Self { index, generation }
    }
}

impl From<PeerId> for u64 {
    fn from(PeerId { index, generation }: PeerId) -> Self {
        WrId { owner: generation, request: index }.into()
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Counts of the messages of a server that has [drained](Handle::drain) or was
/// [shut down](Handle::shutdown).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "Report")]
pub struct Summary {
    /// Messages that the peers' devices have acknowledged.
    pub sent: u64,
    /// Messages whose [`Pending`] was dropped before they were sent. They are part of the other two
    /// numbers.
    pub detached: u64,
    /// Messages that failed. The peer may have received some of them.
    pub failed: u64,
}

/// A server: it receives the messages of many peers, in one queue. See the [module](self).
///
/// It reads the events. A [`Handle`] does everything else, from any thread or task. Without a `Server`,
/// the connections stay until the last `Handle` is dropped, and messages of the peers get no answer:
/// [`Handle::shutdown`] ends them.
pub struct Server<B: Source = PoolBuffer, P: Provider = AnyProvider> {
    handle: Handle<B, P>,
    /// Whether [`Event::Ended`] was returned.
    ended: bool,
    /// Whether it is that of a client: it has one peer, and ends with it.
    is_client: bool,
}

/// Admits, sends and closes. Clones belong to the same server.
pub struct Handle<B: Source = PoolBuffer, P: Provider = AnyProvider> {
    inner: Arc<Inner<B, P>>,
}

struct Inner<B, P: Provider> {
    options: ServerOptions,
    /// What the connections have in common.
    attr: ConnectAttr,
    hub: Hub<B, P, Peers<P>>,
    inbound: Arc<Inbound<P>>,
    peers: Mutex<Vec<Entry<B, P>>>,
    /// Whether the server drains or is shut down: no peer is admitted.
    ending: AtomicBool,
    /// Whether the server is shut down: no message is sent.
    closed: AtomicBool,
    /// Whether the `Server` was dropped: no event is read.
    reader_dropped: AtomicBool,
}

struct Entry<B, P: Provider> {
    generation: u32,
    peer: Option<Connection<B, P, Peers<P>>>,
    /// The connection of the peer before, whose messages may hold receives.
    previous: Option<Arc<PeerConn<P>>>,
}

impl<B, P: Provider> Entry<B, P> {
    fn new() -> Self {
        Self { generation: 1, peer: None, previous: None }
    }

    /// Whether all its receives are posted, and it has no peer.
    fn is_free(&self) -> bool {
        let holds = |conn: &Arc<PeerConn<P>>| conn.lock().service.flow.holds_messages();
        self.peer.is_none() && !self.previous.as_ref().is_some_and(holds)
    }

    /// Whether it has a peer that may have an event.
    fn is_open(&self) -> bool {
        let unused = |peer: &Connection<B, P, Peers<P>>| peer.inner.conn.lock().service.flow.is_unused();
        self.peer.as_ref().is_some_and(|peer| !unused(peer))
    }
}

impl<B: Source, P: Provider> Inner<B, P> {
    /// A server to which the buffers of its receives are returned.
    fn new(
        options: ServerOptions,
        attr: ConnectAttr,
        hub: Hub<B, P, Peers<P>>,
        inbound: Arc<Inbound<P>>,
    ) -> Arc<Self> {
        let inner = Arc::new(Self {
            options,
            attr,
            hub,
            inbound,
            peers: Mutex::new((0..options.peers).map(|_| Entry::new()).collect()),
            ending: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            reader_dropped: AtomicBool::new(false),
        });
        let lender = Arc::downgrade(&inner);
        inner.inbound.loans.set_lender(lender);
        inner
    }
}

impl<B: Source, P: Provider> Lender for Inner<B, P> {
    fn returned(&self, buffer: PoolBuffer) {
        // A forked child does not inherit the rings. The parent has the buffer, too.
        if !self.inbound.is_of_this_process() {
            mem::forget(buffer);
            return;
        }
        if let Some((conn, receive)) = self.inbound.take_lent(buffer) {
            let peer = self.get(conn.id.into());
            // Its drop posts the receive and returns the credit.
            drop(Message::new(conn, peer.as_ref(), Arc::clone(&self.inbound), receive, 0));
        }
    }
}

impl<B, P: Provider> Inner<B, P> {
    /// Creates the connection of a peer. It takes its receives from the SRQ.
    fn connection(&self, id: PeerId) -> Result<Connection<B, P, Peers<P>>> {
        let ServerOptions { connection, sends, operations, inline, window, message_size, .. } = self.options;
        let flow = flow::FlowControl::new(window, sends as usize);
        let describe = |offered| Address {
            recvs: window,
            max_message: message_size,
            flow_control: flow::VERSION,
            ..connection.address(offered)
        };
        let create = |init: &QpInit<'_, P>| {
            let pd = self.hub.pd();
            let shared = self.inbound.with_srq(|srq| pd.create_qp(&QpInit { srq: Some(srq), ..*init }));
            shared.unwrap_or_else(|| pd.create_qp(init))
        };
        let reserved = flow::CONTROL_SENDS;
        let is_iwarp = self.hub.pd().context().capabilities().iwarp;
        let words = if is_iwarp { Some(words(self.hub.pd(), sends as usize)?) } else { None };
        // A message and its word.
        let (max_sge, inline) = if is_iwarp { (2, inline.max(WORD as u32)) } else { (1, inline) };
        let depths = Depths { sends: operations, service: sends, reserved, max_sge, ..Depths::default() };
        let attr = (self.attr, connection.keepalive, connection.resolve);
        let state = PeerState { flow, max_message: u32::MAX, words };
        self.hub.open("Handle::admit", attr, (depths, inline), describe, create, (id.into(), state))
    }

    fn get(&self, id: PeerId) -> Option<Connection<B, P, Peers<P>>> {
        let peers = lock(&self.peers);
        let entry = peers.get(id.index as usize).filter(|entry| entry.generation == id.generation)?;
        entry.peer.clone()
    }

    /// Removes a peer. Its QP is destroyed when its last operation is dropped.
    fn remove(&self, id: PeerId) {
        let removed = {
            let mut peers = lock(&self.peers);
            match peers.get_mut(id.index as usize) {
                Some(entry) if entry.generation == id.generation => {
                    entry.generation = entry.generation.wrapping_add(1);
                    let peer = entry.peer.take();
                    entry.previous = peer.as_ref().map(|peer| Arc::clone(&peer.inner.conn));
                    peer
                }
                _ => None,
            }
        };
        if removed.is_some() {
            let mut panics = FirstPanic::default();
            panics.catch(|| drop(removed));
            panics.catch(|| wake_all(self.inbound.take_wakers()));
            panics.resume();
        }
    }

    /// Removes the peers that both ends have finished with.
    fn collect(&self) {
        while let Some(id) = self.inbound.take_finished() {
            self.remove(id);
        }
    }

    fn check_admits(&self, verb: &'static str) -> Result<()> {
        if self.ending.load(Ordering::SeqCst) {
            return Err(Error::Closed { verb, reason: "the server drains or was shut down" });
        }
        Ok(())
    }

    /// Ends all connections by `change`, and admits no more peers.
    fn end(&self, change: impl Fn(&mut flow::FlowControl<Queued>), panics: &mut FirstPanic) {
        self.ending.store(true, Ordering::SeqCst);
        for peer in self.connections() {
            panics.catch(|| self.update(&peer, &change));
        }
    }

    /// Applies `change` to the connection of `peer` and posts what is due then. Messages that can't be
    /// sent any more fail.
    fn update(&self, peer: &Connection<B, P, Peers<P>>, change: impl FnOnce(&mut flow::FlowControl<Queued>)) {
        let ConnectionInner { hub, conn, .. } = &*peer.inner;
        let (pumped, unsent) = {
            let mut state = conn.lock();
            let mut unsent = VecDeque::new();
            let PeerState { flow, .. } = &mut state.service;
            change(flow);
            if flow.is_unused() {
                unsent = flow.take_queue();
            }
            (pump(conn, &mut state, &hub.table), unsent)
        };
        let mut deferred = Deferred::new();
        flush(hub, conn, unsent, WcStatus::WR_FLUSH_ERR, &mut deferred);
        if let Err(failure) = pumped {
            hub.end_conn(conn, failure, &mut deferred);
        }
        deferred.finish();
    }

    /// The connections of the peers.
    fn connections(&self) -> Vec<Connection<B, P, Peers<P>>> {
        lock(&self.peers).iter().filter_map(|entry| entry.peer.clone()).collect()
    }

    /// Polls or blocks until `look` returns a value. It reaps, and calls `register` before it looks for
    /// the last time.
    fn poll_by<T>(
        &self,
        caller: Caller<'_>,
        verb: &'static str,
        register: impl Fn(&Context<'_>),
        mut look: impl FnMut() -> Option<Result<T>>,
    ) -> Poll<Result<T>> {
        self.hub.inner.poll_by(caller, verb, |cx| {
            for round in 0..ROUNDS {
                if let Some(found) = look() {
                    return Poll::Ready(found);
                }
                if round == 0 {
                    register(cx);
                } else if self.hub.poll(BATCH) == 0 {
                    return Poll::Pending;
                }
            }
            // Other connections keep the CQ busy: others get their turn first.
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    /// Whether every peer has received all messages to it, or has failed, and all messages are counted.
    /// The answer of a peer may come before the completions of the messages.
    fn is_delivered(&self) -> bool {
        self.collect();
        let is_delivered = |peer: &Connection<B, P, Peers<P>>| {
            let state = peer.inner.conn.lock();
            state.failure.is_some() || state.service.flow.is_delivered()
        };
        self.connections().iter().all(is_delivered) && !self.inbound.has_messages_in_flight()
    }
}

impl<B: Source, P: Provider> Server<B, P> {
    /// The handle that admits, sends and closes.
    #[must_use]
    pub fn handle(&self) -> &Handle<B, P> {
        &self.handle
    }

    /// The next event, to be awaited or waited for. The last one is [`Event::Ended`].
    ///
    /// A thread that has something else to wait for lets another thread call this and pass the events
    /// into a channel. A task uses `select!`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use bareverbs::server::{Event, Server};
    ///
    /// # async fn task(server: &mut Server) -> bareverbs::Result<()> {
    /// loop {
    ///     match server.next().await? {
    ///         Event::Ended => return Ok(()),
    ///         event => println!("{event:?}"),
    ///     }
    /// }
    /// # }
    /// # fn thread(server: &mut Server) -> bareverbs::Result<()> {
    ///
    /// // A thread blocks. `None`: no event in a second.
    /// let in_time: Option<Event> = server.next().wait_timeout(Duration::from_secs(1)).transpose()?;
    /// # drop(in_time);
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let (mut server, peer, client) = example::server(&pd)?;
    /// # let mut hello = client.take().expect("a buffer");
    /// # hello.bytes_mut()[..5].copy_from_slice(b"hello");
    /// # client.send(hello, ..5).detach();
    /// # thread(&mut server)?;
    /// # server.handle().abort(peer);
    /// # server.handle().shutdown();
    /// # example::block_on(task(&mut server))?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the wait:
    ///
    /// - [`Error::Closed`]: [`Event::Ended`] was returned before.
    /// - [`Error::DeviceRemoved`]: the device was removed, and all events were returned. Each peer has
    ///   ended with [`Event::Failed`], its sends and operations with this error.
    /// - [`Error::NoDriver`]: a task awaits it, and there is no [driver](super::Hub#drivers).
    #[doc(alias = "wait")]
    #[doc(alias = "wait_timeout")]
    #[doc(alias = "poll_next")]
    #[expect(clippy::should_implement_trait, reason = "a stream of futures is no `Iterator`")]
    pub fn next(&mut self) -> Next<'_, B, P> {
        Next { server: self }
    }

    /// Takes the next event if there is one.
    fn take_event(&mut self) -> Option<Result<Event<B, P>>> {
        let inner = &self.handle.inner;
        inner.collect();
        // Before the events are taken: the events of a peer are queued before it is removed.
        let is_ending = self.is_client || inner.ending.load(Ordering::SeqCst);
        let is_over = is_ending && !lock(&inner.peers).iter().any(Entry::is_open);
        if let Some(event) = inner.inbound.pop() {
            return Some(Ok(self.event(event)));
        }
        if !is_over {
            return None;
        }
        Some(match mem::replace(&mut self.ended, true) {
            false => Ok(Event::Ended),
            true if self.is_client => {
                Err(Error::Closed { verb: "Client::next", reason: "the client has ended" })
            }
            true => Err(Error::Closed { verb: "Server::next", reason: "the server has ended" }),
        })
    }

    fn event(&self, event: RawEvent<P>) -> Event<B, P> {
        let inner = &self.handle.inner;
        match event {
            RawEvent::Message { conn, receive, len } => {
                let peer = inner.get(conn.id.into());
                Event::Message(Message::new(conn, peer.as_ref(), Arc::clone(&inner.inbound), receive, len))
            }
            RawEvent::Closed(id) => Event::Closed(id),
            RawEvent::Failed(id, failure) => {
                let mut panics = FirstPanic::default();
                panics.catch(|| inner.remove(id));
                if panics.caught() {
                    // The next call returns it.
                    inner.inbound.put_back(RawEvent::Failed(id, failure));
                    panics.resume();
                }
                Event::Failed(id, failure.into())
            }
        }
    }
}

impl<B: Source, P: Provider> Handle<B, P> {
    /// The protection domain of the server, in which the buffers that it sends are registered.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        self.inner.hub.pd()
    }

    /// Takes a buffer for a message. `None` if all are in use: by sends, detached or not, that are not
    /// complete, or by buffers that the program holds; or if callers of [`acquire`](Self::acquire) wait.
    #[must_use]
    pub fn take(&self) -> Option<PoolBuffer> {
        let Inner { inbound, hub, .. } = &*self.inner;
        let pool = &inbound.pool;
        // Buffers of sends are free when their completions are reaped.
        pool.take().or_else(|| {
            hub.poll(BATCH);
            pool.take()
        })
    }

    /// Connects to the client at `remote`. Returns the peer's id, and the local address, to
    /// which the client must connect.
    ///
    /// On RoCE it blocks while the kernel resolves the client's address, for at most
    /// [`ServerOptions::resolve_timeout`] and one second. In a task, call it in the runtime's
    /// `spawn_blocking`.
    ///
    /// # Errors
    /// - [`Error::Closed`]: the server drains or was shut down.
    /// - [`Error::FlowControlVersion`]: the client has another version of the flow control.
    /// - [`Error::Invalid`]: the server has its number of peers, or `remote` is the address of a QP
    ///   without flow control, such as an [`Endpoint`](super::Endpoint).
    /// - [`Error::Kernel`]: the client is unreachable, or a command of the setup failed.
    pub fn admit(&self, remote: &Address) -> Result<(PeerId, Address)> {
        let (id, local) = self.open("Handle::admit")?;
        match self.connect("Handle::admit", id, remote) {
            Ok(()) => Ok((id, local)),
            Err(error) => {
                self.inner.remove(id);
                Err(error)
            }
        }
    }

    fn open(&self, verb: &'static str) -> Result<(PeerId, Address)> {
        let inner = &self.inner;
        inner.collect();
        let id = {
            let peers = lock(&inner.peers);
            let free = (0..).zip(&*peers).find(|(_, entry)| entry.is_free());
            inner.check_admits(verb)?;
            let Some((index, entry)) = free else {
                let reason = format!(
                    "all {} peers of `ServerOptions::peers` are connected, or their messages are not dropped",
                    peers.len()
                );
                return Err(Error::invalid(verb, reason));
            };
            PeerId { index, generation: entry.generation }
        };
        let peer = inner.connection(id)?;
        let local = peer.address();
        let mut peers = lock(&inner.peers);
        let entry = &mut peers[id.index as usize];
        // `shutdown` and `drain` close the peers that they find behind this lock.
        if let Err(error) = inner.check_admits(verb) {
            drop(peers);
            return Err(error);
        }
        if entry.peer.is_some() || entry.generation != id.generation {
            drop(peers);
            // Another thread took the entry meanwhile.
            drop(peer);
            return self.open(verb);
        }
        (entry.peer, entry.previous) = (Some(peer), None);
        Ok((id, local))
    }

    fn connect(&self, verb: &'static str, id: PeerId, remote: &Address) -> Result<()> {
        let Some(peer) = self.inner.get(id) else { return Err(closed(verb)) };
        if remote.flow_control == 0 {
            let reason = "the address is not that of a `Server` or `Client`, such as that of an `Endpoint`";
            return Err(Error::invalid(verb, reason));
        }
        if remote.flow_control != flow::VERSION {
            return Err(Error::FlowControlVersion { verb, own: flow::VERSION, peer: remote.flow_control });
        }
        if remote.recvs == 0 || remote.recvs > flow::MAX_WINDOW {
            return Err(Error::invalid(verb, "`recvs` of the address is 0 or too large"));
        }
        let is_open = |state: &ConnState<P, Peers<P>>| !state.service.flow.is_unused();
        peer.inner.connect(verb, remote, is_open, |state| {
            state.service.max_message = remote.max_message;
            state.service.flow.connected(remote.recvs);
        })?;
        // It posts the messages that were queued before.
        self.inner.update(&peer, |_| ());
        Ok(())
    }

    /// Sends the bytes of `buffer` in `range` to `peer`: [`post`](Self::post) of [`Op::send`]. If the
    /// peer has no receive for it, the message waits in a queue of [`ServerOptions::sends`] messages.
    /// A full queue refuses the message, and so does a peer that drains ([`Error::Draining`]).
    pub fn send(&self, peer: PeerId, buffer: B, range: impl RangeBounds<usize>) -> PeerOperation<B, P> {
        self.post(peer, Op::send(buffer, range))
    }

    /// Posts a [message](Self::send), or a write, a read or an atomic operation on memory of `peer`. The
    /// peer sends the [`Remote`](crate::Remote) of its memory in a message.
    ///
    /// ```
    /// use bareverbs::Op;
    ///
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let (server, peer, _client) = example::server(&pd)?;
    /// # let memory = example::exposed(&pd, 128)?;
    /// # let (handle, value, flag) = (server.handle(), memory.remote(0)?, memory.remote(64)?);
    /// let room = handle.take().expect("a buffer");
    /// let value = handle.post(peer, Op::read(room, ..64, value)).wait()?.into_buffer();
    /// println!("{:?}", &value.bytes()[..64]);
    /// // It needs `ServerOptions::inline(8)`.
    /// handle.post(peer, Op::write_inline(&[1; 8], flag).fenced()).wait()?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// The buffers are those of [`take`](Self::take), of any [`Pool`](super::Pool) of the same
    /// [protection domain](Self::pd), or others of the type `B`. A message has a tag and no other
    /// option. Operations on memory have all options.
    ///
    /// Each peer has [`ServerOptions::operations`] of them at a time, apart from messages. An operation
    /// is executed in order with the messages that were sent before it, unless these wait for credits.
    /// One that fails, such as a write that the peer does not allow, ends the connection.
    ///
    /// [`ServerOptions::access`] of the peer allows it, and the memory of the peer: see
    /// [`RegionMut::expose`](super::RegionMut::expose). Memory that peers access must be exposed until
    /// [`Event::Closed`] or [`Event::Failed`] of each: earlier operations have ended then.
    ///
    /// Refused are inline messages, and sends and writes with immediate data ([`Error::Invalid`]).
    #[doc(alias = "send_tagged")]
    #[doc(alias = "write")]
    #[doc(alias = "read")]
    #[doc(alias = "fetch_add")]
    #[doc(alias = "compare_swap")]
    pub fn post<L: OpPayload<B>>(&self, peer: PeerId, op: Op<L>) -> PeerOperation<B, P> {
        match self.inner.get(peer) {
            Some(peer) => post::post(&peer, op),
            None => Pending::refused_op(closed("Handle::post"), op),
        }
    }

    /// Closes the connection to `peer` without loss: messages and operations on memory that were posted
    /// before are executed, and later ones are rejected. The peer sends its queued messages; then
    /// [`Event::Closed`] follows.
    pub fn close(&self, peer: PeerId) {
        if let Some(peer) = self.inner.get(peer) {
            self.inner.update(&peer, flow::FlowControl::close);
        }
    }

    /// Ends the connection to `peer` at once, for one that is known to be dead: its messages and
    /// operations fail, and [`Event::Failed`] follows.
    pub fn abort(&self, peer: PeerId) {
        if let Some(peer) = self.inner.get(peer) {
            let ConnectionInner { hub, conn, .. } = &*peer.inner;
            hub.end(conn, Failure::Aborted);
        }
    }

    /// Closes all connections as [`Handle::close`] does, and admits no more peers. It begins at
    /// once. The result is available when every peer has received all messages to it, or has
    /// failed.
    ///
    /// A [`Client::connect`] or [`Handle::admit`] that has not connected yet is refused, and messages
    /// that wait for its connection fail.
    ///
    /// Messages of the peers arrive meanwhile and afterwards: read them until [`Server::next`]
    /// returns [`Event::Ended`]. A peer without credits waits until earlier messages are dropped.
    pub fn shutdown(&self) -> Ending<B, P> {
        self.inner.closed.store(true, Ordering::Release);
        let mut panics = FirstPanic::default();
        self.inner.end(flow::FlowControl::close, &mut panics);
        // Without a peer that may have an event, the reader has reached its end. The waits for a buffer
        // have reached theirs.
        panics.catch(|| wake_all(self.inner.inbound.take_all_wakers()));
        panics.resume();
        Ending { inner: Arc::clone(&self.inner) }
    }

    /// Ends all connections after an answer to each message that has arrived or is on its way, and admits
    /// no more peers. It begins at once. The result is available when every peer has received all
    /// messages to it, or has failed.
    ///
    /// - The peers send no more messages. Those that they have not sent yet, and later ones, fail with
    ///   [`Error::Draining`] and [`Outcome::NotExecuted`](super::Outcome::NotExecuted). So each message
    ///   whose send succeeded is one that this end has.
    /// - The same is true of the peers' operations on memory of this end. So an answer can't name memory
    ///   for the peer to read: write the bytes into memory that the request named
    ///   ([`Handle::post`]), or send them in the answer.
    /// - Messages can be sent, operations be posted and buffers be waited for as before. A message counts
    ///   as answered when it is dropped or its buffer is taken: answer it before, as
    ///   [`Message::reply`] and [`Message::reply_in_place`] do.
    /// - A connection is closed when all messages of its peer are answered. [`Server::next`] returns
    ///   [`Event::Ended`] when all are.
    ///
    /// Messages that the program keeps, and peers that take no answers, delay the end:
    /// [`Ending::wait_timeout`] sets a limit, and [`Handle::shutdown`] afterwards gives up what is not
    /// answered.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # use bareverbs::server::{Event, Server};
    /// # let mut server = Server::options().build(&bareverbs_test_support::example::pd()?)?;
    /// # let handle = server.handle().clone();
    /// # std::thread::spawn(move || while !matches!(server.next().wait(), Ok(Event::Ended)) {});
    /// let summary = match handle.drain().wait_timeout(Duration::from_secs(10)).transpose()? {
    ///     Some(summary) => summary,
    ///     None => handle.shutdown().wait()?,
    /// };
    /// println!("{summary:?}");
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    pub fn drain(&self) -> Ending<B, P> {
        let mut panics = FirstPanic::default();
        self.inner.end(flow::FlowControl::drain, &mut panics);
        // Without a reader the application answers no message: the drain ends. It may be dropped now,
        // before it can see that the server ends.
        if self.inner.reader_dropped.load(Ordering::SeqCst) {
            self.inner.end(flow::FlowControl::close, &mut panics);
        }
        // Without a peer that may have an event, the reader has reached its end.
        panics.catch(|| wake_all(self.inner.inbound.take_wakers()));
        panics.resume();
        Ending { inner: Arc::clone(&self.inner) }
    }

    /// Probes each peer now by an RDMA write of length 0 (on iWARP a read), unless an earlier probe is
    /// outstanding. A dead peer ends with [`Event::Failed`] after the retries.
    ///
    /// Waits and the driver do this every few seconds, as
    /// [`ServerOptions::keepalive`](ServerOptions::keepalive) says.
    #[doc(alias = "keepalive")]
    pub fn probe(&self) {
        self.inner.collect();
        self.inner.hub.inner.sweep(None);
    }

    /// The ids of the connected peers.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerId> {
        self.inner.collect();
        let peers = lock(&self.inner.peers);
        let peers = (0..).zip(&*peers).filter(|(_, entry)| entry.peer.is_some());
        peers.map(|(index, entry)| PeerId { index, generation: entry.generation }).collect()
    }

    /// A driver, as [`Hub::drive`] returns it.
    ///
    /// # Errors
    /// As for [`Hub::drive`].
    pub fn drive(&self, runtime: impl Runtime) -> Result<Driver<B, P, Peers<P>>> {
        self.inner.hub.drive(runtime)
    }

    /// Starts a thread that drives the server, as [`Hub::spawn_driver_thread`] does.
    ///
    /// # Errors
    /// As for [`Hub::spawn_driver_thread`].
    pub fn spawn_driver_thread(&self) -> Result<()> {
        self.inner.hub.spawn_driver_thread()
    }
}

/// The next event of a server or client, from [`Server::next`] or [`Client::next`], which a task awaits
/// or a thread [waits for](Self::wait).
///
/// Dropping it loses no event.
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct Next<'s, B: Source = PoolBuffer, P: Provider = AnyProvider> {
    server: &'s mut Server<B, P>,
}

impl<B: Source, P: Provider> Next<'_, B, P> {
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<Event<B, P>>> {
        let inner = Arc::clone(&self.server.handle.inner);
        let register = |cx: &Context<'_>| inner.inbound.register_reader(cx);
        inner.poll_by(caller, "Server::next", register, || self.server.take_event())
    }
}

waits!([B: Source, P: Provider] Next<'_, B, P> => Result<Event<B, P>>);

/// The end of a server, from [`Handle::shutdown`] or [`Handle::drain`], which a task awaits or a thread
/// [waits for](Self::wait): the peers have received everything, or have failed, and all messages are
/// counted. It continues if this is dropped.
#[doc(alias = "Shutdown")]
#[must_use = "await it for the summary"]
pub struct Ending<B, P: Provider = AnyProvider> {
    inner: Arc<Inner<B, P>>,
}

impl<B, P: Provider> Ending<B, P> {
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<Summary>> {
        let register = |cx: &Context<'_>| self.inner.inbound.register_shutdown(cx);
        let summary = || self.inner.is_delivered().then(|| Ok(self.inner.inbound.summary()));
        self.inner.poll_by(caller, "Ending::wait", register, summary)
    }
}

waits!([B, P: Provider] Ending<B, P> => Result<Summary>);

// It contains no pinned values.
impl<B, P: Provider> Unpin for Ending<B, P> {}

/// The other end of a peer of a [`Server`]. See the [module](self).
pub struct Client<B: Source = PoolBuffer, P: Provider = AnyProvider> {
    server: Server<B, P>,
    id: PeerId,
    address: Address,
}

impl<B: Source, P: Provider> Client<B, P> {
    /// The address of the client, for [`Handle::admit`].
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// The handle that sends, probes and drives.
    #[must_use]
    pub fn handle(&self) -> &Handle<B, P> {
        &self.server.handle
    }

    /// Connects to the address that [`Handle::admit`] returned. On RoCE it blocks while the kernel
    /// resolves the server's address, for at most [`ClientOptions::resolve_timeout`] and one second.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the client is connected, or `remote` is the address of a QP without flow
    ///   control, such as an [`Endpoint`](super::Endpoint).
    /// - [`Error::FlowControlVersion`]: the server has another version of the flow control.
    /// - [`Error::Closed`]: the client was shut down.
    /// - [`Error::Kernel`]: the server is unreachable, or the kernel rejects a transition.
    pub fn connect(&self, remote: &Address) -> Result<()> {
        self.server.handle.connect("Client::connect", self.id, remote)
    }

    /// Takes a buffer for a message, as [`Handle::take`] does.
    #[must_use]
    pub fn take(&self) -> Option<PoolBuffer> {
        self.handle().take()
    }

    /// Waits for a buffer for a message, as [`Handle::acquire`] does.
    ///
    /// # Errors
    /// [The errors of the wait](PendingBuffer#errors).
    pub fn acquire(&self) -> PendingBuffer<B, P> {
        self.handle().acquire()
    }

    /// Sends the bytes of `buffer` in `range` as [`Handle::send`] does.
    ///
    /// Before [`Client::connect`] the message waits for the connection. That wait has no limit of its
    /// own: [`Pending::wait_timeout`] sets one.
    pub fn send(&self, buffer: B, range: impl RangeBounds<usize>) -> PeerOperation<B, P> {
        self.server.handle.send(self.id, buffer, range)
    }

    /// Posts a message, or an operation on memory of the server, as [`Handle::post`] does.
    pub fn post<L: OpPayload<B>>(&self, op: Op<L>) -> PeerOperation<B, P> {
        self.server.handle.post(self.id, op)
    }

    /// The id of the server as the client's peer, for the client's [handle](Self::handle).
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// The next event, as that of [`Server::next`]. [`Event::Ended`] follows when the server has
    /// closed the connection and both ends have received everything, or when the connection has failed.
    ///
    /// # Errors
    /// As for [`Server::next`].
    #[doc(alias = "wait")]
    #[doc(alias = "wait_timeout")]
    #[expect(clippy::should_implement_trait, reason = "a stream of futures is no `Iterator`")]
    pub fn next(&mut self) -> Next<'_, B, P> {
        self.server.next()
    }

    /// Closes the connection without loss, as [`Handle::shutdown`] does.
    pub fn shutdown(&self) -> Ending<B, P> {
        self.server.handle.shutdown()
    }
}

impl<B: Source, P: Provider> Drop for Server<B, P> {
    fn drop(&mut self) {
        let inner = &self.handle.inner;
        inner.reader_dropped.store(true, Ordering::SeqCst);
        // The thread may unwind.
        let mut panics = FirstPanic::default();
        if inner.ending.load(Ordering::SeqCst) {
            // Without a reader the application answers no message: the drain ends.
            inner.end(flow::FlowControl::close, &mut panics);
        }
        // The waits for a buffer have reached their end.
        panics.catch(|| wake_all(inner.inbound.pool.take_wakers()));
        panics.resume();
    }
}

impl<B: Source, P: Provider> Clone for Handle<B, P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

debug! {
    it: "Server" [B: Source, P: Provider] Server<B, P> { peers = it.handle.peers() }
    it: "Handle" [B: Source, P: Provider] Handle<B, P> { peers = it.peers() }
    it: "Client" [B: Source, P: Provider] Client<B, P> { address = it.address }
    it: "Next" [B: Source, P: Provider] Next<'_, B, P> { server = it.server }
    it: "Ending" [B, P: Provider] Ending<B, P> { summary = it.inner.inbound.summary() }
}

#[cfg(all(test, not(loom)))]
mod tests;
