//! Why a device can't have an address.

use std::net::IpAddr;

use rustix::io::Errno;

/// A device can't have its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Another device of the fabric has the address or its link-local GID.
    #[error("a device of this fabric has the address {address} or its link-local GID")]
    OnFabric {
        /// The address.
        address: IpAddr,
    },
    /// UDP port 4791 of the address is in use.
    #[error(
        "UDP port 4791 of {address} is in use (EADDRINUSE): another soft device has this address, or rdma_rxe \
         has the port in this network namespace; use another address of this host, such as \
         one of 127.0.0.0/8, or remove the rxe devices (bareverbs link delete) or the module rdma_rxe"
    )]
    InUse {
        /// The address.
        address: IpAddr,
    },
    /// No network interface has the address.
    #[error("{address} is no address of this host (EADDRNOTAVAIL); use one that `ip address` lists")]
    NotLocal {
        /// The address.
        address: IpAddr,
    },
    /// The fabric is [seeded](crate::Fabric::seeded): it has no wires to other processes.
    #[error("a fabric with virtual time has no UDP wire, so a device can't be bound to {address}")]
    VirtualTime {
        /// The address.
        address: IpAddr,
    },
    /// A socket could not be prepared. `EMSGSIZE`: the MTU of the network interface is below 352 bytes;
    /// raise it.
    #[error("opening UDP port 4791 of {address}: {errno}")]
    System {
        /// The address.
        address: IpAddr,
        /// The error number of the kernel.
        errno: Errno,
    },
}

impl AddressError {
    pub(crate) fn new(address: IpAddr, errno: Errno) -> Self {
        match errno {
            Errno::ADDRINUSE => Self::InUse { address },
            Errno::ADDRNOTAVAIL => Self::NotLocal { address },
            errno => Self::System { address, errno },
        }
    }
}
