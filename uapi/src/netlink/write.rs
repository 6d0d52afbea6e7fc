use core::fmt;

use zerocopy::{Immutable, IntoBytes};

use super::{AttributeHeader, MessageFlags, MessageHeader, NESTED, aligned};

/// Writes messages to a buffer of the caller.
///
/// The methods chain and do not fail. [`MessageWriter::finish`] returns the first error.
#[derive(Debug)]
pub struct MessageWriter<'a> {
    buffer: &'a mut [u8],
    /// Number of bytes written so far, including bytes that do not fit.
    length: usize,
    /// Start of the current message.
    message: usize,
    error: Option<WriteError>,
}

/// Errors of writing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The buffer is too small.
    BufferTooSmall {
        /// Number of bytes needed.
        needed: usize,
        /// Size of the buffer in bytes.
        available: usize,
    },
    /// An attribute has more than 65,535 bytes, the maximum of its header.
    AttributeTooLong {
        /// Type of the attribute.
        attribute: u16,
        /// Its size in bytes, including its header.
        length: usize,
    },
    /// A string has a NUL byte. The kernel would truncate it there.
    InteriorNul {
        /// Type of the attribute.
        attribute: u16,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferTooSmall { needed, available } => {
                write!(f, "the netlink messages need {needed} bytes; the buffer has {available}")
            }
            Self::AttributeTooLong { attribute, length } => {
                write!(f, "netlink attribute {attribute} of {length} bytes exceeds the maximum of 65535")
            }
            Self::InteriorNul { attribute } => {
                write!(f, "the string of netlink attribute {attribute} contains a NUL byte")
            }
        }
    }
}

impl core::error::Error for WriteError {}

impl<'a> MessageWriter<'a> {
    /// Starts with an empty datagram in `buffer`.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: 0, message: 0, error: None }
    }

    /// Begins a message. This ends the previous one.
    pub fn begin(&mut self, kind: u16, flags: MessageFlags, seq: u32) -> &mut Self {
        self.message = self.length;
        self.append(MessageHeader { length: 0, kind, flags, seq, port: 0 }.as_bytes());
        self.close_message();
        self
    }

    /// Appends the fixed struct of the protocol. It precedes all attributes.
    pub fn put_struct<T: IntoBytes + Immutable>(&mut self, value: &T) -> &mut Self {
        self.append(value.as_bytes());
        self.close_message();
        self
    }

    /// Appends an attribute with these bytes.
    pub fn put_bytes(&mut self, attribute: u16, payload: &[u8]) -> &mut Self {
        self.put(attribute, &[payload])
    }

    /// Appends an attribute of one byte.
    pub fn put_u8(&mut self, attribute: u16, value: u8) -> &mut Self {
        self.put(attribute, &[&[value]])
    }

    /// Appends an attribute of two bytes.
    pub fn put_u16(&mut self, attribute: u16, value: u16) -> &mut Self {
        self.put(attribute, &[&value.to_ne_bytes()])
    }

    /// Appends an attribute of four bytes.
    pub fn put_u32(&mut self, attribute: u16, value: u32) -> &mut Self {
        self.put(attribute, &[&value.to_ne_bytes()])
    }

    /// Appends an attribute of eight bytes.
    pub fn put_u64(&mut self, attribute: u16, value: u64) -> &mut Self {
        self.put(attribute, &[&value.to_ne_bytes()])
    }

    /// Appends a string with a NUL byte.
    pub fn put_str(&mut self, attribute: u16, value: &str) -> &mut Self {
        if value.as_bytes().contains(&0) {
            self.set_error(WriteError::InteriorNul { attribute });
        }
        self.put(attribute, &[value.as_bytes(), &[0]])
    }

    /// Appends a nested attribute with the attributes that `fill` appends.
    pub fn put_nested(&mut self, attribute: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.length;
        self.append(AttributeHeader { length: 0, kind: attribute | NESTED }.as_bytes());
        fill(self);
        self.close_attribute(start, attribute);
        self
    }

    /// The datagram with all messages.
    ///
    /// # Errors
    /// The first error of writing it.
    pub fn finish(&self) -> Result<&[u8], WriteError> {
        match self.error {
            Some(error) => Err(error),
            None => self
                .buffer
                .get(..self.length)
                .ok_or(WriteError::BufferTooSmall { needed: self.length, available: self.buffer.len() }),
        }
    }

    fn put(&mut self, attribute: u16, parts: &[&[u8]]) -> &mut Self {
        let start = self.length;
        self.append(AttributeHeader { length: 0, kind: attribute }.as_bytes());
        for part in parts {
            self.append_unaligned(part);
        }
        self.close_attribute(start, attribute);
        self
    }

    fn close_attribute(&mut self, start: usize, attribute: u16) {
        let length = self.length - start;
        match u16::try_from(length) {
            Ok(length) => self.patch(start, &length.to_ne_bytes()),
            Err(_) => self.set_error(WriteError::AttributeTooLong { attribute, length }),
        }
        self.align();
        self.close_message();
    }

    fn close_message(&mut self) {
        // The kernel accepts no message of 4 GiB or more. The length is not changed then.
        if let Ok(length) = u32::try_from(self.length - self.message) {
            self.patch(self.message, &length.to_ne_bytes());
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        self.append_unaligned(bytes);
        self.align();
    }

    fn append_unaligned(&mut self, bytes: &[u8]) {
        let start = self.length;
        self.length = self.length.saturating_add(bytes.len());
        if let Some(space) = self.buffer.get_mut(start..self.length) {
            space.copy_from_slice(bytes);
        }
    }

    fn align(&mut self) {
        let start = self.length;
        self.length = aligned(self.length);
        if let Some(space) = self.buffer.get_mut(start..self.length) {
            space.fill(0);
        }
    }

    fn patch(&mut self, start: usize, bytes: &[u8]) {
        if let Some(space) = self.buffer.get_mut(start..start.saturating_add(bytes.len())) {
            space.copy_from_slice(bytes);
        }
    }

    fn set_error(&mut self, error: WriteError) {
        self.error.get_or_insert(error);
    }
}
