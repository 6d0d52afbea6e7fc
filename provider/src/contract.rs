//! The traits that a provider fulfils.
//!
//! Control goes through [`Provider`]; the data path through the queues it makes. Queues have a
//! single owner: every method that moves an index takes `&mut self`, so none needs a lock or an
//! atomic read-modify-write.

mod queues;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bareverbs_uapi::uverbs::types::{QpCap, QpCreateFlags, QpType};
use bareverbs_uapi::write::structs::AhAttr;

pub use self::queues::{Completion, CompletionQueue, RecvQueue, SendQueue};
use crate::command::{ContextInfo, QpHandle};
use crate::device::{DeviceFile, IoctlError};
use crate::dm::DeviceMemory;
use crate::rss::{CreatedWq, HashFields, HashFunctions, RssQpRequest, WqChange, WqRequest};

/// What a device does for whole packets and for the rate of sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Most bytes of payload that the device cuts into packets of TCP; 0 where it does not.
    pub max_tso: u32,
    /// Transports that it does so for, 1 shifted by the queue pair type's number.
    pub tso_supported_qpts: u32,
    /// What of a packet can choose the queue that it is received to.
    pub rx_hash_fields_mask: HashFields,
    /// How that is chosen.
    pub rx_hash_function: HashFunctions,
    /// Lowest rate that sends can be held to, in kbit/s.
    pub qp_rate_limit_min: u32,
    /// Highest such rate in kbit/s; 0 where there is none.
    pub qp_rate_limit_max: u32,
    /// Transports whose sends can be held to a rate.
    pub rate_limit_supported_qpts: u32,
    /// Whether the device can compress completions ([`CqRequest::compressed`]).
    pub compressed_completions: bool,
}

/// A kind of device, opened.
///
/// # Safety
///
/// `verbs` builds safe types on a provider. It relies on these obligations, and on those of the
/// queues. An implementation may take for granted that the kernel keeps to its interface.
///
/// 1. **Fresh handles** ([`alloc_pd`](Self::alloc_pd), [`alloc_dm`](Self::alloc_dm) and each
///    `create_` method). The handle that is returned names an object that the call made in the
///    context of this provider's device file, and that nothing else of this process has. Relied
///    upon by all owners of handles in `verbs`, which change and destroy by handle.
/// 2. **Queues of their own** (each `create_` method that returns queues). The queues are those of
///    that object, and no other value acts on their memory. The device and the kernel access, for
///    the object, only memory that the returned queues keep valid until they are dropped (and
///    memory that requests name). Relied upon by `verbs`' `Cq`, `Qp`, `Srq` and `Wq`, which drop
///    the queues after the kernel has destroyed the object and leak them where it refuses.
/// 3. **Failures.** A `create_` or `alloc_` method that fails leaves no object behind that accesses
///    memory of this process.
/// 4. **Resize** ([`resize_cq`](Self::resize_cq), [`modify_srq`](Self::modify_srq)). After each
///    outcome, also an error, the device and the kernel access, for the object, only memory that
///    `queue` keeps. No completion is reported twice.
/// 5. **Memory on the device** ([`alloc_dm`](Self::alloc_dm), [`import_dm`](Self::import_dm)). The
///    value that is returned reaches that memory only. Relied upon by `verbs`' `Dm`, whose reads
///    and writes are safe.
/// 6. **The null key** ([`null_key`](Self::null_key)). The device accesses no memory of this
///    process by it.
///
/// Nothing may rely on what the other methods return: they inform.
///
/// Safe code can't implement it:
///
/// ```compile_fail,E0200
/// # use std::sync::Arc;
/// # use bareverbs_provider::command::ContextInfo;
/// # use bareverbs_provider::contract::*;
/// # use bareverbs_provider::device::{DeviceFile, IoctlError};
/// struct Wrapper<P>(P);
/// impl<P: Provider> Provider for Wrapper<P> {
///     type Cq = P::Cq;
///     type Sq = P::Sq;
///     type Rq = P::Rq;
///     type Srq = P::Srq;
///     type Ah = P::Ah;
///     fn drives(driver_id: u32) -> bool { P::drives(driver_id) }
///     fn open(file: Arc<DeviceFile>) -> Result<Self, IoctlError> { P::open(file).map(Self) }
///     // A handle that the call did not create:
///     fn alloc_pd(&self) -> Result<u32, IoctlError> { Ok(0) }
/// #   fn context_info(&self) -> ContextInfo { todo!() }
/// #   unsafe fn create_cq(&self, _: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError> { todo!() }
/// #   unsafe fn create_qp(&self, _: &QpRequest) -> Result<CreatedQp<Self>, CreateError> { todo!() }
/// #   unsafe fn create_srq(&self, _: &SrqRequest) -> Result<CreatedSrq<Self>, CreateError> { todo!() }
/// #   unsafe fn modify_srq(
/// #       &self, _: u32, _: &mut P::Srq, _: SrqChange,
/// #   ) -> Result<(), CreateError> { todo!() }
/// #   fn create_ah(&self, _: &AhRequest) -> Result<CreatedAh<Self>, CreateError> { todo!() }
/// }
/// ```
///
/// Nor can it make a queue, whose memory it could drop while the device uses it:
///
/// ```compile_fail,E0133
/// # use bareverbs_provider::contract::{CqRequest, CreateError, Provider};
/// fn make_and_unmap<P: Provider>(provider: &P, request: &CqRequest<'_>) -> Result<(), CreateError> {
///     drop(provider.create_cq(request)?);
///     Ok(())
/// }
/// ```
pub unsafe trait Provider: Sized + Send + Sync + 'static {
    /// Its completion queues.
    type Cq: CompletionQueue;
    /// Its send queues.
    type Sq: SendQueue<Ah = Self::Ah>;
    /// Its receive queues, owned by one queue pair, or work queues by themselves.
    type Rq: RecvQueue;
    /// Its receive queues, shared by several queue pairs.
    type Srq: RecvQueue;
    /// What its send queues need of an address handle.
    type Ah: Send + Sync + 'static;

    /// Whether devices of the kernel driver `driver_id` are its.
    fn drives(driver_id: u32) -> bool;

    /// Takes over a device file that has no context yet, and gets it one. Refuses a file of a
    /// driver that it does not [drive](Self::drives) with `EINVAL`.
    fn open(file: Arc<DeviceFile>) -> Result<Self, IoctlError>;

    /// Takes over a device file whose context another process made, and uses as well.
    ///
    /// Default: [`CreateError::Unsupported`].
    fn import(file: Arc<DeviceFile>) -> Result<Self, CreateError> {
        let _ = file;
        Err(CreateError::Unsupported { what: "contexts of other processes" })
    }

    /// Whether other processes can take over the context with [`Provider::import`]. Default: no.
    fn is_shareable(&self) -> bool {
        false
    }

    /// Checks that the context has a protection domain with this handle.
    ///
    /// Default: [`CreateError::Unsupported`].
    fn import_pd(&self, handle: u32) -> Result<(), CreateError> {
        let _ = handle;
        Err(CreateError::Unsupported { what: "domains of other processes" })
    }

    /// Maps the device memory with this handle, allocated by any process.
    ///
    /// Default: [`CreateError::Unsupported`].
    fn import_dm(&self, handle: u32) -> Result<DeviceMemory, CreateError> {
        let _ = handle;
        Err(CreateError::Unsupported { what: "memory on the device that another process took" })
    }

    /// What the context can do.
    fn context_info(&self) -> ContextInfo;

    /// What only the driver tells of its device. Default: no offloads.
    fn offloads(&self) -> Result<Offloads, IoctlError> {
        Ok(Offloads::default())
    }

    /// What the device's clock shows, in its own ticks. Default: [`CreateError::Unsupported`].
    fn read_clock(&self) -> Result<u64, CreateError> {
        Err(CreateError::Unsupported { what: "reading the device's clock" })
    }

    /// The key of the null MR: reads are undefined, writes are discarded. `None` without one.
    /// Default: none.
    fn null_key(&self) -> Option<u32> {
        None
    }

    /// Whether its QPs have ECE: [`SendQueue::ece`]. Default: no.
    fn has_ece(&self) -> bool {
        false
    }

    /// Whether it creates raw packet QPs. Default: no.
    fn has_raw_packets(&self) -> bool {
        false
    }

    /// Takes memory on the device; returns the kernel's handle and the memory. Where it fails,
    /// nothing is left behind.
    ///
    /// Default: [`CreateError::Unsupported`].
    fn alloc_dm(&self, request: &DmRequest) -> Result<(u32, DeviceMemory), CreateError> {
        let _ = request;
        Err(CreateError::Unsupported { what: "memory on the device" })
    }

    /// Creates a protection domain; returns the kernel's handle.
    fn alloc_pd(&self) -> Result<u32, IoctlError>;

    /// Creates a completion queue. Where it fails, nothing is left behind.
    ///
    /// # Safety
    ///
    /// The caller must keep the queue that is returned until the kernel has destroyed the object
    /// behind the handle, or the context is gone, and must leak it (`std::mem::forget`) where the
    /// kernel refuses to destroy the object: it keeps the memory that the device accesses.
    unsafe fn create_cq(&self, request: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError>;

    /// Gives the completion queue with the kernel's handle `cq` room for at least `entries`
    /// completions; returns for how many. No completion is lost, taken twice or taken out of order.
    ///
    /// Where the kernel refuses, the queue stays as it is. Where the kernel did it and the new
    /// memory could not be mapped, the queue gives no completions until another resize succeeds,
    /// which brings all of them.
    ///
    /// Default: [`CreateError::Unsupported`].
    ///
    /// # Safety
    ///
    /// `cq` and `queue` must be what one [`Provider::create_cq`] of this provider returned, and the
    /// object must not have been destroyed.
    unsafe fn resize_cq(&self, cq: u32, queue: &mut Self::Cq, entries: u32) -> Result<u32, CreateError> {
        let _ = (cq, queue, entries);
        Err(CreateError::Unsupported { what: "completion queues that change their size" })
    }

    /// Creates a queue pair in the state RESET. Where it fails, nothing is left behind.
    ///
    /// # Safety
    ///
    /// As for [`Provider::create_cq`], with both queues.
    unsafe fn create_qp(&self, request: &QpRequest) -> Result<CreatedQp<Self>, CreateError>;

    /// Creates a queue pair that receives for an XRC domain, in the state RESET. It has no queues:
    /// requests that come to it take receives of the domain's shared receive queues.
    ///
    /// Default: [`CreateError::Unsupported`].
    fn create_xrc_target(&self, request: &XrcTargetRequest) -> Result<QpHandle, CreateError> {
        let _ = request;
        Err(CreateError::Unsupported { what: "XRC queue pairs" })
    }

    /// Creates a shared receive queue. Where it fails, nothing is left behind.
    ///
    /// # Safety
    ///
    /// As for [`Provider::create_cq`].
    unsafe fn create_srq(&self, request: &SrqRequest) -> Result<CreatedSrq<Self>, CreateError>;

    /// Changes the shared receive queue with the kernel's handle `srq`. What was pushed into
    /// `queue` is published before.
    ///
    /// A resize moves the receives that are posted to new memory. Where the kernel resized but
    /// `queue` could not follow, it refuses further requests with
    /// [`PushError::QueueLost`](crate::work::PushError::QueueLost) until a resize succeeds.
    ///
    /// # Safety
    ///
    /// `srq` and `queue` must be what one [`Provider::create_srq`] of this provider returned, and
    /// the object must not have been destroyed.
    unsafe fn modify_srq(
        &self,
        srq: u32,
        queue: &mut Self::Srq,
        change: SrqChange,
    ) -> Result<(), CreateError>;

    /// Creates a work queue that receives, in the state RESET. Where it fails, nothing is left
    /// behind.
    ///
    /// Default: [`CreateError::Unsupported`].
    ///
    /// # Safety
    ///
    /// As for [`Provider::create_cq`].
    unsafe fn create_wq(&self, request: &WqRequest) -> Result<CreatedWq<Self>, CreateError> {
        let _ = request;
        Err(CreateError::Unsupported { what: "work queues" })
    }

    /// Changes the work queue with the kernel's handle `wq`. The caller of a change to
    /// RESET [resets](RecvQueue::reset) the queue afterwards.
    ///
    /// Default: [`CreateError::Unsupported`].
    ///
    /// # Safety
    ///
    /// `wq` must be the handle of a work queue of this provider's that the caller owns. After a
    /// change to RESET, the caller must reset its queue before it pushes anything.
    unsafe fn modify_wq(&self, wq: u32, change: WqChange) -> Result<(), CreateError> {
        let _ = (wq, change);
        Err(CreateError::Unsupported { what: "work queues" })
    }

    /// Creates a queue pair that spreads the frames that come to it over the work queues of a
    /// table. It has no queues and no states.
    ///
    /// Default: [`CreateError::Unsupported`].
    fn create_rss_qp(&self, request: &RssQpRequest) -> Result<QpHandle, CreateError> {
        let _ = request;
        Err(CreateError::Unsupported { what: "queue pairs that spread frames" })
    }

    /// Creates an address handle. Where it fails, nothing is left behind.
    fn create_ah(&self, request: &AhRequest) -> Result<CreatedAh<Self>, CreateError>;
}

/// Why a queue could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The kernel rejected it, or the mapping of its memory failed.
    #[error(transparent)]
    Ioctl(#[from] IoctlError),
    /// The kernel described the queue's memory in a way that cannot be true.
    #[error(
        "the kernel described the memory of the {queue} in a way that cannot be true: {problem} ({value})"
    )]
    Layout {
        /// Which queue.
        queue: &'static str,
        /// What is wrong.
        problem: &'static str,
        /// The offending number.
        value: u64,
    },
    /// It is beyond what the device can hold, which only the provider can tell.
    #[error("{what} {asked} is above the device's limit of {max}")]
    Limit {
        /// What was asked for.
        what: &'static str,
        /// How much of it.
        asked: u64,
        /// How much there can be.
        max: u64,
    },
    /// There are not enough huge pages for its memory.
    #[error(
        "there are no {pages} huge pages of 2 MiB free for its memory: have the kernel set some aside, as with \
         `sysctl vm.nr_hugepages=64`, or make it in ordinary pages"
    )]
    NoHugePages {
        /// How many it takes.
        pages: u64,
    },
    /// The provider does not make such a thing.
    #[error("this provider does not support {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
}

/// Why the doorbell was not rung, and what became of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DoorbellError {
    /// The device accesses no memory for any of the requests, now or later: they were taken back.
    #[error("{0}; the requests were taken back")]
    TakenBack(#[source] IoctlError),
    /// The requests count as posted: the device may be carrying them out, and they complete at the
    /// latest when the queue pair goes to the error state.
    #[error("{0}; the requests may be carried out all the same")]
    Posted(#[source] IoctlError),
}

/// What pages the memory of a queue lies in.
#[doc(alias = "MLX_QP_ALLOC_TYPE")]
#[doc(alias = "MLX_CQ_ALLOC_TYPE")]
#[doc(alias = "MLX_SRQ_ALLOC_TYPE")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueMemory {
    /// Pages of the default size.
    #[default]
    Ordinary,
    /// Huge pages of 2 MiB, of which it takes at least one for itself. Devices and processors
    /// translate addresses in few large pages faster than in many small ones. The kernel has to
    /// have some set aside (`vm.nr_hugepages`).
    HugePages,
}

/// What a completion queue is to be.
#[derive(Clone, Copy, Debug)]
pub struct CqRequest<'a> {
    /// Completions it must hold.
    pub entries: u32,
    /// Comes back in completion events.
    pub user_handle: u64,
    /// The completion channel that gets its events.
    pub channel: Option<BorrowedFd<'a>>,
    /// Which of the device's completion vectors raises them.
    pub vector: u32,
    /// Whether the device may compress runs of completions that are alike.
    pub compressed: bool,
    /// What its memory lies in, also after a resize.
    pub memory: QueueMemory,
}

/// A completion queue as made.
pub struct CreatedCq<P: Provider> {
    /// The kernel's handle.
    pub handle: u32,
    /// Completions it holds, at least as many as asked for.
    pub entries: u32,
    /// The queue.
    pub queue: P::Cq,
}

/// What a queue pair is to be.
#[derive(Clone, Copy, Debug)]
pub struct QpRequest {
    /// Handle of its protection domain.
    pub pd: u32,
    /// Handle of the queue for completions of sends.
    pub send_cq: u32,
    /// Handle of the queue for completions of receives; not used by those that only send (XRC).
    pub recv_cq: u32,
    /// Handle of its shared receive queue, in place of its own.
    pub srq: Option<u32>,
    /// Transport.
    pub qp_type: QpType,
    /// Depths and widths that it must have.
    pub cap: QpCap,
    /// Bytes of the longest header of a large send; 0 where there are to be none.
    pub max_tso_header: u16,
    /// Creation flags, such as signalling every request.
    pub flags: QpCreateFlags,
    /// Whether completions of receives may carry short messages, which polling brings to memory.
    /// Then the addresses of receives must be those by which this process reaches the memory.
    pub scatter_to_cqe: bool,
    /// Comes back in asynchronous events.
    pub user_handle: u64,
    /// What its doorbell is to be.
    pub doorbell: DoorbellChoice,
    /// What the memory of its queues lies in.
    pub memory: QueueMemory,
}

/// By what a queue pair's sends are announced to the device. See [`SendQueue::owns_doorbell`].
#[doc(alias = "ibv_alloc_td")]
#[doc(alias = "ibv_alloc_parent_domain")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellChoice {
    /// The provider's choice: its own for the first queue pairs of a context, say, and a shared one
    /// for later ones.
    #[default]
    Any,
    /// One that queue pairs share, so that none is used up.
    Shared,
    /// Its own, or none at all is made.
    Own,
}

/// What both ends of a connection agree on beyond the standard (enhanced connection establishment).
#[doc(alias = "ibv_ece")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Whose options they are, as PCI numbers vendors: those of another vendor mean nothing.
    pub vendor_id: u32,
    /// The options, which the vendor's devices alone can read; 0 for none.
    pub options: u32,
}

/// A queue pair as made.
pub struct CreatedQp<P: Provider> {
    /// The kernel's handle.
    pub handle: u32,
    /// Its number on the wire.
    pub qp_num: u32,
    /// Depths and widths it has, at least as large as asked for.
    pub cap: QpCap,
    /// Its send queue.
    pub sq: P::Sq,
    /// Its receive queue, unless it shares one.
    pub rq: Option<P::Rq>,
}

/// What a queue pair that receives for an XRC domain is to be.
#[derive(Clone, Copy, Debug)]
pub struct XrcTargetRequest {
    /// Handle of the domain.
    pub xrcd: u32,
    /// Comes back in asynchronous events.
    pub user_handle: u64,
}

/// What makes a shared receive queue one of XRC.
#[derive(Clone, Copy, Debug)]
pub struct XrcSrqRequest {
    /// Handle of the XRC domain.
    pub xrcd: u32,
    /// Handle of the queue for its completions.
    pub cq: u32,
}

/// What a shared receive queue is to be.
#[derive(Clone, Copy, Debug)]
pub struct SrqRequest {
    /// Handle of its protection domain.
    pub pd: u32,
    /// Receives it must hold.
    pub max_wr: u32,
    /// SGEs that each must carry.
    pub max_sge: u32,
    /// Level below which it raises an event; 0 for none.
    pub limit: u32,
    /// Comes back in asynchronous events.
    pub user_handle: u64,
    /// What its memory lies in.
    pub memory: QueueMemory,
    /// Of an XRC domain, with completions of its own; otherwise it completes where its queue pairs
    /// do.
    pub xrc: Option<XrcSrqRequest>,
}

/// A shared receive queue as made.
pub struct CreatedSrq<P: Provider> {
    /// The kernel's handle.
    pub handle: u32,
    /// Receives it holds.
    pub max_wr: u32,
    /// SGEs that each carries.
    pub max_sge: u32,
    /// Its number on the wire, as extended reliable connections name it.
    pub srq_num: u32,
    /// The queue.
    pub queue: P::Srq,
}

/// What a shared receive queue is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqChange {
    /// One event is raised when fewer receives than this are left; 0 for none.
    Limit(u32),
    /// It holds at least so many receives.
    MaxWr(u32),
}

/// What memory on the device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmRequest {
    /// Bytes.
    pub len: u64,
    /// Logarithm to base 2 of the alignment of its first byte on the device.
    pub log_align: u32,
}

/// What an address handle is to be.
#[derive(Clone, Copy, Debug)]
pub struct AhRequest {
    /// Handle of its protection domain.
    pub pd: u32,
    /// The path.
    pub attr: AhAttr,
}

/// An address handle as made.
pub struct CreatedAh<P: Provider> {
    /// The kernel's handle.
    pub handle: u32,
    /// What requests name it by.
    pub ah: P::Ah,
}
