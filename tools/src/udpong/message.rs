//! The messages of `udpong`. Source: `struct message` of librdmacm's program.

/// Bytes of the head of a message.
pub(super) const HEAD: usize = 8;

/// Bytes of a message that controls a test.
pub(super) const CONTROL_BYTES: usize = 16;

/// What a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A number for the client.
    Login,
    /// The start of a test.
    Start,
    /// Nothing: the server counts it.
    Data,
    /// The same message.
    Echo,
    /// The number of messages since the start of the test.
    End,
}

const OPS: [Op; 5] = [Op::Login, Op::Start, Op::Data, Op::Echo, Op::End];

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) op: Op,
    /// The number of the client.
    pub(super) client: u8,
    /// The number of a message that is answered.
    pub(super) sequence: u8,
    /// The number of messages, in the answer to [`Op::End`].
    pub(super) data: u32,
}

impl Head {
    /// The head of a message. `None`: the message is too short. The C program counts messages of
    /// unknown operations as data.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        let [op, client, sequence, _, data @ ..] = *message.first_chunk::<HEAD>()?;
        let op = OPS.get(usize::from(op)).copied().unwrap_or(Op::Data);
        Some(Self { op, client, sequence, data: u32::from_be_bytes(data) })
    }

    /// Writes the head to the start of a message, which is long enough.
    pub(super) fn put(self, message: &mut [u8]) {
        let [first, second, third, fourth] = self.data.to_be_bytes();
        let op = OPS.iter().position(|op| *op == self.op).unwrap_or_default() as u8;
        let bytes: [u8; HEAD] = [op, self.client, self.sequence, 0, first, second, third, fourth];
        message[..HEAD].copy_from_slice(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn head_has_the_layout_of_the_c_program() {
        let mut message = [0xee; 9];
        Head { op: Op::End, client: 2, sequence: 3, data: 0x0405_0607 }.put(&mut message);
        assert_eq!(message, [4, 2, 3, 0, 4, 5, 6, 7, 0xee]);
        assert_eq!(Head::parse(&message[..7]), None);
        assert_eq!(Head::parse(&[9; 8]).map(|head| head.op), Some(Op::Data));
    }

    proptest! {
        #[test]
        fn message_heads_round_trip(bytes in prop::array::uniform8(0u8..), op in 0u8..5) {
            let mut message = bytes;
            (message[0], message[3]) = (op, 0);
            let head = Head::parse(&message).unwrap();
            let mut written = [0; HEAD];
            head.put(&mut written);
            prop_assert_eq!(written, message);
        }
    }
}
