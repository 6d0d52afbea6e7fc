//! Addresses of datagrams.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::Gid;
#[cfg(feature = "serde")]
use crate::address::address_serde;
use crate::address::{field, number};
use crate::error::ParseAddressError;
use crate::qp::MULTICAST_QP;

/// Address of a UD QP or of a multicast group: what a sender must know.
///
/// Ends exchange addresses as text, as [bytes](Self::to_bytes) or with serde (feature `serde`: text
/// in human-readable formats, else bytes).
///
/// ```
/// use bareverbs::datagram::DatagramAddress;
///
/// let gid = "fe80::1".parse::<std::net::Ipv6Addr>().unwrap().into();
/// let address = DatagramAddress::new(gid, 17, 0x1234);
/// let text = address.to_string();
/// assert_eq!(text, "17@fe80::1/lid=0/qkey=4660");
/// assert_eq!(text.parse(), Ok(address));
/// assert_eq!(DatagramAddress::from_bytes(&address.to_bytes()), Ok(address));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DatagramAddress {
    /// GID of the port, or of the group.
    pub gid: Gid,
    /// LID of the port, or of the group; 0 on RoCE.
    pub lid: u16,
    /// QP number, 24 bits; [`MULTICAST_QP`] for a group.
    pub qp_num: u32,
    /// The Q_Key that a datagram must carry.
    pub qkey: u32,
}

impl DatagramAddress {
    /// Length of an address in bytes.
    pub const LEN: usize = 32;

    /// Version of the format of the bytes.
    const VERSION: u8 = 1;

    /// The address of the QP `qp_num` at the port with `gid`. Its LID is 0.
    #[must_use]
    pub const fn new(gid: Gid, qp_num: u32, qkey: u32) -> Self {
        Self { gid, lid: 0, qp_num, qkey }
    }

    /// The address of a multicast group. Its LID is 0.
    ///
    /// ```
    /// use bareverbs::datagram::DatagramAddress;
    ///
    /// // On InfiniBand, the subnet administrator assigns the LID.
    /// let group = "ff12:401b::1".parse().unwrap();
    /// let mut address = DatagramAddress::group(group, 0x1234);
    /// address.lid = 0xc007;
    /// ```
    #[must_use]
    pub const fn group(group: Gid, qkey: u32) -> Self {
        Self::new(group, MULTICAST_QP, qkey)
    }

    /// The address as bytes. The first byte is the version of the format. Numbers are big-endian.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0 | version, 1 |
    /// | 1–3 | 0 |
    /// | 4–5 | LID |
    /// | 6–7 | 0 |
    /// | 8–11 | QP number |
    /// | 12–15 | Q_Key |
    /// | 16–31 | GID |
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = Self::VERSION;
        bytes[4..6].copy_from_slice(&self.lid.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.qp_num.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.qkey.to_be_bytes());
        bytes[16..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// The address with these bytes, as [`DatagramAddress::to_bytes`] returns them.
    ///
    /// # Errors
    /// [`ParseAddressError`]: the length or the version differs, the QP number is out of range, or a
    /// byte that must be 0 is not.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseAddressError> {
        let Ok(bytes) = <&[u8; Self::LEN]>::try_from(bytes) else {
            return Err(ParseAddressError("an address of datagrams has 32 bytes"));
        };
        let u32_at = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[0] != Self::VERSION {
            return Err(ParseAddressError("the version of the address is not 1"));
        }
        if [&bytes[1..4], &bytes[6..8]].into_iter().flatten().any(|byte| *byte != 0) {
            return Err(ParseAddressError("a reserved byte of the address is not 0"));
        }
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&bytes[16..]);
        let lid = u16::from_be_bytes([bytes[4], bytes[5]]);
        Self { gid, lid, qp_num: u32_at(8), qkey: u32_at(12) }.checked()
    }

    /// Rejects a QP number that no packet can carry.
    fn checked(self) -> Result<Self, ParseAddressError> {
        if self.qp_num >> 24 == 0 {
            Ok(self)
        } else {
            Err(ParseAddressError("the QP number has more than 24 bits"))
        }
    }
}

impl fmt::Display for DatagramAddress {
    /// `QPN@GID/lid=…/qkey=…`, numbers in decimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gid, lid, qp_num, qkey } = self;
        write!(f, "{qp_num}@{gid}/lid={lid}/qkey={qkey}")
    }
}

impl FromStr for DatagramAddress {
    type Err = ParseAddressError;

    /// The address in the form of its `Display`.
    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let parse = || {
            let mut fields = text.split('/');
            let (qp_num, gid) = fields.next()?.split_once('@')?;
            let address = Self {
                gid: gid.parse::<Ipv6Addr>().ok()?.into(),
                qp_num: number(qp_num)?,
                lid: field(&mut fields, "lid")?.try_into().ok()?,
                qkey: field(&mut fields, "qkey")?,
            };
            fields.next().is_none().then_some(address)
        };
        let reason = "the text is not of the form `QPN@GID/lid=…/qkey=…`";
        parse().ok_or(ParseAddressError(reason))?.checked()
    }
}

#[cfg(feature = "serde")]
address_serde!(DatagramAddress, "the address of datagrams, as text or as 32 bytes");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_bytes_are_rejected() {
        let good = DatagramAddress::new(Gid([7; 16]), 0xab_cdef, 1).to_bytes();
        assert!(DatagramAddress::from_bytes(&good).is_ok());
        for (at, value) in [(0, 0), (0, 2), (1, 1), (3, 1), (6, 1), (7, 1), (8, 1)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(DatagramAddress::from_bytes(&bytes).is_err(), "byte {at} = {value}");
        }
        assert!(DatagramAddress::from_bytes(&good[..31]).is_err());
        assert!(DatagramAddress::from_bytes(&[good, good].concat()).is_err());
    }

    #[test]
    fn malformed_text_is_rejected() {
        assert!("17@fe80::1/lid=0/qkey=17".parse::<DatagramAddress>().is_ok());
        for bad in [
            "",
            "17@fe80::1",
            "17@10.0.0.1/lid=0/qkey=17",
            "+17@fe80::1/lid=0/qkey=17",
            "16777216@fe80::1/lid=0/qkey=17",
            "17@fe80::1/lid=65536/qkey=17",
            "17@fe80::1/lid=0/qkey=4294967296",
            "17@fe80::1/qkey=17/lid=0",
            "17@fe80::1/lid=0/qkey=17/",
            "17@fe80::1/lid=0/qkey=17 ",
        ] {
            assert!(bad.parse::<DatagramAddress>().is_err(), "{bad:?}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_uses_text_in_readable_formats() {
        let address = DatagramAddress::new(Gid([7; 16]), 0xab_cdef, 1);
        let text = serde_json::to_string(&address).unwrap();
        assert_eq!(text, format!("\"{address}\""));
        assert_eq!(serde_json::from_str::<DatagramAddress>(&text).unwrap(), address);
        assert!(serde_json::from_str::<DatagramAddress>("\"17@::1\"").is_err());
    }

    proptest! {
        #[test]
        fn bytes_and_text_round_trip(gid: [u8; 16], lid: u16, qp_num in 0u32..1 << 24, qkey: u32) {
            let address = DatagramAddress { lid, ..DatagramAddress::new(Gid(gid), qp_num, qkey) };
            prop_assert_eq!(DatagramAddress::from_bytes(&address.to_bytes()), Ok(address));
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn accepted_bytes_are_canonical(mut bytes: [u8; DatagramAddress::LEN], plausible: bool) {
            if plausible {
                (bytes[0], bytes[8]) = (1, 0);
                bytes[1..4].fill(0);
                bytes[6..8].fill(0);
            }
            if let Ok(address) = DatagramAddress::from_bytes(&bytes) {
                prop_assert_eq!(address.to_bytes(), bytes);
            }
        }

        #[test]
        fn any_text_is_parsed_or_rejected(text in "\\PC*|[0-9@:/=.a-z]{0,60}") {
            let _ = text.parse::<DatagramAddress>();
        }
    }
}
