//! Binding and resolution.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bareverbs::{Errno, Gid};
use bareverbs_kernel_tests::{child, device, iproute2, kernel_test};
use bareverbs_rdmacm::command::{self, CmFile};
use bareverbs_rdmacm::event::EventKind;
use bareverbs_rdmacm::{Addr, CmId, ConnParam, EventChannel, IbAddr, PortSpace};
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::{self, EventType};
use zerocopy::IntoBytes;

use crate::host::*;

fn new(port_space: PortSpace) -> CmId {
    CmId::new(&EventChannel::new().unwrap(), port_space).unwrap()
}

#[kernel_test(crate::host::has_ip)]
fn bind_errors_name_their_cause() {
    nothing_leaks(|| {
        let id = new(PortSpace::Tcp);
        let foreign = id.bind_addr((Ipv4Addr::new(192, 0, 2, 1), 0)).unwrap_err();
        assert_eq!(foreign.errno(), Some(Errno::ADDRNOTAVAIL));
        let text = foreign.to_string();
        let start = format!("BIND was refused by {} (id ", device::error_origin());
        assert!(text.starts_with(&start), "{text}");
        assert!(text.contains(", 192.0.2.1:0): ") && text.contains(not_local()), "{text}");

        let (_listener, addr) = listener(PortSpace::Tcp, 1);
        assert_eq!(errno(id.bind_addr(addr)), Errno::ADDRINUSE);
        // Port spaces don't share ports.
        new(PortSpace::Udp).bind_addr(addr).unwrap();
        id.bind_addr(addr.ip_only()).unwrap();
        assert_eq!(errno(id.bind_addr(addr.ip_only())), Errno::INVAL);
        // An RDMA port is no socket's port, except on iWARP.
        let socket = std::net::TcpListener::bind(addr);
        assert_eq!(socket.is_ok(), !device::is_iwarp(), "{socket:?}");

        if !device::is_infiniband() {
            let gid = IbAddr::new(device::gid(), PortSpace::Ib, 0);
            assert_eq!(errno(new(PortSpace::Ib).bind_addr(gid)), Errno::NODEV);
            // The Q_Key of IPoIB is that of a group of InfiniBand.
            assert_eq!(errno(new(PortSpace::Ipoib).bind_addr((ip(), 0))), Errno::INVAL);
        }
    });
}

/// The cause of a refused address that no device has.
fn not_local() -> &'static str {
    match device::is_soft_device() {
        true => "no soft device of this process has the address",
        false => "the address is not one of this host",
    }
}

/// Asserts that the refusal has this errno, and that its text ends with this hint.
#[track_caller]
fn assert_hint<T>(refused: bareverbs_rdmacm::Result<T>, errno: Errno, hint: &str) {
    let refused = refused.err().expect("not refused");
    assert_eq!(refused.errno(), Some(errno), "{refused}");
    let text = refused.to_string();
    assert!(text.contains(&format!(": {hint}")), "{text}");
}

const FOREIGN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const BESIDE_WILDCARD: &str = "another identifier uses the port in this port space, and one of the two is \
                               bound to a wildcard or loopback address";
const NO_FREE_PORT: &str = "no port of the sysctl net.ipv4.ip_local_port_range is free";

/// The kernel has one errno for a port that a wildcard address needs alone, and for a foreign address.
#[kernel_test(crate::host::has_ip)]
fn port_in_use_beside_a_wildcard_is_no_foreign_address() {
    nothing_leaks(|| {
        let everywhere = new(PortSpace::Tcp);
        everywhere.bind_addr((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = everywhere.addresses().unwrap().local.unwrap().port();
        let locals = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv4Addr::LOCALHOST.into(), ip()];
        for local in locals {
            assert_hint(new(PortSpace::Tcp).bind_addr((local, port)), Errno::ADDRNOTAVAIL, BESIDE_WILDCARD);
            let from = Some(Addr::from((local, port)));
            let resolved = new(PortSpace::Tcp).resolve_addr(from, (ip(), 1), RESOLVE);
            assert_hint(resolved, Errno::ADDRNOTAVAIL, BESIDE_WILDCARD);
        }
        let file = CmFile::open().unwrap();
        let create = CreateIdReq { uid: 1, ps: rdma_cm::PortSpace::TCP, ..CreateIdReq::zeroed() };
        let id = command::create_id(&file, create).unwrap().id;
        let older = command::bind_ip(&file, BindIpReq { id, addr: kernel_ip(port), response: 0 });
        assert_hint(older, Errno::ADDRNOTAVAIL, BESIDE_WILDCARD);
        // A foreign address is one, whatever its port.
        for port in [0, port] {
            assert_hint(new(PortSpace::Tcp).bind_addr((FOREIGN, port)), Errno::ADDRNOTAVAIL, not_local());
            let from = Some(Addr::from((FOREIGN, port)));
            let hint = match device::is_soft_device() {
                true => not_local(),
                false => "the source address is not one of this host",
            };
            let resolved = new(PortSpace::Tcp).resolve_addr(from, (ip(), 1), RESOLVE);
            assert_hint(resolved, Errno::ADDRNOTAVAIL, hint);
        }
        drop(everywhere);
        let specific = new(PortSpace::Tcp);
        specific.bind_addr((ip(), port)).unwrap();
        for local in locals {
            let refused = new(PortSpace::Tcp).bind_addr((local, port));
            let (errno, hint) = match local == ip() {
                true => (Errno::ADDRINUSE, "another identifier uses the address and the port"),
                false => (Errno::ADDRNOTAVAIL, BESIDE_WILDCARD),
            };
            assert_hint(refused, errno, hint);
        }
    });
}

/// An identifier may share its port until it listens.
#[kernel_test(crate::host::has_ip, device::has_own_ports)]
fn listen_names_the_owner_of_a_reused_port() {
    nothing_leaks(|| {
        for (local, errno, hint) in [
            (ip(), Errno::ADDRINUSE, "another identifier uses the address and the port"),
            (Ipv4Addr::UNSPECIFIED.into(), Errno::ADDRNOTAVAIL, BESIDE_WILDCARD),
        ] {
            let [one, other] = [(); 2].map(|()| new(PortSpace::Tcp));
            one.set_reuse_addr(true).unwrap();
            other.set_reuse_addr(true).unwrap();
            one.bind_addr((local, 0)).unwrap();
            other.bind_addr((local, one.addresses().unwrap().local.unwrap().port())).unwrap();
            assert_hint(one.listen(1), errno, hint);
            drop(other);
            one.listen(1).unwrap();
        }
    });
}

/// Sets the range of ports, and sets it back when dropped.
struct PortRange(String);

impl PortRange {
    const SYSCTL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

    fn set(range: &str) -> Self {
        let before = std::fs::read_to_string(Self::SYSCTL).unwrap();
        std::fs::write(Self::SYSCTL, range).unwrap();
        Self(before)
    }
}

impl Drop for PortRange {
    fn drop(&mut self) {
        std::fs::write(Self::SYSCTL, &self.0).unwrap();
    }
}

#[kernel_test(crate::host::has_ip, device::root)]
fn exhausted_port_range_is_named() {
    nothing_leaks(|| {
        let _range = PortRange::set("50000 50001");
        let mut bound = Vec::new();
        let refused = loop {
            let id = new(PortSpace::Tcp);
            match id.bind_addr((Ipv4Addr::UNSPECIFIED, 0)) {
                Ok(()) => bound.push(id),
                Err(refused) => break refused,
            }
        };
        // The kernel does not use the port of the last bind again.
        assert!((1..=2).contains(&bound.len()), "{bound:?}");
        assert_hint::<()>(Err(refused), Errno::ADDRNOTAVAIL, NO_FREE_PORT);
        assert_hint(new(PortSpace::Tcp).bind_addr((ip(), 0)), Errno::ADDRNOTAVAIL, NO_FREE_PORT);
        assert_hint(new(PortSpace::Tcp).listen(1), Errno::ADDRNOTAVAIL, NO_FREE_PORT);
        let resolved = new(PortSpace::Tcp).resolve_addr(None, (ip(), 1), RESOLVE).unwrap_err();
        assert!(resolved.to_string().contains(NO_FREE_PORT), "{resolved}");
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn invalid_binds_and_resolutions_name_their_cause() {
    nothing_leaks(|| {
        let link_local =
            |scope| SocketAddr::from(std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), 0, 0, scope));
        let invalid = |refused, hint| assert_hint::<()>(refused, Errno::INVAL, hint);
        let scope = "an IPv6 link-local address needs a scope id";
        invalid(new(PortSpace::Tcp).bind_addr(link_local(0)), scope);
        let resolved = new(PortSpace::Tcp).resolve_addr(Some(link_local(0).into()), link_local(0), RESOLVE);
        invalid(resolved, scope);
        let unknown = new(PortSpace::Tcp).bind_addr(link_local(9999));
        assert_hint(unknown, Errno::NODEV, "no network interface has the scope id of the address");

        let bound = new(PortSpace::Tcp);
        bound.bind_addr((ip(), 0)).unwrap();
        invalid(bound.bind_addr((ip(), 0)), "the identifier is bound already");
        let families = "the local address and that of the peer are of different families";
        let loopback = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 1));
        invalid(bound.resolve_addr(None, loopback, RESOLVE), families);
        let from = Some(Addr::from((ip(), 0)));
        invalid(new(PortSpace::Tcp).resolve_addr(from, loopback, RESOLVE), families);
        resolve(&bound, SocketAddr::new(ip(), 1));
        invalid(bound.resolve_addr(None, (ip(), 1), RESOLVE), "the identifier has resolved");
        invalid(bound.listen(1), "the identifier is in use as a client or listens already");
        invalid(bound.resolve_route(RESOLVE), "the address is not resolved, the route is resolved already");
        let everywhere = new(PortSpace::Tcp);
        everywhere.bind_addr((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        invalid(everywhere.bind_addr((Ipv4Addr::UNSPECIFIED, 0)), "the identifier is bound already");
        if !device::is_infiniband() {
            let hint = "the identifier is bound already, or its port space is IPOIB";
            invalid(new(PortSpace::Ipoib).bind_addr((ip(), 0)), hint);
        }

        let no_device =
            "the identifier has no device: its address is not resolved, and it is not bound to one";
        for id in [new(PortSpace::Tcp), everywhere] {
            invalid(id.resolve_route(RESOLVE), no_device);
            invalid(id.connect(&param()), no_device);
            invalid(id.accept(&param()), no_device);
            invalid(id.reject(b""), no_device);
            invalid(id.disconnect(), no_device);
            invalid(id.notify(bareverbs::device::EventType::COMM_EST), no_device);
            invalid(id.init_qp_attr(bareverbs::qp::QpState::INIT).map(drop), no_device);
        }
        let (listener, addr) = listener(PortSpace::Tcp, 1);
        let id = new(PortSpace::Tcp);
        id.bind_addr((ip(), 0)).unwrap();
        invalid(id.connect(&param()), "the route is not resolved");
        invalid(id.disconnect(), "the identifier was not used for a connection");
        invalid(id.accept(&param()), "no request or response is pending");
        invalid(id.reject(b""), "no request or response is pending");
        invalid(id.notify(bareverbs::device::EventType::COMM_EST), "no accepted request waits for the peer");
        resolve(&id, addr);
        id.connect(&param()).unwrap();
        invalid(id.init_qp_attr(bareverbs::qp::QpState::RTS).map(drop), "the connection has no attributes");
        invalid(listener.set_reuse_addr(true), "the identifier listens");
        invalid(listener.set_ipv6_only(true), "the identifier listens or has resolved an address");
        let path = bareverbs_rdmacm::PathRecord::default();
        invalid(new(PortSpace::Tcp).set_path(&path), "the identifier has no device");
        invalid(listener.set_path(&path), "the address is not resolved, or has a route already");
        let timeout = bareverbs::values::AckTimeout::new(12).unwrap();
        invalid(new(PortSpace::Udp).set_ack_timeout(timeout), "the queue pair of the identifier is not RC");
    });
}

/// A route of this host, deleted when dropped.
struct Route(String);

impl Route {
    fn add(route: &str) -> Self {
        iproute2::ip(&format!("route add {route}"));
        Self(route.into())
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        iproute2::ip(&format!("route del {}", self.0));
    }
}

#[kernel_test(crate::host::has_ip, device::root)]
fn routes_that_refuse_an_address_are_named() {
    nothing_leaks(|| {
        let resolve = || new(PortSpace::Tcp).resolve_addr(None, (FOREIGN, 1), RESOLVE);
        assert_hint(resolve(), Errno::NETUNREACH, "this host has no IP route to the address");
        for (kind, errno, hint) in [
            ("prohibit", Errno::ACCESS, "a route of this host prohibits the address"),
            ("unreachable", Errno::HOSTUNREACH, "a route of this host rejects the address as unreachable"),
            ("blackhole", Errno::INVAL, "a blackhole route of this host discards the address"),
        ] {
            let _route = Route::add(&format!("{kind} 192.0.2.0/24"));
            assert_hint(resolve(), errno, hint);
        }
    });
}

/// An address of this host, deleted when dropped.
struct LoopbackAddress;

impl LoopbackAddress {
    fn add() -> Self {
        iproute2::ip("addr add 192.0.2.1/32 dev lo");
        Self
    }
}

impl Drop for LoopbackAddress {
    fn drop(&mut self) {
        iproute2::ip("addr del 192.0.2.1/32 dev lo");
    }
}

#[kernel_test(crate::host::has_ip, device::has_netdev)]
fn interface_without_an_rdma_device_is_named() {
    nothing_leaks(|| {
        let _address = LoopbackAddress::add();
        let hint = "the address is local, but its network interface has no RDMA device";
        assert_hint(new(PortSpace::Tcp).bind_addr((FOREIGN, 0)), Errno::NODEV, hint);
        let from = Some(Addr::from((FOREIGN, 0)));
        let hint = "the source address is local, but its network interface has no RDMA device";
        assert_hint(new(PortSpace::Tcp).resolve_addr(from, (ip(), 1), RESOLVE), Errno::NODEV, hint);
    });
}

trait IpOnly {
    fn ip_only(&self) -> SocketAddr;
}

impl IpOnly for SocketAddr {
    /// The address with any port.
    fn ip_only(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), 0)
    }
}

#[kernel_test(crate::host::has_ip)]
fn unresolvable_addresses_are_errors() {
    nothing_leaks(|| {
        // The guest has no default route.
        let id = new(PortSpace::Tcp);
        let unrouted = (Ipv4Addr::new(192, 0, 2, 1), 1);
        assert_eq!(errno(id.resolve_addr(None, unrouted, RESOLVE)), Errno::NETUNREACH);
        // No neighbour answers.
        let Addr::Ip(addr) = Addr::from((ip(), 1)) else { panic!() };
        let std::net::IpAddr::V4(own) = addr.ip() else { panic!() };
        let [a, b, c, _] = own.octets();
        let silent = (Ipv4Addr::new(a, b, c, 77), 1);
        let resolving = id.resolve_addr(None, silent, Duration::from_millis(300));
        if device::is_soft_device() {
            // A fabric has no neighbours to wait for.
            assert_hint(resolving, Errno::NETUNREACH, "no soft device of this process reaches the address");
        } else {
            resolving.unwrap();
            let kind = next_of(id.channel(), id.key());
            assert!(matches!(kind, EventKind::AddrError(Errno::TIMEDOUT | Errno::HOSTUNREACH)), "{kind:?}");
        }
        // The identifier may try again.
        resolve(&id, SocketAddr::new(ip(), 1));
        // A source that is not local.
        let id = new(PortSpace::Tcp);
        let src = Some(Addr::from(unrouted));
        let refused = errno(id.resolve_addr(src, (ip(), 1), RESOLVE));
        assert!(matches!(refused, Errno::ADDRNOTAVAIL | Errno::NODEV), "{refused}");
    });
}

#[kernel_test(device::has_netdev, device::gid_table)]
fn loopback_address_has_no_route_on_roce() {
    nothing_leaks(|| {
        let id = new(PortSpace::Tcp);
        id.resolve_addr(None, (Ipv4Addr::LOCALHOST, 1), RESOLVE).unwrap();
        let kind = next_of(id.channel(), id.key());
        assert!(matches!(kind, EventKind::AddrResolved), "{kind:?}");
        let refused = id.resolve_route(RESOLVE).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::NODEV));
        assert!(refused.to_string().contains("loopback addresses have none"), "{refused}");
        // A bind to it is a bind to every device.
        let id = new(PortSpace::Tcp);
        id.bind_addr((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert_eq!(id.addresses().unwrap().device, None);
    });
}

#[kernel_test(crate::host::has_ip, device::root)]
fn ports_below_1024_need_a_capability() {
    new(PortSpace::Tcp).bind_addr((ip(), 1023)).unwrap();
    child::run(|| {
        child::drop_privileges();
        let id = new(PortSpace::Tcp);
        let refused = id.bind_addr((ip(), 1023)).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::ACCESS));
        assert!(refused.to_string().contains("CAP_NET_BIND_SERVICE"), "{refused}");
        let source = Some(Addr::from((ip(), 1023)));
        let refused = id.resolve_addr(source, (ip(), 1), RESOLVE).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::ACCESS));
        assert!(
            refused.to_string().contains("source ports below 1024 require CAP_NET_BIND_SERVICE"),
            "{refused}"
        );
        id.bind_addr((ip(), 1024)).unwrap();
        id.listen(1).unwrap();
    });
}

#[kernel_test(crate::host::has_ip, device::gid_table)]
fn paths_and_gids_are_those_of_the_addresses() {
    nothing_leaks(|| {
        let (_listener, addr) = listener(PortSpace::Tcp, 1);
        let id = new(PortSpace::Tcp);
        assert_eq!(id.addresses().unwrap().device, None);
        assert_eq!(id.addresses().unwrap().peer, None);
        assert_eq!(id.paths().unwrap(), []);
        resolve(&id, addr);
        let paths = id.paths().unwrap();
        assert_eq!(paths.len(), 1, "{paths:?}");
        let (sgid, dgid) = (Gid(paths[0].sgid), Gid(paths[0].dgid));
        let [local, peer] = id.gids().unwrap().map(Option::unwrap);
        assert_eq!((local.gid, peer.gid), (sgid, dgid));
        assert!((1..=5).contains(&paths[0].mtu), "{paths:?}");
        if !device::is_infiniband() {
            let std::net::IpAddr::V4(own) = ip() else { panic!() };
            assert_eq!((sgid.ipv4(), dgid.ipv4()), (Some(own), Some(own)));
        }
        let bound = id.addresses().unwrap().device.unwrap();
        assert_eq!(u8::from(bound.port), 1);
        assert_eq!(bound.find().unwrap().node_guid(), device::device().node_guid());
    });
}

#[kernel_test(device::infiniband)]
fn infiniband_addresses_connect() {
    nothing_leaks(|| {
        let listener = new(PortSpace::Ib);
        listener.bind_addr(IbAddr::new(device::gid(), PortSpace::Ib, 0)).unwrap();
        listener.listen(1).unwrap();
        let Some(Addr::Ib(addr)) = listener.addresses().unwrap().local else { panic!() };
        assert_ne!(addr.port(), 0);
        let active = new(PortSpace::Ib);
        active.resolve_addr(None, addr, RESOLVE).unwrap();
        assert!(matches!(next_of(active.channel(), active.key()), EventKind::AddrResolved));
        active.resolve_route(RESOLVE).unwrap();
        assert!(matches!(next_of(active.channel(), active.key()), EventKind::RouteResolved));
        // More than fits with an IP address. The first byte is the kernel's.
        let mut data = [7; 92];
        active.connect(&ConnParam { private_data: &data, ..param() }).unwrap();
        let request = request(&listener);
        data[0] = 0;
        assert_eq!(request.private_data()[..], data);
        request.accept(&param()).unwrap();
        let kind = next_of(active.channel(), active.key());
        assert!(matches!(kind, EventKind::ConnectResponse(_)), "{kind:?}");
    });
}

#[kernel_test(crate::host::has_ip, device::path_records)]
fn commands_for_ip_addresses_bind_resolve_query_and_join() {
    nothing_leaks(|| {
        let (file, ip_addr) = (CmFile::open().unwrap(), ip());
        let IpAddr::V4(v4) = ip_addr else { panic!("{ip_addr}") };
        let create = |uid| {
            command::create_id(
                &file,
                CreateIdReq { uid, ps: rdma_cm::PortSpace::TCP, ..CreateIdReq::zeroed() },
            )
        };
        let addr = kernel_ip;
        let passive = create(1).unwrap().id;
        command::bind_ip(&file, BindIpReq { id: passive, addr: addr(0), response: 0 }).unwrap();
        command::listen(&file, ListenReq { id: passive, backlog: 1 }).unwrap();
        let query = |id| command::query_route(&file, QueryReq { id, ..QueryReq::zeroed() }).unwrap();
        let bound = query(passive);
        let port = bound.src_addr.port.get();
        assert!(port != 0 && bound.node_guid != 0 && bound.num_paths == 0);

        let active = create(2).unwrap().id;
        let request = ResolveIpReq { id: active, src_addr: addr(0), dst_addr: addr(port), timeout_ms: 5000 };
        command::resolve_ip(&file, request).unwrap();
        let next = |uid, expected| {
            let begin = Instant::now();
            loop {
                if let Some(event) = command::get_event(&file).unwrap() {
                    break assert_eq!((event.event, event.uid, event.status), (expected, uid, 0));
                }
                assert!(begin.elapsed() < TIMEOUT);
            }
        };
        next(2, EventType::ADDR_RESOLVED);
        command::resolve_route(&file, ResolveRouteReq { id: active, timeout_ms: 5000 }).unwrap();
        next(2, EventType::ROUTE_RESOLVED);
        let route = query(active);
        assert_eq!((route.num_paths, route.port_num), (1, 1));
        assert_eq!((route.node_guid, route.ibdev_index), (bound.node_guid, bound.ibdev_index));
        assert_eq!(route.dst_addr.port.get(), port);
        assert_eq!(route.dst_addr.as_bytes()[4..8], v4.octets());
        // The path is that of the other query.
        let path = route.ib_route[0];
        let gids = resolved(SocketAddr::new(ip_addr, port), PortSpace::Tcp).gids().unwrap();
        assert_eq!(path.sgid, gids[0].unwrap().gid.0);
        for id in [active, passive] {
            command::destroy_id(&file, DestroyIdReq { id, ..DestroyIdReq::zeroed() }).unwrap();
        }

        let create = CreateIdReq { uid: 3, ps: rdma_cm::PortSpace::UDP, ..CreateIdReq::zeroed() };
        let id = command::create_id(&file, create).unwrap().id;
        command::bind_ip(&file, BindIpReq { id, addr: addr(0), response: 0 }).unwrap();
        let mut group = addr(0);
        group.as_mut_bytes()[4..8].copy_from_slice(&[239, 1, 2, 2]);
        let join = JoinIpMcastReq { uid: 4, addr: group, id, ..JoinIpMcastReq::zeroed() };
        let membership = command::join_ip_mcast(&file, join).unwrap().id;
        next(4, EventType::MULTICAST_JOIN);
        command::leave_mcast(&file, DestroyIdReq { id: membership, ..DestroyIdReq::zeroed() }).unwrap();
    });
}
