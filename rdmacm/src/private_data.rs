//! Private data of messages.

use std::fmt;
use std::ops::Deref;

use bareverbs_uapi::rdma_cm::MAX_PRIVATE_DATA;

/// Private data of a received message.
///
/// It has the whole field of the message: the sender's data, and zeros after it. The message does
/// not carry the length of the sender's data.
#[derive(Clone, Copy)]
pub struct PrivateData {
    length: u8,
    bytes: [u8; MAX_PRIVATE_DATA],
}

impl PrivateData {
    /// No data.
    pub const EMPTY: Self = Self { length: 0, bytes: [0; MAX_PRIVATE_DATA] };

    pub(crate) fn new(bytes: [u8; MAX_PRIVATE_DATA], length: u8) -> Self {
        Self { length, bytes }
    }

    /// Whether there is nothing but padding.
    pub(crate) fn is_zero(&self) -> bool {
        self.iter().all(|byte| *byte == 0)
    }

    /// The end of an error message; empty if there is nothing but padding.
    pub(crate) fn suffix(&self) -> String {
        if self.is_zero() { String::new() } else { format!(", private data {self:?}") }
    }
}

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl PartialEq for PrivateData {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for PrivateData {}

impl fmt::Debug for PrivateData {
    /// The bytes without the zeros at the end, as text where they are printable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        write!(f, "b\"{}\" in {} bytes", self[..end].escape_ascii(), self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_prints_without_its_padding() {
        let mut bytes = [0; MAX_PRIVATE_DATA];
        bytes[..3].copy_from_slice(b"a\0b");
        let data = PrivateData::new(bytes, 56);
        assert_eq!(format!("{data:?}"), "b\"a\\x00b\" in 56 bytes");
        assert_eq!((data.len(), PrivateData::EMPTY.len()), (56, 0));
    }
}
