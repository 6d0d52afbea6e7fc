//! Hash functions and fields of receive-side scaling (RSS).

bitflags::bitflags! {
    /// Packet fields that the hash covers. IPv4 and IPv6 are mutually exclusive, and so are TCP and
    /// UDP.
    #[doc(alias = "ibv_rx_hash_fields")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HashFields: u64 {
        /// Source IPv4 address.
        #[doc(alias = "IBV_RX_HASH_SRC_IPV4")]
        const SRC_IPV4 = 1 << 0;
        /// Destination IPv4 address.
        #[doc(alias = "IBV_RX_HASH_DST_IPV4")]
        const DST_IPV4 = 1 << 1;
        /// Source IPv6 address.
        #[doc(alias = "IBV_RX_HASH_SRC_IPV6")]
        const SRC_IPV6 = 1 << 2;
        /// Destination IPv6 address.
        #[doc(alias = "IBV_RX_HASH_DST_IPV6")]
        const DST_IPV6 = 1 << 3;
        /// Source TCP port.
        #[doc(alias = "IBV_RX_HASH_SRC_PORT_TCP")]
        const SRC_PORT_TCP = 1 << 4;
        /// Destination TCP port.
        #[doc(alias = "IBV_RX_HASH_DST_PORT_TCP")]
        const DST_PORT_TCP = 1 << 5;
        /// Source UDP port.
        #[doc(alias = "IBV_RX_HASH_SRC_PORT_UDP")]
        const SRC_PORT_UDP = 1 << 6;
        /// Destination UDP port.
        #[doc(alias = "IBV_RX_HASH_DST_PORT_UDP")]
        const DST_PORT_UDP = 1 << 7;
        /// Security parameter index (SPI) of IPsec.
        #[doc(alias = "IBV_RX_HASH_IPSEC_SPI")]
        const IPSEC_SPI = 1 << 8;
        /// The fields of the inner packet of a tunnel.
        #[doc(alias = "IBV_RX_HASH_INNER")]
        const INNER = 1 << 31;
    }
}

bitflags::bitflags! {
    /// Hash functions.
    #[doc(alias = "ibv_rx_hash_function_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HashFunctions: u8 {
        /// The Toeplitz hash: for each 1 bit of the input, the 32 key bits from that position on
        /// are XORed.
        #[doc(alias = "IBV_RX_HASH_FUNC_TOEPLITZ")]
        const TOEPLITZ = 1 << 0;
    }
}

/// The length of a Toeplitz key in bytes: the longest input (two IPv6 addresses and two ports, 36
/// bytes) and 4 more.
pub const TOEPLITZ_KEY: usize = 40;
