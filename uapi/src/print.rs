//! Printing of ABI values with their names.

use core::fmt;

use crate::abi::{EnumInfo, FieldKind, StructInfo};

/// The value of an enumeration or a flag set, printed by name; what has no name is printed as a number.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The names.
    pub info: &'static EnumInfo,
    /// The value.
    pub value: u64,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.info.name(self.value) {
            return f.write_str(name);
        }
        if !self.info.flags || self.value == 0 {
            return write!(f, "{}", self.value);
        }
        let mut rest = self.value;
        let mut separator = "";
        for flag in self.info.values {
            if flag.value & rest != 0 && flag.value & self.value == flag.value {
                write!(f, "{separator}{}", flag.rust)?;
                separator = " | ";
                rest &= !flag.value;
            }
        }
        if rest != 0 {
            write!(f, "{separator}{rest:#x}")?;
        }
        Ok(())
    }
}

/// Bytes in hexadecimal.
#[derive(Clone, Copy, Debug)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Bytes read as `kind` says; with names the bytes are the number, whatever its width. Too few are printed as far as
/// they go.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// How to read them.
    pub kind: &'a FieldKind,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.kind {
            FieldKind::Named(_) => self.bytes.len(),
            kind => size_of_kind(kind),
        };
        let Some(bytes) = self.bytes.get(..size) else {
            return match self.kind {
                FieldKind::Struct(info) => Struct { info, bytes: self.bytes }.fmt(f),
                _ => write!(f, "<{} of {size} bytes: {}>", self.bytes.len(), Hex(self.bytes)),
            };
        };
        match *self.kind {
            FieldKind::Unsigned(_) => write!(f, "{}", native(bytes)),
            FieldKind::Signed(_) => write!(f, "{}", signed(bytes)),
            FieldKind::BigEndian(_) => {
                write!(f, "{}", bytes.iter().fold(0_u64, |value, &byte| value << 8 | u64::from(byte)))
            }
            FieldKind::Named(info) => Named { info, value: native(bytes) }.fmt(f),
            FieldKind::Struct(info) => Struct { info, bytes }.fmt(f),
            FieldKind::Array(FieldKind::Unsigned(1), _) => Hex(bytes).fmt(f),
            FieldKind::Array(element, count) => {
                f.write_str("[")?;
                let size = size_of_kind(element);
                for i in 0..count {
                    let separator = if i == 0 { "" } else { ", " };
                    let bytes = &bytes[i * size..(i + 1) * size];
                    write!(f, "{separator}{}", Value { kind: element, bytes })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// The bytes of a struct, field by field; padding and reserved fields are left out where they are zero. A flexible
/// array at the end takes the bytes beyond the struct.
#[derive(Clone, Copy, Debug)]
pub struct Struct<'a> {
    /// The struct.
    pub info: &'a StructInfo,
    /// Its bytes; the fields beyond them are left out.
    pub bytes: &'a [u8],
}

impl fmt::Display for Struct<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {{", self.info.rust)?;
        let mut separator = " ";
        for field in self.info.fields {
            if let FieldKind::Array(element, 0) = field.kind {
                let bytes = self.bytes.get(field.offset..).unwrap_or_default();
                write!(f, "{separator}{}: [", field.rust)?;
                for (i, bytes) in bytes.chunks_exact(size_of_kind(element).max(1)).enumerate() {
                    let separator = if i == 0 { "" } else { ", " };
                    write!(f, "{separator}{}", Value { kind: element, bytes })?;
                }
                f.write_str("]")?;
                continue;
            }
            let end = self.bytes.len().min(field.offset + field.size);
            let Some(bytes) = self.bytes.get(field.offset..end).filter(|bytes| !bytes.is_empty()) else {
                continue;
            };
            if (field.c.is_empty() || field.rust.starts_with("reserved"))
                && bytes.iter().all(|&byte| byte == 0)
            {
                continue;
            }
            write!(f, "{separator}{}: ", field.rust)?;
            separator = ", ";
            match field.kind {
                FieldKind::Named(_) if bytes.len() < field.size => Hex(bytes).fmt(f)?,
                ref kind => Value { kind, bytes }.fmt(f)?,
            }
        }
        f.write_str(" }")
    }
}

/// Bytes that a value of that kind takes.
#[must_use]
pub const fn size_of_kind(kind: &FieldKind) -> usize {
    match *kind {
        FieldKind::Unsigned(size) | FieldKind::Signed(size) | FieldKind::BigEndian(size) => size,
        FieldKind::Array(element, count) => size_of_kind(element) * count,
        FieldKind::Struct(info) => info.size,
        FieldKind::Named(info) => info.size,
    }
}

/// Up to 8 bytes as a number in the machine's byte order.
fn native(bytes: &[u8]) -> u64 {
    let shift = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
    if cfg!(target_endian = "little") {
        bytes.iter().rev().fold(0, shift)
    } else {
        bytes.iter().fold(0, shift)
    }
}

fn signed(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len().clamp(1, 8) as u32;
    (native(bytes) << unused).cast_signed() >> unused
}
