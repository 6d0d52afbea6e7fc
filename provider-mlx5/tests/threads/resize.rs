//! A CQ is resized while other threads post to its QPs and reset them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bareverbs_provider::work::WcStatus;

use crate::preempt::Preemption;
use crate::testbed::{DEPTH, Kind, Poller, Testbed, rounds, wait_until};

#[test]
fn resize_preserves_each_cqe_once() {
    let bed = Testbed::new();
    let cq = bed.cq(6);
    let handle = cq.handle();
    let mut pairs = bed.connected(&Kind::plain(&handle));
    let mut reset = bed.connected(&Kind::plain(&handle));
    let polled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&polled);
    /// Marks work request ids of the QP that is reset repeatedly.
    const OTHERS: u64 = 1 << 63;
    let poller = Poller::start(
        cq,
        (0, 0),
        |cq, (_, resizes), round| {
            if round % 50 == 0 {
                cq.resize([7, 6, 9, 8][round / 50 % 4]);
                *resizes += 1;
            }
        },
        move |(next, _), completion| {
            if completion.wr_id & OTHERS == 0 {
                assert_eq!((completion.wr_id, completion.status), (*next, WcStatus::SUCCESS));
                *next += 1;
                count.store(*next, Ordering::Relaxed);
            }
        },
    );
    let preemption = Preemption::of(&[&poller.thread]);
    let mut posted = 0;
    for round in rounds(50) {
        while bed.write(&mut pairs[0].sq, posted).is_ok() {
            posted += 1;
        }
        let [left, _] = &mut reset;
        for _ in 0..DEPTH / 2 {
            let _ = bed.write(&mut left.sq, OTHERS | round);
        }
        bed.reset(&mut reset);
        poller.let_poll();
        let [left, right] = &reset;
        bed.connect(left, right);
    }
    wait_until("all writes", || polled.load(Ordering::Relaxed) == posted);
    drop(preemption);
    let (_cq, (next, resizes)) = poller.finish();
    assert_eq!(next, posted);
    assert!(resizes > 0);
}
