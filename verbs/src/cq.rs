//! Completion queues.

mod next;
mod reference;

use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::layout::QueueLayout;
use bareverbs_provider::request::{CqRequest, QueueMemory};
use bareverbs_provider::traits::{CompletionQueue, CreatedCq, Provider};
use bareverbs_uapi::write::structs::DestroyCqResp;
use bareverbs_uapi::write::types::CqCreateFlags;
use rustix::io::Errno;

use crate::error::{Feature, Limit};
use crate::released::Released;
use crate::untyped::BuiltIn;
use crate::{AnyProvider, Context, Error, Refused, Result, locked_memory};

pub use self::next::NextCompletion;
pub use self::reference::CqRef;
pub use crate::channel::{CompChannel, CompEvent};
pub use crate::error::wc_status_str;
pub use crate::event_fd::NextEvent;
pub use bareverbs_provider::request::CqeSize;
pub use bareverbs_provider::traits::{Completion, Visitor};
pub use bareverbs_provider::work::{WcError, WcFlags, WorkCompletion};

/// Attributes for the creation of a CQ.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqInit<'a> {
    /// Minimum capacity in CQEs, at least 1: the requests of all QPs that can be outstanding or not
    /// polled. A CQ that overflows loses completions.
    ///
    /// A QP may get deeper queues than requested, and a program that posts until they are full needs
    /// CQEs for them: add up the depths of [`Qp::cap`](crate::qp::Qp::cap), and [resize](Cq::resize)
    /// the CQ after the QPs are created. [`QpCap`](crate::qp::QpCap) has an example.
    pub entries: u32,
    /// Completion channel for the events of the CQ.
    pub channel: Option<&'a CompChannel>,
    /// Completion vector of the events, below the device's number of vectors.
    pub vector: u32,
    /// Whether completions have a [timestamp](crate::cq::Completion::timestamp). Completions with an
    /// error status have none.
    ///
    /// ```
    /// # fn when(context: &bareverbs::Context) -> bareverbs::Result<()> {
    /// use bareverbs::cq::{Completion, CqInit};
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
    /// # use bareverbs_test_support::example;
    /// # let context = example::context()?;
    /// # example::unsupported(when(&context));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
    pub timestamps: bool,
    /// Whether the device may compress runs of similar CQEs, which saves PCI bandwidth. Completions
    /// keep their contents, except that [timestamps](Self::timestamps) may be those of the run.
    /// Completions may arrive a little later, because the device waits for the end of a run.
    #[doc(alias = "MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE")]
    #[doc(alias = "mlx5dv_create_cq")]
    pub compressed: bool,
    /// Bytes of a CQE, also after a [resize](Cq::resize). CQEs of 128 bytes are of ConnectX devices.
    /// Programs that read the ring themselves, by [`Cq::layout`], may need them.
    #[doc(alias = "MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE")]
    #[doc(alias = "mlx5dv_create_cq")]
    pub cqe_size: CqeSize,
    /// Memory of the CQ. ConnectX only: on other devices the kernel allocates it. A CQ needs 2^n CQEs of
    /// [`cqe_size`](Self::cqe_size) bytes, with 2^n − 1 the capacity that is granted.
    #[doc(alias = "UVERBS_ATTR_CREATE_CQ_BUF_UMEM")]
    pub memory: QueueMemory<'a>,
    /// Value reported in [completion](crate::cq::CompEvent) and [asynchronous](crate::AsyncEvent::Cq)
    /// events of the CQ.
    #[doc(alias = "cq_context")]
    pub user_data: u64,
}

impl CqInit<'_> {
    /// A CQ for `entries` completions, without a completion channel.
    #[must_use]
    pub fn new(entries: u32) -> Self {
        Self { entries, ..Self::default() }
    }
}

/// The completions that raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The next completion.
    Any,
    /// The next solicited completion, or the next one with an error status.
    Solicited,
}

/// A completion queue.
///
/// It has one owner, who polls it. The kernel object is destroyed after the last QP that uses it.
#[doc(alias = "ibv_cq")]
#[doc(alias = "ibv_cq_ex")]
#[doc(alias = "ibv_cq_ex_to_cq")]
pub struct Cq<P: Provider = AnyProvider> {
    queue: ManuallyDrop<P::Cq>,
    /// Pages of the memory of a resize.
    pages: QueueMemory<'static>,
    shared: CqRef<P>,
}

/// The part of a CQ that its QPs share.
pub(crate) struct CqShared<P: Provider> {
    context: Context<P>,
    pub(crate) handle: u32,
    user_data: u64,
    /// Kept while the CQ may raise events.
    channel: Option<CompChannel>,
    /// The queue, moved here when the owner drops the CQ before the last QP. The device may still
    /// write to it.
    orphan: Mutex<Option<P::Cq>>,
    destroyed: bool,
    pub(crate) released: Released,
}

/// The number of events of a destroyed CQ that have been read. No more events follow.
///
/// A program may read events in one thread and destroy CQs in another. The counts say how many
/// events that thread must have handled before the object behind the CQ's user data can be freed.
#[doc(alias = "ibv_ack_cq_events")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqEventCounts {
    /// Events read from the completion channel.
    pub completion: u32,
    /// Events read from the context's asynchronous events.
    pub asynchronous: u32,
}

impl<P: Provider> Context<P> {
    /// Creates a completion queue.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for 0 entries, a completion vector that does not exist or a channel of
    ///   another context.
    /// - [`Error::Limit`] for more entries than the device's `max_cqe`.
    /// - [`Error::Unsupported`] for timestamps or a kind of memory if the device has none.
    /// - [`Error::Kernel`].
    #[doc(alias = "ibv_create_cq")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create_cq(&self, init: &CqInit<'_>) -> Result<Cq<P>> {
        Cq::create(self, init)
    }

    /// Creates a completion queue whose device does not check for overruns. A CQ with too many
    /// completions raises no event, and its QPs stay usable. The device saves the check of the
    /// consumer index.
    ///
    /// ```
    /// # fn example(context: &bareverbs::Context) -> bareverbs::Result<()> {
    /// use bareverbs::cq::CqInit;
    /// use bareverbs::qp::{QpCap, QpInit, Rc};
    ///
    /// // SAFETY: the only QP of the CQ has at most 32 outstanding requests.
    /// let cq = unsafe { context.create_cq_ignoring_overrun(&CqInit::new(32)) }?;
    /// let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, ..QpCap::default() };
    /// let qp = context.alloc_pd()?.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) })?;
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let context = example::context()?;
    /// # example::unsupported(example(&context));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Context::create_cq`]; [`Error::Unsupported`] if the device checks always, as rxe
    /// does.
    ///
    /// # Safety
    ///
    /// At most [`Cq::capacity`] completions are outstanding: requests that were posted and whose
    /// completions were not polled. Beyond that, the device overwrites completions while they are
    /// polled, and a completion may name a request that is not complete.
    #[doc(alias = "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub unsafe fn create_cq_ignoring_overrun(&self, init: &CqInit<'_>) -> Result<Cq<P>> {
        Cq::create_with(self, init, CqCreateFlags::IGNORE_OVERRUN)
    }
}

impl<P: Provider> Cq<P> {
    pub(crate) fn create(context: &Context<P>, init: &CqInit<'_>) -> Result<Self> {
        Self::create_with(context, init, CqCreateFlags::empty())
    }

    pub(crate) fn create_with(context: &Context<P>, init: &CqInit<'_>, flags: CqCreateFlags) -> Result<Self> {
        const VERB: &str = "create_cq";
        if init.entries == 0 {
            return Err(Error::empty(VERB, "a CQ requires at least 1 entry"));
        }
        if init.timestamps && !context.capabilities().completion_timestamps {
            return Err(Error::unsupported(VERB, Feature::CompletionTimestamps));
        }
        if init.compressed && !context.capabilities().compressed_completions {
            return Err(Error::unsupported(VERB, Feature::CompressedCompletions));
        }
        let limits = context.limits();
        Error::check_limit(VERB, Limit::CqEntries, init.entries.into(), limits.max_cqe.into())?;
        let vectors = context.capabilities().num_comp_vectors;
        if init.vector >= vectors {
            let last = vectors.saturating_sub(1);
            let reason = format!("completion vector {} does not exist: the last one is {last}", init.vector);
            return Err(Error::out_of_bounds(VERB, reason));
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
            cqe_size: init.cqe_size,
            flags,
            memory: init.memory,
        };
        // SAFETY: `CqShared::destroy` keeps the queue until the kernel has destroyed the object,
        // and leaks it otherwise.
        let CreatedCq { handle, queue, .. } =
            unsafe { context.provider().create_cq(&request) }.map_err(|reason| match reason {
                CreateError::Ioctl(IoctlError { errno: Errno::OPNOTSUPP, .. }) if !flags.is_empty() => {
                    Error::unsupported(VERB, Feature::CqIgnoreOverrun)
                }
                reason => Error::create(VERB, format!("{} entries", init.entries), reason)
                    .or_hint(|errno| locked_memory::queue_hint(errno, context.provider())),
            })?;
        let shared = CqShared {
            context: context.clone(),
            handle,
            user_data: init.user_data,
            channel: init.channel.cloned(),
            orphan: Mutex::new(None),
            destroyed: false,
            released: Released::default(),
        };
        let pages = match init.memory {
            QueueMemory::HugePages => QueueMemory::HugePages,
            QueueMemory::BasePages | QueueMemory::From(_) => QueueMemory::BasePages,
        };
        Ok(Self { queue: ManuallyDrop::new(queue), pages, shared: CqRef(Arc::new(shared)) })
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared<P>> {
        self.shared.shared()
    }

    /// The reference to the CQ for objects that are created with it. [`CqRef`] has an example.
    #[must_use]
    pub fn reference(&self) -> &CqRef<P> {
        &self.shared
    }

    /// The completion channel of the CQ.
    #[must_use]
    pub fn channel(&self) -> Option<&CompChannel> {
        self.shared().channel.as_ref()
    }

    /// [`CqInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.shared.user_data()
    }

    /// Capacity in CQEs, at least as many as requested.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Resizes the CQ to at least `entries` CQEs. Returns the new capacity. Pending completions are
    /// kept in order, even if more arrive during the resize. An armed CQ stays armed.
    ///
    /// The new memory has pages of the same size, and [`Cq::resize_in`] chooses it.
    ///
    /// ```
    /// # let context = bareverbs_test_support::example::context()?;
    /// # let mut cq = context.create_cq(&bareverbs::cq::CqInit::new(16))?;
    /// let room = cq.resize(4 * cq.capacity())?;
    /// assert_eq!(room, cq.capacity());
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: `entries` is 0.
    /// - [`Error::Limit`]: `entries` is above the device's `max_cqe`.
    /// - [`Error::Unsupported`]: the provider does not resize CQs.
    /// - [`Error::Kernel`] with `EINVAL`: the CQ has more pending completions than `entries`. It is
    ///   unchanged.
    /// - [`Error::Kernel`] for `mmap` ([`KernelError::refused`](crate::error::KernelError) names it): the
    ///   new memory was not mapped. The CQ returns no completions until a later resize succeeds,
    ///   which returns them all.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, entries: u32) -> Result<u32> {
        self.resize_in(entries, self.pages)
    }

    /// As [`Cq::resize`], with the memory of the CQ.
    ///
    /// ```
    /// # fn grow(cq: &mut bareverbs::cq::Cq) -> bareverbs::Result<()> {
    /// use bareverbs::Buffer;
    /// use bareverbs::qp::{QueueBuffer, QueueMemory};
    ///
    /// let buffer = QueueBuffer::new(Buffer::zeroed(64 * 1024)?)?;
    /// cq.resize_in(1023, QueueMemory::From(&buffer))?;
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let context = example::context()?;
    /// # let mut cq = context.create_cq(&bareverbs::cq::CqInit::new(16))?;
    /// # example::unsupported(grow(&mut cq));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Cq::resize`], and those of the memory in [`Context::create_cq`]. The kernel takes no
    /// dma-buf.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize_in(&mut self, entries: u32, memory: QueueMemory<'_>) -> Result<u32> {
        const VERB: &str = "resize_cq";
        if entries == 0 {
            return Err(Error::empty(VERB, "a CQ requires at least 1 entry"));
        }
        let context = self.shared.context();
        Error::check_limit(VERB, Limit::CqEntries, entries.into(), context.limits().max_cqe.into())?;
        // Providers access the ring first, and a forked child does not have it.
        context.file().check_same_process().map_err(|errno| {
            Error::kernel(VERB, format!("{entries} entries"), IoctlError::new("ResizeCq", errno))
        })?;
        let capacity = self.queue.capacity();
        // SAFETY: handle and queue came from one `create_cq`, and the contract of `provider_queue`
        // keeps them together.
        let resized =
            unsafe { context.provider().resize_cq(self.shared.0.handle, &mut self.queue, entries, memory) };
        resized.map_err(|reason| {
            Error::create(VERB, format!("{entries} instead of {capacity} entries"), reason).or_hint(|errno| {
                if errno == Errno::INVAL {
                    return Some("the CQ may hold more completions than that: poll it first".into());
                }
                locked_memory::queue_hint(errno, context.provider())
            })
        })
    }

    /// Moderates events: an armed CQ raises its event after `count` completions or after `period`,
    /// whichever is first. The period is rounded up to microseconds. The device defines when it
    /// starts; on ConnectX, at the previous event. The default, 0 and 0, raises the event at once.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # fn calm(cq: &bareverbs::cq::Cq) -> bareverbs::Result<()> {
    /// cq.moderate(16, Duration::from_micros(50))?;
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let context = example::context()?;
    /// # let mut cq = context.create_cq(&bareverbs::cq::CqInit::new(16))?;
    /// # example::unsupported(calm(&cq));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: the device does not moderate events ([`DeviceAttr::max_cq_count`]
    ///   is 0).
    /// - [`Error::Limit`]: `count` is above [`DeviceAttr::max_cq_count`], or `period` is above
    ///   [`DeviceAttr::max_cq_period`] microseconds.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    ///
    /// [`DeviceAttr::max_cq_count`]: crate::device::DeviceAttr::max_cq_count
    /// [`DeviceAttr::max_cq_period`]: crate::device::DeviceAttr::max_cq_period
    #[doc(alias = "ibv_modify_cq")]
    #[doc(alias = "ibv_moderate_cq")]
    #[doc(alias = "IBV_CQ_ATTR_MODERATE")]
    pub fn moderate(&self, count: u16, period: Duration) -> Result<()> {
        const VERB: &str = "modify_cq";
        let micros = u64::try_from(period.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        let context = self.shared.context();
        let caps = context.inner().device_attr.cq_moderation_caps;
        if caps.max_cq_moderation_count == 0 {
            return Err(Error::unsupported(VERB, Feature::CqModeration));
        }
        Error::check_limit(VERB, Limit::CqCount, count.into(), caps.max_cq_moderation_count.into())?;
        Error::check_limit(VERB, Limit::CqPeriod, micros, caps.max_cq_moderation_period.into())?;
        // At most the device's limit, which has 16 bits.
        let micros = u16::try_from(micros).unwrap_or(u16::MAX);
        command::moderate_cq(context.file(), self.shared.handle(), count, micros)
            .map_err(|refused| Error::kernel(VERB, format!("{count} completions or {micros} µs"), refused))
    }

    /// Destroys the CQ. Returns the number of its events that have been read; unread events are
    /// discarded. Drop ignores errors, and the CQ is destroyed after its last QP.
    ///
    /// # Errors
    /// The CQ and the reason:
    ///
    /// - [`Error::Invalid`]: QPs or clones of its [reference](Self::reference) still use the CQ.
    /// - [`Error::Kernel`]: the kernel refuses to destroy it.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(mut self) -> Result<CqEventCounts, Refused<Self>> {
        const VERB: &str = "destroy_cq";
        let Some(shared) = Arc::get_mut(&mut self.shared.0) else {
            let error = Error::in_use(VERB, "QPs or references still use it: drop them first");
            return Err(Refused::new(error, self));
        };
        // SAFETY: `self` is the last owner, and the CQ was not destroyed before. If this succeeds,
        // `self` is dropped next.
        match unsafe { shared.try_destroy() } {
            Ok(DestroyCqResp { comp_events_reported, async_events_reported }) => {
                Ok(CqEventCounts { completion: comp_events_reported, asynchronous: async_events_reported })
            }
            Err(refused) => Err(Refused::new(
                Error::kernel(VERB, format!("CQ handle {}", self.shared.handle()), refused),
                self,
            )),
        }
    }

    /// Polls completions in place, without copying.
    ///
    /// ```
    /// # let context = bareverbs_test_support::example::context()?;
    /// # let mut cq = context.create_cq(&bareverbs::cq::CqInit::new(16))?;
    /// use bareverbs::WcStatus;
    /// use bareverbs::cq::Completion;
    ///
    /// let mut completions = cq.poll();
    /// while let Some(completion) = completions.next() {
    ///     if completion.status() != WcStatus::SUCCESS {
    ///         eprintln!("request {}: {:?}", completion.wr_id(), completion.status());
    ///     }
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// A completion is borrowed until the next call of `next`:
    ///
    /// ```compile_fail,E0499
    /// # fn keep(cq: &mut bareverbs::cq::Cq) {
    /// use bareverbs::cq::Completion;
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

    /// Polls the next completion by the fast path alone, and passes it to `visitor`, which is compiled
    /// for each type of completion. After [`Visitor::declined`], [`Cq::poll_one`] polls it.
    ///
    /// It calls no function, so a hot function around it needs few registers.
    #[inline(always)]
    pub fn visit_next<V: Visitor>(&mut self, visitor: V) -> V::Output {
        self.queue.visit_next(visitor)
    }

    /// Polls one completion; `None` if the CQ is empty.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll_one(&mut self) -> Option<WorkCompletion> {
        self.queue.next_value()
    }

    /// Polls completions into `into`, as many as fit. Returns their number.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll_into(&mut self, into: &mut [WorkCompletion]) -> usize {
        self.queue.next_values(into)
    }

    /// The provider's own queue, for operations that the verbs API does not cover, such as [peeking
    /// at a CQE](bareverbs_mlx5::Mlx5Cq::peek) on ConnectX.
    ///
    /// # Safety
    ///
    /// The queue must stay this CQ's: the caller may not exchange it for another one.
    pub unsafe fn provider_queue(&mut self) -> &mut P::Cq {
        &mut self.queue
    }

    /// The addresses of its ring, doorbell record and register. They are valid until the CQ is
    /// resized or destroyed. `None` if the provider does not report them.
    ///
    /// ```
    /// # let context = bareverbs_test_support::example::context()?;
    /// # let mut cq = context.create_cq(&bareverbs::cq::CqInit::new(16))?;
    /// if let Some(layout) = cq.layout() {
    ///     println!("{} CQEs of {} bytes at {:?}", layout.slots, layout.stride, layout.ring);
    ///     println!("the next one is at index {}", layout.index & layout.mask());
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    #[doc(alias = "mlx5dv_init_obj")]
    #[doc(alias = "mlx5dv_cq")]
    #[must_use]
    pub fn layout(&self) -> Option<QueueLayout> {
        self.queue.layout()
    }

    /// Arms the CQ: the next completion raises one event on the channel. Earlier completions raise
    /// none, so poll once more after this call and before waiting.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the command, or the process was forked (`ESTALE`).
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self, what: Arm) -> Result<()> {
        const METHOD: &str = "InvokeWrite REQ_NOTIFY_CQ";
        // Some providers arm with a store to memory that a forked child does not have.
        let same_process = self.shared.context().file().check_same_process();
        same_process
            .map_err(|errno| IoctlError::new(METHOD, errno))
            .and_then(|()| self.queue.arm(what == Arm::Solicited))
            .map_err(|refused| Error::kernel("req_notify_cq", format!("{what:?}"), refused))
    }
}

impl Cq {
    /// As [`Cq::visit_next`], without the branch over providers.
    ///
    /// # Safety
    ///
    /// The device has this provider.
    #[inline(always)]
    pub unsafe fn visit_next_of<P: BuiltIn, V: Visitor>(&mut self, visitor: V) -> V::Output {
        // SAFETY: the provider of a device creates its queues, and it is this one by the contract.
        unsafe { P::cq(&mut self.queue).unwrap_unchecked() }.visit_next(visitor)
    }
}

impl<P: Provider> Drop for Cq<P> {
    fn drop(&mut self) {
        // SAFETY: the owner of the queue is being dropped, so this runs once and the field is not
        // used afterwards.
        let queue = unsafe { ManuallyDrop::take(&mut self.queue) };
        *self.shared().orphan.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }
}

impl<P: Provider> CqShared<P> {
    /// # Safety
    ///
    /// It must not have been destroyed before, and nothing may use the object afterwards.
    unsafe fn destroy(&mut self) -> Result<DestroyCqResp, IoctlError> {
        // SAFETY: the caller's contract is stronger.
        unsafe { self.try_destroy() }.inspect_err(|_| {
            // The kernel refused, so the device may still write to the queue: its memory is leaked.
            std::mem::forget(self.orphan.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        })
    }

    /// As `destroy`, but the CQ remains usable if the kernel refuses.
    ///
    /// # Safety
    ///
    /// It must not have been destroyed before. If this succeeds, nothing may use the object
    /// afterwards.
    unsafe fn try_destroy(&mut self) -> Result<DestroyCqResp, IoctlError> {
        // SAFETY: every user of the CQ holds an `Arc` of this, which is borrowed exclusively, so no
        // other user is left.
        let resp = unsafe { command::destroy_cq(self.context.file(), self.handle) }?;
        self.destroyed = true;
        Ok(resp)
    }
}

impl<P: Provider> Drop for CqShared<P> {
    fn drop(&mut self) {
        if self.released.get() {
            // The kernel object still exists: its memory is leaked.
            std::mem::forget(self.orphan.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        } else if !self.destroyed {
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

/// Completions in place, borrowed one at a time. Drop releases their CQEs to the device.
#[must_use = "`next` returns the completions"]
pub struct Completions<'a, P: Provider = AnyProvider> {
    queue: &'a mut P::Cq,
    /// Known to the compiler for an empty CQ, so polling it does not release.
    taken: bool,
}

#[cfg(feature = "test-utils")]
impl<'a, P: Provider> Completions<'a, P> {
    /// Completions of a queue without a kernel CQ.
    #[inline]
    pub fn from_raw_queue(queue: &'a mut P::Cq) -> Self {
        Self { queue, taken: false }
    }
}

impl<P: Provider> Completions<'_, P> {
    /// The next completion; `None` if the CQ is empty.
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
