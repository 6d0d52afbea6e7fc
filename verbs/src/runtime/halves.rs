//! Halves of an endpoint as a stream of received messages and a sink of sent ones (feature `futures`).

use std::pin::Pin;
use std::task::{Context, Poll};

use bareverbs_provider::traits::Provider;
use futures_core::Stream;
use futures_sink::Sink;

use super::{EndpointReceiver, EndpointSender};
use crate::Result;
use crate::owned::{Done, Failed, Op, Source};
use crate::readiness::sealed::Readiness;

/// The results of the receives, in order. The stream ends when no receive is posted; after another post
/// it continues. It sleeps at once, without the polling of [`Spin`](crate::owned::Spin).
impl<R: Readiness, B, P: Provider> Stream for EndpointReceiver<R, B, P> {
    type Item = Result<Done<B>, Failed<B>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.half.pending() == 0 {
            return Poll::Ready(None);
        }
        this.poll_ended(cx).map(Some)
    }
}

/// Messages that are sent. An item is a buffer, and the number of its bytes that are sent.
///
/// The sink is ready while the send queue has room. Flushing waits until the peer's device has
/// acknowledged all operations of the half; closing does the same, and does not end the connection. Both
/// take the results of all operations of the half. Their buffers are dropped; an error returns the buffer
/// of its operation. It sleeps at once, without the polling of [`Spin`](crate::owned::Spin).
impl<R: Readiness, B: Source, P: Provider> Sink<(B, usize)> for EndpointSender<R, B, P> {
    type Error = Failed<B>;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failed<B>>> {
        let this = self.get_mut();
        // A failed connection has no room: `start_send` returns its error.
        while !this.half.has_room() && this.half.pending() > 0 {
            match this.poll_ended(cx) {
                Poll::Ready(ended) => drop(ended?),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, (buffer, len): (B, usize)) -> Result<(), Failed<B>> {
        Ok(self.get_mut().post(Op::send(buffer, ..len))?)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failed<B>>> {
        let this = self.get_mut();
        while this.half.pending() > 0 {
            match this.poll_ended(cx) {
                Poll::Ready(ended) => drop(ended?),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Failed<B>>> {
        self.poll_flush(cx)
    }
}
