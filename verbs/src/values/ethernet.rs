//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

use super::{ParseValueError, hex};
use crate::gid::Gid;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The Ethernet multicast address of a group, for IPv4 (RFC 1112) and IPv6 (RFC 2464); `None`
    /// if the GID is not a multicast GID.
    ///
    /// ```
    /// use bareverbs::Gid;
    /// use bareverbs::values::MacAddress;
    /// use std::net::Ipv4Addr;
    ///
    /// let mac = MacAddress::of_group(&Gid::from(Ipv4Addr::new(239, 129, 2, 3))).unwrap();
    /// assert_eq!(mac.to_string(), "01:00:5e:01:02:03");
    /// ```
    #[must_use]
    pub fn of_group(gid: &Gid) -> Option<Self> {
        gid.is_multicast().then(|| {
            let [.., a, b, c, d] = gid.0;
            match gid.ipv4() {
                Some(_) => Self([0x01, 0x00, 0x5e, b & 0x7f, c, d]),
                None => Self([0x33, 0x33, a, b, c, d]),
            }
        })
    }

    /// The address in a link-local GID with a modified EUI-64 interface identifier (RFC 4291);
    /// `None` for other GIDs.
    ///
    /// RoCE v1 has no IP layer and derives the destination address of its frames in this way.
    ///
    /// ```
    /// use bareverbs::Gid;
    /// use bareverbs::values::MacAddress;
    /// use std::net::Ipv6Addr;
    ///
    /// let gid = Gid::from("fe80::5054:ff:fe12:3456".parse::<Ipv6Addr>().unwrap());
    /// assert_eq!(MacAddress::of_link_local(&gid).unwrap().to_string(), "52:54:00:12:34:56");
    /// ```
    #[must_use]
    pub fn of_link_local(gid: &Gid) -> Option<Self> {
        let [.., a, b, c, 0xff, 0xfe, d, e, f] = gid.0 else { return None };
        gid.is_link_local().then_some(Self([a ^ 2, b, c, d, e, f]))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddress {
    type Err = ParseValueError;

    /// Six groups of one or two hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let expected = "an Ethernet address: six groups of hexadecimal digits, such as 52:54:00:12:34:56";
        let error = ParseValueError::expected(expected);
        let mut bytes = [0; 6];
        let mut groups = text.split(':');
        for byte in &mut bytes {
            *byte = groups.next().and_then(hex).ok_or(error)?;
        }
        if groups.next().is_some() { Err(error) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Ethernet destination of frames to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EthernetAddress {
    /// The address of the peer, or of the next router on the path to it.
    pub mac: MacAddress,
    /// The VLAN of the local network interface, 12 bits; `None` without VLAN.
    pub vlan: Option<u16>,
}
