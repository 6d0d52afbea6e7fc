use bareverbs_provider::traits::{CompletionQueue, RecvQueue, SendQueue};
use bareverbs_uapi::uverbs::types::QpType;

use crate::cqe::CqeOpcode;
use crate::fixture::{CAP, Fixture, LOG, NUMBER, poll, recv, send};
use crate::sync::Ordering;
use crate::testing::resize;

#[test]
fn cqes_from_before_reset_stay_discarded_after_resize() {
    let Fixture { mut device, mut cq, mut sq, rq, user_index, .. } = Fixture::with_cached_records();
    send(&mut sq, 1).expect("room");
    device.write_cqe(CqeOpcode::REQ, user_index, 1);
    // SAFETY: no kernel and no device uses the queue.
    unsafe { sq.reset() };
    resize(&mut cq, LOG + 1, |ring| device.write_resize_cqe(ring, LOG + 1)).expect("memory");
    send(&mut sq, 2).expect("room after a reset");
    device.write_cqe(CqeOpcode::REQ, user_index, 0);
    assert_eq!((poll(&mut cq), poll(&mut cq)), (Some(2), None));
    drop(rq);
}

#[test]
fn reset_after_resize_discards_moved_cqes() {
    let Fixture { mut device, mut cq, mut sq, rq, user_index, .. } = Fixture::with_cached_records();
    send(&mut sq, 1).expect("room");
    device.write_cqe(CqeOpcode::REQ, user_index, 1);
    resize(&mut cq, LOG + 1, |ring| device.write_resize_cqe(ring, LOG + 1)).expect("memory");
    // SAFETY: no kernel and no device uses the queue.
    unsafe { sq.reset() };
    send(&mut sq, 2).expect("room after a reset");
    device.write_cqe(CqeOpcode::REQ, user_index, 0);
    assert_eq!((poll(&mut cq), poll(&mut cq)), (Some(2), None));
    drop(rq);
}

#[test]
fn reset_counts_cqes_under_the_poll_lock() {
    let Fixture { mut device, mut cq, mut sq, rq, user_index, .. } = Fixture::with_cached_records();
    send(&mut sq, 1).expect("room");
    let lock = cq.shared().retired();
    std::thread::scope(|scope| {
        // SAFETY: no kernel and no device uses the queue.
        let owner = scope.spawn(|| unsafe { sq.reset() });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!owner.is_finished(), "the owner waits for the lock");
        device.write_cqe(CqeOpcode::REQ, user_index, 1);
        drop(lock);
    });
    assert_eq!(poll(&mut cq), None, "posted before the reset");
    assert!(cq.shared().retired().reset.is_empty());
    drop(rq);
}

#[test]
fn reset_qp_leaves_retired_list_within_one_round() {
    let Fixture { mut device, mut cq, mut sq, mut rq, user_index, .. } = Fixture::new(false);
    // SAFETY: no kernel and no device uses the queue.
    unsafe { sq.reset() };
    device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
    for id in 0..2 << LOG {
        recv(&mut rq, id, &[]).expect("room for one");
        // The next CQE is written before this one is polled.
        device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
        assert_eq!(poll(&mut cq), Some(id));
    }
    assert!(cq.shared().retired().reset.is_empty());
    cq.release();
}

#[test]
fn reset_queues_have_their_full_capacity() {
    let Fixture { mut device, mut cq, mut sq, mut rq, user_index, .. } = Fixture::with_cached_records();
    for id in 0..3 {
        // SAFETY: no kernel and no device has the queue.
        unsafe {
            sq.reset();
            rq.reset();
        }
        assert!((0..2).all(|_| send(&mut sq, id).is_ok()) && send(&mut sq, id).is_err());
        assert!(recv(&mut rq, id, &[]).is_ok() && recv(&mut rq, id, &[]).is_err());
    }
    device.write_cqe(CqeOpcode::REQ, user_index, 1);
    device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
    assert_eq!((poll(&mut cq), poll(&mut cq), poll(&mut cq)), (Some(2), Some(2), None));
    assert!((0..2).all(|_| send(&mut sq, 9).is_ok()) && send(&mut sq, 9).is_err());
    assert!(recv(&mut rq, 9, &[]).is_ok() && recv(&mut rq, 9, &[]).is_err());
}

#[test]
fn uidx_of_destroyed_qp_is_reused_after_empty_poll() {
    // The fixture's table has indices for two queue pairs. The fixture itself uses one of them.
    let Fixture { mut cq, sq, rq, _context: context, .. } = Fixture::new(false);
    for round in 0..10 {
        let parts = context.qp(QpType::RC, &CAP, &cq, &cq, None);
        let parts = parts.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        let queues = parts.finish(NUMBER + 1, false).expect("memory");
        assert!(context.qp(QpType::RC, &CAP, &cq, &cq, None).is_err(), "no index is left");
        drop(queues);
        // Completions of the destroyed queue pair may be in the ring until it is empty.
        assert!(context.qp(QpType::RC, &CAP, &cq, &cq, None).is_err(), "the index is in use");
        assert_eq!(poll(&mut cq), None);
        assert!(cq.shared().retired().destroyed.is_empty());
    }
    drop((sq, rq));
}

#[test]
fn never_empty_cq_releases_destroyed_qps_within_two_rounds() {
    // The fixture's table has indices for two queue pairs. The fixture itself uses one of them.
    let Fixture { mut device, mut cq, sq, mut rq, user_index, _context: context, .. } = Fixture::new(false);
    let mut id = 0;
    let mut poll_one = |cq: &mut _, device: &mut crate::fixture::Device| {
        recv(&mut rq, id, &[]).expect("room for one");
        device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
        assert_eq!(poll(cq), Some(id));
        id += 1;
    };
    device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
    for round in 0..5 {
        let parts = context.qp(QpType::RC, &CAP, &cq, &cq, None);
        let parts = parts.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        let other = parts.user_index();
        let queues = parts.finish(NUMBER + 1, false).expect("memory");
        // In one of the rounds the completion of the destroyed queue pair is after the end of the
        // ring.
        (0..round).for_each(|_| poll_one(&mut cq, &mut device));
        device.write_cqe(CqeOpcode::REQ, other, 0);
        drop(queues);
        assert!(context.qp(QpType::RC, &CAP, &cq, &cq, None).is_err(), "the index is in use");
        (0..3 << LOG).for_each(|_| poll_one(&mut cq, &mut device));
        assert!(cq.shared().retired().destroyed.is_empty());
        assert!(!cq.shared().has_retired.load(Ordering::Relaxed));
    }
    drop((sq, rq));
}

#[test]
fn resized_cq_still_discards_cqes_of_destroyed_qp() {
    let Fixture { mut device, mut cq, mut sq, mut rq, user_index, _context: context, .. } =
        Fixture::with_cached_records();
    let parts = context.qp(QpType::RC, &CAP, &cq, &cq, None).expect("an index");
    let other = parts.user_index();
    let queues = parts.finish(NUMBER + 1, false).expect("memory");
    // The next two CQEs reach the end of the ring. The last CQE but one belongs to the destroyed
    // queue pair.
    for (wr_id, block) in [(1, 1), (2, 2)] {
        send(&mut sq, wr_id).expect("room");
        device.write_cqe(CqeOpcode::REQ, user_index, block);
    }
    drop(queues);
    assert_eq!((poll(&mut cq), poll(&mut cq)), (Some(1), Some(2)));
    recv(&mut rq, 3, &[]).expect("room");
    device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
    assert_eq!(poll(&mut cq), Some(3));
    let until = cq.shared().retired().destroyed[0].1.expect("noted at the ring's end");
    device.write_cqe(CqeOpcode::REQ, other, 0);
    resize(&mut cq, LOG + 1, |ring| device.write_resize_cqe(ring, LOG + 1)).expect("memory");
    assert_eq!(cq.shared().retired().destroyed[0].1, Some(until + 1));
    assert_eq!(poll(&mut cq), None);
    assert!(cq.shared().retired().destroyed.is_empty());
}

#[test]
fn empty_poll_shows_reset_qp_again() {
    let Fixture { mut device, mut cq, mut sq, mut rq, user_index, .. } = Fixture::with_cached_records();
    for id in 0..3 {
        // SAFETY: no kernel and no device uses the queue.
        unsafe {
            sq.reset();
            rq.reset();
        }
        assert_eq!(cq.shared().retired().reset.len(), 2);
        assert_eq!(poll(&mut cq), None);
        assert!(cq.shared().retired().reset.is_empty());
        assert!(!cq.shared().has_retired.load(Ordering::Relaxed));
        send(&mut sq, id).expect("room after a reset");
        recv(&mut rq, 10 + id, &[]).expect("room after a reset");
        device.write_cqe(CqeOpcode::REQ, user_index, 0);
        device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
        assert_eq!((poll(&mut cq), poll(&mut cq), poll(&mut cq)), (Some(id), Some(10 + id), None));
    }
}
