//! The memory that both halves of a QP share, and the layout of its rings.

use bareverbs_provider::command::QpBuffers;
use bareverbs_provider::error::{CreateError, Limit};
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::queue_buffer::QueueBuffer;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};
use std::ptr::NonNull;

use crate::doorbell::{DoorbellRecord, PAGE};
use crate::uidx_table::{QueueRecordRef, Side};
use crate::wqe::{self, BLOCK, SEGMENT};

/// The rings and the doorbell record of a QP. The second half frees them when it is dropped, after
/// the kernel has destroyed the QP.
#[derive(Debug)]
pub(crate) struct QpMemory {
    rings: Mapping,
    doorbell: DoorbellRecord,
    record: QueueRecordRef,
}

impl QpMemory {
    pub(crate) fn new(rings: Mapping, doorbell: DoorbellRecord, record: QueueRecordRef) -> Self {
        Self { rings, doorbell, record }
    }

    /// Address of the rings, which have at least `bytes` bytes.
    pub(crate) fn ring(&self, bytes: usize) -> NonNull<u8> {
        assert!(bytes <= self.rings.len(), "the rings lie in their memory");
        self.rings.as_ptr()
    }

    pub(crate) fn record(&self) -> &DoorbellRecord {
        &self.doorbell
    }
}

impl Drop for QpMemory {
    fn drop(&mut self) {
        for side in [Side::Send, Side::Recv] {
            self.record.cq(side).retire(&self.record, side);
        }
    }
}

/// Maximum depth of a receive queue: the device counts receives by 16 bits.
const MAX_RECEIVES: u32 = 1 << 15;

/// Maximum blocks of a send queue: doorbell records and CQEs count blocks by 16 bits.
const MAX_SEND_BLOCKS: u32 = 1 << 15;

/// Maximum bytes of a send WQE. The control segment counts segments by 8 bits, and a WQE fills
/// whole blocks.
const MAX_SEND: u32 = (u8::MAX as usize * SEGMENT / BLOCK * BLOCK) as u32;

/// The device's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum bytes of a send WQE.
    pub(crate) send_bytes: u32,
    /// Maximum bytes of a receive WQE.
    pub(crate) recv_bytes: u32,
    /// Maximum blocks of a send queue.
    pub(crate) send_blocks: u32,
    /// Maximum receives of a queue.
    pub(crate) receives: u32,
}

/// Layout of a receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveLayout {
    /// Slots, a power of 2.
    pub(crate) slots: u32,
    /// Log2 of the bytes of a slot.
    pub(crate) shift: u32,
    /// SGEs of a slot.
    pub(crate) sge: u32,
}

impl ReceiveLayout {
    /// The layout for at least `max_wr` receives of `max_sge` SGEs. `max_wr` must not be 0.
    ///
    /// Fails with `CreateError::Limit` if the device's limits do not permit it.
    pub(crate) fn new(max_wr: u32, max_sge: u32, limits: Limits) -> Result<Self, CreateError> {
        let limit = |limit, asked: u32, max| CreateError::Limit { limit, asked: asked.into(), max };
        let bytes = (u64::from(max_sge.max(1)) * SEGMENT as u64).next_power_of_two();
        if bytes > limits.recv_bytes.into() {
            return Err(limit(Limit::MaxRecvSge, max_sge, u64::from(limits.recv_bytes) / SEGMENT as u64));
        }
        let most = limits.receives.min(MAX_RECEIVES);
        if max_wr > most {
            return Err(limit(Limit::MaxRecvWr, max_wr, most.into()));
        }
        // The ring has at least the size of one block.
        let slots = u64::from(max_wr).next_power_of_two().max(BLOCK as u64 / bytes);
        Ok(Self { slots: slots as u32, shift: bytes.trailing_zeros(), sge: (bytes / SEGMENT as u64) as u32 })
    }

    /// Bytes of the ring.
    pub(crate) fn bytes(&self) -> usize {
        (self.slots as usize) << self.shift
    }

    /// Log2 of the segments of a slot.
    pub(crate) fn log_segments(&self) -> u32 {
        self.shift - SEGMENT.trailing_zeros()
    }
}

/// What the layout of a QP's rings depends on, besides its capacities.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// Segments before the data of a send: the control segment and the segments of the longest operation.
    head: u32,
    /// Whether there are WQEs of a bind, which is longer than others.
    binds: bool,
    /// Whether the kernel registers the rings separately.
    separate: bool,
}

impl Form {
    /// A QP of IPoIB. Address vector, pad and the Ethernet segment with 18 bytes of the datagram come before
    /// the data.
    const IPOIB: Self = Self { head: 7, binds: false, separate: true };

    /// Any other QP of this type.
    fn of(qp_type: QpType) -> Self {
        let head = match qp_type {
            QpType::UD => 4,
            // XRC segment, remote address segment and atomic segment.
            QpType::XRC_INI => 4,
            // The Ethernet segment and the inline header.
            QpType::RAW_PACKET => 3,
            // The remote address segment and the atomic segment.
            _ => 3,
        };
        let binds = matches!(qp_type, QpType::RC | QpType::UC);
        Self { head, binds, separate: qp_type == QpType::RAW_PACKET }
    }
}

/// Layout of a QP's rings: the receive ring, then the send ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Slots of the receive ring, a power of 2; 0 without a receive ring.
    pub(crate) recv_slots: u32,
    /// Log2 of the bytes of a receive slot.
    pub(crate) recv_shift: u32,
    /// SGEs of a receive slot.
    pub(crate) recv_sge: u32,
    /// Blocks of the send ring, a power of 2.
    pub(crate) send_blocks: u32,
    /// Sends of any length that always fit.
    pub(crate) sends: u32,
    /// Maximum SGEs of a send.
    pub(crate) send_sge: u32,
    /// Maximum bytes of inline data.
    pub(crate) inline: u32,
    /// Alignment of the send ring, in bytes.
    send_align: usize,
}

impl Layout {
    /// The layout for at least `cap`, with TSO headers of at most `tso_header` bytes. With
    /// `no_receives` there is no receive ring.
    ///
    /// Fails with `CreateError::Limit` if the device's limits do not permit it.
    pub(crate) fn new(
        qp_type: QpType,
        cap: &QpCap,
        tso_header: u16,
        no_receives: bool,
        limits: Limits,
    ) -> Result<Self, CreateError> {
        Self::of(Form::of(qp_type), cap, tso_header, no_receives, limits)
    }

    /// The layout of a UD QP with a source QPN, whose datagrams are those of IPoIB; else as [`Layout::new`].
    pub(crate) fn ipoib(cap: &QpCap, no_receives: bool, limits: Limits) -> Result<Self, CreateError> {
        Self::of(Form::IPOIB, cap, 0, no_receives, limits)
    }

    fn of(
        form: Form,
        cap: &QpCap,
        tso_header: u16,
        no_receives: bool,
        limits: Limits,
    ) -> Result<Self, CreateError> {
        let limit = |limit, asked: u32, max| CreateError::Limit { limit, asked: asked.into(), max };
        let limits = Limits { send_bytes: limits.send_bytes.min(MAX_SEND), ..limits };
        let head = u64::from(form.head);
        let sge = cap.max_send_sge.max(1);
        let segments = u64::from(sge).max(wqe::inline_segments(cap.max_inline_data as usize) as u64) + head;
        let key_change = if form.binds { 1 + wqe::BIND_SEGMENTS as u64 } else { 0 };
        let whole_blocks = |segments: u64| (segments * SEGMENT as u64).next_multiple_of(BLOCK as u64);
        let bytes = whole_blocks(segments.max(key_change));
        if bytes > limits.send_bytes.into() {
            let room = u64::from(limits.send_bytes).saturating_sub(head * SEGMENT as u64);
            return Err(if wqe::inline_segments(cap.max_inline_data as usize) > sge as usize {
                limit(Limit::MaxInlineData, cap.max_inline_data, room.saturating_sub(4))
            } else {
                limit(Limit::MaxSendSge, sge, room / SEGMENT as u64)
            });
        }
        // A TSO WQE has the inline header and up to `sge` SGEs.
        let before_header = 1 + u64::from(sge);
        let large = match tso_header {
            0 => 0,
            header => whole_blocks(before_header + wqe::header_segments(header.into()) as u64),
        };
        if large > limits.send_bytes.into() || tso_header > wqe::MAX_HEADER {
            let used = before_header * SEGMENT as u64 + wqe::HEADER_START as u64;
            let room = u64::from(limits.send_bytes).saturating_sub(used);
            return Err(limit(Limit::MaxTsoHeader, tso_header.into(), room.min(wqe::MAX_HEADER.into())));
        }
        let bytes = bytes.max(large);
        let blocks_each = bytes / BLOCK as u64;
        let blocks = (u64::from(cap.max_send_wr.max(1)) * blocks_each).next_power_of_two();
        let max_blocks = limits.send_blocks.min(MAX_SEND_BLOCKS);
        if blocks > max_blocks.into() {
            let most = u64::from(max_blocks) / blocks_each;
            return Err(limit(Limit::MaxSendWr, cap.max_send_wr, most));
        }
        let room = bytes / SEGMENT as u64 - head;

        let receives = if no_receives || cap.max_recv_wr == 0 {
            ReceiveLayout { slots: 0, shift: SEGMENT.trailing_zeros(), sge: 0 }
        } else {
            ReceiveLayout::new(cap.max_recv_wr, cap.max_recv_sge, limits)?
        };
        Ok(Self {
            recv_slots: receives.slots,
            recv_shift: receives.shift,
            recv_sge: receives.sge,
            send_blocks: blocks as u32,
            sends: (blocks / blocks_each) as u32,
            send_sge: sge,
            inline: (room * SEGMENT as u64 - 4) as u32,
            send_align: if form.separate { PAGE } else { BLOCK },
        })
    }

    /// `rq_wqe_shift` of the create request. It is 0 without a receive ring, because the kernel
    /// rejects other values then (`create_user_qp` of its `qp.c`).
    pub(crate) fn rq_wqe_shift(&self) -> u32 {
        if self.recv_slots == 0 { 0 } else { self.recv_shift }
    }

    /// Offset of the send ring, in bytes.
    pub(crate) fn send_offset(&self) -> usize {
        ((self.recv_slots as usize) << self.recv_shift).next_multiple_of(self.send_align)
    }

    /// Whether the kernel takes the rings separately, as it does for QPs that it makes of an SQ and an RQ
    /// (`mlx5_qp_buf_attr` and `create_raw_packet_qp_sq` of its `qp.c`).
    pub(crate) fn is_separate(&self) -> bool {
        self.send_align == PAGE
    }

    /// The parts of `buffer` that have the rings.
    pub(crate) fn buffers(&self, buffer: &QueueBuffer) -> QpBuffers {
        if !self.is_separate() {
            return QpBuffers::Both(buffer.desc(0, self.bytes()));
        }
        let recv = (self.recv_slots as usize) << self.recv_shift;
        QpBuffers::Each {
            recv: (recv > 0).then(|| buffer.desc(0, recv)),
            send: buffer.desc(self.send_offset(), self.send_blocks as usize * BLOCK),
        }
    }

    /// Bytes of both rings.
    pub(crate) fn bytes(&self) -> usize {
        self.send_offset() + self.send_blocks as usize * BLOCK
    }

    /// The QP capabilities of the layout.
    pub(crate) fn cap(&self) -> QpCap {
        QpCap {
            max_send_wr: self.sends,
            max_recv_wr: self.recv_slots,
            max_send_sge: self.send_sge,
            max_recv_sge: self.recv_sge,
            max_inline_data: self.inline,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits =
        Limits { send_bytes: 1024, recv_bytes: 512, send_blocks: 1 << 15, receives: 1 << 15 };

    fn cap(max_send_wr: u32, max_send_sge: u32, max_inline_data: u32) -> QpCap {
        QpCap { max_send_wr, max_recv_wr: 100, max_send_sge, max_recv_sge: 1, max_inline_data }
    }

    #[test]
    fn mw_bind_fits_in_rc_send_queues() {
        let layout = Layout::new(QpType::RC, &cap(100, 1, 0), 0, false, LIMITS).expect("small");
        assert_eq!((layout.send_blocks, layout.sends), (512, 170));
        assert_eq!(layout.inline, 9 * 16 - 4);
    }

    #[test]
    fn receive_ring_is_at_least_one_block() {
        let small = QpCap { max_recv_wr: 1, ..cap(1, 1, 0) };
        let layout = Layout::new(QpType::RC, &small, 0, false, LIMITS).expect("small");
        assert_eq!((layout.recv_slots, layout.send_offset()), (4, 64));
    }

    #[test]
    fn qp_with_srq_has_no_receive_ring() {
        let layout = Layout::new(QpType::UC, &cap(8, 1, 0), 0, true, LIMITS).expect("small");
        assert_eq!((layout.recv_slots, layout.recv_sge, layout.send_offset()), (0, 0, 0));
        assert_eq!(layout.rq_wqe_shift(), 0);
    }

    #[test]
    fn raw_packet_rings_are_described_separately() {
        let memory = Mapping::anonymous(1 << 16).unwrap();
        let start = memory.as_ptr();
        // SAFETY: the mapping keeps its bytes at their address.
        let buffer = unsafe { QueueBuffer::new(start, 1 << 16, Box::new(memory)) }.unwrap();
        let layout = |qp_type, no_receives| {
            Layout::new(qp_type, &cap(8, 1, 0), 0, no_receives, LIMITS).expect("small")
        };
        let connected = layout(QpType::RC, false);
        let both = buffer.desc(0, 128 * 16 + 32 * 64);
        assert_eq!(connected.buffers(&buffer), QpBuffers::Both(both));
        let raw = layout(QpType::RAW_PACKET, false).buffers(&buffer);
        let (recv, send) = (buffer.desc(0, 128 * 16), buffer.desc(4096, 8 * 64));
        assert_eq!(raw, QpBuffers::Each { recv: Some(recv), send });
        let raw = layout(QpType::RAW_PACKET, true).buffers(&buffer);
        assert_eq!(raw, QpBuffers::Each { recv: None, send: buffer.desc(0, 8 * 64) });
    }

    #[test]
    fn ipoib_wqe_has_room_for_the_pad_and_the_ethernet_segment() {
        let layout = Layout::ipoib(&cap(8, 1, 12), false, LIMITS).expect("small");
        // Control segment, address vector, pad, two segments of Ethernet and one of data fill two blocks.
        assert_eq!((layout.send_blocks, layout.sends, layout.inline), (16, 8, 12));
        assert!(layout.is_separate());
        assert_eq!((layout.recv_slots, layout.send_offset()), (128, 4096));
        let next = Layout::ipoib(&cap(8, 1, 13), true, LIMITS).expect("small");
        assert_eq!((next.send_blocks, next.inline, next.send_offset()), (32, 76, 0));
    }

    #[test]
    fn xrc_wqe_has_room_for_the_xrc_segment() {
        let layout = Layout::new(QpType::XRC_INI, &cap(8, 1, 12), 0, true, LIMITS).expect("small");
        // Control, XRC, remote address and atomic segments fill one block. 12 bytes of inline data
        // with their header are one segment of the next block.
        assert_eq!((layout.send_blocks, layout.sends, layout.inline), (16, 8, 60));
    }

    #[test]
    fn tso_wqe_has_room_for_header_and_all_sges() {
        let plain = Layout::new(QpType::RAW_PACKET, &cap(8, 2, 0), 0, true, LIMITS).expect("small");
        let large = |header| Layout::new(QpType::RAW_PACKET, &cap(8, 2, 0), header, true, LIMITS);
        assert_eq!(large(18), Ok(plain), "what every frame has room for");
        // The control segment, 5 segments for the 54-byte header and 2 SGEs fill exactly two
        // blocks.
        assert_eq!(large(54).map(|layout| (layout.send_blocks, layout.sends)), Ok((16, 8)));
        assert_eq!(large(67).map(|layout| (layout.send_blocks, layout.sends)), Ok((32, 10)));
        let refused = CreateError::Limit { limit: Limit::MaxTsoHeader, asked: 963, max: 962 };
        assert_eq!((large(962).map(|layout| layout.sends), large(963)), (Ok(8), Err(refused)));
    }

    #[test]
    fn send_wqe_fits_the_8_bit_ds_count() {
        let huge = Limits { send_bytes: u16::MAX.into(), ..LIMITS };
        let layout = |sges, inline| Layout::new(QpType::RC, &cap(1, sges, inline), 0, false, huge);
        let refused = |limit, asked, max| Err(CreateError::Limit { limit, asked, max });
        assert_eq!(layout(249, 0).map(|layout| layout.send_sge), Ok(249));
        assert_eq!(layout(250, 0), refused(Limit::MaxSendSge, 250, 249));
        assert_eq!(layout(1, 3980).map(|layout| layout.inline), Ok(3980));
        assert_eq!(layout(1, 3981), refused(Limit::MaxInlineData, 3981, 3980));
    }

    #[test]
    fn send_ring_fits_the_16_bit_wqe_counter() {
        let limits = Limits { send_blocks: 1 << 20, ..LIMITS };
        let layout = |sends| Layout::new(QpType::UD, &cap(sends, 1, 0), 0, true, limits);
        assert_eq!(layout(1 << 14).map(|layout| layout.send_blocks), Ok(1 << 15));
        assert!(matches!(layout(1 << 15), Err(CreateError::Limit { limit: Limit::MaxSendWr, .. })));
    }

    #[test]
    fn layout_beyond_device_limits_is_rejected() {
        assert!(Layout::new(QpType::RC, &cap(1, 62, 0), 0, false, LIMITS).is_err());
        assert!(Layout::new(QpType::RC, &cap(1, 1, 977), 0, false, LIMITS).is_err());
        assert!(Layout::new(QpType::RC, &cap(1, 1, u32::MAX), 0, false, LIMITS).is_err());
        let refused = Layout::new(QpType::UD, &cap(1, 1, 2000), 0, false, LIMITS);
        assert_eq!(refused, Err(CreateError::Limit { limit: Limit::MaxInlineData, asked: 2000, max: 956 }));
        assert!(Layout::new(QpType::UD, &cap(1, 1, 956), 0, false, LIMITS).is_ok());
        assert!(Layout::new(QpType::RC, &cap(u32::MAX, 1, 0), 0, false, LIMITS).is_err());
    }

    proptest! {
        #[test]
        fn layout_holds_the_requested_caps(
            wr in 1u32..20000, recv in 0u32..40000, sge in 0u32..40, recv_sge in 0u32..40, inline in 0u32..1200,
            ud in any::<bool>(),
        ) {
            let cap = QpCap {
                max_send_wr: wr, max_recv_wr: recv, max_send_sge: sge, max_recv_sge: recv_sge, max_inline_data: inline,
            };
            let qp_type = if ud { QpType::UD } else { QpType::RC };
            if let Ok(layout) = Layout::new(qp_type, &cap, 0, false, LIMITS) {
                let has = layout.cap();
                prop_assert!(has.max_send_wr >= wr && has.max_recv_wr >= recv);
                prop_assert!(has.max_send_sge >= sge && has.max_inline_data >= inline);
                prop_assert!(recv == 0 || has.max_recv_sge >= recv_sge);
                let head = if ud { 4 } else { 3 };
                let longest = (head + (sge as usize).max(wqe::inline_segments(has.max_inline_data as usize))) * SEGMENT;
                prop_assert!(longest.div_ceil(BLOCK) * layout.sends as usize <= layout.send_blocks as usize);
                prop_assert!(layout.send_blocks.is_power_of_two());
            }
        }
    }
}

#[cfg(test)]
mod exhaustive;
