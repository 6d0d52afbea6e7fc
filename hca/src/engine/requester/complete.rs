//! Completion, failure and page faults of send WQEs, in the order of the SQ.

use crate::engine::core::Core;
use crate::engine::cq::Syndrome;
use crate::engine::error_state::enter_error;
use crate::engine::packet::PSN_MASK;
use crate::engine::page_fault::PageFaultInfo;
use crate::engine::qp::{Qp, RequesterFault, State};
use crate::engine::send_queue::{flush, report};

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
            if qp.setup.service.send_errors_stay_local() {
                qp.state = State::SendQueueError;
                flush(qp, core);
            } else {
                enter_error(qp, core);
            }
            return;
        }
    }
}

/// Raises a page fault for an SGE of a WQE and waits for the answer. Without a page-fault EQ the
/// WQE fails with `LocalProtection`.
pub(super) fn wait_for_page(
    qp: &mut Qp,
    core: &mut Core,
    which: usize,
    (kind, committed, packet): (u8, u32, usize),
    again: bool,
) {
    let Some(inflight) = qp.requester.inflight.get(which) else { return };
    let wqe = inflight.wqe;
    let info = PageFaultInfo::List { kind, queue: qp.number, index: wqe };
    match core.page_fault(qp.number, info, committed, packet) {
        Some(token) => qp.requester.fault = Some(RequesterFault { token, wqe, again }),
        None => fail(qp, core, which, Syndrome::LocalProtection),
    }
}
