//! Receive WQEs of QPs: fetch, scatter, completion and flush.

use crate::data::Data;
use crate::device::{Access, AccessError, Device, Event, KeyRange, Queues, ReceiveQueue, RecvOutcome};
use crate::qp::Qp;
use crate::qp::responder_state::Message;
use crate::status::Status;
use crate::work::{Receive, RecvFetch};

/// Takes a receive WQE from the QP's own RQ, its SRQ or the SRQ of an XRC request.
pub(crate) fn take_receive<D: Device>(
    qp: &mut Qp<D>,
    device: &mut D,
    xrc: Option<u32>,
) -> RecvFetch<D::RecvWqe> {
    if let Some(reusable_receive) = qp.responder.reusable_receive.take() {
        return RecvFetch::Receive(reusable_receive);
    }
    let taken = device.take_receive(&mut qp.queues, xrc);
    if let RecvFetch::Empty = taken {
        device.count(qp.attributes.counters, |counters| &mut counters.out_of_buffer);
    }
    taken
}

/// Why data could not be scattered.
pub(crate) enum ScatterError {
    /// A page is not present. The number of placed bytes is unchanged.
    Absent,
    /// The scatter list is shorter than the message.
    TooLong,
    /// An SGE isn't writable.
    Protection,
}

/// Checks and records the length of a message that the completion carries.
pub(crate) fn keep<W>(receive: &mut Receive<W>, bytes: &[u8]) -> Result<(), ScatterError> {
    receive.placed = bytes.len() as u32;
    if u64::from(receive.placed) > receive.capacity() { Err(ScatterError::TooLong) } else { Ok(()) }
}

/// Scatters the next bytes of a message into its receive WQE.
pub(crate) fn place<D: Device>(
    device: &D,
    who: D::Accessor,
    receive: &mut Receive<D::RecvWqe>,
    data: Data<'_>,
) -> Result<(), ScatterError> {
    let (mut skip, mut data, length) = (receive.placed, data, data.len() as u32);
    if u64::from(receive.placed) + u64::from(length) > receive.capacity().min(D::MAX_MESSAGE) {
        return Err(ScatterError::TooLong);
    }
    for sge in &receive.sges {
        if data.is_empty() {
            break;
        }
        if skip >= sge.length {
            skip -= sge.length;
            continue;
        }
        let (now, rest) = data.split_at_most((sge.length - skip) as usize);
        let address = sge.address.checked_add(u64::from(skip)).ok_or(ScatterError::Protection)?;
        let range = KeyRange { who, key: sge.key, address, access: Access::LocalWrite };
        now.write(device, &range).map_err(|error| match error {
            AccessError::Absent => ScatterError::Absent,
            AccessError::Denied => ScatterError::Protection,
        })?;
        data = rest;
        skip = 0;
    }
    receive.placed += length;
    Ok(())
}

/// Reports the error of a receive WQE.
pub(crate) fn report_failure<D: Device>(
    qp: &Qp<D>,
    device: &mut D,
    receive: &Receive<D::RecvWqe>,
    status: Status,
) {
    device.complete_receive(&qp.queues, receive, RecvOutcome::Failed(status));
}

/// Flushes all posted receives. A QP in ERR polls for further ones.
pub(crate) fn flush<D: Device>(qp: &mut Qp<D>, device: &mut D) {
    qp.responder.pending.clear();
    (qp.responder.ack_pending, qp.responder.rnr_nak_pending) = (false, false);
    (qp.responder.refusal, qp.responder.fault) = (None, None);
    if let Some(Message::Send(receive)) = qp.responder.message.take() {
        report_failure(qp, device, &receive, Status::Flushed);
    }
    if let Some(receive) = qp.responder.reusable_receive.take() {
        report_failure(qp, device, &receive, Status::Flushed);
    }
    match qp.queues.receive_queue() {
        ReceiveQueue::Own { size } => {
            let mut left = size;
            while left > 0
                && let RecvFetch::Receive(receive) = device.take_receive(&mut qp.queues, None)
            {
                report_failure(qp, device, &receive, Status::Flushed);
                left -= 1;
            }
            qp.responder.flush_poll = Some(device.now().saturating_add(D::POLICY.receive_flush_interval));
        }
        ReceiveQueue::Shared if !std::mem::replace(&mut qp.responder.last_wqe, true) => {
            device.event(&qp.queues, Event::LastWqe);
        }
        ReceiveQueue::Shared | ReceiveQueue::None => {}
    }
}
