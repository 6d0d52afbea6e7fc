//! Values that have no type in the kernel ABI: numbers of ports, indices of GIDs, GUIDs.

use core::error::Error;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// A number or a time that a value type can't represent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError {
    what: &'static str,
    given: Amount,
    bound: &'static str,
    limit: Amount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    Number(u64),
    Time(Duration),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Time(time) => write!(f, "{time:?}"),
        }
    }
}

const ABOVE: &str = "above the maximum";

impl ValueError {
    /// The number `given` of a `what` is above `max`.
    #[must_use]
    pub const fn above(what: &'static str, given: u64, max: u64) -> Self {
        Self { what, given: Amount::Number(given), bound: ABOVE, limit: Amount::Number(max) }
    }

    /// The number `given` of a `what` is below `min`.
    #[must_use]
    pub const fn below(what: &'static str, given: u64, min: u64) -> Self {
        let bound = "below the minimum";
        Self { what, given: Amount::Number(given), bound, limit: Amount::Number(min) }
    }

    /// The time `given` of a `what` is longer than `max`.
    #[must_use]
    pub const fn longer(what: &'static str, given: Duration, max: Duration) -> Self {
        Self { what, given: Amount::Time(given), bound: ABOVE, limit: Amount::Time(max) }
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, given, bound, limit } = self;
        write!(f, "{what} {given} is {bound} of {limit}")
    }
}

impl Error for ValueError {}

/// A text is not a value of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseValueError {
    expected: &'static str,
}

impl ParseValueError {
    /// The text is not `expected`, such as `"a port number: 0 to 255"`.
    #[must_use]
    pub const fn expected(expected: &'static str) -> Self {
        Self { expected }
    }
}

impl fmt::Display for ParseValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not {}", self.expected)
    }
}

impl Error for ParseValueError {}

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

const NOT_A_GUID: ParseValueError =
    ParseValueError::expected("a GUID: four groups of hexadecimal digits, such as 0200:00ff:fe00:0001");

impl FromStr for Guid {
    type Err = ParseValueError;

    /// Four groups of up to four hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let mut bytes = [0; 8];
        let mut groups = text.split(':');
        for place in bytes.chunks_exact_mut(2) {
            let group = groups.next().ok_or(NOT_A_GUID)?;
            // `from_str_radix` accepts a sign.
            let valid = group.len() <= 4 && group.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = u16::from_str_radix(group, 16).ok().filter(|_| valid).ok_or(NOT_A_GUID)?;
            place.copy_from_slice(&number.to_be_bytes());
        }
        if groups.next().is_some() { Err(NOT_A_GUID) } else { Ok(Self(bytes)) }
    }
}

/// The number of a port. Ports of a device are numbered from 1.
///
/// Functions that name a port take anything that converts to it, such as the number itself:
///
/// ```
/// use bareverbs_uapi::values::PortNum;
///
/// fn query_port(port: impl Into<PortNum>) -> PortNum {
///     port.into()
/// }
/// assert_eq!(query_port(1), query_port(PortNum(1)));
/// ```
///
/// Any number is a `PortNum`. Functions that use a port fail with an error `NoPort` if the device
/// does not have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNum(pub u8);

/// The index of an entry of a port's GID table. Indices start at 0.
///
/// Functions that name an entry take anything that converts to it, such as the number itself:
/// `context.gid(1, 3)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GidIndex(pub u8);

// One integer type only converts by `From`, so that the type of a literal is inferred.
macro_rules! number {
    ($name:ident, $what:literal) => {
        impl From<u8> for $name {
            fn from(number: u8) -> Self {
                Self(number)
            }
        }

        impl From<$name> for u8 {
            fn from(number: $name) -> Self {
                number.0
            }
        }

        impl From<$name> for u32 {
            fn from(number: $name) -> Self {
                number.0.into()
            }
        }

        impl TryFrom<u32> for $name {
            type Error = ValueError;

            fn try_from(number: u32) -> Result<Self, ValueError> {
                u8::try_from(number)
                    .map(Self)
                    .map_err(|_| ValueError::above($what, u64::from(number), u8::MAX.into()))
            }
        }

        impl FromStr for $name {
            type Err = ParseValueError;

            /// A decimal number from 0 to 255.
            fn from_str(text: &str) -> Result<Self, ParseValueError> {
                const EXPECTED: &str = concat!("a ", $what, ": 0 to 255");
                // `u8::from_str` accepts a sign.
                let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let number = text.parse().ok().filter(|_| digits);
                number.map(Self).ok_or(ParseValueError::expected(EXPECTED))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(PortNum, "port number");
number!(GidIndex, "GID index");

#[cfg(test)]
mod tests {
    extern crate std;

    use std::format;
    use std::string::ToString;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn guid_prints_as_four_groups() {
        assert_eq!(Guid([0x02, 0, 0, 0xff, 0xfe, 0, 0, 1]).to_string(), "0200:00ff:fe00:0001");
    }

    proptest! {
        #[test]
        fn texts_of_guids_are_parsed_to_the_same_guids(guid: [u8; 8]) {
            prop_assert_eq!(Guid(guid).to_string().parse(), Ok(Guid(guid)));
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in "[0-9a-fA-F:.+ -]{0,48}") {
            if let Ok(guid) = text.parse::<Guid>() {
                prop_assert_eq!(guid.to_string().parse::<Guid>(), Ok(guid));
            }
        }
    }

    #[test]
    fn texts_that_are_no_guid_are_rejected() {
        for text in ["", "1:2:3", "1:2:3:4:5", "1:2:3:+4", "1:2:3:12345", "1:2:3:"] {
            assert_eq!(text.parse::<Guid>(), Err(NOT_A_GUID), "{text}");
        }
    }

    #[test]
    fn literals_convert_to_ports_and_gid_indices() {
        fn port(port: impl Into<PortNum>) -> PortNum {
            port.into()
        }
        assert_eq!((port(1), port(PortNum(2))), (PortNum(1), PortNum(2)));
        assert_eq!(
            (PortNum::try_from(255_u32), GidIndex::try_from(0_u32)),
            (Ok(PortNum(255)), Ok(GidIndex(0)))
        );
        assert_eq!(
            PortNum::try_from(256_u32).unwrap_err().to_string(),
            "port number 256 is above the maximum of 255"
        );
        assert_eq!((u8::from(PortNum(7)), u32::from(GidIndex(9))), (7, 9));
        assert_eq!(format!("{} {}", PortNum(1), GidIndex(3)), "1 3");
    }

    #[test]
    fn texts_of_ports_and_gid_indices_are_parsed() {
        for number in 0..=255 {
            assert_eq!(number.to_string().parse(), Ok(PortNum(number)));
            assert_eq!(number.to_string().parse(), Ok(GidIndex(number)));
        }
        for text in ["", "256", "-1", "+1", " 1", "1.0", "eth0"] {
            assert_eq!(text.parse::<PortNum>().unwrap_err().to_string(), "not a port number: 0 to 255");
            assert_eq!(text.parse::<GidIndex>().unwrap_err().to_string(), "not a GID index: 0 to 255");
        }
    }
}
