//! The core of QPs: the kernel object, its rings and its state, for any transport.

mod alternate_path;
mod cm_state;
mod comp_cntr;
mod drain_reset;
mod ece;
mod flow;
pub(crate) mod kernel_qp;
pub(crate) mod modify;
mod multicast;
mod post;
mod rate_limit;
mod state_table;

use std::mem::{self, ManuallyDrop};
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::layout::QueueLayout;
use bareverbs_provider::request::{DoorbellChoice, QpRequest};
use bareverbs_provider::traits::{CreatedQp, Provider, QpControl, RecvQueue, SendQueue};
use bareverbs_uapi::uverbs::types::{QpCreateFlags, QpType};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write::structs::ExQueryDeviceResp;
use bareverbs_uapi::write::types::{DeviceCapFlags, RawPacketCaps};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

pub use alternate_path::AlternatePath;
pub use rate_limit::RateLimit;

use self::kernel_qp::KernelQp;
use self::multicast::Attachment;
use crate::comp_cntr::CompCntrShared;
use crate::context::Context;
use crate::cq::CqShared;
use crate::error::{Error, Feature, Limit, Refused, Result, SendFailure};
use crate::locked_memory::{self, has_capability};
use crate::pd::Pd;
use crate::provider::AnyProvider;
use crate::qp::any::AnyTransport;
use crate::qp::attr::{QpAttr, QpCap, QpInitAttr};
use crate::qp::flow::Flows;
use crate::qp::init::QpInit;
use crate::qp::transport::private::Sealed as _;
use crate::srq::shared::SrqShared;

const CREATE: &str = "create_qp";

/// The queues of a QP; see [`Qp::layout`](crate::qp::Qp::layout).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpLayout {
    /// The send queue; `None` if the provider does not report it.
    pub send: Option<QueueLayout>,
    /// The receive queue; `None` for a QP with a shared receive queue too.
    pub recv: Option<QueueLayout>,
}

/// A QP whose transport is a value: its kernel object, rings and state. A [`Qp`](crate::qp::Qp)
/// holds one, and documents the methods. The [module](crate::untyped) lists the differences.
pub struct QpCore<P: Provider = AnyProvider> {
    /// [`QpCore::free_rings`] frees both rings after the kernel has destroyed the QP. Until then
    /// the device uses them. Borrowed views give access to them ([`SendHalf`](crate::qp::SendHalf),
    /// [`RecvHalf`](crate::qp::RecvHalf), [`Batch`](crate::qp::Batch)), so no safe code can
    /// exchange them for other rings.
    sq: ManuallyDrop<P::Sq>,
    /// `None` if the QP uses a shared receive queue.
    rq: Option<ManuallyDrop<P::Rq>>,
    kernel: KernelQp,
    /// Whether the kernel refused one of several requests to RESET, and none has succeeded since.
    reset_is_incomplete: bool,
    transport: AnyTransport,
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
    /// The completion counters are destroyed after the QP.
    comp_cntrs: Vec<Arc<CompCntrShared>>,
    /// Whether destroying was attempted.
    destroyed: bool,
    /// Whether the kernel has destroyed the QP and the rings were not freed.
    rings_are_unused: bool,
}

impl<P: Provider> QpCore<P> {
    /// Creates a QP of any type with queues in user space: RC, UC, UD, raw packet and XRC
    /// initiator.
    ///
    /// # Errors
    /// As for [`Pd::create_qp`]; [`Error::Invalid`] also for another `qp_type`. An XRC target has
    /// no queues: [`Xrcd::create_target`](crate::xrc::Xrcd::create_target) creates it.
    pub fn create(pd: &Pd<P>, qp_type: QpType, init: &QpInit<'_, P>) -> Result<Self> {
        let transport = AnyTransport::new(qp_type).ok_or_else(|| {
            let remedy = if qp_type == QpType::XRC_TGT { ": use `Xrcd::create_target`" } else { "" };
            Error::invalid(CREATE, format!("a QP of type {qp_type:?} has no queues in user space{remedy}"))
        })?;
        let context = pd.context();
        let mut cap = init.cap;
        // Without a receive queue its attributes are ignored, as in C. The driver of a ConnectX rejects
        // a large `max_recv_wr` all the same (`set_rq_size` of mlx5's `qp.c`).
        if init.srq.is_some() || qp_type == QpType::XRC_INI {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        check_create(context, qp_type, &cap, init)?;
        let request = QpRequest {
            pd: pd.domain().handle,
            send_cq: init.send_cq.handle(),
            recv_cq: init.recv_cq.handle(),
            srq: init.srq.map(|srq| srq.shared().handle),
            qp_type,
            cap: cap.into(),
            max_tso_header: init.max_tso_header,
            flags: if init.signal_all { init.flags | QpCreateFlags::SQ_SIG_ALL } else { init.flags },
            source_qpn: init.source_qp_num,
            scatter_to_cqe: init.scatter_to_cqe,
            user_handle: init.user_data,
            doorbell: init.doorbell,
            memory: init.memory,
        };
        // SAFETY: `destroy_inner` keeps the queues until the kernel has destroyed the object, and
        // leaks them otherwise.
        let created = unsafe { context.provider().create_qp(&request) };
        let CreatedQp { handle, qp_num, cap, sq, rq } =
            created.map_err(|reason| explain_create(context, qp_type, &cap, init, reason))?;
        Ok(Self {
            sq: ManuallyDrop::new(sq),
            rq: rq.map(ManuallyDrop::new),
            kernel: KernelQp::new(context.file(), handle, qp_num),
            reset_is_incomplete: false,
            transport,
            cap: cap.into(),
            user_data: init.user_data,
            pd: pd.clone(),
            _cqs: [init.send_cq, init.recv_cq].map(|cq| Arc::clone(cq.shared())),
            _srq: init.srq.map(|srq| Arc::clone(srq.shared())),
            groups: Vec::new(),
            flows: Flows::default(),
            comp_cntrs: Vec::new(),
            destroyed: false,
            rings_are_unused: false,
        })
    }

    /// The QP type in the kernel's encoding.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.transport.qp_type()
    }

    /// As [`Qp::handle`](crate::qp::Qp::handle).
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.kernel.handle
    }

    /// As [`Qp::into_handle`](crate::qp::Qp::into_handle).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(mut self) -> u32 {
        self.destroyed = true;
        self.sq.release_handle();
        // The caller may free the memory of its receives after it has destroyed the object.
        if let Some(rq) = &mut self.rq {
            rq.abandon();
        }
        // The memberships of its IP groups stay.
        mem::forget(mem::take(&mut self.groups));
        self.kernel.handle
    }

    /// As [`Qp::layout`](crate::qp::Qp::layout).
    #[must_use]
    pub fn layout(&self) -> QpLayout {
        let numbered = |layout: QueueLayout| layout.with_number(self.kernel.qp_num);
        QpLayout {
            send: self.sq.layout().map(numbered),
            recv: self.rq.as_ref().and_then(|rq| rq.layout()).map(numbered),
        }
    }

    /// Sets the cached state without asking the kernel.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn assume_state(&mut self, state: QpState) {
        self.kernel.state = state;
    }

    /// As [`Qp::qp_num`](crate::qp::Qp::qp_num).
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.kernel.qp_num
    }

    /// As [`Qp::state`](crate::qp::Qp::state).
    #[must_use]
    pub fn state(&self) -> QpState {
        self.kernel.state
    }

    /// As [`Qp::cap`](crate::qp::Qp::cap).
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// As [`Qp::user_data`](crate::qp::Qp::user_data).
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// As [`Qp::owns_doorbell`](crate::qp::Qp::owns_doorbell).
    #[must_use]
    pub fn owns_doorbell(&self) -> bool {
        self.sq.owns_doorbell()
    }

    /// As [`Qp::pd`](crate::qp::Qp::pd).
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.pd
    }

    /// As [`Qp::query`](crate::qp::Qp::query).
    ///
    /// # Errors
    /// As for [`Qp::query`](crate::qp::Qp::query).
    pub fn query(&self) -> Result<(QpAttr, QpInitAttr)> {
        let resp = self.kernel.query(QpAttrMask::STATE | QpAttrMask::CAP)?;
        let mut attr = QpAttr::from_kernel(&resp)?;
        if self.pd.context().capabilities().iwarp && attr.qp_state == QpState::RESET {
            // siw of Linux 6.1 does not report the state (`siw_query_qp` of `siw_verbs.c`).
            attr.qp_state = self.state();
        }
        if attr.cap.max_send_wr == 0 {
            // On ConnectX user space lays out the queues, and the kernel does not report their
            // capacity.
            attr.cap = self.cap();
        }
        Ok((attr, QpInitAttr { cap: attr.cap, signal_all: resp.sq_sig_all != 0 }))
    }

    /// As [`Qp::destroy`](crate::qp::Qp::destroy).
    ///
    /// # Errors
    /// As for [`Qp::destroy`](crate::qp::Qp::destroy).
    #[expect(clippy::result_large_err, reason = "the error returns the QP without an allocation")]
    pub fn destroy(mut self) -> Result<u32, Refused<Self>> {
        // SAFETY: the QP was not destroyed before. If this succeeds, it is dropped next.
        match unsafe { self.try_destroy_object() } {
            Ok(events) => Ok(events),
            Err(refused) => {
                let asked = format!("QP {:#x}", self.qp_num());
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

    /// As [`QpCore::destroy_object`], but the QP remains usable if the kernel refuses.
    ///
    /// # Safety
    ///
    /// The kernel must not have destroyed the QP before. If this succeeds, no command may name it
    /// afterwards, and nothing may be posted.
    pub(crate) unsafe fn try_destroy_object(&mut self) -> Result<u32, IoctlError> {
        let KernelQp { file, handle, .. } = &self.kernel;
        // The kernel refuses to destroy a QP that is attached to a multicast group.
        self.groups.retain(|Attachment { group, lid, .. }| {
            // SAFETY: `self` owns the QP.
            unsafe { command::detach_mcast(file, *handle, group.0, *lid) }.is_err()
        });
        // The kernel refuses to destroy a QP that a flow steers to.
        self.flows.destroy_all(file);
        self.sq.release_handle();
        // SAFETY: the handle is that of this QP, and no command names it after success, by the
        // contract. The rings are freed only after the kernel has destroyed the QP.
        let resp = unsafe { command::destroy_qp(file, *handle) }?;
        self.destroyed = true;
        self.rings_are_unused = true;
        Ok(resp.events_reported)
    }

    /// Whether a driver bug makes the destruction wait; see [`QpControl::needs_error_before_destroy`].
    pub(crate) fn needs_error_before_destroy(&self) -> bool {
        // A forked child has not inherited the ring that the queue reads.
        self.pd.context().file().check_same_process().is_ok() && self.sq.needs_error_before_destroy()
    }

    /// Whether the kernel has destroyed the QP; see [`QpCore::destroy_object`].
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

    /// As [`Qp::failure`](crate::qp::Qp::failure).
    #[must_use]
    pub fn failure(&self) -> Option<SendFailure> {
        self.sq.failure().map(SendFailure::from)
    }
}

/// Validates the attributes of a new QP. `cap`: those of the request.
fn check_create<P: Provider>(
    context: &Context<P>,
    qp_type: QpType,
    cap: &QpCap,
    init: &QpInit<'_, P>,
) -> Result<()> {
    if qp_type == QpType::XRC_INI {
        if !context.capabilities().xrc {
            return Err(Error::unsupported(CREATE, Feature::XrcQps));
        }
        if init.srq.is_some() {
            return Err(Error::invalid(CREATE, "an XRC initiator QP has no receives: omit `srq`"));
        }
    }
    if qp_type == QpType::RAW_PACKET && !context.capabilities().raw_packets {
        return Err(Error::unsupported(CREATE, Feature::RawPacketQps));
    }
    let limits = context.limits();
    for (limit, asked, max) in [
        (Limit::MaxSendWr, cap.max_send_wr, limits.max_qp_wr),
        (Limit::MaxRecvWr, cap.max_recv_wr, limits.max_qp_wr),
        (Limit::MaxSendSge, cap.max_send_sge, limits.max_sge),
        (Limit::MaxRecvSge, cap.max_recv_sge, limits.max_sge),
    ] {
        Error::check_limit(CREATE, limit, asked.into(), max.into())?;
    }
    context.check_same_context(CREATE, "send CQ", init.send_cq.context().file())?;
    context.check_same_context(CREATE, "receive CQ", init.recv_cq.context().file())?;
    if let DoorbellChoice::Domain(td) = init.doorbell {
        context.check_same_context(CREATE, "thread domain", td.file())?;
    }
    if let Some(srq) = init.srq {
        context.check_same_context(CREATE, "SRQ", srq.shared().context().file())?;
    }
    if lacks_flags(qp_type, init, &context.inner().device_attr) {
        return Err(Error::unsupported(CREATE, Feature::QpCreateFlags));
    }
    Ok(())
}

/// The error of a creation, with the cause of the kernel's refusal.
fn explain_create<P: Provider>(
    context: &Context<P>,
    qp_type: QpType,
    cap: &QpCap,
    init: &QpInit<'_, P>,
    reason: CreateError,
) -> Error {
    let refused = matches!(reason, CreateError::Ioctl(IoctlError { errno: Errno::OPNOTSUPP, .. }));
    if refused && (!init.flags.is_empty() || init.source_qp_num.is_some()) {
        return Error::unsupported(CREATE, Feature::QpCreateFlags);
    }
    Error::create(CREATE, format!("{qp_type:?}, {cap:?}"), reason).or_hint(|errno| {
        if errno == Errno::INVAL && cap.max_inline_data > 0 {
            return Some(format!(
                "the device may not support {} inline bytes: request fewer",
                cap.max_inline_data
            ));
        }
        // The kernel checks the capability before the driver pins the queues.
        let raw = errno == Errno::PERM && qp_type == QpType::RAW_PACKET;
        if raw && !has_capability(CapabilitySet::NET_RAW) {
            return Some("raw packets require CAP_NET_RAW".into());
        }
        locked_memory::queue_hint(errno, context.provider())
    })
}

/// Whether a device with these attributes lacks a creation flag that `init` asks for.
fn lacks_flags<P: Provider>(qp_type: QpType, init: &QpInit<'_, P>, attr: &ExQueryDeviceResp) -> bool {
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

impl<P: Provider> Drop for QpCore<P> {
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
    use crate::cq::CqInit;
    use crate::srq::SrqInit;
    use crate::testing::Plain;

    #[test]
    fn each_capacity_has_a_limit() {
        let pd = Plain::default().domain();
        let cq = pd.context().create_cq(&CqInit::new(8)).unwrap();
        let max = QpCap {
            max_send_wr: 1 << 10,
            max_recv_wr: 1 << 10,
            max_send_sge: 4,
            max_recv_sge: 4,
            ..QpCap::default()
        };
        let refused = |cap| {
            let created = QpCore::create(&pd, QpType::RC, &QpInit { cap, ..QpInit::new(&cq, &cq) });
            created.map(drop).err().map(|refused| match refused {
                Error::Limit { limit, asked, max, .. } => (limit, asked, max),
                other => panic!("{other}"),
            })
        };
        assert_eq!(refused(max), None);
        for (cap, limit, max) in [
            (QpCap { max_send_wr: 1025, ..max }, Limit::MaxSendWr, 1024),
            (QpCap { max_recv_wr: 1025, ..max }, Limit::MaxRecvWr, 1024),
            (QpCap { max_send_sge: 5, ..max }, Limit::MaxSendSge, 4),
            (QpCap { max_recv_sge: 5, ..max }, Limit::MaxRecvSge, 4),
        ] {
            assert_eq!(refused(cap), Some((limit, max + 1, max)));
        }
    }

    #[test]
    fn attributes_of_a_receive_queue_are_ignored_without_one() {
        let pd = Plain::default().domain();
        let cq = pd.context().create_cq(&CqInit::new(8)).unwrap();
        let srq = pd.create_srq(&SrqInit::new(4)).unwrap();
        let cap = QpCap { max_recv_wr: 1 << 20, max_recv_sge: 1 << 10, ..QpCap::default() };
        let init = QpInit { cap, srq: Some(&srq), ..QpInit::new(&cq, &cq) };
        let qp = QpCore::create(&pd, QpType::RC, &init).unwrap();
        assert_eq!((qp.cap().max_recv_wr, qp.cap().max_recv_sge), (0, 0));
    }

    #[test]
    fn creation_flags_are_those_of_the_type() {
        let pd = Plain::default().domain();
        let cq = pd.context().create_cq(&CqInit::new(8)).unwrap();
        let lacks = |qp_type, flags, source_qp_num| {
            let init = QpInit { flags, source_qp_num, ..QpInit::new(&cq, &cq) };
            lacks_flags(qp_type, &init, &ExQueryDeviceResp::zeroed())
        };
        let (none, block) = (QpCreateFlags::empty(), QpCreateFlags::BLOCK_MULTICAST_LOOPBACK);
        for (qp_type, has_block, has_source) in [
            (QpType::RC, false, false),
            (QpType::UC, false, false),
            (QpType::UD, true, true),
            (QpType::XRC_INI, false, false),
            (QpType::RAW_PACKET, true, false),
        ] {
            assert!(!lacks(qp_type, none, None), "{qp_type:?}");
            assert_eq!(lacks(qp_type, block, None), !has_block, "{qp_type:?}");
            assert_eq!(lacks(qp_type, none, Some(1)), !has_source, "{qp_type:?}");
            for flags in [QpCreateFlags::SCATTER_FCS, QpCreateFlags::PCI_WRITE_END_PADDING] {
                assert!(lacks(qp_type, flags, None), "{qp_type:?} {flags:?}");
            }
        }
    }
}
