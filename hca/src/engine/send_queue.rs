//! Send WQEs of QPs: completion and flush.

use super::core::Core;
use super::cq::{Completion, CqeOpcode, Syndrome};
use super::qp::{InflightWqe, Qp, Response};
use super::wqe::{self, BLOCK};

/// Posts the CQE of a WQE, unless the WQE succeeded unsignaled.
pub(crate) fn report(qp: &Qp, core: &mut Core, inflight: &InflightWqe) {
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
