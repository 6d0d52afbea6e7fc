//! Device memory, mapped into the program.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::barrier;
use crate::mapping::{Mapping, Protection};

/// Access unit in bytes. Devices accept no smaller writes.
pub const WORD: usize = 4;

/// Mapped device memory. It is copied word by word, since the CPU accesses it over a bus.
///
/// Several values may refer to the same memory if it was imported more than once. Each word is read
/// and written atomically; a copy of several words is not atomic.
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
/// Pages of a device file may hold a queue or a doorbell register instead of device memory. So safe
/// code can't create a `DeviceMemory`:
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
    /// See [`DeviceMemory::file_offset`].
    file_offset: Option<u64>,
}

impl DeviceMemory {
    /// The `len` bytes from `offset` on. `None` if they exceed the mapping, if `offset` is not a
    /// multiple of [`WORD`], or if the mapping is not both readable and writable.
    ///
    /// # Safety
    ///
    /// The program may read and write the words that hold the bytes at any time and with any
    /// content: they are not part of a queue or a register. This process must access them only by
    /// atomic words of [`WORD`] bytes.
    #[must_use]
    pub unsafe fn new(mapping: Mapping, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?.checked_next_multiple_of(WORD)?;
        let is_usable = offset.is_multiple_of(WORD)
            && end <= mapping.len()
            && mapping.protection() == Protection::ReadWrite;
        is_usable.then_some(Self { mapping, offset, len, file_offset: None })
    }

    /// The same memory, mapped from this offset of the device file, in bytes.
    #[must_use]
    pub fn at_file_offset(self, offset: u64) -> Self {
        Self { file_offset: Some(offset), ..self }
    }

    /// Offset of the mapping in the device file, in bytes; `None` if the provider did not set it.
    #[must_use]
    pub fn file_offset(&self) -> Option<u64> {
        self.file_offset
    }

    /// Offset of the first byte in the mapping.
    #[must_use]
    pub fn mapping_offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "its length is chosen by the caller")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of the first byte. The program may access the memory only by atomic words of
    /// [`WORD`] bytes, as long as this value exists.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `new` checked that the offset lies in the mapping or is its end.
        unsafe { self.mapping.as_ptr().add(self.offset) }.as_ptr()
    }

    /// The words that hold these bytes, with the offset of each.
    fn words(&self, bytes: Range<usize>) -> impl Iterator<Item = (usize, &AtomicU32)> {
        assert!(bytes.end <= self.len, "range within the device memory");
        // SAFETY: `new` checked that the bytes and so their start lie in the mapping.
        let start = unsafe { self.mapping.as_ptr().add(self.offset) };
        (bytes.start / WORD..bytes.end.div_ceil(WORD)).map(move |word| {
            // SAFETY: the word holds one of the bytes, and `new` checked that the words of all of
            // them lie in the mapping, which is readable, writable, page aligned and kept by this
            // value. The caller of `new` promised that this process accesses them by such atomics
            // only. The device's writes are like those of another process.
            (word * WORD, unsafe { AtomicU32::from_ptr(start.add(word * WORD).cast().as_ptr()) })
        })
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        if into.is_empty() {
            return;
        }
        let end = offset.checked_add(into.len()).expect("range within the device memory");
        for (at, word) in self.words(offset..end) {
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            let (first, last) = (at.max(offset), (at + WORD).min(end));
            into[first - offset..last - offset].copy_from_slice(&bytes[first - at..last - at]);
        }
    }

    /// Copies bytes in, starting at `offset`. `offset` and the length must be multiples of
    /// [`WORD`].
    ///
    /// # Panics
    /// If either is not, or if the range exceeds the memory.
    pub fn write(&mut self, offset: usize, from: &[u8]) {
        let (words, rest) = from.as_chunks::<WORD>();
        assert!(rest.is_empty() && offset.is_multiple_of(WORD), "whole words");
        if words.is_empty() {
            return;
        }
        let end = offset.checked_add(from.len()).expect("range within the device memory");
        for ((_, word), bytes) in self.words(offset..end).zip(words) {
            word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        // The caller may post a request next that makes the device read the bytes.
        barrier::flush_write_combining();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of this process in place of device memory.
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
            // SAFETY: the file is accessed through `DeviceMemory` values only.
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
