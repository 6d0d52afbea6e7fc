//! Requester state of a QP: WQEs in execution, PSNs, retries and timers.

use std::collections::VecDeque;

use super::setup::QpAttributes;
use crate::engine::cq::Syndrome;
use crate::engine::packet::{PSN_MASK, psn_distance};
use crate::engine::wqe::{Segment, Work, units};

/// A WQE in execution.
#[derive(Clone, Debug)]
pub(crate) struct InflightWqe {
    pub(crate) wqe: u16,
    pub(crate) blocks: u16,
    pub(crate) opcode: u8,
    pub(crate) signaled: bool,
    pub(crate) response: Response,
    pub(crate) first_psn: u32,
    pub(crate) packets: u32,
    pub(crate) length: u32,
    pub(crate) done: bool,
    pub(crate) failure: Option<Syndrome>,
    /// Response data for scatter to CQE.
    pub(crate) inline_response: Box<[u8]>,
}

/// The response that completes a WQE.
#[derive(Clone, Debug)]
pub(crate) enum Response {
    /// None: it completes when it is sent.
    None,
    /// An ACK.
    Acknowledge,
    /// READ responses: the SGEs, and the number of packets received.
    Read { places: Box<[Segment]>, received: u32 },
    /// An atomic response of eight bytes.
    Atomic { places: Box<[Segment]> },
}

impl InflightWqe {
    pub(crate) fn last_psn(&self) -> u32 {
        self.first_psn.wrapping_add(self.packets.saturating_sub(1)) & PSN_MASK
    }

    pub(crate) fn awaits_data(&self) -> bool {
        !self.done && matches!(self.response, Response::Read { .. } | Response::Atomic { .. })
    }
}

/// State of the requester.
#[derive(Debug, Default)]
pub(crate) struct RequesterState {
    /// Index of the next WQE to fetch.
    pub(crate) next_wqe: u16,
    /// The driver's producer index as last read from the doorbell record.
    pub(crate) posted: u16,
    pub(crate) inflight: VecDeque<InflightWqe>,
    /// The next packet to send: index in `inflight`, packet number within that WQE.
    pub(crate) cursor: (usize, u32),
    /// A WQE that was written through a BlueFlame buffer.
    bf_wqe: Option<Box<[u8]>>,
    /// Index of the WQE that `work` contains.
    pub(crate) loaded: Option<u16>,
    pub(crate) work: Work,
    pub(crate) next_psn: u32,
    pub(crate) oldest_psn: u32,
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
    pub(crate) fault: Option<RequesterFault>,
}

/// An unanswered page fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequesterFault {
    pub(crate) token: u32,
    /// Index of the WQE whose SGE lacks the page.
    pub(crate) wqe: u16,
    /// Whether a response was dropped meanwhile, so that the request must be sent again.
    pub(crate) again: bool,
}

impl RequesterState {
    /// Applies the attributes of the transition to RTS.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.next_psn = attributes.send_psn;
        self.oldest_psn = attributes.send_psn;
        self.refill(attributes);
    }

    /// Stores a WQE that was written through a BlueFlame buffer.
    pub(crate) fn set_bf_wqe(&mut self, wqe: Box<[u8]>) {
        self.bf_wqe = Some(wqe);
    }

    /// Takes the BlueFlame WQE if it has this index and is complete.
    pub(crate) fn take_bf_wqe(&mut self, index: u16) -> Option<Box<[u8]>> {
        let wqe = self.bf_wqe.as_ref()?;
        let control: [u8; 16] = wqe.get(..16)?.try_into().ok()?;
        let fits = u16::from_be_bytes([control[1], control[2]]) == index
            && usize::from(units(&control)) * 16 <= wqe.len();
        if fits { self.bf_wqe.take() } else { None }
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

    /// The WQE counters of QUERY_QP: completed and posted.
    pub(crate) fn counters(&self) -> (u16, u16) {
        (self.inflight.front().map_or(self.next_wqe, |inflight| inflight.wqe), self.posted)
    }

    /// The next PSN and the last acknowledged one.
    pub(crate) fn sequence(&self) -> (u32, u32) {
        (self.next_psn, self.oldest_psn.wrapping_sub(1) & PSN_MASK)
    }

    /// Advances past a WQE that sends no packets.
    pub(crate) fn cursor_passed(&mut self) {
        self.cursor = (self.cursor.0 + 1, 0);
    }
}
