//! Destruction, reset and reuse of QPs, and CQ resize.

use bareverbs_mlx5_testbed::{Testbed, cap, poll, push, recv, request, send};
use bareverbs_provider::traits::{CompletionQueue, SendQueue};
use bareverbs_provider::work::{Operation, WcStatus};
use bareverbs_uapi::uverbs::types::QpType;

#[test]
fn cqes_of_destroyed_qp_are_discarded() {
    [0, 1].into_iter().for_each(after_destruction);
}

fn after_destruction(cqe_version: u8) {
    let mut testbed = Testbed::of_version(cqe_version);
    let (mut left, right, mut cq) = testbed.connected(QpType::RC, &cap(8, 0));
    let local = [testbed.sge(0, 8)];
    send(&mut left.sq, &request(1, Operation::Write(testbed.remote(0x1000)), &local));
    testbed.run();
    testbed.destroy(left);
    // A new QP gets no CQEs of the old one, even if the QPN or user index is the same.
    let mut next = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), None, false);
    testbed
        .hca()
        .engine()
        .modify_qp(right.number, bareverbs_hca::engine::State::Reset, Default::default())
        .expect("reset");
    testbed.hca().connect(next.number, right.number).expect("a connection");
    send(&mut next.sq, &request(2, Operation::Write(testbed.remote(0x1000)), &local));
    testbed.run();
    let done: Vec<_> = poll(&mut cq).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(2, WcStatus::SUCCESS)]);
}

#[test]
fn cqes_from_before_reset_are_discarded() {
    [0, 1].into_iter().for_each(after_resets);
}

fn after_resets(cqe_version: u8) {
    let mut testbed = Testbed::of_version(cqe_version);
    let (mut left, mut right, mut cq) = testbed.connected(QpType::RC, &cap(8, 0));
    let local = [testbed.sge(0, 8)];
    for round in 0..3 {
        for wr_id in 0..3 {
            send(
                &mut left.sq,
                &request(100 * round + wr_id, Operation::Write(testbed.remote(0x1000)), &local),
            );
        }
        testbed.run();
        for pair in [&mut left, &mut right] {
            let reset = bareverbs_hca::engine::State::Reset;
            testbed.hca().engine().modify_qp(pair.number, reset, Default::default()).expect("reset");
            // SAFETY: the device has just reset the queue pair.
            unsafe {
                pair.sq.reset();
                bareverbs_provider::traits::RecvQueue::reset(pair.rq.as_mut().expect("receives"));
            }
        }
        testbed.hca().connect(left.number, right.number).expect("a connection");
        send(&mut left.sq, &request(100 * round + 50, Operation::Write(testbed.remote(0x1000)), &local));
        testbed.run();
        let done: Vec<_> = poll(&mut cq).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(100 * round + 50, WcStatus::SUCCESS)]);
    }
}

#[test]
fn cq_wraps_with_64_and_128_byte_cqes() {
    for cqe_size in [64, 128] {
        let mut testbed = Testbed::new();
        let mut cq = testbed.cq(2, cqe_size);
        let mut left = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), None, false);
        let right = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), None, false);
        testbed.hca().connect(left.number, right.number).expect("a connection");
        let local = [testbed.sge(0, 8)];
        for wr_id in 0..50 {
            send(&mut left.sq, &request(wr_id, Operation::Write(testbed.remote(0x1000)), &local));
            testbed.run();
            let done: Vec<_> = poll(&mut cq).iter().map(|wc| wc.wr_id).collect();
            assert_eq!(done, [wr_id]);
        }
    }
}

#[test]
fn resize_preserves_pending_cqes() {
    let mut testbed = Testbed::new();
    let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(16, 0));
    let local = [testbed.sge(0, 8)];
    let mut next = 0;
    for (round, log) in [3, 5, 4, 6].into_iter().enumerate() {
        let first = next;
        for _ in 0..=round {
            push(&mut left.sq, &request(next, Operation::Write(testbed.remote(0x1000)), &local))
                .expect("room");
            next += 1;
        }
        left.sq.ring().expect("rung");
        testbed.run();
        testbed.resize(&mut cq, log);
        assert_eq!(cq.queue.capacity(), (1 << log) - 1);
        push(&mut left.sq, &request(next, Operation::Write(testbed.remote(0x1000)), &local)).expect("room");
        next += 1;
        left.sq.ring().expect("rung");
        testbed.run();
        let ids: Vec<_> = poll(&mut cq).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (first..next).collect::<Vec<_>>());
    }
}

#[test]
fn reused_qpn_gets_no_cqes_of_previous_qp() {
    for cqe_version in [0, 1] {
        let mut testbed = Testbed::of_version(cqe_version);
        let (mut srq, srq_number) = testbed.srq(3);
        let mut cq = testbed.cq(6, 64);
        let into = [testbed.sge(0x1000, 64)];
        let local = [testbed.sge(0, 8)];
        // A QP that has sent and received is destroyed before its CQEs are polled.
        let receiver = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), Some((&srq, srq_number)), false);
        let number = receiver.number;
        let mut sender = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), None, false);
        testbed.hca().connect(sender.number, number).expect("a connection");
        (0..3).for_each(|wr_id| recv(&mut srq, wr_id, &into));
        send(&mut sender.sq, &request(10, Operation::Send, &local));
        testbed.run();
        testbed.destroy(receiver);
        testbed.destroy(sender);
        // The device reuses a QPN only after a while.
        let mut others = Vec::new();
        let mut next = loop {
            let next = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), None, false);
            if next.number == number {
                break next;
            }
            others.push(next);
            if others.len() == 70 {
                others.drain(..).for_each(|other| testbed.destroy(other));
            }
        };
        let peer = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), None, false);
        testbed.hca().connect(next.number, peer.number).expect("a connection");
        send(&mut next.sq, &request(20, Operation::Write(testbed.remote(0x1000)), &local));
        testbed.run();
        let done: Vec<_> = poll(&mut cq).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(20, WcStatus::SUCCESS)], "version {cqe_version}");
        // The receive of the destroyed QP was returned to the SRQ, and no other.
        recv(&mut srq, 5, &into);
        // SAFETY: the SGEs lie in the testbed's MR.
        let full = unsafe {
            bareverbs_provider::traits::RecvQueue::push(
                &mut srq,
                &bareverbs_provider::work::RecvRequest { wr_id: 0, sges: &into },
            )
        };
        assert!(full.is_err());
    }
}

#[test]
fn discarded_cqes_free_cq_slots() {
    let mut testbed = Testbed::new();
    let mut cq = testbed.cq(4, 64);
    let local = [testbed.sge(0, 8)];
    for round in 0..4 {
        let mut left = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), None, false);
        let right = testbed.qp(QpType::RC, &cap(8, 0), (&cq, &cq), None, false);
        testbed.hca().connect(left.number, right.number).expect("a connection");
        for wr_id in 0..8 {
            send(&mut left.sq, &request(wr_id, Operation::Write(testbed.remote(0x1000)), &local));
        }
        testbed.run();
        if round == 3 {
            let polled = std::iter::from_fn(|| cq.queue.next_value()).count();
            assert_eq!(polled, 8, "never more than 8 of the 15 entries are in use");
        }
        testbed.destroy(left);
        testbed.destroy(right);
        while cq.queue.next_value().is_some() {}
    }
}
