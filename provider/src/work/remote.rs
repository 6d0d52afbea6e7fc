//! Memory of the remote side.

use std::fmt;
use std::str::FromStr;

/// Memory of the remote side.
///
/// A peer sends it as text, as [bytes](Self::to_bytes) or with serde (feature `serde`: text in
/// human-readable formats, else bytes).
///
/// ```
/// use bareverbs_provider::work::Remote;
///
/// let remote = Remote { addr: 0x7f00_0000, rkey: 0x1234 };
/// assert_eq!(remote.to_string(), "0x7f000000/rkey=0x1234");
/// assert_eq!(remote.to_string().parse(), Ok(remote));
/// assert_eq!(Remote::from_bytes(&remote.to_bytes()), Ok(remote));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    /// Address of the first byte, in the MR's address space.
    pub addr: u64,
    /// Remote key of the MR.
    pub rkey: u32,
}

impl Remote {
    /// The memory `bytes` after this. The address wraps around. The device checks the range.
    ///
    /// ```
    /// use bareverbs_provider::work::Remote;
    ///
    /// let table = Remote { addr: 0x7f00_0000, rkey: 0x1234 };
    /// assert_eq!(table.offset(64), Remote { addr: 0x7f00_0040, rkey: 0x1234 });
    /// ```
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self { addr: self.addr.wrapping_add(bytes), rkey: self.rkey }
    }

    /// Length of the bytes.
    pub const LEN: usize = 16;

    /// Version of the format of the bytes.
    const VERSION: u8 = 1;

    /// As bytes. The first byte is the version of the format. Numbers are big-endian.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0 | version, 1 |
    /// | 1–3 | 0 |
    /// | 4–7 | R_Key |
    /// | 8–15 | address |
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = Self::VERSION;
        bytes[4..8].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[8..].copy_from_slice(&self.addr.to_be_bytes());
        bytes
    }

    /// The memory with these bytes, as [`Remote::to_bytes`] returns them.
    ///
    /// # Errors
    /// [`ParseRemoteError`]: the length or the version differs, or a byte that must be 0 is not.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseRemoteError> {
        let Ok(bytes) = <&[u8; Self::LEN]>::try_from(bytes) else {
            return Err(ParseRemoteError("it has 16 bytes"));
        };
        let [version, zeros @ .., k0, k1, k2, k3, a0, a1, a2, a3, a4, a5, a6, a7] = *bytes;
        if version != Self::VERSION {
            return Err(ParseRemoteError("the version is not 1"));
        }
        if zeros != [0; 3] {
            return Err(ParseRemoteError("a reserved byte is not 0"));
        }
        let addr = u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        Ok(Self { addr, rkey: u32::from_be_bytes([k0, k1, k2, k3]) })
    }
}

impl fmt::Display for Remote {
    /// `ADDRESS/rkey=R_KEY`, in hexadecimal digits with the prefix `0x`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/rkey={:#x}", self.addr, self.rkey)
    }
}

impl FromStr for Remote {
    type Err = ParseRemoteError;

    /// The memory in the form of its `Display`.
    fn from_str(text: &str) -> Result<Self, ParseRemoteError> {
        /// `from_str_radix` would accept a sign.
        fn number(text: &str) -> Option<u64> {
            let digits = text.strip_prefix("0x")?;
            let valid = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            valid.then(|| u64::from_str_radix(digits, 16).ok())?
        }
        let parse = || {
            let (addr, rkey) = text.split_once("/rkey=")?;
            Some(Self { addr: number(addr)?, rkey: number(rkey)?.try_into().ok()? })
        };
        parse().ok_or(ParseRemoteError("the text is not of the form `0x…/rkey=0x…`"))
    }
}

/// Bytes or text that are not a [`Remote`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid remote memory: {0}")]
pub struct ParseRemoteError(&'static str);

#[cfg(feature = "serde")]
mod serde {
    use std::fmt;

    use serde_core::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
    use serde_core::ser::{Serialize, Serializer};

    use super::Remote;

    impl Serialize for Remote {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            if serializer.is_human_readable() {
                serializer.collect_str(self)
            } else {
                serializer.serialize_bytes(&self.to_bytes())
            }
        }
    }

    struct Form;

    impl<'de> Visitor<'de> for Form {
        type Value = Remote;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("remote memory, as text or as 16 bytes")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Remote, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Remote, E> {
            Remote::from_bytes(bytes).map_err(E::custom)
        }

        /// Formats without byte strings use a sequence.
        fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Remote, A::Error> {
            let mut all = [0; Remote::LEN];
            for (at, byte) in all.iter_mut().enumerate() {
                *byte = bytes.next_element()?.ok_or_else(|| A::Error::invalid_length(at, &self))?;
            }
            if bytes.next_element::<u8>()?.is_some() {
                return Err(A::Error::invalid_length(Remote::LEN + 1, &self));
            }
            self.visit_bytes(&all)
        }
    }

    impl<'de> Deserialize<'de> for Remote {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            if deserializer.is_human_readable() {
                deserializer.deserialize_str(Form)
            } else {
                deserializer.deserialize_bytes(Form)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_and_text_round_trip(addr: u64, rkey: u32) {
            let remote = Remote { addr, rkey };
            prop_assert_eq!(Remote::from_bytes(&remote.to_bytes()), Ok(remote));
            prop_assert_eq!(remote.to_string().parse(), Ok(remote));
        }

        #[test]
        fn any_text_and_bytes_are_parsed_without_panic(text: String, bytes: Vec<u8>) {
            let _ = (text.parse::<Remote>(), Remote::from_bytes(&bytes));
        }
    }

    #[test]
    fn other_bytes_are_rejected() {
        let bytes = Remote { addr: 1, rkey: 2 }.to_bytes();
        assert!(Remote::from_bytes(&bytes[1..]).is_err());
        for at in 0..4 {
            let mut changed = bytes;
            changed[at] ^= 2;
            assert!(Remote::from_bytes(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        let texts = [
            "",
            "0x1",
            "0x1/rkey=",
            "1/rkey=0x2",
            "0x1/rkey=2",
            "0x+1/rkey=0x2",
            "0x1/rkey=0x100000000",
            "0x1/rkey=0x2/",
        ];
        for text in texts {
            assert!(text.parse::<Remote>().is_err(), "{text}");
        }
    }
}
