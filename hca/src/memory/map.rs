//! The DMA map: the table of mapped guest memory.

use std::ffi::c_void;
use std::fmt;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::copy::{into_shared, out_of_shared};
use super::device_memory::DeviceMemory;
use super::fault::DmaFault;
use super::process_memory::ProcessMemory;

/// Why a mapping is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The length is zero, or the end is beyond the address space.
    Range,
    /// A part of the range is already mapped.
    Overlap,
    /// The file is shorter than the mapping.
    File,
    /// The table is full.
    Full,
    /// `mmap` failed with this errno.
    Os(i32),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range => write!(f, "the range is empty or exceeds the address space"),
            Self::Overlap => write!(f, "part of the range is already mapped"),
            Self::File => write!(f, "the file is shorter than the range"),
            Self::Full => write!(f, "too many mappings"),
            Self::Os(errno) => write!(f, "mmap failed with errno {errno}"),
        }
    }
}

impl std::error::Error for MapError {}

/// Maximum number of mappings.
pub(crate) const MAX_REGIONS: usize = 65_535;

struct Region {
    start: u64,
    length: u64,
    memory: Backing,
    writable: bool,
}

enum Backing {
    /// A range without backing memory. Accesses fail.
    Absent,
    /// A mapping owned by the region, which unmaps it.
    Owned(NonNull<u8>),
    /// Memory of this process, possibly shared.
    Shared(Arc<ProcessMemory>),
}

// SAFETY: the pointers are to shared mappings, which any thread may access. All accesses are
// volatile copies.
unsafe impl Send for Region {}

impl Region {
    fn end(&self) -> u64 {
        self.start + self.length
    }

    fn base(&self) -> Option<NonNull<u8>> {
        match &self.memory {
            Backing::Absent => None,
            Backing::Owned(base) => Some(*base),
            Backing::Shared(memory) => Some(memory.pointer()),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Backing::Owned(base) = self.memory {
            // SAFETY: `base` and `length` are those of an mmap call of this module, and no pointer
            // into the mapping leaves the module.
            let unmapped = unsafe { munmap(base.as_ptr().cast::<c_void>(), self.length as usize) };
            debug_assert!(unmapped.is_ok());
        }
    }
}

/// Guest memory by guest address. Every access is looked up and bounded. An access to unmapped
/// memory fails with [`DmaFault`].
#[derive(Default)]
pub struct DmaMap {
    /// Sorted by start; disjoint.
    regions: Vec<Region>,
    device_memory: DeviceMemory,
}

impl fmt::Debug for DmaMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaMap").field("regions", &self.regions.len()).finish_non_exhaustive()
    }
}

impl DmaMap {
    /// Device memory, which has no bus address.
    pub(crate) fn device_memory(&self) -> &DeviceMemory {
        &self.device_memory
    }

    pub(crate) fn device_memory_mut(&mut self) -> &mut DeviceMemory {
        &mut self.device_memory
    }

    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps `length` bytes of `file` from `offset` at the guest address `start`.
    pub fn map_file(
        &mut self,
        start: u64,
        length: u64,
        file: impl AsFd,
        offset: u64,
        writable: bool,
    ) -> Result<(), MapError> {
        let at = self.place(start, length)?;
        let size = fstat(&file).map_err(|error| MapError::Os(error.raw_os_error()))?.st_size as u64;
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(MapError::File);
        }
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let bytes = usize::try_from(length).map_err(|_| MapError::Range)?;
        // SAFETY: a new shared mapping at an address that the kernel chooses affects no existing
        // memory.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, offset) }
            .map_err(|error| MapError::Os(error.raw_os_error()))?;
        let base = NonNull::new(base.cast()).ok_or(MapError::Os(0))?;
        self.regions.insert(at, Region { start, length, memory: Backing::Owned(base), writable });
        Ok(())
    }

    /// Maps new zeroed memory of this process, for use without a guest.
    pub fn map_zeroed(&mut self, start: u64, length: u64) -> Result<(), MapError> {
        let at = self.place(start, length)?;
        let bytes = usize::try_from(length).map_err(|_| MapError::Range)?;
        let memory =
            ProcessMemory::new(bytes).map_err(|error| MapError::Os(error.raw_os_error().unwrap_or(0)))?;
        let memory = Backing::Shared(Arc::new(memory));
        self.regions.insert(at, Region { start, length, memory, writable: true });
        Ok(())
    }

    /// Maps memory of this process at its own address, for a driver in the same process.
    pub(crate) fn map_shared(&mut self, memory: Arc<ProcessMemory>) -> Result<(), MapError> {
        let start = memory.pointer().as_ptr().expose_provenance() as u64;
        self.map_shared_at(start, memory)
    }

    /// Maps memory of this process at the guest address `start`.
    pub(crate) fn map_shared_at(&mut self, start: u64, memory: Arc<ProcessMemory>) -> Result<(), MapError> {
        let length = memory.length() as u64;
        let at = self.place(start, length)?;
        self.regions.insert(at, Region { start, length, memory: Backing::Shared(memory), writable: true });
        Ok(())
    }

    /// Adds a range without backing memory, such as a ROM that the peer doesn't share.
    pub fn map_absent(&mut self, start: u64, length: u64) -> Result<(), MapError> {
        let at = self.place(start, length)?;
        self.regions.insert(at, Region { start, length, memory: Backing::Absent, writable: false });
        Ok(())
    }

    /// Unmaps every mapping that is entirely within the range. Returns their number.
    pub fn unmap(&mut self, start: u64, length: u64) -> usize {
        let end = start.saturating_add(length);
        let before = self.regions.len();
        self.regions.retain(|region| region.start < start || region.end() > end);
        before - self.regions.len()
    }

    /// Unmaps everything.
    pub fn clear(&mut self) {
        self.regions.clear();
    }

    fn place(&self, start: u64, length: u64) -> Result<usize, MapError> {
        if length == 0 || start.checked_add(length).is_none() {
            return Err(MapError::Range);
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(MapError::Full);
        }
        let at = self.regions.partition_point(|region| region.end() <= start);
        match self.regions.get(at) {
            Some(next) if next.start < start + length => Err(MapError::Overlap),
            _ => Ok(at),
        }
    }

    /// The memory at an address, and the number of bytes left in its mapping.
    fn find(&self, address: u64, write: bool) -> Result<(NonNull<u8>, usize), DmaFault> {
        let at = self.regions.partition_point(|region| region.end() <= address);
        let region = self.regions.get(at).filter(|region| region.start <= address);
        let region = region.filter(|region| region.writable || !write).ok_or(DmaFault { address })?;
        let base = region.base().ok_or(DmaFault { address })?;
        let offset = (address - region.start) as usize;
        // SAFETY: the offset is below the region's length, so the pointer is inside its mapping.
        Ok((unsafe { base.add(offset) }, (region.length as usize) - offset))
    }

    /// Copies guest memory into `to`. After a fault a part may have been copied.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), DmaFault> {
        let (mut address, mut to) = (address, to);
        while !to.is_empty() {
            let (memory, available) = self.find(address, false)?;
            let (now, rest) = to.split_at_mut(available.min(to.len()));
            // SAFETY: `find` returned a valid mapping of at least `now.len()` bytes.
            unsafe { out_of_shared(memory.as_ptr(), now) };
            address = address.checked_add(now.len() as u64).ok_or(DmaFault { address })?;
            to = rest;
        }
        Ok(())
    }

    /// Copies `from` into guest memory. After a fault a part may have been copied.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), DmaFault> {
        let (mut address, mut from) = (address, from);
        while !from.is_empty() {
            let (memory, available) = self.find(address, true)?;
            let (now, rest) = from.split_at(available.min(from.len()));
            // SAFETY: `find` returned a valid, writable mapping of at least `now.len()` bytes.
            unsafe { into_shared(memory.as_ptr(), now) };
            address = address.checked_add(now.len() as u64).ok_or(DmaFault { address })?;
            from = rest;
        }
        Ok(())
    }

    /// Writes an entry. Its last byte, which publishes the entry to the guest, is written last.
    pub(crate) fn publish(&self, address: u64, entry: &[u8]) -> Result<(), DmaFault> {
        let (last, body) = entry.split_last().ok_or(DmaFault { address })?;
        self.write(address, body)?;
        fence(Ordering::Release);
        self.write(address + body.len() as u64, &[*last])
    }

    /// Reads a big-endian word, such as a doorbell record, with acquire ordering.
    pub(crate) fn read_be32(&self, address: u64) -> Result<u32, DmaFault> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        fence(Ordering::Acquire);
        Ok(u32::from_be_bytes(bytes))
    }

    /// Atomically updates the eight bytes at an aligned address by `change` and returns the old
    /// value.
    pub(crate) fn update_u64(&self, address: u64, change: impl Fn(u64) -> u64) -> Result<u64, DmaFault> {
        let (memory, available) = self.find(address, true)?;
        let pointer = memory.as_ptr().cast::<u64>();
        if available < size_of::<u64>() || !pointer.is_aligned() {
            return Err(DmaFault { address });
        }
        // SAFETY: the pointer is aligned to eight bytes of a valid, writable mapping. Every other
        // access of this module is volatile or atomic.
        let word = unsafe { AtomicU64::from_ptr(pointer) };
        let mut old = word.load(Ordering::Acquire);
        while let Err(now) = word.compare_exchange(old, change(old), Ordering::AcqRel, Ordering::Acquire) {
            old = now;
        }
        Ok(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(start: u64) -> DmaMap {
        let mut map = DmaMap::new();
        map.map_zeroed(start, 0x1000).unwrap();
        map
    }

    #[test]
    fn unmapped_access_faults() {
        let map = page(0x1000);
        assert_eq!(map.read(0xfff, &mut [0; 1]), Err(DmaFault { address: 0xfff }));
        assert_eq!(map.read(0x1fff, &mut [0; 2]), Err(DmaFault { address: 0x2000 }));
        assert_eq!(map.write(u64::MAX, &[0; 2]), Err(DmaFault { address: u64::MAX }));
    }

    #[test]
    fn concurrent_word_accesses_do_not_tear() {
        const TURNS: usize = 200_000;
        let memory = Arc::new(ProcessMemory::new(0x1000).unwrap());
        for record in [0x10, 0x14] {
            let map = || {
                let mut map = DmaMap::new();
                map.map_shared_at(0x1000, memory.clone()).unwrap();
                map
            };
            let (writer, reader) = (map(), map());
            let counts = [0x0000_00ff_u32, 0x0000_0100];
            let halves = std::thread::scope(|scope| {
                scope.spawn(move || {
                    for turn in 0..TURNS {
                        writer.write(0x1000 + record, &counts[turn % 2].to_be_bytes()).unwrap();
                    }
                });
                (0..TURNS)
                    .map(|_| reader.read_be32(0x1000 + record).unwrap())
                    .filter(|word| *word != 0 && !counts.contains(word))
                    .count()
            });
            assert_eq!(halves, 0);
        }
    }

    #[test]
    fn access_may_span_adjacent_mappings() {
        let mut map = page(0x1000);
        map.map_zeroed(0x2000, 0x1000).unwrap();
        map.write(0x1ffe, &[1, 2, 3, 4]).unwrap();
        let mut back = [0; 4];
        map.read(0x1ffe, &mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 4]);
    }

    #[test]
    fn mappings_may_not_overlap_or_wrap() {
        let mut map = page(0x1000);
        assert_eq!(map.map_zeroed(0x1800, 0x1000), Err(MapError::Overlap));
        assert_eq!(map.map_zeroed(0x800, 0x1000), Err(MapError::Overlap));
        assert_eq!(map.map_zeroed(u64::MAX, 2), Err(MapError::Range));
        assert_eq!(map.map_zeroed(0x3000, 0), Err(MapError::Range));
    }

    #[test]
    fn unmap_removes_whole_mappings_only() {
        let mut map = page(0x1000);
        map.map_zeroed(0x2000, 0x1000).unwrap();
        assert_eq!(map.unmap(0x1800, 0x10000), 1);
        assert_eq!(map.unmap(0, u64::MAX), 1);
        assert!(map.read(0x1000, &mut [0]).is_err());
    }

    #[test]
    fn absent_ranges_are_unreadable() {
        let mut map = DmaMap::new();
        map.map_absent(0xc_0000, 0x1000).unwrap();
        assert!(map.read(0xc_0000, &mut [0]).is_err());
        assert_eq!(map.unmap(0xc_0000, 0x1000), 1);
    }

    #[test]
    fn short_file_is_rejected() {
        let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 0x1000).unwrap();
        let mut map = DmaMap::new();
        assert_eq!(map.map_file(0, 0x2000, &file, 0, true), Err(MapError::File));
        assert_eq!(map.map_file(0, 0x1000, &file, u64::MAX, true), Err(MapError::File));
        map.map_file(0, 0x1000, &file, 0, false).unwrap();
        assert!(map.read(0, &mut [0]).is_ok());
        assert!(map.write(0, &[0]).is_err());
    }

    proptest! {
        #[test]
        fn unaligned_writes_read_back(at in 0u64..64, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let map = page(0x1000);
            map.write(0x1000 + at, &bytes).unwrap();
            let mut back = vec![0; bytes.len()];
            map.read(0x1000 + at, &mut back).unwrap();
            prop_assert_eq!(back, bytes);
        }
    }
}
