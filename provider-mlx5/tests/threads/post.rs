//! One thread posts while another polls.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bareverbs_provider::work::{Operation, WcStatus};

use crate::preempt::Preemption;
use crate::testbed::{Kind, Poller, Testbed, recv, rounds, wait_until};

#[test]
fn requests_of_several_qps_complete_once_and_in_order() {
    for cqe_version in [0, 1] {
        let bed = Testbed::of_version(cqe_version);
        let cq = bed.cq(9);
        let handle = cq.handle();
        let mut pairs: Vec<_> = (0..4)
            .map(|number| bed.connected(&Kind { own_page: number % 2 == 0, ..Kind::plain(&handle) }))
            .collect();
        let polled = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&polled);
        // The next id of each queue, by the high 32 bits of the work request id.
        let poller = Poller::start(
            cq,
            HashMap::<u64, u64>::new(),
            |_, _, _| {},
            move |next, completion| {
                assert_eq!(completion.status, WcStatus::SUCCESS, "{completion:?}");
                let expected = next.entry(completion.wr_id >> 32).or_default();
                assert_eq!(completion.wr_id & 0xffff_ffff, *expected, "of queue {}", completion.wr_id >> 32);
                *expected += 1;
                count.fetch_add(1, Ordering::Relaxed);
            },
        );
        let preemption = Preemption::of(&[&poller.thread]);
        let mut posted = [[0u64; 2]; 4];
        for _ in rounds(50) {
            for (index, [left, right]) in pairs.iter_mut().enumerate() {
                let id = |side: u64, number: u64| (2 * index as u64 + side) << 32 | number;
                let [sends, receives] = &mut posted[index];
                let rq = right.rq.as_mut().expect("receives");
                while *receives < *sends + 8 && recv(rq, id(1, *receives), bed.sge()) {
                    *receives += 1;
                }
                if *sends < *receives && bed.send(&mut left.sq, id(0, *sends), Operation::Send).is_ok() {
                    *sends += 1;
                }
            }
        }
        let sends: u64 = posted.iter().map(|[sends, _]| *sends).sum();
        wait_until("a send and a receive of each message", || polled.load(Ordering::Relaxed) == 2 * sends);
        drop(preemption);
        let (_cq, next) = poller.finish();
        for (index, [sends, _]) in (0..).zip(posted) {
            assert_eq!([next[&(2 * index)], next[&(2 * index + 1)]], [sends, sends]);
        }
    }
}
