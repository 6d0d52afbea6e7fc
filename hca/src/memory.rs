//! Guest memory: reachable only through mappings that are checked on every access.

mod card;
mod copy;
mod map;
mod own;

pub(crate) use card::{CardMemory, NoMemory, SIZE as CARD_SIZE, START as CARD_START, UNIT};
pub(crate) use copy::take_word;
pub(crate) use map::MAX_REGIONS;
pub use map::{DmaFault, DmaMap, MapError};
pub(crate) use own::OwnMemory;

/// Writes to memory of this process as a device does: in the largest aligned words, and invisible to ThreadSanitizer.
///
/// # Safety
///
/// `to` must be valid for writes of so many bytes. Others may only access them by volatile or atomic accesses.
pub unsafe fn write_as_device(to: *mut u8, bytes: &[u8]) {
    // SAFETY: this function's contract.
    unsafe { copy::into_shared(to, bytes) };
}
