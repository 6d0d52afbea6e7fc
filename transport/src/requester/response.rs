//! Responses to a requester: ACKs, data, NAKs, timeouts.

use super::complete::{fail, retire, wait_for_page};
use crate::data::Data;
use crate::device::{Access, AccessError, Device, KeyRange, PageFault, Queues, SendWqe, Step};
use crate::packet::{Operation, PSN_MASK, Packet, psn_distance, syndrome};
use crate::qp::Qp;
use crate::qp::attributes::State;
use crate::qp::migration;
use crate::qp::requester_state::{InflightWqe, Response};
use crate::status::Status;
use crate::work::Sge;

/// Receives a response packet.
pub(crate) fn receive<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) {
    if !matches!(qp.state, State::ReadyToSend | State::SendQueueDrained) {
        return;
    }
    let requester = &qp.requester;
    let known = psn_distance(packet.psn, requester.oldest_psn) >= 0
        && psn_distance(packet.psn, requester.next_psn) < 0;
    let code = packet.headers.acknowledge.map_or(syndrome::ACK, |acknowledge| acknowledge.syndrome);
    if !known {
        return;
    }
    match packet.operation {
        Operation::Acknowledge if code & 0xe0 == 0 => acknowledged(qp, device, packet.psn),
        Operation::Acknowledge if code & 0xe0 == syndrome::RNR => {
            not_ready(qp, device, packet.psn, code & 0x1f)
        }
        Operation::Acknowledge => refused(qp, device, packet.psn, code),
        _ => data(qp, device, packet),
    }
}

/// Acknowledges everything up to `psn`. Returns `false` if a READ or atomic response was lost.
fn acknowledge_until<D: Device>(qp: &mut Qp<D>, psn: u32) -> bool {
    let attributes = qp.attributes.clone();
    let requester = &mut qp.requester;
    let mut lost = None;
    for (which, inflight) in requester.inflight.iter_mut().enumerate() {
        if inflight.done {
            continue;
        }
        if inflight.awaits_data() {
            if psn_distance(psn, inflight.first_psn) >= 0 {
                lost = Some(which);
            }
            break;
        }
        if inflight.packets > 0 && psn_distance(inflight.last_psn(), psn) > 0 {
            break;
        }
        if matches!(inflight.response, Response::Acknowledge) {
            inflight.done = true;
        }
    }
    let next = match lost {
        Some(which) => next_response_psn(&requester.inflight[which]),
        None => psn.wrapping_add(1) & PSN_MASK,
    };
    if psn_distance(next, requester.oldest_psn) > 0 {
        requester.oldest_psn = next;
        requester.refill(&attributes);
        requester.grow_window();
    }
    lost.is_none()
}

/// The PSN of the next response packet to a WQE.
fn next_response_psn<W>(inflight: &InflightWqe<W>) -> u32 {
    let received = if let Response::Read { received, .. } = inflight.response { received } else { 0 };
    inflight.first_psn.wrapping_add(received) & PSN_MASK
}

fn restart_timer<D: Device>(qp: &mut Qp<D>, device: &D) {
    let outstanding = qp.requester.oldest_psn != qp.requester.next_psn;
    qp.requester.deadline = qp
        .attributes
        .ack_timeout_nanos()
        .filter(|_| outstanding)
        .map(|timeout| device.now().saturating_add(timeout));
}

fn acknowledged<D: Device>(qp: &mut Qp<D>, device: &mut D, psn: u32) {
    if acknowledge_until(qp, psn) {
        // After a retry the cursor may be behind the acknowledged packets: they are not sent again.
        if psn_distance(qp.requester.oldest_psn, qp.requester.cursor_psn()) > 0 {
            rewind(qp);
        }
        restart_timer(qp, device);
        retire(qp, device);
    } else {
        device.count(qp.attributes.counters, |counters| &mut counters.implied_naks);
        retire(qp, device);
        recover(qp, device);
    }
}

/// Sends again at once the requests whose responses were dropped during a page fault. Further NAKs
/// of that loss are ignored.
pub(super) fn request_again<D: Device>(qp: &mut Qp<D>) {
    qp.requester.recovering = Some(qp.requester.oldest_psn);
    rewind(qp);
}

/// Sets the cursor to the oldest unacknowledged packet.
fn rewind<D: Device>(qp: &mut Qp<D>) {
    let requester = &mut qp.requester;
    let oldest = requester.oldest_psn;
    let position = requester.inflight.iter().position(|inflight| {
        inflight.failure.is_some()
            || inflight.packets > 0 && !inflight.done && psn_distance(inflight.last_psn(), oldest) >= 0
    });
    requester.cursor = match position {
        Some(which) => {
            let ahead = psn_distance(oldest, requester.inflight[which].first_psn).max(0) as u32;
            (which, ahead)
        }
        None => (requester.inflight.len(), 0),
    };
}

/// Retries after a NAK or a gap. All packets in flight at a loss can raise one, so a retry is done
/// once per loss.
fn recover<D: Device>(qp: &mut Qp<D>, device: &mut D) {
    if let Some(fault) = &mut qp.requester.fault {
        fault.again = true;
        return;
    }
    let oldest = qp.requester.oldest_psn;
    if qp.requester.recovering.replace(oldest) != Some(oldest) {
        retry(qp, device);
    }
}

/// Retransmits from the oldest unacknowledged packet on, if retries are left.
pub(super) fn retry<D: Device>(qp: &mut Qp<D>, device: &mut D) {
    let sends = matches!(qp.state, State::ReadyToSend | State::SendQueueDrained);
    if !sends || qp.requester.oldest_psn == qp.requester.next_psn {
        return;
    }
    if qp.requester.retries == 0 && !migration::migrate(qp, device) {
        fail_oldest(qp, device, Status::RetriesExceeded);
        return;
    }
    qp.requester.retries = qp.requester.retries.saturating_sub(1);
    qp.requester.shrink_window();
    rewind(qp);
    device.observe(&qp.queues, Step::Retry(qp.requester.oldest_psn));
    qp.requester.deadline = None;
}

fn fail_oldest<D: Device>(qp: &mut Qp<D>, device: &mut D, status: Status) {
    if let Some(which) = qp.requester.inflight.iter().position(|inflight| !inflight.done) {
        fail(qp, device, which, status);
    }
}

fn not_ready<D: Device>(qp: &mut Qp<D>, device: &mut D, psn: u32, timer: u8) {
    const FOR_EVER: u8 = 7;
    if !acknowledge_until(qp, psn.wrapping_sub(1) & PSN_MASK) {
        recover(qp, device);
        return;
    }
    retire(qp, device);
    device.count(qp.attributes.counters, |counters| &mut counters.rnr_naks);
    if qp.attributes.rnr_retry != FOR_EVER {
        if qp.requester.rnr_retries == 0 {
            fail_oldest(qp, device, Status::RnrRetriesExceeded);
            return;
        }
        qp.requester.rnr_retries -= 1;
    }
    rewind(qp);
    qp.requester.deadline = None;
    let delay = rnr_delay(timer);
    qp.requester.rnr_until = Some(device.now().saturating_add(delay));
    device.observe(&qp.queues, Step::RnrWait(delay));
}

/// The delay of an RNR timer code in nanoseconds (InfiniBand specification, table of RNR NAK timer
/// field values).
fn rnr_delay(code: u8) -> u64 {
    const HUNDREDTHS_OF_MILLISECONDS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_OF_MILLISECONDS[usize::from(code & 0x1f)] * 10_000
}

fn refused<D: Device>(qp: &mut Qp<D>, device: &mut D, psn: u32, code: u8) {
    let complete = acknowledge_until(qp, psn.wrapping_sub(1) & PSN_MASK);
    retire(qp, device);
    if !complete || code == syndrome::NAK_SEQUENCE {
        device.count(qp.attributes.counters, |counters| &mut counters.sequence_naks);
        recover(qp, device);
        return;
    }
    let reason = match code {
        syndrome::NAK_INVALID => Status::RemoteInvalidRequest,
        syndrome::NAK_ACCESS => Status::RemoteAccess,
        syndrome::NAK_OPERATION => Status::RemoteOperation,
        _ => Status::BadResponse,
    };
    fail_oldest(qp, device, reason);
}

/// Receives a packet of a READ response or an atomic response.
fn data<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) {
    let holds = |inflight: &InflightWqe<SendWqe<D>>| {
        inflight.packets > 0
            && psn_distance(packet.psn, inflight.first_psn) >= 0
            && psn_distance(packet.psn, inflight.last_psn()) <= 0
    };
    let Some(which) = qp.requester.inflight.iter().position(holds) else { return };
    if !qp.requester.inflight[which].awaits_data() {
        return;
    }
    if let Some(fault) = &mut qp.requester.fault {
        fault.again = true;
        return;
    }
    let first_psn = qp.requester.inflight[which].first_psn;
    if which > 0 && !acknowledge_until(qp, first_psn.wrapping_sub(1) & PSN_MASK) {
        recover(qp, device);
        return;
    }
    let expected = next_response_psn(&qp.requester.inflight[which]);
    match psn_distance(packet.psn, expected) {
        ..0 => return,
        0 => {}
        1.. => {
            device.count(qp.attributes.counters, |counters| &mut counters.implied_naks);
            recover(qp, device);
            return;
        }
    }
    let (mtu, accessor) = (qp.attributes.mtu, device.accessor(&qp.queues, None));
    let inflight = &mut qp.requester.inflight[which];
    let original = packet.headers.original.unwrap_or_default().to_le_bytes();
    let (places, offset, data, last) = match (&mut inflight.response, packet.headers.original) {
        (Response::Atomic { places }, Some(_)) if packet.operation == Operation::AtomicAcknowledge => {
            (&*places, 0, Data::Bytes(&original), true)
        }
        (Response::Read { places, received }, _) if packet.operation != Operation::AtomicAcknowledge => {
            let offset = u64::from(*received) * u64::from(mtu);
            *received += 1;
            let last = *received == inflight.packets;
            let due = u64::from(inflight.length).saturating_sub(offset).min(u64::from(mtu)) as usize;
            if packet.payload_length() != due {
                fail(qp, device, which, Status::BadResponse);
                return;
            }
            (&*places, offset, Data::of(packet), last)
        }
        _ => {
            fail(qp, device, which, Status::BadResponse);
            return;
        }
    };
    let inline =
        inflight.signaled && inflight.packets == 1 && inflight.length <= qp.queues.inline_responses();
    if inline && let Data::Bytes(bytes) = data {
        inflight.inline_response = bytes.into();
    } else if let Err(refusal) = scatter(device, accessor, places, offset, data) {
        if let (Response::Read { received, .. }, AccessError::Absent) = (&mut inflight.response, refusal) {
            *received -= 1;
        }
        if refusal == AccessError::Absent {
            qp.requester.deadline = None;
            wait_for_page(qp, device, which, PageFault::Response, (offset as u32, data.len()), true);
        } else {
            fail(qp, device, which, Status::LocalProtection);
        }
        return;
    }
    inflight.done = last;
    qp.requester.oldest_psn = packet.psn.wrapping_add(1) & PSN_MASK;
    let attributes = qp.attributes.clone();
    qp.requester.refill(&attributes);
    restart_timer(qp, device);
    retire(qp, device);
}

/// Scatters response data into the SGEs from an offset on.
fn scatter<D: Device>(
    device: &D,
    who: D::Accessor,
    places: &[Sge],
    offset: u64,
    data: Data<'_>,
) -> Result<(), AccessError> {
    let (mut skip, mut data) = (offset, data);
    for place in places {
        let length = u64::from(place.length);
        if data.is_empty() {
            return Ok(());
        }
        if skip >= length {
            skip -= length;
            continue;
        }
        let (now, rest) = data.split_at_most((length - skip) as usize);
        let address = place.address.checked_add(skip).ok_or(AccessError::Denied)?;
        now.write(device, &KeyRange { who, key: place.key, address, access: Access::LocalWrite })?;
        data = rest;
        skip = 0;
    }
    if data.is_empty() { Ok(()) } else { Err(AccessError::Denied) }
}
