//! Typed access to the bit fields of the firmware interface.
//!
//! Every structure consists of big-endian 32-bit words. Offsets count bits from the most
//! significant bit of the first word. A [`Field`] belongs to one structure: reading a field of the
//! QP context from a CQ context does not compile.

use std::marker::PhantomData;

/// A structure of the firmware interface.
pub(crate) trait Layout {
    /// Length in bytes without trailing arrays.
    const SIZE: usize;
}

/// A numeric field of the structure `L`.
pub(crate) struct Field<L> {
    bit: usize,
    width: usize,
    of: PhantomData<L>,
}

impl<L> Clone for Field<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Field<L> {}

/// A byte array in the structure `L`.
pub(crate) struct Bytes<L> {
    at: usize,
    length: usize,
    of: PhantomData<L>,
}

/// The structure `S` nested in the structure `L`.
pub(crate) struct Part<L, S> {
    at: usize,
    of: PhantomData<(L, S)>,
}

impl<L: Layout> Field<L> {
    /// A field must be within one word, or consist of two whole words.
    pub(crate) const fn new(bit: usize, width: usize) -> Self {
        assert!(bit % 32 + width <= 32 || (bit.is_multiple_of(32) && width == 64));
        assert!(bit + width <= L::SIZE * 8);
        Self { bit, width, of: PhantomData }
    }
}

impl<L: Layout> Bytes<L> {
    pub(crate) const fn new(bit: usize, length: usize) -> Self {
        assert!(bit.is_multiple_of(8) && bit / 8 + length <= L::SIZE);
        Self { at: bit / 8, length, of: PhantomData }
    }
}

impl<L: Layout, S: Layout> Part<L, S> {
    pub(crate) const fn new(bit: usize) -> Self {
        assert!(bit.is_multiple_of(32) && bit / 8 + S::SIZE <= L::SIZE);
        Self { at: bit / 8, of: PhantomData }
    }
}

/// A read-only view of bytes as the structure `L`.
pub(crate) struct View<'a, L> {
    bytes: &'a [u8],
    of: PhantomData<L>,
}

impl<L> Clone for View<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for View<'_, L> {}

impl<'a, L: Layout> View<'a, L> {
    /// Returns `None` if there are too few bytes for the structure.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= L::SIZE).then_some(Self { bytes, of: PhantomData })
    }

    pub(crate) fn get(&self, field: Field<L>) -> u64 {
        let at = field.bit / 32 * 4;
        if field.width == 64 {
            return u64::from(word(self.bytes, at)) << 32 | u64::from(word(self.bytes, at + 4));
        }
        let shift = 32 - field.bit % 32 - field.width;
        u64::from(word(self.bytes, at)) >> shift & mask(field.width)
    }

    /// A field of at most 32 bits.
    pub(crate) fn get32(&self, field: Field<L>) -> u32 {
        self.get(field) as u32
    }

    /// A field of at most 8 bits.
    pub(crate) fn get8(&self, field: Field<L>) -> u8 {
        self.get(field) as u8
    }

    pub(crate) fn flag(&self, field: Field<L>) -> bool {
        self.get(field) != 0
    }

    pub(crate) fn bytes(&self, bytes: Bytes<L>) -> &'a [u8] {
        &self.bytes[bytes.at..][..bytes.length]
    }

    pub(crate) fn part<S: Layout>(&self, part: Part<L, S>) -> View<'a, S> {
        View { bytes: &self.bytes[part.at..][..S::SIZE], of: PhantomData }
    }

    /// The bytes of the structure.
    pub(crate) fn raw(&self) -> &'a [u8] {
        &self.bytes[..L::SIZE]
    }
}

/// A mutable view of bytes as the structure `L`.
pub(crate) struct ViewMut<'a, L> {
    bytes: &'a mut [u8],
    of: PhantomData<L>,
}

impl<'a, L: Layout> ViewMut<'a, L> {
    /// Returns `None` if there are too few bytes for the structure.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Option<Self> {
        (bytes.len() >= L::SIZE).then_some(Self { bytes, of: PhantomData })
    }

    pub(crate) fn get(&self, field: Field<L>) -> u64 {
        View { bytes: &*self.bytes, of: PhantomData }.get(field)
    }

    /// Sets a field. Bits of the value beyond the field's width are dropped.
    pub(crate) fn set(&mut self, field: Field<L>, value: impl Into<u64>) -> &mut Self {
        let (at, value) = (field.bit / 32 * 4, value.into());
        if field.width == 64 {
            self.bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
            return self;
        }
        let shift = 32 - field.bit % 32 - field.width;
        let mask = (mask(field.width) as u32) << shift;
        let word = word(self.bytes, at) & !mask | ((value as u32) << shift) & mask;
        self.bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        self
    }

    /// Sets a 64-bit number whose two words are separate fields. `first` is the upper one.
    pub(crate) fn set_both_words(&mut self, first: Field<L>, value: u64) -> &mut Self {
        self.bytes[first.bit / 8..][..8].copy_from_slice(&value.to_be_bytes());
        self
    }

    /// Copies at most the length of the field. A shorter source leaves the rest unchanged.
    pub(crate) fn set_bytes(&mut self, bytes: Bytes<L>, value: &[u8]) -> &mut Self {
        let length = bytes.length.min(value.len());
        self.bytes[bytes.at..bytes.at + length].copy_from_slice(&value[..length]);
        self
    }

    pub(crate) fn part<S: Layout>(&mut self, part: Part<L, S>) -> ViewMut<'_, S> {
        ViewMut { bytes: &mut self.bytes[part.at..][..S::SIZE], of: PhantomData }
    }

    /// The bytes of the structure.
    pub(crate) fn raw(&self) -> &[u8] {
        &self.bytes[..L::SIZE]
    }

    /// Replaces the whole structure. A shorter source leaves the rest unchanged.
    pub(crate) fn fill(&mut self, value: &[u8]) -> &mut Self {
        let length = L::SIZE.min(value.len());
        self.bytes[..length].copy_from_slice(&value[..length]);
        self
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

const fn mask(width: usize) -> u64 {
    if width == 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Declares a structure: `FIELD: bit, width` for numbers, `FIELD: bit, bytes n` for byte arrays,
/// `FIELD: bit => Other` for nested structures.
macro_rules! layout {
    ($(#[$meta:meta])* $name:ident: $size:literal { $($body:tt)* }) => {
        $(#[$meta])*
        pub(crate) enum $name {}

        impl $crate::firmware::bits::Layout for $name {
            const SIZE: usize = $size;
        }

        impl $name {
            $crate::firmware::bits::fields!($name { $($body)* });
        }
    };
}

macro_rules! fields {
    ($name:ident {}) => {};
    ($name:ident { $field:ident: $bit:literal, bytes $length:literal, $($rest:tt)* }) => {
        pub(crate) const $field: $crate::firmware::bits::Bytes<Self> = $crate::firmware::bits::Bytes::new($bit, $length);
        $crate::firmware::bits::fields!($name { $($rest)* });
    };
    ($name:ident { $field:ident: $bit:literal, $width:literal, $($rest:tt)* }) => {
        pub(crate) const $field: $crate::firmware::bits::Field<Self> = $crate::firmware::bits::Field::new($bit, $width);
        $crate::firmware::bits::fields!($name { $($rest)* });
    };
    ($name:ident { $field:ident: $bit:literal => $part:ident, $($rest:tt)* }) => {
        pub(crate) const $field: $crate::firmware::bits::Part<Self, $part> = $crate::firmware::bits::Part::new($bit);
        $crate::firmware::bits::fields!($name { $($rest)* });
    };
}

pub(crate) use {fields, layout};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    layout! {
        /// Fields of every kind.
        Sample: 0x18 {
            TOP: 0x0, 4,
            LOW: 0x1c, 4,
            WIDE: 0x40, 64,
            RUN: 0x80, bytes 8,
        }
    }

    #[test]
    fn offsets_count_from_the_most_significant_bit() {
        let mut bytes = [0; 0x18];
        let mut view = ViewMut::<Sample>::new(&mut bytes).unwrap();
        view.set(Sample::TOP, 0xau8).set(Sample::LOW, 0x5u8).set(Sample::WIDE, 0x0102_0304_0506_0708u64);
        view.set_bytes(Sample::RUN, b"abc");
        assert_eq!(bytes[..4], [0xa0, 0, 0, 5]);
        assert_eq!(bytes[8..19], [1, 2, 3, 4, 5, 6, 7, 8, b'a', b'b', b'c']);
    }

    #[test]
    fn short_buffer_yields_no_view() {
        assert!(View::<Sample>::new(&[0; 0x17]).is_none());
    }

    proptest! {
        #[test]
        fn field_write_preserves_adjacent_bits(fill: [u8; 0x18], value: u8) {
            let mut bytes = fill;
            ViewMut::<Sample>::new(&mut bytes).unwrap().set(Sample::TOP, value);
            let view = View::<Sample>::new(&bytes).unwrap();
            prop_assert_eq!(view.get8(Sample::TOP), value & 0xf);
            prop_assert_eq!(bytes[0] & 0xf, fill[0] & 0xf);
            prop_assert_eq!(&bytes[1..], &fill[1..]);
        }
    }
}
