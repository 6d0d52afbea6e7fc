//! Socket addresses as the connection manager passes them.

use crate::abi::{Be16, Be32, Be64};

abi_structs! {
    header = "rdma/rdma_user_cm.h";

    /// An IPv6 address and port.
    struct SocketAddressIn6 = tag "sockaddr_in6" {
        /// [`AF_INET6`].
        family: u16 = "sin6_family";
        /// Port.
        port: Be16 = "sin6_port";
        /// Flow label.
        flow_info: Be32 = "sin6_flowinfo";
        /// Address.
        address: [u8; 16] = "sin6_addr";
        /// Number of the network device of a link-local address.
        scope_id: u32 = "sin6_scope_id";
    }

    /// Room for any address.
    struct SocketAddressStorage align(8) = tag "__kernel_sockaddr_storage" {
        /// Which address it holds: [`AF_INET`], [`AF_INET6`] or [`AF_IB`].
        family: u16 = "ss_family";
        /// The rest of the address.
        data: [u8; 126] = "__data";
    }
}

/// The IPv4 address.
pub mod ip {
    use super::Be16;

    abi_structs! {
        header = "linux/in.h";

        /// An IPv4 address and port; fills the first 16 bytes of a field for an IPv6 one.
        struct SocketAddressIn align(4) = tag "sockaddr_in" {
            /// [`super::AF_INET`].
            family: u16 = "sin_family";
            /// Port.
            port: Be16 = "sin_port";
            /// Address.
            address: [u8; 4] = "sin_addr";
            /// Zero.
            reserved: [u8; 8] = "sin_zero";
        }
    }
}

/// The native InfiniBand address.
pub mod ib {
    use super::{Be16, Be32, Be64};

    abi_structs! {
        header = "include/rdma/ib.h";

        /// A GID, a P_Key and a service identifier.
        struct SocketAddressIb = tag "sockaddr_ib" {
            /// [`super::AF_IB`].
            family: u16 = "sib_family";
            /// P_Key.
            pkey: Be16 = "sib_pkey";
            /// Flow label.
            flow_info: Be32 = "sib_flowinfo";
            /// GID.
            gid: [u8; 16] = "sib_addr";
            /// Service identifier, with the port space in bytes 4 and 5 and the port in the last two.
            service_id: Be64 = "sib_sid";
            /// Which bits of the service identifier count.
            service_id_mask: Be64 = "sib_sid_mask";
            /// Number of the device.
            scope_id: u64 = "sib_scope_id";
        }
    }
}

pub use ib::SocketAddressIb;
pub use ip::SocketAddressIn;

/// Address family of [`SocketAddressIn`].
pub const AF_INET: u16 = 2;
/// Address family of [`SocketAddressIn6`].
pub const AF_INET6: u16 = 10;
/// Address family of [`SocketAddressIb`].
pub const AF_IB: u16 = 27;

macro_rules! store {
    ($($address:ident),*) => {$(
        impl From<$address> for SocketAddressStorage {
            fn from(address: $address) -> Self {
                let bytes = zerocopy::IntoBytes::as_bytes(&address);
                let mut storage = Self { family: address.family, data: [0; 126] };
                storage.data[..bytes.len() - 2].copy_from_slice(&bytes[2..]);
                storage
            }
        }
    )*};
}

store!(SocketAddressIn, SocketAddressIn6, SocketAddressIb);
