//! The receiving side of a connected queue pair.

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

/// How often a queue pair in error looks whether receives were posted, which ring no doorbell.
const FLUSH_POLL: u64 = 2_000_000;

/// What a message under way does with its packets.
#[derive(Debug)]
enum Message {
    Send(Receive),
    Write { address: u64, key: u32, left: u32, length: u32 },
}

/// An answer waiting for its turn, so that answers go out in the order of their requests.
#[derive(Debug)]
enum Pending {
    Read(ReadResponse),
    Atomic(AtomicReplay),
}

/// Data that was asked for.
#[derive(Clone, Copy, Debug)]
struct ReadResponse {
    who: Accessor,
    psn: u32,
    address: u64,
    key: u32,
    left: u32,
    first: bool,
}

/// A request that is not carried out, and takes the queue pair down once what was asked before it
/// is answered.
#[derive(Clone, Copy, Debug)]
struct PendingNak {
    psn: u32,
    code: u8,
    event: Option<EventKind>,
}

/// The result of an atomic, kept in case the requester asks again.
#[derive(Clone, Copy, Debug)]
struct AtomicReplay {
    psn: u32,
    original: u64,
    messages: u32,
}

/// A page fault without an answer.
#[derive(Clone, Copy, Debug)]
struct PendingFault {
    token: u32,
    access: FaultedAccess,
}

/// What lacks a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultedAccess {
    /// The receive that a message is for.
    Receive,
    /// Memory that the peer wants to change.
    RemoteWrite,
    /// Memory that the peer reads; the answer waits, and those behind it.
    ReadResponse,
}

/// State of the receiving side.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    expected_psn: u32,
    /// Completed messages.
    messages: u32,
    message: Option<Message>,
    /// A receive that a broken unreliable message had taken; the next message uses it.
    reusable_receive: Option<Receive>,
    /// A sequence error was reported and nothing right has come since.
    nak_sent: bool,
    /// An unreliable message lost a packet: wait for the next one.
    dropping_message: bool,
    atomics: VecDeque<AtomicReplay>,
    pending: VecDeque<Pending>,
    /// An acknowledgement is due.
    pub(super) ack_pending: bool,
    /// The peer is to come back later, and is told so after the answers that wait.
    rnr_nak_pending: bool,
    /// A request was refused, behind answers that wait; nothing more is heard.
    refusal: Option<PendingNak>,
    /// A page fault without an answer.
    fault: Option<PendingFault>,
    /// Where answers go.
    response_route: Option<Route>,
    /// Receive work requests used.
    pub(super) consumed: u16,
    established: bool,
    /// When a queue pair in error next looks for receives to flush.
    pub(crate) flush_poll: Option<u64>,
    /// Whether the shared queue's last work request was announced.
    last_wqe: bool,
}

impl Responder {
    /// Takes over what the transition to ready-to-receive sets.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.expected_psn = attributes.receive_psn;
    }

    /// The next sequence number expected, and messages completed.
    pub(crate) fn sequence(&self) -> (u32, u32) {
        (self.expected_psn, self.messages)
    }

    pub(super) fn consumed(&self) -> u16 {
        self.consumed
    }
}

/// Takes a receive work request from the queue pair's queue, or from an XRC one.
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

/// Why data could not be placed.
pub(crate) enum ScatterError {
    /// A page lacks; nothing was placed.
    Absent,
    /// The scatter list is shorter than the message.
    TooLong,
    /// The scatter list isn't writable.
    Protection,
}

/// Accounts for a message that the completion will carry.
pub(crate) fn keep(receive: &mut Receive, bytes: &[u8]) -> Result<(), ScatterError> {
    let capacity: u64 = receive.sges.iter().map(|sge| u64::from(sge.length)).sum();
    receive.placed = bytes.len() as u32;
    if u64::from(receive.placed) > capacity { Err(ScatterError::TooLong) } else { Ok(()) }
}

/// Puts the next bytes of a message into its receive work request.
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

/// Waits for a page; `false` if nobody hears that it lacks. While one is waited for, others are not
/// asked for.
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

/// Keeps a receive for when its message comes again, and waits for the page that it lacks; `false`,
/// and the receive is not kept, if nobody hears of it.
pub(crate) fn wait_for_receive(qp: &mut Qp, core: &mut Core, receive: &Receive, packet: usize) -> bool {
    let (kind, queue) = match receive.srq {
        Some(srq) => (kind::SHARED_RECEIVE, srq),
        None => (kind::RECEIVE, qp.number),
    };
    let info = PageFaultInfo::List { kind, queue, index: receive.wqe_counter };
    let heard = wait_for_page(qp, core, FaultedAccess::Receive, info, (receive.placed, packet));
    if heard {
        let kept = Some(receive.clone());
        if receive.placed == 0 {
            qp.responder.reusable_receive = kept;
        } else {
            qp.responder.message = kept.map(Message::Send);
        }
    }
    heard
}

/// Goes on after a page fault, or fails what lacked the page.
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
        // A peer that isn't told of failures doesn't cause any.
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

/// Tells the peer that a request is not carried out, after the answers to those before it, and goes
/// to ERR.
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

/// Who owns the scatter list of a receive work request.
pub(crate) fn receive_accessor(qp: &Qp, core: &Core, srq: Option<u32>) -> Accessor {
    let pd = srq.and_then(|srq| core.srqs.get(srq)).map_or(qp.setup.pd, |srq| srq.setup.pd);
    Accessor { pd, ..qp.accessor() }
}

/// Where completions of a receive go, and under whose index.
fn completion_target(qp: &Qp, core: &Core, srq: Option<u32>) -> (u32, u32) {
    let xrc =
        srq.and_then(|srq| core.srqs.get(srq)).and_then(|srq| Some((srq.setup.cq?, srq.setup.user_index)));
    match xrc {
        Some((cq, user_index)) if qp.setup.xrcd.is_some() => (cq, user_index),
        _ => (qp.setup.receive_cq, qp.setup.user_index),
    }
}

/// Reports a receive work request.
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

/// Reports a failed receive work request.
pub(crate) fn report_failure(qp: &Qp, core: &mut Core, receive: &Receive, syndrome: Syndrome) {
    report(qp, core, receive, CqeOpcode::ResponderError, |completion| completion.syndrome = Some(syndrome));
}

/// Reports all receives as flushed, now and as long as the queue pair stays in error.
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

/// Moves a queue pair into the error state and flushes both queues.
pub(crate) fn enter_error(qp: &mut Qp, core: &mut Core) {
    qp.state = State::Error;
    super::requester::flush(qp, core);
    flush(qp, core);
}

/// Looks at the clock.
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
