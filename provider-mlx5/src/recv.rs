//! Receive queues of one queue pair.

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::contract::RecvQueue;
use bareverbs_provider::work::{RecvRequest, Refusal, Sge};

use crate::doorbell::{RecordWord, Word};
use crate::pair::PairMemory;
use crate::send::{MAX_MESSAGE, too_long};
use crate::short::element;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{Receives, RecordRef, Side, Source};
use crate::wqe::{self, SEGMENT, Segment};

/// A receive queue.
#[derive(Debug)]
pub struct Mlx5Rq {
    record: RecordRef,
    memory: Arc<PairMemory>,
    /// Receives pushed since the last reset.
    head: u64,
    /// Where the short way ends: a receive of this number goes the long way.
    until: u64,
    /// As long as the short way is open: the next slot, and from where the ids are found by the receive's number, which
    /// is no place of its own.
    next: *mut Segment,
    ids_from: *const AtomicU64,
    /// Bytes from a slot to the next.
    stride: usize,
    /// In the doorbell record: how far the queue has been filled.
    filled: RecordWord,
    /// The first slot.
    start: *mut Segment,
    mask: u32,
    max_sge: u32,
    /// Whether completions may carry messages: all receives go the long way, which keeps where these go.
    keeps: bool,
    /// Whether every slot has the end of a list behind its first element, as the short way leaves it.
    ends: bool,
    /// The record's ids, as many as slots.
    wr_ids: NonNull<AtomicU64>,
    /// Receives complete since the last reset, when last looked.
    done: u64,
    /// Receives pushed before the last reset.
    base: u64,
}

// SAFETY: the memory is kept by `memory` and belongs to no thread.
unsafe impl Send for Mlx5Rq {}

impl Mlx5Rq {
    /// The receive queue at the start of `memory`, of `slots` slots, a power of 2, with `1 << shift` segments each.
    pub(crate) fn new(
        record: RecordRef,
        memory: Arc<PairMemory>,
        slots: u32,
        shift: u32,
        max_sge: u32,
    ) -> Self {
        assert!(slots.is_power_of_two() && max_sge <= 1 << shift, "a layout of receives");
        let Source::Own(receives) = &record.source else { panic!("receives of a shared queue") };
        assert!(receives.wr_ids().len() == slots as usize, "an id for each slot");
        let start = memory.ring((slots as usize * SEGMENT) << shift).cast().as_ptr();
        let wr_ids = NonNull::from(receives.wr_ids()).cast();
        let keeps = receives.kept().is_some();
        let mut queue = Self {
            keeps,
            head: 0,
            until: 0,
            next: start,
            ids_from: wr_ids.as_ptr(),
            stride: SEGMENT << shift,
            filled: memory.record().word(Word::First),
            start,
            mask: slots - 1,
            max_sge,
            ends: false,
            wr_ids,
            done: 0,
            base: 0,
            record,
            memory,
        };
        queue.write_ends();
        queue
    }

    fn receives(&self) -> Option<&Receives> {
        match &self.record.source {
            Source::Own(receives) => Some(receives),
            Source::Shared(_) => None,
        }
    }

    /// Has the poller copy no message to posted receives any more.
    fn take_all_back(&self) {
        if let Some(kept) = self.receives().and_then(Receives::kept) {
            kept.take_all_back();
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
        // SAFETY: there are `mask + 1` ids, which the record keeps as long as this queue keeps the record.
        unsafe { self.wr_ids.add(self.place(index)).as_ref() }
    }

    /// Opens the short way as far as room is known and the ring does not end; closes it where a slot may have more than
    /// one element.
    fn open(&mut self) {
        self.until = self.head;
        if self.ends && !self.keeps {
            let room = self.done + self.slots() - self.head;
            let to_end = self.slots() - self.place(self.head) as u64;
            self.until = self.head + room.min(to_end);
        }
        self.next = self.slot(self.head);
        let (head, at) = (self.head as usize, self.place(self.head));
        self.ids_from = self.wr_ids.as_ptr().wrapping_add(at).wrapping_sub(head);
    }

    /// Writes the end of a list behind the first element of every slot, none of which the device may have.
    fn write_ends(&mut self) {
        if self.max_sge > 1 {
            for index in 0..self.slots() {
                // SAFETY: a slot has room for `max_sge` segments.
                unsafe { self.slot(index).add(1).write(wqe::end_of_list()) };
            }
        }
        self.ends = true;
    }

    /// Writes a receive of one element, as `write` does, or declines it.
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`]. `write` gets a slot that is free, and must write a segment there.
    #[inline(always)]
    unsafe fn push_short(
        &mut self,
        request: &RecvRequest<'_>,
        write: impl FnOnce(*mut Segment, &Sge),
    ) -> bool {
        let [sge] = request.sges else { return false };
        let head = self.head;
        // The device takes an element of no bytes for one of 2^31.
        if head == self.until || (sge.length as i32) <= 0 {
            return false;
        }
        write(self.next, sge);
        // SAFETY: the slot is free, and its id with it: `open` left both here, and the room that it found, up to the end
        // of the ring at most, is not used up. The record keeps the ids as long as this queue keeps the record.
        unsafe {
            (*self.ids_from.wrapping_add(head as usize)).store(request.wr_id, Ordering::Relaxed);
            self.next = self.next.byte_add(self.stride);
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
        let done = self.receives().map_or(0, Receives::done).wrapping_sub(self.base);
        // Other counts are of before the last reset, or made up by a device that lies.
        if (self.done..=self.head).contains(&done) {
            self.done = done;
        }
        self.head - self.done >= self.slots()
    }
}

/// Refuses what no slot could hold.
#[inline(always)]
pub(crate) fn check(request: &RecvRequest<'_>, max_sge: u32) -> Result<(), Refusal> {
    if request.sges.len() > max_sge as usize {
        return Err(Refusal::TooManySges { given: request.sges.len(), max: max_sge as usize });
    }
    let length = request.sges.iter().map(|sge| u64::from(sge.length)).sum();
    if length > MAX_MESSAGE { Err(too_long(length, MAX_MESSAGE)) } else { Ok(()) }
}

/// Writes a receive's elements, and an end behind them where there is room for more. Empty ones are left out: the device
/// would take them for two gigabytes.
///
/// # Safety
///
/// There must be room for `max_sge` segments at `to`, aligned to 8, and `request` must have been [checked](check).
#[inline(always)]
pub(crate) unsafe fn write_elements(mut to: *mut Segment, request: &RecvRequest<'_>, max_sge: u32) {
    let mut room = max_sge;
    for sge in request.sges {
        let Sge { length: 1.., .. } = *sge else { continue };
        // SAFETY: no more segments than elements, which are at most `max_sge`.
        unsafe {
            to.write(wqe::data(*sge));
            to = to.add(1);
        }
        room -= 1;
    }
    if room > 0 {
        // SAFETY: no more segments than elements, which are at most `max_sge`.
        unsafe { to.write(wqe::end_of_list()) };
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `memory` keeps the ring and the doorbell record, and `record` what completions lead to.
// 2. Elements are copied into a slot as they are given, and the device checks the keys. The head
//    moves on last.
// 3. `until` and the record's count of done receives give slots only that the device has given
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

    /// One element.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
        // SAFETY: the caller's promise; there is room for a segment.
        unsafe { self.push_short(request, |slot, sge| wqe::write_data(slot, sge)) }
    }

    #[inline(always)]
    unsafe fn try_push_all(&mut self, requests: &[RecvRequest<'_>]) -> usize {
        // Elements of a list lie in memory, from which two words are read at once.
        // SAFETY: the caller's promise; there is room for a segment.
        let push = |request: &&RecvRequest<'_>| unsafe {
            self.push_short(request, |slot, sge| slot.write(element(sge)))
        };
        requests.iter().take_while(push).count()
    }

    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), Refusal> {
        if self.is_full() || self.max_sge == 0 {
            return Err(Refusal::QueueFull { capacity: self.capacity() });
        }
        check(request, self.max_sge)?;
        // SAFETY: the slot lies in the ring, and the device has done with it.
        unsafe { write_elements(self.slot(self.head), request, self.max_sge) };
        self.id(self.head).store(request.wr_id, Ordering::Relaxed);
        if let Some(kept) = self.receives().and_then(Receives::kept) {
            kept.keep(self.place(self.head), request.sges);
        }
        self.head += 1;
        // What follows a first element may be another one now.
        self.ends &= request.sges.len() < 2;
        self.open();
        Ok(())
    }

    #[inline(always)]
    fn ring(&mut self) {
        let (filled, head) = (self.filled, self.head);
        barrier::before_device_reads();
        // SAFETY: `memory` keeps the record. This word of it is the receive queue's, which only its owner accesses.
        unsafe { filled.set_low(head as u16) };
    }

    #[inline]
    fn abort(&mut self) {
        // The record says how many were published, by their low 16 bits; there are never as many pushed.
        let published = self.memory.record().get(Word::First) as u16;
        let pushed: u64 = (self.head as u16).wrapping_sub(published).into();
        let first = self.head - pushed;
        if let Some(kept) = self.receives().and_then(Receives::kept) {
            // Nobody vouches for their memory any more.
            (first..self.head).for_each(|index| kept.take_back(self.place(index)));
        }
        self.head = first;
        self.until = self.head;
        // A faulty device may have completed what it was not told of.
        self.done = self.done.min(first);
    }

    unsafe fn reset(&mut self) {
        self.base += self.head;
        self.record.cq(Side::Recv).forget(&self.record, Side::Recv, self.base);
        self.take_all_back();
        barrier::before_slots_are_reused();
        (self.head, self.until, self.done) = (0, 0, 0);
        if !self.ends {
            self.write_ends();
        }
        self.memory.record().set(Word::First, 0);
    }

    fn abandon(&mut self) {
        self.take_all_back();
    }
}

/// The kernel has destroyed the queue. No completion of it is delivered any more, not even one that a poller has found.
impl Drop for Mlx5Rq {
    fn drop(&mut self) {
        self.take_all_back();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use bareverbs_provider::contract::RecvQueue;
    use bareverbs_provider::work::Sge;

    use crate::scene::{Scene, recv};
    use crate::wqe;

    #[test]
    fn slots_end_after_one_element_in_a_new_queue_and_after_a_reset() {
        let Scene { mut rq, .. } = Scene::new(false);
        // SAFETY: the slot has room for four segments, and no device has the queue.
        assert_eq!(unsafe { rq.slot(0).add(1).read() }, wqe::end_of_list());
        let element = Sge { addr: 64, length: 8, lkey: 1 };
        recv(&mut rq, 1, &[element; 3]).expect("room");
        // SAFETY: the slot has room for four segments, and no device has the queue.
        assert_ne!(unsafe { rq.slot(0).add(1).read() }, wqe::end_of_list());
        // SAFETY: no kernel and no device has the queue.
        unsafe { rq.reset() };
        // SAFETY: the slot has room for four segments, and no device has the queue.
        assert_eq!(unsafe { rq.slot(0).add(1).read() }, wqe::end_of_list());
    }
}
