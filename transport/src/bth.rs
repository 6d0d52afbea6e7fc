//! The transport headers of a packet as bytes: BTH, extension headers, payload and padding, in the
//! format of the InfiniBand specification. Masked atomics are not in the specification. Their
//! AtomicETH is followed by a word with their kind, and by both masks.

use crate::packet::{
    Acknowledge, Atomic, Datagram, ExtendedAtomicMasks, Flush, Headers, Operation, PSN_MASK, Packet, Remote,
    Route, Transport,
};

const NUMBER: u32 = 0xff_ffff;
/// Placement types in the FETH, and the shift of the selectivity level: 0 is the range, 1 all memory
/// of the key.
const PLACEMENT: u8 = 0xf;
const SELECTIVITY: u32 = 4;
/// Flags: the migration state MIGRATED, and the transport header version, which is 0.
const MIGRATED: u8 = 1 << 6;
const VERSION: u8 = 0x0f;

/// Appends a packet's bytes, without ICRC.
pub fn write(packet: &Packet, bytes: &mut Vec<u8>) {
    let padding = packet.payload.len().wrapping_neg() & 3;
    bytes.push(packet.transport.bits() | packet.operation as u8);
    bytes.push(u8::from(packet.solicited) << 7 | u8::from(packet.migrated) << 6 | (padding as u8) << 4);
    bytes.extend_from_slice(&packet.pkey.to_be_bytes());
    bytes.extend_from_slice(&packet.destination.to_be_bytes());
    bytes.extend_from_slice(&(u32::from(packet.ack_request) << 31 | packet.psn).to_be_bytes());
    let headers = &packet.headers;
    if let Some(srq) = headers.srq {
        bytes.extend_from_slice(&srq.to_be_bytes());
    }
    if let Some(datagram) = headers.datagram {
        bytes.extend_from_slice(&datagram.qkey.to_be_bytes());
        bytes.extend_from_slice(&datagram.source_qp.to_be_bytes());
    }
    if let Some(flush) = headers.flush {
        let bits = u32::from(flush.placement & PLACEMENT) | u32::from(flush.whole_key) << SELECTIVITY;
        bytes.extend_from_slice(&bits.to_be_bytes());
    }
    if let Some(remote) = headers.remote {
        bytes.extend_from_slice(&remote.address.to_be_bytes());
        bytes.extend_from_slice(&remote.key.to_be_bytes());
        bytes.extend_from_slice(&remote.length.to_be_bytes());
    }
    if let Some(atomic) = headers.atomic {
        bytes.extend_from_slice(&atomic.address.to_be_bytes());
        bytes.extend_from_slice(&atomic.key.to_be_bytes());
        bytes.extend_from_slice(&atomic.swap_or_add.to_be_bytes());
        bytes.extend_from_slice(&atomic.compare.to_be_bytes());
        if let Some(masks) = atomic.masks {
            bytes.extend_from_slice(&u32::from(masks.compares).to_be_bytes());
            bytes.extend_from_slice(&masks.swap_or_boundary.to_be_bytes());
            bytes.extend_from_slice(&masks.compare.to_be_bytes());
        }
    }
    if let Some(acknowledge) = headers.acknowledge {
        let word = u32::from(acknowledge.syndrome) << 24 | acknowledge.messages & NUMBER;
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    if let Some(original) = headers.original {
        bytes.extend_from_slice(&original.to_be_bytes());
    }
    if let Some(immediate) = headers.immediate {
        bytes.extend_from_slice(&immediate.to_be_bytes());
    }
    bytes.extend_from_slice(&packet.payload);
    bytes.resize(bytes.len() + padding, 0);
}

/// Parses an untrusted packet. Returns `None` if it is malformed.
pub fn read(route: Route, bytes: &[u8]) -> Option<Packet> {
    let mut fields = Fields(bytes);
    let [opcode, flags] = fields.take()?;
    let (transport, operation) = (Transport::of(opcode)?, Operation::from_bits(opcode)?);
    if !carries(transport, operation) || flags & VERSION != 0 {
        return None;
    }
    let pkey = u16::from_be_bytes(fields.take()?);
    let (destination, sequence) = (fields.word()?, fields.word()?);
    let srq = if transport == Transport::Xrc && !operation.is_response() {
        Some(fields.word()? & NUMBER)
    } else {
        None
    };
    let datagram = if transport == Transport::Ud {
        Some(Datagram { qkey: fields.word()?, source_qp: fields.word()? & NUMBER })
    } else {
        None
    };
    let flush = if operation == Operation::Flush { Some(fields.flush()?) } else { None };
    let remote = if operation.has_remote() {
        Some(Remote { address: fields.long()?, key: fields.word()?, length: fields.word()? })
    } else {
        None
    };
    let atomic = if operation.is_atomic() { Some(fields.atomic(operation)?) } else { None };
    let acknowledge = if operation.has_acknowledge() {
        let word = fields.word()?;
        Some(Acknowledge { syndrome: (word >> 24) as u8, messages: word & NUMBER })
    } else {
        None
    };
    let original = if operation == Operation::AtomicAcknowledge { Some(fields.long()?) } else { None };
    let carried = operation.has_immediate() || operation.has_invalidate();
    let immediate = if carried { Some(fields.word()?) } else { None };
    let padding = usize::from(flags >> 4 & 3);
    if !fields.0.len().is_multiple_of(4) || has_no_payload(operation) && !fields.0.is_empty() {
        return None;
    }
    let payload = fields.0.get(..fields.0.len().checked_sub(padding)?)?.to_vec();
    Some(Packet {
        route,
        transport,
        operation,
        solicited: flags & 0x80 != 0,
        migrated: flags & MIGRATED != 0,
        ack_request: sequence >> 31 != 0,
        pkey,
        destination: destination & NUMBER,
        psn: sequence & PSN_MASK,
        headers: Headers { srq, datagram, flush, remote, atomic, acknowledge, original, immediate },
        payload,
        zero_copy: None,
    })
}

impl Packet {
    /// Parses an untrusted packet, from the BTH to the padding. Returns `None` if it is malformed.
    pub fn parse(route: Route, bytes: &[u8]) -> Option<Self> {
        read(route, bytes)
    }
}

/// Whether packets of an operation have no payload (oA19-2 of the specification for FLUSH).
fn has_no_payload(operation: Operation) -> bool {
    operation.is_atomic() || operation == Operation::Flush
}

/// Whether a transport supports an operation.
fn carries(transport: Transport, operation: Operation) -> bool {
    match transport {
        Transport::Rc => true,
        Transport::Xrc => !operation.places_memory(),
        Transport::Uc => !operation.is_response() && !operation.has_response() && !operation.has_invalidate(),
        Transport::Ud => matches!(operation, Operation::SendOnly | Operation::SendOnlyImmediate),
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn flush(&mut self) -> Option<Flush> {
        let bits = self.word()?;
        let whole_key = match bits >> SELECTIVITY & 3 {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Flush { placement: bits as u8 & PLACEMENT, whole_key })
    }

    fn atomic(&mut self, operation: Operation) -> Option<Atomic> {
        let (address, key) = (self.long()?, self.word()?);
        let (swap_or_add, compare) = (self.long()?, self.long()?);
        let masks = if operation == Operation::MaskedAtomic {
            let compares = match self.word()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            Some(ExtendedAtomicMasks { compares, swap_or_boundary: self.long()?, compare: self.long()? })
        } else {
            None
        };
        Some(Atomic { address, key, swap_or_add, compare, masks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any valid packet.
    fn any_packet() -> impl Strategy<Value = Packet> {
        let numbers = (any::<u16>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>());
        let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
        let payload = proptest::collection::vec(any::<u8>(), 0..100);
        (0u8..0x1e, 0usize..4, flags, numbers, payload).prop_filter_map(
            "the transport knows the operation",
            |(bits, which, (solicited, migrated, ack_request, compares), (pkey, a, b, c, d), payload)| {
                let operation = Operation::from_bits(bits)?;
                let transport = [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc][which];
                let masked = operation == Operation::MaskedAtomic;
                let masks = ExtendedAtomicMasks { compares, swap_or_boundary: c, compare: d };
                let atomic =
                    Atomic { address: c, key: a, swap_or_add: d, compare: c, masks: masked.then_some(masks) };
                let headers = Headers {
                    srq: (transport == Transport::Xrc && !operation.is_response()).then_some(a & NUMBER),
                    datagram: (transport == Transport::Ud)
                        .then_some(Datagram { qkey: b, source_qp: a & NUMBER }),
                    flush: (operation == Operation::Flush)
                        .then_some(Flush { placement: a as u8 & PLACEMENT, whole_key: compares }),
                    remote: operation.has_remote().then_some(Remote { address: c, key: a, length: b }),
                    atomic: operation.is_atomic().then_some(atomic),
                    acknowledge: operation
                        .has_acknowledge()
                        .then_some(Acknowledge { syndrome: b as u8, messages: a & NUMBER }),
                    original: (operation == Operation::AtomicAcknowledge).then_some(d),
                    immediate: (operation.has_immediate() || operation.has_invalidate()).then_some(b),
                };
                carries(transport, operation).then(|| Packet {
                    route: Route::default(),
                    transport,
                    operation,
                    solicited,
                    migrated,
                    ack_request,
                    pkey,
                    destination: b & NUMBER,
                    psn: a & PSN_MASK,
                    headers,
                    payload: if has_no_payload(operation) { Vec::new() } else { payload },
                    zero_copy: None,
                })
            },
        )
    }

    #[test]
    fn packet_of_another_header_version_is_malformed() {
        let send_only = |version| [&[0x04, MIGRATED | version][..], &[0; 10]].concat();
        assert!(read(Route::default(), &send_only(0)).is_some());
        for version in 1..=VERSION {
            assert_eq!(read(Route::default(), &send_only(version)), None, "{version}");
        }
    }

    #[test]
    fn flush_has_no_payload() {
        let opcode = 0x1c;
        let mut bytes = [&[opcode, MIGRATED][..], &[0; 10 + 4 + 16]].concat();
        assert_eq!(read(Route::default(), &bytes).map(|packet| packet.operation), Some(Operation::Flush));
        bytes.extend_from_slice(&[0; 4]);
        assert_eq!(read(Route::default(), &bytes), None);
    }

    proptest! {
        #[test]
        fn packets_round_trip(packet in any_packet()) {
            let mut bytes = Vec::new();
            write(&packet, &mut bytes);
            let length = 12 + packet.headers.length() + packet.payload.len().next_multiple_of(4);
            prop_assert_eq!(bytes.len(), length);
            prop_assert_eq!(read(packet.route, &bytes), Some(packet));
        }

        #[test]
        fn arbitrary_packet_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            read(Route::default(), &bytes);
            if let Some(flags) = bytes.get_mut(1) {
                *flags = *flags & 0xb0 | MIGRATED;
                if let Some(packet) = read(Route::default(), &bytes) {
                    let mut again = Vec::new();
                    write(&packet, &mut again);
                    prop_assert_eq!(read(Route::default(), &again), Some(packet));
                }
            }
        }
    }
}
