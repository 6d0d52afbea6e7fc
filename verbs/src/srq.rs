//! Shared receive queues.

pub(crate) mod shared;

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::layout::QueueLayout;
use bareverbs_provider::request::{QueueMemory, SrqChange, SrqRequest, XrcSrqRequest};
use bareverbs_provider::traits::{CreatedSrq, Provider, RecvQueue};
use bareverbs_provider::work::RecvRequest;
use rustix::io::Errno;

use self::shared::SrqShared;
use crate::cq::Cq;
use crate::error::{Limit, PostError};
use crate::recv_queue::{post_each, post_receives};
use crate::released::Released;
use crate::untyped::BuiltIn;
use crate::xrcd::Xrcd;
use crate::{AnyProvider, Error, Pd, Refused, Result, locked_memory};

/// Attributes for the creation of an SRQ.
#[doc(alias = "ibv_srq_init_attr")]
#[derive(Clone, Copy, Debug)]
pub struct SrqInit<'a> {
    /// Receives that can be outstanding, at least 1.
    pub max_wr: u32,
    /// SGEs of a receive.
    pub max_sge: u32,
    /// The SRQ limit; see [`Srq::set_limit`]. 0 for none.
    pub limit: u32,
    /// Memory of the queue. ConnectX only: on other devices the kernel allocates it.
    pub memory: QueueMemory<'a>,
    /// Value reported in asynchronous events.
    #[doc(alias = "srq_context")]
    pub user_data: u64,
}

impl SrqInit<'_> {
    /// An SRQ for `max_wr` receives of one SGE each, without a limit.
    #[must_use]
    pub fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1, limit: 0, memory: QueueMemory::BasePages, user_data: 0 }
    }
}

/// Attributes of an SRQ, as reported by the kernel.
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqAttr {
    /// Receives that can be outstanding.
    pub max_wr: u32,
    /// SGEs of a receive.
    pub max_sge: u32,
    /// The SRQ limit. 0 if none is set, or if its event was raised.
    pub limit: u32,
}

/// A receive queue that several QPs share. Each message consumes the oldest posted receive,
/// whichever QP it arrives at. The completion names the QP.
///
/// ```
/// use bareverbs::cq::CqInit;
/// use bareverbs::qp::{QpInit, Rc, RecvRequest};
/// use bareverbs::srq::SrqInit;
/// use bareverbs::{Access, Buffer, Device};
///
/// let context = Device::find("soft0")?.open()?;
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(&CqInit::new(128))?;
/// let mut srq = pd.create_srq(&SrqInit::new(64))?;
/// let init = QpInit { srq: Some(&srq), ..QpInit::new(&cq, &cq) };
/// let qps = [pd.create_qp::<Rc>(&init)?, pd.create_qp::<Rc>(&init)?];
///
/// let buffer = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?;
/// let sge = buffer.sge(..)?;
/// // SAFETY: the buffer is not touched until the completion.
/// unsafe { srq.post_recv(&[RecvRequest { wr_id: 1, sges: &[sge] }]) }?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// It has one owner, who posts. The kernel object is destroyed after the last QP that uses it.
#[doc(alias = "ibv_srq")]
pub struct Srq<P: Provider = AnyProvider> {
    queue: ManuallyDrop<P::Srq>,
    max_sge: u32,
    user_data: u64,
    shared: Arc<SrqShared<P>>,
}

impl<P: Provider> Pd<P> {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 receives or a limit above their number; [`Error::Limit`] for a
    /// depth or a number of SGEs above the device's limit; [`Error::Kernel`].
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq(&self, init: &SrqInit<'_>) -> Result<Srq<P>> {
        Srq::create(self, init)
    }
}

impl<P: Provider> Srq<P> {
    pub(crate) fn create(pd: &Pd<P>, init: &SrqInit<'_>) -> Result<Self> {
        Self::create_for(pd, init, None).map(|(srq, _)| srq)
    }

    /// Creates an SRQ, of an XRC domain if `xrc` is `Some`. Returns it with its SRQ number.
    pub(crate) fn create_for(
        pd: &Pd<P>,
        init: &SrqInit<'_>,
        xrc: Option<(&Xrcd<P>, &Cq<P>)>,
    ) -> Result<(Self, u32)> {
        const VERB: &str = "create_srq";
        let limits = pd.context().limits();
        check_depth(VERB, init.max_wr, limits.max_srq_wr)?;
        Error::check_limit(VERB, Limit::SrqMaxSge, init.max_sge.into(), limits.max_srq_sge.into())?;
        check_srq_limit(VERB, init.limit, init.max_wr)?;
        let SrqInit { max_wr, max_sge, limit, memory, user_data } = *init;
        if let Some((xrcd, cq)) = xrc {
            pd.context().check_same_context(VERB, "XRC domain", xrcd.context().file())?;
            pd.context().check_same_context(VERB, "CQ", cq.shared().context().file())?;
        }
        let request = SrqRequest {
            pd: pd.domain().handle,
            max_wr,
            max_sge,
            limit,
            memory,
            user_handle: user_data,
            xrc: xrc.map(|(xrcd, cq)| XrcSrqRequest { xrcd: xrcd.handle(), cq: cq.shared().handle }),
        };
        // SAFETY: `SrqShared::destroy` keeps the queue until the kernel has destroyed the object,
        // and leaks it otherwise.
        let created = unsafe { pd.context().provider().create_srq(&request) };
        let CreatedSrq { handle, max_sge, srq_num, queue, .. } = created.map_err(|reason| {
            Error::create(VERB, format!("{max_wr} receives of {max_sge} SGEs"), reason)
                .or_hint(|errno| locked_memory::queue_hint(errno, pd.context().provider()))
        })?;
        let shared = SrqShared {
            pd: pd.clone(),
            handle,
            orphan: Mutex::new(None),
            destroyed: false,
            released: Released::default(),
            _xrc: xrc.map(|(xrcd, cq)| (xrcd.clone(), Arc::clone(cq.shared()))),
        };
        let srq = Self { queue: ManuallyDrop::new(queue), max_sge, user_data, shared: Arc::new(shared) };
        Ok((srq, srq_num))
    }

    pub(crate) fn shared(&self) -> &Arc<SrqShared<P>> {
        &self.shared
    }

    /// [`SrqInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// Posts receives.
    ///
    /// # Errors
    /// The first rejected request ends the list. Earlier requests are posted.
    ///
    /// # Safety
    ///
    /// A request is in use until it completes or the SRQ was destroyed: [`Srq::destroy`] returned
    /// `Ok`. A dropped SRQ is destroyed with the last QP that uses it. If the kernel refuses to
    /// destroy the SRQ or such a QP, requests stay in use until the process exits.
    ///
    /// While a request is in use, the memory of its SGEs must stay registered, mapped and
    /// allocated. No code may read or write that memory, except by the copying methods of the MR.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if let [request] = requests
            // SAFETY: the caller upholds the contract for the request.
            && unsafe { self.queue.try_post(request) }
        {
            return Ok(());
        }
        // SAFETY: the caller upholds the contract for every request; none of them has been posted.
        unsafe { self.post_recv_list(requests) }
    }

    /// As [`Srq::post_recv`], of requests that are not in a slice, such as those of a linked list. They are
    /// published together. The first rejected request is the last one that is taken from the iterator.
    ///
    /// ```
    /// # use bareverbs::qp::{RecvRequest, Sge};
    /// # use bareverbs::srq::SrqInit;
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let mut srq = pd.create_srq(&SrqInit::new(16))?;
    /// # let mr = pd.register(bareverbs::Buffer::zeroed(4096)?, bareverbs::Access::LOCAL_WRITE)?;
    /// let buffer = |at: usize| bareverbs::Result::Ok([mr.sge(at * 1024..(at + 1) * 1024)?]);
    /// let buffers: Vec<[Sge; 1]> = (0..4).map(buffer).collect::<bareverbs::Result<_>>()?;
    /// let requests = buffers.iter().zip(0..).map(|(sges, wr_id)| RecvRequest { wr_id, sges });
    /// // SAFETY: the memory is not used before the receives complete.
    /// unsafe { srq.post_recv_each(requests) }?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Srq::post_recv`].
    ///
    /// # Safety
    ///
    /// As for [`Srq::post_recv`].
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_recv_each<'r>(
        &mut self,
        requests: impl IntoIterator<Item = RecvRequest<'r>>,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { post_each(&mut *self.queue, requests) }
    }

    /// Posts a receive by the fast path alone. `false`: it was not posted, and [`Srq::post_recv`] posts
    /// it.
    ///
    /// # Safety
    ///
    /// As for [`Srq::post_recv`].
    #[inline(always)]
    pub unsafe fn try_post_recv(&mut self, request: &RecvRequest<'_>) -> bool {
        // SAFETY: the caller's contract is the same.
        unsafe { self.queue.try_post(request) }
    }

    /// Posts any receives by the slow path.
    ///
    /// # Safety
    ///
    /// As for [`Srq::post_recv`].
    #[inline(never)]
    unsafe fn post_recv_list(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { post_receives(&mut *self.queue, requests) }
    }

    /// Receives that can be outstanding, at least as many as requested.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// SGEs of a receive.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The addresses of its ring and doorbell record, as for [`Cq::layout`].
    ///
    /// ```
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let srq = pd.create_srq(&bareverbs::srq::SrqInit::new(32))?;
    /// if let Some(layout) = srq.layout() {
    ///     println!("{} slots of {} bytes at {:?}", layout.slots, layout.stride, layout.ring);
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    #[doc(alias = "mlx5dv_srq")]
    #[must_use]
    pub fn layout(&self) -> Option<QueueLayout> {
        self.queue.layout()
    }

    /// The protection domain of the SRQ.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.shared.pd
    }

    /// Queries the attributes from the kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        let resp = command::query_srq(self.pd().context().file(), self.shared.handle).map_err(|refused| {
            Error::kernel("query_srq", format!("SRQ handle {}", self.shared.handle), refused)
        })?;
        Ok(SrqAttr { max_wr: resp.max_wr, max_sge: resp.max_sge, limit: resp.srq_limit })
    }

    /// Arms one [event](crate::AsyncEvent::Srq), raised when a message leaves fewer than `limit`
    /// receives posted. 0 disarms it. The limit becomes 0 when the event is raised.
    ///
    /// ```
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let mut srq = pd.create_srq(&bareverbs::srq::SrqInit::new(32))?;
    /// use bareverbs::AsyncEvent;
    ///
    /// srq.set_limit(16)?;
    /// # example::receive_one(&mut srq)?;
    /// if let AsyncEvent::Srq { user_data, .. } = srq.pd().context().async_events().next().wait()? {
    ///     println!("fewer than 16 receives are left in {user_data}: post receives, then set the limit again");
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: `limit` is above the capacity.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    pub fn set_limit(&mut self, limit: u32) -> Result<()> {
        const VERB: &str = "modify_srq";
        check_srq_limit(VERB, limit, self.capacity())?;
        self.modify(SrqChange::Limit(limit))
            .map_err(|reason| Error::create(VERB, format!("limit {limit}"), reason))
    }

    /// Resizes the queue to at least `max_wr` receives. Posted receives stay. Messages may arrive
    /// during the resize.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: `max_wr` is 0 or below the number of posted receives.
    /// - [`Error::Limit`]: `max_wr` is above the device's `max_srq_wr`.
    /// - [`Error::Kernel`] with `EINVAL`: `max_wr` is below the SRQ limit.
    /// - [`Error::Provider`], or [`Error::Kernel`] for `mmap`: the kernel resized the queue, but
    ///   its new memory cannot be used. Posting then fails with
    ///   [`PushError::QueueLost`](crate::error::PushError::QueueLost) until a resize succeeds.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_MAX_WR")]
    pub fn resize(&mut self, max_wr: u32) -> Result<()> {
        const VERB: &str = "modify_srq";
        check_depth(VERB, max_wr, self.pd().context().limits().max_srq_wr)?;
        // Early 6.1 kernels free the queue on such a resize and crash later (`rxe_srq_from_attr`
        // of `rxe_srq.c`).
        let posted = self.queue.posted();
        if posted > max_wr {
            let reason = format!(
                "{posted} posted receives exceed the new capacity of {max_wr}: wait until messages \
                 consume some"
            );
            return Err(Error::invalid(VERB, reason));
        }
        self.modify(SrqChange::MaxWr(max_wr)).map_err(|reason| {
            Error::create(VERB, format!("capacity of {max_wr} receives"), reason).or_hint(|errno| {
                (errno == Errno::INVAL)
                    .then(|| "the armed limit may exceed it: disarm it with `set_limit(0)`".to_owned())
            })
        })
    }

    /// Destroys the SRQ. Returns the number of its [events](crate::AsyncEvent::Srq) that have been
    /// read; unread events are discarded. Drop ignores errors, and the SRQ is destroyed after its
    /// last QP.
    ///
    /// # Errors
    /// The SRQ and the reason:
    ///
    /// - [`Error::Invalid`]: QPs still use the SRQ.
    /// - [`Error::Kernel`]: the kernel refuses to destroy it. Its posted receives stay in use.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(mut self) -> Result<u32, Refused<Self>> {
        const VERB: &str = "destroy_srq";
        let Some(shared) = Arc::get_mut(&mut self.shared) else {
            let error = Error::in_use(VERB, "QPs still use it: drop them first");
            return Err(Refused::new(error, self));
        };
        // SAFETY: `self` is the last owner, and the SRQ was not destroyed before. If this succeeds,
        // `self` is dropped next.
        match unsafe { shared.try_destroy() } {
            Ok(events) => Ok(events),
            Err(refused) => {
                let asked = format!("SRQ handle {}", shared.handle);
                Err(Refused::new(Error::kernel(VERB, asked, refused), self))
            }
        }
    }

    fn modify(&mut self, change: SrqChange) -> Result<(), crate::error::CreateError> {
        let context = self.shared.pd.context();
        // Providers access the ring first, and a forked child does not have it.
        context.file().check_same_process().map_err(|errno| IoctlError::new("ModifySrq", errno))?;
        let provider = context.provider();
        // SAFETY: handle and queue came from one `create_srq`, and nothing separates them.
        unsafe { provider.modify_srq(self.shared.handle, &mut self.queue, change) }
    }
}

impl Srq {
    /// As [`Srq::try_post_recv`], without the branch over providers.
    ///
    /// # Safety
    ///
    /// As for [`Srq::post_recv`]. The device has this provider.
    #[inline(always)]
    pub unsafe fn try_post_recv_of<P: BuiltIn>(&mut self, request: &RecvRequest<'_>) -> bool {
        // SAFETY: the provider of a device creates its queues, and it is this one by the contract.
        let queue = unsafe { P::srq(&mut self.queue).unwrap_unchecked() };
        // SAFETY: the caller's contract is the same.
        unsafe { queue.try_post(request) }
    }
}

fn check_depth(verb: &'static str, max_wr: u32, max: u32) -> Result<()> {
    if max_wr == 0 {
        return Err(Error::empty(verb, "an SRQ requires a capacity of at least 1 receive"));
    }
    Error::check_limit(verb, Limit::SrqMaxWr, max_wr.into(), max.into())
}

fn check_srq_limit(verb: &'static str, limit: u32, holds: u32) -> Result<()> {
    if limit <= holds {
        return Ok(());
    }
    let reason = format!("limit {limit} exceeds the capacity of {holds} receives");
    Err(Error::invalid(verb, reason))
}

impl<P: Provider> Drop for Srq<P> {
    fn drop(&mut self) {
        // SAFETY: the owner of the queue is being dropped, so this runs once and the field is not
        // used afterwards.
        let queue = unsafe { ManuallyDrop::take(&mut self.queue) };
        *self.shared.orphan.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::error::{PostReason, PushError};
    use crate::testing::Plain;

    #[test]
    fn receives_of_an_iterator_are_published_together() {
        let plain = Plain::default();
        let mut srq = plain.domain().create_srq(&SrqInit::new(4)).unwrap();
        let receive = |wr_id| RecvRequest { wr_id, sges: &[] };
        // SAFETY: the requests name no memory.
        unsafe { srq.post_recv_each((1..4).map(receive)) }.unwrap();
        assert_eq!(plain.log().received, [1, 2, 3]);

        let full = PushError::QueueFull { capacity: 1 };
        plain.log().rejections.push_back(full);
        let mut requests = (4..9).map(receive);
        // SAFETY: as above.
        let refused = unsafe { srq.post_recv_each(&mut requests) }.unwrap_err();
        assert!(matches!(refused, PostError { accepted: 0, reason: PostReason::Queue(_) }), "{refused:?}");
        assert_eq!(requests.next().map(|request| request.wr_id), Some(5), "the rejected one was the last");

        let panics = AssertUnwindSafe(|| {
            // SAFETY: as above.
            unsafe {
                srq.post_recv_each(
                    (9..).map(|wr_id| if wr_id < 11 { receive(wr_id) } else { panic!("a bug") }),
                )
            }
        });
        assert!(catch_unwind(panics).is_err());
        assert_eq!(plain.log().received, [1, 2, 3, 9, 10]);
    }
}
