//! Models of destroyed QPs and CQs.

use bareverbs_provider::traits::{Completion, CompletionQueue, SendQueue};
use bareverbs_provider::work::WcStatus;
use bareverbs_uapi::uverbs::types::QpType;
use loom::thread;

use super::model;
use crate::cqe::{CQE, CqeOpcode};
use crate::fixture::{CAP, Device, Fixture, LOG, NUMBER, poll, send};
use crate::testing::{CqRef, Plain};

/// Destroys a queue pair while its CQ is polled and a faulty device writes more CQEs of it. The
/// receive queue has a CQ of its own, which is polled too, so that the record is freed as early as
/// possible.
fn destroys_concurrent_with_polling(cached: bool, cqe_version: u8) {
    model(3, move || {
        let context = Plain::with_version(3, cqe_version).expect("memory");
        let fixture = Fixture::in_context(context, false, true);
        let Fixture { mut device, mut cq, mut sq, rq, user_index, recv_cq, _context } = fixture;
        let mut recv_cq = recv_cq.expect("a second queue");
        if cached {
            send(&mut sq, 0).expect("room");
            device.write_cqe(CqeOpcode::REQ, user_index, 0);
            assert_eq!(poll(&mut cq), Some(0));
        }
        send(&mut sq, 1).expect("room");
        device.write_cqe(CqeOpcode::REQ, user_index, u16::from(cached));
        let poller = thread::spawn(move || {
            let completion = cq.next().map(|completion| (completion.wr_id(), completion.status()));
            assert!(matches!(completion, None | Some((1, WcStatus::SUCCESS))), "{completion:?}");
            cq.release();
            // This poll finds the CQ empty and drops the destroyed QPs.
            assert!(cq.next().is_none());
            for _ in 0..2 {
                device.write_cqe(CqeOpcode::REQ, user_index, 0);
                // A CQE of a queue that was destroyed or is being destroyed.
                let _ = cq.next().map(|completion| completion.to_value());
                cq.release();
            }
            cq
        });
        drop((sq, rq));
        assert!(recv_cq.next().is_none());
        drop(poller.join().expect("polling does not panic"));
    });
}

#[test]
fn destroy_concurrent_with_poll_on_the_slow_path() {
    destroys_concurrent_with_polling(false, 1);
}

#[test]
fn destroy_concurrent_with_poll_on_the_fast_path() {
    destroys_concurrent_with_polling(true, 1);
}

#[test]
fn destroy_concurrent_with_poll_by_qpn() {
    destroys_concurrent_with_polling(false, 0);
}

/// With CQE version 0, CQEs name a QP by its QPN only, which the device gives to another QP.
#[test]
fn qpn_reuse_concurrent_with_poll() {
    model(3, || {
        let context = Plain::with_version(4, 0).expect("memory");
        let parts = context.cq(LOG, CQE).expect("memory");
        let mut device = Device { ring: parts.ring(), log: LOG, next: 0 };
        let mut cq = parts.finish(1);
        let name = CqRef::of(&cq);
        let qp = || {
            let parts = context.qp_beside_pollers(QpType::RC, &CAP, [&name, &name], None, false);
            let (sq, rq, _) = parts.expect("small").finish(NUMBER, false).expect("memory");
            (sq, rq)
        };
        let (mut sq, rq) = qp();
        send(&mut sq, 1).expect("room");
        device.write_cqe(CqeOpcode::REQ, 0, 0);
        let poller = thread::spawn(move || {
            assert!(matches!(poll(&mut cq), None | Some(1)));
            cq
        });
        drop((sq, rq));
        let (mut sq, rq) = qp();
        send(&mut sq, 2).expect("room");
        let mut cq = poller.join().expect("polling does not panic");
        assert_eq!(poll(&mut cq), None, "the CQE is the destroyed QP's");
        device.write_cqe(CqeOpcode::REQ, 0, 0);
        assert_eq!(poll(&mut cq), Some(2));
        drop((sq, rq));
    });
}

/// Drops a CQ while the owner of a QP that completes there calls `end`. Checks that the user index
/// of the QP is free again at the end.
fn cq_drop_concurrent_with(end: fn(&mut crate::sq::Mlx5Sq)) {
    model(3, move || {
        let Fixture { mut device, cq, mut sq, rq, user_index, recv_cq, _context: context, .. } =
            Fixture::with(false, true);
        send(&mut sq, 1).expect("room");
        device.write_cqe(CqeOpcode::REQ, user_index, 0);
        let closer = thread::spawn(move || drop(cq));
        end(&mut sq);
        drop((sq, rq));
        closer.join().expect("dropping does not panic");
        drop(recv_cq);
        let cq = context.cq(LOG, CQE).expect("memory").finish(3);
        let qps = [0, 1].map(|_| context.qp(QpType::RC, &CAP, &cq, &cq, None).expect("a free user index"));
        assert!(qps.iter().any(|qp| qp.user_index() == user_index));
    });
}

#[test]
fn cq_drop_concurrent_with_qp_drop() {
    cq_drop_concurrent_with(|_| ());
}

#[test]
fn cq_drop_concurrent_with_qp_reset() {
    cq_drop_concurrent_with(|sq| {
        // SAFETY: no kernel and no device uses the queue.
        unsafe { sq.reset() };
        send(sq, 2).expect("room after a reset");
        send(sq, 3).expect("room after a reset");
        assert!(send(sq, 4).is_err(), "neither is complete");
    });
}
