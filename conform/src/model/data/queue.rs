//! The kernel's side of a queue in shared memory.

use std::mem::offset_of;
use std::os::fd::OwnedFd;

use bareverbs_uapi::rxe::{QueueBuf, SendWqe};
use bareverbs_uapi::verbs_values::WcStatus;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::generate::pair::READ_WRITE;
use crate::map::Map;

pub(super) struct Queue {
    memory: OwnedFd,
    map: Map,
    slot: usize,
    mask: u32,
    length: usize,
}

const PRODUCER: usize = offset_of!(QueueBuf, producer_index);
const CONSUMER: usize = offset_of!(QueueBuf, consumer_index);

impl Queue {
    /// A queue of at least this number of slots.
    pub(super) fn new(slot: usize, slots: u32) -> Result<Self, Errno> {
        let (slot, slots) = (slot.next_power_of_two(), slots.next_power_of_two());
        let length = (size_of::<QueueBuf>() + slot * slots as usize).next_multiple_of(4096);
        let memory = memfd_create("queue", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, length as u64)?;
        let map = Map::new(&memory, 0, length, READ_WRITE)?;
        map.publish(offset_of!(QueueBuf, log2_elem_size), slot.ilog2());
        map.publish(offset_of!(QueueBuf, index_mask), slots - 1);
        Ok(Self { memory, map, slot, mask: slots - 1, length })
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// The mapping of a process.
    pub(super) fn map(&self, len: usize, protection: ProtFlags) -> Result<Map, Errno> {
        Map::new(&self.memory, 0, len, protection)
    }

    fn index(&self, offset: usize) -> u32 {
        self.map.index(offset).unwrap_or(0)
    }

    fn offset(&self, index: u32) -> usize {
        size_of::<QueueBuf>() + (index & self.mask) as usize * self.slot
    }

    /// Number of filled slots.
    pub(super) fn filled(&self) -> u32 {
        self.index(PRODUCER).wrapping_sub(self.index(CONSUMER)) & self.mask
    }

    /// Whether the index of the producer is within the queue.
    pub(super) fn is_in_range(&self) -> bool {
        self.index(PRODUCER) <= self.mask
    }

    /// The contents of a filled slot, counted from the oldest one.
    pub(super) fn peek(&self, position: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.slot];
        let index = self.index(CONSUMER).wrapping_add(position);
        (position < self.filled()).then(|| self.map.copy_out(self.offset(index), &mut bytes))??;
        Some(bytes)
    }

    /// Releases the oldest slot.
    pub(super) fn release(&self) {
        self.map.publish(CONSUMER, (self.index(CONSUMER) + 1) & self.mask);
    }

    /// Stores the status of the oldest WQE, and releases it.
    pub(super) fn complete(&self, status: WcStatus) {
        let at = self.offset(self.index(CONSUMER)) + offset_of!(SendWqe, status);
        self.map.copy_in(at, &status.0.to_ne_bytes());
        self.release();
    }

    /// Fills the next slot.
    pub(super) fn push(&self, bytes: &[u8]) {
        let index = self.index(PRODUCER);
        self.map.copy_in(self.offset(index), bytes);
        self.map.publish(PRODUCER, (index + 1) & self.mask);
    }
}
