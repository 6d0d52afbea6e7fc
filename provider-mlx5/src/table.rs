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

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bareverbs_provider::Errno;
use bareverbs_provider::mapping::Mapping;

use crate::completion::CqShared;
use crate::srq::SrqShared;

/// Which half of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Side {
    Send = 0,
    Recv = 1,
}

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
}

#[derive(Debug)]
struct Ids {
    /// Numbers from here on were never given.
    next: u32,
    /// Numbers that were given back.
    free: Vec<u32>,
}

impl Table {
    /// For numbers below `len`. Memory is used for those that are given.
    pub(crate) fn new(len: u32) -> Result<Self, Errno> {
        let entries = Mapping::anonymous(len.max(2) as usize * size_of::<Entry>())?;
        // 0 is no number: firmware has been seen to use it for queues of the kernel.
        Ok(Self { entries, len, ids: Mutex::new(Ids { next: 1, free: Vec::new() }) })
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

/// A request of a send queue.
#[derive(Debug, Default)]
pub(crate) struct SendSlot {
    wr_id: AtomicU64,
    /// The request's number (low half) and what a UMR was used for (high half).
    mark: AtomicU64,
}

/// The requests of a send queue.
#[derive(Debug)]
pub(crate) struct Sends {
    /// By the request's first block.
    slots: Box<[SendSlot]>,
    /// Requests that are complete, counted on.
    done: AtomicU32,
}

impl Sends {
    pub(crate) fn new(blocks: u32) -> Self {
        Self { slots: (0..blocks).map(|_| SendSlot::default()).collect(), done: AtomicU32::new(0) }
    }

    /// Notes that the request with the first block `block` is number `number`.
    #[inline(always)]
    pub(crate) fn note(&self, block: u32, wr_id: u64, number: u32, purpose: u32) {
        if let Some(slot) = self.slots.get(block as usize) {
            slot.wr_id.store(wr_id, Ordering::Relaxed);
            slot.mark.store(u64::from(purpose) << 32 | u64::from(number), Ordering::Relaxed);
        }
    }

    /// Notes that the request with the first block `block`, and all before it, are complete; returns its id and what it
    /// was used for.
    #[inline(always)]
    fn complete(&self, block: u16) -> (u64, u32) {
        let Some(slot) = self.slots.get(block as usize & self.slots.len().wrapping_sub(1)) else {
            return (0, 0);
        };
        let mark = slot.mark.load(Ordering::Relaxed);
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        // The slot is free for its owner from here on.
        self.done.store((mark as u32).wrapping_add(1), Ordering::Release);
        (wr_id, (mark >> 32) as u32)
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
    wr_ids: Box<[AtomicU64]>,
    done: AtomicU32,
}

impl Receives {
    pub(crate) fn new(slots: u32) -> Self {
        Self { wr_ids: (0..slots).map(|_| AtomicU64::new(0)).collect(), done: AtomicU32::new(0) }
    }

    #[inline(always)]
    pub(crate) fn note(&self, slot: u32, wr_id: u64) {
        if let Some(id) = self.wr_ids.get(slot as usize) {
            id.store(wr_id, Ordering::Relaxed);
        }
    }

    /// Only the poller of the queue's completion queue writes `done`, so it need not be one step.
    #[inline(always)]
    fn complete(&self, slot: u16) -> u64 {
        let Some(id) = self.wr_ids.get(slot as usize & self.wr_ids.len().wrapping_sub(1)) else { return 0 };
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
        Some(Arc::new(Self { id, table: Arc::clone(table), cqs, sends, source }))
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.id
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
    }

    /// Lets it no longer be found.
    pub(crate) fn hide(&self, side: Side) {
        self.entry().owners[side as usize].store(0, Ordering::Release);
    }

    /// Takes note of a send's completion; see [`Sends::complete`].
    #[inline(always)]
    pub(crate) fn complete_send(&self, block: u16) -> (u64, u32) {
        self.sends.complete(block)
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
        self.table.ids.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.id);
    }
}
