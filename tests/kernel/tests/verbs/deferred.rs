//! Deferred doorbells.

use std::time::Duration;

use bareverbs::WcStatus;
use bareverbs::cq::Completion;
use bareverbs::error::{PostReason, PushError};
use bareverbs::qp::{InitAttr, Payload, QpAttr, QpAttrMask, QpState};
use bareverbs_kernel_tests::{device, kernel_test};

use crate::pair::{End, message, pair, region};

/// Posts inline messages with these ids without a doorbell.
fn defer(end: &mut End, wr_ids: std::ops::Range<u64>) {
    for wr_id in wr_ids {
        // SAFETY: the requests are inline.
        unsafe { end.qp.post_send_deferred(&[message(wr_id, Payload::Inline(&[b"deferred"]))]) }.unwrap();
    }
}

/// Posts receives with these ids.
fn receive(end: &mut End, wr_ids: std::ops::Range<u64>) -> bareverbs::Mr<bareverbs::Buffer> {
    let target = region(end.qp.pd(), &[0; 8]);
    for wr_id in wr_ids {
        end.recv(wr_id, &target);
    }
    target
}

#[kernel_test(device::deferred_doorbells)]
fn deferred_sends_are_flushed_in_order() {
    let (_pd, mut a, mut b) = pair();
    let _target = receive(&mut b, 0..9);
    a.qp.flush().unwrap();
    defer(&mut a, 0..4);
    assert_eq!(a.qp.split().0.deferred(), 4);
    std::thread::sleep(Duration::from_millis(50));
    assert!(a.cq.poll_one().is_none(), "nothing was handed over");
    a.qp.flush().unwrap();
    assert_eq!(a.qp.split().0.deferred(), 0);
    assert!(a.completions(4).iter().map(|completion| completion.wr_id).eq(0..4));

    // A post without deferring publishes the deferred requests before its own.
    defer(&mut a, 4..6);
    a.send(&message(6, Payload::Inline(&[b"now"])));
    assert!(a.completions(3).iter().map(|completion| completion.wr_id).eq(4..7));

    // `flush_and_poll` does too.
    defer(&mut a, 7..9);
    let mut found = Vec::new();
    while found.len() < 2 {
        let mut completions = a.qp.flush_and_poll(&mut a.cq).unwrap();
        while let Some(completion) = completions.next() {
            assert_eq!(completion.status(), WcStatus::SUCCESS);
            found.push(completion.wr_id());
        }
    }
    assert_eq!(found, [7, 8]);
    assert!(b.completions(9).iter().all(|completion| completion.status == WcStatus::SUCCESS));
}

#[kernel_test]
fn dropped_batch_keeps_deferred_sends() {
    let (_pd, mut a, mut b) = pair();
    let _target = receive(&mut b, 0..2);
    defer(&mut a, 0..1);
    let mut batch = a.qp.start_send();
    batch.send_inline(7, b"dropped", bareverbs::qp::SendFlags::SIGNALED).unwrap();
    drop(batch);
    let mut batch = a.qp.start_send();
    batch.send_inline(1, b"kept", bareverbs::qp::SendFlags::SIGNALED).unwrap();
    batch.defer().unwrap();
    a.qp.flush().unwrap();
    assert!(a.completions(2).iter().map(|completion| completion.wr_id).eq(0..2));
}

#[kernel_test(device::deferred_doorbells)]
fn deferred_sends_fill_the_queue_until_they_are_flushed() {
    let (_pd, mut a, mut b) = pair();
    let room = u64::from(a.qp.split().0.capacity());
    let _target = receive(&mut b, 0..room.min(16));
    defer(&mut a, 0..room);
    // SAFETY: the request is inline.
    let refused = unsafe { a.qp.post_send_deferred(&[message(99, Payload::Inline(&[b"x"]))]) }.unwrap_err();
    assert_eq!(
        (refused.accepted, refused.reason),
        (0, PushError::QueueFull { capacity: room as u32 }.into())
    );
    a.qp.set_error().unwrap();
    a.qp.flush().unwrap();
    let ends = a.completions(room as usize);
    assert!(ends.iter().all(|completion| completion.status == WcStatus::WR_FLUSH_ERR), "{ends:?}");
}

#[kernel_test(device::deferred_doorbells)]
fn reset_discards_deferred_sends() {
    let (_pd, mut a, mut b) = pair();
    let _target = receive(&mut b, 0..1);
    defer(&mut a, 0..3);
    a.qp.modify(&QpAttr { qp_state: QpState::RESET, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    assert_eq!(a.qp.split().0.deferred(), 0);
    // SAFETY: the request is inline.
    let refused = unsafe { a.qp.post_send_deferred(&[message(4, Payload::Inline(&[b"deferred"]))]) };
    assert_eq!(refused.unwrap_err().reason, PostReason::State(QpState::RESET));
    a.qp.flush().unwrap();
    a.qp.init(&InitAttr::new(1)).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(a.cq.poll_one().is_none() && b.cq.poll_one().is_none());
}
