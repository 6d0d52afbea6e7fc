//! QPs: parameters, attributes, and the state of requester and responder.

pub(crate) mod migration;
pub(crate) mod pacing;
mod requester_state;
mod responder_state;
mod setup;

use super::mkey::Accessor;
use super::service::Service;
pub(crate) use requester_state::{InflightWqe, RequesterFault, RequesterState, Response};
pub(crate) use responder_state::{
    AtomicReplay, FaultedAccess, Message, PendingNak, PendingResponse, ReadResponse, ResponderFault,
    ResponderState,
};
pub use setup::{QpAttributes, QpSetup, ReceiveQueue, State};

/// Result of a QP's turn to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// No work until the next event.
    Idle,
    /// The budget is exhausted and work is left.
    More,
}

/// A QP.
pub(crate) struct Qp {
    pub(crate) number: u32,
    pub(crate) setup: QpSetup,
    pub(crate) state: State,
    pub(crate) attributes: QpAttributes,
    pub(crate) requester: RequesterState,
    pub(crate) responder: ResponderState,
    /// Whether the QP is in the ready queue.
    pub(crate) queued: bool,
    /// Its earliest entry in the timer heap.
    pub(crate) timed: Option<u64>,
}

impl Qp {
    pub(crate) fn new(number: u32, setup: QpSetup, attributes: QpAttributes) -> Self {
        Self {
            number,
            setup,
            state: State::Reset,
            attributes,
            requester: RequesterState::default(),
            responder: ResponderState::default(),
            queued: false,
            timed: None,
        }
    }

    /// Moves the QP to RESET and discards all its work.
    pub(crate) fn reset(&mut self) {
        self.state = State::Reset;
        self.requester = RequesterState::default();
        self.responder = ResponderState::default();
    }

    pub(crate) fn accessor(&self) -> Accessor {
        Accessor {
            pd: self.setup.pd,
            qp: self.number,
            reserved_lkey: self.setup.reserved_lkey,
            any_pd: self.setup.service == Service::RegUmr,
        }
    }

    /// The time of its next timer.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let flush = self.responder.flush_poll;
        let requester = &self.requester;
        [requester.deadline, requester.rnr_until, requester.pace_until, flush].into_iter().flatten().min()
    }
}
