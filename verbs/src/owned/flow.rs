//! The operations of each direction of an endpoint, with their buffers.

use std::collections::VecDeque;
use std::ops::RangeBounds;
use std::sync::Arc;

use super::buffer::checked_sge;
use super::buffer::sealed::Registered;
use super::op::{AnyRange, OpPayload, opcode};
use super::queue::Queue;
use super::{Done, Failed, NotPosted, Op, Outcome, Source, Target};
use crate::pd::shared::PdShared;
use crate::{
    DriverId, Error, Imm, Operation, Payload, PostError, PostReason, PushError, RecvRequest, Result,
    SendFlags, SendRequest, Sge, WcOpcode, WcStatus,
};

/// Owners of the `wr_id`s of an endpoint.
pub(super) const SENDS: u32 = 1;
pub(super) const RECVS: u32 = 2;

/// The `wr_id` of the request that is posted in ERR behind unsignalled sends. Its completion shows
/// that the device has finished with them.
pub(super) const MARKER: u64 = 3 << 40;

pub(super) const CLOSED: &str = "the connection has failed: create a new endpoint";

#[cold]
#[inline(never)]
fn full(verb: &'static str, closed: bool, capacity: usize) -> Error {
    if closed {
        return Error::invalid(verb, CLOSED);
    }
    let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
    PostError { accepted: 0, reason: PushError::QueueFull { capacity }.into() }.into()
}

fn verb(opcode: WcOpcode) -> &'static str {
    match opcode {
        WcOpcode::RDMA_WRITE => "Endpoint::post_write",
        WcOpcode::RDMA_READ => "Endpoint::post_read",
        WcOpcode::FETCH_ADD => "Endpoint::post_fetch_add",
        WcOpcode::COMP_SWAP => "Endpoint::post_compare_swap",
        WcOpcode::SEND => "Endpoint::post_send",
        _ => "Endpoint::post_recv",
    }
}

/// A send, write, read or atomic operation in flight.
struct SendEntry<B> {
    buffer: Option<B>,
    tag: u64,
    len: u32,
    opcode: WcOpcode,
}

impl<B> SendEntry<B> {
    #[inline(always)]
    fn done(self) -> Done<B> {
        Done { tag: self.tag, buffer: self.buffer, len: self.len, imm: None, opcode: self.opcode }
    }

    fn failed(self, domain: &PdShared, failure: Failure) -> Failed<B> {
        failed(domain, self.opcode, (self.buffer, self.tag), failure)
    }
}

/// Status and vendor error of an error completion.
#[derive(Clone, Copy)]
pub(super) struct Failure {
    pub(super) status: WcStatus,
    pub(super) vendor_err: u32,
}

/// The failure of an operation whose QP was destroyed.
const FLUSHED: Failure = Failure { status: WcStatus::WR_FLUSH_ERR, vendor_err: 0 };

/// The operations of the send queue of an RC QP.
///
/// Soundness: an entry owns its buffer from before the request is posted until the
/// provider reports the request's completion, or that of a later request. A send queue of RC
/// completes in order.
pub(super) struct SendFlow<B> {
    queue: Queue<SendEntry<B>>,
    depth: u32,
    domain: Arc<PdShared>,
    /// Operations that were posted after the last signalled one.
    run: u32,
    /// Longest run of unsignalled operations, plus 1.
    signal_every: u32,
    /// Failed requests that were polled and not returned, by their number in the queue. It never
    /// has more elements than the queue.
    failures: VecDeque<(u64, Failure)>,
    /// Whether a request failed, or `refused` or `destroyed` is set.
    failed: bool,
    /// The newest requests in flight, whose doorbell the kernel refused. They never complete.
    refused: usize,
    /// Whether the QP is destroyed. The requests in flight never complete.
    destroyed: bool,
}

impl<B> SendFlow<B> {
    pub(super) fn new(domain: Arc<PdShared>, depth: u32, signal_every: u32) -> Self {
        let queue = Queue::new(SENDS, depth);
        Self {
            queue,
            depth,
            domain,
            run: 0,
            signal_every,
            failures: VecDeque::with_capacity(depth as usize),
            failed: false,
            refused: 0,
            destroyed: false,
        }
    }

    pub(super) fn queue(&self) -> &Queue<impl Sized> {
        &self.queue
    }

    pub(super) fn close(&mut self) {
        self.queue.close();
    }

    /// The number of operations in flight at the end of the queue that generate no completion.
    pub(super) fn unsignaled_tail(&self) -> usize {
        (self.run as usize).min(self.queue.in_flight())
    }

    /// Whether all operations in flight generate no completion.
    pub(super) fn only_unsignaled(&self) -> bool {
        self.queue.in_flight() > 0 && self.unsignaled_tail() == self.queue.in_flight()
    }

    /// The flags of a request: signalled if it would make a run too long, or fills the queue. So
    /// there is room for the marker behind an unsignalled tail.
    #[inline(always)]
    fn signal(&mut self, mut flags: SendFlags) -> SendFlags {
        if !flags.contains(SendFlags::SIGNALED) {
            self.run += 1;
            if self.run < self.signal_every && self.queue.credits() > 0 {
                return flags;
            }
            flags |= SendFlags::SIGNALED;
        }
        self.run = 0;
        flags
    }

    /// Returns the operation that was pushed last. A doorbell that took it back, also took back all
    /// that were not published. Their `wr_id`s must not be used again, so the flow is closed.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self, run: u32, error: PostError) -> NotPosted<B> {
        self.run = run;
        let entry = self.queue.take_back();
        if matches!(error.reason, PostReason::Doorbell(_)) {
            self.refuse();
        }
        match entry {
            Some(SendEntry { buffer, tag, .. }) => NotPosted { error: error.into(), buffer, tag },
            None => unreachable!("the operation was pushed by the caller"),
        }
    }

    #[cold]
    #[inline(never)]
    fn full(&self, entry: SendEntry<B>) -> NotPosted<B> {
        let error = full(verb(entry.opcode), self.queue.is_closed(), self.depth as usize);
        NotPosted { error, buffer: entry.buffer, tag: entry.tag }
    }

    /// Posts the operation on `sge` by `post`, and publishes it with all earlier ones. `buffer` is
    /// that of the SGE.
    ///
    /// `post` may publish the request only if it returns `Ok`, or an error that accepted it.
    #[inline(always)]
    pub(super) fn post_request(
        &mut self,
        entry: (Option<B>, u64),
        operation: Operation,
        flags: SendFlags,
        payload: (Payload<'_>, u32),
        post: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
    ) -> Result<(), NotPosted<B>> {
        self.push_request(entry, operation, flags, payload, post)?;
        self.queue.publish();
        Ok(())
    }

    /// Adds the operation by `push`, which does not publish it; see [`SendFlow::published`].
    #[inline(always)]
    fn push_request(
        &mut self,
        entry: (Option<B>, u64),
        operation: Operation,
        flags: SendFlags,
        (payload, len): (Payload<'_>, u32),
        post: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
    ) -> Result<(), NotPosted<B>> {
        let (buffer, tag) = entry;
        // The flow owns the buffer before the request is posted, so a panic in between does not
        // free it.
        let wr_id = match self.queue.push(SendEntry { buffer, tag, len, opcode: opcode(&operation) }) {
            Ok(wr_id) => wr_id,
            Err(entry) => return Err(self.full(entry)),
        };
        let run = self.run;
        let flags = self.signal(flags);
        match post(&SendRequest { wr_id, operation, flags, payload }) {
            Ok(()) => Ok(()),
            // A request that counts as posted will complete, even if its doorbell was refused.
            Err(error) if error.accepted > 0 => Ok(()),
            Err(error) => Err(self.take_back(run, error)),
        }
    }

    /// The doorbell was rung for all operations, or may have been.
    pub(super) fn published(&mut self) {
        self.queue.publish();
    }

    /// A refused doorbell took back all operations that were not published.
    pub(super) fn refuse(&mut self) {
        self.close();
        (self.refused, self.failed) = (self.queue.unpublished(), true);
    }

    /// The request with this `wr_id` was polled and was successful: returns it, if none is older
    /// and none has failed.
    #[inline(always)]
    pub(super) fn finish(&mut self, wr_id: u64) -> Option<Done<B>> {
        if self.failed {
            return None;
        }
        self.queue.take_oldest(wr_id).map(SendEntry::done)
    }

    /// The oldest requests were polled, up to the one with this `wr_id`. Returns `false` if no
    /// request in flight has it.
    #[inline(always)]
    pub(super) fn reap(&mut self, wr_id: u64, failure: Option<Failure>) -> bool {
        let Some(older) = self.queue.position(wr_id) else { return false };
        if let Some(failure) = failure {
            self.note_failure(older, failure);
        }
        self.queue.complete(older + 1);
        true
    }

    /// The request behind the `older` ones in flight failed. The older ones were unsignalled. They
    /// were successful if no earlier request had failed, else it is unknown.
    #[cold]
    #[inline(never)]
    fn note_failure(&mut self, older: usize, failure: Failure) {
        let oldest = self.queue.completed();
        let number = oldest + older as u64;
        if self.failed {
            self.failures.extend((oldest..number).map(|number| (number, FLUSHED)));
        }
        self.failures.push_back((number, failure));
        self.failed = true;
    }

    /// The marker was polled. The device has finished with all requests that it saw. Those that
    /// generated no completion were successful, unless an earlier request failed: then it is
    /// unknown.
    pub(super) fn reap_marker(&mut self) {
        self.run = 0;
        let seen = self.queue.in_flight() - self.refused.min(self.queue.in_flight());
        if self.failed {
            let oldest = self.queue.completed();
            self.failures.extend((oldest..oldest + seen as u64).map(|number| (number, FLUSHED)));
        }
        self.queue.complete(seen);
    }

    /// The QP is destroyed: the device has finished with all requests.
    pub(super) fn destroyed(&mut self) {
        self.close();
        (self.destroyed, self.failed) = (true, true);
    }

    /// Whether [`SendFlow::take`] may return an operation.
    #[inline(always)]
    pub(super) fn has_result(&self) -> bool {
        self.queue.has_complete() || self.failed
    }

    /// The number of operations that the device may still use.
    pub(super) fn in_use(&self) -> usize {
        if self.destroyed { 0 } else { self.queue.in_flight() - self.refused.min(self.queue.in_flight()) }
    }

    /// The oldest operation that completed.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Result<Done<B>, Failed<B>>> {
        if self.failed {
            return self.take_failed();
        }
        self.queue.take().map(|entry| Ok(entry.done()))
    }

    #[cold]
    #[inline(never)]
    fn take_failed(&mut self) -> Option<Result<Done<B>, Failed<B>>> {
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
        let refused = self.refused > 0 && self.queue.in_flight() <= self.refused;
        if !refused && !self.destroyed {
            return None;
        }
        self.queue.complete(1);
        let entry = self.queue.take()?;
        if !refused {
            return Some(Err(entry.failed(&self.domain, FLUSHED)));
        }
        self.refused -= 1;
        let SendEntry { buffer, tag, opcode, .. } = entry;
        let error = Error::invalid(verb(opcode), "the kernel refused the doorbell of the batch");
        Some(Err(Failed { error, tag, buffer, outcome: Outcome::NotDone, cause: None }))
    }
}

fn failed<B>(
    domain: &PdShared,
    opcode: WcOpcode,
    (buffer, tag): (Option<B>, u64),
    failure: Failure,
) -> Failed<B> {
    let Failure { status, vendor_err } = failure;
    let driver = DriverId(domain.context.file.driver_id());
    let error = Error::Completion { verb: verb(opcode), status, vendor_err, driver };
    Failed { error, tag, buffer, outcome: Outcome::of(status), cause: None }
}

impl<B: Source> SendFlow<B> {
    /// Posts an operation by `post`, and publishes it with all earlier ones.
    ///
    /// `post` may publish the request only if it returns `Ok`, or an error that accepted it.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        op: Op<'_, B>,
        post: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
    ) -> Result<(), NotPosted<B>> {
        self.push(op, post)?;
        self.queue.publish();
        Ok(())
    }

    /// Adds an operation by `push`, which does not publish it; see [`SendFlow::published`].
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        op: Op<'_, B>,
        push: impl FnOnce(&SendRequest<'_>) -> Result<(), PostError>,
    ) -> Result<(), NotPosted<B>> {
        let Op { operation, payload, tag, flags } = op;
        match payload {
            OpPayload::Buffer(buffer, range) => {
                let sge = match self.sge(&operation, &buffer, range) {
                    Ok(sge) => sge,
                    Err(error) => return Err(NotPosted { error, buffer: Some(buffer), tag }),
                };
                let payload = (Payload::Sges(&[sge]), sge.length);
                self.push_request((Some(buffer), tag), operation, flags, payload, push)
            }
            OpPayload::Inline(bytes) => {
                // The provider rejects bytes beyond its limit, which is far below 4 GiB.
                let payload = (Payload::Inline(&[bytes]), bytes.len() as u32);
                self.push_request((None, tag), operation, flags, payload, push)
            }
        }
    }

    #[inline(always)]
    fn sge(&self, operation: &Operation, buffer: &B, range: AnyRange) -> Result<Sge> {
        checked_sge(verb(opcode(operation)), buffer, &self.domain, range)
    }
}

/// A receive in flight.
struct RecvEntry<B> {
    buffer: Option<B>,
    tag: u64,
}

/// The completion of a receive.
#[derive(Clone, Copy)]
pub(super) struct Received {
    pub(super) len: u32,
    pub(super) imm: Option<Imm>,
    pub(super) opcode: WcOpcode,
    pub(super) failure: Option<Failure>,
}

/// The receives of an RC QP with a receive queue of its own.
///
/// Soundness: as for [`SendFlow`]. A receive queue completes in order, and each receive generates a
/// completion.
pub(super) struct RecvFlow<B> {
    queue: Queue<RecvEntry<B>>,
    depth: u32,
    domain: Arc<PdShared>,
    /// Of the receives that were reaped and not taken, oldest first. Its capacity is `depth`.
    reaped: VecDeque<Received>,
}

impl<B> RecvFlow<B> {
    pub(super) fn new(domain: Arc<PdShared>, depth: u32) -> Self {
        let reaped = VecDeque::with_capacity(depth as usize);
        Self { queue: Queue::new(RECVS, depth), depth, domain, reaped }
    }

    pub(super) fn queue(&self) -> &Queue<impl Sized> {
        &self.queue
    }

    pub(super) fn close(&mut self) {
        self.queue.close();
    }

    /// Posts a receive of `sge` by `post`. `buffer` is that of the SGE.
    ///
    /// `post` may publish the request only if it returns `Ok`.
    #[inline(always)]
    pub(super) fn post_request(
        &mut self,
        buffer: Option<B>,
        tag: u64,
        sge: Sge,
        post: impl FnOnce(&RecvRequest<'_>) -> Result<(), PostError>,
    ) -> Result<(), NotPosted<B>> {
        // As for sends, the flow owns the buffer before the request is posted.
        let wr_id = match self.queue.push(RecvEntry { buffer, tag }) {
            Ok(wr_id) => wr_id,
            Err(entry) => return Err(self.full(entry)),
        };
        match post(&RecvRequest { wr_id, sges: &[sge] }) {
            Ok(()) => {
                self.queue.publish();
                Ok(())
            }
            Err(error) => Err(self.take_back(error.into())),
        }
    }

    #[cold]
    #[inline(never)]
    fn full(&self, RecvEntry { buffer, tag }: RecvEntry<B>) -> NotPosted<B> {
        let error = full(verb(WcOpcode::RECV), self.queue.is_closed(), self.depth as usize);
        NotPosted { error, buffer, tag }
    }

    #[cold]
    #[inline(never)]
    fn take_back(&mut self, error: Error) -> NotPosted<B> {
        match self.queue.take_back() {
            Some(RecvEntry { buffer, tag }) => NotPosted { error, buffer, tag },
            None => unreachable!("the receive was pushed by the caller"),
        }
    }

    /// The receive with this `wr_id` was polled: returns it. `None` if it is not the oldest one in
    /// flight. No reaped receive is left to be taken.
    #[inline(always)]
    pub(super) fn finish(&mut self, wr_id: u64, received: Received) -> Option<Result<Done<B>, Failed<B>>> {
        let entry = self.queue.take_oldest(wr_id)?;
        Some(result(&self.domain, entry, received))
    }

    /// The receive with this `wr_id` was polled. Returns `false` if it is not the oldest one in
    /// flight.
    pub(super) fn reap(&mut self, wr_id: u64, received: Received) -> bool {
        let oldest = self.queue.position(wr_id) == Some(0);
        if oldest {
            self.queue.complete(1);
            self.reaped.push_back(received);
        }
        oldest
    }

    /// The QP is destroyed: the device has finished with all receives.
    pub(super) fn destroyed(&mut self) {
        self.close();
        let flushed = Received { len: 0, imm: None, opcode: WcOpcode::RECV, failure: Some(FLUSHED) };
        self.reaped.extend(std::iter::repeat_n(flushed, self.queue.in_flight()));
        self.queue.complete(self.queue.in_flight());
    }

    /// Whether [`RecvFlow::take`] returns a receive.
    #[inline(always)]
    pub(super) fn has_result(&self) -> bool {
        self.queue.has_complete()
    }

    /// The oldest receive that was reaped.
    pub(super) fn take(&mut self) -> Option<Result<Done<B>, Failed<B>>> {
        let entry = self.queue.take()?;
        let received = self.reaped.pop_front()?;
        Some(result(&self.domain, entry, received))
    }
}

#[inline(always)]
fn result<B>(domain: &PdShared, entry: RecvEntry<B>, received: Received) -> Result<Done<B>, Failed<B>> {
    let RecvEntry { buffer, tag } = entry;
    let Received { len, imm, opcode, failure } = received;
    match failure {
        None => Ok(Done { tag, buffer, len, imm, opcode }),
        Some(failure) => Err(failed(domain, WcOpcode::RECV, (buffer, tag), failure)),
    }
}

impl<B> RecvFlow<B> {
    /// Posts a receive by `post`, which may publish the request only if it returns `Ok`.
    ///
    /// The conversion keeps the buffer: only this crate can convert a [`Target`] to another type of
    /// buffer.
    #[inline(always)]
    pub(super) fn post<T: Target + Into<B>>(
        &mut self,
        buffer: T,
        tag: u64,
        post: impl FnOnce(&RecvRequest<'_>) -> Result<(), PostError>,
    ) -> Result<(), NotPosted<B>> {
        match checked_sge(verb(WcOpcode::RECV), &buffer, &self.domain, ..) {
            Ok(sge) => self.post_request(Some(buffer.into()), tag, sge, post),
            Err(error) => Err(NotPosted { error, buffer: Some(buffer.into()), tag }),
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
