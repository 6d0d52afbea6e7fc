//! CQE compression.

use std::collections::VecDeque;

use bareverbs_mlx5_testbed::{Testbed, recv, request, send};
use bareverbs_provider::traits::{Completion, CompletionQueue};
use bareverbs_provider::work::{Imm, Operation, WcStatus};
use bareverbs_uapi::mlx5::CqeCompressionFormats as Formats;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};
use proptest::prelude::*;

const CAP: QpCap =
    QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

#[derive(Clone, Debug)]
enum Step {
    /// Messages of these lengths, to the first QP (`false`) or the second. Some have immediate
    /// data.
    Send(bool, Vec<(u32, Option<u32>)>),
    Poll(usize),
    Arm(bool),
    Resize(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let message = (1u32..64, prop::option::weighted(0.1, any::<u32>()));
    prop_oneof![
        3 => (any::<bool>(), prop::collection::vec(message, 1..24)).prop_map(|(to, messages)| Step::Send(to, messages)),
        3 => (1usize..30).prop_map(Step::Poll),
        1 => any::<bool>().prop_map(Step::Arm),
        1 => (6u32..8).prop_map(Step::Resize),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn compressed_cqes_match_uncompressed(
        format in prop::sample::select(vec![Formats::HASH, Formats::CSUM, Formats::CSUM_STRIDX]),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut testbed = Testbed::new();
        let (mut cq, mut peer_cq) = (testbed.compressed_cq(6, format), testbed.cq(8, 64));
        let mut pairs: Vec<_> = (0..2)
            .map(|_| {
                let left = testbed.qp(QpType::RC, &CAP, (&cq, &cq), None, false);
                let right = testbed.qp(QpType::RC, &CAP, (&peer_cq, &peer_cq), None, false);
                testbed.hca().connect(left.number, right.number).expect("a connection");
                (left, right)
            })
            .collect();
        let mut expected: VecDeque<(u64, u32, Option<u32>)> = VecDeque::new();
        let mut id = 0;
        for step in steps.into_iter().chain([Step::Poll(64)]) {
            match step {
                Step::Send(to, messages) => {
                    let (left, right) = &mut pairs[usize::from(to)];
                    for (length, imm) in messages.into_iter().take(60usize.saturating_sub(expected.len())) {
                        id += 1;
                        recv(left.rq.as_mut().expect("receives"), id, &[testbed.sge(0, 64)]);
                        let operation = imm.map_or(Operation::Send, |imm| Operation::SendImm(Imm(imm)));
                        send(&mut right.sq, &request(0, operation, &[testbed.sge(0x1000, length)]));
                        expected.push_back((id, length, imm));
                    }
                    testbed.run();
                    while peer_cq.queue.next().is_some() {}
                    peer_cq.queue.release();
                }
                Step::Poll(count) => {
                    for _ in 0..count {
                        let Some(completion) = cq.queue.next() else { break };
                        let completion = (completion.status(), (completion.wr_id(), completion.byte_len(), completion.imm().map(u32::from)));
                        let (wr_id, length, imm) = expected.pop_front().expect("no more than were sent");
                        prop_assert_eq!(completion, (WcStatus::SUCCESS, (wr_id, length, imm)));
                    }
                    cq.queue.release();
                    prop_assert!(count < 64 || expected.is_empty());
                }
                Step::Arm(solicited) => cq.queue.arm(solicited).expect("armed"),
                Step::Resize(log) => testbed.resize(&mut cq, log),
            }
        }
    }
}

#[test]
fn compressed_run_has_title_and_mini_cqe_arrays() {
    let mut testbed = Testbed::new();
    let (mut cq, peer_cq) = (testbed.compressed_cq(6, Formats::CSUM_STRIDX), testbed.cq(6, 64));
    let mut left = testbed.qp(QpType::RC, &CAP, (&cq, &cq), None, false);
    let mut right = testbed.qp(QpType::RC, &CAP, (&peer_cq, &peer_cq), None, false);
    testbed.hca().connect(left.number, right.number).expect("a connection");
    for id in 0..20 {
        recv(left.rq.as_mut().expect("receives"), id, &[testbed.sge(0, 64)]);
        send(&mut right.sq, &request(0, Operation::Send, &[testbed.sge(0x1000, 8)]));
    }
    testbed.run();
    let title = cq.queue.peek();
    assert_eq!((title.op_own() >> 2 & 3, title.byte_count()), (3, 20), "compressed, of 20");
    for id in 0..20 {
        assert_eq!(
            cq.queue.next().map(|completion| (completion.wr_id(), completion.byte_len())),
            Some((id, 8))
        );
    }
    assert!(cq.queue.next().is_none());
}
