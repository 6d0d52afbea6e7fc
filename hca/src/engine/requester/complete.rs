//! Completion of send WQEs: CQEs in the order of the SQ, errors, flushes.

use super::{InflightWqe, Response};
use crate::engine::core::Core;
use crate::engine::cq::{Completion, CqeOpcode, Syndrome};
use crate::engine::eq::EventKind;
use crate::engine::packet::PSN_MASK;
use crate::engine::qp::{Qp, State};
use crate::engine::responder;
use crate::engine::wqe::{self, BLOCK};

/// Marks a WQE as failed and discards the later ones. Its error CQE follows the CQEs of its
/// predecessors.
pub(super) fn fail(qp: &mut Qp, core: &mut Core, which: usize, syndrome: Syndrome) {
    let requester = &mut qp.requester;
    requester.inflight.truncate(which + 1);
    let Some(inflight) = requester.inflight.get_mut(which) else { return };
    inflight.failure = Some(syndrome);
    requester.next_wqe = inflight.wqe.wrapping_add(inflight.blocks);
    requester.next_psn = inflight.last_psn().wrapping_add(1) & PSN_MASK;
    requester.cursor = (which + 1, 0);
    requester.blocked = true;
    retire(qp, core);
}

/// Completes WQEs in order, up to the first that isn't done.
pub(super) fn retire(qp: &mut Qp, core: &mut Core) {
    while let Some(front) = qp.requester.inflight.front() {
        if !front.done && front.failure.is_none() {
            return;
        }
        let Some(inflight) = qp.requester.inflight.pop_front() else { return };
        let cursor = &mut qp.requester.cursor;
        *cursor = if cursor.0 > 0 { (cursor.0 - 1, cursor.1) } else { (0, 0) };
        report(qp, core, &inflight);
        if inflight.failure.is_some() {
            qp.state =
                if qp.setup.service.send_errors_stay_local() { State::SendQueueError } else { State::Error };
            flush(qp, core);
            if qp.state == State::Error {
                responder::flush(qp, core);
            }
            return;
        }
    }
}

fn report(qp: &Qp, core: &mut Core, inflight: &InflightWqe) {
    if !inflight.signaled && inflight.failure.is_none() {
        return;
    }
    let opcode = if inflight.failure.is_some() { CqeOpcode::RequesterError } else { CqeOpcode::Requester };
    let completion = Completion {
        syndrome: inflight.failure,
        send_opcode: inflight.opcode,
        byte_count: inflight.length,
        inline: &inflight.inline_response,
        ..Completion::new(opcode, qp.number, qp.setup.user_index, inflight.wqe)
    };
    core.complete(qp.setup.send_cq, &completion);
}

/// Flushes all WQEs in execution and all posted ones.
pub(crate) fn flush(qp: &mut Qp, core: &mut Core) {
    let Some(log_size) = qp.setup.log_send_size else { return };
    let requester = &mut qp.requester;
    (requester.deadline, requester.rnr_until, requester.loaded) = (None, None, None);
    requester.fault = None;
    requester.blocked = true;
    while let Some(mut inflight) = qp.requester.inflight.pop_front() {
        if !inflight.done {
            inflight.failure = Some(inflight.failure.unwrap_or(Syndrome::Flushed));
        }
        report(qp, core, &inflight);
    }
    qp.requester.cursor = (0, 0);
    let Ok(posted) = core.memory.read_be32(qp.setup.doorbell.wrapping_add(4)) else { return };
    let posted = posted as u16;
    qp.requester.posted = posted;
    // The producer index is untrusted: at most a full ring is flushed.
    let mut left = posted.wrapping_sub(qp.requester.next_wqe).min(1 << log_size);
    while left > 0 {
        let index = qp.requester.next_wqe;
        let offset = (u64::from(index) & ((1 << log_size) - 1)) * BLOCK as u64;
        let mut control = [0; 16];
        if qp.setup.ring.read(&core.memory, qp.setup.send_offset + offset, &mut control).is_err() {
            break;
        }
        let blocks = wqe::blocks(&control).min(left);
        let inflight = InflightWqe {
            wqe: index,
            blocks,
            opcode: control[3],
            signaled: true,
            response: Response::None,
            first_psn: 0,
            packets: 0,
            length: 0,
            done: false,
            failure: Some(Syndrome::Flushed),
            inline_response: Box::default(),
        };
        report(qp, core, &inflight);
        qp.requester.next_wqe = index.wrapping_add(blocks);
        left -= blocks;
    }
    qp.requester.next_wqe = posted;
}

/// Handles unreadable memory of the queue itself.
pub(super) fn fatal_error(qp: &mut Qp, core: &mut Core) {
    qp.state = State::Error;
    core.qp_event(EventKind::WqCatastrophic, qp.number);
    flush(qp, core);
    responder::flush(qp, core);
}
