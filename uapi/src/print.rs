//! Printing of ABI values with their names.

use core::fmt;

use crate::abi::{ConstInfo, EnumInfo, FieldInfo, FieldKind, StructInfo};

/// An enumeration value or a flag set, printed by name. Unknown values are printed as numbers.
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
        let mut separator = "";
        let mut flags = self.flags();
        for flag in &mut flags {
            write!(f, "{separator}{}", flag.rust)?;
            separator = " | ";
        }
        match flags.unknown() {
            0 => Ok(()),
            rest => write!(f, "{separator}{rest:#x}"),
        }
    }
}

impl Named {
    /// The flags of a flag set, in the order of their declaration.
    #[must_use]
    pub const fn flags(&self) -> Flags {
        Flags { named: *self, rest: self.value, next: 0 }
    }
}

/// The result of [`Named::flags`].
#[derive(Clone, Debug)]
pub struct Flags {
    named: Named,
    rest: u64,
    next: usize,
}

impl Flags {
    /// The bits that no flag has had so far: the unknown ones, after the last flag.
    #[must_use]
    pub const fn unknown(&self) -> u64 {
        self.rest
    }
}

impl Iterator for Flags {
    type Item = &'static ConstInfo;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let flag = self.named.info.values.get(self.next)?;
            self.next += 1;
            if flag.value & self.rest != 0 && flag.value & self.named.value == flag.value {
                self.rest &= !flag.value;
                return Some(flag);
            }
        }
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

/// A GUID or the prefix of GIDs as sysfs prints it: four groups of 16 bits.
#[derive(Clone, Copy, Debug)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| self.0 >> shift & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

/// Bytes, interpreted by `kind`. With names the bytes are one number of any width. Truncated bytes
/// are printed up to their end.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// Interpretation of the bytes.
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

/// An array of values. Trailing bytes that are not a whole value are omitted.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    /// Interpretation of each.
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

/// The bytes of a struct, field by field. Padding and reserved fields are omitted if they are zero.
/// A flexible array at the end has the bytes after the struct.
#[derive(Clone, Copy, Debug)]
pub struct Struct<'a> {
    /// The struct.
    pub info: &'a StructInfo,
    /// Its bytes; fields beyond them are omitted.
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

/// Wraps a value so that `Debug` builders print its `Display` form.
pub(crate) struct DebugAsDisplay<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Debug for DebugAsDisplay<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Size of a value of that kind in bytes.
#[must_use]
pub const fn size_of_kind(kind: &FieldKind) -> usize {
    match *kind {
        FieldKind::Unsigned(size) | FieldKind::Signed(size) | FieldKind::BigEndian(size) => size,
        FieldKind::Array(element, count) => size_of_kind(element) * count,
        FieldKind::Struct(info) => info.size,
        FieldKind::Named(info) => info.size,
    }
}

/// Up to 8 bytes as a number in host byte order.
#[must_use]
pub fn native(bytes: &[u8]) -> u64 {
    let shift = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
    if cfg!(target_endian = "little") {
        bytes.iter().rev().fold(0, shift)
    } else {
        bytes.iter().fold(0, shift)
    }
}

/// Up to 8 bytes as a signed number in host byte order.
#[must_use]
pub fn signed(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len().clamp(1, 8) as u32;
    (native(bytes) << unused).cast_signed() >> unused
}
