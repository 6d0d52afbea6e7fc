//! Connections: requests, answers and ends.

use std::net::{Ipv4Addr, SocketAddr};

use bareverbs::Errno;
use bareverbs::device::EventType;
use bareverbs::qp::{Ece, QpAttrMask, QpState, QpType};
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_rdmacm::event::{EventKind, RejectReason, RequestParam, Unreachable};
use bareverbs_rdmacm::{CmDevice, CmId, ConnParam, Error, EventChannel, Message, PeerParam, PortSpace};

use crate::host::*;

#[kernel_test(device::has_device_node)]
fn rdma_cm_device_is_found_and_opened() {
    let found = CmDevice::find().unwrap();
    assert_eq!((found.name.as_str(), found.abi), ("rdma_cm", 4));
    let channel = EventChannel::new().unwrap();
    assert!(channel.try_wait().unwrap().is_none());
}

fn peer_of_request(param: &RequestParam) -> &PeerParam {
    match param {
        RequestParam::Connection(peer) => peer,
        RequestParam::Datagram(_) => panic!("not a connection"),
    }
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn peers_connect_with_private_data_and_disconnect() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = resolved(addr, PortSpace::Tcp);
        let asked =
            ConnParam { private_data: b"hello", responder_resources: 3, initiator_depth: 2, ..param() };
        active.connect(&asked).unwrap();

        let request = request(&listener);
        assert_eq!(request.listener(), listener.key());
        let peer = peer_of_request(request.param());
        assert_eq!((peer.qp_num, peer.private_data.len()), (asked.qp_num, 56));
        assert_eq!(&peer.private_data[..6], b"hello\0");
        // Seen from this side.
        assert_eq!((peer.responder_resources, peer.initiator_depth), (2, 3));
        assert_eq!((peer.retry_count, peer.rnr_retry_count), (6, 7));
        let addresses = request.id().addresses().unwrap();
        assert_eq!(addresses.local.unwrap().ip(), Some(addr));
        assert_eq!(addresses.peer, active.addresses().unwrap().local);
        let device = addresses.device.unwrap().find().unwrap();
        assert_eq!(device.name(), bareverbs_kernel_tests::device::name());

        let (attr, mask) = request.id().init_qp_attr(QpState::RTR).unwrap();
        assert_eq!((attr.qp_state, attr.dest_qp_num), (QpState::RTR, asked.qp_num));
        assert!(mask.contains(QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::MIN_RNR_TIMER), "{mask:?}");
        let answer = ConnParam { private_data: b"welcome", ..param() };
        let passive = request.accept(&answer).unwrap();

        let EventKind::ConnectResponse(peer) = next_of(active.channel(), active.key()) else {
            panic!("no response");
        };
        assert_eq!((peer.qp_num, peer.private_data.len()), (answer.qp_num, 196));
        assert_eq!(&peer.private_data[..8], b"welcome\0");
        let (attr, _) = active.init_qp_attr(QpState::RTR).unwrap();
        assert_eq!(attr.dest_qp_num, answer.qp_num);
        active.establish().unwrap();
        let kind = next_of(passive.channel(), passive.key());
        assert!(matches!(kind, EventKind::Established(_)), "{kind:?}");

        disconnect(&active, &passive);
        active.destroy().unwrap();
        passive.destroy().unwrap();
        listener.destroy().unwrap();
    });
}

#[kernel_test(device::has_netdev, device::gid_table, device::connects_any_qp_number)]
fn ipv6_peers_connect() {
    nothing_leaks(|| {
        let (listener, addr) = listener_on(ipv6(0), PortSpace::Tcp, 8);
        assert!(addr.is_ipv6() && addr.port() != 0);
        let (active, passive) = connected(&listener, addr);
        let peer = active.addresses().unwrap().peer.unwrap();
        assert_eq!(peer.ip().map(|peer| peer.ip()), Some(addr.ip()));
        disconnect(&active, &passive);
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn wildcard_listener_takes_a_free_port() {
    nothing_leaks(|| {
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let (listener, bound) = listener_on(any, PortSpace::Tcp, 0);
        assert!(bound.ip().is_unspecified() && bound.port() != 0, "{bound}");
        assert_eq!(listener.addresses().unwrap().device, None);
        let (active, passive) = connected(&listener, SocketAddr::new(ip(), bound.port()));
        assert_eq!(
            passive.addresses().unwrap().local.unwrap().ip(),
            Some(SocketAddr::new(ip(), bound.port()))
        );
        disconnect(&active, &passive);

        // An identifier that is not bound is bound by listening.
        let other = CmId::new(listener.channel(), PortSpace::Tcp).unwrap();
        other.listen(1).unwrap();
        let port = other.addresses().unwrap().local.unwrap().port();
        assert!(port != 0 && port != bound.port());
    });
}

/// Connects, lets `answer` answer the request, and returns the next event of the active end.
fn answered(answer: impl FnOnce(bareverbs_rdmacm::ConnectRequest)) -> EventKind {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&param()).unwrap();
        answer(request(&listener));
        let kind = next_of(active.channel(), active.key());
        // The attempt is over: the identifier connects no more.
        assert_eq!(errno(active.connect(&param())), Errno::INVAL);
        kind
    })
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn rejection_carries_reason_and_private_data() {
    let kind = answered(|request| request.reject(b"busy").unwrap());
    let EventKind::Rejected(rejected) = kind else { panic!("{kind:?}") };
    assert_eq!((rejected.reason, rejected.private_data.len()), (RejectReason::Consumer, 148));
    assert_eq!(&rejected.private_data[..5], b"busy\0");

    let kind = answered(|request| request.reject_ece(b"").unwrap());
    let EventKind::Rejected(rejected) = kind else { panic!("{kind:?}") };
    assert_eq!(rejected.reason, RejectReason::VendorOptionNotSupported);
}

#[kernel_test(crate::host::has_ip)]
fn dropped_request_is_rejected() {
    let kind = answered(drop);
    let EventKind::Rejected(rejected) = kind else { panic!("{kind:?}") };
    assert_eq!(rejected.reason, by_application());
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn response_can_be_rejected() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&param()).unwrap();
        let passive = request(&listener).accept(&param()).unwrap();
        let kind = next_of(active.channel(), active.key());
        assert!(matches!(kind, EventKind::ConnectResponse(_)), "{kind:?}");
        active.reject(b"changed my mind").unwrap();
        let kind = next_of(passive.channel(), passive.key());
        let EventKind::Rejected(rejected) = kind else { panic!("{kind:?}") };
        assert_eq!(rejected.reason, RejectReason::Consumer);
        assert_eq!(&rejected.private_data[..16], b"changed my mind\0");
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn connect_without_listener_is_rejected() {
    nothing_leaks(|| {
        // A port that was free a moment ago.
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        drop(listener);
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&param()).unwrap();
        let kind = next_of(active.channel(), active.key());
        let EventKind::Rejected(rejected) = kind else { panic!("{kind:?}") };
        assert_eq!(rejected.reason, RejectReason::InvalidServiceId);
        assert!(rejected.to_string().contains("no application listens on the port (reason 8)"), "{rejected}");
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn private_data_has_the_documented_limits() {
    nothing_leaks(|| {
        let too_long = [7; 257];
        let limit = |message: Message| message.max_private_data(QpType::RC, false);
        let refused = |refused: bareverbs_rdmacm::Result<()>, limit: usize, length: usize| match refused {
            Err(Error::PrivateData { length: given, max, .. }) => assert_eq!((given, max), (length, limit)),
            other => panic!("{other:?}"),
        };
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = resolved(addr, PortSpace::Tcp);
        let max = limit(Message::Connect);
        for length in [max + 1, 256, 257] {
            let param = ConnParam { private_data: &too_long[..length], ..param() };
            refused(active.connect(&param), max, length);
        }
        // The refused calls changed nothing.
        active.connect(&ConnParam { private_data: &too_long[..max], ..param() }).unwrap();
        let request_of_active = request(&listener);
        assert_eq!(request_of_active.private_data()[..], too_long[..max]);
        let id = request_of_active.into_id();
        let max = limit(Message::Accept);
        refused(id.accept(&ConnParam { private_data: &too_long[..=max], ..param() }), max, max + 1);
        id.accept(&ConnParam { private_data: &too_long[..max], ..param() }).unwrap();
        let EventKind::ConnectResponse(peer) = next_of(active.channel(), active.key()) else {
            panic!("no response");
        };
        assert_eq!(peer.private_data[..], too_long[..max]);

        let other = resolved(addr, PortSpace::Tcp);
        other.connect(&param()).unwrap();
        let id = request(&listener).into_id();
        let max = limit(Message::Reject);
        refused(id.reject(&too_long[..=max]), max, max + 1);
        id.reject(&too_long[..max]).unwrap();
        let EventKind::Rejected(rejected) = next_of(other.channel(), other.key()) else {
            panic!("no rejection");
        };
        assert_eq!(rejected.private_data[..], too_long[..max]);
    });
}

#[kernel_test(crate::host::has_ip)]
fn request_is_accepted_once() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&param()).unwrap();
        let passive = request(&listener).accept(&param()).unwrap();
        let again = passive.accept(&param()).unwrap_err();
        assert_eq!(again.to_string(), "accept: the request was accepted already");
        let late = passive.reject(b"").unwrap_err();
        assert_eq!(late.to_string(), "reject: the request was accepted already: drop the identifier");
        // The connection is not affected.
        establish(&active, &passive);
        disconnect(&active, &passive);
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn calls_in_a_wrong_state_are_refused() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let id = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        assert_eq!(errno(id.connect(&param())), Errno::INVAL);
        assert_eq!(errno(id.accept(&param())), Errno::INVAL);
        assert_eq!(errno(id.establish()), Errno::INVAL);
        assert_eq!(errno(id.reject(b"")), Errno::INVAL);
        assert_eq!(errno(id.disconnect()), Errno::INVAL);
        assert_eq!(errno(id.notify(EventType::COMM_EST)), Errno::INVAL);
        assert_eq!(errno(id.init_qp_attr(QpState::INIT)), Errno::INVAL);
        assert_eq!(errno(id.resolve_route(RESOLVE)), Errno::INVAL);
        let zero = id.resolve_route(std::time::Duration::ZERO).unwrap_err();
        assert!(matches!(zero, Error::Invalid { verb: "resolve_route", .. }), "{zero}");

        resolve(&id, addr);
        assert_eq!(errno(id.resolve_addr(None, addr, RESOLVE)), Errno::INVAL);
        assert_eq!(errno(id.bind_addr(addr)), Errno::INVAL);
        assert_eq!(errno(id.listen(1)), Errno::INVAL);
        // A connection needs a queue pair.
        for qp_num in [0, 1, 1 << 24] {
            let refused = id.connect(&ConnParam::new(qp_num)).unwrap_err();
            assert!(matches!(refused, Error::Invalid { verb: "connect", .. }), "{refused}");
        }
        assert_eq!(errno(listener.connect(&param())), Errno::INVAL);
        let again = listener.listen(1).unwrap_err();
        assert!(matches!(again, Error::Invalid { verb: "listen", .. }), "{again}");
        // Nothing of it was an attempt.
        id.connect(&param()).unwrap();
        drop(request(&listener));

        let refused = CmId::with_qp_type(id.channel(), PortSpace::Tcp, QpType::UD).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn hundreds_of_requests_wait_for_an_answer() {
    const COUNT: usize = 300;
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 0);
        let channel = EventChannel::new().unwrap();
        let ids: Vec<_> = (0..COUNT).map(|_| CmId::new(&channel, PortSpace::Tcp).unwrap()).collect();
        let find = |key| ids.iter().find(|id| id.key() == key).unwrap();
        for id in &ids {
            id.resolve_addr(None, addr, RESOLVE).unwrap();
        }
        let mut asked = 0;
        while asked < COUNT {
            let event = next(&channel);
            match event.kind {
                EventKind::AddrResolved => find(event.key).resolve_route(RESOLVE).unwrap(),
                EventKind::RouteResolved => {
                    find(event.key).connect(&param()).unwrap();
                    asked += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        // All of them wait before the first is answered.
        let requests: Vec<_> = (0..COUNT).map(|_| request(&listener)).collect();
        let passive: Vec<_> = requests.into_iter().map(|request| request.accept(&param()).unwrap()).collect();
        for _ in 0..COUNT {
            let event = next(&channel);
            assert!(matches!(event.kind, EventKind::ConnectResponse(_)), "{:?}", event.kind);
            find(event.key).establish().unwrap();
        }
        let mut established: Vec<_> = (0..COUNT)
            .map(|_| {
                let event = next(listener.channel());
                assert!(matches!(event.kind, EventKind::Established(_)), "{:?}", event.kind);
                event.key
            })
            .collect();
        established.sort();
        let mut keys: Vec<_> = passive.iter().map(CmId::key).collect();
        keys.sort();
        assert_eq!(established, keys);
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn requests_above_the_backlog_arrive_when_the_peer_repeats_them() {
    const BACKLOG: usize = 2;
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, BACKLOG as u32);
        let ids: Vec<_> = (0..2 * BACKLOG).map(|_| resolved(addr, PortSpace::Tcp)).collect();
        for id in &ids {
            id.connect(&param()).unwrap();
        }
        std::thread::sleep(QUIET);
        let waiting: Vec<_> = (0..BACKLOG).map(|_| request(&listener)).collect();
        // The kernel has dropped the others without an answer. Their peers repeat them after 4 to 7
        // seconds, when the first ones were delivered.
        quiet(listener.channel());
        let repeated: Vec<_> = (0..BACKLOG).map(|_| request(&listener)).collect();
        for request in waiting.into_iter().chain(repeated) {
            request.reject(b"").unwrap();
        }
        for id in &ids {
            let kind = next_of(id.channel(), id.key());
            assert!(matches!(kind, EventKind::Rejected(_)), "{kind:?}");
        }
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn peer_that_gives_up_is_noticed_by_accept() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&param()).unwrap();
        let request = request(&listener);
        drop(active);
        // The rejection by the peer arrives soon.
        std::thread::sleep(QUIET);
        let refused = request.accept(&param()).unwrap_err();
        assert!(matches!(refused, Error::Withdrawn { verb: "accept" }), "{refused}");
        quiet(listener.channel());
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn notify_establishes_a_connection() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&param()).unwrap();
        let passive = request(&listener).accept(&param()).unwrap();
        assert_eq!(errno(passive.notify(EventType::PORT_ERR)), Errno::INVAL);
        // As if a message had arrived before the peer's confirmation.
        passive.notify(EventType::COMM_EST).unwrap();
        let kind = next_of(passive.channel(), passive.key());
        assert!(matches!(kind, EventKind::Established(_)), "{kind:?}");
        passive.notify(EventType::COMM_EST).unwrap();
        let kind = next_of(active.channel(), active.key());
        assert!(matches!(kind, EventKind::ConnectResponse(_)), "{kind:?}");
        active.establish().unwrap();
        disconnect(&active, &passive);
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn many_connections_leave_no_objects() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 0);
        for round in 0..100 {
            let (active, passive) = connected(&listener, addr);
            // Ends in every order, and without an end.
            match round % 4 {
                0 => disconnect(&active, &passive),
                1 => drop(active),
                2 => drop(passive),
                _ => {
                    passive.disconnect().unwrap();
                    drop(active);
                }
            }
            while let Some(event) = listener.channel().try_wait().unwrap() {
                let expected = matches!(event.kind, EventKind::Disconnected(_) | EventKind::TimewaitExit)
                    || matches!(event.kind, EventKind::Unreachable(Unreachable::Errno(_)));
                assert!(expected, "{:?}", event.kind);
            }
        }
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn ece_options_travel_in_request_and_response() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = resolved(addr, PortSpace::Tcp);
        let offered = Ece { vendor_id: 0x15b3, options: 0x5a5a_0001 };
        active.connect(&ConnParam { ece: offered, ..param() }).unwrap();
        let request = request(&listener);
        assert_eq!(peer_of_request(request.param()).ece, offered);
        let agreed = Ece { options: 1, ..offered };
        let passive = request.accept(&ConnParam { ece: agreed, ..param() }).unwrap();
        let EventKind::ConnectResponse(peer) = next_of(active.channel(), active.key()) else {
            panic!("no response");
        };
        assert_eq!(peer.ece, agreed);
        active.establish().unwrap();
        assert!(matches!(next_of(passive.channel(), passive.key()), EventKind::Established(_)));
        disconnect(&active, &passive);
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn ib_port_space_connects_unreliable_queue_pairs() {
    nothing_leaks(|| {
        let listener = CmId::with_qp_type(&EventChannel::new().unwrap(), PortSpace::Ib, QpType::UC).unwrap();
        listener.bind_addr((ip(), 0)).unwrap();
        listener.listen(1).unwrap();
        let addr = listener.addresses().unwrap().local.unwrap().ip().unwrap();
        let active = CmId::with_qp_type(&EventChannel::new().unwrap(), PortSpace::Ib, QpType::UC).unwrap();
        resolve(&active, addr);
        active.connect(&param()).unwrap();
        let request = request(&listener);
        assert_eq!(request.id().qp_type(), QpType::UC);
        let passive = request.accept(&param()).unwrap();
        assert!(matches!(next_of(active.channel(), active.key()), EventKind::ConnectResponse(_)));
        let (_, mask) = active.init_qp_attr(QpState::RTR).unwrap();
        assert!(mask.contains(QpAttrMask::DEST_QPN) && !mask.contains(QpAttrMask::MIN_RNR_TIMER), "{mask:?}");
        active.establish().unwrap();
        assert!(matches!(next_of(passive.channel(), passive.key()), EventKind::Established(_)));
        disconnect(&active, &passive);
    });
}
