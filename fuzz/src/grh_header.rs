//! The 40 bytes before a datagram's payload.
//!
//! A decoded header has the fields of the encoded header, in both address families.

use bareverbs::Gid;
use bareverbs::ah::Grh;
use bareverbs::qp::GRH_BYTES;

use crate::input::Input;

/// The one's complement sum of a header's 16-bit words.
fn ones_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn ipv6(input: &mut Input<'_>) -> [u8; GRH_BYTES] {
    let mut bytes: [u8; GRH_BYTES] = input.array();
    bytes[0] = 0x60 | bytes[0] & 0xf;
    bytes
}

/// An IPv4 header with a valid checksum, after bytes that may look like the start of an IPv6
/// header.
fn ipv4(input: &mut Input<'_>) -> [u8; GRH_BYTES] {
    let mut bytes: [u8; GRH_BYTES] = input.array();
    bytes[20] = 0x45;
    bytes[30..32].fill(0);
    let sum = !ones_sum(&bytes[20..]);
    bytes[30..32].copy_from_slice(&sum.to_be_bytes());
    bytes
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let any: [u8; GRH_BYTES] = input.array();
    if let Some(header) = Grh::parse(&any) {
        assert!(header.flow_label < 1 << 20);
        assert!(any[0] >> 4 == 6 || any[20] >> 4 == 4);
    }

    let bytes = ipv6(&mut input);
    // A header whose last 20 bytes are a valid IPv4 header is decoded as IPv4.
    if bytes[20] != 0x45 || ones_sum(&bytes[20..]) != 0xffff {
        let header = Grh::parse(&bytes).expect("an IPv6 header");
        assert_eq!((header.sgid.0, header.dgid.0), (array(&bytes, 8), array(&bytes, 24)));
        assert_eq!((header.next_header, header.hop_limit), (bytes[6], bytes[7]));
        let word = u32::from_be_bytes(array(&bytes, 0));
        let first = 6 << 28 | u32::from(header.traffic_class) << 20 | header.flow_label;
        assert_eq!(first, word);
    }

    let bytes = ipv4(&mut input);
    let header = Grh::parse(&bytes).expect("an IPv4 header");
    let address = |at| Gid::from(std::net::Ipv4Addr::from(array::<4>(&bytes, at)));
    assert_eq!((header.sgid, header.dgid), (address(32), address(36)));
    assert_eq!((header.traffic_class, header.hop_limit), (bytes[21], bytes[28]));
    assert_eq!((header.next_header, header.flow_label), (bytes[29], 0));
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many bytes")
}
