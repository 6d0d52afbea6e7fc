//! The causes of refused commands.
//!
//! Most errnos of a command have several causes (`ucma.c`, `cma.c`, `cm.c` and `addr.c` of the kernel).
//! Where the state of the identifier or of the system shows which one it is, [`hint`] looks. Otherwise
//! the text names the causes, the most likely first.

use std::net::SocketAddr;
use std::path::Path;

use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::*;
use bareverbs_uapi::verbs_values::QpState;
use bareverbs_uapi::write::structs::QpAttr;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::{CmFile, is_iwarp_mask};
use crate::Addr;
use crate::addr::local_to;

/// `ENOTSUPP` of the kernel, which has no name in user space.
const ENOTSUPP: i32 = 524;

/// A request: its description for errors, and what its causes depend on.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) text: String,
    pub(super) id: Option<u32>,
    /// The address that the command binds the identifier to, unless it is bound.
    pub(super) local: Option<Addr>,
    pub(super) peer: Option<Addr>,
    pub(super) option: Option<(OptionLevel, u32)>,
    pub(super) event: Option<EventType>,
}

impl Asked {
    pub(super) fn new(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// Whether the scope of a link-local address is of no network interface.
    fn has_unknown_scope(&self) -> bool {
        let scopes = [self.local, self.peer].into_iter().filter_map(link_local_scope);
        scopes.filter(|scope| *scope != 0).any(|scope| !interface_exists(scope))
    }

    /// Whether one of the addresses is a GID.
    #[cfg(feature = "soft")]
    fn has_gid(&self) -> bool {
        [self.local, self.peer].into_iter().flatten().any(|addr| matches!(addr, Addr::Ib(_)))
    }
}

/// The numbers of commands. Those for IP addresses have the causes of those for any address.
macro_rules! numbers {
    ($($name:ident = $command:ident;)*) => {
        $(const $name: u32 = $command::INFO.number;)*
    };
}

numbers! {
    ACCEPT = Accept;
    BIND = Bind;
    CONNECT = Connect;
    CREATE = CreateId;
    DISCONNECT = Disconnect;
    INIT_QP_ATTR = InitQpAttr;
    JOIN = JoinMcast;
    LEAVE = LeaveMcast;
    LISTEN = Listen;
    MIGRATE = MigrateId;
    NOTIFY = Notify;
    QUERY = Query;
    REJECT = Reject;
    RESOLVE_ADDR = ResolveAddr;
    RESOLVE_ROUTE = ResolveRoute;
    RESOLVE_SERVICE = ResolveIbService;
    SET_OPTION = SetOption;
    WRITE_EVENT = WriteCmEvent;
}

/// The number of the command for any address in place of that for IP addresses.
fn any_family(command: u32) -> u32 {
    const BIND_IP: u32 = BindIp::INFO.number;
    const RESOLVE_IP: u32 = ResolveIp::INFO.number;
    const JOIN_IP: u32 = JoinIpMcast::INFO.number;
    match command {
        BIND_IP => BIND,
        RESOLVE_IP => RESOLVE_ADDR,
        JOIN_IP => JOIN,
        command => command,
    }
}

/// The cause of a refusal and the remedy.
pub(super) fn hint(file: &CmFile, command: u32, errno: Errno, asked: &Asked) -> Option<&'static str> {
    let command = any_family(command);
    #[cfg(feature = "soft")]
    if file.source.is_soft(asked.id)
        && let Some(hint) = hint_of_soft_device(file, command, errno, asked)
    {
        return Some(hint);
    }
    Some(match (command, errno) {
        (_, Errno::ACCESS) if file.has_other_credentials() => {
            "the credentials of this process changed since the file was opened"
        }
        (BIND, Errno::ACCESS) => {
            "ports below 1024 require CAP_NET_BIND_SERVICE in the initial user namespace"
        }
        (RESOLVE_ADDR, Errno::ACCESS) => match asked.peer.map(look_up_route) {
            Some(Err(Errno::ACCESS)) => {
                "a route of this host prohibits the address: `ip route get ADDRESS` shows it"
            }
            _ => "source ports below 1024 require CAP_NET_BIND_SERVICE in the initial user namespace",
        },
        (_, Errno::NXIO) => "the RDMA device was removed; only destroy the identifier",
        (LEAVE, Errno::NOENT) => "no membership has this number: it was left, or its identifier destroyed",
        (MIGRATE, Errno::NOENT) => {
            "no identifier has this number: it was destroyed; or the descriptor is not open"
        }
        (_, Errno::NOENT) => match state(file, asked) {
            Err(Errno::NOENT) | Ok(None) => "no identifier has this number: it was destroyed",
            _ => "the port has no such P_Key any more: the partition of the path was changed",
        },
        (_, Errno::INVAL) => return invalid(file, command, asked),
        (LISTEN, Errno::ADDRINUSE) if is_iwarp(file, asked) => {
            "a TCP socket of this host listens on the address and the port: the ports of iWARP are those of TCP"
        }
        (CONNECT, Errno::CONNREFUSED) => "nothing listens on the TCP port of the peer",
        (CONNECT, Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
            "the peer did not accept the TCP connection of iWARP: is the host up, and the port not filtered?"
        }
        (CONNECT, Errno::ADDRNOTAVAIL) => {
            "a TCP socket of this host uses the source port: the ports of iWARP are those of TCP"
        }
        (CONNECT | ACCEPT, Errno::NOMEM) => {
            "the depths of reads are above those of the device, or the kernel has no memory"
        }
        (ACCEPT | REJECT, Errno::CONNRESET) => "the peer closed its TCP connection before it was answered",
        (BIND | LISTEN | RESOLVE_ADDR, Errno::ADDRINUSE) => {
            "another identifier uses the address and the port in this port space: use another port, or port 0"
        }
        (BIND, Errno::ADDRNOTAVAIL) => bind_not_available(file, asked.local, false),
        (RESOLVE_ADDR, Errno::ADDRNOTAVAIL) => match asked.local {
            // The kernel does not bind an identifier again.
            Some(local) if local.port() != 0 || is_local(file, local) == Some(false) => {
                bind_not_available(file, asked.local, true)
            }
            _ => {
                "the route to the address has a gateway on an InfiniBand network, which needs ibacm; or no \
                 port of the sysctl net.ipv4.ip_local_port_range is free"
            }
        },
        (LISTEN, Errno::ADDRNOTAVAIL) if is_bound(file, asked) => PORT_BESIDE_WILDCARD,
        (LISTEN, Errno::ADDRNOTAVAIL) => NO_FREE_PORT,
        (ACCEPT | INIT_QP_ATTR | JOIN, Errno::ADDRNOTAVAIL) => {
            "the port has not joined the broadcast group of IPoIB: set the network interface up"
        }
        (BIND | RESOLVE_ADDR, Errno::NODEV) => no_device(file, command, asked),
        (RESOLVE_ROUTE | SET_OPTION | JOIN, Errno::NODEV) => match state(file, asked) {
            Ok(Some(state)) if state.is_loopback() => {
                "the address has no network interface with an RDMA device: loopback addresses have none; use \
                 the address of the device's own interface"
            }
            _ if command == JOIN => {
                "the network interface has no IPv4 configuration or was removed, or the RDMA device is being \
                 removed"
            }
            _ => "the network interface of the address was removed, or the RDMA device is being removed",
        },
        (NOTIFY | RESOLVE_SERVICE, Errno::NODEV) => "the RDMA device is being removed",
        (RESOLVE_ADDR, Errno::NETUNREACH) => {
            "this host has no IP route to the address, or the interface of the source address is down: `ip \
             route get ADDRESS` and `ip link` show it"
        }
        (RESOLVE_ADDR, Errno::HOSTUNREACH) => {
            "a route of this host rejects the address as unreachable: `ip route get ADDRESS` shows it"
        }
        (BIND | RESOLVE_ADDR, Errno::PROTONOSUPPORT) => {
            "the service ID of the address is not one of the identifier's port space"
        }
        (RESOLVE_ROUTE | RESOLVE_SERVICE | JOIN, Errno::AGAIN) => {
            "the port knows no subnet manager: its link is down, or no subnet manager runs"
        }
        (QUERY, Errno::NOSYS) => "the kernel has no such query; that of services is in Linux 7.2 and later",
        (QUERY, Errno::NODATA) => "no services were resolved",
        (SET_OPTION, Errno::NOSYS) => "the kernel has no such option",
        (JOIN, errno) if errno.raw_os_error() == ENOTSUPP => "RoCE v2 has no IPv6 multicast groups",
        (RESOLVE_SERVICE, Errno::OPNOTSUPP) => {
            "the port has no subnet administrator: it is not an InfiniBand port"
        }
        (NOTIFY, Errno::ISCONN) => "the connection is established already",
        _ => return None,
    })
}

/// The cause of a refusal and the remedy, where they are not those of the kernel's devices.
#[cfg(feature = "soft")]
fn hint_of_soft_device(file: &CmFile, command: u32, errno: Errno, asked: &Asked) -> Option<&'static str> {
    const NOT_LOCAL: &str = "no soft device of this process has the address: create the device by \
                             `Device::find(\"soft:ADDRESS\")` before";
    const NO_FREE_PORT: &str = "no port from 32768 to 60999 is free in this port space";
    Some(match (command, errno) {
        (BIND | RESOLVE_ADDR, Errno::ADDRNOTAVAIL) => match asked.local {
            Some(local) if is_local(file, local) == Some(false) => NOT_LOCAL,
            Some(local) if local.port() != 0 => return None,
            _ => NO_FREE_PORT,
        },
        (LISTEN, Errno::ADDRNOTAVAIL) if !is_bound(file, asked) => NO_FREE_PORT,
        (BIND | RESOLVE_ADDR, Errno::NODEV) if asked.has_unknown_scope() => UNKNOWN_SCOPE,
        (BIND | RESOLVE_ADDR, Errno::NODEV) if asked.has_gid() => {
            "soft devices have IP addresses only, no GIDs to bind to or to resolve"
        }
        (BIND, Errno::NODEV) => NOT_LOCAL,
        (RESOLVE_ADDR, Errno::NETUNREACH | Errno::NODEV) => {
            "no soft device of this process reaches the address: create one by `Device::find(\"soft:ADDRESS\")`, \
             or on the fabric of the peer"
        }
        (_, Errno::NXIO) => "the soft device was removed; only destroy the identifier",
        _ => return None,
    })
}

/// The cause of `EINVAL`.
fn invalid(file: &CmFile, command: u32, asked: &Asked) -> Option<&'static str> {
    match command {
        CREATE => return Some("the port space is unknown"),
        LEAVE => return Some("the membership belongs to another file of the connection manager"),
        MIGRATE => {
            return Some(
                "the descriptor is not one of the connection manager, or the identifier belongs to another \
                 file",
            );
        }
        WRITE_EVENT | RESOLVE_SERVICE if !file.has_user_events() => {
            return Some("Linux 7.2 and later have this command");
        }
        BIND if asked.local.is_none() => return Some(MALFORMED),
        RESOLVE_ADDR if asked.peer.is_none() => return Some(MALFORMED),
        _ => {}
    }
    let state = match state(file, asked) {
        Err(Errno::INVAL) => return Some("the identifier belongs to another file of the connection manager"),
        Ok(Some(state)) => state,
        _ => return None,
    };
    let needs_device = matches!(
        command,
        RESOLVE_ROUTE
            | RESOLVE_SERVICE
            | CONNECT
            | ACCEPT
            | REJECT
            | DISCONNECT
            | NOTIFY
            | INIT_QP_ATTR
            | JOIN
    );
    if needs_device && !state.has_device {
        return Some("the identifier has no device: its address is not resolved, and it is not bound to one");
    }
    Some(match command {
        BIND | RESOLVE_ADDR if link_local_scope(asked.local) == Some(0) => LACKS_SCOPE,
        BIND if state.has_device || asked.local.is_some_and(|local| is_any(file, asked, local)) => {
            "the identifier is bound already"
        }
        BIND => {
            "the identifier is bound already, or its port space is IPOIB and the address not one of IPoIB"
        }
        LISTEN => {
            "the identifier is in use as a client or listens already, or a service of the kernel listens on \
             its service ID"
        }
        RESOLVE_ADDR => resolve_invalid(file, asked, &state),
        RESOLVE_ROUTE => {
            "the address is not resolved, the route is resolved already, the MTU of the network interface is \
             below 352 bytes, or the time limit is 0"
        }
        RESOLVE_SERVICE => "the identifier has resolved services or an address already",
        CONNECT => {
            "the route is not resolved, the identifier was used for a connection, or the local GID of its \
             path was removed"
        }
        ACCEPT => "no request or response is pending: it was accepted before, or the peer gave up",
        REJECT => "no request or response is pending: it was answered before, or the peer gave up",
        DISCONNECT => "the identifier was not used for a connection",
        INIT_QP_ATTR => {
            "the connection has no attributes for this state: there is no request or response, or the \
             connection has ended"
        }
        NOTIFY => "no accepted request waits for the peer, or the event is neither COMM_EST nor PATH_MIG",
        SET_OPTION => option_invalid(asked, &state),
        JOIN => {
            "the identifier is not for datagrams, it listens or has a route, or the group is the unspecified \
             address"
        }
        WRITE_EVENT => match asked.event {
            Some(EventType::USER | EventType::INTERNAL) => "the identifier was created with uid 0",
            _ => "programs write the events USER and INTERNAL only",
        },
        _ => return None,
    })
}

const MALFORMED: &str = "the address has an unknown family or a wrong length";
const LACKS_SCOPE: &str = "an IPv6 link-local address needs a scope id: the index of its network interface";
const UNKNOWN_SCOPE: &str = "no network interface has the scope id of the address";
const PORT_BESIDE_WILDCARD: &str = "another identifier uses the port in this port space, and one of the two is \
                                    bound to a wildcard or loopback address: use another port, or port 0";
const NO_FREE_PORT: &str = "no port of the sysctl net.ipv4.ip_local_port_range is free in this port space";

fn resolve_invalid(file: &CmFile, asked: &Asked, state: &State) -> &'static str {
    let Some(peer) = asked.peer else { return MALFORMED };
    let family = |addr: Addr| addr.to_kernel().0.family;
    let is_other_family = |addr: Addr| family(addr) != family(peer);
    // A bound identifier ignores the source. The kernel has bound an unbound one to it.
    if asked.local.is_some_and(is_other_family) || state.local.is_some_and(is_other_family) {
        return "the local address and that of the peer are of different families";
    }
    if look_up_route(peer) == Err(Errno::INVAL) {
        return "a blackhole route of this host discards the address: `ip route get ADDRESS` shows it";
    }
    if asked.local.is_none_or(|local| is_any(file, asked, local)) || state.has_device {
        return "the identifier has resolved or is resolving an address already, listens, or is connected";
    }
    "the identifier has resolved or is resolving an address already, listens, or is connected; or its port \
     space is IPOIB and the source address not one of IPoIB"
}

fn option_invalid(asked: &Asked, state: &State) -> &'static str {
    const REUSE_ADDR: u32 = IdOption::REUSE_ADDR.0;
    const AF_ONLY: u32 = IdOption::AF_ONLY.0;
    const ACK_TIMEOUT: u32 = IdOption::ACK_TIMEOUT.0;
    match asked.option {
        Some((OptionLevel::ID, REUSE_ADDR)) => {
            "the identifier listens; or the value is false, and the identifier is not new; or the value has a \
             wrong length"
        }
        Some((OptionLevel::ID, AF_ONLY)) => {
            "the identifier listens or has resolved an address: set the option before; or the value has a \
             wrong length"
        }
        Some((OptionLevel::ID, ACK_TIMEOUT)) => {
            "the queue pair of the identifier is not RC or XRC_INI, or the value has a wrong length"
        }
        Some((OptionLevel::IB, _)) if !state.has_device => {
            "the identifier has no device: its address is not resolved"
        }
        Some((OptionLevel::IB, _)) => {
            "the address is not resolved, or has a route already; or the value holds no primary path"
        }
        _ => "the value has a wrong length",
    }
}

/// The cause of `EADDRNOTAVAIL` of a bind, or of a resolution that binds to a source.
fn bind_not_available(file: &CmFile, local: Option<Addr>, is_source: bool) -> &'static str {
    let Some(local) = local else { return MALFORMED };
    match is_local(file, local) {
        Some(false) if is_source => "the source address is not one of this host",
        Some(false) => "the address is not one of this host",
        Some(true) if local.port() == 0 => NO_FREE_PORT,
        Some(true) => PORT_BESIDE_WILDCARD,
        None => {
            "the address is not one of this host, or an identifier bound to a wildcard address uses the port in \
             this port space, or no port is free"
        }
    }
}

/// The cause of `ENODEV` of a bind or of a resolution.
fn no_device(file: &CmFile, command: u32, asked: &Asked) -> &'static str {
    if bareverbs::devices().is_ok_and(|devices| devices.is_empty()) {
        return "this network namespace has no RDMA device";
    }
    if asked.has_unknown_scope() {
        return UNKNOWN_SCOPE;
    }
    let local = asked.local.filter(|local| !is_any(file, asked, *local));
    match (local.or(asked.peer), command == BIND) {
        (Some(Addr::Ib(_)), true) => "no InfiniBand port has the GID: RoCE ports have IP addresses only",
        (Some(Addr::Ib(_)), false) => {
            "no active InfiniBand port is in the subnet of the GID and has the P_Key: RoCE ports have IP \
             addresses only"
        }
        (_, true) => {
            "the address is local, but its network interface has no RDMA device; after the address was \
             added, the device has it with a short delay"
        }
        (_, false) if local.is_some() => {
            "the source address is local, but its network interface has no RDMA device; after the address was \
             added, the device has it with a short delay"
        }
        _ => "the network interface of the route has no RDMA device",
    }
}

/// What the kernel shows of an identifier in every state.
struct State {
    has_device: bool,
    local: Option<Addr>,
    peer: Option<Addr>,
}

impl State {
    fn is_loopback(&self) -> bool {
        let loopback =
            |addr: Option<Addr>| addr.and_then(|addr| addr.ip()).is_some_and(|addr| addr.ip().is_loopback());
        loopback(self.local) || loopback(self.peer)
    }
}

/// The state of the request's identifier; `None` if it names none.
fn state(file: &CmFile, asked: &Asked) -> Result<Option<State>, Errno> {
    let Some(id) = asked.id else { return Ok(None) };
    let mut response = QueryAddrResp::zeroed();
    let request = QueryReq { id, option: QueryOption::ADDR, ..QueryReq::zeroed() };
    file.submit::<Query>(request, response.as_mut_bytes())?;
    Ok(Some(State {
        has_device: response.node_guid != 0,
        local: Addr::from_kernel(&response.src_addr),
        peer: Addr::from_kernel(&response.dst_addr),
    }))
}

/// Whether the address is that of all devices. A soft device may have a loopback address.
fn is_any(file: &CmFile, asked: &Asked, addr: Addr) -> bool {
    match addr {
        Addr::Ip(addr) if file.source.is_soft(asked.id) => addr.ip().is_unspecified(),
        Addr::Ip(addr) => addr.ip().is_unspecified() || addr.ip().is_loopback(),
        Addr::Ib(addr) => addr.gid.0 == [0; 16],
    }
}

/// Whether the device of the identifier of the request is one of iWARP: its attributes have no P_Key.
fn is_iwarp(file: &CmFile, asked: &Asked) -> bool {
    let Some(id) = asked.id else { return false };
    let mut attr = QpAttr::zeroed();
    let request = InitQpAttrReq { id, qp_state: QpState::INIT.0.into(), ..InitQpAttrReq::zeroed() };
    let answered = file.submit::<InitQpAttr>(request, attr.as_mut_bytes());
    answered.is_ok() && is_iwarp_mask(attr.qp_attr_mask)
}

/// Whether the identifier of the request has a port.
fn is_bound(file: &CmFile, asked: &Asked) -> bool {
    let state = state(file, asked);
    matches!(state, Ok(Some(State { local: Some(local), .. })) if local.port() != 0)
}

impl CmFile {
    /// Whether the credentials differ from those of the open. The kernel compares them before it looks
    /// at the command, so that none is needed.
    fn has_other_credentials(&self) -> bool {
        use std::io::Write;
        let Some(mut file) = self.source.kernel() else { return false };
        file.write(&[]).is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::ACCESS))
    }
}

/// The scope of a link-local IPv6 address; 0 for none.
fn link_local_scope(addr: Option<Addr>) -> Option<u32> {
    match addr {
        Some(Addr::Ip(SocketAddr::V6(addr))) if addr.ip().is_unicast_link_local() => Some(addr.scope_id()),
        _ => None,
    }
}

fn interface_exists(index: u32) -> bool {
    let Ok(interfaces) = Path::new("/sys/class/net").read_dir() else { return true };
    interfaces.flatten().any(|interface| {
        let found = std::fs::read_to_string(interface.path().join("ifindex"));
        found.is_ok_and(|found| found.trim().parse() == Ok(index))
    })
}

/// Whether an address is one of this host; `None` if that can't be found out. The kernel answers it: it
/// binds another identifier to the address and a free port, unless the address is not local.
fn is_local(file: &CmFile, addr: Addr) -> Option<bool> {
    let mut created = CreateIdResp::zeroed();
    // Without `uid`, it gets no events.
    let request = CreateIdReq { ps: PortSpace::UDP, ..CreateIdReq::zeroed() };
    file.submit::<CreateId>(request, created.as_mut_bytes()).ok()?;
    let id = created.id;
    let (addr, addr_size) = addr.with_port(0).to_kernel();
    let bound = file.submit::<Bind>(BindReq { id, addr_size, addr, ..BindReq::zeroed() }, &mut []);
    let request = DestroyIdReq { id, ..DestroyIdReq::zeroed() };
    file.submit::<DestroyId>(request, DestroyIdResp::zeroed().as_mut_bytes()).ok()?;
    Some(bound != Err(Errno::ADDRNOTAVAIL))
}

/// Looks up the route of this host to an IP address. No packet is sent.
fn look_up_route(addr: Addr) -> Result<(), Errno> {
    /// The discard port.
    const PORT: u16 = 9;
    let Addr::Ip(mut addr) = addr else { return Err(Errno::AFNOSUPPORT) };
    addr.set_port(PORT);
    local_to(addr).map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
