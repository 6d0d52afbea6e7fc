//! Runs of completions that the device has compressed.
//!
//! A run takes as many slots as it has completions. Its *title*, in the first slot, is an entry but for its byte count,
//! which counts the run. An array of eight *minis*, which tell what each completion has of its own, stands in the second
//! slot, and one in every eighth. The poller writes the entries out in the run's place when it comes to the title, so
//! whoever takes or looks for entries afterwards finds nothing else.

use std::sync::atomic::{AtomicU32, Ordering};

use bareverbs_provider::barrier;
use bareverbs_uapi::mlx5::CqeCompressionFormats;

use super::ring::{OWNER, Ring, counted, is_before};
use crate::cqe::{CQE, CqeOpcode};

/// In an entry's last byte: its format, and that of a title.
const FORMAT: u8 = 3 << 2;
#[doc(alias = "MLX5_COMPRESSED")]
const COMPRESSED: u8 = 3 << 2;

/// Bytes of a mini, and minis of an array.
const MINI: usize = 8;
const PER_ARRAY: u32 = (CQE / MINI) as u32;

/// Fields of an entry, by their offsets.
const CHECK_SUM: usize = 20;
const BYTE_COUNT: usize = 44;
const OPCODE: usize = 56;
const WQE_COUNTER: usize = 60;
const OP_OWN: usize = 63;

/// What minis tell of receives beside the byte count.
#[doc(alias = "mlx5_mini_cqe8")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Minis {
    /// Nothing that verbs ask for; the requests' numbers follow each other.
    InOrder,
    /// The checksum; the same.
    Checksum,
    /// The checksum and the request's number.
    ChecksumAndNumber,
}

/// Whether an entry with this last byte is the title of a run.
#[inline]
pub(super) fn is_title(op_own: u8) -> bool {
    op_own & FORMAT == COMPRESSED
}

fn load(word: &AtomicU32) -> u32 {
    word.load(Ordering::Acquire)
}

fn store(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Release);
}

impl Ring {
    /// The words of an entry that say whether it is a title, and how long its run is.
    fn title_words(&self, index: u32) -> (&AtomicU32, &AtomicU32) {
        let entry = self.at(index);
        // SAFETY: both are aligned words of the entry, which lies in the ring as long as `self`. Threads that access an
        // entry while another one may do so use atomics of this size: here. The poller, which alone writes entries, reads
        // its own in other ways too.
        unsafe { (&*entry.add(WQE_COUNTER).cast(), &*entry.add(BYTE_COUNT).cast()) }
    }

    /// The first entry that the device has not written, runs counted whole; `consumed` tells how far the poller has given
    /// entries back. Any thread may look. The poller may be writing runs out meanwhile, and taking and giving back entries.
    pub(super) fn first_unwritten(&self, consumed: impl Fn() -> u32) -> u32 {
        let mut end = consumed();
        loop {
            end = self.end_of_written(end);
            barrier::after_device_wrote();
            // The device writes over entries that were given back: what looked unwritten may be of its next round.
            let consumed = consumed();
            if !is_before(end, consumed) {
                return counted(end);
            }
            end = consumed;
        }
    }

    fn end_of_written(&self, index: u32) -> u32 {
        let mut end = index;
        while end.wrapping_sub(index) < self.entries() {
            let (last, count) = self.title_words(end);
            let (before, count, after) = (load(last), load(count), load(last));
            let op_own = u32::from_be(before) as u8;
            if !self.written(end, op_own) {
                break;
            }
            if !is_title(op_own) {
                end = end.wrapping_add(1);
            } else if before == after {
                end = end.wrapping_add(self.run_length(u32::from_be(count)).unwrap_or(1));
            }
        }
        end
    }

    /// The length of a run whose title says `count`, if a run can be as long.
    fn run_length(&self, count: u32) -> Option<u32> {
        let longest = if self.minis.is_some() { self.entries() } else { 0 };
        (1..=longest).contains(&count).then_some(count)
    }

    /// Writes out the run whose title is entry `index`; whether it is one.
    ///
    /// Only the poller may, or nobody else may have the ring.
    pub(super) fn expand(&self, index: u32) -> bool {
        let title = self.entry(index).bytes();
        let count = u32::from_be_bytes([title[44], title[45], title[46], title[47]]);
        let (Some(minis), Some(count)) = (self.minis, self.run_length(count)) else { return false };
        let mut first = title;
        for array in (0..count.div_ceil(PER_ARRAY)).rev().map(|array| array * PER_ARRAY) {
            // What the slot of an array has to be instead is written after the array was read.
            let bytes =
                if count == 1 { [0; CQE] } else { self.entry(index.wrapping_add(array.max(1))).bytes() };
            let (chunks, _) = bytes.as_chunks::<MINI>();
            for (number, mini) in (array..count).zip(chunks).rev() {
                let mut entry = title;
                minis.fill_in(&mut entry, number as u16, mini);
                let at = index.wrapping_add(number);
                entry[OP_OWN] = title[OP_OWN] & !(FORMAT | OWNER) | self.owner(at);
                if number == 0 {
                    first = entry;
                } else {
                    self.write(at, &entry);
                }
            }
        }
        let word = |at: usize| u32::from_ne_bytes([first[at], first[at + 1], first[at + 2], first[at + 3]]);
        let (last, bytes) = self.title_words(index);
        // A thread that finds the count changed finds the title changed too.
        store(last, word(WQE_COUNTER));
        store(bytes, word(BYTE_COUNT));
        self.write(index, &first);
        true
    }

    /// Writes an entry in words, the last word last.
    fn write(&self, index: u32, entry: &[u8; CQE]) {
        let to = self.at(index).cast::<AtomicU32>();
        let (words, _) = entry.as_chunks::<4>();
        for (at, word) in words.iter().enumerate() {
            // SAFETY: within the entry, which is aligned to 64.
            store(unsafe { &*to.add(at) }, u32::from_ne_bytes(*word));
        }
    }
}

impl Minis {
    /// The format that serves best, of those that a device has, and what it is called.
    pub(crate) fn best(formats: CqeCompressionFormats) -> Option<(Self, CqeCompressionFormats)> {
        [
            (Self::ChecksumAndNumber, CqeCompressionFormats::CSUM_STRIDX),
            (Self::Checksum, CqeCompressionFormats::CSUM),
            (Self::InOrder, CqeCompressionFormats::HASH),
        ]
        .into_iter()
        .find(|(_, format)| formats.contains(*format))
    }

    /// Makes `entry`, which is as the title, completion `number` of the run.
    fn fill_in(self, entry: &mut [u8; CQE], number: u16, mini: &[u8; MINI]) {
        let first = u16::from_be_bytes([entry[WQE_COUNTER], entry[WQE_COUNTER + 1]]);
        let sends = CqeOpcode(entry[OP_OWN] >> 4) == CqeOpcode::REQ;
        let counter = match self {
            // A send's mini begins with its number and its opcode, in any format.
            _ if sends => {
                entry[OPCODE] = mini[2];
                u16::from_be_bytes([mini[0], mini[1]])
            }
            Self::ChecksumAndNumber => u16::from_be_bytes([mini[2], mini[3]]),
            Self::InOrder | Self::Checksum => first.wrapping_add(number),
        };
        if !sends && self != Self::InOrder {
            entry[CHECK_SUM..CHECK_SUM + 2].copy_from_slice(&mini[..2]);
        }
        entry[WQE_COUNTER..WQE_COUNTER + 2].copy_from_slice(&counter.to_be_bytes());
        entry[BYTE_COUNT..BYTE_COUNT + 4].copy_from_slice(&mini[4..]);
    }
}
