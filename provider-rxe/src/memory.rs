//! The memory of a queue, and the header that describes it.

use std::mem::offset_of;
use std::ptr::NonNull;

use bareverbs_provider::error::CreateError;
use bareverbs_provider::mapping::{Mapping, Protection};
use bareverbs_provider::ring::RingMemory;
use bareverbs_uapi::rxe::QueueBuf;

/// The memory of a queue: [`KernelQueue`], or plain memory in tests.
///
/// # Safety
///
/// 1. The bytes must be aligned to 128 and valid for reads and writes. They must stay in place
///    until the value is dropped, even if the value is moved.
/// 2. No Rust reference to them may exist.
/// 3. [`start`](Self::start) and [`size`](Self::size) must return the same each time.
pub unsafe trait QueueMemory: Send {
    /// The first byte.
    fn start(&self) -> NonNull<u8>;
    /// The size in bytes.
    fn size(&self) -> usize;
}

/// The memory of a kernel queue, mapped for reading and writing.
#[derive(Debug)]
pub struct KernelQueue(Mapping);

impl TryFrom<Mapping> for KernelQueue {
    type Error = CreateError;

    /// # Errors
    ///
    /// [`CreateError::Layout`] if the mapping is not both readable and writable: access to a queue
    /// in it would raise `SIGSEGV`.
    fn try_from(mapping: Mapping) -> Result<Self, CreateError> {
        if mapping.protection() == Protection::ReadWrite {
            return Ok(Self(mapping));
        }
        let problem = "the memory is not mapped readable and writable";
        Err(CreateError::Layout { queue: "queue", problem, value: mapping.len() as u64 })
    }
}

// SAFETY: 1. A `Mapping` is page aligned and unmaps its pages only when it is dropped; `try_from`
// checked that they are readable and writable. 2. A `Mapping` gives out raw pointers only. 3. Its
// address and size never change.
unsafe impl QueueMemory for KernelQueue {
    fn start(&self) -> NonNull<u8> {
        self.0.as_ptr()
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

/// Bytes of the header; the slots follow.
pub(crate) const HEADER: usize = size_of::<QueueBuf>();

/// No slot of rxe is larger than 1024 bytes; the bound keeps the arithmetic far from overflow.
const MAX_LOG2_SLOT: u32 = 16;

/// Reads a queue's header and checks that the ring lies within the memory, holds `depth` elements
/// and has slots for elements of `element` bytes.
///
/// The header is read once. The kernel does not change it, and later changes have no effect.
pub(crate) fn locate(
    memory: &impl QueueMemory,
    queue: &'static str,
    depth: u32,
    element: usize,
) -> Result<RingMemory, CreateError> {
    let wrong = |problem, value| CreateError::Layout { queue, problem, value };
    let size = memory.size();
    if size < HEADER {
        return Err(wrong("the memory is smaller than the header", size as u64));
    }
    let header = memory.start().cast::<QueueBuf>();
    // SAFETY: the header is within the memory, which is valid and aligned by the contract of
    // `QueueMemory`.
    let (log2_slot, mask) = unsafe {
        let header = header.as_ptr();
        (
            (&raw const (*header).log2_elem_size).read_volatile(),
            (&raw const (*header).index_mask).read_volatile(),
        )
    };
    if log2_slot > MAX_LOG2_SLOT || 1usize << log2_slot < element {
        return Err(wrong("the log2 slot size does not match the element size", log2_slot.into()));
    }
    if mask == u32::MAX || !(mask + 1).is_power_of_two() {
        return Err(wrong("the index mask is not a power of two minus 1", mask.into()));
    }
    if mask < depth {
        return Err(wrong("the ring has fewer elements than requested", mask.into()));
    }
    // SAFETY: the offsets are those of the header's fields and of its end. All lie within the
    // memory.
    let ring = unsafe {
        RingMemory {
            producer: memory.start().add(offset_of!(QueueBuf, producer_index)).cast(),
            consumer: memory.start().add(offset_of!(QueueBuf, consumer_index)).cast(),
            slots: memory.start().add(HEADER),
            log2_slot,
            mask,
        }
    };
    if HEADER as u64 + ring.bytes() > size as u64 {
        return Err(wrong("the slots exceed the memory", ring.bytes()));
    }
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A mapping of a file: the test program itself.
    fn mapped(protection: Protection) -> Mapping {
        let file = File::open("/proc/self/exe").expect("the program's own file");
        Mapping::new(file, 0, 4096, protection).expect("a mapping")
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn read_only_mapping_is_rejected_as_queue_memory() {
        let refused = KernelQueue::try_from(mapped(Protection::Read)).map(drop);
        assert!(matches!(refused, Err(CreateError::Layout { .. })), "{refused:?}");
    }

    #[test]
    fn read_write_mapping_is_accepted_as_queue_memory() {
        let queue = KernelQueue::try_from(Mapping::anonymous(4096).expect("memory")).expect("queue memory");
        assert_eq!(queue.size(), 4096);
        // SAFETY: the page is valid for writes, by the contract of `QueueMemory`.
        unsafe { queue.start().write(1) };
    }
}
