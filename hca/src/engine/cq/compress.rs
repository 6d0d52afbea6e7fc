//! CQE compression. A run of similar CQEs shares one title CQE. Each CQE keeps its differing fields
//! in a mini CQE of eight bytes (`struct mlx5_mini_cqe8` in `include/linux/mlx5/device.h`). The
//! kernel's reader is in drivers/net/ethernet/mellanox/mlx5/core/en_rx.c.
//!
//! A run occupies as many slots as it has CQEs. The first slot is the title. The second slot and
//! every eighth slot after it are arrays of eight mini CQEs. The driver fills in the other slots.

use super::CqeOpcode;
use crate::engine::layout::{cqe as field, mini_cqe};

/// Maximum length of a run, as the capabilities report it.
pub(crate) const LONGEST: usize = 64;
/// Mini CQEs per array.
const PER_ARRAY: usize = 8;
/// The CQE format of a title, `MLX5_COMPRESSED`.
const COMPRESSED: u8 = 3 << 2;

/// Contents of a mini CQE beside the byte count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MiniFormat {
    /// The RSS hash.
    Hash,
    /// The checksum.
    Checksum,
    /// The checksum and the WQE counter.
    ChecksumAndIndex,
}

/// A run that further CQEs may join.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) entries: Vec<[u8; 64]>,
}

impl Run {
    /// Whether a CQE can be compressed at all.
    pub(super) fn takes(entry: &[u8; 64]) -> bool {
        let opcode = entry[field::OP_OWN] >> 4;
        let received =
            opcode >= CqeOpcode::ReceiveWriteImmediate as u8 && opcode <= CqeOpcode::ReceiveInvalidate as u8;
        received && entry[field::OP_OWN] >> 2 & 3 == 0
    }

    /// Whether a CQE may join the run. It must equal the last CQE in all fields outside the mini
    /// CQE. Its WQE counter must follow the last one unless the mini CQE contains the counter.
    pub(super) fn continues(&self, entry: &[u8; 64], format: MiniFormat) -> bool {
        let Some(last) = self.entries.last() else { return true };
        let index =
            |entry: &[u8; 64]| u16::from_be_bytes([entry[field::WQE_COUNTER], entry[field::WQE_COUNTER + 1]]);
        let kept = |at: usize| {
            let checksum = (field::CHECK_SUM..field::CHECK_SUM + 2).contains(&at);
            let hash = (field::RSS_HASH_RESULT..field::RSS_HASH_RESULT + 4).contains(&at);
            (field::BYTE_CNT..field::TIMESTAMP_H + 8).contains(&at)
                || (field::WQE_COUNTER..field::WQE_COUNTER + 2).contains(&at)
                || if format == MiniFormat::Hash { hash } else { checksum }
        };
        let in_order = format == MiniFormat::ChecksumAndIndex || index(entry) == index(last).wrapping_add(1);
        in_order && (0..64).all(|at| kept(at) || entry[at] == last[at])
    }

    /// The title CQE without its owner bit.
    pub(super) fn title(&self) -> [u8; 64] {
        let mut title = self.entries[0];
        title[field::BYTE_CNT..field::BYTE_CNT + 4]
            .copy_from_slice(&(self.entries.len() as u32).to_be_bytes());
        title[field::OP_OWN] |= COMPRESSED;
        title
    }

    /// The mini CQE arrays, each with its slot relative to the title.
    pub(super) fn arrays(&self, format: MiniFormat) -> impl Iterator<Item = (u32, [u8; 64])> {
        self.entries.chunks(PER_ARRAY).enumerate().map(move |(number, entries)| {
            let mut array = [0; 64];
            for (mini, entry) in array.chunks_exact_mut(mini_cqe::SIZE).zip(entries) {
                match format {
                    MiniFormat::Hash => mini[mini_cqe::RX_HASH_RESULT..][..4]
                        .copy_from_slice(&entry[field::RSS_HASH_RESULT..][..4]),
                    MiniFormat::Checksum => {
                        mini[mini_cqe::CHECKSUM..][..2].copy_from_slice(&entry[field::CHECK_SUM..][..2])
                    }
                    MiniFormat::ChecksumAndIndex => {
                        mini[mini_cqe::CHECKSUM..][..2].copy_from_slice(&entry[field::CHECK_SUM..][..2]);
                        mini[mini_cqe::STRIDX..][..2].copy_from_slice(&entry[field::WQE_COUNTER..][..2]);
                    }
                }
                mini[mini_cqe::BYTE_CNT..].copy_from_slice(&entry[field::BYTE_CNT..][..4]);
            }
            (if number == 0 { 1 } else { (number * PER_ARRAY) as u32 }, array)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Completion, Cq, CqSetup, Moderation};
    use super::*;
    use crate::engine::Ring;
    use crate::memory::DmaMap;
    use proptest::prelude::*;

    const LOG_SIZE: u8 = 7;

    /// Decompresses the CQ as the kernel's Ethernet driver does.
    fn decompress(memory: &DmaMap, consumer: &mut u32) -> Vec<[u8; 64]> {
        let slot = |at: u32| {
            let mut entry = [0; 64];
            memory.read(u64::from(at & 0x7f) * 64, &mut entry).unwrap();
            entry
        };
        let title = slot(*consumer);
        if title[63] >> 2 & 3 != 3 {
            *consumer += 1;
            return vec![title];
        }
        let count = u32::from_be_bytes(title[44..48].try_into().unwrap());
        let first = u16::from_be_bytes([title[60], title[61]]);
        let mut array = slot(*consumer + 1);
        let entries = (0..count).map(|index| {
            if index > 0 && index % 8 == 0 {
                array = slot(*consumer + index);
            }
            let mini = &array[(index % 8) as usize * 8..][..8];
            let mut entry = title;
            entry[20..22].copy_from_slice(&mini[..2]);
            entry[44..48].copy_from_slice(&mini[4..]);
            entry[60..62].copy_from_slice(&first.wrapping_add(index as u16).to_be_bytes());
            entry[63] &= 0xf0;
            entry
        });
        let entries = entries.collect();
        *consumer += count;
        entries
    }

    proptest! {
        #[test]
        fn compressed_cqes_round_trip(
            lengths in proptest::collection::vec((any::<u32>(), any::<u16>(), 0u8..20, 0u8..30), 1..128),
        ) {
            let mut memory = DmaMap::new();
            memory.map_zeroed(0, 0x4000).unwrap();
            let ring = Ring::new(vec![0, 0x1000], 12, 0, 64 << LOG_SIZE).unwrap();
            let setup = CqSetup { ring, log_size: LOG_SIZE, doorbell: 0x2000, compression: Some(MiniFormat::Checksum), ..CqSetup::default() };
            let mut cq = Cq::new(setup, Moderation::default());
            let mut expected = Vec::new();
            for (index, (byte_count, checksum, odd, pause)) in lengths.into_iter().enumerate() {
                let opcode = if odd == 0 { CqeOpcode::Requester } else { CqeOpcode::Receive };
                let completion = Completion { byte_count, checksum, ..Completion::new(opcode, 7, 9, index as u16) };
                cq.post(&memory, 5, &completion);
                expected.push((opcode as u8, byte_count, checksum, index as u16));
                if pause == 0 {
                    cq.end_run(&memory, 5);
                }
            }
            cq.end_run(&memory, 5);
            prop_assert_eq!(cq.producer as usize, expected.len());
            let (mut consumer, mut read) = (0, Vec::new());
            while consumer < cq.producer {
                read.extend(decompress(&memory, &mut consumer).iter().map(|entry| {
                    let half = |at: usize| u16::from_be_bytes([entry[at], entry[at + 1]]);
                    (entry[63] >> 4, u32::from_be_bytes(entry[44..48].try_into().unwrap()), half(20), half(60))
                }));
            }
            prop_assert_eq!(read, expected);
        }
    }

    #[test]
    fn single_cqe_is_not_compressed() {
        let mut memory = DmaMap::new();
        memory.map_zeroed(0, 0x4000).unwrap();
        let ring = Ring::new(vec![0, 0x1000], 12, 0, 64 << LOG_SIZE).unwrap();
        let compression = Some(MiniFormat::Hash);
        let setup = CqSetup { ring, log_size: LOG_SIZE, compression, ..CqSetup::default() };
        let mut cq = Cq::new(setup, Moderation::default());
        cq.post(&memory, 0, &Completion::new(CqeOpcode::Receive, 1, 1, 0));
        assert_eq!(cq.producer, 0, "held until the run ends");
        cq.end_run(&memory, 0);
        let mut last = [0];
        memory.read(63, &mut last).unwrap();
        assert_eq!((cq.producer, last[0]), (1, 2 << 4));
    }
}
