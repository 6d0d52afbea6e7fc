//! Drain, error, reset.

use std::time::Instant;

use bareverbs::cq::CqInit;
use bareverbs::device::EventType;
use bareverbs::error::{PostReason, PushError};
use bareverbs::qp::{Operation, Payload, Qp, QpCap, QpInit, QpState, Rc, SendFlags, SendRequest};
use bareverbs::values::RnrRetry;
use bareverbs::{Access, AsyncEvent, WcOpcode, WcStatus};
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, Side, domain, join, pair, region, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, kernel_test};

use super::{event, plan_with_depth, recv, settle};

#[kernel_test(device::sqd)]
fn sqd_completes_started_sends_and_holds_the_rest() {
    nothing_leaks(|| {
        let pd = domain();
        let plan = Plan::default();
        let (mut a, mut b) = (side(&pd, plan), side(&pd, plan));
        a.qp = pd
            .create_qp::<Rc>(&QpInit { cap: plan.cap, user_data: 4711, ..QpInit::new(&a.cq, &a.cq) })
            .unwrap();
        join(&mut a, &mut b);
        b.recv_into(0, 8, &[]);

        let send = |wr_id| request(wr_id, Operation::Send, Payload::Sges(&[]));
        a.send(&[send(1), send(2)]).unwrap();
        a.qp.drain().unwrap();
        assert_eq!(a.qp.state(), QpState::SQD);
        let drained = event(pd.context(), |event| matches!(event, AsyncEvent::Qp { .. }));
        assert_eq!(drained, AsyncEvent::Qp { event: EventType::SQ_DRAINED, user_data: 4711 });
        let reported = a.qp.query().unwrap().0;
        assert_eq!((reported.qp_state, reported.sq_draining), (QpState::SQD, false));

        // Started requests are complete. The others wait, together with the ones posted now.
        a.send(&[send(3), send(4)]).unwrap();
        settle();
        let mut ended: Vec<_> = std::iter::from_fn(|| a.cq.poll_one()).map(|wc| wc.wr_id).collect();
        assert!(ended.len() <= 2, "requests after the drain were carried out: {ended:?}");
        a.qp.resume().unwrap();
        assert_eq!(a.kernel_state(), QpState::RTS);
        ended.extend(a.completions(4 - ended.len()).iter().map(|wc| wc.wr_id));
        assert_eq!(ended, [1, 2, 3, 4]);
        assert_eq!(b.completions(4).len(), 4);
    });
}

#[kernel_test(device::acknowledges)]
fn err_state_flushes_earlier_and_later_posts() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, _b) = pair(&pd, Plan { rnr_retry: RnrRetry::new(7).unwrap(), ..Plan::default() });
        a.recv_into(100, 3, &[]);
        // The peer has no receives, so they stay outstanding.
        let send = |wr_id| SendRequest {
            wr_id,
            operation: Operation::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[]),
        };
        a.send(&[send(1), send(2)]).unwrap();
        a.qp.set_error().unwrap();
        let mut ended = a.ends(5);
        ended.sort_by_key(|(wr_id, _)| *wr_id);
        let flushed: Vec<_> = [1, 2, 100, 101, 102].map(|wr_id| (wr_id, WcStatus::WR_FLUSH_ERR)).into();
        assert_eq!(ended, flushed);

        a.send(&[send(3)]).unwrap();
        assert_eq!(a.ends(1), [(3, WcStatus::WR_FLUSH_ERR)]);
        // The kernel flushes receives on the transition to ERR, not when one is posted.
        a.recv(&[recv(103, &[])]).unwrap();
        a.qp.set_error().unwrap();
        assert_eq!(a.ends(1), [(103, WcStatus::WR_FLUSH_ERR)]);
    });
}

#[kernel_test]
fn err_state_flushes_lists_of_any_length() {
    nothing_leaks(|| {
        let pd = domain();
        let cap = QpCap { max_send_wr: 3, ..QpCap::default() };
        let (mut a, _b) = pair(&pd, Plan { cap, ..Plan::default() });
        a.qp.set_error().unwrap();
        let send = |wr_id| request(wr_id, Operation::Send, Payload::Sges(&[]));
        let capacity = u64::from(a.qp.split().0.capacity());
        let mut next = 0;
        for count in (1..=capacity).rev().chain(1..=capacity).chain([capacity; 4]).chain([2; 8]) {
            let batch: Vec<_> = (next..next + count).map(send).collect();
            post_when_there_is_room(&mut a, &batch);
            let flushed: Vec<_> = (next..next + count).map(|wr_id| (wr_id, WcStatus::WR_FLUSH_ERR)).collect();
            assert_eq!(a.ends(count as usize), flushed);
            next += count;
        }
    });
}

/// From Linux 6.4 on, Soft-RoCE completes a flushed request before it releases the slot
/// (`flush_send_queue` of `rxe_comp.c`).
fn post_when_there_is_room(side: &mut Side, mut requests: &[SendRequest<'_>]) {
    let begin = Instant::now();
    while let Err(error) = side.send(requests) {
        assert!(matches!(error.reason, PostReason::Queue(PushError::QueueFull { .. })), "{error}");
        assert!(begin.elapsed() < TIMEOUT, "the slots of flushed requests are not given back: {error}");
        requests = &requests[error.accepted..];
    }
}

#[kernel_test(device::moves_qps)]
fn query_qp_reports_every_state() {
    nothing_leaks(|| {
        let pd = domain();
        let plan = Plan::default();
        let (mut a, b) = (side(&pd, plan), side(&pd, plan));
        let reported = |qp: &Qp<Rc>, state| {
            let (attr, init) = qp.query().unwrap();
            assert_eq!((attr.qp_state, qp.state()), (state, state));
            assert_eq!(attr.cap.max_inline_data, init.cap.max_inline_data);
            attr
        };
        reported(&a.qp, QpState::RESET);
        let (rtr, rts) = (a.towards(b.qp.qp_num()), a.sending());
        a.qp.init(&bareverbs::qp::InitAttr { access: ALL_REMOTE, ..bareverbs::qp::InitAttr::new(1) })
            .unwrap();
        assert_eq!(reported(&a.qp, QpState::INIT).access, device::reported_access(ALL_REMOTE));
        a.qp.ready_to_receive(&rtr).unwrap();
        let attr = reported(&a.qp, QpState::RTR);
        assert_eq!(
            (attr.dest_qp_num, attr.ah_attr.grh.map(|grh| grh.dgid)),
            (b.qp.qp_num(), rtr.address.grh.map(|grh| grh.dgid))
        );
        a.qp.ready_to_send(&rts).unwrap();
        let attr = reported(&a.qp, QpState::RTS);
        assert_eq!(
            (attr.timeout, attr.retry_cnt, attr.rnr_retry),
            (rts.timeout, rts.retry_cnt, rts.rnr_retry)
        );
        if device::sqd().is_ok() {
            a.qp.drain().unwrap();
            reported(&a.qp, QpState::SQD);
        }
        a.qp.set_error().unwrap();
        reported(&a.qp, QpState::ERR);
        a.qp.reset().unwrap();
        reported(&a.qp, QpState::RESET);
    });
}

#[kernel_test(device::moves_qps)]
fn reset_with_outstanding_sends_discards_them() {
    nothing_leaks(|| {
        let pd = domain();
        // RNR retries are unlimited. The peer grants no remote access, so a write that is executed
        // after the reset would move it to ERR.
        let plan =
            Plan { rnr_retry: RnrRetry::new(7).unwrap(), access: Access::LOCAL_WRITE, ..plan_with_depth(3) };
        let (mut a, mut b) = (side(&pd, plan), side(&pd, plan));
        let capacity = a.qp.split().0.capacity();
        for under_way in (0..=capacity).chain([capacity, 1]) {
            join(&mut a, &mut b);
            for i in 0..under_way {
                a.send(&[request(i.into(), Operation::Send, Payload::Sges(&[]))]).unwrap();
            }
            settle();
            a.qp.reset().unwrap();
            b.qp.reset().unwrap();
            join(&mut a, &mut b);
            b.recv_into(0, 2, &[]);
            for wr_id in [70, 71] {
                a.send(&[request(wr_id, Operation::Send, Payload::Sges(&[]))]).unwrap();
            }
            assert_eq!(a.ends(2), [(70, WcStatus::SUCCESS), (71, WcStatus::SUCCESS)]);
            assert_eq!(b.ends(2), [(0, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)]);
            a.qp.reset().unwrap();
            b.qp.reset().unwrap();
            assert_eq!((a.cq.poll_one(), b.cq.poll_one()), (None, None));
        }
    });
}

#[kernel_test(device::moves_qps)]
fn reset_restarts_rings_from_any_position() {
    nothing_leaks(|| {
        let pd = domain();
        let plan = plan_with_depth(5);
        let (mut a, mut b) = (side(&pd, plan), side(&pd, plan));
        let target = region(&pd, &[0; 8], ALL_REMOTE);
        let sges = [target.sge(..).unwrap()];
        for round in 0..20u64 {
            join(&mut a, &mut b);
            let count = round % 5 + 1;
            b.recv_into(round * 10, count, &sges);
            let bytes = round.to_ne_bytes();
            for i in 0..count {
                a.send(&[request(i, Operation::Send, Payload::Inline(&[&bytes]))]).unwrap();
            }
            assert_eq!(a.completions(count as usize).len(), count as usize);
            for (i, wc) in b.completions(count as usize).iter().enumerate() {
                assert_eq!((wc.wr_id, wc.opcode), (round * 10 + i as u64, WcOpcode::RECV));
            }
            let mut found = [0; 8];
            target.read(0, &mut found).unwrap();
            assert_eq!(found, bytes);

            // All posted requests are discarded without a completion.
            let capacity = b.qp.cap().max_recv_wr.into();
            b.recv_into(1000, (round * 3 + 1) % capacity + 1, &[]);
            a.recv_into(2000, capacity, &[]);
            a.qp.reset().unwrap();
            b.qp.reset().unwrap();
            assert_eq!((a.cq.poll_one(), b.cq.poll_one()), (None, None));
        }
    });
}

#[kernel_test]
fn unsignaled_sends_keep_the_free_slot_count() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, b) = pair(&pd, plan_with_depth(20));
        let target = region(&pd, &[0; 8], ALL_REMOTE);
        let remote = target.remote(0).unwrap();
        let capacity = a.qp.cap().max_send_wr as usize;
        let (mut written, mut rounds) = (0u64, 0);
        while written < 10_000 {
            rounds += 1;
            // All earlier requests are complete, so the capacity is exactly the queue's depth.
            let mut batch = a.qp.start_send();
            for i in 0..capacity {
                written += 1;
                let last = i + 1 == capacity;
                let flags = if last { SendFlags::SIGNALED } else { SendFlags::empty() };
                batch.write_inline(written, remote, &written.to_ne_bytes(), flags).unwrap();
            }
            batch
                .write_inline(0, remote, &[0; 8], SendFlags::empty())
                .expect_err("one more than the queue holds");
            batch.ring().unwrap();
            assert_eq!(a.ends(1), [(written, WcStatus::SUCCESS)]);
            let mut found = [0; 8];
            target.read(0, &mut found).unwrap();
            assert_eq!(u64::from_ne_bytes(found), written);

            // Also one by one. On a device with a consumer index, slots are freed without a
            // completion.
            let run = if device::has_rxe_abi() { rounds % 7 * capacity } else { capacity - 1 };
            let begin = Instant::now();
            for _ in 0..run {
                let bytes = (written + 1).to_ne_bytes();
                loop {
                    let mut batch = a.qp.start_send();
                    let room = batch.write_inline(0, remote, &bytes, SendFlags::empty()).is_ok();
                    batch.ring().unwrap();
                    if room {
                        break;
                    }
                    assert!(begin.elapsed() < TIMEOUT, "room was lost");
                }
                written += 1;
            }
            written += 1;
            let mut batch = a.qp.start_send();
            while batch.write_inline(written, remote, &written.to_ne_bytes(), SendFlags::SIGNALED).is_err() {
                assert!(begin.elapsed() < TIMEOUT, "room was lost");
            }
            batch.ring().unwrap();
            assert_eq!(a.ends(1), [(written, WcStatus::SUCCESS)]);
        }
        assert_eq!(a.cq.poll_one(), None);
        drop(b);
    });
}

#[kernel_test]
fn signal_all_completes_every_send() {
    nothing_leaks(|| {
        let pd = domain();
        let plan = plan_with_depth(40);
        let (mut a, mut b) = (side(&pd, plan), side(&pd, plan));
        let cq = pd.context().create_cq(&CqInit::new(100)).unwrap();
        let init = QpInit { cap: plan.cap, signal_all: true, ..QpInit::new(&cq, &cq) };
        a.qp = pd.create_qp::<Rc>(&init).unwrap();
        a.cq = cq;
        join(&mut a, &mut b);
        assert!(a.qp.query().unwrap().1.signal_all);
        b.recv_into(0, 40, &[]);
        let mut batch = a.qp.start_send();
        for wr_id in 0..40 {
            batch.send_inline(wr_id, b"", SendFlags::empty()).unwrap();
        }
        batch.ring().unwrap();
        assert!(a.ends(40).into_iter().eq((0..40).map(|wr_id| (wr_id, WcStatus::SUCCESS))));
    });
}
