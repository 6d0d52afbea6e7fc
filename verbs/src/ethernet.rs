//! Ethernet addresses of peers.

#[cfg(feature = "test-utils")]
pub(crate) mod testing;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_provider::traits::Provider;
use bareverbs_uapi::netlink::{Content, Malformed, Message, MessageFlags, MessageWriter, messages};
use bareverbs_uapi::rtnetlink::{
    GET_LINK, GET_NEIGHBOUR, GET_ROUTE, LINK_ADDRESS, LINK_INFO, LINK_INFO_DATA, LINK_INFO_KIND, LinkMessage,
    NEIGHBOUR_ADDRESS, NEIGHBOUR_LINK_ADDRESS, NeighbourMessage, NeighbourState, ROUTE_DESTINATION,
    ROUTE_GATEWAY, ROUTE_INTERFACE, ROUTE_SOURCE, ROUTE_VIA, RouteKind, RouteMessage, VLAN_ID,
};
use bareverbs_uapi::uverbs::types::GidType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use zerocopy::{Immutable, IntoBytes};

use crate::ah_attr::AhAttr;
use crate::context::Context;
use crate::error::{Error, Feature, Result};
use crate::gid::{Gid, GidEntry};
use crate::values::ethernet::{EthernetAddress, MacAddress};
use crate::wait::is_past;

const VERB: &str = "resolve_eth_l2_from_gid";

/// Size of the largest response: a link with its statistics.
const RESPONSE_BYTES: usize = 32 * 1024;

/// Interval between lookups of an unresolved neighbour.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Number of lookups after which the neighbour is solicited again.
const POLLS_PER_SOLICIT: u32 = 100;

/// UDP port of the discard protocol.
const DISCARD_PORT: u16 = 9;

impl<P: Provider> Context<P> {
    /// Resolves `address` to the Ethernet destination of its frames, by the kernel's routing and
    /// neighbour tables.
    ///
    /// QPs and address handles do not need it: the kernel resolves their addresses. The addresses
    /// of multicast GIDs, and of link-local GIDs of RoCE v1, are derived from the GID. Other GIDs
    /// are looked up. An unknown neighbour is solicited by an empty datagram to its discard port,
    /// and has `timeout` to respond.
    ///
    /// ```
    /// # fn example(context: &bareverbs::Context, peer: bareverbs::Gid) -> bareverbs::Result<()> {
    /// use bareverbs::ah::AhAttr;
    /// use std::time::Duration;
    ///
    /// let own = context.default_gid(1)?;
    /// let path = AhAttr::global(1, peer, own.index);
    /// println!("{}", context.resolve_ethernet(&path, Duration::from_secs(3))?.mac);
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let context = example::context()?;
    /// # example::unsupported(example(&context, bareverbs::Gid::default()));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`] without a global route.
    /// - [`Error::NoPort`].
    /// - [`Error::NoGid`].
    /// - [`Error::Unsupported`] if the local GID has no network interface.
    /// - [`Error::System`] if there is no route, with `EHOSTUNREACH` if the neighbour does not
    ///   respond.
    /// - [`Error::Netlink`] if a response of the kernel is malformed.
    #[doc(alias = "ibv_resolve_eth_l2_from_gid")]
    pub fn resolve_ethernet(&self, address: &AhAttr, timeout: Duration) -> Result<EthernetAddress> {
        let Some(grh) = address.grh else {
            return Err(Error::invalid(VERB, "the address has no global route, and thus no GID to resolve"));
        };
        let own = self.gid(address.port, grh.sgid_index)?;
        if own.netdev_ifindex == 0 {
            return Err(Error::unsupported(VERB, Feature::PortsWithoutNetdev));
        }
        let mut netlink = RouteNetlink::open()?;
        let link = netlink.link(own.netdev_ifindex)?;
        let derived = MacAddress::of_group(&grh.dgid).or_else(|| {
            (own.gid_type == GidType::ROCE_V1).then(|| MacAddress::of_link_local(&grh.dgid)).flatten()
        });
        let mac = match derived {
            Some(mac) => mac,
            None => match netlink.hop(&own, grh.dgid)? {
                Hop::Local => {
                    let table = self.gid_table()?;
                    let interface =
                        table.iter().find(|entry| entry.gid == grh.dgid).unwrap_or(&own).netdev_ifindex;
                    netlink.link(interface)?.mac.ok_or_else(|| unreachable(grh.dgid))?
                }
                Hop::Neighbour { address, interface } => {
                    netlink.resolve(&own, address, interface, timeout)?
                }
            },
        };
        Ok(EthernetAddress { mac, vlan: link.vlan })
    }
}

fn unreachable(what: impl fmt::Display) -> Error {
    Error::system(format!("resolving the Ethernet address of {what}"), Errno::HOSTUNREACH)
}

/// The next hop on the path to a peer.
#[derive(Debug, PartialEq, Eq)]
enum Hop {
    /// The peer is this host.
    Local,
    Neighbour {
        address: IpAddr,
        interface: u32,
    },
}

struct Link {
    mac: Option<MacAddress>,
    vlan: Option<u16>,
}

/// The kernel's tables of links, routes and neighbours.
struct RouteNetlink {
    socket: OwnedFd,
    seq: u32,
    answer: Vec<u8>,
}

impl RouteNetlink {
    fn open() -> Result<Self> {
        // No protocol means `NETLINK_ROUTE`, whose number is 0.
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map(|socket| Self { socket, seq: 0, answer: vec![0; RESPONSE_BYTES] })
            .map_err(|errno| Error::system("opening a netlink socket for routes", errno))
    }

    fn link(&mut self, interface: u32) -> Result<Link> {
        let head = LinkMessage { interface: interface.cast_signed(), ..LinkMessage::zeroed() };
        let what = format!("querying network interface {interface}");
        self.request(&what, GET_LINK, &head, |_| {}, read_link)
    }

    fn hop(&mut self, own: &GidEntry, to: Gid) -> Result<Hop> {
        let (to, from) = (ip(to), ip(own.gid));
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let same_family = to.is_ipv4() == from.is_ipv4();
        let head = RouteMessage {
            family: family(to),
            destination_length: bits(to),
            source_length: if same_family { bits(from) } else { 0 },
            ..RouteMessage::zeroed()
        };
        let what = format!("querying the route from {from} to {to}");
        let fill = |request: &mut MessageWriter<'_>| {
            put_ip(request, ROUTE_DESTINATION, to);
            if same_family {
                put_ip(request, ROUTE_SOURCE, from);
            }
            request.put_u32(ROUTE_INTERFACE, own.netdev_ifindex);
        };
        self.request(&what, GET_ROUTE, &head, fill, |message| read_hop(message, to))?
            .ok_or_else(|| unreachable(to))
    }

    fn resolve(
        &mut self,
        own: &GidEntry,
        to: IpAddr,
        interface: u32,
        timeout: Duration,
    ) -> Result<MacAddress> {
        // A timeout that overflows `Instant` means no timeout.
        let end = Instant::now().checked_add(timeout);
        for look in 0_u32.. {
            if let Some(mac) = self.neighbour(to, interface)? {
                return Ok(mac);
            }
            if is_past(end) {
                break;
            }
            if look % POLLS_PER_SOLICIT == 0 {
                // Errors are ignored: the neighbour table decides.
                let _ = solicit(ip(own.gid), to, interface);
            }
            sleep(POLL_INTERVAL);
        }
        Err(unreachable(format_args!("{to} on network interface {interface}")))
    }

    fn neighbour(&mut self, to: IpAddr, interface: u32) -> Result<Option<MacAddress>> {
        let head = NeighbourMessage {
            family: family(to),
            interface: interface.cast_signed(),
            ..NeighbourMessage::zeroed()
        };
        let what = format!("querying neighbour {to}");
        let fill = |request: &mut MessageWriter<'_>| put_ip(request, NEIGHBOUR_ADDRESS, to);
        match self.request(&what, GET_NEIGHBOUR, &head, fill, read_neighbour) {
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(None),
            answer => answer,
        }
    }

    /// Sends one request and parses its one response.
    fn request<T>(
        &mut self,
        what: &str,
        kind: u16,
        head: &(impl IntoBytes + Immutable),
        fill: impl FnOnce(&mut MessageWriter<'_>),
        read: impl Fn(&Message<'_>) -> Result<T, Malformed>,
    ) -> Result<T> {
        let bad_response = |reason: &dyn fmt::Display| -> Error {
            bareverbs_netlink::Error::Malformed { what: what.to_owned(), reason: reason.to_string() }.into()
        };
        self.seq = self.seq.wrapping_add(1);
        let mut buffer = [0; 256];
        let mut writer = MessageWriter::new(&mut buffer);
        fill(writer.begin(kind, MessageFlags::REQUEST, self.seq).put_struct(head));
        let request = writer.finish().map_err(|error| bad_response(&error))?;
        rustix::io::retry_on_intr(|| send(&self.socket, request, SendFlags::empty()))
            .map_err(|errno| Error::system(what, errno))?;
        loop {
            let (_, length) =
                rustix::io::retry_on_intr(|| recv(&self.socket, &mut self.answer[..], RecvFlags::TRUNC))
                    .map_err(|errno| Error::system(what, errno))?;
            let datagram =
                self.answer.get(..length).ok_or_else(|| bad_response(&"the response is too long"))?;
            for message in messages(datagram) {
                let message = message.map_err(|malformed| bad_response(&malformed))?;
                if message.header.seq != self.seq {
                    continue;
                }
                match message.content().map_err(|malformed| bad_response(&malformed))? {
                    Content::Data => return read(&message).map_err(|malformed| bad_response(&malformed)),
                    Content::Error(report) => {
                        let errno = Errno::from_raw_os_error(report.errno.clamp(1, 4095));
                        return Err(Error::system(what, errno));
                    }
                    Content::Overrun => return Err(Error::system(what, Errno::NOBUFS)),
                    Content::Acknowledged(_) | Content::Done(_) | Content::Noop => {}
                }
            }
        }
    }
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    family.as_raw() as u8
}

fn ip(gid: Gid) -> IpAddr {
    Ipv6Addr::from(gid.0).to_canonical()
}

fn put_ip(request: &mut MessageWriter<'_>, attribute: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => request.put_bytes(attribute, &address.octets()),
        IpAddr::V6(address) => request.put_bytes(attribute, &address.octets()),
    };
}

fn read_ip(bytes: &[u8]) -> Option<IpAddr> {
    match *bytes {
        [a, b, c, d] => Some([a, b, c, d].into()),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

fn read_mac(bytes: &[u8]) -> Option<MacAddress> {
    bytes.try_into().ok().map(MacAddress)
}

fn read_link(message: &Message<'_>) -> Result<Link, Malformed> {
    let (_, attributes) = message.body::<LinkMessage>()?;
    let mac = attributes.find(LINK_ADDRESS).and_then(|found| read_mac(found.payload));
    let mut vlan = None;
    if let Some(info) = attributes.find(LINK_INFO).map(|found| found.attributes()) {
        let is_vlan = info.find(LINK_INFO_KIND).is_some_and(|kind| kind.str() == Ok("vlan"));
        let data = info.find(LINK_INFO_DATA).filter(|_| is_vlan).map(|found| found.attributes());
        vlan = data.and_then(|data| data.find(VLAN_ID)).map(|id| id.u16()).transpose()?;
    }
    Ok(Link { mac, vlan })
}

/// `None` if the route is not a route to a single host.
fn read_hop(message: &Message<'_>, to: IpAddr) -> Result<Option<Hop>, Malformed> {
    let (route, attributes) = message.body::<RouteMessage>()?;
    // `RTA_VIA` has the address family of the gateway before its address.
    let via = attributes.find(ROUTE_VIA).and_then(|found| read_ip(found.payload.get(2..)?));
    let gateway = attributes.find(ROUTE_GATEWAY).and_then(|found| read_ip(found.payload)).or(via);
    let interface = attributes.find(ROUTE_INTERFACE).map(|found| found.u32()).transpose()?;
    Ok(match (route.kind, interface) {
        (RouteKind::LOCAL, _) => Some(Hop::Local),
        (RouteKind::UNICAST, Some(interface)) => {
            Some(Hop::Neighbour { address: gateway.unwrap_or(to), interface })
        }
        _ => None,
    })
}

/// `None` if the table has no valid address.
fn read_neighbour(message: &Message<'_>) -> Result<Option<MacAddress>, Malformed> {
    const UNKNOWN: NeighbourState = NeighbourState::INCOMPLETE.union(NeighbourState::FAILED);
    let (neighbour, attributes) = message.body::<NeighbourMessage>()?;
    let known = !neighbour.state.is_empty() && !neighbour.state.intersects(UNKNOWN);
    Ok(attributes.find(NEIGHBOUR_LINK_ADDRESS).filter(|_| known).and_then(|found| read_mac(found.payload)))
}

/// Sends an empty datagram to a neighbour, so that the kernel resolves its address.
fn solicit(from: IpAddr, to: IpAddr, interface: u32) -> std::io::Result<usize> {
    let socket_address = |address: IpAddr, port| match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(address, port, 0, interface))
        }
        address => SocketAddr::new(address, port),
    };
    // The gateway and the local GID may have different families.
    let from = if from.is_ipv4() == to.is_ipv4() {
        from
    } else if to.is_ipv4() {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    UdpSocket::bind(socket_address(from, 0))?.send_to(&[], socket_address(to, DISCARD_PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(address: &str) -> Gid {
        match address.parse().unwrap() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }

    #[test]
    fn multicast_mac_is_derived_from_the_gid() {
        let of = |address| MacAddress::of_group(&gid(address)).map(|mac| mac.to_string());
        assert_eq!(of("224.0.0.1").as_deref(), Some("01:00:5e:00:00:01"));
        assert_eq!(of("239.255.1.2").as_deref(), Some("01:00:5e:7f:01:02"), "23 bits of it");
        assert_eq!(of("ff0e::1:2:3").as_deref(), Some("33:33:00:02:00:03"));
        assert_eq!(of("10.1.0.1"), None);
        assert_eq!(of("fe80::1"), None);
    }

    #[test]
    fn link_local_mac_is_derived_from_eui_64_gids() {
        let of = |address| MacAddress::of_link_local(&gid(address)).map(|mac| mac.to_string());
        assert_eq!(of("fe80::34a1:23ff:fe45:6789").as_deref(), Some("36:a1:23:45:67:89"));
        assert_eq!(of("fe80::1"), None, "chosen by hand");
        assert_eq!(of("2001:db8::34a1:23ff:fe45:6789"), None, "not link-local");
    }

    /// A response of the kernel.
    fn answer(head: &(impl IntoBytes + Immutable), fill: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
        let mut buffer = [0; 256];
        let mut writer = MessageWriter::new(&mut buffer);
        fill(writer.begin(24, MessageFlags::empty(), 1).put_struct(head));
        writer.finish().unwrap().to_vec()
    }

    fn hop_of(kind: RouteKind, fill: impl FnOnce(&mut MessageWriter<'_>)) -> Option<Hop> {
        let bytes = answer(&RouteMessage { kind, ..RouteMessage::zeroed() }, fill);
        let message = messages(&bytes).next().unwrap().unwrap();
        read_hop(&message, "10.9.0.1".parse().unwrap()).unwrap()
    }

    fn by_interface_3(route: &mut MessageWriter<'_>) {
        route.put_u32(ROUTE_INTERFACE, 3);
    }

    #[test]
    fn routes_resolve_to_peer_or_gateway() {
        let to = |address: &str| Some(Hop::Neighbour { address: address.parse().unwrap(), interface: 3 });
        assert_eq!(hop_of(RouteKind::UNICAST, by_interface_3), to("10.9.0.1"));
        let by_gateway = hop_of(RouteKind::UNICAST, |route| {
            route.put_bytes(ROUTE_GATEWAY, &[10, 1, 0, 254]).put_u32(ROUTE_INTERFACE, 3);
        });
        assert_eq!(by_gateway, to("10.1.0.254"));
        let by_other_family = hop_of(RouteKind::UNICAST, |route| {
            let mut via = vec![10, 0];
            via.extend("fe80::1".parse::<Ipv6Addr>().unwrap().octets());
            route.put_bytes(ROUTE_VIA, &via).put_u32(ROUTE_INTERFACE, 3);
        });
        assert_eq!(by_other_family, to("fe80::1"));
        assert_eq!(hop_of(RouteKind::LOCAL, |_| {}), Some(Hop::Local));
        assert_eq!(hop_of(RouteKind::BROADCAST, by_interface_3), None);
        assert_eq!(hop_of(RouteKind::UNICAST, |_| {}), None);
    }

    #[test]
    fn incomplete_neighbours_have_no_mac() {
        let mac_in = |state| {
            let head = NeighbourMessage { state, ..NeighbourMessage::zeroed() };
            let bytes = answer(&head, |neighbour| {
                neighbour.put_bytes(NEIGHBOUR_LINK_ADDRESS, &[2, 0, 0, 0, 0, 7]);
            });
            read_neighbour(&messages(&bytes).next().unwrap().unwrap()).unwrap()
        };
        let known = Some(MacAddress([2, 0, 0, 0, 0, 7]));
        assert_eq!(mac_in(NeighbourState::REACHABLE), known);
        assert_eq!(mac_in(NeighbourState::STALE), known);
        assert_eq!(mac_in(NeighbourState::PERMANENT), known);
        assert_eq!(mac_in(NeighbourState::INCOMPLETE), None);
        assert_eq!(mac_in(NeighbourState::FAILED), None);
        assert_eq!(mac_in(NeighbourState::empty()), None);
    }

    #[test]
    fn vlan_id_is_read_from_vlan_links_only() {
        let vlan_of = |kind: &str| {
            let bytes = answer(&LinkMessage::zeroed(), |link| {
                link.put_bytes(LINK_ADDRESS, &[2, 0, 0, 0, 0, 9]).put_nested(LINK_INFO, |info| {
                    info.put_str(LINK_INFO_KIND, kind).put_nested(LINK_INFO_DATA, |data| {
                        data.put_u16(VLAN_ID, 5);
                    });
                });
            });
            let link = read_link(&messages(&bytes).next().unwrap().unwrap()).unwrap();
            assert_eq!(link.mac, Some(MacAddress([2, 0, 0, 0, 0, 9])));
            link.vlan
        };
        assert_eq!((vlan_of("vlan"), vlan_of("veth")), (Some(5), None));
    }
}
