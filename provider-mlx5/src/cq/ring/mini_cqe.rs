//! Compressed CQEs: a title CQE and arrays of mini CQEs.
//!
//! A run takes as many slots as it has completions. Its *title*, in the first slot, is a CQE but
//! for its byte count, which counts the run. An array of eight *mini CQEs*, which tell what each
//! completion has of its own, stands in the second slot, and one in every eighth. The poller writes
//! the CQEs out in the run's place when it comes to the title, so code that reads the ring
//! afterwards finds full CQEs only.

use std::sync::atomic::{AtomicU32, Ordering};

use bareverbs_provider::barrier;
use bareverbs_uapi::mlx5::CqeCompressionFormats;

use super::{COUNT, OWNER, Ring, counted, is_before};
use crate::cqe::{CQE, CqeOpcode};

/// In a CQE's last byte: its format, and that of a title.
const FORMAT: u8 = 3 << 2;
#[doc(alias = "MLX5_COMPRESSED")]
const COMPRESSED: u8 = 3 << 2;

/// Bytes of a mini CQE, and mini CQEs of an array.
const MINI_CQE: usize = 8;
const MINI_CQES_PER_ARRAY: u32 = (CQE / MINI_CQE) as u32;

/// Fields of a CQE, by their offsets.
const CHECK_SUM: usize = 20;
const BYTE_COUNT: usize = 44;
const OPCODE: usize = 56;
const WQE_COUNTER: usize = 60;
const OP_OWN: usize = 63;

/// The word with the request's number and `op_own`.
const LAST_WORD: usize = 60;

/// Most CQEs that a poller passes while an owner holds the lock of the retired queue pairs: at each
/// end of the ring it waits for the lock.
const PASSED: u32 = COUNT / 2;

/// The format of mini CQEs: what they hold beside the byte count.
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

/// Whether a CQE with this last byte is the title of a run.
#[inline]
pub(crate) fn is_title(op_own: u8) -> bool {
    op_own & FORMAT == COMPRESSED
}

/// The CQEs of a ring in words of 4 bytes, as threads access them while others may: by atomics of
/// this size. They are those of a ring's memory, or of a model's.
trait Words {
    /// Reads a word of a CQE. What is read afterwards is as it was when the word was stored, or
    /// later.
    fn load(&self, index: u32, offset: usize) -> u32;

    /// Writes a word of a CQE. Who reads it finds all that was stored before.
    fn store(&self, index: u32, offset: usize, word: u32);

    /// A whole CQE, for the poller, which alone writes CQEs.
    fn bytes(&self, index: u32) -> [u8; CQE];
}

impl Ring {
    fn word(&self, index: u32, offset: usize) -> &AtomicU32 {
        assert!(offset < CQE && offset.is_multiple_of(4), "a word of an entry");
        // SAFETY: an aligned word of the CQE, which lies in the ring as long as `self`. Threads
        // that access a CQE while another one may do so use atomics of this size: these. The
        // poller, which alone writes CQEs, reads its own in other ways too.
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

/// What a CQE says to another thread than the poller.
#[derive(Clone, Copy, Debug)]
struct Look {
    op_own: u8,
    /// The length of the run, if the CQE is a title.
    count: u32,
    /// Whether the poller wrote out a run there meanwhile, so that `count` may be the byte count of
    /// its first CQE.
    has_changed: bool,
}

impl Look {
    /// The poller stores the last word of a title before the count ([`Ring::expand_in`]). So where
    /// the last word is still the same after the count was read, the count is that of the title.
    fn at(words: &impl Words, index: u32) -> Self {
        let before = words.load(index, LAST_WORD);
        let count = words.load(index, BYTE_COUNT);
        let after = words.load(index, LAST_WORD);
        Self { op_own: u32::from_be(before) as u8, count: u32::from_be(count), has_changed: before != after }
    }
}

impl Ring {
    /// The first CQE that the device has not written, runs counted whole; `consumed` tells how far
    /// the poller has given CQEs back. Any thread may look. The poller may be writing runs out
    /// meanwhile, and taking and giving back CQEs, but at most [`PASSED`].
    pub(crate) fn first_unwritten(&self, consumed: impl Fn() -> u32) -> u32 {
        self.first_unwritten_by(|index| Look::at(self, index), consumed)
    }

    fn first_unwritten_by(&self, look: impl Fn(u32) -> Look, consumed: impl Fn() -> u32) -> u32 {
        let start = consumed();
        let mut end = start;
        loop {
            end = self.end_of_written(end, &look);
            // The device writes over CQEs that were given back: what looked unwritten may be of its
            // next round. So the poller's count is read again after the CQEs.
            barrier::after_device_wrote();
            let consumed = consumed();
            // The doorbell record is the device's to read. A count that runs away is that of a
            // device that writes it too.
            if !is_before(end, consumed) || end.wrapping_sub(start) > PASSED {
                return counted(end);
            }
            end = end.wrapping_add(counted(consumed.wrapping_sub(end)));
        }
    }

    /// Looks at each CQE twice at most, whatever the device writes meanwhile.
    fn end_of_written(&self, index: u32, look: impl Fn(u32) -> Look) -> u32 {
        let (mut end, mut looks_again) = (index, false);
        while end.wrapping_sub(index) < self.entries() {
            let Look { op_own, count, has_changed } = look(end);
            if !self.written(end, op_own) {
                break;
            }
            // The poller writes a run out once. A title that changes a second time is of a later
            // round, which the poller's count shows, or of a faulty device.
            looks_again = is_title(op_own) && has_changed && !looks_again;
            if !looks_again {
                let is_run = is_title(op_own) && !has_changed;
                let length = if is_run { self.run_length(count) } else { None };
                end = end.wrapping_add(length.unwrap_or(1));
            }
        }
        end
    }

    /// The length of a run whose title says `count`, if a run can be as long.
    fn run_length(&self, count: u32) -> Option<u32> {
        let longest = if self.mini_cqe_format.is_some() { self.entries() } else { 0 };
        (1..=longest).contains(&count).then_some(count)
    }

    /// Writes out the run whose title is CQE `index`; whether it is one.
    ///
    /// Only the poller may call it, or the only holder of the ring.
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
        // 1. The CQEs behind the title: a thread that finds the title gone finds them.
        for array in (0..count.div_ceil(MINI_CQES_PER_ARRAY)).rev().map(|array| array * MINI_CQES_PER_ARRAY) {
            // What the slot of an array has to be instead is written after the array was read.
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
        // 2. The title's last word. 3. The count: a thread that finds it changed finds the last
        //    word changed too.
        for offset in [LAST_WORD, BYTE_COUNT] {
            words.store(index, offset, word_of(&first, offset));
        }
        // 4. The rest, which only the poller reads.
        write(words, index, &first);
        true
    }
}

fn word_of(entry: &[u8; CQE], offset: usize) -> u32 {
    u32::from_ne_bytes([entry[offset], entry[offset + 1], entry[offset + 2], entry[offset + 3]])
}

/// Writes a CQE, the last word last.
fn write(words: &impl Words, index: u32, entry: &[u8; CQE]) {
    for offset in (0..CQE).step_by(4) {
        words.store(index, offset, word_of(entry, offset));
    }
}

impl MiniCqeFormat {
    /// The format that serves best, of those that a device has, and what it is called.
    pub(crate) fn best(formats: CqeCompressionFormats) -> Option<(Self, CqeCompressionFormats)> {
        [
            (Self::ChecksumStrideIndex, CqeCompressionFormats::CSUM_STRIDX),
            (Self::Checksum, CqeCompressionFormats::CSUM),
            (Self::Hash, CqeCompressionFormats::HASH),
        ]
        .into_iter()
        .find(|(_, format)| formats.contains(*format))
    }

    /// Makes `entry`, which is as the title, completion `number` of the run.
    fn write_fields(self, entry: &mut [u8; CQE], number: u16, mini: &[u8; MINI_CQE]) {
        let first = u16::from_be_bytes([entry[WQE_COUNTER], entry[WQE_COUNTER + 1]]);
        let sends = CqeOpcode(entry[OP_OWN] >> 4) == CqeOpcode::REQ;
        let counter = match self {
            // A send's mini begins with its number and its opcode, in any format.
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
