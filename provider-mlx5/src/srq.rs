//! Shared receive queues.
//!
//! The device takes receives in the order of a list: each slot names the one after it. Slots come back in any order,
//! from the pollers of several completion queues, so the owner chains them anew as they do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bareverbs_provider::barrier;
use bareverbs_provider::contract::RecvQueue;
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::work::{RecvRequest, Refusal};

use crate::doorbell::{DoorbellRecord, Word};
use crate::recv::{check, write_elements};
use crate::table::{Record, Side};
use crate::wqe::{SEGMENT, Segment};

/// The end of a list of slots.
const NONE: u32 = u32::MAX;

/// What its owner and the pollers of its completions share.
#[derive(Debug)]
pub(crate) struct SrqShared {
    slots: Box<[Slot]>,
    /// The slot that came back last.
    returned: AtomicU32,
}

#[derive(Debug)]
struct Slot {
    wr_id: AtomicU64,
    /// Whether the device has it, as far as anybody knows.
    posted: AtomicBool,
    /// The slot that came back before.
    next: AtomicU32,
}

impl SrqShared {
    fn new(slots: u32) -> Self {
        let slot =
            |_| Slot { wr_id: AtomicU64::new(0), posted: AtomicBool::new(false), next: AtomicU32::new(NONE) };
        Self { slots: (0..slots).map(slot).collect(), returned: AtomicU32::new(NONE) }
    }

    /// Takes note that a receive is complete; returns its id.
    ///
    /// A slot goes back once only, however often a device says that it is done: the list would close on itself.
    pub(crate) fn complete(&self, slot: u16) -> u64 {
        let index = slot as usize & self.slots.len().wrapping_sub(1);
        let Some(slot) = self.slots.get(index) else { return 0 };
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        if slot.posted.swap(false, Ordering::AcqRel) {
            let mut last = self.returned.load(Ordering::Relaxed);
            loop {
                slot.next.store(last, Ordering::Relaxed);
                match self.returned.compare_exchange_weak(
                    last,
                    index as u32,
                    Ordering::Release,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => break,
                    Err(now) => last = now,
                }
            }
        }
        wr_id
    }
}

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
    /// The slot that the next receive goes to.
    head: u32,
    /// Slots that are free, behind `head`; the last to be used first.
    free: Vec<u32>,
    /// Slots of receives that were pushed and not published, in order.
    pushed: Vec<u32>,
    /// Receives that were published, counted on.
    posted: u32,
    /// What completions name the queue by, where they are its own and not those of queue pairs.
    own: Option<Listed>,
}

/// A record that is found as long as this is there.
#[derive(Debug)]
struct Listed(Arc<Record>);

impl Drop for Listed {
    fn drop(&mut self) {
        self.0.hide(Side::Recv);
        self.0.cq(Side::Recv).bury(&self.0);
    }
}

impl Mlx5Srq {
    /// Log2 of the bytes of a slot for `max_sge` elements.
    pub(crate) fn shift(max_sge: u32) -> u32 {
        ((max_sge as usize + 1) * SEGMENT).max(32).next_power_of_two().trailing_zeros()
    }

    /// The queue in `memory`, with room for `slots` slots of `1 << shift` bytes, a power of 2 from 2 to 2^16.
    pub(crate) fn new(memory: Mapping, slots: u32, shift: u32, max_sge: u32, record: DoorbellRecord) -> Self {
        assert!(slots.is_power_of_two() && (2..=1 << 16).contains(&slots), "a number of slots");
        assert!(memory.len() >= (slots as usize) << shift, "room for the slots");
        assert!((max_sge as usize + 1) * SEGMENT <= 1 << shift, "room for the elements");
        Self {
            shared: Arc::new(SrqShared::new(slots)),
            record,
            memory,
            shift,
            max_sge,
            head: 0,
            free: (1..slots).rev().collect(),
            pushed: Vec::with_capacity(slots as usize),
            posted: 0,
            own: None,
        }
    }

    /// Makes `record`, which is of this queue, lead from completions to it.
    pub(crate) fn list(&mut self, record: Arc<Record>) {
        record.show(Side::Recv);
        self.own = Some(Listed(record));
    }

    pub(crate) fn shared(&self) -> &Arc<SrqShared> {
        &self.shared
    }

    fn slot(&self, index: u32) -> *mut Segment {
        debug_assert!((index as usize) < self.shared.slots.len());
        // SAFETY: `new` checked that the slots lie in the memory, and every index is below their number.
        unsafe { self.memory.as_ptr().as_ptr().add((index as usize) << self.shift).cast() }
    }

    /// Takes the slots that came back.
    fn collect(&mut self) {
        let mut index = self.shared.returned.swap(NONE, Ordering::Acquire);
        while let Some(slot) = self.shared.slots.get(index as usize) {
            self.free.push(index);
            index = slot.next.load(Ordering::Relaxed);
        }
    }
}

impl RecvQueue for Mlx5Srq {
    fn capacity(&self) -> u32 {
        self.shared.slots.len() as u32 - 1
    }

    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), Refusal> {
        check(request, self.max_sge)?;
        if self.free.is_empty() {
            self.collect();
        }
        let Some(next) = self.free.pop() else {
            return Err(Refusal::QueueFull { capacity: self.capacity() });
        };
        let slot = self.slot(self.head);
        // SAFETY: the slot is free: the device reads it only when it was published; it has room for the link and the
        // elements. The link is the big-endian word of 2 bytes at 2.
        unsafe {
            slot.write([(u64::from(next) << 32).to_be(), 0]);
            write_elements(slot.add(1), request, self.max_sge);
        }
        let entry = &self.shared.slots[self.head as usize];
        entry.wr_id.store(request.wr_id, Ordering::Relaxed);
        self.pushed.push(self.head);
        self.head = next;
        Ok(())
    }

    fn ring(&mut self) {
        if self.pushed.is_empty() {
            return;
        }
        self.posted = self.posted.wrapping_add(self.pushed.len() as u32);
        for index in self.pushed.drain(..) {
            self.shared.slots[index as usize].posted.store(true, Ordering::Release);
        }
        barrier::before_device_reads();
        self.record.set(Word::First, self.posted & 0xffff);
    }

    fn abort(&mut self) {
        // The slot that would have been next is free again, and so on back to the first.
        while let Some(index) = self.pushed.pop() {
            self.free.push(self.head);
            self.head = index;
        }
    }

    /// A shared queue is not reset with its queue pairs.
    fn reset(&mut self) {}
}
