//! Changes of the network under connections: repeated requests, an address or an interface that goes
//! and comes back, a device with another name.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::qp::QpState;
use bareverbs::values::AckTimeout;
use bareverbs::{Access, Buffer, Endpoint, EndpointOptions, Errno, Mr, Op};
use bareverbs_kernel_tests::kernel_test;
use bareverbs_kernel_tests::wire::{End, Impairment, Wire, lossy_wire, stopped_gsi_qp_is_in_error, wire};
use bareverbs_netlink::RdmaNetlink;
use bareverbs_rdmacm::event::{Event, EventKind, RequestParam};
use bareverbs_rdmacm::{
    CmId, ConnectRequest, Connector, Error, EventChannel, IdOptions, Listener, PortSpace,
};

use crate::faults::connect_to;
use crate::host::*;

const LIMIT: Duration = TIMEOUT;

fn small() -> EndpointOptions {
    Endpoint::options().sends(1).recvs(1)
}

/// A listener on all addresses, and its address at the far end.
fn far() -> (Listener, SocketAddr) {
    let listener = Listener::bind("0.0.0.0:0").unwrap();
    let addr = SocketAddr::new(End::Far.ip().into(), listener.local_addr().unwrap().port());
    (listener, addr)
}

/// Retries a lost packet for about a second.
fn impatient() -> Connector {
    let ack_timeout = AckTimeout::new(14);
    Connector::new().id_options(IdOptions { ack_timeout, ..IdOptions::default() })
}

/// Connects again until it succeeds: a network that has come back needs a moment.
fn connect_again(listener: &Listener, addr: SocketAddr, connector: &Connector) {
    let begin = Instant::now();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            loop {
                match listener.accept(&small()).in_time() {
                    Ok(accepted) => break accepted,
                    Err(Error::Withdrawn { .. } | Error::Rejected(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let mut connected = loop {
            match connector.connect(addr, &small()).wait_timeout(Duration::from_secs(3)) {
                Some(Ok(connected)) => break connected,
                refused => assert!(begin.elapsed() < LIMIT / 2, "{refused:?}"),
            }
        };
        let mut accepted = accepted.join().unwrap();
        exchange(&mut connected, &mut accepted);
    });
}

fn memory(connection: &Established) -> Mr<Buffer> {
    connection.queue.qp().pd().register(Buffer::zeroed(8).unwrap(), Access::LOCAL_WRITE).unwrap()
}

/// Ends a connection from the active end.
fn end_connection(mut active: Established, mut passive: Established) {
    thread::scope(|scope| {
        let answered = scope.spawn(|| passive.link.ended().in_time());
        active.link.disconnect().in_time().unwrap();
        answered.join().unwrap().unwrap();
    });
}

/// Sends a message.
fn exchange(from: &mut Established, to: &mut Established) {
    let (received, sent) = (memory(to), memory(from));
    to.queue.post(Op::recv(received)).unwrap();
    from.queue.post(Op::send(sent, ..8)).unwrap();
    from.queue.next().wait().unwrap();
    to.queue.next().wait().unwrap();
}

/// The QPN of the peer.
fn peer_qp_num(request: &ConnectRequest) -> u32 {
    match request.param() {
        RequestParam::Connection(param) => param.qp_num,
        other => panic!("{other:?}"),
    }
}

/// Each message of the connecting side arrives twice. The copy may be the later by up to 200 ms.
#[kernel_test(lossy_wire)]
fn repeated_request_is_new_after_its_rejection() {
    const ROUNDS: usize = 12;
    let latest = Duration::from_millis(400);
    let wire = Wire::new();
    {
        let (listener, addr) = listener_on(SocketAddr::new(End::Far.ip().into(), 0), PortSpace::Tcp, 8);
        wire.inject(End::Near, Impairment::Duplicate(Duration::from_millis(200)));
        // While the connection exists, its request is known.
        for _ in 0..3 {
            let active = resolved_from_near(addr);
            active.connect(&param()).unwrap();
            let passive = request(&listener).accept(&param()).unwrap();
            establish(&active, &passive);
            let event = listener.channel().next().wait_timeout(latest).transpose().unwrap();
            assert!(event.is_none(), "{event:?}");
            disconnect(&active, &passive);
        }
        let mut repeated = 0;
        for _ in 0..ROUNDS {
            let active = resolved_from_near(addr);
            let own = param();
            active.connect(&own).unwrap();
            let asked = request(&listener);
            assert_eq!(peer_qp_num(&asked), own.qp_num);
            asked.reject(b"no").unwrap();
            let kind = next_of(active.channel(), active.key());
            assert!(matches!(kind, EventKind::Rejected(_)), "{kind:?}");
            match listener.channel().next().wait_timeout(latest).transpose().unwrap() {
                None => {}
                Some(Event { kind: EventKind::ConnectRequest(copy), .. }) => {
                    assert_eq!(peer_qp_num(&copy), own.qp_num);
                    repeated += 1;
                    drop(copy);
                }
                Some(other) => panic!("{other:?}"),
            }
            // The peer has given up: it ignores the second rejection.
            quiet(active.channel());
        }
        assert!(repeated > 0, "no copy of {ROUNDS} requests came after the rejection");
    }
    wire.heal();
    wire.settle();
}

/// The interface of the listener goes down and comes back, and then that of the connecting side. No
/// message of the CM is sent meanwhile.
#[kernel_test(wire)]
fn listener_answers_after_an_interface_returns() {
    let wire = Wire::new();
    {
        let (everywhere, everywhere_addr) = far();
        let bound = Listener::bind((End::Far.ip(), 0)).unwrap();
        let bound_addr = bound.local_addr().unwrap();
        let connector = impatient();
        for end in [End::Far, End::Near] {
            for (listener, addr) in [(&everywhere, everywhere_addr), (&bound, bound_addr)] {
                let (active, passive) = connect_to(listener, addr, &connector);
                end_connection(active, passive);
            }
            wire.take_down(end);
            wire.bring_up(end);
            for (listener, addr) in [(&everywhere, everywhere_addr), (&bound, bound_addr)] {
                connect_again(listener, addr, &connector);
            }
        }
    }
    wire.settle();
}

/// The state of the near end's QP 1.
fn near_gsi_state() -> Option<QpState> {
    let qps = RdmaNetlink::open().unwrap().queue_pairs(End::Near.device()).unwrap();
    qps.iter().find(|qp| qp.qp_num == 1).and_then(|qp| qp.state)
}

/// Soft-RoCE can't send the request and sets QP 1 to ERR. Only a new device has one that works.
#[kernel_test(wire)]
fn request_while_the_interface_is_down_leaves_the_device_without_its_gsi_qp() {
    let wire = Wire::new();
    {
        let (listener, addr) = far();
        let connector = impatient();
        let (active, passive) = connect_to(&listener, addr, &connector);
        end_connection(active, passive);
        wire.take_down(End::Far);
        let connected = connector.connect::<Mr<Buffer>>(addr, &small()).wait_timeout(Duration::from_secs(2));
        assert!(!matches!(connected, Some(Ok(_))));
        wire.bring_up(End::Far);
        let refused = connector.connect::<Mr<Buffer>>(addr, &small()).wait_timeout(Duration::from_secs(3));
        assert!(refused.is_none(), "{refused:?}");
        let reported = if stopped_gsi_qp_is_in_error() { QpState::ERR } else { QpState::RTS };
        assert_eq!(near_gsi_state(), Some(reported));
    }
    wire.settle();
    wire.replace_device(End::Near);
    {
        let (listener, addr) = far();
        connect_again(&listener, addr, &impatient());
        assert_eq!(near_gsi_state(), Some(QpState::RTS));
    }
    wire.settle();
}

/// The device loses its only IP address, and gets it back.
#[kernel_test(wire)]
fn removed_address_refuses_new_connections_until_it_returns() {
    let wire = Wire::new();
    {
        let (listener, addr) = far();
        let connector = impatient();
        let (mut active, mut passive) = connect_to(&listener, addr, &connector);
        exchange(&mut active, &mut passive);
        let bound = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        bound.bind_addr((End::Near.ip(), 0)).unwrap();
        let routed = resolved(addr, PortSpace::Tcp);

        wire.remove_address(End::Near);
        let fresh = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        assert_eq!(errno(fresh.bind_addr((End::Near.ip(), 0))), Errno::ADDRNOTAVAIL);
        let refused = connector.connect::<Mr<Buffer>>(addr, &small()).wait_timeout(Duration::from_secs(2));
        assert!(!matches!(refused, Some(Ok(_) | Err(Error::Invalid { .. }))), "{refused:?}");
        // Identifiers with the address are used further or fail with an error. None hangs.
        if let Err(refused) = routed.connect(&param()) {
            assert!(refused.errno().is_some(), "{refused:?}");
        }
        // The established connection ends, or the call has reached its limit.
        let short = Duration::from_secs(3);
        thread::scope(|scope| {
            scope.spawn(|| passive.link.ended().wait_timeout(short).map(drop));
            let ended = active.link.disconnect().wait_timeout(short);
            let is_typed = matches!(ended, None | Some(Ok(()) | Err(Error::Unreachable(_))));
            assert!(is_typed, "{ended:?}");
        });
        drop((active, passive, bound, routed));

        wire.restore_address(End::Near);
        connect_again(&listener, addr, &connector);
    }
    wire.settle();
}

/// Programs that know the device by its old name.
#[kernel_test(wire)]
fn renamed_device_keeps_connections_and_takes_new_ones() {
    const NAME: &str = "renamed0";
    let wire = Wire::new();
    {
        let (listener, addr) = far();
        let connector = Connector::new();
        let (mut active, mut passive) = connect_to(&listener, addr, &connector);
        let routed = connector.resolve(addr).in_time().unwrap();
        let rename = |from: &str, to: &str| {
            RdmaNetlink::open().unwrap().set_device_name(from, to).unwrap();
        };
        rename(End::Near.device(), NAME);
        exchange(&mut active, &mut passive);
        // The device is found by its GUID, by a connector that has opened it and by a new one.
        assert_eq!(routed.device().unwrap().find().unwrap().name(), NAME);
        drop(connect_to(&listener, addr, &connector));
        drop(connect_to(&listener, addr, &Connector::new()));
        end_connection(active, passive);
        rename(NAME, End::Near.device());
    }
    wire.settle();
}
