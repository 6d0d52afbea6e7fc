//! Options, and additions of Linux 7.2.

use std::net::{Ipv6Addr, SocketAddr};

use bareverbs::Errno;
use bareverbs::qp::QpState;
use bareverbs::values::AckTimeout;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_rdmacm::event::{EventKind, RejectReason};
use bareverbs_rdmacm::{CmId, Error, EventChannel, Feature, PortSpace, ServiceKey};

use crate::host::*;

fn new(port_space: PortSpace) -> CmId {
    CmId::new(&EventChannel::new().unwrap(), port_space).unwrap()
}

#[kernel_test(device::has_netdev, device::gid_table)]
fn type_of_service_is_that_of_the_path() {
    nothing_leaks(|| {
        let id = new(PortSpace::Tcp);
        id.set_tos(0x68).unwrap();
        resolve(&id, SocketAddr::new(ip(), 1));
        assert_eq!(id.paths().unwrap()[0].traffic_class, 0x68);
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn ack_timeout_is_that_of_the_queue_pair() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 1);
        let active = new(PortSpace::Tcp);
        let timeout = AckTimeout::new(11).unwrap();
        active.set_ack_timeout(timeout).unwrap();
        resolve(&active, addr);
        active.connect(&param()).unwrap();
        let passive = request(&listener).accept(&param()).unwrap();
        assert!(matches!(next_of(active.channel(), active.key()), EventKind::ConnectResponse(_)));
        let (attr, _) = active.init_qp_attr(QpState::RTS).unwrap();
        assert_eq!(attr.timeout, timeout);
        drop(passive);
        // Datagram queue pairs have no acknowledgements.
        assert_eq!(errno(new(PortSpace::Udp).set_ack_timeout(timeout)), Errno::INVAL);
    });
}

#[kernel_test(crate::host::has_ip)]
fn reused_port_has_two_owners_until_one_listens() {
    nothing_leaks(|| {
        let (one, other) = (new(PortSpace::Tcp), new(PortSpace::Tcp));
        for id in [&one, &other] {
            id.set_reuse_addr(true).unwrap();
        }
        one.bind_addr((ip(), 0)).unwrap();
        let addr = one.addresses().unwrap().local.unwrap();
        other.bind_addr(addr).unwrap();
        assert_eq!(errno(one.listen(1)), Errno::ADDRINUSE);
        drop(other);
        one.listen(1).unwrap();
        let late = new(PortSpace::Tcp);
        late.set_reuse_addr(true).unwrap();
        assert_eq!(errno(late.bind_addr(addr)), Errno::ADDRINUSE);
        assert_eq!(errno(one.set_reuse_addr(true)), Errno::INVAL);
    });
}

#[kernel_test(device::has_netdev, device::connects_any_qp_number, device::gid_table)]
fn ipv6_listener_takes_ipv4_peers_unless_ipv6_only() {
    nothing_leaks(|| {
        for only in [false, true] {
            let listener = new(PortSpace::Tcp);
            listener.set_ipv6_only(only).unwrap();
            listener.bind_addr((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
            listener.listen(4).unwrap();
            let port = listener.addresses().unwrap().local.unwrap().port();
            let active = resolved(SocketAddr::new(ip(), port), PortSpace::Tcp);
            active.connect(&param()).unwrap();
            if only {
                let kind = next_of(active.channel(), active.key());
                let EventKind::Rejected(rejected) = kind else { panic!("{kind:?}") };
                let expected = [RejectReason::InvalidServiceId, RejectReason::Consumer];
                assert!(expected.contains(&rejected.reason), "{rejected}");
            } else {
                let request = request(&listener);
                let local = request.id().addresses().unwrap().local.unwrap();
                assert_eq!(local.ip(), Some(SocketAddr::new(ip(), port)));
            }
        }
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number, device::gid_table)]
fn path_option_replaces_route_resolution() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 1);
        let path = resolved(addr, PortSpace::Tcp).paths().unwrap()[0];
        let active = new(PortSpace::Tcp);
        assert_eq!(errno(active.set_path(&path)), Errno::INVAL);
        active.resolve_addr(None, addr, RESOLVE).unwrap();
        assert!(matches!(next_of(active.channel(), active.key()), EventKind::AddrResolved));
        active.set_path(&path).unwrap();
        assert!(matches!(next_of(active.channel(), active.key()), EventKind::RouteResolved));
        active.connect(&param()).unwrap();
        drop(request(&listener));
        assert!(matches!(next_of(active.channel(), active.key()), EventKind::Rejected(_)));
    });
}

#[kernel_test(device::has_device_node)]
fn user_events_need_linux_7_2() {
    let id = new(PortSpace::Tcp);
    match id.write_user_event(0x0123_4567_89ab_cdef, 5) {
        Ok(()) => match next_of(id.channel(), id.key()) {
            EventKind::User { arg: 0x0123_4567_89ab_cdef, status: 5 } => {}
            other => panic!("{other:?}"),
        },
        Err(Error::Unsupported { verb: "write_user_event", feature: Feature::UserEvents }) => {
            assert!(!kernel_is_7_2(), "this kernel has user events");
        }
        Err(other) => panic!("{other}"),
    }
}

pub(crate) fn kernel_is_7_2() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().starts_with("7.2")
}

#[kernel_test(crate::host::has_ip, device::has_device_node)]
fn services_are_resolved_on_infiniband_only() {
    nothing_leaks(|| {
        let id = new(PortSpace::Tcp);
        id.bind_addr((ip(), 0)).unwrap();
        let asked = id.resolve_ib_service(ServiceKey::Name("no such service"));
        if !kernel_is_7_2() {
            let refused = asked.unwrap_err();
            assert_eq!(
                refused.to_string(),
                "resolve_ib_service: user and IB service events require Linux 7.2 or later"
            );
            assert_eq!(errno(id.ib_services()), Errno::NOSYS);
        } else if !device::is_infiniband() {
            let refused = asked.unwrap_err();
            assert!(matches!(refused, Error::Unsupported { verb: "resolve_ib_service", .. }), "{refused}");
            assert!(refused.to_string().contains("subnet administrator"), "{refused}");
            assert_eq!(errno(id.ib_services()), Errno::NODATA);
            let long = id.resolve_ib_service(ServiceKey::Name(&"n".repeat(64))).unwrap_err();
            assert!(matches!(long, Error::Invalid { .. }), "{long}");
        } else {
            asked.unwrap();
            let kind = next_of(id.channel(), id.key());
            assert!(matches!(kind, EventKind::AddrinfoResolved | EventKind::AddrinfoError(_)), "{kind:?}");
        }
    });
}
