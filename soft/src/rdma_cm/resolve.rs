//! Addresses of devices: binding, ports, and the resolution of addresses and routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_uapi::rdma_cm::path::{PathFlags, PathRecData};
use bareverbs_uapi::rdma_cm::structs::EventResp;
use bareverbs_uapi::rdma_cm::{EventType, PortSpace};
use zerocopy::FromBytes;

use super::address::{Address, same_family};
use super::id::{Id, IdState};
use super::namespace::{CmPort, Namespace, State};
use crate::cm::Path;
use crate::wire::gid;

/// The ports that a bind to port 0 takes from, as `net.ipv4.ip_local_port_range` of Linux.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;

/// The rate of paths: 10 Gbit/s.
pub(super) const RATE: u8 = 3;

/// The packet life time of paths: 4.096 µs × 2^16, that of RoCE on Linux.
const PACKET_LIFE: u8 = 16;

/// The hop limit of paths.
pub(super) const HOP_LIMIT: u8 = 64;

impl Namespace {
    /// BIND.
    pub(super) fn bind(&self, file: u64, number: u32, address: Address) -> Result<(), Errno> {
        let devices = self.devices();
        bind(&mut self.lock(), &devices, file, number, address.ip()?)
    }

    /// Takes BIND back: the identifier has no address and no port.
    ///
    /// # Errors
    ///
    /// Those of [`State::id`]; `EINVAL` unless it is bound, and nothing followed.
    pub(super) fn unbind(&self, file: u64, number: u32) -> Result<(), Errno> {
        let mut state = self.lock();
        let id = state.id(file, number)?;
        if id.state != IdState::Bound {
            return Err(Errno::INVAL);
        }
        (id.source, id.device, id.state) = (None, None, IdState::Idle);
        state.unbind(number);
        Ok(())
    }

    /// RESOLVE_ADDR. An address resolves at once.
    pub(super) fn resolve_address(
        &self,
        file: u64,
        number: u32,
        source: Address,
        destination: Address,
    ) -> Result<(), Errno> {
        let devices = self.devices();
        // Before the lock: it may look at the routing table.
        let destination = destination.ip()?;
        let device = device_to(&devices, destination.ip());
        let mut state = self.lock();
        let state = &mut *state;
        if state.id(file, number)?.state == IdState::Idle {
            let source = if source == Address::Unset { unspecified(destination) } else { source.ip()? };
            bind(state, &devices, file, number, source)?;
        }
        let id = state.id(file, number)?;
        let Some(own) = id.source.filter(|_| id.state == IdState::Bound) else { return Err(Errno::INVAL) };
        if !same_family(own.ip(), destination.ip()) {
            return Err(Errno::INVAL);
        }
        let device = match id.device {
            None => device,
            Some(index) => devices.iter().find(|port| port.index() == index),
        };
        let device = device.filter(|device| reaches(&devices, &***device, destination.ip()));
        let device = device.ok_or(if devices.is_empty() { Errno::NODEV } else { Errno::NETUNREACH })?;
        if id.space == PortSpace::IPOIB {
            return Err(Errno::INVAL);
        }
        id.device = Some(device.index());
        id.source = Some(SocketAddr::new(device.address(), own.port()));
        id.destination = Some(destination);
        id.state = IdState::AddressResolved;
        state.raise(number, EventResp { event: EventType::ADDR_RESOLVED, ..EventResp::zeroed() });
        Ok(())
    }

    /// RESOLVE_ROUTE.
    pub(super) fn resolve_route(&self, file: u64, number: u32, timeout: u32) -> Result<(), Errno> {
        let index = self.lock().id(file, number)?.device.ok_or(Errno::INVAL)?;
        let port = self.device(index).ok_or(Errno::NXIO)?;
        let mut state = self.lock();
        let id = state.id(file, number)?;
        if timeout == 0 || id.state != IdState::AddressResolved {
            return Err(Errno::INVAL);
        }
        id.path = Some(path(id, &*port).ok_or(Errno::INVAL)?);
        id.state = IdState::RouteResolved;
        state.raise(number, EventResp { event: EventType::ROUTE_RESOLVED, ..EventResp::zeroed() });
        Ok(())
    }
}

/// Sets the path of an identifier from the records of the option, instead of RESOLVE_ROUTE. The GIDs stay
/// those of the addresses.
pub(super) fn set_path(state: &mut State, file: u64, number: u32, records: &[u8]) -> Result<(), Errno> {
    const PRIMARY: PathFlags = PathFlags::GMP.union(PathFlags::PRIMARY).union(PathFlags::BIDIRECTIONAL);
    let chunks = records.chunks_exact(size_of::<PathRecData>());
    if !chunks.remainder().is_empty() {
        return Err(Errno::INVAL);
    }
    let mut records = chunks.filter_map(|bytes| PathRecData::read_from_bytes(bytes).ok());
    let record = records.find(|record| record.flags == PRIMARY).ok_or(Errno::INVAL)?.record();
    let id = state.id(file, number)?;
    let (Some(source), Some(destination)) = (id.source, id.destination) else { return Err(Errno::INVAL) };
    if id.state != IdState::AddressResolved {
        return Err(Errno::INVAL);
    }
    id.path = Some(Path {
        source: gid(source.ip()),
        destination: gid(destination.ip()),
        flow_label: record.flow_label,
        traffic_class: record.traffic_class,
        hop_limit: record.hop_limit,
        service_level: record.sl,
        mtu: record.mtu,
        rate: record.rate,
        packet_life: record.packet_life_time,
        pkey: record.pkey,
    });
    id.state = IdState::RouteResolved;
    state.raise(number, EventResp { event: EventType::ROUTE_RESOLVED, ..EventResp::zeroed() });
    Ok(())
}

/// The path between the addresses of an identifier.
fn path(id: &Id, port: &dyn CmPort) -> Option<Path> {
    Some(Path {
        source: gid(id.source?.ip()),
        destination: gid(id.destination?.ip()),
        flow_label: 0,
        traffic_class: id.tos,
        hop_limit: HOP_LIMIT,
        service_level: 0,
        mtu: port.active_mtu(),
        rate: RATE,
        // The kernel derives it from the time-out, if that was set.
        packet_life: id.ack_timeout.filter(|timeout| *timeout > 0).map_or(PACKET_LIFE, |timeout| timeout - 1),
        pkey: 0xffff,
    })
}

/// The unspecified address of the same family.
fn unspecified(of: SocketAddr) -> SocketAddr {
    match of {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// The device that reaches an address: the oldest one on the fabric of a device that has it, or else the
/// one whose wire has the source address of the route.
fn device_to(devices: &[Arc<dyn CmPort>], destination: IpAddr) -> Option<&Arc<dyn CmPort>> {
    if destination.is_unspecified() {
        return None;
    }
    if let Some(peer) = devices.iter().find(|port| port.address() == destination) {
        return devices
            .iter()
            .find(|port| port.fabric() == peer.fabric() && same_family(port.address(), destination));
    }
    let bound = || devices.iter().filter(|port| port.has_wire() && same_family(port.address(), destination));
    if destination.is_loopback() {
        return bound().find(|port| port.address().is_loopback());
    }
    let source = route_source(destination)?;
    bound().find(|port| port.address() == source)
}

/// The source address of the route to an address. Nothing is sent.
fn route_source(destination: IpAddr) -> Option<IpAddr> {
    let any = unspecified(SocketAddr::new(destination, 0));
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((destination, crate::wire::ROCE)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Whether a device reaches an address.
fn reaches(devices: &[Arc<dyn CmPort>], device: &dyn CmPort, destination: IpAddr) -> bool {
    let is_peer = |port: &Arc<dyn CmPort>| port.address() == destination && port.fabric() == device.fabric();
    let by_wire = device.has_wire() && !destination.is_unspecified();
    same_family(device.address(), destination) && (by_wire || devices.iter().any(is_peer))
}

/// Binds an identifier to an address and a port.
///
/// # Errors
///
/// `EINVAL` if it is bound already; `EADDRNOTAVAIL` if no device has the address, `ENODEV` for a
/// link-local one; those of [`take_port`].
pub(super) fn bind(
    state: &mut State,
    devices: &[Arc<dyn CmPort>],
    file: u64,
    number: u32,
    address: SocketAddr,
) -> Result<(), Errno> {
    let id = state.id(file, number)?;
    if id.state != IdState::Idle {
        return Err(Errno::INVAL);
    }
    // The kernel looks up the interface of the scope, not the address.
    let mut foreign = Errno::ADDRNOTAVAIL;
    if let SocketAddr::V6(v6) = address
        && v6.ip().is_unicast_link_local()
    {
        if v6.scope_id() == 0 {
            return Err(Errno::INVAL);
        }
        foreign = Errno::NODEV;
    }
    let mut device = None;
    if !address.ip().is_unspecified() {
        let found = devices.iter().find(|port| port.address() == address.ip());
        device = Some(found.ok_or(foreign)?.index());
        if id.space == PortSpace::IPOIB {
            return Err(Errno::INVAL);
        }
    }
    id.source = Some(address);
    match take_port(state, number, address) {
        Ok(port) => {
            let id = state.id(file, number)?;
            id.device = device;
            id.source = Some(with_port(address, port));
            id.state = IdState::Bound;
            Ok(())
        }
        Err(errno) => {
            state.id(file, number)?.source = None;
            Err(errno)
        }
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    if let SocketAddr::V6(v6) = address {
        address = SocketAddrV6::new(*v6.ip(), port, v6.flowinfo(), v6.scope_id()).into();
    }
    address
}

/// Takes the port of an address, or a free one for port 0.
///
/// # Errors
///
/// Those of [`check_port`]; `EADDRNOTAVAIL` if no port is free.
fn take_port(state: &mut State, number: u32, address: SocketAddr) -> Result<u16, Errno> {
    let space = state.ids[&number].space;
    if address.port() != 0 {
        check_port(state, number, state.ids[&number].reuses_address)?;
        state.owners(space, address.port()).push(number);
        return Ok(address.port());
    }
    let (first, last) = (*EPHEMERAL.start(), *EPHEMERAL.end());
    for _ in EPHEMERAL {
        let port = state.next_port.clamp(first, last);
        state.next_port = if port == last { first } else { port + 1 };
        let owners = state.owners(space, port);
        if owners.is_empty() {
            owners.push(number);
            return Ok(port);
        }
    }
    Err(Errno::ADDRNOTAVAIL)
}

/// Whether the owners of the port of an identifier let it use the port.
///
/// # Errors
///
/// `EADDRNOTAVAIL` if one of two has an unspecified address, `EADDRINUSE` if both have the same.
pub(super) fn check_port(state: &State, number: u32, reuses: bool) -> Result<(), Errno> {
    let id = &state.ids[&number];
    let Some(own) = id.source else { return Ok(()) };
    let owners = state.ports.get(&(id.space.0, own.port())).map_or(&[][..], Vec::as_slice);
    for other in owners.iter().filter(|owner| **owner != number).filter_map(|owner| state.ids.get(owner)) {
        if reuses && other.reuses_address {
            continue;
        }
        let Some(theirs) = other.source else { continue };
        let are_apart = id.is_family_only() && other.is_family_only();
        if are_apart && !same_family(own.ip(), theirs.ip()) {
            continue;
        }
        if own.ip().is_unspecified() || theirs.ip().is_unspecified() {
            return Err(Errno::ADDRNOTAVAIL);
        }
        if own.ip() == theirs.ip() {
            return Err(Errno::ADDRINUSE);
        }
    }
    Ok(())
}
