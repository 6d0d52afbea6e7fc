//! Device removal while a program uses the device.

use std::fs;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bareverbs::cq::{CompChannel, CqInit};
use bareverbs::device::EventType;
use bareverbs::mr::LocalAccess;
use bareverbs::qp::{Operation, Payload, RecvRequest};
use bareverbs::server::{Client, Event, Server};
use bareverbs::srq::SrqInit;
use bareverbs::values::{AckTimeout, RnrRetry};
use bareverbs::{
    Access, AsyncEvent, Connection, Datagrams, Endpoint, EndpointOptions, Error, Failed, Hub, Op, Pd, Pool,
    PoolBuffer, Spin, WcStatus,
};
use bareverbs_kernel_tests::bus::Bus;
use bareverbs_kernel_tests::loopback::{Plan, domain, pair, region, request};
use bareverbs_kernel_tests::{TIMEOUT, cm, device, kernel_test};
use bareverbs_netlink::RdmaNetlink;
use rustix::io::Errno;

use crate::devices::restore_soft_roce;

#[kernel_test(device::unbindable)]
fn device_removal_under_traffic_is_reported() {
    let bus = Bus::new();
    let pd = domain();
    let context = pd.context().clone();
    let events = context.async_events();
    let channel: CompChannel = context.create_comp_channel().unwrap();
    let asleep = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(16) }).unwrap();
    let srq = pd.create_srq(&SrqInit::new(16)).unwrap();
    let (mut a, mut b) = pair(&pd, Plan::long_timeouts());
    let memory = region(&pd, &[7; 4096], Access::LOCAL_WRITE);
    let sges = [memory.sge(..).unwrap()];
    let turn = |a: &mut bareverbs_kernel_tests::loopback::Side,
                b: &mut bareverbs_kernel_tests::loopback::Side| {
        // Accepted or rejected, no call hangs and no request is lost.
        let _ = b.recv(&[RecvRequest { wr_id: 1, sges: &sges }]);
        let _ = a.send(&[request(2, Operation::Send, Payload::Sges(&sges))]);
        std::iter::from_fn(|| a.cq.poll_one().or_else(|| b.cq.poll_one())).take(64).count()
    };
    b.recv_into(1, 1, &sges);
    a.send(&[request(2, Operation::Send, Payload::Sges(&sges))]).unwrap();
    assert_eq!((a.ends(1), b.ends(1)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));

    let reported = thread::scope(|scope| {
        let unbinding = scope.spawn(|| bus.unbind());
        let begin = Instant::now();
        let reported = loop {
            turn(&mut a, &mut b);
            match events.try_wait().unwrap() {
                Some(reported @ AsyncEvent::Device { .. }) => break reported,
                _ => assert!(begin.elapsed() < TIMEOUT, "no DEVICE_FATAL event"),
            }
        };
        unbinding.join().unwrap();
        reported
    });
    assert_eq!(reported, AsyncEvent::Device { event: EventType::DEVICE_FATAL });

    // Each command is rejected as on a removed device.
    let io = |refused: bareverbs::Error| assert_eq!(refused.errno(), Some(Errno::IO), "{refused}");
    io(context.query_port(1).unwrap_err());
    io(context.alloc_pd().map(drop).unwrap_err());
    io(context.create_cq(&CqInit::new(1)).map(drop).unwrap_err());
    io(a.qp.query().map(drop).unwrap_err());
    io(a.go_to(bareverbs::qp::QpState::ERR).unwrap_err());
    // The queues are memory, and can still be polled.
    for _ in 0..200 {
        turn(&mut a, &mut b);
    }
    assert!(bareverbs::devices().unwrap().is_empty());
    drop((asleep, srq, a, b, memory, channel, events, pd, context));

    bus.bind();
    let pd = domain();
    let (mut a, mut b) = pair(&pd, Plan::long_timeouts());
    b.recv_into(1, 1, &[]);
    a.send(&[request(2, Operation::Send, Payload::Sges(&[]))]).unwrap();
    assert_eq!((a.ends(1), b.ends(1)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));
}

const BYTES: usize = 4096;

/// Waits on threads of their own, each with a time limit.
struct Waits {
    running: Vec<(&'static str, Receiver<()>, JoinHandle<()>)>,
}

impl Waits {
    fn new() -> Self {
        Self { running: Vec::new() }
    }

    /// Starts a wait. It must sleep, unless it polls.
    fn start(&mut self, what: &'static str, polls: bool, wait: impl FnOnce() + Send + 'static) {
        let (tell, told) = channel();
        let (ended, wait_end) = channel();
        let thread = thread::spawn(move || {
            tell.send(nix::unistd::gettid()).unwrap();
            wait();
            ended.send(()).unwrap();
        });
        let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
        let begin = Instant::now();
        while !polls && !fs::read_to_string(&stat).unwrap().contains(") S ") {
            assert!(begin.elapsed() < TIMEOUT && !thread.is_finished(), "{what} does not sleep");
        }
        self.running.push((what, wait_end, thread));
    }

    /// Expects that each wait ends.
    fn end(self) {
        for (what, ended, thread) in self.running {
            match ended.recv_timeout(TIMEOUT) {
                Ok(()) => thread.join().unwrap(),
                Err(RecvTimeoutError::Disconnected) => panic!("{what}: {:?}", thread.join()),
                Err(RecvTimeoutError::Timeout) => panic!("{what} does not end"),
            }
        }
    }
}

/// An operation that the removal has ended, with its buffer.
#[track_caller]
fn removed<T>(ended: Result<T, Failed<PoolBuffer>>) {
    let failed = ended.err().expect("the device was removed");
    assert!(matches!(failed.error, Error::DeviceRemoved { .. }), "{failed}");
    assert!(failed.is_operation() && failed.buffer.is_some(), "{failed:?}");
}

fn take(pool: &Pool) -> PoolBuffer {
    pool.take().expect("a free buffer")
}

/// Retries that last longer than the removal, and no probes: the link goes down before the device does,
/// and requests must not fail for that reason.
fn patient() -> EndpointOptions {
    let options = Endpoint::options().sends(4).recvs(4).keepalive(None);
    options.rnr_retry(RnrRetry::INFINITE).timeout(AckTimeout::new(24).unwrap())
}

/// Two connected endpoints. The peer has no receive, so sends stay outstanding.
fn endpoints(pd: &Pd, spin: Spin) -> (Endpoint<PoolBuffer>, Endpoint<PoolBuffer>) {
    let options = patient().spin(spin);
    let [mut a, mut b] = [(); 2].map(|()| options.build::<PoolBuffer, _>(pd).unwrap());
    let [to_a, to_b] = cm::introduce(a.address(), b.address());
    a.connect(&to_b).unwrap();
    b.connect(&to_a).unwrap();
    (a, b)
}

fn hub_pair(pd: &Pd) -> (Hub, [Connection; 2]) {
    let hub = Hub::new(pd, 32).unwrap();
    let [a, b] = [(); 2].map(|()| hub.connection_with(&patient()).unwrap());
    let [to_a, to_b] = cm::introduce(a.address(), b.address());
    a.connect(&to_b).unwrap();
    b.connect(&to_a).unwrap();
    (hub, [a, b])
}

fn tokio() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[kernel_test(device::unbindable)]
fn device_removal_ends_each_wait_and_returns_the_buffers() {
    let bus = Bus::new();
    let pd = domain();
    let pool = Pool::new(&pd, 64, BYTES).unwrap();
    let mut waits = Waits::new();
    let mut peers = Vec::new();
    for (what, spin) in [
        ("wait of an endpoint", Spin::Never),
        ("wait of an endpoint that polls for a while", Spin::default()),
        ("wait of an endpoint that polls", Spin::Always),
    ] {
        let (mut endpoint, peer) = endpoints(&pd, spin);
        endpoint.post(Op::recv(take(&pool))).unwrap();
        endpoint.post(Op::send(take(&pool), ..)).unwrap();
        peers.push(peer);
        waits.start(what, spin == Spin::Always, move || {
            removed(endpoint.next().wait());
            removed(endpoint.next().wait());
            let idle = endpoint.next().wait().unwrap_err();
            assert!(matches!(idle.error, Error::Invalid { .. }), "{idle}");
            let armed = endpoint.arm().unwrap_err();
            assert!(matches!(armed, Error::DeviceRemoved { .. }), "{armed}");
            assert_eq!(endpoint.close().wait_timeout(TIMEOUT).unwrap().unwrap().len(), 0);
        });
    }

    let (mut endpoint, peer) = endpoints(&pd, Spin::Never);
    peers.push(peer);
    let domain = pd.clone();
    waits.start("scope", false, move || {
        // No sends: the kernel deregisters the memory before it destroys the QP, which would fail them.
        let mut received = vec![0_u8; BYTES];
        let mut received = domain.register_borrowed(&mut received, LocalAccess::ReadWrite).unwrap();
        let ended = endpoint.scope(|scope| scope.post(Op::recv(&mut received).tag(1)).unwrap());
        assert!(matches!(ended, Err(Error::DeviceRemoved { .. })), "{ended:?}");
        let failed = endpoint.poll().unwrap().unwrap_err();
        assert!(matches!(failed.error, Error::DeviceRemoved { .. }) && failed.tag == 1, "{failed}");
    });

    let (mut endpoint, peer) = endpoints(&pd, Spin::Never);
    peers.push(peer);
    endpoint.post(Op::send(take(&pool), ..)).unwrap();
    waits.start("close", false, move || {
        for ended in endpoint.close().wait_timeout(2 * TIMEOUT).unwrap().unwrap() {
            removed(ended);
        }
    });

    let mut datagrams: Datagrams = Datagrams::options().build(&pd).unwrap();
    datagrams.post(Op::recv(take(&pool))).unwrap();
    datagrams.post(Op::recv(take(&pool))).unwrap();
    waits.start("wait of datagrams", false, move || {
        removed(datagrams.next_recv().wait());
        removed(datagrams.next().wait());
    });

    for (what, drive) in [("wait of a hub", false), ("wait of a hub with a driver thread", true)] {
        let (hub, [a, b]) = hub_pair(&pd);
        if drive {
            hub.spawn_driver_thread().unwrap();
        }
        for connection in [&a, &b] {
            let (pending, detached) =
                (connection.post(Op::recv(take(&pool))), connection.post(Op::recv(take(&pool))));
            detached.detach();
            let connection = connection.clone();
            waits.start(what, false, move || {
                removed(pending.wait());
                let failure = connection.failure();
                assert!(matches!(failure, Some(Error::DeviceRemoved { .. })), "{failure:?}");
            });
        }
    }

    let options = || Server::options().peers(2).window(4).sends(4).message_size(64).keepalive(None);
    let mut server: Server = options().build(&pd).unwrap();
    let mut client: Client =
        Client::options().window(4).sends(4).message_size(64).keepalive(None).build(&pd).unwrap();
    cm::admit(server.handle(), &client);
    waits.start("wait of a server", false, move || {
        let event = server.next().wait();
        assert!(matches!(event, Ok(Event::Failed(_, Error::DeviceRemoved { .. }))), "{event:?}");
        let ended = server.next().wait();
        assert!(matches!(ended, Err(Error::DeviceRemoved { .. })), "{ended:?}");
    });
    waits.start("wait of a client", false, move || {
        let event = client.next().wait();
        assert!(matches!(event, Ok(Event::Failed(_, Error::DeviceRemoved { .. }))), "{event:?}");
    });

    let (mut endpoint, peer) = endpoints(&pd, Spin::default());
    peers.push(peer);
    endpoint.post(Op::recv(take(&pool))).unwrap();
    let (hub, connections) = hub_pair(&pd);
    let pending = connections[0].post(Op::recv(take(&pool)));
    let mut channel = pd.context().create_comp_channel().unwrap();
    waits.start("awaits of tokio", false, move || {
        tokio().block_on(async {
            let driver = tokio::spawn(hub.drive(bareverbs::runtime::Tokio).unwrap());
            endpoint.attach(bareverbs::runtime::Tokio).unwrap();
            channel.attach(bareverbs::runtime::Tokio).unwrap();
            let (ended, of_hub, event) = tokio::join!(endpoint.next(), pending, channel.next());
            removed(ended);
            removed(of_hub);
            assert_eq!(event.unwrap_err().errno(), Some(Errno::IO));
            let ended = driver.await.unwrap();
            assert!(matches!(ended, Err(Error::DeviceRemoved { .. })), "{ended:?}");
        });
    });

    let (mut endpoint, peer) = endpoints(&pd, Spin::default());
    peers.push(peer);
    endpoint.post(Op::recv(take(&pool))).unwrap();
    waits.start("await of async-io", false, move || {
        async_io::block_on(async {
            endpoint.attach(bareverbs::runtime::AsyncIo).unwrap();
            removed(endpoint.next().await);
        });
    });

    // Dropped without a wait.
    let (mut endpoint, peer) = endpoints(&pd, Spin::Never);
    peers.push(peer);
    endpoint.post(Op::recv(take(&pool))).unwrap();
    let (hub, dropped) = hub_pair(&pd);
    let posted = dropped.each_ref().map(|connection| connection.post(Op::recv(take(&pool))));

    bus.unbind();
    waits.end();
    drop((endpoint, peers, hub, dropped, posted, connections));
    let free: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(free.len(), pool.capacity(), "each buffer came back");
    drop((free, pool, pd));
    bus.bind();
}

/// Whether programs can open the device.
fn has_node() -> bool {
    let nodes = fs::read_dir("/sys/class/infiniband_verbs").unwrap();
    // A node may vanish meanwhile.
    let names = nodes.filter_map(|node| fs::read_to_string(node.unwrap().path().join("ibdev")).ok());
    names.into_iter().any(|name| name.trim() == device::name())
}

#[kernel_test(device::soft_roce)]
fn deleted_soft_roce_works_until_it_is_closed() {
    let until = |what: &str, holds: &mut dyn FnMut() -> bool| {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < TIMEOUT, "{what}");
            thread::yield_now();
        }
    };
    let netdev = device::netdev();
    let pd = domain();
    let pool = Pool::new(&pd, 8, BYTES).unwrap();
    let (mut a, mut b) = endpoints(&pd, Spin::Never);
    let (hub, connections) = hub_pair(&pd);
    let pending = connections[0].post(Op::recv(take(&pool)));
    // A process that deletes a device which it has open itself would wait for ever.
    let mut deletion = Command::new("rdma").args(["link", "delete", device::name()]).spawn().unwrap();
    until("the node stays", &mut || !has_node());

    for _ in 0..20 {
        b.post(Op::recv(take(&pool))).unwrap();
        a.post(Op::send(take(&pool), ..)).unwrap();
        let ended = [a.next().wait(), b.next().wait()].map(|ended| ended.unwrap().into_buffer().len());
        assert_eq!(ended, [BYTES; 2]);
    }
    b.post(Op::recv(take(&pool))).unwrap();
    assert!(b.next().wait_timeout(Duration::from_millis(50)).is_none(), "it is no error to wait");
    let sent = connections[1].post(Op::send(take(&pool), ..));
    assert_eq!((pending.wait().unwrap().len as usize, sent.wait().is_ok()), (BYTES, true));
    assert!(deletion.try_wait().unwrap().is_none(), "it waits until the device is closed");

    // With an operation outstanding.
    drop((a, b, connections, hub));
    let free: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(free.len(), pool.capacity(), "each buffer came back");
    drop((free, pool, pd));
    until("the deletion does not end", &mut || deletion.try_wait().unwrap().is_some());
    restore_soft_roce(&mut RdmaNetlink::open().unwrap(), &netdev);
}
