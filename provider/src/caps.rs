//! Capabilities that a provider reports in addition to the kernel's device attributes.

use bareverbs_uapi::uverbs::types::CoreSupport;

use crate::rss::{HashFields, HashFunctions};
use crate::work::WcStatus;

/// Capabilities of a context, read once when it is opened. The default has none.
#[doc(alias = "mlx5dv_context")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Completion vectors: interrupt sources for completion events.
    pub num_comp_vectors: u32,
    /// Features of the kernel's RDMA core.
    pub core_support: CoreSupport,
    /// Other processes can use the context by
    /// [`Provider::import`](crate::traits::Provider::import).
    pub shareable: bool,
    /// The context has DEVX: its calls execute commands of the firmware.
    pub devx: bool,
    /// Queue pairs have vendor options for connection establishment
    /// ([`QpControl::ece`](crate::traits::QpControl::ece)).
    pub ece: bool,
    /// Queue pairs of the type `RAW_PACKET` are supported.
    pub raw_packets: bool,
    /// The device speaks iWARP: the kernel's connection manager (rdma_cm) connects a queue pair and moves
    /// it to RTS.
    pub iwarp: bool,
    /// A local key whose reads are undefined and whose writes are discarded.
    pub null_key: Option<u32>,
    /// CQEs can be compressed ([`CqRequest::compressed`](crate::request::CqRequest::compressed)).
    pub compressed_completions: bool,
    /// Queues can be created in memory of the caller
    /// ([`QueueMemory::From`](crate::request::QueueMemory::From)).
    pub queue_buffers: bool,
    /// CQs and QPs can be created in dma-bufs.
    pub queue_dmabufs: bool,
    /// Largest payload in bytes that TCP segmentation offload splits into packets; 0 without TSO.
    pub max_tso: u32,
    /// Transports with TSO: bit number = QP type.
    pub tso_supported_qpts: u32,
    /// Packet fields that an RSS hash can cover.
    pub rx_hash_fields_mask: HashFields,
    /// RSS hash functions.
    pub rx_hash_function: HashFunctions,
    /// Lowest rate limit of sends in kbit/s.
    pub qp_rate_limit_min: u32,
    /// Highest rate limit of sends in kbit/s; 0 without rate limits.
    pub qp_rate_limit_max: u32,
    /// Transports with rate limits: bit number = QP type.
    pub rate_limit_supported_qpts: u32,
    /// The kernel pins the memory of queues, which counts against the limit on locked memory
    /// (`RLIMIT_MEMLOCK`). For error messages.
    pub pins_queues: bool,
    /// Statuses of requests that fail because the link of the port is down, besides `RETRY_EXC_ERR`.
    /// For error messages.
    pub link_down_statuses: &'static [WcStatus],
    /// Deviations of the driver's memory regions.
    pub mr_quirks: MrQuirks,
}

/// Deviations of a driver's memory regions. Default: none, and a failed `REREG_MR` may have changed the
/// MR. `verbs` refuses what a deviation makes unsound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrQuirks {
    /// An operation on an `ON_DEMAND` MR ignores its offset within a page, and so may exceed the
    /// bounds of memory that does not begin at a page boundary.
    pub odp_ignores_page_offset: bool,
    /// The pages of an `ON_DEMAND` MR are those at its IOVA, also if its address differs.
    pub odp_ignores_addr: bool,
    /// `REREG_MR` can't change `ON_DEMAND`.
    pub odp_is_fixed: bool,
    /// `DEREG_MR` may return while the kernel writes to the memory for a peer, in an RCU read-side critical
    /// section that began before.
    pub dereg_is_early: bool,
    /// The IOVA of an MR is its address: the driver ignores another one.
    pub iova_is_addr: bool,
    /// A `REREG_MR` of one change that fails with an errno other than `EFAULT` has changed nothing.
    pub rereg_is_atomic: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            num_comp_vectors: 0,
            core_support: CoreSupport::empty(),
            shareable: false,
            devx: false,
            ece: false,
            raw_packets: false,
            iwarp: false,
            null_key: None,
            compressed_completions: false,
            queue_buffers: false,
            queue_dmabufs: false,
            max_tso: 0,
            tso_supported_qpts: 0,
            rx_hash_fields_mask: HashFields::empty(),
            rx_hash_function: HashFunctions::empty(),
            qp_rate_limit_min: 0,
            qp_rate_limit_max: 0,
            rate_limit_supported_qpts: 0,
            pins_queues: false,
            link_down_statuses: &[],
            mr_quirks: MrQuirks::default(),
        }
    }
}
