//! Parser of untrusted send WQEs (`include/linux/mlx5/qp.h`).

use bareverbs_transport::{AddressVector, Fence, Segment, Sge};

use super::layout::{address, atomic, be32, be64, control, data, ethernet, remote, xrc};
use super::mkey::TERMINATE_SCATTER_LIST_MKEY;
use super::packet::{ExtendedAtomicMasks, Transport};
use super::service::Service;

/// Bytes of a basic block of an SQ.
pub(crate) const BLOCK: usize = 64;

/// Bytes of the pad between address vector and Ethernet segment of an IPoIB WQE (`mlx5_wqe_eth_pad`).
const ETHERNET_PAD: usize = 16;

/// WQE opcodes (`MLX5_OPCODE_*` in `include/linux/mlx5/device.h`).
pub(crate) mod opcode {
    pub(crate) const NOP: u8 = 0x00;
    pub(crate) const SEND_INVALIDATE: u8 = 0x01;
    pub(crate) const WRITE: u8 = 0x08;
    pub(crate) const WRITE_IMMEDIATE: u8 = 0x09;
    pub(crate) const SEND: u8 = 0x0a;
    pub(crate) const SEND_IMMEDIATE: u8 = 0x0b;
    pub(crate) const LARGE_SEND: u8 = 0x0e;
    pub(crate) const READ: u8 = 0x10;
    pub(crate) const COMPARE_SWAP: u8 = 0x11;
    pub(crate) const FETCH_ADD: u8 = 0x12;
    pub(crate) const MASKED_COMPARE_SWAP: u8 = 0x14;
    pub(crate) const MASKED_FETCH_ADD: u8 = 0x15;
    pub(crate) const UMR: u8 = 0x25;
}

/// An operation without packets of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Local {
    #[default]
    Nop,
    Umr,
    Frame(Frame),
}

/// A parsed WQE. `bytes` holds the whole WQE.
pub(crate) type Work = bareverbs_transport::Work<Local>;
type Action = bareverbs_transport::Action<Local>;

/// Parameters of an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) checksum: u8,
    /// Bytes of inline headers in the Ethernet segment.
    pub(crate) header: u16,
    /// The MSS of a TSO send.
    pub(crate) segment: Option<u16>,
}

/// The fence of a WQE (`MLX5_FENCE_MODE_*` in `include/linux/mlx5/qp.h`).
fn fence(bits: u8) -> Option<Fence> {
    Some(match bits {
        // 1 is the small fence, which waits for earlier UMRs. They execute in order, so none is
        // ever outstanding.
        0 | 1 => Fence::None,
        // With or without the small fence.
        2 | 4 => Fence::Responses,
        3 => Fence::Everything,
        _ => return None,
    })
}

/// A WQE in execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SendWqe {
    pub(crate) index: u16,
    pub(crate) blocks: u16,
    pub(crate) opcode: u8,
}

/// A malformed WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The number of basic blocks of the WQE with this control segment.
pub(crate) fn blocks(bytes: &[u8; control::SIZE]) -> u16 {
    u16::from(units(bytes)).div_ceil(4).max(1)
}

/// The number of 16-byte units of the WQE (DS).
pub(crate) fn units(bytes: &[u8; control::SIZE]) -> u8 {
    bytes[control::QPN_DS + 3] & 0x3f
}

impl SendWqe {
    /// The WQE with this index and control segment.
    pub(crate) fn new(index: u16, bytes: &[u8; control::SIZE]) -> Self {
        Self { index, blocks: blocks(bytes), opcode: bytes[control::OPMOD_IDX_OPCODE + 3] }
    }

    /// The index of the next WQE.
    pub(crate) fn end(self) -> u16 {
        self.index.wrapping_add(self.blocks)
    }

    /// Sets the fields of `work` that are in the control segment.
    pub(crate) fn begin(work: &mut Work, index: u16, bytes: &[u8; control::SIZE]) -> Self {
        let flags = bytes[control::FM_CE_SE];
        work.signaled = flags & 0x0c >= 0x08;
        work.solicited = flags & 0x02 != 0;
        work.fence = fence(flags >> 5).unwrap_or(Fence::None);
        work.immediate = be32(bytes, control::IMM);
        work.segments.clear();
        work.length = 0;
        Self::new(index, bytes)
    }

    /// Checks the index, QPN and reserved bits of the control segment.
    pub(crate) fn check_control(self, work: &Work, qp: u32) -> Result<(), Malformed> {
        /// Reserved bits of the flag byte. `RESERVED_UNITS` are those of the DS byte.
        const RESERVED_FLAGS: u8 = 0x11;
        const RESERVED_UNITS: u8 = 0xc0;
        let bytes = slice(work, 0, control::SIZE)?;
        let (place, owner) = (be32(bytes, control::OPMOD_IDX_OPCODE), be32(bytes, control::QPN_DS));
        let flags = bytes[control::FM_CE_SE];
        let sound = place >> 8 == u32::from(self.index)
            && owner >> 8 == qp
            && owner as u8 & RESERVED_UNITS == 0
            && flags & RESERVED_FLAGS == 0
            && fence(flags >> 5).is_some();
        if sound { Ok(()) } else { Err(Malformed) }
    }

    /// Parses `work.bytes`, the whole WQE with its control segment.
    pub(crate) fn parse(self, work: &mut Work, service: Service) -> Result<(), Malformed> {
        use opcode::{
            COMPARE_SWAP, FETCH_ADD, LARGE_SEND, MASKED_COMPARE_SWAP, MASKED_FETCH_ADD, NOP, READ, SEND,
            SEND_IMMEDIATE, SEND_INVALIDATE, UMR, WRITE, WRITE_IMMEDIATE,
        };
        let mut at = control::SIZE;
        work.action = match (self.opcode, service) {
            (NOP, _) => {
                work.action = Action::Local(Local::Nop);
                return Ok(());
            }
            (UMR, Service::Connected(Transport::Rc | Transport::Xrc) | Service::RegUmr) => {
                work.action = Action::Local(Local::Umr);
                return Ok(());
            }
            (SEND | LARGE_SEND, Service::Ethernet) => return self.parse_frame(work),
            (SEND, Service::Connected(_) | Service::Datagram(_) | Service::Ipoib { .. }) => {
                Action::Send { immediate: false, invalidate: false }
            }
            (SEND_IMMEDIATE, Service::Connected(_) | Service::Datagram(_)) => {
                Action::Send { immediate: true, invalidate: false }
            }
            (SEND_INVALIDATE, Service::Connected(Transport::Rc | Transport::Xrc)) => {
                Action::Send { immediate: false, invalidate: true }
            }
            (WRITE, Service::Connected(_)) => Action::Write { immediate: false },
            (WRITE_IMMEDIATE, Service::Connected(_)) => Action::Write { immediate: true },
            (READ, Service::Connected(Transport::Rc | Transport::Xrc)) => Action::Read,
            (
                COMPARE_SWAP | FETCH_ADD | MASKED_COMPARE_SWAP | MASKED_FETCH_ADD,
                Service::Connected(Transport::Rc | Transport::Xrc),
            ) => Action::Atomic { add: matches!(self.opcode, FETCH_ADD | MASKED_FETCH_ADD), masks: None },
            _ => return Err(Malformed),
        };
        if let Service::Datagram(_) | Service::Ipoib { .. } = service {
            work.address = parse_address(slice(work, at, address::SIZE)?)?;
            at += address::SIZE;
        }
        if let Service::Ipoib { .. } = service {
            at = parse_ipoib(work, at)?;
        }
        if let Service::Connected(Transport::Xrc) = service {
            work.srq = be32(slice(work, at, xrc::SIZE)?, xrc::XRC_SRQN) & 0xff_ffff;
            at += xrc::SIZE;
        }
        if matches!(work.action, Action::Write { .. } | Action::Read | Action::Atomic { .. }) {
            let bytes = slice(work, at, remote::SIZE)?;
            if be32(bytes, remote::RESERVED) != 0 {
                return Err(Malformed);
            }
            work.remote = (be64(bytes, remote::RADDR), be32(bytes, remote::RKEY));
            at += remote::SIZE;
        }
        if let Action::Atomic { .. } = work.action {
            at = self.parse_atomic(work, at)?;
        }
        parse_segments(work, at)?;
        match work.action {
            Action::Atomic { .. } if work.length != 8 => Err(Malformed),
            Action::Read | Action::Atomic { .. } => {
                // Responses can't be scattered to inline segments.
                let in_memory = work.segments.iter().all(|segment| matches!(segment, Segment::Memory { .. }));
                if in_memory { Ok(()) } else { Err(Malformed) }
            }
            _ => Ok(()),
        }
    }

    fn parse_atomic(self, work: &mut Work, at: usize) -> Result<usize, Malformed> {
        let operands = slice(work, at, atomic::SIZE)?;
        let (first, second) = (be64(operands, atomic::SWAP_ADD), be64(operands, atomic::COMPARE));
        (work.swap_or_add, work.compare) = (first, second);
        let add = self.opcode == opcode::FETCH_ADD || self.opcode == opcode::MASKED_FETCH_ADD;
        match self.opcode {
            opcode::MASKED_COMPARE_SWAP => {
                let masks = slice(work, at + 16, 16)?;
                let masks = ExtendedAtomicMasks {
                    compares: true,
                    swap_or_boundary: be64(masks, 0),
                    compare: be64(masks, 8),
                };
                work.action = Action::Atomic { add, masks: Some(masks) };
                Ok(at + 32)
            }
            opcode::MASKED_FETCH_ADD => {
                let masks = ExtendedAtomicMasks { compares: false, swap_or_boundary: second, compare: 0 };
                work.action = Action::Atomic { add, masks: Some(masks) };
                Ok(at + 16)
            }
            _ => Ok(at + 16),
        }
    }

    /// Parses the WQE of a frame.
    fn parse_frame(self, work: &mut Work) -> Result<(), Malformed> {
        /// Largest value of the 14-bit MSS.
        const LARGEST_SEGMENT: u16 = 0x3fff;
        let (EthernetSegment { checksum, mss, header }, after) = parse_ethernet(work, control::SIZE)?;
        let segment = match (self.opcode, mss) {
            (opcode::LARGE_SEND, 1..=LARGEST_SEGMENT) => Some(mss),
            (opcode::SEND, 0) => None,
            _ => return Err(Malformed),
        };
        work.action = Action::Local(Local::Frame(Frame { checksum, header, segment }));
        parse_segments(work, after)
    }
}

/// An Ethernet segment without its inline headers.
struct EthernetSegment {
    checksum: u8,
    mss: u16,
    header: u16,
}

/// Parses the Ethernet segment: flags and inline headers. Returns the offset behind it.
fn parse_ethernet(work: &mut Work, from: usize) -> Result<(EthernetSegment, usize), Malformed> {
    let bytes = slice(work, from, ethernet::SIZE)?;
    let short = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (checksum, mss) = (bytes[ethernet::CS_FLAGS], short(ethernet::MSS));
    let header = short(ethernet::INLINE_SIZE) & 0x3ff;
    let inline = usize::from(header);
    if inline > 0 {
        let at = from + ethernet::INLINE_START;
        slice(work, at, inline)?;
        work.segments.push(Segment::Inline { at, length: inline as u32 });
        work.length += inline as u64;
    }
    let after = from + ethernet::SIZE + inline.saturating_sub(2).next_multiple_of(16);
    Ok((EthernetSegment { checksum, mss, header }, after))
}

/// Parses the pad and the Ethernet segment behind the address vector of an IPoIB WQE. Returns the offset
/// behind them. The device reports neither checksums nor large sends of IPoIB.
fn parse_ipoib(work: &mut Work, from: usize) -> Result<usize, Malformed> {
    let is_pad = slice(work, from, ETHERNET_PAD)?.iter().all(|byte| *byte == 0);
    let (EthernetSegment { checksum, mss, .. }, after) = parse_ethernet(work, from + ETHERNET_PAD)?;
    if is_pad && checksum == 0 && mss == 0 { Ok(after) } else { Err(Malformed) }
}

fn parse_segments(work: &mut Work, from: usize) -> Result<(), Malformed> {
    const INLINE: u32 = 0x8000_0000;
    const INLINE_LENGTH: u32 = 0x3ff;
    let mut at = from;
    while at < work.bytes.len() {
        let head = be32(slice(work, at, 4)?, data::BYTE_COUNT);
        if head & INLINE != 0 {
            let length = head & INLINE_LENGTH;
            if head & !(INLINE | INLINE_LENGTH) != 0 {
                return Err(Malformed);
            }
            slice(work, at + 4, length as usize)?;
            work.segments.push(Segment::Inline { at: at + 4, length });
            work.length += u64::from(length);
            at = (at + 4 + length as usize).next_multiple_of(16);
            continue;
        }
        let entry = slice(work, at, data::SIZE)?;
        let (key, address) = (be32(entry, data::LKEY), be64(entry, data::ADDR));
        at += data::SIZE;
        if head == 0 && key == TERMINATE_SCATTER_LIST_MKEY {
            break;
        }
        if head != 0 {
            work.segments.push(Segment::Memory(Sge { key, address, length: head }));
            work.length += u64::from(head);
        }
    }
    Ok(())
}

/// A range of the WQE.
pub(crate) fn slice(work: &Work, at: usize, length: usize) -> Result<&[u8], Malformed> {
    work.bytes.get(at..at.checked_add(length).ok_or(Malformed)?).ok_or(Malformed)
}

fn parse_address(bytes: &[u8]) -> Result<AddressVector, Malformed> {
    if be32(bytes, address::QKEY_RESERVED) != 0 || be32(bytes, address::RESERVED0) != 0 {
        return Err(Malformed);
    }
    let global = be32(bytes, address::GRH_GID_FL);
    Ok(AddressVector {
        qkey: be32(bytes, address::QKEY),
        qp: be32(bytes, address::DQP_DCT) & 0xff_ffff,
        service_level: bytes[address::STAT_RATE_SL] & 0xf,
        lid: u16::from_be_bytes([bytes[address::RLID], bytes[address::RLID + 1]]),
        mac: bytes[address::RMAC..][..6].try_into().unwrap_or_default(),
        traffic_class: bytes[address::TCLASS],
        hop_limit: bytes[address::HOP_LIMIT],
        global: global >> 30 & 1 != 0,
        gid_index: (global >> 20) as u8,
        flow_label: global & 0xf_ffff,
        gid: bytes[address::RGID..][..16].try_into().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 63 units of 16 bytes.
    const MAX_WQE: usize = 63 * 16;
    const RC: Service = Service::Connected(Transport::Rc);

    fn parse(service: Service, bytes: &[u8]) -> Result<Work, Malformed> {
        let mut work = Work { bytes: bytes.to_vec(), ..Work::default() };
        let control: [u8; 16] = bytes[..16].try_into().unwrap();
        SendWqe::begin(&mut work, 0, &control).parse(&mut work, service).map(|()| work)
    }

    fn control(opcode: u8, units: u8) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(units) * 16];
        (bytes[3], bytes[7], bytes[11]) = (opcode, units, 0x08);
        bytes
    }

    #[test]
    fn inline_data_beyond_wqe_is_rejected() {
        let mut bytes = control(opcode::SEND, 2);
        bytes[16..20].copy_from_slice(&0x8000_000cu32.to_be_bytes());
        assert_eq!(parse(RC, &bytes).unwrap().length, 12);
        bytes[16..20].copy_from_slice(&0x8000_000du32.to_be_bytes());
        assert!(parse(RC, &bytes).is_err());
    }

    #[test]
    fn atomic_requires_eight_byte_result() {
        let mut bytes = control(opcode::FETCH_ADD, 4);
        bytes[48..52].copy_from_slice(&8u32.to_be_bytes());
        assert!(parse(RC, &bytes).is_ok());
        bytes[48..52].copy_from_slice(&4u32.to_be_bytes());
        assert!(parse(RC, &bytes).is_err());
    }

    #[test]
    fn mss_requires_tso_opcode() {
        let with = |opcode, size: u16| {
            let mut bytes = control(opcode, 2);
            bytes[22..24].copy_from_slice(&size.to_be_bytes());
            parse(Service::Ethernet, &bytes).is_ok()
        };
        assert!(with(opcode::SEND, 0) && with(opcode::LARGE_SEND, 1) && with(opcode::LARGE_SEND, 0x3fff));
        assert!(!with(opcode::SEND, 1) && !with(opcode::LARGE_SEND, 0) && !with(opcode::LARGE_SEND, 0x4000));
    }

    #[test]
    fn ipoib_wqe_has_address_pad_and_inline_header() {
        const PAD: usize = control::SIZE + address::SIZE;
        const ETHERNET: usize = PAD + ETHERNET_PAD;
        let service = Service::Ipoib { underlay_qp: 5 };
        let with = |opcode, at: usize, byte| {
            let mut bytes = control(opcode, 8);
            bytes[ETHERNET + ethernet::INLINE_SIZE + 1] = 4;
            // The data segment follows the 4 bytes, which end in the segment behind.
            bytes[ETHERNET + 32 + 3] = 10;
            bytes[at] = byte;
            parse(service, &bytes)
        };
        let work = with(opcode::SEND, 0, 0).unwrap();
        let at = ETHERNET + ethernet::INLINE_START;
        assert_eq!((work.length, work.segments.len()), (14, 2));
        assert!(matches!(work.segments[0], Segment::Inline { at: found, length: 4 } if found == at));
        assert!(matches!(work.action, Action::Send { immediate: false, invalidate: false }));
        for at in [PAD, PAD + 15, ETHERNET + ethernet::CS_FLAGS, ETHERNET + ethernet::MSS + 1] {
            assert!(with(opcode::SEND, at, 1).is_err(), "{at}");
        }
        assert!(with(opcode::SEND_IMMEDIATE, 0, 0).is_err() && with(opcode::LARGE_SEND, 0, 0).is_err());
    }

    #[test]
    fn unsupported_opcodes_per_transport_are_rejected() {
        let bytes = control(opcode::READ, 4);
        assert!(parse(Service::Connected(Transport::Uc), &bytes).is_err());
        assert!(parse(Service::Datagram(None), &bytes).is_err());
        assert!(parse(RC, &control(0x3e, 4)).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_wqe_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 16..=MAX_WQE), opcode: u8, which in 0..6) {
            bytes[3] = opcode;
            let service = match which {
                0 => RC,
                1 => Service::Connected(Transport::Xrc),
                2 => Service::Datagram(None),
                3 => Service::Ethernet,
                4 => Service::Ipoib { underlay_qp: 5 },
                _ => Service::RegUmr,
            };
            if let Ok(work) = parse(service, &bytes) {
                let total: u64 = work.segments.iter().map(|segment| u64::from(segment.length())).sum();
                prop_assert_eq!(total, work.length);
            }
        }
    }
}
