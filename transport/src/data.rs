//! The data of a packet, on its way into memory.

use crate::device::{AccessError, Device, KeyRange};
use crate::packet::{Packet, ZeroCopy};

/// The payload of a packet, or a part of it.
#[derive(Clone, Copy)]
pub(crate) enum Data<'a> {
    Bytes(&'a [u8]),
    /// In the memory of the sender.
    ZeroCopy {
        address: u64,
        length: u32,
    },
}

impl<'a> Data<'a> {
    /// The payload of a packet.
    pub(crate) fn of(packet: &'a Packet) -> Self {
        match packet.zero_copy {
            Some(ZeroCopy { address, length, .. }) => Self::ZeroCopy { address, length },
            None => Self::Bytes(&packet.payload),
        }
    }

    /// The length in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::ZeroCopy { length, .. } => length as usize,
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The first bytes, `count` at most, and the rest.
    pub(crate) fn split_at_most(self, count: usize) -> (Self, Self) {
        match self {
            Self::Bytes(bytes) => {
                let (first, rest) = bytes.split_at(count.min(bytes.len()));
                (Self::Bytes(first), Self::Bytes(rest))
            }
            Self::ZeroCopy { address, length } => {
                let count = u32::try_from(count).map_or(length, |count| count.min(length));
                let rest = address.wrapping_add(count.into());
                (
                    Self::ZeroCopy { address, length: count },
                    Self::ZeroCopy { address: rest, length: length - count },
                )
            }
        }
    }

    /// Writes all of it to the range of a key.
    pub(crate) fn write<D: Device>(
        self,
        device: &D,
        range: &KeyRange<D::Accessor>,
    ) -> Result<(), AccessError> {
        match self {
            Self::Bytes(bytes) => device.write(range, bytes),
            Self::ZeroCopy { address, length } => device.copy(range, address, length),
        }
    }
}
