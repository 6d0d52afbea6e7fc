//! Work queue entries (WQEs) in the device's format.
//!
//! A send WQE is a sequence of big-endian segments of 16 bytes, in blocks of 64 bytes. The control
//! segment comes first, then the segments of the operation, then the data. The functions here
//! return segments in memory order. Nothing in this module writes to a queue. Names and layouts are
//! those of the programmer's reference manual (PRM).
//!
//! ```
//! use bareverbs_mlx5::wqe::{self, Control, ControlFlags, Opcode};
//! use bareverbs_provider::work::{Remote, Sge};
//!
//! // An RDMA write of 64 bytes by queue pair 0x2a, at index 7 of its send queue.
//! let request = [
//!     Control { opcode: Opcode::RDMA_WRITE, index: 7, qp_num: 0x2a, segments: 3, flags: ControlFlags::CQ_UPDATE, imm: 0 }
//!         .segment(),
//!     wqe::remote_address(Remote { addr: 0x1000, rkey: 0x99 }),
//!     wqe::data(Sge { addr: 0x7f00_0000_0000, length: 64, lkey: 0x88 }),
//! ];
//! assert_eq!(wqe::bytes(request[0])[..8], [0, 0, 7, 0x08, 0, 0, 0x2a, 3]);
//! ```

mod display;

use bareverbs_provider::work::{AccessFlags, MwBind, MwType, Remote, Sge};

pub use self::display::WqeDisplay;

/// A segment in memory order.
pub type Segment = [u64; 2];

/// Bytes of a segment.
pub const SEGMENT: usize = 16;

/// Bytes of a block of the send queue.
#[doc(alias = "MLX5_SEND_WQE_BB")]
pub const BLOCK: usize = 64;

/// Segments of a block.
pub const SEGMENTS_PER_BLOCK: usize = BLOCK / SEGMENT;

/// The lkey that ends a receive WQE's list of SGEs.
#[doc(alias = "MLX5_INVALID_LKEY")]
pub const INVALID_LKEY: u32 = 0x100;

/// Flag in the byte count of an inline segment: the data follow.
const INLINE: u32 = 1 << 31;

/// Flag in the destination QPN of an address vector: the vector has 48 bytes.
const EXTENDED_AV: u32 = 1 << 31;

/// Four big-endian words in memory order.
#[inline(always)]
const fn words(a: u32, b: u32, c: u32, d: u32) -> Segment {
    [((a as u64) << 32 | b as u64).to_be(), ((c as u64) << 32 | d as u64).to_be()]
}

/// The bytes of a segment.
#[must_use]
pub fn bytes(segment: Segment) -> [u8; SEGMENT] {
    let mut bytes = [0; SEGMENT];
    bytes[..8].copy_from_slice(&segment[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&segment[1].to_ne_bytes());
    bytes
}

/// Operation of a send WQE: the low byte of the control segment's first word.
#[doc(alias = "MLX5_OPCODE_NOP")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode(pub u8);

impl Opcode {
    /// No operation; it completes.
    pub const NOP: Self = Self(0x00);
    /// A send that invalidates an rkey of the responder.
    pub const SEND_INVAL: Self = Self(0x01);
    /// An RDMA write.
    pub const RDMA_WRITE: Self = Self(0x08);
    /// An RDMA write with immediate data.
    pub const RDMA_WRITE_IMM: Self = Self(0x09);
    /// A send.
    pub const SEND: Self = Self(0x0a);
    /// A send with immediate data.
    pub const SEND_IMM: Self = Self(0x0b);
    /// A large send (TCP segmentation offload).
    pub const TSO: Self = Self(0x0e);
    /// An RDMA read.
    pub const RDMA_READ: Self = Self(0x10);
    /// A compare and swap.
    pub const ATOMIC_CS: Self = Self(0x11);
    /// A fetch and add.
    pub const ATOMIC_FA: Self = Self(0x12);
    /// A memory key (mkey) update: bind and invalidation of windows.
    pub const UMR: Self = Self(0x25);
}

bitflags::bitflags! {
    /// Fence, CQE and solicited bits: byte 11 of the control segment.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ControlFlags: u8 {
        /// Raise a solicited event at the receiver.
        #[doc(alias = "MLX5_WQE_CTRL_SOLICITED")]
        const SOLICITED = 1 << 1;
        /// Write a CQE.
        #[doc(alias = "MLX5_WQE_CTRL_CQ_UPDATE")]
        const CQ_UPDATE = 2 << 2;
        /// Start after earlier mkey updates of this queue.
        #[doc(alias = "MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE")]
        const INITIATOR_SMALL_FENCE = 1 << 5;
        /// Start after earlier reads and atomics of this queue, and after those of the small fence.
        #[doc(alias = "MLX5_WQE_CTRL_FENCE")]
        const FENCE = 4 << 5;
    }
}

/// The control segment, the first segment of every send WQE.
#[doc(alias = "mlx5_wqe_ctrl_seg")]
#[derive(Clone, Copy, Debug)]
pub struct Control {
    /// Operation.
    pub opcode: Opcode,
    /// WQE counter: the index of the WQE's first block, modulo 2^16.
    pub index: u16,
    /// QPN, 24 bits.
    pub qp_num: u32,
    /// Segments of the whole WQE, the control segment included (`ds`); at most 63.
    pub segments: u8,
    /// Fence, CQE and solicited bits.
    pub flags: ControlFlags,
    /// Immediate data, the rkey to invalidate, or the mkey that a UMR changes; in memory order.
    pub imm: u32,
}

impl Control {
    /// The segment in memory order.
    #[doc(alias = "mlx5dv_set_ctrl_seg")]
    #[must_use]
    #[inline(always)]
    pub const fn segment(&self) -> Segment {
        words(
            (self.index as u32) << 8 | self.opcode.0 as u32,
            self.qp_num << 8 | self.segments as u32,
            self.flags.bits() as u32,
            u32::from_be(self.imm),
        )
    }
}

/// The remote address segment of an RDMA operation or an atomic.
#[doc(alias = "mlx5_wqe_raddr_seg")]
#[must_use]
#[inline(always)]
pub const fn remote_address(remote: Remote) -> Segment {
    words((remote.addr >> 32) as u32, remote.addr as u32, remote.rkey, 0)
}

/// The XRC segment: the SRQ number of the peer's XRC domain, 24 bits. It follows the control
/// segment of every WQE of an XRC queue pair.
#[doc(alias = "mlx5_wqe_xrc_seg")]
#[must_use]
#[inline(always)]
pub const fn xrc(srq_num: u32) -> Segment {
    words(srq_num, 0, 0, 0)
}

/// The Ethernet segment of a frame. It follows the control segment. The `header` first bytes of the
/// frame begin in its last two bytes. With `checksums`, the device fills in the outer IP checksum
/// and the checksum of the layer 4 header behind it. `mss` is 0, or for [`Opcode::TSO`] the maximum
/// bytes of a TCP segment.
#[doc(alias = "mlx5_wqe_eth_seg")]
#[doc(alias = "mlx5dv_set_eth_seg")]
#[must_use]
#[inline(always)]
pub const fn ethernet(checksums: bool, mss: u16, header: u16) -> Segment {
    // MLX5_ETH_WQE_L3_CSUM and MLX5_ETH_WQE_L4_CSUM.
    let flags = if checksums { 0xc0 << 24 } else { 0 };
    words(0, flags | mss as u32, 0, (header as u32) << 16)
}

/// Maximum inline header bytes of an Ethernet segment.
pub const MAX_HEADER: u16 = 0x3ff;

/// Maximum MSS of an Ethernet segment, in bytes.
pub const MAX_MSS: u16 = 0x3fff;

/// Offset of the inline header in an Ethernet segment.
pub(crate) const HEADER_START: usize = SEGMENT - 2;

/// Segments of an Ethernet segment with an inline header of `length` bytes.
#[must_use]
#[inline(always)]
pub const fn header_segments(length: usize) -> usize {
    (HEADER_START + length).div_ceil(SEGMENT)
}

/// The atomic segment: the value to swap in or add, and the value to compare with.
#[doc(alias = "mlx5_wqe_atomic_seg")]
#[must_use]
#[inline(always)]
pub const fn atomic(swap_or_add: u64, compare: u64) -> Segment {
    [swap_or_add.to_be(), compare.to_be()]
}

/// The data segment of an SGE of 1 to 2^31 bytes. A byte count of 0 means 2^31, and the highest bit
/// marks inline data.
#[doc(alias = "mlx5_wqe_data_seg")]
#[doc(alias = "mlx5dv_set_data_seg")]
#[must_use]
#[inline(always)]
pub const fn data(sge: Sge) -> Segment {
    words(sge.length & !INLINE, sge.lkey, (sge.addr >> 32) as u32, sge.addr as u32)
}

/// Writes the data segment word by word. So an SGE whose fields are in CPU registers need not be
/// assembled first.
///
/// # Safety
///
/// There must be room for a segment at `to`, aligned to 8.
#[inline(always)]
pub(crate) unsafe fn write_data(to: *mut Segment, sge: &Sge) {
    let words = to.cast::<u32>();
    // SAFETY: this function's contract.
    unsafe {
        words.write(sge.length.to_be());
        words.add(1).write(sge.lkey.to_be());
        words.add(2).cast::<u64>().write(sge.addr.to_be());
    }
}

/// The next segment, the first of an SRQ WQE: the index of the next slot in the free list, as a
/// big-endian word of 2 bytes at offset 2.
#[doc(alias = "mlx5_wqe_srq_next_seg")]
#[must_use]
#[inline(always)]
pub const fn link(next: u32) -> Segment {
    [((next as u64) << 32).to_be(), 0]
}

/// The data segment that ends the list of SGEs of a receive, if the slot has room for more.
#[must_use]
#[inline(always)]
pub const fn end_of_list() -> Segment {
    words(0, INVALID_LKEY, 0, 0)
}

/// The header of inline data of `length` bytes: 4 bytes, in memory order.
#[doc(alias = "mlx5_wqe_inline_seg")]
#[must_use]
#[inline(always)]
pub const fn inline_header(length: u32) -> u32 {
    (INLINE | length).to_be()
}

/// Segments of `length` bytes of inline data with their header; 0 for 0 bytes.
#[must_use]
#[inline(always)]
pub const fn inline_segments(length: usize) -> usize {
    if length == 0 { 0 } else { (length + 4).div_ceil(SEGMENT) }
}

/// The part of an address vector that all datagrams to a destination share.
#[doc(alias = "mlx5_wqe_av")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// Static rate (4 bits), service level, path bits, and DLID or UDP source port: bytes 12 to 15.
    pub path: u32,
    /// Destination MAC address of the next hop: bytes 20 to 25.
    pub rmac: [u8; 6],
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Bit 30: GRH present (InfiniBand). Bits 20 to 27: source GID index. Bits 0 to 19: flow label.
    pub grh: u32,
    /// Destination GID.
    pub rgid: [u8; 16],
}

impl AddressVector {
    /// The address vector of a datagram to `qp_num` with its Q_Key.
    #[doc(alias = "mlx5dv_set_dgram_seg")]
    #[must_use]
    #[inline(always)]
    pub const fn segments(&self, qp_num: u32, qkey: u32) -> [Segment; 3] {
        let [m0, m1, m2, m3, m4, m5] = self.rmac;
        let gid = u128::from_be_bytes(self.rgid);
        [
            words(qkey, 0, qp_num | EXTENDED_AV, self.path),
            words(
                0,
                u32::from_be_bytes([m0, m1, m2, m3]),
                u32::from_be_bytes([m4, m5, self.traffic_class, self.hop_limit]),
                self.grh,
            ),
            [((gid >> 64) as u64).to_be(), (gid as u64).to_be()],
        ]
    }
}

/// Segments of a bind to a range, without the control segment.
pub const BIND_SEGMENTS: usize = 11;

/// Segments of an invalidation, or of a bind with length 0, without the control segment.
pub const UNBIND_SEGMENTS: usize = 7;

/// Mkey mask of a UMR control segment: the fields of the mkey that the UMR changes.
#[doc(alias = "MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN")]
mod change {
    pub(super) const LEN: u64 = 1 << 0;
    pub(super) const START_ADDR: u64 = 1 << 6;
    pub(super) const KEY: u64 = 1 << 13;
    pub(super) const QPN: u64 = 1 << 14;
    pub(super) const LOCAL_WRITE: u64 = 1 << 18;
    pub(super) const REMOTE_READ: u64 = 1 << 19;
    pub(super) const REMOTE_WRITE: u64 = 1 << 20;
    pub(super) const ATOMIC: u64 = 1 << 21;
    pub(super) const FREE: u64 = 1 << 29;
    /// Fields that a bind to a range sets.
    pub(super) const RANGE: u64 = LEN | START_ADDR | LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | ATOMIC;
}

/// First byte of a UMR control segment.
#[doc(alias = "MLX5_WQE_UMR_CTRL_FLAG_INLINE")]
mod umr {
    pub(super) const CHECK_QPN: u32 = 1 << 3;
    pub(super) const TRANSLATION_OFFSET: u32 = 1 << 4;
    pub(super) const CHECK_FREE: u32 = 1 << 5;
    pub(super) const INLINE: u32 = 1 << 7;
}

/// First word of an mkey context: the free bit and the access rights.
#[doc(alias = "MLX5_WQE_MKEY_CONTEXT_FREE")]
mod context {
    pub(super) const FREE: u32 = 1 << 30;
    pub(super) const ATOMIC: u32 = 1 << 14;
    pub(super) const REMOTE_WRITE: u32 = 1 << 13;
    pub(super) const REMOTE_READ: u32 = 1 << 12;
    pub(super) const LOCAL_WRITE: u32 = 1 << 11;
    /// In place of a QPN: any QP.
    pub(super) const ANY_QP: u32 = 0xffff_ff00;
}

/// The segments of a bind by `qp_num`, without the control segment: [`BIND_SEGMENTS`] of them, or
/// [`UNBIND_SEGMENTS`] if `bind.length` is 0. The control segment's `imm` is the window's mkey,
/// big-endian.
#[doc(alias = "ibv_wr_bind_mw")]
#[must_use]
pub fn bind(bind: &MwBind, qp_num: u32) -> [Segment; BIND_SEGMENTS] {
    let type_2 = bind.mw_type == MwType::TYPE_2;
    let bound = bind.length != 0;
    let mut flags = umr::TRANSLATION_OFFSET | umr::INLINE;
    let mut changes = change::FREE | change::KEY;
    if type_2 {
        changes |= change::QPN;
        flags |= if bound { umr::CHECK_FREE } else { umr::CHECK_QPN };
    }
    let mut rights = context::FREE;
    if bound {
        changes |= change::RANGE;
        rights = 0;
        for (right, bit) in [
            (AccessFlags::LOCAL_WRITE, context::LOCAL_WRITE),
            (AccessFlags::REMOTE_WRITE, context::REMOTE_WRITE),
            (AccessFlags::REMOTE_READ, context::REMOTE_READ),
            (AccessFlags::REMOTE_ATOMIC, context::ATOMIC),
        ] {
            if bind.access.contains(right) {
                rights |= bit;
            }
        }
    }
    let user = if type_2 && bound { qp_num << 8 } else { context::ANY_QP };
    // The field is the number of entries, rounded up to 8 and halved: 4 for one entry. The inline
    // data have room for 4 entries.
    let entries = if bound { 4 << 16 } else { 0 };
    let start = if bind.access.contains(AccessFlags::ZERO_BASED) { 0 } else { bind.addr };
    let mut segments = [[0; 2]; BIND_SEGMENTS];
    segments[0] = words(flags << 24, entries, (changes >> 32) as u32, changes as u32);
    segments[3] = words(rights, user | bind.rkey & 0xff, 0, 0);
    if bound {
        segments[4] = [start.to_be(), bind.length.to_be()];
        segments[7] = words(bind.length as u32, bind.mr_lkey, (bind.addr >> 32) as u32, bind.addr as u32);
    }
    segments
}

/// The segments of an invalidation, without the control segment: [`UNBIND_SEGMENTS`] of them. The
/// control segment's `imm` is the rkey, big-endian.
#[must_use]
pub fn invalidate(qp_num: u32) -> [Segment; BIND_SEGMENTS] {
    let nothing = MwBind {
        mw_type: MwType::TYPE_2,
        mw_rkey: 0,
        rkey: 0,
        mr_lkey: 0,
        addr: 0,
        length: 0,
        access: AccessFlags::empty(),
    };
    bind(&nothing, qp_num)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_segment_matches_the_prm() {
        let control = Control {
            opcode: Opcode::SEND_IMM,
            index: 0x1234,
            qp_num: 0xabcdef,
            segments: 3,
            flags: ControlFlags::CQ_UPDATE | ControlFlags::SOLICITED,
            imm: 0x0102_0304u32.to_be(),
        };
        let expected = [0, 0x12, 0x34, 0x0b, 0xab, 0xcd, 0xef, 3, 0, 0, 0, 0x0a, 1, 2, 3, 4];
        assert_eq!(bytes(control.segment()), expected);
    }

    #[test]
    fn data_segment_of_2_gib_has_byte_count_zero() {
        let segment = bytes(data(Sge { addr: 0x0102_0304_0506_0708, length: 1 << 31, lkey: 0x090a_0b0c }));
        assert_eq!(segment, [0, 0, 0, 0, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn address_vector_matches_the_prm() {
        let vector = AddressVector {
            path: 0x1122_3344,
            rmac: [1, 2, 3, 4, 5, 6],
            traffic_class: 7,
            hop_limit: 8,
            grh: 0x4010_0009,
            rgid: *b"0123456789abcdef",
        };
        let [first, second, third] = vector.segments(0x2a, 0x1111_1111).map(bytes);
        assert_eq!(first, [0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0, 0x80, 0, 0, 0x2a, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(second, [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x40, 0x10, 0, 9]);
        assert_eq!(&third, b"0123456789abcdef");
    }

    #[test]
    fn ethernet_segment_has_flags_and_mss_in_its_second_word() {
        let segment = bytes(ethernet(true, 0x0578, 54));
        assert_eq!(segment, [0, 0, 0, 0, 0xc0, 0, 5, 0x78, 0, 0, 0, 0, 0, 54, 0, 0]);
        assert_eq!(bytes(ethernet(false, 0, 18))[..13], [0; 13]);
    }

    #[test]
    fn inline_data_and_header_fill_whole_segments() {
        assert_eq!([0, 1, 12, 13, 28, 29].map(inline_segments), [0, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn type_2_windows_are_bound_to_a_qp_and_type_1_to_none() {
        let request = MwBind {
            mw_type: MwType::TYPE_2,
            mw_rkey: 0x1100,
            rkey: 0x1101,
            mr_lkey: 0x2200,
            addr: 0x7000_0000_1000,
            length: 4096,
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
        };
        let segments = bind(&request, 0x33).map(bytes);
        // Flags: inline, translation offset, check free. Four entries of 16 bytes.
        assert_eq!(segments[0], [0xb0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0x3c, 0x60, 0x41]);
        assert_eq!(segments[3][..8], [0, 0, 0x30, 0, 0, 0, 0x33, 1]);
        assert_eq!(segments[4], [0, 0, 0x70, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        assert_eq!(segments[7], [0, 0, 0x10, 0, 0, 0, 0x22, 0, 0, 0, 0x70, 0, 0, 0, 0x10, 0]);

        let segments = bind(&MwBind { mw_type: MwType::TYPE_1, ..request }, 0x33).map(bytes);
        assert_eq!(segments[0][0], 0x90);
        assert_eq!(segments[0][8..], [0, 0, 0, 0, 0x20, 0x3c, 0x20, 0x41]);
        assert_eq!(segments[3][4..8], [0xff, 0xff, 0xff, 1]);
    }

    #[test]
    fn invalidation_frees_the_mkey_and_checks_the_qpn() {
        let segments = invalidate(0x33).map(bytes);
        assert_eq!(segments[0], [0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0x60, 0]);
        assert_eq!(segments[3][..8], [0x40, 0, 0, 0, 0xff, 0xff, 0xff, 0]);
        assert!(segments[4..].iter().all(|segment| *segment == [0; SEGMENT]));
    }
}
