use core::fmt;

use zerocopy::{Immutable, IntoBytes};

use super::{AttributeHeader, MessageFlags, MessageHeader, NESTED, aligned};

/// Lays messages into a buffer of the caller.
///
/// The calls chain and never fail on the spot: what goes wrong first is kept and
/// [`MessageWriter::finish`] says it.
#[derive(Debug)]
pub struct MessageWriter<'a> {
    buffer: &'a mut [u8],
    /// Bytes asked for so far, whether or not they fit.
    length: usize,
    /// Where the current message starts.
    message: usize,
    error: Option<WriteError>,
}

/// Why a message could not be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The buffer is too small.
    BufferTooSmall {
        /// Bytes that everything written would need.
        needed: usize,
        /// Bytes of the buffer.
        available: usize,
    },
    /// An attribute is longer than the 65,535 bytes that its head can say.
    AttributeTooLong {
        /// Number of the attribute.
        attribute: u16,
        /// Its bytes with its head.
        length: usize,
    },
    /// A string holds a zero byte, where the kernel would take it to end.
    InteriorNul {
        /// Number of the attribute.
        attribute: u16,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferTooSmall { needed, available } => {
                write!(f, "the netlink messages need {needed} bytes and the buffer has {available}")
            }
            Self::AttributeTooLong { attribute, length } => {
                write!(f, "netlink attribute {attribute} of {length} bytes is longer than the possible 65535")
            }
            Self::InteriorNul { attribute } => {
                write!(f, "the string of netlink attribute {attribute} holds a zero byte")
            }
        }
    }
}

impl core::error::Error for WriteError {}

impl<'a> MessageWriter<'a> {
    /// Starts with an empty datagram in `buffer`.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: 0, message: 0, error: None }
    }

    /// Begins a message; one before it ends here.
    pub fn begin(&mut self, kind: u16, flags: MessageFlags, seq: u32) -> &mut Self {
        self.message = self.length;
        self.append(MessageHeader { length: 0, kind, flags, seq, port: 0 }.as_bytes());
        self.close_message();
        self
    }

    /// Appends the protocol's fixed struct, which comes before any attribute.
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

    /// Appends a string with the zero byte that ends it.
    pub fn put_str(&mut self, attribute: u16, value: &str) -> &mut Self {
        if value.as_bytes().contains(&0) {
            self.set_error(WriteError::InteriorNul { attribute });
        }
        self.put(attribute, &[value.as_bytes(), &[0]])
    }

    /// Appends an attribute whose payload is the attributes that `fill` appends.
    pub fn put_nested(&mut self, attribute: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.length;
        self.append(AttributeHeader { length: 0, kind: attribute | NESTED }.as_bytes());
        fill(self);
        self.close_attribute(start, attribute);
        self
    }

    /// The datagram: every message begun so far.
    ///
    /// # Errors
    /// What went wrong first while it was laid out.
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
        // A message beyond 4 GiB does not fit any buffer that the kernel takes; the length then
        // stays what it was.
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
