//! Binding and resolution.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bareverbs::{Errno, Gid};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{child, device};
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

pub(crate) fn bind_errors_name_their_cause() {
    nothing_leaks(|| {
        let id = new(PortSpace::Tcp);
        let foreign = id.bind_addr((Ipv4Addr::new(192, 0, 2, 1), 0)).unwrap_err();
        assert_eq!(foreign.errno(), Some(Errno::ADDRNOTAVAIL));
        let text = foreign.to_string();
        assert!(text.starts_with("BIND was refused by the kernel (id "), "{text}");
        assert!(text.contains(", 192.0.2.1:0): ") && text.ends_with(": the address is not one of this host"));

        let (_listener, addr) = listener(PortSpace::Tcp, 1);
        assert_eq!(errno(id.bind_addr(addr)), Errno::ADDRINUSE);
        // Port spaces don't share ports.
        new(PortSpace::Udp).bind_addr(addr).unwrap();
        id.bind_addr(addr.ip_only()).unwrap();
        assert_eq!(errno(id.bind_addr(addr.ip_only())), Errno::INVAL);
        // An RDMA port is no socket's port.
        let socket = std::net::TcpListener::bind(addr);
        assert!(socket.is_ok(), "{socket:?}");

        if !device::is_infiniband() {
            let gid = IbAddr::new(device::gid(), PortSpace::Ib, 0);
            assert_eq!(errno(new(PortSpace::Ib).bind_addr(gid)), Errno::NODEV);
            // The Q_Key of IPoIB is that of a group of InfiniBand.
            assert_eq!(errno(new(PortSpace::Ipoib).bind_addr((ip(), 0))), Errno::INVAL);
        }
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

pub(crate) fn unresolvable_addresses_are_errors() {
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
        id.resolve_addr(None, silent, Duration::from_millis(300)).unwrap();
        let kind = next_of(id.channel(), id.key());
        assert!(matches!(kind, EventKind::AddrError(Errno::TIMEDOUT | Errno::HOSTUNREACH)), "{kind:?}");
        // The identifier may try again.
        resolve(&id, SocketAddr::new(ip(), 1));
        // A source that is not local.
        let id = new(PortSpace::Tcp);
        let src = Some(Addr::from(unrouted));
        let refused = errno(id.resolve_addr(src, (ip(), 1), RESOLVE));
        assert!(matches!(refused, Errno::ADDRNOTAVAIL | Errno::NODEV), "{refused}");
    });
}

pub(crate) fn loopback_address_has_no_route_on_roce() {
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

pub(crate) fn ports_below_1024_need_a_capability() {
    new(PortSpace::Tcp).bind_addr((ip(), 1023)).unwrap();
    child::run(|| {
        child::drop_privileges();
        let id = new(PortSpace::Tcp);
        let refused = id.bind_addr((ip(), 1023)).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::ACCESS));
        assert!(refused.to_string().contains("CAP_NET_BIND_SERVICE"), "{refused}");
        id.bind_addr((ip(), 1024)).unwrap();
        id.listen(1).unwrap();
    });
}

pub(crate) fn paths_and_gids_are_those_of_the_addresses() {
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

pub(crate) fn infiniband_addresses_connect() {
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

pub(crate) fn commands_for_ip_addresses_bind_resolve_and_query() {
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
        let next = |expected| {
            let begin = Instant::now();
            loop {
                if let Some(event) = command::get_event(&file).unwrap() {
                    break assert_eq!((event.event, event.uid, event.status), (expected, 2, 0));
                }
                assert!(begin.elapsed() < TIMEOUT);
            }
        };
        next(EventType::ADDR_RESOLVED);
        command::resolve_route(&file, ResolveRouteReq { id: active, timeout_ms: 5000 }).unwrap();
        next(EventType::ROUTE_RESOLVED);
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
    });
}
