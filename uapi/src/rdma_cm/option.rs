//! Values of options.

use core::fmt;

use super::path::PathRecData;
use super::{IbOption, IdOption, OptionLevel};
use crate::abi::{AbiStruct, FieldKind};
use crate::print::{Hex, List, Value};

/// The name of an option of a level, if it is known.
#[must_use]
pub fn option_name(level: OptionLevel, option: u32) -> Option<&'static str> {
    match level {
        OptionLevel::ID => IdOption::INFO.name(option.into()),
        OptionLevel::IB => IbOption::INFO.name(option.into()),
        _ => None,
    }
}

/// The value of an option, for printing: by the name of the option, as the type that the kernel
/// reads. Bytes that are no such value are printed in hexadecimal.
///
/// ```
/// use bareverbs_uapi::rdma_cm::{DecodedOption, IdOption, OptionLevel};
///
/// let option = DecodedOption { level: OptionLevel::ID, option: IdOption::TOS.0, bytes: &[32] };
/// assert_eq!(option.to_string(), "TOS = 32");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DecodedOption<'a> {
    /// Level of the option.
    pub level: OptionLevel,
    /// Its number.
    pub option: u32,
    /// Its value.
    pub bytes: &'a [u8],
}

impl fmt::Display for DecodedOption<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, option, bytes } = *self;
        match option_name(level, option) {
            Some(name) => write!(f, "{name} = ")?,
            None => write!(f, "option {option} of level {} = ", level.0)?,
        }
        let kind = match (level, option) {
            (OptionLevel::ID, option) if [IdOption::TOS.0, IdOption::ACK_TIMEOUT.0].contains(&option) => {
                FieldKind::Unsigned(1)
            }
            (OptionLevel::ID, option) if [IdOption::REUSE_ADDR.0, IdOption::AF_ONLY.0].contains(&option) => {
                FieldKind::Signed(4)
            }
            (OptionLevel::IB, option) if option == IbOption::PATH.0 => {
                let kind = FieldKind::Struct(&PathRecData::INFO);
                return match bytes.len() % size_of::<PathRecData>() {
                    0 => List { kind: &kind, bytes }.fmt(f),
                    _ => Hex(bytes).fmt(f),
                };
            }
            _ => return Hex(bytes).fmt(f),
        };
        match bytes.len() == crate::print::size_of_kind(&kind) {
            true => Value { kind: &kind, bytes }.fmt(f),
            false => Hex(bytes).fmt(f),
        }
    }
}
