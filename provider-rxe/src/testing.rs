//! The kernel's side of the queues, on plain memory.
//!
//! It operates the rings as the kernel's `rxe_queue.h` does. It is written independently of the
//! user-space side, so that tests, benches and fuzzing can run a queue without a kernel.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use bareverbs_provider::Errno;
use bareverbs_provider::barrier::{publish_own_index, read_peer_index};
use bareverbs_provider::device::IoctlError;
use bareverbs_uapi::rxe::QueueBuf;
use bareverbs_uapi::write::structs::Wc;
use zerocopy::IntoBytes;

use crate::completion::Arm;
use crate::memory::{HEADER, QueueMemory};
use bareverbs_provider::doorbell::Doorbell;

const ALIGN: usize = 4096;
const CACHE_LINE: usize = 64;

#[derive(Debug)]
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation belongs to no thread, and all access goes through raw pointers in the
// order that the queues keep.
unsafe impl Send for Allocation {}
// SAFETY: a shared `Allocation` gives out raw pointers only; their users keep the order of the
// queues.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `PlainMemory::with_header`.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// The memory of a queue. Clones share the memory. The functions that access slots are for the
/// thread that uses the queue.
#[derive(Clone, Debug)]
pub struct PlainMemory(Arc<Allocation>);

// SAFETY: the allocation is page aligned, freed when the last clone is dropped, and exposed by raw
// pointers only.
unsafe impl QueueMemory for PlainMemory {
    fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    fn size(&self) -> usize {
        self.0.layout.size()
    }
}

impl PlainMemory {
    /// An empty queue for `depth` elements of `element` bytes, with the kernel's size.
    #[must_use]
    pub fn new(depth: u32, element: usize) -> Self {
        let slot = element.max(CACHE_LINE).next_power_of_two();
        let slots = (depth + 1).next_power_of_two();
        let size = (HEADER + slots as usize * slot).next_multiple_of(ALIGN);
        Self::with_header(size, slot.trailing_zeros(), slots - 1)
    }

    /// `size` bytes with a header of these values. The values are not checked.
    ///
    /// # Panics
    ///
    /// Panics if `size` is smaller than the header.
    #[must_use]
    pub fn with_header(size: usize, log2_slot: u32, mask: u32) -> Self {
        assert!(size >= HEADER, "no room for a header");
        let layout = Layout::from_size_align(size, ALIGN).expect("a size that memory can have");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        let header = start.as_ptr().cast::<QueueBuf>();
        // SAFETY: the header is within the allocation, and nothing else accesses it.
        unsafe {
            (&raw mut (*header).log2_elem_size).write(log2_slot);
            (&raw mut (*header).index_mask).write(mask);
        }
        Self(Arc::new(Allocation { start, layout }))
    }

    fn header(&self) -> *mut QueueBuf {
        self.0.start.as_ptr().cast()
    }

    fn mask(&self) -> u32 {
        // SAFETY: the header is within the allocation.
        unsafe { (&raw const (*self.header()).index_mask).read() }
    }

    /// The address of the producer's index.
    #[must_use]
    pub fn producer(&self) -> *mut u32 {
        // SAFETY: the header is within the allocation.
        unsafe { &raw mut (*self.header()).producer_index }
    }

    /// The address of the consumer's index.
    #[must_use]
    pub fn consumer(&self) -> *mut u32 {
        // SAFETY: the header is within the allocation.
        unsafe { &raw mut (*self.header()).consumer_index }
    }

    /// Sets both indices. The values are not checked.
    pub fn set_indices(&self, producer: u32, consumer: u32) {
        // SAFETY: the words are within the allocation and are accessed only by these functions.
        unsafe {
            publish_own_index(self.producer(), producer);
            publish_own_index(self.consumer(), consumer);
        }
    }

    /// Fills every slot with `byte`.
    pub fn fill(&self, byte: u8) {
        // SAFETY: within the allocation; tests call it while no slot is in use.
        unsafe { self.0.start.as_ptr().add(HEADER).write_bytes(byte, self.size() - HEADER) };
    }

    fn slot(&self, index: u32) -> (*mut u8, usize) {
        // SAFETY: the header is within the allocation.
        let log2_slot = unsafe { (&raw const (*self.header()).log2_elem_size).read() };
        let slot = 1usize.checked_shl(log2_slot).expect("the header does not fit the memory");
        let offset = ((index & self.mask()) as usize).checked_mul(slot).and_then(|at| at.checked_add(HEADER));
        let fits = |at: &usize| at.checked_add(slot).is_some_and(|end| end <= self.size());
        let offset = offset.filter(fits).expect("the header does not fit the memory");
        // SAFETY: checked against the allocation's size.
        (unsafe { self.0.start.as_ptr().add(offset) }, slot)
    }

    /// Writes bytes into a slot, as the kernel does with a WQE's state.
    pub fn put(&self, index: u32, offset: usize, bytes: &[u8]) {
        let (start, len) = self.slot(index);
        assert!(offset <= len && bytes.len() <= len - offset, "beyond the slot");
        // SAFETY: checked against the slot's size; the test avoids races with other writes.
        unsafe { start.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Writes bytes anywhere in the memory, including the header, as a malicious kernel might.
    /// Returns `false` if they do not fit.
    pub fn overwrite(&self, offset: usize, bytes: &[u8]) -> bool {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.size()) {
            return false;
        }
        // SAFETY: checked against the memory's size; queues hold no references into it.
        unsafe { self.0.start.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        true
    }

    /// A copy of a slot's bytes.
    #[must_use]
    pub fn slot_bytes(&self, index: u32) -> Vec<u8> {
        let (start, len) = self.slot(index);
        let mut bytes = vec![0; len];
        // SAFETY: the slot has that many bytes; the test avoids races with writers.
        unsafe { start.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }
}

/// The kernel's side of a send queue, receive queue or SRQ.
#[derive(Debug)]
pub struct KernelConsumer {
    memory: PlainMemory,
    index: u32,
}

impl KernelConsumer {
    /// Creates the kernel's side at the current shared index.
    #[must_use]
    pub fn new(memory: PlainMemory) -> Self {
        // SAFETY: the word is within the memory and is accessed only by these functions.
        let index = unsafe { read_peer_index(memory.consumer()) };
        Self { memory, index }
    }

    /// Moves the remaining requests to a new queue for `depth` elements of `element` bytes, as a
    /// resize does, and continues there. Returns the new memory, or `None` if they don't fit.
    pub fn resize(&mut self, depth: u32, element: usize) -> Option<PlainMemory> {
        let new = PlainMemory::new(depth, element);
        // SAFETY: the word is within the memory and is accessed only by these functions.
        let producer = unsafe { read_peer_index(self.memory.producer()) };
        let left = producer.wrapping_sub(self.index) & self.memory.mask();
        if left > new.mask() {
            return None;
        }
        for to in 0..left {
            let bytes = self.memory.slot_bytes((self.index + to) & self.memory.mask());
            let (start, len) = new.slot(to);
            // SAFETY: nothing else uses the new memory yet, and at most one slot is copied.
            unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(len)) };
        }
        // The old queue is left empty, as the kernel leaves it.
        self.memory.set_indices(producer, producer);
        new.set_indices(left, 0);
        *self = Self { memory: new.clone(), index: 0 };
        Some(new)
    }

    /// Takes the next request's bytes, if there is one, and releases its slot.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        // SAFETY: the word is within the memory and is accessed only by these functions.
        let producer = unsafe { read_peer_index(self.memory.producer()) };
        if producer.wrapping_sub(self.index) & self.memory.mask() == 0 {
            return None;
        }
        let bytes = self.memory.slot_bytes(self.index);
        self.index = (self.index + 1) & self.memory.mask();
        // SAFETY: the word is within the memory and is accessed only by these functions.
        unsafe { publish_own_index(self.memory.consumer(), self.index) };
        Some(bytes)
    }
}

/// The kernel's side of a completion queue.
#[derive(Debug)]
pub struct KernelProducer {
    memory: PlainMemory,
    index: u32,
}

impl KernelProducer {
    /// Creates the kernel's side at the current shared index.
    #[must_use]
    pub fn new(memory: PlainMemory) -> Self {
        // SAFETY: the word is within the memory and is accessed only by these functions.
        let index = unsafe { read_peer_index(memory.producer()) };
        Self { memory, index }
    }

    /// Adds a completion to the queue. If the queue is full, drops it and returns `false`.
    pub fn post(&mut self, completion: &Wc) -> bool {
        let mask = self.memory.mask();
        // SAFETY: the word is within the memory and is accessed only by these functions.
        let consumer = unsafe { read_peer_index(self.memory.consumer()) };
        if (self.index + 1).wrapping_sub(consumer) & mask == 0 {
            return false;
        }
        let (start, len) = self.memory.slot(self.index);
        let bytes = completion.as_bytes();
        assert!(bytes.len() <= len, "a slot holds a completion");
        // SAFETY: the slot has room and belongs to the kernel until the index is published.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.index = (self.index + 1) & mask;
        // SAFETY: the word is within the memory and is accessed only by these functions.
        unsafe { publish_own_index(self.memory.producer(), self.index) };
        true
    }
}

impl KernelProducer {
    /// Moves the completions that were not released to `memory` and continues there. If they don't
    /// fit, does nothing and returns `false`.
    pub fn resize(&mut self, memory: PlainMemory) -> bool {
        let mask = self.memory.mask();
        // SAFETY: the word is within the memory and is accessed only by these functions.
        let consumer = unsafe { read_peer_index(self.memory.consumer()) };
        let count = self.index.wrapping_sub(consumer) & mask;
        if count > memory.mask() {
            return false;
        }
        for i in 0..count {
            let bytes = self.memory.slot_bytes(consumer.wrapping_add(i));
            let (start, len) = memory.slot(i);
            // SAFETY: both are slots of completion queues; nothing uses the new memory yet.
            unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(len)) };
        }
        // SAFETY: the words are within the two memories and are accessed only by these functions.
        unsafe {
            publish_own_index(memory.producer(), count);
            publish_own_index(self.memory.consumer(), self.index);
        }
        *self = Self { memory, index: count };
        true
    }
}

/// A doorbell that counts its calls and returns the result set by the test. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct CountingDoorbell {
    state: Arc<(AtomicU32, AtomicI32)>,
}

impl CountingDoorbell {
    /// The number of calls.
    #[must_use]
    pub fn doorbells(&self) -> u32 {
        self.state.0.load(Ordering::Relaxed)
    }

    /// Sets the result of later calls.
    pub fn answer(&self, answer: Result<(), Errno>) {
        self.state.1.store(answer.err().map_or(0, Errno::raw_os_error), Ordering::Relaxed);
    }
}

impl Doorbell for CountingDoorbell {
    fn ring(&mut self) -> Result<(), Errno> {
        self.state.0.fetch_add(1, Ordering::Relaxed);
        match self.state.1.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }
}

/// Arms nothing and counts the calls. Clones share the counter.
#[derive(Clone, Debug, Default)]
pub struct CountingArm(Arc<AtomicU32>);

impl CountingArm {
    /// The number of calls.
    #[must_use]
    pub fn asked(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Arm for CountingArm {
    fn arm(&mut self, _: bool) -> Result<(), IoctlError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
