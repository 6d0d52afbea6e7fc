//! Limits of a send queue.

use bareverbs_uapi::uverbs::types::QpType;

/// Limits of send requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) qp_type: QpType,
    /// Requests that always find room.
    pub(crate) requests: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// Bytes of a message; of a datagram, the port's MTU.
    pub(crate) max_message: u64,
    /// Whether every request makes a completion.
    pub(crate) signal_all: bool,
    /// Bytes of a frame that a request must hold itself.
    pub(crate) frame_header: usize,
    /// Bytes of the longest header of a large send; 0 where there are none.
    pub(crate) tso_header: usize,
    /// Most bytes of a large send behind its header.
    pub(crate) max_tso: u64,
}
