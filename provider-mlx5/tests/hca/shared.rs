//! Shared receive queues (SRQs).

use bareverbs_mlx5_testbed::{Testbed, cap, poll, recv, request, send};
use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::{Operation, PushError, RecvRequest, WcOpcode, WcStatus};
use bareverbs_uapi::uverbs::types::QpType;

#[test]
fn srq_slots_return_when_polled() {
    for cqe_version in [0, 1] {
        go_and_come_back(Testbed::of_version(cqe_version));
    }
}

fn go_and_come_back(mut testbed: Testbed) {
    let (mut srq, number) = testbed.srq(3);
    let mut cq = testbed.cq(6, 64);
    let mut senders = Vec::new();
    for _ in 0..2 {
        let receiver = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), Some((&srq, number)), false);
        let sender = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), None, false);
        assert!(receiver.rq.is_none());
        testbed.hca().connect(sender.number, receiver.number).expect("a connection");
        senders.push((sender, receiver));
    }
    let capacity = srq.capacity();
    assert_eq!(capacity, 3);
    let into = [testbed.sge(0x1000, 64)];
    // Each slot is used many times, in changing order.
    let mut posted = 0;
    for round in 0..10u64 {
        while posted < capacity {
            recv(&mut srq, 100 + round, &into);
            posted += 1;
        }
        // SAFETY: the SGEs lie in the testbed's MR.
        let full = unsafe { srq.push(&RecvRequest { wr_id: 0, sges: &into }) };
        assert_eq!(full, Err(PushError::QueueFull { capacity }));
        let messages = 1 + round as usize % 3;
        for index in 0..messages {
            let (sender, _) = &mut senders[index % 2];
            let sges = [testbed.sge(0, 4)];
            send(&mut sender.sq, &request(1, Operation::Send, &sges));
            testbed.run();
        }
        let done = poll(&mut cq);
        assert!(done.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{done:?}");
        let received = done.iter().filter(|wc| wc.opcode == WcOpcode::RECV).count();
        assert_eq!(received, messages);
        posted -= received as u32;
    }
}

#[test]
fn aborted_srq_receives_can_be_reposted() {
    let mut testbed = Testbed::new();
    let (mut srq, _) = testbed.srq(3);
    let into = [testbed.sge(0x1000, 64)];
    for _ in 0..5 {
        for wr_id in 0..3 {
            // SAFETY: the SGEs lie in the testbed's MR.
            unsafe { srq.push(&RecvRequest { wr_id, sges: &into }) }.expect("room");
        }
        srq.abort();
    }
}
