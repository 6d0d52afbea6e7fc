//! A frame's outer headers, as flow tables match and RSS hashes them
//! (`mlx5_ifc_fte_match_set_lyr_2_4_bits`).

/// Length of the outer headers in bytes.
pub(super) const OUTER: usize = 0x40;

/// A frame's headers in the layout of `mlx5_ifc_fte_match_set_lyr_2_4_bits`.
pub(super) fn parameters(frame: &[u8]) -> [u8; OUTER] {
    const VLAN: [u8; 2] = [0x81, 0x00];
    let mut set = [0; OUTER];
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
            for at in 0..16 {
                set[0x20 + at] = byte(header + 8 + at);
                set[0x30 + at] = byte(header + 24 + at);
            }
            (header + 40, byte(header + 6))
        }
        _ => return set,
    };
    set[0x10] = protocol;
    let ports = match protocol {
        6 => {
            set[0x13] = byte(transport + 13);
            0x14
        }
        17 => 0x1c,
        _ => return set,
    };
    for at in 0..4 {
        set[ports + at] = byte(transport + at);
    }
    set
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
        assert_eq!(set[0x3c..], [10, 1, 0, 2]);
    }

    proptest! {
        #[test]
        fn arbitrary_frame_yields_match_parameters(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
            parameters(&frame);
        }
    }
}
