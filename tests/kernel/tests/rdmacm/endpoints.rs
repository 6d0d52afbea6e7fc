//! Connections with their queue pairs, blocking calls and tasks.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::cq::CqInit;
use bareverbs::qp::{Ece, Qp, QpAttr, QpAttrMask, QpInit, QpState, QpType, Rc, Uc};
use bareverbs::values::{MinRnrTimer, Mtu, RetryCount, RnrRetry};
use bareverbs::{Access, Buffer, Endpoint, EndpointOptions, Mr, Op, Pd};
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_rdmacm::blocking::BlockingId;
use bareverbs_rdmacm::connection::{Domains, Route};
use bareverbs_rdmacm::event::{RejectReason, SidrStatus};
use bareverbs_rdmacm::{
    CmId, ConnParam, ConnectOptions, Connector, Error, EventChannel, IdOptions, JoinMode, Listener,
    PortSpace, async_io, tokio as on_tokio,
};

use crate::host::*;

const LIMIT: Duration = TIMEOUT;

fn listen() -> (Listener, SocketAddr) {
    let listener = Listener::bind(SocketAddr::new(ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A blocking listener of that port space.
fn blocking_listener(port_space: PortSpace) -> (BlockingId, SocketAddr) {
    let listener = BlockingId::new(port_space).unwrap();
    listener.bind_addr((ip(), 0)).unwrap();
    listener.listen(8).unwrap();
    let addr = listener.addresses().unwrap().local.unwrap().ip().unwrap();
    (listener, addr)
}

fn region(pd: &Pd) -> Mr<Buffer> {
    pd.register(Buffer::zeroed(4096).unwrap(), Access::LOCAL_WRITE).unwrap()
}

pub(crate) fn blocking_calls_wait_for_their_events() {
    nothing_leaks(|| {
        let (listener, addr) = blocking_listener(PortSpace::Tcp);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let request = listener.get_request(LIMIT).unwrap();
                let passive =
                    BlockingId::accept(request, &ConnParam { private_data: b"yes", ..param() }, LIMIT)
                        .unwrap();
                passive.disconnect(LIMIT).unwrap();
            });
            let active = BlockingId::new(PortSpace::Tcp).unwrap();
            active.resolve(addr, LIMIT).unwrap();
            let peer = active.connect(&param(), LIMIT).unwrap();
            assert_eq!(&peer.private_data[..4], b"yes\0");
            active.establish().unwrap();
            // The end by the peer is an event like any other, and is answered.
            active.disconnect(LIMIT).unwrap();
            server.join().unwrap();
        });
    });
}

pub(crate) fn blocking_calls_have_time_limits() {
    nothing_leaks(|| {
        let short = Duration::from_millis(200);
        let timed_out = |error: Error, of: &str| {
            assert!(
                matches!(error, Error::TimedOut { verb, limit } if verb == of && limit == short),
                "{error}"
            );
        };
        let (listener, addr) = blocking_listener(PortSpace::Tcp);
        let begin = Instant::now();
        timed_out(listener.get_request(short).unwrap_err(), "get_request");
        assert!(begin.elapsed() >= short);
        let active = BlockingId::new(PortSpace::Tcp).unwrap();
        active.resolve(addr, LIMIT).unwrap();
        timed_out(active.connect(&param(), short).unwrap_err(), "connect");
        let request = listener.get_request(LIMIT).unwrap();
        // The peer does not confirm.
        timed_out(BlockingId::accept(request, &param(), short).map(drop).unwrap_err(), "accept");
    });
}

pub(crate) fn blocking_errors_are_typed() {
    nothing_leaks(|| {
        let (listener, addr) = blocking_listener(PortSpace::Tcp);
        let active = BlockingId::new(PortSpace::Tcp).unwrap();
        active.resolve(addr, LIMIT).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| listener.get_request(LIMIT).unwrap().reject(b"no").unwrap());
            let refused = active.connect(&param(), LIMIT).unwrap_err();
            let Error::Rejected(rejected) = &refused else { panic!("{refused}") };
            assert_eq!(
                (rejected.reason, &rejected.private_data[..3]),
                (RejectReason::Consumer, &b"no\0"[..])
            );
            let kind = std::io::Error::from(refused).kind();
            assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
        });
        drop(listener);

        let active = BlockingId::new(PortSpace::Tcp).unwrap();
        active.resolve(addr, LIMIT).unwrap();
        let refused = active.connect(&param(), LIMIT).unwrap_err();
        let text = format!("the connection to {addr} was rejected: no application listens on the port");
        assert!(refused.to_string().starts_with(&text), "{refused}");
        let Error::Rejected(rejected) = refused else { panic!("{refused}") };
        assert_eq!((rejected.reason, rejected.peer), (RejectReason::InvalidServiceId, Some(addr.into())));

        let unrouted = BlockingId::new(PortSpace::Tcp).unwrap();
        let refused = unrouted.resolve((Ipv4Addr::new(192, 0, 2, 1), 1), LIMIT).unwrap_err();
        assert_eq!(refused.errno(), Some(bareverbs::Errno::NETUNREACH));
        let silent = BlockingId::new(PortSpace::Tcp).unwrap();
        let std::net::IpAddr::V4(own) = ip() else { panic!() };
        let [a, b, c, _] = own.octets();
        let refused =
            silent.resolve((Ipv4Addr::new(a, b, c, 78), 1), Duration::from_millis(300)).unwrap_err();
        assert!(matches!(refused, Error::Address(_) | Error::TimedOut { .. }), "{refused}");

        let datagrams = BlockingId::new(PortSpace::Udp).unwrap();
        let refused = datagrams.disconnect(LIMIT).unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "disconnect", .. }), "{refused}");
        let refused = datagrams.connect(&param(), LIMIT).unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "connect", .. }), "{refused}");
    });
}

pub(crate) fn blocking_datagram_calls_wait_for_their_events() {
    nothing_leaks(|| {
        let (listener, addr) = blocking_listener(PortSpace::Udp);
        thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.get_request(LIMIT).unwrap();
                assert_eq!(&request.private_data()[..4], b"who?");
                BlockingId::accept(request, &ConnParam::new(0x77), LIMIT).unwrap();
                listener.get_request(LIMIT).unwrap().reject(b"full").unwrap();
            });
            let active = BlockingId::new(PortSpace::Udp).unwrap();
            active.resolve(addr, LIMIT).unwrap();
            assert_eq!(active.connect_datagram(b"who?", LIMIT).unwrap().qp_num, 0x77);
            let second = BlockingId::new(PortSpace::Udp).unwrap();
            second.resolve(addr, LIMIT).unwrap();
            let refused = second.connect_datagram(b"who?", LIMIT).unwrap_err();
            assert!(refused.to_string().contains("private data b\"full\""), "{refused}");
            let Error::Sidr { peer, status: SidrStatus::Rejected, private_data: data } = refused else {
                panic!("{refused}")
            };
            assert_eq!(peer, Some(addr.into()));
            assert_eq!(&data[..5], b"full\0");
        });
        let id = BlockingId::new(PortSpace::Udp).unwrap();
        id.bind_addr((ip(), 0)).unwrap();
        let (membership, group) =
            id.join_multicast_group((Ipv4Addr::new(239, 1, 2, 30), 0), JoinMode::Full, LIMIT).unwrap();
        assert_eq!(group.qp_num, bareverbs::qp::MULTICAST_QP);
        id.leave_multicast(membership).unwrap();
    });
}

pub(crate) fn endpoints_connect_and_exchange_messages() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let (answers, answered) = mpsc::channel();
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let answers = answers;
                let mut peer = listener.accept(&Endpoint::options(), LIMIT).unwrap();
                // Posted after the connection is established, and maybe after the peer's message.
                let pd = peer.qp().pd().clone();
                peer.post(Op::recv(region(&pd))).unwrap();
                let done = peer.next().wait().unwrap();
                assert_eq!(done.message(), Some(&b"ping"[..]));
                let mut answer = region(&pd);
                answer.write(0, b"pong").unwrap();
                assert!(!peer.is_disconnected().unwrap());
                peer.post(Op::send(answer, ..4)).unwrap();
                peer.next().wait().unwrap();
                answers.send(()).unwrap();
                peer.wait_disconnected(LIMIT).unwrap();
                assert!(peer.is_disconnected().unwrap());
            });
            let connector = Connector::new();
            let mut client = connector.connect(addr, &Endpoint::options(), LIMIT).unwrap();
            assert_eq!(client.peer_addr().unwrap().ip(), Some(addr));
            assert_eq!(client.qp().query().unwrap().0.qp_state, QpState::RTS);
            let pd = client.qp().pd().clone();
            let attr = QpAttr { qp_state: QpState::RTS, ..QpAttr::default() };
            let connected = client.modify_qp(&attr, QpAttrMask::STATE).unwrap_err();
            let text = "Endpoint::modify_qp: the endpoint is already connected";
            assert_eq!(connected.to_string(), text);
            client.post(Op::recv(region(&pd))).unwrap();
            let mut hello = region(&pd);
            hello.write(0, b"ping").unwrap();
            client.post(Op::send(hello, ..4)).unwrap();
            // The answer may arrive before the acknowledgement of the message that it answers.
            let done = [client.next().wait().unwrap(), client.next().wait().unwrap()];
            let answers: Vec<_> = done.iter().filter_map(|done| done.message()).collect();
            assert_eq!(answers, [b"pong"]);
            // The server has the acknowledgement of its answer: a disconnect would flush the send.
            answered.recv().unwrap();
            client.disconnect(LIMIT).unwrap();
            server.join().unwrap();
        });
    });
}

pub(crate) fn connections_share_devices_and_can_be_taken_apart() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let connector = Connector::with_domains(listener.domains());
        thread::scope(|scope| {
            let server = scope
                .spawn(|| listener.accept::<bareverbs::PoolBuffer>(&Endpoint::options(), LIMIT).unwrap());
            let client =
                connector.connect::<bareverbs::PoolBuffer>(addr, &Endpoint::options(), LIMIT).unwrap();
            let mut server = server.join().unwrap();
            let pd = connector.domains().pd(client.id().addresses().unwrap().device.unwrap()).unwrap();
            for used in [client.qp().pd(), server.qp().pd()] {
                assert_eq!(format!("{used:?}"), format!("{pd:?}"));
            }
            assert_eq!(client.peer().qp_num, server.qp().qp_num());
            let (id, endpoint) = client.into_parts();
            drop(endpoint);
            id.disconnect().unwrap();
            server.wait_disconnected(LIMIT).unwrap();
        });
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let incoming = listener.get_request(LIMIT).unwrap();
                assert_eq!(u8::from(incoming.port().unwrap()), 1);
                assert_eq!(incoming.request().listener(), listener.id().key());
                incoming.reject(b"full").unwrap();
            });
            let route = Route::resolve(addr, LIMIT).unwrap();
            assert_eq!(u8::from(route.port().unwrap()), 1);
            assert_eq!(route.peer_addr().unwrap(), addr.into());
            assert_eq!(route.id().addresses().unwrap().device.unwrap(), route.device().unwrap());
            let pd = device::open().alloc_pd().unwrap();
            let refused = route.connect(queue(&pd), &ConnectOptions::default(), LIMIT).unwrap_err();
            let Error::Rejected(rejected) = refused else { panic!("{refused}") };
            assert_eq!(&rejected.private_data[..5], b"full\0");
            server.join().unwrap();
        });
    });
}

fn queue(pd: &Pd) -> Qp<Rc> {
    let cq = pd.context().create_cq(&CqInit::new(8)).unwrap();
    pd.create_qp::<Rc>(&QpInit::new(&cq, &cq)).unwrap()
}

pub(crate) fn queue_pair_has_the_attributes_of_its_connection() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let pd = device::open().alloc_pd().unwrap();
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let incoming = listener.get_request(LIMIT).unwrap();
                assert_eq!(&incoming.private_data()[..5], b"hello");
                assert_eq!(incoming.device().unwrap().find().unwrap().name(), device::name());
                assert_eq!(incoming.peer_addr().unwrap().ip().map(|peer| peer.ip()), Some(ip()));
                let options = ConnectOptions { rd_atomic: 4, ..ConnectOptions::default() };
                let peer = incoming.accept(queue(&pd), &options, LIMIT).unwrap();
                let (attr, _) = peer.query().unwrap();
                assert_eq!(attr.qp_state, QpState::RTS);
                assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 4));
                peer
            });
            let options = ConnectOptions {
                private_data: b"hello",
                access: Access::REMOTE_WRITE,
                rd_atomic: 8,
                retry_count: RetryCount::new(4).unwrap(),
                min_rnr_timer: MinRnrTimer::new(5).unwrap(),
                ..ConnectOptions::default()
            };
            let route = Route::resolve(addr, LIMIT).unwrap();
            let client = route.connect(queue(&pd), &options, LIMIT).unwrap();
            let mut server = server.join().unwrap();
            let (attr, _) = client.query().unwrap();
            assert_eq!((attr.qp_state, attr.dest_qp_num), (QpState::RTS, server.qp_num()));
            // What both ends allow.
            assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 4));
            assert_eq!((attr.retry_cnt, attr.rnr_retry), (options.retry_count, RnrRetry::INFINITE));
            assert_eq!(attr.min_rnr_timer, options.min_rnr_timer);
            assert_eq!(server.query().unwrap().0.retry_cnt, options.retry_count);
            assert!(attr.access.contains(Access::REMOTE_WRITE), "{:?}", attr.access);
            assert!(!attr.access.contains(Access::FLUSH_GLOBAL), "{:?}", attr.access);

            // A dropped connection is noticed by the peer.
            drop(client.try_map(Ok::<_, ()>).unwrap());
            server.wait_disconnected(LIMIT).unwrap();
        });
    });
}

pub(crate) fn caller_moves_its_own_queue_pair() {
    nothing_leaks(|| {
        let pd = device::open().alloc_pd().unwrap();
        let (mut a, mut b) = (queue(&pd), queue(&pd));
        let bring_up = |id: &CmId, qp: &mut Qp<Rc>| {
            for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
                let (mut attr, mask) = id.init_qp_attr(state).unwrap();
                attr.min_rnr_timer = MinRnrTimer::MIN;
                assert!(mask.contains(QpAttrMask::STATE));
                qp.modify(&attr, mask).unwrap();
            }
        };
        let (listener, addr) = listener(PortSpace::Tcp, 4);
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&ConnParam::new(a.qp_num())).unwrap();
        let request = request(&listener);
        bring_up(request.id(), &mut b);
        let passive = request.accept(&ConnParam::new(b.qp_num())).unwrap();
        assert!(matches!(
            next_of(active.channel(), active.key()),
            bareverbs_rdmacm::event::EventKind::ConnectResponse(_)
        ));
        bring_up(&active, &mut a);
        active.establish().unwrap();
        let established = next_of(passive.channel(), passive.key());
        assert!(matches!(established, bareverbs_rdmacm::event::EventKind::Established(None)));
        assert_eq!(a.query().unwrap().0.dest_qp_num, b.qp_num());
        assert_eq!(b.query().unwrap().0.dest_qp_num, a.qp_num());
        disconnect(&active, &passive);
    });
}

pub(crate) fn endpoint_takes_attributes_of_a_connection_only() {
    let pd = device::open().alloc_pd().unwrap();
    let mut endpoint: Endpoint<Mr<Buffer>> = Endpoint::new(&pd, 1, 4).unwrap();
    for (state, mask) in [
        (QpState::RESET, QpAttrMask::STATE),
        (QpState::ERR, QpAttrMask::STATE),
        (QpState::RTR, QpAttrMask::PATH_MTU),
    ] {
        let attr = QpAttr { qp_state: state, path_mtu: Some(Mtu::Mtu256), ..QpAttr::default() };
        let refused = endpoint.modify_qp(&attr, mask).unwrap_err();
        assert_eq!(refused.verb(), Some("Endpoint::modify_qp"));
    }
    assert_eq!(endpoint.qp().state(), QpState::INIT);
}

pub(crate) fn listener_and_connector_errors_name_their_cause() {
    let refused = Listener::bind("192.0.2.1:0").unwrap_err();
    assert_eq!(refused.errno(), Some(bareverbs::Errno::ADDRNOTAVAIL));
    let refused = Route::resolve("no-such-host.invalid:1", LIMIT).unwrap_err();
    let is_named = |name: &str| name == "no-such-host.invalid:1";
    assert!(
        matches!(&refused, Error::Name { verb: "Route::resolve", name, .. } if is_named(name)),
        "{refused}"
    );
    let no_address: [SocketAddr; 0] = [];
    let refused = Listener::bind(&no_address[..]).unwrap_err();
    assert_eq!(refused.to_string(), "Listener::bind: the name \"\" has no address");
    // The first address that works is taken.
    let addrs = [SocketAddr::from(([192, 0, 2, 1], 0)), SocketAddr::new(ip(), 0)];
    assert_eq!(Listener::bind(&addrs[..]).unwrap().local_addr().unwrap().ip(), ip());
}

/// Runs a server that echoes one message of each of `count` clients, with these functions of a
/// runtime.
macro_rules! echo {
    ($runtime:ident, $bareverbs:ident, $count:expr) => {{
        let listener = $runtime::Listener::bind(SocketAddr::new(ip(), 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let domains = Domains::default();
        let options: EndpointOptions = Endpoint::options();
        for _ in 0..$count {
            let server = async {
                let mut peer = listener.accept(&options).await.unwrap();
                peer.attach(bareverbs::runtime::$bareverbs).unwrap();
                let pd = peer.qp().pd().clone();
                peer.post(Op::recv(region(&pd))).unwrap();
                let message = peer.next().await.unwrap();
                assert_eq!(message.message(), Some(&b"echo"[..]));
                peer.post(Op::send(message.buffer.unwrap(), ..4)).unwrap();
                peer.next().await.unwrap();
                peer.disconnected().await.unwrap();
            };
            let client = async {
                let mut server = $runtime::connect(addr, &domains, &options).await.unwrap();
                server.attach(bareverbs::runtime::$bareverbs).unwrap();
                let pd = server.qp().pd().clone();
                server.post(Op::recv(region(&pd))).unwrap();
                let mut hello = region(&pd);
                hello.write(0, b"echo").unwrap();
                server.post(Op::send(hello, ..4)).unwrap();
                // The echo may come before the acknowledgement.
                let ended = [server.next().await.unwrap(), server.next().await.unwrap()];
                let answer = ended.iter().find(|done| done.is_recv()).expect("the echo");
                assert_eq!(answer.message(), Some(&b"echo"[..]));
                server.disconnect().await.unwrap();
            };
            both(server, client).await;
        }
    }};
}

/// Runs two futures in one task.
async fn both(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let mut done = [false; 2];
    std::future::poll_fn(|cx| {
        if !done[0] {
            done[0] = one.as_mut().poll(cx).is_ready();
        }
        if !done[1] {
            done[1] = other.as_mut().poll(cx).is_ready();
        }
        if done == [true; 2] { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

pub(crate) fn tokio_listener_yields_connections() {
    nothing_leaks(|| {
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { echo!(on_tokio, Tokio, 5) });
    });
}

pub(crate) fn async_io_listener_yields_connections() {
    nothing_leaks(|| ::async_io::block_on(async { echo!(async_io, AsyncIo, 5) }));
}

pub(crate) fn tasks_wait_for_events_and_are_woken_by_migration() {
    nothing_leaks(|| {
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let channel = on_tokio::EventChannel::new(EventChannel::new().unwrap()).unwrap();
            let id = CmId::new(channel.channel(), PortSpace::Tcp).unwrap();
            id.resolve_addr(None, (ip(), 1), RESOLVE).unwrap();
            assert_eq!(channel.wait().await.unwrap().key, id.key());

            let mut other = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
            other.resolve_addr(None, (ip(), 1), RESOLVE).unwrap();
            let key = other.key();
            let migration = async {
                ::tokio::time::sleep(QUIET).await;
                other.migrate(channel.channel()).unwrap();
            };
            let reader = async { assert_eq!(channel.wait().await.unwrap().key, key) };
            both(reader, migration).await;
            // A cancelled wait loses nothing.
            let waited = ::tokio::time::timeout(QUIET, channel.wait()).await;
            assert!(waited.is_err());
        });
    });
}

pub(crate) fn tasks_without_a_runtime_are_refused() {
    let refused = on_tokio::EventChannel::new(EventChannel::new().unwrap()).unwrap_err();
    assert!(matches!(refused, Error::Invalid { verb: "tokio", .. }), "{refused}");
}

pub(crate) fn ipv6_listener_and_connector_connect() {
    nothing_leaks(|| {
        let only = IdOptions { ipv6_only: Some(true), ..IdOptions::default() };
        let listener = Listener::bind_with(&only, ipv6(0)).unwrap();
        let addr = listener.local_addr().unwrap();
        assert!(addr.is_ipv6());
        thread::scope(|scope| {
            let server = scope.spawn(|| listener.accept(&Endpoint::options(), LIMIT).unwrap());
            let mut client = Connector::new().connect(addr, &Endpoint::options(), LIMIT).unwrap();
            assert_eq!(client.peer_addr().unwrap().ip().map(|peer| peer.ip()), Some(addr.ip()));
            let mut server = server.join().unwrap();
            let pd = server.qp().pd().clone();
            server.post(Op::recv(region(&pd))).unwrap();
            let mut hello =
                client.qp().pd().register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
            hello.write(0, b"six").unwrap();
            client.post(Op::send(hello, ..3)).unwrap();
            assert_eq!(server.next().wait().unwrap().message(), Some(&b"six"[..]));
        });
    });
}

pub(crate) fn connection_agrees_on_ece_options() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let pd = device::open().alloc_pd().unwrap();
        let all = queue(&pd).query_ece();
        let connect = |of_active: Option<Ece>, of_passive: Option<Ece>| {
            thread::scope(|scope| {
                let server = scope.spawn(|| {
                    let incoming = listener.get_request(LIMIT).unwrap();
                    let options = ConnectOptions { ece: of_passive, ..ConnectOptions::default() };
                    incoming.accept(queue(&pd), &options, LIMIT).unwrap()
                });
                let options = ConnectOptions { ece: of_active, ..ConnectOptions::default() };
                let client =
                    Route::resolve(addr, LIMIT).unwrap().connect(queue(&pd), &options, LIMIT).unwrap();
                (client, server.join().unwrap())
            })
        };
        let Ok(all) = all else {
            // Without ECE, no options are offered.
            let (client, server) = connect(None, Some(Ece { vendor_id: 0x15b3, options: 1 }));
            assert_eq!((client.peer().ece, server.peer().ece), (Ece::default(), Ece::default()));
            return;
        };
        let (client, server) = connect(None, None);
        assert_eq!(server.peer().ece, all);
        // What the passive side accepted is in use at both ends.
        assert_eq!(client.peer().ece, server.query_ece().unwrap());
        assert_eq!(client.query_ece().unwrap(), server.query_ece().unwrap());
        assert_eq!(client.query_ece().unwrap(), all);
        let none = Ece { options: 0, ..all };
        for (of_active, of_passive) in [(Some(Ece::default()), None), (None, Some(Ece::default()))] {
            let (client, server) = connect(of_active, of_passive);
            assert_eq!((client.query_ece().unwrap(), server.query_ece().unwrap()), (none, none));
        }
    });
}

pub(crate) fn unreliable_queue_pairs_connect_by_type() {
    nothing_leaks(|| {
        let options = IdOptions { qp_type: Some(QpType::UC), ..IdOptions::default() };
        let listener = Listener::bind_with(&options, SocketAddr::new(ip(), 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let pd = device::open().alloc_pd().unwrap();
        let queue = || {
            let cq = pd.context().create_cq(&CqInit::new(8)).unwrap();
            pd.create_qp::<Uc>(&QpInit::new(&cq, &cq)).unwrap()
        };
        let connect = ConnectOptions::default();
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let incoming = listener.get_request(LIMIT).unwrap();
                incoming.accept(queue(), &connect, LIMIT).unwrap()
            });
            let route = Route::resolve_with(&options, addr, LIMIT).unwrap();
            let mut client = route.connect(queue(), &connect, LIMIT).unwrap();
            let mut server = server.join().unwrap();
            let (attr, _) = client.query().unwrap();
            assert_eq!((attr.qp_state, attr.dest_qp_num), (QpState::RTS, server.qp_num()));
            assert_eq!(server.query().unwrap().0.dest_qp_num, client.qp_num());
            let end = scope.spawn(move || client.disconnect(LIMIT).unwrap());
            server.wait_disconnected(LIMIT).unwrap();
            end.join().unwrap();
        });
        // A queue of another type is not connected.
        let route = Route::resolve_with(&options, addr, LIMIT).unwrap();
        let refused = route.connect(crate::endpoints::queue(&pd), &connect, LIMIT).unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "connect", .. }), "{refused}");
        let datagrams = IdOptions { qp_type: Some(QpType::UD), ..IdOptions::default() };
        let refused = Listener::bind_with(&datagrams, SocketAddr::new(ip(), 0)).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    });
}

pub(crate) fn peer_that_ends_during_the_handshake_has_rejected() {
    nothing_leaks(|| {
        let pd = device::open().alloc_pd().unwrap();
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        // The rejection arrives during one of the pauses.
        let refused = [1, 2, 4, 8, 16].into_iter().find_map(|pause| {
            let [local, remote]: [Endpoint<Mr<Buffer>>; 2] =
                [0; 2].map(|_| Endpoint::options().build(&pd).unwrap());
            let private_data = &remote.address().to_bytes()[..];
            let param = ConnParam { private_data, ..ConnParam::new(remote.qp().qp_num()) };
            thread::scope(|scope| {
                let passive = scope.spawn(|| request(&listener).accept(&param).unwrap());
                let route = Route::resolve(addr, LIMIT).unwrap();
                let connected = route.exchange(&local.address(), LIMIT, |_| {
                    drop(passive.join().unwrap());
                    thread::sleep(QUIET * pause);
                    Ok(())
                });
                connected.err()
            })
        });
        let Some(Error::Rejected(rejected)) = refused else { panic!("{refused:?}") };
        assert_eq!(rejected.reason, RejectReason::Consumer);
    });
}
