//! Addresses of the tools that use the connection manager.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use anyhow::{Context as _, Result};
use bareverbs::Gid;
use bareverbs_rdmacm::{Addr, IbAddr, PortSpace};
use clap::ValueEnum;

/// The form of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AddressFormat {
    /// A host name or an IP address
    Name,
    /// An IP address
    #[value(alias = "ipv6")]
    Ip,
    /// A GID; on InfiniBand only
    Gid,
}

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

/// The first IP address of a network interface.
pub(crate) fn of_interface(name: &str) -> Result<SocketAddr> {
    let mut addresses = nix::ifaddrs::getifaddrs().context("cannot list the interfaces")?;
    let found = addresses.find_map(|interface| {
        let address = interface.address.filter(|_| interface.interface_name == name)?;
        let v4 = address.as_sockaddr_in().map(|&address| SocketAddrV4::from(address).into());
        v4.or_else(|| address.as_sockaddr_in6().map(|&address| SocketAddrV6::from(address).into()))
    });
    found.with_context(|| format!("no interface {name} has an IP address"))
}

/// The first address of a host that is given in a format.
pub(crate) fn of_format(format: AddressFormat, host: &str, port: u16, space: PortSpace) -> Result<Addr> {
    Ok(match format {
        AddressFormat::Name => first(host, port)?.into(),
        AddressFormat::Ip => {
            let addr: IpAddr = host.parse().with_context(|| format!("{host} is not an IP address"))?;
            SocketAddr::from((addr, port)).into()
        }
        AddressFormat::Gid => {
            let gid: Ipv6Addr = host.parse().with_context(|| format!("{host} is not a GID"))?;
            IbAddr::new(Gid(gid.octets()), space, port).into()
        }
    })
}

/// The address of every device.
pub(crate) fn unspecified(format: AddressFormat, port: u16, space: PortSpace) -> Addr {
    match format {
        AddressFormat::Name | AddressFormat::Ip => SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into(),
        AddressFormat::Gid => IbAddr::new(Gid([0; 16]), space, port).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_has_its_first_address() {
        assert_eq!(of_interface("lo").unwrap(), "127.0.0.1:0".parse().unwrap());
        assert!(of_interface("none").unwrap_err().to_string().contains("interface none"));
    }

    #[test]
    fn server_without_a_host_binds_to_every_address() {
        assert_eq!(to_bind(None, 7471).unwrap(), "0.0.0.0:7471".parse().unwrap());
        assert_eq!(to_bind(Some("10.1.0.1"), 7471).unwrap(), "10.1.0.1:7471".parse().unwrap());
    }

    #[test]
    fn format_selects_the_address_parser() {
        let gid = of_format(AddressFormat::Gid, "fe80::1", 7471, PortSpace::Ib).unwrap();
        let Addr::Ib(addr) = gid else { panic!("{gid:?}") };
        assert_eq!((addr.gid.0[15], addr.service_id), (1, 0x013f_0000 | 7471));
        let ip = of_format(AddressFormat::Ip, "10.1.0.1", 7471, PortSpace::Tcp).unwrap();
        assert_eq!(ip.ip(), Some("10.1.0.1:7471".parse().unwrap()));
        of_format(AddressFormat::Ip, "localhost", 7471, PortSpace::Tcp).unwrap_err();
        of_format(AddressFormat::Gid, "10.1.0.1", 7471, PortSpace::Ib).unwrap_err();
        assert_eq!(
            unspecified(AddressFormat::Name, 7471, PortSpace::Tcp).ip(),
            Some("0.0.0.0:7471".parse().unwrap())
        );
    }
}
