//! Models of shared receive queues.

use std::sync::Arc;

use bareverbs_provider::traits::{Completion, CompletionQueue, RecvQueue};
use bareverbs_provider::work::{RecvRequest, WcStatus};
use bareverbs_uapi::uverbs::types::QpType;
use loom::thread;

use super::model;
use crate::cq::Mlx5Cq;
use crate::cqe::{CQE, CqeOpcode};
use crate::fixture::{CAP, Device, LOG, NUMBER, poll};
use crate::sq::Mlx5Sq;
use crate::srq::Mlx5Srq;
use crate::testing::Plain;

/// Posts a receive; whether there was room.
fn post(srq: &mut Mlx5Srq, wr_id: u64) -> bool {
    // SAFETY: there is no device that would access the memory.
    let pushed = unsafe { srq.push(&RecvRequest { wr_id, sges: &[] }) };
    srq.ring();
    pushed.is_ok()
}

/// A CQ, a QP that completes there and takes its receives from an SRQ, and the device.
struct Member {
    device: Device,
    cq: Mlx5Cq,
    sq: Mlx5Sq,
    user_index: u32,
}

impl Member {
    fn new(context: &Plain, number: u32, srq: &Mlx5Srq) -> Self {
        let parts = context.cq(LOG, CQE).expect("memory");
        let device = Device { ring: parts.ring(), log: LOG, next: 0 };
        let cq = parts.finish(number);
        let parts = context.qp(QpType::RC, &CAP, &cq, &cq, Some(srq)).expect("small");
        let user_index = parts.user_index();
        let (sq, _, _) = parts.finish(NUMBER + number, false).expect("memory");
        Self { device, cq, sq, user_index }
    }

    fn receives(&mut self, slot: u16) {
        self.device.write_cqe(CqeOpcode::RESP_SEND, self.user_index, slot);
    }
}

#[test]
fn srq_completion_concurrent_with_collect() {
    model(3, || {
        let context = Plain::new(2).expect("memory");
        let mut srq = context.srq(3, 1).expect("memory").queue;
        let post = |srq: &mut Mlx5Srq, wr_id| {
            let request = RecvRequest { wr_id, sges: &[] };
            // SAFETY: there is no device that would touch the memory.
            let pushed = unsafe { srq.push(&request) };
            srq.ring();
            pushed.is_ok()
        };
        assert!((0..3).all(|id| post(&mut srq, id)));
        let completers = [0, 1].map(|slot| {
            let shared = Arc::clone(srq.shared());
            thread::spawn(move || assert_eq!(shared.complete(slot), Some(u64::from(slot))))
        });
        let mut posted = (3..5).filter(|id| post(&mut srq, *id)).count();
        for completer in completers {
            completer.join().expect("completing does not panic");
        }
        posted += (5..8).filter(|id| post(&mut srq, *id)).count();
        assert_eq!(posted, 2, "every slot comes back once");
    });
}

#[test]
fn two_cqs_complete_receives_of_one_srq() {
    model(2, || {
        let context = Plain::new(3).expect("memory");
        let mut srq = context.srq(3, 1).expect("memory").queue;
        assert!((0..3).all(|id| post(&mut srq, id)));
        let members = [0, 1].map(|slot| {
            let mut member = Member::new(&context, 1 + u32::from(slot), &srq);
            member.receives(slot);
            member
        });
        let mut wr_id = 0..;
        let pollers = members.map(|Member { mut cq, sq, .. }| {
            let wr_id = wr_id.next();
            let poller = thread::spawn(move || {
                assert_eq!(poll(&mut cq), wr_id);
                cq
            });
            (poller, sq)
        });
        let mut posted = (3..5).filter(|id| post(&mut srq, *id)).count();
        let cqs = pollers.map(|(poller, sq)| (poller.join().expect("polling does not panic"), sq));
        posted += (5..8).filter(|id| post(&mut srq, *id)).count();
        assert_eq!(posted, 2, "each slot is returned once");
        drop(cqs);
    });
}

#[test]
fn srq_slot_returns_once_if_its_qp_is_destroyed() {
    model(3, || {
        let context = Plain::new(3).expect("memory");
        let mut srq = context.srq(3, 1).expect("memory").queue;
        assert!((0..3).all(|id| post(&mut srq, id)));
        let Member { mut device, mut cq, sq, user_index } = Member::new(&context, 1, &srq);
        device.write_cqe(CqeOpcode::RESP_SEND, user_index, 1);
        let poller = thread::spawn(move || {
            assert!(matches!(poll(&mut cq), None | Some(1)));
            assert_eq!(poll(&mut cq), None, "there is one CQE");
        });
        drop(sq);
        let mut posted = usize::from(post(&mut srq, 3));
        poller.join().expect("polling does not panic");
        posted += (4..6).filter(|id| post(&mut srq, *id)).count();
        assert_eq!(posted, 1, "the slot is returned once");
    });
}

#[test]
fn xrc_srq_destroy_concurrent_with_poll() {
    model(3, || {
        let context = Plain::new(2).expect("memory");
        let parts = context.cq(LOG, CQE).expect("memory");
        let mut device = Device { ring: parts.ring(), log: LOG, next: 0 };
        let mut cq = parts.finish(1);
        let mut parts = context.srq(1, 1).expect("memory");
        let user_index = parts.attach(&context, &cq).expect("a free user index");
        let mut srq = parts.queue;
        assert!(post(&mut srq, 1));
        device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
        let poller = thread::spawn(move || {
            let completion = cq.next().map(|completion| (completion.wr_id(), completion.status()));
            assert!(matches!(completion, None | Some((1, WcStatus::SUCCESS))), "{completion:?}");
            cq.release();
            // Releases the destroyed SRQ.
            assert!(cq.next().is_none());
            for _ in 0..2 {
                // A faulty device names the SRQ once more.
                device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
                let status = cq.next().map(|completion| completion.status());
                assert!(matches!(status, None | Some(WcStatus::GENERAL_ERR)), "{status:?}");
                cq.release();
            }
        });
        drop(srq);
        poller.join().expect("polling does not panic");
        context
            .srq(1, 1)
            .expect("memory")
            .attach(&context, &context.cq(LOG, CQE).expect("memory").finish(2))
            .expect("a free user index");
    });
}
