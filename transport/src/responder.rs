//! The responder of a connected QP.

mod faults;
mod request;
mod response;

use crate::device::{Device, Event};
use crate::error_state::enter_error;
use crate::packet::syndrome;
use crate::qp::Qp;
use crate::qp::attributes::State;
use crate::qp::responder_state::{FaultedAccess, Message, PendingNak, PendingResponse};
use crate::receive_queue::{flush, report_failure};
use crate::status::Status;
pub(crate) use faults::wait_for_receive;
pub(crate) use request::receive;
pub(crate) use response::turn;

/// Continues after the answer to a page fault, or fails the faulting access.
pub(crate) fn resume<D: Device>(qp: &mut Qp<D>, device: &mut D, token: u32, failed: bool) {
    let Some(fault) = qp.responder.fault.take_if(|fault| fault.token == token) else { return };
    if !failed {
        return;
    }
    let reliable = qp.is_reliable();
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
                report_failure(qp, device, &receive, Status::LocalProtection);
            }
            if reliable {
                let psn = qp.responder.expected_psn;
                response::refuse(qp, device, PendingNak { psn, code: syndrome::NAK_OPERATION, event: None });
            } else {
                enter_error(qp, device);
            }
        }
        // An unreliable transport has no NAK, so a remote fault fails nothing.
        FaultedAccess::RemoteWrite | FaultedAccess::ReadResponse if !reliable => {}
        FaultedAccess::RemoteWrite | FaultedAccess::ReadResponse => {
            let psn = match qp.responder.pending.front() {
                Some(PendingResponse::Read(read)) if fault.access == FaultedAccess::ReadResponse => read.psn,
                _ => qp.responder.expected_psn,
            };
            response::send_ack(qp, device, psn, syndrome::NAK_ACCESS);
            enter_error(qp, device);
            device.event(&qp.queues, Event::AccessError);
        }
    }
}

/// Handles expired timers.
pub(crate) fn expire<D: Device>(qp: &mut Qp<D>, device: &mut D) {
    if qp.state != State::Error {
        qp.responder.flush_poll = None;
    } else if qp.responder.flush_poll.is_some_and(|at| at <= device.now()) {
        flush(qp, device);
    }
}
