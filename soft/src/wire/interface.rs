//! The network interface of an address.

use std::ffi::CStr;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;

use crate::sys::last_errno;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    /// MTU in bytes.
    pub(super) mtu: u32,
}

impl Interface {
    /// The interface that has an address. An interface of the loopback network has all its addresses.
    /// `socket` is any socket of the network namespace.
    pub(super) fn of(socket: BorrowedFd<'_>, address: IpAddr) -> Result<Self, Errno> {
        let name = name_of(address)?.ok_or(Errno::ADDRNOTAVAIL)?;
        let index = name_to_index(socket, &name)?;
        let mtu = mtu(socket, &name)?;
        Ok(Self { name, index, mtu })
    }
}

/// The name of the interface that has an address.
fn name_of(address: IpAddr) -> Result<Option<String>, Errno> {
    let mut first = ptr::null_mut();
    // SAFETY: writes the head of a list to `first`.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(last_errno());
    }
    let mut found = None;
    let mut next = first;
    // SAFETY: the list's entries are valid until `freeifaddrs`, and `next` is one of them or null.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: an entry's address is null or a socket address.
        let Some(own) = (unsafe { ip_of(entry.ifa_addr) }) else { continue };
        if own == address || own.is_loopback() && address.is_loopback() && own.is_ipv4() == address.is_ipv4()
        {
            // SAFETY: an entry's name is a string that ends with zero.
            found = Some(unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned());
            break;
        }
    }
    // SAFETY: `first` is the head of a list of `getifaddrs`, which is not used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The IP address in a socket address.
///
/// # Safety
///
/// The pointer is null or points to a socket address whose length is that of its family.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's obligation.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: an address of this family has this type.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family has this type.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn mtu(socket: BorrowedFd<'_>, name: &str) -> Result<u32, Errno> {
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name, and writes within `request`.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) } != 0 {
        return Err(last_errno());
    }
    // SAFETY: SIOCGIFMTU has set this field.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
}
