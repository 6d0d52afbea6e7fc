//! Compressed CQEs: a title CQE and arrays of mini CQEs.
//!
//! A run of n compressed completions takes n slots of the ring. Slot 0 of the run contains the
//! *title* CQE, whose byte count is n. Slots 1, 8, 16 and so on each contain an array of eight
//! *mini CQEs*. A mini CQE contains the fields that differ between the completions.
//!
//! The poller expands a run in place when it reaches the title, so later code only finds full CQEs.

use std::sync::atomic::{AtomicU32, Ordering};

use bareverbs_provider::barrier;
use bareverbs_uapi::mlx5::CqeCompressionFormats;

use super::{COUNT, OWNER, Ring, counted, is_before};
use crate::cqe::{CQE, CqeOpcode};

/// The format bits of `op_own`, and their value in a title CQE.
const FORMAT: u8 = 3 << 2;
#[doc(alias = "MLX5_COMPRESSED")]
const COMPRESSED: u8 = 3 << 2;

/// Bytes of a mini CQE, and mini CQEs per array.
const MINI_CQE: usize = 8;
const MINI_CQES_PER_ARRAY: u32 = (CQE / MINI_CQE) as u32;

/// Byte offsets of CQE fields.
const CHECK_SUM: usize = 20;
const BYTE_COUNT: usize = 44;
const OPCODE: usize = 56;
const WQE_COUNTER: usize = 60;
const OP_OWN: usize = 63;

/// The word that contains the WQE counter and `op_own`.
const LAST_WORD: usize = 60;

/// The maximum number of CQEs that a poller passes while an owner holds the lock of the retired
/// queue pairs. The poller waits for the lock at the end of the ring.
const MAX_COUNTED: u32 = COUNT / 2;

/// The format of mini CQEs: the fields besides the byte count.
#[doc(alias = "mlx5_mini_cqe8")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MiniCqeFormat {
    /// RX hash, which is ignored; WQE counters are consecutive.
    Hash,
    /// Checksum; WQE counters are consecutive.
    Checksum,
    /// Checksum and WQE counter.
    ChecksumStrideIndex,
}

/// Whether a CQE with this `op_own` is a title CQE.
#[inline]
pub(crate) fn is_title(op_own: u8) -> bool {
    op_own & FORMAT == COMPRESSED
}

/// The CQEs of a ring as words of 4 bytes. Threads access CQEs that another thread may access by
/// atomics of this size. `Ring` implements it, and so does a model.
trait Words {
    /// Reads a word of a CQE with acquire ordering.
    fn load(&self, index: u32, offset: usize) -> u32;

    /// Writes a word of a CQE with release ordering.
    fn store(&self, index: u32, offset: usize, word: u32);

    /// Reads a whole CQE. Only the poller may call it, because only the poller writes CQEs.
    fn bytes(&self, index: u32) -> [u8; CQE];
}

impl Ring {
    fn word(&self, index: u32, offset: usize) -> &AtomicU32 {
        assert!(offset < CQE && offset.is_multiple_of(4), "a word of an entry");
        // SAFETY: an aligned word of the CQE, which lies in the ring and is valid as long as
        // `self`. Threads that access a CQE concurrently use atomics of this size only. The poller,
        // which is the only writer, also reads its CQEs by other accesses.
        unsafe { &*self.at(index).add(offset).cast() }
    }
}

impl Words for Ring {
    fn load(&self, index: u32, offset: usize) -> u32 {
        self.word(index, offset).load(Ordering::Acquire)
    }

    fn store(&self, index: u32, offset: usize, word: u32) {
        self.word(index, offset).store(word, Ordering::Release);
    }

    fn bytes(&self, index: u32) -> [u8; CQE] {
        self.entry(index).bytes()
    }
}

/// The fields of a CQE as a thread other than the poller reads them.
#[derive(Clone, Copy, Debug)]
struct CqeHeader {
    op_own: u8,
    /// The number of completions, if the CQE is a title.
    count: u32,
    /// Whether the poller expanded the run in between. `count` may be the byte count of the first
    /// CQE then.
    has_changed: bool,
}

impl CqeHeader {
    /// The poller stores the last word of a title before the count ([`Ring::expand_in`]). So if the
    /// last word is unchanged after the count was read, the count is that of the title.
    fn at(words: &impl Words, index: u32) -> Self {
        let before = words.load(index, LAST_WORD);
        let count = words.load(index, BYTE_COUNT);
        let after = words.load(index, LAST_WORD);
        Self { op_own: u32::from_be(before) as u8, count: u32::from_be(count), has_changed: before != after }
    }
}

impl Ring {
    /// The index of the first CQE that the device has not written. A run counts as a whole.
    /// `consumed` reads the consumer index in the doorbell record.
    ///
    /// Any thread may call it. The poller may expand runs, poll and release CQEs concurrently, but
    /// at most [`MAX_COUNTED`] CQEs.
    pub(crate) fn first_unwritten(&self, consumed: impl Fn() -> u32) -> u32 {
        self.first_unwritten_by(|index| CqeHeader::at(self, index), consumed)
    }

    fn first_unwritten_by(&self, look: impl Fn(u32) -> CqeHeader, consumed: impl Fn() -> u32) -> u32 {
        let start = consumed();
        let mut end = start;
        loop {
            end = self.end_of_written(end, &look);
            // The device overwrites CQEs that were released, so a CQE may seem unwritten because it
            // belongs to the next round. For that reason the consumer index is read again after the
            // CQEs.
            barrier::after_device_wrote();
            let consumed = consumed();
            // Only a faulty device writes to the doorbell record. A consumer index that keeps
            // growing is the sign of it.
            if !is_before(end, consumed) || end.wrapping_sub(start) > MAX_COUNTED {
                return counted(end);
            }
            end = end.wrapping_add(counted(consumed.wrapping_sub(end)));
        }
    }

    /// Reads each CQE once at most, whatever the device writes concurrently.
    fn end_of_written(&self, index: u32, look: impl Fn(u32) -> CqeHeader) -> u32 {
        let mut end = index;
        while end.wrapping_sub(index) < self.entries() {
            let CqeHeader { op_own, count, has_changed } = look(end);
            if !self.written(end, op_own) {
                break;
            }
            // A title that changed is expanded, and so are the CQEs behind it: each counts as one.
            let is_run = is_title(op_own) && !has_changed;
            let length = if is_run { self.run_length(count) } else { None };
            end = end.wrapping_add(length.unwrap_or(1));
        }
        end
    }

    /// The length of a run whose title has this `count`; `None` if it is out of range.
    fn run_length(&self, count: u32) -> Option<u32> {
        let longest = if self.mini_cqe_format.is_some() { self.entries() } else { 0 };
        (1..=longest).contains(&count).then_some(count)
    }

    /// Expands the run whose title is CQE `index`; `false` if that CQE is not a valid title.
    ///
    /// Only the poller may call it, or the only owner of the ring.
    pub(crate) fn expand(&self, index: u32) -> bool {
        self.expand_in(self, index)
    }

    fn expand_in(&self, words: &impl Words, index: u32) -> bool {
        let title = words.bytes(index);
        let count = u32::from_be_bytes([title[44], title[45], title[46], title[47]]);
        let (Some(format), Some(count)) = (self.mini_cqe_format, self.run_length(count)) else {
            return false;
        };
        let mut first = title;
        // 1. The CQEs after the title. A thread that finds the title changed also finds these CQEs.
        for array in (0..count.div_ceil(MINI_CQES_PER_ARRAY)).rev().map(|array| array * MINI_CQES_PER_ARRAY) {
            // The slot of the array gets its own CQE only after the array was read.
            let bytes = if count == 1 { [0; CQE] } else { words.bytes(index.wrapping_add(array.max(1))) };
            let (chunks, _) = bytes.as_chunks::<MINI_CQE>();
            for (number, mini) in (array..count).zip(chunks).rev() {
                let mut entry = title;
                format.write_fields(&mut entry, number as u16, mini);
                let at = index.wrapping_add(number);
                entry[OP_OWN] = title[OP_OWN] & !(FORMAT | OWNER) | self.owner(at);
                if number == 0 {
                    first = entry;
                } else {
                    write(words, at, &entry);
                }
            }
        }
        // 2. The last word of the title. 3. The count. A thread that finds the count changed also
        //    finds the last word changed.
        for offset in [LAST_WORD, BYTE_COUNT] {
            words.store(index, offset, word_of(&first, offset));
        }
        // 4. The other words, which only the poller reads.
        write(words, index, &first);
        true
    }
}

fn word_of(entry: &[u8; CQE], offset: usize) -> u32 {
    u32::from_ne_bytes([entry[offset], entry[offset + 1], entry[offset + 2], entry[offset + 3]])
}

/// Writes a CQE in ascending order of words, so the last word is written last.
fn write(words: &impl Words, index: u32, entry: &[u8; CQE]) {
    for offset in (0..CQE).step_by(4) {
        words.store(index, offset, word_of(entry, offset));
    }
}

impl MiniCqeFormat {
    /// The best of the formats that a device supports, and its ABI value.
    pub(crate) fn best(formats: CqeCompressionFormats) -> Option<(Self, CqeCompressionFormats)> {
        [
            (Self::ChecksumStrideIndex, CqeCompressionFormats::CSUM_STRIDX),
            (Self::Checksum, CqeCompressionFormats::CSUM),
            (Self::Hash, CqeCompressionFormats::HASH),
        ]
        .into_iter()
        .find(|(_, format)| formats.contains(*format))
    }

    /// Writes the fields of completion `number` of the run to `entry`, a copy of the title.
    fn write_fields(self, entry: &mut [u8; CQE], number: u16, mini: &[u8; MINI_CQE]) {
        let first = u16::from_be_bytes([entry[WQE_COUNTER], entry[WQE_COUNTER + 1]]);
        let sends = CqeOpcode(entry[OP_OWN] >> 4) == CqeOpcode::REQ;
        let counter = match self {
            // The mini CQE of a send begins with the WQE counter and the opcode, in every format.
            _ if sends => {
                entry[OPCODE] = mini[2];
                u16::from_be_bytes([mini[0], mini[1]])
            }
            Self::ChecksumStrideIndex => u16::from_be_bytes([mini[2], mini[3]]),
            Self::Hash | Self::Checksum => first.wrapping_add(number),
        };
        if !sends && self != Self::Hash {
            entry[CHECK_SUM..CHECK_SUM + 2].copy_from_slice(&mini[..2]);
        }
        entry[WQE_COUNTER..WQE_COUNTER + 2].copy_from_slice(&counter.to_be_bytes());
        entry[BYTE_COUNT..BYTE_COUNT + 4].copy_from_slice(&mini[4..]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_models;
