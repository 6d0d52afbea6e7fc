//! Receive-side scaling: the hash by which a TIR selects an RQ.

use super::bits::View;
use super::command::{Result, Status};
use super::headers::{self, OUTER};
use super::layout::command::{RxHashFieldSelect, Tirc};

/// Key length in bytes: two IPv6 addresses, two ports, and four more bytes.
const KEY: usize = 40;

/// Hash functions, `MLX5_RX_HASH_FN_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    None,
    InvertedXor8,
    Toeplitz,
}

/// Hash fields, `MLX5_HASH_FIELD_SEL_*`.
mod field {
    pub(super) const SOURCE: u32 = 1 << 0;
    pub(super) const DESTINATION: u32 = 1 << 1;
    pub(super) const SOURCE_PORT: u32 = 1 << 2;
    pub(super) const DESTINATION_PORT: u32 = 1 << 3;
    /// The SPI of IPsec, which is not modelled: the field is accepted and not hashed.
    pub(super) const INDEX: u32 = 1 << 4;
    pub(super) const ALL: u32 = SOURCE | DESTINATION | SOURCE_PORT | DESTINATION_PORT | INDEX;
}

/// A hash over selected header fields.
#[derive(Clone, Debug)]
pub(super) struct Hash {
    function: Function,
    key: [u8; KEY],
    fields: u32,
    version: u8,
    protocol: u8,
    /// Whether both directions of a flow have the same hash.
    symmetric: bool,
}

impl Hash {
    /// The hash that a TIR's context selects.
    pub(super) fn new(context: &View<'_, Tirc>) -> Result<Self> {
        const TCP: u8 = 6;
        const UDP: u8 = 17;
        let function = match context.get8(Tirc::RX_HASH_FN) {
            0 => Function::None,
            1 => Function::InvertedXor8,
            2 => Function::Toeplitz,
            _ => return Err(Status::BadParameter),
        };
        let select = context.part(Tirc::RX_HASH_FIELD_SELECTOR_OUTER);
        let inner = context.part(Tirc::RX_HASH_FIELD_SELECTOR_INNER);
        let fields = select.get32(RxHashFieldSelect::SELECTED_FIELDS);
        // Inner headers of tunnels are unsupported.
        if fields & !field::ALL != 0 || inner.flag(RxHashFieldSelect::SELECTED_FIELDS) {
            return Err(Status::BadParameter);
        }
        let mut key = [0; KEY];
        key.copy_from_slice(context.bytes(Tirc::RX_HASH_TOEPLITZ_KEY));
        Ok(Self {
            function,
            key,
            fields,
            version: if select.flag(RxHashFieldSelect::L3_PROT_TYPE) { 6 } else { 4 },
            protocol: if select.flag(RxHashFieldSelect::L4_PROT_TYPE) { UDP } else { TCP },
            symmetric: context.flag(Tirc::RX_HASH_SYMMETRIC),
        })
    }

    /// The hash of a frame; 0 if the frame lacks a selected header. The device's manual leaves that
    /// case undefined.
    pub(super) fn of(&self, outer: &[u8; OUTER]) -> u32 {
        let Some(input) = self.input(outer) else { return 0 };
        match self.function {
            Function::None => 0,
            Function::InvertedXor8 => u32::from(!input.iter().fold(0, |sum, byte| sum ^ byte)),
            Function::Toeplitz => toeplitz(&self.key, &input),
        }
    }

    /// The hash input: addresses, then ports. `None` if the frame lacks a selected header.
    fn input(&self, outer: &[u8; OUTER]) -> Option<Vec<u8>> {
        let mut input = Vec::with_capacity(KEY - 4);
        let has = |fields| self.fields & fields != 0;
        if has(field::SOURCE | field::DESTINATION) {
            if headers::version(outer) != self.version {
                return None;
            }
            let (source, destination) = headers::addresses(outer);
            self.add(&mut input, (field::SOURCE, source), (field::DESTINATION, destination));
        }
        if has(field::SOURCE_PORT | field::DESTINATION_PORT) {
            let (source, destination) = headers::ports(outer, self.protocol)?;
            self.add(&mut input, (field::SOURCE_PORT, source), (field::DESTINATION_PORT, destination));
        }
        Some(input)
    }

    /// Appends the selected ones of a source field and a destination field.
    fn add(&self, input: &mut Vec<u8>, one: (u32, &[u8]), other: (u32, &[u8])) {
        if self.symmetric && self.fields & one.0 != 0 && self.fields & other.0 != 0 {
            // `RXH_XFRM_SYM_OR_XOR` of the kernel's `ethtool.h`.
            let both = || one.1.iter().zip(other.1);
            input.extend(both().map(|(one, other)| one | other));
            input.extend(both().map(|(one, other)| one ^ other));
            return;
        }
        for (bit, bytes) in [one, other] {
            if self.fields & bit != 0 {
                input.extend_from_slice(bytes);
            }
        }
    }
}

/// The Toeplitz hash: the XOR of the 32-bit key windows that start at the set bits of the input.
fn toeplitz(key: &[u8; KEY], input: &[u8]) -> u32 {
    let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    let mut sum = 0;
    for (byte, next) in input.iter().zip(&key[4..]) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                sum ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::firmware::headers::{outer, parameters};

    /// The key of Microsoft's test vectors.
    const PUBLISHED: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    const ADDRESSES: u32 = field::SOURCE | field::DESTINATION;
    const PORTS: u32 = field::SOURCE_PORT | field::DESTINATION_PORT;

    fn hash(version: u8, protocol: u8, fields: u32) -> Hash {
        Hash { function: Function::Toeplitz, key: PUBLISHED, fields, version, protocol, symmetric: false }
    }

    fn v4(source: (Ipv4Addr, u16), destination: (Ipv4Addr, u16), protocol: u8) -> [u8; OUTER] {
        let ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0];
        let addresses = [source.0.octets(), destination.0.octets()].concat();
        let ports = [source.1.to_be_bytes(), destination.1.to_be_bytes()].concat();
        *outer(&parameters(&[&[0; 12][..], &[8, 0], &ip, &addresses, &ports, &[0; 16]].concat()))
    }

    fn v6(source: (&str, u16), destination: (&str, u16)) -> [u8; OUTER] {
        let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let ip = [0x60, 0, 0, 0, 0, 20, 6, 64];
        let addresses = [octets(source.0), octets(destination.0)].concat();
        let ports = [source.1.to_be_bytes(), destination.1.to_be_bytes()].concat();
        *outer(&parameters(&[&[0; 12][..], &[0x86, 0xdd], &ip, &addresses, &ports, &[0; 16]].concat()))
    }

    /// "Verifying the RSS hash calculation" in the documentation of Windows network drivers.
    #[test]
    fn toeplitz_matches_published_vectors() {
        type V4 = ([u8; 4], u16);
        let of_v4: [(V4, V4, u32, u32); 5] = [
            (([66, 9, 149, 187], 2794), ([161, 142, 100, 80], 1766), 0x323e_8fc2, 0x51cc_c178),
            (([199, 92, 111, 2], 14230), ([65, 69, 140, 83], 4739), 0xd718_262a, 0xc626_b0ea),
            (([24, 19, 198, 95], 12898), ([12, 22, 207, 184], 38024), 0xd2d0_a5de, 0x5c2b_394a),
            (([38, 27, 205, 30], 48228), ([209, 142, 163, 6], 2217), 0x8298_9176, 0xafc7_327f),
            (([153, 39, 163, 191], 44251), ([202, 188, 127, 2], 1303), 0x5d18_09c5, 0x10e8_28a2),
        ];
        for (source, destination, addresses, all) in of_v4 {
            let end = |(address, port): V4| (Ipv4Addr::from(address), port);
            let headers = v4(end(source), end(destination), 6);
            assert_eq!(hash(4, 6, ADDRESSES).of(&headers), addresses, "{source:?}");
            assert_eq!(hash(4, 6, ADDRESSES | PORTS).of(&headers), all, "{source:?}");
            let datagram = v4(end(source), end(destination), 17);
            assert_eq!(hash(4, 17, ADDRESSES | PORTS).of(&datagram), all, "{source:?}");
        }
        let of_v6 = [
            (("3ffe:2501:200:1fff::7", 2794), ("3ffe:2501:200:3::1", 1766), 0x2cc1_8cd5, 0x4020_7d3d),
            (("3ffe:501:8::260:97ff:fe40:efab", 14230), ("ff02::1", 4739), 0x0f0c_461c, 0xdde5_1bbf),
            (
                ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251),
                ("fe80::200:f8ff:fe21:67cf", 38024),
                0x4b61_e985,
                0x02d1_feef,
            ),
        ];
        for (source, destination, addresses, all) in of_v6 {
            let headers = v6(source, destination);
            assert_eq!(hash(6, 6, ADDRESSES).of(&headers), addresses, "{source:?}");
            assert_eq!(hash(6, 6, ADDRESSES | PORTS).of(&headers), all, "{source:?}");
        }
    }

    #[test]
    fn frames_without_hashed_headers_hash_to_zero() {
        let (one, other) = ((Ipv4Addr::new(10, 0, 0, 1), 7), (Ipv4Addr::new(10, 0, 0, 2), 8));
        let datagram = v4(one, other, 17);
        assert_eq!(hash(4, 6, ADDRESSES | PORTS).of(&datagram), 0, "no TCP");
        assert_ne!(hash(4, 6, ADDRESSES).of(&datagram), 0);
        assert_eq!(hash(6, 17, ADDRESSES).of(&datagram), 0, "no IPv6");
        assert_eq!(hash(4, 6, ADDRESSES).of(outer(&parameters(&[0xff; 60]))), 0, "no IP");
    }

    fn end() -> impl Strategy<Value = (Ipv4Addr, u16)> {
        (any::<u32>().prop_map(Ipv4Addr::from), any::<u16>())
    }

    proptest! {
        #[test]
        fn rss_hash_uses_selected_fields_only(one in end(), other in end(), third in end(), fields in 0u32..16) {
            let hash = hash(4, 6, fields);
            let chosen = |bit: u32, kept, changed| if fields & bit != 0 { kept } else { changed };
            let changed = (
                (if fields & field::SOURCE != 0 { one.0 } else { third.0 }, chosen(field::SOURCE_PORT, one.1, third.1)),
                (
                    if fields & field::DESTINATION != 0 { other.0 } else { third.0 },
                    chosen(field::DESTINATION_PORT, other.1, third.1),
                ),
            );
            prop_assert_eq!(hash.of(&v4(one, other, 6)), hash.of(&v4(changed.0, changed.1, 6)));
        }

        #[test]
        fn toeplitz_is_linear(one in any::<[u8; 36]>(), other in any::<[u8; 36]>()) {
            let sum: Vec<u8> = one.iter().zip(&other).map(|(one, other)| one ^ other).collect();
            prop_assert_eq!(toeplitz(&PUBLISHED, &one) ^ toeplitz(&PUBLISHED, &other), toeplitz(&PUBLISHED, &sum));
        }

        #[test]
        fn symmetric_rss_hash_ignores_direction(one in end(), other in end()) {
            let hash = Hash { symmetric: true, ..hash(4, 6, ADDRESSES | PORTS) };
            prop_assert_eq!(hash.of(&v4(one, other, 6)), hash.of(&v4(other, one, 6)));
        }
    }
}
