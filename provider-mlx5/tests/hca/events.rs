//! Completion events of CQs that are armed repeatedly.

use bareverbs_hca::InProcessHca;
use bareverbs_mlx5_testbed::{Testbed, cap, poll, recv, request, send};
use bareverbs_provider::traits::CompletionQueue;
use bareverbs_provider::work::{Operation, SendFlags, SendRequest};
use bareverbs_uapi::uverbs::types::QpType;

#[test]
fn each_arm_yields_one_event() {
    let mut testbed = Testbed::new();
    let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(8, 0));
    let local = [testbed.sge(0, 8)];
    let before = testbed.hca().interrupts();
    for round in 0..10 {
        // Arms the EQ, which then interrupts once.
        testbed.hca().engine().eq_consumed(InProcessHca::EVENTS, round, true);
        cq.queue.arm(false).expect("doorbells are not refused");
        // The second arm has no further effect.
        cq.queue.arm(false).expect("doorbells are not refused");
        testbed.run();
        assert_eq!(testbed.hca().interrupts() - before, round, "nothing has come yet");
        for wr_id in 0..=u64::from(round % 3) {
            send(&mut left.sq, &request(wr_id, Operation::Write(testbed.remote(0x1000)), &local));
        }
        testbed.run();
        assert_eq!(testbed.hca().interrupts() - before, round + 1);
        assert_eq!(poll(&mut cq).len() as u32, round % 3 + 1);
    }
}

#[test]
fn solicited_arm_survives_unsolicited_cqes() {
    let mut testbed = Testbed::new();
    let (mut left, mut right, mut cq) = testbed.connected(QpType::RC, &cap(8, 0));
    let local = [testbed.sge(0, 8)];
    let into = [testbed.sge(0x1000, 64)];
    let before = testbed.hca().interrupts();
    for round in 0..10 {
        // Arms the EQ, which then interrupts once.
        testbed.hca().engine().eq_consumed(InProcessHca::EVENTS, round, true);
        cq.queue.arm(true).expect("doorbells are not refused");
        testbed.run();
        for flags in [SendFlags::SIGNALED, SendFlags::SIGNALED | SendFlags::SOLICITED] {
            assert_eq!(testbed.hca().interrupts() - before, round, "an ordinary message raises none");
            recv(right.rq.as_mut().expect("receives"), 1, &into);
            let message = SendRequest { flags, ..request(2, Operation::Send, &local) };
            send(&mut left.sq, &message);
            testbed.run();
            assert_eq!(poll(&mut cq).len(), 2);
        }
        assert_eq!(testbed.hca().interrupts() - before, round + 1);
    }
}
