//! Asynchronous events of queue pairs: reading and counting them.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use bareverbs::cq::{Completion as _, CqInit};
use bareverbs::device::EventType;
use bareverbs::qp::{InitAttr, Operation, Payload, Qp, QpInit, QpState, Rc, RecvRequest};
use bareverbs::srq::SrqInit;
use bareverbs::{AsyncEvent, Error, Pd, Remote, WcStatus};
use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::loopback::{
    ALL_REMOTE, Plan, Side, domain, join, region, request, side, side_on,
};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Completion, Outcome, device, kernel_test, skip};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Time without an event after which none is expected.
const QUIET: Duration = Duration::from_millis(300);

/// A connected pair whose second side has this user data.
fn pair_with(pd: &Pd, user_data: u64) -> (Side, Side) {
    let plan = Plan::long_timeouts();
    let mut a = side(pd, plan);
    let mut b = side_on(pd, plan, pd.context().create_cq(&CqInit::new(64)).unwrap(), user_data);
    join(&mut a, &mut b);
    (a, b)
}

/// Raises SQ_DRAINED.
fn drain(side: &mut Side) {
    side.qp.drain().unwrap();
}

fn drained(user_data: u64) -> AsyncEvent {
    AsyncEvent::Qp { event: EventType::SQ_DRAINED, user_data }
}

#[kernel_test(device::acknowledges)]
fn access_violation_raises_qp_access_err() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        let events = pd.context().async_events();
        let (mut a, _b) = pair_with(&pd, 4712);
        let source = region(&pd, &[1; 8], ALL_REMOTE);
        let sges = [source.sge(..).unwrap()];
        let nowhere = Remote { addr: source.addr(), rkey: source.rkey() ^ 0xff00 };
        a.send(&[request(1, Operation::Write(nowhere), Payload::Sges(&sges))]).unwrap();
        assert_eq!(a.ends(1), [(1, WcStatus::REM_ACCESS_ERR)]);
        match events.next().wait_timeout(QUIET).transpose().unwrap() {
            Some(event) => {
                let expected = AsyncEvent::Qp { event: EventType::QP_ACCESS_ERR, user_data: 4712 };
                assert_eq!(event, expected);
                Ok(Completion::Completed)
            }
            None if pd.context().capabilities().odp => panic!("the event did not come"),
            None => {
                skip("this Soft-RoCE is older than the event: it has no memory on demand, which came before")
            }
        }
    })
}

#[kernel_test]
fn failed_qp_raises_last_wqe_reached() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        let events = pd.context().async_events();
        let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
        let srq = pd.create_srq(&SrqInit::new(4)).unwrap();
        let init = QpInit { srq: Some(&srq), user_data: 0xbeef, ..QpInit::new(&cq, &cq) };
        let mut qp: Qp<Rc> = pd.create_qp(&init).unwrap();
        qp.init(&InitAttr::new(1)).unwrap();
        qp.set_error().unwrap();
        assert_eq!(qp.state(), QpState::ERR);
        match events.next().wait_timeout(QUIET).transpose().unwrap() {
            Some(event) => {
                let expected = AsyncEvent::Qp { event: EventType::QP_LAST_WQE_REACHED, user_data: 0xbeef };
                assert_eq!(event, expected);
                Ok(Completion::Completed)
            }
            None if pd.context().capabilities().flush => panic!("the event did not come"),
            None => skip("this Soft-RoCE is older than the event: it has no flushes, which came before"),
        }
    })
}

#[kernel_test(device::sqd)]
fn async_events_are_read_by_polling_the_descriptor() {
    nothing_leaks(|| {
        let pd = domain();
        let events = pd.context().async_events();
        let (_a, mut b) = pair_with(&pd, 7);
        let readable = |timeout: Duration| {
            let timeout = PollTimeout::try_from(timeout).unwrap();
            poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], timeout).unwrap() == 1
        };
        assert!(!readable(Duration::ZERO));
        assert_eq!(events.try_wait().unwrap(), None, "and reading does not block");
        drain(&mut b);
        assert!(readable(TIMEOUT));
        assert_eq!(events.try_wait().unwrap(), Some(drained(7)));
        assert!(!readable(Duration::ZERO), "each event is read once");
    });
}

#[kernel_test(device::sqd)]
fn async_event_wakes_a_blocked_reader() {
    nothing_leaks(|| {
        let pd = domain();
        let events = pd.context().async_events();
        let (_a, mut b) = pair_with(&pd, 8);
        let reader = thread::spawn(move || events.next().wait().unwrap());
        thread::sleep(Duration::from_millis(50));
        assert!(!reader.is_finished());
        drain(&mut b);
        assert_eq!(reader.join().unwrap(), drained(8));
    });
}

#[kernel_test(device::sqd)]
fn destroy_returns_the_count_of_read_events() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context().clone();
        let events = context.async_events();
        let channel = context.create_comp_channel().unwrap();
        let plan = Plan::long_timeouts();
        let init = CqInit { channel: Some(&channel), user_data: 5, ..CqInit::new(64) };
        let mut a = side(&pd, plan);
        let mut b = side_on(&pd, plan, context.create_cq(&init).unwrap(), 6);
        join(&mut a, &mut b);

        // Three completion events, two of which are read, and one asynchronous event, which is
        // read.
        b.recv_into(0, 3, &[]);
        for number in 1..=3 {
            b.cq.arm(bareverbs::cq::Arm::Any).unwrap();
            a.send(&[request(number, Operation::Send, Payload::Sges(&[]))]).unwrap();
            a.ends(1);
            b.ends(1);
            if number < 3 {
                assert_eq!(channel.next().wait_timeout(TIMEOUT).unwrap().unwrap().user_data, 5);
            }
        }
        drain(&mut b);
        assert_eq!(events.next().wait_timeout(TIMEOUT).transpose().unwrap(), Some(drained(6)));

        let Side { qp, cq, .. } = b;
        assert_eq!(qp.destroy().unwrap(), 1);
        let counts = cq.destroy().unwrap();
        assert_eq!((counts.completion, counts.asynchronous), (2, 0));
        assert_eq!(channel.try_wait().unwrap(), None, "what was not read is gone with its queue");
        assert_eq!(pd.create_srq(&SrqInit::new(4)).unwrap().destroy().unwrap(), 0);
    });
}

#[kernel_test]
fn queues_of_a_refused_destroy_are_used_and_destroyed_later() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let srq = pd.create_srq(&SrqInit::new(4)).unwrap();
        let qp = pd.create_qp::<Rc>(&QpInit { srq: Some(&srq), ..QpInit::new(&cq, &cq) }).unwrap();
        let (cq, srq) = (cq.destroy().unwrap_err(), srq.destroy().unwrap_err());
        assert!(matches!(cq.error, Error::Invalid { .. }), "{cq}");
        assert!(matches!(srq.error, Error::Invalid { .. }), "{srq}");
        let (mut cq, mut srq) = (cq.object, srq.object);
        drop(qp);
        assert!(cq.poll_one().is_none());
        // SAFETY: the request names no memory.
        unsafe { srq.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }]) }.unwrap();
        assert_eq!(srq.destroy().unwrap(), 0);
        assert_eq!(cq.destroy().unwrap().completion, 0);
    });
}

#[kernel_test]
fn cq_in_use_outlives_its_qps() {
    nothing_leaks(|| {
        let pd = domain();
        let Side { qp, mut cq, .. } = side(&pd, Plan::long_timeouts());
        assert!(cq.poll().next().map(|completion| completion.wr_id()).is_none());
        let refused = cq.destroy().unwrap_err();
        assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
        let mut cq = refused.object;
        assert!(cq.poll_one().is_none());
        drop(cq);
        assert_eq!(qp.query().unwrap().0.qp_state, device::reported_reset(), "the queue pair is as it was");
    });
}
