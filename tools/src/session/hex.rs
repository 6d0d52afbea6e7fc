//! Hexadecimal fields of address records.

use std::ops::Range;

/// Why bytes do not decode as a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRecord {
    #[error("byte {at} is {found:#04x} where {expected:#04x} must separate the fields")]
    Separator { at: usize, expected: u8, found: u8 },
    #[error("byte {at} is {found:#04x}, not a hexadecimal digit")]
    Digit { at: usize, found: u8 },
}

/// Writes a value in lower case, with leading zeros. Digits that do not fit are cut off.
pub(crate) fn write_hex(field: &mut [u8], mut value: u128) {
    for digit in field.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(value & 0xf) as usize];
        value >>= 4;
    }
}

/// Reads a field of at most 32 digits.
pub(crate) fn read_hex(bytes: &[u8], field: Range<usize>) -> Result<u128, BadRecord> {
    field.into_iter().try_fold(0, |value, at| {
        let found = bytes[at];
        let digit = char::from(found).to_digit(16).ok_or(BadRecord::Digit { at, found })?;
        Ok(value << 4 | u128::from(digit))
    })
}
