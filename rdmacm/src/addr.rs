//! Addresses and port spaces.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use bareverbs::Gid;
use bareverbs::qp::QpType;
use bareverbs_uapi::abi::{Be16, Be32, Be64};
use bareverbs_uapi::rdma_cm;
use bareverbs_uapi::rdma_cm::address::{
    AddressFamily, SocketAddressIb, SocketAddressIn, SocketAddressIn6, SocketAddressStorage,
};
use zerocopy::{FromBytes, IntoBytes};

/// A port space: a name space of ports, which also implies a QP type.
///
/// Ports of a port space never collide with those of TCP and UDP sockets.
#[doc(alias = "rdma_port_space")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortSpace {
    /// Connected QPs.
    #[doc(alias = "RDMA_PS_TCP")]
    Tcp,
    /// Datagram QPs.
    #[doc(alias = "RDMA_PS_UDP")]
    Udp,
    /// Datagram QPs with the Q_Key of IPoIB. InfiniBand only: on RoCE, binding fails with `EINVAL`.
    #[doc(alias = "RDMA_PS_IPOIB")]
    Ipoib,
    /// Native InfiniBand service IDs, with QPs of any type.
    #[doc(alias = "RDMA_PS_IB")]
    Ib,
}

impl PortSpace {
    /// The QP type that the port space implies. For [`PortSpace::Ib`] the default, RC.
    #[must_use]
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Tcp | Self::Ib => QpType::RC,
            Self::Udp | Self::Ipoib => QpType::UD,
        }
    }

    /// The port space of QPs of a type, unless the caller wants another one.
    pub(crate) const fn of(qp_type: QpType) -> Self {
        match qp_type {
            QpType::RC => Self::Tcp,
            QpType::UD => Self::Udp,
            _ => Self::Ib,
        }
    }

    pub(crate) const fn to_kernel(self) -> rdma_cm::PortSpace {
        match self {
            Self::Tcp => rdma_cm::PortSpace::TCP,
            Self::Udp => rdma_cm::PortSpace::UDP,
            Self::Ipoib => rdma_cm::PortSpace::IPOIB,
            Self::Ib => rdma_cm::PortSpace::IB,
        }
    }

    /// The service ID of a port: the port space in bytes 4 and 5, the port in the last two.
    #[must_use]
    pub const fn service_id(self, port: u16) -> u64 {
        (self.to_kernel().0 as u64) << 16 | port as u64
    }
}

/// An InfiniBand address: GID, P_Key and service ID (`AF_IB`).
///
/// On RoCE, binding to one fails with `ENODEV`: use IP addresses there.
#[doc(alias = "sockaddr_ib")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IbAddr {
    /// GID of a port; zero for any.
    pub gid: Gid,
    /// P_Key; 0xffff is the default.
    pub pkey: u16,
    /// Flow label, 20 bits.
    pub flow_info: u32,
    /// Service ID.
    pub service_id: u64,
    /// Bits of the service ID that count. A bind sets all.
    pub service_id_mask: u64,
    /// Index of the RDMA device; 0 for any.
    pub scope_id: u64,
}

impl IbAddr {
    /// The port of a port space at a GID, in the default partition.
    #[must_use]
    pub const fn new(gid: Gid, port_space: PortSpace, port: u16) -> Self {
        Self {
            gid,
            pkey: 0xffff,
            flow_info: 0,
            service_id: port_space.service_id(port),
            service_id_mask: u64::MAX,
            scope_id: 0,
        }
    }

    /// The port: the last two bytes of the service ID.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.service_id as u16
    }
}

impl fmt::Display for IbAddr {
    /// GID, P_Key and service ID.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]/pkey={:#06x}/sid={:#018x}", self.gid, self.pkey, self.service_id)
    }
}

/// An address of the connection manager.
///
/// ```
/// use bareverbs_rdmacm::Addr;
/// use std::net::Ipv4Addr;
///
/// let addr = Addr::from((Ipv4Addr::new(10, 1, 0, 1), 7174));
/// assert_eq!(addr.to_string(), "10.1.0.1:7174");
/// assert_eq!(addr.port(), 7174);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addr {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// An InfiniBand address.
    Ib(IbAddr),
}

impl Addr {
    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        match self {
            Self::Ip(addr) => addr.port(),
            Self::Ib(addr) => addr.port(),
        }
    }

    /// The IP address and port, if it is one.
    #[must_use]
    pub const fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(addr) => Some(*addr),
            Self::Ib(_) => None,
        }
    }

    /// The same address with another port.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        match &mut self {
            Self::Ip(addr) => addr.set_port(port),
            Self::Ib(addr) => addr.service_id = addr.service_id & !0xffff | u64::from(port),
        }
        self
    }

    /// The kernel's form and its length.
    pub(crate) fn to_kernel(self) -> (SocketAddressStorage, u16) {
        fn stored<T: Into<SocketAddressStorage>>(addr: T) -> (SocketAddressStorage, u16) {
            (addr.into(), size_of::<T>() as u16)
        }
        match self {
            Self::Ip(SocketAddr::V4(addr)) => stored(SocketAddressIn {
                family: AddressFamily::INET,
                port: Be16::new(addr.port()),
                address: addr.ip().octets(),
                reserved: [0; 8],
            }),
            Self::Ip(SocketAddr::V6(addr)) => stored(SocketAddressIn6 {
                family: AddressFamily::INET6,
                port: Be16::new(addr.port()),
                flow_info: Be32::new(addr.flowinfo()),
                address: addr.ip().octets(),
                scope_id: addr.scope_id(),
            }),
            Self::Ib(addr) => stored(SocketAddressIb {
                family: AddressFamily::IB,
                pkey: Be16::new(addr.pkey),
                flow_info: Be32::new(addr.flow_info),
                gid: addr.gid.0,
                service_id: Be64::new(addr.service_id),
                service_id_mask: Be64::new(addr.service_id_mask),
                scope_id: addr.scope_id,
            }),
        }
    }

    /// The address in the kernel's form; `None` if the family is none or unknown.
    pub(crate) fn from_kernel(storage: &SocketAddressStorage) -> Option<Self> {
        let bytes = storage.as_bytes();
        match storage.family {
            AddressFamily::INET => {
                let (addr, _) = SocketAddressIn::read_from_prefix(bytes).ok()?;
                Some(Self::Ip(SocketAddrV4::new(Ipv4Addr::from(addr.address), addr.port.get()).into()))
            }
            AddressFamily::INET6 => {
                let (addr, _) = SocketAddressIn6::read_from_prefix(bytes).ok()?;
                let ip = Ipv6Addr::from(addr.address);
                let addr = SocketAddrV6::new(ip, addr.port.get(), addr.flow_info.get(), addr.scope_id);
                Some(Self::Ip(addr.into()))
            }
            AddressFamily::IB => {
                let (addr, _) = SocketAddressIb::read_from_prefix(bytes).ok()?;
                Some(Self::Ib(IbAddr {
                    gid: Gid(addr.gid),
                    pkey: addr.pkey.get(),
                    flow_info: addr.flow_info.get(),
                    service_id: addr.service_id.get(),
                    service_id_mask: addr.service_id_mask.get(),
                    scope_id: addr.scope_id,
                }))
            }
            _ => None,
        }
    }

    /// The address in the form of the commands for IP addresses only.
    pub(crate) fn from_ip_kernel(addr: SocketAddressIn6) -> Option<Self> {
        Self::from_kernel(&addr.into())
    }
}

/// The local address of this host's route to a peer. No packet is sent.
pub(crate) fn local_to(peer: SocketAddr) -> io::Result<SocketAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    socket.local_addr()
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => addr.fmt(f),
            Self::Ib(addr) => addr.fmt(f),
        }
    }
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl From<SocketAddrV4> for Addr {
    fn from(addr: SocketAddrV4) -> Self {
        Self::Ip(addr.into())
    }
}

impl From<SocketAddrV6> for Addr {
    fn from(addr: SocketAddrV6) -> Self {
        Self::Ip(addr.into())
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Addr {
    fn from((ip, port): (I, u16)) -> Self {
        Self::Ip(SocketAddr::new(ip.into(), port))
    }
}

impl From<IbAddr> for Addr {
    fn from(addr: IbAddr) -> Self {
        Self::Ib(addr)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addrs() -> impl Strategy<Value = Addr> {
        prop_oneof![
            (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| (Ipv4Addr::from(ip), port).into()),
            (any::<[u8; 16]>(), any::<u16>(), any::<u32>(), any::<u32>()).prop_map(
                |(ip, port, flow, scope)| { SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into() }
            ),
            (any::<[u8; 16]>(), any::<u16>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>())
                .prop_map(|(gid, pkey, flow_info, service_id, service_id_mask, scope_id)| {
                    let gid = Gid(gid);
                    IbAddr { gid, pkey, flow_info, service_id, service_id_mask, scope_id }.into()
                }),
        ]
    }

    proptest! {
        #[test]
        fn addresses_round_trip_through_the_kernels_form(addr in addrs()) {
            let (storage, size) = addr.to_kernel();
            prop_assert_eq!(Addr::from_kernel(&storage), Some(addr));
            let expected = match addr {
                Addr::Ip(SocketAddr::V4(_)) => 16,
                Addr::Ip(SocketAddr::V6(_)) => 28,
                Addr::Ib(_) => 48,
            };
            prop_assert_eq!(size, expected);
            prop_assert!(storage.as_bytes()[usize::from(size)..].iter().all(|byte| *byte == 0));
            if addr.ip().is_some() {
                let (old, _) = SocketAddressIn6::read_from_prefix(storage.as_bytes()).unwrap();
                prop_assert_eq!(Addr::from_ip_kernel(old), Some(addr));
            }
        }

        #[test]
        fn any_bytes_decode_or_have_no_known_family(bytes in proptest::collection::vec(any::<u8>(), 128)) {
            let storage = SocketAddressStorage::read_from_bytes(&bytes).unwrap();
            let known = [AddressFamily::INET, AddressFamily::INET6, AddressFamily::IB].contains(&storage.family);
            prop_assert_eq!(Addr::from_kernel(&storage).is_some(), known);
        }

        #[test]
        fn port_is_replaced_alone(addr in addrs(), port: u16) {
            let other = addr.with_port(port);
            prop_assert_eq!(other.port(), port);
            prop_assert_eq!(other.with_port(addr.port()), addr);
        }
    }

    #[test]
    fn service_ids_have_port_space_and_port() {
        assert_eq!(PortSpace::Tcp.service_id(7174), 0x0106_1c06);
        assert_eq!(PortSpace::Udp.service_id(1), 0x0111_0001);
        assert_eq!(PortSpace::Ib.service_id(0), 0x013f_0000);
        assert_eq!(PortSpace::Ipoib.service_id(0xffff), 0x0002_ffff);
        let addr = IbAddr::new(Gid([0; 16]), PortSpace::Ib, 5);
        assert_eq!((addr.port(), addr.to_string().as_str()), (5, "[::]/pkey=0xffff/sid=0x00000000013f0005"));
    }
}
