use bareverbs::{Access, WcOpcode, WcStatus};
use fastrand::Rng;
use proptest::prelude::*;

use super::*;
use crate::generate::{Capabilities, Generator};
use crate::op::{Action, Key, Kind, Payload, Piece, RECEIVE, Seen, Target};

const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;
const GOOD: WcStatus = WcStatus::SUCCESS;
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Two connected queue pairs, 10 and 11, and a region of 100 bytes, 20, all in one PD.
fn pair(quirks: Quirks) -> Model {
    let mut model = Model::new(quirks);
    let plan = QpPlan {
        kind: Kind::Rc,
        pd: 1,
        send_cq: 2,
        recv_cq: 2,
        srq: None,
        sends: 4,
        receives: 4,
        pieces: 2,
        inline: 16,
        signal_all: false,
    };
    let connection = Connection { a: 10, b: 11, access: ALL, mtu: 1024, psn: [0; 2], rnr_retry_zero: false };
    for op in [
        Op::AllocPd(1),
        Op::MakeCq(2, 100),
        Op::Register(20, 1, 100, ALL),
        Op::MakeQp(10, plan.clone()),
        Op::MakeQp(11, plan),
        Op::Connect(connection),
    ] {
        model.apply(&op);
    }
    model
}

fn send(wr_id: u64, action: Action, payload: Payload) -> Request {
    Request { wr_id, action, payload, signalled: true, fence: false, solicited: false }
}

fn message(wr_id: u64, bytes: &[u8]) -> Request {
    send(wr_id, Action::Send(None), Payload::Inline(bytes.to_vec()))
}

fn receive(number: u64, range: std::ops::Range<usize>) -> Receive {
    Receive { wr_id: RECEIVE | number, pieces: vec![Piece { mr: Some(20), range }] }
}

/// Polls all expected completions of a queue pair and direction: ids and statuses.
fn see(model: &mut Model, id: Id, receive: bool) -> Vec<(u64, WcStatus)> {
    let mut seen = Vec::new();
    while let Some(next) = model.next_due(id, receive) {
        model.observe(&next).unwrap();
        seen.push((next.wr_id & !RECEIVE, next.status));
    }
    seen
}

#[test]
fn messages_wait_in_order_for_receive() {
    let mut model = pair(Quirks::NONE);
    model.apply(&Op::PostSend(10, vec![message(1, b"one"), message(2, b"two")]));
    assert_eq!((see(&mut model, 10, false), see(&mut model, 11, true)), (vec![], vec![]));
    model.settle().unwrap();
    model.apply(&Op::PostRecv(11, vec![receive(1, 0..3)]));
    assert_eq!((see(&mut model, 10, false), see(&mut model, 11, true)), (vec![(1, GOOD)], vec![(1, GOOD)]));
    assert_eq!(model.mrs[&20].bytes[..3], *b"one");
    model.apply(&Op::PostRecv(11, vec![receive(2, 3..6)]));
    assert_eq!((see(&mut model, 10, false), see(&mut model, 11, true)), (vec![(2, GOOD)], vec![(2, GOOD)]));
    assert_eq!(model.mrs[&20].bytes[..6], *b"onetwo");
    model.settle().unwrap();
}

#[test]
fn pending_message_may_arrive_after_sender_is_destroyed() {
    for end in [End::Error, End::Reset, End::Destroy] {
        let mut model = pair(Quirks::NONE);
        model.apply(&Op::End(10, end));
        assert!(!model.qp(11).recv_unusable, "nothing waited");
        let mut model = pair(Quirks::NONE);
        model.apply(&Op::PostSend(10, vec![message(1, b"one")]));
        model.settle().unwrap();
        model.apply(&Op::End(10, end));
        assert!(model.qp(11).recv_unusable);
    }
}

#[test]
fn remote_error_moves_both_qps_to_error_and_flushes() {
    let mut model = pair(Quirks::NONE);
    model.apply(&Op::PostRecv(10, vec![receive(5, 0..1)]));
    model.apply(&Op::PostRecv(11, vec![receive(6, 1..2), receive(7, 2..3)]));
    let wrong = Target { key: Key::Invalid, mr: 20, offset: 50 };
    let write = send(2, Action::Write(wrong, None), Payload::Inline(vec![9; 4]));
    let before = model.mrs[&20].bytes[50..54].to_vec();
    model.apply(&Op::PostSend(10, vec![message(1, b"x"), write, message(3, b"y")]));
    assert_eq!(see(&mut model, 10, false), [(1, GOOD), (2, WcStatus::REM_ACCESS_ERR), (3, FLUSHED)]);
    assert_eq!(see(&mut model, 10, true), [(5, FLUSHED)]);
    assert_eq!(see(&mut model, 11, true), [(6, GOOD), (7, FLUSHED)]);
    assert_eq!((model.qp(10).state, model.qp(11).state), (State::Error, State::Error));
    assert_eq!(model.mrs[&20].bytes[50..54], before);
}

#[test]
fn local_error_may_be_flushed_but_qp_reports_it() {
    for failed_wr_reports_flush in [false, true] {
        let mut model = pair(Quirks { failed_wr_reports_flush, ..Quirks::NONE });
        let invalid_key = Payload::Pieces(vec![Piece { mr: None, range: 0..4 }]);
        model.apply(&Op::PostSend(10, vec![send(1, Action::Send(None), invalid_key)]));
        let due = model.next_due(10, false).unwrap();
        let (status, failure) = match failed_wr_reports_flush {
            true => (FLUSHED, Some((1, WcStatus::LOC_PROT_ERR))),
            false => (WcStatus::LOC_PROT_ERR, None),
        };
        assert_eq!((due.status, due.failure), (status, failure));
        if failed_wr_reports_flush {
            assert!(model.observe(&Seen { failure: None, ..due }).is_err(), "it has to know");
        }
        assert_eq!(model.qp(11).state, State::Up);
    }
}

#[test]
fn reads_and_atomics_return_peer_memory() {
    let mut model = pair(Quirks::NONE);
    let target = |offset| Target { key: Key::Region, mr: 20, offset };
    let result = |start| Payload::Pieces(vec![Piece { mr: Some(20), range: start..start + 8 }]);
    let old = model.word(20, 64);
    model.apply(&Op::PostSend(
        10,
        vec![
            send(1, Action::FetchAdd(target(64), 5), result(0)),
            send(2, Action::CmpSwp(target(64), old.wrapping_add(5), 77), result(8)),
            send(3, Action::CmpSwp(target(64), old, 78), result(16)),
            send(4, Action::Read(target(64)), result(24)),
        ],
    ));
    let words = [0, 8, 16, 24, 64].map(|offset| model.word(20, offset));
    assert_eq!(words, [old, old.wrapping_add(5), 77, 77, 77]);
}

#[test]
fn sends_beyond_capacity_are_rejected() {
    let mut model = pair(Quirks::NONE);
    let many: Vec<_> = (1..=6).map(|wr_id| message(wr_id, b"")).collect();
    assert_eq!(model.apply(&Op::PostSend(10, many.clone())), 4);
    assert_eq!(model.apply(&Op::PostSend(10, many)), 0);
    model.apply(&Op::PostRecv(11, vec![receive(1, 0..1)]));
    assert_eq!((see(&mut model, 10, false), see(&mut model, 11, true)), (vec![(1, GOOD)], vec![(1, GOOD)]));
    model.settle().unwrap();
    assert_eq!(model.apply(&Op::PostSend(10, vec![message(7, b""), message(8, b"")])), 1);
}

#[test]
fn abort_allows_completions_until_first_flush() {
    let abort = || {
        let mut model = pair(Quirks::NONE);
        model.apply(&Op::PostRecv(11, vec![receive(1, 0..1), receive(2, 1..2), receive(3, 2..3)]));
        let silent = Request { signalled: false, ..message(1, b"a") };
        model.apply(&Op::PostSend(10, vec![silent, message(2, b"b"), message(3, b"c")]));
        model.apply(&Op::Abort(10, 11, End::Error));
        model
    };
    let seen = |wr_id, status| Seen {
        qp: 10,
        wr_id,
        status,
        opcode: WcOpcode::SEND,
        byte_len: 0,
        imm: None,
        invalidated: None,
        sender: None,
        failure: None,
    };
    for good in [
        vec![seen(1, FLUSHED), seen(2, FLUSHED), seen(3, FLUSHED)],
        vec![seen(2, FLUSHED), seen(3, FLUSHED)],
        vec![seen(2, GOOD), seen(3, FLUSHED)],
        vec![seen(2, GOOD), seen(3, GOOD)],
    ] {
        let mut model = abort();
        good.iter().for_each(|seen| model.observe(seen).unwrap());
        assert_eq!(model.next_due(10, false), None);
    }
    for bad in [
        vec![seen(3, FLUSHED)],
        vec![seen(3, GOOD)],
        vec![seen(2, FLUSHED), seen(3, GOOD)],
        vec![seen(1, FLUSHED), seen(3, FLUSHED)],
        vec![seen(2, GOOD), seen(1, FLUSHED)],
    ] {
        let mut model = abort();
        assert!(bad.iter().any(|seen| model.observe(seen).is_err()), "{bad:?}");
    }
}

#[test]
fn unsignaled_sends_may_be_flushed_on_error() {
    let fallen = || {
        let mut model = pair(Quirks::NONE);
        model.apply(&Op::PostRecv(11, vec![receive(1, 0..1), receive(2, 1..2)]));
        let silent = |wr_id| Request { signalled: false, ..message(wr_id, b"a") };
        model.apply(&Op::PostSend(10, vec![silent(1), silent(2), silent(3), message(4, b"b")]));
        assert_eq!(see(&mut model, 11, true), [(1, GOOD), (2, GOOD)]);
        model.settle().unwrap();
        model.apply(&Op::PostRecv(11, vec![receive(3, 2..3)]));
        assert_eq!(see(&mut model, 11, true), [(3, GOOD)]);
        assert!(model.qp(10).rests(model.round));
        model.apply(&Op::End(10, End::Error));
        model
    };
    let flushed = |wr_id| Seen { wr_id, ..fallen().next_due(10, false).unwrap() };
    for good in [&[4][..], &[3, 4], &[2, 3, 4], &[1, 2, 3, 4]] {
        let mut model = fallen();
        good.iter().for_each(|wr_id| model.observe(&flushed(*wr_id)).unwrap());
        assert_eq!(model.missing(), None);
    }
    for bad in [&[1, 3][..], &[1, 2, 4], &[2, 4], &[4, 3], &[3, 3]] {
        let mut model = fallen();
        assert!(bad.iter().any(|wr_id| model.observe(&flushed(*wr_id)).is_err()), "{bad:?}");
    }
    let mut model = fallen();
    assert!(model.observe(&Seen { status: GOOD, ..flushed(3) }).is_err());
}

#[test]
fn qp_that_binds_window_is_not_aborted_in_same_round() {
    let mut model = pair(Quirks::NONE);
    model.apply(&Op::AllocMw(30, 1, true));
    let rights = Access::LOCAL_WRITE | Access::MW_BIND;
    model.apply(&Op::Register(31, 1, 100, rights));
    for action in [Action::Bind(30, 31, Access::REMOTE_READ), Action::LocalInv(Some(30))] {
        assert!(model.qp(10).mw_changed_in_round < model.round, "{action:?}");
        model.apply(&Op::PostSend(10, vec![send(1, action, Payload::Pieces(vec![]))]));
        assert_eq!(model.qp(10).mw_changed_in_round, model.round, "{action:?}");
        see(&mut model, 10, false);
        model.settle().unwrap();
    }
}

/// A wrong field of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Status,
    Number,
    Length,
    Opcode,
    Missing,
    Twice,
    OutOfTurn,
}

/// Simulates an iteration of random verbs. Completions arrive in any valid order, except that one
/// is wrong. Returns whether all were accepted; `None` if no completion has the field.
fn run_model(seed: u64, wrong: Wrong, place: usize) -> Option<bool> {
    let capabilities = Capabilities { flush: true, atomic_write: true, lossy: false };
    let mut generator = Generator::new(seed, capabilities);
    let mut model = Model::new(Quirks::NONE);
    let mut rng = Rng::with_seed(seed);
    let mut count = 0;
    for _ in 0..300 {
        let op = generator.next(&model);
        model.apply(&op);
        if let Op::Abort(a, b, end) = op {
            model.aborted([a, b], end);
        }
        if op != Op::Settle {
            continue;
        }
        loop {
            let ends: Vec<_> = model.qps.keys().flat_map(|id| [(*id, false), (*id, true)]).collect();
            let due: Vec<_> =
                ends.into_iter().filter_map(|(id, receive)| model.next_due(id, receive)).collect();
            let Some(seen) = rng.choice(due) else { break };
            count += 1;
            if wrong == Wrong::Nothing || count < place {
                model.observe(&seen).unwrap();
                continue;
            }
            let is_receive = seen.wr_id & RECEIVE != 0;
            let bad = match wrong {
                Wrong::Status if seen.status == GOOD => {
                    Seen { status: WcStatus::GENERAL_ERR, ..seen.clone() }
                }
                Wrong::Status => Seen { status: GOOD, ..seen.clone() },
                Wrong::Number => Seen { wr_id: seen.wr_id ^ 1 << 40, ..seen.clone() },
                Wrong::Length if is_receive && seen.status == GOOD => {
                    Seen { byte_len: seen.byte_len + 1, ..seen.clone() }
                }
                Wrong::Opcode if seen.status == GOOD => Seen { opcode: WcOpcode::TSO, ..seen.clone() },
                Wrong::Twice => {
                    model.observe(&seen).unwrap();
                    seen.clone()
                }
                Wrong::OutOfTurn => {
                    let mut ahead = pair_behind(&model, &seen)?;
                    ahead.qp = seen.qp;
                    ahead
                }
                Wrong::Missing => return Some(missing_is_accepted(&mut model, &seen)),
                _ => return None,
            };
            return Some(model.observe(&bad).is_ok());
        }
        model.settle().unwrap();
    }
    (wrong == Wrong::Nothing).then_some(true)
}

/// The next completion of the same queue pair and direction.
fn pair_behind(model: &Model, seen: &Seen) -> Option<Seen> {
    let expected = model.qp(seen.qp).expected_numbers(seen.wr_id & RECEIVE != 0);
    let next = expected.into_iter().find(|number| *number != seen.wr_id)?;
    Some(Seen { wr_id: next, ..seen.clone() })
}

/// Whether the model accepts that this completion is missing, but later ones arrive.
fn missing_is_accepted(model: &mut Model, seen: &Seen) -> bool {
    match pair_behind(model, seen) {
        Some(next) => model.observe(&next).is_ok(),
        None => model.settle().is_ok(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn model_accepts_predicted_completions(seed: u64) {
        prop_assert_eq!(run_model(seed, Wrong::Nothing, 0), Some(true));
    }

    #[test]
    fn model_rejects_unpredicted_completions(
        seed: u64,
        wrong in prop::sample::select(vec![
            Wrong::Status, Wrong::Number, Wrong::Length, Wrong::Opcode, Wrong::Missing, Wrong::Twice, Wrong::OutOfTurn,
        ]),
        place in 1usize..150,
    ) {
        if let Some(accepted) = run_model(seed, wrong, place) {
            prop_assert!(!accepted);
        }
    }

    #[test]
    fn generator_is_deterministic_per_seed(seed: u64) {
        let verbs = || {
            let mut generator = Generator::new(seed, Capabilities { flush: false, atomic_write: false, lossy: false });
            let mut model = Model::new(Quirks::NONE);
            (0..50).map(|_| {
                let op = generator.next(&model);
                model.apply(&op);
                op
            }).take_while(|op| *op != Op::Settle).collect::<Vec<_>>()
        };
        prop_assert_eq!(verbs(), verbs());
    }
}

#[test]
fn compare_reports_changed_byte() {
    let mut model = pair(Quirks::NONE);
    let region = model.mrs.get_mut(&20).unwrap();
    let mut found = region.bytes.clone();
    assert_eq!(region.compare(&found), Ok(()));
    found[99] ^= 1;
    assert!(region.compare(&found).unwrap_err().contains("byte 99"));
}

/// Runs a generator with all completions as predicted. `verb` gets each verb with the model before
/// it; `ended` gets the status of each expected completion.
fn generate(quirks: Quirks, mut verb: impl FnMut(&Model, &Op), mut ended: impl FnMut(WcStatus)) {
    for seed in 0..60 {
        let mut generator =
            Generator::new(seed, Capabilities { flush: true, atomic_write: true, lossy: false });
        let mut model = Model::new(quirks);
        for _ in 0..400 {
            let op = generator.next(&model);
            verb(&model, &op);
            model.apply(&op);
            match &op {
                Op::Abort(a, b, end) => model.aborted([*a, *b], *end),
                Op::Settle => {
                    let ids: Vec<_> = model.qps.keys().copied().collect();
                    for (id, receive) in ids.into_iter().flat_map(|id| [(id, false), (id, true)]) {
                        see(&mut model, id, receive).into_iter().for_each(|(_, status)| ended(status));
                    }
                    model.settle().unwrap();
                }
                _ => {}
            }
        }
    }
}

/// The name of a verb or an action.
fn name(of: &impl std::fmt::Debug) -> String {
    let text = format!("{of:?}");
    text.split(['(', ' ']).next().unwrap_or_default().to_owned()
}

#[test]
fn busy_qps_are_not_aborted_on_affected_kernels() {
    let aborted = |quirks| {
        let (mut destroyed, mut reset) = (0, 0);
        let count = |model: &Model, op: &Op| {
            let at_work = |id: &Id| model.qp(*id).plan.kind == Kind::Rc && model.qp(*id).state == State::Up;
            match op {
                Op::End(id, End::Destroy) | Op::Abort(id, _, End::Destroy) if at_work(id) => destroyed += 1,
                Op::Abort(_, _, End::Reset) => reset += 1,
                _ => {}
            }
        };
        generate(quirks, count, |_| ());
        (destroyed > 0, reset > 0)
    };
    assert_eq!(aborted(Quirks::NONE), (true, true));
    assert_eq!(aborted(Quirks { destroy_waits_for_responses: true, ..Quirks::NONE }), (false, true));
    assert_eq!(aborted(Quirks { reset_under_traffic_corrupts: true, ..Quirks::NONE }), (true, false));
}

/// Both ends of a message complete in the same CQ here. An overrun would put its queue pairs into
/// ERR.
#[test]
fn generator_never_overruns_a_cq() {
    let plan = QpPlan {
        kind: Kind::Ud,
        pd: 1,
        send_cq: 2,
        recv_cq: 2,
        srq: Some(3),
        sends: 16,
        receives: 0,
        pieces: 2,
        inline: 16,
        signal_all: true,
    };
    let receives = (0..12).map(|number| receive(number, 0..5000)).collect();
    let mut datagrams = 0;
    for seed in 0..100 {
        let mut model = Model::new(Quirks::NONE);
        for op in [
            Op::AllocPd(1),
            Op::MakeCq(2, 5),
            Op::MakeSrq(3, 1, 12),
            Op::Register(20, 1, 5000, ALL),
            Op::MakeQp(10, plan.clone()),
            Op::BringUp(10),
            Op::PostSrq(3, Vec::clone(&receives)),
        ] {
            model.apply(&op);
        }
        let mut generator =
            Generator::new(seed, Capabilities { flush: false, atomic_write: false, lossy: false });
        for _ in 0..100 {
            let op = generator.next(&model);
            model.apply(&op);
            datagrams += usize::from(matches!(op, Op::PostSend(10, _)));
            for (cq, room) in &model.cqs {
                assert!(model.load(*cq) <= *room, "{} of {room} after {op:?}", model.load(*cq));
            }
            if op == Op::Settle {
                break;
            }
        }
    }
    assert!(datagrams > 10, "{datagrams}");
}

/// Generators make every verb and every failure.
#[test]
fn generators_cover_every_verb_and_failure() {
    let (mut sorts, mut ends) = (BTreeSet::new(), BTreeSet::new());
    let verb = |_: &Model, op: &Op| {
        sorts.insert(name(op));
        if let Op::PostSend(_, requests) = op {
            sorts.extend(requests.iter().map(|request| name(&request.action)));
        }
    };
    generate(Quirks { local_inv_unbound_status: WcStatus::LOC_QP_OP_ERR, ..Quirks::NONE }, verb, |status| {
        ends.insert(format!("{status:?}"));
    });
    sorts.extend(ends);
    for sort in [
        "AllocPd",
        "DeallocPd",
        "MakeCq",
        "ResizeCq",
        "DestroyCq",
        "MakeSrq",
        "DestroySrq",
        "Register",
        "Deregister",
        "AllocMw",
        "DeallocMw",
        "MakeQp",
        "Connect",
        "BringUp",
        "End",
        "Abort",
        "PostRecv",
        "PostSrq",
        "PostSend",
        "Settle",
        "Send",
        "SendInv",
        "Write",
        "Read",
        "CmpSwp",
        "FetchAdd",
        "AtomicWrite",
        "Flush",
        "Bind",
        "LocalInv",
        "Datagram",
        "SUCCESS",
        "WR_FLUSH_ERR",
        "LOC_PROT_ERR",
        "LOC_QP_OP_ERR",
        "MW_BIND_ERR",
        "REM_ACCESS_ERR",
        "REM_INV_REQ_ERR",
        "RNR_RETRY_EXC_ERR",
        "LOC_LEN_ERR",
    ] {
        assert!(sorts.contains(sort), "no {sort} among {sorts:?}");
    }
}

#[test]
fn receives_posted_in_error_state_flush_in_order() {
    for early in 0..=2 {
        let mut model = pair(Quirks::NONE);
        let wrong = Target { key: Key::Invalid, mr: 20, offset: 0 };
        let write = send(1, Action::Write(wrong, None), Payload::Inline(vec![9; 4]));
        model.apply(&Op::PostSend(10, vec![write]));
        see(&mut model, 10, false);
        model.settle().unwrap();
        model.apply(&Op::PostRecv(11, vec![receive(2, 0..1), receive(3, 1..2)]));
        model.apply(&Op::PostSend(11, vec![message(4, b"")]));
        assert_eq!(see(&mut model, 11, false), [(4, FLUSHED)]);
        let flushed = |number: u64| Seen {
            qp: 11,
            wr_id: RECEIVE | number,
            status: FLUSHED,
            opcode: WcOpcode::SEND,
            byte_len: 0,
            imm: None,
            invalidated: None,
            sender: None,
            failure: None,
        };
        (2..2 + early).for_each(|number| model.observe(&flushed(number)).unwrap());
        assert!(model.observe(&flushed(4)).is_err(), "there is no such receive");
        model.settle().unwrap();
        model.apply(&Op::End(11, End::Error));
        let left: Vec<_> = (2 + early..4).map(|number| (number, FLUSHED)).collect();
        assert_eq!(see(&mut model, 11, true), left);
    }
}

/// Soft-RoCE retries waiting requests. It holds a fenced one back if later reads are outstanding.
#[test]
fn waiting_send_is_recorded_until_round_ends() {
    let mut model = pair(Quirks::NONE);
    model.apply(&Op::PostSend(10, vec![message(1, b"")]));
    assert_eq!(model.qp(10).waited, model.round);
    model.settle().unwrap();
    assert!(model.qp(10).waited < model.round);
    model.apply(&Op::PostRecv(11, vec![receive(1, 0..1)]));
    assert!(model.qp(10).waiting.is_empty());
    assert_eq!(model.qp(10).waited, model.round, "it is sent again only now");
}

#[test]
fn flush_claims_region_until_round_ends() {
    let mut model = pair(Quirks::NONE);
    let target = Target { key: Key::Region, mr: 20, offset: 8 };
    model.apply(&Op::PostSend(10, vec![send(1, Action::Flush(target, 30), Payload::Pieces(vec![]))]));
    assert_eq!(model.mrs[&20].claims.len(), 1);
    see(&mut model, 10, false);
    model.settle().unwrap();
    assert!(model.mrs[&20].claims.is_empty());
}

#[test]
fn rebound_window_holds_old_region_until_round_ends() {
    let mut model = pair(Quirks::NONE);
    let bindable = ALL | Access::MW_BIND;
    for op in
        [Op::Register(21, 1, 10, bindable), Op::Register(22, 1, 10, bindable), Op::AllocMw(30, 1, false)]
    {
        model.apply(&op);
    }
    let held = |model: &Model| [21, 22].map(|mr| model.mws[&30].holds(mr, model.round));
    let mut bind = |wr_id, mr| {
        let request = send(wr_id, Action::Bind(30, mr, Access::REMOTE_READ), Payload::Pieces(Vec::new()));
        model.apply(&Op::PostSend(10, vec![request]));
        let during = held(&model);
        assert_eq!(see(&mut model, 10, false), [(wr_id, GOOD)]);
        model.settle().unwrap();
        (during, held(&model))
    };
    assert_eq!(bind(1, 21), ([true, false], [true, false]));
    assert_eq!(bind(2, 22), ([true, true], [false, true]));
}
