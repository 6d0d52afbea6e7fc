//! Entries of the kernel's neighbour table.

use std::net::Ipv4Addr;
use std::process::Command;

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("the Debian root has iproute2");
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Adds a neighbour of an interface, as if it had answered.
///
/// # Panics
/// If the kernel refuses it.
pub fn add(netdev: &str, address: Ipv4Addr) {
    let added = ip(&format!("neigh replace {address} lladdr 02:00:00:00:00:77 nud reachable dev {netdev}"));
    added.unwrap_or_else(|failed| panic!("{failed}"));
}

/// Removes a neighbour of an interface, if there is one. The next packet to it sends a solicitation.
pub fn forget(netdev: &str, address: Ipv4Addr) {
    // Without an entry there is nothing to remove.
    let _ = ip(&format!("neigh del {address} dev {netdev}"));
}
