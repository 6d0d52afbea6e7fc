//! Connections on iWARP, whose queue pairs the kernel moves.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::cq::CqInit;
use bareverbs::qp::{Operation, Payload, QpCap, QpInit, QpState, Rc, SendFlags, SendRequest};
use bareverbs::server::{Client, Event, Server};
use bareverbs::{
    Access, Address, Buffer, Endpoint, EndpointOptions, Errno, Gid, Hub, Mr, Op, Pd, Pool, RegionMut, Remote,
    WcOpcode,
};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::wire::{End, Impairment, Wire};
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_rdmacm::connection::{Incoming, Route};
use bareverbs_rdmacm::datagram::{DatagramError, DatagramSocket};
use bareverbs_rdmacm::event::{EstablishedParam, EventKind, RejectReason};
use bareverbs_rdmacm::{
    ConnParam, ConnectOptions, Connected, Connector, Error, Feature, IdOptions, Listener, Message, PortSpace,
};

use crate::host::*;
use crate::owned;

pub(crate) type ConnectedEndpoint = Connected<Endpoint<Mr<Buffer>>>;

pub(crate) fn listen() -> (Listener, SocketAddr) {
    let listener = Listener::bind(SocketAddr::new(ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

pub(crate) fn region(pd: &Pd, bytes: &[u8]) -> Mr<Buffer> {
    let mut region = pd.register(Buffer::zeroed(4096).unwrap(), Access::LOCAL_WRITE).unwrap();
    region.write(0, bytes).unwrap();
    region
}

/// An endpoint with a receive: a message without one ends the connection.
fn endpoint(pd: &Pd, options: &EndpointOptions) -> Endpoint<Mr<Buffer>> {
    let mut endpoint: Endpoint<Mr<Buffer>> = options.build(pd).unwrap();
    endpoint.post(Op::recv(region(pd, &[]))).unwrap();
    endpoint
}

pub(crate) fn accept(
    request: Incoming,
    options: &EndpointOptions,
    connect: &ConnectOptions<'_>,
) -> ConnectedEndpoint {
    let pd = request.pd().in_time().unwrap();
    request.accept(endpoint(&pd, options), connect).in_time().unwrap()
}

pub(crate) fn connect(
    route: Route,
    options: &EndpointOptions,
    connect: &ConnectOptions<'_>,
) -> ConnectedEndpoint {
    let pd = route.pd().in_time().unwrap();
    route.connect(endpoint(&pd, options), connect).in_time().unwrap()
}

/// Both ends: the connecting and the accepting one.
fn connected(
    (listener, addr): &(Listener, SocketAddr),
    connector: &Connector,
    options: &EndpointOptions,
    [active, passive]: [&ConnectOptions<'_>; 2],
) -> [ConnectedEndpoint; 2] {
    thread::scope(|scope| {
        let accepted = scope.spawn(|| accept(listener.request().in_time().unwrap(), options, passive));
        let route = connector.resolve(*addr).in_time().unwrap();
        let connected = connect(route, options, active);
        [connected, accepted.join().unwrap()]
    })
}

#[kernel_test(device::iwarp)]
fn iwarp_connects_queue_pairs_that_the_kernel_moves() {
    nothing_leaks(|| {
        let (ends, connector) = (listen(), Connector::new());
        let most = [7; Message::MAX_ON_IWARP];
        let private = |data| ConnectOptions { private_data: data, ..ConnectOptions::default() };
        let both = [&private(&most), &private(&most[..250])];
        let [mut client, mut server] = connected(&ends, &connector, &Endpoint::options(), both);
        assert_eq!(&server.link.peer().private_data[..], &most[..]);
        assert_eq!(&client.link.peer().private_data[..], &most[..250]);
        for end in [&client, &server] {
            assert!(end.link.id().is_iwarp().unwrap());
            assert_eq!(end.queue.qp().state(), QpState::RTS);
        }
        // The connecting side sends first.
        let pd = client.queue.qp().pd().clone();
        client.queue.post(Op::send(region(&pd, b"ping"), ..4)).unwrap();
        assert_eq!(server.queue.next().wait().unwrap().message(), Some(&b"ping"[..]));
        assert!(client.queue.next().wait().unwrap().message().is_none());
        let pd = server.queue.qp().pd().clone();
        server.queue.post(Op::send(region(&pd, b"pong"), ..4)).unwrap();
        assert_eq!(client.queue.next().wait().unwrap().message(), Some(&b"pong"[..]));
        server.queue.next().wait().unwrap();
        let memory = RegionMut::register(&pd, Buffer::zeroed(64).unwrap()).unwrap();
        let memory = memory.expose(Access::REMOTE_READ).map_err(|refused| refused.error).unwrap();
        let pd = client.queue.qp().pd().clone();
        client.queue.post(Op::read(region(&pd, b"?"), ..64, memory.remote(0).unwrap())).unwrap();
        let read = client.queue.next().wait().unwrap().buffer.unwrap();
        let mut byte = [1];
        read.read(0, &mut byte).unwrap();
        assert_eq!(byte, [0]);
        // Closing has the answer of the peer's device. The kernel then reports the end to both.
        assert!(client.queue.close().wait().unwrap().is_empty());
        server.link.ended().in_time().unwrap();
        client.link.disconnect().in_time().unwrap();
    });
}

#[kernel_test(device::iwarp)]
fn iwarp_refusals_name_their_cause() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let pd = device::open().alloc_pd().unwrap();
        let route = || Connector::new().resolve(addr).in_time().unwrap();
        let options = ConnectOptions::default();
        thread::scope(|scope| {
            scope.spawn(|| listener.request().in_time().unwrap().reject(&[9; 251]).unwrap());
            let refused = route().connect(endpoint(&pd, &Endpoint::options()), &options);
            let Error::Rejected(rejected) = refused.in_time().unwrap_err() else { panic!() };
            assert_eq!(rejected.reason, RejectReason::Mpa(Errno::CONNRESET));
            assert_eq!(rejected.private_data[..], [9; 251]);
        });
        let long = ConnectOptions { private_data: &[0; 252], ..options };
        let refused = route().connect(endpoint(&pd, &Endpoint::options()), &long).in_time().unwrap_err();
        assert!(matches!(refused, Error::PrivateData { max: 251, .. }), "{refused}");
        drop(listener);
        let refused = route().connect(endpoint(&pd, &Endpoint::options()), &options).in_time().unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::CONNREFUSED), "{refused}");
        assert!(refused.to_string().contains("nothing listens on the TCP port"), "{refused}");
        // The ports are those of TCP.
        let tcp = TcpListener::bind((ip(), 0)).unwrap();
        let refused = Listener::bind(tcp.local_addr().unwrap()).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::ADDRINUSE), "{refused}");
        assert!(refused.to_string().contains("a TCP socket of this host"), "{refused}");
        let refused = DatagramSocket::bind((ip(), 0)).map(drop).unwrap_err();
        let feature = Feature::Datagrams;
        let is_typed =
            |error: &Error| matches!(error, Error::Unsupported { feature: of, .. } if *of == feature);
        assert!(matches!(&refused, DatagramError::Cm(error) if is_typed(error)), "{refused}");
        // Queue pairs connect by the connection manager only.
        let mut one = endpoint(&pd, &Endpoint::options());
        let other = endpoint(&pd, &Endpoint::options());
        let refused = one.connect(&other.address()).unwrap_err();
        assert!(matches!(refused, bareverbs::Error::Unsupported { .. }), "{refused}");
    });
}

#[kernel_test(device::iwarp)]
fn iwarp_identifiers_are_established_at_once() {
    nothing_leaks(|| {
        let (passive, addr) = listener(PortSpace::Tcp, 1);
        let pd = device::open().alloc_pd().unwrap();
        let queues = [(); 2].map(|()| endpoint(&pd, &Endpoint::options()));
        let [client, server] = [0, 1].map(|at| ConnParam::new(queues[at].qp().qp_num()));
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&ConnParam { private_data: b"hello", ..client }).unwrap();
        let request = request(&passive);
        let accepted = request.accept(&ConnParam { private_data: b"welcome", ..server }).unwrap();
        let kind = next_of(accepted.channel(), accepted.key());
        assert!(matches!(kind, EventKind::Established(_)), "{kind:?}");
        let kind = next_of(active.channel(), active.key());
        let EventKind::Established(EstablishedParam::Connection(peer)) = kind else { panic!("{kind:?}") };
        assert_eq!((&peer.private_data[..], peer.qp_num), (&b"welcome"[..], 0));
        accepted.disconnect().unwrap();
        for id in [&accepted, &active] {
            let kind = next_of(id.channel(), id.key());
            assert!(matches!(kind, EventKind::Disconnected(None)), "{kind:?}");
        }
    });
}

#[kernel_test(device::iwarp)]
fn hubs_servers_and_tasks_connect_on_iwarp() {
    owned::connections_of_hubs_are_made_by_ip_address();
    owned::clients_are_admitted_by_ip_address();
    owned::tasks_connect_hubs_by_ip_address();
}

/// Messages that fill the socket, so that the answers to probes wait behind them.
const LARGE: usize = 1 << 18;
const MESSAGES: u32 = 16;

#[kernel_test(device::iwarp)]
fn probes_on_iwarp_are_answered_while_the_peer_sends() {
    nothing_leaks(probe_a_sending_endpoint);
    nothing_leaks(probe_a_sending_connection);
}

fn probe_a_sending_endpoint() {
    let (listener, addr) = listen();
    let options = Endpoint::options().sends(MESSAGES).recvs(MESSAGES);
    let large = |pd: &Pd| pd.register(Buffer::zeroed(LARGE).unwrap(), Access::LOCAL_WRITE).unwrap();
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let request = listener.request().in_time().unwrap();
            let mut server = accept(request, &options, &ConnectOptions::default());
            // The connecting side sends first.
            server.queue.next().wait().unwrap();
            let pd = server.queue.qp().pd().clone();
            for _ in 0..MESSAGES {
                server.queue.post(Op::send(large(&pd), ..)).unwrap();
            }
            for _ in 0..MESSAGES {
                server.queue.next().wait().unwrap();
            }
            server
        });
        let connector = Connector::new();
        let route = connector.resolve(addr).in_time().unwrap();
        let pd = route.pd().in_time().unwrap();
        let mut queue: Endpoint<Mr<Buffer>> = options.build(&pd).unwrap();
        for _ in 0..MESSAGES {
            queue.post(Op::recv(large(&pd))).unwrap();
        }
        let mut client = route.connect(queue, &ConnectOptions::default()).in_time().unwrap();
        assert!(client.link.peer().private_data.is_empty());
        client.queue.post(Op::send(region(&pd, b"go"), ..2)).unwrap();
        let mut received = 0;
        while received < MESSAGES {
            client.queue.probe().unwrap();
            if let Some(done) = client.queue.poll() {
                received += u32::from(done.unwrap().is_recv());
            }
        }
        let server = sender.join().unwrap();
        assert!(client.queue.close().wait().unwrap().is_empty());
        drop(server);
    });
}

fn probe_a_sending_connection() {
    let (listener, addr) = listen();
    let pd = device::open().alloc_pd().unwrap();
    let hub: Hub = Hub::new(&pd, 128).unwrap();
    let pool = Pool::new(&pd, 2 * MESSAGES as usize + 2, LARGE).unwrap();
    let options = Endpoint::options().sends(MESSAGES).recvs(MESSAGES);
    let (client, server) = thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let request = listener.request().in_time().unwrap();
            request.accept_on(&hub, &options).in_time().unwrap()
        });
        let connector = Connector::new();
        let route = connector.resolve(addr).in_time().unwrap();
        let client = route.connect_on(&hub, &options).in_time().unwrap();
        (client, accepted.join().unwrap())
    });
    let buffer = || pool.take().unwrap();
    let received: Vec<_> = (0..MESSAGES).map(|_| client.queue.post(Op::recv(buffer()))).collect();
    let first = server.queue.post(Op::recv(buffer()));
    client.queue.post(Op::send(buffer(), ..2)).wait().unwrap();
    first.wait().unwrap();
    let sent: Vec<_> = (0..MESSAGES).map(|_| server.queue.post(Op::send(buffer(), ..))).collect();
    for message in received {
        client.queue.probe().unwrap();
        message.wait().unwrap();
    }
    for message in sent {
        message.wait().unwrap();
    }
}

#[kernel_test(device::iwarp)]
fn hub_keeps_its_other_connections_if_a_peer_invalidates_the_key_that_it_was_told() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let [pd, far] = [(); 2].map(|()| device::open().alloc_pd().unwrap());
        let (hub, pool): (Hub, _) = (Hub::new(&pd, 64).unwrap(), Pool::new(&pd, 8, 64).unwrap());
        let options = Endpoint::options().sends(2).recvs(2);
        let cq = far.context().create_cq(&CqInit::new(4)).unwrap();
        let cap =
            QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let qp = far.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).unwrap();
        let own = Address::new(Gid::default(), qp.qp_num()).to_bytes();
        let mut peer: Endpoint<Mr<Buffer>> = options.build(&far).unwrap();
        peer.post(Op::recv(region(&far, &[]))).unwrap();
        let (mut peer, kept, mut hostile, attacked) = thread::scope(|scope| {
            let accept =
                || listener.request().in_time().unwrap().accept_on(&hub, &options).in_time().unwrap();
            let accepted = scope.spawn(move || [accept(), accept()]);
            let route = || Connector::new().resolve(addr).in_time().unwrap();
            let local = peer.address();
            let peer = route().exchange(&local, |hub| peer.connect(hub).map(|()| peer)).in_time().unwrap();
            let connect = ConnectOptions { private_data: &own, ..ConnectOptions::default() };
            let hostile = route().connect(qp, &connect).in_time().unwrap();
            let [kept, attacked] = accepted.join().unwrap();
            (peer, kept, hostile, attacked)
        });
        let told = Remote::from_bytes(&hostile.link.peer().private_data[Address::LEN + 4..]).unwrap();
        let invalidated = attacked.queue.post(Op::recv(pool.take().unwrap()));
        let request = SendRequest {
            wr_id: 1,
            operation: Operation::SendInv(told.rkey),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&[]),
        };
        // SAFETY: the request names no memory.
        unsafe { hostile.queue.post_send(&[request]) }.unwrap();
        invalidated.wait().unwrap();
        // A message behind a probe is complete when the probe is.
        let received = kept.queue.post(Op::recv(pool.take().unwrap()));
        peer.queue.probe().unwrap();
        peer.queue.post(Op::send(region(&far, b"ping"), ..4)).unwrap();
        assert_eq!(received.wait().unwrap().message(), Some(&b"ping"[..]));
        kept.queue.probe().unwrap();
        kept.queue.post(Op::send(pool.take().unwrap(), ..4)).wait().unwrap();
        let ended = [(); 2].map(|()| peer.queue.next().wait().unwrap().is_recv());
        assert!(ended.contains(&true) && ended.contains(&false));
        assert!(kept.queue.failure().is_none());
        drop((hostile, attacked));
    });
}

#[kernel_test(device::iwarp)]
fn abort_on_iwarp_wakes_a_thread_that_waits_for_a_receive_of_an_ended_connection() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let pd = device::open().alloc_pd().unwrap();
        let (hub, pool): (Hub, _) = (Hub::new(&pd, 64).unwrap(), Pool::new(&pd, 1, 64).unwrap());
        let options = Endpoint::options().keepalive(None);
        let (mut client, mut server) = thread::scope(|scope| {
            let accept =
                || listener.request().in_time().unwrap().accept_on(&hub, &options).in_time().unwrap();
            let accepted = scope.spawn(accept);
            let route = Connector::new().resolve(addr).in_time().unwrap();
            (route.connect_on(&hub, &options).in_time().unwrap(), accepted.join().unwrap())
        });
        // The kernel has no receive to flush.
        thread::scope(|scope| {
            scope.spawn(|| client.link.disconnect().in_time().unwrap());
            server.link.ended().in_time().unwrap();
        });
        let mut received = server.queue.post(Op::recv(pool.take().unwrap()));
        thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                let ended = received.wait_timeout(Duration::from_secs(10)).expect("it is woken");
                assert!(ended.is_err());
            });
            // Usually it sleeps then.
            thread::sleep(Duration::from_millis(500));
            server.queue.abort();
            waiting.join().unwrap();
        });
    });
}

/// A listener at the far end of the wire, and a connector at the near one.
fn ends_of_wire() -> (Listener, SocketAddr, Connector) {
    let listener = Listener::bind((End::Far.ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let source = Some(SocketAddr::new(End::Near.ip().into(), 0).into());
    (listener, addr, Connector::new().id_options(IdOptions { source, ..IdOptions::default() }))
}

/// The ends of a connection over the wire, from near to far.
pub(crate) fn connected_over_wire(options: &EndpointOptions) -> [ConnectedEndpoint; 2] {
    let (listener, addr, connector) = ends_of_wire();
    let connect = ConnectOptions::default();
    connected(&(listener, addr), &connector, options, [&connect, &connect])
}

#[kernel_test(device::iwarp)]
fn requests_of_iwarp_complete_in_order_over_a_slow_wire() {
    const BYTES: usize = 1 << 20;
    let wire = Wire::new();
    nothing_leaks(|| {
        let [mut client, server] = connected_over_wire(&Endpoint::options());
        let mut source = Buffer::zeroed(BYTES).unwrap();
        source.fill(0x5a);
        let source = RegionMut::register(server.queue.qp().pd(), source).unwrap();
        let source = source.expose(Access::REMOTE_READ).map_err(|refused| refused.error).unwrap();
        wire.inject(End::Far, Impairment::Delay(Duration::from_millis(20)));
        let pd = client.queue.qp().pd().clone();
        let target = pd.register(Buffer::zeroed(BYTES).unwrap(), Access::LOCAL_WRITE).unwrap();
        client.queue.post(Op::read(target, .., source.remote(0).unwrap())).unwrap();
        client.queue.post(Op::send(region(&pd, b"last"), ..4)).unwrap();
        let read = client.queue.next().wait().unwrap();
        assert_eq!(read.opcode, WcOpcode::RDMA_READ);
        let mut bytes = vec![0; BYTES];
        read.buffer.unwrap().read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0x5a));
        assert_eq!(client.queue.next().wait().unwrap().opcode, WcOpcode::SEND);
        wire.heal();
        drop((client, server));
    });
}

#[kernel_test(device::iwarp)]
fn endpoint_on_iwarp_notices_a_peer_that_is_cut_off_within_ten_seconds() {
    let wire = Wire::new();
    nothing_leaks(|| {
        let [mut client, server] = connected_over_wire(&Endpoint::options());
        wire.cut(End::Far);
        let begin = Instant::now();
        let failed = client.queue.next().wait().unwrap_err();
        assert!(failed.is_peer_lost(), "{failed}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        wire.heal();
        drop((client, server));
    });
}

#[kernel_test(device::iwarp)]
fn hub_on_iwarp_notices_a_peer_that_is_cut_off_within_ten_seconds() {
    let wire = Wire::new();
    nothing_leaks(|| {
        let (listener, addr, connector) = ends_of_wire();
        let options = Endpoint::options();
        let (client, server) = thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                let request = listener.request().in_time().unwrap();
                let hub: Hub = Hub::new(&request.pd().in_time().unwrap(), 64).unwrap();
                request.accept_on(&hub, &options).in_time().unwrap()
            });
            let route = connector.resolve(addr).in_time().unwrap();
            let hub: Hub = Hub::new(&route.pd().in_time().unwrap(), 64).unwrap();
            (route.connect_on(&hub, &options).in_time().unwrap(), accepted.join().unwrap())
        });
        let pool = Pool::new(client.queue.pd(), 1, 64).unwrap();
        let received = client.queue.post(Op::recv(pool.take().unwrap()));
        wire.cut(End::Far);
        let begin = Instant::now();
        let failed = received.wait().unwrap_err();
        assert!(failed.is_peer_lost(), "{failed}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        wire.heal();
        drop((client, server));
    });
}

#[kernel_test(device::iwarp)]
fn server_on_iwarp_notices_a_client_that_is_cut_off_within_ten_seconds() {
    let wire = Wire::new();
    nothing_leaks(|| {
        let (listener, addr, connector) = ends_of_wire();
        let pd = listener.pd(End::Far.ip()).in_time().unwrap();
        let mut server: Server = Server::options().peers(1).message_size(64).build(&pd).unwrap();
        let route = connector.resolve(addr).in_time().unwrap();
        let pd = route.pd().in_time().unwrap();
        let client: Client = Client::options().message_size(64).build(&pd).unwrap();
        let links = thread::scope(|scope| {
            let handle = server.handle();
            let admit = || listener.request().in_time().unwrap().admit(handle).in_time().unwrap();
            let admitted = scope.spawn(admit);
            (route.connect_client(&client).in_time().unwrap(), admitted.join().unwrap())
        });
        wire.cut(End::Near);
        let begin = Instant::now();
        match server.next().wait().unwrap() {
            Event::Failed(_, error) => assert!(error.is_peer_lost(), "{error}"),
            event => panic!("{event:?}"),
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        wire.heal();
        drop((client, links));
    });
}
