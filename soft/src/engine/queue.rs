//! Rings that the device shares with the program, as the kernel's Soft-RoCE lays them out.
//!
//! The program writes slots and its own index whenever it likes. So the device keeps the geometry and
//! its own index outside of the ring, masks each index that it reads, and copies slots before it looks at
//! them.

use std::mem::offset_of;
use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_provider::barrier::{publish_own_index, read_peer_index};
use bareverbs_provider::copy::{copy_in, copy_out};
use bareverbs_provider::mapping::Mapping;
use bareverbs_uapi::rxe::QueueBuf;

/// Bytes of the header; the slots follow.
const HEADER: usize = size_of::<QueueBuf>();

/// The smallest slot in bytes.
const CACHE_LINE: usize = 64;

/// Rings have whole pages, as the kernel's.
const PAGE: usize = 4096;

/// The memory of a ring: a [`QueueBuf`] and its slots.
#[derive(Clone, Debug)]
pub(crate) struct QueueMemory {
    mapping: Arc<Mapping>,
    capacity: u32,
}

impl QueueMemory {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The number of elements that the queue holds.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The memory, which outlives the queue while the program maps it.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

/// A ring. One slot is always empty.
#[derive(Debug)]
pub(super) struct Ring {
    memory: QueueMemory,
    log2_slot: u32,
    mask: u32,
}

impl Ring {
    /// A ring for `depth` elements of `element` bytes. Both are rounded up.
    pub(super) fn new(depth: u32, element: usize) -> Result<Self, Errno> {
        let slot = element.max(CACHE_LINE).next_power_of_two();
        let slots = depth.checked_add(1).and_then(u32::checked_next_power_of_two).ok_or(Errno::NOMEM)?;
        let size = (slots as usize).checked_mul(slot).and_then(|slots| slots.checked_add(HEADER));
        let size = size.and_then(|size| size.checked_next_multiple_of(PAGE)).ok_or(Errno::NOMEM)?;
        let mapping = Arc::new(Mapping::anonymous(size)?);
        let (log2_slot, mask) = (slot.trailing_zeros(), slots - 1);
        let memory = QueueMemory { mapping, capacity: mask };
        let header = memory.mapping.as_ptr().as_ptr().cast::<QueueBuf>();
        // SAFETY: the header is within the mapping, which is page aligned and which nothing else uses
        // yet.
        unsafe {
            (&raw mut (*header).log2_elem_size).write_volatile(log2_slot);
            (&raw mut (*header).index_mask).write_volatile(mask);
        }
        Ok(Self { memory, log2_slot, mask })
    }

    pub(super) fn memory(&self) -> QueueMemory {
        self.memory.clone()
    }

    /// The number of elements that it holds, which is also the mask of indices.
    pub(super) fn capacity(&self) -> u32 {
        self.mask
    }

    /// Bytes of a slot.
    pub(super) fn slot_size(&self) -> usize {
        1 << self.log2_slot
    }

    fn index(&self, offset: usize) -> *mut u32 {
        // SAFETY: the offset is that of an index of the header, which is within the mapping.
        unsafe { self.memory.mapping.as_ptr().as_ptr().add(offset) }.cast()
    }

    fn read(&self, offset: usize) -> u32 {
        // SAFETY: the word is aligned and within the mapping. The providers access it by the same module.
        unsafe { read_peer_index(self.index(offset)) & self.mask }
    }

    fn publish(&self, offset: usize, value: u64) {
        // SAFETY: as in `read`.
        unsafe { publish_own_index(self.index(offset), value as u32 & self.mask) };
    }

    /// The number of elements from `position` to the producer index.
    pub(super) fn posted_from(&self, position: u64) -> u32 {
        self.read(offset_of!(QueueBuf, producer_index)).wrapping_sub(position as u32) & self.mask
    }

    /// The number of elements from the consumer index to `position`.
    pub(super) fn unread_to(&self, position: u64) -> u32 {
        (position as u32).wrapping_sub(self.read(offset_of!(QueueBuf, consumer_index))) & self.mask
    }

    pub(super) fn set_producer(&self, position: u64) {
        self.publish(offset_of!(QueueBuf, producer_index), position);
    }

    pub(super) fn set_consumer(&self, position: u64) {
        self.publish(offset_of!(QueueBuf, consumer_index), position);
    }

    /// The address of `length` bytes at `offset` of a slot.
    ///
    /// # Panics
    ///
    /// If they are not within the slot.
    fn slot(&self, position: u64, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.slot_size()), "bytes beyond the slot");
        let index = (position as u32 & self.mask) as usize;
        // SAFETY: the mapping has `mask + 1` slots after the header, and the bytes are within the slot.
        unsafe { self.memory.mapping.as_ptr().as_ptr().add(HEADER + (index << self.log2_slot) + offset) }
    }

    /// Copies bytes of a slot.
    pub(super) fn load(&self, position: u64, offset: usize, into: &mut [u8]) {
        // SAFETY: `slot` checked the bytes. The program writes them before it publishes them; one that
        // writes them now gets old or new bytes.
        unsafe { copy_out(self.slot(position, offset, into.len()), into) };
    }

    /// Writes bytes of a slot.
    pub(super) fn store(&self, position: u64, offset: usize, from: &[u8]) {
        // SAFETY: as in `load`.
        unsafe { copy_in(from, self.slot(position, offset, from.len())) };
    }

    /// Clears all slots.
    pub(super) fn clear(&self) {
        let zeros = vec![0; self.slot_size()];
        for index in 0..=self.mask {
            self.store(index.into(), 0, &zeros);
        }
    }

    /// Moves `count` elements from `position` on to the start of a new ring.
    pub(super) fn copy_to(&self, new: &Self, position: u64, count: u32) {
        let mut bytes = vec![0; self.slot_size().min(new.slot_size())];
        for at in 0..u64::from(count) {
            self.load(position.wrapping_add(at), 0, &mut bytes);
            new.store(at, 0, &bytes);
        }
    }
}
