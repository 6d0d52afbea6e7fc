use std::future::Future;
use std::pin::Pin;
use std::task::Waker;
use std::time::Duration;

use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::DoorbellError;
use rustix::io::Errno;

use super::flow::{CONTROL_RECEIVES, CONTROL_SENDS, ControlKind, FlowControl};
use super::reap::inbound::{Inbound, SHARED};
use super::*;
use crate::cq::{WcFlags, WorkCompletion};
use crate::owned::Pool;
use crate::owned::hub::driver::DriverGuard;
use crate::owned::hub::election::DriverKind;
use crate::qp::ConnectAttr;
use crate::srq::{Srq, SrqInit};
use crate::testing::{Plain, completion, succeed_ioctls};
use crate::values::AckTimeout;
use crate::{Imm, Remote, WcOpcode, WcStatus};

const WINDOW: u32 = 2;
const SENDS: u32 = 2;
const SIZE: usize = 32;
const RECEIVES: u32 = WINDOW + CONTROL_RECEIVES;

/// The state of a connection that is no peer.
fn unused() -> PeerState {
    PeerState { flow: FlowControl::new(1, 1), max_message: 0, words: None }
}

/// A server with one peer, and no device.
struct Setup {
    plain: Plain,
    server: Server<PoolBuffer, Plain>,
    peer: PeerId,
    qp_num: u32,
    /// Messages and credits that the peer has sent.
    credits: u32,
}

impl Setup {
    fn new() -> Self {
        Self::with(|flow| flow.connected(WINDOW))
    }

    fn with(connect: impl FnOnce(&mut FlowControl<Queued>)) -> Self {
        Self::of(Plain::default(), connect)
    }

    fn of(plain: Plain, connect: impl FnOnce(&mut FlowControl<Queued>)) -> Self {
        let pd = plain.domain();
        let words_of = |count: u32| plain.log().iwarp.then(|| words(&pd, count as usize).unwrap());
        let pool = Pool::for_test(&pd, (RECEIVES + SENDS) as usize, SIZE);
        let srq = Srq::create(&pd, &SrqInit::new(RECEIVES)).unwrap();
        let inbound =
            Arc::new(Inbound::new(srq, pool, RECEIVES as usize, 1, words_of(RECEIVES).unwrap_or_default()));
        let hub = Hub::for_test(&pd, 64, Arc::clone(&inbound));
        for index in 0..RECEIVES {
            inbound.post(index, inbound.pool.take().unwrap()).unwrap();
        }
        let peer = PeerId { index: 0, generation: 1 };
        let mut flow = FlowControl::new(WINDOW, SENDS as usize);
        connect(&mut flow);
        let qp = plain.queue_pair(&pd);
        let qp_num = qp.qp_num();
        let state = PeerState { flow, max_message: SIZE as u32, words: words_of(SENDS) };
        let connection =
            hub.connection_for_test(qp, [SENDS as usize, CONTROL_SENDS as usize], (peer.into(), state));
        let options = Server::options().peers(1).sends(SENDS).operations(2).window(WINDOW);
        let inner = Inner::new(options.message_size(SIZE as u32), ConnectAttr::new(1, 0), hub, inbound);
        lock(&inner.peers)[0].peer = Some(connection);
        let server = Server { handle: Handle { inner }, ended: false, is_client: false };
        Self { plain, server, peer, qp_num, credits: WINDOW }
    }

    /// Limits the messages to the peer to `max` bytes.
    fn limit(&self, max: u32) {
        let peer = self.server.handle.inner.get(self.peer).unwrap();
        peer.inner.conn.lock().service.max_message = max;
    }

    /// The oldest receive that is posted.
    fn receive(&self) -> u64 {
        self.plain.log().received.remove(0)
    }

    /// A message of the peer consumes the receive `wr_id`.
    fn arrives(&self, wr_id: u64, kind: u32, byte_len: u32) {
        let imm = Imm(kind << 28 | self.credits);
        let arrived = WorkCompletion {
            qp_num: self.qp_num,
            byte_len,
            ex: imm.to_be(),
            wc_flags: WcFlags::WITH_IMM,
            ..completion(wr_id, WcStatus::SUCCESS)
        };
        self.plain.log().completions.push_back(arrived);
    }

    /// The device has executed the oldest send.
    fn sent(&self) {
        let sent = self.plain.log().sent.remove(0).1;
        let done = WorkCompletion { qp_num: self.qp_num, ..completion(sent, WcStatus::SUCCESS) };
        self.plain.log().completions.push_back(done);
    }

    fn next(&mut self) -> Option<Event<PoolBuffer, Plain>> {
        self.server.next().wait_timeout(Duration::ZERO).transpose().unwrap()
    }

    fn message(&mut self) -> Message<PoolBuffer, Plain> {
        match self.next() {
            Some(Event::Message(message)) => message,
            other => panic!("a message, not {other:?}"),
        }
    }

    fn failure(&mut self) -> Error {
        match self.next() {
            Some(Event::Failed(peer, error)) if peer == self.peer => error,
            other => panic!("the end of the peer, not {other:?}"),
        }
    }
}

#[test]
fn word_of_a_message_is_before_its_bytes_on_iwarp() {
    let test = |bytes: u32, kind: u32, len: Option<usize>| {
        succeed_ioctls();
        let mut setup = Setup::of(Plain::iwarp(), |flow| flow.connected(WINDOW));
        let receive = setup.receive();
        let inbound = Arc::clone(&setup.server.handle.inner.inbound);
        inbound.set_word(0, kind << 28 | setup.credits);
        let arrived = WorkCompletion {
            qp_num: setup.qp_num,
            byte_len: bytes,
            ..completion(receive, WcStatus::SUCCESS)
        };
        setup.plain.log().completions.push_back(arrived);
        match (setup.next(), len) {
            (Some(Event::Message(message)), Some(len)) => assert_eq!(message.bytes().len(), len),
            (Some(Event::Failed(..)), None) => {}
            (other, _) => panic!("{other:?}"),
        }
        let buffer = setup.server.handle.take().unwrap();
        setup.server.handle.send(setup.peer, buffer, ..5).detach();
        assert_eq!(setup.plain.log().sges.last(), len.map(|_| &2));
    };
    let data = ControlKind::Data as u32;
    for (bytes, kind, len) in [
        (4, data, Some(0)),
        (9, data, Some(5)),
        (SIZE as u32 + 4, data, Some(SIZE)),
        (SIZE as u32 + 5, data, None),
        (3, data, None),
        (4, 9, None),
    ] {
        std::thread::spawn(move || test(bytes, kind, len)).join().unwrap();
    }
}

#[test]
fn message_gives_its_receive_back_when_dropped() {
    let mut setup = Setup::new();
    assert_eq!(setup.plain.log().received.len(), RECEIVES as usize);
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let message = setup.message();
    assert_eq!((message.bytes().len(), message.peer()), (5, setup.peer));
    assert_eq!(setup.plain.log().received.len(), RECEIVES as usize - 1);
    drop(message);
    let again = *setup.plain.log().received.last().unwrap();
    assert_eq!((again as u32, again == receive), (receive as u32, false), "the slot, with a new wr_id");
    // Half of the window is unreported: a credit message.
    assert_eq!(setup.plain.log().sent.len(), 1);
}

#[test]
fn messages_wait_for_credits() {
    let mut setup = Setup::new();
    let send = |setup: &Setup| setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    let first = [send(&setup), send(&setup)];
    (0..2).for_each(|_| setup.sent());
    first.into_iter().for_each(|sent| assert_eq!(sent.wait().unwrap().len, 4));
    let mut third = send(&setup);
    assert!(setup.plain.log().sent.is_empty(), "the peer has permitted two");
    assert!(third.wait_timeout(Duration::ZERO).is_none());
    setup.credits += 1;
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Credit as u32, 0);
    assert!(setup.next().is_none());
    setup.sent();
    assert_eq!(third.wait().unwrap().len, 4);
}

#[test]
fn unknown_receives_end_the_connection() {
    for nonsense in [SHARED, SHARED | 1, SHARED | 1 << 32 | 99, SHARED | 2 << 32, u64::MAX] {
        let mut setup = Setup::new();
        setup.arrives(nonsense, ControlKind::Data as u32, 5);
        let failure = setup.failure();
        assert!(matches!(failure, Error::UnknownCompletion { wr_id } if wr_id == nonsense), "{failure}");
    }
}

#[test]
fn repeated_receive_returns_no_second_message() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let message = setup.message();
    assert!(matches!(setup.failure(), Error::UnknownCompletion { .. }));
    assert_eq!(message.bytes().len(), 5);
    assert!(message.reply(setup.server.handle.take().unwrap(), ..).wait().is_err());
}

#[test]
fn messages_that_violate_the_protocol_end_the_connection() {
    let over = SIZE as u32 + 1;
    for (kind, byte_len) in
        [(ControlKind::Data as u32, over), (ControlKind::Data as u32, u32::MAX), (0, 5), (9, 5)]
    {
        let mut setup = Setup::new();
        let receive = setup.receive();
        setup.arrives(receive, kind, byte_len);
        assert!(setup.failure().to_string().contains("violated the flow control protocol"));
        // The receive is posted again.
        assert_eq!(setup.plain.log().received.len(), RECEIVES as usize);
    }
}

#[test]
fn message_beyond_the_window_ends_the_connection() {
    let mut setup = Setup::new();
    for _ in 0..=WINDOW {
        let receive = setup.receive();
        setup.arrives(receive, ControlKind::Data as u32, 5);
    }
    let messages = [setup.message(), setup.message()];
    assert!(setup.failure().to_string().contains("violated the flow control protocol"));
    drop(messages);
    assert_eq!(setup.plain.log().received.len(), RECEIVES as usize, "every receive is posted again");
}

#[test]
fn failed_send_ends_its_peer_and_is_counted() {
    let mut setup = Setup::new();
    let pending = setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    let sent = setup.plain.log().sent.remove(0).1;
    let failed = WorkCompletion { qp_num: setup.qp_num, ..completion(sent, WcStatus::RETRY_EXC_ERR) };
    setup.plain.log().completions.push_back(failed);
    assert!(matches!(setup.failure(), Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }));
    assert!(pending.wait().unwrap_err().buffer.is_some());
    let report = setup.server.handle.shutdown().wait().unwrap();
    assert_eq!((report.sent, report.failed), (0, 1));
    assert!(matches!(setup.next(), Some(Event::Ended)));
}

#[test]
fn shutdown_ends_when_both_ends_have_received_everything() {
    let mut setup = Setup::new();
    let sent = setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    let mut shutdown = setup.server.handle.shutdown();
    // The message, then the FIN.
    assert_eq!(setup.plain.log().sent.len(), 2);
    (0..2).for_each(|_| setup.sent());
    sent.wait().unwrap();
    assert!(shutdown.wait_timeout(Duration::ZERO).is_none());
    for kind in [ControlKind::FinAck, ControlKind::Fin] {
        let receive = setup.receive();
        setup.arrives(receive, kind as u32, 0);
    }
    assert!(matches!(setup.next(), Some(Event::Closed(peer)) if peer == setup.peer));
    // The acknowledgement of the peer's FIN.
    setup.sent();
    assert_eq!(shutdown.wait().unwrap(), Summary { sent: 1, detached: 0, failed: 0 });
    assert!(matches!(setup.next(), Some(Event::Ended)));
    assert!(setup.server.handle.peers().is_empty());
}

#[test]
fn shutdown_waits_for_completions_behind_the_answer_of_the_peer() {
    let mut setup = Setup::new();
    setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4).detach();
    let mut shutdown = setup.server.handle.shutdown();
    assert!(setup.server.handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
    for kind in [ControlKind::FinAck, ControlKind::Fin] {
        let receive = setup.receive();
        setup.arrives(receive, kind as u32, 0);
    }
    assert!(matches!(setup.next(), Some(Event::Closed(peer)) if peer == setup.peer));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut shutdown).poll(&mut cx).is_pending());
    // The completion of the message wakes the task.
    setup.sent();
    assert!(setup.next().is_none());
    assert!(woken.0.load(Ordering::Relaxed));
    let summary = Summary { sent: 1, detached: 1, failed: 0 };
    assert!(matches!(Pin::new(&mut shutdown).poll(&mut cx), Poll::Ready(Ok(found)) if found == summary));
}

#[test]
fn messages_without_a_completion_are_counted_when_their_peer_is_removed() {
    let mut setup = Setup::new();
    setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4).detach();
    let receive = setup.receive();
    setup.arrives(receive, 9, 0);
    let mut shutdown = setup.server.handle.shutdown();
    assert!(shutdown.wait_timeout(Duration::ZERO).is_none());
    assert!(setup.failure().to_string().contains("violated the flow control protocol"));
    assert_eq!(shutdown.wait().unwrap(), Summary { sent: 0, detached: 1, failed: 1 });
}

#[test]
fn shutdown_ends_when_a_peer_that_has_closed_leaves() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Fin as u32, 0);
    assert!(matches!(setup.next(), Some(Event::Closed(peer)) if peer == setup.peer));
    let mut shutdown = setup.server.handle.shutdown();
    // The acknowledgement of the peer's FIN, and the FIN of this end. The peer does not answer it.
    assert_eq!(setup.plain.log().sent.len(), 2);
    assert!(shutdown.wait_timeout(Duration::ZERO).is_none());
    (0..2).for_each(|_| setup.sent());
    assert_eq!(shutdown.wait().unwrap(), Summary::default());
    assert!(matches!(setup.next(), Some(Event::Ended)));
    assert!(setup.server.handle.peers().is_empty());
}

/// The kinds of the control messages that were posted, the oldest first.
fn controls(setup: &Setup) -> Vec<u64> {
    let sent = setup.plain.log().sent.iter().map(|sent| sent.1).collect::<Vec<_>>();
    sent.into_iter().filter(|wr_id| wr_id >> 62 == 1).map(|wr_id| wr_id & 0xf).collect()
}

#[test]
fn drain_ends_after_the_answers() {
    let mut setup = Setup::new();
    let handle = setup.server.handle.clone();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let message = setup.message();
    let mut drain = handle.drain();
    assert_eq!(controls(&setup), [ControlKind::Drain as u64]);
    // A message that the peer had sent before it knew.
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Fin as u32, 0);
    let late = setup.message();
    assert!(matches!(setup.next(), Some(Event::Closed(peer)) if peer == setup.peer));
    setup.sent();
    let answer = message.reply(handle.acquire().wait().unwrap(), ..4);
    drop(message);
    assert_eq!(controls(&setup), [ControlKind::FinAck as u64], "a message has no answer");
    assert!(drain.wait_timeout(Duration::ZERO).is_none());
    assert!(setup.next().is_none(), "a timeout");
    let other = late.reply_in_place(..4);
    assert_eq!(controls(&setup), [ControlKind::FinAck as u64, ControlKind::Fin as u64]);
    (0..4).for_each(|_| setup.sent());
    drop((answer.wait().unwrap(), other.wait().unwrap()));
    assert_eq!(drain.wait().unwrap(), Summary { sent: 2, detached: 0, failed: 0 });
    assert!(matches!(setup.server.next().wait(), Ok(Event::Ended)));
    // A loop that ignores the end does not run for ever.
    let ended = setup.server.next().wait().unwrap_err();
    assert!(matches!(ended, Error::Closed { verb: "Server::next", .. }), "{ended}");
}

#[test]
fn messages_to_a_peer_that_drains_are_not_sent() {
    // One credit.
    let mut setup = Setup::with(|flow| flow.connected(1));
    setup.credits = 1;
    let handle = setup.server.handle.clone();
    let [sent, waits] = [4, 5].map(|len| handle.send(setup.peer, setup.server.handle.take().unwrap(), ..len));
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Drain as u32, 0);
    handle.inner.hub.poll(8);
    assert_eq!(controls(&setup), [ControlKind::Fin as u64]);
    let assert_refused = |pending: PeerOperation<PoolBuffer, Plain>, verb| {
        let failed = pending.wait().unwrap_err();
        assert_eq!(failed.outcome, crate::owned::Outcome::NotExecuted, "{failed}");
        assert!(matches!(failed.error, Error::Draining { verb: of } if of == verb), "{failed}");
        failed.buffer.unwrap()
    };
    let buffer = assert_refused(waits, "Handle::post(Op::send)");
    let buffer = assert_refused(handle.send(setup.peer, buffer, ..4), "Handle::post(Op::send)");
    let remote = crate::Remote { addr: 0, rkey: 1 };
    drop(assert_refused(handle.post(setup.peer, Op::write(buffer, ..4, remote)), "Handle::post(Op::write)"));
    // The message that was sent, and its answer.
    setup.sent();
    drop(sent.wait().unwrap());
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 3);
    assert_eq!(setup.message().bytes().len(), 3);
}

#[test]
fn drain_refuses_new_peers_and_ends_a_server_without_peers() {
    let setup = Setup::with(|_| ());
    let handle = setup.server.handle.clone();
    drop(handle.drain());
    let remote =
        Address { recvs: WINDOW, flow_control: flow::VERSION, ..Address::new(crate::Gid::default(), 1) };
    assert!(matches!(handle.admit(&remote), Err(Error::Closed { verb: "Handle::admit", .. })));
    let refused = handle.connect("test", setup.peer, &remote).unwrap_err();
    assert!(matches!(refused, Error::Closed { verb: "test", .. }), "{refused}");
    let mut server = setup.server;
    assert!(matches!(server.next().wait(), Ok(Event::Ended)));
    assert_eq!(handle.drain().wait().unwrap(), Summary::default());
}

#[test]
fn shutdown_after_a_drain_waits_for_no_answer() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let message = setup.message();
    drop(setup.server.handle.drain());
    let shutdown = setup.server.handle.shutdown();
    assert_eq!(controls(&setup), [ControlKind::Drain as u64, ControlKind::Fin as u64]);
    (0..2).for_each(|_| setup.sent());
    for kind in [ControlKind::FinAck, ControlKind::Fin] {
        let receive = setup.receive();
        setup.arrives(receive, kind as u32, 0);
    }
    assert_eq!(shutdown.wait().unwrap(), Summary::default());
    assert!(message.reply(setup.server.handle.take().unwrap(), ..).wait().is_err());
}

#[test]
fn drain_wakes_the_reader_of_a_server_without_peers() {
    let mut setup = Setup::with(|_| ());
    let handle = setup.server.handle.clone();
    assert!(handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut setup.server.next()).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(handle.drain());
    assert!(woken.0.load(Ordering::Relaxed));
}

#[test]
fn peers_of_other_versions_are_refused() {
    let setup = Setup::with(|_| ());
    for peer in [1, flow::VERSION - 1, flow::VERSION + 1, u8::MAX] {
        let remote = Address { recvs: WINDOW, flow_control: peer, ..Address::new(crate::Gid::default(), 1) };
        let remote = Address::from_bytes(&remote.to_bytes()).unwrap();
        let refused = setup.server.handle.connect("test", setup.peer, &remote).unwrap_err();
        assert!(
            matches!(refused, Error::FlowControlVersion { verb: "test", own: flow::VERSION, peer: of } if of == peer),
            "{refused}"
        );
    }
}

#[test]
fn take_reaps_sends_that_are_complete() {
    let setup = Setup::new();
    let send = || setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    [send(), send()].into_iter().for_each(Pending::detach);
    assert!(setup.server.handle.take().is_none());
    setup.sent();
    assert!(setup.server.handle.take().is_some());
}

#[test]
fn completions_of_a_removed_peer_post_their_receives_again() {
    let mut setup = Setup::new();
    setup.qp_num += 1000;
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    assert!(setup.next().is_none());
    assert_eq!(setup.plain.log().received.len(), RECEIVES as usize);
}

#[test]
fn completions_do_not_end_messages_that_wait_for_credits() {
    let mut setup = Setup::new();
    let send = |setup: &Setup| setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    let sent = [send(&setup), send(&setup)];
    (0..2).for_each(|_| setup.sent());
    sent.into_iter().for_each(|sent| assert_eq!(sent.wait().unwrap().len, 4));
    let mut queued = send(&setup);
    for wr_id in (0..64_u64).flat_map(|index| (1..4_u64).map(move |generation| generation << 32 | index)) {
        let lie = WorkCompletion { qp_num: 0xff_ffff, ..completion(wr_id, WcStatus::SUCCESS) };
        setup.plain.log().completions.push_back(lie);
    }
    assert_eq!(setup.server.handle.inner.hub.poll(usize::MAX), 3 * 64);
    assert!(queued.wait_timeout(Duration::ZERO).is_none());
    setup.credits += 1;
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Credit as u32, 0);
    assert!(setup.next().is_none());
    setup.sent();
    assert_eq!(queued.wait().unwrap().len, 4);
}

#[test]
fn write_with_immediate_is_no_message() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    setup.plain.log().completions.back_mut().unwrap().opcode = WcOpcode::RECV_RDMA_WITH_IMM;
    assert!(setup.failure().to_string().contains("violated the flow control protocol"));
}

#[test]
fn refused_doorbell_of_a_posted_message_ends_the_connection() {
    let mut setup = Setup::new();
    let refused = IoctlError::new("PostSend", Errno::NOMEM);
    setup.plain.log().refusals.push_back(DoorbellError::Posted(refused));
    let pending = setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    assert_eq!(setup.failure().errno(), Some(Errno::NOMEM));
    assert_eq!(setup.plain.log().states, [crate::qp::QpState::ERR]);
    drop(pending);
}

#[test]
fn every_waiter_of_a_shutdown_is_woken() {
    let mut setup = Setup::new();
    let woken = [(); 2].map(|()| Arc::new(Woken::default()));
    assert!(setup.server.handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
    let mut shutdowns = [setup.server.handle.shutdown(), setup.server.handle.shutdown()];
    for (shutdown, woken) in shutdowns.iter_mut().zip(&woken) {
        let waker = Waker::from(Arc::clone(woken));
        assert!(Pin::new(shutdown).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    setup.sent();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::FinAck as u32, 0);
    while setup.next().is_some() {}
    assert!(woken.iter().all(|woken| woken.0.load(Ordering::Relaxed)));
}

#[test]
fn end_of_the_driver_wakes_the_reader_and_shutdowns() {
    let mut setup = Setup::new();
    let hub = Arc::clone(&setup.server.handle.inner.hub.inner);
    let guard = DriverGuard::take(&hub, DriverKind::Task).unwrap();
    let woken = [(); 2].map(|()| Arc::new(Woken::default()));
    let wakers = woken.clone().map(Waker::from);
    assert!(Pin::new(&mut setup.server.next()).poll(&mut Context::from_waker(&wakers[0])).is_pending());
    let mut shutdown = setup.server.handle.shutdown();
    assert!(Pin::new(&mut shutdown).poll(&mut Context::from_waker(&wakers[1])).is_pending());
    drop(guard);
    assert!(woken.iter().all(|woken| woken.0.load(Ordering::Relaxed)));
    let polled = Pin::new(&mut setup.server.next()).poll(&mut Context::from_waker(&wakers[0]));
    assert!(matches!(polled, Poll::Ready(Err(Error::NoDriver { .. }))));
}

#[test]
fn shutdown_ignores_a_peer_that_was_never_connected() {
    let mut setup = Setup::with(|_| ());
    assert_eq!(setup.server.handle.shutdown().wait().unwrap(), Summary::default());
    assert!(matches!(setup.next(), Some(Event::Ended)));
    let refused = setup.server.handle.open("test").unwrap_err();
    assert!(matches!(refused, Error::Closed { .. }), "{refused}");
}

#[test]
fn shutdown_wakes_the_reader_of_a_server_without_peers() {
    let mut setup = Setup::with(|_| ());
    assert!(setup.server.handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut setup.server.next()).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(setup.server.handle.shutdown());
    assert!(woken.0.load(Ordering::Relaxed));
    let polled = Pin::new(&mut setup.server.next()).poll(&mut Context::from_waker(&waker));
    assert!(matches!(polled, Poll::Ready(Ok(Event::Ended))));
}

#[test]
fn connect_after_the_shutdown_is_refused() {
    let setup = Setup::with(|_| ());
    drop(setup.server.handle.shutdown());
    let remote =
        Address { recvs: WINDOW, flow_control: flow::VERSION, ..Address::new(crate::Gid::default(), 1) };
    let refused = setup.server.handle.connect("test", setup.peer, &remote).unwrap_err();
    assert!(matches!(refused, Error::Closed { verb: "test", .. }), "{refused}");
}

#[test]
fn messages_that_wait_for_a_connection_fail_at_the_shutdown() {
    let setup = Setup::with(|_| ());
    setup.limit(SIZE as u32);
    let message = setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    let report = setup.server.handle.shutdown().wait().unwrap();
    assert_eq!((report.sent, report.failed), (0, 1));
    assert!(message.wait().unwrap_err().buffer.is_some());
}

struct Panics;

impl std::task::Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the test asked for it");
    }
}

fn panics<T>(work: impl FnOnce() -> T) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
}

impl Setup {
    /// A task with a panicking waker waits for an operation of another connection. Returns the operation,
    /// which is complete and was not polled when the function was called.
    fn panicking_task(&self) -> impl FnOnce() + use<> {
        let hub = &self.server.handle.inner.hub;
        let qp = self.plain.queue_pair(hub.pd());
        let other = hub.connection_for_test(qp, [1, 1], (0, unused()));
        let mut pending = other.post(Op::send_inline(b"x"));
        let waker = Waker::from(Arc::new(Panics));
        assert!(Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending());
        let (number, sent) = self.plain.log().sent.pop().unwrap();
        let plain = self.plain.clone();
        std::mem::forget((pending, other));
        move || {
            let done = WorkCompletion { qp_num: number, ..completion(sent, WcStatus::SUCCESS) };
            plain.log().completions.push_back(done);
        }
    }
}

#[test]
fn removed_peer_wakes_the_reader_though_another_waker_panics() {
    let test = || {
        let mut setup = Setup::new();
        assert!(setup.server.handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
        let complete = setup.panicking_task();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(Pin::new(&mut setup.server.next()).poll(&mut Context::from_waker(&waker)).is_pending());
        succeed_ioctls();
        complete();
        let (handle, peer) = (setup.server.handle().clone(), setup.peer);
        assert!(panics(|| handle.inner.remove(peer)));
        assert!(woken.0.load(Ordering::Relaxed));
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn failure_of_a_peer_is_reported_though_its_removal_panics() {
    let test = || {
        let mut setup = Setup::new();
        assert!(setup.server.handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
        let complete = setup.panicking_task();
        setup.arrives(SHARED, ControlKind::Data as u32, 5);
        setup.server.handle.inner.hub.poll(1);
        succeed_ioctls();
        complete();
        assert!(panics(|| setup.next()));
        assert!(matches!(setup.failure(), Error::UnknownCompletion { wr_id: SHARED }));
        assert!(setup.server.handle.peers().is_empty());
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn shutdown_wakes_the_reader_though_the_waker_of_a_message_panics() {
    let mut setup = Setup::with(|_| ());
    assert!(setup.server.handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
    setup.limit(SIZE as u32);
    let mut message = setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    let waker = Waker::from(Arc::new(Panics));
    assert!(Pin::new(&mut message).poll(&mut Context::from_waker(&waker)).is_pending());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut setup.server.next()).poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(panics(|| setup.server.handle.shutdown()));
    assert!(woken.0.load(Ordering::Relaxed));
    assert!(message.wait().unwrap_err().buffer.is_some());
}

#[cfg(feature = "futures")]
#[test]
fn sink_reports_a_failure_after_it_reported_that_there_is_no_driver() {
    use futures_sink::Sink;

    let setup = Setup::new();
    let hub = Arc::clone(&setup.server.handle.inner.hub.inner);
    let driver = || DriverGuard::take(&hub, DriverKind::Task).unwrap();
    let mut sink = setup.server.handle.sink(setup.peer);
    let first = driver();
    Pin::new(&mut sink).start_send((setup.server.handle.take().unwrap(), 4)).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut sink).poll_flush(&mut cx).is_pending());
    drop(first);
    let Poll::Ready(Err(failed)) = Pin::new(&mut sink).poll_flush(&mut cx) else { panic!("no driver") };
    assert!(matches!(failed.error, Error::NoDriver { .. }), "{failed}");
    let _second = driver();
    let sent = setup.plain.log().sent.remove(0).1;
    let lost = WorkCompletion { qp_num: setup.qp_num, ..completion(sent, WcStatus::RETRY_EXC_ERR) };
    setup.plain.log().completions.push_back(lost);
    let Poll::Ready(Err(failed)) = Pin::new(&mut sink).poll_flush(&mut cx) else { panic!("it failed") };
    assert!(matches!(failed.error, Error::Completion { .. }), "{failed}");
    assert!(Pin::new(&mut sink).poll_flush(&mut cx).is_ready());
}

#[test]
fn place_of_an_ended_peer_is_free_when_its_messages_are_dropped() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let message = setup.message();
    setup.server.handle.inner.remove(setup.peer);
    let full = setup.server.handle.open("test").unwrap_err();
    assert!(full.to_string().contains("all 1 peers"), "{full}");
    drop(message);
    assert!(lock(&setup.server.handle.inner.peers)[0].is_free());
    assert_eq!(setup.plain.log().received.len(), RECEIVES as usize);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn errors_name_the_options_that_were_built() {
    let pd = Plain::default().domain();
    let server = Server::options().window(0).build(&pd).unwrap_err();
    assert_eq!(server.verb(), Some("ServerOptions::build"), "{server}");
    let client = Client::options().window(0).build(&pd).unwrap_err();
    assert_eq!(client.verb(), Some("ClientOptions::build"), "{client}");
    let server = Server::options().timeout(AckTimeout::new(14).unwrap()).message_size(0).build(&pd);
    assert!(server.unwrap_err().to_string().contains("message_size is 0"));
}

#[test]
fn one_sided_operations_have_room_of_their_own_and_are_not_counted_as_messages() {
    let setup = Setup::new();
    let (handle, peer) = (setup.server.handle(), setup.peer);
    let remote = Remote { addr: 8, rkey: 1 };
    let messages = [(); 2].map(|()| handle.send(peer, setup.server.handle.take().unwrap(), ..4));
    // Two operations, which take no room from the two messages.
    let write = handle.post(peer, Op::write_inline(b"flag", remote).tag(7));
    let add = handle.post(peer, Op::write_inline(b"flag", remote).tag(8));
    let refused = handle.post(peer, Op::write_inline(b"flag", remote)).wait().unwrap_err();
    assert!(refused.is_full(), "{refused}");
    for _ in 0..3 {
        setup.sent();
    }
    let last = setup.plain.log().sent.remove(0).1;
    let failed = WorkCompletion { qp_num: setup.qp_num, ..completion(last, WcStatus::REM_ACCESS_ERR) };
    // The opcodes of the device do not matter: those of messages and of writes are exchanged.
    setup.plain.log().completions[2].opcode = WcOpcode::SEND;
    for message in [0, 1] {
        setup.plain.log().completions[message].opcode = WcOpcode::RDMA_WRITE;
    }
    setup.plain.log().completions.push_back(failed);
    messages.into_iter().for_each(|message| drop(message.wait().unwrap()));
    assert_eq!(write.wait().unwrap().tag, 7);
    let failed = add.wait().unwrap_err();
    assert_eq!((failed.tag, failed.is_recv()), (8, false));
    assert_eq!(failed.error.verb(), Some("Handle::post(Op::write)"), "{failed}");
    assert_eq!(setup.server.handle.inner.inbound.summary(), Summary { sent: 2, detached: 0, failed: 0 });
}

#[test]
fn inline_messages_immediate_data_and_options_of_messages_are_refused() {
    let setup = Setup::new();
    let (handle, peer) = (setup.server.handle(), setup.peer);
    let remote = Remote { addr: 8, rkey: 1 };
    let assert_invalid = |pending: PeerOperation<PoolBuffer, Plain>| {
        let refused = pending.wait().unwrap_err();
        assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
        assert_eq!(refused.tag, 3);
    };
    for op in [Op::send_inline(b"x"), Op::write_imm_inline(b"x", remote, 1)] {
        assert_invalid(handle.post(peer, op.tag(3)));
    }
    let of_buffer: [fn(PoolBuffer) -> Op<PoolBuffer>; 3] = [
        |buffer| Op::send_imm(buffer, ..1, 1),
        |buffer| Op::send(buffer, ..1).fenced(),
        |buffer| Op::send(buffer, ..1).unsignaled(),
    ];
    for op in of_buffer {
        assert_invalid(handle.post(peer, op(setup.server.handle.take().unwrap()).tag(3)));
    }
    assert!(setup.plain.log().sent.is_empty());
    handle.close(peer);
    let refused = handle.post(peer, Op::write_inline(b"x", remote)).wait().unwrap_err();
    assert!(matches!(refused.error, Error::Closed { .. }), "{refused}");
}

#[test]
fn reply_in_place_sends_the_buffer_of_the_message_and_posts_another_one() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let mut message = setup.message();
    message.bytes_mut().fill(9);
    let place = message.bytes().as_ptr();
    let reply = message.reply_in_place(..5);
    assert_eq!(setup.plain.log().received.len(), RECEIVES as usize, "the receive is posted again");
    setup.sent();
    let buffer = reply.wait().unwrap().into_buffer();
    assert_eq!((buffer.bytes().as_ptr(), &buffer.bytes()[..5]), (place, &[9; 5][..]));
}

impl Setup {
    /// All buffers of sends.
    fn buffers(&self) -> Vec<PoolBuffer> {
        let buffers: Vec<_> = std::iter::from_fn(|| self.server.handle.take()).collect();
        assert_eq!(buffers.len() as u32, SENDS);
        buffers
    }

    /// A task that waits for a buffer.
    fn waiter(&self) -> Waiter {
        let mut waiter = Waiter { wait: self.server.handle.acquire(), woken: Arc::default() };
        assert!(waiter.poll().is_pending());
        waiter
    }

    fn drive(&self) -> DriverGuard<PoolBuffer, Plain, Peers<Plain>> {
        DriverGuard::take(&self.server.handle.inner.hub.inner, DriverKind::Task).unwrap()
    }

    fn posted(&self) -> u32 {
        self.plain.log().received.len() as u32
    }
}

struct Waiter {
    wait: PendingBuffer<PoolBuffer, Plain>,
    woken: Arc<Woken>,
}

impl Waiter {
    fn poll(&mut self) -> Poll<Result<PoolBuffer>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        Pin::new(&mut self.wait).poll(&mut Context::from_waker(&waker))
    }

    fn is_woken(&self) -> bool {
        self.woken.0.swap(false, Ordering::Relaxed)
    }

    fn buffer(&mut self) -> PoolBuffer {
        match self.poll() {
            Poll::Ready(buffer) => buffer.unwrap(),
            Poll::Pending => panic!("a buffer"),
        }
    }

    /// The reason of the error with which the wait ends.
    fn end(&mut self) -> &'static str {
        match self.poll() {
            Poll::Ready(Err(Error::Closed { verb: "Handle::acquire", reason })) => reason,
            other => panic!("the end, not {other:?}"),
        }
    }
}

#[test]
fn buffer_of_a_message_without_a_spare_one_posts_its_receive_when_dropped() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let message = setup.message();
    let mut buffers = setup.buffers();
    let buffer = message.into_pool_buffer();
    assert_eq!((buffer.len(), setup.posted()), (SIZE, RECEIVES - 1));
    // The buffer of a send does not become that of the receive.
    buffers.pop();
    assert_eq!(setup.posted(), RECEIVES - 1);
    assert!(setup.plain.log().sent.is_empty(), "no credit");
    drop(buffer);
    assert_eq!(setup.posted(), RECEIVES);
    assert_eq!(setup.plain.log().sent.len(), 1, "the credit");
    let free: Vec<_> = std::iter::from_fn(|| setup.server.handle.take()).collect();
    assert_eq!(free.len(), 1);
}

#[test]
fn message_posts_its_receive_though_a_waker_panics_while_its_buffer_is_taken() {
    let mut setup = Setup::new();
    let _driver = setup.drive();
    let complete = setup.panicking_task();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let message = setup.message();
    let _buffers = setup.buffers();
    complete();
    assert!(panics(|| message.into_pool_buffer()));
    assert_eq!(setup.posted(), RECEIVES);
    assert_eq!(setup.plain.log().sent.len(), 1, "the credit");
}

#[test]
fn reply_in_place_needs_no_other_buffer_and_is_not_delayed_by_waits() {
    let mut setup = Setup::new();
    let _driver = setup.drive();
    let mut buffers = setup.buffers();
    let mut waiter = setup.waiter();
    for _ in 0..3 {
        let receive = setup.receive();
        setup.arrives(receive, ControlKind::Data as u32, 5);
        setup.message().reply_in_place(..5).detach();
        assert_eq!((setup.posted(), setup.plain.log().sent.len()), (RECEIVES - 1, 1), "the reply");
        setup.credits += 1;
        setup.sent();
        assert!(setup.next().is_none());
        assert_eq!(setup.posted(), RECEIVES, "the receive is posted before the task gets a buffer");
        // The credit of the message.
        setup.sent();
        assert!(setup.next().is_none());
        assert!(!waiter.is_woken() && waiter.poll().is_pending());
    }
    buffers.pop();
    assert!(waiter.is_woken());
    drop(waiter.buffer());
    assert_eq!(setup.posted(), RECEIVES);
}

#[test]
fn receives_on_loan_leave_buffers_to_waits() {
    let mut setup = Setup::new();
    let _driver = setup.drive();
    let mut buffers = setup.buffers();
    let mut waiters = [setup.waiter(), setup.waiter()];
    let mut lent = Vec::new();
    for _ in 0..WINDOW {
        let receive = setup.receive();
        setup.arrives(receive, ControlKind::Data as u32, 5);
        lent.push(setup.message().into_pool_buffer());
    }
    for waiter in &mut waiters {
        buffers.pop();
        assert!(waiter.is_woken());
        buffers.insert(0, waiter.buffer());
    }
    assert_eq!(setup.posted(), RECEIVES - WINDOW);
    drop(lent);
    assert_eq!(setup.posted(), RECEIVES);
    assert!(setup.server.handle.take().is_none());
}

#[test]
fn buffer_on_loan_of_an_ended_peer_posts_its_receive_when_dropped() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let message = setup.message();
    let _buffers = setup.buffers();
    let buffer = message.into_pool_buffer();
    setup.server.handle.inner.remove(setup.peer);
    assert!(!lock(&setup.server.handle.inner.peers)[0].is_free());
    drop(buffer);
    assert!(lock(&setup.server.handle.inner.peers)[0].is_free());
    assert_eq!(setup.posted(), RECEIVES);
}

#[test]
fn buffer_on_loan_outlives_its_server() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let message = setup.message();
    drop(setup.buffers().into_iter().map(std::mem::forget).collect::<Vec<_>>());
    let pool = setup.server.handle.inner.inbound.pool.clone();
    let mut buffer = message.into_pool_buffer();
    drop(setup);
    buffer.bytes_mut().fill(3);
    assert!(pool.take().is_none());
    drop(buffer);
    assert_eq!(pool.take().unwrap().bytes(), [3; SIZE]);
}

#[test]
fn free_buffer_ends_a_wait_at_once() {
    let setup = Setup::new();
    let buffer = setup.server.handle.acquire().wait().unwrap();
    let mut wait = setup.server.handle().acquire();
    let other = wait.wait_timeout(Duration::ZERO).unwrap().unwrap();
    assert!(wait.wait_timeout(Duration::ZERO).is_none());
    drop((buffer, other));
    // A task needs no driver then.
    drop(wait);
    let mut waiter = Waiter { wait: setup.server.handle.acquire(), woken: Arc::default() };
    drop(waiter.buffer());
}

#[test]
fn wait_reaps_the_sends_whose_buffers_it_waits_for() {
    let setup = Setup::new();
    let send = || setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    [send(), send()].into_iter().for_each(Pending::detach);
    let mut wait = setup.server.handle.acquire();
    assert!(wait.wait_timeout(Duration::ZERO).is_none());
    setup.sent();
    let buffer = wait.wait().unwrap();
    assert_eq!(buffer.len(), SIZE);
    let _driver = setup.drive();
    let mut waiter = setup.waiter();
    setup.sent();
    drop(waiter.buffer());
}

#[test]
fn one_buffer_ends_one_of_two_waits_and_then_the_other() {
    let setup = Setup::new();
    let _driver = setup.drive();
    let mut buffers = setup.buffers();
    let (mut first, mut second) = (setup.waiter(), setup.waiter());
    buffers.pop();
    assert!(first.is_woken() && !second.is_woken());
    assert!(setup.server.handle.take().is_none(), "it belongs to the first wait");
    assert!(second.poll().is_pending());
    let buffer = first.buffer();
    assert!(!second.is_woken());
    drop(buffer);
    assert!(second.is_woken());
    drop(second.buffer());
    assert!(setup.server.handle.take().is_some());
}

#[test]
fn cancelled_wait_leaves_its_buffer_to_the_next_one() {
    let setup = Setup::new();
    let _driver = setup.drive();
    let mut buffers = setup.buffers();
    let (first, second) = (setup.waiter(), setup.waiter());
    buffers.pop();
    drop(first);
    assert!(second.is_woken());
    drop(second);
    assert!(setup.server.handle.take().is_some(), "no wait is left");
}

#[test]
fn buffers_of_a_dead_peer_end_the_waits() {
    let mut setup = Setup::new();
    let _driver = setup.drive();
    let send = |setup: &Setup| setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    let kept = send(&setup);
    send(&setup).detach();
    let (mut first, mut second) = (setup.waiter(), setup.waiter());
    let sent: Vec<_> = setup.plain.log().sent.drain(..).collect();
    for (status, (_, wr_id)) in [WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR].into_iter().zip(sent) {
        let lost = WorkCompletion { qp_num: setup.qp_num, ..completion(wr_id, status) };
        setup.plain.log().completions.push_back(lost);
    }
    setup.failure();
    assert!(first.is_woken() && !second.is_woken(), "the detached one");
    let _buffer = first.buffer();
    assert!(second.poll().is_pending());
    drop(kept.wait().unwrap_err());
    assert!(second.is_woken());
    drop(second.buffer());
}

#[test]
fn shutdown_ends_the_waits() {
    let setup = Setup::new();
    let _driver = setup.drive();
    let mut buffers = setup.buffers();
    let (mut first, mut second) = (setup.waiter(), setup.waiter());
    buffers.pop();
    drop(setup.server.handle.shutdown());
    assert!(first.is_woken() && second.is_woken());
    assert_eq!(first.end(), "the server was shut down");
    assert_eq!(second.end(), "the server was shut down");
    // The ended waits keep neither places nor buffers.
    assert!(setup.server.handle.take().is_some());
    let ended = setup.server.handle.acquire().wait().unwrap_err();
    assert!(matches!(ended, Error::Closed { verb: "Handle::acquire", .. }), "{ended}");
}

#[test]
fn shutdown_ends_the_wait_of_a_thread() {
    let setup = Setup::new();
    let _buffers = setup.buffers();
    let handle = setup.server.handle().clone();
    let guard = DriverGuard::take(&handle.inner.hub.inner, DriverKind::Thread).unwrap();
    let waiter = std::thread::spawn(move || handle.acquire().wait().map(drop));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!waiter.is_finished());
    drop(setup.server.handle.shutdown());
    let ended = waiter.join().unwrap().unwrap_err();
    assert!(matches!(ended, Error::Closed { .. }), "{ended}");
    drop(guard);
}

/// A waker whose clone shuts the server down: a wait is registered by a clone.
fn shuts_down_when_cloned(handle: &Handle<PoolBuffer, Plain>) -> Waker {
    use std::task::{RawWaker, RawWakerVTable};

    static CALLS: RawWakerVTable = RawWakerVTable::new(
        |data| {
            // SAFETY: the handle of the test lives longer than the waker and its clones.
            drop(unsafe { &*data.cast::<Handle<PoolBuffer, Plain>>() }.shutdown());
            RawWaker::new(data, &CALLS)
        },
        |_| (),
        |_| (),
        |_| (),
    );
    // SAFETY: the functions use the handle by reference only, which any thread may do.
    unsafe { Waker::new(std::ptr::from_ref(handle).cast(), &CALLS) }
}

#[test]
fn shutdown_while_a_wait_is_registered_ends_it() {
    let setup = Setup::new();
    let _driver = setup.drive();
    let _buffers = setup.buffers();
    let mut wait = setup.server.handle.acquire();
    let waker = shuts_down_when_cloned(&setup.server.handle);
    let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker));
    assert!(matches!(polled, Poll::Ready(Err(Error::Closed { verb: "Handle::acquire", .. }))), "{polled:?}");
}

#[test]
fn wait_with_a_busy_cq_yields_and_is_polled_again() {
    let setup = Setup::new();
    let _driver = setup.drive();
    let _buffers = setup.buffers();
    let busy = || WorkCompletion { qp_num: 0xff_ffff, ..completion(0, WcStatus::SUCCESS) };
    setup.plain.log().completions.extend(std::iter::repeat_with(busy).take(10 * BATCH));
    let waiter = setup.waiter();
    assert!(!setup.plain.log().completions.is_empty(), "it yields");
    assert!(waiter.is_woken());
}

#[test]
fn drop_of_the_server_ends_the_waits() {
    let setup = Setup::new();
    let _driver = setup.drive();
    let buffers = setup.buffers();
    let mut waiter = setup.waiter();
    let (handle, server) = (setup.server.handle().clone(), setup.server);
    drop(server);
    assert!(waiter.is_woken());
    assert!(waiter.end().contains("was dropped"));
    drop(buffers);
    assert!(handle.acquire().wait().is_err());
    assert!(handle.take().is_some(), "the handle sends");
}

#[test]
fn end_of_the_driver_ends_the_polls_of_a_wait() {
    let setup = Setup::new();
    let driver = setup.drive();
    let mut buffers = setup.buffers();
    let mut waiter = setup.waiter();
    drop(driver);
    assert!(waiter.is_woken());
    assert!(matches!(waiter.poll(), Poll::Ready(Err(Error::NoDriver { verb: "Handle::acquire" }))));
    buffers.pop();
    drop(waiter.buffer());
}

#[test]
fn receives_below_the_window_of_a_peer_are_refused() {
    let pd = Plain::default().domain();
    let refused = Server::options().window(8).receives(12).build(&pd).unwrap_err();
    assert!(refused.to_string().contains("receives is 12"), "{refused}");
}

#[test]
fn failed_write_is_an_error_though_the_peer_has_acknowledged_all_messages() {
    let setup = Setup::new();
    let remote = Remote { addr: 0, rkey: 1 };
    let handle = setup.server.handle().clone();
    let write = handle.post(setup.peer, Op::write(handle.take().unwrap(), ..4, remote));
    let message = handle.send(setup.peer, handle.take().unwrap(), ..4);
    let shutdown = handle.shutdown();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::FinAck as u32, 0);
    assert_eq!(handle.inner.hub.poll(1), 1);
    // The acknowledgements of the device are lost.
    let sent: Vec<_> = setup.plain.log().sent.drain(..2).collect();
    for (status, (_, wr_id)) in [WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR].into_iter().zip(sent) {
        let lost = WorkCompletion { qp_num: setup.qp_num, ..completion(wr_id, status) };
        setup.plain.log().completions.push_back(lost);
    }
    let failed = write.wait().unwrap_err();
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{failed}");
    assert_eq!(message.wait().unwrap().len, 4, "the peer has it");
    drop(shutdown);
}

#[test]
fn message_of_an_ended_peer_posts_its_receive_again() {
    let mut setup = Setup::new();
    setup.arrives(SHARED, ControlKind::Data as u32, 5);
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    assert_eq!(setup.server.handle.inner.hub.poll(2), 2);
    assert!(matches!(setup.failure(), Error::UnknownCompletion { wr_id: SHARED }));
    assert!(setup.next().is_none(), "no message follows the end");
    assert_eq!(setup.plain.log().received.len(), RECEIVES as usize);
}

#[test]
fn messages_that_wait_for_credits_fail_with_their_peer() {
    let mut setup = Setup::new();
    let send = |setup: &Setup| setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    let sent = [send(&setup), send(&setup)];
    (0..2).for_each(|_| setup.sent());
    sent.into_iter().for_each(|sent| drop(sent.wait().unwrap()));
    let mut waiting = send(&setup);
    assert!(setup.plain.log().sent.is_empty());
    setup.arrives(SHARED, ControlKind::Data as u32, 5);
    assert!(matches!(setup.failure(), Error::UnknownCompletion { .. }));
    let failed = waiting.wait_timeout(Duration::ZERO).transpose().unwrap_err();
    assert!(failed.buffer.is_some(), "{failed}");
    let report = setup.server.handle.shutdown().wait().unwrap();
    assert_eq!((report.sent, report.failed), (2, 1));
}

#[test]
fn message_beyond_the_length_of_the_peer_is_refused() {
    let setup = Setup::new();
    setup.limit(8);
    let send = |len| setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..len);
    let refused = send(9).wait().unwrap_err();
    assert!(matches!(refused.error, Error::Limit { asked: 9, max: 8, .. }), "{refused}");
    assert!(send(8).wait_timeout(Duration::ZERO).is_none());
}

#[test]
fn reader_of_a_busy_cq_yields_and_is_polled_again() {
    let mut setup = Setup::new();
    assert!(setup.server.handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
    let busy = || WorkCompletion { qp_num: 0xff_ffff, ..completion(0, WcStatus::SUCCESS) };
    setup.plain.log().completions.extend(std::iter::repeat_with(busy).take(10 * BATCH));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut setup.server.next()).poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(!setup.plain.log().completions.is_empty(), "it yields");
    assert!(woken.0.load(Ordering::Relaxed));
}

/// Shuts a server down when it is woken.
struct ShutsDown(Handle<PoolBuffer, Plain>, AtomicBool);

impl std::task::Wake for ShutsDown {
    fn wake(self: Arc<Self>) {
        drop(self.0.shutdown());
        self.1.store(true, Ordering::Relaxed);
    }
}

#[test]
fn peer_that_is_admitted_while_the_server_is_shut_down_is_refused() {
    let test = || {
        let setup = Setup::new();
        let handle = setup.server.handle().clone();
        let hub = &handle.inner.hub;
        assert!(hub.inner.election.attach_driver(DriverKind::Task));
        let other = hub.connection_for_test(setup.plain.queue_pair(hub.pd()), [1, 1], (0, unused()));
        let mut pending = other.post(Op::send_inline(b"x"));
        let shuts = Arc::new(ShutsDown(handle.clone(), AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&shuts));
        assert!(Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending());
        succeed_ioctls();
        handle.inner.remove(setup.peer);
        let (qp_num, sent) = setup.plain.log().sent.pop().unwrap();
        let done = WorkCompletion { qp_num, ..completion(sent, WcStatus::SUCCESS) };
        setup.plain.log().completions.push_back(done);
        // The new connection reaps the completion, whose task shuts the server down.
        let refused = handle.open("test").unwrap_err();
        assert!(shuts.1.load(Ordering::Relaxed));
        assert!(matches!(refused, Error::Closed { verb: "test", .. }), "{refused}");
        assert!(handle.peers().is_empty());
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn window_of_a_peer_that_is_out_of_range_is_refused() {
    let setup = Setup::with(|_| ());
    for recvs in [0, super::flow::MAX_WINDOW + 1, u32::MAX] {
        let remote = Address { recvs, flow_control: flow::VERSION, ..Address::new(crate::Gid::default(), 1) };
        let refused = setup.server.handle.connect("test", setup.peer, &remote).unwrap_err();
        assert!(refused.to_string().contains("`recvs`"), "{refused}");
    }
}

#[test]
fn address_without_flow_control_is_refused() {
    let setup = Setup::with(|_| ());
    let endpoint = Address { recvs: WINDOW, ..Address::new(crate::Gid::default(), 1) };
    let refused = setup.server.handle.connect("test", setup.peer, &endpoint).unwrap_err();
    assert!(matches!(refused, Error::Invalid { verb: "test", .. }), "{refused}");
    assert!(refused.to_string().contains("such as that of an `Endpoint`"), "{refused}");
}

#[test]
fn peer_that_fails_after_both_ends_have_finished_is_no_failure() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Fin as u32, 0);
    assert!(matches!(setup.next(), Some(Event::Closed(_))));
    setup.server.handle.close(setup.peer);
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::FinAck as u32, 0);
    // The acknowledgement of the device for that of the peer's FIN is lost.
    let lost = setup.plain.log().sent.remove(0).1;
    let lost = WorkCompletion { qp_num: setup.qp_num, ..completion(lost, WcStatus::RETRY_EXC_ERR) };
    setup.plain.log().completions.push_back(lost);
    assert!(setup.next().is_none());
    assert!(setup.server.handle.peers().is_empty());
}

#[test]
fn failure_of_a_peer_wakes_the_shutdown() {
    let setup = Setup::new();
    let handle = setup.server.handle();
    assert!(handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
    let mut shutdown = handle.shutdown();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut shutdown).poll(&mut Context::from_waker(&waker)).is_pending());
    setup.arrives(SHARED, ControlKind::Data as u32, 5);
    handle.inner.hub.poll(1);
    assert!(woken.0.load(Ordering::Relaxed));
    assert!(Pin::new(&mut shutdown).poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn receives_of_an_srq_that_cannot_be_destroyed_are_leaked() {
    for destroyed in [false, true] {
        let test = move || {
            let setup = Setup::new();
            let pool = setup.server.handle.inner.inbound.pool.clone();
            if destroyed {
                succeed_ioctls();
            }
            drop(setup);
            let free = std::iter::from_fn(|| pool.take().map(std::mem::forget)).count();
            assert_eq!(free as u32, if destroyed { SENDS + RECEIVES } else { SENDS });
        };
        std::thread::spawn(test).join().unwrap();
    }
}

#[test]
fn completed_probe_of_a_server_permits_the_next_one() {
    let setup = Setup::new();
    let peer = setup.server.handle.inner.get(setup.peer).unwrap();
    for probes in 1..3 {
        peer.probe().unwrap();
        peer.probe().unwrap();
        assert_eq!(setup.plain.log().sent.len(), 1, "one at a time: {probes}");
        setup.sent();
        assert_eq!(setup.server.handle.inner.hub.poll(1), 1);
    }
    assert!(peer.failure().is_none());
}

#[test]
fn drain_of_a_server_without_a_reader_ends() {
    let setup = Setup::new();
    let handle = setup.server.handle.clone();
    // A message that is never read.
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    handle.inner.hub.poll(8);
    let _drain = handle.drain();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Fin as u32, 0);
    handle.inner.hub.poll(8);
    let Setup { plain, server, .. } = setup;
    drop(server);
    handle.inner.hub.poll(8);
    let is_fin = |wr_id: u64| wr_id >> 62 == 1 && wr_id & 0xf == ControlKind::Fin as u64;
    assert!(plain.log().sent.iter().any(|sent| is_fin(sent.1)), "a FIN follows");
}

#[test]
fn receive_that_is_used_often_has_no_wr_id_of_a_probe() {
    let mut setup = Setup::new();
    let inbound = Arc::clone(&setup.server.handle.inner.inbound);
    assert_eq!(setup.receive() as u32, 0);
    let last = u32::MAX >> 2;
    inbound.set_generation(0, last);
    for round in 0..3 {
        let posted = *setup.plain.log().received.last().unwrap();
        let wr_id = if round == 0 { SHARED | u64::from(last) << 32 } else { posted };
        setup.arrives(wr_id, ControlKind::Data as u32, 5);
        drop(setup.message());
        while !setup.plain.log().sent.is_empty() {
            setup.sent();
        }
        setup.server.handle.inner.hub.poll(8);
    }
}

#[test]
fn client_ends_after_its_server_or_a_failure() {
    // The server closes.
    let mut setup = Setup::new();
    setup.server.is_client = true;
    assert!(setup.next().is_none());
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Fin as u32, 0);
    assert!(matches!(setup.next(), Some(Event::Closed(_))));
    assert!(setup.next().is_none(), "the server has not acknowledged the FIN");
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::FinAck as u32, 0);
    while !setup.plain.log().sent.is_empty() {
        setup.sent();
    }
    assert!(matches!(setup.next(), Some(Event::Ended)));
    assert!(setup.server.next().wait().is_err());
    // The connection fails.
    let mut setup = Setup::new();
    setup.server.is_client = true;
    setup.server.handle.abort(setup.peer);
    setup.failure();
    assert!(matches!(setup.next(), Some(Event::Ended)));
    // A server has other peers.
    let mut setup = Setup::new();
    setup.server.handle.abort(setup.peer);
    setup.failure();
    assert!(setup.next().is_none());
}

#[test]
fn aborted_peer_ends_at_once_and_its_operations_fail() {
    let mut setup = Setup::new();
    let handle = setup.server.handle.clone();
    let sent = handle.send(setup.peer, handle.take().unwrap(), ..4);
    let wr_id = setup.plain.log().sent[0].1;
    handle.abort(setup.peer);
    assert_eq!(setup.plain.log().states, [crate::qp::QpState::ERR]);
    let flushed = WorkCompletion { qp_num: setup.qp_num, ..completion(wr_id, WcStatus::WR_FLUSH_ERR) };
    setup.plain.log().completions.push_back(flushed);
    let failed = sent.wait().unwrap_err();
    assert!(failed.buffer.is_some() && failed.to_string().contains("this side has ended"), "{failed}");
    let error = setup.failure();
    assert!(matches!(error, Error::Closed { .. }), "{error}");
    assert!(handle.peers().is_empty());
    handle.abort(setup.peer);
    assert!(setup.next().is_none(), "it has one event");
}

/// So the peer may revoke its memory when it has the FIN.
#[test]
fn fin_follows_the_reads_of_its_end() {
    let setup = Setup::new();
    let handle = setup.server.handle.clone();
    let read = handle.post(setup.peer, Op::read(handle.take().unwrap(), ..4, Remote { addr: 0, rkey: 1 }));
    handle.close(setup.peer);
    let (sent, fenced) = {
        let log = setup.plain.log();
        (log.sent.clone(), log.fenced.clone())
    };
    assert_eq!((sent.len(), fenced), (2, vec![sent[1].1]), "the FIN, not the read");
    drop(read);
}

#[test]
fn message_that_counts_as_posted_keeps_its_buffer() {
    let mut setup = Setup::new();
    let refused = IoctlError::new("PostSend", Errno::NOMEM);
    setup.plain.log().refusals.push_back(DoorbellError::Posted(refused));
    let mut pending = setup.server.handle.send(setup.peer, setup.server.handle.take().unwrap(), ..4);
    assert_eq!(setup.failure().errno(), Some(Errno::NOMEM));
    assert!(pending.wait_timeout(Duration::ZERO).is_none(), "the device may read the buffer");
}

#[test]
fn failed_receive_is_posted_again() {
    let mut setup = Setup::new();
    let failed = completion(setup.receive(), WcStatus::LOC_LEN_ERR);
    setup.plain.log().completions.push_back(WorkCompletion { qp_num: setup.qp_num, ..failed });
    let failure = setup.failure();
    assert!(matches!(failure, Error::Completion { status: WcStatus::LOC_LEN_ERR, .. }), "{failure}");
    let receives = setup.plain.log().received.len();
    assert_eq!(receives, RECEIVES as usize);
}

#[test]
fn event_wakes_the_last_task_that_polled() {
    let mut setup = Setup::new();
    let hub = Arc::clone(&setup.server.handle.inner.hub.inner);
    assert!(hub.election.attach_driver(DriverKind::Task));
    let woken = [(); 2].map(|()| Arc::new(Woken::default()));
    for waker in woken.clone().map(Waker::from) {
        assert!(Pin::new(&mut setup.server.next()).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    hub.poll(BATCH);
    assert_eq!(woken.map(|woken| woken.0.load(Ordering::Relaxed)), [false, true]);
}

#[test]
fn receive_of_a_message_is_posted_before_its_credit() {
    let mut setup = Setup::new();
    let receive = setup.receive();
    setup.arrives(receive, ControlKind::Data as u32, 5);
    let message = setup.message();
    let (plain, credit) = (setup.plain.clone(), std::sync::mpsc::channel());
    setup.plain.log().pushed =
        crate::testing::Hook(Some(Arc::new(move |_| credit.0.send(plain.log().received.len()).unwrap())));
    drop(message);
    setup.plain.log().pushed = crate::testing::Hook(None);
    assert_eq!(credit.1.iter().collect::<Vec<_>>(), [RECEIVES as usize]);
}

#[test]
fn shutdown_with_a_busy_cq_yields_and_is_polled_again() {
    let setup = Setup::new();
    assert!(setup.server.handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
    let busy = || WorkCompletion { qp_num: 0xff_ffff, ..completion(0, WcStatus::SUCCESS) };
    setup.plain.log().completions.extend(std::iter::repeat_with(busy).take(10 * BATCH));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut shutdown = setup.server.handle.shutdown();
    assert!(Pin::new(&mut shutdown).poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(!setup.plain.log().completions.is_empty(), "it yields");
    assert!(woken.0.load(Ordering::Relaxed));
}

#[test]
fn removal_of_the_device_ends_messages_and_wakes_the_waits_for_buffers() {
    let test = || {
        // One credit.
        let mut setup = Setup::with(|flow| flow.connected(1));
        let handle = setup.server.handle.clone();
        assert!(handle.inner.hub.inner.election.attach_driver(DriverKind::Task));
        let send = |len| handle.send(setup.peer, handle.take().unwrap(), ..len);
        let [sent, waits] = [4, 5].map(send);
        let (mut buffer, woken) = (handle.acquire(), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        assert!(Pin::new(&mut buffer).poll(&mut Context::from_waker(&waker)).is_pending());
        succeed_ioctls();
        assert!(handle.inner.hub.remove_for_test());
        assert!(woken.0.load(Ordering::Relaxed));
        for pending in [sent, waits] {
            let failed = pending.wait().unwrap_err();
            assert!(
                matches!(failed.error, Error::DeviceRemoved { .. }) && failed.buffer.is_some(),
                "{failed}"
            );
        }
        let failure = setup.failure();
        assert!(matches!(failure, Error::DeviceRemoved { .. }), "{failure}");
    };
    std::thread::spawn(test).join().unwrap();
}
