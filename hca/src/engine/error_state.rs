//! The ERR state of QPs.

use super::core::Core;
use super::eq::EventKind;
use super::qp::{Qp, State};
use super::{receive_queue, send_queue};

/// Moves a QP to ERR and flushes both queues.
pub(crate) fn enter_error(qp: &mut Qp, core: &mut Core) {
    qp.state = State::Error;
    send_queue::flush(qp, core);
    receive_queue::flush(qp, core);
}

/// Handles unreadable memory of the queue itself.
pub(crate) fn fatal_error(qp: &mut Qp, core: &mut Core) {
    core.qp_event(EventKind::WqCatastrophic, qp.number);
    enter_error(qp, core);
}
