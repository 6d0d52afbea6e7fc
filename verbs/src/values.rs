//! Value types of the verbs API that have no type in the kernel ABI.

pub(crate) mod ethernet;
mod timers;

use std::fmt;
use std::str::FromStr;

pub use bareverbs_uapi::values::{GidIndex, Guid, ParseValueError, PortNum, ValueError};
pub use ethernet::{EthernetAddress, MacAddress};
pub use timers::{AckTimeout, MinRnrTimer, RetryCount, RnrRetry};

/// Bytes or text that are not an [`Address`](crate::Address) or a
/// [`DatagramAddress`](crate::owned::DatagramAddress).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid address: {0}")]
pub struct ParseAddressError(pub(crate) &'static str);

/// The number of two hexadecimal digits at most.
pub(crate) fn hex(text: &str) -> Option<u8> {
    // `from_str_radix` accepts a sign.
    let valid = text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if valid { u8::from_str_radix(text, 16).ok() } else { None }
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
        Self::from_raw(raw).ok_or_else(|| {
            let what = "encoding of an MTU";
            if raw == 0 { ValueError::below(what, 0, 1) } else { ValueError::above(what, raw.into(), 5) }
        })
    }
}

impl FromStr for Mtu {
    type Err = ParseValueError;

    /// The number of bytes.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let expected = "an MTU: 256, 512, 1024, 2048 or 4096";
        text.parse().ok().and_then(Self::from_bytes).ok_or(ParseValueError::expected(expected))
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
            gid: [u8; 16], ipv4: [u8; 4], mac: [u8; 6], number: u8, mtu in 0..5_usize,
        ) {
            fn same<T: FromStr<Err: fmt::Debug> + fmt::Display + fmt::Debug + PartialEq>(value: T) {
                assert_eq!(value.to_string().parse::<T>().unwrap(), value);
            }
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
        for text in ["", "1:2:3:4:5", "1:2:3:4:5:6:7", "1:2:3:4:5:123", "1:2:3:4:5:+6"] {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
        assert_eq!(
            "1500".parse::<Mtu>().unwrap_err().to_string(),
            "not an MTU: 256, 512, 1024, 2048 or 4096"
        );
    }
}
