//! The kernel's answers about links, routes and neighbours, reachable for fuzzing.

use std::net::IpAddr;

use bareverbs_uapi::netlink::{Malformed, messages};

use super::{Hop, read_hop, read_link, read_neighbour};
use crate::MacAddress;

/// What a message tells, read as the answer to each of the three questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteAnswer {
    /// Of a link: its address and its VLAN.
    pub link: Option<(Option<MacAddress>, Option<u16>)>,
    /// Of a route: the next stop and its network interface.
    pub hop: Option<(IpAddr, u32)>,
    /// Of a neighbour: its address.
    pub neighbour: Option<MacAddress>,
}

/// Reads a datagram of answers, the routes in it as those to `to`.
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
