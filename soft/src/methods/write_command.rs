//! The request and the response of a write command.

use bareverbs_provider::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::call::{Sink, Source};

/// A write command: its request and response, and those of the driver.
#[derive(Debug)]
pub(crate) struct Command<'a> {
    pub(crate) input: Source<'a>,
    pub(super) output: Sink,
    pub(crate) driver_input: Source<'a>,
    pub(crate) driver_output: Sink,
    pub(super) has_responded: bool,
    pub(crate) by_ioctl: bool,
}

impl Command<'_> {
    /// The request. Bytes that the kernel's struct doesn't have must be zero.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`, `EFAULT`.
    pub(crate) fn request<T: FromBytes + FromZeros + IntoBytes + KnownLayout>(&self) -> Result<T, Errno> {
        let mut request = T::new_zeroed();
        let bytes = request.as_mut_bytes();
        if !self.input.is_zero_from(bytes.len())? {
            return Err(Errno::OPNOTSUPP);
        }
        let len = bytes.len().min(self.input.len());
        self.input.read(0, &mut bytes[..len])?;
        Ok(request)
    }

    /// Writes the response, as far as there is room.
    ///
    /// # Errors
    ///
    /// `EFAULT`.
    pub(crate) fn respond<T: IntoBytes + Immutable>(&mut self, response: &T) -> Result<(), Errno> {
        self.output.fill(response.as_bytes())?;
        self.has_responded = true;
        Ok(())
    }

    /// The length of an extensible response that the program gets.
    pub(crate) fn response_length(&self, size: usize) -> u32 {
        self.output.len.min(size) as u32
    }
}
