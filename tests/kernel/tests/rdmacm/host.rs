//! Helpers of the tests: addresses of this host, and connections within it.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bareverbs::{Buffer, Endpoint, Gid, Mr};
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::resources;
use bareverbs_kernel_tests::wire::End;
pub(crate) use bareverbs_kernel_tests::{InTime, TIMEOUT};
use bareverbs_rdmacm::event::{Event, EventKind, RejectReason};
use bareverbs_rdmacm::{
    Addr, CmId, ConnParam, ConnectRequest, Connected, EventChannel, IdOptions, Key, PortSpace, Result,
};
use bareverbs_uapi::rdma_cm::address::{AddressFamily, SocketAddressIn6};
use zerocopy::IntoBytes;

/// Time without an event after which none is expected.
pub(crate) const QUIET: Duration = Duration::from_millis(200);

pub(crate) const RESOLVE: Duration = Duration::from_secs(10);

/// For tests with an IP address of the device.
///
/// # Errors
/// If the port is InfiniBand and the kernel has no IPoIB.
pub(crate) fn has_ip() -> Requirement {
    let there = !device::is_infiniband() || std::path::Path::new("/sys/class/net/ib0").exists();
    if there { Ok(()) } else { Err("this kernel has no IPoIB, so the device has no IP address".into()) }
}

/// The IP address of the device.
pub(crate) fn ip() -> IpAddr {
    device::ip().into()
}

/// [`ip`] and a port, for commands: the 28 bytes of an IPv6 address, of which an IPv4 address uses 16.
pub(crate) fn kernel_ip(port: u16) -> SocketAddressIn6 {
    let IpAddr::V4(ip) = ip() else { panic!("{}", ip()) };
    let mut addr = SocketAddressIn6::zeroed();
    let bytes = addr.as_mut_bytes();
    bytes[..2].copy_from_slice(&AddressFamily::INET.0.to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&ip.octets());
    addr
}

/// The link-local IPv6 address of the device's network interface, with its scope.
pub(crate) fn ipv6(port: u16) -> SocketAddr {
    let table = device::open().gid_table().unwrap();
    let entry = table.iter().find(|entry| entry.gid.is_link_local()).expect("a link-local address");
    let Gid(bytes) = entry.gid;
    SocketAddrV6::new(bytes.into(), port, 0, entry.netdev_ifindex).into()
}

/// The queue pairs of [`qp_num`].
static QUEUES: Mutex<Vec<Endpoint<Mr<Buffer>>>> = Mutex::new(Vec::new());

/// Runs `work`, and destroys the queue pairs of [`qp_num`] after it.
pub(crate) fn nothing_leaks<T>(work: impl FnOnce() -> T) -> T {
    resources::nothing_leaks(|| {
        let done = work();
        QUEUES.lock().unwrap().clear();
        done
    })
}

/// A QPN that no other connection of the last seconds had. The connection manager of iWARP looks the queue
/// pair up. Others do not look at queue pairs of programs.
pub(crate) fn qp_num() -> u32 {
    if device::is_iwarp() {
        let pd = device::open().alloc_pd().unwrap();
        let queue: Endpoint<Mr<Buffer>> = Endpoint::options().sends(1).recvs(1).build(&pd).unwrap();
        let qp_num = queue.qp().qp_num();
        QUEUES.lock().unwrap().push(queue);
        return qp_num;
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (std::process::id() << 12 | NEXT.fetch_add(1, Ordering::Relaxed)) & 0xff_ffff | 0x10_0000
}

/// An end of a connection whose memory is registered one by one.
pub(crate) type Established = Connected<Endpoint<Mr<Buffer>>>;

/// The parameters of such a queue pair.
pub(crate) fn param() -> ConnParam<'static> {
    ConnParam::new(qp_num())
}

/// The private data of a stream's request: version 1, 16 credits, and addresses that are never used.
pub(crate) fn offer() -> [u8; 40] {
    let mut offer = [0; 40];
    (offer[0], offer[3], offer[23], offer[39]) = (1, 16, 2, 64);
    offer
}

/// The next event that is no end of TIMEWAIT, which may come at any time.
#[track_caller]
pub(crate) fn next(channel: &EventChannel) -> Event {
    let end = Instant::now() + TIMEOUT;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let event = channel.next().wait_timeout(left).transpose().unwrap().expect("an event in time");
        if !matches!(event.kind, EventKind::TimewaitExit) {
            return event;
        }
    }
}

/// The next event, which is one of `key`.
#[track_caller]
pub(crate) fn next_of(channel: &EventChannel, key: Key) -> EventKind {
    let event = next(channel);
    assert_eq!(event.key, key, "{:?}", event.kind);
    event.kind
}

/// The next event, which is a request to `listener`.
#[track_caller]
pub(crate) fn request(listener: &CmId) -> ConnectRequest {
    match next_of(listener.channel(), listener.key()) {
        EventKind::ConnectRequest(request) => request,
        other => panic!("no request, but {other:?}"),
    }
}

/// Asserts that no event comes for a while.
#[track_caller]
pub(crate) fn quiet(channel: &EventChannel) {
    let event = channel.next().wait_timeout(QUIET).transpose().unwrap();
    assert!(event.is_none(), "{event:?}");
}

/// A listener of its own channel on a free port of the device's address.
pub(crate) fn listener(port_space: PortSpace, backlog: u32) -> (CmId, SocketAddr) {
    listener_on(SocketAddr::new(ip(), 0), port_space, backlog)
}

/// A listener of its own channel on that address.
pub(crate) fn listener_on(addr: SocketAddr, port_space: PortSpace, backlog: u32) -> (CmId, SocketAddr) {
    let listener = new_id(port_space);
    listener.bind_addr(addr).unwrap();
    listener.listen(backlog).unwrap();
    let bound = listener.addresses().unwrap().local.unwrap().ip().unwrap();
    (listener, bound)
}

/// An identifier of its own channel.
pub(crate) fn new_id(port_space: PortSpace) -> CmId {
    CmId::new(&EventChannel::new().unwrap(), port_space).unwrap()
}

/// Resolves address and route on an identifier that is alone on its channel.
#[track_caller]
pub(crate) fn resolve(id: &CmId, addr: SocketAddr) {
    resolve_from(id, None, addr);
}

#[track_caller]
fn resolve_from(id: &CmId, source: Option<Addr>, addr: SocketAddr) {
    id.resolve_addr(source, addr, RESOLVE).unwrap();
    let kind = next_of(id.channel(), id.key());
    assert!(matches!(kind, EventKind::AddrResolved), "{kind:?}");
    id.resolve_route(RESOLVE).unwrap();
    let kind = next_of(id.channel(), id.key());
    assert!(matches!(kind, EventKind::RouteResolved), "{kind:?}");
}

/// An identifier of its own channel with a route to the address.
#[track_caller]
pub(crate) fn resolved(addr: SocketAddr, port_space: PortSpace) -> CmId {
    let id = new_id(port_space);
    resolve(&id, addr);
    id
}

/// An identifier of its own channel with a route from the near end of a wire to the address. On a
/// fabric, another device may reach the address, too.
#[track_caller]
pub(crate) fn resolved_from_near(addr: SocketAddr) -> CmId {
    let id = new_id(PortSpace::Tcp);
    resolve_from(&id, near().source, addr);
    id
}

/// Options of identifiers with the address of the near end of a wire.
pub(crate) fn near() -> IdOptions {
    IdOptions { source: Some(Addr::from((End::Near.ip(), 0))), ..IdOptions::default() }
}

/// A connection within this host: the active and the passive end.
#[track_caller]
pub(crate) fn connected(listener: &CmId, addr: SocketAddr) -> (CmId, CmId) {
    let active = resolved(addr, PortSpace::Tcp);
    active.connect(&param()).unwrap();
    let passive = request(listener).accept(&param()).unwrap();
    establish(&active, &passive);
    (active, passive)
}

/// Confirms an accepted connection from the active end. On iWARP, both ends are established at once.
#[track_caller]
pub(crate) fn establish(active: &CmId, passive: &CmId) {
    if device::is_iwarp() {
        let kind = next_of(active.channel(), active.key());
        assert!(matches!(kind, EventKind::Established(_)), "{kind:?}");
        let kind = next_of(passive.channel(), passive.key());
        return assert!(matches!(kind, EventKind::Established(_)), "{kind:?}");
    }
    let kind = next_of(active.channel(), active.key());
    assert!(matches!(kind, EventKind::ConnectResponse(_)), "{kind:?}");
    active.establish().unwrap();
    let kind = next_of(passive.channel(), passive.key());
    assert!(matches!(kind, EventKind::Established(_)), "{kind:?}");
}

/// The reason of a rejection by the application of the peer.
pub(crate) fn by_application() -> RejectReason {
    if device::is_iwarp() { RejectReason::Mpa(bareverbs::Errno::CONNRESET) } else { RejectReason::Consumer }
}

/// Ends a connection from the active end, in order.
#[track_caller]
pub(crate) fn disconnect(active: &CmId, passive: &CmId) {
    active.disconnect().unwrap();
    let kind = next_of(passive.channel(), passive.key());
    assert!(matches!(kind, EventKind::Disconnected(None)), "{kind:?}");
    passive.disconnect().unwrap();
    let kind = next_of(active.channel(), active.key());
    assert!(matches!(kind, EventKind::Disconnected(None)), "{kind:?}");
}

/// The errno of a refused call.
#[track_caller]
pub(crate) fn errno<T>(refused: Result<T>) -> bareverbs::Errno {
    match refused {
        Ok(_) => panic!("not refused"),
        Err(error) => error.errno().unwrap_or_else(|| panic!("no errno: {error}")),
    }
}
