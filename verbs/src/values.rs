//! Value types of the verbs API that have no type in the kernel ABI.

mod port;
mod timers;

use std::fmt;
use std::time::Duration;

pub use port::{GidIndex, PortNum};
pub use timers::{AckTimeout, MinRnrTimer, RetryCount, RnrRetry};

/// A number or a time that a value type can't represent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {given} is above the maximum of {max}")]
pub struct ValueError {
    what: &'static str,
    given: String,
    max: String,
}

impl ValueError {
    fn above(what: &'static str, given: u64, max: u64) -> Self {
        Self { what, given: given.to_string(), max: max.to_string() }
    }

    fn longer(what: &'static str, given: Duration, max: Duration) -> Self {
        Self { what, given: format!("{given:?}"), max: format!("{max:?}") }
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

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.bytes(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
