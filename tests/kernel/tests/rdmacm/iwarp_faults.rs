//! Faults on iWARP: killed peers, devices that are deleted, interfaces that go down, lost packets.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::device::EventType;
use bareverbs::{AsyncEvent, AsyncEvents, Device, Endpoint, Op, WcStatus};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::wire::{End, Impairment, Wire};
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_netlink::RdmaNetlink;
use bareverbs_rdmacm::event::EventKind;
use bareverbs_rdmacm::{ConnectOptions, Connector, Error};
use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, delete_module};

use crate::faults::{self, Doomed, far, from_near};
use crate::host::*;
use crate::iwarp::{ConnectedEndpoint, accept, connect, connected_over_wire, listen, region};

/// The receive of the connection is flushed in time.
fn assert_flushed(connection: &mut ConnectedEndpoint) {
    let failed = connection.queue.next().wait_timeout(TIMEOUT).expect("an end in time").unwrap_err();
    let flushed = matches!(failed.error, bareverbs::Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. });
    assert!(failed.is_recv() && flushed, "{failed:?}");
}

/// The peer has ended the connection: the receive is flushed, and the link reports the end.
fn assert_ended(mut connection: ConnectedEndpoint) {
    assert_flushed(&mut connection);
    connection.link.ended().in_time().unwrap();
}

#[kernel_test(device::iwarp)]
fn killed_process_ends_its_connections_on_iwarp() {
    nothing_leaks(kill_a_server);
    nothing_leaks(kill_a_client);
    faults::killed_peer_ends_its_stream();
}

fn kill_a_server() {
    let mut doomed = Doomed::new(|pipe| {
        let (listener, addr) = listen();
        faults::send_address(pipe, addr);
        let request = listener.request().in_time().unwrap();
        let server = accept(request, &Endpoint::options(), &ConnectOptions::default());
        std::mem::forget((listener, server));
    });
    let route = Connector::new().resolve(doomed.receive_address()).in_time().unwrap();
    let client = connect(route, &Endpoint::options(), &ConnectOptions::default());
    doomed.reached();
    doomed.kill();
    assert_ended(client);
}

fn kill_a_client() {
    let mut doomed = Doomed::new(|pipe| {
        let route = Connector::new().resolve(faults::receive_address(pipe)).in_time().unwrap();
        std::mem::forget(connect(route, &Endpoint::options(), &ConnectOptions::default()));
    });
    let (listener, addr) = listen();
    doomed.send_address(addr);
    let request = listener.request().in_time().unwrap();
    let server = accept(request, &Endpoint::options(), &ConnectOptions::default());
    doomed.reached();
    doomed.kill();
    assert_ended(server);
}

/// Sends a message, and posts a receive for the next one.
fn send(from: &mut ConnectedEndpoint, to: &mut ConnectedEndpoint, message: &[u8]) {
    let memory = region(from.queue.qp().pd(), message);
    from.queue.post(Op::send(memory, ..message.len())).unwrap();
    assert_eq!(to.queue.next().wait().unwrap().message(), Some(message));
    assert!(from.queue.next().wait().unwrap().message().is_none());
    to.queue.post(Op::recv(region(to.queue.qp().pd(), &[]))).unwrap();
}

/// The connection manager drops the device first, and with it the connections. Then the kernel waits until
/// no program has it open.
#[kernel_test(device::iwarp)]
fn deleted_siw_device_ends_its_connections_and_is_gone_after_its_last_user() {
    let wire = Wire::new();
    let near = || Device::find(End::Near.device());
    nothing_leaks(|| {
        let (_listener, addr) = far();
        let idle = resolved_from_near(addr);
        let [mut client, mut server] = connected_over_wire(&Endpoint::options());
        send(&mut client, &mut server, b"last");
        thread::scope(|scope| {
            let deleted = scope.spawn(|| RdmaNetlink::open().unwrap().del_link(End::Near.device()).unwrap());
            let removed = client.link.ended().in_time();
            assert!(matches!(removed, Err(Error::DeviceRemoved { .. })), "{removed:?}");
            assert_flushed(&mut client);
            assert_ended(server);
            assert!(matches!(next_of(idle.channel(), idle.key()), EventKind::DeviceRemoval));
            let begin = Instant::now();
            while near().is_ok_and(|device| device.open().is_ok()) {
                assert!(begin.elapsed() < TIMEOUT, "the device can still be opened");
                thread::sleep(Duration::from_millis(10));
            }
            faults::assert_refused(&from_near(), addr);
            assert!(!deleted.is_finished(), "the endpoint has the device open");
            drop(client);
            deleted.join().unwrap();
        });
        assert!(near().is_err());
    });
    drop(wire);
}

#[kernel_test(device::iwarp)]
fn module_of_siw_stays_while_a_program_has_a_device_open() {
    let users = || fs::read_to_string("/sys/module/siw/refcnt").unwrap();
    let unused = users();
    let context = device::open();
    assert_ne!(users(), unused);
    assert_eq!(delete_module(c"siw", DeleteModuleFlags::O_NONBLOCK), Err(Errno::EAGAIN));
    drop(context);
    let begin = Instant::now();
    while users() != unused {
        assert!(begin.elapsed() < TIMEOUT, "{} users", users());
        thread::sleep(Duration::from_millis(1));
    }
}

#[kernel_test(device::iwarp)]
fn connections_of_siw_survive_an_interface_that_is_down_for_a_moment() {
    let wire = Wire::new();
    nothing_leaks(|| {
        let [mut client, mut server] = connected_over_wire(&Endpoint::options());
        send(&mut client, &mut server, b"before");
        let events = client.queue.qp().pd().context().async_events();
        wire.take_down(End::Near);
        wait_for_port_event(&events, EventType::PORT_ERR);
        if device::link_down_ends_connections() {
            assert_ended(client);
            // The message of the end may be lost.
            drop(server);
            wire.bring_up(End::Near);
            wait_for_port_event(&events, EventType::PORT_ACTIVE);
            [client, server] = connected_over_wire(&Endpoint::options());
            return send(&mut client, &mut server, b"after");
        }
        let memory = region(client.queue.qp().pd(), b"while down");
        client.queue.post(Op::send(memory, ..10)).unwrap();
        assert!(server.queue.next().wait_timeout(QUIET).is_none());
        wire.bring_up(End::Near);
        wait_for_port_event(&events, EventType::PORT_ACTIVE);
        assert_eq!(server.queue.next().wait().unwrap().message(), Some(&b"while down"[..]));
    });
}

/// Events of queue pairs may come before.
fn wait_for_port_event(events: &AsyncEvents, wanted: EventType) {
    let end = Instant::now() + TIMEOUT;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let event = events.next().wait_timeout(left).transpose().unwrap();
        match event.expect("an event of the port in time") {
            AsyncEvent::Port { event, .. } if event == wanted => return,
            _ => {}
        }
    }
}

/// The number of TCP segments that this host has sent again.
fn repeated_segments() -> u64 {
    let text = fs::read_to_string("/proc/net/snmp").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let mut fields = [(); 2].map(|()| lines.next().unwrap().split(' '));
    let [names, values] = &mut fields;
    let (_, value) = names.zip(values).find(|(name, _)| *name == "RetransSegs").unwrap();
    value.parse().unwrap()
}

#[kernel_test(device::iwarp)]
fn messages_of_iwarp_arrive_once_in_order_over_a_lossy_wire() {
    const MESSAGES: u32 = 1000;
    const BYTES: usize = 1024;
    let content = |number: u32| -> Vec<u8> { number.to_le_bytes().repeat(BYTES / 4) };
    let wire = Wire::new();
    nothing_leaks(|| {
        let options = Endpoint::options().sends(MESSAGES).recvs(MESSAGES + 1);
        let [mut client, mut server] = connected_over_wire(&options);
        // A message without a receive ends the connection.
        let pd = server.queue.qp().pd().clone();
        for _ in 0..MESSAGES {
            server.queue.post(Op::recv(region(&pd, &[]))).unwrap();
        }
        let before = repeated_segments();
        for end in [End::Near, End::Far] {
            wire.inject(end, Impairment::Loss(5));
        }
        let pd = client.queue.qp().pd().clone();
        for number in 0..MESSAGES {
            client.queue.post(Op::send(region(&pd, &content(number)), ..BYTES)).unwrap();
        }
        for number in 0..MESSAGES {
            let done = server.queue.next().wait().unwrap();
            assert_eq!(done.message(), Some(&content(number)[..]), "message {number}");
        }
        assert!(repeated_segments() > before, "no segment was lost");
        for _ in 0..MESSAGES {
            client.queue.next().wait().unwrap();
        }
        wire.heal();
        send(&mut client, &mut server, b"last");
    });
}
