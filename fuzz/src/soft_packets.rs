//! Datagrams to UDP port 4791 of a soft device: packets with a right or a wrong ICRC, for queue pairs of
//! every type in every state. A queue pair in RESET or INIT completes nothing. A connected one ignores
//! packets from other addresses than that of its peer, and one that no packet is for still works. All
//! objects can be destroyed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bareverbs_soft::{EventLog, Fabric, QpAction, testing};
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

/// The address of a host that is no queue pair's peer.
const FOREIGN: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 9, 9, 8));
/// Actions of queue pairs that one packet causes at most, about.
const ACTIONS: usize = 256;

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

/// The bytes from the BTH to the ICRC, or to one of them.
fn datagram(input: &mut Input<'_>, program: &Program, source: SocketAddr) -> Vec<u8> {
    let mut bytes = packet(input, program);
    bytes.extend(testing::icrc(source, program.device.address(), &bytes));
    if input.one_in(8) {
        bytes.truncate(usize::from(input.byte()));
    }
    bytes
}

/// Receives a datagram from an address that is no peer's. Only a UD queue pair accepts it.
fn receive_foreign(victim: &Program, log: &EventLog, source: SocketAddr, datagram: &[u8]) {
    victim.device.fabric().run_until_idle();
    log.clear();
    let before = victim.registered();
    receive(victim, source, datagram);
    let entries = log.entries();
    let acts = entries.iter().filter(|entry| !matches!(entry.action, QpAction::Received(_)));
    let actors: Vec<_> = acts.map(|entry| entry.qp_num).collect();
    let is_ud =
        |number: &u32| victim.qps.iter().any(|qp| qp.number == *number && qp.qp_type == QpType::UD);
    assert!(actors.iter().all(is_ud), "a connected queue pair has accepted a packet of another host");
    assert!(!actors.is_empty() || victim.registered() == before, "another host has written to memory");
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let fabric = Fabric::seeded(1);
    let log = fabric.log(ACTIONS);
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
    let [source, foreign] = [NO_ADDRESS, FOREIGN].map(|address| SocketAddr::new(address, 0xc000));
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0 => {
                let length = usize::from(input.byte());
                receive(&victim, source, input.slice(length));
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
            4 => {
                let bytes = datagram(&mut input, &victim, foreign);
                receive_foreign(&victim, &log, foreign, &bytes);
            }
            5 => fabric.advance(Duration::from_micros(1 << (input.byte() % 20))),
            _ => {
                let bytes = datagram(&mut input, &victim, source);
                receive(&victim, source, &bytes);
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

/// Receives a datagram, and does what follows.
fn receive(victim: &Program, source: SocketAddr, datagram: &[u8]) {
    testing::receive(&victim.device, source, datagram);
    victim.device.fabric().run_until_idle();
}
