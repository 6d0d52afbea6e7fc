//! Request packets of a connected peer.

use super::faults::{wait_for_page, wait_for_receive};
use super::response::{refuse, send_ack, send_atomic_response, send_rnr_nak};
use crate::engine::core::Core;
use crate::engine::cq::{CqeOpcode, Syndrome};
use crate::engine::eq::EventKind;
use crate::engine::error_state::enter_error;
use crate::engine::limits::MAX_MESSAGE;
use crate::engine::mkey::{self, Accessor, Place, access};
use crate::engine::packet::{Operation, PSN_MASK, Packet, Transport, psn_distance, syndrome};
use crate::engine::page_fault::PageFaultInfo;
use crate::engine::qp::{
    AtomicReplay, FaultedAccess, Message, PendingNak, PendingResponse, Qp, ReadResponse, State,
};
use crate::engine::receive_queue::{
    ScatterError, keep, place, receive_accessor, report, report_failure, take_receive,
};
use crate::engine::srq::{Receive, RecvFetch};

/// Why a request is rejected.
enum NakReason {
    /// RNR: there is no receive WQE, or a page is not present.
    NotReady,
    /// The request is invalid.
    Invalid,
    /// Remote access error: key, rights or range.
    Access,
    /// Remote operational error.
    Operation,
    /// The receive WQE has already completed with an error; the NAK carries this syndrome.
    Reported(u8),
}

/// Receives a request packet.
pub(crate) fn receive(qp: &mut Qp, core: &mut Core, packet: Packet) {
    if !qp.state.receives() || qp.responder.refusal.is_some() {
        return;
    }
    qp.responder.response_route = Some(Core::reverse_route(&packet.route));
    if qp.state == State::ReadyToReceive && !std::mem::replace(&mut qp.responder.established, true) {
        core.qp_event(EventKind::CommunicationEstablished, qp.number);
    }
    if packet.transport.reliable() {
        reliable(qp, core, packet);
    } else {
        unreliable(qp, core, packet);
    }
}

fn reliable(qp: &mut Qp, core: &mut Core, packet: Packet) {
    let set = qp.attributes.counters;
    match psn_distance(packet.psn, qp.responder.expected_psn) {
        0 => qp.responder.nak_sent = false,
        1.. => {
            core.count(set, |counters| &mut counters.out_of_sequence);
            if !std::mem::replace(&mut qp.responder.nak_sent, true) {
                let expected = qp.responder.expected_psn;
                send_ack(qp, core, expected, syndrome::NAK_SEQUENCE);
            }
            return;
        }
        _ => {
            core.count(set, |counters| &mut counters.duplicates);
            duplicate_request(qp, core, &packet);
            return;
        }
    }
    let (psn, acknowledge) = (packet.psn, packet.ack_request);
    match execute(qp, core, packet) {
        Ok(()) => {
            qp.responder.ack_pending |= acknowledge;
            qp.responder.rnr_nak_pending = false;
        }
        Err(NakReason::NotReady) => {
            qp.responder.ack_pending = false;
            // Later packets are dropped without a NAK until this one is sent again.
            qp.responder.nak_sent = true;
            if qp.responder.pending.is_empty() {
                send_rnr_nak(qp, core);
            } else {
                qp.responder.rnr_nak_pending = true;
            }
        }
        Err(refused) => {
            let (code, event) = match refused {
                NakReason::Access => (syndrome::NAK_ACCESS, Some(EventKind::AccessError)),
                NakReason::Operation => (syndrome::NAK_OPERATION, None),
                NakReason::Invalid | NakReason::NotReady => {
                    (syndrome::NAK_INVALID, Some(EventKind::InvalidRequest))
                }
                NakReason::Reported(code) => (code, None),
            };
            refuse(qp, core, PendingNak { psn, code, event });
        }
    }
}

/// Responds to a duplicate request without executing it again.
fn duplicate_request(qp: &mut Qp, core: &mut Core, packet: &Packet) {
    let wants_data = packet.operation == Operation::ReadRequest || packet.operation.is_atomic();
    if !wants_data {
        qp.responder.ack_pending = true;
        return;
    }
    // While responses are queued, the duplicate is assumed to be a copy made by the network. A
    // requester that has lost the responses retries.
    if !qp.responder.pending.is_empty() {
        return;
    }
    if packet.operation == Operation::ReadRequest {
        qp.responder.pending.extend(accept_read(qp, core, packet).map(PendingResponse::Read));
    } else if let Some(replay) = qp.responder.atomics.iter().find(|old| old.psn == packet.psn).copied() {
        send_atomic_response(qp, core, replay);
    }
}

fn unreliable(qp: &mut Qp, core: &mut Core, packet: Packet) {
    let expected = packet.psn == qp.responder.expected_psn;
    let next = packet.psn.wrapping_add(1) & PSN_MASK;
    if packet.operation.is_first() {
        abandon(qp);
        qp.responder.dropping_message = false;
    } else if !expected || qp.responder.dropping_message {
        abandon(qp);
        qp.responder.dropping_message = true;
    }
    let operation = packet.operation;
    let allowed =
        !operation.is_atomic() && operation != Operation::ReadRequest && !operation.has_invalidate();
    if !qp.responder.dropping_message && (!allowed || execute(qp, core, packet).is_err()) {
        // The rest of the message is dropped. An unreliable transport sends no NAK.
        abandon(qp);
        qp.responder.dropping_message = true;
    }
    qp.responder.expected_psn = next;
}

/// Drops an unreliable message. The next message uses its receive WQE.
fn abandon(qp: &mut Qp) {
    if let Some(Message::Send(mut receive)) = qp.responder.message.take() {
        receive.placed = 0;
        qp.responder.reusable_receive = Some(receive);
    }
}

/// The access context of the peer's R_Keys.
fn remote_accessor(qp: &Qp, core: &Core, packet: &Packet) -> Accessor {
    receive_accessor(qp, core, packet.headers.srq.filter(|_| packet.transport == Transport::Xrc))
}

fn advance(qp: &mut Qp, packets: u32) {
    qp.responder.expected_psn = qp.responder.expected_psn.wrapping_add(packets) & PSN_MASK;
}

fn execute(qp: &mut Qp, core: &mut Core, packet: Packet) -> Result<(), NakReason> {
    if packet.transport == Transport::Xrc {
        let srq = packet.headers.srq.and_then(|number| core.srqs.get(number)).ok_or(NakReason::Invalid)?;
        if srq.setup.xrcd.is_none() || srq.setup.xrcd != qp.setup.xrcd {
            return Err(NakReason::Invalid);
        }
    }
    let operation = packet.operation;
    if qp.responder.message.is_some()
        == (operation.is_first() || operation == Operation::ReadRequest || operation.is_atomic())
    {
        return Err(NakReason::Invalid);
    }
    if operation == Operation::ReadRequest {
        return read(qp, core, &packet);
    }
    if operation.is_atomic() {
        return atomic(qp, core, &packet);
    }
    let full = packet.payload.len() == qp.attributes.mtu as usize;
    let fits = packet.payload.len() <= qp.attributes.mtu as usize;
    if !fits || !operation.is_last() && !full {
        return Err(NakReason::Invalid);
    }
    if operation.is_write() { write(qp, core, packet) } else { send(qp, core, packet) }
}

fn take(qp: &mut Qp, core: &mut Core, packet: &Packet) -> Result<Receive, NakReason> {
    let xrc = packet.headers.srq.filter(|_| packet.transport == Transport::Xrc);
    match take_receive(qp, core, xrc) {
        RecvFetch::Receive(receive) => Ok(receive),
        RecvFetch::Empty => Err(NakReason::NotReady),
        RecvFetch::Fault => Err(NakReason::Operation),
    }
}

fn send(qp: &mut Qp, core: &mut Core, packet: Packet) -> Result<(), NakReason> {
    let mut receive = match qp.responder.message.take() {
        None => take(qp, core, &packet)?,
        Some(Message::Send(receive)) => receive,
        Some(write) => {
            qp.responder.message = Some(write);
            return Err(NakReason::Invalid);
        }
    };
    let who = receive_accessor(qp, core, receive.srq);
    let whole = packet.operation.is_first() && packet.operation.is_last();
    let inline = whole && packet.payload.len() <= usize::from(qp.setup.inline_receives);
    let placed = if inline {
        keep(&mut receive, &packet.payload)
    } else {
        place(core, who, &mut receive, &packet.payload)
    };
    let (failure, code) = match placed {
        Ok(()) => {
            if let Some(key) = packet.headers.immediate.filter(|_| packet.operation.has_invalidate())
                && !invalidate(qp, core, key)
            {
                report_failure(qp, core, &receive, Syndrome::RemoteAccess);
                return Err(NakReason::Access);
            }
            advance(qp, 1);
            if !packet.operation.is_last() {
                qp.responder.message = Some(Message::Send(receive));
                return Ok(());
            }
            let opcode = match packet.operation {
                operation if operation.has_immediate() => CqeOpcode::ReceiveImmediate,
                operation if operation.has_invalidate() => CqeOpcode::ReceiveInvalidate,
                _ => CqeOpcode::Receive,
            };
            qp.responder.messages = qp.responder.messages.wrapping_add(1);
            finish(qp, core, &receive, opcode, &packet, if inline { &packet.payload } else { &[] });
            return Ok(());
        }
        Err(ScatterError::Absent) if wait_for_receive(qp, core, &receive, packet.payload.len()) => {
            return Err(NakReason::NotReady);
        }
        Err(ScatterError::TooLong) => (Syndrome::LocalLength, syndrome::NAK_INVALID),
        Err(ScatterError::Protection | ScatterError::Absent) => {
            (Syndrome::LocalProtection, syndrome::NAK_OPERATION)
        }
    };
    report_failure(qp, core, &receive, failure);
    if packet.transport.reliable() {
        return Err(NakReason::Reported(code));
    }
    enter_error(qp, core);
    Ok(())
}

fn finish(qp: &Qp, core: &mut Core, receive: &Receive, opcode: CqeOpcode, packet: &Packet, inline: &[u8]) {
    let source_lid = packet.route.source_lid;
    report(qp, core, receive, opcode, |completion| {
        completion.immediate = packet.headers.immediate.unwrap_or(0);
        completion.solicited = packet.solicited;
        completion.source_lid = source_lid;
        completion.inline = inline;
    });
}

/// Invalidates a key on request of the peer (SEND with invalidate).
fn invalidate(qp: &Qp, core: &mut Core, key: u32) -> bool {
    let who = qp.accessor();
    match core.mkeys.get_mut(key >> 8) {
        Some(mkey)
            if u32::from(mkey.variant) == key & 0xff
                && !mkey.free
                && mkey.remote_invalidate
                && mkey.pd == who.pd
                && (mkey.qp == mkey::ANY_QP || mkey.qp == who.qp) =>
        {
            mkey.free = true;
            true
        }
        _ => false,
    }
}

fn write(qp: &mut Qp, core: &mut Core, packet: Packet) -> Result<(), NakReason> {
    let who = remote_accessor(qp, core, &packet);
    let (address, key, left, length) = match (qp.responder.message.take(), packet.headers.remote) {
        (None, Some(remote)) => {
            if !qp.attributes.remote_write || u64::from(remote.length) > MAX_MESSAGE {
                return Err(NakReason::Invalid);
            }
            let length = u64::from(remote.length);
            if length > 0 {
                mkey::check(&core.mkeys, who, remote.key, remote.address, length, access::REMOTE_WRITE)
                    .map_err(|_| NakReason::Access)?;
            }
            core.count(qp.attributes.counters, |counters| &mut counters.writes);
            (remote.address, remote.key, remote.length, remote.length)
        }
        (Some(Message::Write { address, key, left, length }), None) => (address, key, left, length),
        _ => return Err(NakReason::Invalid),
    };
    let size = packet.payload.len() as u32;
    let last = packet.operation.is_last();
    if size > left || last && size != left {
        return Err(NakReason::Invalid);
    }
    // The receive WQE is taken first: without one, the packet is sent again.
    let receive = if packet.operation.has_immediate() {
        match take(qp, core, &packet) {
            Ok(receive) => Some(receive),
            Err(refused) => {
                if !packet.operation.is_first() {
                    qp.responder.message = Some(Message::Write { address, key, left, length });
                }
                return Err(refused);
            }
        }
    } else {
        None
    };
    if size > 0
        && let Err(refusal) =
            mkey::write(&core.mkeys, &core.memory, who, (key, address), access::REMOTE_WRITE, &packet.payload)
    {
        let committed = length - left;
        let start = address.wrapping_sub(u64::from(committed));
        let info = PageFaultInfo::Remote { key, address: start, length, written: true };
        let progress = (committed, packet.payload.len());
        if refusal != mkey::AccessError::Absent
            || !wait_for_page(qp, core, FaultedAccess::RemoteWrite, info, progress)
        {
            return Err(NakReason::Access);
        }
        if receive.is_some() {
            qp.responder.reusable_receive = receive;
        }
        if !packet.operation.is_first() {
            qp.responder.message = Some(Message::Write { address, key, left, length });
        }
        return Err(NakReason::NotReady);
    }
    advance(qp, 1);
    if !last {
        let address = address.wrapping_add(u64::from(size));
        qp.responder.message = Some(Message::Write { address, key, left: left - size, length });
        return Ok(());
    }
    qp.responder.messages = qp.responder.messages.wrapping_add(1);
    if let Some(mut receive) = receive {
        receive.placed = length;
        finish(qp, core, &receive, CqeOpcode::ReceiveWriteImmediate, &packet, &[]);
    }
    Ok(())
}

/// Validates a READ request and returns its response.
fn accept_read(qp: &Qp, core: &Core, packet: &Packet) -> Result<ReadResponse, NakReason> {
    let remote = packet.headers.remote.ok_or(NakReason::Invalid)?;
    let length = u64::from(remote.length);
    if !qp.attributes.remote_read || length > MAX_MESSAGE {
        return Err(NakReason::Invalid);
    }
    let who = remote_accessor(qp, core, packet);
    if length > 0 {
        mkey::check(&core.mkeys, who, remote.key, remote.address, length, access::REMOTE_READ)
            .map_err(|_| NakReason::Access)?;
    }
    Ok(ReadResponse {
        who,
        psn: packet.psn,
        address: remote.address,
        key: remote.key,
        left: remote.length,
        first: true,
    })
}

fn read(qp: &mut Qp, core: &mut Core, packet: &Packet) -> Result<(), NakReason> {
    if !has_room(qp) {
        return Err(NakReason::Invalid);
    }
    let answer = accept_read(qp, core, packet)?;
    core.count(qp.attributes.counters, |counters| &mut counters.reads);
    advance(qp, answer.left.div_ceil(qp.attributes.mtu.max(1)).max(1));
    qp.responder.messages = qp.responder.messages.wrapping_add(1);
    qp.responder.pending.push_back(PendingResponse::Read(answer));
    Ok(())
}

fn atomic(qp: &mut Qp, core: &mut Core, packet: &Packet) -> Result<(), NakReason> {
    let atomic = packet.headers.atomic.ok_or(NakReason::Invalid)?;
    if !qp.attributes.remote_atomic {
        return Err(NakReason::Invalid);
    }
    if !atomic.address.is_multiple_of(8) {
        return Err(NakReason::Invalid);
    }
    let who = remote_accessor(qp, core, packet);
    let mut place = None;
    let found = mkey::walk(&core.mkeys, who, atomic.key, atomic.address, 8, access::ATOMIC, &mut |piece| {
        place = Some(piece);
        Ok(())
    });
    if let Err(refusal) = found {
        let info =
            PageFaultInfo::Remote { key: atomic.key, address: atomic.address, length: 8, written: true };
        let waits = refusal == mkey::AccessError::Absent
            && wait_for_page(qp, core, FaultedAccess::RemoteWrite, info, (0, 8));
        return Err(if waits { NakReason::NotReady } else { NakReason::Access });
    }
    let change = |old: u64| atomic.apply(packet.operation, u64::from_le(old)).to_le();
    let original = match place {
        Some((Place::Guest(address), 8)) => core.memory.update_u64(address, change),
        Some((Place::DeviceMemory(offset), 8)) => core.memory.device_memory().update_u64(offset, change),
        _ => return Err(NakReason::Access),
    };
    let original = original.map_err(|_| NakReason::Access)?;
    core.count(qp.attributes.counters, |counters| &mut counters.atomics);
    advance(qp, 1);
    let responder = &mut qp.responder;
    responder.messages = responder.messages.wrapping_add(1);
    let replay =
        AtomicReplay { psn: packet.psn, original: u64::from_le(original), messages: responder.messages };
    responder.atomics.push_back(replay);
    while responder.atomics.len() > usize::from(qp.attributes.max_dest_rd_atomic.max(1)) {
        responder.atomics.pop_front();
    }
    respond_to_atomic(qp, core, replay);
    Ok(())
}

fn respond_to_atomic(qp: &mut Qp, core: &mut Core, replay: AtomicReplay) {
    if qp.responder.pending.is_empty() {
        send_atomic_response(qp, core, replay);
    } else if has_room(qp) {
        qp.responder.pending.push_back(PendingResponse::Atomic(replay));
    }
}

/// Whether another response can be queued, up to `max_dest_rd_atomic`.
fn has_room(qp: &Qp) -> bool {
    qp.responder.pending.len() < usize::from(qp.attributes.max_dest_rd_atomic.max(1))
}
