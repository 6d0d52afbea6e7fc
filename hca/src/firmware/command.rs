//! Input, output and status of a command.

use super::bits::{Layout, View, ViewMut};
use crate::engine::EngineError;

/// Command status (`MLX5_CMD_STAT_*` in `include/linux/mlx5/device.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    BadOpcode = 0x02,
    BadParameter = 0x03,
    BadSystemState = 0x04,
    BadResource = 0x05,
    Limit = 0x08,
    BadResourceState = 0x09,
    BadIndex = 0x0a,
    NoResources = 0x0f,
    BadQpState = 0x10,
    TooManyOutstanding = 0x40,
    BadInputLength = 0x50,
    BadOutputLength = 0x51,
}

impl From<EngineError> for Status {
    fn from(refused: EngineError) -> Self {
        match refused {
            EngineError::Missing => Self::BadResource,
            EngineError::Busy => Self::BadResourceState,
            EngineError::Full => Self::Limit,
            EngineError::Invalid => Self::BadParameter,
            EngineError::Outstanding => Self::TooManyOutstanding,
        }
    }
}

/// The result of a command.
pub(super) type Result<T> = std::result::Result<T, Status>;

/// The input of a command.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(super) input: &'a [u8],
}

impl<'a> Request<'a> {
    /// Returns `None` if the input is shorter than the header.
    pub(crate) fn new(input: &'a [u8]) -> Option<Self> {
        (input.len() >= 8).then_some(Self { input })
    }

    pub(crate) fn opcode(self) -> u16 {
        u16::from_be_bytes([self.input[0], self.input[1]])
    }

    pub(crate) fn modifier(self) -> u16 {
        u16::from_be_bytes([self.input[6], self.input[7]])
    }

    pub(super) fn view<L: Layout>(self) -> Result<View<'a, L>> {
        View::new(self.input).ok_or(Status::BadInputLength)
    }

    /// A view of the bytes from offset `from` on.
    pub(super) fn view_at<L: Layout>(self, from: usize) -> Result<View<'a, L>> {
        self.input.get(from..).and_then(View::new).ok_or(Status::BadInputLength)
    }

    /// The object number: the low 24 bits of the third word in most commands.
    pub(super) fn object(self) -> Result<u32> {
        Ok(self.word(8)? & 0xff_ffff)
    }

    pub(super) fn word(self, at: usize) -> Result<u32> {
        let bytes = self.input.get(at..at + 4).ok_or(Status::BadInputLength)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(super) fn bytes(self, from: usize, length: usize) -> Result<&'a [u8]> {
        self.input.get(from..from + length).ok_or(Status::BadInputLength)
    }

    /// The page list from offset `from` on. The low 12 bits of each entry are flags and are
    /// cleared.
    pub(super) fn pages(self, from: usize) -> Result<Vec<u64>> {
        const FLAGS: u64 = 0xfff;
        let list = self.input.get(from..).ok_or(Status::BadInputLength)?;
        Ok(list
            .chunks_exact(8)
            .map(|entry| u64::from_be_bytes(entry.try_into().unwrap_or_default()) & !FLAGS)
            .collect())
    }
}

/// The zeroed output of a command. The first eight bytes are status and syndrome.
pub(crate) struct Reply<'a> {
    pub(super) output: &'a mut [u8],
}

impl Reply<'_> {
    pub(super) fn view<L: Layout>(&mut self) -> Result<ViewMut<'_, L>> {
        ViewMut::new(self.output).ok_or(Status::BadOutputLength)
    }

    pub(super) fn view_at<L: Layout>(&mut self, from: usize) -> Result<ViewMut<'_, L>> {
        self.output.get_mut(from..).and_then(ViewMut::new).ok_or(Status::BadOutputLength)
    }

    /// Writes as many bytes as fit.
    pub(super) fn put(&mut self, from: usize, bytes: &[u8]) {
        if let Some(room) = self.output.get_mut(from..) {
            let length = room.len().min(bytes.len());
            room[..length].copy_from_slice(&bytes[..length]);
        }
    }

    /// Sets the object number: the low 24 bits of the third word.
    pub(super) fn object(&mut self, number: u32) -> Result<()> {
        let room = self.output.get_mut(9..12).ok_or(Status::BadOutputLength)?;
        room.copy_from_slice(&number.to_be_bytes()[1..]);
        Ok(())
    }

    pub(super) fn length(&self) -> usize {
        self.output.len()
    }
}
