//! Receive WQEs of QPs: fetch, scatter, completion and flush.

use super::core::Core;
use super::cq::{Completion, CqeOpcode, Syndrome};
use super::eq::EventKind;
use super::mkey::{self, Accessor, access};
use super::qp::{Message, Qp, ReceiveQueue};
use super::recorder::Queue;
use super::srq::{Receive, RecvFetch, scatter_list};

/// Interval in nanoseconds at which a QP in ERR polls for receives to flush. Receive queues have no
/// doorbell.
const FLUSH_POLL: u64 = 2_000_000;

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
