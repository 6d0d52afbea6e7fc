//! Completion queue entries (CQEs) of the device.
//!
//! A CQE has 64 bytes and is big-endian. In a CQ of 128-byte CQEs, the fields are in the second
//! half. [`Cqe`] is a view of a CQE in place. It decodes each field on access.

use std::fmt;
use std::marker::PhantomData;

use bareverbs_provider::work::{WcOpcode, WcStatus};

use crate::wqe;

/// Bytes of a CQE.
pub const CQE: usize = 64;

/// The opcode of a CQE: the high 4 bits of its last byte.
#[doc(alias = "MLX5_CQE_REQ")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqeOpcode(pub u8);

impl CqeOpcode {
    /// A send is complete.
    pub const REQ: Self = Self(0);
    /// A receive was consumed by an RDMA write with immediate data.
    pub const RESP_WR_IMM: Self = Self(1);
    /// A receive completed with a message.
    pub const RESP_SEND: Self = Self(2);
    /// A receive completed with a message with immediate data.
    pub const RESP_SEND_IMM: Self = Self(3);
    /// A receive completed with a SEND with invalidate.
    pub const RESP_SEND_INV: Self = Self(4);
    /// The CQ was resized: the following CQEs are in the new ring.
    pub const RESIZE: Self = Self(5);
    /// A send failed.
    pub const REQ_ERR: Self = Self(13);
    /// A receive failed.
    pub const RESP_ERR: Self = Self(14);
    /// The CQE was never written.
    pub const INVALID: Self = Self(15);
}

/// The reason of a failure, in a CQE with opcode [`CqeOpcode::REQ_ERR`] or [`CqeOpcode::RESP_ERR`].
#[doc(alias = "MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syndrome(pub u8);

impl Syndrome {
    /// The status of this syndrome in verbs. An unknown syndrome is [`WcStatus::GENERAL_ERR`].
    #[must_use]
    pub fn status(self) -> WcStatus {
        match self.0 {
            0x01 => WcStatus::LOC_LEN_ERR,
            0x02 => WcStatus::LOC_QP_OP_ERR,
            0x04 => WcStatus::LOC_PROT_ERR,
            0x05 => WcStatus::WR_FLUSH_ERR,
            0x06 => WcStatus::MW_BIND_ERR,
            0x10 => WcStatus::BAD_RESP_ERR,
            0x11 => WcStatus::LOC_ACCESS_ERR,
            0x12 => WcStatus::REM_INV_REQ_ERR,
            0x13 => WcStatus::REM_ACCESS_ERR,
            0x14 => WcStatus::REM_OP_ERR,
            0x15 => WcStatus::RETRY_EXC_ERR,
            0x16 => WcStatus::RNR_RETRY_EXC_ERR,
            0x22 => WcStatus::REM_ABORT_ERR,
            _ => WcStatus::GENERAL_ERR,
        }
    }
}

/// A CQE in place.
#[doc(alias = "mlx5_cqe64")]
#[derive(Clone, Copy)]
pub struct Cqe<'a> {
    start: *const u8,
    _memory: PhantomData<&'a u8>,
}

macro_rules! fields {
    ($($(#[$meta:meta])* $name:ident: $ty:ty = $offset:literal;)*) => {$(
        $(#[$meta])*
        #[must_use]
        #[inline]
        pub fn $name(&self) -> $ty {
            const { assert!($offset % size_of::<$ty>() == 0 && $offset + size_of::<$ty>() <= CQE) };
            // SAFETY: the field lies in the CQE and is aligned, by `Cqe::new`'s contract and the
            // assertion above. The read is volatile because the device may write at any time.
            <$ty>::from_be(unsafe { self.start.add($offset).cast::<$ty>().read_volatile() })
        }
    )*};
}

/// The verb of each send opcode whose CQE has no further fields: SEND, RDMA write and TSO. All
/// others are `SEND`.
const PLAIN_SENDS: [WcOpcode; 32] = {
    let mut verbs = [WcOpcode::SEND; 32];
    verbs[wqe::Opcode::RDMA_WRITE.0 as usize] = WcOpcode::RDMA_WRITE;
    verbs[wqe::Opcode::RDMA_WRITE_IMM.0 as usize] = WcOpcode::RDMA_WRITE;
    verbs[wqe::Opcode::TSO.0 as usize] = WcOpcode::TSO;
    verbs
};

impl<'a> Cqe<'a> {
    /// Creates a view of the CQE of [`CQE`] bytes at `start`.
    ///
    /// # Safety
    ///
    /// The bytes must be readable for `'a`, and `start` must be aligned to 64 bytes.
    #[must_use]
    #[inline]
    pub unsafe fn new(start: *const u8) -> Self {
        Self { start, _memory: PhantomData }
    }

    fields! {
        /// The low bits of the destination LID.
        path_bits: u8 = 17;
        /// The source LID.
        slid: u16 = 22;
        /// GRH present (bits 28 and 29), service level (bits 24 to 27) and source QP (24 bits).
        flags_rqpn: u32 = 24;
        /// Types of the headers of a received frame; bit 0 if a VLAN tag was stripped.
        l4_l3_hdr_type: u8 = 29;
        /// The VLAN tag that was stripped.
        vlan_info: u16 = 30;
        /// The user index of the queue, or, with CQE version 0, the SRQN.
        srqn_uidx: u32 = 32;
        /// Immediate data, invalidated rkey, or P_Key index.
        imm_inval_pkey: u32 = 36;
        /// The byte count of the message.
        byte_count: u32 = 44;
        /// The time of the completion, in ticks of the device's clock.
        timestamp: u64 = 48;
        /// The vendor error syndrome.
        vendor_syndrome: u8 = 54;
        /// The [`Syndrome`] of an error.
        syndrome: u8 = 55;
        /// The opcode of the send WQE (8 bits) and the QPN (24 bits).
        opcode_qpn: u32 = 56;
        /// [`Cqe::wqe_counter`] in the upper half and [`Cqe::op_own`] in the lowest byte, from one
        /// read. So if `op_own` was written by the device, the counter was too.
        last_word: u32 = 60;
        /// The WQE counter of the request.
        wqe_counter: u16 = 60;
        /// The CQE's opcode (4 bits), its format, the solicited bit and the owner bit (the lowest
        /// bit).
        op_own: u8 = 63;
    }

    /// [`Cqe::srqn_uidx`] in the byte order of memory.
    #[inline(always)]
    pub(crate) fn raw_srqn_uidx(&self) -> u32 {
        // The accessor swaps the bytes. The compiler removes the two swaps.
        self.srqn_uidx().to_be()
    }

    /// The opcode of the CQE.
    #[doc(alias = "mlx5dv_get_cqe_opcode")]
    #[must_use]
    #[inline]
    pub fn opcode(&self) -> CqeOpcode {
        CqeOpcode(self.op_own() >> 4)
    }

    /// The local QPN.
    #[must_use]
    #[inline]
    pub fn qp_num(&self) -> u32 {
        self.opcode_qpn() & 0xff_ffff
    }

    /// The verb of the send that completed.
    ///
    /// # Errors
    /// Opcodes that stand for more than one verb, and unknown opcodes, are returned as they are.
    #[inline]
    pub fn send_opcode(&self) -> Result<WcOpcode, wqe::Opcode> {
        match wqe::Opcode((self.opcode_qpn() >> 24) as u8) {
            wqe::Opcode::SEND | wqe::Opcode::SEND_IMM | wqe::Opcode::SEND_INVAL => Ok(WcOpcode::SEND),
            wqe::Opcode::RDMA_WRITE | wqe::Opcode::RDMA_WRITE_IMM => Ok(WcOpcode::RDMA_WRITE),
            wqe::Opcode::RDMA_READ => Ok(WcOpcode::RDMA_READ),
            wqe::Opcode::ATOMIC_CS => Ok(WcOpcode::COMP_SWAP),
            wqe::Opcode::ATOMIC_FA => Ok(WcOpcode::FETCH_ADD),
            wqe::Opcode::TSO => Ok(WcOpcode::TSO),
            other => Err(other),
        }
    }

    /// Like [`Cqe::send_opcode`] for opcodes of SEND, RDMA write and TSO; `SEND` for all others.
    #[inline(always)]
    pub(crate) fn plain_send_opcode(&self) -> WcOpcode {
        PLAIN_SENDS[(self.opcode_qpn() >> 24) as usize % PLAIN_SENDS.len()]
    }

    /// A copy of the CQE's current bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; CQE] {
        let mut bytes = [0; CQE];
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: the byte lies in the CQE, by `new`'s contract.
            *byte = unsafe { self.start.add(at).read_volatile() };
        }
        bytes
    }
}

/// The opcode, QPN and status in words, followed by a hex dump.
impl fmt::Display for Cqe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (opcode, qp, counter) = (self.opcode(), self.qp_num(), self.wqe_counter());
        let owner = self.op_own() & 1;
        match opcode {
            CqeOpcode::INVALID => writeln!(f, "never written")?,
            CqeOpcode::REQ_ERR | CqeOpcode::RESP_ERR => {
                let side = if opcode == CqeOpcode::REQ_ERR { "send" } else { "receive" };
                let (syndrome, vendor) = (Syndrome(self.syndrome()), self.vendor_syndrome());
                writeln!(
                    f,
                    "{side} {counter} of QP {qp:#x} failed: {:?} (syndrome {:#04x}, vendor \
                     {vendor:#04x}), owner {owner}",
                    syndrome.status(),
                    syndrome.0
                )?;
            }
            CqeOpcode::REQ => match self.send_opcode() {
                Ok(what) => writeln!(f, "send {counter} of QP {qp:#x} done: {what:?}, owner {owner}")?,
                Err(other) => writeln!(f, "send {counter} of QP {qp:#x} done: {other:?}, owner {owner}")?,
            },
            _ => writeln!(
                f,
                "receive {counter} of QP {qp:#x} done: {opcode:?}, {} bytes, owner {owner}",
                self.byte_count()
            )?,
        }
        for (at, row) in self.bytes().chunks(16).enumerate() {
            write!(f, "{:02x}:", 16 * at)?;
            for word in row.chunks(4) {
                write!(f, " {:02x}{:02x}{:02x}{:02x}", word[0], word[1], word[2], word[3])?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Cqe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Entry([u8; CQE]);

    fn error() -> Entry {
        let mut entry = Entry([0; CQE]);
        entry.0[32..36].copy_from_slice(&[0, 0, 0, 9]);
        entry.0[54..60].copy_from_slice(&[0x88, 0x13, 0x08, 0, 0, 0x2a]);
        entry.0[60..].copy_from_slice(&[0x01, 0x02, 0, 0xd1]);
        entry
    }

    #[test]
    fn cqe_fields_match_the_prm() {
        let entry = error();
        // SAFETY: an aligned array of the size of a CQE.
        let cqe = unsafe { Cqe::new(entry.0.as_ptr()) };
        assert_eq!(cqe.opcode(), CqeOpcode::REQ_ERR);
        assert_eq!((cqe.qp_num(), cqe.wqe_counter(), cqe.srqn_uidx()), (0x2a, 0x0102, 9));
        assert_eq!((cqe.syndrome(), cqe.vendor_syndrome()), (0x13, 0x88));
        assert_eq!(cqe.send_opcode(), Ok(WcOpcode::RDMA_WRITE));
        assert_eq!(cqe.bytes(), entry.0);
    }

    #[test]
    fn error_cqe_display_names_status_and_syndrome() {
        let entry = error();
        // SAFETY: an aligned array of the size of a CQE.
        let text = unsafe { Cqe::new(entry.0.as_ptr()) }.to_string();
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some("send 258 of QP 0x2a failed: REM_ACCESS_ERR (syndrome 0x13, vendor 0x88), owner 1")
        );
        assert_eq!(lines.nth(3), Some("30: 00000000 00008813 0800002a 010200d1"));
    }

    #[test]
    fn plain_send_opcode_agrees_with_send_opcode() {
        for opcode in 0..=u8::MAX {
            let mut entry = error();
            entry.0[56] = opcode;
            // SAFETY: an aligned array of the size of a CQE.
            let cqe = unsafe { Cqe::new(entry.0.as_ptr()) };
            if let Ok(verb @ (WcOpcode::SEND | WcOpcode::RDMA_WRITE | WcOpcode::TSO)) = cqe.send_opcode() {
                assert_eq!(cqe.plain_send_opcode(), verb, "{opcode:#x}");
            }
        }
    }

    #[test]
    fn unknown_syndrome_is_a_general_error() {
        assert_eq!(Syndrome(0x7f).status(), WcStatus::GENERAL_ERR);
    }
}
