//! The decoded CQE.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use bareverbs_provider::traits::Completion;
use bareverbs_provider::work::{Imm, WcFlags, WcOpcode, WcStatus, WorkCompletion};

use crate::cqe::{CQE, Cqe, CqeOpcode, Syndrome};

/// A polled CQE and its `wr_id`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecodedCqe {
    pub(super) entry: *const u8,
    pub(super) wr_id: u64,
    pub(super) status: WcStatus,
    pub(super) byte_len: u32,
    pub(super) opcode: CqeOpcode,
    pub(super) wr_data: u32,
}

/// The status of a request and its length in bytes.
pub(super) fn status_and_byte_len(cqe: &Cqe<'_>, opcode: CqeOpcode) -> (WcStatus, u32) {
    match opcode {
        CqeOpcode::REQ => {
            let length = match cqe.send_opcode() {
                Ok(WcOpcode::RDMA_READ) => cqe.byte_count(),
                Ok(WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD) => 8,
                _ => 0,
            };
            (WcStatus::SUCCESS, length)
        }
        CqeOpcode::REQ_ERR | CqeOpcode::RESP_ERR => (Syndrome(cqe.syndrome()).status(), 0),
        _ => (WcStatus::SUCCESS, cqe.byte_count()),
    }
}

/// Length in bytes of the longest payload in a 64-byte CQE. The payload is in the first half.
#[doc(alias = "MLX5_INLINE_SCATTER_32")]
const INLINE_SCATTER_32: usize = 32;
/// Bits of `op_own` that are set if the CQE contains payload; the value says where.
const INLINE_SCATTER: u8 = 3 << 2;

/// The payload in a CQE, if any: the CQE's bytes, which start with the payload, and its length.
pub(super) fn scattered_payload(cqe: &Cqe<'_>, opcode: CqeOpcode) -> Option<([u8; CQE], usize)> {
    let is_scattered = cqe.op_own() & INLINE_SCATTER != 0 && opcode.0 < CqeOpcode::REQ_ERR.0;
    is_scattered.then(|| (cqe.bytes(), INLINE_SCATTER_32.min(cqe.byte_count() as usize)))
}

impl DecodedCqe {
    #[cold]
    pub(super) fn general_err(entry: *const u8) -> Self {
        let (status, opcode) = (WcStatus::GENERAL_ERR, CqeOpcode::INVALID);
        Self { entry, wr_id: 0, status, byte_len: 0, opcode, wr_data: 0 }
    }

    #[inline(always)]
    pub(super) fn success(entry: *const u8, wr_id: u64, byte_len: u32, opcode: CqeOpcode) -> Self {
        Self { entry, wr_id, status: WcStatus::SUCCESS, byte_len, opcode, wr_data: 0 }
    }

    /// The completion of a plain send.
    ///
    /// # Safety
    ///
    /// The ring of the CQE must be valid for `'a`.
    #[inline(always)]
    pub(super) unsafe fn plain_send<'a>(self) -> PlainSend<'a> {
        // SAFETY: a CQE of a ring that is valid for `'a`, by this function's contract.
        PlainSend { cqe: unsafe { Cqe::new(self.entry) }, wr_id: self.wr_id }
    }

    /// Writes all fields of any completion.
    ///
    /// # Safety
    ///
    /// The ring of the CQE must be valid.
    #[inline(never)]
    pub(super) unsafe fn write_all_fields(self, into: &mut MaybeUninit<WorkCompletion>) {
        // SAFETY: a CQE of a valid ring, by this function's contract.
        into.write(unsafe { self.completion() }.to_value());
    }

    /// # Safety
    ///
    /// The ring of the CQE must be valid for `'a`.
    #[inline(always)]
    pub(super) unsafe fn completion<'a>(self) -> Mlx5Completion<'a> {
        let Self { entry, wr_id, status, byte_len, opcode, wr_data } = self;
        // SAFETY: a CQE of a ring that is valid for `'a`, by this function's contract.
        let cqe = unsafe { Cqe::new(entry) };
        Mlx5Completion { cqe, wr_id, status, byte_len, opcode, wr_data, _queue: PhantomData }
    }
}

/// A completion that borrows its CQE.
///
/// A CQE of an unknown queue, or with an undefined opcode, is reported with status
/// [`WcStatus::GENERAL_ERR`] and `wr_id` 0. [`Mlx5Completion::entry`] is the CQE as the device
/// wrote it.
#[derive(Debug)]
pub struct Mlx5Completion<'a> {
    cqe: Cqe<'a>,
    wr_id: u64,
    status: WcStatus,
    byte_len: u32,
    /// The CQE's opcode when the CQE was polled.
    opcode: CqeOpcode,
    /// The verb of a request whose CQE does not name it; else 0.
    wr_data: u32,
    _queue: PhantomData<&'a ()>,
}

impl<'a> Mlx5Completion<'a> {
    /// The CQE that the device wrote.
    #[must_use]
    pub fn entry(&self) -> Cqe<'a> {
        self.cqe
    }

    #[inline]
    fn is_error(&self) -> bool {
        self.opcode.0 >= CqeOpcode::REQ_ERR.0
    }

    #[inline]
    fn is_recv(&self) -> bool {
        matches!(self.opcode.0, 1..=4) || self.opcode == CqeOpcode::RESP_ERR
    }

    /// The operation of a send: that of its slot, unless the CQE names it.
    #[inline]
    fn sent_opcode(&self) -> WcOpcode {
        match self.wr_data {
            0 => self.cqe.send_opcode().unwrap_or(WcOpcode::SEND),
            verb => WcOpcode(verb),
        }
    }

    #[inline]
    fn flags(&self) -> WcFlags {
        let mut flags = match self.opcode {
            CqeOpcode::RESP_WR_IMM | CqeOpcode::RESP_SEND_IMM => WcFlags::WITH_IMM,
            CqeOpcode::RESP_SEND_INV => WcFlags::WITH_INVALIDATE,
            _ => WcFlags::empty(),
        };
        if self.is_recv() && !self.is_error() && self.cqe.flags_rqpn() >> 28 & 3 != 0 {
            flags |= WcFlags::GRH;
        }
        flags
    }
}

impl Completion for Mlx5Completion<'_> {
    #[inline]
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    #[inline]
    fn status(&self) -> WcStatus {
        self.status
    }

    #[inline]
    fn opcode(&self) -> WcOpcode {
        match self.opcode {
            CqeOpcode::REQ => self.sent_opcode(),
            CqeOpcode::RESP_WR_IMM => WcOpcode::RECV_RDMA_WITH_IMM,
            _ if self.is_recv() => WcOpcode::RECV,
            _ => self.sent_opcode(),
        }
    }

    /// Without an access to the CQE.
    #[inline]
    fn is_recv(&self) -> bool {
        self.opcode != CqeOpcode::REQ
    }

    /// Without an access to the CQE.
    #[inline]
    fn recv_opcode(&self) -> WcOpcode {
        if self.opcode == CqeOpcode::RESP_WR_IMM { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV }
    }

    #[inline]
    fn byte_len(&self) -> u32 {
        self.byte_len
    }

    #[inline]
    fn qp_num(&self) -> u32 {
        self.cqe.qp_num()
    }

    #[inline]
    fn src_qp(&self) -> u32 {
        if self.is_recv() { self.cqe.flags_rqpn() & 0xff_ffff } else { 0 }
    }

    #[inline]
    fn imm(&self) -> Option<Imm> {
        matches!(self.opcode, CqeOpcode::RESP_WR_IMM | CqeOpcode::RESP_SEND_IMM)
            .then(|| Imm(self.cqe.imm_inval_pkey()))
    }

    /// Without a branch: among the opcodes of successful receives, those with immediate data are odd.
    #[inline]
    fn recv_imm(&self) -> Option<Imm> {
        let imm = Imm(self.cqe.imm_inval_pkey());
        (self.opcode.0 & 1 != 0).then_some(imm)
    }

    #[inline]
    fn invalidated_rkey(&self) -> Option<u32> {
        (self.opcode == CqeOpcode::RESP_SEND_INV).then(|| self.cqe.imm_inval_pkey())
    }

    #[inline]
    fn vendor_err(&self) -> u32 {
        if self.is_error() { self.cqe.vendor_syndrome().into() } else { 0 }
    }

    #[inline]
    fn wc_flags(&self) -> WcFlags {
        self.flags()
    }

    #[inline]
    fn slid(&self) -> u16 {
        if self.is_recv() { self.cqe.slid() } else { 0 }
    }

    #[inline]
    fn sl(&self) -> u8 {
        if self.is_recv() { (self.cqe.flags_rqpn() >> 24 & 0xf) as u8 } else { 0 }
    }

    #[inline]
    fn dlid_path_bits(&self) -> u8 {
        if self.is_recv() { self.cqe.path_bits() & 0x7f } else { 0 }
    }

    #[inline]
    fn pkey_index(&self) -> u16 {
        if self.opcode == CqeOpcode::RESP_SEND { self.cqe.imm_inval_pkey() as u16 } else { 0 }
    }

    #[inline]
    fn cvlan(&self) -> Option<u16> {
        // `cqe_has_vlan` of the kernel's `device.h`.
        const HAS_VLAN: u8 = 1 << 0;
        let has_tag = self.is_recv() && !self.is_error() && self.cqe.l4_l3_hdr_type() & HAS_VLAN != 0;
        has_tag.then(|| self.cqe.vlan_info())
    }

    #[inline]
    fn flow_tag(&self) -> Option<u32> {
        (self.is_recv() && !self.is_error()).then(|| self.cqe.qp_num())
    }

    /// Error CQEs have no timestamp.
    #[inline]
    fn timestamp(&self) -> Option<u64> {
        (!self.is_error()).then(|| self.cqe.timestamp())
    }

    #[inline(never)]
    fn to_value(&self) -> WorkCompletion {
        WorkCompletion {
            wr_id: self.wr_id,
            status: self.status(),
            opcode: self.opcode(),
            vendor_err: self.vendor_err(),
            byte_len: self.byte_len(),
            ex: self.imm().map(Imm::to_be).or(self.invalidated_rkey()).unwrap_or(0),
            qp_num: self.qp_num(),
            src_qp: self.src_qp(),
            wc_flags: self.flags(),
            slid: self.slid(),
            sl: self.sl(),
            pkey_index: self.pkey_index(),
            dlid_path_bits: self.dlid_path_bits(),
        }
    }
}

/// The successful completion of a plain send, which has no fields beyond `wr_id`, opcode and QPN.
pub(super) struct PlainSend<'a> {
    cqe: Cqe<'a>,
    wr_id: u64,
}

impl Completion for PlainSend<'_> {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    #[inline(always)]
    fn status(&self) -> WcStatus {
        WcStatus::SUCCESS
    }

    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        self.cqe.plain_send_opcode()
    }

    #[inline(always)]
    fn is_recv(&self) -> bool {
        false
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn qp_num(&self) -> u32 {
        self.cqe.qp_num()
    }

    #[inline(always)]
    fn src_qp(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn imm(&self) -> Option<Imm> {
        None
    }

    #[inline(always)]
    fn invalidated_rkey(&self) -> Option<u32> {
        None
    }

    #[inline(always)]
    fn vendor_err(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn wc_flags(&self) -> WcFlags {
        WcFlags::empty()
    }

    #[inline(always)]
    fn slid(&self) -> u16 {
        0
    }

    #[inline(always)]
    fn sl(&self) -> u8 {
        0
    }

    #[inline(always)]
    fn dlid_path_bits(&self) -> u8 {
        0
    }

    #[inline(always)]
    fn timestamp(&self) -> Option<u64> {
        Some(self.cqe.timestamp())
    }

    #[inline(always)]
    fn to_value(&self) -> WorkCompletion {
        WorkCompletion {
            wr_id: self.wr_id,
            status: WcStatus::SUCCESS,
            opcode: self.opcode(),
            vendor_err: 0,
            byte_len: 0,
            ex: 0,
            qp_num: self.qp_num(),
            src_qp: 0,
            wc_flags: WcFlags::empty(),
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Entry([u8; CQE]);

    /// A CQE of this opcode with a value in every field.
    fn entry(opcode: CqeOpcode) -> Entry {
        let mut entry = Entry([0; CQE]);
        // GRH, SL 5 and source QP 0x123.
        entry.0[24..28].copy_from_slice(&0x1500_0123u32.to_be_bytes());
        entry.0[48..56].copy_from_slice(&0x0102_0304_0506_0708u64.to_be_bytes());
        entry.0[63] = opcode.0 << 4;
        entry
    }

    fn with<T>(opcode: CqeOpcode, look: impl FnOnce(&Mlx5Completion<'_>) -> T) -> T {
        let entry = entry(opcode);
        let taken = DecodedCqe { opcode, ..DecodedCqe::general_err(entry.0.as_ptr()) };
        // SAFETY: the CQE is valid until the end of this function.
        look(&unsafe { taken.completion() })
    }

    const ERRORS: [CqeOpcode; 2] = [CqeOpcode::REQ_ERR, CqeOpcode::RESP_ERR];
    const RECEIVES: [CqeOpcode; 4] =
        [CqeOpcode::RESP_WR_IMM, CqeOpcode::RESP_SEND, CqeOpcode::RESP_SEND_IMM, CqeOpcode::RESP_SEND_INV];

    #[test]
    fn successful_datagrams_have_a_grh() {
        for opcode in RECEIVES {
            assert!(with(opcode, |cqe| cqe.wc_flags().contains(WcFlags::GRH)), "{opcode:?}");
        }
        for opcode in ERRORS.into_iter().chain([CqeOpcode::REQ]) {
            assert_eq!(with(opcode, |cqe| cqe.wc_flags()), WcFlags::empty(), "{opcode:?}");
        }
    }

    #[test]
    fn only_receives_have_a_stripped_vlan_tag() {
        let tag = |opcode: CqeOpcode, header_types: u8| {
            let mut entry = entry(opcode);
            entry.0[29..32].copy_from_slice(&[header_types, 0x20, 0x05]);
            let taken = DecodedCqe { opcode, ..DecodedCqe::general_err(entry.0.as_ptr()) };
            // SAFETY: the CQE is valid until the end of this function.
            unsafe { taken.completion() }.cvlan()
        };
        assert_eq!(tag(CqeOpcode::RESP_SEND, 0xff), Some(0x2005));
        assert_eq!(tag(CqeOpcode::RESP_SEND, 0xfe), None);
        for opcode in [CqeOpcode::REQ, CqeOpcode::REQ_ERR, CqeOpcode::RESP_ERR] {
            assert_eq!(tag(opcode, 0xff), None, "{opcode:?}");
        }
    }

    #[test]
    fn only_successful_receives_have_a_flow_tag() {
        let tag = |opcode| {
            let mut entry = entry(opcode);
            entry.0[56..60].copy_from_slice(&[0xff, 1, 2, 3]);
            let taken = DecodedCqe { opcode, ..DecodedCqe::general_err(entry.0.as_ptr()) };
            // SAFETY: the CQE is valid until the end of this function.
            unsafe { taken.completion() }.flow_tag()
        };
        assert_eq!(tag(CqeOpcode::RESP_SEND), Some(0x01_0203));
        for opcode in ERRORS.into_iter().chain([CqeOpcode::REQ]) {
            assert_eq!(tag(opcode), None, "{opcode:?}");
        }
    }

    #[test]
    fn only_successful_cqes_have_a_timestamp() {
        for opcode in RECEIVES.into_iter().chain([CqeOpcode::REQ]) {
            assert_eq!(with(opcode, |cqe| cqe.timestamp()), Some(0x0102_0304_0506_0708), "{opcode:?}");
        }
        for opcode in ERRORS {
            assert_eq!(with(opcode, |cqe| cqe.timestamp()), None, "{opcode:?}");
        }
    }
}
