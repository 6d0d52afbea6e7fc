//! The requester: fetches WQEs, packetizes messages, tracks unacknowledged packets and retries
//! them.

mod complete;
mod fetch;
mod packetize;
mod response;

use super::core::Core;
use super::cq::Syndrome;
use super::eq::EventKind;
use super::error_state::fatal_error;
use super::packet::Transport;
use super::qp::pacing;
use super::qp::{Qp, State, Turn};
use super::send_queue::flush;
use complete::fail;
use fetch::begin_next;
pub(crate) use response::receive;

/// Maximum number of unacknowledged packets.
const WINDOW: i32 = 128;

/// Sends up to `budget` packets.
pub(crate) fn turn(qp: &mut Qp, core: &mut Core, budget: u32) -> Turn {
    let Some(log_size) = qp.setup.log_send_size else { return Turn::Idle };
    match qp.state {
        State::ReadyToSend => {}
        State::SendQueueDrained => {
            return drain(qp, core, log_size, budget);
        }
        State::Error | State::SendQueueError => {
            flush(qp, core);
            return Turn::Idle;
        }
        _ => return Turn::Idle,
    }
    match core.memory.read_be32(qp.setup.doorbell.wrapping_add(4)) {
        Ok(posted) => qp.requester.posted = posted as u16,
        Err(_) => {
            fatal_error(qp, core);
            return Turn::Idle;
        }
    }
    for _ in 0..budget {
        if qp.state != State::ReadyToSend || qp.requester.paused() {
            return Turn::Idle;
        }
        if reliable(qp) && qp.requester.outstanding() >= WINDOW {
            return Turn::Idle;
        }
        let fresh = qp.requester.cursor.0 >= qp.requester.inflight.len();
        if fresh && !begin_next(qp, core, log_size) {
            return Turn::Idle;
        }
        send_next(qp, core, log_size);
    }
    Turn::More
}

/// SQD: sends the rest of the WQEs in execution and starts no new one.
fn drain(qp: &mut Qp, core: &mut Core, log_size: u8, budget: u32) -> Turn {
    for _ in 0..budget {
        let waits = qp.requester.paused() || reliable(qp) && qp.requester.outstanding() >= WINDOW;
        if qp.state != State::SendQueueDrained
            || waits
            || qp.requester.cursor.0 >= qp.requester.inflight.len()
        {
            break;
        }
        send_next(qp, core, log_size);
    }
    let begun = qp.requester.cursor.0 < qp.requester.inflight.len();
    if qp.state == State::SendQueueDrained && qp.requester.inflight.is_empty() && !qp.requester.drained {
        qp.requester.drained = true;
        core.qp_event(EventKind::SendQueueDrained, qp.number);
    }
    if begun && !qp.requester.paused() && qp.requester.outstanding() < WINDOW {
        Turn::More
    } else {
        Turn::Idle
    }
}

/// Sends the packet at the cursor, at the QP's rate.
fn send_next(qp: &mut Qp, core: &mut Core, log_size: u8) {
    let mark = pacing::Mark::new(core);
    packetize::next(qp, core, log_size);
    pacing::sent_since(qp, core, mark);
}

fn reliable(qp: &Qp) -> bool {
    qp.setup.service.transport().is_some_and(Transport::reliable)
}

/// Leaves SQE. The WQEs posted in SQE have been flushed.
pub(crate) fn recover(qp: &mut Qp) {
    qp.requester.blocked = false;
    qp.requester.refill(&qp.attributes);
}

/// Handles expired timers.
pub(crate) fn expire(qp: &mut Qp, core: &mut Core) {
    let now = core.now;
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
        core.count(set, |counters| &mut counters.timeouts);
        qp.requester.recovering = None;
        response::retry(qp, core);
    }
}

/// Continues after the answer to a page fault, or fails the WQE.
pub(crate) fn resume(qp: &mut Qp, core: &mut Core, token: u32, failed: bool) {
    let Some(fault) = qp.requester.fault.take_if(|fault| fault.token == token) else { return };
    let faulted =
        qp.requester.inflight.iter().position(|inflight| inflight.wqe == fault.wqe && !inflight.done);
    if let Some(which) = faulted.filter(|_| failed) {
        fail(qp, core, which, Syndrome::LocalProtection);
    } else if fault.again {
        response::request_again(qp);
    }
}
