//! Responses: ACKs, NAKs and data.

use super::faults::wait_for_page;
use crate::engine::core::Core;
use crate::engine::error_state::enter_error;
use crate::engine::mkey::{self, AccessError, access};
use crate::engine::packet::{Acknowledge, Headers, Operation, PSN_MASK, Packet, Transport, syndrome};
use crate::engine::page_fault::PageFaultInfo;
use crate::engine::qp::migration::Migration;
use crate::engine::qp::{
    AtomicReplay, FaultedAccess, PendingNak, PendingResponse, Qp, ReadResponse, ResponderState, Turn,
};

fn respond(qp: &Qp, core: &mut Core, operation: Operation, psn: u32, headers: Headers, payload: Vec<u8>) {
    let Some(route) = qp.responder.response_route else { return };
    core.outgoing.push(Packet {
        route,
        transport: qp.setup.service.transport().unwrap_or(Transport::Rc),
        operation,
        solicited: false,
        migrated: qp.attributes.migration == Migration::Migrated,
        ack_request: false,
        pkey: qp.attributes.pkey,
        destination: qp.attributes.remote_qp,
        psn,
        headers,
        payload,
    });
}

fn acknowledge(syndrome: u8, responder: &ResponderState) -> Acknowledge {
    Acknowledge { syndrome, messages: responder.messages & PSN_MASK }
}

/// Sends an ACK or NAK.
pub(super) fn send_ack(qp: &Qp, core: &mut Core, psn: u32, code: u8) {
    let headers = Headers { acknowledge: Some(acknowledge(code, &qp.responder)), ..Headers::default() };
    respond(qp, core, Operation::Acknowledge, psn, headers, Vec::new());
}

/// Sends an RNR NAK.
pub(super) fn send_rnr_nak(qp: &Qp, core: &mut Core) {
    let code = syndrome::RNR | qp.attributes.min_rnr_timer & 0x1f;
    send_ack(qp, core, qp.responder.expected_psn, code);
}

/// Sends the result of an atomic.
pub(super) fn send_atomic_response(qp: &Qp, core: &mut Core, replay: AtomicReplay) {
    let mut acknowledge = acknowledge(syndrome::ACK, &qp.responder);
    acknowledge.messages = replay.messages & PSN_MASK;
    let headers =
        Headers { acknowledge: Some(acknowledge), original: Some(replay.original), ..Headers::default() };
    respond(qp, core, Operation::AtomicAcknowledge, replay.psn, headers, Vec::new());
}

/// Sends a NAK for a fatal error after the responses to earlier requests, and moves the QP to ERR.
pub(super) fn refuse(qp: &mut Qp, core: &mut Core, refusal: PendingNak) {
    if !qp.responder.pending.is_empty() {
        qp.responder.refusal = Some(refusal);
        return;
    }
    send_ack(qp, core, refusal.psn, refusal.code);
    enter_error(qp, core);
    if let Some(kind) = refusal.event {
        core.qp_event(kind, qp.number);
    }
}

/// Sends up to `budget` response packets, and the ACK that is due after them.
pub(crate) fn turn(qp: &mut Qp, core: &mut Core, budget: u32) -> Turn {
    if qp.responder.fault.is_some_and(|fault| fault.access == FaultedAccess::ReadResponse) {
        return Turn::Idle;
    }
    for _ in 0..budget {
        let read = match qp.responder.pending.front_mut() {
            None => break,
            Some(&mut PendingResponse::Atomic(replay)) => {
                qp.responder.pending.pop_front();
                send_atomic_response(qp, core, replay);
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
        let mut payload = vec![0; size as usize];
        let found =
            mkey::read(&core.mkeys, &core.memory, who, (key, address), access::REMOTE_READ, &mut payload);
        if found == Err(AccessError::Absent) {
            let info = PageFaultInfo::Remote { key, address, length: left, written: false };
            if wait_for_page(qp, core, FaultedAccess::ReadResponse, info, (0, payload.len())) {
                return Turn::Idle;
            }
        }
        if found.is_err() {
            // The key or its memory became invalid after the request was accepted.
            send_ack(qp, core, psn, syndrome::NAK_ACCESS);
            enter_error(qp, core);
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
        let acknowledge = operation.has_acknowledge().then(|| acknowledge(syndrome::ACK, &qp.responder));
        respond(qp, core, operation, psn, Headers { acknowledge, ..Headers::default() }, payload);
    }
    if !qp.responder.pending.is_empty() {
        return Turn::More;
    }
    if let Some(refusal) = qp.responder.refusal.take() {
        refuse(qp, core, refusal);
    } else if std::mem::take(&mut qp.responder.rnr_nak_pending) {
        send_rnr_nak(qp, core);
    } else if std::mem::take(&mut qp.responder.ack_pending) {
        let psn = qp.responder.expected_psn.wrapping_sub(1) & PSN_MASK;
        send_ack(qp, core, psn, syndrome::ACK);
    }
    Turn::Idle
}
