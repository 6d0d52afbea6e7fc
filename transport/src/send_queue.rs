//! Send WQEs of QPs: completion and flush.

use crate::device::{Device, Queues, SendCompletion, SendWqe};
use crate::qp::Qp;
use crate::qp::requester_state::InflightWqe;
use crate::status::Status;

/// Reports the completion of a WQE, unless the WQE succeeded unsignaled.
pub(crate) fn report<D: Device>(qp: &Qp<D>, device: &mut D, inflight: &InflightWqe<SendWqe<D>>) {
    if !inflight.signaled && inflight.failure.is_none() {
        return;
    }
    let completion = SendCompletion {
        wqe: inflight.wqe,
        length: inflight.length,
        failure: inflight.failure,
        inline: &inflight.inline_response,
    };
    device.complete_send(&qp.queues, &completion);
}

/// Flushes all WQEs in execution and all posted ones.
pub(crate) fn flush<D: Device>(qp: &mut Qp<D>, device: &mut D) {
    if !qp.queues.has_send_queue() {
        return;
    }
    let requester = &mut qp.requester;
    (requester.deadline, requester.rnr_until) = (None, None);
    requester.fault = None;
    requester.blocked = true;
    while let Some(mut inflight) = qp.requester.inflight.pop_front() {
        if !inflight.done {
            inflight.failure = Some(inflight.failure.unwrap_or(Status::Flushed));
        }
        report(qp, device, &inflight);
    }
    qp.requester.cursor = (0, 0);
    for wqe in device.take_posted(&mut qp.queues) {
        report(qp, device, &InflightWqe::flushed(wqe));
    }
}
