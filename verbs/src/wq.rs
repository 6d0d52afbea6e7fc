//! Work queues: receives without a queue pair of their own.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use bareverbs_provider::command;
use bareverbs_provider::contract::{Provider, RecvQueue};
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::rss::{CreatedWq, WqChange, WqRequest};
use bareverbs_uapi::uverbs::types::WqFlags;
use bareverbs_uapi::verbs_values::WqState;
use bareverbs_uapi::write::types::{DeviceCapFlags, RawPacketCaps};
use rustix::io::Errno;

use crate::cq::CqShared;
use crate::qp::post_receives;
use crate::{AnyProvider, Context, Cq, Error, Pd, PostError, PostReason, QueueMemory, RecvRequest, Result};

const MODIFY: &str = "modify_wq";

/// What a work queue is to be.
#[doc(alias = "ibv_wq_init_attr")]
pub struct WqInit<'a, P: Provider = AnyProvider> {
    /// The queue for its completions.
    pub cq: &'a Cq<P>,
    /// Receives that can be outstanding, at least 1.
    pub max_recv_wr: u32,
    /// Scatter elements of a receive.
    pub max_recv_sge: u32,
    /// What becomes of frames on their way into it: whether their VLAN tag is taken out, say. What
    /// the device can do of that, it tells in
    /// [`DeviceAttr::raw_packet_caps`](crate::DeviceAttr::raw_packet_caps).
    pub flags: WqFlags,
    /// What pages its memory lies in.
    pub memory: QueueMemory,
    /// Comes back in [asynchronous events](crate::AsyncEvent::Wq).
    pub user_data: u64,
}

impl<'a, P: Provider> WqInit<'a, P> {
    /// A queue for `max_recv_wr` receives of one element each, which get frames as they are.
    #[must_use]
    pub fn new(cq: &'a Cq<P>, max_recv_wr: u32) -> Self {
        let (flags, memory) = (WqFlags::empty(), QueueMemory::Ordinary);
        Self { cq, max_recv_wr, max_recv_sge: 1, flags, memory, user_data: 0 }
    }
}

/// A work queue: receives that belong to no queue pair, for the frames that an
/// [`RssQp`](crate::RssQp) spreads over several such queues of an
/// [`IndirectionTable`](crate::IndirectionTable). On devices with
/// [`Capabilities::work_queues`](crate::Capabilities::work_queues).
///
/// It is made in RESET, takes receives and frames in RDY, and none in ERR:
///
/// ```no_run
/// use bareverbs::{Access, Buffer, CqInit, Device, RecvRequest, WqInit};
///
/// let context = Device::find("mlx5_0")?.open()?;
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(&CqInit::new(64))?;
/// let mut wq = pd.create_wq(&WqInit::new(&cq, 64))?;
/// wq.ready()?;
/// let buffer = pd.register(Buffer::zeroed(2048)?, Access::LOCAL_WRITE)?;
/// let sge = buffer.sge(..)?;
/// // SAFETY: the buffer is not touched until the completion.
/// unsafe { wq.post_recv(&[RecvRequest { wr_id: 1, sges: &[sge] }]) }?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// It has one owner, who posts. Tables keep the kernel's side of it alive for as long as they need
/// it: what was posted is good until the last of them goes.
#[doc(alias = "ibv_wq")]
pub struct Wq<P: Provider = AnyProvider> {
    queue: ManuallyDrop<P::Rq>,
    state: WqState,
    wq_num: u32,
    max_recv_sge: u32,
    user_data: u64,
    shared: Arc<WqShared<P>>,
}

/// What tables hold of a work queue.
pub(crate) struct WqShared<P: Provider> {
    pd: Pd<P>,
    pub(crate) handle: u32,
    /// The queue's memory, left here by an owner who went before the last table: receives in it are
    /// still good.
    orphan: Mutex<Option<P::Rq>>,
    destroyed: bool,
    /// The kernel's side of it is given back after its own.
    _cq: Arc<CqShared<P>>,
}

impl<P: Provider> Wq<P> {
    pub(crate) fn create(pd: &Pd<P>, init: &WqInit<'_, P>) -> Result<Self> {
        const VERB: &str = "create_wq";
        let context = pd.context();
        let WqInit { cq, max_recv_wr, max_recv_sge, flags, memory, user_data } = *init;
        if !context.capabilities().work_queues {
            return Err(Error::Unsupported { verb: VERB, what: "work queues are" });
        }
        if max_recv_wr == 0 {
            return Err(Error::invalid(VERB, "a work queue must hold at least 1 receive"));
        }
        let limits = context.limits();
        Error::check_limit(VERB, "max_recv_wr", max_recv_wr.into(), limits.max_qp_wr.into())?;
        Error::check_limit(VERB, "max_recv_sge", max_recv_sge.into(), limits.max_sge.into())?;
        context.check_same_context(VERB, "completion queue", cq.shared().context().file())?;
        let attr = &context.inner().device_attr;
        if let Some(what) = unsupported_flags(flags, attr.raw_packet_caps, attr.device_cap_flags_ex) {
            return Err(Error::Unsupported { verb: VERB, what });
        }
        let request = WqRequest {
            pd: pd.domain().handle,
            cq: cq.shared().handle,
            max_wr: max_recv_wr,
            max_sge: max_recv_sge,
            flags,
            memory,
            user_handle: user_data,
        };
        // SAFETY: `WqShared::destroy` keeps the queue until the kernel has destroyed the object,
        // and leaks it otherwise.
        let created = unsafe { context.provider().create_wq(&request) }.map_err(|reason| {
            let asked = format!("{max_recv_wr} receives of {max_recv_sge} elements, {flags:?}");
            Error::create(VERB, asked, reason).or_hint(|errno| {
                (errno == Errno::PERM && flags.contains(WqFlags::DELAY_DROP))
                    .then(|| "DELAY_DROP requires CAP_SYS_RAWIO".into())
            })
        })?;
        let CreatedWq { handle, wq_num, max_sge, queue, .. } = created;
        let shared = WqShared {
            pd: pd.clone(),
            handle,
            orphan: Mutex::new(None),
            destroyed: false,
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

    /// Its number.
    #[must_use]
    pub fn wq_num(&self) -> u32 {
        self.wq_num
    }

    /// The state that it was last brought to. Where it can't write what it received it goes to ERR
    /// by itself, which the receive's completion tells: [`Wq::reset`] takes it from there.
    #[must_use]
    pub fn state(&self) -> WqState {
        self.state
    }

    /// [`WqInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// Receives that can be outstanding, at least as many as asked for.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Scatter elements of a receive, at least as many as asked for.
    #[must_use]
    pub fn max_recv_sge(&self) -> u32 {
        self.max_recv_sge
    }

    /// The protection domain that it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.shared.pd
    }

    /// RESET → RDY: receives can be posted, and frames come.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; the kernel refuses.
    #[doc(alias = "ibv_modify_wq")]
    #[doc(alias = "IBV_WQS_RDY")]
    pub fn ready(&mut self) -> Result<()> {
        if self.state != WqState::RESET {
            let reason = format!("the work queue is in {:?}, not in RESET: reset it first", self.state);
            return Err(Error::invalid(MODIFY, reason));
        }
        // SAFETY: the state is not RESET.
        unsafe { self.modify_state(WqState::RDY) }
    }

    /// RDY → ERR: no more frames come, and everything that is posted completes as
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
    ///
    /// # Errors
    /// [`Error::Invalid`] in RESET; the kernel refuses.
    #[doc(alias = "ibv_modify_wq")]
    #[doc(alias = "IBV_WQS_ERR")]
    pub fn set_error(&mut self) -> Result<()> {
        if self.state == WqState::RESET {
            return Err(Error::invalid(MODIFY, "the work queue is in RESET, where nothing is posted"));
        }
        // SAFETY: the state is not RESET.
        unsafe { self.modify_state(WqState::ERR) }
    }

    /// To RESET, from any state: it is emptied without completions, and can be made ready again.
    /// What it completed before and was not polled may be gone too.
    ///
    /// # Errors
    /// The kernel refuses.
    #[doc(alias = "ibv_modify_wq")]
    #[doc(alias = "IBV_WQS_RESET")]
    pub fn reset(&mut self) -> Result<()> {
        // SAFETY: the queue is reset below.
        unsafe { self.modify_state(WqState::RESET) }?;
        // SAFETY: the kernel has just brought it to RESET, which only `&mut self` could change.
        unsafe { self.queue.reset() };
        Ok(())
    }

    /// # Safety
    ///
    /// The caller must reset the queue after a change to RESET that has succeeded.
    unsafe fn modify_state(&mut self, to: WqState) -> Result<()> {
        let provider = self.shared.pd.context().provider();
        let step = |from| {
            // SAFETY: the work queue is this value's, and the caller resets its queue after RESET.
            unsafe { provider.modify_wq(self.shared.handle, WqChange::State { from, to }) }
        };
        let mut done = step(self.state);
        if done.is_err() && self.state == WqState::RDY && step(WqState::ERR).is_ok() {
            // It had gone there by itself.
            done = Ok(());
        }
        done.map_err(|reason| {
            Error::create(MODIFY, format!("WQ {:#x} from {:?} to {to:?}", self.wq_num, self.state), reason)
        })?;
        self.state = to;
        Ok(())
    }

    /// Whether VLAN tags of frames are taken out from here on, in any state.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device does not do that; the kernel refuses.
    #[doc(alias = "ibv_modify_wq")]
    #[doc(alias = "IBV_WQ_FLAGS_CVLAN_STRIPPING")]
    pub fn strip_vlan(&mut self, strip: bool) -> Result<()> {
        let (context, which) = (self.shared.pd.context(), WqFlags::CVLAN_STRIPPING);
        let attr = &context.inner().device_attr;
        if let Some(what) = unsupported_flags(which, attr.raw_packet_caps, attr.device_cap_flags_ex) {
            return Err(Error::Unsupported { verb: MODIFY, what });
        }
        let flags = if strip { which } else { WqFlags::empty() };
        // SAFETY: the work queue is this value's, and its state stays.
        unsafe { context.provider().modify_wq(self.shared.handle, WqChange::Flags { which, flags }) }
            .map_err(|reason| Error::create(MODIFY, format!("WQ {:#x}, {flags:?}", self.wq_num), reason))
    }

    /// Posts receives, in RDY.
    ///
    /// # Errors
    /// The first request that is refused ends the list; those before it are posted.
    ///
    /// # Safety
    ///
    /// A request is in use until it is complete, the queue was brought to RESET ([`Wq::reset`]
    /// returned `Ok`) or destroyed ([`Wq::destroy`] returned `Ok`). A dropped queue is destroyed
    /// with the last table that it is in. Where the kernel refuses to destroy it, such a table or a
    /// queue pair of one, requests stay in use for the life of the process. While a request is in
    /// use, the memory that its elements name must stay registered, mapped and allocated, and
    /// nobody may look at it or change it, except by the copying methods of the region.
    #[doc(alias = "ibv_post_wq_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if let ([request], WqState::RDY) = (requests, self.state)
            // SAFETY: the caller vouches for the request.
            && unsafe { self.queue.try_post(request) }
        {
            return Ok(());
        }
        // SAFETY: the caller vouches for every request; none of them has been posted.
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
        // SAFETY: the caller's promise is the same.
        unsafe { post_receives(&mut *self.queue, requests) }
    }

    /// Destroys it and tells how many of its [events](crate::AsyncEvent::Wq) have been read; events
    /// that were not are gone. Dropping does the same in silence, and waits for the tables.
    ///
    /// # Errors
    /// [`Error::Invalid`] where tables still hold it, with the last of which it goes; the kernel
    /// refuses.
    #[doc(alias = "ibv_destroy_wq")]
    pub fn destroy(self) -> Result<u32> {
        const VERB: &str = "destroy_wq";
        let shared = Arc::clone(&self.shared);
        drop(self);
        let Some(mut shared) = Arc::into_inner(shared) else {
            return Err(Error::invalid(VERB, "indirection tables still hold it: drop them first"));
        };
        // SAFETY: `shared` is the last owner, and was not destroyed before.
        unsafe { shared.destroy() }.map_err(|refused| Error::kernel(VERB, "a work queue", refused))
    }
}

/// What of the flags a device lacks that has these capabilities.
fn unsupported_flags(flags: WqFlags, caps: RawPacketCaps, device: DeviceCapFlags) -> Option<&'static str> {
    let has = |cap| caps.contains(cap);
    let offered = [
        (
            WqFlags::CVLAN_STRIPPING,
            has(RawPacketCaps::CVLAN_STRIPPING),
            "work queues with CVLAN stripping are",
        ),
        (WqFlags::SCATTER_FCS, has(RawPacketCaps::SCATTER_FCS), "work queues with FCS scattering are"),
        (WqFlags::DELAY_DROP, has(RawPacketCaps::DELAY_DROP), "work queues with delay drop are"),
        (
            WqFlags::PCI_WRITE_END_PADDING,
            device.contains(DeviceCapFlags::PCI_WRITE_END_PADDING),
            "work queues with PCI write end padding are",
        ),
    ];
    let known = offered.iter().fold(WqFlags::empty(), |known, (flag, ..)| known | *flag);
    if flags.intersects(known.complement()) {
        return Some("unknown work queue flags are");
    }
    offered.into_iter().find(|(flag, offered, _)| flags.contains(*flag) && !offered).map(|(.., what)| what)
}

impl<P: Provider> Drop for Wq<P> {
    fn drop(&mut self) {
        // SAFETY: the owner of the queue is being dropped, so this runs once and nothing uses the
        // field afterwards.
        let queue = unsafe { ManuallyDrop::take(&mut self.queue) };
        *self.shared.orphan.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }
}

impl<P: Provider> WqShared<P> {
    pub(crate) fn context(&self) -> &Context<P> {
        self.pd.context()
    }

    /// Tells how many of its events have been read.
    ///
    /// # Safety
    ///
    /// It must not have been destroyed before, and nothing may use the object afterwards.
    unsafe fn destroy(&mut self) -> Result<u32, IoctlError> {
        self.destroyed = true;
        // SAFETY: all that names the work queue keeps this, so nothing does any more.
        unsafe { command::destroy_wq(self.pd.context().file(), self.handle) }.inspect_err(|_| {
            // The device may go on using the ring, so it is leaked.
            let orphan = self.orphan.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(mut queue) = orphan.map(ManuallyDrop::new) {
                queue.abandon();
            }
        })
    }
}

impl<P: Provider> Drop for WqShared<P> {
    fn drop(&mut self) {
        if !self.destroyed {
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
        let what = lacks(both, RawPacketCaps::CVLAN_STRIPPING).expect("one is lacking");
        assert!(what.contains("FCS"), "{what}");
        assert!(lacks(WqFlags::DELAY_DROP, RawPacketCaps::all() - RawPacketCaps::DELAY_DROP).is_some());
        assert!(lacks(WqFlags::PCI_WRITE_END_PADDING, RawPacketCaps::all()).is_some());
        let padding = DeviceCapFlags::PCI_WRITE_END_PADDING;
        assert_eq!(unsupported_flags(WqFlags::PCI_WRITE_END_PADDING, RawPacketCaps::empty(), padding), None);
        assert!(lacks(WqFlags::from_bits_retain(1 << 20), RawPacketCaps::all()).is_some());
    }
}
