//! Connections with their queue pairs, blocking calls and tasks.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::cq::CqInit;
use bareverbs::qp::{Ece, Qp, QpAttr, QpAttrMask, QpInit, QpState, QpType, Rc, Uc};
use bareverbs::runtime::{AsyncIo, Runtime, Tokio};
use bareverbs::values::{MinRnrTimer, Mtu, RetryCount, RnrRetry};
use bareverbs::{Access, Buffer, Endpoint, EndpointOptions, Mr, Op, Pd};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_rdmacm::event::{RejectReason, SidrStatus};
use bareverbs_rdmacm::{
    CmId, ConnParam, ConnectOptions, Connected, Connector, Error, EventChannel, IdOptions, JoinMode,
    Listener, PortSpace,
};

use crate::host::*;

fn listen() -> (Listener, SocketAddr) {
    let listener = Listener::bind(SocketAddr::new(ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn region(pd: &Pd) -> Mr<Buffer> {
    pd.register(Buffer::zeroed(4096).unwrap(), Access::LOCAL_WRITE).unwrap()
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn waits_of_identifiers_get_their_events() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let request = listener.request().in_time().unwrap();
                let passive = request.accept(&ConnParam { private_data: b"yes", ..param() }).unwrap();
                passive.established().in_time().unwrap();
                passive.disconnect().unwrap();
                passive.disconnected().in_time().unwrap();
            });
            let active = new_id(PortSpace::Tcp);
            active.resolve(None, addr).in_time().unwrap();
            active.connect(&param()).unwrap();
            let peer = active.response().in_time().unwrap();
            assert_eq!(&peer.private_data[..4], b"yes\0");
            active.establish().unwrap();
            active.disconnected().in_time().unwrap();
            // The end by the peer is answered.
            active.disconnect().unwrap();
            server.join().unwrap();
        });
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn waits_of_identifiers_have_time_limits() {
    nothing_leaks(|| {
        let short = Duration::from_millis(200);
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let begin = Instant::now();
        assert!(listener.request().wait_timeout(short).is_none());
        assert!(begin.elapsed() >= short);
        let active = new_id(PortSpace::Tcp);
        active.resolve(None, addr).in_time().unwrap();
        active.connect(&param()).unwrap();
        let mut response = active.response();
        assert!(response.wait_timeout(short).is_none());
        let passive = listener.request().in_time().unwrap().accept(&param()).unwrap();
        // The peer does not confirm.
        let mut established = passive.established();
        assert!(established.wait_timeout(short).is_none());
        // The waits go on.
        response.in_time().unwrap();
        active.establish().unwrap();
        established.in_time().unwrap();
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn identifiers_of_one_channel_wait_at_a_time() {
    nothing_leaks(|| {
        let channel = EventChannel::new().unwrap();
        let listening = CmId::new(&channel, PortSpace::Tcp).unwrap();
        listening.bind_addr((ip(), 0)).unwrap();
        listening.listen(8).unwrap();
        let addr = listening.addresses().unwrap().local.unwrap().ip().unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                // Two threads wait for requests, and then for their own connection.
                scope.spawn(|| {
                    let request = listening.request().in_time().unwrap();
                    request.accept(&param()).unwrap().established().in_time().unwrap();
                });
                scope.spawn(|| {
                    let active = CmId::new(&channel, PortSpace::Tcp).unwrap();
                    active.resolve(None, addr).in_time().unwrap();
                    active.connect(&param()).unwrap();
                    active.response().in_time().unwrap();
                    active.establish().unwrap();
                    active.disconnected().in_time().unwrap();
                });
            }
        });
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn errors_of_waits_are_typed() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = new_id(PortSpace::Tcp);
        active.resolve(None, addr).in_time().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| listener.request().in_time().unwrap().reject(b"no").unwrap());
            active.connect(&param()).unwrap();
            let refused = active.response().in_time().unwrap_err();
            let Error::Rejected(rejected) = &refused else { panic!("{refused}") };
            assert_eq!(
                (rejected.reason, &rejected.private_data[..3]),
                (RejectReason::Consumer, &b"no\0"[..])
            );
            let kind = std::io::Error::from(refused).kind();
            assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
        });
        drop(listener);

        let active = new_id(PortSpace::Tcp);
        active.resolve(None, addr).in_time().unwrap();
        active.connect(&param()).unwrap();
        let refused = active.response().in_time().unwrap_err();
        let text = format!("the connection to {addr} was rejected: no application listens on the port");
        assert!(refused.to_string().starts_with(&text), "{refused}");
        let Error::Rejected(rejected) = refused else { panic!("{refused}") };
        assert_eq!((rejected.reason, rejected.peer), (RejectReason::InvalidServiceId, Some(addr.into())));

        let refused =
            new_id(PortSpace::Tcp).resolve(None, (Ipv4Addr::new(192, 0, 2, 1), 1)).in_time().unwrap_err();
        assert_eq!(refused.errno(), Some(bareverbs::Errno::NETUNREACH));
        let std::net::IpAddr::V4(own) = ip() else { panic!() };
        let [a, b, c, _] = own.octets();
        let silent = new_id(PortSpace::Tcp);
        let refused =
            silent.resolve(None, (Ipv4Addr::new(a, b, c, 78), 1)).wait_timeout(Duration::from_millis(300));
        let is_typed = match &refused {
            Some(Err(Error::Command(refused))) => device::is_soft_device() && refused.hint.is_some(),
            refused => matches!(refused, None | Some(Err(Error::Address(_)))),
        };
        assert!(is_typed, "{refused:?}");

        let datagrams = new_id(PortSpace::Udp);
        let refused = [
            ("disconnected", datagrams.disconnected().in_time().unwrap_err()),
            ("response", datagrams.response().in_time().map(drop).unwrap_err()),
            ("established", datagrams.established().in_time().unwrap_err()),
            ("ud_peer", silent.ud_peer().in_time().map(drop).unwrap_err()),
        ];
        for (expected, refused) in refused {
            assert!(matches!(refused, Error::Invalid { verb, .. } if verb == expected), "{refused}");
        }
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn waits_of_datagram_identifiers_get_their_events() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Udp, 8);
        thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.request().in_time().unwrap();
                assert_eq!(&request.private_data()[..4], b"who?");
                request.accept(&ConnParam::new(0x77)).unwrap();
                listener.request().in_time().unwrap().reject(b"full").unwrap();
            });
            let asks = || {
                let active = new_id(PortSpace::Udp);
                active.resolve(None, addr).in_time().unwrap();
                active.connect(&ConnParam { private_data: b"who?", ..ConnParam::new(0) }).unwrap();
                active
            };
            assert_eq!(asks().ud_peer().in_time().unwrap().qp_num, 0x77);
            let refused = asks().ud_peer().in_time().unwrap_err();
            assert!(refused.to_string().contains("private data b\"full\""), "{refused}");
            let Error::Sidr { peer, status: SidrStatus::Rejected, private_data: data } = refused else {
                panic!("{refused}")
            };
            assert_eq!(peer, Some(addr.into()));
            assert_eq!(&data[..5], b"full\0");
        });
        let id = new_id(PortSpace::Udp);
        id.bind_addr((ip(), 0)).unwrap();
        let membership = id.join_multicast((Ipv4Addr::new(239, 1, 2, 30), 0), JoinMode::Full).unwrap();
        assert_eq!(id.joined(membership).in_time().unwrap().qp_num, bareverbs::qp::MULTICAST_QP);
        id.leave_multicast(membership).unwrap();
    });
}

#[kernel_test(crate::host::has_ip, device::waits_for_receives)]
fn endpoints_connect_and_exchange_messages() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let (answers, answered) = mpsc::channel();
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let answers = answers;
                let mut peer = listener.accept(&Endpoint::options()).in_time().unwrap();
                // Posted after the connection is established, and maybe after the peer's message.
                let pd = peer.queue.qp().pd().clone();
                peer.queue.post(Op::recv(region(&pd))).unwrap();
                let done = peer.queue.next().wait().unwrap();
                assert_eq!(done.message(), Some(&b"ping"[..]));
                let mut answer = region(&pd);
                answer.write(0, b"pong").unwrap();
                assert!(!peer.link.has_ended().unwrap());
                peer.queue.post(Op::send(answer, ..4)).unwrap();
                peer.queue.next().wait().unwrap();
                answers.send(()).unwrap();
                peer.link.ended().in_time().unwrap();
                assert!(peer.link.has_ended().unwrap());
            });
            let connector = Connector::new();
            let mut client = connector.connect(addr, &Endpoint::options()).in_time().unwrap();
            assert_eq!(client.link.peer_addr().unwrap().ip(), Some(addr));
            assert_eq!(client.queue.qp().query().unwrap().0.qp_state, QpState::RTS);
            let pd = client.queue.qp().pd().clone();
            let attr = QpAttr { qp_state: QpState::RTS, ..QpAttr::default() };
            let connected = client.queue.modify_qp(&attr, QpAttrMask::STATE).unwrap_err();
            let text = "Endpoint::modify_qp: the endpoint is already connected";
            assert_eq!(connected.to_string(), text);
            client.queue.post(Op::recv(region(&pd))).unwrap();
            let mut hello = region(&pd);
            hello.write(0, b"ping").unwrap();
            client.queue.post(Op::send(hello, ..4)).unwrap();
            // The answer may arrive before the acknowledgement of the message that it answers.
            let done = [client.queue.next().wait().unwrap(), client.queue.next().wait().unwrap()];
            let answers: Vec<_> = done.iter().filter_map(|done| done.message()).collect();
            assert_eq!(answers, [b"pong"]);
            // The server has the acknowledgement of its answer: a disconnect would flush the send.
            answered.recv().unwrap();
            client.link.disconnect().in_time().unwrap();
            server.join().unwrap();
        });
    });
}

#[kernel_test(crate::host::has_ip)]
fn connections_share_devices_and_can_be_taken_apart() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let connector = Connector::with_domains(listener.domains());
        thread::scope(|scope| {
            let server =
                scope.spawn(|| listener.accept::<Mr<Buffer>>(&Endpoint::options()).in_time().unwrap());
            let client = connector.connect::<Mr<Buffer>>(addr, &Endpoint::options()).in_time().unwrap();
            let mut server = server.join().unwrap();
            let pd = connector.domains().pd(client.link.id().addresses().unwrap().device.unwrap()).unwrap();
            for used in [client.queue.qp().pd(), server.queue.qp().pd()] {
                assert_eq!(format!("{used:?}"), format!("{pd:?}"));
            }
            // MPA does not carry it.
            let told = if device::is_iwarp() { 0 } else { server.queue.qp().qp_num() };
            assert_eq!(client.link.peer().qp_num, told);
            let Connected { queue: endpoint, link } = client;
            let id = link.into_id();
            drop(endpoint);
            id.disconnect().unwrap();
            server.link.ended().in_time().unwrap();
        });
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let incoming = listener.request().in_time().unwrap();
                assert_eq!(u8::from(incoming.port().unwrap()), 1);
                assert_eq!(incoming.request().listener(), listener.id().key());
                incoming.reject(b"full").unwrap();
            });
            let route = Connector::new().resolve(addr).in_time().unwrap();
            assert_eq!(u8::from(route.port().unwrap()), 1);
            assert_eq!(route.peer_addr().unwrap(), addr.into());
            assert_eq!(route.id().addresses().unwrap().device.unwrap(), route.device().unwrap());
            let pd = device::open().alloc_pd().unwrap();
            let refused = route.connect(queue(&pd), &ConnectOptions::default()).in_time().unwrap_err();
            let Error::Rejected(rejected) = refused else { panic!("{refused}") };
            assert!(rejected.private_data.starts_with(b"full"), "{:?}", rejected.private_data);
            server.join().unwrap();
        });
    });
}

fn queue(pd: &Pd) -> Qp<Rc> {
    let cq = pd.context().create_cq(&CqInit::new(8)).unwrap();
    pd.create_qp::<Rc>(&QpInit::new(&cq, &cq)).unwrap()
}

#[kernel_test(crate::host::has_ip, device::moves_qps)]
fn queue_pair_has_the_attributes_of_its_connection() {
    // Each side once permits less than the other.
    [(8, 4), (4, 8)].into_iter().for_each(assert_attributes);
}

/// `rd_atomic` is that of the active and the passive side.
fn assert_attributes(rd_atomic: (u8, u8)) {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let pd = device::open().alloc_pd().unwrap();
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let incoming = listener.request().in_time().unwrap();
                assert_eq!(&incoming.private_data()[..5], b"hello");
                assert_eq!(incoming.device().unwrap().find().unwrap().name(), device::name());
                assert_eq!(incoming.peer_addr().unwrap().ip().map(|peer| peer.ip()), Some(ip()));
                let options = ConnectOptions { rd_atomic: rd_atomic.1, ..ConnectOptions::default() };
                let peer = incoming.accept(queue(&pd), &options).in_time().unwrap();
                let (attr, _) = peer.queue.query().unwrap();
                assert_eq!(attr.qp_state, QpState::RTS);
                assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 4));
                peer
            });
            let options = ConnectOptions {
                private_data: b"hello",
                access: Access::REMOTE_WRITE,
                rd_atomic: rd_atomic.0,
                retry_count: RetryCount::new(4).unwrap(),
                min_rnr_timer: MinRnrTimer::new(5).unwrap(),
                ..ConnectOptions::default()
            };
            let route = Connector::new().resolve(addr).in_time().unwrap();
            let client = route.connect(queue(&pd), &options).in_time().unwrap();
            let mut server = server.join().unwrap();
            let (attr, _) = client.queue.query().unwrap();
            assert_eq!((attr.qp_state, attr.dest_qp_num), (QpState::RTS, server.queue.qp_num()));
            // What both ends allow.
            assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 4));
            assert_eq!((attr.retry_cnt, attr.rnr_retry), (options.retry_count, RnrRetry::INFINITE));
            assert_eq!(attr.min_rnr_timer, options.min_rnr_timer);
            assert_eq!(server.queue.query().unwrap().0.retry_cnt, options.retry_count);
            assert!(attr.access.contains(Access::REMOTE_WRITE), "{:?}", attr.access);
            assert!(!attr.access.contains(Access::FLUSH_GLOBAL), "{:?}", attr.access);

            // A dropped connection is noticed by the peer.
            drop(client);
            server.link.ended().in_time().unwrap();
        });
    });
}

#[kernel_test(crate::host::has_ip, device::moves_qps)]
fn caller_moves_its_own_queue_pair() {
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
        assert!(matches!(established, bareverbs_rdmacm::event::EventKind::Established(_)));
        assert_eq!(a.query().unwrap().0.dest_qp_num, b.qp_num());
        assert_eq!(b.query().unwrap().0.dest_qp_num, a.qp_num());
        disconnect(&active, &passive);
    });
}

#[kernel_test]
fn endpoint_takes_attributes_of_a_connection_only() {
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

#[kernel_test(crate::host::has_ip)]
fn listener_and_connector_errors_name_their_cause() {
    let refused = Listener::bind("192.0.2.1:0").unwrap_err();
    assert_eq!(refused.errno(), Some(bareverbs::Errno::ADDRNOTAVAIL));
    let refused = Connector::new().resolve("no-such-host.invalid:1").in_time().unwrap_err();
    let is_named = |name: &str| name == "no-such-host.invalid:1";
    assert!(
        matches!(&refused, Error::Name { verb: "Connector::resolve", name, .. } if is_named(name)),
        "{refused}"
    );
    let no_address: [SocketAddr; 0] = [];
    let refused = Listener::bind(&no_address[..]).unwrap_err();
    assert_eq!(refused.to_string(), "Listener::bind: the name \"\" has no address");
    // The first address that works is taken.
    let addrs = [SocketAddr::from(([192, 0, 2, 1], 0)), SocketAddr::new(ip(), 0)];
    assert_eq!(Listener::bind(&addrs[..]).unwrap().local_addr().unwrap().ip(), ip());
}

/// A server that echoes one message of each of `count` clients, in tasks of a runtime.
async fn echo(runtime: impl Runtime + Copy, count: usize) {
    let (listener, addr) = listen();
    let connector = Connector::new();
    listener.attach(runtime).unwrap();
    connector.attach(runtime).unwrap();
    let options: EndpointOptions = Endpoint::options();
    for _ in 0..count {
        let server = async {
            let Connected { queue: mut peer, mut link } = listener.accept(&options).await.unwrap();
            let pd = peer.qp().pd().clone();
            peer.post(Op::recv(region(&pd))).unwrap();
            let message = peer.next().await.unwrap();
            assert_eq!(message.message(), Some(&b"echo"[..]));
            peer.post(Op::send(message.buffer.unwrap(), ..4)).unwrap();
            // One task waits for both.
            let (sent, ended) = (peer.next(), link.ended());
            both(async { drop(sent.await.unwrap()) }, async { ended.await.unwrap() }).await;
        };
        let client = async {
            let connected = connector.connect(addr, &options).await.unwrap();
            let Connected { queue: mut server, mut link } = connected;
            let pd = server.qp().pd().clone();
            server.post(Op::recv(region(&pd))).unwrap();
            let mut hello = region(&pd);
            hello.write(0, b"echo").unwrap();
            server.post(Op::send(hello, ..4)).unwrap();
            // The echo may come before the acknowledgement.
            let ended = [server.next().await.unwrap(), server.next().await.unwrap()];
            let answer = ended.iter().find(|done| done.is_recv()).expect("the echo");
            assert_eq!(answer.message(), Some(&b"echo"[..]));
            link.disconnect().await.unwrap();
        };
        both(server, client).await;
    }
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

#[kernel_test(crate::host::has_ip, device::waits_for_receives)]
fn tokio_listener_yields_connections() {
    nothing_leaks(|| {
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(echo(Tokio, 5));
    });
}

#[kernel_test(crate::host::has_ip, device::waits_for_receives)]
fn async_io_listener_yields_connections() {
    nothing_leaks(|| ::async_io::block_on(echo(AsyncIo, 5)));
}

#[kernel_test(crate::host::has_ip)]
fn tasks_wait_for_events_and_are_woken_by_migration() {
    nothing_leaks(|| {
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let channel = EventChannel::new().unwrap();
            channel.attach(Tokio).unwrap();
            let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
            id.resolve_addr(None, (ip(), 1), RESOLVE).unwrap();
            assert_eq!(channel.next().await.unwrap().key, id.key());

            let mut other = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
            other.resolve_addr(None, (ip(), 1), RESOLVE).unwrap();
            let key = other.key();
            let migration = async {
                ::tokio::time::sleep(QUIET).await;
                other.migrate(&channel).unwrap();
            };
            let reader = async { assert_eq!(channel.next().await.unwrap().key, key) };
            both(reader, migration).await;
            // A cancelled wait loses nothing.
            let waited = ::tokio::time::timeout(QUIET, channel.next()).await;
            assert!(waited.is_err());
        });
    });
}

#[kernel_test(crate::host::has_ip)]
fn channel_moves_to_another_runtime() {
    nothing_leaks(|| {
        let channel = EventChannel::new().unwrap();
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        // Each runtime ends with its round.
        for _ in 0..2 {
            let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                channel.attach(Tokio).unwrap();
                let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
                id.resolve(None, (ip(), 1)).await.unwrap();
            });
        }
        ::async_io::block_on(async {
            channel.attach(AsyncIo).unwrap();
            id.resolve(None, (ip(), 1)).await.unwrap();
        });
    });
}

#[kernel_test(crate::host::has_ip)]
fn tasks_without_a_runtime_are_refused() {
    let refused = EventChannel::new().unwrap().attach(Tokio).unwrap_err();
    assert!(matches!(refused, Error::Invalid { verb: "attach", .. }), "{refused}");
    let (listener, addr) = listen();
    let connector = Connector::new();
    ::async_io::block_on(async {
        let refused = listener.request().await.map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "await", .. }), "{refused}");
        let refused = connector.resolve(addr).await.map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "await", .. }), "{refused}");
        let refused = connector.resolve("localhost:1").await.map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "await", .. }), "{refused}");
    });
}

/// The names are looked up and the devices opened beside the task.
#[kernel_test(crate::host::has_ip)]
fn tasks_look_names_up_and_open_devices() {
    fn looked_up(
        runtime: impl Runtime + Copy,
        run: impl FnOnce(std::pin::Pin<Box<dyn Future<Output = ()>>>),
    ) {
        run(Box::pin(async move {
            let (listener, connector) = (Listener::bind((ip(), 0)).unwrap(), Connector::new());
            listener.attach(runtime).unwrap();
            connector.attach(runtime).unwrap();
            let pd = listener.pd(ip()).await.unwrap();
            assert_eq!(pd.context().device().name(), device::name());
            let unknown = connector.resolve("no-such-host.invalid:1").await.map(drop).unwrap_err();
            assert!(matches!(unknown, Error::Name { .. }), "{unknown}");
            let route = connector.resolve(listener.local_addr().unwrap()).await.unwrap();
            assert_eq!(route.pd().await.unwrap().context().device().name(), device::name());
        }));
    }
    nothing_leaks(|| {
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        looked_up(Tokio, |work| runtime.block_on(work));
        looked_up(AsyncIo, ::async_io::block_on);
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn domain_of_a_local_address_is_known_before_the_first_request() {
    nothing_leaks(|| {
        let listener = Listener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let pd = listener.pd(ip()).wait().unwrap();
        assert_eq!(pd.context().device().name(), device::name());
        let addr = SocketAddr::new(ip(), listener.local_addr().unwrap().port());
        thread::scope(|scope| {
            let request = scope.spawn(|| listener.request().in_time().unwrap());
            let route = Connector::new().resolve(addr).in_time().unwrap();
            route.id().connect(&param()).unwrap();
            let of_request = request.join().unwrap().pd().wait().unwrap();
            assert_eq!(format!("{of_request:?}"), format!("{pd:?}"));
        });
        let refused = listener.pd(Ipv4Addr::UNSPECIFIED).wait().unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "device", .. }), "{refused}");
        let refused = listener.pd(Ipv4Addr::new(192, 0, 2, 1)).wait().unwrap_err();
        assert_eq!(refused.errno(), Some(bareverbs::Errno::ADDRNOTAVAIL));
    });
}

#[kernel_test(device::has_netdev, device::gid_table)]
fn ipv6_listener_and_connector_connect() {
    nothing_leaks(|| {
        let only = IdOptions { ipv6_only: Some(true), ..IdOptions::default() };
        let listener = Listener::bind_with(&only, ipv6(0)).unwrap();
        let addr = listener.local_addr().unwrap();
        assert!(addr.is_ipv6());
        thread::scope(|scope| {
            let server = scope.spawn(|| listener.accept(&Endpoint::options()).in_time().unwrap());
            let mut client = Connector::new().connect(addr, &Endpoint::options()).in_time().unwrap();
            assert_eq!(client.link.peer_addr().unwrap().ip().map(|peer| peer.ip()), Some(addr.ip()));
            let mut server = server.join().unwrap();
            let pd = server.queue.qp().pd().clone();
            server.queue.post(Op::recv(region(&pd))).unwrap();
            let mut hello =
                client.queue.qp().pd().register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
            hello.write(0, b"six").unwrap();
            client.queue.post(Op::send(hello, ..3)).unwrap();
            assert_eq!(server.queue.next().wait().unwrap().message(), Some(&b"six"[..]));
        });
    });
}

#[kernel_test(crate::host::has_ip, device::moves_qps)]
fn connection_agrees_on_ece_options() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let pd = device::open().alloc_pd().unwrap();
        let all = queue(&pd).query_ece();
        let connect = |of_active: Option<Ece>, of_passive: Option<Ece>| {
            thread::scope(|scope| {
                let server = scope.spawn(|| {
                    let incoming = listener.request().in_time().unwrap();
                    let options = ConnectOptions { ece: of_passive, ..ConnectOptions::default() };
                    incoming.accept(queue(&pd), &options).in_time().unwrap()
                });
                let options = ConnectOptions { ece: of_active, ..ConnectOptions::default() };
                let client = Connector::new()
                    .resolve(addr)
                    .in_time()
                    .unwrap()
                    .connect(queue(&pd), &options)
                    .in_time()
                    .unwrap();
                (client, server.join().unwrap())
            })
        };
        let Ok(all) = all else {
            // Without ECE, no options are offered.
            let (client, server) = connect(None, Some(Ece { vendor_id: 0x15b3, options: 1 }));
            assert_eq!((client.link.peer().ece, server.link.peer().ece), (Ece::default(), Ece::default()));
            return;
        };
        let (client, server) = connect(None, None);
        assert_eq!(server.link.peer().ece, all);
        // What the passive side accepted is in use at both ends.
        assert_eq!(client.link.peer().ece, server.queue.query_ece().unwrap());
        assert_eq!(client.queue.query_ece().unwrap(), server.queue.query_ece().unwrap());
        assert_eq!(client.queue.query_ece().unwrap(), all);
        let none = Ece { options: 0, ..all };
        for (of_active, of_passive) in [(Some(Ece::default()), None), (None, Some(Ece::default()))] {
            let (client, server) = connect(of_active, of_passive);
            assert_eq!((client.queue.query_ece().unwrap(), server.queue.query_ece().unwrap()), (none, none));
        }
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn unreliable_queue_pairs_connect_by_type() {
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
                let incoming = listener.request().in_time().unwrap();
                incoming.accept(queue(), &connect).in_time().unwrap()
            });
            let route = Connector::new().id_options(options).resolve(addr).in_time().unwrap();
            let mut client = route.connect(queue(), &connect).in_time().unwrap();
            let mut server = server.join().unwrap();
            let (attr, _) = client.queue.query().unwrap();
            assert_eq!((attr.qp_state, attr.dest_qp_num), (QpState::RTS, server.queue.qp_num()));
            assert_eq!(server.queue.query().unwrap().0.dest_qp_num, client.queue.qp_num());
            let end = scope.spawn(move || client.link.disconnect().in_time().unwrap());
            server.link.ended().in_time().unwrap();
            end.join().unwrap();
        });
        // A queue of another type is not connected.
        let route = Connector::new().id_options(options).resolve(addr).in_time().unwrap();
        let refused = route.connect(crate::endpoints::queue(&pd), &connect).in_time().unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "connect", .. }), "{refused}");
        let datagrams = IdOptions { qp_type: Some(QpType::UD), ..IdOptions::default() };
        let refused = Listener::bind_with(&datagrams, SocketAddr::new(ip(), 0)).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    });
}

#[kernel_test(crate::host::has_ip, device::moves_qps)]
fn peer_that_ends_during_the_handshake_has_rejected() {
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
                let route = Connector::new().resolve(addr).in_time().unwrap();
                let connected = route
                    .exchange(&local.address(), |_| {
                        drop(passive.join().unwrap());
                        thread::sleep(QUIET * pause);
                        Ok(())
                    })
                    .in_time();
                connected.err()
            })
        });
        let Some(Error::Rejected(rejected)) = refused else { panic!("{refused:?}") };
        assert_eq!(rejected.reason, RejectReason::Consumer);
    });
}
