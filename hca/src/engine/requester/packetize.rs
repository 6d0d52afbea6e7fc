//! Packetization of WQEs.

use super::complete::{fail, retire, wait_for_page};
use super::fetch::load;
use crate::engine::core::Core;
use crate::engine::cq::Syndrome;
use crate::engine::mkey::{self, AccessError, access};
use crate::engine::packet::{Atomic, Datagram, Headers, Operation, PSN_MASK, Packet, Remote, Transport};
use crate::engine::page_fault::kind;
use crate::engine::qp::migration::Migration;
use crate::engine::qp::{Qp, Response};
use crate::engine::service::{ManagementQp, Service};
use crate::engine::wqe::{Action, Frame, Segment, Work};
use crate::engine::{ethernet, umr};

/// An ACK is requested at least every so many packets of a message.
const ACK_EVERY: u32 = 32;

/// Sends the packet at the cursor.
pub(super) fn next(qp: &mut Qp, core: &mut Core, log_size: u8) {
    let (which, packet) = qp.requester.cursor;
    let Some(inflight) = qp.requester.inflight.get(which) else { return };
    if inflight.failure.is_some() {
        qp.requester.cursor_passed();
        return;
    }
    let index = inflight.wqe;
    if qp.requester.loaded != Some(index) && !matches!(load(qp, core, log_size, index), Ok(Ok(()))) {
        // The WQE was valid when it was first read. The driver has changed it during its execution.
        fail(qp, core, which, Syndrome::LocalQpOperation);
        return;
    }
    let result = match qp.requester.work.action {
        Action::Nop => {
            qp.requester.cursor_passed();
            Ok(true)
        }
        Action::Umr => {
            let result = umr::execute(core, qp.accessor(), &qp.requester.work);
            qp.requester.cursor_passed();
            result.map(|()| true).map_err(BlockReason::Failed)
        }
        Action::Frame(how) => frame(qp, core, how).map(|()| true),
        Action::Read => {
            read_request(qp, core, which, packet);
            Ok(false)
        }
        Action::Atomic { .. } => {
            atomic_request(qp, core, which);
            Ok(false)
        }
        Action::Send { .. } if matches!(qp.setup.service, Service::Datagram(_)) => {
            datagram(qp, core).map(|()| true)
        }
        Action::Send { .. } | Action::Write { .. } => message(qp, core, which, packet),
    };
    match result {
        Err(BlockReason::Failed(syndrome)) => fail(qp, core, which, syndrome),
        Err(BlockReason::PageFault { committed, packet }) => {
            wait_for_page(qp, core, which, (kind::SEND_OR_WRITE, committed, packet), false);
        }
        Ok(done) => {
            if let Some(inflight) = qp.requester.inflight.get_mut(which)
                && done
                && matches!(inflight.response, Response::None)
            {
                inflight.done = true;
            }
            retire(qp, core);
        }
    }
}

/// Why a packet can't be sent.
enum BlockReason {
    Failed(Syndrome),
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
            refusal => Self::Failed(refusal.into()),
        }
    }
}

impl From<AccessError> for Syndrome {
    fn from(_: AccessError) -> Self {
        Self::LocalProtection
    }
}

/// Gathers a part of a message into `to`.
fn gather(core: &Core, qp: &Qp, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
    let work: &Work = &qp.requester.work;
    let (mut skip, mut at) = (offset, 0);
    for segment in &work.segments {
        if at == to.len() {
            return Ok(());
        }
        let length = u64::from(segment.length());
        if skip >= length {
            skip -= length;
            continue;
        }
        let now = ((length - skip) as usize).min(to.len() - at);
        let part = &mut to[at..at + now];
        match segment {
            Segment::Inline { at: from, .. } => {
                let bytes = work.slice(from + skip as usize, now).map_err(|_| AccessError::Bounds)?;
                part.copy_from_slice(bytes);
            }
            Segment::Memory { key, address, .. } => {
                let address = address.checked_add(skip).ok_or(AccessError::Bounds)?;
                mkey::read(
                    &core.mkeys,
                    &core.memory,
                    qp.accessor(),
                    (*key, address),
                    access::LOCAL_READ,
                    part,
                )?;
            }
        }
        at += now;
        skip = 0;
    }
    if at == to.len() { Ok(()) } else { Err(AccessError::Bounds) }
}

/// Sends an Ethernet frame.
fn frame(qp: &mut Qp, core: &mut Core, how: Frame) -> Result<(), BlockReason> {
    let length = qp.requester.work.length;
    ethernet::check_length(how, length).map_err(BlockReason::Failed)?;
    let mut frame = vec![0; length as usize];
    gather(core, qp, 0, &mut frame).map_err(|refusal| BlockReason::Failed(refusal.into()))?;
    ethernet::send(core, qp.number, how, frame).map_err(BlockReason::Failed)?;
    qp.requester.cursor_passed();
    Ok(())
}

fn packet(qp: &Qp, operation: Operation, psn: u32, headers: Headers, payload: Vec<u8>) -> Packet {
    let transport = qp.setup.service.transport().unwrap_or(Transport::Rc);
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
    }
}

fn start_timer(qp: &mut Qp, core: &Core) {
    if qp.requester.deadline.is_none() {
        qp.requester.deadline = qp.attributes.ack_timeout_nanos().map(|timeout| core.now + timeout);
    }
}

/// Sends one packet of a SEND or WRITE. Returns whether it was the last.
fn message(qp: &mut Qp, core: &mut Core, which: usize, index: u32) -> Result<bool, BlockReason> {
    use Operation::{
        SendFirst, SendLast, SendLastImmediate, SendLastInvalidate, SendMiddle, SendOnly, SendOnlyImmediate,
        SendOnlyInvalidate, WriteFirst, WriteLast, WriteLastImmediate, WriteMiddle, WriteOnly,
        WriteOnlyImmediate,
    };
    let Some(inflight) = qp.requester.inflight.get(which) else { return Ok(true) };
    let (length, first_psn, packets) = (inflight.length, inflight.first_psn, inflight.packets);
    let offset = u64::from(index) * u64::from(qp.attributes.mtu);
    let size = (u64::from(length) - offset.min(u64::from(length))).min(u64::from(qp.attributes.mtu));
    let mut payload = vec![0; size as usize];
    gather(core, qp, offset, &mut payload)
        .map_err(|refusal| BlockReason::of(refusal, offset, payload.len()))?;

    let (first, last) = (index == 0, index + 1 >= packets);
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
    let reliable = packet.transport.reliable();
    packet.ack_request = reliable && (last || index % ACK_EVERY == ACK_EVERY - 1);
    core.outgoing.push(packet);
    if reliable {
        start_timer(qp, core);
    }
    qp.requester.cursor = if last { (which + 1, 0) } else { (which, index + 1) };
    Ok(last)
}

fn read_request(qp: &mut Qp, core: &mut Core, which: usize, index: u32) {
    let Some(inflight) = qp.requester.inflight.get(which) else { return };
    let skip = index.saturating_mul(qp.attributes.mtu).min(inflight.length);
    let (address, key) = qp.requester.work.remote;
    let remote =
        Remote { address: address.wrapping_add(u64::from(skip)), key, length: inflight.length - skip };
    let psn = inflight.first_psn.wrapping_add(index) & PSN_MASK;
    let headers = Headers { remote: Some(remote), ..Headers::default() };
    let mut packet = packet(qp, Operation::ReadRequest, psn, headers, Vec::new());
    packet.ack_request = true;
    core.outgoing.push(packet);
    start_timer(qp, core);
    qp.requester.cursor = (which + 1, 0);
}

fn atomic_request(qp: &mut Qp, core: &mut Core, which: usize) {
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
    core.outgoing.push(packet);
    start_timer(qp, core);
    qp.requester.cursor = (which + 1, 0);
}

fn datagram(qp: &mut Qp, core: &mut Core) -> Result<(), BlockReason> {
    /// A Q_Key with this bit in a WQE selects the QP's own Q_Key.
    const CONTROLLED: u32 = 0x8000_0000;
    let work = &qp.requester.work;
    let mut payload = vec![0; work.length as usize];
    gather(core, qp, 0, &mut payload).map_err(|refusal| BlockReason::of(refusal, 0, payload.len()))?;
    let address = &work.address;
    let qkey = if address.qkey & CONTROLLED != 0 { qp.attributes.qkey } else { address.qkey };
    let source_qp = match qp.setup.service {
        Service::Datagram(Some(ManagementQp::Smi)) => 0,
        Service::Datagram(Some(ManagementQp::Gsi)) => 1,
        _ => qp.number,
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
    let route = core.port.route(address).ok_or(BlockReason::Failed(Syndrome::LocalQpOperation))?;
    let (destination, solicited) = (address.qp, work.solicited);
    let mut packet = packet(qp, operation, psn, headers, payload);
    (packet.route, packet.destination, packet.solicited) = (route, destination, solicited);
    core.outgoing.push(packet);
    qp.requester.cursor.0 += 1;
    Ok(())
}
