//! Responses: ACKs, NAKs and data.

use super::faults::wait_for_page;
use crate::device::{Access, AccessError, Device, KeyRange, PageFault};
use crate::error_state::enter_error;
use crate::packet::{Acknowledge, Headers, Operation, PSN_MASK, Packet, Transport, ZeroCopy, syndrome};
use crate::qp::migration::Migration;
use crate::qp::responder_state::{AtomicReplay, FaultedAccess, PendingNak, PendingResponse, ReadResponse};
use crate::qp::{Qp, Turn};

fn respond<D: Device>(
    qp: &Qp<D>,
    device: &mut D,
    operation: Operation,
    psn: u32,
    headers: Headers,
    (payload, zero_copy): (Vec<u8>, Option<ZeroCopy>),
) {
    let Some(route) = qp.responder.response_route else { return };
    device.transmit(
        &qp.queues,
        Packet {
            route,
            transport: qp.transport().unwrap_or(Transport::Rc),
            operation,
            solicited: false,
            migrated: qp.attributes.migration == Migration::Migrated,
            ack_request: false,
            pkey: qp.attributes.pkey,
            destination: qp.attributes.remote_qp,
            psn,
            headers,
            payload,
            zero_copy,
        },
    );
}

fn acknowledge(syndrome: u8, messages: u32) -> Acknowledge {
    Acknowledge { syndrome, messages: messages & PSN_MASK }
}

/// Sends an ACK or NAK.
pub(super) fn send_ack<D: Device>(qp: &Qp<D>, device: &mut D, psn: u32, code: u8) {
    let headers =
        Headers { acknowledge: Some(acknowledge(code, qp.responder.messages)), ..Headers::default() };
    respond(qp, device, Operation::Acknowledge, psn, headers, (Vec::new(), None));
}

/// Sends an RNR NAK.
pub(super) fn send_rnr_nak<D: Device>(qp: &Qp<D>, device: &mut D) {
    let code = syndrome::RNR | qp.attributes.min_rnr_timer & 0x1f;
    send_ack(qp, device, qp.responder.expected_psn, code);
}

/// Sends the result of an atomic.
pub(super) fn send_atomic_response<D: Device>(qp: &Qp<D>, device: &mut D, replay: AtomicReplay) {
    let acknowledge = acknowledge(syndrome::ACK, replay.messages);
    let headers =
        Headers { acknowledge: Some(acknowledge), original: Some(replay.original), ..Headers::default() };
    respond(qp, device, Operation::AtomicAcknowledge, replay.psn, headers, (Vec::new(), None));
}

/// Sends a NAK for a fatal error after the responses to earlier requests, and moves the QP to ERR.
pub(super) fn refuse<D: Device>(qp: &mut Qp<D>, device: &mut D, refusal: PendingNak) {
    if !qp.responder.pending.is_empty() {
        qp.responder.refusal = Some(refusal);
        return;
    }
    send_ack(qp, device, refusal.psn, refusal.code);
    enter_error(qp, device);
    if let Some(kind) = refusal.event {
        device.event(&qp.queues, kind);
    }
}

/// Sends up to `budget` response packets, and the ACK that is due after them.
pub(crate) fn turn<D: Device>(qp: &mut Qp<D>, device: &mut D, budget: u32) -> Turn {
    if qp.responder.fault.is_some_and(|fault| fault.access == FaultedAccess::ReadResponse) {
        return Turn::Idle;
    }
    for _ in 0..budget {
        let read = match qp.responder.pending.front_mut() {
            None => break,
            Some(&mut PendingResponse::Atomic(replay)) => {
                qp.responder.pending.pop_front();
                send_atomic_response(qp, device, replay);
                continue;
            }
            Some(PendingResponse::Read(read)) => read,
        };
        let size = read.left.min(qp.attributes.mtu);
        let last = size == read.left;
        let operation = match (read.first, last) {
            (true, true) => Operation::ReadResponseOnly,
            (true, false) => Operation::ReadResponseFirst,
            (false, false) => Operation::ReadResponseMiddle,
            (false, true) => Operation::ReadResponseLast,
        };
        let ReadResponse { who, psn, address, key, left, .. } = *read;
        let range = KeyRange { who, key, address, access: Access::RemoteRead };
        let zero_copy =
            device.zero_copy(&range, size).map(|address| ZeroCopy { address, length: size, packets: 1 });
        let mut payload = device.pool().take(if zero_copy.is_some() { 0 } else { size as usize });
        let found = device.read(&range, &mut payload);
        if found == Err(AccessError::Absent) {
            let fault = PageFault::Remote { key, address, length: left, written: false };
            if wait_for_page(qp, device, FaultedAccess::ReadResponse, fault, (0, payload.len())) {
                return Turn::Idle;
            }
        }
        if found.is_err() {
            // The key or its memory became invalid after the request was accepted.
            send_ack(qp, device, psn, syndrome::NAK_ACCESS);
            enter_error(qp, device);
            return Turn::Idle;
        }
        if let Some(PendingResponse::Read(read)) = qp.responder.pending.front_mut() {
            read.psn = psn.wrapping_add(1) & PSN_MASK;
            read.address = address.wrapping_add(u64::from(size));
            read.left -= size;
            read.first = false;
        }
        if last {
            qp.responder.pending.pop_front();
        }
        let acknowledge =
            operation.has_acknowledge().then(|| acknowledge(syndrome::ACK, qp.responder.messages));
        respond(
            qp,
            device,
            operation,
            psn,
            Headers { acknowledge, ..Headers::default() },
            (payload, zero_copy),
        );
    }
    if !qp.responder.pending.is_empty() {
        return Turn::More;
    }
    if let Some(refusal) = qp.responder.refusal.take() {
        refuse(qp, device, refusal);
    } else if std::mem::take(&mut qp.responder.rnr_nak_pending) {
        send_rnr_nak(qp, device);
    } else if std::mem::take(&mut qp.responder.ack_pending) {
        let psn = qp.responder.ack_psn;
        send_ack(qp, device, psn, syndrome::ACK);
    }
    Turn::Idle
}
