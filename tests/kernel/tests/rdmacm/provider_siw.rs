//! The provider of Soft-iWARP, on connections within this host.

use std::thread;
use std::time::Instant;

use bareverbs::cq::{Cq, CqInit, WorkCompletion};
use bareverbs::error::{PostReason, PushError};
use bareverbs::qp::{Operation, Qp, QpCap, QpInit, QpState, Rc, RecvRequest, SendFlags, SendRequest, Sge};
use bareverbs::srq::SrqInit;
use bareverbs::{Access, Buffer, Imm, Mr, Pd, Remote, WcOpcode, WcStatus};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_rdmacm::{ConnectOptions, Connected, Connector};

use crate::host::*;
use crate::iwarp::listen;

/// One end of a connection.
struct End {
    /// Dropped before the memory of its requests.
    connection: Connected<Qp<Rc>>,
    cq: Cq,
    mr: Mr<Buffer>,
}

const BYTES: usize = 1 << 20;

fn queue(pd: &Pd) -> (Qp<Rc>, Cq, Mr<Buffer>) {
    let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
    let cap =
        QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 80 };
    let qp = pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let mr = pd.register(Buffer::zeroed(BYTES).unwrap(), access).unwrap();
    (qp, cq, mr)
}

/// A connection: the active end, then the passive one.
fn pair() -> [End; 2] {
    let (listener, addr) = listen();
    let options = ConnectOptions::default();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let incoming = listener.request().in_time().unwrap();
            let (qp, cq, mr) = queue(&incoming.pd().in_time().unwrap());
            End { connection: incoming.accept(qp, &options).in_time().unwrap(), cq, mr }
        });
        let route = Connector::new().resolve(addr).in_time().unwrap();
        let (qp, cq, mr) = queue(&route.pd().in_time().unwrap());
        let active = End { connection: route.connect(qp, &options).in_time().unwrap(), cq, mr };
        [active, server.join().unwrap()]
    })
}

impl End {
    fn qp(&mut self) -> &mut Qp<Rc> {
        &mut self.connection.queue
    }

    fn sge(&self, range: std::ops::Range<usize>) -> Sge {
        self.mr.sge(range).unwrap()
    }

    fn recv(&mut self, wr_id: u64, range: std::ops::Range<usize>) {
        let sges = [self.sge(range)];
        // SAFETY: the MR lives until the QP is destroyed, and no reference to its bytes exists meanwhile.
        unsafe { self.qp().post_recv(&[RecvRequest::new(wr_id, &sges)]) }.unwrap();
    }

    fn send(&mut self, requests: &[SendRequest<'_>]) {
        // SAFETY: as in `recv`.
        unsafe { self.qp().post_send(requests) }.unwrap();
    }

    #[track_caller]
    fn next(&mut self) -> WorkCompletion {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(done) = self.cq.poll_one() {
                return done;
            }
            assert!(Instant::now() < end, "a completion in time");
            thread::yield_now();
        }
    }

    #[track_caller]
    fn expect(&mut self, expected: &[(u64, WcStatus)]) {
        let done: Vec<_> =
            expected.iter().map(|_| self.next()).map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(done, expected);
    }
}

const OK: WcStatus = WcStatus::SUCCESS;
const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;

#[kernel_test(device::iwarp)]
fn siw_requests_complete_in_the_order_of_posting() {
    nothing_leaks(|| {
        let [mut a, mut b] = pair();
        let remote = b.mr.remote(0).unwrap();
        // A READ of 1 MiB, whose response takes longer than the SENDs behind it.
        for turn in 0..8u64 {
            (0..2).for_each(|wr_id| b.recv(wr_id, 0..64));
            let (whole, small) = ([a.sge(0..BYTES)], [a.sge(0..64)]);
            let id = turn * 8;
            a.send(&[
                SendRequest::send(id, &small).signaled(),
                SendRequest::read(id + 1, remote, &whole).signaled(),
                SendRequest::read(id + 2, remote, &whole),
                SendRequest::send(id + 3, &small).signaled(),
                SendRequest::read(id + 4, remote, &small).signaled(),
                SendRequest::write(id + 5, remote, &small).signaled(),
            ]);
            a.expect(&[(id, OK), (id + 1, OK), (id + 3, OK), (id + 4, OK), (id + 5, OK)]);
            b.expect(&[(0, OK), (1, OK)]);
        }
        assert!(a.cq.poll_one().is_none());

        // Large payloads are signalled to the kernel. Those that the caller does not ask for are not
        // reported, and do not fill the CQ.
        for wr_id in 0..200 {
            let whole = [a.sge(0..8192)];
            let request = SendRequest::write(wr_id, remote, &whole);
            a.send(&[if wr_id % 10 == 9 { request.signaled() } else { request }]);
            if wr_id % 10 == 9 {
                a.expect(&[(wr_id, OK)]);
            }
        }

        // SGEs without bytes, a list, inline data.
        b.recv(7, 0..256);
        let (empty, x, y) = (Sge { addr: 0, length: 0, lkey: 0 }, a.sge(0..100), a.sge(200..300));
        a.send(&[SendRequest::send(1, &[empty, x, empty, y]).signaled()]);
        a.expect(&[(1, OK)]);
        let done = b.next();
        assert_eq!((done.wr_id, done.status, done.byte_len, done.opcode), (7, OK, 200, WcOpcode::RECV));
        b.recv(8, 0..256);
        a.send(&[SendRequest::send(2, &[]).inline(&[&[1; 30], &[2; 50]]).signaled()]);
        a.expect(&[(2, OK)]);
        let done = b.next();
        assert_eq!((done.wr_id, done.status, done.byte_len), (8, OK, 80));
        let mut received = [0; 80];
        b.mr.read(0, &mut received).unwrap();
        assert_eq!((&received[..30], &received[30..]), (&[1u8; 30][..], &[2u8; 50][..]));
    });
}

#[kernel_test(device::iwarp)]
fn siw_requests_after_the_end_of_a_connection_are_flushed() {
    nothing_leaks(|| {
        // The peer closes the connection.
        let [mut a, b] = pair();
        a.recv(1, 0..64);
        drop(b);
        a.expect(&[(1, FLUSHED)]);
        let small = [a.sge(0..64)];
        a.send(&[SendRequest::send(2, &small).signaled(), SendRequest::send(3, &small)]);
        a.recv(4, 0..64);
        a.expect(&[(2, FLUSHED), (3, FLUSHED), (4, FLUSHED)]);
        a.send(&[SendRequest::send(5, &small)]);
        a.expect(&[(5, FLUSHED)]);
        drop(a);

        // A state change, with requests before and after it.
        let [mut a, _b] = pair();
        (0..3).for_each(|wr_id| a.recv(wr_id, 0..64));
        a.qp().set_error().unwrap();
        a.expect(&[(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]);
        a.recv(3, 0..64);
        a.send(&[SendRequest::send(4, &small)]);
        a.expect(&[(3, FLUSHED), (4, FLUSHED)]);

        // A request with a wrong key.
        let [mut a, mut b] = pair();
        a.recv(1, 0..64);
        b.recv(1, 0..64);
        let wrong = [Sge { lkey: small[0].lkey ^ 0xff00, ..a.sge(0..64) }];
        a.send(&[SendRequest::send(2, &wrong), SendRequest::send(3, &small).signaled()]);
        let mut done: Vec<_> = (0..3).map(|_| a.next()).map(|done| (done.wr_id, done.status)).collect();
        done.sort_unstable_by_key(|done| done.0);
        assert_eq!(done, [(1, FLUSHED), (2, WcStatus::LOC_QP_OP_ERR), (3, FLUSHED)]);
        b.expect(&[(1, FLUSHED)]);
        assert!(a.cq.poll_one().is_none());

        // A read with a wrong remote key: the peer ends the connection.
        let [mut a, b] = pair();
        let remote = b.mr.remote(0).unwrap();
        let wrong = Remote { rkey: remote.rkey ^ 0xff00, ..remote };
        let small = [a.sge(0..64)];
        a.send(&[
            SendRequest::read(1, wrong, &small),
            SendRequest::read(2, remote, &small).signaled(),
            SendRequest::send(3, &small).signaled(),
        ]);
        a.expect(&[(1, FLUSHED), (2, FLUSHED)]);
        // TCP may have taken it before the end. The kernel may also find the connection closed while it sends
        // (`siw_qp_sq_process` of `siw_qp_tx.c`).
        let done = a.next();
        let may_be = [OK, FLUSHED, WcStatus::LOC_QP_OP_ERR];
        assert!(done.wr_id == 3 && may_be.contains(&done.status), "{done:?}");
        drop(b);
    });
}

#[kernel_test(device::iwarp)]
fn siw_rejects_unsupported_requests_in_user_space() {
    nothing_leaks(|| {
        let [mut a, b] = pair();
        let remote = b.mr.remote(0).unwrap();
        let small = [a.sge(0..8)];
        let unsupported = |operation: Operation| PushError::Unsupported { operation: operation.name() };
        for operation in [
            Operation::SendImm(Imm(1)),
            Operation::WriteImm(remote, Imm(1)),
            Operation::FetchAdd { remote, add: 1 },
            Operation::CmpSwp { remote, compare: 1, swap: 2 },
            Operation::LocalInv(1),
        ] {
            let expected = unsupported(operation);
            let request = SendRequest {
                wr_id: 1,
                operation,
                flags: SendFlags::SIGNALED,
                payload: bareverbs::qp::Payload::Sges(&small),
            };
            // SAFETY: the request is refused.
            let refused = unsafe { a.qp().post_send(&[request]) }.unwrap_err();
            assert!(matches!(refused.reason, PostReason::Queue(reason) if reason == expected), "{refused}");
        }
        // The kernel ignores it, so that posted requests would stay.
        let refused = a.qp().reset().unwrap_err().to_string();
        assert!(refused.contains("can't be reset"), "{refused}");
        assert_eq!(a.qp().query().unwrap().0.qp_state, QpState::RTS);

        let pd = a.qp().pd().clone();
        let cap = QpCap { max_inline_data: 81, ..QpCap::default() };
        let refused = pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&a.cq, &a.cq) }).map(drop);
        assert!(refused.unwrap_err().to_string().contains("above the maximum of 80"));
        assert!(pd.create_qp::<bareverbs::qp::Ud>(&QpInit::new(&a.cq, &a.cq)).is_err());
        assert!(a.cq.resize(128).is_err());
        let mut srq = pd.create_srq(&SrqInit::new(16)).unwrap();
        assert!(srq.resize(32).is_err());
        assert_eq!(a.qp().cap().max_inline_data, 80);
        a.expect(&[]);
    });
}
