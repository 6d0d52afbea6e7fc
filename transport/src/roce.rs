//! Packets as RoCE v2 frames.

use crate::bth;
use crate::checksum::ones_sum;
use crate::packet::{Global, Network, Operation, Packet, Route, Transport};

const UDP: u8 = 17;
/// UDP port of RoCE v2.
const ROCE: u16 = 4791;
/// UDP source port of a packet without one.
const ANY_SOURCE: u16 = 0xc000;

/// Encodes a packet as a RoCE v2 frame. LIDs of an InfiniBand port become addresses 10.0.LID.LID
/// and matching MACs.
pub fn encode(packet: &Packet) -> Vec<u8> {
    encode_with(packet, NetworkHeaders::icrc)
}

/// The frame with the ICRC that `icrc` computes from the network headers and the bytes from the BTH to the
/// padding.
pub fn encode_with(packet: &Packet, icrc: impl FnOnce(&NetworkHeaders, &[u8]) -> u32) -> Vec<u8> {
    let mut transport = Vec::with_capacity(packet.payload.len() + 60);
    bth::write(packet, &mut transport);
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
    let source_port = if packet.route.udp_source == 0 { ANY_SOURCE } else { packet.route.udp_source };
    let headers = NetworkHeaders::new(&global, source_port, transport.len());
    frame.extend_from_slice(if global.network == Network::Ipv4 { &[0x08, 0x00] } else { &[0x86, 0xdd] });
    frame.extend_from_slice(headers.as_bytes());
    frame.extend_from_slice(&transport);
    frame.extend_from_slice(&icrc(&headers, &transport).to_le_bytes());
    frame
}

/// The IP and UDP headers of a RoCE v2 packet. The identification of IPv4 is 0, DF is set, and there is
/// no UDP checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkHeaders {
    bytes: [u8; 48],
    length: usize,
}

impl NetworkHeaders {
    /// The headers of a packet whose transport headers, payload and padding are `transport` bytes long.
    pub fn new(global: &Global, source_port: u16, transport: usize) -> Self {
        // The ICRC follows the transport headers and the payload.
        let datagram = 8 + transport + 4;
        let mut bytes = [0; 48];
        let ip = if global.network == Network::Ipv4 {
            bytes[..20].copy_from_slice(&ipv4(global, datagram));
            20
        } else {
            bytes[..40].copy_from_slice(&ipv6(global, datagram));
            40
        };
        bytes[ip..ip + 2].copy_from_slice(&source_port.to_be_bytes());
        bytes[ip + 2..ip + 4].copy_from_slice(&ROCE.to_be_bytes());
        bytes[ip + 4..ip + 6].copy_from_slice(&(datagram as u16).to_be_bytes());
        Self { bytes, length: ip + 8 }
    }

    /// The headers.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The ICRC of a packet with these headers. `transport` is its BTH, the extension headers, the
    /// payload and the padding. Packets store the ICRC in little-endian order.
    ///
    /// # Panics
    ///
    /// If `transport` is shorter than a BTH.
    pub fn icrc(&self, transport: &[u8]) -> u32 {
        invariant_check(self.as_bytes(), transport)
    }

    /// The ICRC of a FLUSH as Soft-RoCE computes it, which drops one with [that](Self::icrc) of the
    /// specification. `None` for other packets. The arguments and panics are those of
    /// [`icrc`](Self::icrc).
    pub fn icrc_of_flush(&self, transport: &[u8]) -> Option<u32> {
        invariant_check_of_flush(self.as_bytes(), transport)
    }
}

/// Decodes a RoCE v2 frame and verifies its checksums. Returns `None` for a frame that neither
/// [`encode`] nor Soft-RoCE produces. Addresses made from LIDs are not converted back.
pub fn decode(frame: &[u8]) -> Option<Packet> {
    let (ethernet, ip) = frame.split_at_checked(14)?;
    let short = |at: usize| Some(u16::from_be_bytes(ip.get(at..at + 2)?.try_into().ok()?));
    let v4 = match ethernet[12..] {
        [0x08, 0x00] => true,
        [0x86, 0xdd] => false,
        _ => return None,
    };
    let header = if v4 { 20 } else { 40 };
    let (length, protocol, version) =
        if v4 { (short(2)?, *ip.get(9)?, 0x45) } else { (short(4)?.checked_add(40)?, *ip.get(6)?, 0x60) };
    let datagram = ip.get(header..)?;
    let sound = usize::from(length) == ip.len()
        && protocol == UDP
        && if v4 { ip[0] == version && ones_sum(&ip[..20]) == 0xffff } else { ip[0] & 0xf0 == version };
    if !sound || short(header + 2)? != ROCE || usize::from(short(header + 4)?) != datagram.len() {
        return None;
    }
    let (covered, check) = ip.split_at_checked(ip.len().checked_sub(4)?)?;
    let transport = covered.get(header + 8..).filter(|transport| transport.len() >= 12)?;
    let headers = &covered[..header + 8];
    let right = [Some(invariant_check(headers, transport)), invariant_check_of_flush(headers, transport)];
    if !right.into_iter().flatten().any(|right| check == right.to_le_bytes()) {
        return None;
    }
    let mapped = |address: &[u8]| {
        let mut gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
        gid[12..].copy_from_slice(address);
        gid
    };
    let word = u32::from_be_bytes(ip[..4].try_into().ok()?);
    let global = if v4 {
        Global {
            source: mapped(&ip[12..16]),
            destination: mapped(&ip[16..20]),
            flow_label: 0,
            traffic_class: ip[1],
            hop_limit: ip[8],
            network: Network::Ipv4,
        }
    } else {
        Global {
            source: ip[8..24].try_into().ok()?,
            destination: ip[24..40].try_into().ok()?,
            flow_label: word & 0xf_ffff,
            traffic_class: (word >> 20) as u8,
            hop_limit: ip[7],
            network: Network::Ipv6,
        }
    };
    let route = Route {
        source_mac: ethernet[6..12].try_into().ok()?,
        destination_mac: ethernet[..6].try_into().ok()?,
        udp_source: short(header)?,
        global: Some(global),
        ..Route::default()
    };
    bth::read(route, transport)
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
    header[9] = UDP;
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
    header[6] = UDP;
    header[7] = global.hop_limit;
    header[8..24].copy_from_slice(&global.source);
    header[24..40].copy_from_slice(&global.destination);
    header
}

/// The ICRC of a packet: Ethernet's CRC, with the fields that routers change replaced by ones.
/// `headers` are its IP and UDP headers, and `transport` the rest of it.
fn invariant_check(headers: &[u8], transport: &[u8]) -> u32 {
    /// The masked LRH, in place of which RoCE has the Ethernet header.
    const LRH: usize = 8;
    const UDP_HEADER: usize = 8;
    /// Bytes of the BTH up to the byte with FECN and BECN.
    const BTH_START: usize = 5;
    let ip_header = headers.len() - UDP_HEADER;
    let (start, rest) = transport.split_at(BTH_START);
    let mut masked = [0xff; LRH + 40 + UDP_HEADER + BTH_START];
    let masked = &mut masked[..LRH + headers.len() + BTH_START];
    masked[LRH..][..headers.len()].copy_from_slice(headers);
    masked[LRH + headers.len()..].copy_from_slice(start);
    let ip = &mut masked[LRH..];
    if headers[0] >> 4 == 4 {
        for at in [1, 8, 10, 11] {
            ip[at] = 0xff;
        }
    } else {
        ip[0] |= 0x0f;
        ip[1..4].fill(0xff);
        ip[7] = 0xff;
    }
    // The UDP checksum, and the BTH byte with FECN and BECN.
    ip[ip_header + 6..ip_header + 8].fill(0xff);
    ip[ip_header + UDP_HEADER + BTH_START - 1] = 0xff;
    let mut crc = crc32fast::Hasher::new();
    crc.update(masked);
    crc.update(rest);
    crc.finalize()
}

/// The ICRC of a FLUSH of Soft-RoCE: its table has no place of the payload for the opcode, so the
/// transport headers are covered a second time, in place of a payload. `None` for other packets.
fn invariant_check_of_flush(headers: &[u8], transport: &[u8]) -> Option<u32> {
    const FLUSH: u8 = Transport::Rc.bits() | Operation::Flush as u8;
    if transport.first() != Some(&FLUSH) {
        return None;
    }
    let mut crc = crc32fast::Hasher::new_with_initial(invariant_check(headers, transport));
    crc.update(transport);
    Some(crc.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Acknowledge, Flush, Headers, Remote};
    use crate::traffic::octets;

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
            migrated: true,
            ack_request: true,
            pkey: 0xffff,
            destination: 0x11,
            psn: 0x22,
            headers: Headers::default(),
            payload,
            zero_copy: None,
        }
    }

    #[test]
    fn bth_pad_count_matches_padding() {
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
    fn acks_carry_aeth() {
        let mut acknowledgement = packet(Vec::new());
        acknowledgement.operation = Operation::Acknowledge;
        acknowledgement.headers.acknowledge = Some(Acknowledge { syndrome: 0x1f, messages: 3 });
        let frame = encode(&acknowledgement);
        assert_eq!(frame[42 + 12..42 + 16], [0x1f, 0, 0, 3]);
    }

    fn routed(network: Network) -> Packet {
        let address = |last: u8| {
            let mut gid = [0; 16];
            gid[10..12].fill(0xff);
            gid[15] = last;
            gid
        };
        let mut packet = packet(vec![1, 2, 3]);
        packet.route = Route {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            udp_source: 0xc123,
            global: Some(Global {
                source: address(1),
                destination: address(2),
                flow_label: if network == Network::Ipv6 { 0x54321 } else { 0 },
                traffic_class: 0x1c,
                hop_limit: 9,
                network,
            }),
            ..Route::default()
        };
        packet
    }

    #[test]
    fn frames_that_end_within_the_ip_header_are_dropped() {
        for length in 10..20 {
            let mut frame = vec![0; 14 + length];
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            (frame[14], frame[17], frame[23]) = (0x45, length as u8, UDP);
            assert_eq!(decode(&frame), None);
        }
    }

    #[test]
    fn roce_v2_frames_round_trip() {
        for network in [Network::Ipv4, Network::Ipv6] {
            let packet = routed(network);
            let frame = encode(&packet);
            assert_eq!(octets(&packet), frame.len());
            assert_eq!(decode(&frame), Some(packet));
        }
    }

    #[test]
    fn icrc_is_that_of_the_specification() {
        // Computed by another program, from the frames without their ICRC.
        for (network, icrc) in [(Network::Ipv4, 0x4b5c_eeae), (Network::Ipv6, 0xea2a_86d0)] {
            let frame = encode(&routed(network));
            let (_, found) = frame.split_last_chunk().unwrap();
            assert_eq!(u32::from_le_bytes(*found), icrc, "{network:?} {frame:02x?}");
        }
    }

    #[test]
    fn flush_of_soft_roce_is_decoded() {
        for network in [Network::Ipv4, Network::Ipv6] {
            let mut packet = routed(network);
            packet.operation = Operation::Flush;
            packet.payload.clear();
            packet.headers.flush = Some(Flush { placement: 1, whole_key: false });
            packet.headers.remote = Some(Remote { address: 1, key: 2, length: 3 });
            let mut frame = encode(&packet);
            assert_eq!(decode(&frame).as_ref(), Some(&packet));
            let (covered, icrc) = frame.split_last_chunk_mut().unwrap();
            let transport = &covered[covered.len() - 32..];
            let mut twice = crc32fast::Hasher::new_with_initial(u32::from_le_bytes(*icrc));
            twice.update(transport);
            *icrc = twice.finalize().to_le_bytes();
            assert_eq!(decode(&frame), Some(packet));
            let last = frame.len() - 1;
            frame[last] ^= 1;
            assert_eq!(decode(&frame), None);
        }
    }

    #[test]
    fn frame_with_corrupt_icrc_is_rejected() {
        let frame = encode(&routed(Network::Ipv4));
        // Traffic class, hop limit, UDP checksum and the FECN/BECN byte may change on the way.
        let free = [15, 22, 24, 25, 40, 41, 46];
        for at in (12..frame.len()).filter(|at| !free.contains(at)) {
            let mut changed = frame.clone();
            changed[at] ^= 0x10;
            assert_eq!(decode(&changed), None, "byte {at}");
        }
        for length in 0..frame.len() {
            assert_eq!(decode(&frame[..length]), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_frames_do_not_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let mut frame = encode(&routed(Network::Ipv6));
            for (at, byte) in bytes.iter().enumerate() {
                if let Some(place) = frame.get_mut(at * 3) {
                    *place = *byte;
                }
            }
            decode(&frame);
            decode(&bytes);
        }
    }
}
