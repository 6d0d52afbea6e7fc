//! Memory on a device, as a program reaches it.

use std::ops::Range;
use std::ptr::NonNull;

use crate::barrier;
use crate::mapping::Mapping;

/// Bytes that are read and written at once. Devices take no smaller writes.
pub const WORD: usize = 4;

/// Memory on a device, mapped. It is copied to and from word by word, since processors reach it over a bus.
///
/// ```
/// use bareverbs_provider::dm::DeviceMemory;
/// use bareverbs_provider::mapping::Mapping;
///
/// // Plain memory in place of a device's.
/// let mut memory = DeviceMemory::new(Mapping::anonymous(4096)?, 64, 128).expect("it lies in the mapping");
/// memory.write(8, b"12345678");
/// let mut bytes = [0; 3];
/// memory.read(9, &mut bytes);
/// assert_eq!(&bytes, b"234");
/// # Ok::<(), bareverbs_provider::Errno>(())
/// ```
#[derive(Debug)]
pub struct DeviceMemory {
    mapping: Mapping,
    offset: usize,
    len: usize,
}

impl DeviceMemory {
    /// The `len` bytes from `offset` on; none where they do not lie in the mapping, or `offset` is no multiple of
    /// [`WORD`].
    #[must_use]
    pub fn new(mapping: Mapping, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?.checked_next_multiple_of(WORD)?;
        (offset.is_multiple_of(WORD) && end <= mapping.len()).then_some(Self { mapping, offset, len })
    }

    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is asked for with a length")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The words that hold these bytes.
    fn words(&self, bytes: Range<usize>) -> impl Iterator<Item = (usize, NonNull<u32>)> {
        assert!(bytes.end <= self.len, "within the memory");
        // SAFETY: within the mapping, as `new` checked.
        let start = unsafe { self.mapping.as_ptr().add(self.offset) };
        (bytes.start / WORD..bytes.end.div_ceil(WORD)).map(move |word| {
            // SAFETY: a word that holds one of the bytes, all of which `new` found in the mapping.
            (word * WORD, unsafe { start.add(word * WORD) }.cast())
        })
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Panics
    /// If they are not all in the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        if into.is_empty() {
            return;
        }
        let end = offset.checked_add(into.len()).expect("within the memory");
        for (at, word) in self.words(offset..end) {
            // SAFETY: `words` gives aligned words of the mapping; a mapping starts with a page.
            let bytes = unsafe { word.read_volatile() }.to_ne_bytes();
            let (first, last) = (at.max(offset), (at + WORD).min(end));
            into[first - offset..last - offset].copy_from_slice(&bytes[first - at..last - at]);
        }
    }

    /// Copies bytes in, from `offset` on; both are multiples of [`WORD`].
    ///
    /// # Panics
    /// If they are no such multiples, or not all in the memory.
    pub fn write(&mut self, offset: usize, from: &[u8]) {
        let (words, rest) = from.as_chunks::<WORD>();
        assert!(rest.is_empty() && offset.is_multiple_of(WORD), "whole words");
        if words.is_empty() {
            return;
        }
        let end = offset.checked_add(from.len()).expect("within the memory");
        for ((_, word), bytes) in self.words(offset..end).zip(words) {
            // SAFETY: as in `read`; nobody else of this process writes, who would have to borrow too.
            unsafe { word.write_volatile(u32::from_ne_bytes(*bytes)) };
        }
        // A request may follow that makes the device read it.
        barrier::flush_write_combining();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_read_and_words_are_written() {
        let mut memory = DeviceMemory::new(Mapping::anonymous(4096).unwrap(), 4096 - 16, 14).unwrap();
        memory.write(4, b"abcdefgh");
        for start in 0..14 {
            for end in start..14 {
                let mut bytes = vec![0xff; end - start];
                memory.read(start, &mut bytes);
                assert_eq!(bytes, b"\0\0\0\0abcdefgh\0\0"[start..end]);
            }
        }
    }

    #[test]
    fn memory_lies_in_its_mapping() {
        let within =
            |offset, len| DeviceMemory::new(Mapping::anonymous(4096).unwrap(), offset, len).is_some();
        assert!(within(0, 4096) && within(4092, 1));
        assert!(!within(4092, 5) && !within(2, 4) && !within(usize::MAX - 3, 8));
    }
}
