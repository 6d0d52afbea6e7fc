//! Shared receive queues.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use bareverbs_provider::command;
use bareverbs_provider::contract::{CreatedSrq, Provider, RecvQueue, SrqChange, SrqRequest, XrcSrqRequest};
use bareverbs_provider::device::IoctlError;
use rustix::io::Errno;

use crate::cq::CqShared;
use crate::qp::post_receives;
use crate::{AnyProvider, Context, Cq, Error, Pd, PostError, QueueMemory, RecvRequest, Result, Xrcd};

/// What a shared receive queue is to be.
#[doc(alias = "ibv_srq_init_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Receives that can be outstanding, at least 1.
    pub max_wr: u32,
    /// Scatter elements of a receive.
    pub max_sge: u32,
    /// As in [`Srq::set_limit`].
    pub limit: u32,
    /// What pages its memory lies in. ConnectX only: elsewhere the kernel chooses.
    pub memory: QueueMemory,
    /// Comes back in asynchronous events.
    pub user_data: u64,
}

impl SrqInit {
    /// A queue for `max_wr` receives of one element each, without limit.
    #[must_use]
    pub fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1, limit: 0, memory: QueueMemory::Ordinary, user_data: 0 }
    }
}

/// What the kernel says of a shared receive queue.
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqAttr {
    /// Receives that can be outstanding.
    pub max_wr: u32,
    /// Scatter elements of a receive.
    pub max_sge: u32,
    /// The limit; 0 for none, or where its event was raised.
    pub limit: u32,
}

/// A receive queue that several queue pairs share: each message takes the receive that was posted
/// first, whichever queue pair it comes to. The completion tells which one that was.
///
/// ```no_run
/// use bareverbs::{Access, Buffer, CqInit, Device, QpInit, Rc, RecvRequest, SrqInit};
///
/// let context = Device::find("rxe0")?.open()?;
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
/// It has one owner, who posts. Queue pairs keep the kernel's side of it alive for as long as they
/// need it.
#[doc(alias = "ibv_srq")]
pub struct Srq<P: Provider = AnyProvider> {
    queue: ManuallyDrop<P::Srq>,
    max_sge: u32,
    user_data: u64,
    shared: Arc<SrqShared<P>>,
}

/// What queue pairs hold of a shared receive queue.
pub(crate) struct SrqShared<P: Provider> {
    pd: Pd<P>,
    pub(crate) handle: u32,
    /// The queue's memory, left here by an owner who went before the last queue pair: receives in
    /// it are still good.
    orphan: Mutex<Option<P::Srq>>,
    destroyed: bool,
    /// Of XRC: the domain, and the queue for its completions. The kernel's side of them is given
    /// back after its own.
    _xrc: Option<(Xrcd<P>, Arc<CqShared<P>>)>,
}

impl<P: Provider> Srq<P> {
    pub(crate) fn create(pd: &Pd<P>, init: &SrqInit) -> Result<Self> {
        Self::create_for(pd, init, None).map(|(srq, _)| srq)
    }

    /// A queue of an XRC domain, where there is one; with its number on the wire.
    pub(crate) fn create_for(
        pd: &Pd<P>,
        init: &SrqInit,
        xrc: Option<(&Xrcd<P>, &Cq<P>)>,
    ) -> Result<(Self, u32)> {
        const VERB: &str = "create_srq";
        let limits = pd.context().limits();
        check_depth(VERB, init.max_wr, limits.max_srq_wr)?;
        Error::check_limit(VERB, "max_sge", init.max_sge.into(), limits.max_srq_sge.into())?;
        check_srq_limit(VERB, init.limit, init.max_wr)?;
        let SrqInit { max_wr, max_sge, limit, memory, user_data } = *init;
        if let Some((xrcd, cq)) = xrc {
            pd.context().check_same_context(VERB, "XRC domain", xrcd.context().file())?;
            pd.context().check_same_context(VERB, "completion queue", cq.shared().context().file())?;
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
            Error::create(VERB, format!("{max_wr} receives of {max_sge} elements"), reason)
        })?;
        let shared = SrqShared {
            pd: pd.clone(),
            handle,
            orphan: Mutex::new(None),
            destroyed: false,
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
    /// The first request that is refused ends the list; those before it are posted.
    ///
    /// # Safety
    ///
    /// A request is in use until it is complete or the queue was destroyed: [`Srq::destroy`]
    /// returned `Ok`. A dropped queue is destroyed with the last queue pair that shares it. Where
    /// the kernel refuses to destroy it or such a queue pair, requests stay in use for the life of
    /// the process. While a request is in use, the memory that its elements name must stay
    /// registered, mapped and allocated, and nobody may look at it or change it, except by the
    /// copying methods of the region.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if let [request] = requests
            // SAFETY: the caller vouches for the request.
            && unsafe { self.queue.try_post(request) }
        {
            return Ok(());
        }
        // SAFETY: the caller vouches for every request; none of them has been posted.
        unsafe { self.post_recv_list(requests) }
    }

    /// Posts any receives.
    ///
    /// # Safety
    ///
    /// As for [`Srq::post_recv`].
    #[inline(never)]
    unsafe fn post_recv_list(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { post_receives(&mut *self.queue, requests) }
    }

    /// Receives that can be outstanding, at least as many as asked for.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Scatter elements of a receive.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The protection domain that it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.shared.pd
    }

    /// What the kernel says of it.
    ///
    /// # Errors
    /// The kernel refuses.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        let resp = command::query_srq(self.pd().context().file(), self.shared.handle)
            .map_err(|refused| Error::kernel("query_srq", "its attributes", refused))?;
        Ok(SrqAttr { max_wr: resp.max_wr, max_sge: resp.max_sge, limit: resp.srq_limit })
    }

    /// Asks for one [event](crate::AsyncEvent::Srq) when a message leaves fewer than `limit`
    /// receives posted; 0 asks for none. The limit is gone when the event has been raised.
    ///
    /// ```no_run
    /// # fn refill(srq: &mut bareverbs::Srq) -> bareverbs::Result<()> {
    /// use bareverbs::AsyncEvent;
    ///
    /// srq.set_limit(16)?;
    /// if let AsyncEvent::Srq { user_data, .. } = srq.pd().context().async_events().get()? {
    ///     println!("fewer than 16 receives are left in {user_data}: post, and ask again");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] where it is above what the queue holds; the kernel refuses.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&mut self, limit: u32) -> Result<()> {
        const VERB: &str = "modify_srq";
        check_srq_limit(VERB, limit, self.capacity())?;
        self.modify(SrqChange::Limit(limit))
            .map_err(|reason| Error::create(VERB, format!("limit {limit}"), reason))
    }

    /// Makes room for at least `max_wr` receives; those that are posted stay. Messages may come in
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 or fewer than are posted, [`Error::Limit`] for more than the
    /// device's `max_srq_wr`; the kernel refuses fewer than the limit. An [`Error::Provider`], or a
    /// refusal of `mmap`, says that the kernel resized the queue but its new memory cannot be used:
    /// then posting fails with [`PushError::QueueLost`](crate::PushError::QueueLost) until a resize
    /// succeeds.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&mut self, max_wr: u32) -> Result<()> {
        const VERB: &str = "modify_srq";
        check_depth(VERB, max_wr, self.pd().context().limits().max_srq_wr)?;
        // Asked for that, early kernels 6.1 give the queue up and fall over it later
        // (`rxe_srq_from_attr` of `rxe_srq.c`).
        let posted = self.queue.posted();
        if posted > max_wr {
            let reason = format!(
                "{posted} receives are posted, more than the {max_wr} there shall be room for: let messages take some first"
            );
            return Err(Error::invalid(VERB, reason));
        }
        self.modify(SrqChange::MaxWr(max_wr)).map_err(|reason| {
            Error::create(VERB, format!("room for {max_wr} receives"), reason).or_hint(|errno| {
                (errno == Errno::INVAL)
                    .then(|| "the limit may be higher than that: take it back by `set_limit(0)`".to_owned())
            })
        })
    }

    /// Destroys it and tells how many of its [events](crate::AsyncEvent::Srq) have been read;
    /// events that were not are gone. Dropping does the same in silence, and waits for the queue
    /// pairs.
    ///
    /// # Errors
    /// [`Error::Invalid`] where queue pairs still use it, with the last of which it goes; the
    /// kernel refuses.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(self) -> Result<u32> {
        const VERB: &str = "destroy_srq";
        let shared = Arc::clone(&self.shared);
        drop(self);
        let Some(mut shared) = Arc::into_inner(shared) else {
            return Err(Error::invalid(VERB, "queue pairs still use it: drop them first"));
        };
        // SAFETY: `shared` is the last owner, and was not destroyed before.
        unsafe { shared.destroy() }.map_err(|refused| Error::kernel(VERB, "a shared receive queue", refused))
    }

    fn modify(&mut self, change: SrqChange) -> Result<(), crate::CreateError> {
        let context = self.shared.pd.context();
        // Providers begin with the ring, which a forked child does not have.
        context.file().check_same_process().map_err(|errno| IoctlError { method: "ModifySrq", errno })?;
        let provider = context.provider();
        // SAFETY: handle and queue came from one `create_srq`, and nothing takes them apart.
        unsafe { provider.modify_srq(self.shared.handle, &mut self.queue, change) }
    }
}

fn check_depth(verb: &'static str, max_wr: u32, max: u32) -> Result<()> {
    if max_wr == 0 {
        return Err(Error::invalid(verb, "a shared receive queue must hold at least 1 receive"));
    }
    Error::check_limit(verb, "max_wr", max_wr.into(), max.into())
}

fn check_srq_limit(verb: &'static str, limit: u32, holds: u32) -> Result<()> {
    if limit <= holds {
        return Ok(());
    }
    let reason = format!("a limit of {limit} is above the {holds} receives that the queue holds");
    Err(Error::invalid(verb, reason))
}

impl<P: Provider> Drop for Srq<P> {
    fn drop(&mut self) {
        // SAFETY: the owner of the queue is being dropped, so this runs once and nothing uses the
        // field afterwards.
        let queue = unsafe { ManuallyDrop::take(&mut self.queue) };
        *self.shared.orphan.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }
}

impl<P: Provider> SrqShared<P> {
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
        // SAFETY: all that names the queue keeps this, so nothing does any more.
        let resp =
            unsafe { command::destroy_srq(self.pd.context().file(), self.handle) }.inspect_err(|_| {
                // The device may go on using the ring, so it is leaked.
                let orphan = self.orphan.get_mut().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(mut queue) = orphan.map(ManuallyDrop::new) {
                    queue.abandon();
                }
            })?;
        Ok(resp.events_reported)
    }
}

impl<P: Provider> Drop for SrqShared<P> {
    fn drop(&mut self) {
        if !self.destroyed {
            // SAFETY: it was not destroyed, and is being dropped.
            let _ = unsafe { self.destroy() };
        }
    }
}
