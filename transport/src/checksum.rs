//! The Internet checksum, and the CRC of Ethernet.

/// The ones' complement sum of the Internet checksum, not inverted.
pub fn ones_sum(bytes: &[u8]) -> u16 {
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

/// The CRC-32 of Ethernet frames (IEEE 802.3) and of the ICRC.
pub fn crc32(bytes: &[u8]) -> u32 {
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

    #[test]
    fn crc32_matches_check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
