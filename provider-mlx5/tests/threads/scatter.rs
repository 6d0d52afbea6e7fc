//! Scatter to CQE on QPs that are destroyed or reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bareverbs_provider::copy::{copy_in, copy_out};
use bareverbs_provider::work::{Operation, Sge};

use crate::preempt::Preemption;
use crate::testbed::{DEPTH, Kind, Poller, Testbed, recv, rounds};

/// Content of receive memory after its QP is destroyed or reset.
const CANARY: u8 = 0xca;

#[test]
fn receive_memory_is_not_written_after_drop_or_reset() {
    let bed = Testbed::new();
    let cq = bed.cq(10);
    let handle = cq.handle();
    let polled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&polled);
    let poller = Poller::start(
        cq,
        (),
        |_, (), _| {},
        move |(), _| {
            count.fetch_add(1, Ordering::Relaxed);
        },
    );
    let preemption = Preemption::of(&[&poller.thread]);
    for round in rounds(10) {
        let mut pairs = bed.connected(&Kind { scatters: true, ..Kind::plain(&handle) });
        // Only the poller writes this memory; the device does not.
        let mut memory = vec![0u8; 8 * DEPTH as usize];
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let before = polled.load(Ordering::Relaxed);
        let [left, right] = &mut pairs;
        for number in 0..DEPTH {
            let sge = Sge { addr: start + u64::from(8 * number), length: 8, lkey: bed.sge().lkey };
            assert!(recv(right.rq.as_mut().expect("receives"), u64::from(number), sge));
            bed.send(&mut left.sq, u64::from(number), Operation::Send).expect("room");
        }
        for _ in 0..200 {
            if polled.load(Ordering::Relaxed) > before + round % 16 {
                break;
            }
            std::thread::yield_now();
        }
        if round % 2 == 0 {
            bed.reset(&mut pairs);
            memory.fill(CANARY);
            std::thread::yield_now();
            assert!(memory.iter().all(|byte| *byte == CANARY), "written after reset {round}");
            drop(pairs);
        } else {
            drop(pairs);
            memory.fill(CANARY);
            std::thread::yield_now();
            assert!(memory.iter().all(|byte| *byte == CANARY), "written after drop {round}");
        }
        poller.let_poll();
    }
    drop(preemption);
    poller.finish();
}

/// `Mr::read` and `Mr::write` use these copies.
#[test]
fn receive_memory_may_be_copied_while_the_poller_writes_it() {
    let bed = Testbed::new();
    let cq = bed.cq(10);
    let handle = cq.handle();
    let polled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&polled);
    let poller = Poller::start(
        cq,
        (),
        |_, (), _| {},
        move |(), _| {
            count.fetch_add(1, Ordering::Relaxed);
        },
    );
    let mut pairs = bed.connected(&Kind { scatters: true, ..Kind::plain(&handle) });
    let mut memory = vec![CANARY; 16];
    // The SGE begins within a word, so the poller copies single bytes and the copies below a word.
    let start = memory.as_mut_ptr().expose_provenance() + 3;
    let (mut posted, mut arrived) = (0, 0);
    for round in rounds(50) {
        let [left, right] = &mut pairs;
        let sge = Sge { addr: start as u64, length: 8, lkey: bed.sge().lkey };
        if posted == polled.load(Ordering::Relaxed) / 2
            && recv(right.rq.as_mut().expect("receives"), round, sge)
        {
            bed.send(&mut left.sq, round, Operation::Send).expect("room");
            posted += 1;
        }
        let mut bytes = [0; 8];
        // SAFETY: the bytes lie in `memory`, which is otherwise accessed by the poller only.
        unsafe { copy_out(std::ptr::with_exposed_provenance(start), &mut bytes) };
        // The message is zeros.
        assert!(bytes.iter().all(|byte| [0, CANARY].contains(byte)), "{bytes:?}");
        if bytes == [0; 8] {
            arrived += 1;
            // SAFETY: the bytes lie in `memory`, which is otherwise accessed by the poller only.
            unsafe { copy_in(&[CANARY; 8], std::ptr::with_exposed_provenance_mut(start)) };
        }
    }
    assert!(arrived > 0, "{posted} messages were sent");
    drop(pairs);
    poller.finish();
    drop(memory);
}
