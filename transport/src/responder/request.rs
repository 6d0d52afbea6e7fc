//! Request packets of a connected peer.

use super::faults::{wait_for_page, wait_for_receive};
use super::response::{refuse, send_ack, send_atomic_response, send_rnr_nak};
use crate::data::Data;
use crate::device::{Access, AccessError, Device, Event, KeyRange, PageFault, Queues, RecvOutcome};
use crate::error_state::enter_error;
use crate::packet::{Operation, PSN_MASK, Packet, Route, Transport, psn_distance, syndrome};
use crate::qp::Qp;
use crate::qp::attributes::State;
use crate::qp::responder_state::{
    AtomicReplay, ExecutedRead, FaultedAccess, Message, PendingNak, PendingResponse, ReadResponse,
};
use crate::receive_queue::{ScatterError, keep, place, report_failure, take_receive};
use crate::status::Status;
use crate::work::{Receive, RecvFetch};

/// Responses that are queued at most, with those to FLUSHes. The peer repeats later requests.
const QUEUED: usize = 128;

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
pub(crate) fn receive<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) {
    if !qp.state.receives() || qp.responder.refusal.is_some() {
        return;
    }
    qp.responder.response_route = Some(response_route(qp, packet));
    if qp.state == State::ReadyToReceive && !std::mem::replace(&mut qp.responder.established, true) {
        device.event(&qp.queues, Event::CommunicationEstablished);
    }
    if packet.transport.reliable() {
        reliable(qp, device, packet);
    } else {
        unreliable(qp, device, packet);
    }
}

/// The route of a response. Routers have counted down the hop limit of the request, so the response
/// has that of the QP's own path, as its traffic class and flow label.
fn response_route<D: Device>(qp: &Qp<D>, packet: &Packet) -> Route {
    let mut route = packet.route.reversed();
    if let (Some(back), Some(own)) = (&mut route.global, qp.attributes.route.global) {
        back.hop_limit = own.hop_limit;
        back.traffic_class = own.traffic_class;
        back.flow_label = own.flow_label;
    }
    route
}

fn reliable<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) {
    let set = qp.attributes.counters;
    match psn_distance(packet.psn, qp.responder.expected_psn) {
        0 => qp.responder.nak_sent = false,
        1.. => {
            device.count(set, |counters| &mut counters.out_of_sequence);
            if !std::mem::replace(&mut qp.responder.nak_sent, true) {
                let expected = qp.responder.expected_psn;
                send_ack(qp, device, expected, syndrome::NAK_SEQUENCE);
            }
            return;
        }
        _ => {
            device.count(set, |counters| &mut counters.duplicates);
            duplicate_request(qp, device, packet);
            return;
        }
    }
    let (psn, acknowledge) = (packet.psn, packet.ack_request);
    match execute(qp, device, packet) {
        Ok(()) => {
            qp.responder.rnr_nak_pending = false;
            if packet.operation.has_response() {
                // The response acknowledges earlier requests too.
                qp.responder.ack_pending = false;
            } else {
                qp.responder.ack_pending |= acknowledge;
                qp.responder.ack_psn = psn.wrapping_add(packet.packets() - 1) & PSN_MASK;
            }
        }
        Err(NakReason::NotReady) => {
            qp.responder.ack_pending = false;
            // Later packets are dropped without a NAK until this one is sent again.
            qp.responder.nak_sent = true;
            if qp.responder.pending.is_empty() {
                send_rnr_nak(qp, device);
            } else {
                qp.responder.rnr_nak_pending = true;
            }
        }
        Err(refused) => {
            let (code, event) = match refused {
                NakReason::Access => (syndrome::NAK_ACCESS, Some(Event::AccessError)),
                NakReason::Operation => (syndrome::NAK_OPERATION, None),
                NakReason::Invalid | NakReason::NotReady => {
                    (syndrome::NAK_INVALID, Some(Event::InvalidRequest))
                }
                NakReason::Reported(code) => (code, None),
            };
            refuse(qp, device, PendingNak { psn, code, event });
        }
    }
}

/// Responds to a duplicate request without executing it again.
fn duplicate_request<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) {
    if !packet.operation.has_response() {
        qp.responder.ack_pending = true;
        return;
    }
    // While responses are queued, the duplicate is assumed to be a copy made by the network. A
    // requester that has lost the responses retries.
    if !qp.responder.pending.is_empty() {
        return;
    }
    if packet.operation == Operation::ReadRequest {
        let repeats = |remote| qp.responder.reads.iter().any(|old| old.contains(packet.psn, &remote));
        if packet.headers.remote.is_some_and(repeats) {
            qp.responder.pending.extend(accept_read(qp, device, packet).map(PendingResponse::Read));
        }
    } else if packet.operation.places_memory() && D::POLICY.memory_placement {
        let response = empty_response(qp, device, packet);
        qp.responder.pending.push_back(response);
    } else if let Some(replay) = qp.responder.atomics.iter().find(|old| old.psn == packet.psn).copied() {
        send_atomic_response(qp, device, replay);
    }
}

fn unreliable<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) {
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
    let allowed = !operation.has_response() && !operation.has_invalidate();
    if !qp.responder.dropping_message && (!allowed || execute(qp, device, packet).is_err()) {
        // The rest of the message is dropped. An unreliable transport sends no NAK.
        abandon(qp);
        qp.responder.dropping_message = true;
    }
    qp.responder.expected_psn = next;
}

/// Drops an unreliable message. The next message uses its receive WQE.
fn abandon<D: Device>(qp: &mut Qp<D>) {
    if let Some(Message::Send(mut receive)) = qp.responder.message.take() {
        receive.placed = 0;
        qp.responder.reusable_receive = Some(receive);
    }
}

/// The access context of the peer's R_Keys.
fn remote_accessor<D: Device>(qp: &Qp<D>, device: &D, packet: &Packet) -> D::Accessor {
    device.accessor(&qp.queues, packet.headers.srq.filter(|_| packet.transport == Transport::Xrc))
}

fn advance<D: Device>(qp: &mut Qp<D>, packets: u32) {
    qp.responder.expected_psn = qp.responder.expected_psn.wrapping_add(packets) & PSN_MASK;
}

fn execute<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) -> Result<(), NakReason> {
    if packet.transport == Transport::Xrc {
        let srq = packet.headers.srq.ok_or(NakReason::Invalid)?;
        if !device.accepts_xrc(&qp.queues, srq) {
            return Err(NakReason::Invalid);
        }
    }
    let operation = packet.operation;
    if qp.responder.message.is_some() == (operation.is_first() || operation.has_response()) {
        return Err(NakReason::Invalid);
    }
    if operation == Operation::ReadRequest {
        return read(qp, device, packet);
    }
    if operation.is_atomic() {
        return atomic(qp, device, packet);
    }
    if operation.places_memory() {
        return place_memory(qp, device, packet);
    }
    let (length, packets) = (packet.payload_length(), packet.packets() as usize);
    let mtu = qp.attributes.mtu as usize;
    let fits = length <= packets * mtu && (packets == 1 || length > (packets - 1) * mtu);
    if !fits || !operation.is_last() && length != packets * mtu {
        return Err(NakReason::Invalid);
    }
    if operation.is_write() { write(qp, device, packet) } else { send(qp, device, packet) }
}

fn take<D: Device>(
    qp: &mut Qp<D>,
    device: &mut D,
    packet: &Packet,
) -> Result<Receive<D::RecvWqe>, NakReason> {
    let xrc = packet.headers.srq.filter(|_| packet.transport == Transport::Xrc);
    match take_receive(qp, device, xrc) {
        RecvFetch::Receive(receive) => Ok(receive),
        RecvFetch::Empty => Err(NakReason::NotReady),
        RecvFetch::Fault => Err(NakReason::Operation),
    }
}

fn send<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) -> Result<(), NakReason> {
    let mut receive = match qp.responder.message.take() {
        None => take(qp, device, packet)?,
        Some(Message::Send(receive)) => receive,
        Some(write) => {
            qp.responder.message = Some(write);
            return Err(NakReason::Invalid);
        }
    };
    let who = device.accessor(&qp.queues, receive.srq);
    let whole = packet.operation.is_first() && packet.operation.is_last();
    let data = Data::of(packet);
    let inline = whole && packet.zero_copy.is_none() && data.len() <= qp.queues.inline_receives();
    let placed =
        if inline { keep(&mut receive, &packet.payload) } else { place(device, who, &mut receive, data) };
    let (failure, code) = match placed {
        Ok(()) => {
            if let Some(key) = packet.headers.immediate.filter(|_| packet.operation.has_invalidate())
                && !device.invalidate(&qp.queues, key)
            {
                report_failure(qp, device, &receive, D::POLICY.refused_invalidate);
                return Err(match D::POLICY.refused_invalidate {
                    Status::RemoteInvalidRequest => NakReason::Invalid,
                    _ => NakReason::Access,
                });
            }
            advance(qp, packet.packets());
            if !packet.operation.is_last() {
                qp.responder.message = Some(Message::Send(receive));
                return Ok(());
            }
            qp.responder.messages = qp.responder.messages.wrapping_add(1);
            let inline = if inline { &packet.payload[..] } else { &[] };
            device.complete_receive(&qp.queues, &receive, RecvOutcome::Message { packet, inline });
            return Ok(());
        }
        Err(ScatterError::Absent) if wait_for_receive(qp, device, &receive, data.len()) => {
            return Err(NakReason::NotReady);
        }
        Err(ScatterError::TooLong) if packet.transport.reliable() => {
            (D::POLICY.short_receive, D::POLICY.short_receive_nak)
        }
        Err(ScatterError::TooLong) => (Status::LocalLength, syndrome::NAK_INVALID),
        Err(ScatterError::Protection | ScatterError::Absent) => {
            (Status::LocalProtection, syndrome::NAK_OPERATION)
        }
    };
    report_failure(qp, device, &receive, failure);
    if packet.transport.reliable() {
        return Err(NakReason::Reported(code));
    }
    enter_error(qp, device);
    Ok(())
}

fn write<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) -> Result<(), NakReason> {
    let who = remote_accessor(qp, device, packet);
    let (address, key, left, length) = match (qp.responder.message.take(), packet.headers.remote) {
        (None, Some(remote)) => {
            if !qp.attributes.remote_write || u64::from(remote.length) > D::MAX_MESSAGE {
                return Err(NakReason::Invalid);
            }
            let length = u64::from(remote.length);
            if length > 0 {
                let (key, address) = (remote.key, remote.address);
                let range = KeyRange { who, key, address, access: Access::RemoteWrite };
                if device.check(&range, length).is_err() {
                    return Err(refuse_write(qp, device, packet));
                }
            }
            device.count(qp.attributes.counters, |counters| &mut counters.writes);
            (remote.address, remote.key, remote.length, remote.length)
        }
        (Some(Message::Write { address, key, left, length }), None) => (address, key, left, length),
        _ => return Err(NakReason::Invalid),
    };
    let (data, size) = (Data::of(packet), packet.payload_length() as u32);
    let last = packet.operation.is_last();
    if size > left || last && size != left {
        return Err(NakReason::Invalid);
    }
    // The receive WQE is taken first: without one, the packet is sent again.
    let receive = if packet.operation.has_immediate() {
        match take(qp, device, packet) {
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
        && let Err(error) = data.write(device, &KeyRange { who, key, address, access: Access::RemoteWrite })
    {
        let committed = length - left;
        let start = address.wrapping_sub(u64::from(committed));
        let fault = PageFault::Remote { key, address: start, length, written: true };
        let progress = (committed, data.len());
        if error != AccessError::Absent
            || !wait_for_page(qp, device, FaultedAccess::RemoteWrite, fault, progress)
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
    advance(qp, packet.packets());
    if !last {
        let address = address.wrapping_add(u64::from(size));
        qp.responder.message = Some(Message::Write { address, key, left: left - size, length });
        return Ok(());
    }
    qp.responder.messages = qp.responder.messages.wrapping_add(1);
    if let Some(mut receive) = receive {
        receive.placed = length;
        let outcome = RecvOutcome::Message { packet, inline: &[] };
        device.complete_receive(&qp.queues, &receive, outcome);
    }
    Ok(())
}

/// Why a WRITE is refused whose R_Key doesn't allow it.
fn refuse_write<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) -> NakReason {
    // The first of several packets has no immediate data.
    let is_one = packet.packets() == 1;
    if !D::POLICY.refused_write_consumes_receive || !packet.operation.has_immediate() || !is_one {
        return NakReason::Access;
    }
    match take(qp, device, packet) {
        Ok(receive) => {
            report_failure(qp, device, &receive, Status::RemoteAccess);
            NakReason::Reported(syndrome::NAK_ACCESS)
        }
        Err(refused) => refused,
    }
}

/// Validates a READ request and returns its response.
fn accept_read<D: Device>(
    qp: &Qp<D>,
    device: &D,
    packet: &Packet,
) -> Result<ReadResponse<D::Accessor>, NakReason> {
    let remote = packet.headers.remote.ok_or(NakReason::Invalid)?;
    let length = u64::from(remote.length);
    if !qp.attributes.remote_read || length > D::MAX_MESSAGE {
        return Err(NakReason::Invalid);
    }
    let who = remote_accessor(qp, device, packet);
    if length > 0 {
        let (key, address) = (remote.key, remote.address);
        let range = KeyRange { who, key, address, access: Access::RemoteRead };
        device.check(&range, length).map_err(|_| NakReason::Access)?;
    }
    Ok(ReadResponse {
        who,
        psn: packet.psn,
        address: remote.address,
        key: remote.key,
        left: remote.length,
        first: true,
        of_flush: false,
    })
}

fn read<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) -> Result<(), NakReason> {
    if !has_room(qp) {
        return Err(NakReason::Invalid);
    }
    let answer = accept_read(qp, device, packet)?;
    device.count(qp.attributes.counters, |counters| &mut counters.reads);
    let packets = answer.left.div_ceil(qp.attributes.mtu.max(1)).max(1);
    advance(qp, packets);
    let ReadResponse { psn, key, address, left: length, .. } = answer;
    qp.responder.reads.push_back(ExecutedRead { psn, packets, key, address, length });
    while qp.responder.reads.len() > usize::from(qp.attributes.max_dest_rd_atomic.max(1)) {
        qp.responder.reads.pop_front();
    }
    qp.responder.messages = qp.responder.messages.wrapping_add(1);
    qp.responder.pending.push_back(PendingResponse::Read(answer));
    Ok(())
}

fn atomic<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) -> Result<(), NakReason> {
    let atomic = packet.headers.atomic.ok_or(NakReason::Invalid)?;
    if !qp.attributes.remote_atomic {
        return Err(NakReason::Invalid);
    }
    if !atomic.address.is_multiple_of(8) {
        return Err(NakReason::Invalid);
    }
    let who = remote_accessor(qp, device, packet);
    let (key, address) = (atomic.key, atomic.address);
    let range = KeyRange { who, key, address, access: Access::RemoteAtomic };
    let original = match device.update(&range, |old| atomic.apply(packet.operation, old)) {
        Ok(original) => original,
        Err(error) => {
            let fault = PageFault::Remote { key, address, length: 8, written: true };
            let waits = error == AccessError::Absent
                && wait_for_page(qp, device, FaultedAccess::RemoteWrite, fault, (0, 8));
            return Err(if waits { NakReason::NotReady } else { NakReason::Access });
        }
    };
    device.count(qp.attributes.counters, |counters| &mut counters.atomics);
    advance(qp, 1);
    let responder = &mut qp.responder;
    responder.messages = responder.messages.wrapping_add(1);
    let replay = AtomicReplay { psn: packet.psn, original, messages: responder.messages };
    responder.atomics.push_back(replay);
    while responder.atomics.len() > usize::from(qp.attributes.max_dest_rd_atomic.max(1)) {
        responder.atomics.pop_front();
    }
    respond_to_atomic(qp, device, replay);
    Ok(())
}

fn respond_to_atomic<D: Device>(qp: &mut Qp<D>, device: &mut D, replay: AtomicReplay) {
    if qp.responder.pending.is_empty() {
        send_atomic_response(qp, device, replay);
    } else if has_room(qp) {
        qp.responder.pending.push_back(PendingResponse::Atomic(replay));
    }
}

/// Executes FLUSH or ATOMIC WRITE.
fn place_memory<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) -> Result<(), NakReason> {
    const SIZE: u32 = 8;
    let remote = packet.headers.remote.ok_or(NakReason::Invalid)?;
    if !D::POLICY.memory_placement {
        return Err(NakReason::Invalid);
    }
    let who = remote_accessor(qp, device, packet);
    let (key, address, length) = (remote.key, remote.address, remote.length);
    if packet.operation == Operation::Flush {
        let flush = packet.headers.flush.ok_or(NakReason::Invalid)?;
        if flush.placement & !qp.attributes.remote_flush != 0 {
            return Err(NakReason::Invalid);
        }
        if qp.responder.pending.len() >= QUEUED {
            return Err(NakReason::NotReady);
        }
        if let Err(error) = device.flush(who, key, address, length, flush) {
            let fault = PageFault::Remote { key, address, length, written: false };
            let waits = error == AccessError::Absent
                && wait_for_page(qp, device, FaultedAccess::RemoteWrite, fault, (0, 0));
            return Err(if waits { NakReason::NotReady } else { NakReason::Access });
        }
    } else {
        if !has_room(qp) {
            return Err(NakReason::Invalid);
        }
        let bytes = <[u8; SIZE as usize]>::try_from(&packet.payload[..]).map_err(|_| NakReason::Invalid)?;
        let value = u64::from_le_bytes(bytes);
        if !qp.attributes.remote_write || length != SIZE || !address.is_multiple_of(SIZE.into()) {
            return Err(NakReason::Invalid);
        }
        let range = KeyRange { who, key, address, access: Access::RemoteWrite };
        if let Err(error) = device.update(&range, |_| value) {
            let fault = PageFault::Remote { key, address, length: SIZE, written: true };
            let waits = error == AccessError::Absent
                && wait_for_page(qp, device, FaultedAccess::RemoteWrite, fault, (0, SIZE as usize));
            return Err(if waits { NakReason::NotReady } else { NakReason::Access });
        }
    }
    advance(qp, 1);
    qp.responder.messages = qp.responder.messages.wrapping_add(1);
    let response = empty_response(qp, device, packet);
    qp.responder.pending.push_back(response);
    Ok(())
}

/// The response to FLUSH and ATOMIC WRITE: that to a READ of no bytes.
fn empty_response<D: Device>(qp: &Qp<D>, device: &D, packet: &Packet) -> PendingResponse<D::Accessor> {
    let who = remote_accessor(qp, device, packet);
    let of_flush = packet.operation == Operation::Flush;
    let (psn, first) = (packet.psn, true);
    PendingResponse::Read(ReadResponse { who, psn, address: 0, key: 0, left: 0, first, of_flush })
}

/// Whether another response to a READ, an atomic or an ATOMIC WRITE can be queued, up to
/// `max_dest_rd_atomic`.
fn has_room<D: Device>(qp: &Qp<D>) -> bool {
    let counted = qp.responder.pending.iter().filter(|response| match response {
        PendingResponse::Read(read) => !read.of_flush,
        PendingResponse::Atomic(_) => true,
    });
    counted.count() < usize::from(qp.attributes.max_dest_rd_atomic.max(1))
}
