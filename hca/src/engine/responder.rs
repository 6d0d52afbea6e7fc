//! The responder of a connected QP.

mod request;
mod response;

use std::collections::VecDeque;

use super::core::Core;
use super::cq::{Completion, CqeOpcode, Syndrome};
use super::eq::EventKind;
use super::mkey::{self, Accessor, access};
use super::packet::{Acknowledge, PSN_MASK, Route, Transport, syndrome};
use super::paging::{PageFaultInfo, kind};
use super::qp::{Qp, QpAttributes, ReceiveQueue, State};
use super::recorder::Queue;
use super::srq::{Receive, RecvFetch, scatter_list};

pub(crate) use request::receive;
pub(crate) use response::turn;

/// Interval in nanoseconds at which a QP in ERR polls for receives to flush. Receive queues have no
/// doorbell.
const FLUSH_POLL: u64 = 2_000_000;

/// The destination of the message in progress.
#[derive(Debug)]
enum Message {
    Send(Receive),
    Write { address: u64, key: u32, left: u32, length: u32 },
}

/// A queued response. Responses are sent in the order of their requests.
#[derive(Debug)]
enum Pending {
    Read(ReadResponse),
    Atomic(AtomicReplay),
}

/// A READ response in progress.
#[derive(Clone, Copy, Debug)]
struct ReadResponse {
    who: Accessor,
    psn: u32,
    address: u64,
    key: u32,
    left: u32,
    first: bool,
}

/// A NAK for a fatal error. The QP moves to ERR after the responses to earlier requests.
#[derive(Clone, Copy, Debug)]
struct PendingNak {
    psn: u32,
    code: u8,
    event: Option<EventKind>,
}

/// The result of an atomic, kept for duplicate requests.
#[derive(Clone, Copy, Debug)]
struct AtomicReplay {
    psn: u32,
    original: u64,
    messages: u32,
}

/// An unanswered page fault.
#[derive(Clone, Copy, Debug)]
struct PendingFault {
    token: u32,
    access: FaultedAccess,
}

/// The access that lacks a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultedAccess {
    /// The receive WQE of a message.
    Receive,
    /// Memory that a WRITE or atomic modifies.
    RemoteWrite,
    /// Memory that a READ reads. This response and those queued after it wait.
    ReadResponse,
}

/// State of the responder.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    expected_psn: u32,
    /// Number of completed messages (MSN).
    messages: u32,
    message: Option<Message>,
    /// The receive WQE of a dropped unreliable message; the next message uses it.
    reusable_receive: Option<Receive>,
    /// Whether a NAK was sent and the expected packet has not arrived since.
    nak_sent: bool,
    /// Whether the rest of an unreliable message is dropped after a loss, until the next message
    /// begins.
    dropping_message: bool,
    atomics: VecDeque<AtomicReplay>,
    pending: VecDeque<Pending>,
    /// Whether an ACK is due.
    pub(super) ack_pending: bool,
    /// Whether an RNR NAK is due after the queued responses.
    rnr_nak_pending: bool,
    /// A fatal NAK that is due after the queued responses. Further requests are ignored.
    refusal: Option<PendingNak>,
    /// The page fault that the responder waits for.
    fault: Option<PendingFault>,
    /// The route of responses.
    response_route: Option<Route>,
    /// Number of consumed receive WQEs.
    pub(super) consumed: u16,
    established: bool,
    /// Time of the next poll for receives to flush, in ERR.
    pub(crate) flush_poll: Option<u64>,
    /// Whether the SRQ_LAST_WQE event was raised.
    last_wqe: bool,
}

impl Responder {
    /// Applies the attributes of the transition to RTR.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.expected_psn = attributes.receive_psn;
    }

    /// The expected PSN and the MSN.
    pub(crate) fn sequence(&self) -> (u32, u32) {
        (self.expected_psn, self.messages)
    }

    pub(super) fn consumed(&self) -> u16 {
        self.consumed
    }
}

/// Takes a receive WQE from the QP's own RQ, its SRQ or the SRQ of an XRC request.
pub(crate) fn take_receive(qp: &mut Qp, core: &mut Core, xrc: Option<u32>) -> RecvFetch {
    if let Some(reusable_receive) = qp.responder.reusable_receive.take() {
        return RecvFetch::Receive(reusable_receive);
    }
    let taken = match (xrc, &qp.setup.receive) {
        (Some(srq), _) | (None, &ReceiveQueue::Shared(srq)) => core.take_shared(srq),
        (None, ReceiveQueue::None) => RecvFetch::Empty,
        (None, &ReceiveQueue::Own { log_size, log_stride }) => take_own(qp, core, log_size, log_stride),
    };
    if let RecvFetch::Empty = taken {
        core.count(qp.attributes.counters, |counters| &mut counters.out_of_buffer);
    }
    taken
}

fn take_own(qp: &mut Qp, core: &mut Core, log_size: u8, log_stride: u8) -> RecvFetch {
    let Ok(posted) = core.memory.read_be32(qp.setup.doorbell) else { return RecvFetch::Fault };
    let counter = qp.responder.consumed;
    if posted as u16 == counter {
        return RecvFetch::Empty;
    }
    let index = u64::from(counter) & ((1 << log_size) - 1);
    let mut wqe = vec![0; 1 << log_stride];
    if qp.setup.ring.read(&core.memory, index << log_stride, &mut wqe).is_err() {
        return RecvFetch::Fault;
    }
    core.recording.record(Queue::Receive(qp.number), counter, &wqe);
    qp.responder.consumed = counter.wrapping_add(1);
    RecvFetch::Receive(Receive { wqe_counter: counter, srq: None, sges: scatter_list(&wqe), placed: 0 })
}

/// Why data could not be scattered.
pub(crate) enum ScatterError {
    /// A page is not present. The number of placed bytes is unchanged.
    Absent,
    /// The scatter list is shorter than the message.
    TooLong,
    /// An SGE isn't writable.
    Protection,
}

/// Checks and records the length of a message that the CQE carries (scatter to CQE).
pub(crate) fn keep(receive: &mut Receive, bytes: &[u8]) -> Result<(), ScatterError> {
    let capacity: u64 = receive.sges.iter().map(|sge| u64::from(sge.length)).sum();
    receive.placed = bytes.len() as u32;
    if u64::from(receive.placed) > capacity { Err(ScatterError::TooLong) } else { Ok(()) }
}

/// Scatters the next bytes of a message into its receive WQE.
pub(crate) fn place(
    core: &Core,
    who: Accessor,
    receive: &mut Receive,
    bytes: &[u8],
) -> Result<(), ScatterError> {
    let (mut skip, mut bytes, length) = (receive.placed, bytes, bytes.len() as u32);
    let capacity: u64 = receive.sges.iter().map(|sge| u64::from(sge.length)).sum();
    if u64::from(receive.placed) + u64::from(length) > capacity {
        return Err(ScatterError::TooLong);
    }
    for sge in &receive.sges {
        if bytes.is_empty() {
            break;
        }
        if skip >= sge.length {
            skip -= sge.length;
            continue;
        }
        let (now, rest) = bytes.split_at(((sge.length - skip) as usize).min(bytes.len()));
        let address = sge.address.checked_add(u64::from(skip)).ok_or(ScatterError::Protection)?;
        mkey::write(&core.mkeys, &core.memory, who, (sge.key, address), access::LOCAL_WRITE, now).map_err(
            |refusal| match refusal {
                mkey::AccessError::Absent => ScatterError::Absent,
                _ => ScatterError::Protection,
            },
        )?;
        bytes = rest;
        skip = 0;
    }
    receive.placed += length;
    Ok(())
}

/// Raises a page fault and waits for the answer. Returns `false` if no page-fault EQ took the
/// event. The responder has at most one outstanding fault.
fn wait_for_page(
    qp: &mut Qp,
    core: &mut Core,
    access: FaultedAccess,
    info: PageFaultInfo,
    (committed, packet): (u32, usize),
) -> bool {
    if qp.responder.fault.is_none() {
        let token = core.page_fault(qp.number, info, committed, packet);
        qp.responder.fault = token.map(|token| PendingFault { token, access });
    }
    qp.responder.fault.is_some()
}

/// Raises a page fault for a receive WQE and keeps the WQE until its message is sent again. Returns
/// `false`, and doesn't keep it, if no page-fault EQ took the event.
pub(crate) fn wait_for_receive(qp: &mut Qp, core: &mut Core, receive: &Receive, packet: usize) -> bool {
    let (kind, queue) = match receive.srq {
        Some(srq) => (kind::SHARED_RECEIVE, srq),
        None => (kind::RECEIVE, qp.number),
    };
    let info = PageFaultInfo::List { kind, queue, index: receive.wqe_counter };
    let raised = wait_for_page(qp, core, FaultedAccess::Receive, info, (receive.placed, packet));
    if raised {
        let receive_copy = Some(receive.clone());
        if receive.placed == 0 {
            qp.responder.reusable_receive = receive_copy;
        } else {
            qp.responder.message = receive_copy.map(Message::Send);
        }
    }
    raised
}

/// Continues after the answer to a page fault, or fails the faulting access.
pub(crate) fn resume(qp: &mut Qp, core: &mut Core, token: u32, failed: bool) {
    let Some(fault) = qp.responder.fault.take_if(|fault| fault.token == token) else { return };
    if !failed {
        return;
    }
    let reliable = qp.setup.service.transport().is_some_and(Transport::reliable);
    match fault.access {
        FaultedAccess::Receive => {
            let receive = match qp.responder.message.take() {
                Some(Message::Send(receive)) => Some(receive),
                other => {
                    qp.responder.message = other;
                    qp.responder.reusable_receive.take()
                }
            };
            if let Some(receive) = receive {
                report_failure(qp, core, &receive, Syndrome::LocalProtection);
            }
            if reliable {
                let psn = qp.responder.expected_psn;
                refuse(qp, core, PendingNak { psn, code: syndrome::NAK_OPERATION, event: None });
            } else {
                enter_error(qp, core);
            }
        }
        // An unreliable transport has no NAK, so a remote fault fails nothing.
        FaultedAccess::RemoteWrite | FaultedAccess::ReadResponse if !reliable => {}
        FaultedAccess::RemoteWrite | FaultedAccess::ReadResponse => {
            let psn = match qp.responder.pending.front() {
                Some(Pending::Read(read)) if fault.access == FaultedAccess::ReadResponse => read.psn,
                _ => qp.responder.expected_psn,
            };
            response::send_ack(qp, core, psn, syndrome::NAK_ACCESS);
            enter_error(qp, core);
            core.qp_event(EventKind::AccessError, qp.number);
        }
    }
}

/// Sends a NAK for a fatal error after the responses to earlier requests, and moves the QP to ERR.
fn refuse(qp: &mut Qp, core: &mut Core, refusal: PendingNak) {
    if !qp.responder.pending.is_empty() {
        qp.responder.refusal = Some(refusal);
        return;
    }
    response::send_ack(qp, core, refusal.psn, refusal.code);
    enter_error(qp, core);
    if let Some(kind) = refusal.event {
        core.qp_event(kind, qp.number);
    }
}

/// The access context of a receive WQE's SGEs: the PD of the SRQ or the QP.
pub(crate) fn receive_accessor(qp: &Qp, core: &Core, srq: Option<u32>) -> Accessor {
    let pd = srq.and_then(|srq| core.srqs.get(srq)).map_or(qp.setup.pd, |srq| srq.setup.pd);
    Accessor { pd, ..qp.accessor() }
}

/// The CQ of a receive, and the user index in its CQE.
fn completion_target(qp: &Qp, core: &Core, srq: Option<u32>) -> (u32, u32) {
    let xrc =
        srq.and_then(|srq| core.srqs.get(srq)).and_then(|srq| Some((srq.setup.cq?, srq.setup.user_index)));
    match xrc {
        Some((cq, user_index)) if qp.setup.xrcd.is_some() => (cq, user_index),
        _ => (qp.setup.receive_cq, qp.setup.user_index),
    }
}

/// Posts the CQE of a receive WQE.
pub(crate) fn report<'a>(
    qp: &Qp,
    core: &mut Core,
    receive: &Receive,
    opcode: CqeOpcode,
    fill: impl FnOnce(&mut Completion<'a>),
) {
    let (cq, user_index) = completion_target(qp, core, receive.srq);
    let mut completion = Completion::new(opcode, qp.number, user_index, receive.wqe_counter);
    completion.byte_count = receive.placed;
    completion.srq = receive.srq.unwrap_or(0);
    fill(&mut completion);
    core.complete(cq, &completion);
}

/// Posts the error CQE of a receive WQE.
pub(crate) fn report_failure(qp: &Qp, core: &mut Core, receive: &Receive, syndrome: Syndrome) {
    report(qp, core, receive, CqeOpcode::ResponderError, |completion| completion.syndrome = Some(syndrome));
}

/// Flushes all posted receives. A QP in ERR polls for further ones.
pub(crate) fn flush(qp: &mut Qp, core: &mut Core) {
    qp.responder.pending.clear();
    (qp.responder.ack_pending, qp.responder.rnr_nak_pending) = (false, false);
    (qp.responder.refusal, qp.responder.fault) = (None, None);
    if let Some(Message::Send(receive)) = qp.responder.message.take() {
        report_failure(qp, core, &receive, Syndrome::Flushed);
    }
    if let Some(receive) = qp.responder.reusable_receive.take() {
        report_failure(qp, core, &receive, Syndrome::Flushed);
    }
    match qp.setup.receive {
        ReceiveQueue::Own { log_size, log_stride } => {
            let mut left = 1u32 << log_size;
            while left > 0
                && let RecvFetch::Receive(receive) = take_own(qp, core, log_size, log_stride)
            {
                report_failure(qp, core, &receive, Syndrome::Flushed);
                left -= 1;
            }
            qp.responder.flush_poll = Some(core.now + FLUSH_POLL);
        }
        ReceiveQueue::Shared(_) if !std::mem::replace(&mut qp.responder.last_wqe, true) => {
            core.qp_event(EventKind::SrqLastWqe, qp.number);
        }
        ReceiveQueue::Shared(_) | ReceiveQueue::None => {}
    }
}

/// Moves a QP to ERR and flushes both queues.
pub(crate) fn enter_error(qp: &mut Qp, core: &mut Core) {
    qp.state = State::Error;
    super::requester::flush(qp, core);
    flush(qp, core);
}

/// Handles expired timers.
pub(crate) fn expire(qp: &mut Qp, core: &mut Core) {
    if qp.state != State::Error {
        qp.responder.flush_poll = None;
    } else if qp.responder.flush_poll.is_some_and(|at| at <= core.now) {
        flush(qp, core);
    }
}

fn acknowledge(syndrome: u8, responder: &Responder) -> Acknowledge {
    Acknowledge { syndrome, messages: responder.messages & PSN_MASK }
}
