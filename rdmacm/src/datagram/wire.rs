//! The bytes of the datagram protocol: the header of UD messages, and that of lookups by UDP. Source:
//! `struct ds_header` and `struct ds_udp_header` of `librdmacm/rsocket.c` of rdma-core.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of a message with its header, by UD and by UDP, as in rdma-core (`RS_SNDLOWAT`).
pub(super) const SLOT: usize = 2048;

/// Version and length of a [`Header`] by its family.
const V4: [u8; 2] = [4, 8];
const V6: [u8; 2] = [6, 24];

/// The first bytes of a lookup (`DS_UDP_TAG`).
const TAG: [u8; 4] = [0x55; 4];

/// Version and length of a [`Lookup`] by its family.
const LOOKUP_V4: (u8, usize) = (4, 16);
const LOOKUP_V6: (u8, usize) = (6, 28);

/// Bits of a QPN.
const QPN_MASK: u32 = 0xff_ffff;

/// The address of the sender, before the bytes of a UD message (`struct ds_header`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl Header {
    /// The longest header, in bytes.
    pub(super) const MAX: usize = V6[1] as usize;

    /// The header of messages from an address.
    pub(super) fn of(addr: SocketAddr) -> Self {
        let mut bytes = [0; Self::MAX];
        bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
        let [version, len] = match addr {
            SocketAddr::V4(addr) => {
                bytes[4..8].copy_from_slice(&addr.ip().octets());
                V4
            }
            SocketAddr::V6(addr) => {
                bytes[4..8].copy_from_slice(&addr.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&addr.ip().octets());
                V6
            }
        };
        (bytes[0], bytes[1]) = (version, len);
        Self { bytes, len: len.into() }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The sender of a message and the bytes behind its header. `None`: the message has no valid
    /// header. The flow information of IPv6 is left out: it is not part of an address. The scope of a
    /// link-local address is that of the receiver, `scope`.
    pub(super) fn parse(message: &[u8], scope: u32) -> Option<(SocketAddr, &[u8])> {
        let (kind, _) = message.split_first_chunk::<2>()?;
        let (head, data) = message.split_at_checked(kind[1].into())?;
        let ip: IpAddr = match *kind {
            V4 => head[4..].first_chunk::<4>().map(|ip| (*ip).into())?,
            V6 => head[8..].first_chunk::<16>().map(|ip| (*ip).into())?,
            _ => return None,
        };
        let port = u16::from_be_bytes([head[2], head[3]]);
        Some((with_scope(SocketAddr::new(ip, port), scope), data))
    }
}

/// The address without flow information. A link-local one has the scope.
pub(super) fn with_scope(addr: SocketAddr, scope: u32) -> SocketAddr {
    match addr {
        SocketAddr::V4(_) => addr,
        SocketAddr::V6(addr) => {
            let scope = if is_link_local(addr.ip()) { scope } else { 0 };
            SocketAddrV6::new(*addr.ip(), addr.port(), 0, scope).into()
        }
    }
}

fn is_link_local(ip: &Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

/// What a lookup is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupKind {
    /// It carries a message, and asks for the receiver's QPN (`RS_OP_DATA`).
    Data,
    /// It answers with the sender's QPN (`RS_OP_CTRL`).
    Control,
    /// An operation without a defined meaning. librdmacm takes the sender's QPN from it, too.
    Unknown(u8),
}

impl LookupKind {
    const fn code(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Control => 7,
            Self::Unknown(code) => code,
        }
    }

    const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Data,
            7 => Self::Control,
            other => Self::Unknown(other),
        }
    }
}

/// The header of a UDP message, which is followed by the bytes of a message (`struct ds_udp_header`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    pub(super) kind: LookupKind,
    /// The sender's QPN.
    pub(super) qp_num: u32,
}

impl Lookup {
    /// The longest header, in bytes.
    pub(super) const MAX: usize = LOOKUP_V6.1;

    /// Length of the header between addresses of the family of `addr`.
    pub(super) const fn len(addr: SocketAddr) -> usize {
        if addr.is_ipv4() { LOOKUP_V4.1 } else { LOOKUP_V6.1 }
    }

    /// Appends the header of a message from an address. Receivers do not evaluate the address in it:
    /// that of the UDP message counts.
    pub(super) fn append_to(self, message: &mut Vec<u8>, local: SocketAddr) {
        let (version, len) = if local.is_ipv4() { LOOKUP_V4 } else { LOOKUP_V6 };
        message.extend_from_slice(&TAG);
        message.extend_from_slice(&[version, self.kind.code(), len as u8, 0]);
        message.extend_from_slice(&(self.qp_num & QPN_MASK).to_be_bytes());
        match local.ip() {
            IpAddr::V4(ip) => message.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => message.extend_from_slice(&ip.octets()),
        }
    }

    /// The header of a UDP message from `sender`, and the bytes behind it. `None`: it is not a lookup
    /// of the sender's family.
    pub(super) fn parse(message: &[u8], sender: SocketAddr) -> Option<(Self, &[u8])> {
        let (version, len) = if sender.is_ipv4() { LOOKUP_V4 } else { LOOKUP_V6 };
        let (head, data) = message.split_at_checked(len)?;
        let rest = head.strip_prefix(&TAG)?;
        let [found, code, found_len, _, qp_num @ ..] = rest.first_chunk::<8>()?;
        if (*found, usize::from(*found_len)) != (version, len) {
            return None;
        }
        let qp_num = u32::from_be_bytes(*qp_num) & QPN_MASK;
        Some((Self { kind: LookupKind::from_code(*code), qp_num }, data))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn v4() -> SocketAddr {
        "10.1.2.3:7174".parse().unwrap()
    }

    fn v6() -> SocketAddr {
        "[fd00::1:2]:7174".parse().unwrap()
    }

    #[test]
    fn header_has_the_layout_of_rsocket() {
        assert_eq!(Header::of(v4()).as_bytes(), [4, 8, 0x1c, 0x06, 10, 1, 2, 3]);
        let with_flow = SocketAddrV6::new("fd00::1:2".parse().unwrap(), 7174, 0x0102_0304, 0).into();
        let bytes = [6, 24, 0x1c, 0x06, 1, 2, 3, 4, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2];
        assert_eq!(Header::of(with_flow).as_bytes(), bytes);
        assert_eq!(Header::parse(&bytes, 0), Some((v6(), &[][..])));
    }

    #[test]
    fn lookup_has_the_layout_of_rsocket() {
        let mut message = Vec::new();
        Lookup { kind: LookupKind::Data, qp_num: 0x0001_0203 }.append_to(&mut message, v4());
        assert_eq!(message, [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 1, 2, 3, 10, 1, 2, 3]);
        message.clear();
        Lookup { kind: LookupKind::Control, qp_num: 0xff01_0203 }.append_to(&mut message, v6());
        assert_eq!(message[..12], [0x55, 0x55, 0x55, 0x55, 6, 7, 28, 0, 0, 1, 2, 3]);
        assert_eq!(message.len(), Lookup::len(v6()));
        message[8] = 0xff;
        let (lookup, _) = Lookup::parse(&message, v6()).unwrap();
        assert_eq!(lookup.qp_num, 0x0001_0203, "a QPN has 24 bits");
    }

    #[test]
    fn messages_of_other_protocols_are_no_lookups() {
        let mut lookup = Vec::new();
        Lookup { kind: LookupKind::Data, qp_num: 5 }.append_to(&mut lookup, v4());
        assert_eq!(
            Lookup::parse(&lookup, v4()),
            Some((Lookup { kind: LookupKind::Data, qp_num: 5 }, &[][..]))
        );
        // A sender of the other family, one byte too few, and a wrong tag, version and length.
        assert_eq!(Lookup::parse(&lookup, v6()), None);
        assert_eq!(Lookup::parse(&lookup[..15], v4()), None);
        for at in [0, 3, 4, 6] {
            let mut wrong = lookup.clone();
            wrong[at] ^= 1;
            assert_eq!(Lookup::parse(&wrong, v4()), None, "{at}");
        }
    }

    #[test]
    fn messages_without_a_header_are_rejected() {
        for message in [&[][..], &[4], &[4, 8], &[4, 8, 0, 1, 10, 0, 0], &[4, 24, 0, 1, 10, 0, 0, 1], &[5, 2]]
        {
            assert_eq!(Header::parse(message, 0), None, "{message:?}");
        }
        assert_eq!(Header::parse(&[6; 24], 0), None);
    }

    #[test]
    fn link_local_sender_has_the_scope_of_the_receiver() {
        let sender: SocketAddr = "[fe80::1%9]:5".parse().unwrap();
        let header = Header::of(sender);
        let (parsed, _) = Header::parse(header.as_bytes(), 3).unwrap();
        assert_eq!(parsed, "[fe80::1%3]:5".parse().unwrap());
        // The range of link-local addresses is fe80::/10.
        for (sender, expected) in [("[febf::1]:5", "[febf::1%3]:5"), ("[fec0::1]:5", "[fec0::1]:5")] {
            let header = Header::of(sender.parse().unwrap());
            let (parsed, _) = Header::parse(header.as_bytes(), 3).unwrap();
            assert_eq!(parsed, expected.parse().unwrap());
        }
        let global = Header::of(v6());
        assert_eq!(Header::parse(global.as_bytes(), 3).unwrap().0, v6());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(message: Vec<u8>, from_v6: bool, plausible in 0..4u8) {
            let sender = if from_v6 { v6() } else { v4() };
            let mut message = message;
            let start: &[u8] = match plausible {
                0 => &V4,
                1 => &V6,
                2 => &TAG,
                _ => &[],
            };
            message.splice(..0, start.iter().copied());
            if let Some((sender, data)) = Header::parse(&message, 0) {
                let header = Header::of(sender);
                prop_assert_eq!(header.as_bytes().len() + data.len(), message.len());
            }
            if let Some((lookup, data)) = Lookup::parse(&message, sender) {
                prop_assert!(lookup.qp_num <= QPN_MASK);
                prop_assert_eq!(data.len() + Lookup::len(sender), message.len());
            }
        }

        #[test]
        fn lookups_and_headers_round_trip(
            qp_num in 0u32..=QPN_MASK,
            code: u8,
            ip: u128,
            short: u32,
            port: u16,
            is_v6: bool,
            data: Vec<u8>,
        ) {
            let ip: IpAddr = if is_v6 { Ipv6Addr::from(ip).into() } else { std::net::Ipv4Addr::from(short).into() };
            let addr = SocketAddr::new(ip, port);
            let mut message = Header::of(addr).as_bytes().to_vec();
            message.extend_from_slice(&data);
            prop_assert_eq!(Header::parse(&message, 0), Some((addr, &data[..])));
            let lookup = Lookup { kind: LookupKind::from_code(code), qp_num };
            prop_assert_eq!(lookup.kind.code(), code);
            let mut message = Vec::new();
            lookup.append_to(&mut message, addr);
            message.extend_from_slice(&data);
            prop_assert_eq!(Lookup::parse(&message, addr), Some((lookup, &data[..])));
        }
    }
}
