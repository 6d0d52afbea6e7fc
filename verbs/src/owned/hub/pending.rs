//! Operations of a hub that are awaited.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bareverbs_provider::traits::Provider;
use bareverbs_provider::wake::wake_all;

use super::connection_inner::ConnectionInner;
use super::reaper::service::Service;
use super::reaper::{BATCH, Conn, Cqe, Failure, OpEntry, OpTable, SlotKind, TAKEN_BACK};
use super::{HubInner, NotTaken};
use crate::owned::operation::OpPayload;
use crate::owned::{Completed, Done, Failed, Op, Outcome};
use crate::wait::{Caller, waits};
use crate::{AnyProvider, Error, Result, WcStatus};

/// An operation of a [`Connection`](crate::owned::Connection): posted, and to be awaited.
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
/// the buffer until the completion and then drops it: a [`PoolBuffer`](crate::owned::PoolBuffer)
/// goes back to its pool. So it can be dropped at any time, by `select!`, a timeout or the end of a
/// task. To keep the result, await it by reference: `timeout(limit, &mut pending)`.
///
/// `mem::forget` costs one operation of the depth of the connection, and keeps the QP until
/// the process ends.
///
/// # Without a driver
///
/// A task needs a [driver](crate::owned::Hub#drivers) of the hub that wakes it. Without one,
/// polling returns [`Error::NoDriver`] unless the result is there. The operation continues: the
/// `Pending` can be polled again or waited for. A blocked thread needs no driver.
///
/// # Device removal
///
/// Drivers and blocked threads notice that the device was removed. Then all operations of the hub fail
/// with [`Error::DeviceRemoved`] and their buffers, and [`Connection::failure`] is that error. Calls of
/// [`Hub::poll`] notice nothing by themselves.
///
/// [`Connection::failure`]: crate::owned::Connection::failure
/// [`Hub::poll`]: crate::owned::Hub::poll
#[must_use = "the operation continues; its result is lost unless it is awaited"]
pub struct Pending<B, P: Provider = AnyProvider, S: Service<P> = ()> {
    /// The connection, while the operation is in its table. `None` if it was refused.
    peer: Option<Arc<ConnectionInner<B, P, S>>>,
    wr_id: u64,
    /// Whether it was polled before its end, and may have a waker.
    polled: bool,
    /// The result, from when it is known until it is returned: that of a refused post, and that of the
    /// slow path. If a function returned that, the result of the fast path would be in the same memory.
    result: Option<Completed<B>>,
}

// The table holds the buffer, or it is returned by value: it is never pinned.
impl<B, P: Provider, S: Service<P>> Unpin for Pending<B, P, S> {}

impl<B, P: Provider, S: Service<P>> Pending<B, P, S> {
    pub(in crate::owned) fn posted(peer: Arc<ConnectionInner<B, P, S>>, wr_id: u64) -> Self {
        Self { peer: Some(peer), wr_id, polled: false, result: None }
    }

    #[cold]
    pub(in crate::owned) fn refused(error: Error, buffer: Option<B>, tag: u64) -> Self {
        let refused = Failed::new(error, (buffer, tag), Outcome::NotExecuted, false);
        Self { peer: None, wr_id: 0, polled: false, result: Some(Err(refused)) }
    }

    #[cold]
    pub(in crate::owned) fn refused_op<L: OpPayload<B>, O>(error: Error, op: Op<L, O>) -> Self {
        let (buffer, Op { tag, .. }) = op.split();
        Self::refused(error, buffer, tag)
    }

    /// Takes the connection, if it is posted. The operation continues.
    pub(in crate::owned) fn take_peer(&mut self) -> Option<Arc<ConnectionInner<B, P, S>>> {
        self.peer.take()
    }

    /// The `wr_id`, if it is posted.
    pub(in crate::owned) fn wr_id(&self) -> Option<u64> {
        self.peer.is_some().then_some(self.wr_id)
    }

    /// The error of a refused post.
    #[cfg(feature = "futures")]
    pub(in crate::owned) fn into_refused(mut self) -> Result<Failed<B>, Self> {
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
            Err(_) => self.poll_table(caller),
        }
    }

    /// Takes the operation if it was not polled before and the next completion is its success.
    #[inline(always)]
    fn poll_first(&mut self) -> Result<Done<B>, NotTaken> {
        let Some(peer) = self.peer.as_ref().filter(|_| !self.polled) else { return Err(NotTaken::Slow) };
        let (entry, cqe) = peer.hub.poll_own(self.wr_id)?;
        peer.conn.put_slot(entry.kind, OpTable::<B>::index(self.wr_id));
        if S::OWNS && entry.kind == SlotKind::Service {
            let woken = peer.hub.service.count(true, false);
            if !woken.is_empty() {
                // The slow path returns the result, also later if a waker panics.
                self.result = Some(Ok(done(entry, cqe)));
                self.peer = None;
                wake_all(woken);
                return Err(NotTaken::Slow);
            }
        }
        // The last handle of a connection destroys its QP.
        self.peer = None;
        Ok(done(entry, cqe))
    }

    /// Polls on the slow path, and leaves the result in `result`. `false`: it is pending.
    #[cold]
    #[inline(never)]
    fn poll_slow(&mut self, yields: bool, cx: &Context<'_>) -> bool {
        if yields {
            cx.waker().wake_by_ref();
        } else if let Poll::Ready(result) = self.poll_table(Caller::Task(cx.waker())) {
            self.result = Some(result);
        }
        self.result.is_some()
    }

    /// Takes the result of an operation that may have ended, or registers the waker and helps to reap.
    fn poll_table(&mut self, caller: Caller<'_>) -> Poll<Completed<B>> {
        let Self { peer, wr_id, polled, result } = self;
        let Some(ConnectionInner { hub, conn, .. }) = peer.as_deref() else {
            let taken = || Err(Error::invalid("Pending::wait", "its result was taken before").into());
            return Poll::Ready(result.take().unwrap_or_else(taken));
        };
        let ended = ready!(hub.poll_by(caller, "Pending::wait", |cx| {
            // The first poll has reaped, unless it was to yield: then the caller polls again.
            if mem::replace(polled, true) && hub.table.is_in_flight(*wr_id) {
                hub.poll(BATCH);
            }
            // A completion that arrives from now on raises an event: a driver or a blocked thread reaps
            // it, and finds the waker.
            hub.table.poll(*wr_id, cx).map(Ok::<_, Error>)
        }))?;
        let result = match ended {
            Some((entry, cqe)) => {
                conn.put_slot(entry.kind, OpTable::<B>::index(*wr_id));
                finished(hub, conn, entry, cqe)
            }
            None => Err(Error::Closed { verb: "Pending::wait", reason: "the connection was closed" }.into()),
        };
        // The last handle of a connection destroys its QP.
        *peer = None;
        Poll::Ready(result)
    }
}

/// The result of an operation that has succeeded.
#[inline(always)]
fn done<B>(entry: OpEntry<B>, cqe: Cqe) -> Done<B> {
    let OpEntry { buffer, opcode, kind, tag, len } = entry;
    if kind != SlotKind::Recv {
        return Done { tag, buffer, len, imm: None, opcode };
    }
    Done { tag, buffer, len: cqe.byte_len, imm: cqe.imm, opcode: cqe.opcode }
}

fn finished<B, P: Provider, S: Service<P>>(
    hub: &HubInner<B, P, S>,
    conn: &Conn<P, S>,
    entry: OpEntry<B>,
    cqe: Cqe,
) -> Completed<B> {
    let Cqe { status, vendor_err, .. } = cqe;
    if status == WcStatus::SUCCESS {
        return Ok(done(entry, cqe));
    }
    let OpEntry { buffer, opcode, kind, tag, .. } = entry;
    let verb = S::verb(opcode);
    if status == TAKEN_BACK {
        let error = hub.service.taken_back(verb);
        return Err(Failed::new(error, (buffer, tag), Outcome::NotExecuted, false));
    }
    let completion =
        |link_down| Error::Completion { verb, status, vendor_err, driver: conn.driver, link_down };
    let (error, cause, ended_here) = match conn.lock().failure {
        Some(Failure::DeviceRemoved) => (Error::DeviceRemoved { verb }, None, false),
        Some(Failure::Completion { status, link_down, .. }) => (completion(link_down), Some(status), false),
        failure => (completion(None), None, matches!(failure, Some(Failure::Aborted))),
    };
    let failed = Failed::new(error, (buffer, tag), Outcome::of(status), kind == SlotKind::Recv);
    Err(Failed { cause, ended_here, ..failed })
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
        if !this.poll_slow(yields, cx) {
            return Poll::Pending;
        }
        this.result.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<B, P: Provider, S: Service<P>> Drop for Pending<B, P, S> {
    fn drop(&mut self) {
        let Some(peer) = &self.peer else { return };
        if let Some(entry) = peer.hub.table.detach(self.wr_id) {
            peer.conn.put_slot(entry.kind, OpTable::<B>::index(self.wr_id));
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
