//! The functions of the data path. Each provider has its own, which need no branch over providers and only
//! the registers of one.
//!
//! C finds them in a context or in its objects, so they get objects of devices with this provider only.

use crate::abi::Function;

/// The functions that C finds in a context, in its QPs and in its CQs.
pub(crate) struct DataPath {
    pub(crate) post_send: Function,
    pub(crate) post_recv: Function,
    pub(crate) post_srq_recv: Function,
    pub(crate) poll_cq: Function,
    pub(crate) wr_complete: Function,
    pub(crate) polling: PollFunctions,
}

/// The functions that poll an extended CQ.
pub(crate) struct PollFunctions {
    /// `ibv_start_poll` and `ibv_next_poll` of a CQ without rare fields.
    pub(crate) frequent: [Function; 2],
    /// Those of a CQ with rare fields.
    pub(crate) all: [Function; 2],
    /// `ibv_start_poll` of a CQ with wall-clock times.
    pub(crate) start_with_clock: Function,
    pub(crate) end: Function,
}

/// The functions for objects whose queues have locks, and for those without.
pub(crate) struct DataPaths {
    pub(crate) locked: DataPath,
    pub(crate) elided: DataPath,
}

impl DataPaths {
    pub(crate) fn of(&self, is_elided: bool) -> &DataPath {
        if is_elided { &self.elided } else { &self.locked }
    }
}
