//! Addresses of the tools that use the connection manager.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use anyhow::{Context as _, Result};

/// The first address of a host.
pub(crate) fn first(host: &str, port: u16) -> Result<SocketAddr> {
    let addrs = (host, port).to_socket_addrs().with_context(|| format!("cannot resolve the host {host}"))?;
    addrs.into_iter().next().with_context(|| format!("the host {host} has no address"))
}

/// The address that a server listens at; without a host, every IPv4 address.
pub(crate) fn to_bind(host: Option<&str>, port: u16) -> Result<SocketAddr> {
    match host {
        Some(host) => first(host, port),
        None => Ok((IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into()),
    }
}
