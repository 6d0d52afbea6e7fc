//! Limits of a send queue.

use bareverbs_uapi::uverbs::types::QpType;

/// Limits of send requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) qp_type: QpType,
    /// Requests of any length that always fit.
    pub(crate) requests: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// Maximum bytes of a message; for UD, the port's active MTU.
    pub(crate) max_message: u64,
    /// Whether every request generates a CQE.
    pub(crate) signal_all: bool,
    /// Bytes of a frame's start that the WQE must hold inline.
    pub(crate) frame_header: usize,
    /// Maximum bytes of a TSO header; 0 without TSO.
    pub(crate) tso_header: usize,
    /// Maximum bytes of a TSO payload.
    pub(crate) max_tso: u64,
}
