//! Packetization of WQEs.

use super::complete::{fail, retire, wait_for_page};
use crate::device::{AccessError, Device, PageFault, Queues};
use crate::gather::{self, gather};
use crate::packet::{
    Atomic, Datagram, Flush, Headers, Operation, PSN_MASK, Packet, Remote, Transport, ZeroCopy, psn_distance,
};
use crate::qp::Qp;
use crate::qp::migration::Migration;
use crate::qp::requester_state::{ACK_EVERY, Response};
use crate::service::{ManagementQp, Service};
use crate::status::Status;
use crate::work::Action;

/// What a packet's transmission has done.
struct Sent {
    /// Payload bytes that the QP's rate limit counts.
    bytes: u64,
    /// Whether the WQE is completely sent.
    whole: bool,
}

/// Sends the packet at the cursor. Returns the number of payload bytes that were sent.
pub(super) fn next<D: Device>(qp: &mut Qp<D>, device: &mut D) -> u64 {
    let (which, packet) = qp.requester.cursor;
    let Some(inflight) = qp.requester.inflight.get(which) else { return 0 };
    // A local operation is executed once, also if requests before it are sent again.
    if inflight.failure.is_some() || inflight.done {
        qp.requester.cursor_passed();
        return 0;
    }
    if !device.reload(&mut qp.queues, &mut qp.requester.work, inflight.wqe) {
        // The WQE was valid when it was first read. The driver has changed it during its execution.
        fail(qp, device, which, Status::LocalQpOperation);
        return 0;
    }
    let result = match qp.requester.work.action {
        Action::Local(_) => {
            let result = device.execute(&qp.queues, &qp.requester.work);
            qp.requester.cursor_passed();
            result.map(|bytes| Sent { bytes, whole: true }).map_err(BlockReason::Failed)
        }
        Action::Read => {
            read_request(qp, device, which, packet);
            Ok(Sent { bytes: 0, whole: false })
        }
        Action::Atomic { .. } => {
            atomic_request(qp, device, which);
            Ok(Sent { bytes: 0, whole: false })
        }
        Action::Flush(flush) => {
            flush_request(qp, device, which, flush);
            Ok(Sent { bytes: 0, whole: false })
        }
        Action::AtomicWrite => atomic_write_request(qp, device, which),
        Action::Send { .. } if matches!(qp.queues.service(), Some(Service::Datagram(_))) => {
            datagram(qp, device)
        }
        Action::Send { .. } | Action::Write { .. } => message(qp, device, which, packet),
    };
    match result {
        Err(BlockReason::Failed(status)) => {
            fail(qp, device, which, status);
            0
        }
        Err(BlockReason::PageFault { committed, packet }) => {
            wait_for_page(qp, device, which, PageFault::Send, (committed, packet), false);
            0
        }
        Ok(Sent { bytes, whole }) => {
            if let Some(inflight) = qp.requester.inflight.get_mut(which)
                && whole
                && matches!(inflight.response, Response::None)
            {
                inflight.done = true;
            }
            let sent = qp.requester.cursor_psn();
            if psn_distance(sent, qp.requester.unsent_psn) > 0 {
                qp.requester.unsent_psn = sent;
            }
            retire(qp, device);
            bytes
        }
    }
}

/// Why a packet can't be sent.
enum BlockReason {
    Failed(Status),
    /// An SGE lacks a page, after `committed` bytes of the message.
    PageFault {
        committed: u32,
        packet: usize,
    },
}

impl BlockReason {
    fn of(refusal: AccessError, offset: u64, packet: usize) -> Self {
        match refusal {
            AccessError::Absent => Self::PageFault { committed: offset as u32, packet },
            AccessError::Denied => Self::Failed(Status::LocalProtection),
        }
    }
}

fn packet<D: Device>(
    qp: &Qp<D>,
    operation: Operation,
    psn: u32,
    headers: Headers,
    payload: Vec<u8>,
) -> Packet {
    let transport = qp.transport().unwrap_or(Transport::Rc);
    let srq = (transport == Transport::Xrc).then_some(qp.requester.work.srq);
    Packet {
        route: qp.attributes.route,
        transport,
        operation,
        solicited: false,
        migrated: qp.attributes.migration == Migration::Migrated,
        ack_request: false,
        pkey: qp.attributes.pkey,
        destination: qp.attributes.remote_qp,
        psn,
        headers: Headers { srq, ..headers },
        payload,
        zero_copy: None,
    }
}

fn start_timer<D: Device>(qp: &mut Qp<D>, device: &D) {
    if qp.requester.deadline.is_none() {
        qp.requester.deadline =
            qp.attributes.ack_timeout_nanos().map(|timeout| device.now().saturating_add(timeout));
    }
}

/// The next packet of a message in memory of the device, or its next packets as one, up to that which asks
/// for an ACK. A packet that was sent before may be acknowledged in part, so it is sent by itself.
fn zero_copy_of<D: Device>(qp: &Qp<D>, device: &D, which: usize, index: u32) -> Option<ZeroCopy> {
    let inflight = qp.requester.inflight.get(which)?;
    let (mtu, offset) = (qp.attributes.mtu, u64::from(index) * u64::from(qp.attributes.mtu));
    let left = u64::from(inflight.length).checked_sub(offset)?;
    let psn = inflight.first_psn.wrapping_add(index) & PSN_MASK;
    let is_new = psn_distance(psn, qp.requester.unsent_psn) >= 0 && qp.attributes.rate.is_none();
    let room = (qp.requester.window - qp.requester.outstanding()).max(1).cast_unsigned();
    let most = inflight.packets.saturating_sub(index).min(ACK_EVERY - index % ACK_EVERY).min(room);
    let part = |packets: u32| {
        let length = left.min(u64::from(packets) * u64::from(mtu)) as u32;
        let address = gather::zero_copy(device, &qp.queues, &qp.requester.work, offset, length)?;
        Some(ZeroCopy { address, length, packets })
    };
    if is_new && most > 1 { part(most).or_else(|| part(1)) } else { part(1) }
}

/// Sends one packet of a SEND or WRITE.
fn message<D: Device>(qp: &mut Qp<D>, device: &mut D, which: usize, index: u32) -> Result<Sent, BlockReason> {
    use Operation::{
        SendFirst, SendLast, SendLastImmediate, SendLastInvalidate, SendMiddle, SendOnly, SendOnlyImmediate,
        SendOnlyInvalidate, WriteFirst, WriteLast, WriteLastImmediate, WriteMiddle, WriteOnly,
        WriteOnlyImmediate,
    };
    let Some(inflight) = qp.requester.inflight.get(which) else { return Ok(Sent { bytes: 0, whole: true }) };
    let (length, first_psn, packets) = (inflight.length, inflight.first_psn, inflight.packets);
    let offset = u64::from(index) * u64::from(qp.attributes.mtu);
    let zero_copy = if qp.is_reliable() { zero_copy_of(qp, device, which, index) } else { None };
    let (payload, size, count) = if let Some(ZeroCopy { length, packets, .. }) = zero_copy {
        (Vec::new(), u64::from(length), packets)
    } else {
        let size = (u64::from(length) - offset.min(u64::from(length))).min(u64::from(qp.attributes.mtu));
        let mut payload = device.pool().take(size as usize);
        gather(device, &qp.queues, &qp.requester.work, offset, &mut payload)
            .map_err(|refusal| BlockReason::of(refusal, offset, payload.len()))?;
        (payload, size, 1)
    };
    let (first, next) = (index == 0, index + count);
    let last = next >= packets;
    let work = &qp.requester.work;
    let (immediate, invalidate) = match work.action {
        Action::Send { immediate, invalidate } => (immediate, invalidate),
        Action::Write { immediate } => (immediate, false),
        _ => (false, false),
    };
    let operation = if let Action::Write { .. } = work.action {
        match (first, last, immediate) {
            (true, true, true) => WriteOnlyImmediate,
            (true, true, false) => WriteOnly,
            (true, false, _) => WriteFirst,
            (false, false, _) => WriteMiddle,
            (false, true, true) => WriteLastImmediate,
            (false, true, false) => WriteLast,
        }
    } else {
        match (first, last) {
            (true, true) if invalidate => SendOnlyInvalidate,
            (true, true) if immediate => SendOnlyImmediate,
            (true, true) => SendOnly,
            (true, false) => SendFirst,
            (false, false) => SendMiddle,
            (false, true) if invalidate => SendLastInvalidate,
            (false, true) if immediate => SendLastImmediate,
            (false, true) => SendLast,
        }
    };
    let headers = Headers {
        remote: operation.has_remote().then_some(Remote {
            address: work.remote.0,
            key: work.remote.1,
            length,
        }),
        immediate: (operation.has_immediate() || operation.has_invalidate()).then_some(work.immediate),
        ..Headers::default()
    };
    let psn = first_psn.wrapping_add(index) & PSN_MASK;
    let solicited = last && work.solicited;
    let mut packet = packet(qp, operation, psn, headers, payload);
    packet.solicited = solicited;
    packet.zero_copy = zero_copy;
    let reliable = packet.transport.reliable();
    packet.ack_request = reliable && (last || next.is_multiple_of(ACK_EVERY));
    device.transmit(&qp.queues, packet);
    if reliable {
        start_timer(qp, device);
    }
    qp.requester.cursor = if last { (which + 1, 0) } else { (which, next) };
    Ok(Sent { bytes: size, whole: last })
}

fn read_request<D: Device>(qp: &mut Qp<D>, device: &mut D, which: usize, index: u32) {
    let Some(inflight) = qp.requester.inflight.get(which) else { return };
    let skip = index.saturating_mul(qp.attributes.mtu).min(inflight.length);
    let (address, key) = qp.requester.work.remote;
    let remote =
        Remote { address: address.wrapping_add(u64::from(skip)), key, length: inflight.length - skip };
    let psn = inflight.first_psn.wrapping_add(index) & PSN_MASK;
    let headers = Headers { remote: Some(remote), ..Headers::default() };
    let mut packet = packet(qp, Operation::ReadRequest, psn, headers, Vec::new());
    packet.ack_request = true;
    device.transmit(&qp.queues, packet);
    start_timer(qp, device);
    qp.requester.cursor = (which + 1, 0);
}

fn atomic_request<D: Device>(qp: &mut Qp<D>, device: &mut D, which: usize) {
    let Some(inflight) = qp.requester.inflight.get(which) else { return };
    let work = &qp.requester.work;
    let Action::Atomic { add, masks } = work.action else { return };
    let operation = match (masks, add) {
        (Some(_), _) => Operation::MaskedAtomic,
        (None, true) => Operation::FetchAdd,
        (None, false) => Operation::CompareSwap,
    };
    let (address, key) = work.remote;
    let atomic = Atomic { address, key, swap_or_add: work.swap_or_add, compare: work.compare, masks };
    let headers = Headers { atomic: Some(atomic), ..Headers::default() };
    let mut packet = packet(qp, operation, inflight.first_psn, headers, Vec::new());
    packet.ack_request = true;
    device.transmit(&qp.queues, packet);
    start_timer(qp, device);
    qp.requester.cursor = (which + 1, 0);
}

fn flush_request<D: Device>(qp: &mut Qp<D>, device: &mut D, which: usize, flush: Flush) {
    let Some(inflight) = qp.requester.inflight.get(which) else { return };
    let (address, key) = qp.requester.work.remote;
    let remote = Remote { address, key, length: qp.requester.work.length as u32 };
    let headers = Headers { flush: Some(flush), remote: Some(remote), ..Headers::default() };
    let mut packet = packet(qp, Operation::Flush, inflight.first_psn, headers, Vec::new());
    packet.ack_request = true;
    device.transmit(&qp.queues, packet);
    start_timer(qp, device);
    qp.requester.cursor = (which + 1, 0);
}

fn atomic_write_request<D: Device>(
    qp: &mut Qp<D>,
    device: &mut D,
    which: usize,
) -> Result<Sent, BlockReason> {
    const SIZE: u32 = 8;
    let Some(inflight) = qp.requester.inflight.get(which) else { return Ok(Sent { bytes: 0, whole: false }) };
    let work = &qp.requester.work;
    let mut payload = device.pool().take(SIZE as usize);
    gather(device, &qp.queues, work, 0, &mut payload)
        .map_err(|error| BlockReason::of(error, 0, payload.len()))?;
    let (address, key) = work.remote;
    let headers = Headers { remote: Some(Remote { address, key, length: SIZE }), ..Headers::default() };
    let mut packet = packet(qp, Operation::AtomicWrite, inflight.first_psn, headers, payload);
    packet.ack_request = true;
    device.transmit(&qp.queues, packet);
    start_timer(qp, device);
    qp.requester.cursor = (which + 1, 0);
    Ok(Sent { bytes: SIZE.into(), whole: false })
}

fn datagram<D: Device>(qp: &mut Qp<D>, device: &mut D) -> Result<Sent, BlockReason> {
    /// A Q_Key with this bit in a WQE selects the QP's own Q_Key.
    const CONTROLLED: u32 = 0x8000_0000;
    let work = &qp.requester.work;
    let mut payload = device.pool().take(work.length as usize);
    gather(device, &qp.queues, work, 0, &mut payload)
        .map_err(|refusal| BlockReason::of(refusal, 0, payload.len()))?;
    let address = &work.address;
    let qkey = if address.qkey & CONTROLLED != 0 { qp.attributes.qkey } else { address.qkey };
    let source_qp = match qp.queues.service() {
        Some(Service::Datagram(Some(ManagementQp::Smi))) => 0,
        Some(Service::Datagram(Some(ManagementQp::Gsi))) => 1,
        _ => qp.queues.source_qp().unwrap_or_else(|| qp.queues.number()),
    };
    let immediate = matches!(work.action, Action::Send { immediate: true, .. });
    let operation = if immediate { Operation::SendOnlyImmediate } else { Operation::SendOnly };
    let headers = Headers {
        datagram: Some(Datagram { qkey, source_qp }),
        immediate: immediate.then_some(work.immediate),
        ..Headers::default()
    };
    let psn = qp.requester.next_psn.wrapping_sub(1) & PSN_MASK;
    // Without a valid source GID the datagram has no source address.
    let route = device.route(address).ok_or(BlockReason::Failed(Status::LocalQpOperation))?;
    let (destination, solicited, bytes) = (address.qp, work.solicited, work.length);
    let mut packet = packet(qp, operation, psn, headers, payload);
    (packet.route, packet.destination, packet.solicited) = (route, destination, solicited);
    device.transmit(&qp.queues, packet);
    qp.requester.cursor.0 += 1;
    Ok(Sent { bytes, whole: true })
}
