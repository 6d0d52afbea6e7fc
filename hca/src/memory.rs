//! Guest memory, accessed only through mappings that are checked on every access.

mod copy;
mod device_memory;
mod fault;
mod map;
mod process_memory;

pub(crate) use copy::take_word;
pub(crate) use device_memory::{NoMemory, SIZE as DEVICE_MEMORY_SIZE, START as DEVICE_MEMORY_START, UNIT};
pub use fault::DmaFault;
pub(crate) use map::MAX_REGIONS;
pub use map::{DmaMap, MapError};
pub(crate) use process_memory::ProcessMemory;

/// Writes to memory of this process as a device does: in the largest aligned words, and invisible
/// to ThreadSanitizer.
///
/// # Safety
///
/// `to` must be valid for writes of `bytes.len()` bytes. All other accesses to them must be
/// volatile or atomic.
pub unsafe fn write_as_device(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller upholds the same contract.
    unsafe { copy::into_shared(to, bytes) };
}
