//! Faults: lost messages, removed devices, interfaces that go down, peers that are killed.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::values::AckTimeout;
use bareverbs::{Access, Buffer, Endpoint, EndpointOptions, Errno, Mr, Op};
use bareverbs_kernel_tests::bus::Bus;
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::wire::{End, Wire, lossy_wire, wire};
use bareverbs_kernel_tests::{child, kernel_test};
use bareverbs_netlink::RdmaNetlink;
use bareverbs_rdmacm::command::{self, CmFile};
use bareverbs_rdmacm::event::{EventKind, RejectReason};
use bareverbs_rdmacm::stream::{RdmaListener, RdmaStream, StreamError, StreamOptions};
use bareverbs_rdmacm::{
    CmId, ConnParam, ConnectOptions, Connector, Error, EventChannel, IdOptions, Listener, PortSpace,
};
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::{self, EventType, structs};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::host::*;

const LIMIT: Duration = TIMEOUT;

/// The kernel's retries of a message take up to 98 seconds.
const RETRIES: Duration = Duration::from_secs(150);

fn small() -> EndpointOptions {
    Endpoint::options().sends(1).recvs(1)
}

/// A listener at the far end.
pub(crate) fn far() -> (Listener, SocketAddr) {
    let listener = Listener::bind((End::Far.ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A connector at the near end.
pub(crate) fn from_near() -> Connector {
    Connector::new().id_options(near())
}

/// A new connection is refused in time, with an error that names a cause.
pub(crate) fn assert_refused(connector: &Connector, addr: SocketAddr) {
    let (begin, limit) = (Instant::now(), Duration::from_secs(2));
    // Without an answer, the wait ends at its limit.
    if let Some(connected) = connector.connect::<Mr<Buffer>>(addr, &small()).wait_timeout(limit) {
        let refused = connected.unwrap_err();
        let is_typed = matches!(refused, Error::Command(_) | Error::Address(_) | Error::Unreachable(_));
        assert!(is_typed, "{refused:?}");
    }
    assert!(begin.elapsed() < 3 * limit);
}

/// Both ends of a connection.
fn connect(listener: &Listener, connector: &Connector) -> (Established, Established) {
    connect_to(listener, listener.local_addr().unwrap(), connector)
}

/// The same to that address of the listener.
pub(crate) fn connect_to(
    listener: &Listener,
    addr: SocketAddr,
    connector: &Connector,
) -> (Established, Established) {
    thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept(&small()).in_time().unwrap());
        let connected = connector.connect(addr, &small()).in_time().unwrap();
        (connected, accepted.join().unwrap())
    })
}

fn unreachable<T>(result: Result<T, Error>, of: &str) {
    match result.map(drop) {
        Err(Error::Unreachable(Errno::TIMEDOUT)) => {}
        other => panic!("{of}: {other:?}"),
    }
}

#[kernel_test(lossy_wire)]
fn lost_messages_are_unreachable_peers() {
    let wire = Wire::new();
    {
        let (listener, addr) = far();
        let (mut established, _its_peer) = connect(&listener, &from_near());
        // Its response has arrived.
        let answered = resolved_from_near(addr);
        answered.connect(&param()).unwrap();
        let unconfirmed = steps_of(listener.request().in_time().unwrap()).accept(&param()).unwrap();
        assert!(matches!(next_of(answered.channel(), answered.key()), EventKind::ConnectResponse(_)));
        // Its request has arrived.
        let asking = resolved_from_near(addr);
        asking.connect(&param()).unwrap();
        let asked = steps_of(listener.request().in_time().unwrap());
        let silent = new_id(PortSpace::Tcp);
        silent.resolve(near().source, addr).in_time().unwrap();
        let streams = RdmaListener::bind((End::Far.ip(), 0)).unwrap();
        let opening = resolved_from_near(streams.local_addr());
        opening.connect(&ConnParam { private_data: &offer(), ..param() }).unwrap();
        let mut fds = [PollFd::new(streams.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::try_from(LIMIT).unwrap()), Ok(1));
        wire.cut(End::Near);
        wire.cut(End::Far);

        // The lost confirmation, response, request and end, in this order.
        answered.establish().unwrap();
        let unanswered = asked.accept(&param()).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let kind = passive_end(&unconfirmed);
                assert!(matches!(kind, EventKind::Unreachable(_)), "confirmation: {kind:?}");
            });
            scope.spawn(|| {
                let kind = passive_end(&unanswered);
                assert!(matches!(kind, EventKind::Unreachable(_)), "response: {kind:?}");
            });
            scope.spawn(|| {
                let ended = streams.accept().wait().unwrap().recv(&mut [0]).unwrap_err();
                // The first message of the accepting side may be noticed as lost before.
                let lost = match &ended {
                    StreamError::Cm(error) => matches!(**error, Error::Unreachable(Errno::TIMEDOUT)),
                    StreamError::Verbs(error) => error.is_peer_lost(),
                    _ => false,
                };
                assert!(lost, "confirmation of a stream: {ended:?}");
            });
            scope.spawn(|| {
                silent.connect(&param()).unwrap();
                let ended = silent.response().wait_timeout(RETRIES).expect("an end in time");
                unreachable(ended, "request");
            });
            scope.spawn(|| {
                let ended = established.link.disconnect().wait_timeout(RETRIES).expect("an end in time");
                unreachable(ended, "end");
            });
        });
        wire.heal();
    }
    wire.settle();
}

/// The event that ends the attempt of a passive identifier. It shares its channel with others, whose
/// events it leaves to them.
fn passive_end(id: &CmId) -> EventKind {
    let event = id.channel().next().wait_timeout(RETRIES).transpose().unwrap().expect("an event in time");
    assert_eq!(event.key, id.key(), "{:?}", event.kind);
    event.kind
}

/// The request on a channel of its own.
fn steps_of(incoming: bareverbs_rdmacm::connection::Incoming) -> bareverbs_rdmacm::ConnectRequest {
    let mut request = incoming.into_request();
    request.migrate(&EventChannel::new().unwrap()).unwrap();
    request
}

#[kernel_test(lossy_wire)]
fn time_limit_ends_the_wait_for_a_peer_that_is_cut_off() {
    let wire = Wire::new();
    {
        let short = Duration::from_millis(500);
        let (listener, addr) = far();
        let (mut active, mut passive) = connect(&listener, &from_near());
        let route = from_near().resolve(addr).in_time().unwrap();
        let pd = from_near().domains().pd(route.device().unwrap()).unwrap();
        let endpoint: Endpoint<Mr<Buffer>> = small().build(&pd).unwrap();
        wire.cut(End::Near);
        let begin = Instant::now();
        let refused = route.connect(endpoint, &ConnectOptions::default()).wait_timeout(short);
        assert!(refused.is_none(), "{refused:?}");
        assert!(active.link.disconnect().wait_timeout(short).is_none());
        assert!(!passive.link.has_ended().unwrap());
        drop((active, passive));
        assert!(begin.elapsed() < LIMIT);
        wire.heal();
        drop(connect(&listener, &from_near()));
    }
    wire.settle();
}

/// For tests that remove a device while programs have connections on it.
///
/// # Errors
/// If the device is on no bus, or has no IP address of its own.
pub(crate) fn removable() -> Requirement {
    device::unbindable()?;
    device::ethernet()
}

#[kernel_test(removable)]
fn device_removal_ends_each_identifier_with_its_error() {
    let bus = Bus::new();
    let everywhere = Listener::bind("0.0.0.0:0").unwrap();
    let listener = Listener::bind((ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let connector = Connector::new();
    let (mut active, mut passive) = connect(&listener, &connector);
    let streams = RdmaListener::bind((ip(), 0)).unwrap();
    let (mut reader, mut writer) = thread::scope(|scope| {
        let accepted = scope.spawn(|| streams.accept().wait().unwrap());
        (RdmaStream::connect(streams.local_addr()).wait().unwrap(), accepted.join().unwrap())
    });
    writer.write_all(b"first").unwrap();
    reader.read_exact(&mut [0; 5]).unwrap();
    let id = resolved(addr, PortSpace::Tcp);
    let asking = resolved(addr, PortSpace::Tcp);
    asking.connect(&param()).unwrap();
    let waiting = listener.request().in_time().unwrap();

    thread::scope(|scope| {
        // Each of these waits when the device goes.
        let active = scope.spawn(|| active.link.ended().in_time());
        let passive = scope.spawn(|| passive.link.ended().in_time());
        let request = scope.spawn(|| listener.request().in_time().map(drop));
        let stream = scope.spawn(|| streams.accept().in_time().map(drop));
        let reader = scope.spawn(|| {
            reader.set_read_timeout(Some(LIMIT));
            reader.recv(&mut [0])
        });
        thread::sleep(QUIET);
        bus.unbind();
        let refused = request.join().unwrap();
        assert!(matches!(refused, Err(Error::DeviceRemoved { .. })), "{refused:?}");
        let refused = stream.join().unwrap().unwrap_err();
        let StreamError::Cm(error) = &refused else { panic!("{refused:?}") };
        assert!(matches!(**error, Error::DeviceRemoved { .. }), "{refused:?}");
        // The end whose identifier the kernel destroys first sends a DREQ to the other one.
        for end in [active, passive] {
            // In time, with an error or without.
            let _ = end.join().unwrap();
        }
        match reader.join().unwrap() {
            Ok(len) => assert_eq!(len, 0),
            Err(error) => assert!(!matches!(error, StreamError::TimedOut { .. }), "{error:?}"),
        }
    });
    assert!(matches!(next_of(id.channel(), id.key()), EventKind::DeviceRemoval));
    // Only destruction is left to the identifiers.
    for refused in [errno(id.connect(&param())), errno(waiting.reject(b"late"))] {
        assert!([Errno::NXIO, Errno::INVAL].contains(&refused), "{refused}");
    }
    writer.write_all(&[0; 1 << 20]).unwrap_err();
    // The listener of all devices goes on, and has no request.
    assert!(everywhere.request().wait_timeout(QUIET).is_none());
    drop((id, asking, reader, writer, active, passive, listener, streams));

    // The next device of the same name and address is opened again, by the same connector.
    bus.bind();
    let again = SocketAddr::new(ip(), everywhere.local_addr().unwrap().port());
    let (active, passive) = connect_to(&everywhere, again, &connector);
    drop((active, passive));
}

/// Soft-RoCE has no bus. The kernel deletes its device at once if no program has opened it for verbs.
#[kernel_test(wire)]
fn deleted_device_closes_each_identifier() {
    let wire = Wire::new();
    {
        let (listener, addr) = listener_on(SocketAddr::new(End::Far.ip().into(), 0), PortSpace::Tcp, 8);
        let everywhere = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        everywhere.listen(1).unwrap();
        let bound = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        bound.bind_addr((End::Near.ip(), 0)).unwrap();
        let routed = resolved(addr, PortSpace::Tcp);
        let asking = resolved(addr, PortSpace::Tcp);
        asking.connect(&param()).unwrap();
        let asked = request(&listener);
        let (active, passive) = connected(&listener, addr);

        RdmaNetlink::open().unwrap().del_link(End::Near.device()).unwrap();
        for id in [&bound, &routed, &asking, &active] {
            let kind = next_of(id.channel(), id.key());
            assert!(matches!(kind, EventKind::DeviceRemoval), "{kind:?}");
            let refused = errno(id.connect(&param()));
            assert!([Errno::NXIO, Errno::INVAL].contains(&refused), "{refused}");
        }
        RdmaNetlink::open().unwrap().del_link(End::Far.device()).unwrap();
        // The DREQ of the other end may be lost. Its own device is gone in any case.
        let mut removed = Vec::new();
        while ![listener.key(), passive.key()].iter().all(|key| removed.contains(key)) {
            let event = next(listener.channel());
            match event.kind {
                EventKind::DeviceRemoval => removed.push(event.key),
                EventKind::Disconnected(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let refused = errno(asked.reject(b"late"));
        assert!([Errno::NXIO, Errno::INVAL].contains(&refused), "{refused}");
        quiet(everywhere.channel());
        for id in [bound, routed, asking, active, passive, listener] {
            id.destroy().unwrap();
        }
    }
    wire.settle();
}

#[kernel_test(wire)]
fn interface_down_ends_connections_and_refuses_new_ones() {
    let wire = Wire::new();
    {
        let (listener, addr) = far();
        let ack_timeout = AckTimeout::new(12);
        let connector = Connector::new().id_options(IdOptions { ack_timeout, ..IdOptions::default() });
        let (mut active, _passive) = connect(&listener, &connector);
        wire.take_down(End::Near);
        let memory =
            active.queue.qp().pd().register(Buffer::zeroed(8).unwrap(), Access::LOCAL_WRITE).unwrap();
        active.queue.post(Op::send(memory, ..8)).unwrap();
        // The retries are exhausted.
        let _ = active.queue.next().wait().unwrap_err();
        assert_refused(&connector, addr);
    }
    wire.settle();
}

/// Soft-RoCE deletes its device with the interface. The kernel waits until no program has it open.
#[kernel_test(wire)]
fn deleted_interface_ends_connections_and_refuses_new_ones() {
    let wire = Wire::new();
    thread::scope(|scope| {
        let (listener, addr) = far();
        let ack_timeout = AckTimeout::new(12);
        let connector = Connector::new().id_options(IdOptions { ack_timeout, ..IdOptions::default() });
        let (mut active, passive) = connect(&listener, &connector);
        let streams = RdmaListener::bind((End::Far.ip(), 0)).unwrap();
        let options = IdOptions { ack_timeout, ..IdOptions::default() };
        let (mut reader, mut writer) = thread::scope(|scope| {
            let accepted = scope.spawn(|| streams.accept().wait().unwrap());
            let options = StreamOptions::default().id_options(options);
            let writer = options.connect(streams.local_addr()).wait().unwrap();
            (accepted.join().unwrap(), writer)
        });
        writer.write_all(b"first").unwrap();
        reader.read_exact(&mut [0; 5]).unwrap();
        let idle = resolved(addr, PortSpace::Tcp);

        let deleted = scope.spawn(|| wire.delete());
        let gone = || !std::path::Path::new("/sys/class/net").join(End::Near.netdev()).exists();
        let begin = Instant::now();
        while !gone() {
            assert!(begin.elapsed() < LIMIT, "the interface is not deleted");
            thread::sleep(Duration::from_millis(10));
        }
        let memory =
            active.queue.qp().pd().register(Buffer::zeroed(8).unwrap(), Access::LOCAL_WRITE).unwrap();
        active.queue.post(Op::send(memory, ..8)).unwrap();
        // The retries are exhausted.
        let _ = active.queue.next().wait().unwrap_err();
        writer.set_write_timeout(Some(LIMIT));
        let lost = loop {
            match writer.send(&[0; 4096]) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(!matches!(lost, StreamError::TimedOut { .. }), "{lost:?}");
        assert_refused(&connector, addr);

        // Those with a queue pair keep the device open.
        drop((active, passive, connector, reader, writer, streams));
        let refused = listener.request().in_time();
        assert!(matches!(refused, Err(Error::DeviceRemoved { .. })), "{:?}", refused.map(drop));
        assert!(matches!(next_of(idle.channel(), idle.key()), EventKind::DeviceRemoval));
        drop((idle, listener));
        deleted.join().unwrap();
    });
    wire.wait_deleted();
}

/// The next event of the file.
fn raw_event(file: &CmFile, expected: EventType) -> EventResp {
    let begin = Instant::now();
    loop {
        if let Some(event) = command::get_event(file).unwrap() {
            assert_eq!((event.event, event.status), (expected, 0));
            return event;
        }
        assert!(begin.elapsed() < LIMIT, "no {expected:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// An identifier of the file.
fn raw_id(file: &CmFile) -> u32 {
    let request = CreateIdReq { uid: 1, ps: rdma_cm::PortSpace::TCP, ..CreateIdReq::zeroed() };
    command::create_id(file, request).unwrap().id
}

/// Nothing destroys the identifiers of raw commands but the last close of their file.
#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn closed_file_ends_its_identifiers_in_each_step() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        for step in 0..4 {
            let file = CmFile::open().unwrap();
            let id = raw_id(&file);
            let request = ResolveIpReq {
                id,
                src_addr: kernel_ip(0),
                dst_addr: kernel_ip(addr.port()),
                timeout_ms: 5000,
            };
            command::resolve_ip(&file, request).unwrap();
            raw_event(&file, EventType::ADDR_RESOLVED);
            command::resolve_route(&file, ResolveRouteReq { id, timeout_ms: 5000 }).unwrap();
            raw_event(&file, EventType::ROUTE_RESOLVED);
            if step == 0 {
                drop(file);
                quiet(listener.channel());
                continue;
            }
            let conn_param =
                structs::ConnParam { qp_num: qp_num(), valid: 1, ..structs::ConnParam::zeroed() };
            command::connect(&file, ConnectReq { id, conn_param, ..ConnectReq::zeroed() }).unwrap();
            let asked = crate::host::request(&listener);
            if step == 1 {
                drop(file);
                // Its rejection arrives soon.
                thread::sleep(QUIET);
                let refused = asked.accept(&param()).unwrap_err();
                assert!(matches!(refused, Error::Withdrawn { verb: "accept" }), "{refused}");
                continue;
            }
            let passive = asked.accept(&param()).unwrap();
            raw_event(&file, EventType::CONNECT_RESPONSE);
            if step == 2 {
                drop(file);
                let kind = next_of(passive.channel(), passive.key());
                assert!(matches!(kind, EventKind::Rejected(_)), "{kind:?}");
                continue;
            }
            command::accept(&file, AcceptReq { id, ..AcceptReq::zeroed() }).unwrap();
            let kind = next_of(passive.channel(), passive.key());
            assert!(matches!(kind, EventKind::Established(_)), "{kind:?}");
            drop(file);
            let kind = next_of(passive.channel(), passive.key());
            assert!(matches!(kind, EventKind::Disconnected(None)), "{kind:?}");
            passive.disconnect().unwrap();
        }
    });
}

/// A listener of raw commands, with a request that was read and one that was not.
#[kernel_test(crate::host::has_ip)]
fn closed_file_ends_its_listener() {
    nothing_leaks(|| {
        let file = CmFile::open().unwrap();
        let id = raw_id(&file);
        command::bind_ip(&file, BindIpReq { id, addr: kernel_ip(0), response: 0 }).unwrap();
        command::listen(&file, ListenReq { id, backlog: 8 }).unwrap();
        let port = command::query_route(&file, QueryReq { id, ..QueryReq::zeroed() }).unwrap().src_addr.port;
        let addr = SocketAddr::new(ip(), port.get());
        let asking = [(); 2].map(|()| resolved(addr, PortSpace::Tcp));
        for id in &asking {
            id.connect(&param()).unwrap();
        }
        raw_event(&file, EventType::CONNECT_REQUEST);
        thread::sleep(QUIET);
        drop(file);
        for id in &asking {
            let kind = next_of(id.channel(), id.key());
            assert!(matches!(kind, EventKind::Rejected(_)), "{kind:?}");
        }
        // The port is free.
        drop(listener_on(addr, PortSpace::Tcp, 1));
    });
}

/// A process that is killed when it has reached a step.
pub(crate) struct Doomed {
    child: Pid,
    pipe: UnixStream,
}

impl Doomed {
    /// Starts the process. `work` gets the other end of the pipe, and never returns.
    pub(crate) fn new(work: impl FnOnce(&mut UnixStream)) -> Self {
        let (mut its, pipe) = UnixStream::pair().unwrap();
        let child = child::start(|| {
            work(&mut its);
            its.write_all(b"!").unwrap();
            loop {
                thread::park();
            }
        });
        pipe.set_read_timeout(Some(LIMIT)).unwrap();
        Self { child, pipe }
    }

    pub(crate) fn send_address(&mut self, addr: SocketAddr) {
        send_address(&mut self.pipe, addr);
    }

    pub(crate) fn receive_address(&mut self) -> SocketAddr {
        receive_address(&mut self.pipe)
    }

    /// Waits until the process has reached its step.
    pub(crate) fn reached(&mut self) {
        self.pipe.read_exact(&mut [0]).unwrap();
    }

    pub(crate) fn kill(self) {
        kill(self.child, Signal::SIGKILL).unwrap();
        waitpid(self.child, None).unwrap();
    }
}

pub(crate) fn send_address(pipe: &mut UnixStream, addr: SocketAddr) {
    let SocketAddr::V4(addr) = addr else { panic!("{addr}") };
    pipe.write_all(&addr.ip().octets()).unwrap();
    pipe.write_all(&addr.port().to_le_bytes()).unwrap();
}

pub(crate) fn receive_address(pipe: &mut UnixStream) -> SocketAddr {
    let (mut ip, mut port) = ([0; 4], [0; 2]);
    pipe.read_exact(&mut ip).unwrap();
    pipe.read_exact(&mut port).unwrap();
    (ip, u16::from_le_bytes(port)).into()
}

#[kernel_test(crate::host::has_ip, device::outlives_its_process, device::connects_any_qp_number)]
fn killed_client_is_noticed_in_each_step() {
    nothing_leaks(|| {
        for step in 0..4 {
            let mut doomed = Doomed::new(|pipe| {
                let id = resolved(receive_address(pipe), PortSpace::Tcp);
                if step > 0 {
                    id.connect(&param()).unwrap();
                }
                if step > 1 {
                    let kind = next_of(id.channel(), id.key());
                    assert!(matches!(kind, EventKind::ConnectResponse(_)), "{kind:?}");
                }
                if step > 2 {
                    id.establish().unwrap();
                }
                std::mem::forget(id);
            });
            let listener = Listener::bind(SocketAddr::new(ip(), 0)).unwrap();
            doomed.send_address(listener.local_addr().unwrap());
            match step {
                0 => {
                    doomed.reached();
                    doomed.kill();
                    assert!(listener.request().wait_timeout(QUIET).is_none());
                }
                1 => {
                    let incoming = listener.request().in_time().unwrap();
                    doomed.reached();
                    doomed.kill();
                    thread::sleep(QUIET);
                    let endpoint = endpoint(&listener, &incoming);
                    let refused =
                        incoming.accept(endpoint, &ConnectOptions::default()).in_time().unwrap_err();
                    assert!(matches!(refused, Error::Withdrawn { verb: "accept" }), "{refused}");
                }
                2 => {
                    let incoming = listener.request().in_time().unwrap();
                    let endpoint = endpoint(&listener, &incoming);
                    let accepting = thread::spawn(move || {
                        incoming.accept(endpoint, &ConnectOptions::default()).in_time().map(drop)
                    });
                    doomed.reached();
                    doomed.kill();
                    let refused = accepting.join().unwrap().unwrap_err();
                    assert!(matches!(refused, Error::Rejected(_)), "{refused}");
                }
                _ => {
                    let mut peer = listener.accept::<Mr<Buffer>>(&small()).in_time().unwrap();
                    doomed.reached();
                    doomed.kill();
                    peer.link.ended().in_time().unwrap();
                }
            }
        }
    });
}

fn endpoint(listener: &Listener, incoming: &bareverbs_rdmacm::connection::Incoming) -> Endpoint {
    let device = incoming.device().unwrap();
    small().port(device.port).build(&listener.domains().pd(device).unwrap()).unwrap()
}

#[kernel_test(crate::host::has_ip, device::outlives_its_process, device::connects_any_qp_number)]
fn killed_server_is_noticed_in_each_step() {
    nothing_leaks(|| {
        for step in 0..4 {
            let mut doomed = Doomed::new(|pipe| {
                let (listener, addr) = listener(PortSpace::Tcp, 4);
                send_address(pipe, addr);
                if step > 0 {
                    let request = request(&listener);
                    if step == 1 {
                        std::mem::forget(request);
                    } else {
                        let id = request.accept(&param()).unwrap();
                        if step > 2 {
                            let kind = next_of(id.channel(), id.key());
                            assert!(matches!(kind, EventKind::Established(_)), "{kind:?}");
                        }
                        std::mem::forget(id);
                    }
                }
                std::mem::forget(listener);
            });
            let addr = doomed.receive_address();
            let client = new_id(PortSpace::Tcp);
            client.resolve(None, addr).in_time().unwrap();
            match step {
                0 => {
                    doomed.reached();
                    doomed.kill();
                    client.connect(&param()).unwrap();
                    let refused = client.response().in_time().unwrap_err();
                    let Error::Rejected(rejected) = refused else { panic!("{refused}") };
                    assert_eq!(rejected.reason, RejectReason::InvalidServiceId);
                }
                1 => {
                    client.connect(&param()).unwrap();
                    let connecting = thread::spawn(move || client.response().in_time().map(drop));
                    doomed.reached();
                    doomed.kill();
                    let refused = connecting.join().unwrap().unwrap_err();
                    let Error::Rejected(rejected) = refused else { panic!("{refused}") };
                    assert_eq!(rejected.reason, RejectReason::Consumer);
                }
                2 => {
                    client.connect(&param()).unwrap();
                    client.response().in_time().unwrap();
                    doomed.reached();
                    doomed.kill();
                    thread::sleep(QUIET);
                    // The response was taken back.
                    assert_eq!(errno(client.establish()), Errno::INVAL);
                }
                _ => {
                    client.connect(&param()).unwrap();
                    client.response().in_time().unwrap();
                    client.establish().unwrap();
                    doomed.reached();
                    doomed.kill();
                    let kind = next_of(client.channel(), client.key());
                    assert!(matches!(kind, EventKind::Disconnected(None)), "{kind:?}");
                }
            }
        }
    });
}

#[kernel_test(crate::host::has_ip, device::between_processes)]
pub(crate) fn killed_peer_ends_its_stream() {
    nothing_leaks(|| {
        let mut doomed = Doomed::new(|pipe| {
            let listener = RdmaListener::bind(SocketAddr::new(ip(), 0)).unwrap();
            send_address(pipe, listener.local_addr());
            let mut stream = listener.accept().wait().unwrap();
            stream.write_all(b"last").unwrap();
            stream.sent().in_time().unwrap();
            std::mem::forget((stream, listener));
        });
        let mut stream = RdmaStream::connect(doomed.receive_address()).wait().unwrap();
        // A soft device ends with its process, without a message. A probe finds that.
        stream.set_keepalive(Some(QUIET)).unwrap();
        stream.set_read_timeout(Some(LIMIT));
        stream.set_write_timeout(Some(LIMIT));
        doomed.reached();
        doomed.kill();
        // What has arrived is read first.
        let mut read = Vec::new();
        let ended = stream.read_to_end(&mut read);
        assert_eq!(read, b"last", "{ended:?}");
        stream.write_all(b"x").unwrap_err();
    });
}
