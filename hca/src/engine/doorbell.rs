//! Doorbells: what a driver's stores to a UAR page say (`MLX5_CQ_DOORBELL`,
//! `MLX5_EQ_DOORBELL_OFFSET` and `MLX5_BF_OFFSET` in `include/linux/mlx5/`).

/// Where the send registers begin in a UAR page; each is also a BlueFlame buffer.
pub const SEND: u16 = 0x800;
/// Bytes of a BlueFlame buffer, and the distance from one send register to the next.
pub const BLUEFLAME: u16 = 0x100;
/// The completion queues' register.
pub const ARM_CQ: u16 = 0x20;
/// The event queues' register that arms.
pub const ARM_EQ: u16 = 0x40;
/// The event queues' register that doesn't.
pub const READ_EQ: u16 = 0x48;

/// The least of a work request that makes a BlueFlame write worth taking: one basic block.
const BLOCK: usize = 64;
const NUMBER: u32 = 0xff_ffff;

/// A doorbell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Look at a send queue.
    Send {
        /// The queue pair.
        qp: u32,
        /// The work request, where it came whole through a BlueFlame buffer.
        blueflame: Option<Box<[u8]>>,
    },
    /// Tell of the next completion.
    ArmCq {
        /// The completion queue.
        cq: u32,
        /// Up to where it was read, 24 bits.
        consumer: u32,
        /// Whether only solicited completions count.
        solicited: bool,
        /// Which arming this is, 2 bits: an arming that was answered already doesn't count twice.
        sequence: u8,
    },
    /// An event queue was read.
    Eq {
        /// The event queue.
        eq: u32,
        /// Up to where, 24 bits.
        consumer: u32,
        /// Whether the next event shall interrupt.
        arm: bool,
    },
}

impl Doorbell {
    /// What a store at an offset of a UAR page says; `None` if nothing listens there.
    ///
    /// Send registers take eight bytes, or a whole BlueFlame copy. The registers of event queues
    /// are also served by four.
    pub fn decode(offset: u16, bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        match offset {
            ARM_EQ | READ_EQ if matches!(bytes.len(), 4 | 8) => {
                let high = word(0)?;
                Some(Self::Eq { eq: high >> 24, consumer: high & NUMBER, arm: offset == ARM_EQ })
            }
            ARM_CQ if bytes.len() == 8 => {
                const SOLICITED: u32 = 1 << 24;
                let high = word(0)?;
                Some(Self::ArmCq {
                    cq: word(4)? & NUMBER,
                    consumer: high & NUMBER,
                    solicited: high & SOLICITED != 0,
                    sequence: (high >> 28 & 0x3) as u8,
                })
            }
            SEND.. if offset.is_multiple_of(BLUEFLAME) && offset < 0x1000 => {
                let whole = bytes.len() >= BLOCK
                    && bytes.len() <= usize::from(BLUEFLAME)
                    && bytes.len().is_multiple_of(BLOCK);
                let blueflame = whole.then(|| bytes.into());
                (whole || bytes.len() == 8).then_some(Self::Send { qp: word(4)? >> 8, blueflame })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_and_blueflame_writes_are_told_apart() {
        let mut block = [0; 64];
        block[..8].copy_from_slice(&[0, 0, 1, 0x0a, 0, 0, 0x4c, 3]);
        assert_eq!(Doorbell::decode(SEND, &block[..8]), Some(Doorbell::Send { qp: 0x4c, blueflame: None }));
        let copy = Some(block.into());
        assert_eq!(Doorbell::decode(0x900, &block), Some(Doorbell::Send { qp: 0x4c, blueflame: copy }));
        assert_eq!(Doorbell::decode(SEND, &block[..16]), None);
        assert_eq!(Doorbell::decode(SEND + 8, &block[..8]), None);
    }

    #[test]
    fn cq_arm_carries_sequence_number() {
        let bytes = [0x21, 0, 0, 7, 0, 0, 0x04, 0];
        let arm = Doorbell::ArmCq { cq: 0x400, consumer: 7, solicited: true, sequence: 2 };
        assert_eq!(Doorbell::decode(ARM_CQ, &bytes), Some(arm));
        assert_eq!(Doorbell::decode(ARM_CQ, &bytes[..4]), None);
    }

    #[test]
    fn arbitrary_doorbell_writes_do_not_panic() {
        for offset in 0..=u16::MAX {
            for length in [0, 1, 4, 8, 63, 64, 256, 257] {
                let heard = Doorbell::decode(offset, &vec![0xff; length]).is_some();
                assert!(!heard || offset < 0x1000);
            }
        }
    }
}
