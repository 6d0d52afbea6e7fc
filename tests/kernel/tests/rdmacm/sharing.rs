//! Connections that share a channel: each gets its own events. Any thread reads them.

use std::fs;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bareverbs::runtime::{AsyncIo, Tokio};
use bareverbs::values::AckTimeout;
use bareverbs::{Buffer, Endpoint, EndpointOptions, Errno, Mr, Op};
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_rdmacm::event::EventKind;
use bareverbs_rdmacm::{
    AddrFamily, AddrHints, AddrInfo, CmId, Connected, Connector, Error, EventChannel, IdOptions, Listener,
    PortSpace,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::host::*;

const LIMIT: Duration = TIMEOUT;

fn listen() -> (Listener, SocketAddr) {
    let listener = Listener::bind(SocketAddr::new(ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn small() -> EndpointOptions {
    Endpoint::options().sends(1).recvs(1)
}

/// The files of the connection manager that this process has open.
fn cm_files() -> usize {
    let files = fs::read_dir("/proc/self/fd").unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    targets.filter(|target| target.ends_with("rdma_cm")).count()
}

/// Connections of a listener with a connector: the active and the passive ends, in the same order.
fn connections(
    count: usize,
    listener: &Listener,
    connector: &Connector,
) -> (Vec<Established>, Vec<Established>) {
    let addr = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            (0..count).map(|_| listener.accept::<Mr<Buffer>>(&small()).in_time().unwrap()).collect()
        });
        let connect = |_| connector.connect::<Mr<Buffer>>(addr, &small()).in_time().unwrap();
        ((0..count).map(connect).collect(), accepted.join().unwrap())
    })
}

/// Bytes of this process's memory that are in use.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Bytes of the system's memory that are in use.
fn used() -> usize {
    let found = fs::read_to_string("/proc/meminfo").unwrap();
    let available = found.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let available: usize = available.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    usize::MAX / 2 - available * 1024
}

#[kernel_test(crate::host::has_ip)]
fn channel_of_its_own_shows_the_end_while_a_thread_reads_the_shared_one() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let connector = Connector::with_domains(listener.domains());
        let (mut active, mut passive) = connections(1, &listener, &connector);
        thread::scope(|scope| {
            // It reads the events of all that share the listener's channel.
            let reader = scope.spawn(|| listener.request().in_time().map(drop));
            passive[0].link.own_channel().unwrap();
            assert!(!passive[0].link.has_ended().unwrap());
            let ending = scope.spawn(|| active[0].link.disconnect().in_time());
            let timeout = Timespec::try_from(LIMIT).unwrap();
            let mut files = [PollFd::new(passive[0].link.id().channel(), PollFlags::IN)];
            assert_eq!(poll(&mut files, Some(&timeout)).unwrap(), 1);
            assert!(passive[0].link.has_ended().unwrap());
            ending.join().unwrap().unwrap();
            assert!(
                connector.connect::<Mr<Buffer>>(addr, &small()).in_time().is_err(),
                "the reader drops the request"
            );
            reader.join().unwrap().unwrap();
        });
    });
}

#[kernel_test(crate::host::has_ip, device::has_device_node)]
fn thousand_connections_share_one_file() {
    const COUNT: usize = 1000;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Each endpoint has the descriptor of its completion channel.
    setrlimit(Resource::RLIMIT_NOFILE, most.max(4096), most.max(4096)).unwrap();
    nothing_leaks(|| {
        let (files, begin) = (cm_files(), (resident(), used()));
        let (listener, _) = listen();
        let connector = Connector::with_domains(listener.domains());
        let (mut active, mut passive) = connections(COUNT, &listener, &connector);
        assert_eq!(cm_files(), files + 2, "one of the listener, one of the connector");
        let each = |from: usize, to: usize| to.saturating_sub(from) / (2 * COUNT);
        println!(
            "each of {} ends: {} bytes of the process, {} of the system",
            2 * COUNT,
            each(begin.0, resident()),
            each(begin.1, used())
        );
        let message = |connection: &Established| {
            connection
                .queue
                .qp()
                .pd()
                .register(Buffer::zeroed(8).unwrap(), bareverbs::Access::LOCAL_WRITE)
                .unwrap()
        };
        for connection in &mut passive {
            let memory = message(connection);
            connection.queue.post(Op::recv(memory)).unwrap();
        }
        for (number, connection) in active.iter_mut().enumerate() {
            let mut memory = message(connection);
            memory.write(0, &number.to_le_bytes()).unwrap();
            connection.queue.post(Op::send(memory, ..8)).unwrap();
            connection.queue.next().wait().unwrap();
        }
        for (number, connection) in passive.iter_mut().enumerate() {
            let done = connection.queue.next().wait().unwrap();
            assert_eq!(done.message(), Some(&number.to_le_bytes()[..]));
        }
        // The end of each is an event of it alone, whatever the order.
        active.swap(0, COUNT / 2);
        passive.swap(0, COUNT / 2);
        for (active, passive) in active.iter_mut().zip(&mut passive).take(10) {
            active.link.id().disconnect().unwrap();
            passive.link.ended().in_time().unwrap();
        }
        assert!(passive[10..].iter_mut().all(|connection| !connection.link.has_ended().unwrap()));
    });
}

#[kernel_test(crate::host::has_ip)]
fn threads_wait_for_their_own_connections() {
    const COUNT: usize = 20;
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let connector = Connector::new();
        let (active, passive) = connections(COUNT, &listener, &connector);
        thread::scope(|scope| {
            let (ended, ends) = mpsc::channel();
            for (number, connection) in passive.into_iter().enumerate() {
                let ended = ended.clone();
                scope.spawn(move || {
                    // The queue, too: on iWARP, its drop ends the connection.
                    let mut connection = connection;
                    connection.link.ended().in_time().unwrap();
                    ended.send(number).unwrap();
                });
            }
            // One more waits for requests, beside them.
            let last = scope.spawn(|| listener.accept::<Mr<Buffer>>(&small()).in_time().unwrap());
            for (number, mut connection) in active.into_iter().enumerate().rev() {
                connection.link.disconnect().in_time().unwrap();
                assert_eq!(ends.recv_timeout(LIMIT), Ok(number));
            }
            let mut active = connector.connect::<Mr<Buffer>>(addr, &small()).in_time().unwrap();
            let mut passive = last.join().unwrap();
            assert!(!passive.link.has_ended().unwrap());
            scope.spawn(move || active.link.disconnect().in_time().unwrap());
            passive.link.ended().in_time().unwrap();
        });
    });
}

/// Connections of a listener and a connector of a runtime, one file each: the futures of their ends,
/// those of the passive side first.
macro_rules! ends {
    ($runtime:expr) => {{
        const COUNT: usize = 12;
        let files = cm_files();
        let (listener, addr) = listen();
        let connector = Connector::new();
        listener.attach($runtime).unwrap();
        connector.attach($runtime).unwrap();
        let options = small();
        let accept = async {
            let mut accepted = Vec::new();
            while accepted.len() < COUNT {
                accepted.push(listener.accept::<Mr<Buffer>>(&options).await.unwrap());
            }
            accepted
        };
        let connect = async {
            let mut connected = Vec::new();
            while connected.len() < COUNT {
                // By a name that is an address.
                connected.push(connector.connect::<Mr<Buffer>>(addr.to_string(), &options).await.unwrap());
            }
            connected
        };
        let (passive, active) = both(accept, connect).await;
        assert_eq!(cm_files(), files + 2);
        // The listener and the connector may go before their connections.
        drop((listener, connector));
        let mut ends: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        for (number, mut connection) in passive.into_iter().enumerate() {
            if number == 0 {
                // It has the same runtime.
                connection.link.own_channel().unwrap();
            }
            ends.push(Box::pin(async move { connection.link.ended().await.unwrap() }));
        }
        for mut connection in active.into_iter().rev() {
            ends.push(Box::pin(async move { connection.link.disconnect().await.unwrap() }));
        }
        ends
    }};
}

#[kernel_test(crate::host::has_ip, device::has_device_node)]
fn tasks_of_tokio_get_the_events_of_their_connections() {
    nothing_leaks(|| {
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let tasks: Vec<_> = ends!(Tokio).into_iter().map(::tokio::spawn).collect();
            for task in tasks {
                ::tokio::time::timeout(LIMIT, task).await.expect("in time").unwrap();
            }
        });
    });
}

#[kernel_test(crate::host::has_ip, device::has_device_node)]
fn futures_of_async_io_get_the_events_of_their_connections() {
    nothing_leaks(|| {
        ::async_io::block_on(async {
            let mut ends = ends!(AsyncIo);
            std::future::poll_fn(|cx| {
                ends.retain_mut(|end| end.as_mut().poll(cx).is_pending());
                if ends.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        });
    });
}

#[kernel_test(crate::host::has_ip)]
fn thread_and_task_share_a_channel() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let connector = Connector::new();
        let (active, mut passive) = connections(2, &listener, &connector);
        let (mut of_thread, mut of_task) = (passive.pop().unwrap(), passive.pop().unwrap());
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        thread::scope(|scope| {
            // It sleeps on the descriptor, and reads the events of the task.
            let thread = scope.spawn(move || of_thread.link.ended().in_time().unwrap());
            thread::sleep(QUIET);
            runtime.block_on(async {
                listener.attach(Tokio).unwrap();
                let requested =
                    scope.spawn(move || connector.connect::<Mr<Buffer>>(addr, &small()).in_time().unwrap());
                let accepted = ::tokio::time::timeout(LIMIT, listener.accept::<Mr<Buffer>>(&small())).await;
                let mut accepted = accepted.expect("in time").unwrap();
                assert!(!accepted.link.has_ended().unwrap() && !of_task.link.has_ended().unwrap());
                drop(requested.join().unwrap());
            });
            drop(active);
            thread.join().unwrap();
            of_task.link.ended().in_time().unwrap();
        });
    });
}

#[kernel_test(crate::host::has_ip)]
fn events_of_other_identifiers_stay_on_the_channel() {
    nothing_leaks(|| {
        let channel = EventChannel::new().unwrap();
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        let listening = CmId::new(&channel, PortSpace::Tcp).unwrap();
        listening.bind_addr((ip(), 0)).unwrap();
        listening.listen(8).unwrap();
        let addr = listening.addresses().unwrap().local.unwrap().ip().unwrap();
        let listener = Listener::from_id(listening).unwrap();
        id.resolve_addr(None, addr, RESOLVE).unwrap();
        thread::sleep(QUIET);
        let connector = Connector::new();
        let (active, mut passive) = connections(2, &listener, &connector);
        // Read by the listener, and kept.
        assert!(matches!(next_of(&channel, id.key()), EventKind::AddrResolved));
        // The event of a connection that is taken apart is one of the channel.
        let Connected { queue: _queue, link } = passive.pop().unwrap();
        let taken = link.into_id();
        drop(active);
        let kind = next_of(&channel, taken.key());
        assert!(matches!(kind, EventKind::Disconnected(None)), "{kind:?}");
        passive[0].link.ended().in_time().unwrap();
    });
}

#[kernel_test(crate::host::has_ip)]
fn delivered_requests_of_a_dropped_listener_are_rejected() {
    nothing_leaks(|| {
        let channel = EventChannel::new().unwrap();
        let new = || {
            let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
            id.bind_addr((ip(), 0)).unwrap();
            id.listen(8).unwrap();
            Listener::from_id(id).unwrap()
        };
        let (one, other) = (new(), new());
        let active = resolved(other.local_addr().unwrap(), PortSpace::Tcp);
        active.connect(&param()).unwrap();
        // It delivers the request to the other listener.
        assert!(one.request().wait_timeout(QUIET).is_none());
        drop(other);
        let kind = next_of(active.channel(), active.key());
        assert!(matches!(kind, EventKind::Rejected(_)), "{kind:?}");
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn listener_needs_an_identifier_that_listens() {
    let id = |port_space| CmId::new(&EventChannel::new().unwrap(), port_space).unwrap();
    let refused = Listener::from_id(id(PortSpace::Tcp)).unwrap_err();
    assert!(refused.to_string().contains("does not listen"), "{refused}");
    let datagrams = id(PortSpace::Udp);
    datagrams.bind_addr((ip(), 0)).unwrap();
    datagrams.listen(1).unwrap();
    assert!(matches!(Listener::from_id(datagrams).unwrap_err(), Error::Invalid { .. }));
}

#[kernel_test(crate::host::has_ip, device::moves_qps)]
fn options_of_listeners_and_connectors_reach_their_identifiers() {
    nothing_leaks(|| {
        let timeout = AckTimeout::new(11).unwrap();
        let options = IdOptions { ack_timeout: Some(timeout), backlog: 4, ..IdOptions::default() };
        let listener = Listener::bind_with(&options, SocketAddr::new(ip(), 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let source = Some(SocketAddr::new(ip(), 0).into());
        let connector =
            Connector::new().id_options(IdOptions { source, ack_timeout: AckTimeout::new(12), ..options });
        let (active, passive) = connections(1, &listener, &connector);
        assert_eq!(active[0].queue.qp().query().unwrap().0.timeout, AckTimeout::new(12).unwrap());
        assert_eq!(passive[0].queue.qp().query().unwrap().0.timeout, AckTimeout::new(11).unwrap());

        let foreign = IdOptions { source: Some(([192, 0, 2, 1], 0).into()), ..IdOptions::default() };
        let refused = [
            Connector::new().id_options(foreign).resolve(addr).in_time().map(drop),
            Connector::new().id_options(foreign).resolve(addr).in_time().map(drop),
            new_id(PortSpace::Tcp).resolve(foreign.source, addr).in_time(),
        ];
        refused.into_iter().for_each(|refused| assert_eq!(errno(refused), Errno::ADDRNOTAVAIL));
        // A port with two owners, of which none listens yet.
        let reuse = IdOptions { reuse_addr: true, ..IdOptions::default() };
        let [one, other] = [(); 2].map(|()| new_id(PortSpace::Tcp));
        for id in [&one, &other] {
            reuse.apply(id).unwrap();
        }
        one.bind_addr((ip(), 0)).unwrap();
        other.bind_addr(one.addresses().unwrap().local.unwrap()).unwrap();
    });
}

#[kernel_test(device::has_netdev, device::gid_table)]
fn type_of_service_of_a_connector_is_that_of_its_paths() {
    let (_listener, addr) = listen();
    let options = IdOptions { tos: Some(0x68), ..IdOptions::default() };
    let route = Connector::new().id_options(options).resolve(addr).in_time().unwrap();
    assert_eq!(route.id().paths().unwrap()[0].traffic_class, 0x68);
}

#[kernel_test(crate::host::has_ip)]
fn looked_up_addresses_bind_and_connect() {
    nothing_leaks(|| {
        let host = ip().to_string();
        let passive = AddrHints { passive: true, family: Some(AddrFamily::V4), ..AddrHints::default() };
        let found = AddrInfo::lookup(Some(&host), None, &passive).unwrap();
        let listening = found[0].create_id(&EventChannel::new().unwrap()).unwrap();
        listening.listen(1).unwrap();
        let port = listening.addresses().unwrap().local.unwrap().port().to_string();
        let active = AddrHints { numeric_host: true, ..AddrHints::default() };
        let peer = &AddrInfo::lookup(Some(&host), Some(&port), &active).unwrap()[0];
        let id = peer.create_id(&EventChannel::new().unwrap()).unwrap();
        resolve(&id, peer.addr.ip().unwrap());
        id.connect(&param()).unwrap();
        drop(request(&listening));
    });
}

#[kernel_test(device::infiniband)]
fn gid_as_text_is_resolved_on_infiniband() {
    nothing_leaks(|| {
        let gid = bareverbs_kernel_tests::device::gid().to_string();
        let passive = AddrHints { passive: true, family: Some(AddrFamily::Ib), ..AddrHints::default() };
        let found = &AddrInfo::lookup(Some(&gid), Some("7174"), &passive).unwrap()[0];
        let listening = found.create_id(&EventChannel::new().unwrap()).unwrap();
        listening.listen(1).unwrap();
        let peer =
            &AddrInfo::lookup(Some(&gid), Some("7174"), &AddrHints { passive: false, ..passive }).unwrap()[0];
        let id = peer.create_id(&EventChannel::new().unwrap()).unwrap();
        id.resolve_addr(None, peer.addr, RESOLVE).unwrap();
        assert!(matches!(next_of(id.channel(), id.key()), EventKind::AddrResolved));
    });
}

/// Runs two futures in one task.
async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let (mut a, mut b) = (None, None);
    std::future::poll_fn(|cx| {
        if a.is_none()
            && let std::task::Poll::Ready(done) = one.as_mut().poll(cx)
        {
            a = Some(done);
        }
        if b.is_none()
            && let std::task::Poll::Ready(done) = other.as_mut().poll(cx)
        {
            b = Some(done);
        }
        if a.is_some() && b.is_some() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    (a.unwrap(), b.unwrap())
}
