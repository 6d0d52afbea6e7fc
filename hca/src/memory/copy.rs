//! Copies between private memory and memory that others write concurrently.
//!
//! A bus transfers aligned words whole, and drivers and programs depend on it: a doorbell record
//! never mixes old and new bytes. Each copy therefore uses the largest aligned words that fit.

/// Copies from shared memory.
///
/// # Safety
/// `from` must be valid for reads of `to.len()` bytes. Concurrent writes to them must be volatile
/// or atomic.
pub(super) unsafe fn out_of_shared(from: *const u8, to: &mut [u8]) {
    let mut at = 0;
    while at < to.len() {
        let place = from.wrapping_add(at).cast_mut();
        let rest = &mut to[at..];
        // SAFETY: the caller guarantees `rest.len()` valid bytes at `place`. `width` returns no
        // more than that, and a width to which `place` is aligned.
        at += unsafe {
            match width(place, rest.len()) {
                8 => rest.chunks_exact_mut(8).zip(0..).fold(0, |done, (to, word)| {
                    to.copy_from_slice(&u64::load(place.cast::<u64>().add(word)).to_ne_bytes());
                    done + to.len()
                }),
                4 => put(rest, u32::load(place.cast()).to_ne_bytes()),
                2 => put(rest, u16::load(place.cast()).to_ne_bytes()),
                _ => put(rest, [u8::load(place)]),
            }
        };
    }
}

/// Copies into shared memory.
///
/// # Safety
/// `to` must be valid for writes of `from.len()` bytes. Concurrent accesses to them must be
/// volatile or atomic.
pub(super) unsafe fn into_shared(to: *mut u8, from: &[u8]) {
    let mut at = 0;
    while at < from.len() {
        let place = to.wrapping_add(at);
        let rest = &from[at..];
        // SAFETY: the caller guarantees `rest.len()` valid bytes at `place`. `width` returns no
        // more than that, and a width to which `place` is aligned.
        at += unsafe {
            match width(place, rest.len()) {
                8 => rest.chunks_exact(8).zip(0..).fold(0, |done, (from, word)| {
                    u64::from_ne_bytes(take(from)).store(place.cast::<u64>().add(word));
                    done + from.len()
                }),
                4 => {
                    u32::from_ne_bytes(take(rest)).store(place.cast());
                    4
                }
                2 => {
                    u16::from_ne_bytes(take(rest)).store(place.cast());
                    2
                }
                _ => {
                    rest[0].store(place);
                    1
                }
            }
        };
    }
}

/// Takes a word and clears it.
///
/// # Safety
/// `place` must be aligned and valid for reads and writes. Concurrent accesses to it must be
/// volatile or atomic.
pub(crate) unsafe fn take_word(place: *mut u64) -> u64 {
    // SAFETY: the caller upholds the same contract.
    unsafe { words::take(place) }
}

/// A word that is accessed as a whole.
trait Word: Copy {
    /// # Safety
    /// `place` must be aligned and valid for reads.
    unsafe fn load(place: *mut Self) -> Self;
    /// # Safety
    /// `place` must be aligned and valid for writes.
    unsafe fn store(self, place: *mut Self);
}

/// Accesses to single words, as atomics.
#[cfg(not(bareverbs_tsan))]
mod words {
    use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

    use super::Word;

    macro_rules! words {
        ($($word:ty: $atomic:ty;)*) => {$(
            impl Word for $word {
                unsafe fn load(place: *mut Self) -> Self {
                    // SAFETY: this function's contract.
                    unsafe { <$atomic>::from_ptr(place) }.load(Ordering::Relaxed)
                }
                unsafe fn store(self, place: *mut Self) {
                    // SAFETY: this function's contract.
                    unsafe { <$atomic>::from_ptr(place) }.store(self, Ordering::Relaxed);
                }
            }
        )*};
    }
    words! { u8: AtomicU8; u16: AtomicU16; u32: AtomicU32; u64: AtomicU64; }

    /// # Safety
    /// `place` must be aligned and valid for reads and writes.
    pub(super) unsafe fn take(place: *mut u64) -> u64 {
        // SAFETY: this function's contract.
        let word = unsafe { AtomicU64::from_ptr(place) };
        // Most words are zero, and an exchange is more expensive than a load.
        if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) }
    }
}

/// Word accesses by instructions that ThreadSanitizer does not see.
///
/// A device is not a thread of the program. Barriers order its DMA and the program's volatile
/// accesses. ThreadSanitizer models neither and would report each access as a race. It checks the
/// program's own threads against each other.
#[cfg(bareverbs_tsan)]
mod words {
    use std::arch::asm;

    use super::Word;

    macro_rules! words {
        ($($word:ty: $class:ident, $load:literal, $store:literal;)*) => {$(
            impl Word for $word {
                unsafe fn load(place: *mut Self) -> Self {
                    let value;
                    // SAFETY: the instruction reads the word, which is valid by this function's
                    // contract.
                    unsafe { asm!($load, place = in(reg) place, value = out($class) value, options(nostack)) };
                    value
                }
                unsafe fn store(self, place: *mut Self) {
                    // SAFETY: the instruction writes the word, which is valid by this function's
                    // contract.
                    unsafe { asm!($store, place = in(reg) place, value = in($class) self, options(nostack)) };
                }
            }
        )*};
    }
    words! {
        u8: reg_byte, "mov {value}, byte ptr [{place}]", "mov byte ptr [{place}], {value}";
        u16: reg, "mov {value:x}, word ptr [{place}]", "mov word ptr [{place}], {value:x}";
        u32: reg, "mov {value:e}, dword ptr [{place}]", "mov dword ptr [{place}], {value:e}";
        u64: reg, "mov {value:r}, qword ptr [{place}]", "mov qword ptr [{place}], {value:r}";
    }

    /// # Safety
    /// `place` must be aligned and valid for reads and writes.
    pub(super) unsafe fn take(place: *mut u64) -> u64 {
        // SAFETY: this function's contract.
        if unsafe { u64::load(place) } == 0 {
            return 0;
        }
        let mut value = 0u64;
        // SAFETY: the instruction exchanges the word, which is valid by this function's contract.
        unsafe {
            asm!("xchg qword ptr [{place}], {value}", place = in(reg) place, value = inout(reg) value, options(nostack));
        }
        value
    }
}

/// The width in bytes, at most eight, of the largest aligned word at `place` within `left` bytes.
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
    fn copy_uses_largest_aligned_word() {
        let at = |address: usize, left| width(std::ptr::without_provenance(address), left);
        assert_eq!([1, 2, 3, 4, 7, 8, 100].map(|left| at(0x1000, left)), [1, 2, 2, 4, 4, 8, 8]);
        assert_eq!([0x1001, 0x1002, 0x1004, 0x1006].map(|address| at(address, 64)), [1, 2, 4, 2]);
    }

    proptest! {
        #[test]
        fn copies_write_exactly_the_requested_bytes(
            data in prop::collection::vec(any::<u8>(), 0..80),
            at in 0usize..16,
        ) {
            let mut shared = [0xee_u8; 128];
            // SAFETY: offset and length are below 128.
            unsafe { into_shared(shared.as_mut_ptr().add(at), &data) };
            let end = at + data.len();
            prop_assert_eq!(&shared[at..end], &data[..]);
            prop_assert!(shared[..at].iter().chain(&shared[end..]).all(|byte| *byte == 0xee));
            let mut back = vec![0; data.len()];
            // SAFETY: offset and length are below 128.
            unsafe { out_of_shared(shared.as_ptr().add(at), &mut back) };
            prop_assert_eq!(back, data);
        }
    }
}
