//! A UAR page shared by two threads, and armed CQs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use bareverbs_mlx5::doorbell::{DoorbellRecords, Word};
use bareverbs_provider::traits::CompletionQueue;
use bareverbs_provider::work::WcStatus;

use crate::testbed::{Kind, Testbed, rounds, wait_until};

#[test]
fn two_threads_share_a_uar_page() {
    let bed = Arc::new(Testbed::new());
    let threads = [1u64, 2].map(|thread| -> JoinHandle<()> {
        let bed = Arc::clone(&bed);
        std::thread::spawn(move || {
            let mut cq = bed.cq(6);
            let handle = cq.handle();
            let mut pairs = bed.connected(&Kind::plain(&handle));
            let (mut posted, mut next) = (0, 0);
            let take = |cq: &mut crate::testbed::Cq, round, next: &mut u64| {
                cq.poll(round, |completion| {
                    assert_eq!(
                        (completion.wr_id, completion.status),
                        (thread << 32 | *next, WcStatus::SUCCESS)
                    );
                    *next += 1;
                });
            };
            for round in rounds(50) {
                if bed.write(&mut pairs[0].sq, thread << 32 | posted).is_ok() {
                    posted += 1;
                }
                take(&mut cq, round as usize, &mut next);
                if round % 4 == 0 {
                    cq.queue.arm(round % 8 == 0).expect("doorbells are not refused");
                }
            }
            wait_until("all writes", || {
                take(&mut cq, 0, &mut next);
                next == posted
            });
            assert!(posted > 0);
        })
    });
    for thread in threads {
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

#[test]
fn armed_cq_raises_an_event_for_cqes_after_the_last_poll() {
    let bed = Arc::new(Testbed::new());
    let mut cq = bed.cq(8);
    let handle = cq.handle();
    let mut pairs = bed.connected(&Kind::plain(&handle));
    let polled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&polled);
    let events = Arc::clone(&bed.events);
    const LAST: u64 = u64::MAX;
    let poller = std::thread::spawn(move || {
        let (mut next, mut slept) = (0u64, 0);
        let mut ended = false;
        // The poller arms once per event. The register is host memory here and keeps only the last
        // doorbell, so the device would miss the arms in between. After four of them, the sequence
        // number of two bits would equal the one that the device has already answered.
        let mut before = None;
        while !ended {
            let now = events.load(Ordering::Relaxed);
            if before != Some(now) {
                before = Some(now);
                cq.queue.arm(false).expect("doorbells are not refused");
            }
            let mut found = 0;
            for round in 0..3 {
                cq.poll(round, |completion| {
                    assert_eq!(completion.status, WcStatus::SUCCESS);
                    ended |= completion.wr_id == LAST;
                    assert!(ended || completion.wr_id == next, "{completion:?} instead of {next}");
                    (next, found) = (next + 1, found + 1);
                    count.store(next, Ordering::Relaxed);
                });
            }
            if found == 0 {
                // A lost event is detected here, because nothing else wakes this thread.
                wait_until("an event", || Some(events.load(Ordering::Relaxed)) != before);
                slept += 1;
            }
        }
        slept
    });
    let mut posted = 0;
    for round in rounds(50) {
        for _ in 0..round % 4 {
            if bed.write(&mut pairs[0].sq, posted).is_ok() {
                posted += 1;
            }
        }
        if round % 3 == 0 {
            wait_until("what was posted", || polled.load(Ordering::Relaxed) == posted);
        }
    }
    wait_until("room for the last", || bed.write(&mut pairs[0].sq, LAST).is_ok());
    let slept = poller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(slept > 0, "the poller never slept");
}

#[test]
fn doorbell_record_is_stored_by_one_thread_and_loaded_by_another() {
    const LAST: u32 = 100_000;
    let record = DoorbellRecords::default().take().expect("memory");
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=LAST).for_each(|value| record.set(Word::First, value)));
        let mut before = 0;
        while before < LAST {
            let now = record.get(Word::First);
            assert!((before..=LAST).contains(&now), "{now} after {before}");
            before = now;
        }
    });
    assert_eq!(record.get(Word::Second), 0);
}
