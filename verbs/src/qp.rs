//! Queue pairs.

mod alternate_path;
pub(crate) mod attr;
mod bring_up;
mod connect;
mod datagram;
mod drain_reset;
mod ece;
pub(crate) mod flow;
pub(crate) mod flow_counters;
mod modify;
mod multicast;
pub(crate) mod post;
mod rate_limit;
mod raw;
mod state_table;
mod transport;
pub(crate) mod xrc;

use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::request::QpRequest;
use bareverbs_provider::traits::{CreatedQp, Provider, RecvQueue, SendQueue};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

pub use alternate_path::AlternatePath;
pub use attr::{InitAttr, QpAttr, QpCap, QpInitAttr, RtrAttr, RtsAttr, UcRtrAttr, UdInitAttr};
pub use bring_up::BringUp;
pub use connect::ConnectAttr;
pub use datagram::{Datagram, GRH_BYTES, MULTICAST_QP};
pub(crate) use flow::Flows;
pub(crate) use post::post_receives;
pub use post::{Batch, RecvHalf, SendHalf};
pub use rate_limit::RateLimit;
pub use raw::RawPacket;
pub use transport::{Connected, Rc, Transport, Uc, UcOperation, Ud};

use self::multicast::Attachment;
use crate::context::ContextInner;
use crate::cq::{Completions, Cq, CqShared};
use crate::device::{DeviceCapFlags, RawPacketCaps};
use crate::error::{Feature, Limit, PostError, SendFailure};
use crate::locked_memory::has_capability;
use crate::raw::{QpLayout, QueueLayout};
use crate::srq::Srq;
use crate::srq::shared::SrqShared;
use crate::{AnyProvider, Error, Pd, Refused, Result, locked_memory};

pub use crate::queue_buffer::QueueBuffer;
pub use crate::wr_id::WrId;
pub use bareverbs_provider::request::{DoorbellChoice, Ece, QueueMemory};
pub use bareverbs_provider::work::{Frame, Operation, Payload, RecvRequest, SendFlags, SendRequest, Sge};
pub use bareverbs_uapi::uverbs::types::{QpCreateFlags, QpType};
pub use bareverbs_uapi::verbs_values::{MigState, QpAttrMask, QpState};

/// Attributes for the creation of a QP.
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpInit<'a, P: Provider = AnyProvider> {
    /// CQ for completions of sends.
    pub send_cq: &'a Cq<P>,
    /// CQ for completions of receives. May be the same as `send_cq`.
    pub recv_cq: &'a Cq<P>,
    /// Shared receive queue. With it, the QP has no receive queue of its own.
    pub srq: Option<&'a Srq<P>>,
    /// Depths and widths of the queues. Devices may grant more, and the CQs must hold what was
    /// granted: see [`QpCap`]. `max_recv_wr` and `max_recv_sge` are ignored if the QP has no receive
    /// queue of its own: with [`srq`](Self::srq), and for XRC.
    pub cap: QpCap,
    /// Length in bytes of the longest header of a large send ([`Frame::mss`](crate::qp::Frame::mss)):
    /// 14 or more, or 0 for no large sends. Only for [`RawPacket`] QPs on devices with TCP
    /// segmentation offload ([`DeviceAttr::max_tso`](crate::device::DeviceAttr), `tso_supported_qpts`).
    ///
    /// Large sends of IPoIB (`IB_QP_CREATE_IPOIB_UD_LSO`) are reserved to kernel consumers.
    #[doc(alias = "IBV_QP_INIT_ATTR_MAX_TSO_HEADER")]
    pub max_tso_header: u16,
    /// Whether every send generates a completion, with or without `SendFlags::SIGNALED`.
    #[doc(alias = "sq_sig_all")]
    pub signal_all: bool,
    /// Options of the device. Unsupported ones are rejected.
    #[doc(alias = "IBV_QP_INIT_ATTR_CREATE_FLAGS")]
    pub flags: QpCreateFlags,
    /// QPN in sent packets in place of the QP's own. Only UD QPs on InfiniBand, with
    /// `CAP_NET_RAW`. The providers for rxe and ConnectX don't support it: rxe has no InfiniBand, and
    /// the driver of a ConnectX makes such a QP of a raw send queue and receive queue with another
    /// layout. Creation then fails with [`Error::Unsupported`].
    ///
    /// The kernel's `mlx5_ib` accepts only [`QpAttrMask::STATE`] and `CUR_STATE` for such a QP. So it
    /// rejects [`Qp::init`] with `EINVAL`, and [`Qp::modify`] must set the state alone.
    #[doc(alias = "IBV_QP_CREATE_SOURCE_QPN")]
    pub source_qp_num: Option<u32>,
    /// Whether the device may place messages of up to 32 bytes into their CQEs instead of writing
    /// them to memory (scatter to CQE). It saves a DMA write. The poller copies the message to the
    /// SGEs of the receive. So the SGE addresses must be virtual addresses of this process: an MR
    /// [registered](Pd::register_raw) at another address does not work.
    ///
    /// Only on ConnectX, for RC and UC QPs that have their own receive queue and do not set
    /// [`signal_all`](Self::signal_all).
    #[doc(alias = "MLX5_QP_FLAG_SCATTER_CQE")]
    #[doc(alias = "MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE")]
    #[doc(alias = "MLX5_SCATTER_TO_CQE")]
    #[doc(alias = "mlx5dv_create_qp")]
    pub scatter_to_cqe: bool,
    /// Value reported in [asynchronous events](crate::AsyncEvent::Qp). For completions, use the
    /// `wr_id` of the requests; see [`WrId`].
    #[doc(alias = "qp_context")]
    pub user_data: u64,
    /// Choice of the doorbell register.
    ///
    /// On ConnectX, a dedicated doorbell is a page of the device. If the machine supports it, a
    /// single request is copied whole into that page (*BlueFlame*), so the device need not fetch
    /// the WQE. By default the first 16 QPs of a context get a dedicated doorbell on such machines.
    /// A program with more QPs chooses with this field.
    ///
    /// Thread domains of libibverbs serve the same purpose and also avoid locks. Queues here have one
    /// owner and no locks.
    #[doc(alias = "ibv_alloc_td")]
    #[doc(alias = "ibv_dealloc_td")]
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub doorbell: DoorbellChoice,
    /// Page size of the memory of the queues. ConnectX only: on other devices the kernel allocates
    /// it.
    pub memory: QueueMemory,
    /// Memory for both queues that the caller chooses; see [`QueueBuffer`].
    /// [`memory`](Self::memory) must be [`QueueMemory::BasePages`] then.
    #[doc(alias = "UVERBS_ATTR_CREATE_QP_BUF_UMEM")]
    #[doc(alias = "UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM")]
    #[doc(alias = "UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM")]
    pub buffer: Option<&'a QueueBuffer>,
}

impl<'a, P: Provider> QpInit<'a, P> {
    /// A QP with [`QpCap::default`] whose sends generate completions only if signalled.
    #[must_use]
    pub fn new(send_cq: &'a Cq<P>, recv_cq: &'a Cq<P>) -> Self {
        Self {
            send_cq,
            recv_cq,
            srq: None,
            cap: QpCap::default(),
            max_tso_header: 0,
            signal_all: false,
            flags: QpCreateFlags::empty(),
            source_qp_num: None,
            scatter_to_cqe: false,
            user_data: 0,
            doorbell: DoorbellChoice::Any,
            memory: QueueMemory::BasePages,
            buffer: None,
        }
    }
}

/// A queue pair.
///
/// It is brought up in three steps. Each step sets exactly the attributes that the kernel requires:
///
/// ```no_run
/// use bareverbs::ah::AhAttr;
/// use bareverbs::cq::CqInit;
/// use bareverbs::qp::{InitAttr, QpInit, Rc, RtrAttr, RtsAttr};
/// use bareverbs::{Device, Gid};
///
/// # let (peer_gid, peer_qp_num) = (Gid::default(), 17);
/// let context = Device::find("rxe0")?.open()?;
/// let cq = context.create_cq(&CqInit::new(32))?;
/// let mut qp = context.alloc_pd()?.create_qp::<Rc>(&QpInit::new(&cq, &cq))?;
/// let gid = context.default_gid(1)?;
/// // Send `gid.gid` and `qp.qp_num()` to the peer, and receive those of the peer.
/// qp.init(&InitAttr::new(1))?;
/// qp.ready_to_receive(&RtrAttr::new(AhAttr::global(1, peer_gid, gid.index), peer_qp_num))?;
/// qp.ready_to_send(&RtsAttr::default())?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// It has one owner. Its [halves](Qp::split) can move to two threads, but a half cannot be shared:
///
/// ```compile_fail,E0596
/// # fn shared(qp: &bareverbs::qp::Qp<bareverbs::qp::Rc>) {
/// qp.start_send();
/// # }
/// ```
#[doc(alias = "ibv_qp")]
pub struct Qp<T: Transport, P: Provider = AnyProvider> {
    /// [`Qp::free_rings`] frees both rings after the kernel has destroyed the QP. Until then the
    /// device uses them. Borrowed views give access to them ([`SendHalf`], [`RecvHalf`],
    /// [`Batch`]), so no safe code can exchange them for other rings.
    sq: ManuallyDrop<P::Sq>,
    /// `None` if the QP uses a shared receive queue.
    rq: Option<ManuallyDrop<P::Rq>>,
    state: QpState,
    /// Whether the kernel refused one of several requests to RESET, and none has succeeded since.
    reset_is_incomplete: bool,
    _transport: PhantomData<T>,
    handle: u32,
    qp_num: u32,
    cap: QpCap,
    user_data: u64,
    pd: Pd<P>,
    /// The CQs are destroyed after the QP.
    _cqs: [Arc<CqShared<P>>; 2],
    /// The SRQ is destroyed after the QP.
    _srq: Option<Arc<SrqShared<P>>>,
    /// Multicast groups that the QP is attached to.
    groups: Vec<Attachment>,
    /// Flows that steer packets to the QP.
    flows: Flows,
    /// Whether destroying was attempted.
    destroyed: bool,
    /// Whether the kernel has destroyed the QP and the rings were not freed.
    rings_are_unused: bool,
}

impl<T: Transport, P: Provider> Qp<T, P> {
    pub(crate) fn create(pd: &Pd<P>, init: &QpInit<'_, P>) -> Result<Self> {
        const VERB: &str = "create_qp";
        let context = pd.context();
        let (mut cap, limits) = (init.cap, context.limits());
        if T::QP_TYPE == QpType::XRC_INI {
            if !context.capabilities().xrc {
                return Err(Error::unsupported(VERB, Feature::XrcQps));
            }
            if init.srq.is_some() {
                return Err(Error::invalid(VERB, "an XRC initiator QP has no receives: omit `srq`"));
            }
        }
        // Without a receive queue its attributes are ignored, as in C. The driver of a ConnectX rejects
        // a large `max_recv_wr` all the same (`set_rq_size` of mlx5's `qp.c`).
        if init.srq.is_some() || T::QP_TYPE == QpType::XRC_INI {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        if T::QP_TYPE == QpType::RAW_PACKET && !context.capabilities().raw_packets {
            return Err(Error::unsupported(VERB, Feature::RawPacketQps));
        }
        QueueBuffer::check(VERB, context, init.buffer, init.memory)?;
        for (limit, asked, max) in [
            (Limit::MaxSendWr, cap.max_send_wr, limits.max_qp_wr),
            (Limit::MaxRecvWr, cap.max_recv_wr, limits.max_qp_wr),
            (Limit::MaxSendSge, cap.max_send_sge, limits.max_sge),
            (Limit::MaxRecvSge, cap.max_recv_sge, limits.max_sge),
        ] {
            Error::check_limit(VERB, limit, asked.into(), max.into())?;
        }
        context.check_same_context(VERB, "send CQ", init.send_cq.shared().context().file())?;
        context.check_same_context(VERB, "receive CQ", init.recv_cq.shared().context().file())?;
        if let Some(srq) = init.srq {
            context.check_same_context(VERB, "SRQ", srq.shared().context().file())?;
        }
        if lacks_flags(T::QP_TYPE, init, context.inner()) {
            return Err(Error::unsupported(VERB, Feature::QpCreateFlags));
        }
        let request = QpRequest {
            pd: pd.domain().handle,
            send_cq: init.send_cq.shared().handle,
            recv_cq: init.recv_cq.shared().handle,
            srq: init.srq.map(|srq| srq.shared().handle),
            qp_type: T::QP_TYPE,
            cap: cap.into(),
            max_tso_header: init.max_tso_header,
            flags: if init.signal_all { init.flags | QpCreateFlags::SQ_SIG_ALL } else { init.flags },
            source_qpn: init.source_qp_num,
            scatter_to_cqe: init.scatter_to_cqe,
            user_handle: init.user_data,
            doorbell: init.doorbell,
            memory: init.memory,
            buffer: init.buffer.map(QueueBuffer::provider),
        };
        // SAFETY: `destroy_inner` keeps the queues until the kernel has destroyed the object, and
        // leaks them otherwise.
        let CreatedQp { handle, qp_num, cap, sq, rq } = unsafe { context.provider().create_qp(&request) }
            .map_err(|reason| {
                let refused =
                    matches!(reason, CreateError::Ioctl(IoctlError { errno: Errno::OPNOTSUPP, .. }));
                if refused && (!init.flags.is_empty() || init.source_qp_num.is_some()) {
                    return Error::unsupported(VERB, Feature::QpCreateFlags);
                }
                Error::create(VERB, format!("{:?}, {cap:?}", T::QP_TYPE), reason).or_hint(|errno| {
                    if errno == Errno::INVAL && cap.max_inline_data > 0 {
                        return Some(format!(
                            "the device may not support {} inline bytes: request fewer",
                            cap.max_inline_data
                        ));
                    }
                    // The kernel checks the capability before the driver pins the queues.
                    if errno == Errno::PERM
                        && T::QP_TYPE == QpType::RAW_PACKET
                        && !has_capability(CapabilitySet::NET_RAW)
                    {
                        return Some("raw packets require CAP_NET_RAW".into());
                    }
                    locked_memory::queue_hint(errno, context.driver())
                })
            })?;
        Ok(Self {
            sq: ManuallyDrop::new(sq),
            rq: rq.map(ManuallyDrop::new),
            state: QpState::RESET,
            reset_is_incomplete: false,
            _transport: PhantomData,
            handle,
            qp_num,
            cap: cap.into(),
            user_data: init.user_data,
            pd: pd.clone(),
            _cqs: [Arc::clone(init.send_cq.shared()), Arc::clone(init.recv_cq.shared())],
            _srq: init.srq.map(|srq| Arc::clone(srq.shared())),
            groups: Vec::new(),
            flows: Flows::default(),
            destroyed: false,
            rings_are_unused: false,
        })
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Releases the handle: drop no longer destroys the kernel object. The kernel destroys it when
    /// the device file is closed. Its queues and their memory are leaked; flows and multicast
    /// groups stay. Posted requests stay in use until the object is destroyed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(mut self) -> u32 {
        self.destroyed = true;
        // The caller may free the memory of its receives after it has destroyed the object.
        if let Some(rq) = &mut self.rq {
            rq.abandon();
        }
        // The memberships of its IP groups stay.
        mem::forget(mem::take(&mut self.groups));
        self.handle
    }

    /// The addresses of its rings, doorbell record and register. They are valid until the QP is
    /// destroyed.
    ///
    /// ```no_run
    /// # fn show(qp: &bareverbs::qp::Qp<bareverbs::qp::Rc>) {
    /// if let Some(send) = qp.layout().send {
    ///     println!("{} slots of {} bytes at {:?}, doorbell {:?}", send.slots, send.stride, send.ring, send.doorbell);
    /// }
    /// # }
    /// ```
    #[doc(alias = "mlx5dv_init_obj")]
    #[doc(alias = "mlx5dv_qp")]
    #[must_use]
    pub fn layout(&self) -> QpLayout {
        let numbered = |layout: QueueLayout| layout.with_number(self.qp_num);
        QpLayout {
            send: self.sq.layout().map(numbered),
            recv: self.rq.as_ref().and_then(|rq| rq.layout()).map(numbered),
        }
    }

    /// Sets the cached state without asking the kernel.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn assume_state(&mut self, state: QpState) {
        self.state = state;
    }

    /// The QP number (QPN), 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// The state that the last transition set. A QP moves itself to ERR on an error; [`Qp::query`]
    /// reports that.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Depths and widths of the queues, at least as large as requested.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// [`QpInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// Whether no other QP uses the same doorbell register; see [`QpInit::doorbell`].
    #[must_use]
    pub fn owns_doorbell(&self) -> bool {
        self.sq.owns_doorbell()
    }

    /// The protection domain of the QP.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.pd
    }

    /// Queries the attributes from the kernel.
    ///
    /// # Errors
    /// - [`Error::Kernel`]: the kernel rejects the command.
    /// - [`Error::Value`]: the kernel reports a value that the type of its field lacks, such as an
    ///   ACK timeout of 40. The kernel takes such values only from a raw call, and
    ///   [`RawContext::invoke`](crate::raw::RawContext::invoke) of `QueryQp` returns them.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<(QpAttr, QpInitAttr)> {
        let resp =
            command::query_qp(self.pd.context().file(), self.handle, QpAttrMask::STATE | QpAttrMask::CAP)
                .map_err(|refused| Error::kernel("query_qp", format!("QP {:#x}", self.qp_num), refused))?;
        let mut attr = QpAttr::from_kernel(&resp)?;
        if attr.cap.max_send_wr == 0 {
            // On ConnectX user space lays out the queues, and the kernel does not report their
            // capacity.
            attr.cap = self.cap();
        }
        Ok((attr, QpInitAttr { cap: attr.cap, signal_all: resp.sq_sig_all != 0 }))
    }

    /// Destroys the QP. Returns the number of its [events](crate::AsyncEvent::Qp) that have been
    /// read; unread events are discarded. Drop also destroys the QP, and ignores errors.
    ///
    /// # Errors
    /// The QP and [`Error::Kernel`]: the kernel refuses to destroy it. Its rings and posted
    /// requests stay in use. It may be detached from its multicast groups, and its flows may be
    /// destroyed.
    #[expect(clippy::result_large_err, reason = "the error returns the QP without an allocation")]
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<u32, Refused<Self>> {
        // SAFETY: the QP was not destroyed before. If this succeeds, it is dropped next.
        match unsafe { self.try_destroy_object() } {
            Ok(events) => Ok(events),
            Err(refused) => {
                let asked = format!("QP {:#x}", self.qp_num);
                Err(Refused::new(Error::kernel("destroy_qp", asked, refused), self))
            }
        }
    }

    /// Destroys the QP. Returns the number of its events that have been read. If the kernel
    /// refuses, the rings and the posted requests stay in use.
    ///
    /// # Safety
    ///
    /// The kernel must not have destroyed the QP before. It must not be used afterwards, except to
    /// drop it.
    pub(crate) unsafe fn destroy_inner(&mut self) -> Result<u32, IoctlError> {
        // SAFETY: the caller's contract is stronger.
        let events = unsafe { self.destroy_object() }?;
        // SAFETY: the kernel has destroyed the QP, and the rings are not used afterwards.
        unsafe { self.free_rings() };
        Ok(events)
    }

    /// Destroys the kernel's QP and keeps the rings until this value is dropped. Returns the number
    /// of its events that have been read. If the kernel refuses, the rings and the posted requests
    /// stay in use.
    ///
    /// # Safety
    ///
    /// The kernel must not have destroyed the QP before. No command may name it afterwards, and
    /// nothing may be posted.
    pub(crate) unsafe fn destroy_object(&mut self) -> Result<u32, IoctlError> {
        self.destroyed = true;
        // SAFETY: the caller's contract is stronger.
        unsafe { self.try_destroy_object() }.inspect_err(|_| {
            // The device may still use the rings, so they are leaked.
            if let Some(rq) = &mut self.rq {
                rq.abandon();
            }
        })
    }

    /// As [`Qp::destroy_object`], but the QP remains usable if the kernel refuses.
    ///
    /// # Safety
    ///
    /// The kernel must not have destroyed the QP before. If this succeeds, no command may name it
    /// afterwards, and nothing may be posted.
    pub(crate) unsafe fn try_destroy_object(&mut self) -> Result<u32, IoctlError> {
        let (file, handle) = (self.pd.context().file(), self.handle);
        // The kernel refuses to destroy a QP that is attached to a multicast group.
        self.groups.retain(|Attachment { group, lid, .. }| {
            // SAFETY: `self` owns the QP.
            unsafe { command::detach_mcast(file, handle, group.0, *lid) }.is_err()
        });
        // The kernel refuses to destroy a QP that a flow steers to.
        self.flows.destroy_all(file);
        // SAFETY: the handle is that of this QP, and no command names it after success, by the
        // contract. The rings are freed only after the kernel has destroyed the QP.
        let resp = unsafe { command::destroy_qp(file, handle) }?;
        self.destroyed = true;
        self.rings_are_unused = true;
        Ok(resp.events_reported)
    }

    /// Whether the kernel has destroyed the QP; see [`Qp::destroy_object`].
    pub(crate) fn is_destroyed(&self) -> bool {
        self.rings_are_unused
    }

    /// # Safety
    ///
    /// The kernel must have destroyed the QP. The rings must not be used afterwards.
    unsafe fn free_rings(&mut self) {
        self.rings_are_unused = false;
        // SAFETY: `rings_are_unused` was set and is no longer, so this runs once. By the contract,
        // the ring is not accessed afterwards.
        unsafe { ManuallyDrop::drop(&mut self.sq) };
        if let Some(rq) = &mut self.rq {
            // SAFETY: as for `sq`.
            unsafe { ManuallyDrop::drop(rq) };
        }
    }

    /// The send that failed locally, with its original status. `None` if the completion has that
    /// status. Soft-RoCE since Linux 6.4 completes the failed send with `WR_FLUSH_ERR`.
    #[must_use]
    pub fn failure(&self) -> Option<SendFailure> {
        self.sq.failure().map(SendFailure::from)
    }

    /// Splits the QP into its halves: for two threads on one connection, or two borrows.
    ///
    /// Each half has a ring of its own, and each thread polls a CQ of its own: no lock is taken.
    /// Posting is `unsafe`. The safe layer's way is a connection of a [`Hub`](crate::owned::Hub):
    /// clones of a [`Connection`](crate::owned::Connection) post from any thread or task. Instructions
    /// on mlx5 with [`AnyProvider`] (`docs/fastpath.md`):
    ///
    /// | | half | hub |
    /// |---|---|---|
    /// | post a write of 64 bytes | 71 | 230 |
    /// | poll a send; await of a hub | 42 | 124 |
    ///
    /// One thread sends 100 messages, the other receives 100:
    ///
    /// ```no_run
    /// use std::hint::spin_loop;
    /// use std::thread;
    ///
    /// use bareverbs::ah::AhAttr;
    /// use bareverbs::cq::{Cq, CqInit};
    /// use bareverbs::qp::{InitAttr, QpInit, Rc, RecvRequest, RtrAttr, RtsAttr, SendRequest};
    /// use bareverbs::{Access, Buffer, Context, Gid, Result, WcStatus};
    ///
    /// /// Waits for the one request in flight.
    /// fn complete(cq: &mut Cq, verb: &'static str, wr_id: u64, context: &Context) -> Result<()> {
    ///     loop {
    ///         match cq.poll_one() {
    ///             Some(done) if done.wr_id == wr_id => {
    ///                 if done.status == WcStatus::SUCCESS {
    ///                     return Ok(());
    ///                 }
    ///                 return Err(context.completion_error(verb, done.status, done.vendor_err));
    ///             }
    ///             _ => spin_loop(),
    ///         }
    ///     }
    /// }
    ///
    /// fn main() -> Result<()> {
    ///     let context = Context::open_first()?;
    ///     let pd = context.alloc_pd()?;
    ///     let mut send_cq = context.create_cq(&CqInit::new(16))?;
    ///     let mut recv_cq = context.create_cq(&CqInit::new(16))?;
    ///     let outgoing = pd.register(Buffer::zeroed(4096)?, Access::empty())?;
    ///     let incoming = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?;
    ///     let mut qp = pd.create_qp::<Rc>(&QpInit::new(&send_cq, &recv_cq))?;
    ///     // Exchange QPN and GID with the peer.
    ///     let (peer_gid, peer_qp_num) = (Gid::default(), 17);
    ///     let gid = context.default_gid(1)?;
    ///     qp.init(&InitAttr::new(1))?;
    ///     qp.ready_to_receive(&RtrAttr::new(AhAttr::global(1, peer_gid, gid.index), peer_qp_num))?;
    ///     qp.ready_to_send(&RtsAttr::default())?;
    ///
    ///     let (mut send, mut recv) = qp.split();
    ///     thread::scope(|scope| {
    ///         let sender = scope.spawn(|| {
    ///             let sges = [outgoing.sge(..64)?];
    ///             for wr_id in 1..=100 {
    ///                 // SAFETY: `outgoing` stays registered and unchanged until `complete` returns.
    ///                 unsafe { send.post_send(&[SendRequest::send(wr_id, &sges).signaled()]) }?;
    ///                 complete(&mut send_cq, "send", wr_id, &context)?;
    ///             }
    ///             Ok(())
    ///         });
    ///         let receiver = scope.spawn(|| {
    ///             let sges = [incoming.sge(..)?];
    ///             for wr_id in 1..=100 {
    ///                 // SAFETY: `incoming` stays registered, and nothing reads it, until `complete` returns.
    ///                 unsafe { recv.post_recv(&[RecvRequest::new(wr_id, &sges)]) }?;
    ///                 complete(&mut recv_cq, "recv", wr_id, &context)?;
    ///                 println!("received {:?}", incoming.bytes().map(|bytes| &bytes[..8]));
    ///             }
    ///             Ok(())
    ///         });
    ///         let sent = sender.join().expect("the sender does not panic");
    ///         sent.and(receiver.join().expect("the receiver does not panic"))
    ///     })
    /// }
    /// ```
    ///
    /// Each half borrows the QP, which owns the rings. So the QP outlives both halves:
    ///
    /// ```compile_fail,E0505
    /// # fn outlive(mut qp: bareverbs::qp::Qp<bareverbs::qp::Rc>) {
    /// let (mut send, _recv) = qp.split();
    /// drop(qp);
    /// send.flush().unwrap();
    /// # }
    /// ```
    ///
    /// The halves of two QPs can be exchanged. The rings stay with their QPs:
    ///
    /// ```
    /// # fn exchange(a: &mut bareverbs::qp::Qp<bareverbs::qp::Rc>, b: &mut bareverbs::qp::Qp<bareverbs::qp::Rc>) {
    /// let ((mut to_a, _), (mut to_b, _)) = (a.split(), b.split());
    /// std::mem::swap(&mut to_a, &mut to_b);
    /// // Requests that are posted to `to_a` now go to the QP `b`.
    /// # }
    /// ```
    #[must_use]
    #[inline]
    pub fn split(&mut self) -> (SendHalf<'_, T, P>, RecvHalf<'_, T, P>) {
        let Self { sq, rq, state, .. } = self;
        (SendHalf::new(&mut **sq, state), RecvHalf::new(rq.as_deref_mut(), state))
    }

    /// Starts a batch of sends; see [`SendHalf::start_send`].
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_qp_to_qp_ex")]
    #[inline]
    pub fn start_send(&mut self) -> Batch<'_, T, P> {
        Batch::new(&mut *self.sq, self.state)
    }

    /// Posts sends with one doorbell.
    ///
    /// # Errors
    /// As for [`SendHalf::post_send`].
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_send(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
    ) -> Result<(), PostError> {
        // The fast path is duplicated here and not called through a half, and the slow path takes
        // the QP as its only other argument: a view costs registers.
        if let [request] = requests
            // SAFETY: the caller upholds the contract for the request.
            && let Some(posted) = unsafe { T::try_post::<P>(&mut self.sq, request, false) }
        {
            return posted.map_err(|error| post::doorbell_error(error, 1));
        }
        // SAFETY: the caller upholds the contract for every request; none of them has been posted.
        unsafe { self.post_send_slow(requests, false) }
    }

    /// Posts requests that the fast path declined.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(always)]
    unsafe fn post_send_slow(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
        defer: bool,
    ) -> Result<(), PostError> {
        match requests {
            // Copied, so that the fast path need not keep a request in memory if it is known at the
            // call site.
            // SAFETY: the caller's contract is the same, and a copy names the same memory.
            [request] => unsafe { self.post_send_list(&[*request], defer) },
            // SAFETY: the caller's contract is the same.
            _ => unsafe { self.post_send_list(requests, defer) },
        }
    }

    /// Posts any requests in any state. `defer` leaves the doorbell to a later call.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(never)]
    unsafe fn post_send_list(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
        defer: bool,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { post::post_sends::<T, P>(&mut self.sq, self.state, requests, defer) }
    }

    /// Posts sends and defers the doorbell to the next flush, `flush_and_poll` or post; see
    /// [`SendHalf::post_send_deferred`].
    ///
    /// # Errors
    /// As for [`SendHalf::post_send_deferred`].
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline]
    pub unsafe fn post_send_deferred(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
    ) -> Result<(), PostError> {
        if let [request] = requests
            // SAFETY: the caller upholds the contract for the request.
            && let Some(posted) = unsafe { T::try_post::<P>(&mut self.sq, request, true) }
        {
            return posted.map_err(|error| post::doorbell_error(error, 1));
        }
        // SAFETY: the caller upholds the contract for every request; none of them has been posted.
        unsafe { self.post_send_slow(requests, true) }
    }

    /// Rings the doorbell for all deferred requests; see [`SendHalf::flush`].
    ///
    /// # Errors
    /// As for [`SendHalf::flush`].
    #[inline]
    pub fn flush(&mut self) -> Result<(), PostError> {
        self.split().0.flush()
    }

    /// Rings the doorbell for all deferred requests, then polls; see [`SendHalf::flush_and_poll`].
    ///
    /// # Errors
    /// As for [`SendHalf::flush`].
    #[inline]
    pub fn flush_and_poll<'c>(&mut self, cq: &'c mut Cq<P>) -> Result<Completions<'c, P>, PostError> {
        self.split().0.flush_and_poll(cq)
    }

    /// Posts receives.
    ///
    /// # Errors
    /// As for [`RecvHalf::post_recv`].
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let posted = if let ([request], Some(queue)) = (requests, &mut self.rq)
            // SAFETY: the caller upholds the contract for the request.
            && unsafe { queue.try_post(request) }
        {
            Ok(())
        } else {
            match requests {
                // Copied with its SGE, as sends are.
                [RecvRequest { wr_id, sges: [sge] }] => {
                    let (wr_id, sge) = (*wr_id, *sge);
                    // SAFETY: the caller upholds the contract for the request, which was not
                    // posted; the copy names the same memory.
                    unsafe { self.post_recv_list(&[RecvRequest { wr_id, sges: &[sge] }]) }
                }
                // SAFETY: the caller upholds the contract for every request; none of them has been
                // posted.
                _ => unsafe { self.post_recv_list(requests) },
            }
        };
        if self.state() == QpState::ERR {
            // A device need not process the receive queue in ERR by itself. If the command fails,
            // the device is gone.
            let _ = self.set_error();
        }
        posted
    }

    /// Posts any receives in any state.
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    #[inline(never)]
    unsafe fn post_recv_list(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { post::post_receives_in::<T, _>(self.rq.as_deref_mut(), self.state, requests) }
    }
}

/// Whether a device with these attributes lacks a creation flag that `init` asks for.
fn lacks_flags<P: Provider>(qp_type: QpType, init: &QpInit<'_, P>, context: &ContextInner) -> bool {
    let attr = &context.device_attr;
    let raw = qp_type == QpType::RAW_PACKET;
    let frames = |cap| raw && attr.raw_packet_caps.contains(cap);
    let padding = attr.device_cap_flags_ex.contains(DeviceCapFlags::PCI_WRITE_END_PADDING);
    // The kernel accepts no creation flag for other types (`check_creation_flags` in its
    // `uverbs_std_types_qp.c`).
    let datagrams = matches!(qp_type, QpType::UD | QpType::RAW_PACKET);
    let offered = [
        (QpCreateFlags::BLOCK_MULTICAST_LOOPBACK, datagrams),
        (QpCreateFlags::SCATTER_FCS, frames(RawPacketCaps::SCATTER_FCS)),
        (QpCreateFlags::CVLAN_STRIPPING, frames(RawPacketCaps::CVLAN_STRIPPING)),
        (QpCreateFlags::PCI_WRITE_END_PADDING, padding && datagrams),
    ];
    let lacks = offered.into_iter().any(|(flag, offered)| init.flags.contains(flag) && !offered);
    // `all` has the bits without a name too.
    let known = QpCreateFlags::INFO.values.iter().fold(0, |known, flag| known | flag.value as u32);
    let unknown = init.flags.bits() & !known != 0;
    let no_source = init.source_qp_num.is_some() && qp_type != QpType::UD;
    lacks || unknown || no_source
}

impl<T: Transport, P: Provider> Drop for Qp<T, P> {
    fn drop(&mut self) {
        if !self.destroyed {
            // SAFETY: the QP was not destroyed before, and is being dropped.
            let _ = unsafe { self.destroy_inner() };
        } else if self.rings_are_unused {
            // SAFETY: the kernel has destroyed the QP, which is being dropped.
            unsafe { self.free_rings() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::{Operation, Payload, RecvRequest, SendFlags, SendRequest};
    use crate::testing::Plain;

    fn send<T: Connected>(half: &mut SendHalf<'_, T, Plain>, wr_id: u64) {
        let mut batch = half.start_send();
        batch.send_inline(wr_id, b"x", SendFlags::SIGNALED).unwrap();
        batch.ring().unwrap();
    }

    #[test]
    fn swapping_split_halves_keeps_each_ring_in_its_qp() {
        let plain = Plain::default();
        let pd = plain.domain();
        let (mut a, mut b) = (plain.queue_pair(&pd), plain.queue_pair(&pd));
        let (ring_a, ring_b) = (a.qp_num(), b.qp_num());
        {
            let ((mut to_a, mut from_a), (mut to_b, mut from_b)) = (a.split(), b.split());
            std::mem::swap(&mut to_a, &mut to_b);
            std::mem::swap(&mut from_a, &mut from_b);
            send(&mut to_a, 1);
        }
        drop(a);
        send(&mut b.split().0, 2);
        assert_eq!(plain.log().sent, [(ring_b, 1), (ring_b, 2)]);
        assert_eq!(b.sq.number, ring_b);
        assert_ne!(ring_a, ring_b);
    }

    #[test]
    fn split_halves_post_lists_to_their_own_queues() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        let ring = qp.qp_num();
        let request = |wr_id| SendRequest {
            wr_id,
            operation: Operation::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&[b"x"]),
        };
        let (mut send, mut recv) = qp.split();
        // SAFETY: there is no device, and the requests name no memory.
        unsafe {
            send.post_send(&[request(1), request(2)]).unwrap();
            send.post_send_deferred(&[request(3)]).unwrap();
            recv.post_recv(&[RecvRequest { wr_id: 4, sges: &[] }]).unwrap();
        }
        send.flush().unwrap();
        let log = plain.log();
        assert_eq!(log.sent, [(ring, 1), (ring, 2), (ring, 3)]);
        assert_eq!(log.received, [4]);
    }

    #[test]
    fn rings_are_leaked_if_destroy_qp_fails() {
        let plain = Plain::default();
        let pd = plain.domain();
        let qp = plain.queue_pair(&pd);
        drop(qp.destroy().unwrap_err());
        drop(plain.queue_pair(&pd));
        drop(pd);
        let log = plain.log();
        assert_eq!((&log.freed[..], log.abandoned), (&[][..], 2));
    }

    #[test]
    fn released_queues_are_leaked_and_no_longer_written() {
        let plain = Plain::default();
        let pd = plain.domain();
        let _ = plain.queue_pair(&pd).into_handle();
        let _ = pd.create_srq(&crate::srq::SrqInit::new(4)).unwrap().into_handle();
        let log = plain.log();
        assert_eq!((&log.freed[..], log.abandoned), (&[][..], 2));
    }

    #[test]
    fn qp_of_a_refused_destroy_posts_to_its_ring() {
        let plain = Plain::default();
        let qp = plain.queue_pair(&plain.domain());
        let ring = qp.qp_num();
        let mut refused = qp.destroy().unwrap_err();
        assert_eq!(plain.log().abandoned, 0);
        send(&mut refused.object.split().0, 1);
        assert_eq!(plain.log().sent, [(ring, 1)]);
        let again = refused.object.destroy().unwrap_err();
        assert!(matches!(Error::from(again), Error::Kernel(_)));
        assert_eq!(plain.log().abandoned, 1);
    }

    #[test]
    fn dropped_batch_aborts_pushes_through_provider_queue() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        let mut batch = qp.start_send();
        // SAFETY: the QP counts as being in RTS, and its queue stays its own.
        unsafe { batch.provider_queue() }.pushed.push(7);
        assert!(batch.is_empty());
        drop(batch);
        qp.start_send().ring().unwrap();
        assert_eq!(plain.log().sent, []);
    }
}
