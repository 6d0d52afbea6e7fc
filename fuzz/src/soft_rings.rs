//! A program that writes anything into the rings of its queue pairs and CQ, at any time: indices, WQEs,
//! SGEs, the header. Unregistered memory stays as it is, the queue pairs of other programs still work,
//! and all objects can be destroyed.

use std::mem::offset_of;

use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_soft::Fabric;
use bareverbs_uapi::rxe::{AtomicWr, QueueBuf, RdmaWr, SendWqe, Sge, ResizeCqResp};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{QpState, SendFlags};
use bareverbs_uapi::write::types::WrOpcode;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::input::Input;
use crate::soft_program::{Honest, Program, Ring, dma};

const STEPS: usize = 200;
const STATES: [QpState; 5] =
    [QpState::RESET, QpState::RTS, QpState::SQD, QpState::ERR, QpState::INIT];

/// A place in a ring that matters, and bytes for it.
fn scribble(ring: &Ring, input: &mut Input<'_>) {
    let at = match input.byte() % 6 {
        0 => offset_of!(QueueBuf, producer_index),
        1 => offset_of!(QueueBuf, consumer_index),
        2 => usize::from(input.byte()),
        3 => size_of::<QueueBuf>() + usize::from(input.byte()),
        _ => usize::from(input.half()),
    };
    match input.byte() % 3 {
        0 => ring.scribble(at, &u32::from(input.byte() & 0xf).to_ne_bytes()),
        1 => ring.scribble(at, &input.word().to_ne_bytes()),
        _ => {
            let length = usize::from(input.byte() % 64);
            ring.scribble(at, &input.bytes(length));
        }
    }
}

/// A request that is mostly valid.
fn request(input: &mut Input<'_>, program: &Program, peer: &Program) -> (SendWqe, Sge) {
    let mut wqe = SendWqe::new_zeroed();
    wqe.wr.opcode = WrOpcode(u32::from(input.byte() % 20));
    wqe.wr.send_flags = SendFlags::from_bits_retain(u32::from(input.byte()) | 2);
    let length = u32::from(input.half()) % 0x5000;
    let target = peer.address(usize::from(input.half()) % 0x7000);
    if input.one_in(2) {
        wqe.wr.set(&RdmaWr { remote_addr: target, rkey: peer.mr.rkey, reserved: 0 });
    } else {
        wqe.wr.set(&AtomicWr { remote_addr: target, rkey: peer.mr.rkey, ..AtomicWr::new_zeroed() });
    }
    (wqe.dma, wqe.iova) = (dma(length), target);
    let sge = program.sge(usize::from(input.half()) % 0x7000, length);
    if input.one_in(8) {
        let mut bytes = wqe.as_bytes().to_vec();
        let at = usize::from(input.half()) % bytes.len();
        bytes[at] ^= input.byte();
        wqe = SendWqe::read_from_bytes(&bytes).expect("any bytes are a WQE");
    }
    (wqe, sge)
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let fabric = Fabric::new();
    let (mut program, mut peer) = (Program::new(&fabric), Program::new(&fabric));
    let mut honest = Honest::new(Program::on(program.device.clone()), Program::on(peer.device.clone()));
    for qp_type in [QpType::RC, QpType::UC, QpType::UD, QpType::RC] {
        let (qp, other) = (program.create(qp_type), peer.create(qp_type));
        let numbers = [program.qps[qp].number, peer.qps[other].number];
        program.modify(qp, QpState::RTS, (peer.device.address(), numbers[1]));
        peer.modify(other, QpState::RTS, (program.device.address(), numbers[0]));
        let sge = peer.sge(0, 512);
        (0..3).for_each(|wr_id| peer.post_recv(other, wr_id, &sge));
    }
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let qp = input.below(program.qps.len());
        match input.byte() % 10 {
            0..3 => {
                let (wqe, sge) = request(&mut input, &program, &peer);
                program.post_send(qp, &wqe, &sge);
            }
            3 => scribble(&program.qps[qp].sends, &mut input),
            4 => scribble(&program.qps[qp].receives, &mut input),
            5 => scribble(&program.completions, &mut input),
            6 => program.ring(qp),
            7 => {
                let peer = (peer.device.address(), peer.qps[qp].number);
                program.modify(qp, input.one_of(&STATES), peer);
            }
            8 => {
                let mut response = ResizeCqResp::new_zeroed();
                let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
                let entries = u32::from(input.byte());
                // SAFETY: the response has its full size, and the old ring stays mapped.
                let _ = unsafe { command::resize_cq(&program.file, program.cq, entries, payload) };
            }
            _ => {
                let sge = peer.sge(usize::from(input.byte()), u32::from(input.half()));
                peer.post_recv(qp, 9, &sge);
            }
        }
        while peer.completions.pop().is_some() {}
    }
    program.check_unregistered();
    peer.check_unregistered();
    honest.exchange();
    honest.destroy();
    program.destroy();
    peer.destroy();
}
