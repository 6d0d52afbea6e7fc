//! Completion queues.

use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use bareverbs_provider::command;
use bareverbs_provider::contract::{CompletionQueue, CqRequest, CreatedCq, Provider};
use bareverbs_provider::device::IoctlError;
use bareverbs_uapi::write::structs::DestroyCqResp;

use crate::{AnyProvider, CompChannel, Context, Error, QueueMemory, Result, WorkCompletion};

/// What a completion queue is to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqInit<'a> {
    /// Completions it must hold, at least 1.
    pub entries: u32,
    /// The channel that gets its events.
    pub channel: Option<&'a CompChannel>,
    /// Which of the device's completion vectors raises them.
    pub vector: u32,
    /// Whether completions are to tell when they were made, by
    /// [`Completion::timestamp`](crate::Completion::timestamp); those of requests that failed do
    /// not.
    ///
    /// ```no_run
    /// # fn when(context: &bareverbs::Context) -> bareverbs::Result<()> {
    /// use bareverbs::{Completion, CqInit};
    ///
    /// let mut cq = context.create_cq(&CqInit { timestamps: true, ..CqInit::new(16) })?;
    /// let now = context.raw_clock()?;
    /// let mut completions = cq.poll();
    /// while let Some(completion) = completions.next() {
    ///     if let Some(then) = completion.timestamp() {
    ///         println!("{} was done {} ticks ago", completion.wr_id(), now - then);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub timestamps: bool,
    /// Whether the device may compress runs of completions that are alike, which spares it traffic
    /// on its bus. What completions tell stays the same, but for their [times](Self::timestamps),
    /// which may be those of the run; and they may come a little later, for the device waits
    /// whether a run goes on.
    #[doc(alias = "MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE")]
    pub compressed: bool,
    /// What pages its memory lies in, also after a [resize](Cq::resize). ConnectX only: elsewhere
    /// the kernel chooses.
    pub memory: QueueMemory,
    /// Comes back in its [completion](crate::CompEvent) and [asynchronous](crate::AsyncEvent::Cq)
    /// events.
    pub user_data: u64,
}

impl CqInit<'_> {
    /// A queue for `entries` completions, without events.
    #[must_use]
    pub fn new(entries: u32) -> Self {
        Self { entries, ..Self::default() }
    }
}

/// Which completion raises an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next one.
    Any,
    /// The next one whose sender asked for it, or that failed.
    Solicited,
}

/// A completion queue.
///
/// It has one owner, who polls it. Queue pairs keep the kernel's side of it alive for as long as
/// they need it.
#[doc(alias = "ibv_cq")]
pub struct Cq<P: Provider = AnyProvider> {
    queue: ManuallyDrop<P::Cq>,
    shared: Arc<CqShared<P>>,
}

/// What queue pairs hold of a completion queue.
pub(crate) struct CqShared<P: Provider> {
    context: Context<P>,
    pub(crate) handle: u32,
    user_data: u64,
    /// Kept for as long as the queue may raise events.
    channel: Option<CompChannel>,
    /// The queue's memory, left here by an owner who went before the last queue pair: the device
    /// may still write it.
    orphan: Mutex<Option<P::Cq>>,
    destroyed: bool,
}

/// How many events of a destroyed completion queue have been read. None comes any more.
///
/// A program that reads events in one thread and destroys queues in another learns from it how many
/// events it has still to see through before it may let go of what the queue's user data stands
/// for.
#[doc(alias = "ibv_ack_cq_events")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqEventCounts {
    /// From its completion channel.
    pub completion: u32,
    /// From the context's asynchronous events.
    pub asynchronous: u32,
}

impl<P: Provider> Cq<P> {
    pub(crate) fn create(context: &Context<P>, init: &CqInit<'_>) -> Result<Self> {
        const VERB: &str = "create_cq";
        if init.entries == 0 {
            return Err(Error::invalid(VERB, "a completion queue must hold at least 1 completion"));
        }
        if init.timestamps && !context.capabilities().completion_timestamps {
            return Err(Error::Unsupported { verb: VERB, what: "completion timestamps are" });
        }
        if init.compressed && !context.capabilities().compressed_completions {
            return Err(Error::Unsupported { verb: VERB, what: "compressed completions are" });
        }
        let limits = context.limits();
        Error::check_limit(VERB, "entries", init.entries.into(), limits.max_cqe.into())?;
        let vectors = context.capabilities().num_comp_vectors;
        if init.vector >= vectors {
            let last = vectors.saturating_sub(1);
            let reason = format!("there is no completion vector {}: the last one is {last}", init.vector);
            return Err(Error::invalid(VERB, reason));
        }
        if let Some(channel) = init.channel {
            context.check_same_context(VERB, "completion channel", channel.file())?;
        }
        let request = CqRequest {
            entries: init.entries,
            user_handle: init.user_data,
            channel: init.channel.map(AsFd::as_fd),
            vector: init.vector,
            compressed: init.compressed,
            memory: init.memory,
        };
        // SAFETY: `CqShared::destroy` keeps the queue until the kernel has destroyed the object,
        // and leaks it otherwise.
        let CreatedCq { handle, queue, .. } = unsafe { context.provider().create_cq(&request) }
            .map_err(|reason| Error::create(VERB, format!("{} entries", init.entries), reason))?;
        let shared = CqShared {
            context: context.clone(),
            handle,
            user_data: init.user_data,
            channel: init.channel.cloned(),
            orphan: Mutex::new(None),
            destroyed: false,
        };
        Ok(Self { queue: ManuallyDrop::new(queue), shared: Arc::new(shared) })
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared<P>> {
        &self.shared
    }

    /// The channel that gets its events.
    #[must_use]
    pub fn channel(&self) -> Option<&CompChannel> {
        self.shared.channel.as_ref()
    }

    /// [`CqInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.shared.user_data
    }

    /// Completions it holds, at least as many as asked for.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Gives it room for at least `entries` completions; returns for how many. Completions that it
    /// holds stay, in their order, also while more arrive; an armed queue stays armed.
    ///
    /// ```no_run
    /// # fn grow(cq: &mut bareverbs::Cq) -> bareverbs::Result<()> {
    /// let room = cq.resize(4 * cq.capacity())?;
    /// assert_eq!(room, cq.capacity());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for no entries, [`Error::Limit`] for more than the device's `max_cqe`,
    /// [`Error::Unsupported`] where the provider cannot do it; the kernel refuses, with `EINVAL`
    /// where the queue holds more than that now, and the queue stays as it is. Should its new
    /// memory not be mapped ([`KernelError::refused`](crate::KernelError) names `mmap`), the queue
    /// gives no completions until a later resize, which brings them all.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, entries: u32) -> Result<u32> {
        const VERB: &str = "resize_cq";
        if entries == 0 {
            return Err(Error::invalid(VERB, "a completion queue must hold at least 1 completion"));
        }
        let context = &self.shared.context;
        Error::check_limit(VERB, "entries", entries.into(), context.limits().max_cqe.into())?;
        // Providers begin with the ring, which a forked child does not have.
        context.file().check_same_process().map_err(|errno| {
            Error::kernel(VERB, format!("{entries} entries"), IoctlError { method: "ResizeCq", errno })
        })?;
        let capacity = self.queue.capacity();
        // SAFETY: handle and queue came from one `create_cq`, and who has `provider_queue` keeps
        // them together.
        let resized = unsafe { context.provider().resize_cq(self.shared.handle, &mut self.queue, entries) };
        resized.map_err(|reason| {
            Error::create(VERB, format!("{entries} entries in place of {capacity}"), reason).or_hint(
                |errno| {
                    (errno == rustix::io::Errno::INVAL)
                        .then(|| "the queue may hold more completions now than that: poll first".into())
                },
            )
        })
    }

    /// Lets its event wait, once it is armed, until there are `count` completions or `period`
    /// microseconds have passed since the first of them. 0 and 0 are the start: an event at once.
    ///
    /// ```no_run
    /// # fn calm(cq: &bareverbs::Cq) -> bareverbs::Result<()> {
    /// cq.moderate(16, 50)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device does not moderate events
    /// ([`DeviceAttr::max_cq_count`] is 0), [`Error::Limit`] above that or
    /// [`DeviceAttr::max_cq_period`]; the kernel refuses.
    ///
    /// [`DeviceAttr::max_cq_count`]: crate::DeviceAttr::max_cq_count
    /// [`DeviceAttr::max_cq_period`]: crate::DeviceAttr::max_cq_period
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period: u16) -> Result<()> {
        const VERB: &str = "modify_cq";
        let context = &self.shared.context;
        let caps = context.inner().device_attr.cq_moderation_caps;
        if caps.max_cq_moderation_count == 0 {
            return Err(Error::Unsupported { verb: VERB, what: "moderated CQs are" });
        }
        Error::check_limit(VERB, "count", count.into(), caps.max_cq_moderation_count.into())?;
        Error::check_limit(VERB, "period", period.into(), caps.max_cq_moderation_period.into())?;
        command::moderate_cq(context.file(), self.shared.handle, count, period)
            .map_err(|refused| Error::kernel(VERB, format!("{count} completions or {period} µs"), refused))
    }

    /// Destroys it and tells how many of its events have been read; events that were not are gone.
    /// Dropping does the same in silence, and waits for the queue pairs.
    ///
    /// # Errors
    /// [`Error::Invalid`] where queue pairs still use it, with the last of which it goes; the
    /// kernel refuses.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(self) -> Result<CqEventCounts> {
        const VERB: &str = "destroy_cq";
        let shared = Arc::clone(&self.shared);
        drop(self);
        let Some(mut shared) = Arc::into_inner(shared) else {
            return Err(Error::invalid(VERB, "queue pairs still use it: drop them first"));
        };
        // SAFETY: `shared` is the last owner, and was not destroyed before.
        let resp = unsafe { shared.destroy() }
            .map_err(|refused| Error::kernel(VERB, "a completion queue", refused))?;
        let DestroyCqResp { comp_events_reported, async_events_reported } = resp;
        Ok(CqEventCounts { completion: comp_events_reported, asynchronous: async_events_reported })
    }

    /// Looks at what has completed, in place and without copying.
    ///
    /// ```no_run
    /// # fn look(cq: &mut bareverbs::Cq) {
    /// use bareverbs::{Completion, WcStatus};
    ///
    /// let mut completions = cq.poll();
    /// while let Some(completion) = completions.next() {
    ///     if completion.status() != WcStatus::SUCCESS {
    ///         eprintln!("request {}: {:?}", completion.wr_id(), completion.status());
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// A completion is lent until the next one is asked for:
    ///
    /// ```compile_fail,E0499
    /// # fn keep(cq: &mut bareverbs::Cq) {
    /// use bareverbs::Completion;
    ///
    /// let mut completions = cq.poll();
    /// let first = completions.next().unwrap();
    /// let second = completions.next().unwrap();
    /// println!("{} {}", first.wr_id(), second.wr_id());
    /// # }
    /// ```
    #[doc(alias = "ibv_start_poll")]
    #[inline]
    pub fn poll(&mut self) -> Completions<'_, P> {
        Completions { queue: &mut self.queue, taken: false }
    }

    /// Takes one completion, if there is one.
    #[inline]
    pub fn poll_one(&mut self) -> Option<WorkCompletion> {
        self.queue.next_value()
    }

    /// Takes as many completions as there are and as `into` has room for; tells how many.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll_into(&mut self, into: &mut [WorkCompletion]) -> usize {
        self.queue.next_values(into)
    }

    /// The provider's own queue, for what verbs have no word for: on a ConnectX, to
    /// [look at an entry](bareverbs_mlx5::Mlx5Cq::peek) as it lies there, before it is taken.
    ///
    /// # Safety
    ///
    /// The queue must stay this completion queue's: it may not be exchanged for another one.
    pub unsafe fn provider_queue(&mut self) -> &mut P::Cq {
        &mut self.queue
    }

    /// Asks for one event on the channel when the next completion arrives. Poll once more after
    /// this and before waiting: what arrived earlier raises none.
    ///
    /// # Errors
    /// The kernel refuses.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self, what: Arm) -> Result<()> {
        const METHOD: &str = "InvokeWrite REQ_NOTIFY_CQ";
        // Where that is no command but a store, it would be one to memory that a forked child does
        // not have.
        let same_process = self.shared.context.file().check_same_process();
        same_process
            .map_err(|errno| IoctlError { method: METHOD, errno })
            .and_then(|()| self.queue.arm(what == Arm::Solicited))
            .map_err(|refused| Error::kernel("req_notify_cq", format!("{what:?}"), refused))
    }
}

impl<P: Provider> Drop for Cq<P> {
    fn drop(&mut self) {
        // SAFETY: the owner of the queue is being dropped, so this runs once and nothing uses the
        // field afterwards.
        let queue = unsafe { ManuallyDrop::take(&mut self.queue) };
        *self.shared.orphan.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }
}

impl<P: Provider> CqShared<P> {
    /// # Safety
    ///
    /// It must not have been destroyed before, and nothing may use the object afterwards.
    unsafe fn destroy(&mut self) -> Result<DestroyCqResp, IoctlError> {
        self.destroyed = true;
        // SAFETY: all that names the queue keeps this, so nothing does any more.
        unsafe { command::destroy_cq(self.context.file(), self.handle) }.inspect_err(|_| {
            // The kernel did not let go of it, so the device may go on writing: its memory has to
            // stay.
            std::mem::forget(self.orphan.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        })
    }
}

impl<P: Provider> Drop for CqShared<P> {
    fn drop(&mut self) {
        if !self.destroyed {
            // SAFETY: it was not destroyed, and is being dropped.
            let _ = unsafe { self.destroy() };
        }
    }
}

impl<P: Provider> CqShared<P> {
    pub(crate) fn context(&self) -> &Context<P> {
        &self.context
    }
}

/// Completions in place, lent one at a time. Their slots go back to the device when this is
/// dropped.
#[must_use = "completions are taken by `next`"]
pub struct Completions<'a, P: Provider = AnyProvider> {
    queue: &'a mut P::Cq,
    /// Known to the compiler where nothing is there, so that looking in vain costs no release.
    taken: bool,
}

#[cfg(feature = "test-utils")]
impl<'a, P: Provider> Completions<'a, P> {
    /// What has completed in a queue that there is no more of.
    #[inline]
    pub fn from_raw_queue(queue: &'a mut P::Cq) -> Self {
        Self { queue, taken: false }
    }
}

impl<P: Provider> Completions<'_, P> {
    /// The next one, if there is one.
    #[doc(alias = "ibv_next_poll")]
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    #[inline]
    pub fn next(&mut self) -> Option<<P::Cq as CompletionQueue>::Completion<'_>> {
        let next = self.queue.next();
        self.taken |= next.is_some();
        next
    }
}

impl<P: Provider> Drop for Completions<'_, P> {
    #[doc(alias = "ibv_end_poll")]
    #[inline]
    fn drop(&mut self) {
        if self.taken {
            self.queue.release();
        }
    }
}
