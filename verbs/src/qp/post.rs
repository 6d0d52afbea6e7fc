//! Posting of sends, as lists and batches, and of receives.

mod batch;
mod recv;

use bareverbs_provider::traits::{Provider, SendQueue};
use bareverbs_provider::work::SendRequest;
use bareverbs_uapi::verbs_values::QpState;

pub use batch::Batch;
pub use recv::RecvHalf;
pub(crate) use recv::post_receives_in;

use super::transport::Operations;
#[cfg(feature = "test-utils")]
use super::transport::Transport;
use crate::cq::{Completions, Cq};
use crate::post_error::{PostError, PostReason, SendFailure, doorbell_error};
use crate::provider::{AnyProvider, BuiltIn};

/// The send half of a QP. It borrows the QP; see [`Qp::split`](super::Qp::split).
pub struct SendHalf<'q, T: Operations, P: Provider = AnyProvider> {
    queue: &'q mut P::Sq,
    /// By reference, so that the fast path does not load it.
    state: &'q QpState,
    transport: T,
}

impl<'q, T: Operations, P: Provider> SendHalf<'q, T, P> {
    #[inline(always)]
    pub(crate) fn new(queue: &'q mut P::Sq, state: &'q QpState, transport: T) -> Self {
        Self { queue, state, transport }
    }
}

impl<'q, T: Operations> SendHalf<'q, T> {
    /// The half with the queue of this provider, without the branch over providers.
    ///
    /// # Safety
    ///
    /// The device has this provider.
    #[inline(always)]
    #[must_use]
    pub unsafe fn of_provider<P: BuiltIn>(self) -> SendHalf<'q, T, P> {
        let Self { queue, state, transport } = self;
        // SAFETY: the provider of a device creates its queues, and it is this one by the contract.
        SendHalf { queue: unsafe { P::sq(queue).unwrap_unchecked() }, state, transport }
    }
}

#[cfg(feature = "test-utils")]
impl<'q, T: Transport, P: Provider> SendHalf<'q, T, P> {
    /// A send half over a queue without a kernel QP; assumed to be in RTS.
    #[inline(always)]
    #[must_use]
    pub fn from_raw_queue(queue: &'q mut P::Sq) -> Self {
        Self::new(queue, &QpState::RTS, T::VALUE)
    }
}

impl<T: Operations, P: Provider> SendHalf<'_, T, P> {
    /// Starts a batch of sends.
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub fn start_send(&mut self) -> Batch<'_, T, P> {
        Batch::new(self.queue, *self.state, self.transport)
    }

    /// Posts sends and earlier deferred requests with one doorbell.
    ///
    /// # Errors
    /// The first rejected request ends the list. Earlier requests are posted and will complete.
    ///
    /// # Safety
    ///
    /// A request is in use from this call until one of these:
    ///
    /// - It was not posted: the call returned a [`PostError`], and the request's index is
    ///   [`PostError::accepted`] or above.
    /// - It is complete: its completion, or that of a later request of this half, was polled, with
    ///   any status. A completion belongs to a request for certain only if its `wr_id` is not 0 and
    ///   no other request has the same `wr_id`, including requests before a reset.
    /// - The QP was moved to RESET: [`Qp::reset`](super::Qp::reset) or
    ///   [`Qp::modify`](super::Qp::modify) returned `Ok`.
    /// - The QP was destroyed: [`Qp::destroy`](super::Qp::destroy) returned `Ok`. If the kernel
    ///   refuses, in `destroy` or in drop, requests stay in use until the process exits.
    ///
    /// While a request is in use, the memory of its SGEs must stay registered, mapped and
    /// allocated. That holds for every kind of region: an MR, a [part](crate::mr::ImplicitMr::part) of
    /// an implicit MR, memory [mapped](crate::Pd::register_raw) by the caller, [device
    /// memory](crate::dm::DmMr), a [dma-buf](crate::mr::DmabufMr), or an MR of [another
    /// process](crate::mr::ImportedMr).
    ///
    /// No code may write the bytes that a request sends. No code may read or write the bytes that a
    /// request fills (reads and atomics). The copying methods of the MR are exempt from both.
    ///
    /// For an on-demand MR ([`Access::ON_DEMAND`](crate::Access::ON_DEMAND)) on Soft-RoCE, the same
    /// holds for the bytes from the start of each page that an SGE touches: the kernel copies to
    /// and from there (`__rxe_odp_mr_copy` of `rxe_odp.c`, Linux 7.2).
    ///
    /// A request that binds a [memory window](crate::mw::Mw) exposes its MR to peers with the window's
    /// access rights. The window must be invalidated or deallocated before the MR is dropped,
    /// unless the kernel refuses to deregister an MR with a bound window. Soft-RoCE is known to
    /// refuse; no other driver is.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_send(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
    ) -> Result<(), PostError> {
        // Fast path of a list of one request, inlined here.
        if let [request] = requests
            // SAFETY: the caller upholds the contract for the request.
            && let Some(posted) = unsafe { self.transport.try_post::<P>(self.queue, request, false) }
        {
            return posted.map_err(|error| doorbell_error(error, 1));
        }
        // SAFETY: the caller of `post_send` upholds the contract for every request; none of them
        // has been posted.
        unsafe { post_send_slow::<T, P>(self.transport, self.queue, self.state, requests, false) }
    }

    /// Posts a send by the fast path alone, with earlier deferred requests. `None`: it was not posted,
    /// and [`SendHalf::post_send`] posts it.
    ///
    /// A hot function around it needs few registers: the slow path can be a function of its own.
    ///
    /// # Errors
    /// [`PostReason::Doorbell`], as for [`SendHalf::post_send`].
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(always)]
    pub unsafe fn try_post_send(
        &mut self,
        request: &SendRequest<'_, T::Operation<'_, P>>,
    ) -> Option<Result<(), PostError>> {
        // SAFETY: the caller's contract is the same.
        let posted = unsafe { self.transport.try_post::<P>(self.queue, request, false) }?;
        Some(posted.map_err(|error| doorbell_error(error, 1)))
    }

    /// Posts sends and defers the doorbell, the expensive part of posting. The next of these rings
    /// it: [`SendHalf::flush`], [`SendHalf::flush_and_poll`], or a post without deferral. Until
    /// then the device may not see the requests, and they occupy slots of the queue.
    ///
    /// If the doorbell is cheap, the provider rings it at once.
    ///
    /// ```
    /// use bareverbs::cq::{Completion, Cq};
    /// use bareverbs::error::PostError;
    /// use bareverbs::qp::{Qp, Rc, SendRequest, Sge};
    ///
    /// fn answer(qp: &mut Qp<Rc>, cq: &mut Cq, answers: &[Sge]) -> Result<(), PostError> {
    ///     for (wr_id, answer) in (1..).zip(answers) {
    ///         let request = SendRequest::send(wr_id, std::slice::from_ref(answer)).signaled();
    ///         // SAFETY: the caller does not change the answers before they complete.
    ///         unsafe { qp.post_send_deferred(&[request]) }?;
    ///     }
    ///     // One system call for all of them.
    ///     let mut completions = qp.flush_and_poll(cq)?;
    ///     while let Some(completion) = completions.next() {
    ///         println!("{} is sent", completion.wr_id());
    ///     }
    ///     Ok(())
    /// }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [(mut qp, mut cq), _peer] = example::qps(&pd)?;
    /// # let mr = pd.register(bareverbs::Buffer::zeroed(4096)?, bareverbs::Access::LOCAL_WRITE)?;
    /// # answer(&mut qp, &mut cq, &[mr.sge(..64)?, mr.sge(64..)?])?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// Deferred requests of a QP that is reset or dropped are never sent and generate no
    /// completion. In the state ERR they complete only after a flush.
    ///
    /// # Errors
    /// The first rejected request ends the list. Earlier requests are deferred. A [full
    /// queue](crate::error::PushError::QueueFull) may be full of deferred requests: flush, then poll.
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
            && let Some(posted) = unsafe { self.transport.try_post::<P>(self.queue, request, true) }
        {
            return posted.map_err(|error| doorbell_error(error, 1));
        }
        // SAFETY: the caller of `post_send_deferred` upholds the contract for every request; none
        // of them has been posted.
        unsafe { post_send_slow::<T, P>(self.transport, self.queue, self.state, requests, true) }
    }

    /// The number of deferred requests.
    #[must_use]
    pub fn deferred(&self) -> usize {
        self.queue.deferred() as usize
    }

    /// Rings the doorbell once for all deferred requests. Does nothing without deferred requests.
    ///
    /// # Errors
    /// [`PostReason::Doorbell`]: the kernel refuses the doorbell. The error says whether the
    /// requests were taken back or count as posted. [`PostError::accepted`] is the number that
    /// count as posted.
    #[inline]
    pub fn flush(&mut self) -> Result<(), PostError> {
        let deferred = self.deferred();
        self.queue.ring().map_err(|error| doorbell_error(error, deferred))
    }

    /// Flushes as [`SendHalf::flush`] does, then polls as [`Cq::poll`] does.
    ///
    /// # Errors
    /// As for [`SendHalf::flush`].
    #[inline]
    pub fn flush_and_poll<'c>(&mut self, cq: &'c mut Cq<P>) -> Result<Completions<'c, P>, PostError> {
        self.flush()?;
        Ok(cq.poll())
    }

    /// Capacity in requests.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// The send that failed locally, with its original status. `None` if the completion has that
    /// status. Soft-RoCE since Linux 6.4 completes the failed send with `WR_FLUSH_ERR`.
    #[must_use]
    pub fn failure(&self) -> Option<SendFailure> {
        self.queue.failure().map(SendFailure::from)
    }
}

/// Posts requests that the fast path declined.
///
/// # Safety
///
/// As for [`SendHalf::post_send`].
#[inline(always)]
unsafe fn post_send_slow<T: Operations, P: Provider>(
    transport: T,
    queue: &mut P::Sq,
    state: &QpState,
    requests: &[SendRequest<'_, T::Operation<'_, P>>],
    defer: bool,
) -> Result<(), PostError> {
    match requests {
        // Copied, so that the fast path need not keep a request in memory if it is known at the
        // call site.
        // SAFETY: the caller's contract is the same, and a copy of a request names the same memory.
        [request] => unsafe { post_sends::<T, P>(transport, queue, *state, &[*request], defer) },
        // SAFETY: the caller's contract is the same.
        _ => unsafe { post_sends::<T, P>(transport, queue, *state, requests, defer) },
    }
}

/// Posts any requests in any state. `defer` leaves the doorbell to a later call.
///
/// # Safety
///
/// As for [`SendHalf::post_send`].
#[inline(never)]
pub(crate) unsafe fn post_sends<T: Operations, P: Provider>(
    transport: T,
    queue: &mut P::Sq,
    state: QpState,
    requests: &[SendRequest<'_, T::Operation<'_, P>>],
    defer: bool,
) -> Result<(), PostError> {
    let mut result = Ok(());
    let mut pushed = 0;
    loop {
        // SAFETY: the caller upholds the contract for every request; `pushed` of them have been
        // pushed.
        pushed += unsafe { transport.try_push_all::<P>(queue, &requests[pushed..]) };
        let Some(request) = requests.get(pushed) else { break };
        // SAFETY: the caller upholds the contract for every request, and this one was not pushed.
        if let Err(reason) = unsafe { push_slow::<T, P>(transport, queue, state, request) } {
            result = Err(PostError { accepted: pushed, reason });
            break;
        }
        pushed += 1;
    }
    let rung = if defer { queue.defer() } else { queue.ring() };
    rung.map_err(|error| doorbell_error(error, pushed))?;
    result
}

/// The slow path of a push, for all requests in any state.
///
/// # Safety
///
/// As for [`SendHalf::post_send`].
#[inline(never)]
unsafe fn push_slow<T: Operations, P: Provider>(
    transport: T,
    queue: &mut P::Sq,
    state: QpState,
    request: &SendRequest<'_, T::Operation<'_, P>>,
) -> Result<(), PostReason> {
    if matches!(state, QpState::RESET | QpState::INIT | QpState::RTR) {
        return Err(PostReason::State(state));
    }
    // SAFETY: the caller upholds the contract for the request.
    Ok(unsafe { transport.push::<P>(queue, request) }?)
}
