//! Socket addresses of the connection manager.

use crate::abi::{Be16, Be32, Be64};

abi_structs! {
    header = "rdma/rdma_user_cm.h";

    /// An IPv4 address and port; the first 16 bytes of a field for an IPv6 address.
    struct SocketAddressIn align(4) = tag "sockaddr_in" in "linux/in.h" {
        /// [`AddressFamily::INET`].
        family: AddressFamily = "sin_family";
        /// Port.
        port: Be16 = "sin_port";
        /// Address.
        address: [u8; 4] = "sin_addr";
        /// Zero.
        reserved: [u8; 8] = "__pad";
    }

    /// An IPv6 address and port.
    struct SocketAddressIn6 = tag "sockaddr_in6" in "linux/in6.h" {
        /// [`AddressFamily::INET6`].
        family: AddressFamily = "sin6_family";
        /// Port.
        port: Be16 = "sin6_port";
        /// Flow label.
        flow_info: Be32 = "sin6_flowinfo";
        /// Address.
        address: [u8; 16] = "sin6_addr";
        /// Scope id: index of the network device of a link-local address.
        scope_id: u32 = "sin6_scope_id";
    }

    /// A GID, a P_Key and a service identifier.
    struct SocketAddressIb = tag "sockaddr_ib" in "include/rdma/ib.h" {
        /// [`AddressFamily::IB`].
        family: AddressFamily = "sib_family";
        /// P_Key.
        pkey: Be16 = "sib_pkey";
        /// Flow label.
        flow_info: Be32 = "sib_flowinfo";
        /// GID.
        gid: [u8; 16] = "sib_addr";
        /// Service identifier, with the port space in bytes 4 and 5 and the port in the last two.
        service_id: Be64 = "sib_sid";
        /// Mask of the service identifier.
        service_id_mask: Be64 = "sib_sid_mask";
        /// Number of the device.
        scope_id: u64 = "sib_scope_id";
    }

    /// Storage for any address.
    struct SocketAddressStorage align(8) = tag "__kernel_sockaddr_storage" in "linux/socket.h" {
        /// Which address it holds: [`AddressFamily::INET`], [`AddressFamily::INET6`] or
        /// [`AddressFamily::IB`].
        family: AddressFamily = "ss_family";
        /// The rest of the address.
        data: [u8; 126] = "__data";
    }
}

abi_enums! {
    header = "include/linux/socket.h";

    /// Family of an address.
    enum AddressFamily : u16 = "" {
        /// [`SocketAddressIn`].
        INET = 2, "AF_INET";
        /// [`SocketAddressIn6`].
        INET6 = 10, "AF_INET6";
        /// [`SocketAddressIb`].
        IB = 27, "AF_IB";
    }
}

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
