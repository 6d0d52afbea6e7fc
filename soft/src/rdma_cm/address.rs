//! Addresses of identifiers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use bareverbs_provider::Errno;
use bareverbs_uapi::abi::{Be16, Be32, Be64};
use bareverbs_uapi::rdma_cm::PortSpace;
use bareverbs_uapi::rdma_cm::address::{
    AddressFamily, SocketAddressIb, SocketAddressIn, SocketAddressIn6, SocketAddressStorage,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::wire::gid;

/// An address as a command has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Address {
    #[default]
    Unset,
    Ip(SocketAddr),
    /// A GID. Devices of RoCE have none that can be bound.
    Ib,
}

impl Address {
    /// The address in the first bytes of a field. `Unset` for an unknown family.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let family = bytes.first_chunk().map_or(0, |family| u16::from_ne_bytes(*family));
        match AddressFamily(family) {
            AddressFamily::INET => SocketAddressIn::read_from_prefix(bytes).map_or(Self::Unset, |(v4, _)| {
                Self::Ip(SocketAddr::new(Ipv4Addr::from(v4.address).into(), v4.port.get()))
            }),
            AddressFamily::INET6 => {
                SocketAddressIn6::read_from_prefix(bytes).map_or(Self::Unset, |(v6, _)| {
                    let address = Ipv6Addr::from(v6.address);
                    Self::Ip(
                        SocketAddrV6::new(address, v6.port.get(), v6.flow_info.get(), v6.scope_id).into(),
                    )
                })
            }
            AddressFamily::IB => Self::Ib,
            _ => Self::Unset,
        }
    }

    /// Length of the address in bytes. 0 if there is none.
    pub(super) fn size(self) -> u16 {
        (match self {
            Self::Unset => 0,
            Self::Ip(SocketAddr::V4(_)) => size_of::<SocketAddressIn>(),
            Self::Ip(SocketAddr::V6(_)) => size_of::<SocketAddressIn6>(),
            Self::Ib => size_of::<SocketAddressIb>(),
        }) as u16
    }

    /// The IP address, unless it is unset.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is unset, `ENODEV` for a GID.
    pub(super) fn ip(self) -> Result<SocketAddr, Errno> {
        match self {
            Self::Unset => Err(Errno::INVAL),
            Self::Ip(address) => Ok(address),
            Self::Ib => Err(Errno::NODEV),
        }
    }
}

/// The address in the form of a response.
pub(super) fn storage(address: Option<SocketAddr>) -> (SocketAddressStorage, u16) {
    match address {
        None => (SocketAddressStorage::zeroed(), 0),
        Some(SocketAddr::V4(v4)) => {
            let address = SocketAddressIn {
                family: AddressFamily::INET,
                port: Be16::new(v4.port()),
                address: v4.ip().octets(),
                ..SocketAddressIn::zeroed()
            };
            (address.into(), size_of::<SocketAddressIn>() as u16)
        }
        Some(SocketAddr::V6(v6)) => {
            let address = SocketAddressIn6 {
                family: AddressFamily::INET6,
                port: Be16::new(v6.port()),
                flow_info: Be32::new(v6.flowinfo()),
                address: v6.ip().octets(),
                scope_id: v6.scope_id(),
            };
            (address.into(), size_of::<SocketAddressIn6>() as u16)
        }
    }
}

/// The same for a field that has room for an IPv6 address.
pub(super) fn storage_in6(address: Option<SocketAddr>) -> SocketAddressIn6 {
    let (storage, _) = storage(address);
    SocketAddressIn6::read_from_prefix(storage.as_bytes())
        .map_or_else(|_| SocketAddressIn6::zeroed(), |(address, _)| address)
}

/// The GID and the service of an address.
pub(super) fn storage_ib(space: PortSpace, address: Option<SocketAddr>) -> SocketAddressStorage {
    let ib = SocketAddressIb {
        family: AddressFamily::IB,
        pkey: Be16::new(0xffff),
        gid: address.map_or([0; 16], |address| gid(address.ip())),
        service_id: Be64::new(address.map_or(0, |address| service_id(space, address.port()))),
        ..SocketAddressIb::zeroed()
    };
    ib.into()
}

/// The service of a port.
pub(super) fn service_id(space: PortSpace, port: u16) -> u64 {
    u64::from(space.0) << 16 | u64::from(port)
}

/// Whether two IP addresses have the same family.
pub(super) fn same_family(one: IpAddr, other: IpAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
}

/// The header of the IP addressing service (IBTA annex A11) before the private data of a request.
pub(super) const HEADER: usize = 36;

/// The addresses in the header of a request: those of the side that connects, and of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) source: SocketAddr,
    pub(super) destination: IpAddr,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER] {
        let version = if self.source.is_ipv4() { 4 } else { 6 };
        let mut bytes = [0; HEADER];
        bytes[1] = version << 4;
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        for (at, address) in [(4, self.source.ip()), (20, self.destination)] {
            match address {
                IpAddr::V4(v4) => bytes[at + 12..at + 16].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => bytes[at..at + 16].copy_from_slice(&v6.octets()),
            }
        }
        bytes
    }

    /// `None` if the private data begin with no such header.
    pub(super) fn parse(data: &[u8]) -> Option<Self> {
        let bytes = data.first_chunk::<HEADER>()?;
        let address = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 16] = bytes[at..at + 16].try_into().ok()?;
            match bytes[1] >> 4 {
                4 => Some(Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]).into()),
                6 => Some(Ipv6Addr::from(octets).into()),
                _ => None,
            }
        };
        if bytes[0] != 0 {
            return None;
        }
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        Some(Self { source: SocketAddr::new(address(4)?, port), destination: address(20)? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_are_decoded_as_encoded(
            bytes in any::<[u8; HEADER]>(),
            v4: bool,
        ) {
            let address = |at: usize| -> IpAddr {
                let octets: [u8; 16] = bytes[at..at + 16].try_into().unwrap();
                if v4 { Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into() } else { octets.into() }
            };
            let port = u16::from_ne_bytes([bytes[0], bytes[1]]);
            let header = Header { source: SocketAddr::new(address(4), port), destination: address(20) };
            prop_assert_eq!(Header::parse(&header.to_bytes()), Some(header));
        }

        #[test]
        fn addresses_are_parsed_as_stored(ip: IpAddr, port: u16) {
            let address = SocketAddr::new(ip, port);
            let (stored, size) = storage(Some(address));
            prop_assert_eq!(Address::parse(stored.as_bytes()), Address::Ip(address));
            prop_assert_eq!(Address::parse(storage_in6(Some(address)).as_bytes()), Address::Ip(address));
            prop_assert_eq!(Address::Ip(address).size(), size);
        }
    }

    #[test]
    fn foreign_headers_and_families_are_not_parsed() {
        let header = Header { source: ([10, 0, 0, 1], 7).into(), destination: [10, 0, 0, 2].into() };
        for (at, byte) in [(0, 1), (1, 0x50), (1, 0)] {
            let mut bytes = header.to_bytes();
            bytes[at] = byte;
            assert_eq!(Header::parse(&bytes), None);
        }
        assert_eq!(Header::parse(&header.to_bytes()[..35]), None);
        assert_eq!(Address::parse(&[99, 0, 0, 0]), Address::Unset);
        assert_eq!(Address::parse(&[2, 0, 0]), Address::Unset);
        assert_eq!(Address::parse(&[27, 0]), Address::Ib);
    }
}
