//! Fetch of send WQEs from the ring or a BlueFlame buffer, and their completion.

use bareverbs_transport::{Fetched, QueueFault, SendCompletion};

use super::core::Core;
use super::cq::{Completion, CqeOpcode};
use super::queues::QpQueues;
use super::recorder::{Queue, Recording};
use super::wqe::{self, BLOCK, SendWqe, Work, units};
use crate::memory::{DmaFault, DmaMap};

/// Reads the driver's producer index.
pub(crate) fn read_producer(queues: &mut QpQueues, memory: &DmaMap) -> Result<(), QueueFault> {
    let posted = memory.read_be32(queues.setup.doorbell.wrapping_add(4)).map_err(|_| QueueFault)?;
    queues.posted = posted as u16;
    Ok(())
}

/// Parses the next WQE into `work`, unless `work` contains it.
pub(crate) fn fetch(queues: &mut QpQueues, memory: &DmaMap, work: &mut Work) -> Fetched {
    let index = queues.next_wqe;
    if index == queues.posted {
        return Fetched::Empty;
    }
    if queues.loaded != Some(index) {
        match load(queues, memory, work, index) {
            Ok(Ok(())) => {}
            Ok(Err(wqe::Malformed)) => return Fetched::Malformed,
            Err(DmaFault { .. }) => return Fetched::Fault,
        }
    }
    let available = queues.posted.wrapping_sub(index);
    if queues.fetched.blocks > available { Fetched::Malformed } else { Fetched::Work }
}

/// Parses the WQE with this index into `work`.
pub(crate) fn load(
    queues: &mut QpQueues,
    memory: &DmaMap,
    work: &mut Work,
    index: u16,
) -> Result<Result<(), wqe::Malformed>, DmaFault> {
    let blocks = 1u64 << queues.setup.log_send_size.unwrap_or(0);
    let first = u64::from(index) & (blocks - 1);
    let bf_wqe = queues.take_bf_wqe(index);
    let setup = &queues.setup;
    let read = |from: u64, to: &mut [u8]| {
        let until_wrap = (((blocks - from) as usize) * BLOCK).min(to.len());
        let (before, after) = to.split_at_mut(until_wrap);
        setup.ring.read(memory, setup.send_offset + from * BLOCK as u64, before)?;
        if after.is_empty() { Ok(()) } else { setup.ring.read(memory, setup.send_offset, after) }
    };
    let mut control = [0; 16];
    match &bf_wqe {
        Some(wqe) => control.copy_from_slice(&wqe[..16]),
        None => read(first, &mut control)?,
    }
    queues.loaded = None;
    let wqe = SendWqe::begin(work, index, &control);
    queues.fetched = wqe;
    let length = usize::from(units(&control)) * 16;
    if length < 16 || usize::from(wqe.blocks) > blocks as usize {
        queues.fetched.blocks = 1;
        return Ok(Err(wqe::Malformed));
    }
    work.bytes.resize(length, 0);
    match &bf_wqe {
        Some(wqe) => work.bytes.copy_from_slice(&wqe[..length]),
        None => read(first, &mut work.bytes)?,
    }
    // The driver may have changed the control segment since. The checked copy is used.
    work.bytes[..16].copy_from_slice(&control);
    let parsed = wqe.check_control(work, queues.number).and_then(|()| wqe.parse(work, queues.setup.service));
    if parsed.is_ok() {
        queues.loaded = Some(index);
    }
    Ok(parsed)
}

/// Starts the execution of the WQE that was fetched.
pub(crate) fn begin(queues: &mut QpQueues, recording: &mut Recording, work: &Work) -> SendWqe {
    let index = queues.next_wqe;
    recording.record(Queue::Send(queues.number), index, &work.bytes);
    // The size of a WQE is limited to the posted blocks.
    let blocks = queues.fetched.blocks.min(queues.posted.wrapping_sub(index));
    let wqe = SendWqe { blocks, ..queues.fetched };
    queues.next_wqe = wqe.end();
    wqe
}

/// Takes all posted WQEs that have not begun.
pub(crate) fn take_posted(queues: &mut QpQueues, memory: &DmaMap) -> Vec<SendWqe> {
    let mut taken = Vec::new();
    queues.loaded = None;
    let Some(log_size) = queues.setup.log_send_size else { return taken };
    if read_producer(queues, memory).is_err() {
        return taken;
    }
    // The producer index is untrusted: at most a full ring is taken.
    let mut left = queues.posted.wrapping_sub(queues.next_wqe).min(1 << log_size);
    while left > 0 {
        let index = queues.next_wqe;
        let offset = (u64::from(index) & ((1 << log_size) - 1)) * BLOCK as u64;
        let mut control = [0; 16];
        if queues.setup.ring.read(memory, queues.setup.send_offset + offset, &mut control).is_err() {
            break;
        }
        let wqe = SendWqe::new(index, &control);
        let wqe = SendWqe { blocks: wqe.blocks.min(left), ..wqe };
        taken.push(wqe);
        queues.next_wqe = wqe.end();
        left -= wqe.blocks;
    }
    queues.next_wqe = queues.posted;
    taken
}

/// Posts the CQE of a WQE.
pub(crate) fn report(core: &mut Core, queues: &QpQueues, completion: &SendCompletion<'_, SendWqe>) {
    let failed = completion.failure.is_some();
    let opcode = if failed { CqeOpcode::RequesterError } else { CqeOpcode::Requester };
    let wqe = completion.wqe;
    let completion = Completion {
        status: completion.failure,
        send_opcode: wqe.opcode,
        byte_count: completion.length,
        inline: completion.inline,
        ..Completion::new(opcode, queues.number, queues.setup.user_index, wqe.index)
    };
    core.complete(queues.setup.send_cq, &completion);
}
