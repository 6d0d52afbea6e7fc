//! A peer that is killed, with the default retries and timeouts.

use std::future::Future;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::cq::CqInit;
use bareverbs::datagram::DatagramAddress;
use bareverbs::mr::LocalAccess;
use bareverbs::qp::{ConnectAttr, GRH_BYTES, Operation, Payload, QpInit, Rc};
use bareverbs::server::{Client, Event, Server};
use bareverbs::{
    Access, Address, Buffer, Connection, Datagrams, Done, Endpoint, Error, Failed, Hub, Mr, Op, Pd, Pool,
    PoolBuffer, Remote, WcStatus,
};
use bareverbs_kernel_tests::loopback::request;
use bareverbs_kernel_tests::{child, device, kernel_test};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::pair::{TIMEOUT, open};

/// Much longer than the retries take on any device, and much shorter than a program can hang.
const SECONDS: Duration = Duration::from_secs(20);

/// The documented time after which a dead peer is noticed by an end that only receives.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A process that is killed.
struct Peer {
    process: Pid,
    to_peer: PipeWriter,
    from_peer: PipeReader,
}

impl Peer {
    /// Starts a process that makes connections one by one: `open` returns the address of the next
    /// one, and a function that connects it. All of them stay until the process is killed.
    fn start_with<T>(mut open: impl FnMut() -> (Address, T), connect: impl Fn(&mut T, &Address)) -> Self {
        Self::run(|from_parent, to_parent| {
            let mut all = Vec::new();
            loop {
                let (address, mut connection) = open();
                to_parent.write_all(&address.to_bytes()).unwrap();
                connect(&mut connection, &receive(from_parent));
                to_parent.write_all(b"!").unwrap();
                all.push(connection);
            }
        })
    }

    fn run(work: impl FnOnce(&mut PipeReader, &mut PipeWriter)) -> Self {
        let ((mut from_parent, to_peer), (from_peer, mut to_parent)) = (pipe().unwrap(), pipe().unwrap());
        let process = child::start(|| work(&mut from_parent, &mut to_parent));
        Self { process, to_peer, from_peer }
    }

    /// Starts a process with endpoints that have a posted receive each.
    fn start() -> Self {
        let mut pd = None;
        let open = || {
            let pd: &Pd = pd.get_or_insert_with(|| open().alloc_pd().unwrap());
            let mut endpoint: Endpoint<Mr<Buffer>> = Endpoint::new(pd, 1, 4).unwrap();
            endpoint.post(Op::recv(buffer(pd))).unwrap();
            (endpoint.address(), endpoint)
        };
        Self::start_with(open, |endpoint, address| endpoint.connect(address).unwrap())
    }

    /// The address of the peer's next connection.
    fn address(&mut self) -> Address {
        receive(&mut self.from_peer)
    }

    /// Sends the peer the address to connect to, and waits until it is connected.
    fn connect(&mut self, own: &Address) {
        self.to_peer.write_all(&own.to_bytes()).unwrap();
        self.from_peer.read_exact(&mut [0]).unwrap();
    }

    /// An endpoint with the default options that is connected to the peer, and has a posted receive.
    fn endpoint(&mut self, pd: &Pd) -> Endpoint<Mr<Buffer>> {
        let mut endpoint: Endpoint<Mr<Buffer>> = Endpoint::new(pd, 1, 4).unwrap();
        endpoint.connect(&self.address()).unwrap();
        self.connect(&endpoint.address());
        endpoint.post(Op::recv(buffer(pd))).unwrap();
        endpoint
    }

    fn kill(&self) {
        kill(self.process, Signal::SIGKILL).unwrap();
        waitpid(self.process, None).unwrap();
    }
}

fn receive(pipe: &mut PipeReader) -> Address {
    let mut bytes = [0; Address::LEN];
    pipe.read_exact(&mut bytes).unwrap();
    Address::from_bytes(&bytes).unwrap()
}

fn buffer(pd: &Pd) -> Mr<Buffer> {
    pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap()
}

#[kernel_test(device::between_processes, device::moves_qps)]
fn send_to_a_killed_peer_fails_within_seconds() {
    let mut peer = Peer::start();
    let pd = open().alloc_pd().unwrap();
    let context = pd.context();
    let mut cq = context.create_cq(&CqInit::new(16)).unwrap();
    let mut qp = pd.create_qp::<Rc>(&QpInit::new(&cq, &cq)).unwrap();
    let gid = context.default_gid(1).unwrap();
    let own = qp.address(1, gid.index).unwrap();
    qp.connect(&own, &peer.address(), &ConnectAttr::new(1, gid.index)).unwrap();
    peer.connect(&own);
    let mut status = |operation| {
        // SAFETY: the request names no memory.
        unsafe { qp.post_send(&[request(1, operation, Payload::Sges(&[]))]) }.unwrap();
        let begin = Instant::now();
        loop {
            match cq.poll_one() {
                Some(completion) => return completion.status,
                None => assert!(begin.elapsed() < SECONDS, "no completion"),
            }
        }
    };
    assert_eq!(status(Operation::Send), WcStatus::SUCCESS);
    peer.kill();
    assert_eq!(status(Operation::Write(Remote { addr: 0, rkey: 0 })), WcStatus::RETRY_EXC_ERR);
}

#[kernel_test(device::between_processes, device::moves_qps)]
fn endpoint_of_a_killed_peer_fails_within_seconds() {
    let mut peer = Peer::start();
    let pd = open().alloc_pd().unwrap();
    let mut endpoint: Endpoint<Mr<Buffer>> = Endpoint::new(&pd, 1, 4).unwrap();
    endpoint.connect(&peer.address()).unwrap();
    peer.connect(&endpoint.address());
    endpoint.post(Op::send(buffer(&pd), ..)).unwrap();
    assert!(endpoint.next().wait_timeout(TIMEOUT).transpose().unwrap().is_some());
    peer.kill();
    let begin = Instant::now();
    endpoint.post(Op::send(buffer(&pd), ..)).unwrap();
    let failed = endpoint.next().wait().unwrap_err();
    assert!(begin.elapsed() < SECONDS, "{:?}", begin.elapsed());
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{failed}");
}

#[kernel_test(device::between_processes, device::moves_qps)]
fn scope_of_a_killed_peer_ends_within_seconds() {
    let mut peer = Peer::start();
    let pd = open().alloc_pd().unwrap();
    let mut endpoint: Endpoint<Mr<Buffer>> = Endpoint::new(&pd, 1, 4).unwrap();
    endpoint.connect(&peer.address()).unwrap();
    peer.connect(&endpoint.address());
    let mut bytes = [0; 64];
    let region = pd.register_borrowed(&mut bytes, LocalAccess::Read).unwrap();
    endpoint.scope(|scope| scope.post(Op::send(&region, ..).tag(1)).unwrap()).unwrap();
    peer.kill();
    let begin = Instant::now();
    endpoint.scope(|scope| scope.post(Op::send(&region, ..).tag(2)).unwrap()).unwrap();
    assert!(begin.elapsed() < SECONDS, "{:?}", begin.elapsed());
    assert_eq!(endpoint.poll().unwrap().unwrap().tag, 1);
    assert_eq!(endpoint.poll().unwrap().unwrap_err().tag, 2);
}

/// The receive that was posted fails because of the probe.
fn assert_dead<B>(ended: Result<Done<B>, Failed<B>>) {
    let failed = ended.expect_err("the peer is dead");
    assert!(failed.is_recv() && failed.buffer.is_some(), "{failed}");
    assert_eq!(failed.cause, Some(WcStatus::RETRY_EXC_ERR), "{failed}");
}

/// Kills the peer while all of `waits` run, each in a thread of its own, and waits until they end.
fn kill_while(peer: &Peer, waits: Vec<Box<dyn FnOnce() + Send + '_>>) {
    let running = AtomicUsize::new(0);
    let mut begin = None;
    thread::scope(|threads| {
        let all = waits.len();
        for wait in waits {
            let running = &running;
            threads.spawn(move || {
                running.fetch_add(1, Ordering::Relaxed);
                wait();
            });
        }
        while running.load(Ordering::Relaxed) < all {
            thread::yield_now();
        }
        // They sleep, and their peers are alive for more than one interval.
        thread::sleep(Duration::from_secs(4));
        peer.kill();
        begin = Some(Instant::now());
    });
    let noticed = begin.unwrap().elapsed();
    assert!(noticed < KEEPALIVE, "{noticed:?}");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    // Keepalives need no timer of the runtime.
    tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(future)
}

#[kernel_test(device::between_processes, device::moves_qps)]
fn endpoints_that_only_receive_notice_a_killed_peer() {
    let mut peer = Peer::start();
    let pd = open().alloc_pd().unwrap();
    let [mut waits, mut limited, mut scoped, mut task, mut other] = [(); 5].map(|()| peer.endpoint(&pd));
    let waits: Vec<Box<dyn FnOnce() + Send + '_>> = vec![
        Box::new(move || assert_dead(waits.next().wait())),
        Box::new(move || {
            loop {
                match limited.next().wait_timeout(Duration::from_millis(100)).transpose() {
                    Ok(None) => {}
                    ended => break assert_dead(ended.map(|done| done.unwrap())),
                }
            }
        }),
        Box::new(|| {
            let mut bytes = [0; 64];
            let pd = scoped.qp().pd().clone();
            let mut region = pd.register_borrowed(&mut bytes, LocalAccess::ReadWrite).unwrap();
            scoped.scope(|scope| scope.post(Op::recv(&mut region).tag(7)).unwrap()).unwrap();
            assert_dead(scoped.poll().unwrap());
            assert_eq!(scoped.poll().unwrap().unwrap_err().tag, 7);
        }),
        Box::new(move || {
            block_on(async {
                task.attach(bareverbs::runtime::Tokio).unwrap();
                assert_dead(task.next().await);
            });
        }),
        Box::new(move || {
            async_io::block_on(async {
                other.attach(bareverbs::runtime::AsyncIo).unwrap();
                assert_dead(other.next().await);
            });
        }),
    ];
    kill_while(&peer, waits);
}

#[kernel_test(device::between_processes, device::moves_qps)]
fn hubs_that_only_receive_notice_a_killed_peer() {
    let mut peer = Peer::start();
    let pd = open().alloc_pd().unwrap();
    let pool = Pool::new(&pd, 4, 64).unwrap();
    let mut hubs = [(); 4].map(|()| {
        let hub: Hub<PoolBuffer> = Hub::new(&pd, 64).unwrap();
        let connection = hub.connection(1, 4).unwrap();
        connection.connect(&peer.address()).unwrap();
        peer.connect(&connection.address());
        let received = connection.post(Op::recv(pool.take().unwrap()));
        Some((hub, received))
    });
    let [threads, driven, task, other] = hubs.each_mut().map(|hub| hub.take().unwrap());
    let waits: Vec<Box<dyn FnOnce() + Send + '_>> = vec![
        Box::new(move || assert_dead(threads.1.wait())),
        Box::new(move || {
            driven.0.spawn_driver_thread().unwrap();
            assert_dead(block_on(driven.1));
        }),
        Box::new(move || {
            block_on(async {
                tokio::spawn(task.0.drive(bareverbs::runtime::Tokio).unwrap());
                assert_dead(task.1.await);
            });
        }),
        Box::new(move || {
            let driver = other.0.drive(bareverbs::runtime::AsyncIo).unwrap();
            thread::scope(|threads| {
                threads.spawn(|| async_io::block_on(driver));
                assert_dead(async_io::block_on(other.1));
                drop(other.0);
            });
        }),
    ];
    kill_while(&peer, waits);
}

fn assert_failed(event: Event) {
    match event {
        Event::Failed(_, error) => {
            assert!(matches!(error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[kernel_test(device::between_processes, device::moves_qps)]
fn server_notices_a_killed_client() {
    let mut peer = clients();
    let pd = open().alloc_pd().unwrap();
    let [mut threads, mut tasks] = [(); 2].map(|()| Server::options().build(&pd).unwrap());
    for server in [&threads, &tasks] {
        let (_, address) = server.handle().admit(&peer.address()).unwrap();
        peer.connect(&address);
    }
    let waits: Vec<Box<dyn FnOnce() + Send + '_>> = vec![
        Box::new(move || assert_failed(threads.next().wait().unwrap())),
        Box::new(move || {
            block_on(async {
                tokio::spawn(tasks.handle().drive(bareverbs::runtime::Tokio).unwrap());
                assert_failed(tasks.next().await.unwrap());
            });
        }),
    ];
    kill_while(&peer, waits);
}

#[kernel_test(device::between_processes, device::moves_qps)]
fn client_notices_a_killed_server() {
    let mut peer = serving();
    let pd = open().alloc_pd().unwrap();
    let [mut threads, mut tasks] = [(); 2].map(|()| client_of(&mut peer, &pd));
    let waits: Vec<Box<dyn FnOnce() + Send + '_>> = vec![
        Box::new(move || assert_failed(threads.next().wait().unwrap())),
        Box::new(move || {
            block_on(async {
                tokio::spawn(tasks.handle().drive(bareverbs::runtime::Tokio).unwrap());
                assert_failed(tasks.next().await.unwrap());
            });
        }),
    ];
    kill_while(&peer, waits);
}

/// Clients in a process of their own, each of which waits for messages.
fn clients() -> Peer {
    Peer::start_with(
        || {
            let client = Client::options().build(&open().alloc_pd().unwrap()).unwrap();
            (client.address(), client)
        },
        |client, address| client.connect(address).unwrap(),
    )
}

/// A process with a server that admits peers.
fn serving() -> Peer {
    Peer::run(|from_parent, to_parent| {
        let server = Server::options().build(&open().alloc_pd().unwrap()).unwrap();
        loop {
            let (_, address) = server.handle().admit(&receive(from_parent)).unwrap();
            to_parent.write_all(&address.to_bytes()).unwrap();
        }
    })
}

/// A client that is connected to the server of `peer`.
fn client_of(peer: &mut Peer, pd: &Pd) -> Client {
    let client = Client::options().build(pd).unwrap();
    peer.to_peer.write_all(&client.address().to_bytes()).unwrap();
    client.connect(&peer.address()).unwrap();
    client
}

/// The operation was posted after the peer had died, and fails within seconds.
fn assert_lost<B>(begin: Instant, ended: Result<Done<B>, Failed<B>>) {
    let failed = ended.expect_err("the peer is dead");
    assert!(begin.elapsed() < SECONDS, "{:?}", begin.elapsed());
    assert!(failed.buffer.is_some(), "{failed}");
    assert!(failed.is_peer_lost(), "{failed}");
    // Also of an operation that was flushed behind the failed one.
    let error = Error::from(failed);
    assert!(error.is_peer_lost(), "{error}");
}

#[kernel_test(device::between_processes, device::moves_qps)]
fn operations_of_a_hub_to_a_killed_peer_fail_within_seconds() {
    let mut peer = Peer::start();
    let pd = open().alloc_pd().unwrap();
    let pool = Pool::new(&pd, 16, 64).unwrap();
    let [thread, task] = [(); 2].map(|()| {
        // Without probes: the operations themselves fail.
        let hub: Hub<PoolBuffer> = Hub::new(&pd, 64).unwrap();
        let connection = hub.connection_with(&Endpoint::options().sends(4).recvs(4).keepalive(None)).unwrap();
        connection.connect(&peer.address()).unwrap();
        peer.connect(&connection.address());
        connection.post(Op::send(pool.take().unwrap(), ..)).wait().unwrap();
        (hub, connection)
    });
    peer.kill();
    let begin = Instant::now();
    let remote = Remote { addr: 0, rkey: 0 };
    let post = |(_, connection): &(Hub<PoolBuffer>, Connection<PoolBuffer>)| {
        [
            connection.post(Op::send(pool.take().unwrap(), ..)),
            connection.post(Op::write(pool.take().unwrap(), .., remote)),
            connection.post(Op::read(pool.take().unwrap(), .., remote)),
            connection.post(Op::recv(pool.take().unwrap())),
        ]
    };
    post(&thread).into_iter().for_each(|pending| assert_lost(begin, pending.wait()));
    let pending = post(&task);
    block_on(async {
        tokio::spawn(task.0.drive(bareverbs::runtime::Tokio).unwrap());
        for pending in pending {
            assert_lost(begin, pending.await);
        }
    });
}

#[kernel_test(device::between_processes, device::moves_qps)]
fn messages_to_a_killed_client_fail_and_the_server_shuts_down() {
    let mut peer = clients();
    let pd = open().alloc_pd().unwrap();
    let mut server = Server::options().build(&pd).unwrap();
    let (id, address) = server.handle().admit(&peer.address()).unwrap();
    peer.connect(&address);
    server.handle().send(id, server.handle().take().unwrap(), ..).wait().unwrap();
    peer.kill();
    let begin = Instant::now();
    let pending = server.handle().send(id, server.handle().take().unwrap(), ..);
    let closing = server.handle().shutdown();
    assert_lost(begin, pending.wait());
    assert_failed(server.next().wait().unwrap());
    assert!(matches!(server.next().wait().unwrap(), Event::Ended), "no peer is left");
    let report = closing.wait().unwrap();
    assert!(begin.elapsed() < SECONDS, "{:?}", begin.elapsed());
    assert_eq!((report.sent, report.failed), (1, 1), "{report:?}");
}

#[kernel_test(device::between_processes, device::moves_qps)]
fn messages_to_a_killed_server_fail_and_the_client_shuts_down() {
    let mut peer = serving();
    let pd = open().alloc_pd().unwrap();
    let mut client = client_of(&mut peer, &pd);
    client.send(client.take().unwrap(), ..).wait().unwrap();
    peer.kill();
    let begin = Instant::now();
    let pending = client.send(client.take().unwrap(), ..);
    let closing = client.shutdown();
    assert_lost(begin, pending.wait());
    assert_failed(client.next().wait().unwrap());
    assert!(matches!(client.next().wait().unwrap(), Event::Ended), "the server is gone");
    let report = closing.wait().unwrap();
    assert!(begin.elapsed() < SECONDS, "{:?}", begin.elapsed());
    assert_eq!((report.sent, report.failed), (1, 1), "{report:?}");
}

/// UD has no acknowledgement: sends complete, and a wait for an answer has a time limit.
#[kernel_test(device::between_processes)]
fn datagrams_to_a_killed_peer_complete_without_an_answer() {
    let mut peer = Peer::run(|_, to_parent| {
        let pd = open().alloc_pd().unwrap();
        let datagrams: Datagrams = Datagrams::options().build(&pd).unwrap();
        to_parent.write_all(&datagrams.address().to_bytes()).unwrap();
        loop {
            thread::park();
        }
    });
    let mut bytes = [0; DatagramAddress::LEN];
    peer.from_peer.read_exact(&mut bytes).unwrap();
    let pd = open().alloc_pd().unwrap();
    let mut datagrams: Datagrams = Datagrams::options().inline(8).build(&pd).unwrap();
    let to = datagrams.destination(&DatagramAddress::from_bytes(&bytes).unwrap()).wait().unwrap();
    let pool = Pool::new(&pd, 1, GRH_BYTES + 64).unwrap();
    datagrams.post(Op::recv(pool.take().unwrap())).unwrap();
    peer.kill();
    for _ in 0..3 {
        datagrams.post(Op::send_to_inline(&to, b"question")).unwrap();
        datagrams.next_send().wait().unwrap();
        assert!(datagrams.next_recv().wait_timeout(Duration::from_millis(100)).is_none());
    }
}
