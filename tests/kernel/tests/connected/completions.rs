//! Completion queues: resize, sharing, separate queues, arming, overrun.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs::cq::{Arm, Completion, CqInit};
use bareverbs::qp::{Operation, Payload, Qp, QpInit, Rc, SendFlags, SendRequest, WrId};
use bareverbs::srq::SrqInit;
use bareverbs::{WcOpcode, WcStatus};
use bareverbs_kernel_tests::loopback::{
    ALL_REMOTE, Plan, domain, join, join_qp, pair, region, request, side, take,
};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, device, kernel_test};

use super::{plan_with_depth, settle};

#[kernel_test]
fn fenced_send_waits_for_the_previous_read() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let mut far = region(&pd, &[0; 4096], ALL_REMOTE);
        let (near, got) = (region(&pd, &[0; 4096], ALL_REMOTE), region(&pd, &[0; 4096], ALL_REMOTE));
        let (near_sge, got_sge) = ([near.sge(..).unwrap()], [got.sge(..).unwrap()]);
        for round in 1..=50u8 {
            far.write(0, &[round; 4096]).unwrap();
            b.recv_into(0, 1, &got_sge);
            let read = request(1, Operation::Read(far.remote(0).unwrap()), Payload::Sges(&near_sge));
            let send = request(2, Operation::Send, Payload::Sges(&near_sge));
            let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
            a.send(&[read, SendRequest { flags: fenced, ..send }]).unwrap();
            assert_eq!(a.ends(2), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
            b.completions(1);
            let mut found = [0; 4096];
            got.read(0, &mut found).unwrap();
            assert_eq!(found, [round; 4096]);
        }
    });
}

#[kernel_test(device::solicited_only)]
fn solicited_only_arm_ignores_other_completions() {
    nothing_leaks(|| {
        let pd = domain();
        let plan = Plan::default();
        let channel = pd.context().create_comp_channel().unwrap();
        let (mut a, mut b) = (side(&pd, plan), side(&pd, plan));
        let init = CqInit { channel: Some(&channel), user_data: 99, ..CqInit::new(32) };
        let cq = pd.context().create_cq(&init).unwrap();
        b.qp = pd.create_qp::<Rc>(&QpInit { cap: plan.cap, ..QpInit::new(&cq, &cq) }).unwrap();
        b.cq = cq;
        join(&mut a, &mut b);
        b.recv_into(0, 4, &[]);

        let send = |wr_id, more| SendRequest {
            flags: SendFlags::SIGNALED | more,
            ..request(wr_id, Operation::Send, Payload::Sges(&[]))
        };
        b.cq.arm(Arm::Solicited).unwrap();
        a.send(&[send(1, SendFlags::empty())]).unwrap();
        a.completions(1);
        settle();
        assert_eq!(channel.try_wait().unwrap(), None, "an unsolicited message does not wake");
        a.send(&[send(2, SendFlags::SOLICITED)]).unwrap();
        let event =
            channel.next().wait_timeout(TIMEOUT).transpose().unwrap().expect("a solicited message wakes");
        assert_eq!(event.user_data, 99);
        b.cq.arm(Arm::Any).unwrap();
        a.send(&[send(3, SendFlags::empty())]).unwrap();
        assert!(channel.next().wait_timeout(TIMEOUT).transpose().unwrap().is_some());
        assert_eq!((a.completions(2).len(), b.completions(3).len()), (2, 3));
    });
}

#[kernel_test(device::cq_resize)]
fn cq_resize_under_traffic_preserves_completions_in_order() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, _b) = pair(&pd, plan_with_depth(200));
        let target = region(&pd, &[0; 8], ALL_REMOTE);
        let remote = target.remote(0).unwrap();
        let depth = u64::from(a.cq.capacity().min(a.qp.cap().max_send_wr));
        let (mut posted, mut taken, mut sizes) = (0, 0, [700, 203, 4000, 250].iter().cycle());
        while taken < 2000 {
            let room = depth.min(200) - (posted - taken);
            let mut batch = a.qp.start_send();
            for _ in 0..room {
                batch.write_inline(posted, remote, &[1; 8], SendFlags::SIGNALED).unwrap();
                posted += 1;
            }
            batch.ring().unwrap();
            // The kernel adds completions during this loop. Some are polled before, some after.
            for _ in 0..3 {
                let asked = *sizes.next().unwrap();
                assert!(a.cq.resize(asked).unwrap() >= asked);
                let mut completions = a.cq.poll();
                for _ in 0..room / 4 {
                    let Some(completion) = completions.next() else { break };
                    assert_eq!((completion.wr_id(), completion.status()), (taken, WcStatus::SUCCESS));
                    taken += 1;
                }
            }
            if posted - taken == depth.min(200) {
                for wc in a.completions(1) {
                    assert_eq!((wc.wr_id, wc.status), (taken, WcStatus::SUCCESS));
                    taken += 1;
                }
            }
        }
        for wc in a.completions((posted - taken) as usize) {
            assert_eq!((wc.wr_id, wc.status), (taken, WcStatus::SUCCESS));
            taken += 1;
        }
        assert_eq!(a.cq.poll_one(), None);
    });
}

#[kernel_test(device::cq_resize)]
fn cq_resize_below_pending_completions_is_rejected() {
    // The sends complete at some time after the receives: with the acknowledgement.
    let times = [Duration::from_millis(100), Duration::from_secs(5)];
    assert!(nothing_leaks(|| times.into_iter().any(resize_below_pending_is_rejected)), "it holds 10");
}

/// Whether a CQ with 10 pending completions can't be resized to 5 entries after a time.
fn resize_below_pending_is_rejected(time: Duration) -> bool {
    let pd = domain();
    let (mut a, mut b) = pair(&pd, Plan::default());
    b.recv_into(0, 10, &[]);
    for wr_id in 0..10 {
        a.send(&[request(wr_id, Operation::Send, Payload::Sges(&[]))]).unwrap();
    }
    b.completions(10);
    sleep(time);
    let capacity = a.cq.capacity();
    let Err(refused) = a.cq.resize(5) else { return false };
    assert!(refused.to_string().contains("poll it first"), "{refused}");
    assert_eq!(a.cq.capacity(), capacity);
    assert!(a.cq.resize(0).is_err());
    assert!(matches!(a.cq.resize(1 << 30), Err(bareverbs::Error::Limit { .. })));
    assert!(a.ends(10).into_iter().eq((0..10).map(|wr_id| (wr_id, WcStatus::SUCCESS))));
    assert_eq!(a.cq.resize(1).unwrap(), 1);
    true
}

#[kernel_test(device::cq_resize)]
fn armed_cq_stays_armed_over_resize() {
    nothing_leaks(|| {
        let pd = domain();
        let plan = Plan::default();
        let channel = pd.context().create_comp_channel().unwrap();
        let (mut a, mut b) = (side(&pd, plan), side(&pd, plan));
        let cq = pd.context().create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(32) }).unwrap();
        a.qp = pd.create_qp::<Rc>(&QpInit { cap: plan.cap, ..QpInit::new(&cq, &cq) }).unwrap();
        a.cq = cq;
        join(&mut a, &mut b);
        b.recv_into(0, 1, &[]);
        a.cq.arm(Arm::Any).unwrap();
        a.cq.resize(500).unwrap();
        a.send(&[request(1, Operation::Send, Payload::Sges(&[]))]).unwrap();
        assert!(channel.next().wait_timeout(TIMEOUT).transpose().unwrap().is_some());
        assert_eq!(a.ends(1), [(1, WcStatus::SUCCESS)]);
    });
}

#[kernel_test]
fn two_qps_share_one_cq() {
    nothing_leaks(|| {
        let pd = domain();
        let plan = Plan::default();
        let mut cq = pd.context().create_cq(&CqInit::new(200)).unwrap();
        let qp = || pd.create_qp::<Rc>(&QpInit { cap: plan.cap, ..QpInit::new(&cq, &cq) }).unwrap();
        let mut ends = [side(&pd, plan), side(&pd, plan)];
        let mut qps = [qp(), qp()];
        for (qp, end) in qps.iter_mut().zip(&mut ends) {
            join_qp(end, qp);
            end.recv_into(0, 16, &[]);
        }
        for wr_id in 0..16 {
            for qp in &mut qps {
                let mut batch = qp.start_send();
                batch.send_inline(wr_id, b"", SendFlags::SIGNALED).unwrap();
                batch.ring().unwrap();
            }
        }
        for end in &mut ends {
            end.completions(16);
        }
        let all = take(&mut cq, 32);
        assert_eq!(cq.poll_one(), None);
        assert!(all.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{all:?}");
        for qp in &qps {
            let of_it = all.iter().filter(|wc| wc.qp_num == qp.qp_num()).map(|wc| wc.wr_id);
            assert!(of_it.eq(0..16), "each queue pair's completions are in its order: {all:?}");
        }
    });
}

#[kernel_test]
fn wr_id_owner_is_returned_with_completions() {
    nothing_leaks(|| {
        let pd = domain();
        let plan = Plan::default();
        let channel = pd.context().create_comp_channel().unwrap();
        let init = CqInit { channel: Some(&channel), user_data: u64::MAX, ..CqInit::new(200) };
        let mut cq = pd.context().create_cq(&init).unwrap();
        let srq = pd.create_srq(&SrqInit { user_data: 3, ..SrqInit::new(4) }).unwrap();
        let make = |user_data| -> Qp<Rc> {
            pd.create_qp(&QpInit { cap: plan.cap, user_data, ..QpInit::new(&cq, &cq) }).unwrap()
        };
        let mut ends = [side(&pd, plan), side(&pd, plan)];
        let mut qps = [make(17), make(u64::from(u32::MAX))];
        assert_eq!((cq.user_data(), srq.user_data()), (u64::MAX, 3));
        let number = |qp: &Qp<Rc>, request| WrId { owner: qp.user_data() as u32, request }.into();
        cq.arm(Arm::Any).unwrap();
        let mut all = Vec::new();
        for (qp, end) in qps.iter_mut().zip(&mut ends) {
            join_qp(end, qp);
            end.recv_into(0, 1, &[]);
            // SAFETY: the receives have no SGEs.
            unsafe { qp.post_recv(&[super::recv(number(qp, 0), &[]), super::recv(number(qp, 1), &[])]) }
                .unwrap();
            let sent = number(qp, u32::MAX);
            let mut batch = qp.start_send();
            batch.send_inline(sent, b"", SendFlags::SIGNALED).unwrap();
            batch.ring().unwrap();
            end.send(&[request(1, Operation::Send, Payload::Sges(&[]))]).unwrap();
            end.completions(2);
            all.extend(take(&mut cq, 2));
            // Only the id and the status of a flushed completion are valid.
            qp.set_error().unwrap();
            all.extend(take(&mut cq, 1));
        }
        let event =
            channel.next().wait_timeout(TIMEOUT).transpose().unwrap().expect("a completion raises it");
        assert_eq!(event.user_data, cq.user_data());
        for qp in &qps {
            let of_it = all.iter().filter(|wc| wc.qp_num == qp.qp_num());
            let mut found: Vec<_> = of_it.map(|wc| (WrId::from(wc.wr_id), wc.status)).collect();
            found.sort_unstable_by_key(|(number, _)| *number);
            let owner = qp.user_data() as u32;
            let due = [(0, WcStatus::SUCCESS), (1, WcStatus::WR_FLUSH_ERR), (u32::MAX, WcStatus::SUCCESS)];
            assert_eq!(found, due.map(|(request, status)| (WrId { owner, request }, status)));
        }
    });
}

#[kernel_test]
fn sends_and_receives_complete_in_separate_cqs() {
    nothing_leaks(|| {
        let pd = domain();
        let plan = Plan::default();
        let (mut a, mut b) = (side(&pd, plan), side(&pd, plan));
        let mut received = pd.context().create_cq(&CqInit::new(32)).unwrap();
        a.qp = pd.create_qp::<Rc>(&QpInit { cap: plan.cap, ..QpInit::new(&a.cq, &received) }).unwrap();
        join(&mut a, &mut b);
        a.recv_into(7, 1, &[]);
        b.recv_into(0, 1, &[]);
        a.send(&[request(1, Operation::Send, Payload::Sges(&[]))]).unwrap();
        b.send(&[request(2, Operation::Send, Payload::Sges(&[]))]).unwrap();
        b.completions(2);
        let sent = a.completions(1)[0];
        let begin = Instant::now();
        let got = loop {
            match received.poll_one() {
                Some(got) => break got,
                None => assert!(begin.elapsed() < TIMEOUT, "the receive's completion"),
            }
        };
        assert_eq!((sent.wr_id, sent.opcode), (1, WcOpcode::SEND));
        assert_eq!((got.wr_id, got.opcode), (7, WcOpcode::RECV));
        assert_eq!((a.cq.poll_one(), received.poll_one()), (None, None));
    });
}
