//! Declarations of ABI items, and their descriptions at run time.
//!
//! The macros of this module generate a Rust type and its description from one declaration. A
//! description has the C name, the header, the first kernel series and, for structs, every field
//! with its offset.

pub use crate::kernels::Since;

/// Interpretation of the bytes of a field.
#[derive(Clone, Copy, Debug)]
pub enum FieldKind {
    /// An unsigned integer of that many bytes in host byte order.
    Unsigned(usize),
    /// A signed integer of that many bytes in host byte order.
    Signed(usize),
    /// An unsigned integer of that many bytes in network byte order.
    BigEndian(usize),
    /// An array.
    Array(&'static FieldKind, usize),
    /// A nested struct.
    Struct(&'static StructInfo),
    /// An integer with named values or named bits.
    Named(&'static EnumInfo),
}

/// A type that ABI structs can have as a field.
pub trait AbiField {
    /// Interpretation of its bytes.
    const KIND: FieldKind;
}

macro_rules! integer_fields {
    ($($kind:ident: $($ty:ty),*;)*) => {
        $($(impl AbiField for $ty {
            const KIND: FieldKind = FieldKind::$kind(size_of::<$ty>());
        })*)*
    };
}

integer_fields! {
    Unsigned: u8, u16, u32, u64;
    Signed: i8, i16, i32, i64;
    BigEndian: zerocopy::big_endian::U16, zerocopy::big_endian::U32, zerocopy::big_endian::U64;
}

macro_rules! big_endian {
    ($($name:ident: $ty:ty, $bits:literal;)*) => {$(
        #[doc = concat!("A ", $bits, "-bit number in network byte order, aligned as the machine's own.")]
        #[derive(
            Clone, Copy, Default, PartialEq, Eq, Hash,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable,
        )]
        #[repr(transparent)]
        pub struct $name($ty);

        impl $name {
            /// The number in network byte order.
            #[must_use]
            pub const fn new(value: $ty) -> Self {
                Self(value.to_be())
            }

            /// The number in host byte order.
            #[must_use]
            pub const fn get(self) -> $ty {
                <$ty>::from_be(self.0)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Debug::fmt(&self.get(), f)
            }
        }

        impl AbiField for $name {
            const KIND: FieldKind = FieldKind::BigEndian(size_of::<$ty>());
        }
    )*};
}

big_endian! {
    Be16: u16, "16";
    Be32: u32, "32";
    Be64: u64, "64";
}

impl<T: AbiField, const N: usize> AbiField for [T; N] {
    const KIND: FieldKind = FieldKind::Array(&T::KIND, N);
}

/// One field of an ABI struct.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its C designator for `offsetof`, such as `wr.rdma.rkey`; empty for padding.
    pub c: &'static str,
    /// Offset in the struct in bytes.
    pub offset: usize,
    /// Size in bytes; 0 for a flexible array at the end.
    pub size: usize,
    /// First kernel series whose header has it.
    pub since: Since,
    /// Interpretation of its bytes. For [`FieldKind::Named`] the width is `size`, which may differ
    /// from the width of the enumeration.
    pub kind: FieldKind,
}

/// Description of an ABI struct.
#[derive(Clone, Copy, Debug)]
pub struct StructInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its C type, for `sizeof`.
    pub c: &'static str,
    /// The header under the kernel's `include/uapi`.
    pub header: &'static str,
    /// First kernel series that has it.
    pub since: Since,
    /// Length in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Every field, in order.
    pub fields: &'static [FieldInfo],
}

/// A `#[repr(C)]` struct with the layout of a kernel struct.
pub trait AbiStruct {
    /// Its description.
    const INFO: StructInfo;
}

/// A named value of the ABI.
#[derive(Clone, Copy, Debug)]
pub struct ConstInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// Its value, sign-extended to 64 bits.
    pub value: u64,
    /// The header under the kernel's `include/uapi`; the path of other headers starts with
    /// `include/`.
    pub header: &'static str,
    /// First kernel series that has it.
    pub since: Since,
}

/// Description of an enumeration or a flag set.
#[derive(Clone, Copy, Debug)]
pub struct EnumInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// The C tag; empty for an enumeration without a tag and for a group of macros.
    pub c: &'static str,
    /// Whether it is a flag set.
    pub flags: bool,
    /// Size of the Rust integer in bytes.
    pub size: usize,
    /// The named values.
    pub values: &'static [ConstInfo],
}

impl EnumInfo {
    /// The Rust name of a value.
    #[must_use]
    pub const fn name(&self, value: u64) -> Option<&'static str> {
        let mut i = 0;
        while i < self.values.len() {
            if self.values[i].value == value {
                return Some(self.values[i].rust);
            }
            i += 1;
        }
        None
    }
}

/// A text is neither the name nor the number of a value of an enumeration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseNameError {
    /// The enumeration.
    pub expected: &'static str,
}

impl core::fmt::Display for ParseNameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "not the name or the number of a value of {}", self.expected)
    }
}

impl core::error::Error for ParseNameError {}

/// Concatenates tables.
pub(crate) const fn flatten<T: Copy, const N: usize>(tables: &[&[T]]) -> [T; N] {
    let mut all = [tables[0][0]; N];
    let (mut table, mut n) = (0, 0);
    while table < tables.len() {
        let mut i = 0;
        while i < tables[table].len() {
            all[n] = tables[table][i];
            n += 1;
            i += 1;
        }
        table += 1;
    }
    assert!(n == N, "the stated number of items is wrong");
    all
}

/// `since V7_2` → `Since::V7_2`; nothing → `Since::V6_1`.
#[doc(hidden)]
#[macro_export]
macro_rules! since {
    () => {
        $crate::abi::Since::V6_1
    };
    ($since:ident) => {
        $crate::abi::Since::$since
    };
}

/// The second name if there is one, else the first, stringified.
#[doc(hidden)]
#[macro_export]
macro_rules! c_name {
    ($rust:ident) => {
        stringify!($rust)
    };
    ($rust:ident $c:literal) => {
        $c
    };
}

/// `struct` → the named C struct; `type` → any C type expression.
#[doc(hidden)]
#[macro_export]
macro_rules! c_type {
    (tag $c:literal) => {
        concat!("struct ", $c)
    };
    (expr $c:literal) => {
        $c
    };
}

/// Interpretation of a field of the first type, with the names of the second, if given.
#[doc(hidden)]
#[macro_export]
macro_rules! field_kind {
    ($ty:ty) => {
        <$ty as $crate::abi::AbiField>::KIND
    };
    ($ty:ty as $names:ty) => {
        <$names as $crate::abi::AbiField>::KIND
    };
}

/// `` C: `enum tag`, `header`. `` or the form for an enumeration without a tag.
#[doc(hidden)]
#[macro_export]
macro_rules! enum_source {
    ("" $header:literal) => {
        concat!("\n\nC: an enumeration without a tag, `", $header, "`.")
    };
    ($c:tt $header:literal) => {
        concat!("\n\nC: `enum ", $c, "`, `", $header, "`.")
    };
}

/// Declares ABI structs: `struct RustName = tag "c_tag"` or `= expr "C type expression"`, an
/// optional `since V7_2`, then fields `name: Type;`, `name: Type = "c_name";` or
/// `name: Type = "c_name" since V7_2;`.
///
/// `name: u32 as Enum` is a number that prints with the names of an enumeration of another width. A
/// field with the C name `""` is padding of the C compiler. `struct Name align(8) = …` sets an
/// alignment above that of the fields. `in "linux/in.h"` after the C type overrides the header.
macro_rules! abi_structs {
    (header = $header:literal; $(
        $(#[$meta:meta])*
        struct $name:ident $(align($align:literal))? = $form:ident $c:literal $(in $own:literal)? $(since $since:ident)? {
            $( $(#[$fmeta:meta])* $field:ident : $ty:ty $(as $names:ty)? $(= $cf:literal $(since $fsince:ident)?)? ; )*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = concat!("\n\nC: `", $crate::c_type!($form $c), "`, `", $crate::own_header!($header $($own)?), "`.")]
            #[doc(alias = $c)]
            #[derive(
                Clone, Copy, Debug, PartialEq, Eq,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable,
            )]
            #[repr(C $(, align($align))?)]
            pub struct $name { $( $(#[$fmeta])* pub $field: $ty, )* }

            impl $crate::abi::AbiStruct for $name {
                const INFO: $crate::abi::StructInfo = $crate::abi::StructInfo {
                    rust: stringify!($name),
                    c: $crate::c_type!($form $c),
                    header: $crate::own_header!($header $($own)?),
                    since: $crate::since!($($since)?),
                    size: size_of::<$name>(),
                    align: align_of::<$name>(),
                    fields: &[$(
                        $crate::abi::FieldInfo {
                            rust: stringify!($field),
                            c: $crate::c_name!($field $($cf)?),
                            offset: core::mem::offset_of!($name, $field),
                            size: size_of::<$ty>(),
                            since: $crate::since!($($($fsince)?)?),
                            kind: $crate::field_kind!($ty $(as $names)?),
                        },
                    )*],
                };
            }

            impl $crate::abi::AbiField for $name {
                const KIND: $crate::abi::FieldKind =
                    $crate::abi::FieldKind::Struct(&<$name as $crate::abi::AbiStruct>::INFO);
            }

            impl $name {
                /// A value with all bytes zero.
                #[must_use]
                pub fn zeroed() -> Self {
                    zerocopy::FromZeros::new_zeroed()
                }
            }
        )*

        /// The structs of this module.
        pub const STRUCTS: &[&$crate::abi::StructInfo] = &[$(&<$name as $crate::abi::AbiStruct>::INFO),*];
    };
}

/// The header of one item, if it differs from that of the group.
#[doc(hidden)]
#[macro_export]
macro_rules! own_header {
    ($header:literal) => {
        $header
    };
    ($header:literal $own:literal) => {
        $own
    };
}

/// Declares open enumerations: integers with named values; other values are valid.
/// `enum RustName: u32 = "c_tag" { NAME = 1, "C_NAME"; NAME = 2, "C_NAME" since V7_2; }`.
/// `in "include/rdma/ib_verbs.h"` after the C name overrides the header of a value.
macro_rules! abi_enums {
    (header = $header:literal; $(
        $(#[$meta:meta])*
        enum $name:ident : $repr:ident = $c:tt {
            $( $(#[$vmeta:meta])* $variant:ident = $value:expr, $vc:literal $(in $vh:literal)? $(since $since:ident)? ; )*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = $crate::enum_source!($c $header)]
            #[derive(
                Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable,
            )]
            #[repr(transparent)]
            pub struct $name(pub $repr);

            impl $name {
                $(
                    $(#[$vmeta])*
                    #[doc = concat!("\n\nC: `", $vc, "`.")]
                    #[doc(alias = $vc)]
                    pub const $variant: Self = Self($value);
                )*

                /// The named values.
                pub const INFO: $crate::abi::EnumInfo = $crate::abi::EnumInfo {
                    rust: stringify!($name),
                    c: $c,
                    flags: false,
                    size: size_of::<$repr>(),
                    values: &[$(
                        $crate::abi::ConstInfo {
                            rust: stringify!($variant),
                            c: $vc,
                            value: {
                                const VALUE: $repr = $value;
                                VALUE as u64
                            },
                            header: $crate::own_header!($header $($vh)?),
                            since: $crate::since!($($since)?),
                        },
                    )*],
                };

                /// The name of the value, if it is known.
                #[must_use]
                pub const fn name(self) -> Option<&'static str> {
                    Self::INFO.name(self.0 as u64)
                }
            }

            impl From<$name> for u64 {
                fn from(value: $name) -> u64 {
                    value.0 as u64
                }
            }

            impl core::fmt::Debug for $name {
                fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    match self.name() {
                        Some(name) => f.write_str(name),
                        None => write!(f, "{}({})", stringify!($name), self.0),
                    }
                }
            }

            impl core::fmt::Display for $name {
                /// The name of the value, or the number if it has none.
                fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    match self.name() {
                        Some(name) => f.pad(name),
                        None => core::fmt::Display::fmt(&self.0, f),
                    }
                }
            }

            impl core::str::FromStr for $name {
                type Err = $crate::abi::ParseNameError;

                /// A name, or a number.
                fn from_str(text: &str) -> Result<Self, Self::Err> {
                    match Self::INFO.values.iter().find(|known| known.rust == text) {
                        Some(known) => Ok(Self(known.value as $repr)),
                        None => text.parse().map(Self).map_err(|_| $crate::abi::ParseNameError {
                            expected: stringify!($name),
                        }),
                    }
                }
            }

            impl $crate::abi::AbiField for $name {
                const KIND: $crate::abi::FieldKind = $crate::abi::FieldKind::Named(&Self::INFO);
            }
        )*

        /// The enumerations of this module.
        pub const ENUMS: &[&$crate::abi::EnumInfo] = &[$(&$name::INFO),*];
    };
}

/// Declares flag sets. Unknown bits are kept. The form is that of [`abi_enums`] with `flags`
/// instead of `enum`.
macro_rules! abi_flags {
    (header = $header:literal; $(
        $(#[$meta:meta])*
        flags $name:ident : $repr:ident = $c:tt {
            $( $(#[$($vmeta:tt)*])* $flag:ident = $value:expr, $vc:literal $(since $since:ident)? ; )*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = $crate::enum_source!($c $header)]
            #[derive(
                Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable,
            )]
            #[repr(transparent)]
            pub struct $name($repr);

            bitflags::bitflags! {
                impl $name: $repr {
                    $(
                        $(#[$($vmeta)*])*
                        #[doc = concat!("\n\nC: `", $vc, "`.")]
                        #[doc(alias = $vc)]
                        const $flag = $value;
                    )*
                    const _ = !0;
                }
            }

            impl $name {
                /// The named bits.
                pub const INFO: $crate::abi::EnumInfo = $crate::abi::EnumInfo {
                    rust: stringify!($name),
                    c: $c,
                    flags: true,
                    size: size_of::<$repr>(),
                    values: &[$(
                        $crate::abi::ConstInfo {
                            rust: stringify!($flag),
                            c: $vc,
                            value: {
                                const VALUE: $repr = $value;
                                VALUE as u64
                            },
                            header: $header,
                            since: $crate::since!($($since)?),
                        },
                    )*],
                };
            }

            impl From<$name> for u64 {
                fn from(value: $name) -> u64 {
                    value.bits() as u64
                }
            }

            impl core::fmt::Debug for $name {
                fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    if self.is_empty() {
                        return f.write_str("0");
                    }
                    bitflags::parser::to_writer(self, f)
                }
            }

            impl core::fmt::Display for $name {
                /// The names of the flags, joined by ` | `; unknown bits as a hexadecimal number; 0 for
                /// none.
                fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    core::fmt::Debug::fmt(self, f)
                }
            }

            impl core::str::FromStr for $name {
                type Err = $crate::abi::ParseNameError;

                /// Names of flags and hexadecimal numbers such as `0x100000`, joined by `|`; 0 for
                /// none.
                fn from_str(text: &str) -> Result<Self, Self::Err> {
                    match text.trim() {
                        "0" => Ok(Self::empty()),
                        text => bitflags::parser::from_str(text).map_err(|_| $crate::abi::ParseNameError {
                            expected: stringify!($name),
                        }),
                    }
                }
            }

            impl $crate::abi::AbiField for $name {
                const KIND: $crate::abi::FieldKind = $crate::abi::FieldKind::Named(&Self::INFO);
            }
        )*

        /// The flag sets of this module.
        pub const FLAGS: &[&$crate::abi::EnumInfo] = &[$(&$name::INFO),*];
    };
}

/// Declares single constants: `const NAME: u32 = 1, "C_NAME";`. `in "linux/neighbour.h"` and
/// `since V7_2` may follow the C name.
macro_rules! abi_consts {
    (header = $header:literal; $(
        $(#[$meta:meta])*
        const $name:ident : $ty:ident = $value:expr, $c:literal $(in $own:literal)? $(since $since:ident)? ;
    )*) => {
        $(
            $(#[$meta])*
            #[doc = concat!("\n\nC: `", $c, "`, `", $crate::own_header!($header $($own)?), "`.")]
            #[doc(alias = $c)]
            pub const $name: $ty = $value;
        )*

        /// The single constants of this module.
        pub const CONSTS: &[$crate::abi::ConstInfo] = &[$(
            $crate::abi::ConstInfo {
                rust: stringify!($name),
                c: $c,
                value: $name as u64,
                header: $crate::own_header!($header $($own)?),
                since: $crate::since!($($since)?),
            },
        )*];
    };
}
