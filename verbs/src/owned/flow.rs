//! The operations of each direction of a QP, with their buffers.

mod kind;
mod parts;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bareverbs_provider::traits::Provider;

pub(crate) use self::kind::{Kind, Reliable, SendOperation};
use self::parts::Groups;
pub(super) use self::parts::MAX_PARTS;
pub use self::parts::NotPostedParts;
use super::buffer::sealed::{PdId, Registered};
use super::buffer::{checked_sge, verified_sge};
use super::op::{AnyRange, OpPayload};
use super::queue::{Oldest, Queue};
use super::{Done, Failed, NotPosted, Op, Outcome, Source, Target};
use crate::device::DriverId;
use crate::error::{DoorbellError, PostError, PostReason, PushError};
use crate::pd::shared::PdShared;
use crate::qp::{Operation, Payload, Qp, Rc, RecvRequest, SendFlags, SendRequest, Sge, Transport};
#[cfg(any(doc, feature = "test-utils"))]
use crate::qp::{RecvHalf, SendHalf};
use crate::{Error, Imm, Result, WcOpcode, WcStatus};

/// Owners of the `wr_id`s of a QP.
pub(super) const SENDS: u32 = 1;
pub(super) const RECVS: u32 = 2;

/// The `wr_id` of the request that is posted behind unsignalled sends, in ERR or by `close`. Its
/// completion shows that the device has finished with them.
pub(super) const MARKER: u64 = 3 << 62;

/// The `wr_id` of a probe.
pub(super) const PROBE: u64 = MARKER | 1;

#[cold]
#[inline(never)]
fn full<K: Kind>(opcode: WcOpcode, closed: bool, capacity: usize) -> Error {
    if closed {
        return Error::Closed { verb: K::verb(opcode), reason: K::CLOSED };
    }
    let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
    PostError { accepted: 0, reason: PushError::QueueFull { capacity }.into() }.into()
}

/// A send queue that a flow posts operations of type `O` to. A trait and not a closure, so that the
/// fast path is inlined.
pub(super) trait PostSend<O = Operation> {
    /// Whether a posted request is published, with all earlier ones.
    const PUBLISHES: bool;

    /// Posts a request by the fast path. `None`: the request was not posted.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    unsafe fn try_post(&mut self, request: &SendRequest<'_, O>) -> Option<Result<(), PostError>>;

    /// Posts a request. It is published only if the result is `Ok`, or an error that accepted it.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    unsafe fn post(&mut self, request: &SendRequest<'_, O>) -> Result<(), PostError>;
}

/// A receive queue that a flow posts to.
pub(super) trait PostRecv {
    /// Posts a receive by the fast path. `false`: it was not posted.
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    unsafe fn try_post(&mut self, request: &RecvRequest<'_>) -> bool;

    /// Posts a receive. It is published only if the result is `Ok`.
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    unsafe fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError>;
}

macro_rules! queues {
    ($($(#[$attribute:meta])* $trait:ident for $queue:ty $(where $transport:ident)? {
        $request:ident -> $result:ty, $try_post:ident, $post:ident $(, $publishes:ident)?
    })*) => {$(
        $(#[$attribute])*
        impl<$($transport: Transport,)? P: Provider> $trait for $queue {
            $(const $publishes: bool = true;)?

            #[inline(always)]
            unsafe fn try_post(&mut self, request: &$request<'_>) -> $result {
                // SAFETY: the caller's contract is the same.
                unsafe { self.$try_post(request) }
            }

            #[inline(always)]
            unsafe fn post(&mut self, request: &$request<'_>) -> Result<(), PostError> {
                // SAFETY: the caller's contract is the same.
                unsafe { self.$post(std::slice::from_ref(request)) }
            }
        }
    )*};
}

queues! {
    PostSend for Qp<Rc, P> {
        SendRequest -> Option<Result<(), PostError>>, try_post_send, post_send, PUBLISHES
    }
    PostRecv for Qp<T, P> where T { RecvRequest -> bool, try_post_recv, post_recv }
    #[cfg(feature = "test-utils")]
    PostSend for SendHalf<'_, Rc, P> {
        SendRequest -> Option<Result<(), PostError>>, try_post_send, post_send, PUBLISHES
    }
    #[cfg(feature = "test-utils")]
    PostRecv for RecvHalf<'_, Rc, P> { RecvRequest -> bool, try_post_recv, post_recv }
}

/// Adds requests to a QP without a doorbell.
pub(super) struct Unpublished<'q, P: Provider>(pub(super) &'q mut Qp<Rc, P>);

impl<P: Provider> PostSend for Unpublished<'_, P> {
    const PUBLISHES: bool = false;

    #[inline(always)]
    unsafe fn try_post(&mut self, request: &SendRequest<'_>) -> Option<Result<(), PostError>> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.0.try_push_send(request) }.then_some(Ok(()))
    }

    #[inline(always)]
    unsafe fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // Not dropped: that would take the requests back.
        let mut batch = ManuallyDrop::new(self.0.start_send());
        // SAFETY: the caller's contract is the same.
        unsafe { batch.push(request) }.map_err(|reason| PostError { accepted: 0, reason })
    }
}

/// An outstanding send, write, read or atomic operation.
pub(super) struct SendEntry<B, K: Kind = Reliable> {
    buffer: Option<B>,
    tag: u64,
    len: u32,
    opcode: SendOpcode,
    signaled: bool,
    held: K::Held,
}

/// The opcode of a send. One byte, so that an entry has room for `signaled`.
#[derive(Clone, Copy)]
struct SendOpcode(u8);

impl SendOpcode {
    #[inline(always)]
    fn new(opcode: WcOpcode) -> Self {
        debug_assert!(opcode.0 < WcOpcode::RECV.0, "{opcode:?} is that of a send");
        Self(opcode.0 as u8)
    }

    #[inline(always)]
    fn get(self) -> WcOpcode {
        WcOpcode(self.0.into())
    }
}

impl<B, K: Kind> SendEntry<B, K> {
    #[inline(always)]
    pub(super) fn done(self) -> K::Done<B> {
        let Self { buffer, tag, len, opcode, .. } = self;
        K::sent(Done { tag, buffer, len, imm: None, opcode: opcode.get() })
    }

    fn failed(self, domain: &PdShared, failure: Failure) -> Failed<B> {
        failed::<B, K>(domain, self.opcode.get(), (self.buffer, self.tag), failure)
    }
}

/// Why an operation failed.
#[derive(Clone, Copy)]
pub(super) enum Failure {
    /// Status and vendor error of an error completion.
    Completion { status: WcStatus, vendor_err: u32 },
    /// The device was removed.
    DeviceRemoved,
}

/// The failure of an operation whose QP was destroyed.
pub(super) const FLUSHED: Failure = Failure::Completion { status: WcStatus::WR_FLUSH_ERR, vendor_err: 0 };

/// The operations of the send queue of a QP.
///
/// Soundness: an entry owns its buffer from before the request is posted until the
/// provider reports the request's completion, or that of a later request. A send queue completes in
/// order.
pub(super) struct SendFlow<B, K: Kind = Reliable> {
    queue: Queue<SendEntry<B, K>>,
    depth: u32,
    domain: Arc<PdShared>,
    /// That of `domain`.
    pd: PdId,
    /// Longest run of unsignalled operations, plus 1.
    signal_every: u32,
    /// Failed requests that were polled and not returned, by their number in the queue. It never
    /// has more elements than the queue.
    failures: VecDeque<(u64, Failure)>,
    /// Whether a request failed, or `refused` or `destroyed` is set.
    failed: bool,
    /// The newest outstanding requests, whose doorbell the kernel refused. They never complete.
    refused: usize,
    /// Why they were refused.
    refusal: Option<PostError>,
    /// Set once the QP is destroyed: the outstanding requests never complete, and end with this failure.
    destroyed: Option<Failure>,
    groups: Groups,
}

impl<B, K: Kind> SendFlow<B, K> {
    pub(super) fn new(domain: Arc<PdShared>, depth: u32, signal_every: u32) -> Self {
        Self {
            queue: Queue::new(SENDS, depth),
            depth,
            pd: PdId::of(&domain),
            domain,
            signal_every,
            failures: VecDeque::with_capacity(depth as usize),
            failed: false,
            refused: 0,
            refusal: None,
            destroyed: None,
            groups: Groups::default(),
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

    /// What the operation that was posted last holds, if it was not returned.
    pub(super) fn newest_held(&self) -> Option<&K::Held> {
        self.queue.newest().map(|entry| &entry.held)
    }

    /// The number of outstanding operations at the end of the queue that generate no completion.
    pub(super) fn unsignaled_tail(&self) -> usize {
        self.queue.newer_than(|entry| entry.signaled)
    }

    /// The flags of the next request: signalled if it would make a run of unsignalled ones too long,
    /// or fills the queue. So there is room for the marker behind an unsignalled tail.
    fn signal(&mut self, flags: SendFlags) -> SendFlags {
        if flags.contains(SendFlags::SIGNALED) {
            return flags;
        }
        let start = self.queue.posted() - self.unsignaled_tail() as u64;
        // The fast path takes the rest of the run.
        self.queue.reserve(start + u64::from(self.signal_every) - 1);
        if self.queue.vacant_reserved().is_some() { flags } else { flags | SendFlags::SIGNALED }
    }

    /// Whether all outstanding operations generate no completion.
    pub(super) fn only_unsignaled(&self) -> bool {
        self.queue.outstanding() > 0 && self.unsignaled_tail() == self.queue.outstanding()
    }

    /// Returns the operation that was pushed last and not posted.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self, publishes: bool, error: PostError) -> Result<(), NotPosted<B>> {
        let entry = self.queue.take_back();
        self.taken_back(publishes, error.reason);
        match entry {
            Some(SendEntry { buffer, tag, .. }) => Err(NotPosted { error: error.into(), buffer, tag }),
            None => unreachable!("the operation was pushed by the caller"),
        }
    }

    /// The entries that were pushed last were removed, because their request was not posted.
    ///
    /// A doorbell that took it back, also took back all that were not published. Their `wr_id`s must
    /// not be used again, so the flow is closed. Otherwise a queue that `publishes` rang for all
    /// earlier requests, also if it rejected this one.
    fn taken_back(&mut self, publishes: bool, reason: PostReason) {
        self.queue.reserve(0);
        match reason {
            PostReason::Doorbell(DoorbellError::TakenBack(_)) => self.refuse(reason),
            _ if publishes => self.published(),
            _ => {}
        }
    }

    #[cold]
    #[inline(never)]
    fn full(&self, entry: SendEntry<B, K>) -> Result<(), NotPosted<B>> {
        let error = full::<K>(entry.opcode.get(), self.queue.is_closed(), self.depth as usize);
        Err(NotPosted { error, buffer: entry.buffer, tag: entry.tag })
    }

    /// Posts an operation, and publishes it with all earlier ones if the queue does. `payload` is
    /// that of the request, and its length.
    ///
    /// # Safety
    ///
    /// The memory of the payload must satisfy the contract of [`SendHalf::post_send`] until the
    /// flow has returned the operation, or the QP is destroyed. The flow keeps the entry's buffer
    /// until then.
    pub(super) unsafe fn post_request<O: SendOperation<K>, Q: PostSend<O>>(
        &mut self,
        queue: &mut Q,
        (buffer, tag): (Option<B>, u64),
        operation: O,
        flags: SendFlags,
        (payload, len): (Payload<'_>, u32),
    ) -> Result<(), NotPosted<B>> {
        // The flow owns the buffer before the request is posted, so a panic in between does not
        // free it.
        let flags = self.signal(flags);
        let (opcode, held) = (SendOpcode::new(operation.opcode()), operation.held());
        let signaled = flags.contains(SendFlags::SIGNALED);
        let entry = SendEntry { buffer, tag, len, opcode, signaled, held };
        let wr_id = match self.queue.push(entry) {
            Ok(wr_id) => wr_id,
            Err(entry) => return self.full(entry),
        };
        // SAFETY: the caller upholds the contract.
        let posted = unsafe { queue.post(&SendRequest { wr_id, operation, flags, payload }) };
        self.posted(Q::PUBLISHES, posted)
    }

    /// Finishes a post.
    ///
    /// # Safety
    ///
    /// As for [`SendFlow::post_request`].
    unsafe fn finish<O: SendOperation<K>, Q: PostSend<O>>(
        &mut self,
        queue: &mut Q,
        pushed: Pushed<'_, O>,
    ) -> Result<(), NotPosted<B>> {
        let posted = match pushed {
            Pushed::Declined { wr_id, operation, flags, payload } => {
                let (sges, parts);
                let payload = match payload {
                    Place::Sge(sge) => {
                        sges = [sge];
                        Payload::Sges(&sges)
                    }
                    Place::Inline(bytes) => {
                        parts = [bytes];
                        Payload::Inline(&parts)
                    }
                };
                // SAFETY: the caller upholds the contract, and the request was not posted.
                unsafe { queue.post(&SendRequest { wr_id, operation, flags, payload }) }
            }
            Pushed::Failed(error) => Err(error),
        };
        self.posted(Q::PUBLISHES, posted)
    }

    /// Posts a signalled operation whose buffer the flow does not own.
    ///
    /// # Safety
    ///
    /// As for [`SendFlow::post_request`], with the bytes of `region` in `range`.
    #[inline(always)]
    pub(super) unsafe fn post_scoped<O: SendOperation<K>, Q: PostSend<O>>(
        &mut self,
        queue: &mut Q,
        verb: &'static str,
        region: &impl Registered,
        range: AnyRange,
        (operation, tag): (O, u64),
    ) -> Result<(), NotPosted<B>> {
        // Values, so that the fast path keeps the range in registers.
        let (start, end) = range;
        let flags = SendFlags::SIGNALED;
        if let Some(sge) = verified_sge(region, self.pd, (start, end))
            && let Some(vacant) = self.queue.vacant()
        {
            let wr_id = vacant.wr_id();
            let (opcode, held) = (SendOpcode::new(operation.opcode()), operation.held());
            let (len, signaled) = (sge.length, true);
            let pushed = vacant.fill(SendEntry { buffer: None, tag, len, opcode, signaled, held });
            let payload = Payload::Sges(&[sge]);
            // Not shared with `post`: a function for both takes up to 4 instructions more.
            // SAFETY: the caller upholds the contract.
            let error = match unsafe { queue.try_post(&SendRequest { wr_id, operation, flags, payload }) } {
                Some(Ok(())) => {
                    if Q::PUBLISHES {
                        pushed.publish();
                    }
                    return Ok(());
                }
                Some(Err(error)) => Some(error),
                None => None,
            };
            let pushed = match error {
                Some(error) => Pushed::Failed(error),
                None => Pushed::Declined { wr_id, operation, flags, payload: Place::Sge(sge) },
            };
            // SAFETY: the caller upholds the contract.
            return unsafe { self.finish_scoped(queue, pushed) };
        }
        // SAFETY: the caller upholds the contract.
        unsafe { self.post_scoped_slow(queue, verb, region, start, end, (operation, tag)) }
    }

    /// As [`SendFlow::finish`], for the fast path.
    ///
    /// # Safety
    ///
    /// As for [`SendFlow::post_request`].
    #[cold]
    #[inline(never)]
    unsafe fn finish_scoped<O: SendOperation<K>, Q: PostSend<O>>(
        &mut self,
        queue: &mut Q,
        pushed: Pushed<'_, O>,
    ) -> Result<(), NotPosted<B>> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.finish(queue, pushed) }
    }

    /// Posts what the fast path of [`SendFlow::post_scoped`] did not push.
    ///
    /// # Safety
    ///
    /// As for [`SendFlow::post_scoped`].
    #[cold]
    #[inline(never)]
    unsafe fn post_scoped_slow<O: SendOperation<K>, Q: PostSend<O>>(
        &mut self,
        queue: &mut Q,
        verb: &'static str,
        region: &impl Registered,
        start: Bound<usize>,
        end: Bound<usize>,
        (operation, tag): (O, u64),
    ) -> Result<(), NotPosted<B>> {
        let sge = scoped_sge(verb, region, &self.domain, (start, end), tag)?;
        let payload = (Payload::Sges(&[sge]), sge.length);
        // SAFETY: the caller upholds the contract.
        unsafe { self.post_request(queue, (None, tag), operation, SendFlags::SIGNALED, payload) }
    }

    /// The request that was pushed last was posted, or not. `publishes`: the queue published it.
    fn posted(&mut self, publishes: bool, posted: Result<(), PostError>) -> Result<(), NotPosted<B>> {
        match posted {
            // A request that counts as posted will complete, even if its doorbell was refused.
            Err(error) if error.accepted == 0 => self.take_back(publishes, error),
            _ => {
                if publishes {
                    self.queue.publish();
                }
                Ok(())
            }
        }
    }

    /// The doorbell was rung for all operations, or may have been, except for those that an earlier
    /// doorbell took back.
    pub(super) fn published(&mut self) {
        if self.refused == 0 {
            self.queue.publish();
        }
    }

    /// As [`SendFlow::published`], of a flow that is not closed: none of its operations was refused.
    #[inline(always)]
    pub(super) fn published_open(&mut self) {
        debug_assert!(!self.queue.is_closed() && self.refused == 0, "`refuse` closes the flow");
        self.queue.publish();
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
        self.refused == 0 && self.queue.unpublished() > 0
    }

    /// A refused doorbell took back all operations that were not published.
    pub(super) fn refuse(&mut self, reason: PostReason) {
        self.close();
        (self.refused, self.failed) = (self.queue.unpublished(), true);
        self.refusal = Some(PostError { accepted: 0, reason });
    }

    /// The operation with this `wr_id`, if it is published and the oldest one of the flow. `None` if
    /// the flow is held.
    #[inline(always)]
    pub(super) fn oldest(&mut self, wr_id: u64) -> Option<Oldest<'_, SendEntry<B, K>>> {
        self.queue.oldest_if(wr_id)
    }

    /// The oldest requests were polled, up to the one with this `wr_id`. Returns `false` if no
    /// outstanding request has it.
    #[inline(always)]
    pub(super) fn reap(&mut self, wr_id: u64, failure: Option<Failure>) -> bool {
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
    fn note_failure(&mut self, older: usize, failure: Failure) {
        let oldest = self.queue.completed();
        let number = oldest + older as u64;
        let first = self.groups.first(number);
        if self.failed {
            self.failures.extend((oldest..first).map(|number| (number, FLUSHED)));
        }
        // The entries of one operation fail with it.
        self.failures.extend((first..=number).map(|number| (number, failure)));
        self.failed = true;
    }

    /// The marker was polled. The device has finished with all requests that it saw. Those that
    /// generated no completion were successful, unless an earlier request failed: then it is
    /// unknown.
    pub(super) fn reap_marker(&mut self) {
        let seen = self.queue.outstanding() - self.refused.min(self.queue.outstanding());
        if self.failed {
            let oldest = self.queue.completed();
            self.failures.extend((oldest..oldest + seen as u64).map(|number| (number, FLUSHED)));
        }
        self.queue.complete(seen);
    }

    /// The QP is destroyed: the device has finished with all requests. Those that are outstanding end
    /// with `failure`.
    pub(super) fn destroyed(&mut self, failure: Failure) {
        self.close();
        self.destroyed.get_or_insert(failure);
        self.failed = true;
    }

    /// Whether [`SendFlow::take`] may return an operation.
    #[inline(always)]
    pub(super) fn has_result(&self) -> bool {
        self.queue.has_complete() || self.failed
    }

    /// The number of operations that the device may still use.
    pub(super) fn in_use(&self) -> usize {
        if self.destroyed.is_some() {
            0
        } else {
            self.queue.outstanding() - self.refused.min(self.queue.outstanding())
        }
    }

    /// The oldest operation that completed.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Result<K::Done<B>, Failed<B>>> {
        if self.failed {
            return self.take_failed();
        }
        self.queue.take().map(|entry| Ok(entry.done()))
    }

    #[cold]
    #[inline(never)]
    fn take_failed(&mut self) -> Option<Result<K::Done<B>, Failed<B>>> {
        let number = self.queue.taken();
        if let Some(entry) = self.queue.take() {
            return match self.failures.front() {
                Some(&(failed, failure)) if failed == number => {
                    self.failures.pop_front();
                    Some(Err(entry.failed(&self.domain, failure)))
                }
                _ => Some(Ok(entry.done())),
            };
        }
        let refused = self.refused > 0 && self.queue.outstanding() <= self.refused;
        if !refused {
            let failure = self.destroyed?;
            self.queue.complete(1);
            return Some(Err(self.queue.take()?.failed(&self.domain, failure)));
        }
        self.queue.complete(1);
        let entry = self.queue.take()?;
        self.refused -= 1;
        let SendEntry { buffer, tag, opcode, .. } = entry;
        let closed = || Error::Closed { verb: K::verb(opcode.get()), reason: K::CLOSED };
        let error = self.refusal.map_or_else(closed, Error::from);
        Some(Err(Failed {
            operation: true,
            error,
            tag,
            buffer,
            outcome: Outcome::NotExecuted,
            cause: None,
            recv: false,
            ended_here: false,
        }))
    }
}

fn failed<B, K: Kind>(
    domain: &PdShared,
    opcode: WcOpcode,
    (buffer, tag): (Option<B>, u64),
    failure: Failure,
) -> Failed<B> {
    let verb = K::verb(opcode);
    let (error, outcome) = match failure {
        Failure::Completion { status, vendor_err } => {
            let driver = DriverId(domain.context.file.driver_id());
            (Error::Completion { verb, status, vendor_err, driver, link_down: None }, Outcome::of(status))
        }
        Failure::DeviceRemoved => (Error::DeviceRemoved { verb }, Outcome::Unknown),
    };
    let recv = opcode == WcOpcode::RECV;
    Failed { operation: true, error, tag, buffer, outcome, cause: None, recv, ended_here: false }
}

/// A post that the fast path did not finish.
enum Unfinished<'a, B, O> {
    /// The operation was not pushed.
    Op(Op<'a, B, O>),
    /// The request was pushed.
    Pushed(Pushed<'a, O>),
}

/// A request that was pushed, and that the fast path did not post.
enum Pushed<'a, O> {
    /// The fast path of the queue declined it.
    Declined { wr_id: u64, operation: O, flags: SendFlags, payload: Place<'a> },
    /// The fast path of the queue failed.
    Failed(PostError),
}

/// The payload of a request, by value.
#[derive(Clone, Copy)]
enum Place<'a> {
    Sge(Sge),
    Inline(&'a [u8]),
}

impl<B: Source, K: Kind> SendFlow<B, K> {
    /// Posts an operation to the send queue of the flow's QP, and publishes it with all earlier
    /// ones if the queue does.
    #[inline(always)]
    pub(super) fn post<O: SendOperation<K>, Q: PostSend<O>>(
        &mut self,
        queue: &mut Q,
        op: Op<'_, B, O>,
    ) -> Result<(), NotPosted<B>> {
        // One call of the slow path, so that the result of the fast path stays in registers.
        let unfinished = 'unfinished: {
            let (place, len) = match &op.payload {
                OpPayload::Buffer(buffer, range) => match verified_sge(buffer, self.pd, *range) {
                    Some(sge) => (Place::Sge(sge), sge.length),
                    None => break 'unfinished Unfinished::Op(op),
                },
                // The provider rejects bytes beyond its limit, which is far below 4 GiB.
                OpPayload::Inline(bytes) => (Place::Inline(bytes), bytes.len() as u32),
            };
            let signaled = op.flags.contains(SendFlags::SIGNALED);
            let vacant = if signaled { self.queue.vacant() } else { self.queue.vacant_reserved() };
            let Some(vacant) = vacant else { break 'unfinished Unfinished::Op(op) };
            let Op { operation, payload: buffer, tag, flags } = op;
            let buffer = match buffer {
                OpPayload::Buffer(buffer, _) => Some(buffer),
                OpPayload::Inline(_) => None,
            };
            let wr_id = vacant.wr_id();
            // The flow owns the buffer before the request is posted, so a panic in between does not
            // free it.
            let (opcode, held) = (SendOpcode::new(operation.opcode()), operation.held());
            let pushed = vacant.fill(SendEntry { buffer, tag, len, opcode, signaled, held });
            let (sges, parts);
            let payload = match place {
                Place::Sge(sge) => {
                    sges = [sge];
                    Payload::Sges(&sges)
                }
                Place::Inline(bytes) => {
                    parts = [bytes];
                    Payload::Inline(&parts)
                }
            };
            // SAFETY: the SGE is of the buffer, by `verified_sge`, and the flow owns the buffer. It
            // stays there, registered and untouched (`Source`; `Op` demands a `Target` for
            // operations that write it), until the provider reports the completion of the request
            // or of a later one, or the QP is destroyed. If the flow is forgotten, as by an endpoint
            // that is forgotten or whose QP the kernel refuses to destroy, the buffer is leaked, and
            // its bytes stay valid.
            match unsafe { queue.try_post(&SendRequest { wr_id, operation, flags, payload }) } {
                Some(Ok(())) => {
                    if Q::PUBLISHES {
                        pushed.publish();
                    }
                    return Ok(());
                }
                Some(Err(error)) => Unfinished::Pushed(Pushed::Failed(error)),
                None => Unfinished::Pushed(Pushed::Declined { wr_id, operation, flags, payload: place }),
            }
        };
        self.post_slow(queue, unfinished)
    }

    /// Finishes a post.
    #[cold]
    #[inline(never)]
    fn post_slow<O: SendOperation<K>, Q: PostSend<O>>(
        &mut self,
        queue: &mut Q,
        unfinished: Unfinished<'_, B, O>,
    ) -> Result<(), NotPosted<B>> {
        let Op { operation, payload, tag, flags } = match unfinished {
            Unfinished::Op(op) => op,
            // SAFETY: the contract is upheld as in `post`.
            Unfinished::Pushed(pushed) => return unsafe { self.finish(queue, pushed) },
        };
        match payload {
            OpPayload::Buffer(buffer, range) => {
                let sge = match checked_sge(K::verb(operation.opcode()), &buffer, &self.domain, range) {
                    Ok(sge) => sge,
                    Err(error) => return Err(NotPosted { error, buffer: Some(buffer), tag }),
                };
                let payload = (Payload::Sges(&[sge]), sge.length);
                // SAFETY: as in `post`.
                unsafe { self.post_request(queue, (Some(buffer), tag), operation, flags, payload) }
            }
            OpPayload::Inline(bytes) => {
                let payload = (Payload::Inline(&[bytes]), bytes.len() as u32);
                // SAFETY: the request names no memory.
                unsafe { self.post_request(queue, (None, tag), operation, flags, payload) }
            }
        }
    }
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
    pub(super) fn done<K: Kind>(self, received: Received<K::Sender>) -> K::Done<B> {
        let Received { len, imm, opcode, sender } = received;
        K::received(Done { tag: self.tag, buffer: self.buffer, len, imm, opcode }, sender)
    }
}

/// The receives of a QP with a receive queue of its own.
///
/// Soundness: as for [`SendFlow`]. A receive queue completes in order, and each receive generates a
/// completion.
pub(super) struct RecvFlow<B, K: Kind = Reliable> {
    queue: Queue<RecvEntry<B>>,
    depth: u32,
    domain: Arc<PdShared>,
    /// That of `domain`.
    pd: PdId,
    /// Of the receives that were reaped and not taken, oldest first. Its capacity is `depth`.
    reaped: VecDeque<(Received<K::Sender>, Option<Failure>)>,
    groups: Groups,
}

impl<B, K: Kind> RecvFlow<B, K> {
    pub(super) fn new(domain: Arc<PdShared>, depth: u32) -> Self {
        let reaped = VecDeque::with_capacity(depth as usize);
        Self {
            queue: Queue::new(RECVS, depth),
            depth,
            pd: PdId::of(&domain),
            domain,
            reaped,
            groups: Groups::default(),
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

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The memory of `sge` must satisfy the contract of [`RecvHalf::post_recv`] until the flow has
    /// returned the receive, or the QP is destroyed. The flow keeps `buffer` until then.
    pub(super) unsafe fn post_request(
        &mut self,
        queue: &mut impl PostRecv,
        (buffer, tag): (Option<B>, u64),
        sge: Sge,
    ) -> Result<(), NotPosted<B>> {
        // As for sends, the flow owns the buffer before the request is posted.
        let wr_id = match self.queue.push(RecvEntry { buffer, tag }) {
            Ok(wr_id) => wr_id,
            Err(RecvEntry { buffer, tag }) => {
                let error = full::<K>(WcOpcode::RECV, self.queue.is_closed(), self.depth as usize);
                return Err(NotPosted { error, buffer, tag });
            }
        };
        // SAFETY: the caller upholds the contract.
        let posted = unsafe { queue.post(&RecvRequest { wr_id, sges: &[sge] }) };
        self.posted(posted)
    }

    /// The receive that was pushed last was posted, or not.
    fn posted(&mut self, posted: Result<(), PostError>) -> Result<(), NotPosted<B>> {
        let Err(error) = posted else {
            self.queue.publish();
            return Ok(());
        };
        match self.queue.take_back() {
            Some(RecvEntry { buffer, tag }) => Err(NotPosted { error: error.into(), buffer, tag }),
            None => unreachable!("the receive was pushed by the caller"),
        }
    }

    /// As [`SendFlow::oldest`].
    #[inline(always)]
    pub(super) fn oldest(&mut self, wr_id: u64) -> Option<Oldest<'_, RecvEntry<B>>> {
        self.queue.oldest_if(wr_id)
    }

    /// The receive with this `wr_id` was polled. Returns `false` if it is not the oldest outstanding
    /// one.
    pub(super) fn reap(
        &mut self,
        wr_id: u64,
        received: Received<K::Sender>,
        failure: Option<Failure>,
    ) -> bool {
        let oldest = self.queue.completed();
        match self.queue.position(wr_id) {
            Some(_) if self.groups.within(wr_id) => false,
            Some(0) => {
                self.queue.complete(1);
                self.reaped.push_back((received, failure));
                true
            }
            // The last entry of a receive of several buffers.
            Some(older) => {
                let Some(each) = self.groups.take(oldest, wr_id, received) else { return false };
                self.queue.complete(older + 1);
                self.reaped.extend(each.map(|received| (received, failure)));
                true
            }
            None => false,
        }
    }

    /// The QP is destroyed: the device has finished with all receives. Those that are outstanding end
    /// with `failure`.
    pub(super) fn destroyed(&mut self, failure: Failure) {
        self.close();
        let none = Received { len: 0, imm: None, opcode: WcOpcode::RECV, sender: K::Sender::default() };
        let ended = (none, Some(failure));
        self.reaped.extend(std::iter::repeat_n(ended, self.queue.outstanding()));
        self.queue.complete(self.queue.outstanding());
    }

    /// Whether [`RecvFlow::take`] returns a receive.
    #[inline(always)]
    pub(super) fn has_result(&self) -> bool {
        self.queue.has_complete()
    }

    /// The oldest receive that was reaped.
    pub(super) fn take(&mut self) -> Option<Result<K::Done<B>, Failed<B>>> {
        let entry = self.queue.take()?;
        let (received, failure) = self.reaped.pop_front()?;
        Some(match failure {
            None => Ok(entry.done::<K>(received)),
            Some(failure) => {
                Err(failed::<B, K>(&self.domain, WcOpcode::RECV, (entry.buffer, entry.tag), failure))
            }
        })
    }
}

impl<B: Source, K: Kind> RecvFlow<B, K> {
    /// Posts a receive to the receive queue of the flow's QP.
    ///
    /// The conversion keeps the buffer: both types are buffers of this crate, and no other crate can
    /// convert them.
    #[inline(always)]
    pub(super) fn post<T: Target + Into<B>>(
        &mut self,
        queue: &mut impl PostRecv,
        buffer: T,
        tag: u64,
    ) -> Result<(), NotPosted<B>> {
        let unfinished = 'unfinished: {
            let Some(sge) = verified_sge(&buffer, self.pd, ..) else { break 'unfinished Err(buffer) };
            let Some(vacant) = self.queue.vacant() else { break 'unfinished Err(buffer) };
            let wr_id = vacant.wr_id();
            let pushed = vacant.fill(RecvEntry { buffer: Some(buffer.into()), tag });
            // SAFETY: as in `SendFlow::post`. `T` is a `Target`, so nothing accesses the bytes
            // meanwhile.
            if unsafe { queue.try_post(&RecvRequest { wr_id, sges: &[sge] }) } {
                pushed.publish();
                return Ok(());
            }
            Ok((wr_id, sge))
        };
        self.post_slow(queue, unfinished, tag)
    }

    /// Finishes a post. `unfinished` is the request that was pushed and not posted, or the buffer.
    #[cold]
    #[inline(never)]
    fn post_slow<T: Target + Into<B>>(
        &mut self,
        queue: &mut impl PostRecv,
        unfinished: Result<(u64, Sge), T>,
        tag: u64,
    ) -> Result<(), NotPosted<B>> {
        match unfinished {
            Ok((wr_id, sge)) => {
                // SAFETY: the contract is upheld as in `post`, and the request was not posted.
                let posted = unsafe { queue.post(&RecvRequest { wr_id, sges: &[sge] }) };
                self.posted(posted)
            }
            Err(buffer) => match checked_sge(K::verb(WcOpcode::RECV), &buffer, &self.domain, ..) {
                // SAFETY: as in `post`.
                Ok(sge) => unsafe { self.post_request(queue, (Some(buffer.into()), tag), sge) },
                Err(error) => Err(NotPosted { error, buffer: Some(buffer.into()), tag }),
            },
        }
    }
}

/// An SGE of a region that a scope borrows.
pub(super) fn scoped_sge<B>(
    verb: &'static str,
    region: &impl Registered,
    domain: &Arc<PdShared>,
    range: impl RangeBounds<usize>,
    tag: u64,
) -> Result<Sge, NotPosted<B>> {
    checked_sge(verb, region, domain, range).map_err(|error| NotPosted { error, buffer: None, tag })
}
