//! Doorbells: a driver's stores to a UAR page (`MLX5_CQ_DOORBELL`, `MLX5_EQ_DOORBELL_OFFSET` and
//! `MLX5_BF_OFFSET` in `include/linux/mlx5/`).

/// Offset of the first send doorbell in a UAR page. Each send doorbell is also a BlueFlame buffer.
pub const SEND: u16 = 0x800;
/// Bytes of a BlueFlame buffer, and the stride of the send doorbells.
pub const BLUEFLAME: u16 = 0x100;
/// Offset of the CQ arm doorbell.
pub const ARM_CQ: u16 = 0x20;
/// Offset of the EQ doorbell that updates the consumer index and arms.
pub const ARM_EQ: u16 = 0x40;
/// Offset of the EQ doorbell that updates the consumer index only.
pub const READ_EQ: u16 = 0x48;

/// Smallest BlueFlame write that is used as a WQE: one basic block.
const BLOCK: usize = 64;
const NUMBER: u32 = 0xff_ffff;

/// A doorbell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Send doorbell.
    Send {
        /// The QPN.
        qp: u32,
        /// The WQE, if a BlueFlame write contained all of it.
        blueflame: Option<Box<[u8]>>,
    },
    /// Arms a CQ.
    ArmCq {
        /// The CQN.
        cq: u32,
        /// Consumer index, 24 bits.
        consumer: u32,
        /// Whether to arm for solicited CQEs only.
        solicited: bool,
        /// Arm sequence number, 2 bits. An arm with a sequence number that an event has answered
        /// has no effect.
        sequence: u8,
    },
    /// Updates the consumer index of an EQ.
    Eq {
        /// The EQN.
        eq: u32,
        /// Consumer index, 24 bits.
        consumer: u32,
        /// Whether to arm the EQ.
        arm: bool,
    },
}

impl Doorbell {
    /// Decodes a store to an offset of a UAR page. Returns `None` for an offset without a doorbell.
    ///
    /// A send doorbell takes eight bytes or a whole BlueFlame copy. The EQ doorbells also take four
    /// bytes.
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
    fn doorbell_and_blueflame_writes_are_distinguished() {
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
                let decoded = Doorbell::decode(offset, &vec![0xff; length]).is_some();
                assert!(!decoded || offset < 0x1000);
            }
        }
    }
}
