use std::net::Ipv4Addr;
use std::task::Poll;
use std::time::Duration;

use bareverbs_provider::device::IoctlError;
use proptest::prelude::*;
use rustix::io::Errno;

use super::*;
use crate::cq::{CompChannel, CqInit};
use crate::error::{DoorbellError, PushError};
use crate::mr::ImplicitMr;
use crate::owned::keepalive::Policy;
use crate::owned::options::QueueParts;
use crate::owned::{Pool, RegionMut, Spin};
use crate::qp::QpState;
use crate::testing::tasks::{Never, Wakes};
use crate::testing::{Plain, completion};
use crate::{Access, Pd, WcStatus};

/// Length of the buffers: room for a message of 24 bytes.
const LEN: usize = GRH_BYTES + 24;

struct Setup<B = PoolBuffer> {
    plain: Plain,
    pd: Pd<Plain>,
    pool: Pool,
    datagrams: Datagrams<B, Plain>,
    peer: Destination<Plain>,
}

fn destination(pd: &Pd<Plain>) -> Destination<Plain> {
    Destination::new(Arc::new(Ah::for_test(pd, ())), 17, 0x1234)
}

impl<B> Setup<B> {
    /// Datagrams with 4 sends and 2 receives.
    fn new() -> Self {
        let plain = Plain::default();
        let pd = plain.domain();
        let context = pd.context();
        let parts = QueueParts {
            qp: plain.queue_pair_of(&pd),
            cq: context.create_cq(&CqInit::new(8)).unwrap(),
            channel: CompChannel::for_test(context.file()),
            sends: 4,
            recvs: 2,
            max_sge: 1,
            signal_every: 4,
            spin: Spin::Never,
            keepalive: Policy::Never,
            probes: true,
            probe_memory: None,
        };
        let datagrams = Datagrams {
            queues: Queues::new(parts),
            pd: PdId::of(pd.domain()),
            attr: ConnectAttr::new(1, 0),
            resolve: ResolveTimeout::default(),
            hop_limit: None,
            address: DatagramAddress::new(Gid::default(), 1, 0x1234),
            max_message: 1024,
            is_ethernet: true,
        };
        let (pool, peer) = (Pool::for_test(&pd, 4, LEN), destination(&pd));
        Self { plain, pd, pool, datagrams, peer }
    }

    fn complete(&self, completion: WorkCompletion) {
        self.plain.log().completions.push_back(completion);
    }

    fn sent(&self, wr_id: u64, status: WcStatus) {
        self.complete(WorkCompletion { opcode: WcOpcode::SEND, ..completion(wr_id, status) });
    }

    fn received(&self, wr_id: u64, byte_len: u32) {
        self.complete(WorkCompletion { byte_len, ..completion(wr_id, WcStatus::SUCCESS) });
    }

    /// The `wr_id` of the newest send whose doorbell was rung.
    fn newest_send(&self) -> u64 {
        self.plain.log().sent.last().unwrap().1
    }
}

impl Setup {
    fn buffer(&self) -> PoolBuffer {
        self.pool.take().unwrap()
    }

    /// Posts a receive and returns its `wr_id`.
    fn post(&mut self, tag: u64) -> u64 {
        let buffer = self.buffer();
        self.datagrams.post(Op::recv(buffer).tag(tag)).unwrap();
        *self.plain.log().received.last().unwrap()
    }

    /// Posts a send and returns its `wr_id`.
    fn send(&mut self, tag: u64, signaled: bool) -> u64 {
        let op = Op::send_to(&self.peer, self.pool.take().unwrap(), ..8).tag(tag);
        self.datagrams.post(if signaled { op } else { op.unsignaled() }).unwrap();
        self.newest_send()
    }

    /// The number of outstanding sends that share the peer's address handle.
    fn holders(&self) -> usize {
        Arc::strong_count(self.peer.ah()) - 1
    }
}

#[test]
fn receive_buffer_below_41_bytes_is_rejected_and_returned() {
    let mut setup: Setup = Setup::new();
    for (len, accepted) in [(1, false), (40, false), (41, true)] {
        let pool = Pool::for_test(&setup.pd, 1, len);
        let posted = setup.datagrams.post(Op::recv(pool.take().unwrap()).tag(7));
        assert_eq!(posted.is_ok(), accepted, "{len}");
        if let Err(Refused { error, object, .. }) = posted {
            assert!(
                matches!(error, Error::BufferTooShort { len: l, min: 41, .. } if l == len as u64),
                "{error}"
            );
            assert_eq!((object.tag, object.into_buffer().len()), (7, len));
        }
    }
    assert_eq!(setup.datagrams.pending_recvs(), 1);
}

#[test]
fn receive_buffer_that_peers_may_write_is_rejected_and_returned() {
    let mut setup: Setup<crate::Mr<Vec<u8>>> = Setup::new();
    for (access, accepted) in
        [(Access::LOCAL_WRITE, true), (Access::LOCAL_WRITE | Access::REMOTE_WRITE, false)]
    {
        let region = ImplicitMr::for_test(setup.pd.domain(), access);
        let buffer = region.part(vec![0; LEN]).map_err(|failed| failed.error).unwrap();
        let posted = setup.datagrams.post(Op::recv(buffer));
        assert_eq!(posted.is_ok(), accepted, "{access:?}");
        if let Err(Refused { error, object, .. }) = posted {
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
            assert_eq!(object.into_buffer().len(), LEN);
        }
    }
}

#[test]
fn message_is_behind_the_grh() {
    let mut setup: Setup = Setup::new();
    let mut buffer = setup.buffer();
    buffer.bytes_mut()[GRH_BYTES..][..5].copy_from_slice(b"hello");
    setup.datagrams.post(Op::recv(buffer).tag(7)).unwrap();
    let wr_id = setup.plain.log().received[0];
    setup.received(wr_id, 45);
    let received = setup.datagrams.next_recv().wait().unwrap();
    assert_eq!((received.message(), received.tag(), received.imm()), (&b"hello"[..], 7, None));
    assert_eq!(received.into_buffer().len(), LEN);
    // The shortest datagram and the longest one.
    for (byte_len, len) in [(40, 0), (LEN as u32, LEN - GRH_BYTES)] {
        let wr_id = setup.post(0);
        setup.received(wr_id, byte_len);
        assert_eq!(setup.datagrams.next_recv().wait().unwrap().message().len(), len);
    }
}

#[test]
fn sender_is_that_of_the_completion_and_of_the_grh() {
    let mut setup: Setup = Setup::new();
    let gid = Gid::from(Ipv4Addr::new(10, 1, 0, 2));
    for (wc_flags, expected) in [(WcFlags::GRH, Some(gid)), (WcFlags::empty(), None)] {
        let mut buffer = setup.buffer();
        buffer.bytes_mut()[..GRH_BYTES].fill(0);
        buffer.bytes_mut()[20] = 0x45;
        buffer.bytes_mut()[32..36].copy_from_slice(&[10, 1, 0, 2]);
        setup.datagrams.post(Op::recv(buffer)).unwrap();
        let wr_id = *setup.plain.log().received.last().unwrap();
        let success = completion(wr_id, WcStatus::SUCCESS);
        setup.complete(WorkCompletion { byte_len: 41, src_qp: 5, slid: 9, wc_flags, ..success });
        let received = setup.datagrams.next_recv().wait().unwrap();
        assert_eq!(received.sender(), DatagramSender { qp_num: 5, lid: 9, gid: expected });
    }
}

#[test]
fn impossible_length_fails_the_receive_only_and_returns_its_buffer() {
    for len in [0, 1, 39, LEN as u32 + 1, u32::MAX] {
        for declines in [false, true] {
            let mut setup: Setup = Setup::new();
            setup.plain.log().declines = declines;
            let (first, second) = (setup.post(1), setup.post(2));
            setup.received(first, len);
            setup.received(second, 41);
            let failed = setup.datagrams.poll().unwrap().unwrap_err();
            assert!(
                matches!(failed.error, Error::DatagramLength { len: l, max } if (l, max) == (len, LEN as u64))
            );
            assert!(failed.is_recv() && failed.tag == 1 && failed.buffer.is_some());
            assert_eq!(setup.datagrams.next_recv().wait().unwrap().tag(), 2);
            assert_eq!(setup.datagrams.qp().state(), QpState::RTS);
        }
    }
}

#[test]
fn unknown_completion_returns_no_buffer_and_moves_qp_to_err() {
    for nonsense in [0, 1, 1 << 62, 2 << 62 | 1, 3 << 62, u64::MAX] {
        let mut setup: Setup = Setup::new();
        let (posted, sent) = (setup.post(1), setup.send(2, true));
        setup.received(if nonsense == 1 << 62 { nonsense + 1 } else { nonsense }, 41);
        let failed = setup.datagrams.poll().unwrap().unwrap_err();
        assert!(matches!(failed.error, Error::UnknownCompletion { .. }), "{failed}");
        assert!(failed.buffer.is_none());
        assert_eq!((setup.datagrams.qp().state(), setup.datagrams.pending()), (QpState::ERR, 2));
        let refused = setup.datagrams.post(Op::recv(setup.buffer())).unwrap_err();
        assert!(refused.to_string().contains("Datagrams::post(Op::recv): the QP is in ERR"), "{refused}");
        let refused = setup.datagrams.post(Op::send_to_inline(&setup.peer, b"x")).unwrap_err();
        assert!(matches!(refused, Error::Closed { .. }), "{refused}");
        setup.complete(completion(posted, WcStatus::WR_FLUSH_ERR));
        setup.sent(sent, WcStatus::WR_FLUSH_ERR);
        assert!(setup.datagrams.next_recv().wait().unwrap_err().buffer.is_some());
        assert!(setup.datagrams.next_send().wait().unwrap_err().buffer.is_some());
    }
}

#[test]
fn send_holds_the_address_handle_until_it_is_complete() {
    let mut setup: Setup = Setup::new();
    let (first, second) = (setup.send(1, true), setup.send(2, true));
    setup.datagrams.post(Op::send_to_imm_inline(&setup.peer, b"inline", 7).tag(3)).unwrap();
    let third = setup.newest_send();
    assert_eq!(setup.holders(), 3);
    setup.sent(first, WcStatus::SUCCESS);
    assert_eq!(setup.datagrams.next_send().wait().unwrap().tag, 1);
    assert_eq!(setup.holders(), 2);
    setup.sent(second, WcStatus::LOC_QP_OP_ERR);
    setup.sent(third, WcStatus::WR_FLUSH_ERR);
    let failed =
        [setup.datagrams.next_send().wait().unwrap_err(), setup.datagrams.next_send().wait().unwrap_err()];
    assert_eq!((failed.each_ref().map(|failed| failed.tag), setup.holders()), ([2, 3], 0));
    assert_eq!(failed[1].cause, Some(WcStatus::LOC_QP_OP_ERR));
}

#[test]
fn refused_send_holds_no_address_handle() {
    let mut setup: Setup = Setup::new();
    let too_long = PushError::DatagramTooLong { given: 2000, max: 1024 };
    setup.plain.log().send_rejections.push_back(too_long);
    let buffer = setup.buffer();
    let refused = setup.datagrams.post(Op::send_to(&setup.peer, buffer, ..8)).unwrap_err();
    assert!(matches!(&refused.error, Error::Post(error) if error.reason == too_long.into()), "{refused}");
    drop(refused);
    assert_eq!((setup.holders(), setup.datagrams.pending()), (0, 0));
    for _ in 0..4 {
        setup.datagrams.post(Op::send_to_inline(&setup.peer, b"x")).unwrap();
    }
    let full = setup.datagrams.post(Op::send_to_inline(&setup.peer, b"x")).unwrap_err();
    assert!(full.is_full() && full.to_string().contains("(4 requests)"), "{full}");
    assert_eq!(setup.holders(), 4);
}

#[test]
fn refused_doorbell_moves_ud_qp_to_err() {
    let mut setup: Setup = Setup::new();
    let refused = IoctlError::new("PostSend", Errno::NOMEM);
    setup.plain.log().refusals.push_back(DoorbellError::TakenBack(refused));
    let refused = setup.datagrams.post(Op::send_to_inline(&setup.peer, b"x")).unwrap_err();
    assert!(matches!(refused, Error::Post(_)), "{refused}");
    assert_eq!((setup.holders(), setup.datagrams.qp().state()), (0, QpState::ERR));
}

#[test]
fn default_hop_limit_passes_routers_except_for_groups() {
    let mut setup = Setup::<PoolBuffer>::new();
    let group: Gid = "ff0e::1".parse().unwrap();
    let limits = |datagrams: &Datagrams<PoolBuffer, Plain>| {
        [Gid::default(), group]
            .map(|gid| datagrams.path_to(&DatagramAddress::new(gid, 17, 0x1234)).grh.unwrap().hop_limit)
    };
    assert_eq!(limits(&setup.datagrams), [64, 1]);
    setup.datagrams.hop_limit = Some(9);
    assert_eq!(limits(&setup.datagrams), [9, 9]);
}

#[test]
fn destination_of_another_pd_is_rejected() {
    let mut setup: Setup = Setup::new();
    let same_context = setup.pd.context().alloc_pd().unwrap();
    for pd in [&same_context, &setup.plain.domain()] {
        let foreign = destination(pd);
        let refused = setup.datagrams.post(Op::send_to(&foreign, setup.buffer(), ..1).tag(7)).unwrap_err();
        assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
        assert!(refused.to_string().contains("another PD"), "{refused}");
        drop(refused);
        assert!(setup.datagrams.post(Op::send_to_inline(&foreign, b"x")).is_err());
    }
    assert!(setup.plain.log().sent.is_empty());
}

#[test]
fn poll_of_one_direction_leaves_the_other() {
    let mut setup: Setup = Setup::new();
    let (received, sent) = (setup.post(1), setup.send(2, true));
    setup.sent(sent, WcStatus::SUCCESS);
    assert!(setup.datagrams.poll_recv().is_none());
    setup.received(received, 41);
    assert_eq!(setup.datagrams.poll_recv().unwrap().unwrap().tag(), 1);
    assert_eq!((setup.datagrams.pending_sends(), setup.datagrams.pending_recvs()), (1, 0));
    assert_eq!(setup.datagrams.poll_send().unwrap().unwrap().tag, 2);
    let refused = setup.datagrams.next_recv().wait().map(|_| ()).unwrap_err();
    assert!(
        refused.to_string().contains("Datagrams::next: no receive is outstanding: post one first"),
        "{refused}"
    );
}

#[test]
fn poll_of_one_direction_returns_older_unsignaled_and_failed_operations() {
    let mut setup: Setup = Setup::new();
    setup.send(1, false);
    let (second, third) = (setup.send(2, true), setup.send(3, true));
    setup.sent(second, WcStatus::SUCCESS);
    setup.complete(completion(77, WcStatus::SUCCESS));
    setup.sent(third, WcStatus::LOC_PROT_ERR);
    let mut poll = || setup.datagrams.poll_send();
    assert_eq!([poll().unwrap().unwrap().tag, poll().unwrap().unwrap().tag], [1, 2]);
    let unknown = poll().unwrap().unwrap_err();
    assert!(matches!(unknown.error, Error::UnknownCompletion { wr_id: 77 }), "{unknown}");
    let failed = poll().unwrap().unwrap_err();
    assert_eq!((failed.tag, failed.cause), (3, Some(WcStatus::LOC_PROT_ERR)));
    assert!(poll().is_none());
}

#[test]
fn awaits_of_datagrams_that_end_at_once_let_other_tasks_run() {
    use std::future::Future;
    use std::sync::atomic::Ordering;
    use std::task::{Context, Poll, Waker};

    let Setup { plain, pool, mut datagrams, .. } = Setup::<PoolBuffer>::new();
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    datagrams.attach(Never::Waits).unwrap();
    let mut yields = Vec::new();
    for number in 1..=300_u32 {
        datagrams.post(Op::recv(pool.take().unwrap())).unwrap();
        let wr_id = *plain.log().received.last().unwrap();
        let received = WorkCompletion { byte_len: LEN as u32, ..completion(wr_id, WcStatus::SUCCESS) };
        plain.log().completions.push_back(received);
        let mut wait = std::pin::pin!(datagrams.next_recv());
        loop {
            match wait.as_mut().poll(&mut context) {
                Poll::Ready(received) => break drop(received.unwrap()),
                Poll::Pending => yields.push(number),
            }
        }
    }
    assert_eq!(yields, [128, 255]);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 2, "the task is polled again");
}

fn poll_once<T>(future: &mut (impl std::future::Future<Output = T> + Unpin)) -> std::task::Poll<T> {
    std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

#[test]
fn destination_is_created_by_a_thread_or_beside_the_tasks() {
    let pd = Plain::default().domain();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = Arc::new(std::sync::Mutex::new(gone));
    let create = |waits: bool| {
        let (to, gone) = (destination(&pd), waits.then(|| Arc::clone(&gone)));
        move || {
            if let Some(gone) = gone {
                gone.lock().unwrap().recv().unwrap();
            }
            Ok(to)
        }
    };
    // A task needs a runtime; a thread makes the call then.
    let mut pending = PendingDestination::new(None, create(false));
    let Poll::Ready(Err(refused)) = poll_once(&mut pending) else { panic!("it is refused") };
    assert!(refused.to_string().contains("call `attach` first"), "{refused}");
    pending.wait().unwrap();

    // A time limit that passes loses nothing.
    let mut pending = PendingDestination::new(None, create(true));
    assert!(pending.wait_timeout(Duration::from_millis(1)).is_none());
    go.send(()).unwrap();
    assert!(pending.wait_timeout(Duration::from_secs(20)).unwrap().is_ok());
    assert!(pending.wait().unwrap_err().to_string().contains("taken before"));

    let runtime = || -> Option<Arc<dyn crate::runtime::Runtime>> { Some(Arc::new(Never::Waits)) };
    let mut pending = PendingDestination::new(runtime(), create(false));
    assert!(matches!(poll_once(&mut pending), Poll::Ready(Ok(_))));
}

#[test]
fn panic_of_a_destination_ends_the_wait() {
    let mut pending = PendingDestination::<Plain>::new(None, || panic!("of the test"));
    let wait = std::panic::AssertUnwindSafe(|| pending.wait_timeout(Duration::from_secs(20)));
    let panic = std::panic::catch_unwind(wait).expect_err("the panic continues");
    assert_eq!(panic.downcast_ref(), Some(&"of the test"));
    assert!(pending.wait().unwrap_err().to_string().contains("taken before"));
}

#[test]
fn unsignaled_tail_of_failed_datagrams_ends_by_the_marker() {
    let mut setup: Setup = Setup::new();
    let first = setup.send(1, true);
    setup.send(2, false);
    setup.sent(first, WcStatus::LOC_QP_OP_ERR);
    assert_eq!(setup.datagrams.next_send().wait().unwrap_err().tag, 1);
    assert_eq!(setup.newest_send(), MARKER);
    setup.sent(MARKER, WcStatus::WR_FLUSH_ERR);
    assert_eq!(setup.datagrams.next_send().wait().unwrap_err().tag, 2);
    assert_eq!((setup.datagrams.pending(), setup.holders()), (0, 0));
}

#[test]
fn close_sends_no_marker_to_a_peer() {
    let mut setup: Setup = Setup::new();
    setup.send(1, false);
    let posted_in_err = Arc::new(std::sync::Mutex::new(None));
    let (log, plain) = (Arc::clone(&posted_in_err), setup.plain.clone());
    setup.plain.log().pushed = crate::testing::Hook(Some(Arc::new(move |wr_id| {
        *log.lock().unwrap() = Some((wr_id, plain.log().states.last().copied()));
    })));
    setup.sent(MARKER, WcStatus::WR_FLUSH_ERR);
    // The kernel is `/dev/null`, which does not destroy the QP.
    setup.datagrams.close().wait().unwrap_err();
    assert_eq!(*posted_in_err.lock().unwrap(), Some((MARKER, Some(QpState::ERR))));
}

#[test]
fn buffers_of_other_types_are_converted() {
    let mut setup: Setup<crate::owned::AnyBuffer<Vec<u8>>> = Setup::new();
    setup.datagrams.post(Op::recv(setup.pool.take().unwrap()).tag(1).any()).unwrap();
    let region = ImplicitMr::for_test(setup.pd.domain(), Access::LOCAL_WRITE);
    let mr = region.part(vec![0; LEN]).map_err(|failed| failed.error).unwrap();
    let part = RegionMut::new(mr).map_err(|failed| failed.error).unwrap();
    setup.datagrams.post(Op::recv(part).tag(2).any()).unwrap();
    assert_eq!(setup.datagrams.pending_recvs(), 2);
}

proptest! {
    #[test]
    fn any_completion_of_a_receive_is_a_message_or_an_error(
        byte_len in prop_oneof![0u32..LEN as u32 + 2, any::<u32>()],
        bytes in prop::collection::vec(any::<u8>(), LEN),
        numbers: (u32, u16, u8, u8, u32),
    ) {
        let mut setup: Setup = Setup::new();
        let mut buffer = setup.buffer();
        buffer.bytes_mut().copy_from_slice(&bytes);
        setup.datagrams.post(Op::recv(buffer)).unwrap();
        let wr_id = setup.plain.log().received[0];
        let (src_qp, slid, sl, dlid_path_bits, wc_flags) = numbers;
        let wc_flags = WcFlags::from_bits_retain(wc_flags);
        let success = completion(wr_id, WcStatus::SUCCESS);
        setup.complete(WorkCompletion { byte_len, src_qp, slid, sl, dlid_path_bits, wc_flags, ..success });
        match setup.datagrams.poll().unwrap() {
            Ok(done) => {
                let received = done.into_received().unwrap();
                prop_assert_eq!(received.message(), &bytes[GRH_BYTES..byte_len as usize]);
                prop_assert_eq!(received.sender().qp_num, src_qp);
            }
            Err(failed) => {
                prop_assert!(!(GRH_BYTES..=LEN).contains(&(byte_len as usize)));
                prop_assert!(failed.buffer.is_some());
            }
        }
    }
}
