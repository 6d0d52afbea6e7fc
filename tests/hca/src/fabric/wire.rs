//! Packets as bytes.

/// The ones' complement sum of the Internet's checksums, not inverted.
pub(crate) fn ones_sum(bytes: &[u8]) -> u16 {
    let mut chunks = bytes.chunks_exact(2);
    let mut sum: u64 = chunks.by_ref().map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    if let [last] = chunks.remainder() {
        sum += u64::from(*last) << 8;
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

use crate::engine::packet::{Global, Network, Packet};

/// RoCE v2's UDP port.
const ROCE: u16 = 4791;
/// UDP source port where the sender has named none.
const ANY_SOURCE: u16 = 0xc000;

/// A packet as a RoCE v2 frame. One from an InfiniBand port gets addresses made of its LIDs: 10.0.LID.LID, and MACs to match.
pub(crate) fn encode(packet: &Packet) -> Vec<u8> {
    let transport = transport_bytes(packet);
    let global = match packet.route.global {
        Some(global) if packet.route.destination_lid == 0 => global,
        _ => by_lid(packet),
    };
    let mut frame = Vec::with_capacity(transport.len() + 70);
    let (source_mac, destination_mac) = if packet.route.destination_lid == 0 {
        (packet.route.source_mac, packet.route.destination_mac)
    } else {
        (mac_of(packet.route.source_lid), mac_of(packet.route.destination_lid))
    };
    frame.extend_from_slice(&destination_mac);
    frame.extend_from_slice(&source_mac);
    let source_port =
        if packet.route.udp_source >= ANY_SOURCE { packet.route.udp_source } else { ANY_SOURCE };
    // The invariant check follows the transport's bytes.
    let length = 8 + transport.len() + 4;
    if global.network == Network::Ipv4 {
        frame.extend_from_slice(&[0x08, 0x00]);
        frame.extend_from_slice(&ipv4(&global, length));
    } else {
        frame.extend_from_slice(&[0x86, 0xdd]);
        frame.extend_from_slice(&ipv6(&global, length));
    }
    frame.extend_from_slice(&source_port.to_be_bytes());
    frame.extend_from_slice(&ROCE.to_be_bytes());
    frame.extend_from_slice(&(length as u16).to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.extend_from_slice(&transport);
    let check = invariant_check(&frame[14..]);
    frame.extend_from_slice(&check.to_le_bytes());
    frame
}

fn mac_of(lid: u16) -> [u8; 6] {
    let [high, low] = lid.to_be_bytes();
    [0x02, 0, 0, 0, high, low]
}

fn by_lid(packet: &Packet) -> Global {
    let address = |lid: u16| {
        let [high, low] = lid.to_be_bytes();
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, high, low]
    };
    Global {
        source: address(packet.route.source_lid),
        destination: address(packet.route.destination_lid),
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
        network: Network::Ipv4,
    }
}

fn ipv4(global: &Global, length: usize) -> [u8; 20] {
    let mut header = [0; 20];
    header[0] = 0x45;
    header[1] = global.traffic_class;
    header[2..4].copy_from_slice(&((20 + length) as u16).to_be_bytes());
    header[6] = 0x40;
    header[8] = global.hop_limit;
    header[9] = 17;
    header[12..16].copy_from_slice(&global.source[12..]);
    header[16..20].copy_from_slice(&global.destination[12..]);
    let sum = !ones_sum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

fn ipv6(global: &Global, length: usize) -> [u8; 40] {
    let mut header = [0; 40];
    let first = 6 << 28 | u32::from(global.traffic_class) << 20 | global.flow_label & 0xf_ffff;
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    header[6] = 17;
    header[7] = global.hop_limit;
    header[8..24].copy_from_slice(&global.source);
    header[24..40].copy_from_slice(&global.destination);
    header
}

/// Base header, further headers, payload and padding.
fn transport_bytes(packet: &Packet) -> Vec<u8> {
    let padding = packet.payload.len().wrapping_neg() & 3;
    let mut bytes = Vec::with_capacity(packet.payload.len() + 60);
    bytes.push(packet.transport.bits() | packet.operation as u8);
    bytes.push(u8::from(packet.solicited) << 7 | 1 << 6 | (padding as u8) << 4);
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
            bytes.extend_from_slice(&masks.swap_or_boundary.to_be_bytes());
            bytes.extend_from_slice(&masks.compare.to_be_bytes());
        }
    }
    if let Some(acknowledge) = headers.acknowledge {
        bytes
            .extend_from_slice(&(u32::from(acknowledge.syndrome) << 24 | acknowledge.messages).to_be_bytes());
    }
    if let Some(original) = headers.original {
        bytes.extend_from_slice(&original.to_be_bytes());
    }
    if let Some(immediate) = headers.immediate {
        bytes.extend_from_slice(&immediate.to_be_bytes());
    }
    bytes.extend_from_slice(&packet.payload);
    bytes.resize(bytes.len() + padding, 0);
    bytes
}

/// The invariant check over a packet from its IP header on: the CRC of Ethernet, with fields that routers change taken as ones.
fn invariant_check(packet: &[u8]) -> u32 {
    let mut masked = vec![0xff; 8];
    masked.extend_from_slice(packet);
    let body = &mut masked[8..];
    let transport = if body[0] >> 4 == 4 {
        for at in [1, 8, 10, 11] {
            body[at] = 0xff;
        }
        20
    } else {
        body[0] |= 0x0f;
        body[1..4].fill(0xff);
        body[7] = 0xff;
        40
    };
    // The UDP checksum, and the base header's byte of congestion bits.
    body[transport + 6..transport + 8].fill(0xff);
    body[transport + 8 + 4] = 0xff;
    crc32(&masked)
}

fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::packet::{Acknowledge, Headers, Operation, Route, Transport};

    fn packet(payload: Vec<u8>) -> Packet {
        Packet {
            route: Route {
                source_lid: 1,
                destination_lid: 2,
                service_level: 0,
                source_mac: [0; 6],
                destination_mac: [0; 6],
                udp_source: 0,
                global: None,
            },
            transport: Transport::Rc,
            operation: Operation::SendOnly,
            solicited: true,
            ack_request: true,
            pkey: 0xffff,
            destination: 0x11,
            psn: 0x22,
            headers: Headers::default(),
            payload,
        }
    }

    #[test]
    fn the_check_value_of_the_crc_is_right() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn payloads_are_padded_to_words_and_the_header_says_so() {
        for length in 0..9 {
            let frame = encode(&packet(vec![7; length]));
            let base = &frame[42..];
            assert_eq!(base[0], 0x04);
            assert_eq!(base[1], 0xc0 | (length.wrapping_neg() as u8 & 3) << 4);
            assert_eq!(frame.len(), 42 + 12 + length.next_multiple_of(4) + 4);
            assert_eq!(u16::from_be_bytes([frame[38], frame[39]]) as usize, frame.len() - 34);
            assert_eq!(ones_sum(&frame[14..34]), 0xffff);
        }
    }

    #[test]
    fn acknowledgements_carry_their_header() {
        let mut acknowledgement = packet(Vec::new());
        acknowledgement.operation = Operation::Acknowledge;
        acknowledgement.headers.acknowledge = Some(Acknowledge { syndrome: 0x1f, messages: 3 });
        let frame = encode(&acknowledgement);
        assert_eq!(frame[42 + 12..42 + 16], [0x1f, 0, 0, 3]);
    }
}
