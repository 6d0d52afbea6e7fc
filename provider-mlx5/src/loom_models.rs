//! Loom models of the state that owners of queues and pollers share, for `cargo xtask loom`.
//!
//! The models use the real queues. loom runs each model once for every relevant order of accesses
//! within its preemption bound. The model plays the device: CQEs are written before the threads
//! start, or by the poller between two polls.

mod barriers;
mod destroy;
mod srq;

use bareverbs_provider::traits::{Completion, CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{Sge, WcStatus};
use loom::thread;

use crate::cqe::CqeOpcode;
use crate::fixture::{Fixture, LOG, poll, recv, send};
use crate::rq::Mlx5Rq;
use crate::testing::resize;

/// Runs a model with at most `preemptions` preemptions.
fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    builder.check(run);
}

fn resets_sends_concurrent_with_polling(cached: bool) {
    model(3, move || {
        let fixture = if cached { Fixture::with_cached_records() } else { Fixture::new(false) };
        let Fixture { mut device, mut cq, mut sq, rq, user_index, _context, .. } = fixture;
        let block = u16::from(cached);
        send(&mut sq, 1).expect("room");
        device.write_cqe(CqeOpcode::REQ, user_index, block);
        let poller = thread::spawn(move || {
            // The poller reports only the completed request, before or after the reset.
            assert!(matches!(poll(&mut cq), None | Some(1)));
            cq
        });
        // SAFETY: no kernel and no device uses the queue.
        unsafe { sq.reset() };
        send(&mut sq, 2).expect("room after a reset");
        send(&mut sq, 3).expect("room after a reset");
        assert!(send(&mut sq, 4).is_err(), "neither is complete");
        let mut cq = poller.join().expect("polling does not panic");
        assert!(matches!(poll(&mut cq), None), "no request from before the reset");
        assert!(send(&mut sq, 4).is_err(), "neither is complete");
        device.write_cqe(CqeOpcode::REQ, user_index, 0);
        assert_eq!(poll(&mut cq), Some(2));
        send(&mut sq, 4).expect("room for one");
        assert!(send(&mut sq, 5).is_err(), "and for no more");
        drop((sq, rq));
    });
}

#[test]
fn reset_concurrent_with_poll_of_sends_on_the_slow_path() {
    resets_sends_concurrent_with_polling(false);
}

#[test]
fn reset_concurrent_with_poll_of_sends_on_the_fast_path() {
    resets_sends_concurrent_with_polling(true);
}

fn resets_receives_concurrent_with_polling(cached: bool) {
    model(3, move || {
        let fixture = if cached { Fixture::with_cached_records() } else { Fixture::new(false) };
        let Fixture { mut device, mut cq, sq, mut rq, user_index, _context, .. } = fixture;
        recv(&mut rq, 1, &[]).expect("room");
        device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
        let poller = thread::spawn(move || {
            assert!(matches!(poll(&mut cq), None | Some(1)));
            cq
        });
        // SAFETY: no kernel and no device uses the queue.
        unsafe { rq.reset() };
        recv(&mut rq, 2, &[]).expect("room after a reset");
        assert!(recv(&mut rq, 3, &[]).is_err(), "it is not complete");
        let mut cq = poller.join().expect("polling does not panic");
        assert!(matches!(poll(&mut cq), None), "no request from before the reset");
        assert!(recv(&mut rq, 3, &[]).is_err(), "it is not complete");
        device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
        assert_eq!(poll(&mut cq), Some(2));
        recv(&mut rq, 3, &[]).expect("room for one");
        assert!(recv(&mut rq, 4, &[]).is_err(), "and for no more");
        drop((sq, rq));
    });
}

#[test]
fn reset_concurrent_with_poll_of_receives_on_the_slow_path() {
    resets_receives_concurrent_with_polling(false);
}

#[test]
fn reset_concurrent_with_poll_of_receives_on_the_fast_path() {
    resets_receives_concurrent_with_polling(true);
}

#[test]
fn two_resets_concurrent_with_polls() {
    model(2, || {
        let Fixture { mut device, mut cq, mut sq, mut rq, user_index, _context, .. } = Fixture::new(false);
        recv(&mut rq, 1, &[]).expect("room");
        device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
        let poller = thread::spawn(move || {
            // The second poll finds the CQ empty and publishes the record again.
            for _ in 0..2 {
                assert!(matches!(poll(&mut cq), None | Some(1)));
            }
            cq
        });
        // SAFETY: no kernel and no device uses the queue.
        unsafe { rq.reset() };
        recv(&mut rq, 2, &[]).expect("room after a reset");
        // SAFETY: no kernel and no device uses the queue.
        unsafe { rq.reset() };
        recv(&mut rq, 3, &[]).expect("room after a reset");
        assert!(recv(&mut rq, 4, &[]).is_err(), "it is not complete");
        let mut cq = poller.join().expect("polling does not panic");
        assert!(matches!(poll(&mut cq), None));
        device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
        assert_eq!(poll(&mut cq), Some(3));
        recv(&mut rq, 4, &[]).expect("room for one");
        sq.abort();
    });
}

/// The memory of a receive, which the poller writes.
struct RecvBuffer(Box<[u8; 4]>);

impl RecvBuffer {
    fn new() -> (Self, Sge) {
        let mut recv_buffer = Self(Box::new([0; 4]));
        let sge = Sge { addr: recv_buffer.0.as_mut_ptr().expose_provenance() as u64, length: 4, lkey: 1 };
        (recv_buffer, sge)
    }

    fn bytes(&mut self) -> &mut [u8; 4] {
        // The poller writes through an address that the compiler can't trace.
        std::hint::black_box(&mut self.0)
    }
}

/// Ends the receive queue while a CQE with payload for one of its receives is polled.
fn ends_concurrent_with_scatter(ends: fn(&mut Option<Mlx5Rq>)) {
    model(3, move || {
        let Fixture { mut device, mut cq, sq, mut rq, user_index, _context, .. } = Fixture::new(true);
        let (mut recv_buffer, sge) = RecvBuffer::new();
        recv(&mut rq, 1, &[sge]).expect("room");
        device.write_cqe_with_payload(CqeOpcode::RESP_SEND, user_index, 0, b"abcd");
        let poller = thread::spawn(move || {
            let completion = cq.next().map(|completion| (completion.wr_id(), completion.status()));
            // A poller that has found the record may find the receive taken back.
            assert!(
                matches!(completion, None | Some((1, WcStatus::SUCCESS | WcStatus::GENERAL_ERR))),
                "{completion:?}"
            );
            cq.release();
            cq
        });
        let mut rq = Some(rq);
        ends(&mut rq);
        let arrived = *recv_buffer.bytes();
        assert!([*b"abcd", [0; 4]].contains(&arrived), "a whole message or none: {arrived:?}");
        // The owner may use the memory again.
        *recv_buffer.bytes() = [7; 4];
        drop(poller.join().expect("polling does not panic"));
        assert_eq!(*recv_buffer.bytes(), [7; 4], "nothing was written to it");
        drop((sq, rq));
    });
}

#[test]
fn drop_concurrent_with_scatter() {
    ends_concurrent_with_scatter(|rq| drop(rq.take()));
}

#[test]
fn abandon_concurrent_with_scatter() {
    ends_concurrent_with_scatter(|rq| rq.as_mut().expect("receives").abandon());
}

#[test]
fn reset_concurrent_with_scatter() {
    model(3, || {
        let Fixture { mut device, mut cq, sq, mut rq, user_index, _context, .. } = Fixture::new(true);
        let (mut recv_buffer, sge) = RecvBuffer::new();
        let (mut other, new_sge) = RecvBuffer::new();
        recv(&mut rq, 1, &[sge]).expect("room");
        device.write_cqe_with_payload(CqeOpcode::RESP_SEND, user_index, 0, b"abcd");
        let poller = thread::spawn(move || {
            let completion = cq.next().map(|completion| completion.wr_id());
            assert!(matches!(completion, None | Some(1)), "{completion:?}");
            cq.release();
            cq
        });
        // SAFETY: no kernel and no device uses the queue.
        unsafe { rq.reset() };
        *recv_buffer.bytes() = [7; 4];
        recv(&mut rq, 2, &[new_sge]).expect("room after a reset");
        let mut cq = poller.join().expect("polling does not panic");
        assert_eq!(
            (*recv_buffer.bytes(), *other.bytes()),
            ([7; 4], [0; 4]),
            "the earlier message is discarded"
        );
        assert!(cq.next().is_none());
        device.write_cqe_with_payload(CqeOpcode::RESP_SEND, user_index, 0, b"efgh");
        assert_eq!(poll(&mut cq), Some(2));
        assert_eq!((*recv_buffer.bytes(), *other.bytes()), ([7; 4], *b"efgh"));
        drop((sq, rq));
    });
}

#[test]
fn resize_concurrent_with_reset_and_poll() {
    model(2, || {
        let Fixture { mut device, mut cq, mut sq, rq, user_index, _context, .. } =
            Fixture::with_cached_records();
        send(&mut sq, 1).expect("room");
        device.write_cqe(CqeOpcode::REQ, user_index, 1);
        let poller = thread::spawn(move || {
            resize(&mut cq, LOG + 1, |ring| device.write_resize_cqe(ring, LOG + 1)).expect("memory");
            assert!(matches!(poll(&mut cq), None | Some(1)));
            (cq, device)
        });
        // SAFETY: no kernel and no device uses the queue.
        unsafe { sq.reset() };
        send(&mut sq, 2).expect("room after a reset");
        send(&mut sq, 3).expect("room after a reset");
        assert!(send(&mut sq, 4).is_err(), "neither is complete");
        let (mut cq, mut device) = poller.join().expect("polling does not panic");
        device.write_cqe(CqeOpcode::REQ, user_index, 0);
        assert_eq!(poll(&mut cq), Some(2), "only requests posted after the reset");
        assert_eq!(poll(&mut cq), None);
        drop((sq, rq));
    });
}
