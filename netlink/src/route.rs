//! Network interfaces below software devices.

use std::net::IpAddr;
use std::os::fd::AsFd;

use bareverbs_uapi::netlink::MessageFlags;
use bareverbs_uapi::rtnetlink::{ADDRESS, ADDRESS_LOCAL, AddressMessage, LinkMessage, NEW_ADDRESS, NEW_LINK};
use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::netdevice::name_to_index;

use crate::error::{KernelError, with_hint};
use crate::socket::Socket;
use crate::{Error, Result};
use crate::{INTERFACE_NAME_LEN, check_name};

/// An rtnetlink socket that configures network interfaces below software devices.
///
/// ```no_run
/// use bareverbs_netlink::{RdmaNetlink, RouteNetlink};
///
/// let mut route = RouteNetlink::open()?;
/// route.set_up("eth0")?;
/// route.add_address("eth0", [10, 1, 0, 1].into(), 24)?;
/// RdmaNetlink::open()?.new_link("rxe0", "rxe", "eth0")?;
/// # Ok::<(), bareverbs_netlink::Error>(())
/// ```
#[derive(Debug)]
pub struct RouteNetlink {
    socket: Socket,
}

impl RouteNetlink {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel has no rtnetlink.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open("opening an rtnetlink socket", None)? })
    }

    /// Sets the network interface `netdev` up. It may be up already.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name; [`Error::Kernel`] with `ENODEV` if there is
    /// no such network interface, with `EPERM` without `CAP_NET_ADMIN`.
    #[doc(alias = "ip link set up")]
    pub fn set_up(&mut self, netdev: &str) -> Result<()> {
        let what = format!("setting network interface {netdev} up");
        let interface = self.index_of("RouteNetlink::set_up", &what, netdev)?;
        let up = libc::IFF_UP.cast_unsigned();
        let head = LinkMessage {
            interface: interface.cast_signed(),
            flags: up,
            change: up,
            ..LinkMessage::zeroed()
        };
        let set = self.socket.request(
            &what,
            NEW_LINK,
            MessageFlags::ACK,
            |request| _ = request.put_struct(&head),
            |_| Ok(()),
        );
        with_hint(set, hint)
    }

    /// Adds an address with a prefix of `prefix` bits to the network interface `netdev`. It may
    /// have the address already.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name or prefix; [`Error::Kernel`] with `ENODEV` if
    /// there is no such network interface, with `EPERM` without `CAP_NET_ADMIN`.
    #[doc(alias = "ip address add")]
    pub fn add_address(&mut self, netdev: &str, address: IpAddr, prefix: u8) -> Result<()> {
        const VERB: &str = "RouteNetlink::add_address";
        let (family, bits, octets) = match &address {
            IpAddr::V4(address) => (AddressFamily::INET, 32, &address.octets()[..]),
            IpAddr::V6(address) => (AddressFamily::INET6, 128, &address.octets()[..]),
        };
        if prefix > bits {
            let reason = format!("the prefix of {address} has {prefix} bits; the maximum is {bits}");
            return Err(Error::invalid(VERB, reason));
        }
        let what = format!("adding {address}/{prefix} to network interface {netdev}");
        let interface = self.index_of(VERB, &what, netdev)?;
        let head = AddressMessage {
            family: family.as_raw() as u8,
            prefix_length: prefix,
            interface,
            ..AddressMessage::zeroed()
        };
        let added = self.socket.request(
            &what,
            NEW_ADDRESS,
            MessageFlags::ACK | MessageFlags::CREATE | MessageFlags::EXCLUSIVE,
            |request| {
                request.put_struct(&head).put_bytes(ADDRESS_LOCAL, octets).put_bytes(ADDRESS, octets);
            },
            |_| Ok(()),
        );
        match added {
            Err(error) if error.errno() == Some(Errno::EXIST) => Ok(()),
            added => with_hint(added, hint),
        }
    }

    fn index_of(&self, verb: &'static str, what: &str, netdev: &str) -> Result<u32> {
        check_name(verb, "network interface", netdev, INTERFACE_NAME_LEN)?;
        let found = name_to_index(self.socket.as_fd(), netdev)
            .map_err(|errno| KernelError::new(what, errno, None).into());
        with_hint(found, hint)
    }
}

/// The likely cause of a refused request.
fn hint(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::NODEV => Some("there is no such network interface in this network namespace"),
        Errno::PERM => Some("it requires CAP_NET_ADMIN in the user namespace of the network namespace"),
        _ => None,
    }
}
