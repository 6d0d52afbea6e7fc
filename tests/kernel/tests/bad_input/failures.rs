//! Failing requests: the status on each side, the flushed requests, and recovery.

use bareverbs::cq::wc_status_str;
use bareverbs::error::{PostReason, PushError};
use bareverbs::mw::{MwBind, MwType};
use bareverbs::qp::{
    InitAttr, Operation, Payload, QpState, RecvRequest, RtsAttr, SendFlags, SendRequest, Sge,
};
use bareverbs::values::{RetryCount, RnrRetry};
use bareverbs::{Access, Buffer, Imm, Mr, Pd, Remote, WcStatus};
use bareverbs_kernel_tests::loopback::{
    ALL_REMOTE, Plan, Side, contents, domain, join, pair, region, request, side,
};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

/// Kernels that put the queue pair into ERR first flush the failing request too.
const LOCAL: &[WcStatus] = &[
    WcStatus::LOC_PROT_ERR,
    WcStatus::LOC_QP_OP_ERR,
    WcStatus::LOC_ACCESS_ERR,
    WcStatus::LOC_LEN_ERR,
    WcStatus::MW_BIND_ERR,
    WcStatus::WR_FLUSH_ERR,
];
const REFUSED_BY_PEER: &[WcStatus] =
    &[WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR, WcStatus::REM_ACCESS_ERR];

fn quiet(wr_id: u64) -> SendRequest<'static> {
    let payload = Payload::Inline(&[b"hello"]);
    SendRequest { wr_id, operation: Operation::Send, flags: SendFlags::empty(), payload }
}

fn hello(wr_id: u64) -> SendRequest<'static> {
    SendRequest { flags: SendFlags::SIGNALED, ..quiet(wr_id) }
}

/// Two connected sides, and memory of the message after recovery.
struct Fixture {
    a: Side,
    b: Side,
    good: Mr<Buffer>,
}

impl Fixture {
    fn new(pd: &Pd, plan: Plan) -> Self {
        let (a, b) = pair(pd, plan);
        Self { a, b, good: region(pd, &[0; 64], ALL_REMOTE) }
    }

    /// Posts `request`, which fails with one of `expected`. Later requests are flushed in order,
    /// unsignalled ones included, and so are the receives.
    fn fails(&mut self, request: SendRequest<'_>, expected: &[WcStatus]) -> WcStatus {
        let sges = [self.good.sge(..).unwrap()];
        self.a.recv_into(100, 3, &sges);
        self.a.send(&[request, quiet(2), hello(3), quiet(4)]).unwrap();
        let ends = self.a.ends(7);
        let of = |receives: bool| -> Vec<_> {
            ends.iter().filter(|(wr_id, _)| (*wr_id >= 100) == receives).copied().collect()
        };
        let [(wr_id, status), rest @ ..] = &of(false)[..] else { panic!("{ends:?}") };
        assert_eq!(*wr_id, request.wr_id, "{ends:?}");
        assert!(expected.contains(status), "{status:?}: {}", wc_status_str(*status));
        let flushed = |range: std::ops::Range<u64>| -> Vec<_> {
            range.map(|wr_id| (wr_id, WcStatus::WR_FLUSH_ERR)).collect()
        };
        assert_eq!((rest, &of(true)[..]), (&flushed(2..5)[..], &flushed(100..103)[..]));
        assert_eq!(self.a.kernel_state(), QpState::ERR);
        // Later requests are flushed too; receives are flushed after another transition to ERR.
        self.a.send(&[hello(5)]).unwrap();
        assert_eq!(self.a.ends(1), flushed(5..6));
        self.a.qp.set_error().unwrap();
        self.a.recv_into(103, 2, &sges);
        assert_eq!(self.a.ends(2), flushed(103..105));
        *status
    }

    /// After reset and reconnection, both sides work.
    fn comes_back(mut self) {
        for side in [&mut self.a, &mut self.b] {
            side.qp.reset().unwrap();
            while side.cq.poll_one().is_some() {}
        }
        join(&mut self.a, &mut self.b);
        self.b.recv_into(7, 1, &[self.good.sge(..).unwrap()]);
        self.a.send(&[hello(8)]).unwrap();
        assert_eq!(self.a.ends(1), [(8, WcStatus::SUCCESS)]);
        assert_eq!(self.b.ends(1), [(7, WcStatus::SUCCESS)]);
        assert_eq!(contents(&self.good)[..5], *b"hello");
    }
}

#[kernel_test(device::acknowledges)]
fn short_receive_fails_on_both_sides() {
    nothing_leaks(|| {
        let pd = domain();
        let (from, to) = (region(&pd, &[7; 8192], ALL_REMOTE), region(&pd, &[0; 8192], ALL_REMOTE));
        // Too short in the first packet, in a later one, in the second SGE; and without any SGE.
        let rooms: [&[Sge]; 4] = [
            &[to.sge(..63).unwrap()],
            &[to.sge(..4000).unwrap()],
            &[to.sge(..32).unwrap(), to.sge(100..131).unwrap()],
            &[],
        ];
        for (room, length) in rooms.into_iter().zip([64, 4096, 64, 1]) {
            let mut fixture = Fixture::new(&pd, Plan::default());
            let begin = 10;
            fixture.b.recv(&[RecvRequest { wr_id: begin, sges: room }]).unwrap();
            fixture.b.recv_into(11, 2, room);
            let payload = [from.sge(..length).unwrap()];
            let status = fixture.fails(request(1, Operation::Send, Payload::Sges(&payload)), REFUSED_BY_PEER);
            let ends = fixture.b.ends(3);
            // If the receive ends within a packet or has no SGEs, the status depends on the kernel.
            let short = [WcStatus::LOC_LEN_ERR, WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_QP_OP_ERR];
            assert!(ends[0].0 == begin && short.contains(&ends[0].1), "{ends:?}");
            let reported = [status, ends[0].1].map(|status| pd.context().explain(status));
            assert!(
                reported.iter().all(|text| ["too long", "too short", "shorter", "exceeds"]
                    .iter()
                    .any(|why| text.contains(why))),
                "{reported:?}"
            );
            assert_eq!(ends[1..], [(11, WcStatus::WR_FLUSH_ERR), (12, WcStatus::WR_FLUSH_ERR)]);
            assert_eq!(fixture.b.kernel_state(), QpState::ERR);
            fixture.comes_back();
        }
        let beyond = contents(&to);
        assert!(beyond[4000..].iter().all(|byte| *byte == 0), "written beyond the receive");
    });
}

#[kernel_test(device::acknowledges)]
fn receive_with_wrong_lkey_fails_on_both_sides() {
    nothing_leaks(|| {
        let pd = domain();
        let closed = region(&pd, &[0; 256], Access::empty());
        let foreign = region(&pd.context().alloc_pd().unwrap(), &[0; 256], Access::LOCAL_WRITE);
        let good = region(&pd, &[0; 256], Access::LOCAL_WRITE);
        // Longer than the maximum of scatter to CQE, which needs no key.
        let from = region(&pd, &[1; 200], Access::empty());
        let payload = [from.sge(..).unwrap()];
        for (what, sge) in [
            ("not writable", Some(closed.sge(..).unwrap())),
            ("another domain's", Some(foreign.sge(..).unwrap())),
            ("a freed region's", None),
            ("beyond the region", Some(Sge { length: 200, ..good.sge(100..).unwrap() })),
        ] {
            let mut fixture = Fixture::new(&pd, Plan::default());
            // Deregistered last: the next region might get its key and memory, as with mlx5.
            let sge = sge.unwrap_or_else(|| region(&pd, &[0; 256], Access::LOCAL_WRITE).sge(..).unwrap());
            fixture.b.recv(&[RecvRequest { wr_id: 10, sges: &[sge] }]).unwrap();
            let status = fixture.fails(request(1, Operation::Send, Payload::Sges(&payload)), REFUSED_BY_PEER);
            let end = fixture.b.ends(1)[0];
            assert!(end.0 == 10 && end.1 != WcStatus::SUCCESS, "{what}: {end:?}, {status:?}");
            fixture.comes_back();
        }
        assert!([&closed, &foreign, &good].map(contents).iter().flatten().all(|byte| *byte == 0));
    });
}

#[kernel_test(device::acknowledges)]
fn rnr_and_missing_peer_exhaust_the_retries() {
    nothing_leaks(|| {
        let pd = domain();
        let mut fixture = Fixture::new(&pd, Plan { rnr_retry: RnrRetry::new(1).unwrap(), ..Plan::default() });
        fixture.fails(hello(1), &[WcStatus::RNR_RETRY_EXC_ERR]);
        fixture.comes_back();

        // The QPN of a destroyed queue pair.
        let gone = side(&pd, Plan::default()).qp.qp_num();
        let mut fixture = Fixture::new(&pd, Plan::default());
        fixture.a.qp.reset().unwrap();
        let (rtr, rts) = (fixture.a.towards(gone), fixture.a.sending());
        fixture.a.qp.init(&InitAttr::new(1)).unwrap();
        fixture.a.qp.ready_to_receive(&rtr).unwrap();
        fixture.a.qp.ready_to_send(&RtsAttr { retry_cnt: RetryCount::new(1).unwrap(), ..rts }).unwrap();
        fixture.fails(hello(1), &[WcStatus::RETRY_EXC_ERR]);
        fixture.comes_back();
    });
}

#[kernel_test(device::acknowledges)]
fn each_remote_operation_requires_its_access_flag() {
    nothing_leaks(|| {
        let pd = domain();
        let own = region(&pd, &[1; 64], ALL_REMOTE);
        let eight = [own.sge(..8).unwrap()];
        let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
        for (right, needed) in rights.into_iter().flat_map(|one| rights.map(|other| (one, other))) {
            let memory = region(&pd, &[2; 64], Access::LOCAL_WRITE | right);
            let remote = memory.remote(0).unwrap();
            let operations = match needed {
                Access::REMOTE_WRITE => vec![Operation::Write(remote), Operation::WriteImm(remote, Imm(7))],
                Access::REMOTE_READ => vec![Operation::Read(remote)],
                _ => vec![
                    Operation::FetchAdd { remote, add: 1 },
                    Operation::CmpSwp { remote, compare: 0, swap: 1 },
                ],
            };
            for operation in operations {
                let mut fixture = Fixture::new(&pd, Plan::default());
                fixture.b.recv_into(10, 1, &[]);
                let attempt = request(1, operation, Payload::Sges(&eight));
                if right == needed {
                    fixture.a.send(&[attempt]).unwrap();
                    assert_eq!(fixture.a.ends(1), [(1, WcStatus::SUCCESS)], "{operation:?} with {right:?}");
                } else {
                    fixture.fails(attempt, &[WcStatus::REM_ACCESS_ERR]);
                    assert_eq!(contents(&memory), [2; 64], "{operation:?} with {right:?}");
                    fixture.comes_back();
                }
            }
        }
    });
}

#[kernel_test(device::acknowledges)]
fn rkey_is_valid_only_while_its_mr_exists() {
    nothing_leaks(|| {
        let pd = domain();
        let own = region(&pd, &[1; 128], ALL_REMOTE);
        let memory = region(&pd, &[2; 64], ALL_REMOTE);
        let gone = region(&pd, &[3; 64], ALL_REMOTE).remote(0).unwrap();
        let start = memory.remote(0).unwrap();
        let at = |addr| Remote { addr, ..start };
        let cases = [
            ("a destroyed region", gone, 8),
            ("the last byte and one more", at(start.addr + 56), 9),
            ("one byte behind", at(start.addr + 64), 1),
            ("one byte before", at(start.addr - 1), 8),
            ("more than the region", start, 65),
            ("an address that wraps", at(u64::MAX - 3), 8),
            ("the address zero", at(0), 8),
            ("a key with another low byte", Remote { rkey: start.rkey ^ 1, ..start }, 8),
            ("a key with another index", Remote { rkey: start.rkey ^ 0x100_0000, ..start }, 8),
            ("no key", Remote { rkey: 0, ..start }, 8),
        ];
        for (what, remote, length) in cases {
            for operation in [Operation::Write(remote), Operation::Read(remote)] {
                let mut fixture = Fixture::new(&pd, Plan::default());
                let payload = [own.sge(..length).unwrap()];
                let status = fixture
                    .fails(request(1, operation, Payload::Sges(&payload)), &[WcStatus::REM_ACCESS_ERR]);
                assert!(pd.context().explain(status).contains("key"), "{what}");
                fixture.comes_back();
            }
        }
        assert_eq!((contents(&own), contents(&memory)), (vec![1; 128], vec![2; 64]));
    });
}

#[kernel_test(device::soft_roce_validates_binds)]
fn local_inv_and_bind_mw_with_invalid_keys_fail() {
    nothing_leaks(|| {
        let pd = domain();
        let bindable = region(&pd, &[0; 64], Access::LOCAL_WRITE | Access::MW_BIND);
        let foreign =
            region(&pd.context().alloc_pd().unwrap(), &[0; 64], Access::LOCAL_WRITE | Access::MW_BIND);
        let window = pd.alloc_mw(MwType::TYPE_2).unwrap();
        let other = pd.context().alloc_pd().unwrap().alloc_mw(MwType::TYPE_2).unwrap();
        let gone = pd.alloc_mw(MwType::TYPE_2).unwrap().rkey();
        let bind = window.bind(&bindable, .., Access::REMOTE_READ).unwrap();
        let wrong = |change: fn(&mut MwBind)| {
            let mut bind = bind;
            change(&mut bind);
            Operation::BindMw(bind)
        };
        let operations = [
            Operation::LocalInv(0),
            Operation::LocalInv(u32::MAX),
            Operation::LocalInv(0x00de_ad00),
            Operation::LocalInv(gone),
            wrong(|bind| bind.mw_rkey ^= 1),
            wrong(|bind| bind.mw_rkey = 0),
            wrong(|bind| bind.mr_lkey = 0xdead_be00),
            wrong(|bind| bind.length = 65),
            wrong(|bind| bind.length = 0),
            wrong(|bind| bind.addr -= 1),
            Operation::BindMw(MwBind { mw_rkey: gone, ..bind }),
            Operation::BindMw(MwBind { mw_rkey: other.rkey(), ..bind }),
            Operation::BindMw(window.unbind()),
        ];
        for operation in operations {
            let mut fixture = Fixture::new(&pd, Plan::default());
            let payload = Payload::Sges(&[]);
            fixture.fails(request(1, operation, payload), LOCAL);
            fixture.comes_back();
        }
        drop(foreign);
    });
}

#[kernel_test(device::memory_windows)]
fn send_with_invalid_rkey_to_invalidate_fails_at_the_peer() {
    nothing_leaks(|| {
        let pd = domain();
        let gone = pd.alloc_mw(MwType::TYPE_2).unwrap().rkey();
        for rkey in [0, u32::MAX, 0x00de_ad00, gone] {
            let (mut a, mut b) = pair(&pd, Plan::default());
            b.recv_into(10, 1, &[]);
            a.send(&[request(1, Operation::SendInv(rkey), Payload::Sges(&[]))]).unwrap();
            let (received, sent) = (b.ends(1)[0], a.ends(1)[0]);
            assert!(received.0 == 10 && received.1 != WcStatus::SUCCESS, "{rkey:#x}: {received:?}");
            // The message itself had arrived, so the sender may have its completion.
            assert_eq!(sent.0, 1);
            b.recv_into(11, 1, &[]);
            b.qp.set_error().unwrap();
            assert_eq!(b.ends(1), [(11, WcStatus::WR_FLUSH_ERR)]);
            assert_eq!(b.kernel_state(), QpState::ERR);
        }
    });
}

#[kernel_test(device::rxe_abi)]
fn max_rd_atomic_zero_rejects_reads_and_atomics() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[0; 64], ALL_REMOTE);
        let remote = memory.remote(0).unwrap();
        let eight = [memory.sge(8..16).unwrap()];
        let mut fixture = Fixture::new(&pd, Plan::default());
        fixture.a.qp.reset().unwrap();
        let (rtr, rts) = (fixture.a.towards(fixture.b.qp.qp_num()), fixture.a.sending());
        fixture.a.qp.init(&InitAttr::new(1)).unwrap();
        fixture.a.qp.ready_to_receive(&rtr).unwrap();
        fixture.a.qp.ready_to_send(&RtsAttr { max_rd_atomic: 0, ..rts }).unwrap();
        for (operation, name) in [
            (Operation::Read(remote), "an RDMA read"),
            (Operation::FetchAdd { remote, add: 1 }, "a fetch-and-add"),
            (Operation::CmpSwp { remote, compare: 0, swap: 1 }, "a compare-and-swap"),
        ] {
            let refused = fixture.a.send(&[request(1, operation, Payload::Sges(&eight))]).unwrap_err();
            let reason = PostReason::Queue(PushError::MaxRdAtomicZero { operation: name });
            assert_eq!((refused.accepted, refused.reason), (0, reason));
            let text = format!(
                "no request was posted: {name} requires max_rd_atomic of at least 1; the QP was \
                 connected with 0"
            );
            assert_eq!(refused.to_string(), text);
        }
        fixture.a.send(&[request(2, Operation::Write(remote), Payload::Inline(&[b"writes do"]))]).unwrap();
        assert_eq!(fixture.a.ends(1), [(2, WcStatus::SUCCESS)]);
        assert_eq!(contents(&memory)[..9], *b"writes do");
        fixture.comes_back();
    });
}

#[kernel_test(device::moves_qps)]
fn max_dest_rd_atomic_zero_rejects_remote_reads() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[0; 64], ALL_REMOTE);
        let eight = [memory.sge(8..16).unwrap()];
        let (mut a, mut b) = (side(&pd, Plan::default()), side(&pd, Plan::default()));
        a.connect(b.qp.qp_num());
        let (rtr, rts) = (b.towards(a.qp.qp_num()), b.sending());
        b.qp.init(&InitAttr { access: ALL_REMOTE, ..InitAttr::new(1) }).unwrap();
        b.qp.ready_to_receive(&bareverbs::qp::RtrAttr { max_dest_rd_atomic: 0, ..rtr }).unwrap();
        b.qp.ready_to_send(&rts).unwrap();
        let mut fixture = Fixture { a, b, good: region(&pd, &[0; 64], ALL_REMOTE) };
        let read = Operation::Read(memory.remote(0).unwrap());
        fixture.fails(request(1, read, Payload::Sges(&eight)), REFUSED_BY_PEER);
    });
}
