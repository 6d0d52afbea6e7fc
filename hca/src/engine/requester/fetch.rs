//! Fetch of send WQEs from the ring or a BlueFlame buffer.

use super::complete::fail;
use crate::engine::core::Core;
use crate::engine::cq::Syndrome;
use crate::engine::error_state::fatal_error;
use crate::engine::limits::MAX_MESSAGE;
use crate::engine::packet::{PSN_MASK, Transport};
use crate::engine::qp::{InflightWqe, Qp, Response};
use crate::engine::recorder::Queue;
use crate::engine::wqe::{self, Action, BLOCK, Fence, units};
use crate::memory::DmaFault;

/// Reads a WQE into `work`.
pub(super) fn load(
    qp: &mut Qp,
    core: &Core,
    log_size: u8,
    index: u16,
) -> Result<Result<(), wqe::Malformed>, DmaFault> {
    let blocks = 1u64 << log_size;
    let first = u64::from(index) & (blocks - 1);
    let read = |from: u64, to: &mut [u8]| {
        let until_wrap = (((blocks - from) as usize) * BLOCK).min(to.len());
        let (before, after) = to.split_at_mut(until_wrap);
        qp.setup.ring.read(&core.memory, qp.setup.send_offset + from * BLOCK as u64, before)?;
        if after.is_empty() { Ok(()) } else { qp.setup.ring.read(&core.memory, qp.setup.send_offset, after) }
    };
    let mut control = [0; 16];
    let bf_wqe = qp.requester.take_bf_wqe(index);
    match &bf_wqe {
        Some(wqe) => control.copy_from_slice(&wqe[..16]),
        None => read(first, &mut control)?,
    }
    let work = &mut qp.requester.work;
    qp.requester.loaded = None;
    work.begin(index, &control);
    let length = usize::from(units(&control)) * 16;
    if length < 16 || usize::from(work.blocks) > blocks as usize {
        work.blocks = 1;
        return Ok(Err(wqe::Malformed));
    }
    work.bytes.resize(length, 0);
    match &bf_wqe {
        Some(wqe) => work.bytes.copy_from_slice(&wqe[..length]),
        None => read(first, &mut work.bytes)?,
    }
    // The driver may have changed the control segment since. The checked copy is used.
    work.bytes[..16].copy_from_slice(&control);
    let parsed = work.check_control(qp.number).and_then(|()| work.parse(qp.setup.service));
    if parsed.is_ok() {
        qp.requester.loaded = Some(index);
    }
    Ok(parsed)
}

/// Starts the next WQE. Returns `false` if there is none or it must wait.
pub(super) fn begin_next(qp: &mut Qp, core: &mut Core, log_size: u8) -> bool {
    let index = qp.requester.next_wqe;
    if qp.requester.blocked || index == qp.requester.posted {
        return false;
    }
    let parsed =
        if qp.requester.loaded == Some(index) { Ok(Ok(())) } else { load(qp, core, log_size, index) };
    let Ok(parsed) = parsed else {
        fatal_error(qp, core);
        return false;
    };
    let (service, max_rd_atomic) = (qp.setup.service, usize::from(qp.attributes.max_rd_atomic.max(1)));
    let requester = &mut qp.requester;
    let work = &requester.work;
    let available = requester.posted.wrapping_sub(index);
    let failure = match parsed {
        Err(wqe::Malformed) => Some(Syndrome::LocalQpOperation),
        Ok(()) if work.blocks > available => Some(Syndrome::LocalQpOperation),
        Ok(()) if work.length > MAX_MESSAGE => Some(Syndrome::LocalLength),
        Ok(())
            if service.transport() == Some(Transport::Ud) && work.length > u64::from(qp.attributes.mtu) =>
        {
            Some(Syndrome::LocalLength)
        }
        Ok(()) => None,
    };
    let wants_data = failure.is_none() && matches!(work.action, Action::Read | Action::Atomic { .. });
    let under_way = requester.data_under_way();
    let fenced = match work.fence {
        // UMRs execute in order, so none is ever outstanding.
        Fence::None | Fence::RegUmr => false,
        Fence::Answers => under_way > 0,
        Fence::Everything => requester.inflight.iter().any(|inflight| !inflight.done),
    };
    if fenced || wants_data && under_way >= max_rd_atomic {
        return false;
    }
    let places = || work.segments.clone().into_boxed_slice();
    let (response, packets) = match work.action {
        _ if failure.is_some() => (Response::None, 0),
        Action::Nop | Action::Umr | Action::Frame(_) => (Response::None, 0),
        Action::Read => {
            (Response::Read { places: places(), received: 0 }, packets_of(work.length, qp.attributes.mtu))
        }
        Action::Atomic { .. } => (Response::Atomic { places: places() }, 1),
        Action::Send { .. } | Action::Write { .. } => match service.transport() {
            Some(Transport::Rc | Transport::Xrc) => {
                (Response::Acknowledge, packets_of(work.length, qp.attributes.mtu))
            }
            Some(Transport::Uc) => (Response::None, packets_of(work.length, qp.attributes.mtu)),
            _ => (Response::None, 1),
        },
    };
    core.recording.record(Queue::Send(qp.number), index, &work.bytes);
    // The size of a WQE is limited to the posted blocks.
    let blocks = work.blocks.min(available);
    requester.inflight.push_back(InflightWqe {
        wqe: index,
        blocks,
        opcode: work.opcode,
        signaled: work.signaled,
        response,
        first_psn: requester.next_psn,
        packets,
        length: work.length as u32,
        done: false,
        failure: None,
        inline_response: Box::default(),
    });
    requester.next_psn = requester.next_psn.wrapping_add(packets) & PSN_MASK;
    requester.next_wqe = index.wrapping_add(blocks);
    requester.cursor = (requester.inflight.len() - 1, 0);
    if let Some(syndrome) = failure {
        fail(qp, core, qp.requester.inflight.len() - 1, syndrome);
        return false;
    }
    true
}

fn packets_of(length: u64, mtu: u32) -> u32 {
    length.div_ceil(u64::from(mtu.max(1))).max(1) as u32
}
