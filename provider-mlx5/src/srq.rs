//! Shared receive queues (SRQs).
//!
//! The device takes receives in the order of a linked list: each slot contains the index of the
//! next one. The pollers of several CQs return slots in any order. The owner of the SRQ appends
//! returned slots to the end of the list.

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::layout::QueueLayout;
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::{PushError, RecvRequest};

use crate::doorbell::{DoorbellRecord, Word};
use crate::fast_path::data_segment;
use crate::rq::{check, write_elements};
use crate::sync::Ordering;
use crate::uidx_table::srq_slots::{NONE, Slot, SrqShared};
use crate::uidx_table::{QueueRecord, QueueRecordRef, Side};
use crate::wqe::{self, SEGMENT, Segment};

/// A shared receive queue (SRQ).
///
/// The list always ends with one unused slot, `tail`. So the capacity is one less than the number
/// of slots.
#[derive(Debug)]
pub struct Mlx5Srq {
    shared: Arc<SrqShared>,
    /// The slots of `shared`.
    slots: NonNull<Slot>,
    record: DoorbellRecord,
    memory: Mapping,
    /// Log2 of the bytes of a slot.
    shift: u32,
    max_sge: u32,
    /// The slot of the next receive, unless it is the end of the list.
    head: u32,
    /// The end of the list.
    tail: u32,
    /// The first slot that is pushed and not published, and the number of such slots.
    first: u32,
    pushed: u32,
    /// Receives that were published, counted on.
    posted: u32,
    /// The record of an XRC SRQ, which has a CQ of its own.
    xrc_record: Option<AttachedRecord>,
}

/// A record in the uidx table; dropping it retires the record.
#[derive(Debug)]
struct AttachedRecord(QueueRecordRef);

impl Drop for AttachedRecord {
    fn drop(&mut self) {
        self.0.cq(Side::Recv).retire(&self.0, Side::Recv);
    }
}

// SAFETY: the slots have no thread affinity, and `shared` keeps them valid.
unsafe impl Send for Mlx5Srq {}

impl Mlx5Srq {
    /// Log2 of the bytes of a slot for `max_sge` SGEs.
    pub(crate) fn shift(max_sge: u32) -> u32 {
        ((max_sge as usize + 1) * SEGMENT).max(32).next_power_of_two().trailing_zeros()
    }

    /// Creates a queue in `memory` with `slots` slots of `1 << shift` bytes. `slots` is a power of
    /// 2 from 2 to 2^16.
    pub(crate) fn new(memory: Mapping, slots: u32, shift: u32, max_sge: u32, record: DoorbellRecord) -> Self {
        assert!(slots.is_power_of_two() && (2..=1 << 16).contains(&slots), "a number of slots");
        assert!(memory.len() >= (slots as usize) << shift, "room for the slots");
        assert!((max_sge as usize + 1) * SEGMENT <= 1 << shift, "room for the elements");
        let shared = Arc::new(SrqShared::new(slots));
        let queue = Self {
            slots: NonNull::from(&*shared.slots).cast(),
            shared,
            record,
            memory,
            shift,
            max_sge,
            head: 0,
            tail: slots - 1,
            first: 0,
            pushed: 0,
            posted: 0,
            xrc_record: None,
        };
        for next in 1..slots {
            // SAFETY: no slot of the queue is published yet.
            unsafe { queue.set_next(next - 1, next) };
        }
        queue
    }

    /// Attaches the record of this SRQ, so that CQEs with its number are found.
    pub(crate) fn attach_record(&mut self, record: QueueRecordRef) {
        QueueRecord::store_srq(&record, self.shared.number());
        self.xrc_record = Some(AttachedRecord(record));
    }

    pub(crate) fn shared(&self) -> &Arc<SrqShared> {
        &self.shared
    }

    fn slot(&self, index: u32) -> *mut Segment {
        debug_assert!((index as usize) < self.shared.slots.len());
        // SAFETY: `new` checked that the slots lie in the memory. Every index is below their
        // number.
        unsafe { self.memory.as_ptr().as_ptr().add((index as usize) << self.shift).cast() }
    }

    /// What the pollers share of slot `index`.
    #[inline(always)]
    fn shared_slot(&self, index: u32) -> &Slot {
        debug_assert!((index as usize) < self.shared.slots.len());
        // SAFETY: `shared` keeps the slots valid. Each index is that of a slot: the list has those of all
        // slots at first, then those that `append_free_list` found. Pollers change `next` of posted slots
        // only, which are not in the list.
        unsafe { self.slots.add(index as usize).as_ref() }
    }

    /// Links slot `next` after slot `index`.
    ///
    /// # Safety
    ///
    /// Slot `index` must not be owned by the device.
    unsafe fn set_next(&self, index: u32, next: u32) {
        // SAFETY: the slot lies in the memory, as `slot` says, and the device does not own it.
        unsafe { self.slot(index).write(wqe::link(next)) };
        self.shared_slot(index).next.store(next, Ordering::Relaxed);
    }

    /// Appends the returned slots to the list, in the order of their return.
    fn append_free_list(&mut self) {
        let last = self.shared.returned.swap(NONE, Ordering::Acquire);
        let (mut first, mut index) = (NONE, last);
        while let Some(slot) = self.shared.slots.get(index as usize) {
            let before = slot.next.load(Ordering::Relaxed);
            if first != NONE {
                // SAFETY: the slot was returned and has not been published since.
                unsafe { self.set_next(index, first) };
            }
            (first, index) = (index, before);
        }
        if first != NONE {
            // SAFETY: the end of the list is never published.
            unsafe { self.set_next(self.tail, first) };
            self.tail = last;
        }
    }

    /// Uses the slot at the head, which must not be the end of the list, for the receive `wr_id`.
    /// Returns the place of its SGEs, at most `max_sge`. The device does not read them before they
    /// are published.
    #[inline(always)]
    fn take(&mut self, wr_id: u64) -> *mut Segment {
        let elements = self.slot(self.head).wrapping_add(1);
        let slot = self.shared_slot(self.head);
        slot.wr_id.store(wr_id, Ordering::Relaxed);
        self.head = slot.next.load(Ordering::Relaxed);
        elements
    }

    /// The fast path: writes a receive of one SGE, or declines it.
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`].
    #[inline(always)]
    unsafe fn push_fast(&mut self, request: &RecvRequest<'_>) -> bool {
        let [sge] = request.sges else { return false };
        // The device treats an SGE length of 0 as 2^31 bytes.
        if (sge.length as i32) <= 0 || self.head == self.tail || self.max_sge == 0 {
            return false;
        }
        let elements = self.take(request.wr_id);
        // SAFETY: the slot has room for one SGE, and for a terminator if it has room for more.
        unsafe {
            elements.write(data_segment(sge));
            if self.max_sge > 1 {
                elements.add(1).write(wqe::end_of_list());
            }
        }
        true
    }

    /// Publishes `count` more receives. The caller has set `posted` of their slots.
    #[inline(always)]
    fn publish(&mut self, count: u32) {
        self.first = self.head;
        self.posted = self.posted.wrapping_add(count);
        barrier::before_device_reads();
        self.record.set(Word::First, self.posted & 0xffff);
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `memory` owns the slots, and `record` is the doorbell record.
// 2. SGEs are copied into a slot unchanged, and the device checks the keys. The head advances last.
// 3. The list from `head` to `tail` only contains slots that the device has completed, as `posted`
//    of each says.
// 4. The device reads as many slots of the list as the counter in the doorbell record says.
//    `publish` stores the counter.
// 5. `abort` moves the head back to the first slot that is not published.
// 6. An SRQ is not reset.
unsafe impl RecvQueue for Mlx5Srq {
    fn capacity(&self) -> u32 {
        self.shared.slots.len() as u32 - 1
    }

    /// The index is the head of the list.
    fn layout(&self) -> Option<QueueLayout> {
        let slots = self.shared.slots.len() as u32;
        let doorbell = self.record.layout(None);
        let layout = QueueLayout::new(self.memory.as_ptr(), slots, 1 << self.shift, self.head, doorbell);
        Some(layout.with_number(self.shared.number()).with_tail(self.tail))
    }

    /// Accepts receives of one SGE.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
        // SAFETY: the caller has the same obligations.
        let written = unsafe { self.push_fast(request) };
        self.pushed += u32::from(written);
        written
    }

    #[inline(always)]
    unsafe fn try_post(&mut self, request: &RecvRequest<'_>) -> bool {
        let slot = self.head;
        // SAFETY: the caller has the same obligations.
        if self.pushed != 0 || !unsafe { self.push_fast(request) } {
            return false;
        }
        self.shared_slot(slot).posted.store(true, Ordering::Release);
        self.publish(1);
        true
    }

    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError> {
        check(request, self.max_sge)?;
        if self.head == self.tail {
            self.append_free_list();
        }
        if self.head == self.tail {
            return Err(PushError::QueueFull { capacity: self.capacity() });
        }
        // SAFETY: the slot has room for `max_sge` SGEs, which `check` compared.
        unsafe { write_elements(self.take(request.wr_id), request, self.max_sge) };
        self.pushed += 1;
        Ok(())
    }

    fn ring(&mut self) {
        let mut index = self.first;
        while index != self.head {
            let slot = self.shared_slot(index);
            index = slot.next.load(Ordering::Relaxed);
            slot.posted.store(true, Ordering::Release);
        }
        let pushed = std::mem::take(&mut self.pushed);
        self.publish(pushed);
    }

    fn abort(&mut self) {
        self.head = self.first;
        self.pushed = 0;
    }

    /// An SRQ is not reset with its queue pairs.
    unsafe fn reset(&mut self) {}
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod exhaustive;
