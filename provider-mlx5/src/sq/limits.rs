//! Limits of a send queue.

use bareverbs_uapi::uverbs::types::QpType;

/// The format of a queue's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datagrams {
    /// The queue has none.
    None,
    /// Address vector and data.
    Plain,
    /// Address vector, pad, and an Ethernet segment with the first bytes of the datagram.
    Ipoib,
}

impl Datagrams {
    /// The format of a QP of this type. `has_source`: a QP with a source QPN.
    pub(crate) fn new(qp_type: QpType, has_source: bool) -> Self {
        match (qp_type, has_source) {
            (QpType::UD, false) => Self::Plain,
            (QpType::UD, true) => Self::Ipoib,
            _ => Self::None,
        }
    }
}

/// Limits of send requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) qp_type: QpType,
    pub(crate) datagrams: Datagrams,
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
