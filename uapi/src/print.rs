//! Printing of ABI values with their names.

use core::fmt;

use crate::abi::{EnumInfo, FieldInfo, FieldKind, StructInfo};

/// The value of an enumeration or a flag set, printed by name; what has no name is printed as a
/// number.
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

/// Bytes read as `kind` says; with names the bytes are the number, whatever its width. Too few are
/// printed as far as they go.
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
            FieldKind::Array(kind, _) => List { kind, bytes }.fmt(f),
        }
    }
}

/// Values of one kind, one after the other; bytes that do not make a whole one are left out.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    /// How to read each.
    pub kind: &'a FieldKind,
    /// The bytes of all.
    pub bytes: &'a [u8],
}

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let FieldKind::Unsigned(1) = self.kind {
            return Hex(self.bytes).fmt(f);
        }
        let each = self.bytes.chunks_exact(size_of_kind(self.kind).max(1));
        f.debug_list().entries(each.map(|bytes| DebugAsDisplay(Value { kind: self.kind, bytes }))).finish()
    }
}

/// The bytes of a struct, field by field; padding and reserved fields are left out where they are
/// zero. A flexible array at the end takes the bytes beyond the struct.
#[derive(Clone, Copy, Debug)]
pub struct Struct<'a> {
    /// The struct.
    pub info: &'a StructInfo,
    /// Its bytes; the fields beyond them are left out.
    pub bytes: &'a [u8],
}

impl fmt::Display for Struct<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct(self.info.rust);
        self.add_fields(&mut out);
        out.finish()
    }
}

impl Struct<'_> {
    pub(crate) fn add_fields(&self, out: &mut fmt::DebugStruct<'_, '_>) {
        for field in self.info.fields {
            let end = match field.kind {
                FieldKind::Array(_, 0) => self.bytes.len(),
                _ => self.bytes.len().min(field.offset + field.size),
            };
            let Some(bytes) = self.bytes.get(field.offset..end).filter(|bytes| !bytes.is_empty()) else {
                continue;
            };
            if (field.c.is_empty() || field.rust.starts_with("reserved"))
                && bytes.iter().all(|&byte| byte == 0)
            {
                continue;
            }
            match field.kind {
                FieldKind::Named(_) if bytes.len() < field.size => {
                    out.field(field.rust, &DebugAsDisplay(Hex(bytes)))
                }
                FieldKind::Array(kind, 0) => out.field(field.rust, &DebugAsDisplay(List { kind, bytes })),
                ref kind => out.field(field.rust, &DebugAsDisplay(Value { kind, bytes })),
            };
        }
    }
}

/// The value of a field that is a number, from its struct's bytes.
pub(crate) fn number_of(field: &FieldInfo, bytes: &[u8]) -> Option<u64> {
    match field.kind {
        FieldKind::Unsigned(_) => bytes.get(field.offset..field.offset + field.size).map(native),
        _ => None,
    }
}

/// Lets a value stand in the standard library's builders as it is displayed.
pub(crate) struct DebugAsDisplay<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Debug for DebugAsDisplay<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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
