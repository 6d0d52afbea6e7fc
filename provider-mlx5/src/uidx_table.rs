//! The table from CQE to queue, by user index.
//!
//! A completion names its queue by the user index, which was given when the queue was made. The
//! poller of a completion queue turns it into the queue's [`QueueRecord`]: the ids of the
//! outstanding requests, and how many are done. The owner of the queue and the pollers of its two
//! completion queues share the record. All of it is made of atomics.
//!
//! | word | written by |
//! |---|---|
//! | [`Entry::owners`], [`Uidx`] | the owner, to show the record first and to hide it; the poller, to show it again after a reset |
//! | ids and marks of requests | the owner |
//! | [`SqTracker::done`], [`RqTracker::done`] | the poller of the side's completion queue |
//! | [`RqTracker::base`] | the owner, under the lock of the completion queue's [`Retired`](crate::cq::CqShared) |
//!
//! # Why a poller's record is not freed under it
//!
//! An entry says which completion queues may use it ([`Entry::owners`]). A poller reads that first
//! and the record's address second. The owner of a queue hides its record and leaves it with both
//! completion queues ([`CqShared::retire`](crate::cq::CqShared::retire)) before it lets go
//! of it. Each completion queue drops it only where its poller has found the queue empty, or has
//! passed all that the ring held when it was left there, between two completions. The entry is
//! given to another queue when the record was freed. So an entry that named a poller's completion
//! queue names the same record until that poller has done with its completion.
//!
//! For the same reason a poller may keep the record that it found last: the record stays until the
//! poller itself drops its destroyed QPs, and it forgets the record then. The record's [`Uidx`]
//! tells whether it is still shown.
//!
//! # Why a stale CQE completes no request posted after a reset
//!
//! After a reset, the slots of a queue are filled anew, and CQEs from before the reset are
//! discarded. A poller may have found the record before the owner hides it, and read the slots
//! after the owner has filled them anew. Then it must not take the new request for complete. So the
//! poller looks a second time:
//!
//! 1. It reads the id and the mark of the request with acquire ordering, or claims the receive
//!    ([`ScatterToCqe::claim`](crate::scatter_to_cqe::ScatterToCqe::claim)).
//! 2. Then it checks that the record is shown: by its [`Uidx`] on the fast path, by its entry on
//!    the slow path.
//!
//! The owner hides the record, issues a release fence
//! ([`barrier::before_slots_are_reused`](bareverbs_provider::barrier)) and fills the slots then. If
//! the poller has read a slot written after the reset, the fence and the acquire load order the
//! hiding before the check, which finds the record hidden. The record isn't shown again meanwhile:
//! after a reset only the poller does that.
//!
//! # Why an owner counts nothing twice
//!
//! A poller that is past its check may store to `done` after the queue was reset. Nothing else is
//! wrong with that: the request was complete. So counts after a reset are larger than all counts
//! before it, and the owner ignores what is not between the last count that it accepted and the
//! number of its requests:
//!
//! - Requests of a send queue are numbered on across resets. Each mark says how many requests are
//!   complete when its own is, and the owner takes all for complete at a reset.
//! - The poller counts the receives. The owner writes down how many receives there were before the
//!   reset ([`RqTracker::base`]), and the poller goes on from there when it shows the record again.
//!   It shows the record before the first completion after the reset, because it finds the record
//!   in no other way.

pub(crate) mod clean;
mod qpn_map;
pub(crate) mod srq_slots;

use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use bareverbs_provider::Errno;

use self::clean::CqShared;
use self::qpn_map::{QpnMap, WireNumbers};
use self::srq_slots::SrqShared;
use crate::cqe::Cqe;
use crate::scatter_to_cqe::{Claim, ScatterToCqe};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Lifetime, Mutex, Ordering, Zeroed, ZeroedArray};

/// Which half of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Side {
    Send = 0,
    Recv = 1,
}

/// In place of a user's number: completions shall name no such, as in version 0.
#[doc(alias = "MLX5_IB_DEFAULT_UIDX")]
pub(crate) const DEFAULT_UIDX: u32 = 0xff_ffff;

/// In an entry's owner: there is one.
const LIVE: u32 = 1 << 31;

/// What an entry names the completion queue `cqn` by.
pub(crate) const fn tag(cqn: u32) -> u32 {
    cqn & 0xff_ffff | LIVE
}

/// One number's queue.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    /// [`tag`] of the completion queue of each side; 0 for none.
    owners: [AtomicU32; 2],
    record: AtomicPtr<QueueRecord>,
}

impl Default for Entry {
    fn default() -> Self {
        let owners = [AtomicU32::new(0), AtomicU32::new(0)];
        Self { owners, record: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

// SAFETY: it consists of atomics, and zeros are its default.
unsafe impl Zeroed for Entry {}

impl Entry {
    /// Whether the completion queue `tag` gets completions of its `side`.
    #[inline(always)]
    pub(crate) fn is_of(&self, side: Side, tag: u32) -> bool {
        self.owners[side as usize].load(Ordering::Acquire) == tag
    }

    /// The record, if the completion queue `tag` gets completions of its `side`.
    ///
    /// # Safety
    ///
    /// The caller must be the poller of that completion queue, and drop none of its destroyed QPs
    /// before it is done with the record.
    #[inline(always)]
    pub(crate) unsafe fn record(&self, side: Side, tag: u32) -> Option<&QueueRecord> {
        if !self.is_of(side, tag) {
            return None;
        }
        // SAFETY: null, or a record that stays, as the module says.
        unsafe { self.record.load(Ordering::Relaxed).as_ref() }
    }
}

/// All numbers of a context.
#[derive(Debug)]
pub(crate) struct UidxTable {
    entries: ZeroedArray<Entry>,
    len: u32,
    ids: Mutex<UidxAllocator>,
    /// Where completions name queues by their numbers on the wire.
    qpn_map: Option<QpnMap>,
}

#[derive(Debug)]
struct UidxAllocator {
    /// QpnMap from here on were never given.
    next: u32,
    /// QpnMap that were given back.
    free: Vec<u32>,
}

impl UidxTable {
    /// For numbers below `len` and completions of this version, 0 or 1. Memory is used for those
    /// that are given.
    pub(crate) fn new(len: u32, cqe_version: u8) -> Result<Self, Errno> {
        let entries = ZeroedArray::new(len as usize)?;
        let qpn_map = if cqe_version == 0 { Some(QpnMap::new()?) } else { None };
        // 0 is no number: firmware has been seen to use it for queues of the kernel.
        Ok(Self { entries, len, ids: Mutex::new(UidxAllocator { next: 1, free: Vec::new() }), qpn_map })
    }

    /// The number of the queue that an entry is of.
    #[inline(always)]
    pub(crate) fn id(&self, cqe: &Cqe<'_>, side: Side) -> u32 {
        match &self.qpn_map {
            None => cqe.srqn_uidx() & 0xff_ffff,
            Some(qpn_map) => qpn_map.id(cqe, side),
        }
    }

    #[inline(always)]
    pub(crate) fn entry(&self, id: u32) -> Option<&Entry> {
        self.entries.get(id as usize)
    }

    fn alloc_uidx(&self) -> Option<u32> {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = ids.free.pop() {
            return Some(id);
        }
        if ids.next >= self.len {
            return None;
        }
        ids.next += 1;
        Some(ids.next - 1)
    }
}

/// What completions name a queue by, as it lies in their entry; [`HIDDEN`] while its CQEs are
/// discarded.
///
/// It says what the table says, to a poller that has the record already.
#[derive(Debug)]
pub(crate) struct Uidx(AtomicU64);

/// What no entry can say, not even that of a device that misbehaves.
const HIDDEN: u64 = u64::MAX;

impl Uidx {
    /// Whether the queue is that of an entry.
    ///
    /// The caller knows the record already, so nothing is read that showing it would have to come
    /// before.
    #[inline(always)]
    pub(crate) fn is(&self, cqe: &Cqe<'_>) -> bool {
        self.0.load(Ordering::Relaxed) == u64::from(cqe.raw_srqn_uidx())
    }

    fn set(&self, id: Option<u32>) {
        self.0.store(id.map_or(HIDDEN, |id| u64::from(id.to_be())), Ordering::Release);
    }
}

impl Default for Uidx {
    fn default() -> Self {
        Self(AtomicU64::new(HIDDEN))
    }
}

/// A request of a send queue.
#[derive(Debug)]
pub(crate) struct SendSlot {
    wr_id: AtomicU64,
    /// How many requests of the queue are complete when this one is ([`THROUGH`]). Where its entry
    /// says less, or there is more to it than that it is complete, what it was ([`WR_DATA`]) and
    /// [`NOT_PLAIN`]. So a plain mark is the count.
    mark: AtomicU64,
}

/// In a mark: see there. It is the sign.
const NOT_PLAIN: u64 = 1 << 63;
/// In a mark: the bits of the request's wr_data, from this one up to the sign.
const WR_DATA: u32 = 55;
/// In a mark: the bits of the count. At 10^9 requests a second they last for more than a year.
const THROUGH: u64 = (1 << WR_DATA) - 1;

/// What the poller has read of a request that is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentWr {
    pub(crate) wr_id: u64,
    mark: u64,
}

impl SentWr {
    /// What it was; 0 where its entry tells.
    pub(crate) fn wr_data(self) -> u32 {
        ((self.mark & !NOT_PLAIN) >> WR_DATA) as u32
    }
}

impl SendSlot {
    fn new() -> Self {
        Self { wr_id: AtomicU64::new(0), mark: AtomicU64::new(0) }
    }

    /// Notes that when the request is complete, `through` are.
    #[inline(always)]
    pub(crate) fn note(&self, wr_id: u64, through: u64, wr_data: u8) {
        let mark = if wr_data == 0 {
            through
        } else {
            NOT_PLAIN | u64::from(wr_data) << WR_DATA | through & THROUGH
        };
        self.wr_id.store(wr_id, Ordering::Relaxed);
        self.mark.store(mark, Ordering::Relaxed);
    }

    /// How many requests are complete when this one is.
    pub(crate) fn through(&self) -> u64 {
        self.mark.load(Ordering::Relaxed) & THROUGH
    }

    /// What was noted last. What the caller reads afterwards is as it was then, or later.
    #[inline(always)]
    fn read(&self) -> SentWr {
        SentWr { mark: self.mark.load(Ordering::Acquire), wr_id: self.wr_id.load(Ordering::Acquire) }
    }
}

/// The requests of a send queue.
#[derive(Debug)]
pub(crate) struct SqTracker {
    pub(crate) uidx: Uidx,
    /// Requests that are complete, counted on across resets. Only the poller stores it.
    done: AtomicU64,
    /// Slots less one.
    mask: u32,
    /// The same times the bytes of a slot.
    offsets: u32,
    /// By the request's first block; a power of 2 of them.
    slots: Box<[SendSlot]>,
    pub(crate) lifetime: Lifetime,
}

impl SqTracker {
    /// For a ring of `blocks` blocks, a power of 2.
    pub(crate) fn new(blocks: u32) -> Self {
        assert!(blocks.is_power_of_two(), "a ring of sends");
        let slots = (0..blocks).map(|_| SendSlot::new()).collect();
        let (mask, offsets) = (blocks - 1, (blocks - 1) << 4);
        let (uidx, done, lifetime) = (Uidx::default(), AtomicU64::new(0), Lifetime::new());
        Self { uidx, done, mask, offsets, slots, lifetime }
    }

    /// The slots, of which there are as many as blocks.
    pub(crate) fn slots(&self) -> &[SendSlot] {
        &self.slots
    }

    #[inline(always)]
    fn slot(&self, block: u16) -> &SendSlot {
        // SAFETY: `new` made `mask + 1` slots.
        unsafe { self.slots.get_unchecked((u32::from(block) & self.mask) as usize) }
    }

    /// The request with the first block `block`, to be [finished](SqTracker::finish) once the queue
    /// is known to be shown.
    #[inline(always)]
    pub(crate) fn read(&self, block: u16) -> SentWr {
        self.slot(block).read()
    }

    /// The same for a request of which there is no more to know than its id; none for others. The
    /// first block is that of an entry's last word.
    #[inline(always)]
    pub(crate) fn read_plain(&self, last_word: u32) -> Option<SentWr> {
        const { assert!(cfg!(loom) || size_of::<SendSlot>() == 16) };
        let slot = if cfg!(loom) {
            self.slot((last_word >> 16) as u16)
        } else {
            // The block's number in the upper half times the bytes of a slot.
            let offset = last_word >> 12 & self.offsets;
            // SAFETY: `new` made `mask + 1` slots, of which this is one.
            unsafe { &*self.slots.as_ptr().byte_add(offset as usize) }
        };
        let sent = slot.read();
        // Of a slot that was never used the mark is 0, which the slow path rejects.
        if (sent.mark as i64) <= 0 { None } else { Some(sent) }
    }

    /// Notes that a request of [`SqTracker::read_plain`], and all before it, are complete.
    #[inline(always)]
    pub(crate) fn finish_plain(&self, sent: SentWr) {
        // The slot is free for its owner from here on.
        self.done.store(sent.mark, Ordering::Release);
    }

    /// Notes that a request, and all before it, are complete.
    #[inline(always)]
    pub(crate) fn finish(&self, sent: SentWr) {
        // The slot is free for its owner from here on.
        self.done.store(sent.mark & THROUGH, Ordering::Release);
    }

    /// Requests that are complete, or fewer where a poller noted one of before a reset.
    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }
}

/// The requests of a receive queue.
#[derive(Debug)]
pub(crate) struct RqTracker {
    pub(crate) uidx: Uidx,
    /// RqTracker that are complete, counted on from `base`. Only the poller stores it.
    done: AtomicU64,
    /// Where the count begins: receives of before the last reset.
    base: AtomicU64,
    /// Slots less one.
    mask: u32,
    /// By slot; a power of 2 of them.
    wr_ids: Box<[AtomicU64]>,
    /// Where completions may carry messages: where these go.
    scatter_to_cqe: Option<ScatterToCqe>,
    pub(crate) lifetime: Lifetime,
}

impl RqTracker {
    /// For a ring of `slots` slots, a power of 2, or none.
    pub(crate) fn new(slots: u32) -> Self {
        let slots = slots.max(1);
        assert!(slots.is_power_of_two(), "a ring of receives");
        let wr_ids = (0..slots).map(|_| AtomicU64::new(0)).collect();
        let (uidx, lifetime) = (Uidx::default(), Lifetime::new());
        let (done, base) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { uidx, done, base, mask: slots - 1, wr_ids, scatter_to_cqe: None, lifetime }
    }

    /// The same for completions that may carry messages, which the poller brings to the receives'
    /// SGEs.
    pub(crate) fn with_scatter_to_cqe(slots: u32, max_sge: u32) -> Result<Self, Errno> {
        let slots = slots.max(1);
        Ok(Self { scatter_to_cqe: Some(ScatterToCqe::new(slots, max_sge)?), ..Self::new(slots) })
    }

    /// Where messages that completions carry go.
    pub(crate) fn scatter_to_cqe(&self) -> Option<&ScatterToCqe> {
        self.scatter_to_cqe.as_ref()
    }

    /// The ids, of which there are as many as slots.
    pub(crate) fn wr_ids(&self) -> &[AtomicU64] {
        &self.wr_ids
    }

    /// The id of the receive in a slot, to be [finished](RqTracker::finish) once the queue is known
    /// to be shown. What the caller reads afterwards is as it was when the id was written, or
    /// later.
    #[inline(always)]
    pub(crate) fn read(&self, slot: u16) -> u64 {
        // SAFETY: `new` made `mask + 1` ids.
        let id = unsafe { self.wr_ids.get_unchecked((u32::from(slot) & self.mask) as usize) };
        id.load(Ordering::Acquire)
    }

    /// Notes that one receive more is complete. Only the poller of the queue's completion queue
    /// writes `done`, so it need not be one step.
    #[inline(always)]
    pub(crate) fn finish(&self) {
        self.done.store(self.done.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// RqTracker that are complete, or fewer where the poller has not shown the queue since a
    /// reset.
    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }
}

/// Where a queue pair's receives come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Its own queue.
    Own(RqTracker),
    /// A shared one.
    Shared(Arc<SrqShared>),
}

/// What a record tells of a request that is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedWr {
    pub(crate) wr_id: u64,
    /// What a send was; 0 where its entry tells.
    pub(crate) wr_data: u32,
    /// Whether a message that the completion carried went to the receive's SGEs.
    pub(crate) payload_ok: bool,
}

impl CompletedWr {
    /// Of an entry that names a slot without an outstanding request.
    const UNMATCHED: Self = Self { wr_id: 0, wr_data: 0, payload_ok: false };
}

/// A [`QueueRecord`] that is kept.
pub(crate) type QueueRecordRef = crate::sync::Arc<QueueRecord>;

/// What a queue's owner and its pollers share.
#[derive(Debug)]
pub(crate) struct QueueRecord {
    id: u32,
    table: Arc<UidxTable>,
    cqs: [Arc<CqShared>; 2],
    pub(crate) sends: SqTracker,
    pub(crate) source: Source,
    wire_numbers: WireNumbers,
    pub(crate) lifetime: Lifetime,
}

impl QueueRecord {
    /// A record with a number, which no poller finds before [`QueueRecord::publish`].
    pub(crate) fn new(
        table: &Arc<UidxTable>,
        cqs: [Arc<CqShared>; 2],
        sends: SqTracker,
        source: Source,
    ) -> Option<QueueRecordRef> {
        let id = table.alloc_uidx()?;
        let (table, wire_numbers, lifetime) = (Arc::clone(table), WireNumbers::default(), Lifetime::new());
        Some(QueueRecordRef::new(Self { id, table, cqs, sends, source, wire_numbers, lifetime }))
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The `uidx` of the create request: its user index, or [`DEFAULT_UIDX`] with CQE version 0.
    pub(crate) fn user_index(&self) -> u32 {
        if self.table.qpn_map.is_none() { self.id } else { DEFAULT_UIDX }
    }

    pub(crate) fn cq(&self, side: Side) -> &Arc<CqShared> {
        &self.cqs[side as usize]
    }

    fn entry(&self) -> &Entry {
        self.table.entry(self.id).expect("a number that the table gave")
    }

    /// Lets the poller of its completion queue find it.
    pub(crate) fn publish(&self, side: Side) {
        let entry = self.entry();
        entry.record.store(NonNull::from(self).as_ptr(), Ordering::Relaxed);
        entry.owners[side as usize].store(self.cqs[side as usize].tag(), Ordering::Release);
        self.set_uidx(side, Some(self.id));
    }

    /// Lets it no longer be found by a poller that looks from here on.
    pub(crate) fn unpublish(&self, side: Side) {
        self.set_uidx(side, None);
        self.entry().owners[side as usize].store(0, Ordering::Release);
    }

    fn set_uidx(&self, side: Side, id: Option<u32>) {
        // What names a queue by other numbers takes the slow path.
        let id = id.filter(|_| self.table.qpn_map.is_none());
        match (side, &self.source) {
            (Side::Send, _) => self.sends.uidx.set(id),
            (Side::Recv, Source::Own(receives)) => receives.uidx.set(id),
            (Side::Recv, Source::Shared(_)) => {}
        }
    }

    /// Completes the request with this number, if the record `is_shown` when the request has been
    /// read; none where it is not. A message that the completion carries goes to the receive's
    /// SGEs.
    ///
    /// # Safety
    ///
    /// The caller must be the poller of the side's completion queue. As for
    /// [`Claim::scatter`](crate::scatter_to_cqe::Claim::scatter).
    pub(crate) unsafe fn complete(
        &self,
        side: Side,
        counter: u16,
        message: Option<&[u8]>,
        is_shown: impl FnOnce() -> bool,
    ) -> Option<CompletedWr> {
        // In this order, as the module says.
        match (side, &self.source) {
            (Side::Send, _) => {
                let sent = self.sends.read(counter);
                if !is_shown() {
                    return None;
                }
                if sent.mark == 0 {
                    return Some(CompletedWr::UNMATCHED);
                }
                self.sends.finish(sent);
                Some(CompletedWr {
                    wr_id: sent.wr_id,
                    wr_data: sent.wr_data(),
                    payload_ok: message.is_none(),
                })
            }
            (Side::Recv, Source::Own(receives)) => {
                let wr_id = receives.read(counter);
                let claim = receives.scatter_to_cqe().and_then(|slots| slots.claim(counter.into()));
                if !is_shown() {
                    claim.into_iter().for_each(Claim::cancel);
                    return None;
                }
                let payload_ok = match (claim, receives.scatter_to_cqe()) {
                    // SAFETY: this function's contract.
                    (Some(claim), _) => unsafe { claim.scatter(message.unwrap_or_default()) },
                    // No receive is posted there: the owner took it back, or the device repeats a
                    // CQE.
                    (None, Some(_)) => return Some(CompletedWr { wr_id, ..CompletedWr::UNMATCHED }),
                    (None, None) => message.is_none_or(<[u8]>::is_empty),
                };
                receives.finish();
                Some(CompletedWr { wr_id, wr_data: 0, payload_ok })
            }
            (Side::Recv, Source::Shared(srq)) => is_shown().then(|| match srq.complete(counter) {
                Some(wr_id) => CompletedWr { wr_id, wr_data: 0, payload_ok: message.is_none() },
                None => CompletedWr::UNMATCHED,
            }),
        }
    }

    /// Passes over a completion of before the queue was destroyed or reset: a receive's slot in a
    /// shared queue goes back.
    pub(crate) fn discard(&self, side: Side, counter: u16) {
        if let (Side::Recv, Source::Shared(srq)) = (side, &self.source) {
            srq.complete(counter);
        }
    }

    /// Writes down that the owner has reset a side, of which there were `base` receives so far. The
    /// caller holds the lock of the side's retired QPs.
    pub(crate) fn rebase(&self, side: Side, base: u64) {
        if let (Side::Recv, Source::Own(receives)) = (side, &self.source) {
            receives.base.store(base, Ordering::Relaxed);
        }
    }

    /// Lets the poller find a side again that was reset. The caller is the poller, and holds the
    /// lock of its retired QPs.
    pub(crate) fn show_again(&self, side: Side) {
        if let (Side::Recv, Source::Own(receives)) = (side, &self.source) {
            receives.done.store(receives.base.load(Ordering::Relaxed), Ordering::Release);
        }
        self.publish(side);
    }
}

impl Drop for QueueRecord {
    fn drop(&mut self) {
        self.unpublish(Side::Send);
        self.unpublish(Side::Recv);
        self.clear();
        self.table.ids.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.id);
    }
}
