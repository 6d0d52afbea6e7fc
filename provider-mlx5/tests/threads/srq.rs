//! An SRQ whose receives complete on two threads.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::{Operation, WcStatus};

use crate::preempt::Preemption;
use crate::testbed::{Kind, Poller, Testbed, recv, rounds, wait_until};

#[test]
fn srq_receives_complete_once_and_free_their_slots() {
    for cqe_version in [0, 1] {
        let bed = Testbed::of_version(cqe_version);
        let mut srq = bed.srq(15);
        let capacity = u64::from(srq.queue.capacity());
        let cqs = [bed.cq(8), bed.cq(8)];
        let send_cq = bed.cq(8);
        let (handles, send_handle) = (cqs.each_ref().map(|cq| cq.handle()), send_cq.handle());
        let mut senders = handles.each_ref().map(|handle| {
            let receiver = bed.qp(&Kind { cqs: [handle, handle], srq: Some(&srq), ..Kind::plain(handle) });
            let sender = bed.qp(&Kind::plain(&send_handle));
            bed.connect(&sender, &receiver);
            (sender, receiver)
        });
        let received = Arc::new(AtomicU64::new(0));
        let pollers = cqs.map(|cq| {
            let received = Arc::clone(&received);
            Poller::start(
                cq,
                Vec::new(),
                |_, _, _| {},
                move |ids: &mut Vec<u64>, completion| {
                    assert_eq!(completion.status, WcStatus::SUCCESS, "{completion:?}");
                    ids.push(completion.wr_id);
                    received.fetch_add(1, Ordering::Relaxed);
                },
            )
        });
        let sends = Poller::start(send_cq, (), |_, _, _| {}, |(), _| {});
        let preemption = Preemption::of(&[&pollers[0].thread, &pollers[1].thread]);
        let (mut posted, mut sent) = (0, 0);
        for round in rounds(50) {
            while recv(&mut srq.queue, posted, bed.sge()) {
                posted += 1;
                assert!(posted <= sent + capacity, "more receives than slots");
            }
            let (sender, _) = &mut senders[round as usize % 2];
            while sent < posted && bed.send(&mut sender.sq, sent, Operation::Send).is_ok() {
                sent += 1;
            }
        }
        wait_until("a receive for each message", || received.load(Ordering::Relaxed) == sent);
        drop(preemption);
        sends.finish();
        let ids: Vec<u64> = pollers.map(Poller::finish).into_iter().flat_map(|(_, ids)| ids).collect();
        let once: HashSet<_> = ids.iter().copied().collect();
        assert_eq!((ids.len() as u64, once.len() as u64), (sent, sent), "each came once");
        assert!(once.iter().all(|id| *id < posted));
        // Every slot is free again.
        while recv(&mut srq.queue, posted, bed.sge()) {
            posted += 1;
        }
        assert_eq!(posted, sent + capacity);
        assert!(sent > 0);
    }
}
