//! MACs of ports, which follow from their addresses.

use std::net::IpAddr;

/// The MAC of an address: each device derives that of its peers.
pub(crate) fn mac(address: IpAddr) -> [u8; 6] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [0x02, 0, a, b, c, d]
        }
        IpAddr::V6(address) => {
            let bytes = address.octets();
            let mut mac = [0x06, 0, 0, 0, 0, 0];
            for (at, byte) in bytes.into_iter().enumerate() {
                mac[1 + at % 5] ^= byte;
            }
            mac
        }
    }
}

/// The modified EUI-64 of a MAC.
pub(crate) fn eui64(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// The MAC of the port with a GID.
pub(crate) fn mac_of_gid(gid: [u8; 16]) -> [u8; 6] {
    let address = std::net::Ipv6Addr::from(gid);
    if gid[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0] {
        let [a, b, c, _, _, d, e, f] = gid[8..].try_into().unwrap_or_default();
        return [a ^ 2, b, c, d, e, f];
    }
    mac(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4))
}
