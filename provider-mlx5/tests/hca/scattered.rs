//! Scatter to CQE: messages in receive CQEs.

use bareverbs_mlx5_testbed::{Testbed, recv, request, send};
use bareverbs_provider::traits::{Completion, CompletionQueue};
use bareverbs_provider::work::{Operation, WcStatus};
use bareverbs_uapi::uverbs::types::{QpCap, QpType};
use proptest::prelude::*;

const CAP: QpCap =
    QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 3, max_inline_data: 0 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn scattered_messages_reach_receive_memory(
        messages in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..60), 0u32..30, 0u32..30), 1..40),
        qp_type in prop::sample::select(vec![QpType::RC, QpType::UC]),
    ) {
        let mut testbed = Testbed::new();
        let (mut cq, mut peer_cq) = (testbed.cq(6, 64), testbed.cq(6, 64));
        let mut left = testbed.scattering_qp(qp_type, &CAP, &cq);
        let mut right = testbed.qp(qp_type, &CAP, (&peer_cq, &peer_cq), None, false);
        testbed.hca().connect(left.number, right.number).expect("a connection");
        for (id, (message, first, second)) in (0..).zip(&messages) {
            testbed.write(0x100, &[0; 512]);
            testbed.write(0x1000, message);
            let pieces = [(0x100, *first), (0x180, *second), (0x200, 60)];
            let sges: Vec<_> = pieces.iter().map(|(at, length)| testbed.sge(*at, *length)).collect();
            recv(left.rq.as_mut().expect("receives"), id, &sges);
            send(&mut right.sq, &request(0, Operation::Send, &[testbed.sge(0x1000, message.len() as u32)]));
            testbed.run();
            let carries = cq.queue.peek().op_own() >> 2 & 3;
            prop_assert_eq!(carries, u8::from(message.len() <= 32), "in the entry itself");
            let completion = cq.queue.next().map(|completion| (completion.wr_id(), completion.status(), completion.byte_len()));
            prop_assert_eq!(completion, Some((id, WcStatus::SUCCESS, message.len() as u32)));
            cq.queue.release();
            let arrived: Vec<u8> =
                pieces.iter().flat_map(|(at, length)| testbed.read(*at, *length as usize)).collect();
            prop_assert_eq!(&arrived[..message.len()], &message[..]);
            prop_assert!(arrived[message.len()..].iter().all(|byte| *byte == 0), "and no further");
            while peer_cq.queue.next().is_some() {}
            peer_cq.queue.release();
        }
    }
}
