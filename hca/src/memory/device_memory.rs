//! Device memory (MEMIC): a window of the BAR that mkeys can refer to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::fault::DmaFault;
use super::process_memory::ProcessMemory;

/// Offset of the window in the BAR.
pub(crate) const START: u64 = (32 << 20) - SIZE;
/// Size of the window in bytes. It has no backing memory until a range is allocated.
pub(crate) const SIZE: u64 = 256 << 10;
/// Granularity of addresses and lengths in bytes.
pub(crate) const UNIT: u64 = 64;

/// The window and its allocated ranges. Addresses are offsets in the BAR.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemory {
    memory: Option<Arc<ProcessMemory>>,
    allocated: BTreeMap<u64, u64>,
}

/// Why an allocation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoMemory {
    /// The range or length is invalid.
    Invalid,
    /// No free range of that length is left.
    Taken,
    /// The process could not allocate backing memory.
    Exhausted,
}

impl DeviceMemory {
    /// Allocates `length` bytes within a range, aligned to `alignment`.
    pub(crate) fn allocate(
        &mut self,
        range: (u64, u64),
        length: u64,
        alignment: u64,
    ) -> Result<u64, NoMemory> {
        let (start, size) = range;
        let end = start.checked_add(size).ok_or(NoMemory::Invalid)?;
        let inside = start >= START && end <= START + SIZE;
        if !inside || length == 0 || !length.is_multiple_of(UNIT) || !alignment.is_power_of_two() {
            return Err(NoMemory::Invalid);
        }
        let mut at = start.next_multiple_of(alignment.max(UNIT));
        while at.checked_add(length).is_some_and(|last| last <= end) {
            match self.holder(at, length) {
                None => {
                    if self.memory.is_none() {
                        let memory = ProcessMemory::new(SIZE as usize).map_err(|_| NoMemory::Exhausted)?;
                        self.memory = Some(Arc::new(memory));
                    }
                    self.allocated.insert(at, length);
                    return Ok(at);
                }
                Some(next) => at = next.next_multiple_of(alignment.max(UNIT)),
            }
        }
        Err(NoMemory::Taken)
    }

    /// Frees and clears a range. Returns `false` if exactly this range isn't allocated.
    pub(crate) fn free(&mut self, start: u64, length: u64) -> bool {
        if self.allocated.get(&start) != Some(&length) {
            return false;
        }
        self.allocated.remove(&start);
        if let Some(memory) = &self.memory {
            memory.write((start - START) as usize, &vec![0; length as usize]);
        }
        if self.allocated.is_empty() {
            self.memory = None;
        }
        true
    }

    /// Frees everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The end of an allocated range that overlaps the given one.
    fn holder(&self, start: u64, length: u64) -> Option<u64> {
        let (at, size) = self.allocated.range(..start.saturating_add(length)).next_back()?;
        (at + size > start).then_some(at + size)
    }

    /// Whether one allocation covers the whole range.
    pub(crate) fn is_allocated(&self, start: u64, length: u64) -> bool {
        let Some((at, size)) = self.allocated.range(..=start).next_back() else { return false };
        start.checked_add(length).is_some_and(|end| end <= at + size)
    }

    fn held(&self, at: u64, length: usize) -> Result<(&ProcessMemory, usize), DmaFault> {
        let memory = self.memory.as_deref().filter(|_| self.is_allocated(at, length as u64));
        Ok((memory.ok_or(DmaFault { address: at })?, (at - START) as usize))
    }

    /// Copies from device memory.
    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> Result<(), DmaFault> {
        let (memory, offset) = self.held(at, to.len())?;
        if memory.read(offset, to) { Ok(()) } else { Err(DmaFault { address: at }) }
    }

    /// Copies to device memory.
    pub(crate) fn write(&self, at: u64, from: &[u8]) -> Result<(), DmaFault> {
        let (memory, offset) = self.held(at, from.len())?;
        if memory.write(offset, from) { Ok(()) } else { Err(DmaFault { address: at }) }
    }

    /// Atomically updates an aligned word by `change` and returns the old value.
    pub(crate) fn update_u64(&self, at: u64, change: impl Fn(u64) -> u64) -> Result<u64, DmaFault> {
        let (memory, offset) = self.held(at, size_of::<u64>())?;
        let word = memory.word(offset).ok_or(DmaFault { address: at })?;
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(change(old)))
            .map_err(|_| DmaFault { address: at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_disjoint_and_zeroed() {
        let mut memory = DeviceMemory::default();
        let range = (START, 0x1000);
        let first = memory.allocate(range, 64, 64).unwrap();
        let second = memory.allocate(range, 128, 256).unwrap();
        assert_eq!((first, second), (START, START + 256));
        assert_eq!(memory.allocate((START, 256), 256, 64), Err(NoMemory::Taken));
        memory.write(second, &[7; 128]).unwrap();
        assert!(!memory.free(second, 64));
        assert!(memory.free(second, 128));
        assert!(memory.read(second, &mut [0; 1]).is_err(), "unmapped");
        let again = memory.allocate(range, 128, 256).unwrap();
        let mut bytes = [1; 128];
        memory.read(again, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 128]);
    }

    #[test]
    fn invalid_allocations_are_rejected() {
        let mut memory = DeviceMemory::default();
        for (range, length) in [
            ((0, 0x1000), 64),
            ((START, SIZE + 1), 64),
            ((START, 0x1000), 0),
            ((START, 0x1000), 63),
            ((u64::MAX, 2), 64),
        ] {
            assert_eq!(memory.allocate(range, length, 64), Err(NoMemory::Invalid));
        }
        assert_eq!(memory.allocate((START, 64), 128, 64), Err(NoMemory::Taken));
        assert!(!memory.free(START, 64));
    }

    #[test]
    fn accesses_stay_within_one_allocation() {
        let mut memory = DeviceMemory::default();
        let at = memory.allocate((START, 0x1000), 64, 64).unwrap();
        assert!(memory.write(at + 60, &[0; 4]).is_ok());
        assert!(memory.write(at + 60, &[0; 5]).is_err());
        assert!(memory.update_u64(at + 4, |old| old).is_err(), "not aligned");
        assert!(memory.read(u64::MAX, &mut [0; 2]).is_err());
    }
}
