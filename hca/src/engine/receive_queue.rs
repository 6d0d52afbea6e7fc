//! Receive WQEs of QPs: fetch and completion.

use bareverbs_transport::{Receive, RecvFetch, RecvOutcome};

use super::core::Core;
use super::cq::{Completion, CqeOpcode};
use super::packet::{Network, Packet};
use super::queues::QpQueues;
use super::recorder::{Queue, Recording};
use super::service::Service;
use super::srq::scatter_list;
use crate::memory::DmaMap;

/// Takes a WQE of the QP's own RQ.
pub(crate) fn take_own(
    queues: &mut QpQueues,
    memory: &DmaMap,
    recording: &mut Recording,
    (log_size, log_stride): (u8, u8),
) -> RecvFetch<u16> {
    let Ok(posted) = memory.read_be32(queues.setup.doorbell) else { return RecvFetch::Fault };
    let counter = queues.consumed;
    if posted as u16 == counter {
        return RecvFetch::Empty;
    }
    let index = u64::from(counter) & ((1 << log_size) - 1);
    let mut wqe = vec![0; 1 << log_stride];
    if queues.setup.ring.read(memory, index << log_stride, &mut wqe).is_err() {
        return RecvFetch::Fault;
    }
    recording.record(Queue::Receive(queues.number), counter, &wqe);
    queues.consumed = counter.wrapping_add(1);
    RecvFetch::Receive(Receive { wqe: counter, srq: None, sges: scatter_list(&wqe), placed: 0 })
}

/// The CQ of a receive, and the user index in its CQE.
fn completion_target(queues: &QpQueues, core: &Core, srq: Option<u32>) -> (u32, u32) {
    let setup = &queues.setup;
    let xrc =
        srq.and_then(|srq| core.srqs.get(srq)).and_then(|srq| Some((srq.setup.cq?, srq.setup.user_index)));
    match xrc {
        Some((cq, user_index)) if setup.xrcd.is_some() => (cq, user_index),
        _ => (setup.receive_cq, setup.user_index),
    }
}

/// Posts the CQE of a receive WQE.
pub(crate) fn report(core: &mut Core, queues: &QpQueues, receive: &Receive<u16>, outcome: RecvOutcome<'_>) {
    let (cq, user_index) = completion_target(queues, core, receive.srq);
    let opcode = match outcome {
        RecvOutcome::Message { packet, .. } => opcode(packet),
        RecvOutcome::Failed(_) => CqeOpcode::ResponderError,
    };
    let mut completion = Completion::new(opcode, queues.number, user_index, receive.wqe);
    completion.byte_count = receive.placed;
    completion.srq = receive.srq.unwrap_or(0);
    match outcome {
        RecvOutcome::Failed(status) => completion.status = Some(status),
        RecvOutcome::Message { packet, inline } => {
            // CQEs of management QPs carry the P_Key in place of immediate data.
            completion.immediate = match queues.setup.service {
                Service::Datagram(Some(_)) => u32::from(packet.pkey),
                _ => packet.headers.immediate.unwrap_or(0),
            };
            completion.solicited = packet.solicited;
            completion.source_lid = packet.route.source_lid;
            completion.flags_rqpn = flags_rqpn(packet);
            completion.inline = inline;
        }
    }
    core.complete(cq, &completion);
}

fn opcode(packet: &Packet) -> CqeOpcode {
    match packet.operation {
        operation if operation.has_immediate() && operation.is_write() => CqeOpcode::ReceiveWriteImmediate,
        operation if operation.has_immediate() => CqeOpcode::ReceiveImmediate,
        operation if operation.has_invalidate() => CqeOpcode::ReceiveInvalidate,
        _ => CqeOpcode::Receive,
    }
}

/// The source QP of a datagram with its flags: service level, and the kind of the GRH if there is
/// one.
fn flags_rqpn(packet: &Packet) -> u32 {
    const GLOBAL: u32 = 1 << 28;
    let Some(datagram) = packet.headers.datagram else { return 0 };
    let kind = match packet.route.global.map(|global| global.network) {
        None => 0,
        Some(Network::Grh) => GLOBAL,
        Some(Network::Ipv6) => GLOBAL | 1 << 24,
        Some(Network::Ipv4) => GLOBAL | 2 << 24,
    };
    // On InfiniBand the bits above the source QPN are the service level.
    let level = match packet.route.destination_lid {
        0 => 0,
        _ => u32::from(packet.route.service_level & 0xf) << 24,
    };
    kind | level | datagram.source_qp & 0xff_ffff
}
