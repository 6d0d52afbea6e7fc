//! The data of a request: SGEs or inline data.

use bareverbs_provider::work::{Payload, PushError};
use bareverbs_uapi::uverbs::types::QpType;

use super::{Mlx5Sq, Writer};
use crate::wqe;

/// Maximum bytes of a data segment and of a message.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

impl Mlx5Sq {
    /// Writes the data segments and returns the number of bytes.
    #[inline(always)]
    pub(super) fn payload(&self, writer: &mut Writer, payload: Payload<'_>) -> Result<u64, PushError> {
        match payload {
            Payload::Sges(sges) => {
                if sges.len() > self.limits.max_sge as usize {
                    return Err(too_many_sges(sges.len(), self.limits.max_sge));
                }
                let mut length = 0;
                for sge in sges {
                    length += u64::from(sge.length);
                    // The device reads a byte count of 0 as 2^31.
                    if sge.length > 0 {
                        writer.put(wqe::data(*sge));
                    }
                }
                if length > self.limits.max_message {
                    return Err(self.too_long(length));
                }
                Ok(length)
            }
            Payload::Inline(parts) => {
                let first = writer.segments;
                let mut length = 0;
                for part in parts {
                    if part.len() > self.limits.max_inline as usize - length {
                        return Err(too_long_inline(parts, self.limits.max_inline));
                    }
                    writer.copy(first, 4 + length, part);
                    length += part.len();
                }
                if length as u64 > self.limits.max_message {
                    return Err(self.too_long(length as u64));
                }
                if length > 0 {
                    // SAFETY: the first word of one of the request's segments.
                    unsafe { writer.at(first).cast::<u32>().write(wqe::inline_header(length as u32)) };
                    writer.segments += wqe::inline_segments(length);
                }
                Ok(length as u64)
            }
        }
    }

    #[cold]
    pub(super) fn too_long(&self, given: u64) -> PushError {
        match self.limits.qp_type {
            QpType::UD => PushError::DatagramTooLong { given, max: self.limits.max_message as u32 },
            _ => too_long(given, self.limits.max_message),
        }
    }
}

#[cold]
fn too_many_sges(given: usize, max: u32) -> PushError {
    PushError::TooManySges { given, max: max as usize }
}

#[cold]
pub(crate) fn too_long(given: u64, max: u64) -> PushError {
    PushError::MessageTooLong { given, max }
}

#[cold]
fn too_long_inline(parts: &[&[u8]], max: u32) -> PushError {
    let given = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
    PushError::InlineTooLong { given, max: max as usize }
}
