//! Responses to a requester: ACKs, data, NAKs, timeouts.

use super::complete::{fail, retire, wait_for_page};
use crate::engine::core::Core;
use crate::engine::cq::Syndrome;
use crate::engine::mkey::{self, access};
use crate::engine::packet::{Operation, PSN_MASK, Packet, psn_distance, syndrome};
use crate::engine::page_fault::kind;
use crate::engine::qp::migration;
use crate::engine::qp::{InflightWqe, Qp, Response, State};
use crate::engine::wqe::Segment;

/// Receives a response packet.
pub(crate) fn receive(qp: &mut Qp, core: &mut Core, packet: &Packet) {
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
        Operation::Acknowledge if code & 0xe0 == 0 => acknowledged(qp, core, packet.psn),
        Operation::Acknowledge if code & 0xe0 == syndrome::RNR => {
            not_ready(qp, core, packet.psn, code & 0x1f)
        }
        Operation::Acknowledge => refused(qp, core, packet.psn, code),
        _ => data(qp, core, packet),
    }
}

/// Acknowledges everything up to `psn`. Returns `false` if a READ or atomic response was lost.
fn acknowledge_until(qp: &mut Qp, psn: u32) -> bool {
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
    }
    lost.is_none()
}

/// The PSN of the next response packet to a WQE.
fn next_response_psn(inflight: &InflightWqe) -> u32 {
    let received = if let Response::Read { received, .. } = inflight.response { received } else { 0 };
    inflight.first_psn.wrapping_add(received) & PSN_MASK
}

fn restart_timer(qp: &mut Qp, core: &Core) {
    let outstanding = qp.requester.oldest_psn != qp.requester.next_psn;
    qp.requester.deadline =
        qp.attributes.ack_timeout_nanos().filter(|_| outstanding).map(|timeout| core.now + timeout);
}

fn acknowledged(qp: &mut Qp, core: &mut Core, psn: u32) {
    if acknowledge_until(qp, psn) {
        // After a retry the cursor may be behind the acknowledged packets: they are not sent again.
        if psn_distance(qp.requester.oldest_psn, qp.requester.cursor_psn()) > 0 {
            rewind(qp);
        }
        restart_timer(qp, core);
        retire(qp, core);
    } else {
        core.count(qp.attributes.counters, |counters| &mut counters.implied_naks);
        retire(qp, core);
        recover(qp, core);
    }
}

/// Sends again at once the requests whose responses were dropped during a page fault. Further NAKs
/// of that loss are ignored.
pub(super) fn request_again(qp: &mut Qp) {
    qp.requester.recovering = Some(qp.requester.oldest_psn);
    rewind(qp);
}

/// Sets the cursor to the oldest unacknowledged packet.
fn rewind(qp: &mut Qp) {
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
fn recover(qp: &mut Qp, core: &mut Core) {
    if let Some(fault) = &mut qp.requester.fault {
        fault.again = true;
        return;
    }
    let oldest = qp.requester.oldest_psn;
    if qp.requester.recovering.replace(oldest) != Some(oldest) {
        retry(qp, core);
    }
}

/// Retransmits from the oldest unacknowledged packet on, if retries are left.
pub(super) fn retry(qp: &mut Qp, core: &mut Core) {
    let sends = matches!(qp.state, State::ReadyToSend | State::SendQueueDrained);
    if !sends || qp.requester.oldest_psn == qp.requester.next_psn {
        return;
    }
    if qp.requester.retries == 0 && !migration::migrate(qp, core) {
        fail_oldest(qp, core, Syndrome::TransportRetriesExceeded);
        return;
    }
    qp.requester.retries = qp.requester.retries.saturating_sub(1);
    rewind(qp);
    qp.requester.deadline = None;
}

fn fail_oldest(qp: &mut Qp, core: &mut Core, syndrome: Syndrome) {
    if let Some(which) = qp.requester.inflight.iter().position(|inflight| !inflight.done) {
        fail(qp, core, which, syndrome);
    }
}

fn not_ready(qp: &mut Qp, core: &mut Core, psn: u32, timer: u8) {
    const FOR_EVER: u8 = 7;
    if !acknowledge_until(qp, psn.wrapping_sub(1) & PSN_MASK) {
        recover(qp, core);
        return;
    }
    retire(qp, core);
    core.count(qp.attributes.counters, |counters| &mut counters.rnr_naks);
    if qp.attributes.rnr_retry != FOR_EVER {
        if qp.requester.rnr_retries == 0 {
            fail_oldest(qp, core, Syndrome::RnrRetriesExceeded);
            return;
        }
        qp.requester.rnr_retries -= 1;
    }
    rewind(qp);
    qp.requester.deadline = None;
    qp.requester.rnr_until = Some(core.now + rnr_delay(timer));
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

fn refused(qp: &mut Qp, core: &mut Core, psn: u32, code: u8) {
    let complete = acknowledge_until(qp, psn.wrapping_sub(1) & PSN_MASK);
    retire(qp, core);
    if !complete || code == syndrome::NAK_SEQUENCE {
        core.count(qp.attributes.counters, |counters| &mut counters.sequence_naks);
        recover(qp, core);
        return;
    }
    let reason = match code {
        syndrome::NAK_INVALID => Syndrome::RemoteInvalidRequest,
        syndrome::NAK_ACCESS => Syndrome::RemoteAccess,
        syndrome::NAK_OPERATION => Syndrome::RemoteOperation,
        _ => Syndrome::BadResponse,
    };
    fail_oldest(qp, core, reason);
}

/// Receives a packet of a READ response or an atomic response.
fn data(qp: &mut Qp, core: &mut Core, packet: &Packet) {
    let holds = |inflight: &InflightWqe| {
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
        recover(qp, core);
        return;
    }
    let expected = next_response_psn(&qp.requester.inflight[which]);
    match psn_distance(packet.psn, expected) {
        ..0 => return,
        0 => {}
        1.. => {
            core.count(qp.attributes.counters, |counters| &mut counters.implied_naks);
            recover(qp, core);
            return;
        }
    }
    let (mtu, accessor) = (qp.attributes.mtu, qp.accessor());
    let inflight = &mut qp.requester.inflight[which];
    let (places, offset, bytes, last) = match (&mut inflight.response, packet.headers.original) {
        (Response::Atomic { places }, Some(original)) if packet.operation == Operation::AtomicAcknowledge => {
            (&*places, 0, original.to_le_bytes().to_vec(), true)
        }
        (Response::Read { places, received }, _) if packet.operation != Operation::AtomicAcknowledge => {
            let offset = u64::from(*received) * u64::from(mtu);
            *received += 1;
            let last = *received == inflight.packets;
            let due = (u64::from(inflight.length) - offset).min(u64::from(mtu)) as usize;
            if packet.payload.len() != due {
                fail(qp, core, which, Syndrome::BadResponse);
                return;
            }
            (&*places, offset, packet.payload.clone(), last)
        }
        _ => {
            fail(qp, core, which, Syndrome::BadResponse);
            return;
        }
    };
    let inline =
        inflight.signaled && inflight.packets == 1 && inflight.length <= u32::from(qp.setup.inline_responses);
    if inline {
        inflight.inline_response = bytes.into();
    } else if let Err(refusal) = scatter(core, accessor, places, offset, &bytes) {
        if let (Response::Read { received, .. }, mkey::AccessError::Absent) =
            (&mut inflight.response, refusal)
        {
            *received -= 1;
        }
        if refusal == mkey::AccessError::Absent {
            qp.requester.deadline = None;
            wait_for_page(qp, core, which, (kind::READ_OR_ATOMIC, offset as u32, bytes.len()), true);
        } else {
            fail(qp, core, which, Syndrome::LocalProtection);
        }
        return;
    }
    inflight.done = last;
    qp.requester.oldest_psn = packet.psn.wrapping_add(1) & PSN_MASK;
    let attributes = qp.attributes.clone();
    qp.requester.refill(&attributes);
    restart_timer(qp, core);
    retire(qp, core);
}

/// Scatters response data into the SGEs from an offset on.
fn scatter(
    core: &Core,
    who: mkey::Accessor,
    places: &[Segment],
    offset: u64,
    bytes: &[u8],
) -> Result<(), mkey::AccessError> {
    let (mut skip, mut bytes) = (offset, bytes);
    for place in places {
        let Segment::Memory { key, address, length } = place else { continue };
        let length = u64::from(*length);
        if bytes.is_empty() {
            return Ok(());
        }
        if skip >= length {
            skip -= length;
            continue;
        }
        let (now, rest) = bytes.split_at(((length - skip) as usize).min(bytes.len()));
        let address = address.checked_add(skip).ok_or(mkey::AccessError::Bounds)?;
        mkey::write(&core.mkeys, &core.memory, who, (*key, address), access::LOCAL_WRITE, now)?;
        bytes = rest;
        skip = 0;
    }
    if bytes.is_empty() { Ok(()) } else { Err(mkey::AccessError::Bounds) }
}
