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
    #[error("opening UDP port 4791 of {address}: {errno}{}", remedy(*errno))]
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

    /// The error number: `EADDRINUSE`, `EADDRNOTAVAIL`, or that of the system.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::OnFabric { .. } | Self::InUse { .. } => Errno::ADDRINUSE,
            Self::NotLocal { .. } | Self::VirtualTime { .. } => Errno::ADDRNOTAVAIL,
            Self::System { errno, .. } => *errno,
        }
    }
}

fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::MSGSIZE => ": raise the MTU of the network interface to 352 bytes or more",
        Errno::MFILE => ": close some descriptors or raise the limit with `ulimit -n`",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn text_has_the_errno_once_and_the_remedy() {
        let error = |errno| AddressError::new(Ipv4Addr::LOCALHOST.into(), errno);
        for errno in [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL, Errno::MFILE, Errno::MSGSIZE] {
            assert_eq!(error(errno).errno(), errno);
        }
        let text = error(Errno::MFILE).to_string();
        assert_eq!(text.matches(&Errno::MFILE.to_string()).count(), 1, "{text}");
        assert!(text.ends_with("`ulimit -n`"), "{text}");
        assert!(error(Errno::MSGSIZE).to_string().contains("raise the MTU"));
    }
}
