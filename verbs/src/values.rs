//! Value types of the verbs API that have no type in the kernel ABI.

mod port;
mod timers;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use port::{GidIndex, PortNum};
pub use timers::{AckTimeout, MinRnrTimer, RetryCount, RnrRetry};

pub use crate::ethernet::{EthernetAddress, MacAddress};

/// A number or a time that a value type can't represent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {given} is {bound} of {limit}")]
pub struct ValueError {
    what: &'static str,
    given: String,
    bound: &'static str,
    limit: String,
}

const ABOVE: &str = "above the maximum";

impl ValueError {
    fn above(what: &'static str, given: u64, max: u64) -> Self {
        Self { what, given: given.to_string(), bound: ABOVE, limit: max.to_string() }
    }

    fn longer(what: &'static str, given: Duration, max: Duration) -> Self {
        Self { what, given: format!("{given:?}"), bound: ABOVE, limit: format!("{max:?}") }
    }
}

/// A 64-bit identifier of a node or a system, in network byte order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(pub [u8; 8]);

impl fmt::Display for Guid {
    /// Four groups of hexadecimal digits, as the C tools print it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [0, 2, 4, 6].map(|i| u16::from_be_bytes([self.0[i], self.0[i + 1]]));
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

impl FromStr for Guid {
    type Err = ParseValueError;

    /// Four groups of up to four hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let mut bytes = [0; 8];
        let mut groups = text.split(':');
        for place in bytes.chunks_exact_mut(2) {
            let group = groups.next().and_then(|group| hex(group, 4)).ok_or(NOT_A_GUID)?;
            place.copy_from_slice(&group.to_be_bytes());
        }
        if groups.next().is_some() { Err(NOT_A_GUID) } else { Ok(Self(bytes)) }
    }
}

const NOT_A_GUID: ParseValueError =
    ParseValueError { expected: "a GUID: four groups of hexadecimal digits, such as 0200:00ff:fe00:0001" };

/// The number of up to `digits` hexadecimal digits.
pub(crate) fn hex(text: &str, digits: usize) -> Option<u16> {
    // `from_str_radix` accepts a sign.
    let valid = (1..=digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if valid { u16::from_str_radix(text, 16).ok() } else { None }
}

/// A text is not a value of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not {expected}")]
pub struct ParseValueError {
    pub(crate) expected: &'static str,
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A maximum transfer unit: bytes of payload in a packet.
#[doc(alias = "ibv_mtu")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    #[doc(alias = "IBV_MTU_256")]
    Mtu256 = 1,
    /// 512 bytes.
    #[doc(alias = "IBV_MTU_512")]
    Mtu512 = 2,
    /// 1024 bytes.
    #[doc(alias = "IBV_MTU_1024")]
    Mtu1024 = 3,
    /// 2048 bytes.
    #[doc(alias = "IBV_MTU_2048")]
    Mtu2048 = 4,
    /// 4096 bytes.
    #[doc(alias = "IBV_MTU_4096")]
    Mtu4096 = 5,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The MTU of exactly that many bytes.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The MTU with the ABI's value `raw`, 1 to 5.
    #[must_use]
    pub fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u8 == raw)
    }
}

impl TryFrom<u8> for Mtu {
    type Error = ValueError;

    /// As [`Mtu::from_raw`], with an error that names the number.
    fn try_from(raw: u8) -> Result<Self, ValueError> {
        let (bound, limit) = if raw == 0 { ("below the minimum", "1") } else { (ABOVE, "5") };
        Self::from_raw(raw).ok_or_else(|| ValueError {
            what: "encoding of an MTU",
            given: raw.to_string(),
            bound,
            limit: limit.to_owned(),
        })
    }
}

impl FromStr for Mtu {
    type Err = ParseValueError;

    /// The number of bytes.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let expected = "an MTU: 256, 512, 1024, 2048 or 4096";
        text.parse().ok().and_then(Self::from_bytes).ok_or(ParseValueError { expected })
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.bytes(), f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::{LinkLayer, PortState};
    use crate::qp::QpState;
    use crate::values::MacAddress;
    use crate::{Gid, WcStatus};

    #[test]
    fn guid_prints_as_four_groups() {
        assert_eq!(Guid([0x02, 0, 0, 0xff, 0xfe, 0, 0, 1]).to_string(), "0200:00ff:fe00:0001");
    }

    #[test]
    fn mtu_converts_to_bytes_and_raw() {
        for (raw, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            let mtu = Mtu::from_raw(raw).unwrap();
            assert_eq!(mtu.bytes(), bytes);
            assert_eq!(Mtu::from_bytes(bytes), Some(mtu));
        }
        assert_eq!((Mtu::from_raw(0), Mtu::from_raw(6)), (None, None));
        assert_eq!(Mtu::from_bytes(1500), None);
        let text = |raw: u8| Mtu::try_from(raw).unwrap_err().to_string();
        assert_eq!(text(0), "encoding of an MTU 0 is below the minimum of 1");
        assert_eq!(text(6), "encoding of an MTU 6 is above the maximum of 5");
        assert_eq!(Mtu::try_from(5), Ok(Mtu::Mtu4096));
    }

    proptest! {
        #[test]
        fn texts_of_values_are_parsed_to_the_same_values(
            guid: [u8; 8], gid: [u8; 16], ipv4: [u8; 4], mac: [u8; 6], number: u8, mtu in 0..5_usize,
        ) {
            fn same<T: FromStr<Err: fmt::Debug> + fmt::Display + fmt::Debug + PartialEq>(value: T) {
                assert_eq!(value.to_string().parse::<T>().unwrap(), value);
            }
            same(Guid(guid));
            same(Gid(gid));
            same(Gid::from(std::net::Ipv4Addr::from(ipv4)));
            same(MacAddress(mac));
            same(Mtu::ALL[mtu]);
            same(QpState(number));
            same(WcStatus(number.into()));
            same(PortState(number));
            same(LinkLayer(number));
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in "[0-9a-fA-F:.+ -]{0,48}") {
            if let Ok(guid) = text.parse::<Guid>() {
                prop_assert_eq!(guid.to_string().parse::<Guid>(), Ok(guid));
            }
            if let Ok(mac) = text.parse::<MacAddress>() {
                prop_assert_eq!(mac.to_string().parse::<MacAddress>(), Ok(mac));
            }
            let _ = (text.parse::<Gid>(), text.parse::<Mtu>(), text.parse::<QpState>());
        }
    }

    #[test]
    fn names_and_addresses_are_parsed() {
        assert_eq!("RTS".parse(), Ok(QpState::RTS));
        assert_eq!((QpState::RTS.to_string(), QpState(77).to_string()), ("RTS".into(), "77".into()));
        assert_eq!("WR_FLUSH_ERR".parse(), Ok(WcStatus::WR_FLUSH_ERR));
        let error = "rts".parse::<QpState>().unwrap_err();
        assert_eq!(error.to_string(), "not the name or the number of a value of QpState");
        assert_eq!("10.1.0.1".parse(), Ok(Gid::from(std::net::Ipv4Addr::new(10, 1, 0, 1))));
        assert_eq!("1024".parse(), Ok(Mtu::Mtu1024));
        for text in ["", "1:2:3", "1:2:3:4:5", "1:2:3:+4", "1:2:3:12345", "1:2:3:"] {
            assert_eq!(text.parse::<Guid>(), Err(NOT_A_GUID), "{text}");
        }
        for text in ["", "1:2:3:4:5", "1:2:3:4:5:6:7", "1:2:3:4:5:123", "1:2:3:4:5:+6"] {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
        assert_eq!(
            "1500".parse::<Mtu>().unwrap_err().to_string(),
            "not an MTU: 256, 512, 1024, 2048 or 4096"
        );
    }
}
