//! Completion queues.

mod decode;
mod notify;
mod resize;

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::layout::QueueLayout;
use bareverbs_provider::traits::{Completion, CompletionQueue, Visitor};
use bareverbs_provider::work::{WcStatus, WorkCompletion};

pub use self::decode::Mlx5Completion;
use self::decode::{DecodedCqe, scattered_payload, status_and_byte_len};
use self::notify::Armed;
use crate::cq_ring::mini_cqe::is_title;
use crate::cq_ring::{COUNT, OWNER, Ring, is_before};
use crate::cqe::{Cqe, CqeOpcode};
use crate::doorbell::{DoorbellRecord, RecordWord, Uar, Word};
use crate::sync::Ordering;
use crate::uidx_table::clean::{CqShared, Retired};
use crate::uidx_table::{CompletedWr, Entry, QueueRecord, RqTracker, Side, Source, SqTracker, UidxTable};

/// A completion queue.
#[derive(Debug)]
pub struct Mlx5Cq {
    ring: Ring,
    /// Consumer index, in the bits of [`COUNT`].
    consumer: u32,
    /// Number of CQEs minus 1.
    mask: u32,
    /// The next CQE, and the distance in bytes between two CQEs.
    next: *const u8,
    stride: usize,
    /// The owner bit of the next CQE once the device has written it.
    owner: u8,
    /// The value of `op_own` in the next CQE for a successful send, and for a successful receive of
    /// a plain SEND.
    sent: u8,
    received: u8,
    /// The consumer index in the doorbell record, which `shared` owns.
    read: RecordWord,
    /// The send queue and the receive queue of the last completion of each side. They point to the
    /// sentinels while the fast path is disabled.
    recent_sends: NonNull<SqTracker>,
    recent_receives: NonNull<RqTracker>,
    /// Whether the ring wrapped while there were retired QPs.
    has_wrapped: bool,
    /// The last result of the slow path.
    slow_result: DecodedCqe,
    /// The targets of `recent_sends` and `recent_receives` while the fast path is disabled. Not in a
    /// `Box`: moving one asserts that no other pointer to its contents is used.
    sentinel: Arc<(SqTracker, RqTracker)>,
    /// The CQ's tag in table entries.
    tag: u32,
    table: Arc<UidxTable>,
    shared: Arc<CqShared>,
    uar: Arc<Uar>,
    armed: Armed,
    /// The number of events that the device has raised, which is the sequence number of the arm
    /// command. The device ignores an arm command whose number an event has already answered.
    events: u32,
}

// SAFETY: `ring`, `shared` and `sentinel` own the memory behind the pointers, or the module
// `uidx_table` says why it is not freed. The memory belongs to no thread.
unsafe impl Send for Mlx5Cq {}

impl Mlx5Cq {
    pub(crate) fn new(
        ring: Ring,
        cqn: u32,
        table: &Arc<UidxTable>,
        doorbell: DoorbellRecord,
        uar: &Arc<Uar>,
    ) -> Self {
        let shared = CqShared::new(table, cqn, doorbell, ring.clone());
        let sentinel = Arc::new((SqTracker::new(1), RqTracker::new(1)));
        let mut queue = Self {
            consumer: 0,
            mask: 0,
            next: ring.start,
            stride: 0,
            owner: 0,
            sent: 0,
            received: 0,
            read: shared.doorbell.word(Word::First),
            recent_sends: NonNull::from(&sentinel.0),
            recent_receives: NonNull::from(&sentinel.1),
            has_wrapped: false,
            slow_result: DecodedCqe::general_err(ring.start),
            sentinel,
            ring,
            tag: shared.tag(),
            table: Arc::clone(table),
            shared: Arc::new(shared),
            uar: Arc::clone(uar),
            armed: Armed::Not,
            events: 0,
        };
        queue.reload_ring();
        queue
    }

    /// Recomputes the fields that depend on the ring, the consumer index and the arm state.
    fn reload_ring(&mut self) {
        self.mask = self.ring.entries() - 1;
        self.consumer &= COUNT;
        self.next = self.ring.at(self.consumer);
        self.stride = 1 << self.ring.shift;
        self.owner = (self.consumer >> self.ring.log & 1) as u8;
        self.sent = self.owner | CqeOpcode::REQ.0 << 4;
        self.received = self.owner | CqeOpcode::RESP_SEND.0 << 4;
    }

    /// Advances to the next CQE.
    #[inline(always)]
    fn advance(&mut self) {
        self.consumer = self.consumer.wrapping_add(1);
        // SAFETY: the pointer is that of the next CQE or of the end of the ring; `wrap` corrects
        // the latter.
        self.next = unsafe { self.next.add(self.stride) };
        if self.consumer & self.mask == 0 {
            self.wrap();
        }
    }

    /// Inlined: a call would cost the fast path two instructions, for its argument and the counter.
    #[inline(always)]
    fn wrap(&mut self) {
        self.next = self.ring.start;
        self.consumer &= COUNT;
        self.owner ^= OWNER;
        self.sent ^= OWNER;
        self.received ^= OWNER;
        if self.shared.has_retired.load(Ordering::Relaxed) {
            // The next CQE takes the slow path, where calls cost the fast path nothing.
            self.clear_cached_records();
            self.has_wrapped = true;
        }
    }

    /// Clears the cache of recent queues, which disables the fast path.
    fn clear_cached_records(&mut self) {
        self.recent_sends = NonNull::from(&self.sentinel.0);
        self.recent_receives = NonNull::from(&self.sentinel.1);
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// The next CQE to be polled, written or not, for tools that display it.
    #[must_use]
    pub fn peek(&self) -> Cqe<'_> {
        self.ring.entry(self.consumer)
    }

    /// The queue that a CQE belongs to, if this CQ is its CQ.
    #[inline(always)]
    fn find(&self, id: u32, side: Side) -> Option<&QueueRecord> {
        // SAFETY: this is the CQ's poller, and it drops destroyed QPs only in `release_retired` and
        // `release_passed`.
        self.table.entry(id).and_then(|entry: &Entry| unsafe { entry.record(side, self.tag) })
    }

    /// Resolves a CQE for which no queue was found.
    #[cold]
    fn resolve_unmatched(&self, id: u32, side: Side, cqe: &Cqe<'_>) -> Unmatched {
        let mut retired = self.shared.retired();
        let destroyed = retired
            .destroyed
            .iter()
            .map(|(record, _)| record)
            .find(|record| record.matches_cqe(id, side, cqe));
        let Some(at) =
            retired.reset.iter().position(|(record, which, _)| record.id() == id && *which == side)
        else {
            let Some(destroyed) = destroyed else { return Unmatched::Unknown };
            destroyed.discard(side, cqe.wqe_counter());
            return Unmatched::Discard;
        };
        let (record, _, until) = &retired.reset[at];
        if is_before(self.consumer.wrapping_sub(1), *until) {
            // With CQE version 0, the CQE may be that of a destroyed queue whose number this queue
            // reuses.
            let named = destroyed.or_else(|| record.matches_cqe(id, side, cqe).then_some(record));
            named.into_iter().for_each(|record| record.discard(side, cqe.wqe_counter()));
            return Unmatched::Discard;
        }
        record.republish(side);
        retired.reset.swap_remove(at);
        Unmatched::Retry
    }

    /// Releases the retired QPs if the ring is empty: it contains no CQE of theirs then.
    #[cold]
    fn release_retired(&mut self) {
        self.clear_cached_records();
        let mut retired = self.shared.retired();
        // Once the lock is held, CQEs that the owners of retired QPs saw are visible here too. They
        // must be polled first.
        if self.ring.written(self.consumer, self.peek().op_own()) {
            return;
        }
        for (record, side, _) in retired.reset.drain(..) {
            record.republish(side);
        }
        self.shared.has_retired.store(false, Ordering::Relaxed);
        let destroyed = std::mem::take(&mut retired.destroyed);
        drop(retired);
        drop(destroyed);
    }

    /// Releases retired queue pairs whose CQEs were all polled.
    ///
    /// The consumer index has 24 bits. The release must be done within 2^23 CQEs, or `is_before`
    /// gives the wrong order. Also, a CQ that is never empty would otherwise keep the records of
    /// all destroyed queue pairs.
    #[cold]
    fn release_passed(&mut self) {
        // The cache is cleared before the records are dropped.
        self.clear_cached_records();
        let mut retired = self.shared.retired();
        retired.republish_passed(self.consumer);
        let passed = retired.take_passed(self.consumer, self.ring.entries());
        if retired.is_empty() {
            self.shared.has_retired.store(false, Ordering::Relaxed);
        }
        drop(retired);
        drop(passed);
    }

    /// Polls the next CQE on the fast path. The fast path handles the success of a queue whose
    /// completion was the last one of its side.
    #[inline(always)]
    fn poll_fast(&mut self) -> FastPoll {
        let entry = self.next;
        // SAFETY: a CQE of the ring, which this CQ owns; CQEs are aligned to 64. A borrow of the
        // ring would conflict with the changes below.
        let cqe = unsafe { Cqe::new(entry) };
        let last_word = cqe.last_word();
        let op_own = last_word as u8;
        if op_own == self.sent {
            barrier::after_device_wrote();
            // SAFETY: this is the CQ's poller. It clears the cache before it drops destroyed QPs.
            let sends = unsafe { self.recent_sends.as_ref() };
            let _used = sends.lifetime.used();
            // The order of reading and checking matters; see the module `uidx_table`.
            if let Some(sent) = sends.read_plain(last_word)
                && sends.uidx.is(&cqe)
            {
                sends.finish_plain(sent);
                self.advance();
                return FastPoll::Cqe(DecodedCqe::success(entry, sent.wr_id, 0, CqeOpcode::REQ));
            }
        } else if op_own == self.received {
            let opcode = CqeOpcode::RESP_SEND;
            if let Some(received) = self.receive_fast(entry, &cqe, last_word, opcode) {
                return FastPoll::Cqe(received);
            }
        } else if (op_own ^ self.owner) & OWNER != 0 {
            if !self.shared.has_retired.load(Ordering::Acquire) {
                return FastPoll::Empty;
            }
        } else if op_own & !(OWNER | RESP_IMM_KIND) == CqeOpcode::RESP_WR_IMM.0 << 4 {
            let opcode = CqeOpcode(op_own >> 4);
            if let Some(received) = self.receive_fast(entry, &cqe, last_word, opcode) {
                return FastPoll::CqeWithImm(received);
            }
        }
        FastPoll::Declined
    }

    /// The fast path of a successful receive. `None`: the CQE is of another queue than the last one.
    #[inline(always)]
    fn receive_fast(
        &mut self,
        entry: *const u8,
        cqe: &Cqe<'_>,
        last_word: u32,
        opcode: CqeOpcode,
    ) -> Option<DecodedCqe> {
        barrier::after_device_wrote();
        // SAFETY: this is the CQ's poller. It clears the cache before it drops destroyed QPs.
        let receives = unsafe { self.recent_receives.as_ref() };
        let _used = receives.lifetime.used();
        // The order of reading and checking matters; see the module `uidx_table`.
        let wr_id = receives.read((last_word >> 16) as u16);
        if !receives.uidx.is(cqe) {
            return None;
        }
        receives.finish();
        self.advance();
        Some(DecodedCqe::success(entry, wr_id, cqe.byte_count(), opcode))
    }

    #[inline(always)]
    fn poll_one(&mut self) -> Option<DecodedCqe> {
        match self.poll_fast() {
            FastPoll::Cqe(cqe) | FastPoll::CqeWithImm(cqe) => Some(cqe),
            FastPoll::Empty => None,
            FastPoll::Declined => {
                if self.poll_slow() {
                    Some(self.slow_result)
                } else {
                    None
                }
            }
        }
    }

    /// Polls the next completion by value; whether there was one.
    #[inline(always)]
    fn poll_into(&mut self, into: &mut MaybeUninit<WorkCompletion>) -> bool {
        match self.poll_fast() {
            FastPoll::Cqe(cqe) if cqe.opcode == CqeOpcode::REQ => {
                // SAFETY: this CQ owns the ring.
                into.write(unsafe { cqe.plain_send() }.to_value());
                true
            }
            FastPoll::Cqe(cqe) | FastPoll::CqeWithImm(cqe) => {
                // SAFETY: this CQ owns the ring.
                unsafe { cqe.write_all_fields(into) };
                true
            }
            FastPoll::Empty => false,
            FastPoll::Declined => self.poll_slow_into(into),
        }
    }

    #[inline(never)]
    fn value_of(&mut self, cqe: DecodedCqe) -> Option<WorkCompletion> {
        // SAFETY: the CQ owns the ring, and `self` is borrowed for this method.
        let value = unsafe { cqe.completion() }.to_value();
        self.release();
        Some(value)
    }

    #[inline(never)]
    fn poll_slow_value(&mut self) -> Option<WorkCompletion> {
        self.find_next().and_then(|cqe| self.value_of(cqe))
    }

    #[inline(never)]
    fn poll_slow_into(&mut self, into: &mut MaybeUninit<WorkCompletion>) -> bool {
        let cqe = self.find_next();
        if let Some(cqe) = cqe {
            // SAFETY: this CQ owns the ring.
            unsafe { cqe.write_all_fields(into) };
        }
        cqe.is_some()
    }

    /// Polls the next CQE on the slow path, which handles every CQE. The result is stored in
    /// `slow_result`: returning it would force the fast path's result into memory too.
    #[inline(never)]
    fn poll_slow(&mut self) -> bool {
        let cqe = self.find_next();
        self.slow_result = cqe.unwrap_or(self.slow_result);
        cqe.is_some()
    }

    /// Finds the next completion. If there is none, this function releases the CQEs that it
    /// discarded: the caller polled nothing, so it releases nothing.
    fn find_next(&mut self) -> Option<DecodedCqe> {
        let first = self.consumer;
        let found = self.find_entry();
        if found.is_none() && self.consumer != first {
            self.release();
        }
        found
    }

    fn find_entry(&mut self) -> Option<DecodedCqe> {
        // This bounds the loop: a faulty device can write stale CQEs without limit.
        'entries: for _ in 0..=self.ring.entries() {
            let entry = self.ring.at(self.consumer);
            // SAFETY: a CQE of the ring, which this CQ owns; CQEs are aligned to 64. A borrow of
            // the ring would conflict with the changes below.
            let cqe = unsafe { Cqe::new(entry) };
            let op_own = cqe.op_own();
            if !self.ring.written(self.consumer, op_own) {
                if self.shared.has_retired.load(Ordering::Acquire) {
                    self.release_retired();
                }
                return None;
            }
            barrier::after_device_wrote();
            if std::mem::take(&mut self.has_wrapped) {
                self.release_passed();
            }
            if is_title(op_own) && self.ring.expand(self.consumer) {
                continue;
            }
            self.advance();
            if is_title(op_own) {
                return Some(DecodedCqe::general_err(entry));
            }
            if let Armed::Solicited(_) = self.armed {
                self.count_event(self.consumer);
            }
            let opcode = CqeOpcode(op_own >> 4);
            let side = match opcode {
                CqeOpcode::REQ | CqeOpcode::REQ_ERR => Side::Send,
                CqeOpcode::RESP_WR_IMM
                | CqeOpcode::RESP_SEND
                | CqeOpcode::RESP_SEND_IMM
                | CqeOpcode::RESP_SEND_INV
                | CqeOpcode::RESP_ERR => Side::Recv,
                _ => return Some(DecodedCqe::general_err(entry)),
            };
            let id = self.table.id(&cqe, side);
            let counter = cqe.wqe_counter();
            let message = scattered_payload(&cqe, opcode);
            let message = message.as_ref().map(|(bytes, length)| &bytes[..*length]);
            let (record, done) = loop {
                if let Some(record) = self.find(id, side) {
                    let _used = record.lifetime.used();
                    // SAFETY: the caller that posted the receive guarantees that its memory is
                    // valid until it completes or is taken back.
                    let done =
                        unsafe { record.complete(side, counter, message, || self.find(id, side).is_some()) };
                    if let Some(done) = done {
                        break (record, done);
                    }
                }
                // The record was not found, or it was unpublished in between.
                match self.resolve_unmatched(id, side, &cqe) {
                    Unmatched::Discard => continue 'entries,
                    Unmatched::Unknown => return Some(DecodedCqe::general_err(entry)),
                    Unmatched::Retry => {}
                }
            };
            let sends = NonNull::from(&record.sends);
            let receives = match &record.source {
                Source::Own(receives) if receives.scatter_to_cqe().is_none() => Some(NonNull::from(receives)),
                _ => None,
            };
            // If the ring has wrapped, the next CQE takes the slow path.
            if !self.has_wrapped && !matches!(self.armed, Armed::Solicited(_)) {
                match side {
                    Side::Send => self.recent_sends = sends,
                    Side::Recv => self.recent_receives = receives.unwrap_or(self.recent_receives),
                }
            }
            let (status, byte_len) = status_and_byte_len(&cqe, opcode);
            let CompletedWr { wr_id, wr_data, payload_ok } = done;
            let status = if payload_ok { status } else { WcStatus::GENERAL_ERR };
            return Some(DecodedCqe { entry, wr_id, status, byte_len, opcode, wr_data });
        }
        None
    }
}

/// The bit of `op_own` that distinguishes the two opcodes of receives with immediate data.
const RESP_IMM_KIND: u8 = (CqeOpcode::RESP_WR_IMM.0 ^ CqeOpcode::RESP_SEND_IMM.0) << 4;

/// The action for a CQE whose queue was not found.
enum Unmatched {
    /// Its queue pair was destroyed or reset after the CQE was written.
    Discard,
    /// Its QP was reset before the CQE was written; the record is published again.
    Retry,
    /// The CQE names no known queue.
    Unknown,
}

/// The result of the fast path.
enum FastPoll {
    Cqe(DecodedCqe),
    /// A receive with immediate data. Its opcode is not a constant.
    CqeWithImm(DecodedCqe),
    /// The device has written no further CQE.
    Empty,
    /// The slow path must handle the CQE.
    Declined,
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `ring` and `shared` own the CQEs and the doorbell record; a borrowed completion keeps the CQ
//    borrowed.
// 2. and 3. The device writes one CQE when it has finished a request. A CQE is polled once: the
//    owner bit and the consumer index distinguish it from older CQEs. `wr_id` is that of the last
//    request in the slot that the CQE names. So a repeated CQE has a `wr_id` that was reported
//    before, unless its slot was posted again. `barrier::after_device_wrote` precedes all other
//    reads of the CQE.
// 4. A CQE that leads to no queue of this CQ, or has an undefined opcode, becomes
//    `DecodedCqe::general_err`. A CQE of a send slot that was never posted, or of an SRQ slot that
//    is not posted, becomes `CompletedWr::UNMATCHED`. A repeated CQE of a receive with scatter to
//    CQE has the status GENERAL_ERR.
// 5. The device writes CQEs up to the consumer index in the doorbell record, which `release`
//    stores.
// 6. The device completes the requests of a send queue in order, as the IB specification requires
//    (ordering rules of the send queue) and the PRM repeats: a CQE implies the completion of all
//    earlier WQEs. CQEs are polled in the order of the ring.
unsafe impl CompletionQueue for Mlx5Cq {
    type Completion<'a>
        = Mlx5Completion<'a>
    where
        Self: 'a;

    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.entries() - 1
    }

    fn layout(&self) -> Option<QueueLayout> {
        let doorbell = self.shared.doorbell.layout(Some(self.uar.cq_register()));
        let offset = self.ring.start.addr() - self.ring.memory().as_ptr().addr().get();
        let layout = QueueLayout::new(
            self.ring.memory().as_ptr(),
            self.ring.entries(),
            1 << self.ring.shift,
            self.consumer & COUNT,
            doorbell,
        );
        Some(layout.with_number(self.shared.cqn).with_content_offset(offset as u32))
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Mlx5Completion<'_>> {
        // SAFETY: the ring is not freed while the CQ is borrowed.
        Some(unsafe { self.poll_one()?.completion() })
    }

    #[inline(always)]
    fn visit_next<V: Visitor>(&mut self, visitor: V) -> V::Output {
        match self.poll_fast() {
            // Copies of the visitor, so that each knows what its completions have.
            FastPoll::Cqe(cqe) if cqe.opcode == CqeOpcode::REQ => {
                // SAFETY: the ring is not freed while the CQ is borrowed.
                let output = visitor.completion(unsafe { cqe.plain_send() });
                self.release();
                output
            }
            FastPoll::Cqe(cqe) => {
                // SAFETY: the ring is not freed while the CQ is borrowed.
                let output = visitor.completion(unsafe { cqe.completion() });
                self.release();
                output
            }
            FastPoll::CqeWithImm(cqe) => {
                // SAFETY: the ring is not freed while the CQ is borrowed.
                let output = visitor.completion(unsafe { cqe.completion() });
                self.release();
                output
            }
            FastPoll::Empty => visitor.empty(),
            FastPoll::Declined => visitor.declined(),
        }
    }

    /// The results of the fast path and of the slow path are returned separately. A single value
    /// for both would be built in memory first.
    #[inline(always)]
    fn next_value(&mut self) -> Option<WorkCompletion> {
        match self.poll_fast() {
            FastPoll::Cqe(cqe) if cqe.opcode == CqeOpcode::REQ => {
                // SAFETY: this CQ owns the ring.
                let value = unsafe { cqe.plain_send() }.to_value();
                self.release();
                Some(value)
            }
            FastPoll::Cqe(cqe) | FastPoll::CqeWithImm(cqe) => self.value_of(cqe),
            FastPoll::Empty => None,
            FastPoll::Declined => self.poll_slow_value(),
        }
    }

    #[inline(always)]
    fn next_values(&mut self, into: &mut [WorkCompletion]) -> usize {
        let mut taken = 0;
        for slot in into {
            // SAFETY: only values are written to the place.
            if !self.poll_into(unsafe { &mut *std::ptr::from_mut(slot).cast() }) {
                break;
            }
            taken += 1;
        }
        if taken > 0 {
            self.release();
        }
        taken
    }

    #[inline(always)]
    fn release(&mut self) {
        let (read, consumer) = (self.read, self.consumer);
        // The CQEs must be read before the device may overwrite them.
        barrier::before_device_overwrites();
        // SAFETY: `shared` owns the doorbell record.
        unsafe { read.set(consumer) };
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError> {
        self.req_notify(solicited_only);
        Ok(())
    }
}

impl Drop for Mlx5Cq {
    fn drop(&mut self) {
        let closed = Retired { closed: true, ..Retired::default() };
        // The records own references to this CQ's shared part, so they are dropped outside of its
        // lock.
        let retired = std::mem::replace(&mut *self.shared.retired(), closed);
        drop(retired);
    }
}

#[cfg(test)]
mod exhaustive;
#[cfg(all(test, not(loom)))]
mod faulty_device;
