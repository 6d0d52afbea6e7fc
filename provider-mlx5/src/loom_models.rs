//! Models of what owners of queues and pollers share, for `cargo xtask loom`.
//!
//! The queues are the real ones. loom runs each model once for every order of accesses that matters and that its bound on
//! preemptions allows. What the device does is done by hand: entries are written before the threads start, or by the
//! poller between two polls.

use std::sync::Arc;

use bareverbs_provider::contract::{Completion, CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{RecvRequest, Sge, WcStatus};
use loom::thread;

use crate::cqe::CqeOpcode;
use crate::recv::Mlx5Rq;
use crate::scene::{LOG, Scene, poll, recv, send};
use crate::testing::{Plain, resize};

/// Runs a model with at most so many preemptions.
fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    builder.check(run);
}

fn resets_sends_against_polling(known: bool) {
    model(3, move || {
        let scene = if known { Scene::known() } else { Scene::new(false) };
        let Scene { mut device, mut cq, mut sq, rq, user_index, _context, .. } = scene;
        let block = u16::from(known);
        send(&mut sq, 1).expect("room");
        device.completes(CqeOpcode::REQ, user_index, block);
        let poller = thread::spawn(move || {
            // Before the reset or after it: what is told is of the request that was complete.
            assert!(matches!(poll(&mut cq), None | Some(1)));
            cq
        });
        // SAFETY: no kernel and no device has the queue.
        unsafe { sq.reset() };
        send(&mut sq, 2).expect("room after a reset");
        send(&mut sq, 3).expect("room after a reset");
        assert!(send(&mut sq, 4).is_err(), "neither is complete");
        let mut cq = poller.join().expect("polling does not panic");
        assert!(matches!(poll(&mut cq), None), "nothing of before the reset");
        assert!(send(&mut sq, 4).is_err(), "neither is complete");
        device.completes(CqeOpcode::REQ, user_index, 0);
        assert_eq!(poll(&mut cq), Some(2));
        send(&mut sq, 4).expect("room for one");
        assert!(send(&mut sq, 5).is_err(), "and for no more");
        drop((sq, rq));
    });
}

#[test]
fn reset_against_poll_of_sends_on_the_slow_path() {
    resets_sends_against_polling(false);
}

#[test]
fn reset_against_poll_of_sends_on_the_fast_path() {
    resets_sends_against_polling(true);
}

fn resets_receives_against_polling(known: bool) {
    model(3, move || {
        let scene = if known { Scene::known() } else { Scene::new(false) };
        let Scene { mut device, mut cq, sq, mut rq, user_index, _context, .. } = scene;
        recv(&mut rq, 1, &[]).expect("room");
        device.completes(CqeOpcode::RESP_SEND, user_index, 0);
        let poller = thread::spawn(move || {
            assert!(matches!(poll(&mut cq), None | Some(1)));
            cq
        });
        // SAFETY: no kernel and no device has the queue.
        unsafe { rq.reset() };
        recv(&mut rq, 2, &[]).expect("room after a reset");
        assert!(recv(&mut rq, 3, &[]).is_err(), "it is not complete");
        let mut cq = poller.join().expect("polling does not panic");
        assert!(matches!(poll(&mut cq), None), "nothing of before the reset");
        assert!(recv(&mut rq, 3, &[]).is_err(), "it is not complete");
        device.completes(CqeOpcode::RESP_SEND, user_index, 0);
        assert_eq!(poll(&mut cq), Some(2));
        recv(&mut rq, 3, &[]).expect("room for one");
        assert!(recv(&mut rq, 4, &[]).is_err(), "and for no more");
        drop((sq, rq));
    });
}

#[test]
fn reset_against_poll_of_receives_on_the_slow_path() {
    resets_receives_against_polling(false);
}

#[test]
fn reset_against_poll_of_receives_on_the_fast_path() {
    resets_receives_against_polling(true);
}

#[test]
fn two_resets_against_polls() {
    model(2, || {
        let Scene { mut device, mut cq, mut sq, mut rq, user_index, _context, .. } = Scene::new(false);
        recv(&mut rq, 1, &[]).expect("room");
        device.completes(CqeOpcode::RESP_SEND, user_index, 0);
        let poller = thread::spawn(move || {
            // The second poll finds the queue empty, and shows what was reset.
            for _ in 0..2 {
                assert!(matches!(poll(&mut cq), None | Some(1)));
            }
            cq
        });
        // SAFETY: no kernel and no device has the queue.
        unsafe { rq.reset() };
        recv(&mut rq, 2, &[]).expect("room after a reset");
        // SAFETY: no kernel and no device has the queue.
        unsafe { rq.reset() };
        recv(&mut rq, 3, &[]).expect("room after a reset");
        assert!(recv(&mut rq, 4, &[]).is_err(), "it is not complete");
        let mut cq = poller.join().expect("polling does not panic");
        assert!(matches!(poll(&mut cq), None));
        device.completes(CqeOpcode::RESP_SEND, user_index, 0);
        assert_eq!(poll(&mut cq), Some(3));
        recv(&mut rq, 4, &[]).expect("room for one");
        sq.abort();
    });
}

/// What a poller copies to receives, as loom's threads see it.
struct Landing(Box<[u8; 4]>);

impl Landing {
    fn new() -> (Self, Sge) {
        let mut landing = Self(Box::new([0; 4]));
        let sge = Sge { addr: landing.0.as_mut_ptr().expose_provenance() as u64, length: 4, lkey: 1 };
        (landing, sge)
    }

    fn bytes(&mut self) -> &mut [u8; 4] {
        // The poller writes by an address, of which the compiler knows nothing.
        std::hint::black_box(&mut self.0)
    }
}

/// Ends the queue while a message for one of its receives is polled.
fn ends_against_delivering(ends: fn(&mut Option<Mlx5Rq>)) {
    model(3, move || {
        let Scene { mut device, mut cq, sq, mut rq, user_index, _context, .. } = Scene::new(true);
        let (mut landing, sge) = Landing::new();
        recv(&mut rq, 1, &[sge]).expect("room");
        device.writes(CqeOpcode::RESP_SEND, user_index, 0, b"abcd");
        let poller = thread::spawn(move || {
            let told = cq.next().map(|completion| (completion.wr_id(), completion.status()));
            // A poller that has found the queue may find that its receives were taken back.
            assert!(matches!(told, None | Some((1, WcStatus::SUCCESS | WcStatus::GENERAL_ERR))), "{told:?}");
            cq.release();
            cq
        });
        let mut rq = Some(rq);
        ends(&mut rq);
        let arrived = *landing.bytes();
        assert!([*b"abcd", [0; 4]].contains(&arrived), "a whole message or none: {arrived:?}");
        // The memory is its owner's again.
        *landing.bytes() = [7; 4];
        drop(poller.join().expect("polling does not panic"));
        assert_eq!(*landing.bytes(), [7; 4], "nothing was written to it");
        drop((sq, rq));
    });
}

#[test]
fn drop_against_deliver() {
    ends_against_delivering(|rq| drop(rq.take()));
}

#[test]
fn abandon_against_deliver() {
    ends_against_delivering(|rq| rq.as_mut().expect("receives").abandon());
}

#[test]
fn reset_against_deliver() {
    model(3, || {
        let Scene { mut device, mut cq, sq, mut rq, user_index, _context, .. } = Scene::new(true);
        let (mut landing, sge) = Landing::new();
        let (mut other, new_sge) = Landing::new();
        recv(&mut rq, 1, &[sge]).expect("room");
        device.writes(CqeOpcode::RESP_SEND, user_index, 0, b"abcd");
        let poller = thread::spawn(move || {
            let told = cq.next().map(|completion| completion.wr_id());
            assert!(matches!(told, None | Some(1)), "{told:?}");
            cq.release();
            cq
        });
        // SAFETY: no kernel and no device has the queue.
        unsafe { rq.reset() };
        *landing.bytes() = [7; 4];
        recv(&mut rq, 2, &[new_sge]).expect("room after a reset");
        let mut cq = poller.join().expect("polling does not panic");
        assert_eq!(
            (*landing.bytes(), *other.bytes()),
            ([7; 4], [0; 4]),
            "the message of before is discarded"
        );
        assert!(cq.next().is_none());
        device.writes(CqeOpcode::RESP_SEND, user_index, 0, b"efgh");
        assert_eq!(poll(&mut cq), Some(2));
        assert_eq!((*landing.bytes(), *other.bytes()), ([7; 4], *b"efgh"));
        drop((sq, rq));
    });
}

/// Destroys a queue pair while its completions are polled, and a device that lies writes more of them. Those of its receives
/// come to another queue, which is polled too, so that the record goes as soon as it may.
fn destroys_against_polling(known: bool) {
    model(3, move || {
        let scene = Scene::with(false, true);
        let Scene { mut device, mut cq, mut sq, rq, user_index, recv_cq, _context } = scene;
        let mut recv_cq = recv_cq.expect("a second queue");
        if known {
            send(&mut sq, 0).expect("room");
            device.completes(CqeOpcode::REQ, user_index, 0);
            assert_eq!(poll(&mut cq), Some(0));
        }
        send(&mut sq, 1).expect("room");
        device.completes(CqeOpcode::REQ, user_index, u16::from(known));
        let poller = thread::spawn(move || {
            let told = cq.next().map(|completion| (completion.wr_id(), completion.status()));
            assert!(matches!(told, None | Some((1, WcStatus::SUCCESS))), "{told:?}");
            cq.release();
            // Finds nothing, and drops the dead.
            assert!(cq.next().is_none());
            for _ in 0..2 {
                device.completes(CqeOpcode::REQ, user_index, 0);
                // An entry of a queue that is no more, or that is just being destroyed.
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
fn destroy_against_poll_on_the_slow_path() {
    destroys_against_polling(false);
}

#[test]
fn destroy_against_poll_on_the_fast_path() {
    destroys_against_polling(true);
}

#[test]
fn srq_slots_complete_while_the_owner_collects() {
    model(3, || {
        let context = Plain::new(2).expect("memory");
        let mut srq = context.srq(3, 1).expect("memory").queue;
        let post = |srq: &mut crate::srq::Mlx5Srq, wr_id| {
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
fn resize_against_reset_and_poll() {
    model(2, || {
        let Scene { mut device, mut cq, mut sq, rq, user_index, _context, .. } = Scene::known();
        send(&mut sq, 1).expect("room");
        device.completes(CqeOpcode::REQ, user_index, 1);
        let poller = thread::spawn(move || {
            resize(&mut cq, LOG + 1, |ring| device.moves(ring, LOG + 1)).expect("memory");
            assert!(matches!(poll(&mut cq), None | Some(1)));
            (cq, device)
        });
        // SAFETY: no kernel and no device has the queue.
        unsafe { sq.reset() };
        send(&mut sq, 2).expect("room after a reset");
        send(&mut sq, 3).expect("room after a reset");
        assert!(send(&mut sq, 4).is_err(), "neither is complete");
        let (mut cq, mut device) = poller.join().expect("polling does not panic");
        device.completes(CqeOpcode::REQ, user_index, 0);
        assert_eq!(poll(&mut cq), Some(2), "nothing of before the reset, and all of after it");
        assert_eq!(poll(&mut cq), None);
        drop((sq, rq));
    });
}
