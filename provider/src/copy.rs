//! Copies to and from memory that another thread or a device may access at the same time.
//!
//! Each byte is an atomic access of its own, with relaxed ordering. So copies of any ranges may
//! overlap: a byte that another copy writes at the same time has its old or its new value. Memory
//! that the methods of an MR copy may also be written by a poller (scatter to CQE) or by a device.
//!
//! Rust forbids atomic accesses of different sizes to race, so an atomic word may not race with an
//! atomic byte. Whole words are therefore accessed by an instruction (`asm!`), whose effect is that
//! of eight atomic accesses to bytes. Words are aligned, so a device that accesses the same word
//! sees it whole.

use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a word.
const WORD: usize = 8;

/// Bytes of a block: the words that a long copy moves in one step.
const BLOCK: usize = 64;

/// The shortest copy by blocks.
const LONG: usize = 2 * BLOCK;

/// Alignment of the blocks in the memory that others access.
const BLOCK_ALIGN: usize = 16;

/// Copies from memory that others may write at the same time.
///
/// # Safety
///
/// `from` must be valid for reads of `into.len()` bytes. During the call this process may write
/// them only by functions of this module or by atomic accesses to bytes.
pub unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
    // SAFETY: all reads are within the `into.len()` bytes that the caller guarantees.
    unsafe {
        if into.len() < LONG {
            return copy_out_words(from, into);
        }
        let (first, rest) = into.split_at_mut(from.addr().wrapping_neg() % BLOCK_ALIGN);
        copy_out_words(from, first);
        let from = from.add(first.len());
        let (blocks, last) = rest.as_chunks_mut();
        for (at, block) in blocks.iter_mut().enumerate() {
            load_block(from.add(at * BLOCK), block);
        }
        copy_out_words(from.add(blocks.len() * BLOCK), last);
    }
}

/// # Safety
///
/// As for [`copy_out`].
unsafe fn copy_out_words(from: *const u8, into: &mut [u8]) {
    let (head, words) = split(from.addr(), into.len());
    let (first, rest) = into.split_at_mut(head);
    let (middle, last) = rest.split_at_mut(words * WORD);
    // SAFETY: all reads are within the `into.len()` bytes that the caller guarantees.
    unsafe {
        for (at, byte) in first.iter_mut().enumerate() {
            *byte = load_byte(from.add(at));
        }
        let from = from.add(head);
        for (at, word) in middle.as_chunks_mut().0.iter_mut().enumerate() {
            *word = load_word(from.add(at * WORD));
        }
        let from = from.add(words * WORD);
        for (at, byte) in last.iter_mut().enumerate() {
            *byte = load_byte(from.add(at));
        }
    }
}

/// Copies into memory that others may read or write at the same time.
///
/// # Safety
///
/// `into` must be valid for writes of `from.len()` bytes. During the call this process may access
/// them only by functions of this module or by atomic accesses to bytes.
pub unsafe fn copy_in(from: &[u8], into: *mut u8) {
    // SAFETY: all writes are within the `from.len()` bytes that the caller guarantees.
    unsafe {
        if from.len() < LONG {
            return copy_in_words(from, into);
        }
        let (first, rest) = from.split_at(into.addr().wrapping_neg() % BLOCK_ALIGN);
        copy_in_words(first, into);
        let into = into.add(first.len());
        let (blocks, last) = rest.as_chunks();
        for (at, block) in blocks.iter().enumerate() {
            store_block(into.add(at * BLOCK), block);
        }
        copy_in_words(last, into.add(blocks.len() * BLOCK));
    }
}

/// Copies into memory that only the caller accesses, as `copy_from_slice` does.
///
/// The offsets in a ring of bytes have any alignment. The `memcpy` of some C libraries copies long
/// ranges by `rep movsb`, which is many times slower on some CPUs (Zen 3) if the target is not aligned.
///
/// # Panics
/// If the lengths differ.
pub fn copy_slice(from: &[u8], into: &mut [u8]) {
    assert_eq!(from.len(), into.len(), "the lengths of both slices");
    // SAFETY: the slice is valid for writes of its length, and nothing else accesses it.
    unsafe { copy_in(from, into.as_mut_ptr()) };
}

/// # Safety
///
/// As for [`copy_in`].
unsafe fn copy_in_words(from: &[u8], into: *mut u8) {
    let (head, words) = split(into.addr(), from.len());
    let (first, rest) = from.split_at(head);
    let (middle, last) = rest.split_at(words * WORD);
    // SAFETY: all writes are within the `from.len()` bytes that the caller guarantees.
    unsafe {
        for (at, byte) in first.iter().enumerate() {
            store_byte(into.add(at), *byte);
        }
        let into = into.add(head);
        for (at, word) in middle.as_chunks().0.iter().enumerate() {
            store_word(into.add(at * WORD), *word);
        }
        let into = into.add(words * WORD);
        for (at, byte) in last.iter().enumerate() {
            store_byte(into.add(at), *byte);
        }
    }
}

/// Copies between two ranges of memory that others may read or write at the same time.
///
/// Where the ranges overlap, a byte that the copy has written may be read again.
///
/// # Safety
///
/// `from` must be valid for reads and `into` for writes of `len` bytes. During the call this process
/// may access them only by functions of this module or by atomic accesses to bytes.
pub unsafe fn copy_between(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: all accesses are within the `len` bytes that the caller guarantees.
    unsafe {
        let aligns = (from.addr() ^ into.addr()).is_multiple_of(BLOCK_ALIGN);
        if len < LONG || !aligns {
            return copy_by_buffer(from, into, len);
        }
        let first = into.addr().wrapping_neg() % BLOCK_ALIGN;
        copy_by_buffer(from, into, first);
        let blocks = (len - first) / BLOCK;
        for at in 0..blocks {
            let at = first + at * BLOCK;
            copy_block(from.add(at), into.add(at));
        }
        let end = first + blocks * BLOCK;
        copy_by_buffer(from.add(end), into.add(end), len - end);
    }
}

/// # Safety
///
/// As for [`copy_between`].
unsafe fn copy_by_buffer(from: *const u8, into: *mut u8, len: usize) {
    const SIZE: usize = 4 * BLOCK;
    let mut buffer = [0; SIZE];
    for at in (0..len).step_by(SIZE) {
        let part = &mut buffer[..SIZE.min(len - at)];
        // SAFETY: the part begins at `at` and ends at `len` at the latest.
        unsafe {
            copy_out(from.add(at), part);
            copy_in(part, into.add(at));
        }
    }
}

macro_rules! words {
    ($($load:ident, $store:ident, $of:ty;)*) => {$(
        /// Reads an aligned word whole. Relaxed ordering.
        ///
        /// # Safety
        ///
        /// `place` must be aligned and valid for reads of the word. During the call this process
        /// may write it only by functions of this module.
        #[inline]
        #[must_use]
        pub unsafe fn $load(place: *const u8) -> $of {
            // SAFETY: aligned and valid by this function's contract.
            unsafe { words::$load(place) }
        }

        /// Writes an aligned word whole. Relaxed ordering.
        ///
        /// # Safety
        ///
        /// `place` must be aligned and valid for writes of the word. During the call this process
        /// may access it only by functions of this module.
        #[inline]
        pub unsafe fn $store(place: *mut u8, value: $of) {
            // SAFETY: aligned and valid by this function's contract.
            unsafe { words::$store(place, value) };
        }
    )*};
}

words! {
    load_u32, store_u32, u32;
    load_u64, store_u64, u64;
}

/// Adds to an aligned word in one step, as seen by all CPUs. Returns the previous value. It orders
/// earlier and later accesses of this CPU.
///
/// # Safety
///
/// As for [`store_u64`].
#[inline]
pub unsafe fn fetch_add_u64(place: *mut u8, value: u64) -> u64 {
    // SAFETY: aligned and valid by this function's contract.
    unsafe { words::fetch_add_u64(place, value) }
}

/// Replaces an aligned word by `new` if it is `expected`, in one step, as seen by all CPUs. Returns
/// the previous value. It orders earlier and later accesses of this CPU.
///
/// # Safety
///
/// As for [`store_u64`].
#[inline]
pub unsafe fn compare_swap_u64(place: *mut u8, expected: u64, new: u64) -> u64 {
    // SAFETY: aligned and valid by this function's contract.
    unsafe { words::compare_swap_u64(place, expected, new) }
}

/// For `len` bytes at `address`: the number of bytes before the first aligned word, and the number
/// of whole words after them.
fn split(address: usize, len: usize) -> (usize, usize) {
    let head = (address.wrapping_neg() & (WORD - 1)).min(len);
    (head, (len - head) / WORD)
}

/// # Safety
///
/// `place` must be valid for reads of a byte.
#[inline(always)]
unsafe fn load_byte(place: *const u8) -> u8 {
    // SAFETY: the byte is valid for reads, by this function's contract, and is only read.
    unsafe { AtomicU8::from_ptr(place.cast_mut()) }.load(Ordering::Relaxed)
}

/// # Safety
///
/// `place` must be valid for writes of a byte.
#[inline(always)]
unsafe fn store_byte(place: *mut u8, value: u8) {
    // SAFETY: the byte is valid for writes, by this function's contract.
    unsafe { AtomicU8::from_ptr(place) }.store(value, Ordering::Relaxed);
}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(miri, bareverbs_tsan))))]
use self::instructions::{load_word, store_word};

/// Words by one instruction each.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(miri, bareverbs_tsan))))]
mod instructions {
    use std::arch::asm;

    use super::WORD;

    /// # Safety
    ///
    /// `place` must be aligned and valid for reads of a word.
    #[inline(always)]
    pub(super) unsafe fn load_word(place: *const u8) -> [u8; WORD] {
        let value: u64;
        let place = place.expose_provenance() as u64;
        // SAFETY: the instruction reads the word, which is valid by this function's contract.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!("mov {value}, qword ptr [{place}]", place = in(reg) place, value = lateout(reg) value,
                options(nostack, preserves_flags, readonly));
            #[cfg(target_arch = "aarch64")]
            asm!("ldr {value}, [{place}]", place = in(reg) place, value = lateout(reg) value,
                options(nostack, preserves_flags, readonly));
        }
        value.to_ne_bytes()
    }

    /// # Safety
    ///
    /// `place` must be aligned and valid for writes of a word.
    #[inline(always)]
    pub(super) unsafe fn store_word(place: *mut u8, value: [u8; WORD]) {
        let value = u64::from_ne_bytes(value);
        let place = place.expose_provenance() as u64;
        // SAFETY: the instruction writes the word, which is valid by this function's contract.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!("mov qword ptr [{place}], {value}", place = in(reg) place, value = in(reg) value,
                options(nostack, preserves_flags));
            #[cfg(target_arch = "aarch64")]
            asm!("str {value}, [{place}]", place = in(reg) place, value = in(reg) value,
                options(nostack, preserves_flags));
        }
    }
}

#[cfg(any(miri, bareverbs_tsan, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
use self::bytes::{load_word, store_word};

#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(miri, bareverbs_tsan))))]
use self::vectors::{copy_block, load_block, store_block};

/// Blocks by vectors. An aligned vector is accessed whole by CPUs with AVX, and by halves of a word
/// each by those without.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(miri, bareverbs_tsan))))]
mod vectors {
    use std::arch::asm;

    use super::BLOCK;

    /// # Safety
    ///
    /// `place` must be aligned to 16 bytes and valid for reads of a block.
    #[inline(always)]
    pub(super) unsafe fn load_block(place: *const u8, into: &mut [u8; BLOCK]) {
        let place = place.expose_provenance() as u64;
        // SAFETY: the instructions read the block, which is valid by this function's contract, and
        // write the array.
        unsafe {
            asm!(
                "movaps {a}, xmmword ptr [{place}]",
                "movaps {b}, xmmword ptr [{place} + 16]",
                "movaps {c}, xmmword ptr [{place} + 32]",
                "movaps {d}, xmmword ptr [{place} + 48]",
                "movups xmmword ptr [{into}], {a}",
                "movups xmmword ptr [{into} + 16], {b}",
                "movups xmmword ptr [{into} + 32], {c}",
                "movups xmmword ptr [{into} + 48], {d}",
                place = in(reg) place, into = in(reg) into.as_mut_ptr(),
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags));
        }
    }

    /// # Safety
    ///
    /// `place` must be aligned to 16 bytes and valid for writes of a block.
    #[inline(always)]
    pub(super) unsafe fn store_block(place: *mut u8, from: &[u8; BLOCK]) {
        let place = place.expose_provenance() as u64;
        // SAFETY: the instructions read the array and write the block, which is valid by this
        // function's contract.
        unsafe {
            asm!(
                "movups {a}, xmmword ptr [{from}]",
                "movups {b}, xmmword ptr [{from} + 16]",
                "movups {c}, xmmword ptr [{from} + 32]",
                "movups {d}, xmmword ptr [{from} + 48]",
                "movaps xmmword ptr [{place}], {a}",
                "movaps xmmword ptr [{place} + 16], {b}",
                "movaps xmmword ptr [{place} + 32], {c}",
                "movaps xmmword ptr [{place} + 48], {d}",
                place = in(reg) place, from = in(reg) from.as_ptr(),
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags));
        }
    }

    /// # Safety
    ///
    /// Both places must be aligned to 16 bytes, `from` valid for reads and `into` for writes of a block.
    #[inline(always)]
    pub(super) unsafe fn copy_block(from: *const u8, into: *mut u8) {
        let (from, into) = (from.expose_provenance() as u64, into.expose_provenance() as u64);
        // SAFETY: the instructions read and write the blocks, which are valid by this function's contract.
        unsafe {
            asm!(
                "movaps {a}, xmmword ptr [{from}]",
                "movaps {b}, xmmword ptr [{from} + 16]",
                "movaps {c}, xmmword ptr [{from} + 32]",
                "movaps {d}, xmmword ptr [{from} + 48]",
                "movaps xmmword ptr [{into}], {a}",
                "movaps xmmword ptr [{into} + 16], {b}",
                "movaps xmmword ptr [{into} + 32], {c}",
                "movaps xmmword ptr [{into} + 48], {d}",
                from = in(reg) from, into = in(reg) into,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags));
        }
    }
}

#[cfg(any(miri, bareverbs_tsan, not(all(target_arch = "x86_64", target_feature = "sse2"))))]
use self::by_words::{copy_block, load_block, store_block};

/// Blocks word by word: on other architectures, and where a tool must see the accesses.
#[cfg(any(miri, bareverbs_tsan, not(all(target_arch = "x86_64", target_feature = "sse2"))))]
mod by_words {
    use super::{BLOCK, WORD, load_word, store_word};

    /// # Safety
    ///
    /// `place` must be aligned to a word and valid for reads of a block.
    #[inline(always)]
    pub(super) unsafe fn load_block(place: *const u8, into: &mut [u8; BLOCK]) {
        for (at, word) in into.as_chunks_mut().0.iter_mut().enumerate() {
            // SAFETY: the aligned word lies in the block, which is valid by this function's contract.
            *word = unsafe { load_word(place.add(at * WORD)) };
        }
    }

    /// # Safety
    ///
    /// `place` must be aligned to a word and valid for writes of a block.
    #[inline(always)]
    pub(super) unsafe fn store_block(place: *mut u8, from: &[u8; BLOCK]) {
        for (at, word) in from.as_chunks().0.iter().enumerate() {
            // SAFETY: the aligned word lies in the block, which is valid by this function's contract.
            unsafe { store_word(place.add(at * WORD), *word) };
        }
    }

    /// # Safety
    ///
    /// Both places must be aligned to a word, `from` valid for reads and `into` for writes of a block.
    #[inline(always)]
    pub(super) unsafe fn copy_block(from: *const u8, into: *mut u8) {
        let mut block = [0; BLOCK];
        // SAFETY: the blocks are valid by this function's contract.
        unsafe {
            load_block(from, &mut block);
            store_block(into, &block);
        }
    }
}

/// Words byte by byte: on other architectures, and where a tool must see the accesses.
#[cfg(any(miri, bareverbs_tsan, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod bytes {
    use super::{WORD, load_byte, store_byte};

    /// # Safety
    ///
    /// `place` must be valid for reads of a word.
    #[inline(always)]
    pub(super) unsafe fn load_word(place: *const u8) -> [u8; WORD] {
        // SAFETY: the bytes lie in the word, which is valid by this function's contract.
        std::array::from_fn(|at| unsafe { load_byte(place.add(at)) })
    }

    /// # Safety
    ///
    /// `place` must be valid for writes of a word.
    #[inline(always)]
    pub(super) unsafe fn store_word(place: *mut u8, value: [u8; WORD]) {
        for (at, byte) in value.into_iter().enumerate() {
            // SAFETY: the bytes lie in the word, which is valid by this function's contract.
            unsafe { store_byte(place.add(at), byte) };
        }
    }
}

/// Words by one instruction each, or by a loop of two that retries.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(miri, bareverbs_tsan))))]
mod words {
    use std::arch::asm;

    macro_rules! words {
        ($($load:ident, $store:ident, $of:ty, $x86_load:literal, $x86_store:literal, $arm_load:literal, $arm_store:literal;)*) => {$(
            /// # Safety
            ///
            /// `place` must be aligned and valid for reads of the word.
            #[inline(always)]
            pub(super) unsafe fn $load(place: *const u8) -> $of {
                let value: $of;
                let place = place.expose_provenance() as u64;
                // SAFETY: the instruction reads the word, which is valid by this function's
                // contract.
                unsafe {
                    #[cfg(target_arch = "x86_64")]
                    asm!($x86_load, place = in(reg) place, value = lateout(reg) value,
                        options(nostack, preserves_flags, readonly));
                    #[cfg(target_arch = "aarch64")]
                    asm!($arm_load, place = in(reg) place, value = lateout(reg) value,
                        options(nostack, preserves_flags, readonly));
                }
                value
            }

            /// # Safety
            ///
            /// `place` must be aligned and valid for writes of the word.
            #[inline(always)]
            pub(super) unsafe fn $store(place: *mut u8, value: $of) {
                let place = place.expose_provenance() as u64;
                // SAFETY: the instruction writes the word, which is valid by this function's
                // contract.
                unsafe {
                    #[cfg(target_arch = "x86_64")]
                    asm!($x86_store, place = in(reg) place, value = in(reg) value,
                        options(nostack, preserves_flags));
                    #[cfg(target_arch = "aarch64")]
                    asm!($arm_store, place = in(reg) place, value = in(reg) value,
                        options(nostack, preserves_flags));
                }
            }
        )*};
    }

    words! {
        load_u32, store_u32, u32,
            "mov {value:e}, dword ptr [{place}]", "mov dword ptr [{place}], {value:e}",
            "ldr {value:w}, [{place}]", "str {value:w}, [{place}]";
        load_u64, store_u64, u64,
            "mov {value}, qword ptr [{place}]", "mov qword ptr [{place}], {value}",
            "ldr {value}, [{place}]", "str {value}, [{place}]";
    }

    /// # Safety
    ///
    /// `place` must be aligned and valid for reads and writes of a word.
    #[inline(always)]
    pub(super) unsafe fn fetch_add_u64(place: *mut u8, value: u64) -> u64 {
        let place = place.expose_provenance() as u64;
        let previous: u64;
        // SAFETY: the instructions access the word, which is valid by this function's contract.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!("lock xadd qword ptr [{place}], {value}", place = in(reg) place,
                value = inout(reg) value => previous, options(nostack));
            #[cfg(target_arch = "aarch64")]
            asm!("2:", "ldaxr {previous}, [{place}]", "add {sum}, {previous}, {value}",
                "stlxr {failed:w}, {sum}, [{place}]", "cbnz {failed:w}, 2b", "dmb ish",
                place = in(reg) place, value = in(reg) value, previous = out(reg) previous,
                sum = out(reg) _, failed = out(reg) _, options(nostack, preserves_flags));
        }
        previous
    }

    /// # Safety
    ///
    /// `place` must be aligned and valid for reads and writes of a word.
    #[inline(always)]
    pub(super) unsafe fn compare_swap_u64(place: *mut u8, expected: u64, new: u64) -> u64 {
        let place = place.expose_provenance() as u64;
        let previous: u64;
        // SAFETY: the instructions access the word, which is valid by this function's contract.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!("lock cmpxchg qword ptr [{place}], {new}", place = in(reg) place, new = in(reg) new,
                inout("rax") expected => previous, options(nostack));
            #[cfg(target_arch = "aarch64")]
            asm!("2:", "ldaxr {previous}, [{place}]", "cmp {previous}, {expected}", "b.ne 3f",
                "stlxr {failed:w}, {new}, [{place}]", "cbnz {failed:w}, 2b", "3:", "dmb ish",
                place = in(reg) place, expected = in(reg) expected, new = in(reg) new,
                previous = out(reg) previous, failed = out(reg) _, options(nostack));
        }
        previous
    }
}

/// Words by atomics of their size: on other architectures, and where a tool must see the accesses.
#[cfg(any(miri, bareverbs_tsan, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod words {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    macro_rules! words {
        ($($load:ident, $store:ident, $of:ty, $atomic:ty;)*) => {$(
            /// # Safety
            ///
            /// `place` must be aligned and valid for reads of the word.
            #[inline(always)]
            pub(super) unsafe fn $load(place: *const u8) -> $of {
                // SAFETY: aligned and valid by this function's contract, and only read.
                unsafe { <$atomic>::from_ptr(place.cast_mut().cast()) }.load(Ordering::Relaxed)
            }

            /// # Safety
            ///
            /// `place` must be aligned and valid for writes of the word.
            #[inline(always)]
            pub(super) unsafe fn $store(place: *mut u8, value: $of) {
                // SAFETY: aligned and valid by this function's contract.
                unsafe { <$atomic>::from_ptr(place.cast()) }.store(value, Ordering::Relaxed);
            }
        )*};
    }

    words! {
        load_u32, store_u32, u32, AtomicU32;
        load_u64, store_u64, u64, AtomicU64;
    }

    /// # Safety
    ///
    /// `place` must be aligned and valid for reads and writes of a word.
    #[inline(always)]
    pub(super) unsafe fn fetch_add_u64(place: *mut u8, value: u64) -> u64 {
        // SAFETY: aligned and valid by this function's contract.
        unsafe { AtomicU64::from_ptr(place.cast()) }.fetch_add(value, Ordering::SeqCst)
    }

    /// # Safety
    ///
    /// `place` must be aligned and valid for reads and writes of a word.
    #[inline(always)]
    pub(super) unsafe fn compare_swap_u64(place: *mut u8, expected: u64, new: u64) -> u64 {
        // SAFETY: aligned and valid by this function's contract.
        let word = unsafe { AtomicU64::from_ptr(place.cast()) };
        let (Ok(previous) | Err(previous)) =
            word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst);
        previous
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn copies_are_exact(bytes in prop::collection::vec(any::<u8>(), 320), start in 0usize..24, len in 0usize..296) {
            let mut out = vec![0; len];
            // SAFETY: `start + len` is less than 320.
            unsafe { copy_out(bytes.as_ptr().add(start), &mut out) };
            prop_assert_eq!(&out, &bytes[start..start + len]);

            let mut target: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
            // SAFETY: `start + len` is less than 320.
            unsafe { copy_in(&bytes[..len], target.as_mut_ptr().add(start)) };
            prop_assert_eq!(&target[start..start + len], &bytes[..len]);
            let around = target[..start].iter().chain(&target[start + len..]);
            let before = bytes[..start].iter().chain(&bytes[start + len..]);
            prop_assert!(around.zip(before).all(|(now, before)| *now == !before));

            copy_slice(&bytes[start..start + len], &mut target[..len]);
            prop_assert_eq!(&target[..len], &bytes[start..start + len]);
        }

        #[test]
        fn copies_between_memories_are_exact(
            bytes in prop::collection::vec(any::<u8>(), 1024),
            (from, to) in (0usize..24, 0usize..24),
            len in 0usize..1000,
        ) {
            let before: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
            let mut target = before.clone();
            // SAFETY: both ranges end before 1024.
            unsafe { copy_between(bytes.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
            prop_assert_eq!(&target[to..to + len], &bytes[from..from + len]);
            prop_assert_eq!(&target[..to], &before[..to]);
            prop_assert_eq!(&target[to + len..], &before[to + len..]);
        }
    }

    #[test]
    fn words_are_read_and_written_whole() {
        let mut memory = [u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]), 9];
        let place = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: aligned words of the array, which nothing else accesses.
        unsafe {
            assert_eq!(load_u64(place), u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
            assert_eq!(load_u32(place.add(4)), u32::from_ne_bytes([5, 6, 7, 8]));
            store_u32(place.add(4), u32::MAX);
            assert_eq!(load_u64(place).to_ne_bytes(), [1, 2, 3, 4, 255, 255, 255, 255]);
            store_u64(place, 40);
            assert_eq!((fetch_add_u64(place, 2), load_u64(place)), (40, 42));
            assert_eq!((compare_swap_u64(place, 41, 1), load_u64(place)), (42, 42));
            assert_eq!((compare_swap_u64(place, 42, 1), load_u64(place)), (42, 1));
            assert_eq!((fetch_add_u64(place, u64::MAX), load_u64(place.add(8))), (1, 9));
        }
    }

    #[test]
    fn concurrent_additions_are_not_lost() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let mut word = 0u64;
        let place = std::ptr::from_mut(&mut word).expose_provenance();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    let place = std::ptr::with_exposed_provenance_mut::<u8>(place);
                    for _ in 0..rounds {
                        // SAFETY: the aligned word, which only this module accesses meanwhile.
                        unsafe {
                            if thread == 0 {
                                fetch_add_u64(place, 1);
                                continue;
                            }
                            let mut value = load_u64(place);
                            loop {
                                match compare_swap_u64(place, value, value + 1) {
                                    previous if previous == value => break,
                                    previous => value = previous,
                                }
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(word, 3 * rounds);
    }

    #[test]
    fn concurrent_copies_of_other_ranges_see_old_or_new_bytes() {
        let rounds = if cfg!(miri) { 20 } else { 1000 };
        let mut memory = [1u64; 40];
        let start = memory.as_mut_ptr().expose_provenance();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..rounds {
                    let place = std::ptr::with_exposed_provenance_mut::<u8>(start + round % 8);
                    // Short and long copies in turns.
                    let len = [29, 300][round / 2 % 2];
                    // SAFETY: at most 7 + 300 of 320 bytes.
                    unsafe { copy_in(&[1 + (round % 2) as u8; 300][..len], place) };
                }
            });
            let mut bytes = [0; 310];
            for round in 0..rounds {
                let place = std::ptr::with_exposed_provenance(start + round % 4);
                // SAFETY: at most 3 + 310 of 320 bytes.
                unsafe { copy_out(place, &mut bytes) };
                assert!(bytes.iter().all(|byte| [0, 1, 2].contains(byte)), "{bytes:?}");
            }
        });
    }
}
