//! Packets between QPs, as values. [`bth`](crate::bth) and [`roce`](crate::roce) encode and decode them.

/// Transports, encoded in the top three bits of the BTH opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connected.
    Xrc,
}

impl Transport {
    /// The opcode's top three bits.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Xrc => 0xa0,
        }
    }

    /// The transport of an opcode. Returns `None` for a reserved transport.
    pub const fn of(opcode: u8) -> Option<Self> {
        match opcode & 0xe0 {
            0x00 => Some(Self::Rc),
            0x20 => Some(Self::Uc),
            0x60 => Some(Self::Ud),
            0xa0 => Some(Self::Xrc),
            _ => None,
        }
    }

    /// Whether every packet is acknowledged.
    pub const fn reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

/// The operation of a packet: the low five bits of the BTH opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of the InfiniBand specification's table of opcodes")]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    /// A masked compare-and-swap or fetch-and-add, an extension of the device.
    MaskedAtomic = 0x15,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    Flush = 0x1c,
    AtomicWrite = 0x1d,
}

impl Operation {
    /// Decodes the low five bits.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits & 0x1f {
            0x00 => Self::SendFirst,
            0x01 => Self::SendMiddle,
            0x02 => Self::SendLast,
            0x03 => Self::SendLastImmediate,
            0x04 => Self::SendOnly,
            0x05 => Self::SendOnlyImmediate,
            0x06 => Self::WriteFirst,
            0x07 => Self::WriteMiddle,
            0x08 => Self::WriteLast,
            0x09 => Self::WriteLastImmediate,
            0x0a => Self::WriteOnly,
            0x0b => Self::WriteOnlyImmediate,
            0x0c => Self::ReadRequest,
            0x0d => Self::ReadResponseFirst,
            0x0e => Self::ReadResponseMiddle,
            0x0f => Self::ReadResponseLast,
            0x10 => Self::ReadResponseOnly,
            0x11 => Self::Acknowledge,
            0x12 => Self::AtomicAcknowledge,
            0x13 => Self::CompareSwap,
            0x14 => Self::FetchAdd,
            0x15 => Self::MaskedAtomic,
            0x16 => Self::SendLastInvalidate,
            0x17 => Self::SendOnlyInvalidate,
            0x1c => Self::Flush,
            0x1d => Self::AtomicWrite,
            _ => return None,
        })
    }

    /// Whether the responder sends it to the requester.
    pub const fn is_response(self) -> bool {
        matches!(self as u8, 0x0d..=0x12)
    }

    /// Whether it begins a message.
    pub(crate) const fn is_first(self) -> bool {
        use Operation::{
            SendFirst, SendOnly, SendOnlyImmediate, SendOnlyInvalidate, WriteFirst, WriteOnly,
            WriteOnlyImmediate,
        };
        matches!(
            self,
            SendFirst
                | SendOnly
                | SendOnlyImmediate
                | SendOnlyInvalidate
                | WriteFirst
                | WriteOnly
                | WriteOnlyImmediate
        )
    }

    /// Whether it ends a SEND or WRITE message.
    pub(crate) const fn is_last(self) -> bool {
        use Operation::{
            SendLast, SendLastImmediate, SendLastInvalidate, SendOnly, SendOnlyImmediate, SendOnlyInvalidate,
            WriteLast, WriteLastImmediate, WriteOnly, WriteOnlyImmediate,
        };
        matches!(
            self,
            SendLast
                | SendLastImmediate
                | SendLastInvalidate
                | SendOnly
                | SendOnlyImmediate
                | SendOnlyInvalidate
                | WriteLast
                | WriteLastImmediate
                | WriteOnly
                | WriteOnlyImmediate
        )
    }

    /// Whether it belongs to an RDMA write.
    pub const fn is_write(self) -> bool {
        matches!(self as u8, 0x06..=0x0b)
    }

    /// Whether its responder takes a receive WQE: the first packet of a SEND, the last of a WRITE with
    /// immediate data.
    pub(crate) const fn takes_receive(self) -> bool {
        use Operation::{
            SendFirst, SendOnly, SendOnlyImmediate, SendOnlyInvalidate, WriteLastImmediate,
            WriteOnlyImmediate,
        };
        matches!(
            self,
            SendFirst
                | SendOnly
                | SendOnlyImmediate
                | SendOnlyInvalidate
                | WriteLastImmediate
                | WriteOnlyImmediate
        )
    }

    /// Whether it carries immediate data.
    pub const fn has_immediate(self) -> bool {
        use Operation::{SendLastImmediate, SendOnlyImmediate, WriteLastImmediate, WriteOnlyImmediate};
        matches!(self, SendLastImmediate | SendOnlyImmediate | WriteLastImmediate | WriteOnlyImmediate)
    }

    /// Whether it carries a key to invalidate.
    pub const fn has_invalidate(self) -> bool {
        matches!(self, Self::SendLastInvalidate | Self::SendOnlyInvalidate)
    }

    /// Whether it carries an RETH.
    pub const fn has_remote(self) -> bool {
        use Operation::{AtomicWrite, Flush, ReadRequest, WriteFirst, WriteOnly, WriteOnlyImmediate};
        matches!(self, WriteFirst | WriteOnly | WriteOnlyImmediate | ReadRequest | Flush | AtomicWrite)
    }

    /// Whether it is FLUSH or ATOMIC WRITE, the memory placement extensions.
    pub const fn places_memory(self) -> bool {
        matches!(self, Self::Flush | Self::AtomicWrite)
    }

    /// Whether it is a request that the responder answers with a response of its own rather than an
    /// ACK.
    pub(crate) const fn has_response(self) -> bool {
        matches!(self, Self::ReadRequest) || self.is_atomic() || self.places_memory()
    }

    /// Whether it is an atomic request.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd | Self::MaskedAtomic)
    }

    /// Whether it carries an AETH.
    pub const fn has_acknowledge(self) -> bool {
        matches!(self as u8, 0x0d | 0x0f..=0x12)
    }
}

/// Link layer of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// InfiniBand: LIDs, and GIDs if there is a GRH.
    InfiniBand,
    /// RDMA over Ethernet: every packet carries GIDs.
    Ethernet,
}

/// The network protocol that carries the GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// A global routing header.
    Grh,
    /// IPv6 and UDP.
    Ipv6,
    /// IPv4 and UDP.
    Ipv4,
}

/// Global addressing of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Global {
    /// The sender's GID.
    pub source: [u8; 16],
    /// The receiver's or the group's GID.
    pub destination: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// The network protocol.
    pub network: Network,
}

/// Addressing of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The sender's LID; 0 on Ethernet.
    pub source_lid: u16,
    /// The receiver's LID; 0 on Ethernet.
    pub destination_lid: u16,
    /// Service level.
    pub service_level: u8,
    /// The sender's MAC; zero on InfiniBand.
    pub source_mac: [u8; 6],
    /// The receiver's MAC; zero on InfiniBand.
    pub destination_mac: [u8; 6],
    /// UDP source port of RoCE v2.
    pub udp_source: u16,
    /// Global addressing.
    pub global: Option<Global>,
}

impl Route {
    /// The route of a response to a packet that came by this route.
    pub(crate) fn reversed(&self) -> Self {
        let mut back = *self;
        std::mem::swap(&mut back.source_lid, &mut back.destination_lid);
        std::mem::swap(&mut back.source_mac, &mut back.destination_mac);
        if let Some(global) = &mut back.global {
            std::mem::swap(&mut global.source, &mut global.destination);
        }
        back
    }

    /// The link layer that the route belongs to.
    pub(crate) fn link(&self) -> Link {
        if self.source_lid == 0 { Link::Ethernet } else { Link::InfiniBand }
    }

    /// Whether the packet is multicast.
    pub fn is_multicast(&self) -> bool {
        match &self.global {
            Some(global) => global.destination[0] == 0xff || is_ipv4_group(&global.destination),
            None => self.destination_lid >= 0xc000 && self.destination_lid != 0xffff,
        }
    }
}

fn is_ipv4_group(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff, 0xff] && gid[12] & 0xf0 == 0xe0
}

/// RETH of a WRITE or READ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Virtual address.
    pub address: u64,
    /// Remote key.
    pub key: u32,
    /// Length of the whole message.
    pub length: u32,
}

/// FETH of FLUSH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flush {
    /// Placement types, 4 bits: [`Self::GLOBAL`], [`Self::PERSISTENT`].
    pub placement: u8,
    /// Whether all memory of the key is flushed rather than the range.
    pub whole_key: bool,
}

impl Flush {
    /// Placement type: earlier writes are visible to all processors of the host.
    pub const GLOBAL: u8 = 1 << 0;
    /// Placement type: earlier writes are persistent.
    pub const PERSISTENT: u8 = 1 << 1;
}

/// AtomicETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Atomic {
    /// Virtual address of the eight-byte operand.
    pub address: u64,
    /// Remote key.
    pub key: u32,
    /// Swap or add operand.
    pub swap_or_add: u64,
    /// Compare operand.
    pub compare: u64,
    /// Masks of a masked atomic.
    pub masks: Option<ExtendedAtomicMasks>,
}

/// Extension of a masked atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedAtomicMasks {
    /// Compare-and-swap rather than fetch-and-add.
    pub compares: bool,
    /// Swap mask. For an add: a set bit is the top bit of a field, which no carry leaves.
    pub swap_or_boundary: u64,
    /// Compare mask.
    pub compare: u64,
}

impl Atomic {
    /// The new value of the eight-byte operand.
    pub(crate) fn apply(&self, operation: Operation, old: u64) -> u64 {
        match (operation, self.masks) {
            (Operation::FetchAdd, _) => old.wrapping_add(self.swap_or_add),
            (Operation::MaskedAtomic, Some(masks)) if masks.compares => {
                if (old ^ self.compare) & masks.compare == 0 {
                    old & !masks.swap_or_boundary | self.swap_or_add & masks.swap_or_boundary
                } else {
                    old
                }
            }
            (Operation::MaskedAtomic, Some(masks)) => {
                add_in_fields(old, self.swap_or_add, masks.swap_or_boundary)
            }
            _ if old == self.compare => self.swap_or_add,
            _ => old,
        }
    }
}

/// Adds field by field. A set bit in `boundary` is the top bit of a field; no carry leaves the
/// field.
fn add_in_fields(left: u64, right: u64, boundary: u64) -> u64 {
    let low = (left & !boundary).wrapping_add(right & !boundary);
    low ^ (left ^ right) & boundary
}

/// AETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledge {
    /// The syndrome, one of [`syndrome`].
    pub syndrome: u8,
    /// Message sequence number (MSN), 24 bits.
    pub messages: u32,
}

/// AETH syndromes.
pub mod syndrome {
    /// ACK with unlimited credits.
    pub const ACK: u8 = 0x1f;
    /// RNR NAK; the low five bits are the timer code.
    pub const RNR: u8 = 0x20;
    /// NAK: PSN sequence error.
    pub const NAK_SEQUENCE: u8 = 0x60;
    /// NAK: invalid request.
    pub const NAK_INVALID: u8 = 0x61;
    /// NAK: remote access error.
    pub const NAK_ACCESS: u8 = 0x62;
    /// NAK: remote operational error.
    pub const NAK_OPERATION: u8 = 0x63;
}

/// DETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Datagram {
    /// The receiver's Q_Key.
    pub qkey: u32,
    /// The sender's QP number.
    pub source_qp: u32,
}

/// The extension headers after the BTH. The operation determines which are present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// XRCETH: the SRQ of an XRC request.
    pub srq: Option<u32>,
    /// DETH of UD.
    pub datagram: Option<Datagram>,
    /// FETH of FLUSH.
    pub flush: Option<Flush>,
    /// RETH of WRITE, READ, FLUSH and ATOMIC WRITE.
    pub remote: Option<Remote>,
    /// AtomicETH of atomics.
    pub atomic: Option<Atomic>,
    /// AETH of responses.
    pub acknowledge: Option<Acknowledge>,
    /// AtomicAckETH: the original value of the operand.
    pub original: Option<u64>,
    /// ImmDt or IETH: immediate data or the R_Key to invalidate, in the byte order of guest memory.
    pub immediate: Option<u32>,
}

impl Headers {
    /// Length of the extension headers in bytes.
    pub(crate) fn length(&self) -> usize {
        let of = |there: bool, length: usize| if there { length } else { 0 };
        let masks = self.atomic.is_some_and(|atomic| atomic.masks.is_some());
        of(self.srq.is_some(), 4)
            + of(self.datagram.is_some(), 8)
            + of(self.flush.is_some(), 4)
            + of(self.remote.is_some(), 16)
            + of(self.atomic.is_some(), 28)
            + of(masks, 20)
            + of(self.acknowledge.is_some(), 4)
            + of(self.original.is_some(), 8)
            + of(self.immediate.is_some(), 4)
    }
}

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Addressing.
    pub route: Route,
    /// Transport.
    pub transport: Transport,
    /// Operation.
    pub operation: Operation,
    /// Solicited event.
    pub solicited: bool,
    /// Whether the sender has migrated to its current path, or has no other.
    pub migrated: bool,
    /// Acknowledge request.
    pub ack_request: bool,
    /// Partition key.
    pub pkey: u16,
    /// Destination QPN.
    pub destination: u32,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
    /// The extension headers.
    pub headers: Headers,
    /// The payload, without padding.
    pub payload: Vec<u8>,
    /// The payload in the memory of the sender, in place of [`Self::payload`], which is empty then. Only
    /// a device that implements [`Device::zero_copy`](crate::Device::zero_copy) sends such packets, to
    /// devices that access the same memory. They can't be encoded.
    pub zero_copy: Option<ZeroCopy>,
}

impl Packet {
    /// Length of the payload in bytes.
    pub fn payload_length(&self) -> usize {
        self.zero_copy.map_or(self.payload.len(), |payload| payload.length as usize)
    }

    /// The number of packets of a message that it stands for. Their PSNs follow its own.
    pub(crate) fn packets(&self) -> u32 {
        self.zero_copy.map_or(1, |payload| payload.packets)
    }
}

/// The payload of one or several packets of a message, which the receiver copies from the memory of the
/// sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroCopy {
    /// Where it begins. Devices define the kind of address.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// The number of packets.
    pub packets: u32,
}

/// Mask of a 24-bit PSN.
pub const PSN_MASK: u32 = 0xff_ffff;

/// Signed distance from `from` to `psn`, modulo 2^24.
pub(crate) fn psn_distance(psn: u32, from: u32) -> i32 {
    (psn.wrapping_sub(from) << 8) as i32 >> 8
}

/// Whether two P_Keys match: the same nonzero partition, and at least one full member.
pub(crate) fn pkeys_match(left: u16, right: u16) -> bool {
    left & 0x7fff != 0 && left & 0x7fff == right & 0x7fff && (left | right) & 0x8000 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bth_opcodes_round_trip() {
        for bits in 0..0x20 {
            if let Some(operation) = Operation::from_bits(bits) {
                assert_eq!(operation as u8, bits);
            }
        }
    }

    #[test]
    fn sequence_numbers_wrap_at_24_bits() {
        assert_eq!(psn_distance(0, PSN_MASK), 1);
        assert_eq!(psn_distance(PSN_MASK, 0), -1);
        assert_eq!(psn_distance(5, 5), 0);
    }

    #[test]
    fn masked_atomics_change_only_masked_bits() {
        let masks = ExtendedAtomicMasks { compares: true, swap_or_boundary: 0xff, compare: 0xf0 };
        let swap = Atomic { swap_or_add: 0x1234, compare: 0xab, masks: Some(masks), ..Atomic::default() };
        assert_eq!(swap.apply(Operation::MaskedAtomic, 0x77a1), 0x7734);
        assert_eq!(swap.apply(Operation::MaskedAtomic, 0x77b1), 0x77b1);
        let masks = ExtendedAtomicMasks { compares: false, swap_or_boundary: 0x8000_0000, compare: 0 };
        let add = Atomic { swap_or_add: 1, masks: Some(masks), ..Atomic::default() };
        assert_eq!(add.apply(Operation::MaskedAtomic, 0x5_ffff_ffff), 0x5_0000_0000);
    }
}
