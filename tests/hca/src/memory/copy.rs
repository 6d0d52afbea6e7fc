//! Copies between our memory and memory that others write at the same time.
//!
//! A bus moves aligned words whole, and drivers and programs count on it: a doorbell record is never half the old and half the new. So each copy is
//! made of the largest aligned words that fit.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Copies from shared memory.
///
/// # Safety
/// `from` must be valid for reads of `to.len()` bytes; others may write them meanwhile, by volatile or atomic accesses.
pub(super) unsafe fn out_of_shared(from: *const u8, to: &mut [u8]) {
    let mut at = 0;
    while at < to.len() {
        let place = from.wrapping_add(at).cast_mut();
        let rest = &mut to[at..];
        // SAFETY: `rest` is as long as what the caller vouches for from `place` on; `width` answers no more than that, and to what `place` is
        // aligned.
        at += unsafe {
            match width(place, rest.len()) {
                8 => rest.chunks_exact_mut(8).zip(0..).fold(0, |done, (to, word)| {
                    let value = AtomicU64::from_ptr(place.cast::<u64>().add(word)).load(Ordering::Relaxed);
                    to.copy_from_slice(&value.to_ne_bytes());
                    done + to.len()
                }),
                4 => put(rest, AtomicU32::from_ptr(place.cast()).load(Ordering::Relaxed).to_ne_bytes()),
                2 => put(rest, AtomicU16::from_ptr(place.cast()).load(Ordering::Relaxed).to_ne_bytes()),
                _ => put(rest, [AtomicU8::from_ptr(place).load(Ordering::Relaxed)]),
            }
        };
    }
}

/// Copies into shared memory.
///
/// # Safety
/// `to` must be valid for writes of `from.len()` bytes; others may read and write them meanwhile, by volatile or atomic accesses.
pub(super) unsafe fn into_shared(to: *mut u8, from: &[u8]) {
    let mut at = 0;
    while at < from.len() {
        let place = to.wrapping_add(at);
        let rest = &from[at..];
        // SAFETY: as in `out_of_shared`, with the sides swapped.
        at += unsafe {
            match width(place, rest.len()) {
                8 => rest.chunks_exact(8).zip(0..).fold(0, |done, (from, word)| {
                    let value = u64::from_ne_bytes(take(from));
                    AtomicU64::from_ptr(place.cast::<u64>().add(word)).store(value, Ordering::Relaxed);
                    done + from.len()
                }),
                4 => {
                    AtomicU32::from_ptr(place.cast())
                        .store(u32::from_ne_bytes(take(rest)), Ordering::Relaxed);
                    4
                }
                2 => {
                    AtomicU16::from_ptr(place.cast())
                        .store(u16::from_ne_bytes(take(rest)), Ordering::Relaxed);
                    2
                }
                _ => {
                    AtomicU8::from_ptr(place).store(rest[0], Ordering::Relaxed);
                    1
                }
            }
        };
    }
}

/// Bytes of the largest word, of at most eight, that begins at an address and ends within so many bytes.
fn width(place: *const u8, left: usize) -> usize {
    let aligned = place.addr().trailing_zeros();
    1 << aligned.min(left.ilog2()).min(3)
}

fn put<const N: usize>(to: &mut [u8], bytes: [u8; N]) -> usize {
    to[..N].copy_from_slice(&bytes);
    N
}

fn take<const N: usize>(from: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&from[..N]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_word_that_fits_is_taken() {
        let at = |address: usize, left| width(std::ptr::without_provenance(address), left);
        assert_eq!([1, 2, 3, 4, 7, 8, 100].map(|left| at(0x1000, left)), [1, 2, 2, 4, 4, 8, 8]);
        assert_eq!([0x1001, 0x1002, 0x1004, 0x1006].map(|address| at(address, 64)), [1, 2, 4, 2]);
    }

    proptest! {
        #[test]
        fn copies_carry_every_byte_and_touch_no_other(
            data in prop::collection::vec(any::<u8>(), 0..80),
            at in 0usize..16,
        ) {
            let mut shared = [0xee_u8; 128];
            // SAFETY: offset and length stay below 128.
            unsafe { into_shared(shared.as_mut_ptr().add(at), &data) };
            let end = at + data.len();
            prop_assert_eq!(&shared[at..end], &data[..]);
            prop_assert!(shared[..at].iter().chain(&shared[end..]).all(|byte| *byte == 0xee));
            let mut back = vec![0; data.len()];
            // SAFETY: as above.
            unsafe { out_of_shared(shared.as_ptr().add(at), &mut back) };
            prop_assert_eq!(back, data);
        }
    }
}
