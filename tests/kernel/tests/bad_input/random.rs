//! Random arguments, over the whole range of their types.
//!
//! Each call returns a result or a typed error. The queue pair's state equals the kernel's, and
//! each accepted request completes.

use std::time::{Duration, Instant};

use bareverbs::ah::{AhAttr, GlobalRoute, Rate};
use bareverbs::cq::CqInit;
use bareverbs::error::{Feature, PostReason};
use bareverbs::qp::{
    MigState, Operation, Payload, QpAttr, QpAttrMask, QpCap, QpInit, QpState, Rc, Sge, Transport, Uc, Ud,
};
use bareverbs::srq::SrqInit;
use bareverbs::values::{AckTimeout, GidIndex, MinRnrTimer, Mtu, RetryCount, RnrRetry};
use bareverbs::{Access, Error, Gid, Imm, PortNum, Remote, WcStatus};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, Side, domain, join, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

/// A runner with the same cases in each run.
fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let seed = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    TestRunner::new_with_rng(config, seed)
}

/// Numbers at and around the limits of all attribute ranges.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![3 => select(vec![0, 1, 2, 5, 6, 7, 8, 14, 31, 32, 255]), 1 => any::<u8>()]
}

fn word() -> impl Strategy<Value = u32> {
    prop_oneof![3 => select(vec![0, 1, 0x80_0000, 0xff_ffff, 0x100_0000, u32::MAX]), 1 => any::<u32>()]
}

fn state() -> impl Strategy<Value = QpState> {
    prop_oneof![9 => (0..8_u8).prop_map(QpState), 1 => byte().prop_map(QpState)]
}

/// The mask of a transition, with a bit added or removed; or any mask.
fn mask() -> impl Strategy<Value = QpAttrMask> {
    let steps = [0x1, 0x39, 0x71, 0x12_9181, 0x1_2e01 | 0x1_0000, 0x1_0001, 0x1f_ffff];
    let near = (select(steps.to_vec()), 0..24_u32).prop_map(|(step, bit)| step ^ (1 << bit));
    let exact = select(steps.to_vec());
    prop_oneof![3 => exact, 3 => near, 1 => any::<u32>()].prop_map(QpAttrMask::from_bits_retain)
}

fn way(own: Gid) -> impl Strategy<Value = AhAttr> {
    let gid = select(vec![own, own, own, Gid::default(), Gid([0xff; 16])]);
    let grh = (gid, byte(), word(), byte(), byte()).prop_map(
        |(dgid, sgid_index, flow_label, hop_limit, traffic_class)| GlobalRoute {
            dgid,
            sgid_index: GidIndex(sgid_index % 4),
            flow_label,
            hop_limit,
            traffic_class,
        },
    );
    (select(vec![1, 1, 1, 0, 2]), any::<u16>(), byte(), byte(), proptest::option::weighted(0.8, grh))
        .prop_map(|(port, dlid, sl, static_rate, grh)| AhAttr {
            port: PortNum(port),
            dlid,
            sl,
            src_path_bits: 0,
            static_rate: Rate(static_rate),
            grh,
        })
}

fn attributes(own: Gid) -> impl Strategy<Value = QpAttr> {
    let words = (word(), word(), word(), word(), any::<u16>(), any::<u32>());
    let bytes = proptest::array::uniform12(byte());
    (state(), state(), words, bytes, way(own)).prop_map(|(qp_state, cur_qp_state, words, bytes, ah_attr)| {
        QpAttr {
            qp_state,
            cur_qp_state,
            qkey: words.0,
            rq_psn: words.1,
            sq_psn: words.2,
            dest_qp_num: words.3,
            pkey_index: words.4 % 3,
            access: Access::from_bits_retain(words.5 & 0xff),
            path_mtu: Mtu::from_raw(bytes[0]),
            path_mig_state: MigState(bytes[1]),
            max_rd_atomic: bytes[2],
            max_dest_rd_atomic: bytes[3],
            min_rnr_timer: MinRnrTimer::new(bytes[4] % 32).unwrap(),
            port_num: PortNum(bytes[5] % 3),
            timeout: AckTimeout::new(bytes[6] % 32).unwrap(),
            retry_cnt: RetryCount::new(bytes[7] % 8).unwrap(),
            rnr_retry: RnrRetry::new(bytes[8] % 8).unwrap(),
            alt_port_num: PortNum(bytes[9]),
            alt_timeout: AckTimeout::new(bytes[10] % 32).unwrap(),
            en_sqd_async_notify: bytes[11] % 2 == 0,
            ah_attr,
            ..QpAttr::default()
        }
    })
}

fn changes_at_random<T: Transport>(cases: u32) {
    nothing_leaks(|| {
        let pd = domain();
        let own = pd.context().default_gid(1).unwrap().gid;
        let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let steps = proptest::collection::vec((attributes(own), mask()), 1..6);
        let outcome = runner(cases).run(&steps, |steps| {
            let mut qp = pd.create_qp::<T>(&QpInit::new(&cq, &cq)).unwrap();
            for (attr, mask) in steps {
                let before = qp.state();
                match qp.modify(&attr, mask) {
                    Ok(()) => {}
                    Err(
                        Error::Invalid { .. } | Error::Limit { .. } | Error::Kernel(_) | Error::NoGid { .. },
                    ) => {
                        prop_assert_eq!(qp.state(), before);
                    }
                    Err(other) => prop_assert!(false, "{:?}", other),
                }
                prop_assert_eq!(qp.query().unwrap().0.qp_state, qp.state(), "{:?} {:?}", attr, mask);
            }
            // It may be draining, which only ERR ends at once.
            if qp.reset().is_err() {
                qp.set_error().unwrap();
                qp.reset().unwrap();
            }
            Ok(())
        });
        outcome.unwrap();
    });
}

#[kernel_test(device::moves_qps)]
fn random_modify_qp_on_rc() {
    changes_at_random::<Rc>(100);
}

#[kernel_test(device::ib_transports)]
fn random_modify_qp_on_uc_and_ud() {
    changes_at_random::<Uc>(50);
    changes_at_random::<Ud>(50);
}

#[kernel_test]
fn queues_are_created_as_requested_or_rejected() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let size = || prop_oneof![2 => 0..70_000_u32, 1 => any::<u32>(), 2 => 0..40_u32];
        let caps = proptest::array::uniform5(size());
        let outcome = runner(100).run(&(size(), size(), size(), caps), |(entries, resized, limit, caps)| {
            let answers = |error: Error| match error {
                Error::Invalid { .. } | Error::Limit { .. } | Error::Kernel(_) => Ok(()),
                other => Err(TestCaseError::fail(format!("{other:?}"))),
            };
            match context.create_cq(&CqInit { vector: limit % 3, ..CqInit::new(entries) }) {
                Ok(mut cq) => {
                    prop_assert!(cq.capacity() >= entries);
                    match cq.resize(resized) {
                        Ok(room) => prop_assert!(room >= resized && cq.capacity() == room),
                        Err(Error::Unsupported { feature: Feature::CqResize, .. }) => {}
                        Err(error) => answers(error)?,
                    }
                }
                Err(error) => answers(error)?,
            }
            match pd.create_srq(&SrqInit { max_sge: limit % 40, limit, ..SrqInit::new(entries) }) {
                Ok(mut srq) => {
                    prop_assert!(srq.capacity() >= entries && srq.max_sge() >= limit % 40);
                    srq.set_limit(resized).or_else(answers)?;
                    match srq.resize(resized) {
                        Err(Error::Unsupported { feature: Feature::SrqResize, .. }) => {}
                        resized => resized.or_else(answers)?,
                    }
                }
                Err(error) => answers(error)?,
            }
            let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = caps;
            let cap = QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
            let cq = context.create_cq(&CqInit::new(1)).unwrap();
            match pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) }) {
                Ok(qp) => {
                    let has = qp.cap();
                    prop_assert!(has.max_send_wr >= max_send_wr && has.max_recv_wr >= max_recv_wr);
                    prop_assert!(has.max_send_sge >= max_send_sge && has.max_recv_sge >= max_recv_sge);
                    prop_assert!(has.max_inline_data >= max_inline_data);
                }
                Err(error) => answers(error)?,
            }
            Ok(())
        });
        outcome.unwrap();
    });
}

/// The memory of a request, before regions exist.
#[derive(Clone, Debug)]
struct Draft {
    operation: u8,
    elements: Vec<(u8, u32)>,
    inline: Option<usize>,
    remote: u8,
    number: u64,
}

fn draft() -> impl Strategy<Value = Draft> {
    let element = (0..8_u8, prop_oneof![3 => 0..80_u32, 1 => any::<u32>()]);
    let elements = proptest::collection::vec(element, 0..6);
    (0..12_u8, elements, proptest::option::weighted(0.2, 0..80_usize), 0..8_u8, any::<u64>()).prop_map(
        |(operation, elements, inline, remote, number)| Draft { operation, elements, inline, remote, number },
    )
}

fn operation(draft: &Draft, remote: Remote) -> Operation {
    let number = draft.number;
    match draft.operation {
        0 | 1 => Operation::Send,
        2 => Operation::SendImm(Imm(number as u32)),
        3 => Operation::SendInv(number as u32),
        4 => Operation::Write(remote),
        5 => Operation::WriteImm(remote, Imm(number as u32)),
        6 | 7 => Operation::Read(remote),
        8 => Operation::CmpSwp { remote, compare: 0, swap: number },
        9 => Operation::FetchAdd { remote, add: number },
        10 => Operation::LocalInv(number as u32),
        _ => Operation::AtomicWrite { remote, value: number.to_ne_bytes() },
    }
}

fn connect_again(a: &mut Side, b: &mut Side) {
    for side in [&mut *a, &mut *b] {
        side.qp.reset().unwrap();
        while side.cq.poll_one().is_some() {}
    }
    join(a, b);
}

#[kernel_test(device::moves_qps)]
fn random_requests_are_rejected_or_complete() {
    nothing_leaks(|| {
        let pd = domain();
        let own = region(&pd, &[1; 64], Access::LOCAL_WRITE);
        let open = region(&pd, &[2; 64], ALL_REMOTE);
        let closed = region(&pd, &[3; 64], Access::empty());
        let sides = std::cell::RefCell::new(pair(
            &pd,
            Plan { rnr_retry: RnrRetry::new(1).unwrap(), ..Plan::default() },
        ));
        let outcome = runner(200).run(&draft(), |draft| {
            let (a, b) = &mut *sides.borrow_mut();
            let sges: Vec<Sge> = draft
                .elements
                .iter()
                .map(|(kind, length)| match kind {
                    0..4 => own.sge(..(*length as usize % 65)).unwrap(),
                    4 => Sge { length: *length, ..own.sge(..).unwrap() },
                    5 => closed.sge(..(*length as usize % 65)).unwrap(),
                    6 => Sge { addr: draft.number, length: *length, lkey: own.lkey() },
                    _ => Sge { addr: own.addr(), length: *length, lkey: draft.number as u32 },
                })
                .collect();
            let remote = match draft.remote {
                0..4 => open.remote(usize::from(draft.remote) * 8).unwrap(),
                4 => closed.remote(0).unwrap(),
                5 => Remote { addr: draft.number, rkey: open.rkey() },
                _ => Remote { addr: open.addr(), rkey: draft.number as u32 },
            };
            let bytes = vec![0; draft.inline.unwrap_or(0)];
            let parts = [&bytes[..]];
            let payload = if draft.inline.is_some() { Payload::Inline(&parts) } else { Payload::Sges(&sges) };
            let room = [own.sge(..32).unwrap(), own.sge(32..).unwrap()];
            b.recv_into(7, u64::from(draft.number % 4 != 0), &room);
            match a.send(&[request(1, operation(&draft, remote), payload)]) {
                Err(refused) => {
                    prop_assert_eq!(refused.accepted, 0);
                    prop_assert!(matches!(refused.reason, PostReason::Queue(_)), "{:?}", refused);
                }
                Ok(()) => {
                    let (wr_id, status) = a.ends(1)[0];
                    prop_assert_eq!(wr_id, 1);
                    if status != WcStatus::SUCCESS {
                        // The completion may arrive before the state changes.
                        let end = Instant::now() + Duration::from_secs(1);
                        while a.kernel_state() != QpState::ERR && Instant::now() < end {}
                        prop_assert_eq!(a.kernel_state(), QpState::ERR);
                    }
                }
            }
            connect_again(a, b);
            b.recv_into(8, 1, &room);
            a.send(&[request(2, Operation::Send, Payload::Inline(&[b"as good as new"]))]).unwrap();
            prop_assert_eq!(a.ends(1), [(2, WcStatus::SUCCESS)]);
            prop_assert_eq!(b.ends(1), [(8, WcStatus::SUCCESS)]);
            Ok(())
        });
        outcome.unwrap();
    });
}
