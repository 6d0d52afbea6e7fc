//! Entries of the kernel's neighbour table.

use std::net::Ipv4Addr;

use crate::iproute2::{attempt, ip};

/// Adds a neighbour of an interface, as if it had answered.
///
/// # Panics
/// If the kernel refuses it.
pub fn add(netdev: &str, address: Ipv4Addr) {
    ip(&format!("neigh replace {address} lladdr 02:00:00:00:00:77 nud reachable dev {netdev}"));
}

/// Removes a neighbour of an interface, if there is one. The next packet to it sends a solicitation.
pub fn forget(netdev: &str, address: Ipv4Addr) {
    // Without an entry there is nothing to remove.
    let _ = attempt("ip", &format!("neigh del {address} dev {netdev}"));
}
