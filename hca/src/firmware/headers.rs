//! A frame's headers, as flow tables match them. RSS hashes the outer ones
//! (`mlx5_ifc_fte_match_set_lyr_2_4_bits`).

/// Length of the outer headers in bytes.
pub(super) const OUTER: usize = 0x40;

/// Length of the headers that flow tables match: the outer ones, those of tunnels, and those of the
/// packet in a tunnel (`mlx5_ifc_fte_match_param_bits`).
pub(super) const MATCHED: usize = 3 * OUTER;

/// Offset of the headers of tunnels (`mlx5_ifc_fte_match_set_misc_bits`).
const MISC: usize = OUTER;
/// Offset of the headers of the packet in a tunnel.
const INNER: usize = 2 * OUTER;

/// Protocols of IP.
const TCP: u8 = 6;
const UDP: u8 = 17;
const GRE: u8 = 47;

/// The headers of a frame in the layout of `mlx5_ifc_fte_match_param_bits`.
pub(super) fn parameters(frame: &[u8]) -> [u8; MATCHED] {
    /// Offsets in the headers of tunnels.
    const GRE_PROTOCOL: usize = MISC + 0x0e;
    const GRE_KEY: usize = MISC + 0x10;
    const VXLAN_VNI: usize = MISC + 0x14;
    const OUTER_FLOW_LABEL: usize = MISC + 0x1c;
    const INNER_FLOW_LABEL: usize = MISC + 0x20;
    /// The UDP port of VXLAN.
    const VXLAN: [u8; 2] = 4789_u16.to_be_bytes();
    /// GRE: the payload is an Ethernet frame.
    const ETHERNET: [u8; 2] = [0x65, 0x58];
    /// GRE: the header has a checksum, or a key.
    const HAS_CHECKSUM: u8 = 1 << 7;
    const HAS_KEY: u8 = 1 << 5;

    let mut all = [0; MATCHED];
    let bytes = |at: usize, count: usize| frame.get(at..at + count).unwrap_or_default();
    let mut put = |at: usize, bytes: &[u8]| all[at..at + bytes.len()].copy_from_slice(bytes);
    let outer = layer(frame);
    put(0, &outer.set);
    put(OUTER_FLOW_LABEL, &outer.flow_label);
    let transport = outer.transport;
    let inner = match outer.protocol {
        UDP if bytes(transport + 2, 2) == VXLAN => {
            put(VXLAN_VNI, bytes(transport + 12, 3));
            Some(transport + 16)
        }
        GRE => {
            let flags = bytes(transport, 1).first().copied().unwrap_or(0);
            let key = transport + if flags & HAS_CHECKSUM == 0 { 4 } else { 8 };
            put(GRE_PROTOCOL, bytes(transport + 2, 2));
            let has_key = flags & HAS_KEY != 0;
            if has_key {
                put(GRE_KEY, bytes(key, 4));
            }
            let payload = if has_key { key + 4 } else { key };
            (bytes(transport + 2, 2) == ETHERNET).then_some(payload)
        }
        _ => None,
    };
    if let Some(inner) = inner.and_then(|at| frame.get(at..)).map(layer) {
        put(INNER, &inner.set);
        put(INNER_FLOW_LABEL, &inner.flow_label);
    }
    all
}

/// The outer headers of a frame's match parameters.
pub(super) fn outer(parameters: &[u8; MATCHED]) -> &[u8; OUTER] {
    parameters.first_chunk().expect("they begin with the outer headers")
}

/// The headers of a frame, or of the frame in a tunnel.
struct Headers {
    set: [u8; OUTER],
    /// Of IPv6, in the lower 20 bits; else 0.
    flow_label: [u8; 4],
    /// The protocol of IP; 0 for other frames.
    protocol: u8,
    /// Offset of the payload of IP.
    transport: usize,
}

/// A frame's headers in the layout of `mlx5_ifc_fte_match_set_lyr_2_4_bits`.
fn layer(frame: &[u8]) -> Headers {
    const VLAN: [u8; 2] = [0x81, 0x00];
    let mut set = [0; OUTER];
    let mut flow_label = [0; 4];
    let byte = |at: usize| frame.get(at).copied().unwrap_or(0);
    for at in 0..6 {
        set[at] = byte(6 + at);
        set[8 + at] = byte(at);
    }
    let mut header = 14;
    let mut kind = [byte(12), byte(13)];
    if kind == VLAN {
        set[0x0e] = byte(14);
        set[0x0f] = byte(15);
        set[0x12] |= 0x80;
        kind = [byte(16), byte(17)];
        header = 18;
    }
    set[6..8].copy_from_slice(&kind);
    let (transport, protocol) = match kind {
        [0x08, 0x00] => {
            set[0x12] |= 4 << 1;
            set[0x11] = byte(header + 1);
            set[0x1b] = byte(header + 8);
            for at in 0..4 {
                set[0x2c + at] = byte(header + 12 + at);
                set[0x3c + at] = byte(header + 16 + at);
            }
            (header + usize::from(byte(header) & 0xf) * 4, byte(header + 9))
        }
        [0x86, 0xdd] => {
            set[0x12] |= 6 << 1;
            set[0x1b] = byte(header + 7);
            flow_label = [0, byte(header + 1) & 0xf, byte(header + 2), byte(header + 3)];
            for at in 0..16 {
                set[0x20 + at] = byte(header + 8 + at);
                set[0x30 + at] = byte(header + 24 + at);
            }
            (header + 40, byte(header + 6))
        }
        _ => return Headers { set, flow_label, protocol: 0, transport: frame.len() },
    };
    set[0x10] = protocol;
    let ports = match protocol {
        TCP => {
            set[0x13] = byte(transport + 13);
            Some(0x14)
        }
        UDP => Some(0x1c),
        _ => None,
    };
    for (ports, at) in ports.into_iter().flat_map(|ports| (0..4).map(move |at| (ports, at))) {
        set[ports + at] = byte(transport + at);
    }
    Headers { set, flow_label, protocol, transport }
}

/// IP version; 0 for other frames.
pub(super) fn version(set: &[u8; OUTER]) -> u8 {
    set[0x12] >> 1 & 0xf
}

/// Source and destination IP address.
pub(super) fn addresses(set: &[u8; OUTER]) -> (&[u8], &[u8]) {
    let length = if version(set) == 6 { 16 } else { 4 };
    (&set[0x30 - length..0x30], &set[0x40 - length..])
}

/// Source and destination port. `None` if the frame's protocol isn't `protocol`, which is TCP
/// or UDP.
pub(super) fn ports(set: &[u8; OUTER], protocol: u8) -> Option<(&[u8], &[u8])> {
    let at = if protocol == 6 { 0x14 } else { 0x1c };
    (set[0x10] == protocol).then(|| (&set[at..at + 2], &set[at + 2..at + 4]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn match_parameters_hold_frame_headers() {
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        frame[23] = 17;
        frame[26..34].copy_from_slice(&[10, 1, 0, 1, 10, 1, 0, 2]);
        frame[34..38].copy_from_slice(&[0xc0, 0, 0x12, 0xb7]);
        let set = parameters(&frame);
        assert_eq!(set[8..14], [1, 2, 3, 4, 5, 6]);
        assert_eq!((set[6], set[0x10], set[0x12]), (0x08, 17, 8));
        assert_eq!(set[0x1c..0x20], [0xc0, 0, 0x12, 0xb7]);
        assert_eq!(set[0x3c..0x40], [10, 1, 0, 2]);
        assert_eq!(set[0x40..], [0; 0x80]);
    }

    /// A frame of IPv4 with this protocol and payload.
    fn tunnel(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 34];
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        frame[23] = protocol;
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn match_parameters_hold_headers_of_tunnels_and_their_packets() {
        let mut inner = tunnel(17, &[0x12, 0x34, 0x56, 0x78]);
        inner[..6].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        let vxlan =
            [&[0xc0, 0, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0][..], &inner].concat();
        let set = parameters(&tunnel(17, &vxlan));
        assert_eq!((set[0x10], &set[0x54..0x57]), (17, &[0x0a, 0x0b, 0x0c][..]));
        assert_eq!(
            (&set[0x88..0x8e], &set[0x9c..0xa0]),
            (&[1, 2, 3, 4, 5, 6][..], &[0x12, 0x34, 0x56, 0x78][..])
        );

        let gre = [&[0xa0, 0, 0x65, 0x58, 9, 9, 9, 9, 1, 2, 3, 4][..], &inner].concat();
        let set = parameters(&tunnel(47, &gre));
        assert_eq!(
            (&set[0x4e..0x54], &set[0x88..0x8e]),
            (&[0x65, 0x58, 1, 2, 3, 4][..], &[1, 2, 3, 4, 5, 6][..])
        );
        // A payload that is no frame.
        let set = parameters(&tunnel(47, &[&[0x00, 0, 0x08, 0x00][..], &inner].concat()));
        assert_eq!((&set[0x4e..0x54], &set[0x80..]), (&[0x08, 0, 0, 0, 0, 0][..], &[0; 0x40][..]));
    }

    #[test]
    fn match_parameters_hold_the_flow_label() {
        let mut frame = vec![0; 54];
        frame[12..18].copy_from_slice(&[0x86, 0xdd, 0x6f, 0xf1, 0x23, 0x45]);
        assert_eq!(parameters(&frame)[0x5c..0x60], [0, 0x01, 0x23, 0x45]);
    }

    proptest! {
        #[test]
        fn arbitrary_frame_yields_match_parameters(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
            parameters(&frame);
        }
    }
}
