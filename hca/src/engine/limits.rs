//! Limits of the device. The firmware reports them as capabilities.

/// Maximum number of QPs, log2.
pub(crate) const LOG_QPS: u8 = 16;
/// Maximum number of CQs, log2.
pub(crate) const LOG_CQS: u8 = 16;
/// Maximum number of SRQs, log2.
pub(crate) const LOG_SRQS: u8 = 16;
/// Maximum number of mkeys, log2.
pub(crate) const LOG_MKEYS: u8 = 20;
/// Maximum number of unanswered page faults, log2.
pub(crate) const LOG_FAULTS: u8 = 16;
/// Maximum number of EQs.
pub(crate) const EQS: usize = 63;
/// Number of MSI-X vectors.
pub(crate) const VECTORS: u16 = 32;
/// Maximum number of RQs of the netdev, log2.
pub(crate) const LOG_RQS: u8 = 12;
/// Maximum number of multicast groups.
pub(crate) const GROUPS: usize = 256;
/// Maximum number of QPs in a multicast group.
pub(crate) const QPS_PER_GROUP: usize = 64;
/// Maximum message size in bytes.
pub(crate) const MAX_MESSAGE: u64 = 1 << 30;
/// Maximum payload of a TSO send in bytes, log2.
pub(crate) const LOG_LARGE_SEND: u8 = 16;
