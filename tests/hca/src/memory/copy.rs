//! Copies between our memory and memory that others write at the same time.

use std::ptr;

const WORD: usize = size_of::<u64>();

/// Copies from shared memory, word by word where its alignment allows.
///
/// # Safety
/// `from` must be valid for reads of `to.len()` bytes; others may write them meanwhile.
pub(super) unsafe fn out_of_shared(from: *const u8, to: &mut [u8]) {
    let head = from.align_offset(WORD).min(to.len());
    let words = (to.len() - head) / WORD;
    let tail = head + words * WORD;
    // SAFETY: every offset is below `to.len()`, for which the caller vouches on one side and the slice on the other; the words are aligned because
    // they start at `head`. Volatile accesses do not assume that nobody else writes.
    unsafe {
        for at in (0..head).chain(tail..to.len()) {
            to[at] = from.add(at).read_volatile();
        }
        let target = to.as_mut_ptr().add(head);
        for word in 0..words {
            let value = from.add(head).cast::<u64>().add(word).read_volatile();
            ptr::write_unaligned(target.cast::<u64>().add(word), value);
        }
    }
}

/// Copies into shared memory, word by word where its alignment allows.
///
/// # Safety
/// `to` must be valid for writes of `from.len()` bytes; others may read and write them meanwhile.
pub(super) unsafe fn into_shared(to: *mut u8, from: &[u8]) {
    let head = to.cast_const().align_offset(WORD).min(from.len());
    let words = (from.len() - head) / WORD;
    let tail = head + words * WORD;
    // SAFETY: as in `out_of_shared`, with the sides swapped.
    unsafe {
        for at in (0..head).chain(tail..from.len()) {
            to.add(at).write_volatile(from[at]);
        }
        let source = from.as_ptr().add(head);
        for word in 0..words {
            let value = ptr::read_unaligned(source.cast::<u64>().add(word));
            to.add(head).cast::<u64>().add(word).write_volatile(value);
        }
    }
}
