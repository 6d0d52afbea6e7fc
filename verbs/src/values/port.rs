//! Ports and entries of their GID tables.

use std::fmt;
use std::str::FromStr;

use super::{ParseValueError, ValueError};

/// The number of a port. Ports of a device are numbered from 1.
///
/// Functions that name a port take anything that converts to it, such as the number itself:
///
/// ```no_run
/// # let context = bareverbs::Context::open_first()?;
/// use bareverbs::PortNum;
///
/// assert_eq!(context.query_port(1)?, context.query_port(PortNum(1))?);
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// Any number is a `PortNum`. Functions that use a port fail with
/// [`Error::NoPort`](crate::Error::NoPort) if the device does not have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNum(pub u8);

/// The index of an entry of a port's GID table. Indices start at 0.
///
/// Functions that name an entry take anything that converts to it, such as the number itself:
/// `context.gid(1, 3)`. [`GidEntry::index`](crate::device::GidEntry::index) has this type.
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
                number.map(Self).ok_or(ParseValueError { expected: EXPECTED })
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
    use super::*;

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
