//! Shared receive queues.
//!
//! The device takes receives in the order of a list: each slot names the one after it. Slots come
//! back in any order, from the pollers of several completion queues, and their owner hangs them on
//! to the end of the list.

use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::{PushError, RecvRequest};

use crate::doorbell::{DoorbellRecord, Word};
use crate::fast_path::data_segment;
use crate::rq::{check, write_elements};
use crate::sync::Ordering;
use crate::uidx_table::srq_slots::{NONE, SrqShared};
use crate::uidx_table::{QueueRecord, QueueRecordRef, Side};
use crate::wqe::{self, SEGMENT, Segment};

/// A shared receive queue.
///
/// One slot more than it holds is always in the list, as the end that the next receive goes to.
#[derive(Debug)]
pub struct Mlx5Srq {
    shared: Arc<SrqShared>,
    record: DoorbellRecord,
    memory: Mapping,
    /// Log2 of the bytes of a slot.
    shift: u32,
    max_sge: u32,
    /// The slot that the next receive goes to, unless the list ends there.
    head: u32,
    /// The end of the list.
    tail: u32,
    /// Where the receives begin that are not published, and how many they are.
    first: u32,
    pushed: u32,
    /// RqTracker that were published, counted on.
    posted: u32,
    /// The record of an XRC SRQ, which has a CQ of its own.
    xrc_record: Option<AttachedRecord>,
}

/// A record in the table; removed on drop.
#[derive(Debug)]
struct AttachedRecord(QueueRecordRef);

impl Drop for AttachedRecord {
    fn drop(&mut self) {
        self.0.cq(Side::Recv).retire(&self.0, Side::Recv);
    }
}

impl Mlx5Srq {
    /// Log2 of the bytes of a slot for `max_sge` SGEs.
    pub(crate) fn shift(max_sge: u32) -> u32 {
        ((max_sge as usize + 1) * SEGMENT).max(32).next_power_of_two().trailing_zeros()
    }

    /// The queue in `memory`, with room for `slots` slots of `1 << shift` bytes, a power of 2 from
    /// 2 to 2^16.
    pub(crate) fn new(memory: Mapping, slots: u32, shift: u32, max_sge: u32, record: DoorbellRecord) -> Self {
        assert!(slots.is_power_of_two() && (2..=1 << 16).contains(&slots), "a number of slots");
        assert!(memory.len() >= (slots as usize) << shift, "room for the slots");
        assert!((max_sge as usize + 1) * SEGMENT <= 1 << shift, "room for the elements");
        let queue = Self {
            shared: Arc::new(SrqShared::new(slots)),
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
            // SAFETY: nothing of the queue is published yet.
            unsafe { queue.set_next(next - 1, next) };
        }
        queue
    }

    /// Attaches the record of this SRQ, so that CQEs lead to it.
    pub(crate) fn attach_record(&mut self, record: QueueRecordRef) {
        QueueRecord::store_srq(&record, self.shared.number());
        self.xrc_record = Some(AttachedRecord(record));
    }

    pub(crate) fn shared(&self) -> &Arc<SrqShared> {
        &self.shared
    }

    fn slot(&self, index: u32) -> *mut Segment {
        debug_assert!((index as usize) < self.shared.slots.len());
        // SAFETY: `new` checked that the slots lie in the memory, and every index is below their
        // number.
        unsafe { self.memory.as_ptr().as_ptr().add((index as usize) << self.shift).cast() }
    }

    /// Puts slot `next` behind slot `index`.
    ///
    /// # Safety
    ///
    /// The device must not have slot `index`.
    unsafe fn set_next(&self, index: u32, next: u32) {
        // SAFETY: the slot lies in the memory, as `slot` says, and is not the device's.
        unsafe { self.slot(index).write(wqe::link(next)) };
        self.shared.slots[index as usize].next.store(next, Ordering::Relaxed);
    }

    /// Appends the returned slots to the list, in the order of their return.
    fn collect(&mut self) {
        let last = self.shared.returned.swap(NONE, Ordering::Acquire);
        let (mut first, mut index) = (NONE, last);
        while let Some(slot) = self.shared.slots.get(index as usize) {
            let before = slot.next.load(Ordering::Relaxed);
            if first != NONE {
                // SAFETY: the slot came back, and was not published since.
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

    /// Takes the slot at the head, which is not the end of the list, for the receive `wr_id`;
    /// returns where up to `max_sge` SGEs go. The device does not read them before they are
    /// published.
    #[inline(always)]
    fn take(&mut self, wr_id: u64) -> *mut Segment {
        let elements = self.slot(self.head).wrapping_add(1);
        let slot = &self.shared.slots[self.head as usize];
        slot.wr_id.store(wr_id, Ordering::Relaxed);
        self.head = slot.next.load(Ordering::Relaxed);
        elements
    }

    /// Writes a receive of one SGE, or declines it.
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`].
    #[inline(always)]
    unsafe fn push_fast(&mut self, request: &RecvRequest<'_>) -> bool {
        let [sge] = request.sges else { return false };
        // The device takes an SGE of no bytes for one of 2^31.
        if (sge.length as i32) <= 0 || self.head == self.tail || self.max_sge == 0 {
            return false;
        }
        let elements = self.take(request.wr_id);
        // SAFETY: there is room for one SGE, and for an end where there is for more.
        unsafe {
            elements.write(data_segment(sge));
            if self.max_sge > 1 {
                elements.add(1).write(wqe::end_of_list());
            }
        }
        true
    }

    /// Publishes `count` receives more, whose slots are known as posted.
    #[inline(always)]
    fn publish(&mut self, count: u32) {
        self.first = self.head;
        self.posted = self.posted.wrapping_add(count);
        barrier::before_device_reads();
        self.record.set(Word::First, self.posted & 0xffff);
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `memory` keeps the slots, and `record` is the doorbell record.
// 2. SGEs are copied into a slot as they are given, and the device checks the keys. The head
//    moves on last.
// 3. The list from `head` to `tail` has slots only that the device has given back, as `posted` of
//    each says.
// 4. The device takes as many slots of the list as the doorbell record's counter says, which
//    `publish` stores.
// 5. `abort` goes back to the first slot that is not published.
// 6. A shared queue is not reset.
unsafe impl RecvQueue for Mlx5Srq {
    fn capacity(&self) -> u32 {
        self.shared.slots.len() as u32 - 1
    }

    /// One SGE.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
        // SAFETY: the caller's promise is the same.
        let written = unsafe { self.push_fast(request) };
        self.pushed += u32::from(written);
        written
    }

    #[inline(always)]
    unsafe fn try_post(&mut self, request: &RecvRequest<'_>) -> bool {
        let slot = self.head;
        // SAFETY: the caller's promise is the same.
        if self.pushed != 0 || !unsafe { self.push_fast(request) } {
            return false;
        }
        self.shared.slots[slot as usize].posted.store(true, Ordering::Release);
        self.publish(1);
        true
    }

    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError> {
        check(request, self.max_sge)?;
        if self.head == self.tail {
            self.collect();
        }
        if self.head == self.tail {
            return Err(PushError::QueueFull { capacity: self.capacity() });
        }
        // SAFETY: there is room for the SGEs.
        unsafe { write_elements(self.take(request.wr_id), request, self.max_sge) };
        self.pushed += 1;
        Ok(())
    }

    fn ring(&mut self) {
        let mut index = self.first;
        while index != self.head {
            let slot = &self.shared.slots[index as usize];
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

    /// A shared queue is not reset with its queue pairs.
    unsafe fn reset(&mut self) {}
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod exhaustive;
