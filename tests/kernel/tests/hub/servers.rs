use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bareverbs::cq::CqInit;
use bareverbs::qp::{ConnectAttr, Operation, Payload, QpInit, Rc, RecvRequest, SendFlags, SendRequest};
use bareverbs::server::{Client, Event, PeerId, PeerOperation, Server, ServerOptions, Summary};
use bareverbs::srq::SrqInit;
use bareverbs::values::{AckTimeout, RetryCount};
use bareverbs::{Access, Buffer, Endpoint, Error, Op, Outcome, Pd, PoolBuffer, RegionMut, Remote, WcStatus};
use bareverbs_kernel_tests::loopback::domain;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, cm, device, kernel_test};
use futures_core::Stream;
use futures_sink::Sink;
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connections::seed_of;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Retries that end within a second.
fn impatient() -> (AckTimeout, RetryCount) {
    (AckTimeout::new(14).unwrap(), RetryCount::new(3).unwrap())
}

pub(crate) fn server(pd: &Pd, peers: u32) -> Server {
    server_with(pd, peers, |options| options)
}

fn server_with(pd: &Pd, peers: u32, change: impl FnOnce(ServerOptions) -> ServerOptions) -> Server {
    let options = Server::options()
        .peers(peers)
        .window(4)
        .sends(4)
        .message_size(64)
        .timeout(impatient().0)
        .retry_cnt(impatient().1);
    change(options).build(pd).unwrap()
}

pub(crate) fn client(pd: &Pd, server: &Server) -> (Client, PeerId) {
    let options =
        Client::options().window(4).sends(4).message_size(64).timeout(impatient().0).retry_cnt(impatient().1);
    let client = options.build(pd).unwrap();
    let peer = cm::admit(server.handle(), &client);
    (client, peer)
}

/// Fills a buffer with 64 bytes made from `seed`.
fn fill(mut buffer: PoolBuffer, seed: u64) -> PoolBuffer {
    for (at, word) in (0..).zip(buffer.bytes_mut().chunks_mut(8)) {
        word.copy_from_slice(&(seed.rotate_left(at * 7) ^ u64::from(at)).to_le_bytes());
    }
    buffer
}

async fn echo(mut server: Server, mut clients: usize) -> Summary {
    let mut shutdown = None;
    loop {
        match timeout(TIMEOUT, server.next()).await.unwrap().unwrap() {
            Event::Message(message) => {
                let answer = fill(server.handle().take().unwrap(), seed_of(message.bytes()));
                drop(timeout(TIMEOUT, message.reply(answer, ..)).await.unwrap().unwrap());
            }
            Event::Closed(_) => {
                clients -= 1;
                if clients == 0 {
                    shutdown = Some(server.handle().shutdown());
                }
            }
            Event::Ended => break,
            other => panic!("{other:?}"),
        }
    }
    timeout(TIMEOUT, shutdown.unwrap()).await.unwrap().unwrap()
}

async fn ask(mut client: Client, number: u64, rounds: u64) {
    let (mut sent, mut received) = (0, 0);
    while received < rounds {
        // As many questions at a time as there are buffers.
        while sent < rounds && sent - received < 4 {
            // An answer may come before the completion of its question.
            let Some(buffer) = client.take() else { break };
            client.send(fill(buffer, number << 32 | sent), ..).detach();
            sent += 1;
        }
        if sent == received {
            tokio::task::yield_now().await;
            continue;
        }
        match timeout(TIMEOUT, client.next()).await.unwrap().unwrap() {
            Event::Message(answer) => assert_eq!(seed_of(answer.bytes()), number << 32 | received),
            other => panic!("{other:?}"),
        }
        received += 1;
    }
    let report = timeout(TIMEOUT, client.shutdown()).await.unwrap().unwrap();
    assert_eq!((report.sent, report.failed), (rounds, 0));
    assert!(matches!(timeout(TIMEOUT, client.next()).await.unwrap().unwrap(), Event::Closed(_)));
    assert!(matches!(timeout(TIMEOUT, client.next()).await.unwrap().unwrap(), Event::Ended));
}

#[kernel_test]
fn ten_clients_ask_a_server_on_tokio() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let pd = domain();
            let server = server(&pd, 10);
            tokio::spawn(server.handle().drive(bareverbs::runtime::Tokio).unwrap());
            let mut tasks = Vec::new();
            for number in 0..10 {
                let (client, _) = client(&pd, &server);
                tokio::spawn(client.handle().drive(bareverbs::runtime::Tokio).unwrap());
                tasks.push(tokio::spawn(ask(client, number, 100)));
            }
            let report = echo(server, 10).await;
            assert_eq!((report.sent, report.failed), (1000, 0));
            for task in tasks {
                task.await.unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(20));
    });
}

#[kernel_test]
fn threads_use_a_server_without_a_driver() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server = server(&pd, 2);
        let (mut client, peer) = client(&pd, &server);
        std::thread::scope(|threads| {
            threads.spawn(move || {
                for round in 0..50 {
                    client.send(fill(client.take().unwrap(), round), ..).detach();
                    match client.next().wait().unwrap() {
                        Event::Message(answer) => assert_eq!(seed_of(answer.bytes()), round),
                        other => panic!("{other:?}"),
                    }
                }
                assert_eq!(client.shutdown().wait().unwrap().failed, 0);
                assert!(matches!(client.next().wait().unwrap(), Event::Closed(_)));
                assert!(matches!(client.next().wait().unwrap(), Event::Ended));
            });
            loop {
                match server.next().wait().unwrap() {
                    Event::Message(message) => {
                        assert_eq!(message.peer(), peer);
                        let answer = fill(server.handle().take().unwrap(), seed_of(message.bytes()));
                        message.reply(answer, ..).wait().unwrap();
                    }
                    Event::Closed(closed) => {
                        assert_eq!(closed, peer);
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        assert!(server.next().wait_timeout(Duration::from_millis(20)).is_none());
        assert_eq!(server.handle().peers(), []);
    });
}

#[kernel_test]
fn ends_that_send_without_reading_do_not_deadlock() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server = server(&pd, 1);
        let (mut client, peer) = client(&pd, &server);
        // Credits are handled while the application does not wait.
        server.handle().spawn_driver_thread().unwrap();
        client.handle().spawn_driver_thread().unwrap();
        // Windows of 4 and queues of 4: the ninth message has no place.
        let send = |round| {
            let to_client = server.handle().send(
                peer,
                fill(server.handle().take().unwrap_or_else(|| spare(&pd)), round),
                ..,
            );
            let to_server = client.send(fill(client.take().unwrap_or_else(|| spare(&pd)), round), ..);
            [to_client, to_server]
        };
        let mut waiting: Vec<PeerOperation> = Vec::new();
        let mut sent = [0_u64; 2];
        for round in 0..4 {
            for (at, pending) in send(round).into_iter().enumerate() {
                pending.wait().unwrap();
                sent[at] += 1;
            }
        }
        for round in 4..8 {
            for (at, mut pending) in send(round).into_iter().enumerate() {
                assert!(pending.wait_timeout(Duration::from_millis(1)).is_none(), "no receive is left");
                waiting.push(pending);
                sent[at] += 1;
            }
        }
        for pending in send(8) {
            let refused = pending.wait().unwrap_err();
            assert!(refused.is_full(), "{refused}");
            assert!(refused.buffer.is_some());
        }
        // Each end reads all that there is, without an order between the ends.
        for round in 0..8 {
            for event in [
                server.next().wait_timeout(TIMEOUT).transpose().unwrap(),
                client.next().wait_timeout(TIMEOUT).transpose().unwrap(),
            ] {
                match event {
                    Some(Event::Message(message)) => assert_eq!(seed_of(message.bytes()), round),
                    other => panic!("{other:?}"),
                }
            }
        }
        waiting.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
    });
}

/// A buffer of the PD that belongs to neither end.
fn spare(pd: &Pd) -> PoolBuffer {
    bareverbs::Pool::new(pd, 1, 64).unwrap().take().unwrap()
}

#[kernel_test]
fn dead_client_costs_itself_only() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server = server(&pd, 3);
        let ((dead, lost), (mut alive, peer)) = (client(&pd, &server), client(&pd, &server));
        dead.send(fill(dead.take().unwrap(), 1), ..).wait().unwrap();
        drop(dead);
        let pending = server.handle().send(lost, fill(server.handle().take().unwrap(), 2), ..);
        alive.send(fill(alive.take().unwrap(), 3), ..).detach();
        let (mut seeds, mut gone) = (Vec::new(), false);
        while seeds.len() < 2 || !gone {
            match server.next().wait_timeout(TIMEOUT).transpose().unwrap() {
                Some(Event::Message(message)) => seeds.push((message.peer(), seed_of(message.bytes()))),
                Some(Event::Failed(peer, error)) => {
                    assert!(matches!(error, Error::Completion { .. }), "{error}");
                    assert_eq!(peer, lost);
                    gone = true;
                }
                other => panic!("{other:?}"),
            }
        }
        seeds.sort_by_key(|(_, seed)| *seed);
        assert_eq!(seeds, [(lost, 1), (peer, 3)]);
        assert!(pending.wait().unwrap_err().buffer.is_some());
        assert!(server.handle().send(lost, server.handle().take().unwrap(), ..).wait().is_err());
        assert_eq!(server.handle().peers(), [peer]);
        // Its place is free for another one.
        let (_other, next) = client(&pd, &server);
        assert_ne!(next, lost);
        server.handle().send(peer, fill(server.handle().take().unwrap(), 4), ..).wait().unwrap();
        assert!(
            matches!(alive.next().wait().unwrap(), Event::Message(message) if seed_of(message.bytes()) == 4)
        );
    });
}

#[kernel_test]
fn keepalive_finds_a_dead_idle_client() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server = server(&pd, 2);
        let ((dead, lost), (_alive, peer)) = (client(&pd, &server), client(&pd, &server));
        drop(dead);
        for _ in 0..3 {
            server.handle().probe();
        }
        match server.next().wait_timeout(TIMEOUT).transpose().unwrap() {
            Some(Event::Failed(failed, _)) => assert_eq!(failed, lost),
            other => panic!("{other:?}"),
        }
        server.handle().probe();
        assert!(server.next().wait_timeout(Duration::from_millis(200)).is_none());
        assert_eq!(server.handle().peers(), [peer]);
    });
}

#[kernel_test]
fn clients_end_with_their_server() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server = server(&pd, 2);
        let ((mut kept, _), (mut aborted, peer)) = (client(&pd, &server), client(&pd, &server));
        let next = |end: &mut Server| end.next().wait_timeout(TIMEOUT).unwrap().unwrap();
        server.handle().abort(peer);
        let event = next(&mut server);
        assert!(matches!(event, Event::Failed(failed, Error::Closed { .. }) if failed == peer), "{event:?}");
        // The server's QP is destroyed, so the probe fails.
        aborted.handle().probe();
        let event = aborted.next().wait_timeout(TIMEOUT).unwrap().unwrap();
        assert!(matches!(event, Event::Failed(..)), "{event:?}");
        assert!(matches!(aborted.next().wait().unwrap(), Event::Ended));
        let closing = server.handle().shutdown();
        let reader = std::thread::spawn(move || {
            // Nothing else can come: it needs no shutdown of its own.
            let events = [(); 2].map(|()| kept.next().wait_timeout(TIMEOUT).unwrap().unwrap());
            assert!(matches!(events, [Event::Closed(_), Event::Ended]), "{events:?}");
        });
        let events = [(); 2].map(|()| next(&mut server));
        assert!(matches!(events, [Event::Closed(_), Event::Ended]), "{events:?}");
        assert_eq!(closing.wait().unwrap().failed, 0);
        reader.join().unwrap();
    });
}

#[kernel_test]
fn shutdown_under_traffic_loses_nothing() {
    nothing_leaks(|| {
        const CLIENTS: u64 = 4;
        let pd = domain();
        let mut server = server(&pd, CLIENTS as u32);
        let handle = server.handle().clone();
        std::thread::scope(|threads| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let (mut client, _) = client(&pd, &server);
                    threads.spawn(move || {
                        let (mut sent, mut answers, mut next) = (0, 0, 0);
                        let mut closed = false;
                        loop {
                            // Until the server closes.
                            if !closed && let Some(buffer) = client.take() {
                                let mut pending = client.send(fill(buffer, sent), ..);
                                match pending.wait_timeout(Duration::ZERO).transpose() {
                                    Err(failed) => assert!(failed.buffer.is_some(), "{failed}"),
                                    _ => sent += 1,
                                }
                            }
                            match client.next().wait_timeout(Duration::from_millis(1)).transpose().unwrap() {
                                Some(Event::Message(answer)) => {
                                    let seed = seed_of(answer.bytes());
                                    // A full queue has refused some.
                                    assert!(seed >= next, "{seed} after {next}");
                                    (answers, next) = (answers + 1, seed + 1);
                                }
                                Some(Event::Closed(_)) => {
                                    closed = true;
                                    let report = client.shutdown().wait().unwrap();
                                    assert_eq!((report.sent, report.failed), (sent, 0));
                                }
                                Some(Event::Ended) => break (sent, answers),
                                Some(other) => panic!("{other:?}"),
                                None => {}
                            }
                        }
                    })
                })
                .collect();
            let (mut received, mut answered) = (0, 0);
            let mut shutdown = None;
            loop {
                match server.next().wait().unwrap() {
                    Event::Message(message) => {
                        received += 1;
                        let seed = seed_of(message.bytes());
                        if let Some(buffer) = server.handle().take() {
                            let mut pending = message.reply(fill(buffer, seed), ..);
                            match pending.wait_timeout(Duration::ZERO).transpose() {
                                Err(refused) => assert!(refused.buffer.is_some(), "{refused}"),
                                _ => answered += 1,
                            }
                        }
                        if received == 200 {
                            shutdown = Some(handle.shutdown());
                        }
                    }
                    Event::Closed(_) => {}
                    Event::Ended => break,
                    other => panic!("{other:?}"),
                }
            }
            let report = shutdown.unwrap().wait().unwrap();
            assert_eq!((report.sent, report.failed), (answered, 0));
            let ends: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
            assert_eq!(ends.iter().map(|(sent, _)| sent).sum::<u64>(), received);
            assert_eq!(ends.iter().map(|(_, answers)| answers).sum::<u64>(), answered);
        });
    });
}

/// Asks questions, four at a time, until the server drains. Returns the number of those that the server
/// has, and of its answers.
async fn ask_until_drained(mut client: Client) -> (u64, u64) {
    let (mut asked, mut answers, mut drains, mut open) = (0, 0, false, HashSet::new());
    loop {
        if !drains && open.len() < 4 {
            let question = fill(timeout(TIMEOUT, client.acquire()).await.unwrap().unwrap(), asked);
            match timeout(TIMEOUT, client.send(question, ..)).await.unwrap() {
                Ok(_) => {
                    open.insert(asked);
                    asked += 1;
                }
                Err(failed) => {
                    assert!(matches!(failed.error, Error::Draining { .. }), "{failed}");
                    assert_eq!((failed.outcome, failed.buffer.is_some()), (Outcome::NotExecuted, true));
                    drains = true;
                }
            }
            continue;
        }
        match timeout(TIMEOUT, client.next()).await.unwrap().unwrap() {
            Event::Message(answer) => {
                assert!(open.remove(&seed_of(answer.bytes())), "an answer to each question, once");
                answers += 1;
            }
            Event::Closed(_) => break,
            other => panic!("{other:?}"),
        }
    }
    timeout(TIMEOUT, client.shutdown()).await.unwrap().unwrap();
    assert!(matches!(timeout(TIMEOUT, client.next()).await.unwrap().unwrap(), Event::Ended));
    (asked, answers)
}

/// A thread that waits for SIGINT.
struct CtrlC(Option<Pthread>);

impl CtrlC {
    fn press(&mut self) {
        if let Some(thread) = self.0.take() {
            pthread_kill(thread, Signal::SIGINT).unwrap();
        }
    }
}

impl Drop for CtrlC {
    /// The runtime waits for the thread.
    fn drop(&mut self) {
        self.press();
    }
}

/// Waits for SIGINT in a thread of its own.
fn ctrl_c() -> (impl Future<Output = ()>, CtrlC) {
    let (thread, waiting) = std::sync::mpsc::channel();
    let waits = tokio::task::spawn_blocking(move || {
        let signals = SigSet::from_iter([Signal::SIGINT]);
        signals.thread_block().unwrap();
        thread.send(pthread_self()).unwrap();
        assert_eq!(signals.wait().unwrap(), Signal::SIGINT);
    });
    (async { waits.await.unwrap() }, CtrlC(Some(waiting.recv().unwrap())))
}

#[kernel_test]
fn drain_by_ctrl_c_answers_every_request_that_was_sent() {
    nothing_leaks(|| {
        const CLIENTS: usize = 6;
        runtime().block_on(async {
            let pd = domain();
            let mut server = server_with(&pd, CLIENTS as u32, |options| options.sends(16));
            let handle = server.handle().clone();
            tokio::spawn(handle.drive(bareverbs::runtime::Tokio).unwrap());
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let (client, _) = client(&pd, &server);
                    tokio::spawn(client.handle().drive(bareverbs::runtime::Tokio).unwrap());
                    tokio::spawn(ask_until_drained(client))
                })
                .collect();
            let (stop, mut ctrl_c) = ctrl_c();
            let stops = tokio::spawn(async move {
                stop.await;
                timeout(TIMEOUT, handle.drain()).await.unwrap().unwrap()
            });
            let (mut received, mut closed, mut answers) = (0, 0, JoinSet::new());
            loop {
                match timeout(TIMEOUT, server.next()).await.unwrap().unwrap() {
                    Event::Message(message) => {
                        received += 1;
                        let handle = server.handle().clone();
                        // Each answer takes some turns.
                        answers.spawn(async move {
                            tokio::task::yield_now().await;
                            let answer = fill(handle.acquire().await.unwrap(), seed_of(message.bytes()));
                            let sent = message.reply(answer, ..);
                            drop(message);
                            drop(timeout(TIMEOUT, sent).await.unwrap().unwrap());
                        });
                    }
                    Event::Closed(_) => closed += 1,
                    Event::Ended => break,
                    other => panic!("{other:?}"),
                }
                if received == 300 {
                    ctrl_c.press();
                }
            }
            let refused =
                server.handle().admit(&Client::options().build(&pd).unwrap().address()).unwrap_err();
            assert!(matches!(refused, Error::Closed { .. }), "{refused}");
            assert_eq!(closed, CLIENTS);
            assert_eq!(answers.join_all().await.len() as u64, received);
            let summary = stops.await.unwrap();
            assert_eq!((summary.sent, summary.failed), (received, 0));
            let (mut asked, mut answered) = (0, 0);
            for client in clients {
                let (questions, answers) = client.await.unwrap();
                (asked, answered) = (asked + questions, answered + answers);
            }
            assert_eq!((asked, answered), (received, received));
            assert!(received > 300);
        });
        std::thread::sleep(Duration::from_millis(20));
    });
}

#[kernel_test]
fn two_hundred_clients_ask_one_server() {
    nothing_leaks(|| {
        const CLIENTS: u64 = 200;
        let pd = domain();
        let options = Server::options().peers(CLIENTS as u32).window(1).sends(1).message_size(64);
        let mut server: Server = options.timeout(impatient().0).retry_cnt(impatient().1).build(&pd).unwrap();
        let options = Client::options()
            .window(1)
            .sends(1)
            .message_size(64)
            .timeout(impatient().0)
            .retry_cnt(impatient().1);
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let client = options.build(&pd).unwrap();
            cm::admit(server.handle(), &client);
            client.send(fill(client.take().unwrap(), number), ..).detach();
            clients.push(client);
        }
        let mut seen = HashSet::new();
        while seen.len() < CLIENTS as usize {
            match server.next().wait_timeout(TIMEOUT).transpose().unwrap() {
                Some(Event::Message(message)) => {
                    let seed = seed_of(message.bytes());
                    assert!(seen.insert(seed));
                    message.reply(fill(server.handle().take().unwrap(), seed), ..).detach();
                }
                other => panic!("{other:?}"),
            }
        }
        for (number, mut client) in (0..).zip(clients) {
            match client.next().wait_timeout(TIMEOUT).transpose().unwrap() {
                Some(Event::Message(message)) => assert_eq!(seed_of(message.bytes()), number),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[kernel_test]
fn full_server_and_foreign_addresses_are_refused() {
    nothing_leaks(|| {
        let pd = domain();
        let server = server(&pd, 1);
        let other = Client::options().message_size(64).build(&pd).unwrap();
        let own = other.address().flow_control;
        for version in [own - 1, own + 1] {
            let mut address = other.address();
            address.flow_control = version;
            let refused =
                [server.handle().admit(&address).unwrap_err(), other.connect(&address).unwrap_err()];
            for refused in refused {
                assert!(
                    matches!(refused, Error::FlowControlVersion { peer, .. } if peer == version),
                    "{refused}"
                );
            }
        }
        // They take no place.
        let (_client, _) = client(&pd, &server);
        let full = server.handle().admit(&other.address()).unwrap_err();
        assert!(full.to_string().contains("all 1 peers"), "{full}");
        let mut foreign = other.address();
        foreign.recvs = 0;
        let refused = other.connect(&foreign).unwrap_err();
        assert!(refused.to_string().contains("`recvs` of the address is 0"), "{refused}");
        let mut endpoint: Endpoint = Endpoint::new(&pd, 1, 1).unwrap();
        let refused = other.connect(&endpoint.address()).unwrap_err();
        assert!(refused.to_string().contains("such as that of an `Endpoint`"), "{refused}");
        let refused = endpoint.connect(&other.address()).unwrap_err();
        assert!(refused.to_string().contains("that of a `Server` or `Client`"), "{refused}");
        for (options, name) in [
            (Server::options().peers(0), "peers"),
            (Server::options().window(0), "window"),
            (Server::options().sends(0), "sends"),
        ] {
            let refused = options.build(&pd).unwrap_err();
            assert!(refused.to_string().contains(name), "{refused}");
        }
        let refused = Server::options().peers(100_000).window(1000).build(&pd).unwrap_err();
        // On iWARP a message that finds no receive ends its connection, so the SRQ has to hold them all.
        let is_invalid = device::is_iwarp() && matches!(refused, Error::Invalid { .. });
        assert!(is_invalid || matches!(refused, Error::Limit { .. }), "{refused:?}");
    });
}

#[kernel_test]
fn message_longer_than_the_peers_buffers_is_refused() {
    nothing_leaks(|| {
        let pd = domain();
        let server = server(&pd, 1);
        let options = Client::options().message_size(128).timeout(impatient().0).retry_cnt(impatient().1);
        let client = options.build(&pd).unwrap();
        cm::admit(server.handle(), &client);
        let refused = client.send(client.take().unwrap(), ..65).wait().unwrap_err();
        assert!(matches!(refused.error, Error::Limit { asked: 65, max: 64, .. }), "{refused}");
        client.send(refused.buffer.unwrap(), ..64).wait().unwrap();
    });
}

#[kernel_test]
fn messages_flow_through_a_sink_and_a_stream() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let pd = domain();
            let mut server = server(&pd, 1);
            let (client, _) = client(&pd, &server);
            let drivers = [server.handle(), client.handle()]
                .map(|handle| tokio::spawn(handle.drive(bareverbs::runtime::Tokio).unwrap()));
            let (peer, handle) = (client.id(), client.handle());
            let mut sink = handle.sink(peer);
            let sends = async {
                for seed in 0..50 {
                    poll_fn(|cx| Pin::new(&mut sink).poll_ready(cx)).await.unwrap();
                    let buffer = client.take().expect("a buffer for each message on its way");
                    Pin::new(&mut sink).start_send((fill(buffer, seed), 64)).unwrap();
                }
                poll_fn(|cx| Pin::new(&mut sink).poll_close(cx)).await.unwrap();
            };
            let receives = async {
                let mut seed = 0;
                loop {
                    let event = poll_fn(|cx| Pin::new(&mut server).poll_next(cx));
                    match timeout(TIMEOUT, event).await.unwrap().unwrap().unwrap() {
                        Event::Message(message) => assert_eq!(seed_of(message.bytes()), seed),
                        Event::Closed(_) => break seed,
                        other => panic!("{other:?}"),
                    }
                    seed += 1;
                }
            };
            assert_eq!(tokio::join!(sends, receives).1, 50);
            drop((sink, server, client));
            for driver in drivers {
                timeout(TIMEOUT, driver).await.unwrap().unwrap().unwrap();
            }
        });
    });
}

/// The IB specification permits it. Soft-RoCE of the kernel looks keys of an SRQ's receives up in the PD
/// of the QP.
#[kernel_test]
fn qp_uses_an_srq_of_another_pd() {
    nothing_leaks(|| {
        let context = domain().context().clone();
        let (own, other) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
        let cq = context.create_cq(&CqInit::new(16)).unwrap();
        let mut srq = other.create_srq(&SrqInit::new(4)).unwrap();
        let memory = other.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
        let sge = memory.sge(..).unwrap();
        // SAFETY: the memory is kept until the QPs and the SRQ are destroyed.
        unsafe { srq.post_recv(&[RecvRequest { wr_id: 1, sges: &[sge] }]) }.unwrap();
        let init = QpInit { srq: Some(&srq), ..QpInit::new(&cq, &cq) };
        let mut receiver = own.create_qp::<Rc>(&init).unwrap();
        let mut sender = own.create_qp::<Rc>(&QpInit::new(&cq, &cq)).unwrap();
        let gid = own.context().default_gid(1).unwrap().index;
        let (timeout, retry_cnt) = impatient();
        let access = Access::REMOTE_WRITE;
        let attr = ConnectAttr { timeout, retry_cnt, access, ..ConnectAttr::new(1, gid) };
        let addresses = [&sender, &receiver].map(|qp| qp.address(attr.port, attr.gid_index).unwrap());
        let addresses = cm::introduce(addresses[0], addresses[1]);
        sender.connect(&addresses[0], &addresses[1], &attr).unwrap();
        receiver.connect(&addresses[1], &addresses[0], &attr).unwrap();
        let payload = Payload::Inline(&[b"through"]);
        let request =
            SendRequest { wr_id: 3, operation: Operation::Send, flags: SendFlags::SIGNALED, payload };
        // SAFETY: the request is inline.
        unsafe { sender.post_send(&[request]) }.unwrap();
        let (mut cq, begin) = (cq, std::time::Instant::now());
        let mut statuses = std::collections::HashMap::new();
        while statuses.len() < 2 {
            assert!(begin.elapsed() < TIMEOUT, "{statuses:?}");
            if let Some(completion) = cq.poll_one() {
                statuses.insert(completion.wr_id, completion.status);
            }
        }
        let expected = match device::is_soft_roce() {
            true => WcStatus::LOC_QP_OP_ERR,
            false => WcStatus::SUCCESS,
        };
        assert_eq!(statuses[&1], expected, "{statuses:?}");
        drop((sender, receiver, srq, memory));
    });
}

#[kernel_test(device::atomics)]
fn server_accesses_memory_of_its_client() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server = server_with(&pd, 1, |options| options.inline(8).operations(2));
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let options = Client::options().window(4).sends(4).message_size(64).access(all);
        let client = options.build(&pd).unwrap();
        let peer = cm::admit(server.handle(), &client);
        let exposed = RegionMut::register(&pd, Buffer::zeroed(4096).unwrap()).unwrap().expose(all).unwrap();
        let remote = exposed.remote(0).unwrap();
        let at = |offset: u64| Remote { addr: remote.addr + offset, ..remote };
        let handle = server.handle().clone();
        let mut buffer = server.handle().take().unwrap();
        buffer.bytes_mut()[..5].copy_from_slice(b"hello");
        let buffer = handle.post(peer, Op::write(buffer, ..5, at(8))).wait().unwrap().into_buffer();
        let flag = handle.post(peer, Op::write_inline(&7_u64.to_ne_bytes(), remote).tag(3)).wait().unwrap();
        assert_eq!((flag.tag, exposed.load::<u64>(0).unwrap()), (3, 7));
        let buffer = handle.post(peer, Op::fetch_add(buffer, remote, 5)).wait().unwrap().into_buffer();
        assert_eq!(&buffer.bytes()[..8], &7_u64.to_ne_bytes());
        let buffer =
            handle.post(peer, Op::compare_swap(buffer, remote, 12, 40)).wait().unwrap().into_buffer();
        assert_eq!(exposed.load::<u64>(0).unwrap(), 40);
        let buffer = handle.post(peer, Op::read(buffer, ..13, remote)).wait().unwrap().into_buffer();
        assert_eq!(&buffer.bytes()[8..13], b"hello");
        // Messages go on, and an operation that the memory does not allow ends the connection.
        handle.post(peer, Op::send(buffer, ..8).tag(9)).wait().map(|done| assert_eq!(done.tag, 9)).unwrap();
        let beyond =
            handle.post(peer, Op::read(server.handle().take().unwrap(), ..8, at(4096))).wait().unwrap_err();
        assert!(beyond.buffer.is_some(), "{beyond}");
        match server.next().wait_timeout(TIMEOUT).transpose().unwrap() {
            Some(Event::Failed(failed, _)) => assert_eq!(failed, peer),
            other => panic!("{other:?}"),
        }
        drop(exposed.revoke().unwrap());
    });
}

#[kernel_test]
fn client_reads_memory_of_its_server() {
    nothing_leaks(|| {
        let pd = domain();
        let server = server_with(&pd, 1, |options| options.access(Access::REMOTE_READ));
        let (client, _) = client(&pd, &server);
        let table = RegionMut::register(&pd, Buffer::zeroed(4096).unwrap()).unwrap();
        let table = table.expose(Access::REMOTE_READ).unwrap();
        table.write(100, b"value").unwrap();
        let room = client.take().unwrap();
        let value =
            client.post(Op::read(room, ..5, table.remote(100).unwrap())).wait().unwrap().into_buffer();
        assert_eq!(&value.bytes()[..5], b"value");
        drop(table.revoke().unwrap());
    });
}

#[kernel_test]
fn message_is_echoed_in_place() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server = server(&pd, 1);
        let (mut client, _) = client(&pd, &server);
        for round in 0..40 {
            client.send(fill(client.take().unwrap(), round), ..).detach();
            let Some(Event::Message(mut message)) = server.next().wait_timeout(TIMEOUT).transpose().unwrap()
            else {
                panic!("a message")
            };
            message.bytes_mut()[63] = 99;
            message.reply_in_place(..).detach();
            let Some(Event::Message(answer)) = client.next().wait_timeout(TIMEOUT).transpose().unwrap()
            else {
                panic!("an answer")
            };
            let mut bytes = answer.bytes().to_vec();
            assert_eq!(std::mem::replace(&mut bytes[63], 0), 99);
            assert_eq!(seed_of(&bytes), round);
        }
    });
}

/// Many more windows than receives: a burst of all clients finds no receive for most messages, and
/// their devices repeat them.
#[kernel_test(device::rxe_abi)]
fn a_thousand_clients_share_few_receives() {
    const CLIENTS: u32 = 1000;
    // Each client has a channel, and threads wake by another descriptor.
    setrlimit(Resource::RLIMIT_NOFILE, 8192, 8192).unwrap();
    let pd = domain();
    let options = Server::options().peers(CLIENTS).window(8).receives(64).sends(2).operations(0);
    let mut server = options.message_size(64).build(&pd).unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let client =
                Client::options().window(1).sends(1).operations(0).message_size(64).build(&pd).unwrap();
            cm::admit(server.handle(), &client);
            client
        })
        .collect();
    let sent: Vec<_> = (0..)
        .zip(&clients)
        .map(|(number, client)| client.send(fill(client.take().unwrap(), number), ..))
        .collect();
    let mut seeds = HashSet::new();
    while seeds.len() < CLIENTS as usize {
        match server.next().wait_timeout(TIMEOUT).transpose().unwrap() {
            Some(Event::Message(message)) => assert!(seeds.insert(seed_of(message.bytes()))),
            other => panic!("{other:?}"),
        }
    }
    assert!(seeds.iter().all(|seed| *seed < u64::from(CLIENTS)));
    sent.into_iter().for_each(|message| drop(message.wait().unwrap()));
}
