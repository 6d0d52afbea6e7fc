//! Global identifiers: the addresses of ports.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use bareverbs_uapi::uverbs::types::GidType;
use bareverbs_uapi::values::{GidIndex, PortNum, ValueError};
use bareverbs_uapi::verbs_values::LinkLayer;

/// A global identifier of a port, in network byte order.
///
/// On RoCE it is the IPv6 address of the port's network interface, or its IPv4 address in mapped
/// form.
///
/// ```
/// use bareverbs::Gid;
/// use std::net::Ipv4Addr;
///
/// let gid = Gid::from(Ipv4Addr::new(10, 1, 0, 1));
/// assert_eq!(gid.to_string(), "::ffff:10.1.0.1");
/// assert_eq!(gid.ipv4(), Some(Ipv4Addr::new(10, 1, 0, 1)));
/// ```
#[doc(alias = "ibv_gid")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether all its bytes are zero: it identifies no port.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// The IPv4 address of an IPv4-mapped GID, otherwise `None`.
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether it is a multicast GID: an IPv6 multicast address, or an IPv4-mapped one.
    #[must_use]
    pub fn is_multicast(&self) -> bool {
        self.ipv4().map_or(Ipv6Addr::from(self.0).is_multicast(), |address| address.is_multicast())
    }

    /// Whether it is link-local (`fe80::/10`).
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        address.to_ipv6_mapped().into()
    }
}

impl From<IpAddr> for Gid {
    /// An IPv4 address becomes IPv4-mapped.
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<[u8; 16]> for Gid {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl From<Gid> for [u8; 16] {
    fn from(gid: Gid) -> Self {
        gid.0
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Self {
        gid.0.into()
    }
}

impl fmt::Display for Gid {
    /// As an IPv6 address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl FromStr for Gid {
    type Err = AddrParseError;

    /// Parses an IPv6 or an IPv4 address. An IPv4 address becomes IPv4-mapped.
    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.parse::<IpAddr>().map(Self::from)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A filled entry of a port's GID table.
#[doc(alias = "ibv_gid_entry")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The identifier.
    pub gid: Gid,
    /// Its index in the table.
    pub index: GidIndex,
    /// The port.
    pub port: PortNum,
    /// Its type: the packet format.
    #[doc(alias = "ibv_query_gid_type")]
    pub gid_type: GidType,
    /// Index of its network interface; 0 for none.
    pub netdev_ifindex: u32,
}

impl TryFrom<bareverbs_uapi::uverbs::types::GidEntry> for GidEntry {
    type Error = ValueError;

    fn try_from(entry: bareverbs_uapi::uverbs::types::GidEntry) -> Result<Self, ValueError> {
        Ok(Self {
            gid: Gid(entry.gid),
            index: entry.gid_index.try_into()?,
            port: entry.port_num.try_into()?,
            gid_type: entry.gid_type,
            netdev_ifindex: entry.netdev_ifindex,
        })
    }
}

/// The default entry of `port`.
///
/// On Ethernet, entries are ranked by type (RoCE v2 before v1), then by address (IPv4 before global
/// IPv6 before link-local IPv6), then by index. On other link layers the lowest index is chosen.
pub(crate) fn select_gid(table: &[GidEntry], port: PortNum, link_layer: LinkLayer) -> Option<GidEntry> {
    let entries = table.iter().filter(|entry| entry.port == port);
    if link_layer != LinkLayer::ETHERNET {
        return entries.min_by_key(|entry| entry.index).copied();
    }
    entries.min_by_key(|entry| (gid_type_rank(entry.gid_type), scope_rank(&entry.gid), entry.index)).copied()
}

fn gid_type_rank(gid_type: GidType) -> u8 {
    match gid_type {
        GidType::ROCE_V2 => 0,
        GidType::ROCE_V1 => 1,
        _ => 2,
    }
}

fn scope_rank(gid: &Gid) -> u8 {
    match gid.ipv4() {
        Some(_) => 0,
        None if gid.is_link_local() => 2,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, address: &str, gid_type: GidType) -> GidEntry {
        let address: Ipv6Addr = address.parse().unwrap();
        GidEntry {
            gid: address.into(),
            index: GidIndex(index),
            port: PortNum(1),
            gid_type,
            netdev_ifindex: 3,
        }
    }

    fn chosen(table: &[GidEntry]) -> Option<u8> {
        select_gid(table, PortNum(1), LinkLayer::ETHERNET).map(|entry| entry.index.into())
    }

    #[test]
    fn default_gid_prefers_roce_v2_ipv4() {
        let table = [
            entry(0, "fe80::1", GidType::ROCE_V1),
            entry(1, "fe80::1", GidType::ROCE_V2),
            entry(2, "::ffff:10.1.0.1", GidType::ROCE_V1),
            entry(3, "2001:db8::1", GidType::ROCE_V2),
            entry(4, "::ffff:10.1.0.1", GidType::ROCE_V2),
            entry(5, "::ffff:10.1.0.2", GidType::ROCE_V2),
        ];
        assert_eq!(chosen(&table), Some(4));
        assert_eq!(chosen(&table[..4]), Some(3), "then a global IPv6 one");
        assert_eq!(chosen(&table[..3]), Some(1), "then a link-local one, still over UDP");
        assert_eq!(chosen(&table[..1]), Some(0), "v1 is better than none");
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn default_gid_ignores_other_ports() {
        let table = [entry(0, "::ffff:10.1.0.1", GidType::ROCE_V2)];
        assert_eq!(select_gid(&table, PortNum(2), LinkLayer::ETHERNET), None);
    }

    #[test]
    fn default_gid_on_infiniband_is_the_lowest_index() {
        let table = [entry(1, "2001:db8::1", GidType::IB), entry(0, "fe80::1", GidType::IB)];
        assert_eq!(
            select_gid(&table, PortNum(1), LinkLayer::INFINIBAND).map(|entry| entry.index),
            Some(GidIndex(0))
        );
    }

    #[test]
    fn gid_converts_from_and_to_addresses_and_bytes() {
        for text in ["10.1.0.1", "fe80::1", "::ffff:10.1.0.1"] {
            let address: IpAddr = text.parse().unwrap();
            let gid = Gid::from(address);
            assert_eq!(text.parse(), Ok(gid));
            assert_eq!(Ipv6Addr::from(gid).to_canonical(), address.to_canonical());
            assert_eq!(Gid::from(<[u8; 16]>::from(gid)), gid);
        }
    }

    #[test]
    fn gid_prints_as_an_ip_address() {
        assert_eq!(entry(0, "fe80::2", GidType::ROCE_V2).gid.to_string(), "fe80::2");
        assert_eq!(Gid::from(Ipv4Addr::new(10, 1, 0, 1)).to_string(), "::ffff:10.1.0.1");
        assert!(Gid::default().is_zero());
    }

    #[test]
    fn multicast_gids_are_detected_in_both_families() {
        assert!(Gid::from(Ipv4Addr::new(239, 1, 2, 3)).is_multicast());
        assert!(entry(0, "ff0e::1", GidType::ROCE_V2).gid.is_multicast());
        assert!(!Gid::from(Ipv4Addr::new(10, 1, 0, 1)).is_multicast());
        assert!(!entry(0, "fe80::1", GidType::ROCE_V2).gid.is_multicast());
    }
}
