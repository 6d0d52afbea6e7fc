//! Every position in small rings, with every length of a request.

use super::*;

/// Rings of 1, 2 and 4 blocks.
const BLOCKS: [u32; 3] = [1, 2, 4];

/// Block counters: every position twice, and those before the counter wraps.
fn counters(blocks: u32) -> impl Iterator<Item = u32> {
    (0..2 * blocks).chain(u32::MAX - blocks..=u32::MAX)
}

#[repr(align(64))]
struct Ring([u8; 4 * BLOCK]);

fn writer(ring: &mut Ring, blocks: u32, block: u32) -> Writer {
    Writer { start: ring.0.as_mut_ptr().cast(), mask: blocks - 1, block, segments: 0 }
}

#[test]
fn every_segment_is_at_its_ring_offset() {
    for blocks in BLOCKS {
        let places = blocks as usize * SEGMENTS_PER_BLOCK;
        for block in counters(blocks) {
            let first = (block % blocks) as usize * SEGMENTS_PER_BLOCK;
            for count in 0..=places {
                let mut ring = Ring([0; _]);
                let mut writer = writer(&mut ring, blocks, block);
                for number in 0..count {
                    let at = (first + number) % places * SEGMENT;
                    assert_eq!(writer.at(number).addr() - writer.start.addr(), at, "{block:#x}");
                    writer.put([number as u64 + 1; 2]);
                    assert_eq!(writer.segments, number + 1);
                }
                for (number, segment) in ring.0.chunks_exact(SEGMENT).enumerate() {
                    let nth = (number + places - first % places) % places;
                    let written = number < places && nth < count;
                    let expected = if written { nth as u64 + 1 } else { 0 };
                    assert_eq!(segment[..8], expected.to_ne_bytes(), "{block:#x} {number}");
                    assert_eq!(segment[8..], expected.to_ne_bytes(), "{block:#x} {number}");
                }
            }
        }
    }
}

#[test]
fn every_copy_is_at_its_ring_offset_and_changes_nothing_else() {
    let source: [u8; 4 * BLOCK] = std::array::from_fn(|at| (at % 251) as u8 + 1);
    for blocks in BLOCKS {
        let bytes = blocks as usize * BLOCK;
        // Copies that start in the first block and have any length.
        for (block, at) in counters(blocks).flat_map(|block| (0..BLOCK.min(bytes)).map(move |at| (block, at)))
        {
            let begin = (block % blocks) as usize * BLOCK + at;
            for len in 0..=bytes - at {
                let mut ring = Ring([0; _]);
                writer(&mut ring, blocks, block).copy(at / SEGMENT, at % SEGMENT, &source[..len]);
                let mut expected = [0; 4 * BLOCK];
                let before_end = len.min(bytes - begin);
                expected[begin..begin + before_end].copy_from_slice(&source[..before_end]);
                expected[..len - before_end].copy_from_slice(&source[before_end..len]);
                assert!(ring.0 == expected, "{len} bytes at {at} of block {block:#x} of {blocks}");
            }
        }
    }
}
