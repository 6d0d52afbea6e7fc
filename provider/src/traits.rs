//! The traits that a provider implements.
//!
//! [`Provider`] creates and changes objects (slow path). The queues that it creates post and poll
//! (fast path). A queue has one owner: each method that moves an index takes `&mut self`, so no
//! method needs a lock or an atomic read-modify-write.

mod completion_queue;
mod qp_control;
mod recv_queue;
mod send_queue;

use std::fmt;
use std::sync::Arc;

use bareverbs_uapi::uverbs::types::QpCap;

pub use self::completion_queue::{Completion, CompletionQueue, Visitor};
pub use self::qp_control::QpControl;
pub use self::recv_queue::RecvQueue;
pub use self::send_queue::SendQueue;
use crate::caps::Capabilities;
use crate::clock::ClockInfo;
use crate::command::{MrPayload, QpHandle};
use crate::device::{DeviceFile, IoctlError};
use crate::dm::DeviceMemory;
use crate::error::{CreateError, Feature};
use crate::pci_atomic::PciAtomicCaps;
use crate::request::{
    AhRequest, CountedFlowRequest, CqRequest, DmRequest, QpRequest, QueueMemory, RssQpRequest, SrqChange,
    SrqRequest, WqChange, WqRequest, XrcTargetRequest,
};
use crate::thread_domain::ThreadDomain;
use crate::work::WcStatus;

/// An open device of one kind.
///
/// # Safety
///
/// `verbs` builds safe types on a provider. It relies on these obligations, and on those of the
/// queues. An implementation may assume that the kernel adheres to its ABI.
///
/// 1. **Fresh handles** ([`alloc_pd`](Self::alloc_pd), [`alloc_dm`](Self::alloc_dm) and each
///    `create_` method). The returned handle names an object that the call created in the context
///    of this provider's device file, and no other code of this process has the handle. All owners
///    of handles in `verbs` rely on it: they modify and destroy objects by handle.
/// 2. **Exclusive queues** (each `create_` method that returns queues). The queues are those of
///    that object, and no other value accesses their memory. The device and the kernel access, for
///    the object, only memory that the returned queues keep valid until they are dropped (and
///    memory that requests name). `verbs`' `Cq`, `Qp`, `Srq` and `Wq` rely on it: they drop the
///    queues after the kernel has destroyed the object, and leak them if it refuses.
/// 3. **Failures.** A `create_` or `alloc_` method that fails leaves no object behind that accesses
///    memory of this process.
/// 4. **Resize** ([`resize_cq`](Self::resize_cq), [`modify_srq`](Self::modify_srq)). After success
///    and after an error, the device and the kernel access, for the object, only memory that
///    `queue` keeps. No completion is reported twice.
/// 5. **Device memory** ([`alloc_dm`](Self::alloc_dm), [`import_dm`](Self::import_dm)). The
///    returned value accesses that memory only. `verbs`' `Dm` relies on it: its reads and writes
///    are safe.
/// 6. **The null key** ([`Capabilities::null_key`]). The device accesses no memory of this process
///    through this key.
/// 7. **Memory regions** ([`Capabilities::mr_quirks`]). Apart from these quirks, the device accesses
///    only bytes of an MR that a request or a peer names. A `REREG_MR` of one change (PD, access or
///    translation) that fails with `EOPNOTSUPP` or `EACCES` has changed nothing; other errnos are as
///    [`MrQuirks::rereg_is_atomic`](crate::caps::MrQuirks::rereg_is_atomic) says.
///
/// No code may rely on the other results for soundness.
///
/// Safe code can't implement the trait:
///
/// ```compile_fail,E0200
/// # use std::sync::Arc;
/// # use bareverbs_provider::caps::Capabilities;
/// # use bareverbs_provider::device::{DeviceFile, IoctlError};
/// # use bareverbs_provider::error::CreateError;
/// # use bareverbs_provider::request::*;
/// # use bareverbs_provider::traits::*;
/// struct Wrapper<P>(P);
/// impl<P: Provider> Provider for Wrapper<P> {
///     type Cq = P::Cq;
///     type Sq = P::Sq;
///     type Rq = P::Rq;
///     type Srq = P::Srq;
///     type Ah = P::Ah;
///     fn drives(driver_id: u32) -> bool { P::drives(driver_id) }
///     fn open(file: Arc<DeviceFile>) -> Result<Self, IoctlError> { P::open(file).map(Self) }
///     // A handle of another owner:
///     fn alloc_pd(&self) -> Result<u32, IoctlError> { Ok(0) }
/// #   fn capabilities(&self) -> Capabilities { unreachable!() }
/// #   unsafe fn create_cq(&self, _: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError> { unreachable!() }
/// #   unsafe fn create_qp(&self, _: &QpRequest<'_>) -> Result<CreatedQp<Self>, CreateError> { unreachable!() }
/// #   unsafe fn create_srq(&self, _: &SrqRequest<'_>) -> Result<CreatedSrq<Self>, CreateError> { unreachable!() }
/// #   unsafe fn modify_srq(
/// #       &self, _: u32, _: &mut P::Srq, _: SrqChange,
/// #   ) -> Result<(), CreateError> { unreachable!() }
/// #   fn create_ah(&self, _: &AhRequest) -> Result<CreatedAh<Self>, CreateError> { unreachable!() }
/// }
/// ```
///
/// Nor can it create a queue, whose memory it could drop while the device uses it:
///
/// ```compile_fail,E0133
/// # use bareverbs_provider::error::CreateError;
/// # use bareverbs_provider::request::CqRequest;
/// # use bareverbs_provider::traits::Provider;
/// fn create_and_unmap<P: Provider>(provider: &P, request: &CqRequest<'_>) -> Result<(), CreateError> {
///     drop(provider.create_cq(request)?);
///     Ok(())
/// }
/// ```
pub unsafe trait Provider: Sized + Send + Sync + 'static {
    /// Completion queues.
    type Cq: CompletionQueue;
    /// Send queues.
    type Sq: SendQueue<Ah = Self::Ah> + QpControl;
    /// Receive queues of one queue pair, or of a work queue.
    type Rq: RecvQueue;
    /// Shared receive queues.
    type Srq: RecvQueue;
    /// The part of an address handle that a send queue needs.
    type Ah: Send + Sync + 'static;

    /// Whether this provider supports devices of the kernel driver `driver_id`.
    fn drives(driver_id: u32) -> bool;

    /// Creates the context of a device file that has none.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a device of another driver, or the kernel's error.
    fn open(file: Arc<DeviceFile>) -> Result<Self, IoctlError>;

    /// Uses a device file whose context was created by another process, which may keep using it.
    /// Default: [`CreateError::Unsupported`].
    fn import(file: Arc<DeviceFile>) -> Result<Self, CreateError> {
        let _ = file;
        Err(CreateError::Unsupported { feature: Feature::ImportedContexts })
    }

    /// Checks that the context has a protection domain with this handle, created by any process.
    /// Default: [`CreateError::Unsupported`].
    fn import_pd(&self, handle: u32) -> Result<(), CreateError> {
        let _ = handle;
        Err(CreateError::Unsupported { feature: Feature::ImportedObjects })
    }

    /// Maps device memory with this handle, allocated by any process. Default:
    /// [`CreateError::Unsupported`].
    fn import_dm(&self, handle: u32) -> Result<DeviceMemory, CreateError> {
        let _ = handle;
        Err(CreateError::Unsupported { feature: Feature::ImportedObjects })
    }

    /// The capabilities of the context, read when it was opened.
    fn capabilities(&self) -> Capabilities;

    /// The driver's payload of MR registrations, read when the context is opened. Default: none.
    fn mr_payload(&self) -> Option<MrPayload> {
        None
    }

    /// Reads the device's clock, in its own ticks. Default: [`CreateError::Unsupported`].
    fn read_clock(&self) -> Result<u64, CreateError> {
        Err(CreateError::Unsupported { feature: Feature::DeviceClock })
    }

    /// Reads the conversion of the device's clock to nanoseconds. Default:
    /// [`CreateError::Unsupported`].
    fn clock_info(&self) -> Result<ClockInfo, CreateError> {
        Err(CreateError::Unsupported { feature: Feature::ClockInfo })
    }

    /// Allocates device memory. Returns the kernel's handle and the mapping. Default:
    /// [`CreateError::Unsupported`].
    fn alloc_dm(&self, request: &DmRequest) -> Result<(u32, DeviceMemory), CreateError> {
        let _ = request;
        Err(CreateError::Unsupported { feature: Feature::DeviceMemory })
    }

    /// Allocates a thread domain. Default: [`CreateError::Unsupported`].
    #[doc(alias = "ibv_alloc_td")]
    fn alloc_td(&self) -> Result<ThreadDomain, CreateError> {
        Err(CreateError::Unsupported { feature: Feature::ThreadDomains })
    }

    /// Creates a protection domain. Returns the kernel's handle.
    fn alloc_pd(&self) -> Result<u32, IoctlError>;

    /// Creates a completion queue. A failed call leaves no object behind.
    ///
    /// # Safety
    ///
    /// The caller must keep the returned queue until the kernel has destroyed the object of the
    /// handle, or the context is gone. If the kernel refuses to destroy the object, the caller must
    /// leak the queue (`std::mem::forget`): it keeps the memory that the device accesses.
    unsafe fn create_cq(&self, request: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError>;

    /// Resizes the completion queue with the kernel's handle `cq` to at least `entries` CQEs, in new
    /// memory. Returns the new number. No completion is lost, repeated or reordered. Default:
    /// [`CreateError::Unsupported`].
    ///
    /// If the kernel rejects the command, the queue is unchanged. If the kernel has resized but the
    /// new memory could not be mapped, the queue reports no completions until another resize
    /// succeeds. Then it reports all of them.
    ///
    /// # Safety
    ///
    /// `cq` and `queue` must be the results of one [`Provider::create_cq`] of this provider, and
    /// the object must not have been destroyed.
    unsafe fn resize_cq(
        &self,
        cq: u32,
        queue: &mut Self::Cq,
        entries: u32,
        memory: QueueMemory<'_>,
    ) -> Result<u32, CreateError> {
        let _ = (cq, queue, entries, memory);
        Err(CreateError::Unsupported { feature: Feature::CqResize })
    }

    /// Creates a queue pair in the state RESET. A failed call leaves no object behind.
    ///
    /// # Safety
    ///
    /// As for [`Provider::create_cq`], with both queues.
    unsafe fn create_qp(&self, request: &QpRequest<'_>) -> Result<CreatedQp<Self>, CreateError>;

    /// Creates an XRC target queue pair in the state RESET. It has no queues: requests to it
    /// consume receives of the domain's shared receive queues. Default:
    /// [`CreateError::Unsupported`].
    fn create_xrc_target(&self, request: &XrcTargetRequest) -> Result<QpHandle, CreateError> {
        let _ = request;
        Err(CreateError::Unsupported { feature: Feature::XrcQps })
    }

    /// Creates a shared receive queue. A failed call leaves no object behind.
    ///
    /// # Safety
    ///
    /// As for [`Provider::create_cq`].
    unsafe fn create_srq(&self, request: &SrqRequest<'_>) -> Result<CreatedSrq<Self>, CreateError>;

    /// Changes the shared receive queue with the kernel's handle `srq`. Pushed requests are
    /// published first.
    ///
    /// A resize moves posted receives to new memory. If the kernel has resized but `queue` could
    /// not map the new memory, the queue rejects requests with
    /// [`PushError::QueueLost`](crate::work::PushError::QueueLost) until a resize succeeds.
    ///
    /// # Safety
    ///
    /// `srq` and `queue` must be the results of one [`Provider::create_srq`] of this provider, and
    /// the object must not have been destroyed.
    unsafe fn modify_srq(
        &self,
        srq: u32,
        queue: &mut Self::Srq,
        change: SrqChange,
    ) -> Result<(), CreateError>;

    /// Creates a receive work queue in the state RESET. A failed call leaves no object behind.
    /// Default: [`CreateError::Unsupported`].
    ///
    /// # Safety
    ///
    /// As for [`Provider::create_cq`].
    unsafe fn create_wq(&self, request: &WqRequest<'_>) -> Result<CreatedWq<Self>, CreateError> {
        let _ = request;
        Err(CreateError::Unsupported { feature: Feature::Wqs })
    }

    /// Changes the work queue with the kernel's handle `wq`. Default: [`CreateError::Unsupported`].
    ///
    /// # Safety
    ///
    /// `wq` must be the handle of a work queue of this provider that the caller owns. After a
    /// change to RESET, the caller must [reset](RecvQueue::reset) its queue before it pushes a
    /// request.
    unsafe fn modify_wq(&self, wq: u32, change: WqChange) -> Result<(), CreateError> {
        let _ = (wq, change);
        Err(CreateError::Unsupported { feature: Feature::Wqs })
    }

    /// Creates an RSS queue pair, which spreads packets over the work queues of an indirection
    /// table. It has no queues and no states. Default: [`CreateError::Unsupported`].
    fn create_rss_qp(&self, request: &RssQpRequest) -> Result<QpHandle, CreateError> {
        let _ = request;
        Err(CreateError::Unsupported { feature: Feature::RssQps })
    }

    /// The atomic operations of the PCI bus that the device can use. Default: none.
    ///
    /// # Errors
    /// The kernel's error.
    fn pci_atomic_caps(&self) -> Result<PciAtomicCaps, IoctlError> {
        Ok(PciAtomicCaps::default())
    }

    /// Creates a flow that counts its packets. Returns the kernel's handle. Default:
    /// [`CreateError::Unsupported`].
    fn create_counted_flow(&self, request: &CountedFlowRequest<'_>) -> Result<u32, CreateError> {
        let _ = request;
        Err(CreateError::Unsupported { feature: Feature::FlowCounters })
    }

    /// The address vector of an address handle as send requests contain it, or the number by which
    /// they name it. Informative. Default: empty.
    fn address_vector(ah: &Self::Ah) -> Vec<u8> {
        let _ = ah;
        Vec::new()
    }

    /// Creates an address handle. A failed call leaves no object behind.
    fn create_ah(&self, request: &AhRequest) -> Result<CreatedAh<Self>, CreateError>;

    /// Causes of the status of a completion that only devices of this driver have, as a clause that
    /// names the driver: "on Soft-RoCE also: …". `Context::explain` asks the provider of the context,
    /// errors ask the built-in ones. Informative. Default: none.
    fn explain(status: WcStatus) -> Option<&'static str> {
        let _ = status;
        None
    }
}

/// A created completion queue.
pub struct CreatedCq<P: Provider> {
    /// The kernel's handle.
    pub handle: u32,
    /// Capacity in CQEs, at least as many as requested.
    pub entries: u32,
    /// The queue.
    pub queue: P::Cq,
}

/// A created queue pair.
pub struct CreatedQp<P: Provider> {
    /// The kernel's handle.
    pub handle: u32,
    /// QPN.
    pub qp_num: u32,
    /// Depths and widths, at least as large as requested.
    pub cap: QpCap,
    /// Its send queue.
    pub sq: P::Sq,
    /// Its receive queue; `None` if the QP uses an SRQ.
    pub rq: Option<P::Rq>,
}

/// A created shared receive queue.
pub struct CreatedSrq<P: Provider> {
    /// The kernel's handle.
    pub handle: u32,
    /// Capacity in receives.
    pub max_wr: u32,
    /// SGEs of each receive.
    pub max_sge: u32,
    /// SRQ number, which XRC requests name.
    pub srq_num: u32,
    /// The queue.
    pub queue: P::Srq,
}

/// A created work queue.
pub struct CreatedWq<P: Provider> {
    /// The kernel's handle.
    pub handle: u32,
    /// WQ number.
    pub wq_num: u32,
    /// Capacity in receives, at least as many as requested.
    pub max_wr: u32,
    /// SGEs of each receive.
    pub max_sge: u32,
    /// The queue.
    pub queue: P::Rq,
}

/// A created address handle.
pub struct CreatedAh<P: Provider> {
    /// The kernel's handle.
    pub handle: u32,
    /// The part that send requests need.
    pub ah: P::Ah,
}

// By hand, so that queues need not implement `Debug`.
macro_rules! debug {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl<P: Provider> fmt::Debug for $name<P> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field))*.finish_non_exhaustive()
            }
        }
    )*};
}

debug! {
    CreatedCq { handle, entries }
    CreatedQp { handle, qp_num, cap }
    CreatedSrq { handle, max_wr, max_sge, srq_num }
    CreatedWq { handle, wq_num, max_wr, max_sge }
    CreatedAh { handle }
}
