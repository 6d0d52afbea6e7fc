//! Packets of RoCE v2 over UDP sockets.
//!
//! A [`UdpWire`] has one local IP address. Its socket on port 4791 sends and receives packets from the
//! BTH to the ICRC. [`WireThread`] waits for packets and timers. The kernel fragments nothing
//! (`IP_PMTUDISC_PROBE`), so the identification of IPv4 headers is 0 in all packets that the wire sends,
//! as the ICRC assumes.
//!
//! | module | content |
//! |---|---|
//! | `send` | batches of packets |
//! | `receive` | batches of datagrams, and the fields of their IP headers |
//! | `icrc` | the ICRC of packets |
//! | `interface` | the network interface of an address, and its MTU |
//! | `thread` | the thread of a wire |
//! | `fork` | sockets that a forked child doesn't keep |

mod fork;
pub(crate) mod icrc;
mod interface;
mod receive;
mod send;
mod thread;

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bareverbs_provider::process::ForkGuard;
use bareverbs_transport::bth;
use bareverbs_transport::packet::{Global, Network, Packet, Route};
use bareverbs_transport::roce::NetworkHeaders;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, Timeout};
use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};

use crate::address_error::AddressError;
use crate::sys::{last_errno, lock};
use interface::Interface;
use receive::{Batch, Datagram};
use send::Sender;
pub(crate) use thread::WireThread;

/// UDP port of RoCE v2.
pub(crate) const ROCE: u16 = 4791;
/// Requested size of the receive buffer in bytes. The kernel limits it to `net.core.rmem_max`, unless the
/// process has CAP_NET_ADMIN.
const RECEIVE_BUFFER: usize = 8 << 20;
/// A packet that the network interface can't take for so long is dropped. Those after it in the same run
/// are dropped at once.
const SEND_TIMEOUT: Duration = Duration::from_millis(10);
/// Length of a BTH in bytes.
const BTH: usize = 12;

/// Packets that were not carried.
#[derive(Debug, Default)]
struct Counts {
    malformed: AtomicU64,
    corrupt: AtomicU64,
    refused: AtomicU64,
    overflowed: AtomicU64,
}

/// Numbers of packets that a device has dropped at its socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DroppedPackets {
    /// Received, but not of RoCE v2.
    pub malformed: u64,
    /// Received with a wrong ICRC, also by [`Fault::corrupt`](crate::Fault::corrupt).
    pub corrupt: u64,
    /// Not sent: the kernel refused the packet, or its source is not the device's address.
    pub refused: u64,
    /// Lost because a receive buffer was full, at least.
    pub overflowed: u64,
}

/// A local address that sends and receives packets.
#[derive(Debug)]
pub(crate) struct UdpWire {
    address: IpAddr,
    interface: Interface,
    socket: Socket,
    groups: Mutex<BTreeMap<IpAddr, Arc<Socket>>>,
    /// An eventfd that ends the wait of the wire's thread.
    wake: OwnedFd,
    sender: Mutex<Sender>,
    /// Whether a packet of this run was dropped after [`SEND_TIMEOUT`].
    congested: AtomicBool,
    counts: Counts,
}

impl UdpWire {
    /// Takes port 4791 of an address.
    pub(crate) fn bind(address: IpAddr) -> Result<Self, AddressError> {
        Self::try_bind(address).map_err(|errno| AddressError::new(address, errno))
    }

    fn try_bind(address: IpAddr) -> Result<Self, Errno> {
        let socket = Socket::new(address)?;
        let interface = Interface::of(socket.as_fd(), address)?;
        if mtu(&interface) == 0 {
            return Err(Errno::MSGSIZE);
        }
        net::bind(&socket, &at(address, interface.index))?;
        if address.is_ipv4() {
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
            sockopt::set_ip_multicast_if_with_ifindex(
                &socket,
                &Ipv4Addr::UNSPECIFIED,
                &Ipv4Addr::UNSPECIFIED,
                interface.index,
            )?;
        } else {
            sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
            sockopt::set_ipv6_multicast_if(&socket, interface.index)?;
        }
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(SEND_TIMEOUT))?;
        Ok(Self {
            address,
            interface,
            socket,
            groups: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            sender: Mutex::default(),
            congested: AtomicBool::new(false),
            counts: Counts::default(),
        })
    }

    /// Limits the receive buffer to about this size in bytes.
    #[cfg(test)]
    pub(crate) fn limit_receive_buffer(&self, size: usize) {
        sockopt::set_socket_recv_buffer_size(&self.socket, size).expect("a socket");
    }

    /// The address.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Maximum payload of a packet in bytes: 256 to 4096.
    pub(crate) fn mtu(&self) -> u32 {
        mtu(&self.interface)
    }

    /// The packets that were dropped.
    pub(crate) fn dropped(&self) -> DroppedPackets {
        let Counts { malformed, corrupt, refused, overflowed } = &self.counts;
        let [malformed, corrupt, refused, overflowed] =
            [malformed, corrupt, refused, overflowed].map(|count| count.load(Ordering::Relaxed));
        DroppedPackets { malformed, corrupt, refused, overflowed }
    }

    /// Begins a run of the devices: the next packet may wait for the network interface again.
    pub(crate) fn begin_run(&self) {
        self.congested.store(false, Ordering::Relaxed);
    }

    /// Sends a packet, at the latest when the wire is [flushed](Self::flush). One that the kernel refuses
    /// is dropped and counted, as on any network. A corrupt packet has a wrong ICRC.
    pub(crate) fn send(&self, packet: &Packet, corrupt: bool) {
        if self.try_send(packet, corrupt).is_err() {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends a packet at once.
    #[cfg(test)]
    pub(crate) fn send_now(&self, packet: &Packet, corrupt: bool) {
        self.send(packet, corrupt);
        self.flush();
    }

    /// Sends the packets that wait for further ones.
    pub(crate) fn flush(&self) {
        self.flush_from(&mut lock(&self.sender));
    }

    fn flush_from(&self, sender: &mut Sender) {
        if !self.socket.fork_guard.is_same_process() {
            return;
        }
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::DONTWAIT, self.congested.load(Ordering::Relaxed));
        let (refused, last_error) = sender.batch.send(&self.socket, self.interface.index, flags);
        if last_error == Some(Errno::AGAIN) {
            self.congested.store(true, Ordering::Relaxed);
        }
        self.counts.refused.fetch_add(refused, Ordering::Relaxed);
    }

    fn try_send(&self, packet: &Packet, corrupt: bool) -> Result<(), Errno> {
        if !self.socket.fork_guard.is_same_process() {
            return Err(Errno::STALE);
        }
        let global = packet.route.global.ok_or(Errno::INVAL)?;
        let to = address_of(&global.destination);
        if address_of(&global.source) != self.address || to.is_ipv4() != self.address.is_ipv4() {
            return Err(Errno::INVAL);
        }
        let mut sender = lock(&self.sender);
        let fields = (hop_limit(&global), global.traffic_class);
        if sender.fields != Some(fields) {
            self.flush_from(&mut sender);
            self.socket.set_fields(to, fields)?;
            sender.fields = Some(fields);
        }
        if !sender.batch.takes(to) {
            self.flush_from(&mut sender);
        }
        let bytes = sender.batch.begin(to);
        bth::write(packet, bytes);
        let headers = NetworkHeaders::new(&global_of(global.source, to), ROCE, bytes.len());
        let mut icrc = icrc::of(&headers, bytes);
        if corrupt {
            // One bit is wrong, and no identification of an IPv4 header explains it.
            let mut damaged = (0..u32::BITS).map(|bit| icrc ^ 1 << bit);
            icrc = damaged.find(|icrc| !icrc::verify(&headers, bytes, *icrc)).unwrap_or(!icrc);
        }
        bytes.extend_from_slice(&icrc.to_le_bytes());
        sender.batch.end();
        Ok(())
    }

    /// Receives packets, without waiting: up to a limit of datagrams, in equal parts of all sockets.
    pub(crate) fn receive(&self, inbox: &mut Inbox) {
        let groups: Vec<_> =
            lock(&self.groups).iter().map(|(group, socket)| (*group, Arc::clone(socket))).collect();
        let groups = groups.iter().map(|(group, socket)| (*group, &**socket));
        let sockets: Vec<_> = groups.chain([(self.address, &self.socket)]).collect();
        let Inbox { packets, batch, next } = inbox;
        let (mut left, quota) = (Inbox::BATCHES, (Inbox::BATCHES / sockets.len()).max(1));
        // Each call begins with another socket, so that none starves.
        *next = (*next + 1) % sockets.len();
        for (destination, socket) in sockets[*next..].iter().chain(&sockets[..*next]) {
            for _ in 0..quota.min(left) {
                left -= 1;
                let taken = batch.take(socket.as_fd(), |datagram| {
                    packets.extend(self.accept((*destination, socket), datagram));
                });
                // An error is that of an earlier packet that this socket has sent.
                if !matches!(taken, Ok(true)) {
                    break;
                }
            }
        }
    }

    /// The packet in a datagram. Others are counted.
    fn accept(
        &self,
        (destination, socket): (IpAddr, &Socket),
        datagram: Option<Datagram<'_>>,
    ) -> Option<Packet> {
        if let Some(lost) = datagram.and_then(|datagram| datagram.lost) {
            let before = socket.lost.fetch_max(lost, Ordering::Relaxed);
            self.counts.overflowed.fetch_add(lost.saturating_sub(before).into(), Ordering::Relaxed);
        }
        let count = match datagram
            .ok_or(DecodeError::Malformed)
            .and_then(|datagram| decode(destination, &datagram))
        {
            Ok(packet) => return Some(packet),
            Err(DecodeError::Malformed) => &self.counts.malformed,
            Err(DecodeError::Corrupt) => &self.counts.corrupt,
        };
        count.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Receives packets of a multicast group. A group of the other IP family has none on this wire.
    pub(crate) fn join(&self, group: [u8; 16]) -> Result<(), Errno> {
        let group = address_of(&group);
        if !group.is_multicast() {
            return Err(Errno::INVAL);
        }
        if group.is_ipv4() != self.address.is_ipv4() {
            return Ok(());
        }
        let mut groups = lock(&self.groups);
        if groups.contains_key(&group) {
            return Ok(());
        }
        let socket = Socket::new(group)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &at(group, self.interface.index))?;
        match group {
            IpAddr::V4(group) => sockopt::set_ip_add_membership_with_ifindex(
                &socket,
                &group,
                &Ipv4Addr::UNSPECIFIED,
                self.interface.index,
            )?,
            IpAddr::V6(group) => sockopt::set_ipv6_add_membership(&socket, &group, self.interface.index)?,
        }
        groups.insert(group, Arc::new(socket));
        // The thread waits for the sockets that there were.
        self.wake();
        Ok(())
    }

    /// Leaves the multicast groups for which `stays` is false.
    pub(crate) fn retain_groups(&self, stays: impl Fn(&[u8; 16]) -> bool) {
        let mut groups = lock(&self.groups);
        let before = groups.len();
        groups.retain(|group, _| stays(&gid(*group)));
        if groups.len() < before {
            // The thread keeps the sockets open for which it waits.
            self.wake();
        }
    }

    /// Ends the wait of the wire's thread.
    fn wake(&self) {
        // Fails if the counter is at its maximum: the thread is about to wake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The sockets.
    fn sockets(&self) -> (&Socket, Vec<Arc<Socket>>) {
        (&self.socket, lock(&self.groups).values().cloned().collect())
    }
}

/// Why a datagram is dropped.
#[derive(Debug, PartialEq, Eq)]
enum DecodeError {
    Malformed,
    Corrupt,
}

/// The packet in a datagram to `destination`.
fn decode(destination: IpAddr, datagram: &Datagram<'_>) -> Result<Packet, DecodeError> {
    let (transport, icrc) = datagram
        .bytes
        .split_last_chunk()
        .filter(|(transport, _)| transport.len() >= BTH)
        .ok_or(DecodeError::Malformed)?;
    let global = Global {
        hop_limit: datagram.hop_limit,
        traffic_class: datagram.traffic_class,
        ..global_of(gid(datagram.source.ip()), destination)
    };
    let headers = NetworkHeaders::new(&global, datagram.source.port(), transport.len());
    if !icrc::verify(&headers, transport, u32::from_le_bytes(*icrc)) {
        return Err(DecodeError::Corrupt);
    }
    let route = Route { udp_source: datagram.source.port(), global: Some(global), ..Route::default() };
    bth::read(route, transport).ok_or(DecodeError::Malformed)
}

/// The packet in a datagram that no socket has received.
#[cfg(feature = "test-utils")]
pub(crate) fn datagram_packet(destination: IpAddr, source: SocketAddr, bytes: &[u8]) -> Option<Packet> {
    let datagram = Datagram { bytes, source, hop_limit: 64, traffic_class: 0, lost: None };
    decode(destination, &datagram).ok()
}

/// The part of the addressing that the ICRC covers.
pub(crate) fn global_of(source: [u8; 16], destination: IpAddr) -> Global {
    let network = if destination.is_ipv4() { Network::Ipv4 } else { Network::Ipv6 };
    let destination = gid(destination);
    Global { source, destination, flow_label: 0, traffic_class: 0, hop_limit: 0, network }
}

/// Received packets, and the buffers to receive them.
pub(crate) struct Inbox {
    /// The packets.
    pub(crate) packets: Vec<Packet>,
    batch: Batch,
    /// The socket that is served first.
    next: usize,
}

impl Inbox {
    /// Most batches at a time: 512 datagrams, the window of some QPs.
    const BATCHES: usize = 16;

    pub(crate) fn new() -> Self {
        Self { packets: Vec::new(), batch: Batch::new(), next: 0 }
    }
}

/// The fields of a route as they are in packets of a wire: all come from one socket.
pub(crate) fn set_fields(route: &mut Route) {
    route.udp_source = ROCE;
    if let Some(global) = &mut route.global {
        global.hop_limit = hop_limit(global);
    }
}

/// The hop limit on the wire. rxe sends packets with a hop limit of 0, which a socket doesn't.
fn hop_limit(global: &Global) -> u8 {
    global.hop_limit.max(1)
}

/// The address in a GID.
pub(crate) fn address_of(gid: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*gid).to_canonical()
}

/// The GID of an address.
pub(crate) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Maximum payload of a packet on an interface in bytes. 0 if it takes no packet of RoCE.
fn mtu(interface: &Interface) -> u32 {
    /// Longest headers, with the ICRC, as the kernel's RoCE drivers reckon with.
    const HEADERS: u32 = 96;
    let room = interface.mtu.saturating_sub(HEADERS);
    [4096, 2048, 1024, 512, 256].into_iter().find(|mtu| *mtu <= room).unwrap_or(0)
}

/// Port 4791 of an address, which may be one of an interface's link.
fn at(address: IpAddr, interface: u32) -> SocketAddr {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() || address.is_multicast() => {
            SocketAddrV6::new(address, ROCE, 0, interface).into()
        }
        address => SocketAddr::new(address, ROCE),
    }
}

/// A UDP socket, which a forked child doesn't keep.
#[derive(Debug)]
struct Socket {
    descriptor: ManuallyDrop<OwnedFd>,
    /// The number of datagrams that were lost because the receive buffer was full.
    lost: AtomicU32,
    fork_guard: ForkGuard,
}

impl Socket {
    /// A socket for this kind of address, which reports the fields of IP headers.
    fn new(address: IpAddr) -> Result<Self, Errno> {
        let fork_guard = ForkGuard::new()?;
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let descriptor =
            fork::open(|| net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None))?;
        let descriptor = ManuallyDrop::new(descriptor);
        let socket = Self { descriptor, lost: AtomicU32::new(0), fork_guard };
        if address.is_ipv4() {
            sockopt::set_ip_recvtos(&socket, true)?;
            socket.set(libc::IPPROTO_IP, libc::IP_RECVTTL)?;
        } else {
            sockopt::set_ipv6_v6only(&socket, true)?;
            sockopt::set_ipv6_recvtclass(&socket, true)?;
            socket.set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)?;
            // Soft-RoCE sends without a UDP checksum.
            socket.set(libc::SOL_UDP, libc::UDP_NO_CHECK6_RX)?;
        }
        socket.set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL)?;
        sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER))?;
        Ok(socket)
    }

    /// Sets the hop limit and the traffic class of the packets that follow.
    fn set_fields(&self, to: IpAddr, (hop_limit, traffic_class): (u8, u8)) -> Result<(), Errno> {
        if to.is_ipv4() {
            sockopt::set_ip_ttl(self, hop_limit.into())?;
            sockopt::set_ip_multicast_ttl(self, hop_limit.into())?;
            sockopt::set_ip_tos(self, traffic_class)
        } else {
            sockopt::set_ipv6_unicast_hops(self, Some(hop_limit))?;
            sockopt::set_ipv6_multicast_hops(self, hop_limit.into())?;
            sockopt::set_ipv6_tclass(self, traffic_class.into())
        }
    }

    /// Sets a Boolean option.
    fn set(&self, level: i32, option: i32) -> Result<(), Errno> {
        let on: i32 = 1;
        // SAFETY: the kernel reads the four bytes of `on`, which outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.as_fd().as_raw_fd(),
                level,
                option,
                (&raw const on).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(last_errno()) }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.fork_guard.is_same_process() {
            // SAFETY: taken only here.
            fork::close(unsafe { ManuallyDrop::take(&mut self.descriptor) });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
