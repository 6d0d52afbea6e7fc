//! The receive queue of a queue pair or of a work queue.

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::layout::QueueLayout;
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
    /// Receives pushed since the last reset.
    head: u64,
    /// End of the fast path: the receive with this number takes the slow path.
    fast_limit: u64,
    /// Valid while the fast path is enabled: the next slot, and the base from which a receive's
    /// number indexes the ids. The base may lie outside of the ids.
    next_wqe: *mut Segment,
    wr_ids_base: *const AtomicU64,
    /// Bytes per slot.
    stride: usize,
    /// The producer index in the doorbell record.
    dbr: RecordWord,
    /// The first slot.
    start: *mut Segment,
    mask: u32,
    max_sge: u32,
    /// Whether CQEs may carry payload (scatter to CQE). If so, all receives take the slow path,
    /// which stores their SGEs.
    has_scatter_to_cqe: bool,
    /// Whether every slot has the end of the list behind its first SGE, as the fast path requires.
    has_terminators: bool,
    /// Work request ids in the record, one per slot.
    wr_ids: NonNull<AtomicU64>,
    /// Last known count of receives completed since the last reset.
    done: u64,
    /// Receives pushed before the last reset.
    base: u64,
}

// SAFETY: `memory` keeps the ring valid, and the ring has no thread affinity.
unsafe impl Send for Mlx5Rq {}

impl Mlx5Rq {
    /// The receive queue of `slots` slots, a power of 2, at the start of `memory`. A slot has
    /// `1 << shift` segments.
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

    /// Stops the poller from copying payload to posted receives.
    fn take_back_all(&self) {
        if let Some(slots) = self.receives().and_then(RqTracker::scatter_to_cqe) {
            slots.take_back_all();
        }
    }

    /// Address of the slot of receive `index`.
    fn slot(&self, index: u64) -> *mut Segment {
        // SAFETY: `place` masks the index to one of the `mask + 1` slots of `stride` bytes. `new`
        // checked by `QpMemory::ring` that the memory has that many bytes from `start` on.
        unsafe { self.start.byte_add(self.place(index) * self.stride) }
    }

    /// Slot number of receive `index`.
    #[inline(always)]
    fn place(&self, index: u64) -> usize {
        (index & u64::from(self.mask)) as usize
    }

    /// Number of slots.
    fn slots(&self) -> u64 {
        u64::from(self.mask) + 1
    }

    /// Work request id of receive `index`.
    fn id(&self, index: u64) -> &AtomicU64 {
        // SAFETY: there are `mask + 1` ids, and this queue's reference keeps the record and its ids
        // valid.
        unsafe { self.wr_ids.add(self.place(index)).as_ref() }
    }

    /// Enables the fast path up to the known free room or the end of the ring. Disables it if a
    /// slot may have more than one SGE, or with scatter to CQE.
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

    /// Writes the end of the list behind the first SGE of every slot. The device must own none of
    /// them.
    fn write_terminators(&mut self) {
        if self.max_sge > 1 {
            for index in 0..self.slots() {
                // SAFETY: a slot has room for `max_sge` segments.
                unsafe { self.slot(index).add(1).write(wqe::end_of_list()) };
            }
        }
        self.has_terminators = true;
    }

    /// Writes a receive of one SGE by `write`, or declines it.
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`]. `write` gets a free slot and must write a segment there.
    #[inline(always)]
    unsafe fn push_fast(
        &mut self,
        request: &RecvRequest<'_>,
        write: impl FnOnce(*mut Segment, &Sge),
    ) -> bool {
        let [sge] = request.sges else { return false };
        let head = self.head;
        // The device reads a byte count of 0 as 2^31.
        if head == self.fast_limit || (sge.length as i32) <= 0 {
            return false;
        }
        write(self.next_wqe, sge);
        // SAFETY: the slot and its id are free: `open_fast_path` set both pointers, and `head` is
        // below the limit that it computed, which is at most the end of the ring. This queue's
        // reference keeps the record and its ids valid.
        unsafe {
            (*self.wr_ids_base.wrapping_add(head as usize)).store(request.wr_id, Ordering::Relaxed);
            self.next_wqe = self.next_wqe.byte_add(self.stride);
        }
        self.head = head + 1;
        true
    }

    /// Whether the queue is full. The poller's count is loaded only if the last known count says
    /// so.
    #[inline(always)]
    fn is_full(&mut self) -> bool {
        if self.head - self.done < self.slots() {
            return false;
        }
        let done = self.receives().map_or(0, RqTracker::done).wrapping_sub(self.base);
        // Other counts are from before the last reset, or from a faulty device.
        if (self.done..=self.head).contains(&done) {
            self.done = done;
        }
        self.head - self.done >= self.slots()
    }
}

/// Checks the number of SGEs and the length of a receive.
#[inline(always)]
pub(crate) fn check(request: &RecvRequest<'_>, max_sge: u32) -> Result<(), PushError> {
    if request.sges.len() > max_sge as usize {
        return Err(PushError::TooManySges { given: request.sges.len(), max: max_sge as usize });
    }
    let length = request.sges.iter().map(|sge| u64::from(sge.length)).sum();
    if length > MAX_MESSAGE { Err(too_long(length, MAX_MESSAGE)) } else { Ok(()) }
}

/// Writes a receive's SGEs, and the end of the list if the slot has room for more. Empty SGEs are
/// skipped: the device reads a byte count of 0 as 2^31.
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
// 1. `memory` keeps the ring and the doorbell record, and `record` the ids of the receives that
//    CQEs name.
// 2. SGEs are copied into a slot unchanged, and the device checks the keys. The head advances last.
// 3. `fast_limit` and the record's count of completed receives permit only slots that the device
//    has completed.
// 4. The device reads slots up to the producer index in the doorbell record, which `ring`
//    stores. The default `try_post` calls it.
// 5. `abort` returns to the first slot that the doorbell record does not cover.
// 6. `reset` sets the counters to 0. The device's are 0 after a reset, as the caller promises.
unsafe impl RecvQueue for Mlx5Rq {
    #[inline]
    fn capacity(&self) -> u32 {
        // A queue without receives still has one slot.
        if self.max_sge == 0 { 0 } else { self.mask + 1 }
    }

    fn layout(&self) -> Option<QueueLayout> {
        let ring = NonNull::new(self.start.cast())?;
        let doorbell = self.memory.record().layout(None);
        Some(QueueLayout::new(ring, self.mask + 1, self.stride as u32, self.head as u32, doorbell))
    }

    /// Takes receives of one SGE.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
        // SAFETY: the caller's promise is the same; the slot has room for a segment.
        unsafe { self.push_fast(request, |slot, sge| wqe::write_data(slot, sge)) }
    }

    #[inline(always)]
    unsafe fn try_push_all(&mut self, requests: &[RecvRequest<'_>]) -> usize {
        // SGEs of a list are in memory: two words are loaded at once.
        // SAFETY: the caller's promise is the same; the slot has room for a segment.
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
        // SAFETY: the slot lies in the ring, and the device has completed it.
        unsafe { write_elements(self.slot(self.head), request, self.max_sge) };
        self.id(self.head).store(request.wr_id, Ordering::Relaxed);
        if let Some(slots) = self.receives().and_then(RqTracker::scatter_to_cqe) {
            slots.post(self.place(self.head), request.sges);
        }
        self.head += 1;
        // A second SGE overwrites the end of the list.
        self.has_terminators &= request.sges.len() < 2;
        self.open_fast_path();
        Ok(())
    }

    #[inline(always)]
    fn ring(&mut self) {
        let (dbr, head) = (self.dbr, self.head);
        barrier::before_device_reads();
        // SAFETY: `memory` keeps the doorbell record valid. Only the receive queue's owner accesses
        // this word.
        unsafe { dbr.set_low(head as u16) };
    }

    #[inline]
    fn abort(&mut self) {
        // The doorbell record has the low 16 bits of the published count. Fewer than 2^16 receives
        // are ever pushed and unpublished.
        let published = self.memory.record().get(Word::First) as u16;
        let pushed: u64 = (self.head as u16).wrapping_sub(published).into();
        let first = self.head - pushed;
        if let Some(slots) = self.receives().and_then(RqTracker::scatter_to_cqe) {
            // The caller no longer guarantees that their memory is valid.
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

/// The kernel has destroyed the queue. No completion of it is reported any more, not even one that
/// a poller has already found.
impl Drop for Mlx5Rq {
    fn drop(&mut self) {
        self.take_back_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
