//! Receive queues of one queue pair.

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::{PushError, RecvRequest, Sge};

use crate::doorbell::{RecordWord, Word};
use crate::fast_path::data_segment;
use crate::qp_memory::QpMemory;
use crate::sq::{MAX_MESSAGE, too_long};
use crate::sync::{AtomicU64, Ordering};
use crate::uidx_table::{QueueRecordRef, RqTracker, Side, Source};
use crate::wqe::{self, SEGMENT, Segment};

/// A receive queue.
#[derive(Debug)]
pub struct Mlx5Rq {
    record: QueueRecordRef,
    memory: Arc<QpMemory>,
    /// RqTracker pushed since the last reset.
    head: u64,
    /// The fast path ends here: the receive with this number takes the slow path.
    fast_limit: u64,
    /// As long as the fast path is enabled: the next slot, and from where the ids are found by the
    /// receive's number, which is no place of its own.
    next_wqe: *mut Segment,
    wr_ids_base: *const AtomicU64,
    /// Bytes from a slot to the next.
    stride: usize,
    /// In the doorbell record: how far the queue has been filled.
    dbr: RecordWord,
    /// The first slot.
    start: *mut Segment,
    mask: u32,
    max_sge: u32,
    /// Whether CQEs may carry payload: then all receives take the slow path, which stores their
    /// SGEs.
    has_scatter_to_cqe: bool,
    /// Whether every slot has the end of a list behind its first SGE, as the fast path leaves it.
    has_terminators: bool,
    /// The record's ids, as many as slots.
    wr_ids: NonNull<AtomicU64>,
    /// RqTracker complete since the last reset, when last looked.
    done: u64,
    /// RqTracker pushed before the last reset.
    base: u64,
}

// SAFETY: the memory is kept by `memory` and belongs to no thread.
unsafe impl Send for Mlx5Rq {}

impl Mlx5Rq {
    /// The receive queue at the start of `memory`, of `slots` slots, a power of 2, with
    /// `1 << shift` segments each.
    pub(crate) fn new(
        record: QueueRecordRef,
        memory: Arc<QpMemory>,
        slots: u32,
        shift: u32,
        max_sge: u32,
    ) -> Self {
        assert!(slots.is_power_of_two() && max_sge <= 1 << shift, "a layout of receives");
        let Source::Own(receives) = &record.source else { panic!("receives of a shared queue") };
        assert!(receives.wr_ids().len() == slots as usize, "an id for each slot");
        let start = memory.ring((slots as usize * SEGMENT) << shift).cast().as_ptr();
        let wr_ids = NonNull::from(receives.wr_ids()).cast();
        let has_scatter_to_cqe = receives.scatter_to_cqe().is_some();
        let mut queue = Self {
            has_scatter_to_cqe,
            head: 0,
            fast_limit: 0,
            next_wqe: start,
            wr_ids_base: wr_ids.as_ptr(),
            stride: SEGMENT << shift,
            dbr: memory.record().word(Word::First),
            start,
            mask: slots - 1,
            max_sge,
            has_terminators: false,
            wr_ids,
            done: 0,
            base: 0,
            record,
            memory,
        };
        queue.write_terminators();
        queue
    }

    fn receives(&self) -> Option<&RqTracker> {
        match &self.record.source {
            Source::Own(receives) => Some(receives),
            Source::Shared(_) => None,
        }
    }

    /// Has the poller copy no message to posted receives any more.
    fn take_back_all(&self) {
        if let Some(slots) = self.receives().and_then(RqTracker::scatter_to_cqe) {
            slots.take_back_all();
        }
    }

    /// Where slot `index` is.
    fn slot(&self, index: u64) -> *mut Segment {
        // SAFETY: within the ring.
        unsafe { self.start.byte_add(self.place(index) * self.stride) }
    }

    /// The number of slot `index`.
    #[inline(always)]
    fn place(&self, index: u64) -> usize {
        (index & u64::from(self.mask)) as usize
    }

    /// Slots.
    fn slots(&self) -> u64 {
        u64::from(self.mask) + 1
    }

    /// The id of the receive in slot `index`.
    fn id(&self, index: u64) -> &AtomicU64 {
        // SAFETY: there are `mask + 1` ids, which the record keeps as long as this queue keeps the
        // record.
        unsafe { self.wr_ids.add(self.place(index)).as_ref() }
    }

    /// Enables the fast path up to the known free room or the end of the ring. Disables it if a
    /// slot may have more than one SGE.
    fn open_fast_path(&mut self) {
        self.fast_limit = self.head;
        if self.has_terminators && !self.has_scatter_to_cqe {
            let room = self.done + self.slots() - self.head;
            let to_end = self.slots() - self.place(self.head) as u64;
            self.fast_limit = self.head + room.min(to_end);
        }
        self.next_wqe = self.slot(self.head);
        let (head, at) = (self.head as usize, self.place(self.head));
        self.wr_ids_base = self.wr_ids.as_ptr().wrapping_add(at).wrapping_sub(head);
    }

    /// Writes the end of a list behind the first SGE of every slot, none of which the device may
    /// have.
    fn write_terminators(&mut self) {
        if self.max_sge > 1 {
            for index in 0..self.slots() {
                // SAFETY: a slot has room for `max_sge` segments.
                unsafe { self.slot(index).add(1).write(wqe::end_of_list()) };
            }
        }
        self.has_terminators = true;
    }

    /// Writes a receive of one SGE, as `write` does, or declines it.
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`]. `write` gets a slot that is free, and must write a segment
    /// there.
    #[inline(always)]
    unsafe fn push_fast(
        &mut self,
        request: &RecvRequest<'_>,
        write: impl FnOnce(*mut Segment, &Sge),
    ) -> bool {
        let [sge] = request.sges else { return false };
        let head = self.head;
        // The device takes an SGE of no bytes for one of 2^31.
        if head == self.fast_limit || (sge.length as i32) <= 0 {
            return false;
        }
        write(self.next_wqe, sge);
        // SAFETY: the slot is free, and its id with it: `open_fast_path` left both here, and the
        // room that it found, up to the end of the ring at most, is not used up. The record keeps
        // the ids as long as this queue keeps the record.
        unsafe {
            (*self.wr_ids_base.wrapping_add(head as usize)).store(request.wr_id, Ordering::Relaxed);
            self.next_wqe = self.next_wqe.byte_add(self.stride);
        }
        self.head = head + 1;
        true
    }

    /// Whether no slot is free; asks the poller only where it seems so.
    #[inline(always)]
    fn is_full(&mut self) -> bool {
        if self.head - self.done < self.slots() {
            return false;
        }
        let done = self.receives().map_or(0, RqTracker::done).wrapping_sub(self.base);
        // Other counts are of before the last reset, or made up by a device that misbehaves.
        if (self.done..=self.head).contains(&done) {
            self.done = done;
        }
        self.head - self.done >= self.slots()
    }
}

/// Refuses what no slot could hold.
#[inline(always)]
pub(crate) fn check(request: &RecvRequest<'_>, max_sge: u32) -> Result<(), PushError> {
    if request.sges.len() > max_sge as usize {
        return Err(PushError::TooManySges { given: request.sges.len(), max: max_sge as usize });
    }
    let length = request.sges.iter().map(|sge| u64::from(sge.length)).sum();
    if length > MAX_MESSAGE { Err(too_long(length, MAX_MESSAGE)) } else { Ok(()) }
}

/// Writes a receive's SGEs, and an end behind them where there is room for more. Empty ones are
/// left out: the device would take them for two gigabytes.
///
/// # Safety
///
/// There must be room for `max_sge` segments at `to`, aligned to 8, and `request` must have been
/// [checked](check).
#[inline(always)]
pub(crate) unsafe fn write_elements(mut to: *mut Segment, request: &RecvRequest<'_>, max_sge: u32) {
    let mut room = max_sge;
    for sge in request.sges {
        let Sge { length: 1.., .. } = *sge else { continue };
        // SAFETY: no more segments than SGEs, which are at most `max_sge`.
        unsafe {
            to.write(wqe::data(*sge));
            to = to.add(1);
        }
        room -= 1;
    }
    if room > 0 {
        // SAFETY: no more segments than SGEs, which are at most `max_sge`.
        unsafe { to.write(wqe::end_of_list()) };
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `memory` keeps the ring and the doorbell record, and `record` what completions lead to.
// 2. SGEs are copied into a slot as they are given, and the device checks the keys. The head
//    moves on last.
// 3. `fast_limit` and the record's count of done receives give slots only that the device has given
//    back.
// 4. The device reads slots up to the doorbell record's counter, which `ring` and `try_post` store.
// 5. `abort` goes back to the first slot that the record's counter does not cover.
// 6. `reset` sets the counters back to 0, where the device's stand after a reset, as who calls it
//    promises.
unsafe impl RecvQueue for Mlx5Rq {
    #[inline]
    fn capacity(&self) -> u32 {
        // A queue for no receives at all has a slot all the same.
        if self.max_sge == 0 { 0 } else { self.mask + 1 }
    }

    /// One SGE.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
        // SAFETY: the caller's promise; there is room for a segment.
        unsafe { self.push_fast(request, |slot, sge| wqe::write_data(slot, sge)) }
    }

    #[inline(always)]
    unsafe fn try_push_all(&mut self, requests: &[RecvRequest<'_>]) -> usize {
        // SGEs of a list lie in memory, from which two words are read at once.
        // SAFETY: the caller's promise; there is room for a segment.
        let push = |request: &&RecvRequest<'_>| unsafe {
            self.push_fast(request, |slot, sge| slot.write(data_segment(sge)))
        };
        requests.iter().take_while(push).count()
    }

    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError> {
        if self.is_full() || self.max_sge == 0 {
            return Err(PushError::QueueFull { capacity: self.capacity() });
        }
        check(request, self.max_sge)?;
        // SAFETY: the slot lies in the ring, and the device has done with it.
        unsafe { write_elements(self.slot(self.head), request, self.max_sge) };
        self.id(self.head).store(request.wr_id, Ordering::Relaxed);
        if let Some(slots) = self.receives().and_then(RqTracker::scatter_to_cqe) {
            slots.post(self.place(self.head), request.sges);
        }
        self.head += 1;
        // What follows a first SGE may be another one now.
        self.has_terminators &= request.sges.len() < 2;
        self.open_fast_path();
        Ok(())
    }

    #[inline(always)]
    fn ring(&mut self) {
        let (dbr, head) = (self.dbr, self.head);
        barrier::before_device_reads();
        // SAFETY: `memory` keeps the record. This word of it is the receive queue's, which only its
        // owner accesses.
        unsafe { dbr.set_low(head as u16) };
    }

    #[inline]
    fn abort(&mut self) {
        // The record says how many were published, by their low 16 bits; there are never as many
        // pushed.
        let published = self.memory.record().get(Word::First) as u16;
        let pushed: u64 = (self.head as u16).wrapping_sub(published).into();
        let first = self.head - pushed;
        if let Some(slots) = self.receives().and_then(RqTracker::scatter_to_cqe) {
            // The caller no longer vouches for their memory.
            (first..self.head).for_each(|index| slots.take_back(self.place(index)));
        }
        self.head = first;
        self.fast_limit = self.head;
        // A faulty device may have completed unpublished requests.
        self.done = self.done.min(first);
    }

    unsafe fn reset(&mut self) {
        self.base += self.head;
        self.record.cq(Side::Recv).clean(&self.record, Side::Recv, self.base);
        self.take_back_all();
        barrier::before_slots_are_reused();
        (self.head, self.fast_limit, self.done) = (0, 0, 0);
        if !self.has_terminators {
            self.write_terminators();
        }
        self.memory.record().set(Word::First, 0);
    }

    fn abandon(&mut self) {
        self.take_back_all();
    }
}

/// The kernel has destroyed the queue. No completion of it is delivered any more, not even one that
/// a poller has found.
impl Drop for Mlx5Rq {
    fn drop(&mut self) {
        self.take_back_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
