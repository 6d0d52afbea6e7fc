//! QPs: attributes, and the state of requester and responder.

pub(crate) mod attributes;
pub(crate) mod migration;
pub(crate) mod pacing;
pub(crate) mod requester_state;
pub(crate) mod responder_state;

use std::fmt;

use crate::device::{Device, Queues, SendWqe};
use crate::packet::Transport;
use crate::service::Service;
use attributes::{QpAttributes, State};
use requester_state::RequesterState;
use responder_state::ResponderState;

/// Result of a QP's turn to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// No work until the next event.
    Idle,
    /// The budget is exhausted and work is left.
    More,
}

/// A QP.
pub struct Qp<D: Device> {
    /// Its queues.
    pub queues: D::Queues,
    pub(crate) state: State,
    /// Its attributes.
    pub attributes: QpAttributes,
    pub(crate) requester: RequesterState<D>,
    pub(crate) responder: ResponderState<D>,
    /// Whether the QP is in the ready queue.
    pub(crate) queued: bool,
    /// Its earliest entry in the timer heap.
    pub(crate) timed: Option<u64>,
}

impl<D: Device> fmt::Debug for Qp<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("state", &self.state)
            .field("attributes", &self.attributes)
            .finish_non_exhaustive()
    }
}

impl<D: Device> Qp<D> {
    pub(crate) fn new(queues: D::Queues, attributes: QpAttributes) -> Self {
        Self {
            queues,
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
        self.queues.reset();
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The oldest send WQE in execution.
    pub fn oldest_send(&self) -> Option<SendWqe<D>> {
        self.requester.inflight.front().map(|inflight| inflight.wqe)
    }

    /// The PSN of the next request.
    pub fn next_psn(&self) -> u32 {
        self.requester.next_psn
    }

    /// The last acknowledged PSN.
    pub fn acknowledged_psn(&self) -> u32 {
        self.requester.acknowledged_psn()
    }

    /// The PSN that the responder expects.
    pub fn expected_psn(&self) -> u32 {
        self.responder.expected_psn
    }

    /// The number of messages that the responder has completed (MSN).
    pub fn messages(&self) -> u32 {
        self.responder.messages
    }

    /// The transport of its packets.
    pub(crate) fn transport(&self) -> Option<Transport> {
        self.queues.service().map(Service::transport)
    }

    /// Whether its packets are acknowledged.
    pub(crate) fn is_reliable(&self) -> bool {
        self.transport().is_some_and(Transport::reliable)
    }

    /// The time of its next timer.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let flush = self.responder.flush_poll;
        let requester = &self.requester;
        [requester.deadline, requester.rnr_until, requester.pace_until, flush].into_iter().flatten().min()
    }
}
