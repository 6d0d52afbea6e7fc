//! The data of `--verify`: a pattern for each message, and the comparison.

use std::ops::Range;

use anyhow::Result;

use super::memory::Memory;

/// XORed with the number of a message, so that memory of zeros is no message.
const MARK: u64 = 0xb5ad_4ece_da1c_e2a9;
/// Bytes of the number at the start of a message.
const NUMBER: usize = 8;
/// Distance from the next message, in both directions, above which a number counts as corrupt.
const GAP: u64 = 1 << 20;

/// The data of a message: its number, then words that depend on the queue pair and the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    number: u64,
    seed: u64,
}

impl Pattern {
    /// The pattern of message `number` of the queue pair with this index.
    pub(crate) fn new(queue_pair: u32, number: u64) -> Self {
        let seed = scramble(number ^ u64::from(queue_pair) << 40);
        Self { number, seed }
    }

    pub(crate) fn fill(self, bytes: &mut [u8]) {
        let mut word = self.number ^ MARK;
        let mut next = self.seed;
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
            (word, next) = (next, next.wrapping_add(STEP));
        }
    }
}

/// Odd, so that the words of a message differ from each other.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of splitmix64.
fn scramble(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// The number of the message that `bytes` begin with, if it is near `next`. A later one follows lost
/// messages. An earlier one is late or repeated. Short messages have only the low bytes of their number.
pub(crate) fn number_of(bytes: &[u8], next: u64) -> u64 {
    let known = bytes.len().min(NUMBER);
    let mut low = [0; NUMBER];
    low[..known].copy_from_slice(&bytes[..known]);
    let unknown = (64 - 8 * known as u32).min(63);
    // The sign of the distance is that of its known bytes.
    let distance = (((u64::from_le_bytes(low) ^ MARK).wrapping_sub(next) << unknown) as i64) >> unknown;
    match next.checked_add_signed(distance) {
        Some(number) if distance.unsigned_abs() <= GAP => number,
        _ => next,
    }
}

/// Data that differs from what was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "corrupt data ({what}): byte {offset} of message {number} of queue pair {queue_pair} is {found:#04x} \
     instead of {expected:#04x}; {differences} of its {size} bytes differ"
)]
pub(crate) struct Mismatch {
    /// Where the data was found.
    what: &'static str,
    queue_pair: u32,
    number: u64,
    offset: usize,
    expected: u8,
    found: u8,
    differences: usize,
    size: usize,
}

/// A place in the memory of an endpoint: the data of a message.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Where the data was found, for the error message.
    pub(crate) what: &'static str,
    pub(crate) queue_pair: u32,
    pub(crate) bytes: Range<usize>,
}

/// Writes and compares the data of messages.
#[derive(Debug, Default)]
pub(crate) struct Verifier {
    expected: Vec<u8>,
    found: Vec<u8>,
    /// Messages that were compared.
    pub(crate) compared: u64,
}

impl Verifier {
    /// Writes the data of a message, and returns it.
    pub(crate) fn fill(
        &mut self,
        memory: &mut Memory,
        bytes: Range<usize>,
        pattern: Pattern,
    ) -> Result<&[u8]> {
        self.expected.resize(bytes.len(), 0);
        pattern.fill(&mut self.expected);
        memory.write(bytes.start, &self.expected)?;
        Ok(&self.expected)
    }

    /// Writes the complement of a message, which a read has to replace.
    pub(crate) fn spoil(&mut self, memory: &mut Memory, bytes: Range<usize>, pattern: Pattern) -> Result<()> {
        self.expected.resize(bytes.len(), 0);
        pattern.fill(&mut self.expected);
        self.expected.iter_mut().for_each(|byte| *byte = !*byte);
        memory.write(bytes.start, &self.expected)
    }

    /// Compares a message with its pattern.
    pub(crate) fn compare(&mut self, memory: &Memory, place: &Place, number: u64) -> Result<()> {
        self.found.resize(place.bytes.len(), 0);
        memory.read(place.bytes.start, &mut self.found)?;
        self.compared += 1;
        Ok(self.check(place, number)?)
    }

    /// Compares a message of a transport that may lose messages, or deliver them late or twice. Returns
    /// the number after the last message so far; `next` is that before this message.
    pub(crate) fn compare_unreliable(&mut self, memory: &Memory, place: &Place, next: u64) -> Result<u64> {
        self.found.resize(place.bytes.len(), 0);
        memory.read(place.bytes.start, &mut self.found)?;
        self.compared += 1;
        let number = number_of(&self.found, next);
        self.check(place, number)?;
        Ok(next.max(number + 1))
    }

    fn check(&mut self, place: &Place, number: u64) -> Result<(), Mismatch> {
        self.expected.resize(self.found.len(), 0);
        Pattern::new(place.queue_pair, number).fill(&mut self.expected);
        if self.found == self.expected {
            return Ok(());
        }
        Err(self.mismatch(place, number))
    }

    #[cold]
    fn mismatch(&self, place: &Place, number: u64) -> Mismatch {
        let pairs = || self.expected.iter().zip(&self.found).enumerate();
        let (offset, (&expected, &found)) =
            pairs().find(|(_, (expected, found))| expected != found).expect("the data differs");
        Mismatch {
            what: place.what,
            queue_pair: place.queue_pair,
            number,
            offset,
            expected,
            found,
            differences: pairs().filter(|(_, (expected, found))| expected != found).count(),
            size: self.found.len(),
        }
    }

    /// Compares the counter of an atomic operation with its expected value.
    pub(crate) fn compare_counter(
        &mut self,
        memory: &Memory,
        place: &Place,
        number: u64,
        expected: u64,
    ) -> Result<()> {
        self.found.resize(NUMBER, 0);
        memory.read(place.bytes.start, &mut self.found)?;
        self.compared += 1;
        self.expected.clear();
        self.expected.extend_from_slice(&expected.to_ne_bytes());
        if self.found == self.expected { Ok(()) } else { Err(self.mismatch(place, number).into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(queue_pair: u32, number: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        Pattern::new(queue_pair, number).fill(&mut bytes);
        bytes
    }

    fn compare(found: Vec<u8>, queue_pair: u32, number: u64) -> Result<(), Mismatch> {
        let place = Place { what: "received", queue_pair, bytes: 0..found.len() };
        Verifier { found, ..Verifier::default() }.check(&place, number)
    }

    #[test]
    fn corrupt_byte_is_named_with_offset_and_values() {
        let mut bytes = message(3, 7, 64);
        bytes[41] ^= 0x10;
        let (expected, found) = (bytes[41] ^ 0x10, bytes[41]);
        let text = compare(bytes, 3, 7).unwrap_err().to_string();
        let words =
            format!("byte 41 of message 7 of queue pair 3 is {found:#04x} instead of {expected:#04x}");
        assert!(text.contains(&words), "{text}");
        assert!(text.contains("1 of its 64 bytes differ"), "{text}");
    }

    proptest! {
        #[test]
        fn any_corrupt_byte_is_found(
            queue_pair in 0..20_000u32, number in 0..1u64 << 40, size in 1..300usize, at: usize, flip in 1..=255u8,
        ) {
            let mut bytes = message(queue_pair, number, size);
            prop_assert_eq!(compare(bytes.clone(), queue_pair, number), Ok(()));
            let at = at % size;
            bytes[at] ^= flip;
            let mismatch = compare(bytes, queue_pair, number).unwrap_err();
            prop_assert_eq!((mismatch.offset, mismatch.differences), (at, 1));
        }

        #[test]
        fn messages_of_another_number_or_queue_pair_differ(
            queue_pair in 0..20_000u32, number in 0..1u64 << 40, size in 16..300usize, other in 1..1000u64,
        ) {
            let bytes = message(queue_pair, number, size);
            prop_assert!(compare(bytes.clone(), queue_pair, number + other).is_err());
            prop_assert!(compare(bytes, queue_pair + other as u32, number).is_err());
        }

        #[test]
        fn numbers_are_found_after_lost_messages(next in 0..1u64 << 40, lost in 0..GAP, size in 8..64usize) {
            prop_assert_eq!(number_of(&message(0, next + lost, size), next), next + lost);
        }

        #[test]
        fn numbers_of_late_and_repeated_messages_are_found(
            next in 0..1u64 << 40, late in 1..=GAP, size in 8..64usize,
        ) {
            let number = next.saturating_sub(late);
            prop_assert_eq!(number_of(&message(0, number, size), next), number);
        }

        #[test]
        fn numbers_far_from_the_next_message_are_corrupt(next in 0..1u64 << 40, far in GAP + 1..1 << 50) {
            for number in [next.wrapping_add(far), next.wrapping_sub(far)] {
                prop_assert_eq!(number_of(&message(0, number, 64), next), next);
                prop_assert!(compare(message(0, number, 64), 0, next).is_err());
            }
        }

        #[test]
        fn short_messages_have_the_low_bytes_of_their_number(
            next in 128..1u64 << 40, distance in -128..128i64, size in 1..8usize,
        ) {
            let number = next.checked_add_signed(distance).unwrap();
            prop_assert_eq!(number_of(&message(0, number, size), next), number);
        }
    }
}
