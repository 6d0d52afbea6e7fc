//! Messages of 0 bytes, and SGEs of 0 bytes, over RC.

use bareverbs::qp::{Operation, Payload, RecvRequest, Sge};
use bareverbs::{Imm, Remote, WcOpcode, WcStatus};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

#[kernel_test]
fn every_operation_accepts_zero_bytes() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[7; 64], ALL_REMOTE);
        // Without data no key is checked.
        let nowhere = Remote { addr: 0, rkey: 0 };
        let nothing = [memory.sge(..0).unwrap()];
        let twice = [memory.sge(64..).unwrap(), memory.sge(..0).unwrap()];
        let unknown = [Sge { addr: 0, length: 0, lkey: 0 }];
        let payloads = [
            Payload::Sges(&[]),
            Payload::Sges(&nothing),
            Payload::Sges(&twice),
            Payload::Sges(&unknown),
            Payload::Inline(&[]),
            Payload::Inline(&[b"", b""]),
        ];
        for payload in payloads {
            let (mut a, mut b) = pair(&pd, Plan::default());
            for (operation, received) in [
                (Operation::Send, Some(WcOpcode::RECV)),
                (Operation::SendImm(Imm(9)), Some(WcOpcode::RECV)),
                (Operation::WriteImm(nowhere, Imm(9)), Some(WcOpcode::RECV_RDMA_WITH_IMM)),
                (Operation::Write(nowhere), None),
                (Operation::Read(nowhere), None),
            ] {
                if matches!((operation, payload), (Operation::Read(_), Payload::Inline(_))) {
                    continue;
                }
                if matches!(operation, Operation::SendImm(_) | Operation::WriteImm(..))
                    && device::immediates().is_err()
                {
                    continue;
                }
                let is_list = matches!(payload, Payload::Sges(&[_, _, ..]));
                if matches!(operation, Operation::Read(_)) && is_list && device::read_lists().is_err() {
                    continue;
                }
                b.recv_into(2, received.map_or(0, |_| 1), &[]);
                a.send(&[request(1, operation, payload)]).unwrap();
                assert_eq!(a.ends(1), [(1, WcStatus::SUCCESS)], "{operation:?} {payload:?}");
                if let Some(opcode) = received {
                    let reported = b.completions(1)[0];
                    assert_eq!(
                        (reported.wr_id, reported.byte_len, reported.opcode),
                        (2, 0, opcode),
                        "{operation:?}"
                    );
                    assert_eq!(reported.status, WcStatus::SUCCESS);
                }
            }
        }
        assert_eq!(contents(&memory), [7; 64]);
    });
}

#[kernel_test]
fn zero_length_sges_change_nothing() {
    nothing_leaks(|| {
        let pd = domain();
        let from = region(&pd, b"abcdefgh", ALL_REMOTE);
        let to = region(&pd, &[0; 16], ALL_REMOTE);
        let (mut a, mut b) = pair(&pd, Plan::default());
        let piece = |memory: &bareverbs::Mr<_>, range| memory.sge(range).unwrap();
        let gather = [piece(&from, 0..3), piece(&from, 5..5), piece(&from, 3..8), piece(&from, 0..0)];
        let scatter = [piece(&to, 0..0), piece(&to, 0..2), piece(&to, 4..4), piece(&to, 8..14)];
        b.recv(&[RecvRequest { wr_id: 2, sges: &scatter }]).unwrap();
        a.send(&[request(1, Operation::Send, Payload::Sges(&gather))]).unwrap();
        assert_eq!((a.ends(1), b.ends(1)), (vec![(1, WcStatus::SUCCESS)], vec![(2, WcStatus::SUCCESS)]));
        assert_eq!(contents(&to), *b"ab\0\0\0\0\0\0cdefgh\0\0");

        if device::read_lists().is_err() {
            return;
        }
        let read = request(3, Operation::Read(from.remote(0).unwrap()), Payload::Sges(&scatter));
        a.send(&[read]).unwrap();
        assert_eq!(a.ends(1), [(3, WcStatus::SUCCESS)]);
        assert_eq!(contents(&to), *b"ab\0\0\0\0\0\0cdefgh\0\0");
    });
}

#[kernel_test(device::immediates)]
fn zero_length_receives_accept_only_empty_messages() {
    nothing_leaks(|| {
        let pd = domain();
        let to = region(&pd, &[0; 64], ALL_REMOTE);
        let (mut a, mut b) = pair(&pd, Plan::default());
        // A write with immediate data uses a receive of any length.
        b.recv_into(2, 1, &[]);
        let write = Operation::WriteImm(to.remote(0).unwrap(), Imm(7));
        a.send(&[request(1, write, Payload::Inline(&[b"into memory"]))]).unwrap();
        assert_eq!(a.ends(1), [(1, WcStatus::SUCCESS)]);
        let reported = b.completions(1)[0];
        assert_eq!((reported.wr_id, reported.status, reported.byte_len), (2, WcStatus::SUCCESS, 11));
        assert_eq!(contents(&to)[..11], *b"into memory");
    });
}
