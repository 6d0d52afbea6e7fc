//! The ERR state of QPs.

use crate::device::{Device, Event, Step};
use crate::qp::Qp;
use crate::qp::attributes::State;
use crate::{receive_queue, send_queue};

/// Moves a QP to ERR and flushes both queues.
pub(crate) fn enter_error<D: Device>(qp: &mut Qp<D>, device: &mut D) {
    qp.state = State::Error;
    device.observe(&qp.queues, Step::Error);
    send_queue::flush(qp, device);
    receive_queue::flush(qp, device);
}

/// Handles unreadable memory of the queue itself.
pub(crate) fn fatal_error<D: Device>(qp: &mut Qp<D>, device: &mut D) {
    device.event(&qp.queues, Event::QueueFault);
    enter_error(qp, device);
}
