//! Memory on a device, as a program reaches it.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::barrier;
use crate::mapping::{Mapping, Protection};

/// Bytes that are read and written at once. Devices take no smaller writes.
pub const WORD: usize = 4;

/// Memory on a device, mapped. It is copied to and from word by word, since processors reach it
/// over a bus.
///
/// Several values may reach the same memory, where it was imported more than once. Each word is
/// read and written as a whole; a copy of several words is no unit.
///
/// ```
/// use bareverbs_provider::dm::DeviceMemory;
/// use bareverbs_provider::mapping::Mapping;
///
/// // Plain memory in place of a device's.
/// // SAFETY: nothing else uses these pages.
/// let memory = unsafe { DeviceMemory::new(Mapping::anonymous(4096)?, 64, 128) };
/// let mut memory = memory.expect("it lies in the mapping");
/// memory.write(8, b"12345678");
/// let mut bytes = [0; 3];
/// memory.read(9, &mut bytes);
/// assert_eq!(&bytes, b"234");
/// # Ok::<(), bareverbs_provider::Errno>(())
/// ```
///
/// Pages of a device file may be something else than such memory, like a queue or a doorbell
/// register, so safe code can't make one:
///
/// ```compile_fail,E0133
/// # use bareverbs_provider::device::{DeviceFile, IoctlError};
/// # use bareverbs_provider::dm::DeviceMemory;
/// # use bareverbs_provider::mapping::Protection;
/// fn ring_any_doorbell(file: &DeviceFile) -> Result<(), IoctlError> {
///     let page = file.map(0, 4096, Protection::ReadWrite)?;
///     DeviceMemory::new(page, 0, 4096).unwrap().write(0x800, &[0; 8]);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct DeviceMemory {
    mapping: Mapping,
    offset: usize,
    len: usize,
}

impl DeviceMemory {
    /// The `len` bytes from `offset` on; none where they do not lie in the mapping, `offset` is no
    /// multiple of [`WORD`], or the mapping can't be both read and written.
    ///
    /// # Safety
    ///
    /// The words that hold the bytes must be memory which the program may read and write at any
    /// time and with any content, and which this process accesses by atomic words of [`WORD`] bytes
    /// only: no queue, no register.
    #[must_use]
    pub unsafe fn new(mapping: Mapping, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?.checked_next_multiple_of(WORD)?;
        let is_usable = offset.is_multiple_of(WORD)
            && end <= mapping.len()
            && mapping.protection() == Protection::ReadWrite;
        is_usable.then_some(Self { mapping, offset, len })
    }

    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is asked for with a length")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The words that hold these bytes, and where each starts.
    fn words(&self, bytes: Range<usize>) -> impl Iterator<Item = (usize, &AtomicU32)> {
        assert!(bytes.end <= self.len, "within the memory");
        // SAFETY: `new` checked that the bytes and so their start lie in the mapping.
        let start = unsafe { self.mapping.as_ptr().add(self.offset) };
        (bytes.start / WORD..bytes.end.div_ceil(WORD)).map(move |word| {
            // SAFETY: the word holds one of the bytes, and `new` checked that the words of all of
            // them lie in the mapping, which is readable, writable, page aligned and kept by this
            // value. Who called `new` promised that this process accesses them by such atomics
            // only; what the device writes, it writes as another process would.
            (word * WORD, unsafe { AtomicU32::from_ptr(start.add(word * WORD).cast().as_ptr()) })
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
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
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
            word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        // A request may follow that makes the device read it.
        barrier::flush_write_combining();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of this process in place of a device's.
    fn memory(offset: usize, len: usize) -> Option<DeviceMemory> {
        // SAFETY: nothing else uses the pages.
        unsafe { DeviceMemory::new(Mapping::anonymous(4096).unwrap(), offset, len) }
    }

    #[test]
    fn reads_take_any_range_and_writes_take_words() {
        let mut memory = memory(4096 - 16, 14).unwrap();
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
    fn device_memory_outside_the_mapping_is_rejected() {
        let within = |offset, len| memory(offset, len).is_some();
        assert!(within(0, 4096) && within(4092, 1) && within(4096, 0));
        assert!(!within(4092, 5) && !within(2, 4) && !within(4100, 0));
        assert!(!within(usize::MAX - 3, 8) && !within(4, usize::MAX - 4) && !within(0, usize::MAX));
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn read_only_mapping_is_rejected_as_device_memory() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let mapping = Mapping::new(file, 0, 4096, Protection::Read).unwrap();
        // SAFETY: the memory is not accessed.
        assert!(unsafe { DeviceMemory::new(mapping, 0, 8) }.is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn aliased_device_memory_never_tears_a_word() {
        let file = rustix::fs::memfd_create("dm", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let over = || {
            let mapping = Mapping::new(&file, 0, 4096, Protection::ReadWrite).unwrap();
            // SAFETY: the file is accessed through such values only.
            unsafe { DeviceMemory::new(mapping, 0, 4096) }.unwrap()
        };
        let (mut one, other) = (over(), over());
        std::thread::scope(|scope| {
            scope.spawn(move || (0..1000).for_each(|round: u32| one.write(64, &[round as u8; 256])));
            let mut bytes = [0; 256];
            for _ in 0..1000 {
                other.read(64, &mut bytes);
                assert!(bytes.as_chunks::<WORD>().0.iter().all(|word| *word == [word[0]; WORD]));
            }
        });
    }
}
