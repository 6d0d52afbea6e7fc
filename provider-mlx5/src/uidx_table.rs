//! The table from CQE to QP or SRQ, by user index.
//!
//! A CQE names its queue by the user index, which the create command sets. The poller of a CQ looks
//! up the queue's [`QueueRecord`]. The record contains the `wr_id`s of outstanding requests and the
//! number of completed requests. The owner of the queue and the pollers of its two CQs share the
//! record. All shared fields are atomics.
//!
//! | word | written by |
//! |---|---|
//! | [`Entry::owners`], [`Uidx`] | the owner, to publish the record first and to unpublish it; the poller, to publish it again after a reset |
//! | `wr_id`s and marks of requests | the owner |
//! | [`SqTracker::done`], [`RqTracker::done`] | the poller of that side's CQ |
//! | [`RqTracker::base`] | the owner, under the lock of the CQ's [`Retired`](crate::cq::CqShared) |
//!
//! # Why a record is not freed while a poller uses it
//!
//! An entry names the CQs that may use it ([`Entry::owners`]) by tags that this process allocates
//! ([`CqTag`]). Two CQs never have the same tag, whatever CQNs the kernel reports. A poller reads
//! the owner first and the record's address second.
//!
//! The owner of a queue unpublishes its record and passes a reference to both CQs
//! ([`CqShared::retire`](crate::cq::CqShared::retire)) before it drops its own reference. A CQ
//! drops that reference only between two completions. It does so when its poller has found the CQ
//! empty, or has passed all CQEs that were in the ring at the destruction. The user index is reused
//! only after the record was freed. So an entry that named a poller's CQ names the same record
//! until that poller has finished its completion.
//!
//! For the same reason a poller may cache the record of its last completion. The record is valid
//! until the poller drops its destroyed QPs, and the poller clears the cache then. The record's
//! [`Uidx`] says whether the record is still published.
//!
//! # Why a stale CQE does not complete a request that was posted after a reset
//!
//! After a reset, the owner reuses the slots of the queue, and the poller discards CQEs from before
//! the reset. A poller may have found the record before the owner unpublishes it, and may read the
//! slots after the owner has reused them. It must not report the new request as complete. So the
//! poller checks the record a second time:
//!
//! 1. It reads the `wr_id` and the mark of the request with acquire ordering, or claims the receive
//!    ([`ScatterToCqe::claim`](crate::scatter_to_cqe::ScatterToCqe::claim)).
//! 2. It checks that the record is published: by its [`Uidx`] on the fast path, by its entry on the
//!    slow path.
//!
//! The owner unpublishes the record, issues a release fence
//! ([`barrier::before_slots_are_reused`](bareverbs_provider::barrier)) and then writes the slots.
//! If the poller has read a slot that was written after the reset, the fence and the acquire load
//! order the unpublishing before the check. The check then finds the record unpublished. The record
//! is not published again in between, because only the poller publishes a record after a reset.
//!
//! # Why an owner counts no request twice
//!
//! A poller that has passed its check may store to `done` after the queue was reset. The request
//! was complete, so only the count must be protected. Counts after a reset are larger than all
//! counts before it. The owner ignores a count that is not between the last count that it accepted
//! and the number of posted requests.
//!
//! - Requests of a send queue are counted on across resets. Each mark is the number of requests
//!   that are complete when its own request is. At a reset the owner treats all requests as
//!   complete.
//! - The poller counts the receives. The owner stores the number of receives before the reset in
//!   [`RqTracker::base`]. The poller continues from `base` when it publishes the record again. It
//!   can't find the record otherwise, so it publishes the record before it takes the first
//!   completion after the reset.

pub(crate) mod clean;
mod qpn_map;
pub(crate) mod srq_slots;

use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use bareverbs_provider::Errno;

use self::clean::CqShared;
use self::qpn_map::{QpnMap, QpnSrqn};
use self::srq_slots::SrqShared;
use crate::cqe::Cqe;
use crate::scatter_to_cqe::{Claim, ScatterToCqe};
use crate::sync::{
    AtomicPtr, AtomicU32, AtomicU64, Lifetime, Mutex, MutexGuard, Ordering, Zeroed, ZeroedArray,
};

/// A half of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Side {
    Send = 0,
    Recv = 1,
}

/// The `uidx` of a queue whose CQEs contain no user index, as with CQE version 0.
#[doc(alias = "MLX5_IB_DEFAULT_UIDX")]
pub(crate) const DEFAULT_UIDX: u32 = 0xff_ffff;

/// Set in [`Entry::owners`] if the side has a CQ.
const LIVE: u32 = 1 << 31;

/// The name of a CQ in [`Entry::owners`]: a number that the table allocates, with [`LIVE`] set. It
/// is not the CQN: nothing stops the kernel from reporting one CQN for two CQs.
#[derive(Debug)]
pub(crate) struct CqTag {
    table: Arc<UidxTable>,
    value: u32,
}

impl CqTag {
    /// Allocates a tag, which is unique until it is dropped.
    pub(crate) fn new(table: &Arc<UidxTable>) -> Self {
        // Each CQ has a ring of its own, so memory ends before the numbers do.
        let id = lock(&table.cq_ids).alloc(LIVE).expect("fewer than 2^31 CQs");
        Self { table: Arc::clone(table), value: id | LIVE }
    }

    fn is_of_table(&self, table: &Arc<UidxTable>) -> bool {
        Arc::ptr_eq(&self.table, table)
    }

    /// The value in [`Entry::owners`].
    pub(crate) fn value(&self) -> u32 {
        self.value
    }
}

impl Drop for CqTag {
    fn drop(&mut self) {
        lock(&self.table.cq_ids).free.push(self.value & !LIVE);
    }
}

/// The table entry of one user index.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    /// [`CqTag`] of the CQ of each side; 0 for none.
    owners: [AtomicU32; 2],
    record: AtomicPtr<QueueRecord>,
}

impl Default for Entry {
    fn default() -> Self {
        let owners = [AtomicU32::new(0), AtomicU32::new(0)];
        Self { owners, record: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

// SAFETY: `Entry` consists of atomics, and its default is all zeros.
unsafe impl Zeroed for Entry {}

impl Entry {
    /// Whether the CQ with this `tag` is the CQ of `side`.
    #[inline(always)]
    pub(crate) fn is_of(&self, side: Side, tag: u32) -> bool {
        self.owners[side as usize].load(Ordering::Acquire) == tag
    }

    /// The record, if the CQ with this `tag` is the CQ of `side`.
    ///
    /// # Safety
    ///
    /// The caller must be the poller of that CQ. It must not drop its destroyed QPs while it uses
    /// the record.
    #[inline(always)]
    pub(crate) unsafe fn record(&self, side: Side, tag: u32) -> Option<&QueueRecord> {
        if !self.is_of(side, tag) {
            return None;
        }
        // SAFETY: the pointer is null or that of a record that is not freed, as the module says.
        unsafe { self.record.load(Ordering::Relaxed).as_ref() }
    }
}

/// All user indices of a context.
#[derive(Debug)]
pub(crate) struct UidxTable {
    entries: ZeroedArray<Entry>,
    len: u32,
    ids: Mutex<IdAllocator>,
    /// The numbers in [`CqTag`]s.
    cq_ids: Mutex<IdAllocator>,
    /// The map from QPN and SRQN to user index; CQE version 0 only.
    qpn_map: Option<QpnMap>,
}

#[derive(Debug)]
struct IdAllocator {
    /// All ids from this one on were never allocated.
    next: u32,
    /// Ids that were freed.
    free: Vec<u32>,
}

impl IdAllocator {
    fn starting_at(next: u32) -> Mutex<Self> {
        Mutex::new(Self { next, free: Vec::new() })
    }

    /// A free id below `limit`.
    fn alloc(&mut self, limit: u32) -> Option<u32> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        if self.next >= limit {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }
}

impl UidxTable {
    /// A table of user indices below `len`, for CQE version 0 or 1. Untouched entries use no
    /// memory.
    pub(crate) fn new(len: u32, cqe_version: u8) -> Result<Self, Errno> {
        let entries = ZeroedArray::new(len as usize)?;
        let qpn_map = if cqe_version == 0 { Some(QpnMap::new()?) } else { None };
        // Index 0 is not allocated: some firmware uses it for queues of the kernel.
        let ids = IdAllocator::starting_at(1);
        Ok(Self { entries, len, ids, cq_ids: IdAllocator::starting_at(0), qpn_map })
    }

    /// The user index of the queue that a CQE names.
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
        lock(&self.ids).alloc(self.len)
    }
}

fn lock(ids: &Mutex<IdAllocator>) -> MutexGuard<'_, IdAllocator> {
    ids.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The user index of a queue, big-endian as in a CQE; [`UNPUBLISHED`] while CQEs of the queue are
/// discarded.
///
/// It has the same meaning as the table entry, for a poller that has the record already.
#[derive(Debug)]
pub(crate) struct Uidx(AtomicU64);

/// A value that no CQE can contain, even from a faulty device.
const UNPUBLISHED: u64 = u64::MAX;

impl Uidx {
    /// Whether a CQE names this queue.
    ///
    /// The load is relaxed: the caller has the record already, so no later read depends on this
    /// one.
    #[inline(always)]
    pub(crate) fn is(&self, cqe: &Cqe<'_>) -> bool {
        self.0.load(Ordering::Relaxed) == u64::from(cqe.raw_srqn_uidx())
    }

    fn set(&self, id: Option<u32>) {
        self.0.store(id.map_or(UNPUBLISHED, |id| u64::from(id.to_be())), Ordering::Release);
    }
}

impl Default for Uidx {
    fn default() -> Self {
        Self(AtomicU64::new(UNPUBLISHED))
    }
}

/// A request of a send queue.
#[derive(Debug)]
pub(crate) struct SendSlot {
    wr_id: AtomicU64,
    /// The number of the queue's requests that are complete when this one is ([`COUNT_MASK`]).
    ///
    /// If the CQE's opcode does not name the verb, or the CQE has more than success to report, the
    /// mark also contains the verb ([`WR_DATA`]) and [`NOT_PLAIN`]. So a plain mark is equal to the
    /// count.
    mark: AtomicU64,
}

/// Set in a mark that is more than the count. It is the sign bit.
const NOT_PLAIN: u64 = 1 << 63;
/// The first bit of the request's `wr_data` in a mark. The field ends below the sign bit.
const WR_DATA: u32 = 55;
/// The bits of the count in a mark. At 10^9 requests per second they last for more than a year.
const COUNT_MASK: u64 = (1 << WR_DATA) - 1;

/// The slot of a completed request, as read by the poller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentWr {
    pub(crate) wr_id: u64,
    mark: u64,
}

impl SentWr {
    /// The verb of the request; 0 if the CQE's opcode names it.
    pub(crate) fn wr_data(self) -> u32 {
        ((self.mark & !NOT_PLAIN) >> WR_DATA) as u32
    }
}

impl SendSlot {
    fn new() -> Self {
        Self { wr_id: AtomicU64::new(0), mark: AtomicU64::new(0) }
    }

    /// Records a request; `through` requests are complete when this one is.
    #[inline(always)]
    pub(crate) fn note(&self, wr_id: u64, through: u64, wr_data: u8) {
        let mark = if wr_data == 0 {
            through
        } else {
            NOT_PLAIN | u64::from(wr_data) << WR_DATA | through & COUNT_MASK
        };
        self.wr_id.store(wr_id, Ordering::Relaxed);
        self.mark.store(mark, Ordering::Relaxed);
    }

    /// The number of requests that are complete when this one is.
    pub(crate) fn through(&self) -> u64 {
        self.mark.load(Ordering::Relaxed) & COUNT_MASK
    }

    /// Reads the slot with acquire ordering.
    #[inline(always)]
    fn read(&self) -> SentWr {
        SentWr { mark: self.mark.load(Ordering::Acquire), wr_id: self.wr_id.load(Ordering::Acquire) }
    }
}

/// The requests of a send queue.
#[derive(Debug)]
pub(crate) struct SqTracker {
    pub(crate) uidx: Uidx,
    /// Completed requests, counted on across resets. Only the poller stores it.
    done: AtomicU64,
    /// Number of slots minus 1.
    mask: u32,
    /// `mask` times the bytes of a slot.
    offsets: u32,
    /// Slots by the request's first WQEBB; their number is a power of 2.
    slots: Box<[SendSlot]>,
    pub(crate) lifetime: Lifetime,
}

impl SqTracker {
    /// For a ring of `blocks` WQEBBs, a power of 2.
    pub(crate) fn new(blocks: u32) -> Self {
        assert!(blocks.is_power_of_two(), "a ring of sends");
        let slots = (0..blocks).map(|_| SendSlot::new()).collect();
        let (mask, offsets) = (blocks - 1, (blocks - 1) << 4);
        let (uidx, done, lifetime) = (Uidx::default(), AtomicU64::new(0), Lifetime::new());
        Self { uidx, done, mask, offsets, slots, lifetime }
    }

    /// The slots, one per WQEBB.
    pub(crate) fn slots(&self) -> &[SendSlot] {
        &self.slots
    }

    #[inline(always)]
    fn slot(&self, block: u16) -> &SendSlot {
        // SAFETY: `new` allocates `mask + 1` slots.
        unsafe { self.slots.get_unchecked((u32::from(block) & self.mask) as usize) }
    }

    /// Reads the request whose first WQEBB is `block`. The caller [finishes](SqTracker::finish) it
    /// after it has checked that the queue is published.
    #[inline(always)]
    pub(crate) fn read(&self, block: u16) -> SentWr {
        self.slot(block).read()
    }

    /// Reads a plain request by the CQE's last word; `None` for other requests. The WQE counter in
    /// that word is the request's first WQEBB.
    #[inline(always)]
    pub(crate) fn read_plain(&self, last_word: u32) -> Option<SentWr> {
        const { assert!(cfg!(loom) || size_of::<SendSlot>() == 16) };
        let slot = if cfg!(loom) {
            self.slot((last_word >> 16) as u16)
        } else {
            // The WQE counter in the upper half, times the bytes of a slot.
            let offset = last_word >> 12 & self.offsets;
            // SAFETY: `new` allocates `mask + 1` slots, and the masked offset is that of one of
            // them.
            unsafe { &*self.slots.as_ptr().byte_add(offset as usize) }
        };
        let sent = slot.read();
        // The mark of a slot that was never used is 0. The slow path rejects it.
        if (sent.mark as i64) <= 0 { None } else { Some(sent) }
    }

    /// Marks a request of [`SqTracker::read_plain`], and all requests before it, as complete.
    #[inline(always)]
    pub(crate) fn finish_plain(&self, sent: SentWr) {
        // From here on the owner may reuse the slot.
        self.done.store(sent.mark, Ordering::Release);
    }

    /// Marks a request, and all requests before it, as complete.
    #[inline(always)]
    pub(crate) fn finish(&self, sent: SentWr) {
        // From here on the owner may reuse the slot.
        self.done.store(sent.mark & COUNT_MASK, Ordering::Release);
    }

    /// The number of completed requests. It is smaller if a poller stored a count from before a
    /// reset.
    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }
}

/// The requests of a receive queue.
#[derive(Debug)]
pub(crate) struct RqTracker {
    pub(crate) uidx: Uidx,
    /// Completed receives, counted on from `base`. Only the poller stores it.
    done: AtomicU64,
    /// The first value of `done`: the number of receives before the last reset.
    base: AtomicU64,
    /// Number of slots minus 1.
    mask: u32,
    /// `wr_id`s by slot; their number is a power of 2.
    wr_ids: Box<[AtomicU64]>,
    /// The SGEs of receives, with scatter to CQE only.
    scatter_to_cqe: Option<ScatterToCqe>,
    pub(crate) lifetime: Lifetime,
}

impl RqTracker {
    /// For a ring of `slots` slots, a power of 2. 0 slots count as 1.
    pub(crate) fn new(slots: u32) -> Self {
        let slots = slots.max(1);
        assert!(slots.is_power_of_two(), "a ring of receives");
        let wr_ids = (0..slots).map(|_| AtomicU64::new(0)).collect();
        let (uidx, lifetime) = (Uidx::default(), Lifetime::new());
        let (done, base) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { uidx, done, base, mask: slots - 1, wr_ids, scatter_to_cqe: None, lifetime }
    }

    /// Like [`RqTracker::new`], with scatter to CQE: the poller copies payload to the SGEs of
    /// receives.
    pub(crate) fn with_scatter_to_cqe(slots: u32, max_sge: u32) -> Result<Self, Errno> {
        let slots = slots.max(1);
        Ok(Self { scatter_to_cqe: Some(ScatterToCqe::new(slots, max_sge)?), ..Self::new(slots) })
    }

    /// The SGEs of receives, with scatter to CQE only.
    pub(crate) fn scatter_to_cqe(&self) -> Option<&ScatterToCqe> {
        self.scatter_to_cqe.as_ref()
    }

    /// The `wr_id`s, one per slot.
    pub(crate) fn wr_ids(&self) -> &[AtomicU64] {
        &self.wr_ids
    }

    /// Reads the `wr_id` of the receive in a slot with acquire ordering. The caller
    /// [finishes](RqTracker::finish) it after it has checked that the queue is published.
    #[inline(always)]
    pub(crate) fn read(&self, slot: u16) -> u64 {
        // SAFETY: `new` allocates `mask + 1` ids.
        let id = unsafe { self.wr_ids.get_unchecked((u32::from(slot) & self.mask) as usize) };
        id.load(Ordering::Acquire)
    }

    /// Marks one more receive as complete. Only the poller of the queue's CQ stores `done`, so no
    /// atomic addition is needed.
    #[inline(always)]
    pub(crate) fn finish(&self) {
        self.done.store(self.done.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// The number of completed receives. It is smaller if the poller has not published the queue
    /// since a reset.
    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }
}

/// The source of a queue pair's receives.
#[derive(Debug)]
pub(crate) enum Source {
    /// Its own receive queue.
    Own(RqTracker),
    /// An SRQ.
    Shared(Arc<SrqShared>),
}

/// The result of completing a request in its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedWr {
    pub(crate) wr_id: u64,
    /// The verb of a send; 0 if the CQE's opcode names it.
    pub(crate) wr_data: u32,
    /// Whether payload in the CQE, if any, was copied in full to the receive's SGEs.
    pub(crate) payload_ok: bool,
}

impl CompletedWr {
    /// The result for a CQE that names a slot without an outstanding request.
    const UNMATCHED: Self = Self { wr_id: 0, wr_data: 0, payload_ok: false };
}

/// A counted reference to a [`QueueRecord`].
pub(crate) type QueueRecordRef = crate::sync::Arc<QueueRecord>;

/// State that a queue's owner and its pollers share.
#[derive(Debug)]
pub(crate) struct QueueRecord {
    id: u32,
    table: Arc<UidxTable>,
    cqs: [Arc<CqShared>; 2],
    pub(crate) sends: SqTracker,
    pub(crate) source: Source,
    wire_numbers: QpnSrqn,
    pub(crate) lifetime: Lifetime,
}

impl QueueRecord {
    /// Allocates a user index and a record; `None` if all indices are in use. No poller finds the
    /// record before [`QueueRecord::publish`].
    ///
    /// # Panics
    /// If a CQ belongs to another table: tags are unique within one table only.
    pub(crate) fn new(
        table: &Arc<UidxTable>,
        cqs: [Arc<CqShared>; 2],
        sends: SqTracker,
        source: Source,
    ) -> Option<QueueRecordRef> {
        assert!(cqs.iter().all(|cq| cq.is_of_table(table)), "CQs of this context");
        let id = table.alloc_uidx()?;
        let (table, wire_numbers, lifetime) = (Arc::clone(table), QpnSrqn::default(), Lifetime::new());
        Some(QueueRecordRef::new(Self { id, table, cqs, sends, source, wire_numbers, lifetime }))
    }

    /// The user index of the record.
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

    /// Publishes the record: the poller of the side's CQ finds it from here on.
    pub(crate) fn publish(&self, side: Side) {
        let entry = self.entry();
        entry.record.store(NonNull::from(self).as_ptr(), Ordering::Relaxed);
        entry.owners[side as usize].store(self.cqs[side as usize].tag(), Ordering::Release);
        self.set_uidx(side, Some(self.id));
    }

    /// Unpublishes the record: a poller that looks it up from here on does not find it.
    pub(crate) fn unpublish(&self, side: Side) {
        self.set_uidx(side, None);
        self.entry().owners[side as usize].store(0, Ordering::Release);
    }

    fn set_uidx(&self, side: Side, id: Option<u32>) {
        // With CQE version 0, CQEs contain no user index, so every CQE takes the slow path.
        let id = id.filter(|_| self.table.qpn_map.is_none());
        match (side, &self.source) {
            (Side::Send, _) => self.sends.uidx.set(id),
            (Side::Recv, Source::Own(receives)) => receives.uidx.set(id),
            (Side::Recv, Source::Shared(_)) => {}
        }
    }

    /// Completes the request with this WQE counter. The function reads the request and then calls
    /// `is_published`. The result is `None` if the record is not published. Payload in the CQE is
    /// copied to the receive's SGEs.
    ///
    /// # Safety
    ///
    /// The caller must be the poller of the side's CQ. The memory of the receive must be as
    /// [`Claim::scatter`](crate::scatter_to_cqe::Claim::scatter) requires.
    pub(crate) unsafe fn complete(
        &self,
        side: Side,
        counter: u16,
        message: Option<&[u8]>,
        is_published: impl FnOnce() -> bool,
    ) -> Option<CompletedWr> {
        // The order of reading and checking matters; see the module.
        match (side, &self.source) {
            (Side::Send, _) => {
                let sent = self.sends.read(counter);
                if !is_published() {
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
                if !is_published() {
                    claim.into_iter().for_each(Claim::cancel);
                    return None;
                }
                let payload_ok = match (claim, receives.scatter_to_cqe()) {
                    // SAFETY: the contract of this function.
                    (Some(claim), _) => unsafe { claim.scatter(message.unwrap_or_default()) },
                    // No receive is posted there: the owner took it back, or the device repeated a
                    // CQE.
                    (None, Some(_)) => return Some(CompletedWr { wr_id, ..CompletedWr::UNMATCHED }),
                    (None, None) => message.is_none_or(<[u8]>::is_empty),
                };
                receives.finish();
                Some(CompletedWr { wr_id, wr_data: 0, payload_ok })
            }
            (Side::Recv, Source::Shared(srq)) => is_published().then(|| match srq.complete(counter) {
                Some(wr_id) => CompletedWr { wr_id, wr_data: 0, payload_ok: message.is_none() },
                None => CompletedWr::UNMATCHED,
            }),
        }
    }

    /// Discards a CQE from before the queue was destroyed or reset. The slot of an SRQ's receive is
    /// returned to the SRQ.
    pub(crate) fn discard(&self, side: Side, counter: u16) {
        if let (Side::Recv, Source::Shared(srq)) = (side, &self.source) {
            srq.complete(counter);
        }
    }

    /// Stores that the owner has reset a side after `base` receives. The caller holds the lock of
    /// the CQ's retired QPs.
    pub(crate) fn rebase(&self, side: Side, base: u64) {
        if let (Side::Recv, Source::Own(receives)) = (side, &self.source) {
            receives.base.store(base, Ordering::Relaxed);
        }
    }

    /// Publishes a side again after its reset. The caller is the poller and holds the lock of its
    /// retired QPs.
    pub(crate) fn republish(&self, side: Side) {
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
        lock(&self.table.ids).free.push(self.id);
    }
}

#[cfg(all(test, loom))]
mod loom_models;
