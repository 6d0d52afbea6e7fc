//! Completion, failure and page faults of send WQEs, in the order of the SQ.

use crate::device::{Device, PageFault, Queues, SendWqe};
use crate::error_state::enter_error;
use crate::packet::{PSN_MASK, Transport};
use crate::qp::Qp;
use crate::qp::attributes::State;
use crate::qp::requester_state::RequesterFault;
use crate::send_queue::{flush, report};
use crate::service::Service;
use crate::status::Status;

/// Marks a WQE as failed and discards the later ones. Its error CQE follows the CQEs of its
/// predecessors.
pub(super) fn fail<D: Device>(qp: &mut Qp<D>, device: &mut D, which: usize, status: Status) {
    let requester = &mut qp.requester;
    requester.inflight.truncate(which + 1);
    let Some(inflight) = requester.inflight.get_mut(which) else { return };
    inflight.failure = Some(status);
    qp.queues.continue_after(inflight.wqe);
    requester.next_psn = inflight.last_psn().wrapping_add(1) & PSN_MASK;
    requester.cursor = (which + 1, 0);
    requester.blocked = true;
    retire(qp, device);
}

/// Completes WQEs in order, up to the first that isn't done.
pub(super) fn retire<D: Device>(qp: &mut Qp<D>, device: &mut D) {
    while let Some(front) = qp.requester.inflight.front() {
        if !front.done && front.failure.is_none() {
            return;
        }
        let Some(inflight) = qp.requester.inflight.pop_front() else { return };
        let cursor = &mut qp.requester.cursor;
        *cursor = if cursor.0 > 0 { (cursor.0 - 1, cursor.1) } else { (0, 0) };
        report(qp, device, &inflight);
        if inflight.failure.is_some() {
            if send_errors_stay_local(qp) {
                qp.state = State::SendQueueError;
                flush(qp, device);
            } else {
                enter_error(qp, device);
            }
            return;
        }
    }
}

/// Whether a failed send moves the QP to SQE rather than ERR.
fn send_errors_stay_local<D: Device>(qp: &Qp<D>) -> bool {
    D::POLICY.send_queue_error
        && matches!(qp.queues.service(), Some(Service::Datagram(_) | Service::Connected(Transport::Uc)))
}

/// Raises a page fault for an SGE of a WQE and waits for the answer. If the device
/// can't fault it in, the WQE fails with `LocalProtection`.
pub(super) fn wait_for_page<D: Device>(
    qp: &mut Qp<D>,
    device: &mut D,
    which: usize,
    fault: impl FnOnce(SendWqe<D>) -> PageFault<SendWqe<D>, D::RecvWqe>,
    (committed, packet): (u32, usize),
    again: bool,
) {
    let Some(inflight) = qp.requester.inflight.get(which) else { return };
    let wqe = inflight.wqe;
    match device.page_fault(&qp.queues, fault(wqe), committed, packet) {
        Some(token) => qp.requester.fault = Some(RequesterFault { token, wqe, again }),
        None => fail(qp, device, which, Status::LocalProtection),
    }
}
