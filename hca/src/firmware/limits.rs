//! Limits that commands check and capabilities report.

/// Maximum number of CQEs in a CQ, log2.
pub(super) const LOG_CQ_SIZE: u8 = 20;
/// Maximum number of EQEs in an EQ, log2.
pub(super) const LOG_EQ_SIZE: u8 = 16;
/// Maximum number of WQEs in an RQ or SQ of the netdev, log2.
pub(super) const LOG_WQ_SIZE: u8 = 15;
/// Maximum number of RQs in an RQT, log2.
pub(super) const LOG_RQT_SIZE: u8 = 9;
/// Maximum number of RQTs, log2.
pub(super) const LOG_RQTS: u8 = 10;
/// Maximum number of TIRs, log2.
pub(super) const LOG_TIRS: u8 = 12;
/// Maximum number of TISes, log2.
pub(super) const LOG_TISES: u8 = 8;
/// Maximum number of flow tables, log2.
pub(super) const LOG_FLOW_TABLES: u8 = 8;
/// Maximum number of flow counters, log2.
pub(super) const LOG_FLOW_COUNTERS: u8 = 12;
/// Maximum number of PDs, log2.
pub(super) const LOG_PDS: u8 = 16;
/// Maximum number of XRC domains, log2.
pub(super) const LOG_XRCDS: u8 = 16;
/// Maximum number of transport domains, log2.
pub(super) const LOG_TRANSPORT_DOMAINS: u8 = 16;
/// Maximum number of user contexts, log2.
pub(super) const LOG_USER_CONTEXTS: u8 = 10;
/// Maximum number of user memory objects, log2.
pub(super) const LOG_UMEMS: u8 = 14;
/// Maximum number of counter sets.
pub(super) const COUNTER_SETS: usize = 255;
/// Smallest and largest rate of packet pacing in kbit/s.
pub(super) const SMALLEST_RATE: u32 = 1;
pub(super) const LARGEST_RATE: u32 = 100_000_000;
/// Number of entries of the rate table, with entry 0 for no limit.
pub(super) const RATES: u16 = 128;
