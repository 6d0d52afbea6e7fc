//! Streams of events and sinks of messages (feature `futures`).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bareverbs_provider::traits::Provider;
use futures_core::Stream;
use futures_sink::Sink;

use super::{Client, Event, Handle, PeerId, PeerOperation, Server};
use crate::debug::debug;
use crate::owned::{Failed, PoolBuffer, Source};
use crate::{AnyProvider, Error, Result};

impl<B: Source, P: Provider> Stream for Server<B, P> {
    type Item = Result<Event<B, P>>;

    /// The events before [`Event::Ended`].
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.get_mut().next()).poll(cx).map(|event| match event {
            Ok(Event::Ended) => None,
            event => Some(event),
        })
    }
}

impl<B: Source, P: Provider> Stream for Client<B, P> {
    type Item = Result<Event<B, P>>;

    /// As that of [`Server`].
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.get_mut().server).poll_next(cx)
    }
}

/// A sink of messages to a peer, from [`Handle::sink`]. An item is a buffer, and the number of its
/// bytes that are sent.
///
/// It is ready while fewer than [`ServerOptions::sends`](super::ServerOptions::sends) of its
/// messages are outstanding. It should be the only sender to its peer: `start_send` fails if other
/// senders fill the queue. Flushing waits until the peer's device has acknowledged the messages.
/// Closing also [closes the connection](Handle::close).
///
/// The buffers of sent messages are dropped. An error returns the buffer of its message, except
/// [`Error::NoDriver`]: the message is outstanding, and a later call returns its result.
pub struct MessageSink<B: Source = PoolBuffer, P: Provider = AnyProvider> {
    handle: Handle<B, P>,
    peer: PeerId,
    /// Outstanding messages, the oldest first.
    pending: VecDeque<PeerOperation<B, P>>,
    limit: usize,
}

impl<B: Source, P: Provider> Handle<B, P> {
    /// A sink of messages to `peer`.
    #[must_use]
    pub fn sink(&self, peer: PeerId) -> MessageSink<B, P> {
        let limit = self.inner.options.sends as usize;
        MessageSink { handle: self.clone(), peer, pending: VecDeque::with_capacity(limit), limit }
    }
}

impl<B: Source, P: Provider> MessageSink<B, P> {
    /// Takes the results of messages until fewer than `left` are outstanding.
    fn poll_fewer(&mut self, cx: &mut Context<'_>, left: usize) -> Poll<Result<(), Failed<B>>> {
        while self.pending.len() >= left {
            let Some(oldest) = self.pending.front_mut() else { break };
            match Pin::new(oldest).poll(cx) {
                Poll::Pending => return Poll::Pending,
                // The message is outstanding: a later call finds its result.
                Poll::Ready(Err(failed)) if matches!(failed.error, Error::NoDriver { .. }) => {
                    return Poll::Ready(Err(failed));
                }
                Poll::Ready(result) => {
                    self.pending.pop_front();
                    drop(result?);
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<B: Source, P: Provider> Sink<(B, usize)> for MessageSink<B, P> {
    type Error = Failed<B>;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failed<B>>> {
        let this = self.get_mut();
        this.poll_fewer(cx, this.limit)
    }

    fn start_send(self: Pin<&mut Self>, (buffer, len): (B, usize)) -> Result<(), Failed<B>> {
        let this = self.get_mut();
        let sent = this.handle.send(this.peer, buffer, ..len);
        match sent.into_refused() {
            Ok(failed) => Err(failed),
            Err(pending) => {
                this.pending.push_back(pending);
                Ok(())
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failed<B>>> {
        self.get_mut().poll_fewer(cx, 1)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failed<B>>> {
        let this = self.get_mut();
        this.handle.close(this.peer);
        this.poll_fewer(cx, 1)
    }
}

// The buffers are in the table of the hub.
impl<B: Source, P: Provider> Unpin for MessageSink<B, P> {}

debug! {
    it: "MessageSink" [B: Source, P: Provider] MessageSink<B, P> {
        peer = it.peer, pending = it.pending.len()
    }
}
