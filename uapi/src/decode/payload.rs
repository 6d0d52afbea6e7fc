use crate::abi::FieldKind;

use super::Memory;

/// Interpretation of the bytes of a payload.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    /// One value; a struct may be shorter or longer.
    One(FieldKind),
    /// An array of values.
    Elements(FieldKind),
    /// Unknown.
    Bytes,
}

#[derive(Clone, Copy)]
pub(super) enum Source {
    Inline([u8; 8]),
    Address(u64),
}

/// The payload of an attribute, inline or by address.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    pub(super) len: usize,
    pub(super) source: Source,
    pub(super) layout: Layout,
    pub(super) memory: &'a dyn Memory,
}

impl Payload<'_> {
    /// Number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Interpretation of the bytes.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Their address; `None` if they are stored in the attribute itself.
    #[must_use]
    pub const fn address(&self) -> Option<u64> {
        match self.source {
            Source::Inline(_) => None,
            Source::Address(address) => Some(address),
        }
    }

    /// The first bytes, up to the size of `buffer`; `None` if the memory can't be read.
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
