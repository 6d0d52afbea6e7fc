//! Receive queues of one queue pair.

use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::contract::RecvQueue;
use bareverbs_provider::work::{RecvRequest, Refusal, Sge};

use crate::doorbell::Word;
use crate::pair::PairMemory;
use crate::send::{MAX_MESSAGE, too_long};
use crate::table::{Receives, Record, Side, Source};
use crate::wqe::{self, SEGMENT, Segment};

/// A receive queue.
#[derive(Debug)]
pub struct Mlx5Rq {
    record: Arc<Record>,
    memory: Arc<PairMemory>,
    /// The first slot.
    start: *mut Segment,
    mask: u32,
    /// Log2 of the segments of a slot.
    shift: u32,
    max_sge: u32,
    /// Receives pushed, counted on.
    head: u32,
    /// Receives published, counted on.
    published: u32,
    /// Receives complete when last looked.
    done: u32,
}

// SAFETY: the memory is kept by `memory` and belongs to no thread.
unsafe impl Send for Mlx5Rq {}

impl Mlx5Rq {
    /// The receive queue at the start of `memory`, of `slots` slots, a power of 2, with `1 << shift` segments each.
    pub(crate) fn new(
        record: Arc<Record>,
        memory: Arc<PairMemory>,
        slots: u32,
        shift: u32,
        max_sge: u32,
    ) -> Self {
        assert!(slots.is_power_of_two() && max_sge <= 1 << shift, "a layout of receives");
        let start = memory.ring((slots as usize * SEGMENT) << shift).cast().as_ptr();
        Self { record, memory, start, mask: slots - 1, shift, max_sge, head: 0, published: 0, done: 0 }
    }

    fn receives(&self) -> Option<&Receives> {
        match &self.record.source {
            Source::Own(receives) => Some(receives),
            Source::Shared(_) => None,
        }
    }

    /// Whether no slot is free; asks the poller only where it seems so.
    #[inline(always)]
    fn is_full(&mut self) -> bool {
        if self.head.wrapping_sub(self.done) <= self.mask {
            return false;
        }
        self.done = self.receives().map_or(self.head, Receives::done);
        self.head.wrapping_sub(self.done) > self.mask
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
        // SAFETY: as above.
        unsafe { to.write(wqe::end_of_list()) };
    }
}

impl RecvQueue for Mlx5Rq {
    #[inline]
    fn capacity(&self) -> u32 {
        // A queue for no receives at all has a slot all the same.
        if self.max_sge == 0 { 0 } else { self.mask + 1 }
    }

    #[inline(always)]
    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), Refusal> {
        if self.is_full() || self.max_sge == 0 {
            return Err(Refusal::QueueFull { capacity: self.capacity() });
        }
        check(request, self.max_sge)?;
        let index = self.head & self.mask;
        // SAFETY: the slot lies in the ring, and the device has done with it.
        unsafe { write_elements(self.start.add((index as usize) << self.shift), request, self.max_sge) };
        if let Some(receives) = self.receives() {
            receives.note(index, request.wr_id);
        }
        self.head = self.head.wrapping_add(1);
        Ok(())
    }

    #[inline(always)]
    fn ring(&mut self) {
        self.published = self.head;
        barrier::before_device_reads();
        self.memory.record().set(Word::First, self.head & 0xffff);
    }

    #[inline]
    fn abort(&mut self) {
        self.head = self.published;
    }

    fn reset(&mut self) {
        self.record.cq(Side::Recv).forget(&self.record, Side::Recv);
        (self.head, self.published, self.done) = (0, 0, 0);
        if let Some(receives) = self.receives() {
            receives.reset();
        }
        self.memory.record().set(Word::First, 0);
    }
}
