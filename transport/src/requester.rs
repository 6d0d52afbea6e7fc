//! The requester: fetches WQEs, packetizes messages, tracks unacknowledged packets and retries
//! them.

mod complete;
mod fetch;
mod packetize;
mod response;

use crate::device::{Device, Event, QueueFault, Queues, Step};
use crate::error_state::fatal_error;
use crate::qp::attributes::State;
use crate::qp::{Qp, Turn, pacing};
use crate::send_queue::flush;
use crate::status::Status;
use complete::fail;
use fetch::begin_next;
pub(crate) use response::receive;

/// Sends up to `budget` packets.
pub(crate) fn turn<D: Device>(qp: &mut Qp<D>, device: &mut D, budget: u32) -> Turn {
    if !qp.queues.has_send_queue() {
        return Turn::Idle;
    }
    match qp.state {
        State::ReadyToSend => {}
        State::SendQueueDrained => {
            return drain(qp, device, budget);
        }
        State::Error | State::SendQueueError => {
            flush(qp, device);
            return Turn::Idle;
        }
        _ => return Turn::Idle,
    }
    if let Err(QueueFault) = device.read_producer(&mut qp.queues) {
        fatal_error(qp, device);
        return Turn::Idle;
    }
    for _ in 0..budget {
        if qp.state != State::ReadyToSend || qp.requester.paused() {
            return Turn::Idle;
        }
        if qp.is_reliable() && qp.requester.outstanding() >= qp.requester.window {
            return Turn::Idle;
        }
        let fresh = qp.requester.cursor.0 >= qp.requester.inflight.len();
        if fresh && !begin_next(qp, device) {
            return Turn::Idle;
        }
        send_next(qp, device);
    }
    Turn::More
}

/// SQD: sends the rest of the WQEs in execution and starts no new one.
fn drain<D: Device>(qp: &mut Qp<D>, device: &mut D, budget: u32) -> Turn {
    let waits = |qp: &Qp<D>| {
        qp.requester.paused() || qp.is_reliable() && qp.requester.outstanding() >= qp.requester.window
    };
    for _ in 0..budget {
        if qp.state != State::SendQueueDrained
            || waits(qp)
            || qp.requester.cursor.0 >= qp.requester.inflight.len()
        {
            break;
        }
        send_next(qp, device);
    }
    let begun = qp.requester.cursor.0 < qp.requester.inflight.len();
    if qp.state == State::SendQueueDrained && qp.requester.inflight.is_empty() && !qp.requester.drained {
        qp.requester.drained = true;
        device.event(&qp.queues, Event::SendQueueDrained);
    }
    if begun && !waits(qp) { Turn::More } else { Turn::Idle }
}

/// Sends the packet at the cursor, at the QP's rate.
fn send_next<D: Device>(qp: &mut Qp<D>, device: &mut D) {
    let bytes = packetize::next(qp, device);
    pacing::sent(qp, device.now(), bytes);
}

/// Leaves SQE. The WQEs posted in SQE have been flushed.
pub(crate) fn recover<D: Device>(qp: &mut Qp<D>) {
    qp.requester.blocked = false;
    qp.requester.refill(&qp.attributes);
}

/// Handles expired timers.
pub(crate) fn expire<D: Device>(qp: &mut Qp<D>, device: &mut D) {
    let now = device.now();
    qp.requester.pace_until = qp.requester.pace_until.filter(|until| *until > now);
    if qp.requester.rnr_until.is_some_and(|until| until <= now) {
        qp.requester.rnr_until = None;
        qp.requester.deadline = None;
    }
    if qp.requester.deadline.is_some_and(|deadline| deadline <= now) {
        qp.requester.deadline = None;
        if qp.requester.fault.is_some() {
            return;
        }
        let set = qp.attributes.counters;
        device.count(set, |counters| &mut counters.timeouts);
        device.observe(&qp.queues, Step::AckTimeout);
        qp.requester.recovering = None;
        response::retry(qp, device);
    }
}

/// Continues after the answer to a page fault, or fails the WQE.
pub(crate) fn resume<D: Device>(qp: &mut Qp<D>, device: &mut D, token: u32, failed: bool) {
    let Some(fault) = qp.requester.fault.take_if(|fault| fault.token == token) else { return };
    let faulted =
        qp.requester.inflight.iter().position(|inflight| inflight.wqe == fault.wqe && !inflight.done);
    if let Some(which) = faulted.filter(|_| failed) {
        fail(qp, device, which, Status::LocalProtection);
    } else if fault.again {
        response::request_again(qp);
    }
}
