//! Events of completion queues that are armed again and again.

use bareverbs_hca::PlainCard;
use bareverbs_provider::contract::CompletionQueue;
use bareverbs_provider::work::{Operation, SendFlags, SendRequest};
use bareverbs_uapi::uverbs::types::QpType;

use crate::bench::{Bench, SIGNALED, cap, poll, recv, request, send};

#[test]
fn each_arming_gets_one_event_whatever_came_before() {
    let mut bench = Bench::new();
    let (mut left, _right, mut cq) = bench.connected(QpType::RC, &cap(8, 0));
    let local = [bench.sge(0, 8)];
    let before = bench.card.interrupts();
    for round in 0..10 {
        // The event queue interrupts once for each time that it is read.
        bench.card.engine().eq_consumed(PlainCard::EVENTS, round, true);
        cq.queue.arm(false).expect("doorbells are not refused");
        // Armed twice, it is armed once.
        cq.queue.arm(false).expect("doorbells are not refused");
        bench.run();
        assert_eq!(bench.card.interrupts() - before, round, "nothing has come yet");
        for wr_id in 0..=u64::from(round % 3) {
            send(&mut left.sq, &request(wr_id, Operation::Write(bench.remote(0x1000)), &local));
        }
        bench.run();
        assert_eq!(bench.card.interrupts() - before, round + 1);
        assert_eq!(poll(&mut cq).len() as u32, round % 3 + 1);
    }
}

#[test]
fn an_arming_for_solicited_ones_outlasts_the_others() {
    let mut bench = Bench::new();
    let (mut left, mut right, mut cq) = bench.connected(QpType::RC, &cap(8, 0));
    let local = [bench.sge(0, 8)];
    let into = [bench.sge(0x1000, 64)];
    let before = bench.card.interrupts();
    for round in 0..10 {
        // The event queue interrupts once for each time that it is read.
        bench.card.engine().eq_consumed(PlainCard::EVENTS, round, true);
        cq.queue.arm(true).expect("doorbells are not refused");
        bench.run();
        for flags in [SIGNALED, SIGNALED | SendFlags::SOLICITED] {
            assert_eq!(bench.card.interrupts() - before, round, "an ordinary message raises none");
            recv(right.rq.as_mut().expect("receives"), 1, &into);
            let message = SendRequest { flags, ..request(2, Operation::Send, &local) };
            send(&mut left.sq, &message);
            bench.run();
            assert_eq!(poll(&mut cq).len(), 2);
        }
        assert_eq!(bench.card.interrupts() - before, round + 1);
    }
}
