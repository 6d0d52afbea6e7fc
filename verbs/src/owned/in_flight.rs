//! The operations of each direction of a QP, with their buffers.

mod kind;
mod parts;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::{Operation, PushError, RecvRequest, SendFlags, SendRequest};
use bareverbs_uapi::uverbs::types::DriverId;

pub(crate) use self::kind::{ListOperation, QueueKind, Reliable, SendOperation};
use self::parts::Groups;
pub(super) use self::parts::sges;
use super::buffer::sealed::{Domain, PdId};
use super::operation::{OpPayload, Place, Receive};
use super::queue::{Oldest, Queue};
use super::{Completed, Done, Failed, Op, Outcome};
use crate::error::{DoorbellError, PostError, PostReason};
use crate::pd::shared::PdShared;
use crate::qp::{Qp, Rc, Transport};
#[cfg(doc)]
use crate::qp::{RecvHalf, SendHalf};
use crate::{Error, Imm, Refused, Result, WcOpcode, WcStatus};

/// Owners of the `wr_id`s of a QP.
pub(super) const SENDS: u32 = 1;
pub(super) const RECVS: u32 = 2;

/// The `wr_id` of the request that is posted behind unsignalled sends, in ERR or by `close`. Its
/// completion shows that the device has finished with them.
pub(super) const MARKER: u64 = 3 << 62;

/// The `wr_id` of a probe.
pub(super) const PROBE: u64 = MARKER | 1;

/// The result of a post. The error returns the operation.
type PostResult<L, O = Operation> = Result<(), Refused<Op<L, O>>>;

/// The queue of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Send,
    Recv,
}

/// A send queue that a list posts operations of type `O` to. A trait and not a closure, so that the
/// fast path is inlined.
pub(super) trait PostSend<O = Operation> {
    /// Whether a posted request is published, with all earlier ones.
    const PUBLISHES: bool;

    /// Posts a request. It is published only if the result is `Ok`, or an error that accepted it.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    unsafe fn post(&mut self, request: &SendRequest<'_, O>) -> Result<(), PostError>;
}

/// A receive queue that a list posts to.
pub(super) trait PostRecv {
    /// Posts a receive. It is published only if the result is `Ok`.
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    unsafe fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError>;
}

macro_rules! queues {
    ($($(#[$attribute:meta])* $trait:ident for $queue:ty $(where $transport:ident)? {
        $request:ident, $post:ident $(, $publishes:ident)?
    })*) => {$(
        $(#[$attribute])*
        impl<$($transport: Transport,)? P: Provider> $trait for $queue {
            $(const $publishes: bool = true;)?

            #[inline(always)]
            unsafe fn post(&mut self, request: &$request<'_>) -> Result<(), PostError> {
                // SAFETY: the caller's contract is the same.
                unsafe { self.$post(std::slice::from_ref(request)) }
            }
        }
    )*};
}

queues! {
    PostSend for Qp<Rc, P> { SendRequest, post_send, PUBLISHES }
    PostRecv for Qp<T, P> where T { RecvRequest, post_recv }
}

/// Adds requests to a QP without a doorbell.
pub(super) struct Unpublished<'q, P: Provider>(pub(super) &'q mut Qp<Rc, P>);

impl<P: Provider> PostSend for Unpublished<'_, P> {
    const PUBLISHES: bool = false;

    #[inline(always)]
    unsafe fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // Not dropped: that would take the requests back.
        let mut batch = ManuallyDrop::new(self.0.start_send());
        // SAFETY: the caller's contract is the same.
        unsafe { batch.push(request) }.map_err(|reason| PostError { accepted: 0, reason })
    }
}

/// An outstanding send, write, read or atomic operation.
pub(super) struct SendEntry<B, K: QueueKind = Reliable> {
    buffer: Option<B>,
    tag: u64,
    len: u32,
    opcode: WcOpcode,
    signaled: bool,
    held: K::Held,
}

impl<B, K: QueueKind> SendEntry<B, K> {
    #[inline(always)]
    pub(super) fn done(self) -> K::Done<B> {
        let Self { buffer, tag, len, opcode, .. } = self;
        K::sent(Done { tag, buffer, len, imm: None, opcode })
    }

    fn failed(self, domain: &PdShared, failure: OpFailure) -> Failed<B> {
        failed::<B, K>(domain, self.opcode, (self.buffer, self.tag), failure)
    }
}

/// Why an operation failed.
#[derive(Clone, Copy)]
pub(super) enum OpFailure {
    /// Status and vendor error of an error completion.
    Completion { status: WcStatus, vendor_err: u32 },
    /// The device was removed.
    DeviceRemoved,
}

/// The failure of an operation whose QP was destroyed.
pub(super) const FLUSHED: OpFailure = OpFailure::Completion { status: WcStatus::WR_FLUSH_ERR, vendor_err: 0 };

/// The entry of an operation in a queue.
trait Entry<B> {
    fn into_buffer(self) -> Option<B>;
}

impl<B, K: QueueKind> Entry<B> for SendEntry<B, K> {
    fn into_buffer(self) -> Option<B> {
        self.buffer
    }
}

/// The operations of one queue of a QP. `E` is their entry, and `S` what its direction has besides.
///
/// Soundness: an entry owns its buffer from before the request is posted until the provider reports the
/// request's completion. A queue completes in order.
pub(super) struct QueueInFlight<E, S> {
    queue: Queue<E>,
    depth: u32,
    domain: Arc<PdShared>,
    /// The identity of `domain`.
    pd: PdId,
    groups: Groups,
    state: S,
}

impl<E, S> QueueInFlight<E, S> {
    pub(super) fn new(owner: u32, domain: &Arc<PdShared>, depth: u32, state: S) -> Self {
        Self {
            queue: Queue::new(owner, depth),
            depth,
            domain: Arc::clone(domain),
            pd: PdId::of(domain),
            groups: Groups::default(),
            state,
        }
    }

    pub(super) fn queue(&self) -> &Queue<impl Sized> {
        &self.queue
    }

    pub(super) fn close(&mut self) {
        self.queue.close();
    }

    /// Makes `oldest` return `None`, or not. It does so while an operation of several buffers is
    /// outstanding: the oldest entry may be one of its first, and no request has that `wr_id`.
    pub(super) fn hold(&mut self, held: bool) {
        self.queue.hold(held || self.groups.outstanding(self.queue.completed()));
    }

    /// The operation with this `wr_id`, if it is published and the oldest one of the list. `None` if
    /// the list is held.
    #[inline(always)]
    pub(super) fn oldest(&mut self, wr_id: u64) -> Option<Oldest<'_, E>> {
        self.queue.oldest_if(wr_id)
    }

    /// The place of a payload that was not verified before, or why it is refused.
    #[cold]
    #[inline(never)]
    fn checked<K: QueueKind, B, L: OpPayload<B>, O: ListOperation>(&self, op: &Op<L, O>) -> Result<L::Place> {
        op.payload.checked(K::verb(op.operation.opcode()), Domain(&self.domain), op.range)
    }

    #[cold]
    #[inline(never)]
    fn full<K: QueueKind, L, O: ListOperation>(&self, op: Op<L, O>) -> PostResult<L, O> {
        let error = if self.queue.is_closed() {
            Error::Closed { verb: K::verb(op.operation.opcode()), reason: K::CLOSED }
        } else {
            let full = PushError::QueueFull { capacity: self.depth };
            PostError { accepted: 0, reason: full.into() }.into()
        };
        Err(Refused::new(error, op))
    }

    /// Removes the operation that was pushed last and not posted. Returns it.
    fn take_back<B, L: OpPayload<B>, O>(&mut self, error: PostError, op: Op<L::Kept, O>) -> Refused<Op<L, O>>
    where
        E: Entry<B>,
    {
        let Some(entry) = self.queue.take_back() else {
            unreachable!("the operation was pushed by the caller")
        };
        Refused::new(error.into(), op.map(|kept| L::join(entry.into_buffer(), kept)))
    }
}

/// The operations of a send queue. A completion of a send also completes all older sends, which were not
/// signalled.
pub(super) type SendsInFlight<B, K = Reliable> = QueueInFlight<SendEntry<B, K>, SendState>;

/// The receives of a QP with a receive queue of its own. Each receive generates a completion.
pub(super) type RecvsInFlight<B, K = Reliable> = QueueInFlight<RecvEntry<B>, RecvState<K>>;

/// What only the operations of a send queue have.
pub(super) struct SendState {
    /// Longest run of unsignalled operations, plus 1.
    signal_every: u32,
    /// Failed requests that were polled and not returned, by their number in the queue. It never
    /// has more elements than the queue.
    failures: VecDeque<(u64, OpFailure)>,
    /// Whether a request failed, or `refused` or `destroyed` is set.
    failed: bool,
    /// The newest outstanding requests, whose doorbell the kernel refused. They never complete.
    refused: usize,
    /// Why they were refused.
    refusal: Option<PostError>,
    /// Set once the QP is destroyed: the outstanding requests never complete, and end with this failure.
    destroyed: Option<OpFailure>,
}

impl SendState {
    pub(super) fn new(depth: u32, signal_every: u32) -> Self {
        let failures = VecDeque::with_capacity(depth as usize);
        Self { signal_every, failures, failed: false, refused: 0, refusal: None, destroyed: None }
    }
}

impl<B, K: QueueKind> SendsInFlight<B, K> {
    /// What the operation that was posted last holds, if it was not returned.
    pub(super) fn newest_held(&self) -> Option<&K::Held> {
        self.queue.newest().map(|entry| &entry.held)
    }

    /// The number of operations that generate no completion behind the last that does, of those that the
    /// device sees.
    pub(super) fn unsignaled_tail(&self) -> usize {
        self.queue.newer_than(self.seen(), |entry| entry.signaled)
    }

    /// The flags of the next request: signalled if it would make a run of unsignalled ones too long,
    /// or fills the queue. So there is room for the marker behind an unsignalled tail.
    #[inline(always)]
    fn signal(&mut self, flags: SendFlags) -> SendFlags {
        if flags.contains(SendFlags::SIGNALED) || self.queue.is_reserved() {
            return flags;
        }
        self.start_run(flags)
    }

    #[cold]
    #[inline(never)]
    fn start_run(&mut self, flags: SendFlags) -> SendFlags {
        let start = self.queue.posted() - self.unsignaled_tail() as u64;
        // The rest of the run takes the fast path.
        self.queue.reserve(start + u64::from(self.state.signal_every) - 1);
        if self.queue.is_reserved() { flags } else { flags | SendFlags::SIGNALED }
    }

    /// Whether the device sees operations, none of which generates a completion.
    pub(super) fn only_unsignaled(&self) -> bool {
        self.seen() > 0 && self.unsignaled_tail() == self.seen()
    }

    /// The request that was pushed last was posted, or not: then its operation is returned.
    #[cold]
    #[inline(never)]
    fn post_failed<L: OpPayload<B>, O>(
        &mut self,
        publishes: bool,
        error: PostError,
        op: Op<L::Kept, O>,
    ) -> PostResult<L, O> {
        // A request that counts as posted will complete, even if its doorbell was refused.
        if error.accepted > 0 {
            if publishes {
                self.queue.publish();
            }
            return Ok(());
        }
        let refused = self.take_back(error, op);
        self.taken_back(publishes, error.reason);
        Err(refused)
    }

    /// The entries that were pushed last were removed, because their request was not posted.
    ///
    /// A doorbell that took it back, also took back all that were not published. Their `wr_id`s must
    /// not be used again, so the list is closed. Otherwise a queue that `publishes` rang for all
    /// earlier requests, also if it rejected this one.
    fn taken_back(&mut self, publishes: bool, reason: PostReason) {
        self.queue.reserve(0);
        match reason {
            PostReason::Doorbell(DoorbellError::TakenBack(_)) => self.refuse(reason),
            _ if publishes => self.published(),
            _ => {}
        }
    }

    /// Posts an operation to the send queue of the list's QP, and publishes it with all earlier
    /// ones if the queue does. It serves all payloads of at most one element.
    #[inline(always)]
    pub(super) fn post<L: OpPayload<B>, O: SendOperation<K>, Q: PostSend<O>>(
        &mut self,
        queue: &mut Q,
        op: Op<L, O>,
    ) -> PostResult<L, O> {
        let place = match op.payload.place(self.pd, op.range) {
            Some(place) => place,
            None => match self.checked::<K, _, _, _>(&op) {
                Ok(place) => place,
                Err(error) => return Err(Refused::new(error, op)),
            },
        };
        let flags = self.signal(op.flags);
        let Some(vacant) = self.queue.vacant() else { return self.full::<K, _, _>(op) };
        let wr_id = vacant.wr_id();
        // The list owns the buffer before the request is posted, so a panic in between does not
        // free it.
        let (buffer, op) = op.split();
        let entry = SendEntry {
            buffer,
            tag: op.tag,
            len: place.len(),
            opcode: op.operation.opcode(),
            signaled: flags.contains(SendFlags::SIGNALED),
            held: op.operation.held(),
        };
        let pushed = vacant.fill(entry);
        let request = SendRequest { wr_id, operation: op.operation, flags, payload: place.payload() };
        // SAFETY: the place is of the buffer (`OpPayload`), and the list owns the buffer. It stays there,
        // registered and untouched (`Source`; `Op` demands a `Target` for operations that write it),
        // until the provider reports the completion of the request or of a later one, or the QP is
        // destroyed. If the list is forgotten, as by an endpoint that is forgotten or whose QP the
        // kernel refuses to destroy, the buffer is leaked, and its bytes stay valid. Inline bytes are
        // copied. Borrowed memory is as `Lent::new` demands.
        match unsafe { queue.post(&request) } {
            Ok(()) => {
                if Q::PUBLISHES {
                    pushed.publish();
                }
                Ok(())
            }
            Err(error) => self.post_failed(Q::PUBLISHES, error, op),
        }
    }

    /// The doorbell was rung for all operations, or may have been, except for those that an earlier
    /// doorbell took back.
    pub(super) fn published(&mut self) {
        if self.state.refused == 0 {
            self.queue.publish();
        }
    }

    /// A marker or a probe was not posted. A doorbell that took it back, also took back all operations
    /// that were not published. Otherwise it was rung for them, also if the request was rejected.
    pub(super) fn not_posted(&mut self, reason: PostReason) {
        match reason {
            PostReason::Doorbell(DoorbellError::TakenBack(_)) => self.refuse(reason),
            _ => self.published(),
        }
    }

    /// Whether there are operations for which no doorbell was rung.
    pub(super) fn has_left(&self) -> bool {
        self.state.refused == 0 && self.queue.unpublished() > 0
    }

    /// The operations for which no doorbell was rung were taken back from the queue of an open list.
    pub(super) fn take_back_unpublished(&mut self) {
        self.queue.reserve(0);
        self.queue.take_back_unpublished();
    }

    /// A refused doorbell took back all operations that were not published.
    pub(super) fn refuse(&mut self, reason: PostReason) {
        self.close();
        (self.state.refused, self.state.failed) = (self.queue.unpublished(), true);
        self.state.refusal = Some(PostError { accepted: 0, reason });
    }

    /// The oldest requests were polled, up to the one with this `wr_id`. Returns `false` if no
    /// outstanding request has it.
    #[inline(always)]
    pub(super) fn reap(&mut self, wr_id: u64, failure: Option<OpFailure>) -> bool {
        let Some(older) = self.queue.position(wr_id) else { return false };
        if self.groups.within(wr_id) {
            return false;
        }
        if let Some(failure) = failure {
            self.note_failure(older, failure);
        }
        self.queue.complete(older + 1);
        true
    }

    /// The request behind the `older` outstanding ones failed. The older ones were unsignalled. They
    /// were successful if no earlier request had failed, else it is unknown.
    #[cold]
    #[inline(never)]
    fn note_failure(&mut self, older: usize, failure: OpFailure) {
        let oldest = self.queue.completed();
        let number = oldest + older as u64;
        let first = self.groups.first(number);
        if self.state.failed {
            self.state.failures.extend((oldest..first).map(|number| (number, FLUSHED)));
        }
        // The entries of one operation fail with it.
        self.state.failures.extend((first..=number).map(|number| (number, failure)));
        self.state.failed = true;
    }

    /// The marker was polled. The device has finished with all requests that it saw. Those that
    /// generated no completion were successful, unless an earlier request failed: then it is
    /// unknown.
    pub(super) fn reap_marker(&mut self) {
        let seen = self.seen();
        if self.state.failed {
            let oldest = self.queue.completed();
            self.state.failures.extend((oldest..oldest + seen as u64).map(|number| (number, FLUSHED)));
        }
        self.queue.complete(seen);
    }

    /// The QP is destroyed: the device has finished with all requests. Those that are outstanding end
    /// with `failure`.
    pub(super) fn destroyed(&mut self, failure: OpFailure) {
        self.close();
        self.state.destroyed.get_or_insert(failure);
        self.state.failed = true;
    }

    /// Whether [`SendsInFlight::take`] may return an operation.
    #[inline(always)]
    pub(super) fn has_result(&self) -> bool {
        self.queue.has_complete() || self.state.failed
    }

    /// The number of outstanding operations that no refused doorbell took back.
    fn seen(&self) -> usize {
        self.queue.outstanding().saturating_sub(self.state.refused)
    }

    /// The number of operations that the device may still use.
    pub(super) fn in_use(&self) -> usize {
        if self.state.destroyed.is_some() { 0 } else { self.seen() }
    }

    /// The oldest operation that completed.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Completed<B, K::Done<B>>> {
        if self.state.failed {
            return self.take_failed();
        }
        self.queue.take().map(|entry| Ok(entry.done()))
    }

    #[cold]
    #[inline(never)]
    fn take_failed(&mut self) -> Option<Completed<B, K::Done<B>>> {
        let number = self.queue.taken();
        if let Some(entry) = self.queue.take() {
            return match self.state.failures.front() {
                Some(&(failed, failure)) if failed == number => {
                    self.state.failures.pop_front();
                    Some(Err(entry.failed(&self.domain, failure)))
                }
                _ => Some(Ok(entry.done())),
            };
        }
        let refused = self.state.refused > 0 && self.queue.outstanding() <= self.state.refused;
        if !refused {
            let failure = self.state.destroyed?;
            self.queue.complete(1);
            return Some(Err(self.queue.take()?.failed(&self.domain, failure)));
        }
        self.queue.complete(1);
        let entry = self.queue.take()?;
        self.state.refused -= 1;
        let SendEntry { buffer, tag, opcode, .. } = entry;
        let closed = || Error::Closed { verb: K::verb(opcode), reason: K::CLOSED };
        let error = self.state.refusal.map_or_else(closed, Error::from);
        Some(Err(Failed::new(error, (buffer, tag), Outcome::NotExecuted, false)))
    }
}

fn failed<B, K: QueueKind>(
    domain: &PdShared,
    opcode: WcOpcode,
    buffer_and_tag: (Option<B>, u64),
    failure: OpFailure,
) -> Failed<B> {
    let verb = K::verb(opcode);
    let (error, outcome) = match failure {
        OpFailure::Completion { status, vendor_err } => {
            let driver = DriverId(domain.context.file.driver_id());
            (Error::Completion { verb, status, vendor_err, driver, link_down: None }, Outcome::of(status))
        }
        OpFailure::DeviceRemoved => (Error::DeviceRemoved { verb }, Outcome::Unknown),
    };
    Failed::new(error, buffer_and_tag, outcome, opcode == WcOpcode::RECV)
}

/// An outstanding receive.
pub(super) struct RecvEntry<B> {
    buffer: Option<B>,
    tag: u64,
}

/// The completion of a receive.
#[derive(Clone, Copy)]
pub(super) struct Received<S = ()> {
    pub(super) len: u32,
    pub(super) imm: Option<Imm>,
    pub(super) opcode: WcOpcode,
    /// What it says about the sender.
    pub(super) sender: S,
}

impl<B> RecvEntry<B> {
    #[inline(always)]
    pub(super) fn done<K: QueueKind>(self, received: Received<K::Sender>) -> K::Done<B> {
        let Received { len, imm, opcode, sender } = received;
        K::received(Done { tag: self.tag, buffer: self.buffer, len, imm, opcode }, sender)
    }
}

impl<B> Entry<B> for RecvEntry<B> {
    fn into_buffer(self) -> Option<B> {
        self.buffer
    }
}

/// What only receives have: those that were reaped and not taken, oldest first. The capacity is the depth.
pub(super) struct RecvState<K: QueueKind>(VecDeque<(Received<K::Sender>, Option<OpFailure>)>);

impl<K: QueueKind> RecvState<K> {
    pub(super) fn new(depth: u32) -> Self {
        Self(VecDeque::with_capacity(depth as usize))
    }
}

impl<B, K: QueueKind> RecvsInFlight<B, K> {
    /// Posts a receive of at most one element.
    #[inline(always)]
    pub(super) fn post<L: OpPayload<B>>(
        &mut self,
        queue: &mut impl PostRecv,
        op: Op<L, Receive>,
    ) -> PostResult<L, Receive> {
        let place = match op.payload.place(self.pd, op.range) {
            Some(place) => place,
            None => match self.checked::<K, _, _, _>(&op) {
                Ok(place) => place,
                Err(error) => return Err(Refused::new(error, op)),
            },
        };
        let Some(vacant) = self.queue.vacant() else { return self.full::<K, _, _>(op) };
        let wr_id = vacant.wr_id();
        let (buffer, op) = op.split();
        let pushed = vacant.fill(RecvEntry { buffer, tag: op.tag });
        // SAFETY: as in `SendsInFlight::post`. The buffer was made an operation by `Op::recv` as a
        // `Target`, so nothing accesses the bytes meanwhile. `Op::any` keeps the buffer: both types
        // are buffers of this crate, and no other crate can convert them.
        match unsafe { queue.post(&RecvRequest { wr_id, sges: place.sges() }) } {
            Ok(()) => {
                pushed.publish();
                Ok(())
            }
            Err(error) => Err(self.take_back(error, op)),
        }
    }

    /// The receive with this `wr_id` was polled. Returns `false` if it is not the oldest outstanding
    /// one.
    pub(super) fn reap(
        &mut self,
        wr_id: u64,
        received: Received<K::Sender>,
        failure: Option<OpFailure>,
    ) -> bool {
        let oldest = self.queue.completed();
        match self.queue.position(wr_id) {
            Some(_) if self.groups.within(wr_id) => false,
            Some(0) => {
                self.queue.complete(1);
                self.state.0.push_back((received, failure));
                true
            }
            // The last entry of a receive of several buffers.
            Some(older) => {
                let Some(each) = self.groups.take(oldest, wr_id, received) else { return false };
                self.queue.complete(older + 1);
                self.state.0.extend(each.map(|received| (received, failure)));
                true
            }
            None => false,
        }
    }

    /// The QP is destroyed: the device has finished with all receives. Those that are outstanding end
    /// with `failure`.
    pub(super) fn destroyed(&mut self, failure: OpFailure) {
        self.close();
        let none = Received { len: 0, imm: None, opcode: WcOpcode::RECV, sender: K::Sender::default() };
        let ended = (none, Some(failure));
        self.state.0.extend(std::iter::repeat_n(ended, self.queue.outstanding()));
        self.queue.complete(self.queue.outstanding());
    }

    /// Whether [`RecvsInFlight::take`] returns a receive.
    #[inline(always)]
    pub(super) fn has_result(&self) -> bool {
        self.queue.has_complete()
    }

    /// The oldest receive that was reaped.
    pub(super) fn take(&mut self) -> Option<Completed<B, K::Done<B>>> {
        let entry = self.queue.take()?;
        let (received, failure) = self.state.0.pop_front()?;
        Some(match failure {
            None => Ok(entry.done::<K>(received)),
            Some(failure) => {
                Err(failed::<B, K>(&self.domain, WcOpcode::RECV, (entry.buffer, entry.tag), failure))
            }
        })
    }
}
