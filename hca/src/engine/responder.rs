//! The responder of a connected QP.

mod faults;
mod request;
mod response;

use super::core::Core;
use super::cq::Syndrome;
use super::eq::EventKind;
use super::error_state::enter_error;
use super::packet::{Transport, syndrome};
use super::qp::{FaultedAccess, Message, PendingNak, PendingResponse, Qp, State};
use super::receive_queue::{flush, report_failure};

pub(crate) use faults::wait_for_receive;
pub(crate) use request::receive;
pub(crate) use response::turn;

/// Continues after the answer to a page fault, or fails the faulting access.
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
                response::refuse(qp, core, PendingNak { psn, code: syndrome::NAK_OPERATION, event: None });
            } else {
                enter_error(qp, core);
            }
        }
        // An unreliable transport has no NAK, so a remote fault fails nothing.
        FaultedAccess::RemoteWrite | FaultedAccess::ReadResponse if !reliable => {}
        FaultedAccess::RemoteWrite | FaultedAccess::ReadResponse => {
            let psn = match qp.responder.pending.front() {
                Some(PendingResponse::Read(read)) if fault.access == FaultedAccess::ReadResponse => read.psn,
                _ => qp.responder.expected_psn,
            };
            response::send_ack(qp, core, psn, syndrome::NAK_ACCESS);
            enter_error(qp, core);
            core.qp_event(EventKind::AccessError, qp.number);
        }
    }
}

/// Handles expired timers.
pub(crate) fn expire(qp: &mut Qp, core: &mut Core) {
    if qp.state != State::Error {
        qp.responder.flush_poll = None;
    } else if qp.responder.flush_poll.is_some_and(|at| at <= core.now) {
        flush(qp, core);
    }
}
