use std::io;
use std::ops::{Bound, RangeBounds};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::DoorbellError;
use rustix::io::Errno;

use super::driver::DriverGuard;
use super::election::DriverKind;
use super::reaper::service::RESERVED;
use super::reaper::{Depths, PROBE};
use super::*;
use crate::cq::{WcFlags, WorkCompletion};
use crate::error::{PostError, PushError};
use crate::mr::ImplicitMr;
use crate::owned::{AnyBuffer, Done, Failed, Op, Outcome, Pending, Pool};
use crate::qp::QpState;
use crate::runtime::Readable;
use crate::testing::tasks::Never;
use crate::testing::{Hook, Plain, completion, ends, refuse_ioctls, succeed_ioctls};
use crate::values::Mtu;
use crate::{Access, Imm, MemoryOwner, Mr, Refused, Remote, WcOpcode, WcStatus};

/// Memory that counts how often it is freed.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the heap block of the vector does not move with the vector, and is never freed if the
// vector is forgotten.
unsafe impl MemoryOwner for Counted {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut self.0[..]).cast(), self.0.len())
    }
}

type Buffer = Mr<Counted>;

struct Setup {
    plain: Plain,
    region: ImplicitMr,
    hub: Hub<Buffer, Plain>,
    freed: Arc<AtomicUsize>,
}

impl Setup {
    fn new(entries: u32) -> Self {
        let plain = Plain::default();
        let pd = plain.domain();
        let region = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE);
        Self { plain, region, hub: Hub::for_test(&pd, entries, ()), freed: Arc::default() }
    }

    /// A connection in RTS. Its destruction fails.
    fn connection(&self, depth: usize) -> Connection<Buffer, Plain> {
        self.hub.connection_for_test(self.plain.queue_pair(&self.hub.inner.pd), [depth; 2], (0, ()))
    }

    /// Creates a connection for `depth` sends and receives.
    fn open(&self, depth: u32, policy: Policy) -> Result<Connection<Buffer, Plain>> {
        let depths = Depths { sends: depth, recvs: depth, ..Depths::default() };
        let attr = (ConnectAttr::new(1, 0), policy, ResolveTimeout::default());
        let create = |init: &QpInit<'_, Plain>| self.hub.pd().create_qp(init);
        self.hub.open("test", attr, (depths, 0), |address| address, create, (0, ()))
    }

    fn buffer(&self) -> Buffer {
        let part = self.region.part(Counted(vec![7; 16], Arc::clone(&self.freed)));
        part.map_err(|Refused { error, .. }| error).unwrap()
    }

    fn freed(&self) -> usize {
        self.freed.load(Ordering::Relaxed)
    }

    /// Posts a receive. Returns it with its `wr_id`.
    fn recv(&self, peer: &Connection<Buffer, Plain>) -> (Pending<Buffer, Plain>, u64) {
        let pending = peer.post(Op::recv(self.buffer()));
        (pending, *self.plain.log().received.last().unwrap())
    }

    fn complete(&self, peer: &Connection<Buffer, Plain>, wr_id: u64, status: WcStatus) {
        let qp_num = peer.address().qp_num;
        let completion = WorkCompletion { qp_num, ..completion(wr_id, status) };
        self.plain.log().completions.push_back(completion);
    }
}

fn poll(pending: &mut Pending<Buffer, Plain>) -> Poll<Result<Done<Buffer>, Failed<Buffer>>> {
    std::pin::Pin::new(pending).poll(&mut Context::from_waker(Waker::noop()))
}

use std::future::Future;

#[test]
fn awaits_that_end_at_once_let_other_tasks_run() {
    let (setup, counts) = (Setup::new(8), Arc::new(Counts::default()));
    let peer = setup.connection(2);
    let waker = Waker::from(Arc::clone(&counts));
    let mut yields = Vec::new();
    for number in 1..=300 {
        let (mut pending, wr_id) = setup.recv(&peer);
        setup.complete(&peer, wr_id, WcStatus::SUCCESS);
        // Without a driver, a poll that registers the task is an error.
        while std::pin::Pin::new(&mut pending)
            .poll(&mut Context::from_waker(&waker))
            .map(Result::unwrap)
            .is_pending()
        {
            yields.push(number);
        }
    }
    assert_eq!(yields, [128, 255]);
    assert_eq!(counts.0.load(Ordering::Relaxed), 2, "the task is polled again");
}

#[test]
fn result_of_another_operation_is_handed_out() {
    let setup = Setup::new(8);
    let (a, b) = (setup.connection(2), setup.connection(2));
    let ((first, one), (second, two)) = (setup.recv(&a), setup.recv(&b));
    setup.complete(&a, one, WcStatus::SUCCESS);
    setup.complete(&b, two, WcStatus::SUCCESS);
    // The first one to wait reaps both.
    assert_eq!(second.wait().unwrap().message(), Some(&[7][..]));
    assert!(setup.plain.log().completions.is_empty());
    assert_eq!(first.wait().unwrap().message(), Some(&[7][..]));
    assert_eq!(setup.freed(), 2);
}

#[test]
fn receive_of_a_write_with_immediate_has_the_length_of_the_write() {
    let setup = Setup::new(8);
    let peer = setup.connection(2);
    let (pending, wr_id) = setup.recv(&peer);
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    {
        let mut log = setup.plain.log();
        let completion = log.completions.back_mut().unwrap();
        (completion.opcode, completion.byte_len) = (WcOpcode::RECV_RDMA_WITH_IMM, 4096);
    }
    let done = pending.wait().unwrap();
    assert_eq!((done.len, done.message()), (4096, None));
}

#[test]
fn first_poll_takes_its_own_result_from_the_cq() {
    let setup = Setup::new(8);
    let peer = setup.connection(2);
    // More operations than slots: each slot is given back.
    for declines in [false, true].repeat(3) {
        setup.plain.log().declines = declines;
        let ((mut first, one), (mut second, two)) = (setup.recv(&peer), setup.recv(&peer));
        setup.complete(&peer, one, WcStatus::SUCCESS);
        setup.complete(&peer, two, WcStatus::SUCCESS);
        let Poll::Ready(Ok(done)) = poll(&mut first) else { panic!("it is complete") };
        assert_eq!(done.message(), Some(&[7][..]));
        // The slow path reaps all completions.
        assert_eq!(setup.plain.log().completions.len(), usize::from(!declines));
        let Poll::Ready(Err(failed)) = poll(&mut first) else { panic!("it is taken") };
        assert!(failed.error.to_string().contains("its result was taken"), "{failed}");
        assert!(matches!(poll(&mut second), Poll::Ready(Ok(_))));
    }
}

#[test]
fn first_poll_of_a_failed_operation_ends_the_connection() {
    let setup = Setup::new(8);
    let peer = setup.connection(2);
    let ((mut first, one), (second, two)) = (setup.recv(&peer), setup.recv(&peer));
    setup.complete(&peer, one, WcStatus::LOC_LEN_ERR);
    setup.complete(&peer, two, WcStatus::WR_FLUSH_ERR);
    let Poll::Ready(Err(failed)) = poll(&mut first) else { panic!("it is complete") };
    assert!(failed.is_operation() && failed.buffer.is_some(), "{failed}");
    assert!(matches!(peer.failure(), Some(Error::Completion { status: WcStatus::LOC_LEN_ERR, .. })));
    assert_eq!(second.wait().unwrap_err().cause, Some(WcStatus::LOC_LEN_ERR));
}

#[test]
fn unknown_completion_that_the_first_poll_finds_ends_the_connection() {
    let setup = Setup::new(8);
    let (peer, other) = (setup.connection(2), setup.connection(2));
    let (mut pending, wr_id) = setup.recv(&peer);
    setup.complete(&other, 0x1234, WcStatus::SUCCESS);
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    assert!(matches!(poll(&mut pending), Poll::Ready(Ok(_))));
    assert!(matches!(other.failure(), Some(Error::UnknownCompletion { wr_id: 0x1234 })));
    assert!(peer.failure().is_none());
}

#[test]
fn refused_post_is_ready_with_its_buffer() {
    let setup = Setup::new(4);
    let peer = setup.connection(2);
    let refused = peer.post(Op::send(setup.buffer(), 10..17)).wait().unwrap_err();
    assert!(refused.error.to_string().contains("10..17"), "{refused}");
    assert_eq!(refused.buffer.unwrap().len(), 16);
    let refuse = PostError { accepted: 0, reason: PushError::QueueFull { capacity: 1 }.into() };
    setup.plain.log().rejections.push_back(PushError::QueueFull { capacity: 1 });
    let refused = peer.post(Op::recv(setup.buffer())).wait().unwrap_err();
    assert!(matches!(&refused.error, Error::Post(error) if *error == refuse), "{refused}");
    assert!(refused.buffer.is_some());
    // Neither took a slot.
    let taken: Vec<_> = (0..2).map(|_| setup.recv(&peer)).collect();
    let mut full = peer.post(Op::recv(setup.buffer()));
    let Poll::Ready(Err(full)) = poll(&mut full) else { panic!("ready at once") };
    let capacity = PostError { accepted: 0, reason: PushError::QueueFull { capacity: 2 }.into() };
    assert!(matches!(&full.error, Error::Post(error) if *error == capacity), "{full}");
    drop(taken);
}

#[test]
fn receives_take_no_room_of_sends() {
    let setup = Setup::new(4);
    let peer = setup.connection(2);
    let receives: Vec<_> = (0..3).map(|_| peer.post(Op::recv(setup.buffer()))).collect();
    let sends: Vec<_> = (0..3).map(|_| peer.post(Op::send(setup.buffer(), ..))).collect();
    let (received, sent) = {
        let log = setup.plain.log();
        (log.received.len(), log.sent.len())
    };
    assert_eq!((received, sent), (2, 2));
    assert_eq!(setup.hub.free_entries(), 0);
    drop((receives, sends));
}

#[test]
fn completion_before_the_doorbell_ends_no_operation_of_a_list() {
    let setup = Setup::new(8);
    let peer = setup.connection(2);
    let (plain, hub) = (setup.plain.clone(), Arc::downgrade(&setup.hub.inner));
    setup.plain.log().pushed = Hook(Some(Arc::new(move |wr_id| {
        // A repeated completion, with the number of no connection.
        let lie = WorkCompletion { qp_num: 0xff_ffff, ..completion(wr_id, WcStatus::SUCCESS) };
        plain.log().completions.push_back(lie);
        assert_eq!(hub.upgrade().unwrap().poll(BATCH), 1);
    })));
    let mut pending = Vec::new();
    peer.post_all(&mut vec![Op::send(setup.buffer(), ..), Op::send(setup.buffer(), ..)], &mut pending);
    setup.plain.log().pushed = Hook(None);
    assert!(pending.iter_mut().all(|pending| pending.wait_timeout(Duration::ZERO).is_none()));
    let sent: Vec<_> = setup.plain.log().sent.iter().map(|(_, wr_id)| *wr_id).collect();
    sent.iter().for_each(|wr_id| setup.complete(&peer, *wr_id, WcStatus::SUCCESS));
    assert!(pending.into_iter().all(|pending| pending.wait().is_ok()));
}

#[test]
fn buffer_of_another_pd_is_rejected() {
    let mut setup = Setup::new(4);
    let peer = setup.connection(2);
    let other = setup.plain.domain();
    setup.region = ImplicitMr::for_test(other.domain(), Access::LOCAL_WRITE);
    let remote = Remote { addr: 0, rkey: 1 };
    for pending in [
        peer.post(Op::recv(setup.buffer())),
        peer.post(Op::send(setup.buffer(), ..)),
        peer.post(Op::write(setup.buffer(), .., remote)),
        peer.post(Op::read(setup.buffer(), .., remote)),
        peer.post(Op::fetch_add(setup.buffer(), remote, 1)),
        peer.post(Op::compare_swap(setup.buffer(), remote, 1, 2)),
    ] {
        let refused = pending.wait().unwrap_err();
        assert!(refused.error.to_string().contains("different PDs"), "{refused}");
    }
    assert!(setup.plain.log().sent.is_empty());
}

#[test]
fn dropped_pending_keeps_the_buffer_until_the_completion() {
    let setup = Setup::new(4);
    let peer = setup.connection(2);
    let (pending, wr_id) = setup.recv(&peer);
    drop(pending);
    assert_eq!((setup.hub.poll(1), setup.freed()), (0, 0));
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    assert_eq!((setup.hub.poll(1), setup.freed()), (1, 1));
    // Its slot is free.
    let taken: Vec<_> = (0..2).map(|_| setup.recv(&peer)).collect();
    drop(taken);
}

#[test]
fn forgotten_pending_costs_one_operation_of_the_depth() {
    let setup = Setup::new(4);
    let peer = setup.connection(2);
    let (pending, wr_id) = setup.recv(&peer);
    std::mem::forget(pending);
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    assert_eq!(setup.hub.poll(1), 1);
    let (next, _) = setup.recv(&peer);
    assert!(peer.post(Op::recv(setup.buffer())).wait().is_err());
    assert_eq!(setup.freed(), 1, "of the refused one");
    drop(next);
}

#[test]
fn tags_come_back_with_results_and_refusals() {
    let setup = Setup::new(8);
    let peer = setup.connection(2);
    let send = peer.post(Op::send_inline(b"short").tag(7));
    let recv = peer.post(Op::recv(setup.buffer()).tag(8));
    let (sent, received) = {
        let log = setup.plain.log();
        (log.sent[0].1, log.received[0])
    };
    setup.complete(&peer, sent, WcStatus::SUCCESS);
    setup.complete(&peer, received, WcStatus::WR_FLUSH_ERR);
    let done = send.wait().unwrap();
    assert_eq!((done.tag, done.len, done.buffer.is_none()), (7, 5, true));
    assert_eq!(recv.wait().unwrap_err().tag, 8);
    let refused = peer.post(Op::send(setup.buffer(), ..).tag(9)).wait().unwrap_err();
    assert_eq!((refused.tag, refused.outcome), (9, Outcome::NotExecuted));
}

#[test]
fn operations_of_post_all_share_a_doorbell() {
    let setup = Setup::new(8);
    let peer = setup.connection(3);
    let mut ops: Vec<_> = (0..3).map(|tag| Op::send(setup.buffer(), ..).tag(tag)).collect();
    let mut pending = Vec::new();
    peer.post_all(&mut ops, &mut pending);
    let sent: Vec<_> = {
        let log = setup.plain.log();
        assert_eq!(log.doorbells, 1);
        log.sent.iter().map(|sent| sent.1).collect()
    };
    assert_eq!((ops.len(), sent.len()), (0, 3));
    sent.iter().for_each(|wr_id| setup.complete(&peer, *wr_id, WcStatus::SUCCESS));
    let tags: Vec<_> = pending.into_iter().map(|pending| pending.wait().unwrap().tag).collect();
    assert_eq!(tags, [0, 1, 2]);
    assert_eq!(setup.freed(), 3);
}

#[test]
fn post_all_refuses_operations_behind_a_refused_one() {
    let setup = Setup::new(8);
    let peer = setup.connection(2);
    // The third one finds no slot.
    let mut ops: Vec<_> = (0..4).map(|tag| Op::send(setup.buffer(), ..).tag(tag)).collect();
    let mut pending = Vec::new();
    peer.post_all(&mut ops, &mut pending);
    let sent: Vec<_> = setup.plain.log().sent.iter().map(|sent| sent.1).collect();
    assert_eq!(sent.len(), 2);
    sent.iter().for_each(|wr_id| setup.complete(&peer, *wr_id, WcStatus::SUCCESS));
    let mut results = pending.into_iter().map(Pending::wait);
    assert_eq!([0, 1].map(|_| results.next().unwrap().unwrap().tag), [0, 1]);
    let refused = [2, 3].map(|_| results.next().unwrap().unwrap_err());
    assert!(matches!(refused[0].error, Error::Post(_)), "{:?}", refused[0]);
    assert!(refused[1].error.to_string().contains("an earlier operation was refused"));
    assert_eq!(refused.map(|refused| (refused.tag, refused.buffer.is_some())), [(2, true), (3, true)]);
}

#[test]
fn post_all_returns_all_buffers_of_a_refused_doorbell() {
    let setup = Setup::new(8);
    let peer = setup.connection(2);
    setup.plain.log().refusals.push_back(DoorbellError::TakenBack(IoctlError::new("PostSend", Errno::NOMEM)));
    let mut ops: Vec<_> = (0..2).map(|tag| Op::send(setup.buffer(), ..).tag(tag)).collect();
    let mut pending = Vec::new();
    peer.post_all(&mut ops, &mut pending);
    for (refused, tag) in pending.drain(..).map(|pending| pending.wait().unwrap_err()).zip(0..) {
        assert_eq!((refused.tag, refused.buffer.is_some()), (tag, true), "{refused}");
        assert_eq!(refused.error.errno(), Some(Errno::NOMEM));
    }
    // Their slots are free.
    let mut ops: Vec<_> = (0..2).map(|_| Op::send(setup.buffer(), ..)).collect();
    peer.post_all(&mut ops, &mut pending);
    assert!(pending.iter_mut().all(|pending| pending.wait_timeout(Duration::ZERO).is_none()));
}

#[test]
fn post_all_on_a_failed_connection_posts_nothing() {
    let setup = Setup::new(8);
    let peer = setup.connection(2);
    peer.abort();
    let mut ops: Vec<_> = (0..2).map(|_| Op::send(setup.buffer(), ..)).collect();
    let mut pending = Vec::new();
    peer.post_all(&mut ops, &mut pending);
    assert!(pending.into_iter().all(|pending| pending.wait().unwrap_err().buffer.is_some()));
    assert!(setup.plain.log().sent.is_empty());
}

#[test]
fn unknown_completions_free_nothing_and_end_their_connection() {
    for (status, nonsense) in [WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR]
        .into_iter()
        .flat_map(|status| [0, 1, 1 << 32 | 9, 2 << 32, u64::MAX].map(|nonsense| (status, nonsense)))
    {
        let setup = Setup::new(8);
        let (peer, other) = (setup.connection(2), setup.connection(2));
        let ((pending, wr_id), (unharmed, others)) = (setup.recv(&peer), setup.recv(&other));
        setup.complete(&peer, nonsense, status);
        setup.complete(&other, others, WcStatus::SUCCESS);
        unharmed.wait().unwrap();
        assert!(matches!(peer.failure(), Some(Error::UnknownCompletion { wr_id }) if wr_id == nonsense));
        assert_eq!(setup.plain.log().states, [QpState::ERR]);
        assert!(other.failure().is_none());
        let refused = peer.post(Op::send(setup.buffer(), ..)).wait().unwrap_err();
        assert!(matches!(refused.error, Error::UnknownCompletion { .. }), "{refused}");
        assert_eq!(setup.freed(), 1, "of the unharmed one");
        setup.complete(&peer, wr_id, WcStatus::WR_FLUSH_ERR);
        assert!(pending.wait().unwrap_err().buffer.is_some());
    }
}

#[test]
fn repeated_and_late_completions_return_no_second_buffer() {
    let setup = Setup::new(2);
    let peer = setup.connection(1);
    let (first, wr_id) = setup.recv(&peer);
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    let done = first.wait().unwrap();
    let (mut second, next) = setup.recv(&peer);
    assert_eq!(wr_id as u32, next as u32, "the same slot");
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    assert!(second.wait_timeout(Duration::ZERO).is_none());
    assert!(matches!(peer.failure(), Some(Error::UnknownCompletion { .. })));
    drop(done);
    assert_eq!(setup.freed(), 1);
}

#[test]
fn completion_without_a_connection_is_ignored() {
    let setup = Setup::new(4);
    let peer = setup.connection(2);
    for wr_id in [0, 5, u64::MAX] {
        setup
            .plain
            .log()
            .completions
            .push_back(WorkCompletion { qp_num: 0xff_ffff, ..completion(wr_id, WcStatus::SUCCESS) });
    }
    assert_eq!(setup.hub.poll(8), 3);
    assert!(peer.failure().is_none());
}

#[test]
fn failed_operation_ends_its_connection_only() {
    let setup = Setup::new(8);
    let (peer, other) = (setup.connection(2), setup.connection(2));
    let (pending, wr_id) = setup.recv(&peer);
    setup.complete(&peer, wr_id, WcStatus::LOC_LEN_ERR);
    let failed = pending.wait().unwrap_err();
    assert!(matches!(
        failed.error,
        Error::Completion { verb: "Connection::post(Op::recv)", status: WcStatus::LOC_LEN_ERR, .. }
    ));
    assert!(failed.buffer.is_some());
    let refused = peer.post(Op::send(setup.buffer(), ..)).wait().unwrap_err();
    assert!(matches!(refused.error, Error::Completion { status: WcStatus::LOC_LEN_ERR, .. }), "{refused}");
    let (pending, wr_id) = setup.recv(&other);
    setup.complete(&other, wr_id, WcStatus::SUCCESS);
    pending.wait().unwrap();
}

#[test]
fn aborted_connection_rejects_posts() {
    let setup = Setup::new(4);
    let peer = setup.connection(2);
    peer.clone().abort();
    assert_eq!(setup.plain.log().states, [QpState::ERR]);
    let refused = peer.post(Op::recv(setup.buffer())).wait().unwrap_err();
    assert!(refused.error.to_string().contains("`abort`"), "{refused}");
    assert!(setup.plain.log().received.is_empty());
}

#[test]
fn buffers_are_leaked_if_destroy_qp_fails() {
    let setup = Setup::new(4);
    let peer = setup.connection(2);
    let (detached, _) = setup.recv(&peer);
    let (pending, _) = setup.recv(&peer);
    drop(detached);
    drop(peer);
    assert_eq!(setup.hub.inner.lock().free_entries(), 0, "the pending operation keeps the connection");
    drop(pending);
    let Setup { plain, hub, freed, .. } = setup;
    assert_eq!(hub.free_entries(), 0, "completions may still come");
    drop(hub);
    assert_eq!(freed.load(Ordering::Relaxed), 0);
    // The queues of the QP are leaked as well; the CQ's are, because the kernel refuses that, too.
    assert!(plain.log().freed.is_empty());
}

#[test]
fn provider_panic_in_post_keeps_the_buffer() {
    let setup = Setup::new(4);
    let peer = setup.connection(2);
    setup.plain.log().panics = true;
    let buffer = setup.buffer();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(peer.post(Op::recv(buffer))))).unwrap_err();
    setup.plain.log().panics = false;
    assert_eq!(setup.freed(), 0);
    // The connection can still be used.
    let (pending, wr_id) = setup.recv(&peer);
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    pending.wait().unwrap();
    drop(peer);
    assert_eq!(setup.freed(), 1);
}

#[test]
fn task_without_a_driver_gets_an_error_and_can_wait() {
    let setup = Setup::new(4);
    let peer = setup.connection(2);
    let (mut pending, wr_id) = setup.recv(&peer);
    let Poll::Ready(Err(failed)) = poll(&mut pending) else { panic!("there is no driver") };
    assert!(matches!(failed.error, Error::NoDriver { .. }) && failed.buffer.is_none(), "{failed}");
    assert!(setup.hub.inner.election.attach_driver(DriverKind::Task));
    assert!(poll(&mut pending).is_pending());
    assert!(setup.hub.inner.election.detach_driver().is_none());
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    assert!(matches!(poll(&mut pending), Poll::Ready(Ok(_))));
}

#[test]
fn result_is_taken_once() {
    let setup = Setup::new(4);
    let peer = setup.connection(2);
    let (mut pending, wr_id) = setup.recv(&peer);
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    assert!(matches!(poll(&mut pending), Poll::Ready(Ok(_))));
    let Poll::Ready(Err(again)) = poll(&mut pending) else { panic!("ready") };
    assert!(again.error.to_string().contains("taken before"), "{again}");
    assert!(pending.wait().is_err());
}

#[test]
fn batch_of_completions_is_bounded() {
    let setup = Setup::new(200);
    let peer = setup.connection(100);
    let pending: Vec<_> = (0..100).map(|_| setup.recv(&peer)).collect();
    for (_, wr_id) in &pending {
        setup.complete(&peer, *wr_id, WcStatus::SUCCESS);
    }
    assert_eq!(setup.hub.poll(1), BATCH);
    assert_eq!(setup.plain.log().completions.len(), 100 - BATCH);
    assert_eq!(setup.hub.poll(usize::MAX), 100 - BATCH);
    assert!(pending.into_iter().all(|(pending, _)| pending.wait().is_ok()));
}

/// A waker that uses the hub, as code of users may.
struct UsesHub(Hub<Buffer, Plain>, std::sync::Mutex<Option<Connection<Buffer, Plain>>>, AtomicUsize);

impl Wake for UsesHub {
    fn wake(self: Arc<Self>) {
        self.0.poll(1);
        // It retires the connection, which locks the CQ.
        drop(self.1.lock().unwrap().take());
        self.2.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn wakers_run_without_a_lock() {
    let setup = Setup::new(8);
    let (peer, other) = (setup.connection(2), setup.connection(2));
    let (mut pending, wr_id) = setup.recv(&peer);
    let waker = Arc::new(UsesHub(setup.hub.clone(), std::sync::Mutex::new(Some(other)), AtomicUsize::new(0)));
    assert!(setup.hub.inner.election.attach_driver(DriverKind::Task));
    let task = Waker::from(Arc::clone(&waker));
    assert!(std::pin::Pin::new(&mut pending).poll(&mut Context::from_waker(&task)).is_pending());
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    setup.hub.poll(1);
    assert_eq!(waker.2.load(Ordering::Relaxed), 1);
    assert!(matches!(poll(&mut pending), Poll::Ready(Ok(_))));
}

#[test]
fn handles_can_move_between_threads() {
    fn moves<T: Send + Sync + Unpin>() {}
    moves::<Hub>();
    moves::<Connection<PoolBuffer>>();
    moves::<Pending<PoolBuffer>>();
    moves::<Driver<PoolBuffer>>();
}

#[test]
fn refused_doorbell_of_posted_operations_ends_the_connection() {
    for many in [false, true] {
        let setup = Setup::new(8);
        let peer = setup.connection(2);
        let refused = IoctlError::new("PostSend", Errno::NOMEM);
        setup.plain.log().refusals.push_back(DoorbellError::Posted(refused));
        let mut pending = Vec::new();
        if many {
            peer.post_all(&mut vec![Op::send(setup.buffer(), ..)], &mut pending);
        } else {
            pending.push(peer.post(Op::send(setup.buffer(), ..)));
        }
        assert_eq!(setup.plain.log().states, [QpState::ERR], "so that it completes");
        assert_eq!(peer.failure().unwrap().errno(), Some(Errno::NOMEM));
        assert!(pending[0].wait_timeout(Duration::ZERO).is_none());
        assert_eq!(setup.freed(), 0);
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the test asked for it");
    }
}

#[derive(Default)]
struct Counts(AtomicUsize);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Four receives that tasks wait for, and their `wr_id`s. The wakers of the first and the third one
/// panic.
fn waiting_tasks(
    setup: &Setup,
    peer: &Connection<Buffer, Plain>,
    counts: &Arc<Counts>,
) -> Vec<(Pending<Buffer, Plain>, u64)> {
    let wait = |at: u32| {
        let (mut pending, wr_id) = setup.recv(peer);
        let waker =
            if at.is_multiple_of(2) { Arc::new(Panics).into() } else { Waker::from(Arc::clone(counts)) };
        let polled = std::pin::Pin::new(&mut pending).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        (pending, wr_id)
    };
    (0..4).map(wait).collect()
}

#[test]
fn panics_of_wakers_lose_neither_wakes_nor_buffers_of_others() {
    let (setup, counts) = (Setup::new(16), Arc::new(Counts::default()));
    let peer = setup.connection(5);
    assert!(setup.hub.inner.election.attach_driver(DriverKind::Task));
    let tasks = waiting_tasks(&setup, &peer, &counts);
    let (detached, wr_id) = setup.recv(&peer);
    detached.detach();
    for wr_id in tasks.iter().map(|(_, wr_id)| *wr_id).chain([wr_id]) {
        setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    }
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| setup.hub.poll(8)));
    assert!(polled.is_err());
    assert_eq!((counts.0.load(Ordering::Relaxed), setup.freed()), (2, 1));
    tasks.into_iter().for_each(|(pending, _)| drop(pending.wait().unwrap()));
}

#[test]
fn end_of_the_driver_wakes_all_tasks_though_wakers_panic() {
    let (setup, counts) = (Setup::new(16), Arc::new(Counts::default()));
    let peer = setup.connection(4);
    let driver = DriverGuard::take(&setup.hub.inner, DriverKind::Task).unwrap();
    let mut tasks = waiting_tasks(&setup, &peer, &counts);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(driver))).unwrap_err();
    assert_eq!(counts.0.load(Ordering::Relaxed), 2);
    assert!(tasks.iter_mut().all(|(pending, _)| poll(pending).is_ready()), "there is no driver");
}

/// Panics when its last waker is called or dropped.
struct PanicsOnDrop;

impl Wake for PanicsOnDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("the test asked for it");
    }
}

#[test]
fn end_of_the_driver_wakes_threads_and_tasks_though_the_drop_of_its_waker_panics() {
    let (setup, counts) = (Setup::new(8), Arc::new(Counts::default()));
    let peer = setup.connection(2);
    let driver = DriverGuard::take(&setup.hub.inner, DriverKind::Thread).unwrap();
    setup.hub.inner.election.register_driver(&Waker::from(Arc::new(PanicsOnDrop)));
    let waker = Waker::from(Arc::clone(&counts));
    let follower = setup.hub.inner.election.join(&waker);
    let (mut pending, _) = setup.recv(&peer);
    assert!(std::pin::Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(driver))).unwrap_err();
    assert!(setup.hub.inner.election.leads(follower));
    assert_eq!(counts.0.load(Ordering::Relaxed), 2);
}

/// Several panics of wakers would abort the process.
#[test]
fn thread_that_unwinds_from_a_wait_wakes_the_driver_though_its_waker_panics() {
    let (setup, counts) = (Setup::new(8), Arc::new(Counts::default()));
    let peer = setup.connection(4);
    assert!(setup.hub.inner.election.attach_driver(DriverKind::Task));
    let tasks = waiting_tasks(&setup, &peer, &counts);
    for (_, wr_id) in &tasks {
        setup.complete(&peer, *wr_id, WcStatus::SUCCESS);
    }
    setup.hub.inner.election.register_driver(&Waker::from(Arc::new(Panics)));
    let wait = || setup.hub.inner.block_on(None, |_| Poll::<()>::Pending);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)).unwrap_err();
    assert!(setup.hub.inner.election.driver().is_none(), "it was woken");
    assert_eq!(counts.0.load(Ordering::Relaxed), 2);
}

#[test]
fn thread_gets_its_result_though_the_waker_of_the_driver_panics() {
    let setup = Setup::new(4);
    assert!(setup.hub.inner.election.attach_driver(DriverKind::Task));
    setup.hub.inner.election.register_driver(&Waker::from(Arc::new(Panics)));
    let mut polls = 0;
    let result = setup.hub.inner.block_on(None, |cx| {
        polls += 1;
        // The thread leads after the first poll, and sleeps for no time.
        cx.waker().wake_by_ref();
        if polls == 1 { Poll::Pending } else { Poll::Ready(polls) }
    });
    assert_eq!(result.unwrap(), Some(2));
    assert!(setup.hub.inner.election.driver().is_none(), "it was woken");
}

#[test]
fn hub_that_is_dropped_by_an_unwinding_thread_wakes_its_driver() {
    let setup = Setup::new(8);
    assert!(setup.hub.inner.election.attach_driver(DriverKind::Task));
    setup.hub.inner.election.register_driver(&Waker::from(Arc::new(Panics)));
    let unwind = std::panic::AssertUnwindSafe(move || {
        let _setup = setup;
        std::panic::panic_any(7_u32);
    });
    let panic = std::panic::catch_unwind(unwind).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&7_u32));
}

#[test]
fn provider_panic_while_a_connection_is_dropped_leaks_its_buffers_and_slots() {
    let test = || {
        let setup = Setup::new(4);
        let peer = setup.connection(2);
        setup.recv(&peer).0.detach();
        succeed_ioctls();
        setup.plain.log().poll_panics = 3;
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(peer))).unwrap_err();
        assert_eq!((setup.freed(), setup.hub.free_entries(), setup.plain.log().poll_panics), (0, 0, 2));
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn connection_that_is_dropped_releases_its_slots_though_wakers_panic() {
    let test = || {
        let (setup, counts) = (Setup::new(16), Arc::new(Counts::default()));
        let (peer, other) = (setup.connection(2), setup.connection(4));
        assert!(setup.hub.inner.election.attach_driver(DriverKind::Task));
        let tasks = waiting_tasks(&setup, &other, &counts);
        setup.recv(&peer).0.detach();
        for (_, wr_id) in &tasks {
            setup.complete(&other, *wr_id, WcStatus::SUCCESS);
        }
        succeed_ioctls();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(peer))).unwrap_err();
        assert_eq!((setup.freed(), setup.hub.free_entries()), (1, 8));
        assert_eq!(counts.0.load(Ordering::Relaxed), 2);
        tasks.into_iter().for_each(|(pending, _)| drop(pending.wait().unwrap()));
    };
    std::thread::spawn(test).join().unwrap();
}

/// Text that uses the connection while it is written.
struct UsesConnection(Connection<Buffer, Plain>);

impl std::fmt::Write for UsesConnection {
    fn write_str(&mut self, _: &str) -> std::fmt::Result {
        let connection = self.0.clone();
        assert!(ends(move || drop(connection.failure())), "no lock is held");
        Ok(())
    }
}

#[test]
fn connection_is_formatted_without_a_lock() {
    use std::fmt::Write;

    let setup = Setup::new(4);
    let peer = setup.connection(2);
    write!(UsesConnection(peer.clone()), "{peer:?}").unwrap();
}

#[test]
fn peers_of_a_hub_are_probed_in_their_intervals() {
    const SECOND: Duration = Duration::from_secs(1);
    let setup = Setup::new(8);
    let (often, rarely, never) = (setup.connection(1), setup.connection(1), setup.connection(1));
    let (start, hub) = (Instant::now(), &setup.hub.inner);
    let begin = |peer: &Connection<Buffer, Plain>, interval| {
        peer.inner.conn.lock().start_keepalive(interval, start);
    };
    begin(&often, Some(SECOND));
    begin(&rarely, Some(2 * SECOND));
    begin(&never, None);
    assert_eq!(hub.keep_alive(start), None, "no connection is probed");
    hub.probe_every(2 * SECOND);
    hub.probe_every(SECOND);
    let probed = |later: Duration| {
        let next = hub.keep_alive(Instant::now() + later);
        let sent: Vec<_> = setup.plain.log().sent.drain(..).map(|(_, wr_id)| wr_id).collect();
        assert!(sent.iter().all(|wr_id| *wr_id == PROBE), "{sent:x?}");
        (sent.len(), next.is_some())
    };
    assert_eq!(probed(Duration::ZERO), (0, true));
    assert_eq!(probed(SECOND), (1, true));
    // That of `often` is outstanding.
    assert_eq!(probed(3 * SECOND), (1, true));
    setup.complete(&often, PROBE, WcStatus::SUCCESS);
    hub.poll(1);
    assert_eq!(probed(5 * SECOND), (1, true));
    assert!([&often, &rarely, &never].iter().all(|peer| peer.failure().is_none()));
}

#[test]
fn silent_peer_of_iwarp_is_dead_unless_sends_are_outstanding() {
    const SECOND: Duration = Duration::from_secs(1);
    let plain = Plain::iwarp();
    let pd = plain.domain();
    let region = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE);
    let setup = Setup { hub: Hub::for_test(&pd, 8, ()), plain, region, freed: Arc::default() };
    let (dead, busy, alive) = (setup.connection(1), setup.connection(1), setup.connection(1));
    let _pending = busy.post(Op::send(setup.buffer(), ..));
    let start = Instant::now();
    for peer in [&dead, &busy, &alive] {
        peer.inner.conn.lock().start_keepalive(Some(SECOND), start);
    }
    setup.hub.inner.probe_every(SECOND);
    for intervals in 1..6 {
        setup.hub.inner.keep_alive(start + intervals * 2 * SECOND);
        setup.complete(&alive, PROBE, WcStatus::SUCCESS);
        setup.hub.poll(1);
        assert_eq!(dead.failure().is_some(), intervals >= 4, "{intervals}");
        assert!(busy.failure().is_none() && alive.failure().is_none());
    }
    assert!(setup.plain.log().reads.iter().all(|wr_id| *wr_id == PROBE));
    let failure = dead.failure().unwrap();
    assert!(matches!(failure, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{failure}");
}

#[test]
fn failed_probe_ends_the_operations_of_its_connection() {
    let setup = Setup::new(8);
    let (dead, alive) = (setup.connection(2), setup.connection(2));
    let (mut pending, wr_id) = setup.recv(&dead);
    dead.probe().unwrap();
    setup.complete(&dead, PROBE, WcStatus::RETRY_EXC_ERR);
    setup.complete(&dead, wr_id, WcStatus::WR_FLUSH_ERR);
    let Poll::Ready(Err(failed)) = poll(&mut pending) else { panic!("it was flushed") };
    assert_eq!(failed.cause, Some(WcStatus::RETRY_EXC_ERR));
    assert!(alive.failure().is_none());
    assert!(dead.probe().is_err());
    // A device that completes what was not posted.
    setup.complete(&alive, PROBE, WcStatus::SUCCESS);
    setup.hub.poll(1);
    assert!(matches!(alive.failure(), Some(Error::UnknownCompletion { wr_id: PROBE })));
}

#[test]
fn receive_takes_a_buffer_of_another_type() {
    let plain = Plain::default();
    let pd = plain.domain();
    let hub: Hub<AnyBuffer, Plain> = Hub::for_test(&pd, 8, ());
    let peer = hub.connection_for_test(plain.queue_pair(&pd), [1, 1], (0, ()));
    let buffer = Pool::for_test(&pd, 1, 8).take().unwrap();
    let pending = peer.post(Op::recv(buffer).tag(5).any());
    let wr_id = plain.log().received[0];
    let qp_num = peer.inner.conn.qp_num;
    plain.log().completions.push_back(WorkCompletion { qp_num, ..completion(wr_id, WcStatus::SUCCESS) });
    let done = pending.wait().unwrap();
    assert_eq!((done.tag, done.len), (5, 1));
    assert!(matches!(done.buffer, Some(AnyBuffer::PoolBuffer(_))));
}

#[test]
fn connection_without_room_for_a_probe_is_not_probed() {
    let setup = Setup::new(8);
    while setup.hub.inner.lock().reserve_probe() {}
    let peer = setup.connection(1);
    let refused = peer.probe().unwrap_err();
    assert!(matches!(refused, Error::Invalid { verb: "Connection::probe", .. }), "{refused}");
    assert!(peer.failure().is_none() && setup.plain.log().sent.is_empty());
    // The probe of a closed connection leaves its room to the next one.
    setup.hub.inner.lock().release(&[], true);
    setup.connection(1).probe().unwrap();
}

#[test]
fn options_that_connections_do_not_have_are_refused() {
    let setup = Setup::new(8);
    let options = EndpointOptions::default;
    for (options, named) in [
        (options().max_sge(9), "max_sge"),
        (options().signal_every(1), "signal_every"),
        (options().spin(Spin::Never), "Hub::with_spin"),
    ] {
        let refused = setup.hub.connection_with(&options).unwrap_err();
        assert!(refused.to_string().contains(named), "{refused}");
    }
}

#[test]
fn connection_that_cannot_be_created_takes_no_room() {
    let setup = Setup::new(8);
    // The device file of the test accepts no command.
    setup.open(2, Policy::default()).unwrap_err();
    assert_eq!(setup.hub.free_entries(), 8);
    let probes = std::iter::from_fn(|| setup.hub.inner.lock().reserve_probe().then_some(())).count();
    assert_eq!(probes, 4, "half of the entries");
}

#[test]
fn completions_of_an_earlier_qp_of_the_same_number_do_not_end_a_connection() {
    let test = || {
        let setup = Setup::new(8);
        succeed_ioctls();
        let open = || setup.open(1, Policy::default()).unwrap();
        let first = open();
        // Each QP of the test has two rings.
        let qp_num = first.inner.conn.qp_num + 2;
        let stale = WorkCompletion { qp_num, ..completion(0x1234, WcStatus::WR_FLUSH_ERR) };
        setup.plain.log().completions.push_back(stale);
        let second = open();
        assert_eq!(second.inner.conn.qp_num, qp_num);
        setup.hub.poll(8);
        assert!(first.failure().is_none() && second.failure().is_none());
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn slot_of_a_detached_operation_is_free_after_its_completion() {
    let setup = Setup::new(4);
    let peer = setup.connection(1);
    let (pending, wr_id) = setup.recv(&peer);
    pending.detach();
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    assert_eq!(setup.hub.poll(1), 1);
    let mut next = peer.post(Op::recv(setup.buffer()));
    assert!(next.wait_timeout(Duration::ZERO).is_none(), "it is posted");
}

#[test]
fn slot_of_an_ended_operation_is_free_when_its_result_is_dropped() {
    let setup = Setup::new(4);
    let peer = setup.connection(1);
    let (pending, wr_id) = setup.recv(&peer);
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    assert_eq!(setup.hub.poll(1), 1);
    drop(pending);
    assert_eq!(setup.freed(), 1);
    let mut next = peer.post(Op::recv(setup.buffer()));
    assert!(next.wait_timeout(Duration::ZERO).is_none(), "it is posted");
}

#[test]
fn completion_that_arrives_while_the_cq_is_armed_is_reaped() {
    let setup = Setup::new(4);
    let peer = setup.connection(1);
    let (mut pending, wr_id) = setup.recv(&peer);
    let (plain, qp_num) = (setup.plain.clone(), peer.address().qp_num);
    setup.plain.log().armed = Hook(Some(Arc::new(move |_| {
        let arrived = WorkCompletion { qp_num, ..completion(wr_id, WcStatus::SUCCESS) };
        plain.log().completions.push_back(arrived);
    })));
    assert!(setup.hub.inner.arm().unwrap(), "no event will report it");
    setup.plain.log().armed = Hook(None);
    assert!(pending.wait_timeout(Duration::ZERO).transpose().unwrap().is_some());
}

#[test]
fn cq_is_armed_again_after_its_event_was_read() {
    let mut setup = Setup::new(4);
    let (channel, events) = CompChannel::with_pipe(setup.hub.pd().context().file());
    Arc::get_mut(&mut setup.hub.inner).unwrap().channel = channel;
    let hub = setup.hub.inner;
    for arms in 1..4 {
        assert!(!hub.arm().unwrap() && !hub.arm().unwrap());
        assert_eq!(setup.plain.log().arms, arms, "once for an event");
        rustix::io::write(&events, &[0; 8]).unwrap();
        hub.take_events().unwrap();
    }
}

/// A setup whose device is removed when the returned descriptor is closed.
fn removable(entries: u32) -> (Setup, std::os::fd::OwnedFd) {
    let mut setup = Setup::new(entries);
    let (channel, other) = CompChannel::removable(setup.hub.pd().context().file());
    Arc::get_mut(&mut setup.hub.inner).unwrap().channel = channel;
    (setup, other)
}

fn assert_removed(ended: Result<Done<Buffer>, Failed<Buffer>>) {
    let failed = ended.unwrap_err();
    assert!(matches!(failed.error, Error::DeviceRemoved { verb: "Connection::post(Op::recv)" }), "{failed}");
    assert!(failed.is_operation() && failed.is_recv() && failed.buffer.is_some(), "{failed:?}");
}

#[test]
fn removal_of_the_device_ends_the_operations_of_all_connections() {
    let test = || {
        let ((setup, other), counts) = (removable(16), Arc::new(Counts::default()));
        let (one, two) = (setup.connection(4), setup.connection(4));
        let (first, wr_id) = setup.recv(&one);
        let (mut awaited, _) = setup.recv(&two);
        let waker = Waker::from(Arc::clone(&counts));
        assert!(setup.hub.inner.election.attach_driver(DriverKind::Task));
        let pinned = std::pin::Pin::new(&mut awaited);
        assert!(pinned.poll(&mut Context::from_waker(&waker)).is_pending());
        setup.recv(&two).0.detach();
        let (second, _) = setup.recv(&one);
        succeed_ioctls();
        drop(other);
        // A completion from before the removal.
        setup.complete(&one, wr_id, WcStatus::SUCCESS);
        assert!(first.wait().is_ok());
        assert_removed(second.wait());
        assert_eq!((counts.0.load(Ordering::Relaxed), setup.freed()), (1, 3));
        assert!(matches!(
            poll(&mut awaited),
            Poll::Ready(Err(Failed { error: Error::DeviceRemoved { .. }, .. }))
        ));
        for connection in [&one, &two] {
            assert!(matches!(connection.failure(), Some(Error::DeviceRemoved { .. })));
            assert!(matches!(connection.connect(&one.address()), Err(Error::Closed { .. })));
            let refused = connection.post(Op::recv(setup.buffer())).wait().unwrap_err();
            assert_eq!((refused.outcome, refused.buffer.is_some()), (Outcome::NotExecuted, true));
        }
        assert!(setup.plain.log().states.is_empty(), "no command names a destroyed QP");
        drop((one, two));
        assert_eq!(setup.hub.free_entries(), 16);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn removal_of_the_device_ends_waits_that_poll_and_drivers() {
    for policy in [Spin::Never, Spin::Always] {
        let test = move || {
            let (mut setup, other) = removable(8);
            Arc::get_mut(&mut setup.hub.inner).unwrap().spin = SpinState::new(policy);
            let peer = setup.connection(2);
            let (pending, _) = setup.recv(&peer);
            succeed_ioctls();
            drop(other);
            assert_removed(pending.wait());
            let later = setup.hub.inner.block_on(None, |_| Poll::<()>::Pending);
            assert!(matches!(later, Err(Error::DeviceRemoved { .. })), "{later:?}");
            assert!(setup.hub.spawn_driver_thread().is_ok());
            while setup.hub.inner.election.has_driver() {
                std::thread::yield_now();
            }
        };
        std::thread::spawn(test).join().unwrap();
    }
}

#[test]
fn removal_of_the_device_keeps_the_results_that_are_in_the_cq() {
    let test = || {
        let setup = Setup::new(8);
        let peer = setup.connection(2);
        let ((first, wr_id), (second, _)) = (setup.recv(&peer), setup.recv(&peer));
        setup.complete(&peer, wr_id, WcStatus::SUCCESS);
        succeed_ioctls();
        assert!(setup.hub.inner.end_removed() && setup.hub.inner.is_removed());
        assert_eq!(first.wait().unwrap().message(), Some(&[7][..]));
        assert_removed(second.wait());
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn removal_of_the_device_ends_each_of_many_connections() {
    let test = || {
        let setup = Setup::new(4 * BATCH as u32);
        let peers: Vec<_> = (0..BATCH + 2).map(|_| setup.connection(1)).collect();
        let pending: Vec<_> = peers.iter().map(|peer| setup.recv(peer).0).collect();
        succeed_ioctls();
        assert!(setup.hub.inner.end_removed());
        for peer in &peers {
            assert!(matches!(peer.failure(), Some(Error::DeviceRemoved { .. })));
        }
        for mut pending in pending {
            let Poll::Ready(ended) = poll(&mut pending) else { panic!("it has ended") };
            assert_removed(ended);
        }
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn connection_has_failed_once_the_kernel_confirms_the_removal() {
    let test = || {
        let setup = Setup::new(8);
        let peer = setup.connection(2);
        assert_eq!(peer.inner.conn.destroy_removed(), Some(false));
        assert!(peer.failure().is_none());
        succeed_ioctls();
        assert_eq!(peer.inner.conn.destroy_removed(), Some(true));
        let mut pending = peer.post(Op::recv(setup.buffer()));
        let Poll::Ready(Err(refused)) = poll(&mut pending) else { panic!("it is refused") };
        assert_eq!((refused.outcome, refused.buffer.is_some()), (Outcome::NotExecuted, true), "{refused}");
        assert!(matches!(refused.error, Error::DeviceRemoved { .. }), "{refused}");
        assert!(peer.probe().is_err());
        let log = setup.plain.log();
        assert!(log.received.is_empty() && log.sent.is_empty());
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn connection_resolves_its_peer_again_after_a_timeout() {
    let test = || {
        succeed_ioctls();
        let setup = Setup::new(4);
        let peer = setup.connection(1);
        peer.inner.conn.lock().qp.as_mut().unwrap().assume_state(QpState::INIT);
        let late = IoctlError::new("ModifyQp", Errno::TIMEDOUT);
        setup.plain.log().answers.extend([Err(late); 2]);
        let gid = "fe80::1".parse().unwrap();
        peer.connect(&Address { mtu: Mtu::Mtu256, rd_atomic: 0, ..Address::new(gid, 1) }).unwrap();
        assert_eq!(setup.plain.log().states, [QpState::RTR, QpState::RTS]);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn drop_of_a_connection_destroys_its_removed_qp_no_second_time() {
    let test = || {
        let setup = Setup::new(8);
        let peer = setup.connection(2);
        setup.recv(&peer).0.detach();
        succeed_ioctls();
        assert!(setup.hub.inner.end_removed());
        // A second command would fail, and leak the slots.
        refuse_ioctls();
        drop(peer);
        assert_eq!((setup.hub.free_entries(), setup.freed()), (8, 1));
        let log = setup.plain.log();
        assert_eq!((log.freed.len(), log.abandoned), (2, 0), "both rings are freed");
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn driver_and_later_connections_end_after_the_removal() {
    let test = || {
        let setup = Setup::new(8);
        let mut driver = setup.hub.drive(Never::Readable).unwrap();
        let mut drive = || std::pin::Pin::new(&mut driver).poll(&mut Context::from_waker(Waker::noop()));
        assert!(drive().is_pending());
        succeed_ioctls();
        assert!(setup.hub.inner.end_removed());
        let Poll::Ready(ended) = drive() else { panic!("it ends") };
        assert!(matches!(ended, Err(Error::DeviceRemoved { verb: "Hub::drive" })), "{ended:?}");
        assert!(!setup.hub.inner.election.has_driver());
        let peer = setup.connection(2);
        let ((mut awaited, _), (blocking, _)) = (setup.recv(&peer), setup.recv(&peer));
        let Poll::Ready(Err(failed)) = poll(&mut awaited) else { panic!("nothing would wake the task") };
        assert!(matches!(failed.error, Error::DeviceRemoved { .. }), "{failed}");
        assert_removed(blocking.wait());
        let refused = peer.post(Op::recv(setup.buffer())).wait().unwrap_err();
        assert_eq!((refused.outcome, refused.buffer.is_some()), (Outcome::NotExecuted, true));
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn operations_of_a_hub_go_on_if_the_kernel_does_not_confirm_the_removal() {
    let (setup, other) = removable(8);
    let peer = setup.connection(2);
    let (mut pending, _) = setup.recv(&peer);
    drop(other);
    let failed = pending.wait_timeout(Duration::from_secs(60)).transpose().unwrap_err();
    assert_eq!((failed.error.errno(), failed.is_operation()), (Some(Errno::IO), false));
    assert!(!matches!(failed.error, Error::DeviceRemoved { .. }), "{failed}");
    drop((pending, peer));
    assert_eq!(setup.freed(), 0, "the memory is leaked");
}

#[test]
fn end_of_the_hub_wakes_its_driver() {
    let (setup, counts) = (Setup::new(4), Arc::new(Counts::default()));
    assert!(setup.hub.inner.election.attach_driver(DriverKind::Thread));
    setup.hub.inner.election.register_driver(&Waker::from(Arc::clone(&counts)));
    drop(setup);
    assert_eq!(counts.0.load(Ordering::Relaxed), 1);
}

#[test]
fn shorter_interval_of_probes_wakes_the_driver() {
    let (setup, counts) = (Setup::new(4), Arc::new(Counts::default()));
    assert!(setup.hub.inner.election.attach_driver(DriverKind::Task));
    for (seconds, woken) in [(5, 1), (5, 1), (9, 1), (2, 2)] {
        setup.hub.inner.election.register_driver(&Waker::from(Arc::clone(&counts)));
        setup.hub.inner.probe_every(Duration::from_secs(seconds));
        assert_eq!(counts.0.load(Ordering::Relaxed), woken, "{seconds} s");
    }
}

#[test]
fn probe_whose_doorbell_is_refused_ends_its_connection_only() {
    let setup = Setup::new(8);
    let (first, second) = (setup.connection(1), setup.connection(1));
    let refused = IoctlError::new("PostSend", Errno::NOMEM);
    setup.plain.log().refusals.push_back(DoorbellError::Posted(refused));
    setup.hub.inner.sweep(None);
    assert_eq!(first.failure().and_then(|failure| failure.errno()), Some(Errno::NOMEM));
    assert!(second.failure().is_none());
    assert_eq!(setup.plain.log().states, [QpState::ERR]);
}

#[test]
fn full_send_queue_is_not_probed_and_ends_no_connection() {
    let setup = Setup::new(8);
    let peer = setup.connection(1);
    setup.plain.log().send_rejections.push_back(PushError::QueueFull { capacity: 16 });
    for probes in [0, 1] {
        setup.hub.inner.sweep(None);
        assert!(peer.failure().is_none());
        let sent = setup.plain.log().sent.len();
        assert_eq!(sent, probes);
    }
}

#[test]
fn qp_of_a_dropped_connection_is_moved_to_err_only_for_a_driver_that_needs_it() {
    for (needs, states) in [(false, &[][..]), (true, &[QpState::ERR])] {
        let setup = Setup::new(4);
        setup.plain.log().needs_error_before_destroy = needs;
        drop(setup.connection(1));
        assert_eq!(setup.plain.log().states, states);
    }
}

#[test]
fn sweep_probes_each_of_many_connections() {
    let setup = Setup::new(4 * BATCH as u32);
    let peers: Vec<_> = (0..BATCH + 2).map(|_| setup.connection(1)).collect();
    setup.hub.inner.sweep(None);
    assert_eq!(setup.plain.log().sent.len(), peers.len());
}

#[test]
fn sweep_does_not_wait_for_a_peer_that_is_being_connected() {
    let setup = Setup::new(8);
    let peers = [setup.connection(1), setup.connection(1)];
    let (now, interval) = (Instant::now(), Duration::from_secs(1));
    for peer in &peers {
        peer.inner.conn.lock().start_keepalive(Some(interval), now);
    }
    setup.hub.inner.probe_every(interval);
    let connecting = peers[0].inner.conn.lock();
    let (hub, due) = (Arc::clone(&setup.hub.inner), now + 2 * interval);
    assert!(ends(move || hub.sweep(Some(due))));
    drop(connecting);
    assert_eq!(setup.plain.log().sent.len(), 1, "the other peer is probed");
    setup.hub.inner.sweep(Some(due));
    assert_eq!(setup.plain.log().sent.len(), 2);
}

#[test]
fn connection_of_a_hub_without_room_for_probes_has_no_keepalive() {
    let test = || {
        let setup = Setup::new(8);
        succeed_ioctls();
        let open = || setup.open(1, Policy::Every(Duration::from_secs(1))).unwrap();
        assert_eq!(open().inner.policy.interval(true), Some(Duration::from_secs(1)));
        while setup.hub.inner.lock().reserve_probe() {}
        assert_eq!(open().inner.policy.interval(true), None);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn blocked_thread_probes_idle_peers() {
    const INTERVAL: Duration = Duration::from_millis(5);
    let mut setup = Setup::new(4);
    let (channel, _events) = CompChannel::with_pipe(setup.hub.pd().context().file());
    Arc::get_mut(&mut setup.hub.inner).unwrap().channel = channel;
    let peer = setup.connection(1);
    peer.inner.conn.lock().start_keepalive(Some(INTERVAL), Instant::now());
    setup.hub.inner.probe_every(INTERVAL);
    let (mut pending, _) = setup.recv(&peer);
    // The first wait may end late, without a probe.
    for _ in 0..10 {
        assert!(pending.wait_timeout(4 * INTERVAL).is_none());
    }
    let sent: Vec<_> = setup.plain.log().sent.iter().map(|(_, wr_id)| *wr_id).collect();
    assert_eq!(sent, [PROBE]);
}

#[test]
fn driver_of_a_busy_cq_yields_and_is_polled_again() {
    let (setup, counts) = (Setup::new(4), Arc::new(Counts::default()));
    let busy = || WorkCompletion { qp_num: 0xff_ffff, ..completion(0, WcStatus::SUCCESS) };
    setup.plain.log().completions.extend(std::iter::repeat_with(busy).take(10 * BATCH));
    let mut driver = setup.hub.drive(Never::Readable).unwrap();
    let waker = Waker::from(Arc::clone(&counts));
    let mut poll = || std::pin::Pin::new(&mut driver).poll(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    assert!(!setup.plain.log().completions.is_empty(), "it yields");
    assert_eq!(counts.0.load(Ordering::Relaxed), 1);
    while counts.0.swap(0, Ordering::Relaxed) > 0 {
        assert!(poll().is_pending());
    }
    assert!(setup.plain.log().completions.is_empty() && setup.plain.log().arms > 0);
}

#[test]
fn second_driver_is_refused_before_its_runtime_is_asked() {
    /// A runtime that refuses descriptors, and counts them.
    #[derive(Debug)]
    struct Refuses(Arc<AtomicUsize>);

    impl Runtime for Refuses {
        fn register(&self, _: Arc<OwnedFd>) -> io::Result<Box<dyn Readable>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(io::Error::other("no reactor"))
        }

        fn blocking(&self, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            unreachable!("a hub does no blocking work")
        }
    }

    let (setup, asked) = (Setup::new(4), Arc::new(AtomicUsize::new(0)));
    let mut driver = setup.hub.drive(Never::Readable).unwrap();
    for refused in [setup.hub.drive(Refuses(Arc::clone(&asked))).map(drop), setup.hub.spawn_driver_thread()] {
        assert!(matches!(refused, Err(Error::Invalid { verb: "Hub::drive", .. })), "{refused:?}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    // The first one goes on.
    let polled = std::pin::Pin::new(&mut driver).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending() && setup.hub.inner.election.has_driver());
    drop(driver);
    // One whose runtime refuses the channel is no driver.
    assert!(setup.hub.drive(Refuses(Arc::clone(&asked))).is_err());
    assert_eq!((asked.load(Ordering::Relaxed), setup.hub.inner.election.has_driver()), (1, false));
}

/// A service that looks at the hub when its wakers are taken.
#[derive(Default)]
struct Looks {
    hub: OnceLock<Weak<HubInner<Buffer, Plain, Arc<Self>>>>,
    was_removed: AtomicBool,
}

impl Service<Plain> for Arc<Looks> {
    type Conn = ();

    const OWNS: bool = false;

    fn verb(_: WcOpcode) -> &'static str {
        "test"
    }

    fn take_wakers(&self) -> Vec<Waker> {
        let hub = self.hub.get().and_then(Weak::upgrade).expect("the hub");
        self.was_removed.store(hub.is_removed(), Ordering::Relaxed);
        Vec::new()
    }
}

/// A waker that is registered later finds the removal.
#[test]
fn wakers_of_the_service_are_taken_after_the_removal_is_visible() {
    let (plain, looks) = (Plain::default(), Arc::new(Looks::default()));
    let hub: Hub<Buffer, Plain, Arc<Looks>> = Hub::for_test(&plain.domain(), 4, Arc::clone(&looks));
    looks.hub.set(Arc::downgrade(&hub.inner)).expect("it is set once");
    assert!(hub.inner.end_removed());
    assert!(looks.was_removed.load(Ordering::Relaxed));
}

/// The results of the buffers of an operation: their tags, their lengths, or 0 with the status of a
/// failure. Each has its buffer.
fn each<const N: usize>(pending: [Pending<Buffer, Plain>; N]) -> [(u64, u32, WcStatus); N] {
    pending.map(|pending| match pending.wait() {
        Ok(Done { tag, len, buffer: Some(_), .. }) => (tag, len, WcStatus::SUCCESS),
        Err(Failed { tag, buffer: Some(_), error: Error::Completion { status, .. }, .. }) => (tag, 0, status),
        other => panic!("{other:?}"),
    })
}

#[test]
fn buffers_of_an_operation_have_results_of_their_own() {
    let setup = Setup::new(8);
    let peer = setup.connection(4);
    let remote = Remote { addr: 0, rkey: 1 };
    // More operations than slots: each slot is given back.
    for _ in 0..3 {
        let parts = || [(setup.buffer(), 0..3), (setup.buffer(), 2..15)];
        let sent = peer.post(Op::send_parts(parts()).tag(2));
        let mut written = peer.post(Op::write_parts(parts(), remote).tag(3));
        assert!(written[0].wait_timeout(Duration::ZERO).is_none());
        let wr_ids: Vec<_> = setup.plain.log().sent.drain(..).map(|sent| sent.1).collect();
        wr_ids.iter().for_each(|wr_id| setup.complete(&peer, *wr_id, WcStatus::SUCCESS));
        let [first, second] = written;
        assert_eq!(each([second, first]), [(3, 13, WcStatus::SUCCESS), (3, 3, WcStatus::SUCCESS)]);
        assert_eq!(each(sent), [(2, 3, WcStatus::SUCCESS), (2, 13, WcStatus::SUCCESS)]);
    }
    assert!(peer.failure().is_none());
}

#[test]
fn message_fills_the_buffers_of_a_receive_in_order() {
    let setup = Setup::new(8);
    let peer = setup.connection(4);
    let write = WcOpcode::RECV_RDMA_WITH_IMM;
    for (opcode, byte_len, lens) in [
        (WcOpcode::RECV, 12, [4, 5, 3]),
        (WcOpcode::RECV, 3, [3, 0, 0]),
        (WcOpcode::RECV, 30, [4, 5, 21]),
        (write, 4096, [0, 0, 4096]),
    ] {
        let parts = [(setup.buffer(), 0..4), (setup.buffer(), 0..5), (setup.buffer(), 0..6)];
        let pending = peer.post(Op::recv_parts(parts).tag(7));
        let wr_id = *setup.plain.log().received.last().unwrap();
        setup.complete(&peer, wr_id, WcStatus::SUCCESS);
        {
            let mut log = setup.plain.log();
            let arrived = log.completions.back_mut().unwrap();
            (arrived.opcode, arrived.byte_len) = (opcode, byte_len);
            (arrived.ex, arrived.wc_flags) = (Imm(9).to_be(), WcFlags::WITH_IMM);
        }
        let done = pending.map(|pending| pending.wait().unwrap());
        assert_eq!(done.each_ref().map(|done| (done.len, done.opcode)), lens.map(|len| (len, opcode)));
        assert_eq!(done.map(|done| done.imm), [None, None, Some(Imm(9))]);
    }
}

#[test]
fn buffers_of_a_failed_operation_fail_together() {
    let setup = Setup::new(8);
    let peer = setup.connection(4);
    let parts = || [(setup.buffer(), ..), (setup.buffer(), ..)];
    let (received, sent) = (peer.post(Op::recv_parts(parts())), peer.post(Op::send_parts(parts())));
    let (recv, send) = {
        let log = setup.plain.log();
        (log.received[0], log.sent[0].1)
    };
    setup.complete(&peer, send, WcStatus::REM_OP_ERR);
    setup.complete(&peer, recv, WcStatus::WR_FLUSH_ERR);
    assert_eq!(each(sent).map(|(.., status)| status), [WcStatus::REM_OP_ERR; 2]);
    for failed in received.map(|pending| pending.wait().unwrap_err()) {
        assert!(failed.is_recv() && failed.cause == Some(WcStatus::REM_OP_ERR), "{failed}");
    }
    let failure = peer.failure().unwrap();
    assert!(matches!(failure, Error::Completion { verb: "Connection::post(Op::send)", .. }), "{failure}");
}

#[test]
fn dropped_results_keep_all_buffers_until_the_completion() {
    let setup = Setup::new(8);
    let peer = setup.connection(4);
    let [first, second] = peer.post(Op::recv_parts([(setup.buffer(), ..), (setup.buffer(), ..)]));
    drop(first);
    assert_eq!((setup.hub.poll(1), setup.freed()), (0, 0));
    let wr_id = setup.plain.log().received[0];
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    assert_eq!((setup.hub.poll(1), setup.freed()), (1, 1));
    assert!(second.wait().is_ok());
    let taken: Vec<_> = (0..4).map(|_| setup.recv(&peer)).collect();
    drop(taken);
}

#[test]
fn completion_of_one_buffer_of_an_operation_frees_nothing_and_ends_the_connection() {
    for which in 0..2 {
        let setup = Setup::new(8);
        let peer = setup.connection(4);
        let mut pending = peer.post(Op::recv_parts([(setup.buffer(), ..), (setup.buffer(), ..)]));
        // No request has the `wr_id` of a buffer.
        setup.complete(&peer, pending[which].wr_id().unwrap(), WcStatus::SUCCESS);
        assert!(
            pending
                .each_mut()
                .map(|pending| pending.wait_timeout(Duration::ZERO))
                .iter()
                .all(Option::is_none)
        );
        assert!(matches!(peer.failure(), Some(Error::UnknownCompletion { .. })));
        let wr_id = setup.plain.log().received[0];
        // A repeated completion is unknown as well.
        (0..2).for_each(|_| setup.complete(&peer, wr_id, WcStatus::WR_FLUSH_ERR));
        assert_eq!(each(pending), [(0, 0, WcStatus::WR_FLUSH_ERR); 2]);
        assert_eq!(setup.freed(), 2);
    }
}

/// All bytes. Its drop counts whether the connection is not locked.
struct Whole<'a>(&'a Connection<Buffer, Plain>, &'a AtomicUsize);

impl RangeBounds<usize> for Whole<'_> {
    fn start_bound(&self) -> Bound<&usize> {
        Bound::Unbounded
    }

    fn end_bound(&self) -> Bound<&usize> {
        Bound::Unbounded
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        self.1.fetch_add(self.0.inner.conn.try_lock().is_some().into(), Ordering::Relaxed);
    }
}

#[test]
fn ranges_of_the_application_are_dropped_without_the_lock_of_the_connection() {
    let setup = Setup::new(8);
    let peer = setup.connection(4);
    let unlocked = AtomicUsize::new(0);
    let part = || (setup.buffer(), Whole(&peer, &unlocked));
    let pending = peer.post(Op::send_parts([part(), part()]));
    assert_eq!(unlocked.load(Ordering::Relaxed), 2);
    drop(pending);
}

#[test]
fn refused_operation_of_several_buffers_returns_them() {
    let setup = Setup::new(6);
    let peer = setup.connection(3);
    let parts = |end| [(setup.buffer(), 0..3), (setup.buffer(), 0..end)];
    let refused = |pending: [Pending<Buffer, Plain>; 2]| {
        pending.map(|pending| {
            let refused = pending.wait().unwrap_err();
            assert_eq!((refused.outcome, refused.tag), (Outcome::NotExecuted, 5), "{refused}");
            assert!(refused.buffer.is_some(), "{refused}");
            refused.error
        })
    };
    let [error, other] = refused(peer.post(Op::send_parts(parts(17)).tag(5)));
    assert!(error.to_string().contains("bytes 0..17 exceed"), "{error}");
    assert!(other.to_string().contains("another buffer"), "{other}");
    // The doorbell is refused, which takes the request back.
    let late = IoctlError::new("PostSend", Errno::NOMEM);
    setup.plain.log().refusals.push_back(DoorbellError::TakenBack(late));
    let errors = refused(peer.post(Op::send_parts(parts(4)).tag(5)));
    assert_eq!(errors.map(|error| error.errno()), [Some(Errno::NOMEM); 2]);
    // The third slot is not taken by half an operation.
    let pending = peer.post(Op::recv_parts(parts(4)).tag(5));
    assert!(refused(peer.post(Op::recv_parts(parts(4)).tag(5))).iter().all(Error::is_full));
    let (single, _) = setup.recv(&peer);
    peer.abort();
    let [error, _] = refused(peer.post(Op::send_parts(parts(4)).tag(5)));
    assert!(matches!(error, Error::Closed { .. }), "{error}");
    assert_eq!(setup.freed(), 8);
    drop((pending, single));
}

#[test]
fn refused_doorbell_of_a_posted_operation_of_several_buffers_ends_the_connection() {
    let setup = Setup::new(8);
    let peer = setup.connection(4);
    let refused = IoctlError::new("PostSend", Errno::NOMEM);
    setup.plain.log().refusals.push_back(DoorbellError::Posted(refused));
    let mut pending = peer.post(Op::send_parts([(setup.buffer(), ..), (setup.buffer(), ..)]));
    assert_eq!(peer.failure().unwrap().errno(), Some(Errno::NOMEM));
    assert!(pending[1].wait_timeout(Duration::ZERO).is_none());
    let wr_id = RESERVED | pending[0].wr_id().unwrap();
    setup.complete(&peer, wr_id, WcStatus::WR_FLUSH_ERR);
    assert_eq!(each(pending), [(0, 0, WcStatus::WR_FLUSH_ERR); 2]);
}

#[test]
fn removal_of_the_device_ends_operations_of_several_buffers() {
    let test = || {
        let setup = Setup::new(8);
        let peer = setup.connection(4);
        let pending = peer.post(Op::recv_parts([(setup.buffer(), ..), (setup.buffer(), ..)]));
        succeed_ioctls();
        assert!(setup.hub.inner.end_removed());
        pending.into_iter().for_each(|pending| assert_removed(pending.wait()));
        assert_eq!(setup.freed(), 2);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn provider_panic_keeps_the_buffers_of_an_operation() {
    let setup = Setup::new(8);
    let peer = setup.connection(4);
    setup.plain.log().panics = true;
    let parts = [(setup.buffer(), ..), (setup.buffer(), ..)];
    let post = || drop(peer.post(Op::recv_parts(parts)));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(post)).unwrap_err();
    setup.plain.log().panics = false;
    assert_eq!(setup.freed(), 0);
    let (pending, wr_id) = setup.recv(&peer);
    setup.complete(&peer, wr_id, WcStatus::SUCCESS);
    pending.wait().unwrap();
}

#[test]
fn room_of_a_probe_is_free_when_its_connection_is_dropped() {
    let test = || {
        // It has room for two probes.
        let setup = Setup::new(4);
        succeed_ioctls();
        for _ in 0..4 {
            let peer = setup.open(1, Policy::Never).unwrap();
            assert!(peer.inner.conn.has_probe());
        }
    };
    std::thread::spawn(test).join().unwrap();
}

/// A hub with an idle connection, whose peer is probed in intervals.
fn idle_connection(interval: Duration) -> (Setup, Connection<Buffer, Plain>, std::os::fd::OwnedFd) {
    let mut setup = Setup::new(4);
    let (channel, events) = CompChannel::with_pipe(setup.hub.pd().context().file());
    Arc::get_mut(&mut setup.hub.inner).unwrap().channel = channel;
    let peer = setup.connection(1);
    peer.inner.conn.lock().start_keepalive(Some(interval), Instant::now());
    (setup, peer, events)
}

#[test]
fn driver_that_is_a_thread_probes_idle_peers() {
    let interval = Duration::from_millis(20);
    let (setup, _peer, _events) = idle_connection(interval);
    setup.hub.spawn_driver_thread().unwrap();
    let (probed, wait) = std::sync::mpsc::channel();
    setup.plain.log().pushed = Hook(Some(Arc::new(move |wr_id| {
        if wr_id == PROBE {
            probed.send(()).unwrap();
        }
    })));
    setup.hub.inner.probe_every(interval);
    wait.recv_timeout(Duration::from_secs(20)).expect("a probe");
}

#[cfg(feature = "tokio")]
#[test]
fn driver_that_is_a_task_probes_idle_peers() {
    assert!(ends(|| {
        let (setup, peer, _events) = idle_connection(Duration::from_millis(1));
        setup.hub.inner.probe_every(Duration::from_millis(1));
        let (mut pending, wr_id) = setup.recv(&peer);
        let (plain, qp_num) = (setup.plain.clone(), peer.address().qp_num);
        let complete = move |wr_id, status| {
            let ended = WorkCompletion { qp_num, ..completion(wr_id, status) };
            plain.log().completions.push_back(ended);
        };
        setup.plain.log().pushed = Hook(Some(Arc::new(move |probe| {
            complete(probe, WcStatus::RETRY_EXC_ERR);
            complete(wr_id, WcStatus::WR_FLUSH_ERR);
        })));
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let ended = runtime.block_on(async {
            let mut driver = setup.hub.drive(crate::runtime::Tokio).unwrap();
            std::future::poll_fn(|cx| {
                assert!(std::pin::Pin::new(&mut driver).poll(cx).is_pending());
                std::pin::Pin::new(&mut pending).poll(cx)
            })
            .await
        });
        setup.plain.log().pushed = Hook(None);
        assert_eq!(ended.unwrap_err().cause, Some(WcStatus::RETRY_EXC_ERR));
    }));
}
