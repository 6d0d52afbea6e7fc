//! From a completion to its queue.
//!
//! A completion names its queue by the user index, which was given when the queue was made. The poller of a completion
//! queue turns it into the queue's [`Record`]: the ids of the outstanding requests, and how many are done. The owner of
//! the queue and the pollers of its two completion queues share the record. All of it is made of atomics.
//!
//! | word | written by |
//! |---|---|
//! | [`Entry::owners`], [`Name`] | the owner, to show the record first and to hide it; the poller, to show it again after a reset |
//! | ids and marks of requests | the owner |
//! | [`Sends::done`], [`Receives::done`] | the poller of the side's completion queue |
//! | [`Receives::base`] | the owner, under the lock of the completion queue's [`Strays`](crate::completion::CqShared) |
//!
//! # Why a poller's record is not freed under it
//!
//! An entry says which completion queues may use it ([`Entry::owners`]). A poller reads that first
//! and the record's address second. The owner of a queue hides its record and leaves it with both
//! completion queues ([`CqShared::bury`](crate::completion::CqShared::bury)) before it lets go of
//! it. Each completion queue drops it only where its poller has found the queue empty, or has
//! passed all that the ring held when it was left there, between two completions. The entry is
//! given to another queue when the record was freed. So an entry that named a poller's completion
//! queue names the same record until that poller has done with its completion.
//!
//! For the same reason a poller may keep the record that it found last: the record stays until the poller itself drops
//! its dead, and it forgets the record then. The record's [`Name`] tells whether it is still shown.
//!
//! # Why a poller completes nothing of a later life
//!
//! A queue that was reset begins a new life: its slots are filled anew, and what the device wrote of the old life is
//! passed over. A poller may have found the record before the owner hides it, and read the slots after the owner has
//! filled them anew. Then it must not take the new request for complete. So the poller looks a second time:
//!
//! 1. It reads the id and the mark of the request with acquire ordering, or claims the receive
//!    ([`Kept::claim`](crate::kept::Kept::claim)).
//! 2. Then it checks that the record is shown: by its name on the short way, by its entry on the long one.
//!
//! The owner hides the record, issues a release fence ([`barrier::before_slots_are_reused`](bareverbs_provider::barrier))
//! and fills the slots then. If the poller has read what a new life wrote, the fence and the acquire load order the
//! hiding before the check, which finds the record hidden. The record isn't shown again meanwhile: after a reset only the
//! poller does that.
//!
//! # Why an owner counts nothing twice
//!
//! A poller that is past its check may store to `done` after the queue was reset. Nothing else is wrong with that: the
//! request was complete. So the counts of a later life are larger than any of an earlier one, and the owner ignores what
//! is not between the last count that it accepted and the number of its requests:
//!
//! - Requests of a send queue are numbered on across resets. Each mark says how many requests are complete when its own
//!   is, and the owner takes all for complete at a reset.
//! - The poller counts the receives. The owner writes down how many receives there were in earlier lives
//!   ([`Receives::base`]), and the poller goes on from there when it shows the record again. It shows the record before
//!   the first completion of the new life, because it finds the record in no other way.

mod numbers;

use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use bareverbs_provider::Errno;

use self::numbers::{Numbers, Wire};
use crate::completion::CqShared;
use crate::cqe::Cqe;
use crate::kept::{Claim, Kept};
use crate::srq::SrqShared;
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
pub(crate) const NO_USER_INDEX: u32 = 0xff_ffff;

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
    record: AtomicPtr<Record>,
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
    /// The caller must be the poller of that completion queue, and drop none of its dead before it is done with the
    /// record.
    #[inline(always)]
    pub(crate) unsafe fn record(&self, side: Side, tag: u32) -> Option<&Record> {
        if !self.is_of(side, tag) {
            return None;
        }
        // SAFETY: null, or a record that stays, as the module says.
        unsafe { self.record.load(Ordering::Relaxed).as_ref() }
    }
}

/// All numbers of a context.
#[derive(Debug)]
pub(crate) struct Table {
    entries: ZeroedArray<Entry>,
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
        let entries = ZeroedArray::new(len as usize)?;
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
        self.entries.get(id as usize)
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
    ///
    /// The caller knows the record already, so nothing is read that showing it would have to come before.
    #[inline(always)]
    pub(crate) fn is(&self, cqe: &Cqe<'_>) -> bool {
        self.0.load(Ordering::Relaxed) == u64::from(cqe.raw_srqn_uidx())
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
#[derive(Debug)]
pub(crate) struct SendSlot {
    wr_id: AtomicU64,
    /// How many requests of the queue are complete when this one is ([`THROUGH`]). Where its entry says less, or there is
    /// more to it than that it is complete, what it was ([`PURPOSE`]) and [`NOT_PLAIN`]. So a plain mark is the count.
    mark: AtomicU64,
}

/// In a mark: see there. It is the sign.
const NOT_PLAIN: u64 = 1 << 63;
/// In a mark: the bits of the request's purpose, from this one up to the sign.
const PURPOSE: u32 = 55;
/// In a mark: the bits of the count. At 10^9 requests a second they last for more than a year.
const THROUGH: u64 = (1 << PURPOSE) - 1;

/// What the poller has read of a request that is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    mark: u64,
}

impl Sent {
    /// What it was; 0 where its entry tells.
    pub(crate) fn purpose(self) -> u32 {
        ((self.mark & !NOT_PLAIN) >> PURPOSE) as u32
    }
}

impl SendSlot {
    fn new() -> Self {
        Self { wr_id: AtomicU64::new(0), mark: AtomicU64::new(0) }
    }

    /// Notes that when the request is complete, `through` are.
    #[inline(always)]
    pub(crate) fn note(&self, wr_id: u64, through: u64, purpose: u8) {
        let mark = if purpose == 0 {
            through
        } else {
            NOT_PLAIN | u64::from(purpose) << PURPOSE | through & THROUGH
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
    fn read(&self) -> Sent {
        Sent { mark: self.mark.load(Ordering::Acquire), wr_id: self.wr_id.load(Ordering::Acquire) }
    }
}

/// The requests of a send queue.
#[derive(Debug)]
pub(crate) struct Sends {
    pub(crate) name: Name,
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

impl Sends {
    /// For a ring of `blocks` blocks, a power of 2.
    pub(crate) fn new(blocks: u32) -> Self {
        assert!(blocks.is_power_of_two(), "a ring of sends");
        let slots = (0..blocks).map(|_| SendSlot::new()).collect();
        let (mask, offsets) = (blocks - 1, (blocks - 1) << 4);
        let (name, done, lifetime) = (Name::default(), AtomicU64::new(0), Lifetime::new());
        Self { name, done, mask, offsets, slots, lifetime }
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

    /// The request with the first block `block`, to be [finished](Sends::finish) once the queue is known to be shown.
    #[inline(always)]
    pub(crate) fn read(&self, block: u16) -> Sent {
        self.slot(block).read()
    }

    /// The same for a request of which there is no more to know than its id; none for others. The first block is that of
    /// an entry's last word.
    #[inline(always)]
    pub(crate) fn read_plain(&self, last_word: u32) -> Option<Sent> {
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

    /// Notes that a request of [`Sends::read_plain`], and all before it, are complete.
    #[inline(always)]
    pub(crate) fn finish_plain(&self, sent: Sent) {
        // The slot is free for its owner from here on.
        self.done.store(sent.mark, Ordering::Release);
    }

    /// Notes that a request, and all before it, are complete.
    #[inline(always)]
    pub(crate) fn finish(&self, sent: Sent) {
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
pub(crate) struct Receives {
    pub(crate) name: Name,
    /// Receives that are complete, counted on from `base`. Only the poller stores it.
    done: AtomicU64,
    /// Where the count begins: receives of before the last reset.
    base: AtomicU64,
    /// Slots less one.
    mask: u32,
    /// By slot; a power of 2 of them.
    wr_ids: Box<[AtomicU64]>,
    /// Where completions may carry messages: where these go.
    kept: Option<Kept>,
    pub(crate) lifetime: Lifetime,
}

impl Receives {
    /// For a ring of `slots` slots, a power of 2, or none.
    pub(crate) fn new(slots: u32) -> Self {
        let slots = slots.max(1);
        assert!(slots.is_power_of_two(), "a ring of receives");
        let wr_ids = (0..slots).map(|_| AtomicU64::new(0)).collect();
        let (name, lifetime) = (Name::default(), Lifetime::new());
        let (done, base) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { name, done, base, mask: slots - 1, wr_ids, kept: None, lifetime }
    }

    /// The same for completions that may carry messages, which the poller brings to the receives' elements.
    pub(crate) fn keeping(slots: u32, max_sge: u32) -> Result<Self, Errno> {
        let slots = slots.max(1);
        Ok(Self { kept: Some(Kept::new(slots, max_sge)?), ..Self::new(slots) })
    }

    /// Where messages that completions carry go.
    pub(crate) fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// The ids, of which there are as many as slots.
    pub(crate) fn wr_ids(&self) -> &[AtomicU64] {
        &self.wr_ids
    }

    /// The id of the receive in a slot, to be [finished](Receives::finish) once the queue is known to be shown. What the
    /// caller reads afterwards is as it was when the id was written, or later.
    #[inline(always)]
    pub(crate) fn read(&self, slot: u16) -> u64 {
        // SAFETY: `new` made `mask + 1` ids.
        let id = unsafe { self.wr_ids.get_unchecked((u32::from(slot) & self.mask) as usize) };
        id.load(Ordering::Acquire)
    }

    /// Notes that one receive more is complete. Only the poller of the queue's completion queue writes `done`, so it need
    /// not be one step.
    #[inline(always)]
    pub(crate) fn finish(&self) {
        self.done.store(self.done.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Receives that are complete, or fewer where the poller has not shown the queue since a reset.
    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
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

/// What a record tells of a request that is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    /// What a send was; 0 where its entry tells.
    pub(crate) purpose: u32,
    /// Whether a message that the completion carried went to the receive's elements.
    pub(crate) has_arrived: bool,
}

impl Done {
    /// Of an entry that names a slot without an outstanding request.
    const UNMATCHED: Self = Self { wr_id: 0, purpose: 0, has_arrived: false };
}

/// A [`Record`] that is kept.
pub(crate) type RecordRef = crate::sync::Arc<Record>;

/// What a queue's owner and its pollers share.
#[derive(Debug)]
pub(crate) struct Record {
    id: u32,
    table: Arc<Table>,
    cqs: [Arc<CqShared>; 2],
    pub(crate) sends: Sends,
    pub(crate) source: Source,
    wire: Wire,
    pub(crate) lifetime: Lifetime,
}

impl Record {
    /// A record with a number, which nobody finds before [`Record::show`].
    pub(crate) fn new(
        table: &Arc<Table>,
        cqs: [Arc<CqShared>; 2],
        sends: Sends,
        source: Source,
    ) -> Option<RecordRef> {
        let id = table.take()?;
        let (table, wire, lifetime) = (Arc::clone(table), Wire::default(), Lifetime::new());
        Some(RecordRef::new(Self { id, table, cqs, sends, source, wire, lifetime }))
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

    /// Lets it no longer be found by a poller that looks from here on.
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

    /// Completes the request with this number, if the record `is_shown` when the request has been read; none where it is
    /// not. A message that the completion carries goes to the receive's elements.
    ///
    /// # Safety
    ///
    /// The caller must be the poller of the side's completion queue. As for [`Claim::scatter`](crate::kept::Claim::scatter).
    pub(crate) unsafe fn complete(
        &self,
        side: Side,
        counter: u16,
        message: Option<&[u8]>,
        is_shown: impl FnOnce() -> bool,
    ) -> Option<Done> {
        // In this order, as the module says.
        match (side, &self.source) {
            (Side::Send, _) => {
                let sent = self.sends.read(counter);
                if !is_shown() {
                    return None;
                }
                if sent.mark == 0 {
                    return Some(Done::UNMATCHED);
                }
                self.sends.finish(sent);
                Some(Done { wr_id: sent.wr_id, purpose: sent.purpose(), has_arrived: message.is_none() })
            }
            (Side::Recv, Source::Own(receives)) => {
                let wr_id = receives.read(counter);
                let claim = receives.kept().and_then(|kept| kept.claim(counter.into()));
                if !is_shown() {
                    claim.into_iter().for_each(Claim::cancel);
                    return None;
                }
                let has_arrived = match (claim, receives.kept()) {
                    // SAFETY: this function's contract.
                    (Some(claim), _) => unsafe { claim.scatter(message.unwrap_or_default()) },
                    // No receive is posted there: the owner took it back, or the device repeats a CQE.
                    (None, Some(_)) => return Some(Done { wr_id, ..Done::UNMATCHED }),
                    (None, None) => message.is_none_or(<[u8]>::is_empty),
                };
                receives.finish();
                Some(Done { wr_id, purpose: 0, has_arrived })
            }
            (Side::Recv, Source::Shared(srq)) => is_shown().then(|| match srq.complete(counter) {
                Some(wr_id) => Done { wr_id, purpose: 0, has_arrived: message.is_none() },
                None => Done::UNMATCHED,
            }),
        }
    }

    /// Passes over a completion of before the queue was destroyed or reset: a receive's slot in a shared queue goes back.
    pub(crate) fn discard(&self, side: Side, counter: u16) {
        if let (Side::Recv, Source::Shared(srq)) = (side, &self.source) {
            srq.complete(counter);
        }
    }

    /// Writes down that the owner has reset a side, of which there were `base` receives so far. The caller holds the lock
    /// of the side's strays.
    pub(crate) fn rebase(&self, side: Side, base: u64) {
        if let (Side::Recv, Source::Own(receives)) = (side, &self.source) {
            receives.base.store(base, Ordering::Relaxed);
        }
    }

    /// Lets the poller find a side again that was reset. The caller is the poller, and holds the lock of its strays.
    pub(crate) fn show_again(&self, side: Side) {
        if let (Side::Recv, Source::Own(receives)) = (side, &self.source) {
            receives.done.store(receives.base.load(Ordering::Relaxed), Ordering::Release);
        }
        self.show(side);
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
