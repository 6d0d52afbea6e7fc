//! Parser of the kernel's responses about links, routes and neighbours, public for fuzzing.

use std::net::IpAddr;

use bareverbs_uapi::netlink::{Malformed, messages};

use super::{Hop, read_hop, read_link, read_neighbour};
use crate::values::MacAddress;

/// A message, parsed as a response to each of the three requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteAnswer {
    /// As a link: its address and its VLAN.
    pub link: Option<(Option<MacAddress>, Option<u16>)>,
    /// As a route: the next hop and its network interface.
    pub hop: Option<(IpAddr, u32)>,
    /// As a neighbour: its address.
    pub neighbour: Option<MacAddress>,
}

/// Parses a datagram of responses. Routes are parsed as routes to `to`.
///
/// # Errors
/// The datagram is malformed.
pub fn read_route_answers(datagram: &[u8], to: IpAddr) -> Result<Vec<RouteAnswer>, Malformed> {
    messages(datagram)
        .map(|message| {
            let message = message?;
            Ok(RouteAnswer {
                link: read_link(&message).ok().map(|link| (link.mac, link.vlan)),
                hop: read_hop(&message, to).ok().flatten().and_then(|hop| match hop {
                    Hop::Local => None,
                    Hop::Neighbour { address, interface } => Some((address, interface)),
                }),
                neighbour: read_neighbour(&message).ok().flatten(),
            })
        })
        .collect()
}
