//! Writes the segments of a request to the ring.

use crate::wqe::{BLOCK, SEGMENT, SEGMENTS_PER_BLOCK, Segment};

/// Writes the segments of a request in order, and wraps around at the end of the ring.
pub(super) struct Writer {
    pub(super) start: *mut Segment,
    pub(super) mask: u32,
    pub(super) block: u32,
    /// Segments written, the control segment included.
    pub(super) segments: usize,
}

impl Writer {
    /// Address of the request's segment `index`.
    #[inline(always)]
    pub(super) fn at(&self, index: usize) -> *mut Segment {
        let block = self.block.wrapping_add((index / SEGMENTS_PER_BLOCK) as u32) & self.mask;
        // SAFETY: the block lies in the ring.
        unsafe { self.start.add(block as usize * SEGMENTS_PER_BLOCK + index % SEGMENTS_PER_BLOCK) }
    }

    #[inline(always)]
    pub(super) fn put(&mut self, segment: Segment) {
        // SAFETY: `Mlx5Sq::push` checked that the blocks are free, and the ring has room for the
        // longest WQE.
        unsafe { self.at(self.segments).write(segment) };
        self.segments += 1;
    }

    /// Copies bytes into the blocks, at `offset` bytes from the start of segment `first`.
    #[inline(always)]
    pub(super) fn copy(&self, first: usize, offset: usize, bytes: &[u8]) {
        let mut at = first * SEGMENT + offset;
        // The first block does not wrap around.
        if at + bytes.len() <= BLOCK {
            // SAFETY: within the request's first block.
            unsafe {
                let to = self.at(0).cast::<u8>().add(at);
                to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            return;
        }
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let run = (BLOCK - at % BLOCK).min(bytes.len());
            let (now, later) = bytes.split_at(run);
            // SAFETY: the run ends with its block, which belongs to the request.
            unsafe {
                let to = self.at(at / SEGMENT).cast::<u8>().add(at % SEGMENT);
                to.copy_from_nonoverlapping(now.as_ptr(), run);
            }
            at += run;
            bytes = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u32 = 8;

    fn ring() -> Vec<Segment> {
        vec![[0; 2]; BLOCKS as usize * SEGMENTS_PER_BLOCK]
    }

    fn writer(ring: &mut [Segment], block: u32) -> Writer {
        Writer { start: ring.as_mut_ptr(), mask: BLOCKS - 1, block, segments: 1 }
    }

    proptest! {
        #[test]
        fn segments_wrap_around_the_ring(block: u32, count in 0..31usize) {
            let mut ring = ring();
            let mut writer = writer(&mut ring, block);
            (1..=count).for_each(|number| writer.put([number as u64; 2]));
            prop_assert_eq!(writer.segments, count + 1);
            let first = (block % BLOCKS) as usize * SEGMENTS_PER_BLOCK;
            let places = ring.len();
            for number in 0..places {
                let expected = if number <= count { number as u64 } else { 0 };
                prop_assert_eq!(ring[(first + number) % places], [expected; 2]);
            }
        }

        #[test]
        fn copied_bytes_wrap_around_the_ring_and_change_nothing_else(
            block: u32,
            (first, offset) in (1..8usize, 0..SEGMENT),
            bytes in vec(1u8.., 0..300),
        ) {
            let mut ring = ring();
            writer(&mut ring, block).copy(first, offset, &bytes);
            let mut expected = vec![0; ring.len() * SEGMENT];
            let (begin, places) = ((block % BLOCKS) as usize * BLOCK + first * SEGMENT + offset, expected.len());
            for (at, byte) in bytes.iter().enumerate() {
                expected[(begin + at) % places] = *byte;
            }
            let found: Vec<u8> = ring.iter().flatten().flat_map(|half| half.to_ne_bytes()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}

#[cfg(test)]
mod exhaustive;
