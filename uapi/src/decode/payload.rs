use crate::abi::FieldKind;

use super::Memory;

/// How the bytes of a payload are to be read.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    /// One value; a struct may be shorter or go on.
    One(FieldKind),
    /// As many values as there are bytes for.
    Elements(FieldKind),
    /// Nothing is known of them.
    Bytes,
}

#[derive(Clone, Copy)]
pub(super) enum Source {
    Inline([u8; 8]),
    Address(u64),
}

/// The bytes that an attribute carries or points at.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    pub(super) len: usize,
    pub(super) source: Source,
    pub(super) layout: Layout,
    pub(super) memory: &'a dyn Memory,
}

impl Payload<'_> {
    /// How many bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How to read them.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where they are; nothing if they stand in the attribute itself.
    #[must_use]
    pub const fn address(&self) -> Option<u64> {
        match self.source {
            Source::Inline(_) => None,
            Source::Address(address) => Some(address),
        }
    }

    /// As many of the first bytes as `buffer` holds; nothing where the memory cannot be read.
    #[must_use]
    pub fn read<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        let n = self.len.min(buffer.len());
        let buffer = &mut buffer[..n];
        match self.source {
            Source::Inline(bytes) => buffer.copy_from_slice(&bytes[..n]),
            Source::Address(_) if n == 0 => {}
            Source::Address(address) => {
                if !self.memory.read(address, buffer) {
                    return None;
                }
            }
        }
        Some(buffer)
    }
}
