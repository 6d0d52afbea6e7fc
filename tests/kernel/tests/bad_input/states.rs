//! Invalid state transitions, errors, and recovery.

use bareverbs::cq::WorkCompletion;
use bareverbs::error::{PostError, PostReason};
use bareverbs::qp::{InitAttr, Operation, Payload, QpState, RecvRequest, RtsAttr, SendRequest};
use bareverbs::values::RnrRetry;
use bareverbs::{Access, Error, PortNum, WcStatus};
use bareverbs_kernel_tests::loopback::{Plan, Side, contents, domain, join, pair, region, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

fn hello(wr_id: u64) -> SendRequest<'static> {
    request(wr_id, Operation::Send, Payload::Inline(&[b"hello"]))
}

/// RNR retries are unlimited.
fn long_timeouts() -> Plan {
    Plan { rnr_retry: RnrRetry::new(7).unwrap(), ..Plan::default() }
}

fn is_in(side: &Side, state: QpState) {
    assert_eq!((side.qp.state(), side.kernel_state()), (state, state));
}

/// The error of each typed transition from a state in which it is invalid, and the kernel's error
/// for the same `modify`.
fn refuses(side: &mut Side, state: QpState, steps: [bool; 3], changes: &[QpState]) {
    let (rtr, rts) = (side.towards(1), side.sending());
    let [init, receive, send] = steps;
    let refusal = |refused: bareverbs::Result<()>, step: &str, needed: QpState| {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
        let text = format!("modify_qp {step}: the QP is in {state:?}, not in {needed:?}");
        assert_eq!(refused.to_string(), text);
    };
    if init {
        refusal(side.qp.init(&InitAttr::new(1)), "RESET→INIT", QpState::RESET);
    }
    if receive {
        refusal(side.qp.ready_to_receive(&rtr), "INIT→RTR", QpState::INIT);
    }
    if send {
        refusal(side.qp.ready_to_send(&rts), "RTR→RTS", QpState::RTR);
    }
    for change in changes {
        let refused = side.go_to(*change).unwrap_err();
        let text = refused.to_string();
        let start = format!("modify_qp (QP {:#x} in {state:?}, ", side.qp.qp_num());
        let refused_by = format!("was refused by {}", device::error_origin());
        assert!(text.starts_with(&start) && text.contains(&refused_by), "{change:?}: {text}");
        assert_eq!(refused.errno().map(|errno| errno.raw_os_error()), Some(22), "{change:?}: {text}");
    }
    is_in(side, state);
}

#[kernel_test(device::moves_qps)]
fn out_of_order_transitions_are_rejected() {
    nothing_leaks(|| {
        let pd = domain();
        let mut side = side(&pd, Plan::default());
        let nonsense = QpState(77);
        refuses(&mut side, QpState::RESET, [false, true, true], &[QpState::RTR, QpState::RTS, nonsense]);
        side.qp.init(&InitAttr::new(1)).unwrap();
        refuses(&mut side, QpState::INIT, [true, false, true], &[QpState::RTR, QpState::RTS, nonsense]);
        let rtr = side.towards(side.qp.qp_num());
        side.qp.ready_to_receive(&rtr).unwrap();
        refuses(&mut side, QpState::RTR, [true, true, false], &[QpState::INIT, QpState::RTS, nonsense]);
        side.qp.ready_to_send(&RtsAttr::default()).unwrap();
        refuses(&mut side, QpState::RTS, [true, true, true], &[QpState::INIT, QpState::RTR, nonsense]);
        side.go_to(QpState::ERR).unwrap();
        let all = [QpState::INIT, QpState::RTR, QpState::RTS, nonsense];
        refuses(&mut side, QpState::ERR, [true, true, true], &all);
        side.go_to(QpState::RESET).unwrap();
        refuses(&mut side, QpState::RESET, [false, true, true], &[QpState::RTR, QpState::RTS]);
    });
}

/// Brings a side that is in RTS to `state`.
fn bring(side: &mut Side, state: QpState) {
    let rtr = side.towards(side.qp.qp_num());
    match state {
        QpState::RTS => {}
        QpState::SQD => side.qp.drain().unwrap(),
        QpState::ERR => side.qp.set_error().unwrap(),
        _ => side.qp.reset().unwrap(),
    }
    if [QpState::INIT, QpState::RTR].contains(&state) {
        side.qp.init(&InitAttr::new(1)).unwrap();
    }
    if state == QpState::RTR {
        side.qp.ready_to_receive(&rtr).unwrap();
    }
    is_in(side, state);
}

type Step = fn(&mut Side) -> bareverbs::Result<()>;

/// The typed transitions, and the state from which each is valid.
const STEPS: [(&str, QpState, Step); 5] = [
    ("RESET→INIT", QpState::RESET, |side| side.qp.init(&InitAttr::new(1))),
    ("INIT→RTR", QpState::INIT, |side| {
        let rtr = side.towards(1);
        side.qp.ready_to_receive(&rtr)
    }),
    ("RTR→RTS", QpState::RTR, |side| side.qp.ready_to_send(&RtsAttr::default())),
    ("RTS→SQD", QpState::RTS, |side| side.qp.drain()),
    ("SQD→RTS", QpState::SQD, |side| side.qp.resume()),
];

#[kernel_test(device::sqd)]
fn typed_transitions_check_the_current_state() {
    nothing_leaks(|| {
        let pd = domain();
        let states = [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::ERR];
        for state in states {
            let (mut side, _peer) = pair(&pd, long_timeouts());
            bring(&mut side, state);
            for (name, begin, step) in STEPS.into_iter().filter(|(_, begin, _)| *begin != state) {
                let text = format!("modify_qp {name}: the QP is in {state:?}, not in {begin:?}");
                assert_eq!(step(&mut side).unwrap_err().to_string(), text);
            }
            if state == QpState::RESET {
                let text = "modify_qp to ERR: the QP is in RESET and has no outstanding requests";
                assert_eq!(side.qp.set_error().unwrap_err().to_string(), text);
            }
            is_in(&side, state);
            if let Err(draining) = side.qp.reset() {
                assert_eq!(state, QpState::SQD, "{draining}");
                let hint = "wait for the event SQ_DRAINED, or move the QP to ERR first";
                assert!(draining.to_string().ends_with(hint), "{draining}");
                side.qp.set_error().unwrap();
                side.qp.reset().unwrap();
            }
            is_in(&side, QpState::RESET);
        }
    });
}

#[kernel_test(device::moves_qps)]
fn posting_is_checked_in_every_state() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        let (mut side, _peer) = pair(&pd, long_timeouts());
        let sges = [memory.sge(..).unwrap()];
        let receive = [RecvRequest { wr_id: 1, sges: &sges }];
        let refuses = |refused: Result<(), PostError>, state| {
            let refused = refused.unwrap_err();
            assert_eq!((refused.accepted, refused.reason), (0, PostReason::State(state)));
            let text = refused.to_string();
            let rule = "receives require INIT or later, sends require RTS, so connect the QP first";
            assert_eq!(text, format!("no request was posted: the QP is in {state:?}: {rule}"));
        };
        side.send(&[hello(1), hello(2)]).unwrap();
        side.recv(&receive).unwrap();
        // The earlier operations have no effect.
        side.qp.reset().unwrap();
        refuses(side.send(&[hello(1)]), QpState::RESET);
        // SAFETY: the request has no SGEs.
        refuses(unsafe { side.qp.post_send_deferred(&[hello(1)]) }, QpState::RESET);
        refuses(side.recv(&receive), QpState::RESET);
        let rtr = side.towards(side.qp.qp_num());
        for state in [QpState::INIT, QpState::RTR] {
            match state {
                QpState::INIT => side.qp.init(&InitAttr::new(1)).unwrap(),
                _ => side.qp.ready_to_receive(&rtr).unwrap(),
            }
            refuses(side.send(&[hello(1)]), state);
            // SAFETY: the request has no SGEs.
            refuses(unsafe { side.qp.post_send_deferred(&[hello(1)]) }, state);
            side.recv(&receive).unwrap();
        }
        assert_eq!(side.qp.split().0.deferred(), 0);
    });
}

fn flushed(completions: &[WorkCompletion]) -> Vec<u64> {
    for completion in completions {
        assert_eq!(completion.status, WcStatus::WR_FLUSH_ERR, "{completion:?}");
    }
    completions.iter().map(|completion| completion.wr_id).collect()
}

#[kernel_test(device::acknowledges)]
fn err_state_flushes_in_order() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, _b) = pair(&pd, long_timeouts());
        let target = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        a.recv_into(100, 9, &[target.sge(..).unwrap()]);
        // The peer has no receives, so none of these can complete. On failure unsignalled requests
        // complete too.
        let quiet = |wr_id| SendRequest { flags: bareverbs::qp::SendFlags::empty(), ..hello(wr_id) };
        let sends: Vec<_> =
            (0..9).map(|wr_id| if wr_id % 2 == 0 { hello(wr_id) } else { quiet(wr_id) }).collect();
        a.send(&sends).unwrap();
        a.go_to(QpState::ERR).unwrap();
        let numbers = flushed(&a.completions(18));
        let of = |receives: bool| {
            numbers.iter().copied().filter(|wr_id| (*wr_id >= 100) == receives).collect::<Vec<_>>()
        };
        assert_eq!((of(false), of(true)), ((0..9).collect(), (100..109).collect()));
        assert!(a.cq.poll_one().is_none());
        assert_eq!(contents(&target), [0; 8]);
    });
}

#[kernel_test(device::acknowledges)]
fn qp_in_err_can_be_queried_and_flushes_new_sends() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        // The peer has no receives, so this fails.
        a.send(&[hello(1), hello(2)]).unwrap();
        assert_eq!(a.ends(2), [(1, WcStatus::RNR_RETRY_EXC_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
        let (attr, init) = a.qp.query().unwrap();
        assert_eq!(attr.qp_state, QpState::ERR);
        assert_eq!((attr.dest_qp_num, attr.port_num), (b.qp.qp_num(), PortNum(1)));
        assert!(init.cap.max_send_wr >= 16 && init.cap.max_recv_wr >= 16);
        for round in 0..10 {
            a.send(&[hello(round), hello(round + 100)]).unwrap();
            assert_eq!(flushed(&a.completions(2)), [round, round + 100]);
        }
        assert!(b.cq.poll_one().is_none());
    });
}

#[kernel_test(device::moves_qps)]
fn qp_works_after_error_and_reset() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, long_timeouts());
        let target = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        let sges = [target.sge(..).unwrap()];
        for round in 0..4_u64 {
            a.recv_into(10, 3, &sges);
            a.send(&[hello(0), hello(1)]).unwrap();
            a.go_to(QpState::ERR).unwrap();
            flushed(&a.completions(5));
            for side in [&mut a, &mut b] {
                side.go_to(QpState::RESET).unwrap();
                is_in(side, QpState::RESET);
            }
            join(&mut a, &mut b);
            b.recv_into(round, 1, &sges);
            a.send(&[hello(77)]).unwrap();
            assert_eq!(a.ends(1), [(77, WcStatus::SUCCESS)]);
            assert_eq!(b.ends(1), [(round, WcStatus::SUCCESS)]);
            assert_eq!(contents(&target), *b"hello\0\0\0");
        }
    });
}
