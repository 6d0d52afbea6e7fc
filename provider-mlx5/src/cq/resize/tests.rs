use std::time::Duration;

use bareverbs_provider::traits::{CompletionQueue, SendQueue};

use super::Mlx5Cq;
use crate::cqe::CqeOpcode;
use crate::doorbell::Word;
use crate::fixture::{Device, Fixture, LOG, poll, send};
use crate::testing::resize;

/// Arms the CQ and returns the event number in the arm command.
fn arm(cq: &mut Mlx5Cq, solicited_only: bool) -> u32 {
    cq.arm(solicited_only).expect("a write to memory");
    cq.shared.doorbell.get(Word::Second) >> 28
}

fn move_to(cq: &mut Mlx5Cq, device: &mut Device, log: u32) {
    resize(cq, log, |ring| device.write_resize_cqe(ring, log)).expect("memory");
}

#[test]
fn resize_does_not_count_as_event() {
    for solicited_only in [false, true] {
        let Fixture { mut device, mut cq, sq: _sq, rq: _rq, .. } = Fixture::new(false);
        for log in [LOG + 1, LOG, LOG, LOG + 2] {
            assert_eq!(arm(&mut cq, solicited_only), 0);
            move_to(&mut cq, &mut device, log);
        }
        assert_eq!(arm(&mut cq, solicited_only), 0);
    }
}

#[test]
fn events_before_and_after_resize_are_counted() {
    for (solicited_only, before) in [(false, false), (false, true), (true, false), (true, true)] {
        let Fixture { mut device, mut cq, sq: _sq, rq: _rq, user_index, .. } = Fixture::new(false);
        arm(&mut cq, solicited_only);
        if before {
            // An error raises an event in both arm states.
            device.write_cqe(CqeOpcode::REQ_ERR, user_index, 0);
        }
        move_to(&mut cq, &mut device, LOG + 1);
        if !before {
            device.write_cqe(CqeOpcode::REQ_ERR, user_index, 0);
        }
        assert!(cq.next().is_some());
        assert_eq!(arm(&mut cq, solicited_only), 1, "{solicited_only} {before}");
    }
}

#[test]
fn completions_that_are_not_solicited_move_without_an_event() {
    let Fixture { mut device, mut cq, mut sq, rq: _rq, user_index, .. } = Fixture::new(false);
    send(&mut sq, 1).expect("room");
    arm(&mut cq, true);
    device.write_cqe(CqeOpcode::REQ, user_index, 0);
    move_to(&mut cq, &mut device, LOG + 1);
    assert_eq!(arm(&mut cq, true), 0);
    assert_eq!(poll(&mut cq), Some(1));
    assert_eq!(arm(&mut cq, true), 0);
}

#[test]
fn no_queue_pair_is_reset_while_the_kernel_resizes_its_completion_queue() {
    let Fixture { mut device, mut cq, mut sq, rq, user_index, .. } = Fixture::with_cached_records();
    send(&mut sq, 1).expect("room");
    std::thread::scope(|scope| {
        let sq = &mut sq;
        resize(&mut cq, LOG + 1, |ring| {
            // SAFETY: no kernel and no device uses the queue.
            let owner = scope.spawn(|| unsafe { sq.reset() });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!owner.is_finished(), "the owner waits for the kernel");
            device.write_cqe(CqeOpcode::REQ, user_index, 1);
            device.write_resize_cqe(ring, LOG + 1);
        })
        .expect("memory");
    });
    assert_eq!(poll(&mut cq), None, "posted before the reset");
    drop(rq);
}

#[test]
fn consumer_index_is_published_before_resize_cqe_is_awaited() {
    let Fixture { mut device, mut cq, mut sq, rq: _rq, user_index, .. } = Fixture::new(false);
    send(&mut sq, 1).expect("room");
    device.write_cqe(CqeOpcode::REQ, user_index, 0);
    assert!(cq.next().is_some());
    let shared = std::sync::Arc::clone(cq.shared());
    resize(&mut cq, LOG, |ring| {
        assert_eq!(shared.doorbell.get(Word::First), 1);
        device.write_resize_cqe(ring, LOG);
    })
    .expect("memory");
    assert_eq!(shared.doorbell.get(Word::First), 2, "the mark takes a number");
}
