//! QPs are destroyed on one thread while other threads poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::preempt::Preemption;
use crate::testbed::{DEPTH, Kind, Poller, Testbed, recv, rounds, wait_until};

const GENERATION: u32 = 32;

#[test]
fn destroyed_qp_has_no_completions_and_its_uidx_is_reused() {
    for cqe_version in [0, 1] {
        let bed = Testbed::of_version(cqe_version);
        let (cq, other) = (bed.cq(10), bed.cq(10));
        let handles = [cq.handle(), other.handle()];
        let generation = Arc::new(AtomicU64::new(0));
        let polled = Arc::new(AtomicU64::new(0));
        let pollers = [cq, other].map(|cq| {
            let (now, count) = (Arc::clone(&generation), Arc::clone(&polled));
            Poller::start(
                cq,
                0,
                move |_, current, _| *current = now.load(Ordering::Acquire),
                move |current, completion| {
                    assert!(
                        completion.wr_id >> GENERATION >= *current,
                        "{completion:?} is of a destroyed QP"
                    );
                    count.fetch_add(1, Ordering::Relaxed);
                },
            )
        });
        let preemption = Preemption::of(&[&pollers[0].thread, &pollers[1].thread]);
        for round in rounds(10) {
            let id = |number: u32| (round - 1) << GENERATION | u64::from(number);
            let [first, second] = &handles;
            // Sends and receives complete on two CQs, or both on one.
            let cqs = if round % 2 == 0 { [first, second] } else { [first, first] };
            let [mut left, mut right] = bed.connected(&Kind { cqs, ..Kind::plain(first) });
            let before = polled.load(Ordering::Relaxed);
            for number in 0..DEPTH {
                assert!(recv(right.rq.as_mut().expect("receives"), id(number), bed.sge()));
                bed.send(&mut left.sq, id(number), bareverbs_provider::work::Operation::Send).expect("room");
            }
            if round == 1 {
                wait_until("a completion", || polled.load(Ordering::Relaxed) > before);
            }
            for _ in 0..200 {
                if polled.load(Ordering::Relaxed) > before + round % 16 {
                    break;
                }
                std::thread::yield_now();
            }
            drop(left);
            drop(right);
            generation.store(round, Ordering::Release);
            pollers.iter().for_each(Poller::let_poll);
        }
        drop(preemption);
        pollers.into_iter().for_each(|poller| drop(poller.finish()));
        assert!(polled.load(Ordering::Relaxed) > 0, "nothing was polled");
    }
}
