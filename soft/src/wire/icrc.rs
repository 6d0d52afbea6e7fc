//! The ICRC of sent and received packets.
//!
//! A UDP socket doesn't report the identification of an IPv4 header, which the ICRC covers. A CRC is
//! linear: an identification other than 0 changes the ICRC by a difference that depends on the
//! identification and on the number of bytes behind it only. [`verify`] takes the difference back to the
//! place of the identification, and accepts the packet if 16 bits explain it. A damaged packet passes
//! with a probability of 2^-16. The ICRC of IPv6 is verified exactly.
//!
//! Soft-RoCE computes the ICRC of a FLUSH as of no other packet, and drops a FLUSH with the ICRC of the
//! specification. [`of`] does as Soft-RoCE does. [`verify`] accepts both.

use bareverbs_transport::roce::NetworkHeaders;

/// The polynomial of Ethernet's CRC. In registers and polynomials, bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// Most bytes from the identification to the ICRC: IP, UDP and transport headers, 4096 bytes of payload.
const SPAN: usize = 4096 + 128;

/// x^(-8n) modulo the polynomial, by n: `n` zero bytes are taken back by a multiplication with it.
static ZERO_BYTES_BACK: [u32; SPAN] = {
    let mut table = [1 << 31; SPAN];
    let mut at = 1;
    while at < SPAN {
        let mut power: u32 = table[at - 1];
        let mut bit = 0;
        while bit < 8 {
            power = if power >> 31 == 1 { (power ^ POLYNOMIAL) << 1 | 1 } else { power << 1 };
            bit += 1;
        }
        table[at] = power;
        at += 1;
    }
    table
};

/// The product of two polynomials modulo the polynomial.
fn multiply(left: u32, mut right: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        product ^= right & (left >> bit & 1).wrapping_neg();
        right = right >> 1 ^ POLYNOMIAL & (right & 1).wrapping_neg();
    }
    product
}

/// The ICRC of a packet to send. `transport` is its BTH, extension headers, payload and padding.
pub(crate) fn of(headers: &NetworkHeaders, transport: &[u8]) -> u32 {
    headers.icrc_of_flush(transport).unwrap_or_else(|| headers.icrc(transport))
}

/// Whether `icrc` is the ICRC of a packet with these headers and any identification. `transport` is its
/// BTH, extension headers, payload and padding.
pub(super) fn verify(headers: &NetworkHeaders, transport: &[u8], icrc: u32) -> bool {
    let covered = headers.as_bytes().len() + transport.len();
    is_explained(headers, headers.icrc(transport) ^ icrc, covered)
        || headers
            .icrc_of_flush(transport)
            .is_some_and(|right| is_explained(headers, right ^ icrc, covered + transport.len()))
}

/// Whether any identification explains a difference of two ICRCs. The ICRC covers as many bytes from
/// the IP header on.
fn is_explained(headers: &NetworkHeaders, difference: u32, covered: usize) -> bool {
    /// Place of the identification in an IPv4 header.
    const IDENTIFICATION: usize = 4;
    let is_ipv4 = headers.as_bytes()[0] >> 4 == 4;
    difference == 0
        || is_ipv4
            && ZERO_BYTES_BACK
                .get(covered - IDENTIFICATION)
                .is_some_and(|back| multiply(difference, *back) <= 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bareverbs_transport::packet::{Global, Network};
    use crc32fast::Hasher;
    use proptest::prelude::*;

    fn headers(network: Network, transport: usize) -> NetworkHeaders {
        let global = Global {
            source: [1; 16],
            destination: [2; 16],
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            network,
        };
        NetworkHeaders::new(&global, 0xc000, transport)
    }

    /// The ICRC of a packet with an identification.
    fn icrc(network: Network, identification: u16, transport: &[u8]) -> u32 {
        let mut masked = vec![0xff; 8];
        masked.extend_from_slice(headers(network, transport.len()).as_bytes());
        masked.extend_from_slice(transport);
        match network {
            Network::Ipv4 => {
                masked[12..14].copy_from_slice(&identification.to_be_bytes());
                for at in [9, 16, 18, 19, 34, 35, 40] {
                    masked[at] = 0xff;
                }
            }
            _ => {
                masked[8] |= 0xf;
                for at in [9, 10, 11, 15, 54, 55, 60] {
                    masked[at] = 0xff;
                }
            }
        }
        crc32fast::hash(&masked)
    }

    proptest! {
        #[test]
        fn any_identification_is_accepted(identification: u16, transport in proptest::collection::vec(any::<u8>(), 12..4200)) {
            let right = icrc(Network::Ipv4, identification, &transport);
            prop_assert!(verify(&headers(Network::Ipv4, transport.len()), &transport, right));
        }

        #[test]
        fn damaged_bits_are_found(
            identification: u16,
            mut transport in proptest::collection::vec(any::<u8>(), 12..300),
            at in 5..12usize,
            bit in 0..8u32,
        ) {
            for network in [Network::Ipv4, Network::Ipv6] {
                let right = icrc(network, identification, &transport);
                transport[at] ^= 1 << bit;
                prop_assert!(!verify(&headers(network, transport.len()), &transport, right));
                transport[at] ^= 1 << bit;
            }
        }

        #[test]
        fn ipv6_is_exact(
            transport in proptest::collection::vec(any::<u8>(), 12..300),
            change in 1..u32::MAX,
            identification in 1..u16::MAX,
        ) {
            let right = icrc(Network::Ipv6, 0, &transport);
            // The header of IPv4 is 20 bytes shorter.
            let as_long = [&transport[..], &[0; 20]].concat();
            let of_ipv4 = |identification| icrc(Network::Ipv4, identification, &as_long);
            let headers = headers(Network::Ipv6, transport.len());
            prop_assert!(verify(&headers, &transport, right));
            for change in [change, of_ipv4(identification) ^ of_ipv4(0)] {
                prop_assert!(!verify(&headers, &transport, right ^ change));
            }
        }
    }

    #[test]
    fn flush_has_the_icrc_of_soft_roce() {
        let mut flush = vec![0; 32];
        flush[..4].copy_from_slice(&[0x1c, 0x40, 0xff, 0xff]);
        flush[7] = 0x11;
        flush[15] = 1;
        for network in [Network::Ipv4, Network::Ipv6] {
            let headers = headers(network, flush.len());
            let twice = |identification: u16| {
                let mut crc = Hasher::new_with_initial(icrc(network, identification, &flush));
                crc.update(&flush);
                crc.finalize()
            };
            assert_eq!(of(&headers, &flush), twice(0));
            assert_ne!(of(&headers, &flush), headers.icrc(&flush));
            assert!(verify(&headers, &flush, twice(0)));
            assert!(verify(&headers, &flush, headers.icrc(&flush)));
            assert!(verify(&headers, &flush, twice(0x1234)));
            assert!(!verify(&headers, &flush, twice(0) ^ 1));
        }
    }

    #[test]
    fn one_icrc_in_65536_fits_an_identification() {
        let transport = [7; 40];
        let headers = headers(Network::Ipv4, transport.len());
        let fitting = (0..1u32 << 20)
            .filter(|wrong| verify(&headers, &transport, wrong.wrapping_mul(0x9e37_79b1)))
            .count();
        assert!((4..40).contains(&fitting), "{fitting}");
    }
}
