//! Requester state of a QP: WQEs in execution, PSNs, retries and timers.

use std::collections::VecDeque;

use super::attributes::QpAttributes;
use crate::device::{Device, SendWqe};
use crate::packet::{PSN_MASK, psn_distance};
use crate::status::Status;
use crate::work::{Sge, Work};

/// A WQE in execution. `W` is the device's name of it.
pub(crate) struct InflightWqe<W> {
    pub(crate) wqe: W,
    pub(crate) signaled: bool,
    pub(crate) response: Response,
    pub(crate) first_psn: u32,
    pub(crate) packets: u32,
    pub(crate) length: u32,
    pub(crate) done: bool,
    pub(crate) failure: Option<Status>,
    /// Response data that the completion carries.
    pub(crate) inline_response: Box<[u8]>,
}

/// The response that completes a WQE.
pub(crate) enum Response {
    /// None: it completes when it is sent.
    None,
    /// An ACK.
    Acknowledge,
    /// READ responses: the SGEs, and the number of packets received.
    Read { places: Box<[Sge]>, received: u32 },
    /// An atomic response of eight bytes.
    Atomic { places: Box<[Sge]> },
}

impl<W> InflightWqe<W> {
    /// A posted WQE that is flushed without its execution.
    pub(crate) fn flushed(wqe: W) -> Self {
        Self {
            wqe,
            signaled: true,
            response: Response::None,
            first_psn: 0,
            packets: 0,
            length: 0,
            done: false,
            failure: Some(Status::Flushed),
            inline_response: Box::default(),
        }
    }

    pub(crate) fn last_psn(&self) -> u32 {
        self.first_psn.wrapping_add(self.packets.saturating_sub(1)) & PSN_MASK
    }

    pub(crate) fn awaits_data(&self) -> bool {
        !self.done && matches!(self.response, Response::Read { .. } | Response::Atomic { .. })
    }
}

/// Maximum number of unacknowledged packets of any QP.
const MAX_WINDOW: i32 = 128;

/// An ACK is requested at least every so many packets of a message.
pub(crate) const ACK_EVERY: u32 = 32;

/// State of the requester.
pub(crate) struct RequesterState<D: Device> {
    pub(crate) inflight: VecDeque<InflightWqe<SendWqe<D>>>,
    /// The next packet to send: index in `inflight`, packet number within that WQE.
    pub(crate) cursor: (usize, u32),
    pub(crate) work: Work<D::Local>,
    pub(crate) next_psn: u32,
    pub(crate) oldest_psn: u32,
    /// The PSN after those that were sent, once or several times.
    pub(crate) unsent_psn: u32,
    /// Maximum number of unacknowledged packets.
    pub(crate) window: i32,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    /// The oldest unacknowledged PSN at the last retry. Further NAKs and gaps of the same loss are
    /// ignored.
    pub(crate) recovering: Option<u32>,
    /// Expiry of the ACK timeout.
    pub(crate) deadline: Option<u64>,
    /// End of the delay after an RNR NAK.
    pub(crate) rnr_until: Option<u64>,
    /// End of the pause of a QP that is ahead of its rate.
    pub(crate) pace_until: Option<u64>,
    /// When everything sent so far would have been sent at the rate.
    pub(crate) paced_end: u64,
    /// Whether fetching is stopped: a failed WQE waits for the completion of its predecessors.
    pub(crate) blocked: bool,
    /// Whether the SQ_DRAINED event was raised.
    pub(crate) drained: bool,
    /// The page fault that the requester waits for. Nothing is sent until it is answered.
    pub(crate) fault: Option<RequesterFault<SendWqe<D>>>,
}

/// An unanswered page fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequesterFault<W> {
    pub(crate) token: u32,
    /// The WQE whose SGE lacks the page.
    pub(crate) wqe: W,
    /// Whether a response was dropped meanwhile, so that the request must be sent again.
    pub(crate) again: bool,
}

impl<D: Device> Default for RequesterState<D> {
    fn default() -> Self {
        Self {
            inflight: VecDeque::new(),
            cursor: (0, 0),
            work: Work::default(),
            next_psn: 0,
            oldest_psn: 0,
            unsent_psn: 0,
            window: MAX_WINDOW,
            retries: 0,
            rnr_retries: 0,
            recovering: None,
            deadline: None,
            rnr_until: None,
            pace_until: None,
            paced_end: 0,
            blocked: false,
            drained: false,
            fault: None,
        }
    }
}

impl<D: Device> RequesterState<D> {
    /// Applies the attributes of the transition to RTS.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.next_psn = attributes.send_psn;
        self.oldest_psn = attributes.send_psn;
        self.unsent_psn = attributes.send_psn;
        self.window = MAX_WINDOW;
        self.refill(attributes);
    }

    /// Reduces the window after a loss. It stays large enough for packets that ask for an ACK.
    pub(crate) fn shrink_window(&mut self) {
        if D::POLICY.adaptive_window {
            self.window = (self.window / 2).max(ACK_EVERY as i32);
        }
    }

    /// Enlarges the window after progress.
    pub(crate) fn grow_window(&mut self) {
        self.window = (self.window + 1).min(MAX_WINDOW);
    }

    pub(crate) fn refill(&mut self, attributes: &QpAttributes) {
        self.retries = attributes.retry_count;
        self.rnr_retries = attributes.rnr_retry;
    }

    /// Whether sending is paused by an RNR delay, a page fault or the rate.
    pub(crate) fn paused(&self) -> bool {
        self.rnr_until.is_some() || self.fault.is_some() || self.pace_until.is_some()
    }

    pub(crate) fn outstanding(&self) -> i32 {
        psn_distance(self.cursor_psn(), self.oldest_psn)
    }

    pub(crate) fn cursor_psn(&self) -> u32 {
        match self.inflight.get(self.cursor.0) {
            Some(inflight) => inflight.first_psn.wrapping_add(self.cursor.1) & PSN_MASK,
            None => self.next_psn,
        }
    }

    pub(crate) fn data_under_way(&self) -> usize {
        self.inflight.iter().filter(|inflight| inflight.awaits_data()).count()
    }

    pub(crate) fn acknowledged_psn(&self) -> u32 {
        self.oldest_psn.wrapping_sub(1) & PSN_MASK
    }

    /// Advances past a WQE that sends no packets.
    pub(crate) fn cursor_passed(&mut self) {
        self.cursor = (self.cursor.0 + 1, 0);
    }
}
