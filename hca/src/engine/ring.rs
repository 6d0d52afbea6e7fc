//! Queue buffers in guest memory, given as a list of pages.

use crate::memory::{DmaFault, DmaMap};

/// A queue buffer.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    pages: Box<[u64]>,
    shift: u32,
    start: u64,
}

impl Ring {
    /// Creates a buffer from pages of `1 << shift` bytes, which begins `start` bytes into the first
    /// page. Returns `None` if the pages contain fewer than `length` bytes from there.
    pub fn new(pages: Vec<u64>, shift: u32, start: u64, length: u64) -> Option<Self> {
        let bytes = (pages.len() as u64).checked_shl(shift).filter(|_| shift < 40)?;
        let end = start.checked_add(length)?;
        (end <= bytes).then(|| Self { pages: pages.into(), shift, start })
    }

    /// The guest address of an offset, and the number of bytes left in its page.
    fn locate(&self, offset: u64) -> Result<(u64, usize), DmaFault> {
        let offset = self.start + offset;
        let page = self.pages.get((offset >> self.shift) as usize).ok_or(DmaFault { address: offset })?;
        let inside = offset & ((1 << self.shift) - 1);
        let address = page.checked_add(inside).ok_or(DmaFault { address: *page })?;
        Ok((address, ((1u64 << self.shift) - inside) as usize))
    }

    /// Copies from the buffer.
    pub(crate) fn read(&self, memory: &DmaMap, offset: u64, to: &mut [u8]) -> Result<(), DmaFault> {
        let (mut offset, mut to) = (offset, to);
        while !to.is_empty() {
            let (address, available) = self.locate(offset)?;
            let (now, rest) = to.split_at_mut(available.min(to.len()));
            memory.read(address, now)?;
            offset += now.len() as u64;
            to = rest;
        }
        Ok(())
    }

    /// Writes an entry that doesn't cross a page. Its last byte is written last.
    pub(crate) fn publish(&self, memory: &DmaMap, offset: u64, entry: &[u8]) -> Result<(), DmaFault> {
        let (address, available) = self.locate(offset)?;
        if available < entry.len() {
            return Err(DmaFault { address });
        }
        memory.publish(address, entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_beyond_page_list_is_rejected() {
        assert!(Ring::new(vec![0x1000], 12, 64, 4096).is_none());
        assert!(Ring::new(vec![0x1000], 12, 64, 4032).is_some());
        assert!(Ring::new(vec![0x1000], 63, 0, 64).is_none());
        assert!(Ring::new(vec![0x1000], 12, u64::MAX, 64).is_none());
    }

    #[test]
    fn ring_reads_follow_page_list() {
        let mut memory = DmaMap::new();
        memory.map_zeroed(0, 0x4000).unwrap();
        memory.write(0x3fff, &[1]).unwrap();
        memory.write(0x1000, &[2]).unwrap();
        let ring = Ring::new(vec![0x3000, 0x1000], 12, 0, 0x2000).unwrap();
        let mut back = [0; 2];
        ring.read(&memory, 0xfff, &mut back).unwrap();
        assert_eq!(back, [1, 2]);
        assert!(ring.read(&memory, 0x1fff, &mut back).is_err());
    }
}
