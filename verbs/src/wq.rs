//! Work queues (WQs): receive queues without a QP.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::layout::QueueLayout;
use bareverbs_provider::request::{QueueMemory, WqChange, WqRequest};
use bareverbs_provider::traits::{CreatedWq, Provider, RecvQueue};
use bareverbs_provider::work::RecvRequest;
use bareverbs_uapi::uverbs::types::WqFlags;
use bareverbs_uapi::verbs_values::WqState;
use bareverbs_uapi::write::types::{DeviceCapFlags, RawPacketCaps};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::cq::{Cq, CqRef, CqShared};
use crate::error::{Feature, Limit, PostError, PostReason};
use crate::locked_memory::has_capability;
use crate::recv_queue::{leak_queue, post_receives};
use crate::released::Released;
use crate::{AnyProvider, Context, Error, Pd, Refused, Result, locked_memory};

const MODIFY: &str = "modify_wq";

/// Attributes for the creation of a WQ.
#[doc(alias = "ibv_wq_init_attr")]
pub struct WqInit<'a, P: Provider = AnyProvider> {
    /// CQ for its completions.
    pub cq: &'a CqRef<P>,
    /// Receives that can be outstanding, at least 1.
    pub max_recv_wr: u32,
    /// SGEs of a receive.
    pub max_recv_sge: u32,
    /// Processing of received frames, such as VLAN tag stripping. The device reports its
    /// capabilities in [`DeviceAttr::raw_packet_caps`](crate::device::DeviceAttr::raw_packet_caps).
    pub flags: WqFlags,
    /// Memory of the queue.
    pub memory: QueueMemory<'a>,
    /// Value reported in [asynchronous events](crate::AsyncEvent::Wq).
    pub user_data: u64,
}

impl<'a, P: Provider> WqInit<'a, P> {
    /// A WQ for `max_recv_wr` receives of one SGE each, which receives frames unmodified.
    #[must_use]
    pub fn new(cq: &'a Cq<P>, max_recv_wr: u32) -> Self {
        Self::with_cq(cq.reference(), max_recv_wr)
    }

    /// As [`new`](Self::new), with a reference to the CQ.
    #[must_use]
    pub fn with_cq(cq: &'a CqRef<P>, max_recv_wr: u32) -> Self {
        let (flags, memory) = (WqFlags::empty(), QueueMemory::BasePages);
        Self { cq, max_recv_wr, max_recv_sge: 1, flags, memory, user_data: 0 }
    }
}

/// A work queue (WQ): a receive queue without a QP. An [`RssQp`](crate::rss::RssQp) spreads frames over
/// the WQs of an [`IndirectionTable`](crate::rss::IndirectionTable). Only on devices with
/// [`Capabilities::work_queues`](crate::device::Capabilities::work_queues).
///
/// A new WQ is in RESET. It takes receives and frames in RDY, and none in ERR:
///
/// ```
/// # fn example(pd: &bareverbs::Pd) -> bareverbs::Result<()> {
/// use bareverbs::cq::CqInit;
/// use bareverbs::qp::RecvRequest;
/// use bareverbs::rss::WqInit;
/// use bareverbs::{Access, Buffer};
///
/// let cq = pd.context().create_cq(&CqInit::new(64))?;
/// let mut wq = pd.create_wq(&WqInit::new(&cq, 64))?;
/// wq.ready()?;
/// let buffer = pd.register(Buffer::zeroed(2048)?, Access::LOCAL_WRITE)?;
/// let sge = buffer.sge(..)?;
/// // SAFETY: the buffer is not touched until the completion.
/// unsafe { wq.post_recv(&[RecvRequest { wr_id: 1, sges: &[sge] }]) }?;
/// # Ok(())
/// # }
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # example::unsupported(example(&pd));
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// It has one owner, who posts. The kernel object is destroyed after the last table that holds it.
/// Posted receives stay valid until then.
#[doc(alias = "ibv_wq")]
pub struct Wq<P: Provider = AnyProvider> {
    queue: ManuallyDrop<P::Rq>,
    state: WqState,
    wq_num: u32,
    max_recv_sge: u32,
    user_data: u64,
    shared: Arc<WqShared<P>>,
}

/// The part of a WQ that its tables share.
pub(crate) struct WqShared<P: Provider> {
    pd: Pd<P>,
    pub(crate) handle: u32,
    /// The queue, moved here when the owner drops the WQ before the last table. Posted receives
    /// stay valid.
    orphan: Mutex<Option<P::Rq>>,
    destroyed: bool,
    pub(crate) released: Released,
    /// The CQ is destroyed after the WQ.
    _cq: Arc<CqShared<P>>,
}

impl<P: Provider> Pd<P> {
    /// Creates a receive work queue in the state RESET.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no work queues or does not support the flags.
    /// - [`Error::Invalid`] for 0 receives or a completion queue of another context.
    /// - [`Error::Limit`] for a depth or a number of SGEs above the device's limit.
    /// - [`Error::Kernel`].
    #[doc(alias = "ibv_create_wq")]
    pub fn create_wq(&self, init: &WqInit<'_, P>) -> Result<Wq<P>> {
        Wq::create(self, init)
    }
}

impl<P: Provider> Wq<P> {
    pub(crate) fn create(pd: &Pd<P>, init: &WqInit<'_, P>) -> Result<Self> {
        const VERB: &str = "create_wq";
        let context = pd.context();
        let WqInit { cq, max_recv_wr, max_recv_sge, flags, memory, user_data } = *init;
        if !context.capabilities().work_queues {
            return Err(Error::unsupported(VERB, Feature::Wqs));
        }
        if max_recv_wr == 0 {
            return Err(Error::empty(VERB, "a WQ requires a capacity of at least 1 receive"));
        }
        let limits = context.limits();
        Error::check_limit(VERB, Limit::MaxRecvWr, max_recv_wr.into(), limits.max_qp_wr.into())?;
        Error::check_limit(VERB, Limit::MaxRecvSge, max_recv_sge.into(), limits.max_sge.into())?;
        context.check_same_context(VERB, "CQ", cq.context().file())?;
        let attr = &context.inner().device_attr;
        if let Some(feature) = unsupported_flags(flags, attr.raw_packet_caps, attr.device_cap_flags_ex) {
            return Err(Error::unsupported(VERB, feature));
        }
        let request = WqRequest {
            pd: pd.domain().handle,
            cq: cq.handle(),
            max_wr: max_recv_wr,
            max_sge: max_recv_sge,
            flags,
            memory,
            user_handle: user_data,
        };
        // SAFETY: `WqShared::destroy` keeps the queue until the kernel has destroyed the object,
        // and leaks it otherwise.
        let created = unsafe { context.provider().create_wq(&request) }.map_err(|reason| {
            let asked = format!("{max_recv_wr} receives of {max_recv_sge} SGEs, {flags:?}");
            Error::create(VERB, asked, reason).or_hint(|errno| {
                // The driver checks the capability before it pins the queue.
                let delay_drop = errno == Errno::PERM && flags.contains(WqFlags::DELAY_DROP);
                if delay_drop && !has_capability(CapabilitySet::SYS_RAWIO) {
                    return Some("DELAY_DROP requires CAP_SYS_RAWIO".into());
                }
                locked_memory::queue_hint(errno, context.provider())
            })
        })?;
        let CreatedWq { handle, wq_num, max_sge, queue, .. } = created;
        let shared = WqShared {
            pd: pd.clone(),
            handle,
            orphan: Mutex::new(None),
            destroyed: false,
            released: Released::default(),
            _cq: Arc::clone(cq.shared()),
        };
        Ok(Self {
            queue: ManuallyDrop::new(queue),
            state: WqState::RESET,
            wq_num,
            max_recv_sge: max_sge,
            user_data,
            shared: Arc::new(shared),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<WqShared<P>> {
        &self.shared
    }

    /// The WQ number.
    #[must_use]
    pub fn wq_num(&self) -> u32 {
        self.wq_num
    }

    /// The state that the last transition set. A WQ that can't write a received frame moves itself
    /// to ERR, which the completion of the receive reports. [`Wq::reset`] recovers it.
    #[must_use]
    pub fn state(&self) -> WqState {
        self.state
    }

    /// [`WqInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// Receives that can be outstanding, at least as many as requested.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// SGEs of a receive, at least as many as requested.
    #[must_use]
    pub fn max_recv_sge(&self) -> u32 {
        self.max_recv_sge
    }

    /// The addresses of its ring and doorbell record, as for [`Cq::layout`].
    ///
    /// ```no_run
    /// # fn show(wq: &bareverbs::rss::Wq) {
    /// if let Some(layout) = wq.layout() {
    ///     println!("{} slots of {} bytes at {:?}", layout.slots, layout.stride, layout.ring);
    /// }
    /// # }
    /// ```
    #[doc(alias = "mlx5dv_rwq")]
    #[must_use]
    pub fn layout(&self) -> Option<QueueLayout> {
        Some(self.queue.layout()?.with_number(self.wq_num))
    }

    /// The protection domain of the WQ.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.shared.pd
    }

    /// RESET → RDY. Receives can be posted, and frames arrive.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RESET.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "ibv_modify_wq")]
    #[doc(alias = "IBV_WQS_RDY")]
    pub fn ready(&mut self) -> Result<()> {
        if self.state != WqState::RESET {
            let reason = format!("the WQ is in {:?}, not in RESET: reset it first", self.state);
            return Err(Error::wrong_state(MODIFY, reason));
        }
        // SAFETY: the target state is not RESET.
        unsafe { self.modify_state(WqState::RDY) }
    }

    /// RDY → ERR. No more frames arrive. All posted receives complete with
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is RESET.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "ibv_modify_wq")]
    #[doc(alias = "IBV_WQS_ERR")]
    pub fn set_error(&mut self) -> Result<()> {
        if self.state == WqState::RESET {
            return Err(Error::wrong_state(MODIFY, "the WQ is in RESET and has no posted receives"));
        }
        // SAFETY: the target state is not RESET.
        unsafe { self.modify_state(WqState::ERR) }
    }

    /// Any state → RESET. The queue is emptied without completions, and can be made ready again.
    /// Earlier completions that were not polled may be discarded.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "ibv_modify_wq")]
    #[doc(alias = "IBV_WQS_RESET")]
    pub fn reset(&mut self) -> Result<()> {
        // SAFETY: the queue is reset below.
        unsafe { self.modify_state(WqState::RESET) }?;
        // SAFETY: the kernel has just moved the WQ to RESET, and only `&mut self` could change its
        // state.
        unsafe { self.queue.reset() };
        Ok(())
    }

    /// # Safety
    ///
    /// The caller must reset the queue after a successful transition to RESET.
    unsafe fn modify_state(&mut self, to: WqState) -> Result<()> {
        let provider = self.shared.pd.context().provider();
        let step = |from| {
            // SAFETY: `self` owns the WQ, and the caller resets its queue after RESET.
            unsafe { provider.modify_wq(self.shared.handle, WqChange::State { from, to }) }
        };
        let mut done = step(self.state);
        if done.is_err() && self.state == WqState::RDY && step(WqState::ERR).is_ok() {
            // The WQ had moved itself to ERR.
            done = Ok(());
        }
        done.map_err(|reason| {
            Error::create(MODIFY, format!("WQ {:#x} from {:?} to {to:?}", self.wq_num, self.state), reason)
        })?;
        self.state = to;
        Ok(())
    }

    /// Enables or disables the stripping of VLAN tags (C-VLAN) from received frames, in any state.
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: the device does not strip VLAN tags.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_modify_wq")]
    #[doc(alias = "IBV_WQ_FLAGS_CVLAN_STRIPPING")]
    pub fn set_cvlan_stripping(&mut self, on: bool) -> Result<()> {
        let (context, which) = (self.shared.pd.context(), WqFlags::CVLAN_STRIPPING);
        let attr = &context.inner().device_attr;
        if let Some(feature) = unsupported_flags(which, attr.raw_packet_caps, attr.device_cap_flags_ex) {
            return Err(Error::unsupported(MODIFY, feature));
        }
        let flags = if on { which } else { WqFlags::empty() };
        // SAFETY: `self` owns the WQ, and its state is unchanged.
        unsafe { context.provider().modify_wq(self.shared.handle, WqChange::Flags { which, flags }) }
            .map_err(|reason| Error::create(MODIFY, format!("WQ {:#x}, {flags:?}", self.wq_num), reason))
    }

    /// Posts receives. The state must be RDY.
    ///
    /// # Errors
    /// The first rejected request ends the list. Earlier requests are posted.
    ///
    /// # Safety
    ///
    /// A request is in use until it completes, or until the WQ was moved to RESET ([`Wq::reset`]
    /// returned `Ok`) or destroyed ([`Wq::destroy`] returned `Ok`). A dropped WQ is destroyed with
    /// the last table that holds it. If the kernel refuses to destroy the WQ, such a table or a QP
    /// of such a table, requests stay in use until the process exits.
    ///
    /// While a request is in use, the memory of its SGEs must stay registered, mapped and
    /// allocated. No code may read or write that memory, except by the copying methods of the MR.
    #[doc(alias = "ibv_post_wq_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if let ([request], WqState::RDY) = (requests, self.state)
            // SAFETY: the caller upholds the contract for the request.
            && unsafe { self.queue.try_post(request) }
        {
            return Ok(());
        }
        // SAFETY: the caller upholds the contract for every request; none of them has been posted.
        unsafe { self.post_recv_list(requests) }
    }

    /// Posts any receives in any state.
    ///
    /// # Safety
    ///
    /// As for [`Wq::post_recv`].
    #[inline(never)]
    unsafe fn post_recv_list(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if self.state != WqState::RDY && !requests.is_empty() {
            return Err(PostError { accepted: 0, reason: PostReason::WqState(self.state) });
        }
        // SAFETY: the caller's contract is the same.
        unsafe { post_receives(&mut *self.queue, requests) }
    }

    /// Destroys the WQ. Returns the number of its [events](crate::AsyncEvent::Wq) that have been
    /// read; unread events are discarded. Drop ignores errors, and the WQ is destroyed after its
    /// last table.
    ///
    /// # Errors
    /// The WQ and the reason:
    ///
    /// - [`Error::Invalid`]: tables still hold the WQ.
    /// - [`Error::Kernel`]: the kernel refuses to destroy it. Its posted receives stay in use.
    #[doc(alias = "ibv_destroy_wq")]
    pub fn destroy(mut self) -> Result<u32, Refused<Self>> {
        const VERB: &str = "destroy_wq";
        let Some(shared) = Arc::get_mut(&mut self.shared) else {
            let error = Error::in_use(VERB, "indirection tables still use it: drop them first");
            return Err(Refused::new(error, self));
        };
        // SAFETY: `self` is the last owner, and the WQ was not destroyed before. If this succeeds,
        // `self` is dropped next.
        match unsafe { shared.try_destroy() } {
            Ok(events) => Ok(events),
            Err(refused) => {
                Err(Refused::new(Error::kernel(VERB, format!("WQ {:#x}", self.wq_num), refused), self))
            }
        }
    }
}

/// The first of `flags` that a device with these capabilities does not support.
fn unsupported_flags(flags: WqFlags, caps: RawPacketCaps, device: DeviceCapFlags) -> Option<Feature> {
    let has = |cap| caps.contains(cap);
    let offered = [
        (WqFlags::CVLAN_STRIPPING, has(RawPacketCaps::CVLAN_STRIPPING), Feature::WqCvlanStripping),
        (WqFlags::SCATTER_FCS, has(RawPacketCaps::SCATTER_FCS), Feature::WqScatterFcs),
        (WqFlags::DELAY_DROP, has(RawPacketCaps::DELAY_DROP), Feature::WqDelayDrop),
        (
            WqFlags::PCI_WRITE_END_PADDING,
            device.contains(DeviceCapFlags::PCI_WRITE_END_PADDING),
            Feature::WqPciWriteEndPadding,
        ),
    ];
    let known = offered.iter().fold(WqFlags::empty(), |known, (flag, ..)| known | *flag);
    if flags.intersects(known.complement()) {
        return Some(Feature::WqFlags);
    }
    offered
        .into_iter()
        .find(|(flag, offered, _)| flags.contains(*flag) && !offered)
        .map(|(.., feature)| feature)
}

impl<P: Provider> Drop for Wq<P> {
    fn drop(&mut self) {
        // SAFETY: the owner of the queue is being dropped, so this runs once and the field is not
        // used afterwards.
        let queue = unsafe { ManuallyDrop::take(&mut self.queue) };
        *self.shared.orphan.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }
}

impl<P: Provider> WqShared<P> {
    pub(crate) fn context(&self) -> &Context<P> {
        self.pd.context()
    }

    /// Destroys the WQ. Returns the number of its events that have been read.
    ///
    /// # Safety
    ///
    /// It must not have been destroyed before, and nothing may use the object afterwards.
    unsafe fn destroy(&mut self) -> Result<u32, IoctlError> {
        // SAFETY: the caller's contract is stronger.
        unsafe { self.try_destroy() }.inspect_err(|_| leak_queue(&mut self.orphan))
    }

    /// As `destroy`, but the WQ remains usable if the kernel refuses.
    ///
    /// # Safety
    ///
    /// It must not have been destroyed before. If this succeeds, nothing may use the object
    /// afterwards.
    unsafe fn try_destroy(&mut self) -> Result<u32, IoctlError> {
        // SAFETY: every user of the WQ holds an `Arc` of this, which is borrowed exclusively, so no
        // other user is left.
        let events = unsafe { command::destroy_wq(self.pd.context().file(), self.handle) }?;
        self.destroyed = true;
        Ok(events)
    }
}

impl<P: Provider> Drop for WqShared<P> {
    fn drop(&mut self) {
        if self.released.get() {
            // The kernel object still exists. The caller may free the memory of its receives after
            // it has destroyed the object.
            leak_queue(&mut self.orphan);
        } else if !self.destroyed {
            // SAFETY: it was not destroyed, and is being dropped.
            let _ = unsafe { self.destroy() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_wq_flags_are_named() {
        let none = DeviceCapFlags::empty();
        let lacks = |flags, caps| unsupported_flags(flags, caps, none);
        assert_eq!(lacks(WqFlags::empty(), RawPacketCaps::empty()), None);
        assert_eq!(lacks(WqFlags::CVLAN_STRIPPING, RawPacketCaps::CVLAN_STRIPPING), None);
        let both = WqFlags::CVLAN_STRIPPING | WqFlags::SCATTER_FCS;
        assert_eq!(lacks(both, RawPacketCaps::CVLAN_STRIPPING), Some(Feature::WqScatterFcs));
        assert!(lacks(WqFlags::DELAY_DROP, RawPacketCaps::all() - RawPacketCaps::DELAY_DROP).is_some());
        assert!(lacks(WqFlags::PCI_WRITE_END_PADDING, RawPacketCaps::all()).is_some());
        let padding = DeviceCapFlags::PCI_WRITE_END_PADDING;
        assert_eq!(unsupported_flags(WqFlags::PCI_WRITE_END_PADDING, RawPacketCaps::empty(), padding), None);
        assert!(lacks(WqFlags::from_bits_retain(1 << 20), RawPacketCaps::all()).is_some());
    }
}
