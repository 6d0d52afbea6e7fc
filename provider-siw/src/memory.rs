//! The memory of queues.

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::elements::ElementMemory;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::mapping::{Mapping, Protection};
use bareverbs_uapi::siw::Opcode;

/// The memory of a queue: that of the kernel, or plain memory in tests.
///
/// # Safety
///
/// 1. The bytes must be aligned to 64 and valid for reads and writes. They must stay in place until the
///    value is dropped.
/// 2. No Rust reference to them may exist.
/// 3. [`start`](Self::start) and [`size`](Self::size) must return the same each time.
pub unsafe trait QueueMemory: Send + Sync {
    /// The first byte.
    fn start(&self) -> NonNull<u8>;
    /// The size in bytes.
    fn size(&self) -> usize;
}

/// The memory of a queue of the kernel, mapped for reading and writing.
#[derive(Debug)]
pub(crate) struct KernelQueue(Mapping);

impl TryFrom<Mapping> for KernelQueue {
    type Error = CreateError;

    /// # Errors
    ///
    /// [`CreateError::Layout`] if the mapping is not both readable and writable: access to a queue in it
    /// would raise `SIGSEGV`.
    fn try_from(mapping: Mapping) -> Result<Self, CreateError> {
        if mapping.protection() == Protection::ReadWrite {
            return Ok(Self(mapping));
        }
        let problem = "the memory is not mapped readable and writable";
        Err(CreateError::Layout { queue: "queue", problem, value: mapping.len() as u64 })
    }
}

// SAFETY: 1. A `Mapping` is page aligned and unmaps its pages only when it is dropped; `try_from` checked
// that they are readable and writable. 2. A `Mapping` gives out raw pointers only. 3. Its address and size
// never change.
unsafe impl QueueMemory for KernelQueue {
    fn start(&self) -> NonNull<u8> {
        self.0.as_ptr()
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

/// A queue's memory, which all its users keep.
pub type SharedMemory = Arc<dyn QueueMemory>;

/// The word of an element of a send queue or receive queue (`siw_sqe`, `siw_rqe`), without its flags.
#[inline(always)]
pub(crate) const fn request_word(num_sge: u8, opcode: Opcode, rkey: u32) -> u64 {
    let [k0, k1, k2, k3] = rkey.to_ne_bytes();
    u64::from_ne_bytes([0, 0, num_sge, opcode.0, k0, k1, k2, k3])
}

/// The most elements of a queue (a CQ of siw has at most 3,276,800).
const MAX_ELEMENTS: u32 = 1 << 23;

/// Bytes of a queue of `count` elements of type `T`, without what follows them.
pub(crate) fn bytes<T>(count: u32) -> usize {
    count as usize * size_of::<T>()
}

/// Checks that `memory` holds `count` elements of type `T`, at least `least`, and `more` bytes after them.
pub(crate) fn locate<T>(
    memory: &SharedMemory,
    queue: &'static str,
    count: u32,
    least: u32,
    more: usize,
) -> Result<ElementMemory, CreateError> {
    let wrong = |problem, value: u64| CreateError::Layout { queue, problem, value };
    check_count(queue, count, least)?;
    if memory.size() < bytes::<T>(count) + more {
        return Err(wrong("the elements exceed the memory", memory.size() as u64));
    }
    Ok(ElementMemory { first: memory.start(), stride: size_of::<T>(), mask: count - 1 })
}

/// Checks a number of elements from the kernel.
pub(crate) fn check_count(queue: &'static str, count: u32, least: u32) -> Result<(), CreateError> {
    let wrong = |problem| Err(CreateError::Layout { queue, problem, value: count.into() });
    if !count.is_power_of_two() || count > MAX_ELEMENTS {
        return wrong("the number of elements is not a power of two, or too large");
    }
    if count < least {
        return wrong("the queue has fewer elements than requested");
    }
    Ok(())
}
