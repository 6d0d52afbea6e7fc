//! QPs are reset on one thread while another polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::preempt::Preemption;
use crate::testbed::{DEPTH, Kind, Poller, Testbed, recv, rounds};

/// Work request ids have the QP's generation in the high 32 bits.
const GENERATION: u32 = 32;

#[test]
fn reset_restores_capacity_and_discards_earlier_cqes() {
    for cqe_version in [0, 1] {
        let bed = Testbed::of_version(cqe_version);
        let cq = bed.cq(8);
        let handle = cq.handle();
        let mut pairs = bed.connected(&Kind::plain(&handle));
        // Completed resets. A poll that begins after a reset finds no earlier completion.
        let generation = Arc::new(AtomicU64::new(0));
        let (now, polled) = (Arc::clone(&generation), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&polled);
        let poller = Poller::start(
            cq,
            0,
            move |_, current, _| *current = now.load(Ordering::Acquire),
            move |current, completion| {
                assert!(completion.wr_id >> GENERATION >= *current, "{completion:?} is from before a reset");
                count.fetch_add(1, Ordering::Relaxed);
            },
        );
        let preemption = Preemption::of(&[&poller.thread]);
        let capacity = bareverbs_provider::traits::SendQueue::capacity(&pairs[0].sq);
        for round in rounds(50) {
            let id = |number: u32| (round - 1) << GENERATION | u64::from(number);
            let [left, right] = &mut pairs;
            for number in 0..DEPTH {
                assert!(recv(left.rq.as_mut().expect("receives"), id(number), bed.sge()));
                // Two writes per round exceed the capacity, so that the owner loads the poller's
                // count.
                let _ = bed.write(&mut left.sq, id(number));
                let _ = bed.write(&mut left.sq, id(number));
                let _ = bed.write(&mut right.sq, id(number));
            }
            // Waits until the poller has found some of the completions.
            let before = polled.load(Ordering::Relaxed);
            for _ in 0..1000 {
                if polled.load(Ordering::Relaxed) > before + round % 8 {
                    break;
                }
                std::hint::spin_loop();
            }
            bed.reset(&mut pairs);
            generation.store(round, Ordering::Release);
            // Nothing completes in RESET, so the queues have their full capacity. A poller that was
            // processing a CQE during the reset has finished after some polls.
            for is_polled in [false, true] {
                if is_polled {
                    poller.let_poll();
                }
                for pair in &mut pairs {
                    let sends = bed.room(&mut pair.sq);
                    assert_eq!(sends, capacity, "sends after {round} resets, polled: {is_polled}");
                }
            }
            let rq = pairs[0].rq.as_mut().expect("receives");
            let room = (0..2 * DEPTH).take_while(|_| recv(rq, round << GENERATION, bed.sge())).count();
            assert_eq!(room, DEPTH as usize, "receives after {round} resets");
            // SAFETY: the queue pair is still in RESET.
            unsafe { bareverbs_provider::traits::RecvQueue::reset(rq) };
            let [left, right] = &pairs;
            bed.connect(left, right);
        }
        drop(preemption);
        poller.finish();
    }
}
