//! Errors of parsing addresses of QPs.

/// Bytes or text that are not an [`Address`](crate::Address) or a
/// [`DatagramAddress`](crate::owned::DatagramAddress).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid address: {0}")]
pub struct ParseAddressError(pub(crate) &'static str);
