//! Parser of untrusted send WQEs (`include/linux/mlx5/qp.h`).

use super::layout::{address, atomic, be32, be64, control, data, ethernet, remote, xrc};
use super::mkey::TERMINATE_SCATTER_LIST_MKEY;
use super::packet::{ExtendedAtomicMasks, Transport};
use super::service::Service;

/// Bytes of a basic block of an SQ.
pub(crate) const BLOCK: usize = 64;

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

/// The operation of a WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Nop,
    Umr,
    Send { immediate: bool, invalidate: bool },
    Write { immediate: bool },
    Read,
    Atomic { add: bool, masks: Option<ExtendedAtomicMasks> },
    Frame(Frame),
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    None,
    /// Waits for earlier UMRs: the "small" fence.
    RegUmr,
    /// Waits for earlier READs and atomics.
    Answers,
    /// Waits for all earlier WQEs.
    Everything,
}

impl Fence {
    fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::None,
            1 => Self::RegUmr,
            // With or without the small fence.
            2 | 4 => Self::Answers,
            3 => Self::Everything,
            _ => return None,
        })
    }
}

/// A segment of the data to send, or of the destination of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Segment {
    Inline { at: usize, length: u32 },
    Memory { key: u32, address: u64, length: u32 },
}

impl Segment {
    pub(crate) fn length(&self) -> u32 {
        match self {
            Self::Inline { length, .. } | Self::Memory { length, .. } => *length,
        }
    }
}

/// The address vector of a datagram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddressVector {
    pub(crate) qkey: u32,
    pub(crate) qp: u32,
    pub(crate) service_level: u8,
    pub(crate) lid: u16,
    pub(crate) mac: [u8; 6],
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) global: bool,
    pub(crate) gid_index: u8,
    pub(crate) flow_label: u32,
    pub(crate) gid: [u8; 16],
}

/// A parsed WQE. Each QP has one and reuses it.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) action: Action,
    pub(crate) opcode: u8,
    pub(crate) index: u16,
    pub(crate) blocks: u16,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: Fence,
    pub(crate) immediate: u32,
    pub(crate) remote: (u64, u32),
    pub(crate) swap_or_add: u64,
    pub(crate) compare: u64,
    pub(crate) srq: u32,
    pub(crate) address: AddressVector,
    pub(crate) segments: Vec<Segment>,
    pub(crate) length: u64,
    /// The bytes of the WQE. Inline segments refer to them.
    pub(crate) bytes: Vec<u8>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            action: Action::Nop,
            opcode: 0,
            index: 0,
            blocks: 1,
            signaled: false,
            solicited: false,
            fence: Fence::None,
            immediate: 0,
            remote: (0, 0),
            swap_or_add: 0,
            compare: 0,
            srq: 0,
            address: AddressVector::default(),
            segments: Vec::new(),
            length: 0,
            bytes: Vec::with_capacity(BLOCK),
        }
    }
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

impl Work {
    /// Sets the fields of the control segment.
    pub(crate) fn begin(&mut self, index: u16, bytes: &[u8; control::SIZE]) {
        let flags = bytes[control::FM_CE_SE];
        self.index = index;
        self.opcode = bytes[control::OPMOD_IDX_OPCODE + 3];
        self.blocks = blocks(bytes);
        self.signaled = flags & 0x0c >= 0x08;
        self.solicited = flags & 0x02 != 0;
        self.fence = Fence::from_bits(flags >> 5).unwrap_or(Fence::None);
        self.immediate = be32(bytes, control::IMM);
        self.segments.clear();
        self.length = 0;
    }

    /// Checks the index, QPN and reserved bits of the control segment.
    pub(crate) fn check_control(&self, qp: u32) -> Result<(), Malformed> {
        /// Reserved bits of the flag byte. `RESERVED_UNITS` are those of the DS byte.
        const RESERVED_FLAGS: u8 = 0x11;
        const RESERVED_UNITS: u8 = 0xc0;
        let bytes = self.slice(0, control::SIZE)?;
        let (place, owner) = (be32(bytes, control::OPMOD_IDX_OPCODE), be32(bytes, control::QPN_DS));
        let flags = bytes[control::FM_CE_SE];
        let sound = place >> 8 == u32::from(self.index)
            && owner >> 8 == qp
            && owner as u8 & RESERVED_UNITS == 0
            && flags & RESERVED_FLAGS == 0
            && Fence::from_bits(flags >> 5).is_some();
        if sound { Ok(()) } else { Err(Malformed) }
    }

    /// Parses `self.bytes`, the whole WQE with its control segment.
    pub(crate) fn parse(&mut self, service: Service) -> Result<(), Malformed> {
        use opcode::{
            COMPARE_SWAP, FETCH_ADD, LARGE_SEND, MASKED_COMPARE_SWAP, MASKED_FETCH_ADD, NOP, READ, SEND,
            SEND_IMMEDIATE, SEND_INVALIDATE, UMR, WRITE, WRITE_IMMEDIATE,
        };
        let mut at = control::SIZE;
        self.action = match (self.opcode, service) {
            (NOP, _) => {
                self.action = Action::Nop;
                return Ok(());
            }
            (UMR, Service::Connected(Transport::Rc | Transport::Xrc) | Service::RegUmr) => {
                self.action = Action::Umr;
                return Ok(());
            }
            (SEND | LARGE_SEND, Service::Ethernet) => return self.parse_frame(),
            (SEND, Service::Connected(_) | Service::Datagram(_)) => {
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
        if let Service::Datagram(_) = service {
            self.address = parse_address(self.slice(at, address::SIZE)?)?;
            at += address::SIZE;
        }
        if let Service::Connected(Transport::Xrc) = service {
            self.srq = be32(self.slice(at, xrc::SIZE)?, xrc::XRC_SRQN) & 0xff_ffff;
            at += xrc::SIZE;
        }
        if matches!(self.action, Action::Write { .. } | Action::Read | Action::Atomic { .. }) {
            let bytes = self.slice(at, remote::SIZE)?;
            if be32(bytes, remote::RESERVED) != 0 {
                return Err(Malformed);
            }
            self.remote = (be64(bytes, remote::RADDR), be32(bytes, remote::RKEY));
            at += remote::SIZE;
        }
        if let Action::Atomic { .. } = self.action {
            at = self.parse_atomic(at)?;
        }
        self.parse_segments(at)?;
        match self.action {
            Action::Atomic { .. } if self.length != 8 => Err(Malformed),
            Action::Read | Action::Atomic { .. } => {
                // Responses can't be scattered to inline segments.
                let in_memory = self.segments.iter().all(|segment| matches!(segment, Segment::Memory { .. }));
                if in_memory { Ok(()) } else { Err(Malformed) }
            }
            _ => Ok(()),
        }
    }

    fn parse_atomic(&mut self, at: usize) -> Result<usize, Malformed> {
        let operands = self.slice(at, atomic::SIZE)?;
        let (first, second) = (be64(operands, atomic::SWAP_ADD), be64(operands, atomic::COMPARE));
        (self.swap_or_add, self.compare) = (first, second);
        let add = self.opcode == opcode::FETCH_ADD || self.opcode == opcode::MASKED_FETCH_ADD;
        match self.opcode {
            opcode::MASKED_COMPARE_SWAP => {
                let masks = self.slice(at + 16, 16)?;
                let masks = ExtendedAtomicMasks {
                    compares: true,
                    swap_or_boundary: be64(masks, 0),
                    compare: be64(masks, 8),
                };
                self.action = Action::Atomic { add, masks: Some(masks) };
                Ok(at + 32)
            }
            opcode::MASKED_FETCH_ADD => {
                let masks = ExtendedAtomicMasks { compares: false, swap_or_boundary: second, compare: 0 };
                self.action = Action::Atomic { add, masks: Some(masks) };
                Ok(at + 16)
            }
            _ => Ok(at + 16),
        }
    }

    /// Parses the Ethernet segment: flags and inline headers.
    fn parse_frame(&mut self) -> Result<(), Malformed> {
        const AT: usize = control::SIZE;
        /// Largest value of the 14-bit MSS.
        const LARGEST_SEGMENT: u16 = 0x3fff;
        let bytes = self.slice(AT, ethernet::SIZE)?;
        let short = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let (checksum, segment) = (bytes[ethernet::CS_FLAGS], short(ethernet::MSS));
        let segment = match (self.opcode, segment) {
            (opcode::LARGE_SEND, 1..=LARGEST_SEGMENT) => Some(segment),
            (opcode::SEND, 0) => None,
            _ => return Err(Malformed),
        };
        let header = short(ethernet::INLINE_SIZE) & 0x3ff;
        let inline = usize::from(header);
        if inline > 0 {
            let at = AT + ethernet::INLINE_START;
            self.slice(at, inline)?;
            self.segments.push(Segment::Inline { at, length: inline as u32 });
            self.length += inline as u64;
        }
        let after = AT + ethernet::SIZE + inline.saturating_sub(2).next_multiple_of(16);
        self.action = Action::Frame(Frame { checksum, header, segment });
        self.parse_segments(after)
    }

    fn parse_segments(&mut self, from: usize) -> Result<(), Malformed> {
        const INLINE: u32 = 0x8000_0000;
        const INLINE_LENGTH: u32 = 0x3ff;
        let mut at = from;
        while at < self.bytes.len() {
            let head = be32(self.slice(at, 4)?, data::BYTE_COUNT);
            if head & INLINE != 0 {
                let length = head & INLINE_LENGTH;
                if head & !(INLINE | INLINE_LENGTH) != 0 {
                    return Err(Malformed);
                }
                self.slice(at + 4, length as usize)?;
                self.segments.push(Segment::Inline { at: at + 4, length });
                self.length += u64::from(length);
                at = (at + 4 + length as usize).next_multiple_of(16);
                continue;
            }
            let entry = self.slice(at, data::SIZE)?;
            let (key, address) = (be32(entry, data::LKEY), be64(entry, data::ADDR));
            at += data::SIZE;
            if head == 0 && key == TERMINATE_SCATTER_LIST_MKEY {
                break;
            }
            if head != 0 {
                self.segments.push(Segment::Memory { key, address, length: head });
                self.length += u64::from(head);
            }
        }
        Ok(())
    }

    pub(crate) fn slice(&self, at: usize, length: usize) -> Result<&[u8], Malformed> {
        self.bytes.get(at..at.checked_add(length).ok_or(Malformed)?).ok_or(Malformed)
    }
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
        work.begin(0, &control);
        work.parse(service).map(|()| work)
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
    fn unsupported_opcodes_per_transport_are_rejected() {
        let bytes = control(opcode::READ, 4);
        assert!(parse(Service::Connected(Transport::Uc), &bytes).is_err());
        assert!(parse(Service::Datagram(None), &bytes).is_err());
        assert!(parse(RC, &control(0x3e, 4)).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_wqe_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 16..=MAX_WQE), opcode: u8, which in 0..5) {
            bytes[3] = opcode;
            let service = match which {
                0 => RC,
                1 => Service::Connected(Transport::Xrc),
                2 => Service::Datagram(None),
                3 => Service::Ethernet,
                _ => Service::RegUmr,
            };
            if let Ok(work) = parse(service, &bytes) {
                let total: u64 = work.segments.iter().map(|segment| u64::from(segment.length())).sum();
                prop_assert_eq!(total, work.length);
            }
        }
    }
}
