//! Errors of rejected requests.

use bareverbs_provider::work::{self, Operation, PushError, Remote};
use bareverbs_uapi::verbs_values::SendFlags;

/// The largest message of the wire protocol, in bytes.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

#[cold]
pub(crate) fn too_many_sges(sges: &[work::Sge], max: u32) -> PushError {
    PushError::TooManySges { given: sges.len(), max: max as usize }
}

#[cold]
pub(crate) fn too_long(given: u64) -> PushError {
    PushError::MessageTooLong { given, max: MAX_MESSAGE }
}

#[cold]
pub(super) fn too_long_inline(parts: &[&[u8]], max: u32) -> PushError {
    let given = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
    PushError::InlineTooLong { given, max: max as usize }
}

#[cold]
pub(super) fn wrong_atomic(inline: SendFlags, length: u32, remote: Remote) -> PushError {
    if !inline.is_empty() {
        PushError::InlineResult
    } else if length != 8 {
        PushError::AtomicResult { given: length.into() }
    } else {
        PushError::AtomicAddress { addr: remote.addr }
    }
}

#[inline(always)]
pub(super) fn no_payload(
    operation: &Operation,
    length: u32,
    num_sge: u32,
    inline: SendFlags,
) -> Result<(), PushError> {
    if length == 0 && num_sge == 0 && inline.is_empty() {
        return Ok(());
    }
    Err(PushError::UnexpectedPayload { operation: operation.name() })
}

#[cold]
pub(super) fn unsupported(operation: &Operation) -> PushError {
    PushError::Unsupported { operation: operation.name() }
}
