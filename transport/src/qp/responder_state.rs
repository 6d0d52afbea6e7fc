//! Responder state of a QP: the message in progress, queued responses, due ACKs.

use std::collections::VecDeque;

use super::attributes::QpAttributes;
use crate::device::{Device, Event};
use crate::packet::{PSN_MASK, Remote, Route, psn_distance};
use crate::work::Receive;

/// The destination of the message in progress.
pub(crate) enum Message<W> {
    Send(Receive<W>),
    Write { address: u64, key: u32, left: u32, length: u32 },
}

/// A queued response. Responses are sent in the order of their requests.
pub(crate) enum PendingResponse<A> {
    Read(ReadResponse<A>),
    Atomic(AtomicReplay),
}

/// A READ response in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadResponse<A> {
    pub(crate) who: A,
    pub(crate) psn: u32,
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) left: u32,
    pub(crate) first: bool,
    /// Whether it answers a FLUSH, which `max_dest_rd_atomic` doesn't count.
    pub(crate) of_flush: bool,
}

/// A NAK for a fatal error. The QP moves to ERR after the responses to earlier requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingNak {
    pub(crate) psn: u32,
    pub(crate) code: u8,
    pub(crate) event: Option<Event>,
}

/// The result of an atomic, kept for duplicate requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicReplay {
    pub(crate) psn: u32,
    pub(crate) original: u64,
    pub(crate) messages: u32,
}

/// A READ that was executed. A duplicate may read within its range only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecutedRead {
    pub(crate) psn: u32,
    /// Number of response packets.
    pub(crate) packets: u32,
    pub(crate) key: u32,
    pub(crate) address: u64,
    pub(crate) length: u32,
}

impl ExecutedRead {
    /// Whether a READ with this PSN of this range repeats it or a part of it.
    pub(crate) fn contains(&self, psn: u32, remote: &Remote) -> bool {
        let behind = psn_distance(psn, self.psn);
        let offset = remote.address.checked_sub(self.address);
        let end = offset.and_then(|offset| offset.checked_add(remote.length.into()));
        behind >= 0
            && (behind as u32) < self.packets
            && remote.key == self.key
            && end.is_some_and(|end| end <= self.length.into())
    }
}

/// An unanswered page fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponderFault {
    pub(crate) token: u32,
    pub(crate) access: FaultedAccess,
}

/// The access that lacks a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultedAccess {
    /// The receive WQE of a message.
    Receive,
    /// Memory that a WRITE or atomic modifies, or a FLUSH places.
    RemoteWrite,
    /// Memory that a READ reads. This response and those queued after it wait.
    ReadResponse,
}

/// State of the responder.
pub(crate) struct ResponderState<D: Device> {
    pub(crate) expected_psn: u32,
    /// Number of completed messages (MSN).
    pub(crate) messages: u32,
    pub(crate) message: Option<Message<D::RecvWqe>>,
    /// The receive WQE of a dropped unreliable message; the next message uses it.
    pub(crate) reusable_receive: Option<Receive<D::RecvWqe>>,
    /// Whether a NAK was sent and the expected packet has not arrived since.
    pub(crate) nak_sent: bool,
    /// Whether the rest of an unreliable message is dropped after a loss, until the next message
    /// begins.
    pub(crate) dropping_message: bool,
    /// The results of the last atomics, up to `max_dest_rd_atomic`.
    pub(crate) atomics: VecDeque<AtomicReplay>,
    /// The last READs, up to `max_dest_rd_atomic`.
    pub(crate) reads: VecDeque<ExecutedRead>,
    pub(crate) pending: VecDeque<PendingResponse<D::Accessor>>,
    /// Whether an ACK is due.
    pub(crate) ack_pending: bool,
    /// The PSN of ACKs: that of the last request without a response of its own. An ACK with the PSN of
    /// a READ or atomic would be taken for its response.
    pub(crate) ack_psn: u32,
    /// Whether an RNR NAK is due after the queued responses.
    pub(crate) rnr_nak_pending: bool,
    /// A fatal NAK that is due after the queued responses. Further requests are ignored.
    pub(crate) refusal: Option<PendingNak>,
    /// The page fault that the responder waits for.
    pub(crate) fault: Option<ResponderFault>,
    /// The route of responses.
    pub(crate) response_route: Option<Route>,
    pub(crate) established: bool,
    /// Time of the next poll for receives to flush, in ERR.
    pub(crate) flush_poll: Option<u64>,
    /// Whether the SRQ_LAST_WQE event was raised.
    pub(crate) last_wqe: bool,
}

impl<D: Device> Default for ResponderState<D> {
    fn default() -> Self {
        Self {
            expected_psn: 0,
            messages: 0,
            message: None,
            reusable_receive: None,
            nak_sent: false,
            dropping_message: false,
            atomics: VecDeque::new(),
            reads: VecDeque::new(),
            pending: VecDeque::new(),
            ack_pending: false,
            ack_psn: 0,
            rnr_nak_pending: false,
            refusal: None,
            fault: None,
            response_route: None,
            established: false,
            flush_poll: None,
            last_wqe: false,
        }
    }
}

impl<D: Device> ResponderState<D> {
    /// Applies the attributes of the transition to RTR.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.expected_psn = attributes.receive_psn;
        self.ack_psn = attributes.receive_psn.wrapping_sub(1) & PSN_MASK;
    }
}
