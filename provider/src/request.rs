//! Parameters of objects that a provider creates or changes, as plain structs.

use std::os::fd::BorrowedFd;

use bareverbs_uapi::uverbs::types::{QpCap, QpCreateFlags, QpType, WqFlags};
use bareverbs_uapi::verbs_values::{CounterDescription, WqState};
use bareverbs_uapi::write::structs::{AhAttr, FlowAttr};
use bareverbs_uapi::write::types::CqCreateFlags;

use crate::error::{CreateError, Feature};
use crate::queue_allocator::QueueAllocator;
use crate::rss::{HashFields, TOEPLITZ_KEY};
use crate::thread_domain::ThreadDomain;

/// Memory of a queue.
#[doc(alias = "MLX_QP_ALLOC_TYPE")]
#[doc(alias = "MLX_CQ_ALLOC_TYPE")]
#[doc(alias = "MLX_SRQ_ALLOC_TYPE")]
#[derive(Clone, Copy, Debug, Default)]
pub enum QueueMemory<'a> {
    /// Pages of the system's base size.
    #[default]
    BasePages,
    /// Huge pages of 2 MiB, at least one for each queue. They need fewer address translations by
    /// the device and the processor. The kernel must have some reserved (`vm.nr_hugepages`).
    HugePages,
    /// Memory of an allocator, or of a [`QueueBuffer`](crate::queue_buffer::QueueBuffer).
    From(&'a dyn QueueAllocator),
}

impl QueueMemory<'_> {
    /// For drivers that allocate the queues in the kernel.
    ///
    /// # Errors
    ///
    /// [`CreateError::Unsupported`] unless it is [`QueueMemory::BasePages`].
    pub fn check_is_default(self) -> Result<(), CreateError> {
        match self {
            Self::BasePages => Ok(()),
            Self::HugePages => Err(CreateError::Unsupported { feature: Feature::HugePageQueues }),
            Self::From(_) => Err(CreateError::Unsupported { feature: Feature::QueueBuffers }),
        }
    }
}

/// Bytes of a CQE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CqeSize {
    /// 64 bytes, or what the device has if it has one size only.
    #[default]
    Bytes64,
    /// 128 bytes, of which the last 64 have the fields. A CQE fills two cache lines. The device may put
    /// up to 64 bytes of a message in front.
    Bytes128,
}

/// Parameters of a completion queue.
#[doc(alias = "ibv_cq_init_attr_ex")]
#[derive(Clone, Copy, Debug)]
pub struct CqRequest<'a> {
    /// Minimum number of CQEs.
    pub entries: u32,
    /// Returned in completion events.
    pub user_handle: u64,
    /// Completion channel for its events.
    pub channel: Option<BorrowedFd<'a>>,
    /// Completion vector that raises the events.
    pub vector: u32,
    /// The device may compress runs of similar CQEs.
    pub compressed: bool,
    /// Bytes of a CQE, also after a resize.
    pub cqe_size: CqeSize,
    /// Creation flags.
    pub flags: CqCreateFlags,
    /// Its memory until a resize.
    pub memory: QueueMemory<'a>,
}

/// Parameters of a queue pair.
#[doc(alias = "ibv_qp_init_attr_ex")]
#[derive(Clone, Copy, Debug)]
pub struct QpRequest<'a> {
    /// Handle of its protection domain.
    pub pd: u32,
    /// Handle of the CQ of its sends.
    pub send_cq: u32,
    /// Handle of the CQ of its receives; unused by types that only send (XRC).
    pub recv_cq: u32,
    /// Handle of a shared receive queue, in place of its own receive queue.
    pub srq: Option<u32>,
    /// Transport.
    pub qp_type: QpType,
    /// Minimum depths and widths.
    pub cap: QpCap,
    /// Longest header of a TSO send, in bytes; 0 without TSO.
    pub max_tso_header: u16,
    /// Creation flags.
    pub flags: QpCreateFlags,
    /// QPN in sent packets in place of the QP's own. Such a UD QP sends datagrams of IPoIB.
    pub source_qpn: Option<u32>,
    /// Receive CQEs may carry short messages. Polling copies them to the receive's memory, so the
    /// addresses of receives must be this process's addresses of that memory.
    pub scatter_to_cqe: bool,
    /// Returned in asynchronous events.
    pub user_handle: u64,
    /// Doorbell register.
    pub doorbell: DoorbellChoice<'a>,
    /// The memory of both queues.
    pub memory: QueueMemory<'a>,
}

/// Doorbell register of a queue pair's sends. See
/// [`SendQueue::owns_doorbell`](crate::traits::SendQueue::owns_doorbell).
#[derive(Clone, Copy, Debug, Default)]
pub enum DoorbellChoice<'a> {
    /// The provider chooses. For instance, the first QPs of a context get registers of their own,
    /// and later ones share a register.
    #[default]
    Any,
    /// A shared register.
    Shared,
    /// A register of its own. Creation fails if none is available.
    Own,
    /// The register of a thread domain of the same context.
    #[doc(alias = "ibv_alloc_parent_domain")]
    Domain(&'a ThreadDomain),
}

/// Burst parameters of packet pacing; 0 for the device's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Burst {
    /// Maximum burst in bytes.
    pub max_size: u32,
    /// Typical size of a packet in bytes.
    pub typical_packet: u16,
}

/// Options of enhanced connection establishment, beyond the IB specification.
#[doc(alias = "ibv_ece")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// PCI vendor id that the options belong to.
    pub vendor_id: u32,
    /// Options in the vendor's format; 0 for none.
    pub options: u32,
}

/// Parameters of an XRC target queue pair.
#[derive(Clone, Copy, Debug)]
pub struct XrcTargetRequest {
    /// Handle of the XRC domain.
    pub xrcd: u32,
    /// Returned in asynchronous events.
    pub user_handle: u64,
}

/// Additional parameters of an XRC shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct XrcSrqRequest {
    /// Handle of the XRC domain.
    pub xrcd: u32,
    /// Handle of the CQ of its receives.
    pub cq: u32,
}

/// Parameters of a shared receive queue.
#[doc(alias = "ibv_srq_init_attr_ex")]
#[derive(Clone, Copy, Debug)]
pub struct SrqRequest<'a> {
    /// Handle of its protection domain.
    pub pd: u32,
    /// Minimum number of receives.
    pub max_wr: u32,
    /// Minimum number of SGEs of each receive.
    pub max_sge: u32,
    /// SRQ limit: the event is raised when fewer receives than this are posted. 0 for no event.
    pub limit: u32,
    /// Returned in asynchronous events.
    pub user_handle: u64,
    /// Its memory.
    pub memory: QueueMemory<'a>,
    /// XRC domain and CQ of an XRC SRQ. If `None`, receives complete on the CQ of the QP.
    pub xrc: Option<XrcSrqRequest>,
}

/// A change of a shared receive queue.
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqChange {
    /// SRQ limit: raises one event when fewer receives than this are posted. 0 for no event.
    Limit(u32),
    /// A new capacity of at least this many receives.
    MaxWr(u32),
}

/// Parameters of a receive work queue.
#[doc(alias = "ibv_wq_init_attr")]
#[derive(Clone, Copy, Debug)]
pub struct WqRequest<'a> {
    /// Handle of its protection domain.
    pub pd: u32,
    /// Handle of its CQ.
    pub cq: u32,
    /// Minimum number of receives.
    pub max_wr: u32,
    /// Minimum number of SGEs of each receive.
    pub max_sge: u32,
    /// Packet processing flags.
    pub flags: WqFlags,
    /// Its memory.
    pub memory: QueueMemory<'a>,
    /// Returned in asynchronous events.
    pub user_handle: u64,
}

/// A change of a work queue.
#[doc(alias = "ibv_wq_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqChange {
    /// A state transition.
    State {
        /// The present state.
        from: WqState,
        /// The new state.
        to: WqState,
    },
    /// New values of some flags.
    Flags {
        /// The flags to change.
        which: WqFlags,
        /// Their new values: set flags are set, the others are cleared.
        flags: WqFlags,
    },
}

/// Parameters of an RSS queue pair, which spreads packets over work queues.
#[derive(Clone, Copy, Debug)]
pub struct RssQpRequest {
    /// Handle of its protection domain.
    pub pd: u32,
    /// Handle of the indirection table.
    pub table: u32,
    /// Packet fields that the Toeplitz hash covers.
    pub fields: HashFields,
    /// Key of the hash.
    pub key: [u8; TOEPLITZ_KEY],
    /// Returned in asynchronous events.
    pub user_handle: u64,
}

/// Parameters of a flow that counts its packets.
#[derive(Clone, Copy, Debug)]
pub struct CountedFlowRequest<'a> {
    /// The kernel's handle of the QP.
    pub qp: u32,
    /// The flow.
    pub flow: FlowAttr,
    /// The specifications, back to back. One of them names the counters object.
    pub specs: &'a [u8],
    /// The counted quantities of the counters object, by the index of its values. Empty if a flow
    /// uses the object already.
    pub counters: &'a [CounterDescription],
}

/// Parameters of device memory.
#[doc(alias = "ibv_alloc_dm_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmRequest {
    /// Length in bytes.
    pub len: u64,
    /// Alignment of the first byte on the device: log2 of bytes.
    pub log_align: u32,
}

/// Parameters of an address handle.
#[derive(Clone, Copy, Debug)]
pub struct AhRequest {
    /// Handle of its protection domain.
    pub pd: u32,
    /// The address vector.
    pub attr: AhAttr,
}
