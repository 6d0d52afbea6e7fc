//! Data of the messages with `-c`: generation and check.
//!
//! Each message differs from all others: its bytes are computed from the sending side, the message
//! number and the offset. The check adds nothing to the wire protocol. The kind of peer is
//! recognised by its data:
//!
//! - `bareverbs` with `-c` sends its own pattern.
//! - `ibv_rc_pingpong`, and `bareverbs` without `-c`, send and receive through the same memory. The
//!   peer then echoes this side's pattern, which is checked in full too.
//!
//! The client's last message has zeros at the starts of pages, because the C server expects them
//! there when it checks. The first message of an echoing client is the initial content of its
//! memory: 0x7b everywhere, or zeros at the starts of pages.
//!
//! Queue pairs on a shared receive queue share their memory as well, so a C peer echoes a mixture
//! of the latest messages. All messages of a side are therefore equal in that case, and the memory
//! of a receive is overwritten with wrong data before it is posted.

use crate::session::Role;

/// The initial memory content of the C programs for one queue pair. The C programs for several
/// queue pairs start with zeros.
pub(crate) const FILL: u8 = 0x7b;
/// The smallest page size. Page starts of any peer are multiples of it.
const PAGE: usize = 4096;

/// The origin of the peer's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// The peer's own pattern.
    Pattern,
    /// The data that was sent to it.
    Echo,
}

/// A received byte that differs from the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "wrong data in message {message} from the peer: byte {offset} of {size} is {found:#04x} instead of {expected:#04x}"
)]
pub(crate) struct WrongData {
    pub(crate) message: u64,
    pub(crate) offset: usize,
    pub(crate) size: usize,
    pub(crate) expected: u8,
    pub(crate) found: u8,
}

/// How the messages of a side differ from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Each message differs from all others. The run has this many messages.
    Distinct(u64),
    /// All messages are equal.
    Identical,
}

/// Generates this side's messages and checks the peer's.
#[derive(Debug)]
pub(crate) struct Checker {
    side: Role,
    scheme: Scheme,
    source: Option<Source>,
    checked: u64,
    expected: Vec<u8>,
}

impl Checker {
    /// Creates a checker of messages with the length of `expected`, which is also the work buffer.
    pub(crate) fn new(side: Role, scheme: Scheme, expected: Vec<u8>) -> Self {
        Self { side, scheme, source: None, checked: 0, expected }
    }

    /// The number of messages that passed the check.
    pub(crate) fn checked(&self) -> u64 {
        self.checked
    }

    /// The origin of the peer's data; `None` while no message has determined it.
    pub(crate) fn source(&self) -> Option<Source> {
        self.source
    }

    /// Writes this side's message number `message` (from 0) of a queue pair.
    pub(crate) fn fill(&self, message: u64, bytes: &mut [u8]) {
        pattern(self.side, self.scheme, message, bytes);
    }

    /// Checks the peer's message number `message` (from 0) of a queue pair, every byte.
    pub(crate) fn verify(&mut self, message: u64, bytes: &[u8]) -> Result<(), WrongData> {
        let verdict = match self.source {
            Some(source) => self.compare(source, message, bytes),
            None => match (
                self.compare(Source::Pattern, message, bytes),
                self.compare(Source::Echo, message, bytes),
            ) {
                // The messages are too short to distinguish the two.
                (Ok(()), Ok(())) => Ok(()),
                (Ok(()), Err(_)) => {
                    self.source = Some(Source::Pattern);
                    Ok(())
                }
                (Err(_), Ok(())) => {
                    // The first content of the client's memory means that it echoes, whatever this
                    // side sends.
                    self.source = Some(Source::Echo);
                    Ok(())
                }
                (Err(one), Err(other)) => Err(if other.offset > one.offset { other } else { one }),
            },
        };
        self.checked += u64::from(verdict.is_ok());
        verdict
    }

    fn compare(&mut self, source: Source, message: u64, bytes: &[u8]) -> Result<(), WrongData> {
        let echoed = match self.side {
            Role::Client => Some(message),
            Role::Server => message.checked_sub(1),
        };
        match (source, echoed) {
            (Source::Pattern, _) => pattern(self.side.other(), self.scheme, message, &mut self.expected),
            (Source::Echo, Some(own)) => pattern(self.side, self.scheme, own, &mut self.expected),
            (Source::Echo, None) => self.expect_first_echo(bytes),
        }
        if self.expected == bytes {
            return Ok(());
        }
        let differs = self.expected.iter().zip(bytes).position(|(expected, found)| expected != found);
        // A message of another length fails before its content is compared.
        let offset = differs.unwrap_or_else(|| self.expected.len().min(bytes.len()).saturating_sub(1));
        Err(WrongData {
            message,
            offset,
            size: self.expected.len(),
            expected: self.expected[offset],
            found: bytes[offset],
        })
    }

    /// Sets `expected` to the memory of an echoing client before this side's first message has
    /// arrived, or while it arrives at another queue pair.
    fn expect_first_echo(&mut self, bytes: &[u8]) {
        let step = match self.scheme {
            Scheme::Distinct(_) => {
                self.expected.fill(FILL);
                PAGE
            }
            Scheme::Identical => {
                pattern(self.side, self.scheme, 0, &mut self.expected);
                1
            }
        };
        for (expected, _) in
            self.expected.iter_mut().zip(bytes).step_by(step).filter(|(_, found)| **found == 0)
        {
            *expected = 0;
        }
    }
}

fn pattern(side: Role, scheme: Scheme, message: u64, bytes: &mut [u8]) {
    let (message, has_zeros) = match scheme {
        Scheme::Distinct(messages) => (message, message + 1 == messages),
        Scheme::Identical => (0, true),
    };
    let seed = splitmix64(message << 1 | u64::from(side == Role::Server));
    for (word, chunk) in (seed..).zip(bytes.chunks_mut(8)) {
        chunk.copy_from_slice(&splitmix64(word).to_le_bytes()[..chunk.len()]);
    }
    if side == Role::Client && has_zeros {
        bytes.iter_mut().step_by(PAGE).for_each(|start| *start = 0);
    }
}

/// Mixes all bits of a number (the finalizer of splitmix64).
fn splitmix64(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The memory of `ibv_rc_pingpong`: one buffer for both directions.
    fn c_memory(size: usize, checked_client: bool) -> Vec<u8> {
        let mut memory = vec![FILL; size];
        if checked_client {
            memory.iter_mut().step_by(PAGE).for_each(|start| *start = 0);
        }
        memory
    }

    #[test]
    fn two_bareverbs_endpoints_verify_data() {
        for size in [1, 2, 7, 128, 4096, 10_000] {
            let mut client = Checker::new(Role::Client, Scheme::Distinct(20), vec![0; size]);
            let mut server = Checker::new(Role::Server, Scheme::Distinct(20), vec![0; size]);
            let mut message = vec![0; size];
            for i in 0..20 {
                client.fill(i, &mut message);
                server.verify(i, &message).unwrap();
                server.fill(i, &mut message);
                client.verify(i, &message).unwrap();
            }
            assert_eq!((client.checked(), server.checked()), (20, 20));
            assert_eq!((client.source(), server.source()), (Some(Source::Pattern), Some(Source::Pattern)));
        }
    }

    #[test]
    fn c_server_echo_and_final_zeros_are_accepted() {
        for size in [1, 128, 4096, 3 * PAGE + 1] {
            let mut client = Checker::new(Role::Client, Scheme::Distinct(5), vec![0; size]);
            let mut memory = c_memory(size, false);
            for i in 0..5 {
                client.fill(i, &mut memory);
                client.verify(i, &memory).unwrap();
            }
            assert_eq!(client.source(), Some(Source::Echo));
            assert!(memory.iter().step_by(PAGE).all(|&start| start == 0));
        }
    }

    #[test]
    fn c_client_fill_and_echo_are_accepted() {
        for checked in [false, true] {
            for size in [1, 128, 3 * PAGE + 1] {
                let mut server = Checker::new(Role::Server, Scheme::Distinct(5), vec![0; size]);
                let mut memory = c_memory(size, checked);
                for i in 0..5 {
                    server.verify(i, &memory).unwrap();
                    server.fill(i, &mut memory);
                }
                assert_eq!(server.source(), Some(Source::Echo), "{size} {checked}");
            }
        }
    }

    #[test]
    fn mixed_srq_echoes_are_accepted() {
        for size in [1, 128, 3 * PAGE + 1] {
            // A client with two queue pairs: one answer of this side has arrived by half when the
            // client sends the other message.
            let mut server = Checker::new(Role::Server, Scheme::Identical, vec![0; size]);
            let mut answer = vec![0; size];
            server.fill(0, &mut answer);
            let mut mixture = answer.clone();
            mixture[size / 2..].fill(0);
            server.verify(0, &vec![0; size]).unwrap();
            server.verify(0, &mixture).unwrap();
            server.verify(1, &answer).unwrap();
            if size > 1 {
                assert_eq!(server.source(), Some(Source::Echo));
                server.verify(1, &mixture).unwrap_err();
            }
            // A server that checks finds its zeros after any message.
            let client = Checker::new(Role::Client, Scheme::Identical, vec![0; size]);
            client.fill(3, &mut answer);
            assert!(answer.iter().step_by(PAGE).all(|&start| start == 0));
        }
    }

    #[test]
    fn repeated_message_is_wrong_data() {
        let mut client = Checker::new(Role::Client, Scheme::Distinct(5), vec![0; 128]);
        let server = Checker::new(Role::Server, Scheme::Distinct(5), vec![0; 128]);
        let mut message = [0; 128];
        server.fill(0, &mut message);
        client.verify(0, &message).unwrap();
        let error = client.verify(1, &message).unwrap_err();
        assert_eq!((error.message, error.offset), (1, 0));
        assert_eq!(client.checked(), 1);
    }

    #[test]
    fn echoing_peer_must_not_switch_to_the_pattern() {
        let mut client = Checker::new(Role::Client, Scheme::Distinct(5), vec![0; 128]);
        let server = Checker::new(Role::Server, Scheme::Distinct(5), vec![0; 128]);
        let mut message = [0; 128];
        client.fill(0, &mut message);
        client.verify(0, &message).unwrap();
        server.fill(1, &mut message);
        client.verify(1, &message).unwrap_err();
    }

    #[test]
    fn wrong_byte_is_reported() {
        let error = WrongData { message: 3, offset: 17, size: 4096, expected: 0xab, found: 0 };
        assert_eq!(
            error.to_string(),
            "wrong data in message 3 from the peer: byte 17 of 4096 is 0x00 instead of 0xab"
        );
    }

    proptest! {
        #[test]
        fn one_flipped_bit_anywhere_is_found(
            size in 16..20_000usize,
            at: proptest::sample::Index,
            bit in 0..8u32,
            message in 0..3u64,
        ) {
            let mut client = Checker::new(Role::Client, Scheme::Distinct(3), vec![0; size]);
            let server = Checker::new(Role::Server, Scheme::Distinct(3), vec![0; size]);
            let mut bytes = vec![0; size];
            server.fill(message, &mut bytes);
            let offset = at.index(size);
            bytes[offset] ^= 1 << bit;
            let error = client.verify(message, &bytes).unwrap_err();
            prop_assert_eq!((error.offset, error.found), (offset, bytes[offset]));
        }

        #[test]
        fn messages_differ_by_side_and_number(one in 0..100u64, other in 0..100u64) {
            let message = |side, number| {
                let mut bytes = [0; 32];
                pattern(side, Scheme::Distinct(1000), number, &mut bytes);
                bytes
            };
            prop_assert_ne!(message(Role::Client, one), message(Role::Server, other));
            prop_assert_eq!(message(Role::Client, one) == message(Role::Client, other), one == other);
        }
    }
}
