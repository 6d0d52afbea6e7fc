//! Events of a server.

use std::fmt;
use std::mem;
use std::ops::RangeBounds;
use std::sync::{Arc, Weak};

use bareverbs_provider::traits::Provider;

use super::post::post;
use super::reap::inbound::{Inbound, Receive};
use super::reap::{PeerConn, Peers, pump};
use super::{PeerId, PeerOperation};
use crate::debug::debug;
use crate::owned::hub::connection::Connection;
use crate::owned::hub::connection_inner::ConnectionInner;
use crate::owned::hub::reaper::BATCH;
use crate::owned::{Op, Pending, PoolBuffer, Source};
use crate::{AnyProvider, Error};

/// An event of a [`Server`](super::Server) or a [`Client`](super::Client).
#[non_exhaustive]
pub enum Event<B: Source = PoolBuffer, P: Provider = AnyProvider> {
    /// A message.
    Message(Message<B, P>),
    /// The connection to the peer failed. Its operations fail; the other peers are unaffected. It
    /// follows the last message of the peer.
    Failed(PeerId, Error),
    /// The peer sends no more messages: it has closed the connection, or answers to
    /// [`close`](super::Handle::close). It follows the last message of the peer.
    Closed(PeerId),
    /// The last event: all peers have ended. Of a server, it follows `shutdown` or `drain`. Of a client,
    /// it follows the end of its connection.
    Ended,
}

/// A message. Dropping it gives its buffer back to the receives, and permits the peer to send
/// another one.
///
/// An echo needs no copy:
///
/// ```
/// use bareverbs::server::{Event, Server};
///
/// # fn echo(mut server: Server) -> bareverbs::Result<()> {
/// loop {
///     match server.next().wait()? {
///         Event::Message(mut message) => {
///             message.bytes_mut().make_ascii_uppercase();
///             let len = message.bytes().len();
///             message.reply_in_place(..len).detach();
///         }
///         Event::Ended => return Ok(()),
///         _ => {}
///     }
/// }
/// # }
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let (server, _, mut client) = example::server(&pd)?;
/// # client.send(client.take().expect("a buffer"), ..5).detach();
/// # std::thread::spawn(move || while !matches!(client.next().wait(), Ok(Event::Ended) | Err(_)) {});
/// # server.handle().shutdown();
/// # echo(server)?;
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// `mem::forget` costs one message of the peer's window. After the peer has ended, its place in
/// [`ServerOptions::peers`](super::ServerOptions::peers) is free when all its messages are dropped.
pub struct Message<B: Source = PoolBuffer, P: Provider = AnyProvider> {
    conn: Arc<PeerConn<P>>,
    /// `Weak`, so that a message does not keep a connection.
    peer: Weak<ConnectionInner<B, P, Peers<P>>>,
    inbound: Arc<Inbound<P>>,
    /// `None` once its buffer was taken.
    receive: Option<Receive>,
    len: usize,
}

impl<B: Source, P: Provider> Message<B, P> {
    pub(super) fn new(
        conn: Arc<PeerConn<P>>,
        peer: Option<&Connection<B, P, Peers<P>>>,
        inbound: Arc<Inbound<P>>,
        receive: Receive,
        len: usize,
    ) -> Self {
        let peer = peer.map_or_else(Weak::new, |peer| Arc::downgrade(&peer.inner));
        Self { conn, peer, inbound, receive: Some(receive), len }
    }

    /// The message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.receive.as_ref().map_or(&[], |receive| &receive.buffer.bytes()[..self.len])
    }

    /// The sender.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.conn.id.into()
    }

    /// The message, mutable, for an answer in the same buffer.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.receive.as_mut().map_or(&mut [], |receive| &mut receive.buffer.bytes_mut()[..self.len])
    }

    /// Sends a message to the sender of this one, as [`Handle::send`](super::Handle::send) does.
    pub fn reply(&self, buffer: B, range: impl RangeBounds<usize>) -> PeerOperation<B, P> {
        match self.peer.upgrade() {
            Some(peer) => post(&Connection { inner: peer }, Op::send(buffer, range)),
            None => Pending::refused(super::closed("Message::reply"), Some(buffer), 0),
        }
    }

    /// Takes the buffer of the message. It has the message size of this end; the message is at its
    /// start.
    ///
    /// A buffer of [`Handle::take`](super::Handle::take) replaces it among the receives, and permits the
    /// peer to send another message. If all are in use, or callers of
    /// [`Handle::acquire`](super::Handle::acquire) wait, the peer must wait until the buffer is dropped,
    /// as if the message was kept. A buffer that an operation uses is dropped with its result.
    #[must_use]
    pub fn into_pool_buffer(mut self) -> PoolBuffer {
        self.take_buffer()
    }

    /// Takes the buffer. It is called once.
    fn take_buffer(&mut self) -> PoolBuffer {
        let inbound = &self.inbound;
        // Reaping may run a waker that panics: `Drop` posts the receive then.
        let spare = inbound.pool.take().or_else(|| {
            // Buffers of sends are free when their completions are reaped.
            self.peer.upgrade()?.hub.poll(BATCH);
            inbound.pool.take()
        });
        let Some(mut receive) = self.receive.take() else {
            unreachable!("it is called before `Drop`, and consumes the message");
        };
        let Some(spare) = spare else { return inbound.lend(&self.conn, receive) };
        let buffer = mem::replace(&mut receive.buffer, spare);
        // `Drop` posts it, and returns the credit.
        self.receive = Some(receive);
        buffer
    }
}

impl<B: Source + From<PoolBuffer>, P: Provider> Message<B, P> {
    /// Sends the bytes of the message's buffer in `range` to its sender, without a copy. The range may
    /// be longer than the message: the buffer has the message size of this end. The bytes behind the
    /// message may be those of an earlier message, also of another peer. For an answer that is longer
    /// than the request, use a buffer of [`Handle::acquire`](super::Handle::acquire) and
    /// [`Message::reply`].
    ///
    /// Another buffer replaces it among the receives, as [`Message::into_pool_buffer`] describes.
    pub fn reply_in_place(mut self, range: impl RangeBounds<usize>) -> PeerOperation<B, P> {
        let buffer = self.take_buffer();
        // The message is dropped afterwards: its credit goes with the next message.
        self.reply(buffer.into(), range)
    }
}

impl<B: Source, P: Provider> Drop for Message<B, P> {
    fn drop(&mut self) {
        let Some(receive) = mem::take(&mut self.receive) else { return };
        // A forked child does not inherit the rings. The parent has the receive, too.
        if !self.inbound.is_of_this_process() {
            mem::forget(receive);
            return;
        }
        // The receive is posted before the credit is sent.
        self.inbound.post_again(receive);
        let peer = self.peer.upgrade();
        let pumped = {
            let mut state = self.conn.lock();
            state.service.flow.released();
            // Without the peer, its QP is destroyed.
            peer.as_ref().map_or(Ok(()), |peer| pump(&self.conn, &mut state, &peer.hub.table))
        };
        if let Err(failure) = pumped
            && let Some(peer) = peer
        {
            peer.hub.end(&peer.conn, failure);
        }
    }
}

impl<B: Source, P: Provider> fmt::Debug for Event<B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(message) => f.debug_tuple("Message").field(message).finish(),
            Self::Failed(peer, error) => f.debug_tuple("Failed").field(peer).field(error).finish(),
            Self::Closed(peer) => f.debug_tuple("Closed").field(peer).finish(),
            Self::Ended => f.write_str("Ended"),
        }
    }
}

debug! {
    it: "Message" [B: Source, P: Provider] Message<B, P> { peer = it.peer(), len = it.len }
}
