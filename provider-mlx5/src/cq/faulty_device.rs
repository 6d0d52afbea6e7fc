//! Tests: CQEs that match no outstanding request, and CQEs that are discarded.

use bareverbs_provider::traits::{Completion, CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Operation, Payload, PushError, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcStatus, WorkCompletion,
};
use bareverbs_uapi::uverbs::types::QpType;

use super::Mlx5Cq;
use crate::Mlx5Sq;
use crate::cqe::{CQE, CqeOpcode};
use crate::doorbell::Word;
use crate::fixture::{CAP, Device, Fixture, LOG, NUMBER, send};
use crate::testing::Plain;

/// More SGEs than any queue of these tests accepts.
const TOO_MANY_SGES: [Sge; 40] = [Sge { addr: 64, length: 8, lkey: 1 }; 40];

fn next(cq: &mut Mlx5Cq) -> Option<(u64, WcStatus)> {
    let found = cq.next().map(|completion| (completion.wr_id(), completion.status()));
    cq.release();
    found
}

fn push(sq: &mut Mlx5Sq, wr_id: u64, sges: &[Sge]) -> Result<(), PushError> {
    let operation = Operation::Write(Remote { addr: 64, rkey: 1 });
    let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(sges) };
    // SAFETY: no device accesses the memory.
    unsafe { sq.push(&request) }
}

fn post(rq: &mut impl RecvQueue, wr_id: u64, sges: &[Sge]) -> Result<(), PushError> {
    // SAFETY: no device accesses the memory.
    unsafe { rq.push(&RecvRequest { wr_id, sges }) }
}

#[test]
fn cqe_of_an_unused_send_slot_is_a_general_error() {
    let Fixture { mut device, mut cq, sq, rq, user_index, .. } = Fixture::new(false);
    device.write_cqe(CqeOpcode::REQ, user_index, 1);
    assert_eq!(next(&mut cq), Some((0, WcStatus::GENERAL_ERR)));
    drop((sq, rq));
}

#[test]
fn cqe_of_an_aborted_srq_receive_is_a_general_error() {
    let context = Plain::new(3).expect("memory");
    let parts = context.cq(LOG, CQE).expect("memory");
    let mut device = Device { ring: parts.ring(), log: LOG, next: 0 };
    let mut cq = parts.finish(1);
    let mut srq = context.srq(3, 1).expect("memory").queue;
    let qp = context.qp(QpType::RC, &CAP, &cq, &cq, Some(&srq)).expect("memory");
    let user_index = qp.user_index();
    let (sq, rq, _) = qp.finish(NUMBER, false).expect("memory");
    post(&mut srq, 77, &[]).expect("room");
    srq.abort();
    device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
    assert_eq!(next(&mut cq), Some((0, WcStatus::GENERAL_ERR)));
    drop((sq, rq));
}

#[test]
fn abort_after_an_early_cqe_leaves_a_send_queue_usable() {
    let Fixture { mut device, mut cq, mut sq, rq, user_index, .. } = Fixture::new(false);
    push(&mut sq, 1, &TOO_MANY_SGES[..1]).expect("room");
    push(&mut sq, 2, &TOO_MANY_SGES[..1]).expect("room");
    device.write_cqe(CqeOpcode::REQ, user_index, 1);
    next(&mut cq);
    assert!(push(&mut sq, 3, &TOO_MANY_SGES).is_err());
    sq.abort();
    assert_eq!((push(&mut sq, 4, &[]), push(&mut sq, 5, &[])), (Ok(()), Ok(())));
    drop(rq);
}

#[test]
fn abort_after_an_early_cqe_leaves_a_receive_queue_usable() {
    let Fixture { mut device, mut cq, sq, mut rq, user_index, .. } = Fixture::new(false);
    post(&mut rq, 1, &[]).expect("room");
    device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
    next(&mut cq);
    assert!(post(&mut rq, 3, &TOO_MANY_SGES).is_err());
    rq.abort();
    assert_eq!(post(&mut rq, 4, &[]), Ok(()));
    drop(sq);
}

#[test]
fn discarded_cqes_are_released_to_the_device() {
    let value = WorkCompletion::default();
    let polls: [fn(&mut Mlx5Cq, WorkCompletion) -> bool; 3] = [
        |cq, _| cq.next_value().is_none(),
        |cq, value| cq.next_values(&mut [value; 4]) == 0,
        |cq, _| cq.next().is_none(),
    ];
    for poll in polls {
        let Fixture { mut device, mut cq, mut sq, rq, user_index, .. } = Fixture::new(false);
        for block in 0..2 {
            send(&mut sq, u64::from(block)).expect("room");
            device.write_cqe(CqeOpcode::REQ, user_index, block);
        }
        drop((sq, rq));
        assert!(poll(&mut cq, value));
        assert_eq!(cq.shared.doorbell.get(Word::First), 2);
    }
}

#[test]
fn discard_completes_no_receive_of_another_srq() {
    let context = Plain::with_version(4, 0).expect("memory");
    let parts = context.cq(LOG, CQE).expect("memory");
    let mut device = Device { ring: parts.ring(), log: LOG, next: 0 };
    let mut cq = parts.finish(1);
    let [mut old_srq, mut new_srq] = [5, 6].map(|number| {
        let mut srq = context.srq(3, 1).expect("memory");
        srq.number(number);
        post(&mut srq.queue, 9, &[]).expect("room");
        srq.queue.ring();
        srq
    });
    let create = |srq: &mut crate::Mlx5Srq| {
        let qp = context.qp(QpType::RC, &CAP, &cq, &cq, Some(srq)).expect("memory");
        qp.finish(NUMBER, false).expect("memory")
    };
    let old = create(&mut old_srq.queue);
    // The CQE contains SRQN 5 instead of a user index.
    device.write_cqe(CqeOpcode::RESP_SEND, 5, 0);
    // The kernel has destroyed `old`; its owner has not dropped the queues yet.
    let new = create(&mut new_srq.queue);
    next(&mut cq);
    drop((old, new));
    assert_eq!(new_srq.queue.shared().complete(0), Some(9), "its receive is still posted");
}

/// The poller of the other CQ caches no record and so uses none after it was freed.
#[test]
fn two_cqs_with_one_cqn_do_not_share_records() {
    let context = Plain::new(8).expect("memory");
    let mut cq = context.cq(LOG, CQE).expect("memory").finish(1);
    let parts = context.cq(LOG, CQE).expect("memory");
    let mut device = Device { ring: parts.ring(), log: LOG, next: 0 };
    let mut other = parts.finish(1);
    let qp = context.qp(QpType::RC, &CAP, &cq, &cq, None).expect("memory");
    let user_index = qp.user_index();
    let (mut sq, rq, _) = qp.finish(NUMBER, false).expect("memory");
    send(&mut sq, 7).expect("room");
    // The device writes CQEs of the queue pair to the wrong CQ.
    device.write_cqe(CqeOpcode::REQ, user_index, 0);
    assert_eq!(next(&mut other), Some((0, WcStatus::GENERAL_ERR)));
    send(&mut sq, 8).expect("room");
    assert!(send(&mut sq, 9).is_err(), "no request is complete");
    drop((sq, rq));
    assert_eq!(next(&mut cq), None);
    device.write_cqe(CqeOpcode::REQ, user_index, 0);
    assert_eq!(next(&mut other), Some((0, WcStatus::GENERAL_ERR)));
}

#[test]
fn cq_tag_is_reused_only_when_no_queue_names_the_cq() {
    let context = Plain::new(8).expect("memory");
    let cq = context.cq(LOG, CQE).expect("memory").finish(1);
    let tag = cq.shared().tag();
    let (sq, rq, _) =
        context.qp(QpType::RC, &CAP, &cq, &cq, None).expect("memory").finish(NUMBER, false).expect("memory");
    drop(cq);
    let while_used = context.cq(LOG, CQE).expect("memory").finish(1);
    assert_ne!(while_used.shared().tag(), tag);
    drop((sq, rq));
    assert_eq!(context.cq(LOG, CQE).expect("memory").finish(1).shared().tag(), tag);
}

#[test]
#[should_panic(expected = "CQs of this context")]
fn cq_of_another_context_is_rejected() {
    let [context, other] = [3, 3].map(|queues| Plain::new(queues).expect("memory"));
    let cq = other.cq(LOG, CQE).expect("memory").finish(1);
    let _ = context.qp(QpType::RC, &CAP, &cq, &cq, None);
}
