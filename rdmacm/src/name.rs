//! Host names, services, and the addresses that they stand for.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::{fmt, fs};

use bareverbs::Gid;
use bareverbs::qp::QpType;
use bareverbs::runtime::Runtime;

use crate::waiting::Waiter;
use crate::{Addr, CmId, Error, EventChannel, IbAddr, PortSpace, Result};

/// The addresses of a host name with a port, or of another form that the system resolves.
fn resolve(verb: &'static str, name: &str) -> Result<Vec<SocketAddr>> {
    match name.to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        // Text that can't be a name is an invalid argument.
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            let reason = format!("{name:?}: {error}: use HOST:PORT, such as 10.1.0.1:7174");
            Err(Error::invalid(verb, reason))
        }
        Err(error) => Err(Error::Name { verb, name: name.to_owned(), error }),
    }
}

/// The IP address of what has one.
pub(crate) fn ip(verb: &'static str, addr: Addr) -> Result<SocketAddr> {
    addr.ip().ok_or_else(|| Error::invalid(verb, format!("{addr} is not an IP address")))
}

/// The first success with the addresses of a name, or the last failure.
pub(crate) fn first<T, E>(addrs: Vec<Addr>, mut each: impl FnMut(Addr) -> Result<T, E>) -> Result<T, E> {
    let mut last = None;
    for addr in addrs {
        match each(addr) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| unreachable!("a name without an address is an error")))
}

/// As [`first`], for a task.
pub(crate) async fn first_of<T, E, F: Future<Output = Result<T, E>>>(
    addrs: Vec<Addr>,
    mut each: impl FnMut(Addr) -> F,
) -> Result<T, E> {
    let mut last = None;
    for addr in addrs {
        match each(addr).await {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| unreachable!("a name without an address is an error")))
}

/// The addresses to bind or to connect to, in order, or a host name with a port, which the system
/// resolves. Calls that take one have several forms of it: text, an IP address with a port, or a list.
///
/// ```
/// use bareverbs_rdmacm::Name;
/// use std::net::Ipv4Addr;
///
/// assert_eq!(Name::from("10.1.0.1:7174"), Name::from((Ipv4Addr::new(10, 1, 0, 1), 7174)));
/// assert_eq!(Name::from(("server", 7174)).to_string(), "server:7174");
/// ```
#[doc(alias = "ToAddrs")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Addrs(Vec<Addr>),
    /// A host and a port.
    Host(String),
}

impl Name {
    /// The addresses. A name is looked up by the system's resolver, which blocks.
    ///
    /// # Errors
    /// [`Error::Name`]: the resolver does not know it. [`Error::Invalid`]: it has no port, or no address.
    pub fn lookup(&self) -> Result<Vec<Addr>> {
        self.resolve("Name::lookup")
    }

    /// The addresses; empty for a host name.
    #[must_use]
    pub fn addrs(&self) -> &[Addr] {
        match &self.0 {
            Kind::Addrs(addrs) => addrs,
            Kind::Host(_) => &[],
        }
    }

    /// The addresses, at least one.
    pub(crate) fn resolve(&self, verb: &'static str) -> Result<Vec<Addr>> {
        let addrs = match &self.0 {
            Kind::Addrs(addrs) => addrs.clone(),
            Kind::Host(name) => resolve(verb, name)?.into_iter().map(Addr::from).collect(),
        };
        match addrs.is_empty() {
            true => Err(Error::invalid(verb, format!("the name {:?} has no address", self.to_string()))),
            false => Ok(addrs),
        }
    }

    /// As [`resolve`](Self::resolve). A task of the runtime does not block.
    pub(crate) async fn lookup_by(
        self,
        waiter: &Waiter,
        runtime: Option<Arc<dyn Runtime>>,
        verb: &'static str,
    ) -> Result<Vec<Addr>> {
        match &self.0 {
            Kind::Addrs(_) => self.resolve(verb),
            Kind::Host(_) => waiter.blocking(runtime, move || self.resolve(verb)).await?,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Addrs(addrs) => {
                let addrs: Vec<_> = addrs.iter().map(Addr::to_string).collect();
                f.write_str(&addrs.join(", "))
            }
            Kind::Host(name) => f.write_str(name),
        }
    }
}

impl From<&str> for Name {
    /// An IP address with a port, or a host name with a port.
    fn from(name: &str) -> Self {
        match name.parse::<SocketAddr>() {
            Ok(addr) => addr.into(),
            Err(_) => Self(Kind::Host(name.to_owned())),
        }
    }
}

impl From<String> for Name {
    fn from(name: String) -> Self {
        name.as_str().into()
    }
}

impl From<(&str, u16)> for Name {
    fn from((host, port): (&str, u16)) -> Self {
        match host.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, port).into(),
            Err(_) => Self(Kind::Host(format!("{host}:{port}"))),
        }
    }
}

impl From<(String, u16)> for Name {
    fn from((host, port): (String, u16)) -> Self {
        (host.as_str(), port).into()
    }
}

macro_rules! from_addresses {
    ($($addr:ty),*) => {$(
        impl From<$addr> for Name {
            fn from(addr: $addr) -> Self {
                Self(Kind::Addrs(vec![addr.into()]))
            }
        }
    )*};
}

impl From<&[SocketAddr]> for Name {
    fn from(addrs: &[SocketAddr]) -> Self {
        Self(Kind::Addrs(addrs.iter().copied().map(Addr::from).collect()))
    }
}

from_addresses! {
    Addr, SocketAddr, SocketAddrV4, SocketAddrV6, IbAddr, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16)
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddrFamily {
    /// IPv4.
    #[doc(alias = "AF_INET")]
    V4,
    /// IPv6.
    #[doc(alias = "AF_INET6")]
    V6,
    /// InfiniBand: the host is a GID in the notation of IPv6.
    #[doc(alias = "AF_IB")]
    Ib,
}

/// The criteria of [`AddrInfo::lookup`]. The default is an address of either IP family to connect an
/// RC QP to.
#[doc(alias = "rdma_addrinfo")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddrHints {
    /// Whether the address is to be bound, and no host means any address of this one.
    #[doc(alias = "RAI_PASSIVE")]
    pub passive: bool,
    /// Whether the host is an address as text, and no resolver is asked.
    #[doc(alias = "RAI_NUMERICHOST")]
    pub numeric_host: bool,
    /// The family; `None` for IPv4 and IPv6.
    #[doc(alias = "RAI_FAMILY")]
    pub family: Option<AddrFamily>,
    /// The port space; `None` for that of the QP type.
    pub port_space: Option<PortSpace>,
    /// The QP type; `None` for that of the port space.
    pub qp_type: Option<QpType>,
}

/// An address with the port space and the QP type of its identifier.
///
/// ```
/// use bareverbs::qp::QpType;
/// use bareverbs_rdmacm::{AddrHints, AddrInfo, PortSpace};
///
/// let hints = AddrHints { qp_type: Some(QpType::UD), ..AddrHints::default() };
/// let found = AddrInfo::lookup(Some("10.1.0.1"), Some("7174"), &hints)?;
/// assert_eq!(found[0].addr.to_string(), "10.1.0.1:7174");
/// assert_eq!(found[0].port_space, PortSpace::Udp);
/// # Ok::<(), bareverbs_rdmacm::Error>(())
/// ```
#[doc(alias = "rdma_addrinfo")]
#[doc(alias = "rdma_freeaddrinfo")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddrInfo {
    /// The address: that to bind for a passive identifier, else that of the peer.
    pub addr: Addr,
    /// Whether the address is to be bound.
    pub passive: bool,
    /// The port space.
    pub port_space: PortSpace,
    /// The QP type.
    pub qp_type: QpType,
}

const LOOKUP: &str = "AddrInfo::lookup";

impl AddrInfo {
    /// Looks up a host and a service: a port number, or a name of `/etc/services`. No service is port
    /// 0. The addresses are in the order of the resolver, which blocks.
    ///
    /// # Errors
    /// - [`Error::Name`]: the host or the service is unknown, or the host has no address of the family,
    ///   or is not numeric.
    /// - [`Error::Invalid`]: an active lookup without a host; a port space with another QP type than it
    ///   implies; a host that is not a GID, in the family `AF_IB`.
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn lookup(host: Option<&str>, service: Option<&str>, hints: &AddrHints) -> Result<Vec<Self>> {
        let (port_space, qp_type) = hints.transport()?;
        let port = service.map_or(Ok(0), |service| port_of(service, qp_type, Path::new(SERVICES)))?;
        let info =
            |addr: Addr| Self { addr: addr.with_port(port), passive: hints.passive, port_space, qp_type };
        let addrs = match (host, hints.family) {
            (None, _) if !hints.passive => {
                return Err(Error::invalid(LOOKUP, "a peer needs a host"));
            }
            (host, Some(AddrFamily::Ib)) => {
                let gid = match host.map(str::parse::<Ipv6Addr>) {
                    None => Gid([0; 16]),
                    Some(Ok(gid)) => Gid(gid.octets()),
                    Some(Err(_)) => return Err(Error::invalid(LOOKUP, "the host is not a GID")),
                };
                vec![IbAddr::new(gid, port_space, port).into()]
            }
            (None, family) => {
                let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
                of_family(any.map(|ip| SocketAddr::new(ip, 0)), family)
            }
            (Some(host), family) => match numeric(host) {
                Some(addr) => of_family([addr], family),
                None if hints.numeric_host => return Err(unknown(host, "the host is not a numeric address")),
                None => of_family(resolve_host(host)?, family),
            },
        };
        match addrs.is_empty() {
            true => Err(unknown(host.unwrap_or_default(), "the host has no address of the family")),
            false => Ok(addrs.into_iter().map(info).collect()),
        }
    }

    /// Creates an identifier of the port space and the QP type. A passive one is bound to the address.
    ///
    /// # Errors
    /// As for [`CmId::with_qp_type`] and [`CmId::bind_addr`].
    #[doc(alias = "rdma_create_ep")]
    pub fn create_id(&self, channel: &EventChannel) -> Result<CmId> {
        let id = CmId::with_qp_type(channel, self.port_space, self.qp_type)?;
        if self.passive {
            id.bind_addr(self.addr)?;
        }
        Ok(id)
    }
}

/// The addresses of a host, with port 0. Errors name the host alone.
fn resolve_host(host: &str) -> Result<Vec<SocketAddr>> {
    resolve(LOOKUP, &format!("{host}:0")).map_err(|error| match error {
        Error::Name { verb, error, .. } => Error::Name { verb, name: host.to_owned(), error },
        other => other,
    })
}

impl AddrHints {
    /// The port space and the QP type.
    fn transport(&self) -> Result<(PortSpace, QpType)> {
        let port_space = self.port_space.unwrap_or(PortSpace::of(self.qp_type.unwrap_or(QpType::RC)));
        let qp_type = self.qp_type.unwrap_or_else(|| port_space.qp_type());
        port_space.check(LOOKUP, qp_type)?;
        Ok((port_space, qp_type))
    }
}

fn of_family(addrs: impl IntoIterator<Item = SocketAddr>, family: Option<AddrFamily>) -> Vec<Addr> {
    let fits = |addr: &SocketAddr| match family {
        None => true,
        Some(AddrFamily::V4) => addr.is_ipv4(),
        Some(AddrFamily::V6) => addr.is_ipv6(),
        Some(AddrFamily::Ib) => false,
    };
    addrs.into_iter().filter(fits).map(Addr::from).collect()
}

fn unknown(name: &str, reason: &'static str) -> Error {
    Error::Name { verb: LOOKUP, name: name.to_owned(), error: io::Error::new(ErrorKind::NotFound, reason) }
}

/// An IP address as text. The scope of an IPv6 address is a number or the name of an interface.
fn numeric(host: &str) -> Option<SocketAddr> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, 0));
    }
    let (ip, scope) = host.split_once('%')?;
    let scope = match scope.parse() {
        Ok(number) => number,
        Err(_) if scope.contains('/') => return None,
        Err(_) => fs::read_to_string(format!("/sys/class/net/{scope}/ifindex")).ok()?.trim().parse().ok()?,
    };
    Some(SocketAddrV6::new(ip.parse().ok()?, 0, 0, scope).into())
}

const SERVICES: &str = "/etc/services";

/// The port of a service: a number, or a name of the table.
fn port_of(service: &str, qp_type: QpType, table: &Path) -> Result<u16> {
    if let Ok(port) = service.parse() {
        return Ok(port);
    }
    let protocol = if qp_type == QpType::UD { "udp" } else { "tcp" };
    let table = fs::read_to_string(table).unwrap_or_default();
    let found = table.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (name, port) = (words.next()?, words.next()?.strip_suffix(protocol)?.strip_suffix('/')?);
        (name == service || words.any(|alias| alias == service)).then(|| port.parse().ok())?
    });
    found.ok_or_else(|| unknown(service, "the service is unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(host: Option<&str>, service: Option<&str>, hints: AddrHints) -> Result<Vec<String>> {
        let found = AddrInfo::lookup(host, service, &hints)?;
        Ok(found.iter().map(|info| info.addr.to_string()).collect())
    }

    #[test]
    fn names_are_addresses_or_hosts_with_a_port() {
        let addr: SocketAddr = "[fe80::1%3]:7".parse().unwrap();
        assert_eq!(Name::from("[fe80::1%3]:7"), Name::from(addr));
        assert_eq!(Name::from(addr).lookup().unwrap(), [Addr::from(addr)]);
        assert_eq!(Name::from(("::1", 4)), Name::from((Ipv6Addr::LOCALHOST, 4)));
        assert_eq!(Name::from("host:5"), Name::from(("host", 5)));
        assert_eq!(Name::from("host:5").addrs(), []);
        let found = Name::from("localhost:6").lookup().unwrap();
        assert!(found.iter().all(|addr| addr.port() == 6 && addr.ip().unwrap().ip().is_loopback()));
        let refused = Name::from("no-port").lookup().unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "Name::lookup", .. }), "{refused}");
        let unknown = Name::from("no-such-host.invalid:1").lookup().unwrap_err();
        assert!(matches!(unknown, Error::Name { verb: "Name::lookup", .. }), "{unknown}");
        let text = "Name::lookup: the name \"no-such-host.invalid:1\" was not resolved: ";
        assert!(unknown.to_string().starts_with(text), "{unknown}");
        let text = "Name::lookup: \"no-port\": ";
        assert!(refused.to_string().starts_with(text), "{refused}");
    }

    #[test]
    fn errors_contain_the_name() {
        let name = |error: Error| match error {
            Error::Name { name, .. } => name,
            other => panic!("{other}"),
        };
        let host = "no-such-host.invalid";
        assert_eq!(name(Name::from((host, 7)).lookup().unwrap_err()), format!("{host}:7"));
        assert_eq!(name(Name::from((host.to_owned(), 7)).lookup().unwrap_err()), format!("{host}:7"));
        let unknown = AddrInfo::lookup(Some(host), None, &AddrHints::default()).unwrap_err();
        assert_eq!(name(unknown), host);
        let unknown = AddrInfo::lookup(Some("10.0.0.1"), Some("no-service"), &AddrHints::default());
        assert_eq!(name(unknown.unwrap_err()), "no-service");
        let addrs = [SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), SocketAddr::from((Ipv6Addr::LOCALHOST, 2))];
        assert_eq!(Name::from(&addrs[..]).to_string(), "127.0.0.1:1, [::1]:2");
        let SocketAddr::V6(v6) = addrs[1] else { panic!() };
        let names = [Name::from(v6), (*v6.ip(), 2).into(), (addrs[1].ip(), 2).into()];
        assert_eq!(names.map(|name| name.to_string()), ["[::1]:2"; 3]);
        assert_eq!([Name::from(String::from("a:1")), "a:1".into()].map(|name| name.to_string()), ["a:1"; 2]);
    }

    #[test]
    fn passive_lookup_without_a_host_is_any_address() {
        let passive = AddrHints { passive: true, ..AddrHints::default() };
        assert_eq!(lookup(None, Some("80"), passive).unwrap(), ["0.0.0.0:80", "[::]:80"]);
        let family = |family| AddrHints { family: Some(family), ..passive };
        assert_eq!(lookup(None, None, family(AddrFamily::V6)).unwrap(), ["[::]:0"]);
        let ib = lookup(None, Some("1"), family(AddrFamily::Ib)).unwrap();
        assert_eq!(ib, ["[::]/pkey=0xffff/sid=0x0000000001060001"]);
        let refused = lookup(None, Some("80"), AddrHints::default()).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    }

    #[test]
    fn gid_as_text_is_an_infiniband_address() {
        let hints = AddrHints { family: Some(AddrFamily::Ib), ..AddrHints::default() };
        let found = AddrInfo::lookup(Some("fe80::2:c903:0:1"), Some("5"), &hints).unwrap();
        let Addr::Ib(addr) = found[0].addr else { panic!("{found:?}") };
        assert_eq!((addr.gid.0[0], addr.gid.0[15], addr.port()), (0xfe, 1, 5));
        let refused = AddrInfo::lookup(Some("10.1.0.1"), None, &hints).unwrap_err();
        assert_eq!(refused.to_string(), "AddrInfo::lookup: the host is not a GID");
    }

    #[test]
    fn numeric_hosts_ask_no_resolver() {
        let hints = AddrHints { numeric_host: true, ..AddrHints::default() };
        assert_eq!(lookup(Some("10.0.0.1"), None, hints).unwrap(), ["10.0.0.1:0"]);
        assert_eq!(lookup(Some("fe80::1%7"), Some("1"), hints).unwrap(), ["[fe80::1%7]:1"]);
        assert_eq!(lookup(Some("fe80::1%lo"), Some("1"), hints).unwrap(), ["[fe80::1%1]:1"]);
        for host in ["localhost", "fe80::1%no-such-interface", "fe80::1%../lo", "x%1"] {
            let unknown = lookup(Some(host), None, hints).unwrap_err();
            assert!(matches!(unknown, Error::Name { .. }), "{host}: {unknown}");
        }
        let v6 = AddrHints { family: Some(AddrFamily::V6), ..hints };
        let text = "AddrInfo::lookup: the name \"10.0.0.1\" was not resolved: the host has no address of the \
                    family";
        assert_eq!(lookup(Some("10.0.0.1"), None, v6).unwrap_err().to_string(), text);
        assert!(!lookup(Some("localhost"), None, AddrHints::default()).unwrap().is_empty());
    }

    #[test]
    fn port_space_and_qp_type_imply_each_other() {
        let transport =
            |port_space, qp_type| AddrHints { port_space, qp_type, ..AddrHints::default() }.transport().ok();
        assert_eq!(transport(None, None), Some((PortSpace::Tcp, QpType::RC)));
        assert_eq!(transport(None, Some(QpType::UD)), Some((PortSpace::Udp, QpType::UD)));
        assert_eq!(transport(None, Some(QpType::UC)), Some((PortSpace::Ib, QpType::UC)));
        assert_eq!(transport(Some(PortSpace::Ipoib), None), Some((PortSpace::Ipoib, QpType::UD)));
        assert_eq!(transport(Some(PortSpace::Tcp), Some(QpType::UD)), None);
    }

    #[test]
    fn services_are_numbers_or_names_of_their_protocol() {
        let table = std::env::temp_dir().join(format!("bareverbs-services-{}", std::process::id()));
        fs::write(&table, "# a comment\nsame 1/tcp\nsame 2/udp other # alias\nbad x/tcp\n\nend\n").unwrap();
        let port = |service, qp_type| port_of(service, qp_type, &table).ok();
        assert_eq!(port("65535", QpType::RC), Some(65535));
        assert_eq!(port("same", QpType::RC), Some(1));
        assert_eq!(port("same", QpType::UD), Some(2));
        assert_eq!(port("other", QpType::UD), Some(2));
        for unknown in ["other", "bad", "end", "65536", "a"] {
            assert_eq!(port(unknown, QpType::RC), None, "{unknown}");
        }
        fs::remove_file(&table).unwrap();
        assert_eq!(port("same", QpType::RC), None);
    }
}
