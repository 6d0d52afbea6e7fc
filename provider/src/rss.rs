//! Receive-side scaling: work queues that receive, and queue pairs that spread whole frames over
//! them by a hash of their headers.

use bareverbs_uapi::uverbs::types::WqFlags;
use bareverbs_uapi::verbs_values::WqState;

use crate::contract::{Provider, QueueMemory};

bitflags::bitflags! {
    /// What of a frame is hashed. IPv4 and IPv6 exclude each other, and so do TCP and UDP.
    #[doc(alias = "ibv_rx_hash_fields")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HashFields: u64 {
        /// The IPv4 address that it is from.
        #[doc(alias = "IBV_RX_HASH_SRC_IPV4")]
        const SRC_IPV4 = 1 << 0;
        /// The IPv4 address that it is to.
        #[doc(alias = "IBV_RX_HASH_DST_IPV4")]
        const DST_IPV4 = 1 << 1;
        /// The IPv6 address that it is from.
        #[doc(alias = "IBV_RX_HASH_SRC_IPV6")]
        const SRC_IPV6 = 1 << 2;
        /// The IPv6 address that it is to.
        #[doc(alias = "IBV_RX_HASH_DST_IPV6")]
        const DST_IPV6 = 1 << 3;
        /// The TCP port that it is from.
        #[doc(alias = "IBV_RX_HASH_SRC_PORT_TCP")]
        const SRC_PORT_TCP = 1 << 4;
        /// The TCP port that it is to.
        #[doc(alias = "IBV_RX_HASH_DST_PORT_TCP")]
        const DST_PORT_TCP = 1 << 5;
        /// The UDP port that it is from.
        #[doc(alias = "IBV_RX_HASH_SRC_PORT_UDP")]
        const SRC_PORT_UDP = 1 << 6;
        /// The UDP port that it is to.
        #[doc(alias = "IBV_RX_HASH_DST_PORT_UDP")]
        const DST_PORT_UDP = 1 << 7;
        /// The security parameter index of IPsec.
        #[doc(alias = "IBV_RX_HASH_IPSEC_SPI")]
        const IPSEC_SPI = 1 << 8;
        /// All this of the frame inside of a tunnel.
        #[doc(alias = "IBV_RX_HASH_INNER")]
        const INNER = 1 << 31;
    }
}

bitflags::bitflags! {
    /// Functions that hash.
    #[doc(alias = "ibv_rx_hash_function_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HashFunctions: u8 {
        /// The sum of those 32 bits of a key that begin where what is hashed has a one.
        #[doc(alias = "IBV_RX_HASH_FUNC_TOEPLITZ")]
        const TOEPLITZ = 1 << 0;
    }
}

/// Bytes of a key of the Toeplitz hash: those of the longest that is hashed, two IPv6 addresses and
/// two ports, and four more.
pub const TOEPLITZ_KEY: usize = 40;

/// What a work queue that receives is to be.
#[derive(Clone, Copy, Debug)]
pub struct WqRequest {
    /// Handle of its protection domain.
    pub pd: u32,
    /// Handle of the queue for its completions.
    pub cq: u32,
    /// Receives it must hold.
    pub max_wr: u32,
    /// SGEs that each must carry.
    pub max_sge: u32,
    /// What becomes of frames on their way into it.
    pub flags: WqFlags,
    /// What its memory lies in.
    pub memory: QueueMemory,
    /// Comes back in asynchronous events.
    pub user_handle: u64,
}

/// A work queue as made.
pub struct CreatedWq<P: Provider> {
    /// The kernel's handle.
    pub handle: u32,
    /// Its number.
    pub wq_num: u32,
    /// Receives it holds, at least as many as asked for.
    pub max_wr: u32,
    /// SGEs that each carries.
    pub max_sge: u32,
    /// The queue.
    pub queue: P::Rq,
}

/// What a work queue is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqChange {
    /// It goes from one state to another.
    State {
        /// The state that it is in.
        from: WqState,
        /// The state that it is to be in.
        to: WqState,
    },
    /// Sets or clears these of its flags.
    Flags {
        /// Which.
        which: WqFlags,
        /// Those of them that are set.
        flags: WqFlags,
    },
}

/// What a queue pair that spreads frames is to be.
#[derive(Clone, Copy, Debug)]
pub struct RssQpRequest {
    /// Handle of its protection domain.
    pub pd: u32,
    /// Handle of the table of the queues that it spreads over.
    pub table: u32,
    /// What it hashes, by the Toeplitz function.
    pub fields: HashFields,
    /// With which key.
    pub key: [u8; TOEPLITZ_KEY],
    /// Comes back in asynchronous events.
    pub user_handle: u64,
}
