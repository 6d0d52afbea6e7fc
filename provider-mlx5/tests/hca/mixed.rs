//! Requests on the fast path, mixed with requests on the slow path.

use bareverbs_mlx5_testbed::{Testbed, cap, poll, push, recv, request, send};
use bareverbs_provider::traits::SendQueue;
use bareverbs_provider::work::{Operation, Payload, SendFlags, SendRequest, WcOpcode, WcStatus};
use bareverbs_uapi::uverbs::types::QpType;
use proptest::prelude::*;

/// Offsets in the MR: target of writes and messages, and results of reads.
const TARGET: usize = 0x2000;
const RESULT: usize = 0x3000;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A write of 8 bytes inline.
    Word,
    /// A write with one SGE.
    Element,
    /// A write with several SGEs.
    Elements,
    /// A write with this number of bytes inline.
    Long(usize),
    /// A read of this number of bytes.
    Read(u32),
    /// A send of 8 bytes inline, to a receive with this number of SGEs.
    Message(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Word),
        2 => Just(Step::Element),
        1 => Just(Step::Elements),
        1 => (1usize..120).prop_map(Step::Long),
        1 => (1u32..64).prop_map(Step::Read),
        2 => (1usize..4).prop_map(Step::Message),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Posted one by one.
    Single,
    /// Posted with one doorbell.
    Batch,
    /// Aborted before the doorbell.
    Aborted,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn fast_and_slow_path_requests_complete_in_order(
        batches in proptest::collection::vec(
            (
                proptest::collection::vec((step(), any::<bool>()), 1..6),
                prop_oneof![2 => Just(Mode::Single), 2 => Just(Mode::Batch), 1 => Just(Mode::Aborted)],
            ),
            1..40,
        ),
        cqe_version in 0u8..=1,
    ) {
        let mut testbed = Testbed::of_version(cqe_version);
        let (mut left, mut right, mut cq) = testbed.connected(QpType::RC, &cap(6, 120));
        let mut wr_id = 0u64;
        for (steps, fate) in batches {
            let (mut sent, mut received, mut whole) = (Vec::new(), Vec::new(), Vec::new());
            let last = steps.len() - 1;
            for (index, (step, signaled)) in steps.into_iter().enumerate() {
                wr_id += 1;
                let bytes: Vec<u8> = (0..120).map(|at| (wr_id as usize * 31 + at) as u8).collect();
                // Each request has its own source and target, so that all can be compared
                // afterwards.
                let (from, to) = (index * 0x100, TARGET + index * 0x100);
                testbed.write(from, &bytes);
                testbed.write(to, &[0; 120]);
                let sges = [testbed.sge(from, 5), testbed.sge(from + 5, 6)];
                let result = [testbed.sge(RESULT + index * 0x100, 64)];
                let (write, parts);
                let request = match step {
                    Step::Word => {
                        parts = [&bytes[..8]];
                        write = Operation::Write(testbed.remote(to));
                        SendRequest { payload: Payload::Inline(&parts), ..request(wr_id, write, &[]) }
                    }
                    Step::Element => request(wr_id, Operation::Write(testbed.remote(to)), &sges[..1]),
                    Step::Elements => request(wr_id, Operation::Write(testbed.remote(to)), &sges),
                    Step::Long(length) => {
                        parts = [&bytes[..length]];
                        write = Operation::Write(testbed.remote(to));
                        SendRequest { payload: Payload::Inline(&parts), ..request(wr_id, write, &[]) }
                    }
                    Step::Read(length) => {
                        let result = &mut result.clone();
                        result[0].length = length;
                        // Posted here, while its SGE is in scope.
                        let request = request(wr_id, Operation::Read(testbed.remote(from)), result);
                        prop_assert_eq!(push(&mut left.sq, &request), Ok(()));
                        if fate == Mode::Single {
                            left.sq.ring().expect("never refused");
                        }
                        sent.push((wr_id, length));
                        whole.push((RESULT + index * 0x100, bytes[..length as usize].to_vec()));
                        continue;
                    }
                    Step::Message(elements) => {
                        if fate != Mode::Aborted {
                            let room: Vec<_> =
                                (0..elements).map(|at| testbed.sge(to + at * 3, if at + 1 < elements { 3 } else { 8 })).collect();
                            recv(right.rq.as_mut().expect("receives"), wr_id, &room);
                            received.push((wr_id, 8));
                        }
                        parts = [&bytes[..8]];
                        SendRequest { payload: Payload::Inline(&parts), ..request(wr_id, Operation::Send, &[]) }
                    }
                };
                let flags = if signaled || index == last { SendFlags::SIGNALED } else { SendFlags::empty() };
                let request = SendRequest { flags, ..request };
                if fate == Mode::Single {
                    send(&mut left.sq, &request);
                } else {
                    prop_assert_eq!(push(&mut left.sq, &request), Ok(()));
                }
                if flags == SendFlags::SIGNALED {
                    sent.push((wr_id, 0));
                }
                let length = match step {
                    Step::Element => 5,
                    Step::Elements => 11,
                    Step::Long(length) => length,
                    _ => 8,
                };
                whole.push((to, bytes[..length].to_vec()));
            }
            match fate {
                Mode::Single => {}
                Mode::Batch => left.sq.ring().expect("never refused"),
                Mode::Aborted => {
                    left.sq.abort();
                    left.sq.ring().expect("never refused");
                    testbed.run();
                    prop_assert_eq!(poll(&mut cq), []);
                    continue;
                }
            }
            testbed.run();
            let done = poll(&mut cq);
            prop_assert!(done.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{done:?}");
            let of = |recv: bool| -> Vec<_> {
                let those = done.iter().filter(|wc| (wc.opcode == WcOpcode::RECV) == recv);
                those.map(|wc| (wc.wr_id, wc.byte_len)).collect()
            };
            prop_assert_eq!((of(false), of(true)), (sent, received));
            for (at, bytes) in whole {
                prop_assert_eq!(testbed.read(at, bytes.len()), bytes);
            }
        }
    }
}
