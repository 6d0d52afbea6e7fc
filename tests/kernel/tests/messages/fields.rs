//! Completions that are read in place, field by field.

use std::time::Instant;

use bareverbs::cq::{Completion, Cq};
use bareverbs::device::LinkLayer;
use bareverbs::qp::{Operation, Payload};
use bareverbs::{Access, Imm, WcOpcode, WcStatus};
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::exchange::{IMM, exchange_rounds, rc_endpoints, ud_endpoints};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, domain, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, kernel_test};

const ROUNDS: usize = 25;
const LEN: usize = 64;

/// The values of a completion's accessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    wr_id: u64,
    status: WcStatus,
    opcode: WcOpcode,
    byte_len: u32,
    qp_num: u32,
    src_qp: u32,
    imm: Option<Imm>,
    invalidated_rkey: Option<u32>,
    vendor_err: u32,
}

/// The next completion, read field by field. `to_value` gives the same values.
fn next(cq: &mut Cq) -> Read {
    let begin = Instant::now();
    let port = device::open().query_port(1).expect("the port");
    loop {
        let mut completions = cq.poll();
        if let Some(it) = completions.next() {
            let read = Read {
                wr_id: it.wr_id(),
                status: it.status(),
                opcode: it.opcode(),
                byte_len: it.byte_len(),
                qp_num: it.qp_num(),
                src_qp: it.src_qp(),
                imm: it.imm(),
                invalidated_rkey: it.invalidated_rkey(),
                vendor_err: it.vendor_err(),
            };
            let value = it.to_value();
            assert_eq!((read.wr_id, read.status, read.opcode), (value.wr_id, value.status, value.opcode));
            assert_eq!(
                (read.byte_len, read.qp_num, read.src_qp),
                (value.byte_len, value.qp_num, value.src_qp)
            );
            assert_eq!(read.vendor_err, value.vendor_err);
            // RoCE has no LIDs, and neither has the completion of a send. RoCE has no service level
            // either; the field is undefined.
            assert!([0, port.lid].contains(&value.slid) && value.dlid_path_bits == 0, "{value:?}");
            assert!(value.sl == 0 || port.link_layer == LinkLayer::ETHERNET, "{value:?}");
            return read;
        }
        assert!(begin.elapsed() < TIMEOUT, "no completion");
    }
}

#[kernel_test]
fn completion_fields_match_the_message() {
    nothing_leaks(|| {
        let mut both = rc_endpoints(&domain(), LEN, ALL_REMOTE);
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            to.side.recv_into(8, 1, &to.first(LEN));
            from.memory.write(0, text).unwrap();
            let elements = from.first(LEN);
            let imm = device::immediates().is_ok().then_some(IMM);
            let operation = imm.map_or(Operation::Send, Operation::SendImm);
            from.side.send(&[request(7, operation, Payload::Sges(&elements))]).unwrap();
            let sent = next(&mut from.side.cq);
            assert_eq!((sent.wr_id, sent.status, sent.opcode), (7, WcStatus::SUCCESS, WcOpcode::SEND));
            assert_eq!((sent.qp_num, sent.imm), (from.side.qp.qp_num(), None));
            let received = next(&mut to.side.cq);
            assert_eq!((received.wr_id, received.status), (8, WcStatus::SUCCESS));
            assert_eq!((received.opcode, received.byte_len), (WcOpcode::RECV, LEN as u32));
            assert_eq!((received.qp_num, received.imm), (to.side.qp.qp_num(), imm));
            assert_eq!((received.invalidated_rkey, received.vendor_err), (None, 0));
            assert!(to.bytes(LEN) == text);
        });
    });
}

#[kernel_test(device::ib_transports)]
fn datagram_completion_fields_match_the_message() {
    nothing_leaks(|| {
        let mut both = ud_endpoints(&domain(), LEN, Access::LOCAL_WRITE);
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            to.post_inbox();
            from.post(to, None, text);
            let sent = next(&mut from.cq);
            assert_eq!((sent.wr_id, sent.status, sent.opcode), (7, WcStatus::SUCCESS, WcOpcode::SEND));
            let received = next(&mut to.cq);
            assert_eq!((received.wr_id, received.status), (8, WcStatus::SUCCESS));
            assert_eq!(
                (received.opcode, received.byte_len as usize),
                (WcOpcode::RECV, LEN + bareverbs::qp::GRH_BYTES)
            );
            assert_eq!((received.src_qp, received.qp_num), (from.qp.qp_num(), to.qp.qp_num()));
            assert_eq!((received.imm, received.invalidated_rkey), (None, None));
        });
    });
}
