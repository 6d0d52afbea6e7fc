//! Which queue a completion is of.
//!
//! A completion names its queue by the user's number, which was given when the queue was made. Whoever polls turns it
//! into the queue's [`Record`]: the ids of the requests under way, and how many are done. The owner of the queue and
//! the pollers of its two completion queues share the record; all of it is atomic, and each word has one writer at a
//! time.
//!
//! # Why a poller's record is never freed under it
//!
//! An entry says which completion queues may use it ([`Entry::owners`]). A poller reads that first and the record's
//! address second. Before a queue's owner lets go of its record, it takes its entry away and leaves the record with
//! both completion queues ([`CqShared::bury`](crate::completion::CqShared)), each of which drops it only where its
//! poller has found the queue empty. An entry is used anew when the record is gone. So an entry that named a poller's
//! completion queue names the same record until that poller is back in its completion queue.
//!
//! For the same reason a poller may keep the record that it found last: it stays until the poller itself drops its dead,
//! and forgets it then. The record's [`Name`] tells whether it is still to be found.

mod numbers;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bareverbs_provider::Errno;
use bareverbs_provider::mapping::Mapping;

use self::numbers::{Numbers, Wire};
use crate::completion::CqShared;
use crate::cqe::Cqe;
use crate::kept::Kept;
use crate::srq::SrqShared;

/// Which half of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Side {
    Send = 0,
    Recv = 1,
}

/// In place of a user's number: completions shall name no such, as in version 0.
#[doc(alias = "MLX5_IB_DEFAULT_UIDX")]
pub(crate) const NO_USER_INDEX: u32 = 0xff_ffff;

/// In an entry's owner: there is one.
const LIVE: u32 = 1 << 31;

/// What an entry names the completion queue `cqn` by.
pub(crate) const fn tag(cqn: u32) -> u32 {
    cqn & 0xff_ffff | LIVE
}

/// One number's queue.
#[repr(C)]
pub(crate) struct Entry {
    /// [`tag`] of the completion queue of each side; 0 for none.
    owners: [AtomicU32; 2],
    record: AtomicPtr<Record>,
}

impl Entry {
    /// The record, if the completion queue `tag` gets completions of its `side`.
    ///
    /// # Safety
    ///
    /// The caller must be the poller of that completion queue, and drop none of its dead before it is done with the
    /// record.
    #[inline(always)]
    pub(crate) unsafe fn record(&self, side: Side, tag: u32) -> Option<&Record> {
        if self.owners[side as usize].load(Ordering::Acquire) != tag {
            return None;
        }
        // SAFETY: null, or a record that stays, as the module says.
        unsafe { self.record.load(Ordering::Relaxed).as_ref() }
    }
}

/// All numbers of a context.
#[derive(Debug)]
pub(crate) struct Table {
    entries: Mapping,
    len: u32,
    ids: Mutex<Ids>,
    /// Where completions name queues by their numbers on the wire.
    numbers: Option<Numbers>,
}

#[derive(Debug)]
struct Ids {
    /// Numbers from here on were never given.
    next: u32,
    /// Numbers that were given back.
    free: Vec<u32>,
}

impl Table {
    /// For numbers below `len` and completions of this version, 0 or 1. Memory is used for those that are given.
    pub(crate) fn new(len: u32, cqe_version: u8) -> Result<Self, Errno> {
        let entries = Mapping::anonymous(len.max(2) as usize * size_of::<Entry>())?;
        let numbers = if cqe_version == 0 { Some(Numbers::new()?) } else { None };
        // 0 is no number: firmware has been seen to use it for queues of the kernel.
        Ok(Self { entries, len, ids: Mutex::new(Ids { next: 1, free: Vec::new() }), numbers })
    }

    /// The number of the queue that an entry is of.
    #[inline(always)]
    pub(crate) fn id(&self, cqe: &Cqe<'_>, side: Side) -> u32 {
        match &self.numbers {
            None => cqe.srqn_uidx() & 0xff_ffff,
            Some(numbers) => numbers.id(cqe, side),
        }
    }

    #[inline(always)]
    pub(crate) fn entry(&self, id: u32) -> Option<&Entry> {
        if id >= self.len {
            return None;
        }
        // SAFETY: the mapping has `len` entries, for which zeros are a value; they consist of atomics and are accessed
        // in no other way.
        Some(unsafe { self.entries.as_ptr().cast::<Entry>().add(id as usize).as_ref() })
    }

    fn take(&self) -> Option<u32> {
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

/// What completions name a queue by, as it lies in their entry; [`HIDDEN`] while its completions are nobody's.
///
/// It says what the table says, to a poller that has the record already.
#[derive(Debug)]
pub(crate) struct Name(AtomicU64);

/// What no entry can say, not even that of a device that lies.
const HIDDEN: u64 = u64::MAX;

impl Name {
    /// Whether the queue is that of an entry.
    #[inline(always)]
    pub(crate) fn is(&self, cqe: &Cqe<'_>) -> bool {
        self.0.load(Ordering::Acquire) == u64::from(cqe.raw_srqn_uidx())
    }

    fn set(&self, id: Option<u32>) {
        self.0.store(id.map_or(HIDDEN, |id| u64::from(id.to_be())), Ordering::Release);
    }
}

impl Default for Name {
    fn default() -> Self {
        Self(AtomicU64::new(HIDDEN))
    }
}

/// A request of a send queue.
#[derive(Debug, Default)]
pub(crate) struct SendSlot {
    wr_id: AtomicU64,
    /// How many requests are complete when this one is (low half). Where its entry says less or there is more to it than
    /// that it is complete, what it was (bits 32 and up), and [`NOT_PLAIN`].
    mark: AtomicU64,
}

/// In a mark: see there. It is the sign.
const NOT_PLAIN: u64 = 1 << 63;

impl SendSlot {
    /// Notes that when the request is complete, `through` are.
    #[inline(always)]
    pub(crate) fn note(&self, wr_id: u64, through: u32, purpose: u32) {
        let sign = if purpose == 0 { 0 } else { NOT_PLAIN };
        self.wr_id.store(wr_id, Ordering::Relaxed);
        self.mark.store(sign | u64::from(purpose) << 32 | u64::from(through), Ordering::Relaxed);
    }

    /// How many requests are complete when this one is.
    pub(crate) fn through(&self) -> u32 {
        self.mark.load(Ordering::Relaxed) as u32
    }
}

/// The requests of a send queue.
#[derive(Debug)]
pub(crate) struct Sends {
    pub(crate) name: Name,
    /// Requests that are complete, counted on.
    done: AtomicU32,
    /// Slots less one.
    mask: u32,
    /// The same times the bytes of a slot.
    offsets: u32,
    /// By the request's first block; a power of 2 of them.
    slots: Box<[SendSlot]>,
}

impl Sends {
    /// For a ring of `blocks` blocks, a power of 2.
    pub(crate) fn new(blocks: u32) -> Self {
        assert!(blocks.is_power_of_two(), "a ring of sends");
        let slots = (0..blocks).map(|_| SendSlot::default()).collect();
        let (mask, offsets) = (blocks - 1, (blocks - 1) << 4);
        Self { name: Name::default(), done: AtomicU32::new(0), mask, offsets, slots }
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

    /// The same as [`Sends::complete`] for a request of which there is no more to know than its id; for others, does
    /// nothing. The first block is that of an entry's last word.
    #[inline(always)]
    pub(crate) fn complete_plain(&self, last_word: u32) -> Option<u64> {
        const { assert!(size_of::<SendSlot>() == 16) };
        // The block's number in the upper half times the bytes of a slot.
        let offset = last_word >> 12 & self.offsets;
        // SAFETY: `new` made `mask + 1` slots, of which this is one.
        let slot = unsafe { &*self.slots.as_ptr().byte_add(offset as usize) };
        let mark = slot.mark.load(Ordering::Relaxed);
        if mark & NOT_PLAIN != 0 {
            return None;
        }
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        self.done.store(mark as u32, Ordering::Release);
        Some(wr_id)
    }

    /// Notes that the request with the first block `block`, and all before it, are complete; returns its id and what it
    /// was.
    #[inline(always)]
    pub(crate) fn complete(&self, block: u16) -> (u64, u32) {
        let slot = self.slot(block);
        let mark = slot.mark.load(Ordering::Relaxed);
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        // The slot is free for its owner from here on.
        self.done.store(mark as u32, Ordering::Release);
        (wr_id, ((mark & !NOT_PLAIN) >> 32) as u32)
    }

    /// Requests that are complete.
    #[inline]
    pub(crate) fn done(&self) -> u32 {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn reset(&self) {
        self.done.store(0, Ordering::Release);
    }
}

/// The requests of a receive queue.
#[derive(Debug)]
pub(crate) struct Receives {
    pub(crate) name: Name,
    done: AtomicU32,
    /// Slots less one.
    mask: u32,
    /// By slot; a power of 2 of them.
    wr_ids: Box<[AtomicU64]>,
    /// Where completions may carry messages: where these go.
    kept: Option<Kept>,
}

impl Receives {
    /// For a ring of `slots` slots, a power of 2, or none.
    pub(crate) fn new(slots: u32) -> Self {
        let slots = slots.max(1);
        assert!(slots.is_power_of_two(), "a ring of receives");
        let wr_ids = (0..slots).map(|_| AtomicU64::new(0)).collect();
        Self { name: Name::default(), done: AtomicU32::new(0), mask: slots - 1, wr_ids, kept: None }
    }

    /// The same for completions that may carry messages, which the poller brings to the receives' elements.
    pub(crate) fn keeping(slots: u32, max_sge: u32) -> Self {
        let slots = slots.max(1);
        Self { kept: Some(Kept::new(slots, max_sge)), ..Self::new(slots) }
    }

    /// Where messages that completions carry go.
    pub(crate) fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// The ids, of which there are as many as slots.
    pub(crate) fn wr_ids(&self) -> &[AtomicU64] {
        &self.wr_ids
    }

    /// Only the poller of the queue's completion queue writes `done`, so it need not be one step.
    #[inline(always)]
    pub(crate) fn complete(&self, slot: u16) -> u64 {
        // SAFETY: `new` made `mask + 1` ids.
        let id = unsafe { self.wr_ids.get_unchecked((u32::from(slot) & self.mask) as usize) };
        let wr_id = id.load(Ordering::Relaxed);
        self.done.store(self.done.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        wr_id
    }

    #[inline]
    pub(crate) fn done(&self) -> u32 {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn reset(&self) {
        self.done.store(0, Ordering::Release);
        self.kept.iter().for_each(Kept::forget);
    }
}

/// Where a queue pair's receives come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Its own queue.
    Own(Receives),
    /// A shared one.
    Shared(Arc<SrqShared>),
}

/// What a queue's owner and its pollers share.
#[derive(Debug)]
pub(crate) struct Record {
    id: u32,
    table: Arc<Table>,
    cqs: [Arc<CqShared>; 2],
    pub(crate) sends: Sends,
    pub(crate) source: Source,
    wire: Wire,
}

impl Record {
    /// A record with a number, which nobody finds before [`Record::show`].
    pub(crate) fn new(
        table: &Arc<Table>,
        cqs: [Arc<CqShared>; 2],
        sends: Sends,
        source: Source,
    ) -> Option<Arc<Self>> {
        let id = table.take()?;
        Some(Arc::new(Self { id, table: Arc::clone(table), cqs, sends, source, wire: Wire::default() }))
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// What the device is told that completions shall name it by: its number, or, where they name queues by other numbers, that
    /// they shall.
    pub(crate) fn user_index(&self) -> u32 {
        if self.table.numbers.is_none() { self.id } else { NO_USER_INDEX }
    }

    pub(crate) fn cq(&self, side: Side) -> &Arc<CqShared> {
        &self.cqs[side as usize]
    }

    fn entry(&self) -> &Entry {
        self.table.entry(self.id).expect("a number that the table gave")
    }

    /// Lets the poller of its completion queue find it.
    pub(crate) fn show(&self, side: Side) {
        let entry = self.entry();
        entry.record.store(NonNull::from(self).as_ptr(), Ordering::Relaxed);
        entry.owners[side as usize].store(self.cqs[side as usize].tag(), Ordering::Release);
        self.set_name(side, Some(self.id));
    }

    /// Lets it no longer be found.
    pub(crate) fn hide(&self, side: Side) {
        self.set_name(side, None);
        self.entry().owners[side as usize].store(0, Ordering::Release);
    }

    fn set_name(&self, side: Side, id: Option<u32>) {
        // What names a queue by other numbers goes the long way.
        let id = id.filter(|_| self.table.numbers.is_none());
        match (side, &self.source) {
            (Side::Send, _) => self.sends.name.set(id),
            (Side::Recv, Source::Own(receives)) => receives.name.set(id),
            (Side::Recv, Source::Shared(_)) => {}
        }
    }

    /// Takes note of a receive's completion; returns its id.
    #[inline(always)]
    pub(crate) fn complete_recv(&self, slot: u16) -> u64 {
        match &self.source {
            Source::Own(receives) => receives.complete(slot),
            Source::Shared(srq) => srq.complete(slot),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.hide(Side::Send);
        self.hide(Side::Recv);
        self.end();
        self.table.ids.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.id);
    }
}
