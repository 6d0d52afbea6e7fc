//! Operations of a hub that are awaited.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bareverbs_provider::traits::Provider;

use super::hub::NotTaken;
use super::hub::connection::ConnectionInner;
use super::hub::reaper::{BATCH, ConnFailure, HubOp, HubOps, OpCompletion, SlotKind, TAKEN_BACK};
use super::hub::service::Service;
use super::hub::table::Detached;
use super::op::OpPayload;
use super::{Completed, Done, Failed, Op, Outcome};
use crate::wait::{Caller, waits};
use crate::{AnyProvider, Error, Result, WcStatus};

/// An operation of a [`Connection`](super::Connection): posted, and to be awaited.
///
/// Tasks await it as a future; [`wait`](Self::wait) and [`wait_timeout`](Self::wait_timeout) block
/// a thread. Success and failure return the buffer.
///
/// If the post was refused, it is ready at once, with the error and the buffer.
///
/// One await in 128 of a hub lets other tasks run, even if its operation is complete.
///
/// # Dropping it
///
/// Dropping it does not end the operation, because no device can take a request back. The hub keeps
/// the buffer until the completion and then drops it: a [`PoolBuffer`](super::PoolBuffer) goes back to
/// its pool. So it can be dropped at any time, by `select!`, a timeout or the end of a task. To keep
/// the result, await it by reference: `timeout(limit, &mut pending)`.
///
/// `mem::forget` costs one operation of the depth of the connection, and keeps the QP until
/// the process ends.
///
/// # Without a driver
///
/// A task needs a [driver](super::Hub#drivers) of the hub that wakes it. Without one, polling
/// returns [`Error::NoDriver`] unless the result is there. The operation continues: the
/// `Pending` can be polled again or waited for. A blocked thread needs no driver.
///
/// # Device removal
///
/// Drivers and blocked threads notice that the device was removed. Then all operations of the hub fail
/// with [`Error::DeviceRemoved`] and their buffers, and [`Connection::failure`] is that error. Calls of
/// [`Hub::poll`] notice nothing by themselves.
///
/// [`Connection::failure`]: super::Connection::failure
/// [`Hub::poll`]: super::Hub::poll
#[must_use = "the operation continues; its result is lost unless it is awaited"]
pub struct Pending<B, P: Provider = AnyProvider, S: Service<P> = ()> {
    /// The connection, until the result is taken. `None` if the operation was refused.
    peer: Option<Arc<ConnectionInner<B, P, S>>>,
    wr_id: u64,
    /// Whether it was polled before its end, and may have a waker.
    polled: bool,
    /// The error of a refused post, until it is taken. During a poll also the result of the slow path: if
    /// a function returned it, the result of the fast path would be in the same memory.
    result: Option<Completed<B>>,
}

// The table holds the buffer, or it is returned by value: it is never pinned.
impl<B, P: Provider, S: Service<P>> Unpin for Pending<B, P, S> {}

impl<B, P: Provider, S: Service<P>> Pending<B, P, S> {
    pub(super) fn posted(peer: Arc<ConnectionInner<B, P, S>>, wr_id: u64) -> Self {
        Self { peer: Some(peer), wr_id, polled: false, result: None }
    }

    #[cold]
    pub(super) fn refused(error: Error, buffer: Option<B>, tag: u64) -> Self {
        Self::refused_in(SlotKind::Send, error, buffer, tag)
    }

    /// Refuses an operation of the kind.
    #[cold]
    pub(super) fn refused_in(kind: SlotKind, error: Error, buffer: Option<B>, tag: u64) -> Self {
        Self { peer: None, wr_id: 0, polled: false, result: Some(Err(refused(kind, error, buffer, tag))) }
    }

    #[cold]
    pub(super) fn refused_op<L: OpPayload<B>, O>(kind: SlotKind, error: Error, op: Op<L, O>) -> Self {
        let (buffer, Op { tag, .. }) = op.split();
        Self::refused_in(kind, error, buffer, tag)
    }

    /// Takes the connection, if it is posted. The operation continues.
    pub(super) fn take_peer(&mut self) -> Option<Arc<ConnectionInner<B, P, S>>> {
        self.peer.take()
    }

    /// The `wr_id`, if it is posted.
    pub(super) fn wr_id(&self) -> Option<u64> {
        self.peer.is_some().then_some(self.wr_id)
    }

    /// The error of a refused post.
    #[cfg(feature = "futures")]
    pub(super) fn into_refused(mut self) -> Result<Failed<B>, Self> {
        match self.result.take() {
            Some(Err(refused)) => Ok(refused),
            _ => Err(self),
        }
    }

    /// Discards the result, as dropping it does.
    pub fn detach(self) {}

    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Completed<B>> {
        match self.poll_first() {
            Ok(done) => Poll::Ready(Ok(done)),
            Err(_) => self.poll_rest(caller),
        }
    }

    fn take_refused(&mut self) -> Completed<B> {
        let taken = || Error::invalid("Pending::wait", "its result was taken before").into();
        self.result.take().unwrap_or_else(|| Err(taken()))
    }

    /// Takes the operation if it was not polled before and the next completion is its success.
    #[inline(always)]
    fn poll_first(&mut self) -> Result<Done<B>, NotTaken> {
        let Some(peer) = self.peer.as_ref().filter(|_| !self.polled) else { return Err(NotTaken::Slow) };
        let (operation, ended) = peer.hub.poll_own(self.wr_id)?;
        peer.conn.put_slot(operation.kind, HubOps::<B>::index(self.wr_id));
        // The last handle of a connection destroys its QP.
        self.peer = None;
        Ok(done(operation, ended))
    }

    /// Polls on the slow path, and leaves the result in `result`.
    #[cold]
    #[inline(never)]
    fn poll_slow(&mut self, yields: bool, cx: &Context<'_>) {
        if yields {
            cx.waker().wake_by_ref();
        } else if let Poll::Ready(result) = self.poll_rest(Caller::Task(cx.waker())) {
            self.result = Some(result);
        }
    }

    fn poll_rest(&mut self, caller: Caller<'_>) -> Poll<Completed<B>> {
        match caller {
            Caller::Task(waker) => self.poll_task(&Context::from_waker(waker)),
            Caller::Thread(end) => self.poll_thread(end),
        }
    }

    fn poll_task(&mut self, cx: &Context<'_>) -> Poll<Completed<B>> {
        let polled = self.poll_again(cx);
        match &self.peer {
            Some(peer) if polled.is_pending() && !peer.hub.election.has_driver() => {
                let error = peer.hub.no_driver("Pending::wait");
                // A driver that ends because the device was removed has ended the operation before.
                let polled = self.poll_again(cx);
                if polled.is_pending() { Poll::Ready(Err(error.into())) } else { polled }
            }
            _ => polled,
        }
    }

    fn poll_thread(&mut self, end: Option<Instant>) -> Poll<Completed<B>> {
        // Most results are there or in the CQ.
        let polled = self.poll_again(&Context::from_waker(Waker::noop()));
        match &self.peer {
            Some(peer) if polled.is_pending() => {
                let hub = Arc::clone(&peer.hub);
                hub.poll_by(Caller::Thread(end), "Pending::wait", |cx| self.poll_again(cx))
            }
            _ => polled,
        }
    }

    /// Takes the result of an operation that may have ended, or registers the task and helps to reap.
    #[inline(never)]
    fn poll_again(&mut self, cx: &Context<'_>) -> Poll<Completed<B>> {
        let (Some(peer), wr_id) = (&self.peer, self.wr_id) else {
            return Poll::Ready(self.take_refused());
        };
        // The first poll has reaped, unless it was to yield: then the caller polls again.
        if mem::replace(&mut self.polled, true) && peer.hub.table.is_in_flight(wr_id) {
            peer.hub.poll(BATCH);
        }
        // A completion that arrives from now on raises an event: a driver or a blocked thread reaps
        // it, and finds the waker.
        let polled = peer.hub.table.poll(wr_id, cx);
        let Poll::Ready(ended) = polled else { return Poll::Pending };
        if let Some((operation, _)) = &ended {
            peer.conn.put_slot(operation.kind, HubOps::<B>::index(wr_id));
        }
        let Some(peer) = self.peer.take() else { return Poll::Ready(self.take_refused()) };
        let result = match ended {
            Some((operation, completion)) => finished(&peer, operation, completion),
            None => Err(Error::Closed { verb: "Pending::wait", reason: "the connection was closed" }.into()),
        };
        // The last handle of a connection destroys its QP.
        drop(peer);
        Poll::Ready(result)
    }
}

/// The result of an operation that has succeeded.
#[inline(always)]
fn done<B>(operation: HubOp<B>, ended: OpCompletion) -> Done<B> {
    let HubOp { buffer, posted_by, kind, tag, len } = operation;
    if kind != SlotKind::Recv {
        return Done { tag, buffer, len, imm: None, opcode: posted_by.opcode };
    }
    let OpCompletion { opcode, byte_len, imm, .. } = ended;
    Done { tag, buffer, len: byte_len, imm, opcode }
}

/// The error of an operation that was not posted.
#[cold]
fn refused<B>(kind: SlotKind, error: Error, buffer: Option<B>, tag: u64) -> Failed<B> {
    let (outcome, recv) = (Outcome::NotExecuted, kind == SlotKind::Recv);
    Failed { operation: true, error, tag, buffer, outcome, cause: None, recv, ended_here: false }
}

fn finished<B, P: Provider, S: Service<P>>(
    peer: &ConnectionInner<B, P, S>,
    operation: HubOp<B>,
    ended: OpCompletion,
) -> Completed<B> {
    if ended.status == WcStatus::SUCCESS {
        return Ok(done(operation, ended));
    }
    let HubOp { buffer, posted_by, kind, tag, .. } = operation;
    let verb = posted_by.verb;
    let ConnectionInner { hub, conn, .. } = peer;
    let OpCompletion { status, vendor_err, .. } = ended;
    if status == TAKEN_BACK {
        return Err(refused(kind, hub.service().taken_back(verb), buffer, tag));
    }
    let completion =
        |link_down| Error::Completion { verb, status, vendor_err, driver: conn.driver, link_down };
    let (error, cause, ended_here) = match conn.lock().failure {
        Some(ConnFailure::DeviceRemoved) => (Error::DeviceRemoved { verb }, None, false),
        Some(ConnFailure::Completion { status, link_down, .. }) => {
            (completion(link_down), Some(status), false)
        }
        failure => (completion(None), None, matches!(failure, Some(ConnFailure::Aborted))),
    };
    let recv = kind == SlotKind::Recv;
    let outcome = Outcome::of(status);
    Err(Failed { operation: true, error, tag, buffer, outcome, cause, recv, ended_here })
}

waits!(threads [B, P: Provider, S: Service<P>] Pending<B, P, S> => Completed<B>);

impl<B, P: Provider, S: Service<P>> Future for Pending<B, P, S> {
    type Output = Completed<B>;

    /// Cancel-safe: see [dropping it](Pending#dropping-it).
    // It is inlined, so that a completion that is there is returned in registers. The slow path has all
    // that the fast path does not need.
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let yields = match this.poll_first() {
            Ok(done) => return Poll::Ready(Ok(done)),
            Err(NotTaken::Yield) => true,
            Err(NotTaken::Slow) => false,
        };
        this.poll_slow(yields, cx);
        this.result.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<B, P: Provider, S: Service<P>> Drop for Pending<B, P, S> {
    fn drop(&mut self) {
        let Some(peer) = &self.peer else { return };
        if let Detached::Ended(operation, _) = peer.hub.table.detach(self.wr_id) {
            peer.conn.put_slot(operation.kind, HubOps::<B>::index(self.wr_id));
        }
    }
}

impl<B, P: Provider, S: Service<P>> fmt::Debug for Pending<B, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (&self.peer, &self.result) {
            (Some(_), _) => "posted",
            (None, Some(_)) => "refused",
            (None, None) => "taken",
        };
        f.debug_tuple("Pending").field(&state).finish()
    }
}
