//! Datagrams to UDP port 4791 of a soft device: packets with a right or a wrong ICRC, for queue pairs of
//! every type in every state. A queue pair in RESET or INIT completes nothing, a connected one that no
//! packet is for still works, and all objects can be destroyed.

use std::net::SocketAddr;

use bareverbs_soft::{Fabric, SoftDevice, testing};
use bareverbs_uapi::rxe::SendWqe;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{QpState, SendFlags};
use bareverbs_uapi::write::types::WrOpcode;
use zerocopy::FromZeros;

use crate::input::Input;
use crate::soft_program::{Honest, NO_ADDRESS, PSN, Program, dma};

const STEPS: usize = 200;
const TYPES: [QpType; 3] = [QpType::RC, QpType::UC, QpType::UD];
const STATES: [QpState; 6] =
    [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::ERR];

/// The opcodes of RC, UC and UD are those from these numbers on.
const SERVICES: [u8; 3] = [0x00, 0x20, 0x60];

/// The bytes from the BTH to the payload.
fn packet(input: &mut Input<'_>, program: &Program) -> Vec<u8> {
    let qp = &program.qps[input.below(program.qps.len())];
    let service = match input.byte() % 8 {
        0 => input.byte() & 0xe0,
        _ => SERVICES[TYPES.iter().position(|of| *of == qp.qp_type).unwrap_or(0)],
    };
    let flags = input.byte();
    let mut bytes = vec![service | input.byte() & 0x1f, flags, 0xff, 0xff];
    bytes.extend(qp.number.to_be_bytes());
    let psn = (PSN + u32::from(input.byte() & 0x1f)) & 0xff_ffff;
    bytes.extend((psn | u32::from(input.byte() & 0x80) << 24).to_be_bytes());
    if input.one_in(2) {
        // A RETH or an AtomicETH of the registered memory, or its neighbourhood.
        bytes.extend(program.address(usize::from(input.half()) & 0x7fff).to_be_bytes());
        bytes.extend(program.mr.rkey.to_be_bytes());
        bytes.extend((u32::from(input.half()) & 0xfff).to_be_bytes());
    }
    let length = match usize::from(input.half()) {
        // At most the path MTU. Payloads of other lengths than whole words are malformed.
        whole @ 0x8000.. => whole % 0x41 * 4,
        length => length % 0x500,
    };
    let given = input.slice(length);
    bytes.extend(given);
    bytes.resize(bytes.len() + (length - given.len()).min(0x500), 0);
    bytes
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let fabric = Fabric::new();
    let mut victim = Program::new(&fabric);
    let mut honest = Honest::new(Program::on(victim.device.clone()), Program::new(&fabric));
    // Whether a queue pair is in RESET or INIT.
    let mut idle = Vec::new();
    for qp_type in TYPES {
        for state in STATES {
            let qp = victim.create(qp_type);
            victim.modify(qp, state, (NO_ADDRESS, 0x11));
            idle.push([QpState::RESET, QpState::INIT].contains(&state));
            if state != QpState::RESET {
                let sge = victim.sge(0, 512);
                (0..3).for_each(|wr_id| victim.post_recv(qp, wr_id, &sge));
            }
        }
    }
    let source = SocketAddr::new(NO_ADDRESS, 0xc000);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0 => {
                let length = usize::from(input.byte());
                receive(&victim.device, source, input.slice(length));
            }
            1 => {
                let (qp, state) = (input.below(victim.qps.len()), input.one_of(&STATES));
                victim.modify(qp, state, (NO_ADDRESS, 0x11));
                idle[qp] = state == QpState::RESET || state == QpState::INIT && idle[qp];
                if idle[qp] {
                    // A packet that the device accepts completes it.
                    let sge = victim.sge(0, 512);
                    victim.post_recv(qp, 9, &sge);
                }
            }
            2 => {
                let qp = input.below(victim.qps.len());
                let mut wqe = SendWqe::new_zeroed();
                wqe.wr.opcode = input.one_of(&[WrOpcode::SEND, WrOpcode::RDMA_READ, WrOpcode::RDMA_WRITE]);
                (wqe.wr.send_flags, wqe.dma) = (SendFlags::SIGNALED, dma(700));
                let sge = victim.sge(0, 700);
                victim.post_send(qp, &wqe, &sge);
            }
            3 => {
                let qp = input.below(victim.qps.len());
                let sge = victim.sge(usize::from(input.byte()), u32::from(input.half()));
                victim.post_recv(qp, 9, &sge);
            }
            _ => {
                let mut bytes = packet(&mut input, &victim);
                bytes.extend(testing::icrc(source, victim.device.address(), &bytes));
                if input.one_in(8) {
                    bytes.truncate(usize::from(input.byte()));
                }
                receive(&victim.device, source, &bytes);
            }
        }
        while let Some(completion) = victim.completions.pop() {
            let qp = victim.qps.iter().position(|qp| qp.number == completion.qp_num).expect("a QP");
            assert!(!idle[qp], "a queue pair in RESET or INIT has completed a request");
        }
    }
    victim.check_unregistered();
    honest.exchange();
    victim.destroy();
    honest.destroy();
}

fn receive(device: &SoftDevice, source: SocketAddr, datagram: &[u8]) {
    testing::receive(device, source, datagram);
}
