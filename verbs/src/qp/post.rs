//! Posting: lists and batches of sends, and receives.

mod batch;
mod error;
mod recv;

use std::marker::PhantomData;

use bareverbs_provider::contract::{Provider, SendQueue};

pub use batch::Batch;
pub use error::{PostError, PostReason};
pub use recv::RecvHalf;
pub(crate) use recv::post_receives;
pub(super) use recv::post_receives_in;

pub(super) use self::error::doorbell_error;
use super::Transport;
#[cfg(doc)]
use crate::Pd;
use crate::{AnyProvider, Completions, Cq, QpState, SendRequest, WcStatus};

/// The send half of a queue pair, which it borrows; see [`Qp::split`](super::Qp::split).
pub struct SendHalf<'q, T: Transport, P: Provider = AnyProvider> {
    queue: &'q mut P::Sq,
    /// By reference, so that the fast path does not load it.
    state: &'q QpState,
    _transport: PhantomData<T>,
}

impl<'q, T: Transport, P: Provider> SendHalf<'q, T, P> {
    #[inline(always)]
    pub(super) fn new(queue: &'q mut P::Sq, state: &'q QpState) -> Self {
        Self { queue, state, _transport: PhantomData }
    }

    /// A half of no queue pair, whose state is taken to be RTS.
    #[cfg(feature = "test-utils")]
    #[inline(always)]
    pub fn from_raw_queue(queue: &'q mut P::Sq) -> Self {
        Self::new(queue, &QpState::RTS)
    }
}

impl<T: Transport, P: Provider> SendHalf<'_, T, P> {
    /// Starts a batch of sends.
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub fn start_send(&mut self) -> Batch<'_, T, P> {
        Batch::new(self.queue, *self.state)
    }

    /// Posts sends, all with one doorbell, which is that of deferred ones too.
    ///
    /// # Errors
    /// The first request that is refused ends the list; those before it are posted and will
    /// complete.
    ///
    /// # Safety
    ///
    /// A request is in use from this call on until one of these:
    ///
    /// - It was not posted: the call returned a [`PostError`], and the request's index is
    ///   [`PostError::accepted`] or above.
    /// - It is complete: its completion was polled, or that of a later request of this half, with
    ///   any status. A completion is known to be its own only if no other request, also none from
    ///   before a reset, has its `wr_id`, and that is not 0.
    /// - The queue pair was brought to RESET: [`Qp::reset`](super::Qp::reset) or
    ///   [`Qp::modify`](super::Qp::modify) returned `Ok`.
    /// - The queue pair was destroyed: [`Qp::destroy`](super::Qp::destroy) returned `Ok`. Where the
    ///   kernel refuses, there or when the queue pair is dropped, requests stay in use for the life
    ///   of the process.
    ///
    /// While a request is in use, the memory that its elements name must stay registered, mapped
    /// and allocated, whatever kind of region names it: a region of its own, a
    /// [part](crate::ImplicitMr::part) of one over all memory, memory [mapped](Pd::register_raw) by
    /// the caller, [on the device](crate::DmMr), of a [dma-buf](crate::DmabufMr), or of [another
    /// process](crate::ImportedMr). Nobody may change the bytes that it sends, nor look at or
    /// change those that it fills (reads and atomics), except by the copying methods of the region.
    ///
    /// For a region on demand ([`Access::ON_DEMAND`](crate::Access::ON_DEMAND)) on Soft-RoCE, the
    /// same holds for the bytes from the start of each page that an element touches: the kernel
    /// copies to and from there (`__rxe_odp_mr_copy` of `rxe_odp.c`, Linux 7.2).
    ///
    /// A request that binds a [window](crate::Mw) opens its region to peers as far as the window's
    /// rights say. The window must be invalidated or deallocated before the region is dropped,
    /// unless the kernel refuses to deregister a region with a bound window. Soft-RoCE is known to
    /// refuse; no other driver is.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_send(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
    ) -> Result<(), PostError> {
        // The commonest of all lists is written right here.
        if let [request] = requests
            // SAFETY: the caller vouches for the request.
            && let Some(posted) = unsafe { T::try_post::<P>(self.queue, request, false) }
        {
            return posted.map_err(|error| doorbell_error(error, 1));
        }
        // SAFETY: the caller of `post_send` vouches for every request; none of them has been
        // posted.
        unsafe { post_send_slow::<T, P>(self.queue, self.state, requests, false) }
    }

    /// Posts sends and leaves the doorbell, the dear part of posting, to whatever rings it next:
    /// [`SendHalf::flush`], [`SendHalf::flush_and_poll`], or sends that are posted without
    /// deferring. Until then the device may not know of them, and they take up room in the queue.
    ///
    /// Devices whose doorbell costs next to nothing are told at once.
    ///
    /// ```no_run
    /// use bareverbs::{Completion, Cq, Operation, Payload, PostError, Qp, Rc, SendFlags, SendRequest, Sge};
    ///
    /// fn answer(qp: &mut Qp<Rc>, cq: &mut Cq, answers: &[Sge]) -> Result<(), PostError> {
    ///     for (wr_id, answer) in (0..).zip(answers) {
    ///         let payload = Payload::Sges(std::slice::from_ref(answer));
    ///         let request = SendRequest { wr_id, operation: Operation::Send, flags: SendFlags::SIGNALED, payload };
    ///         // SAFETY: the caller keeps the answers as they are until they are complete.
    ///         unsafe { qp.post_send_deferred(&[request]) }?;
    ///     }
    ///     // One system call for all of them.
    ///     let mut completions = qp.flush_and_poll(cq)?;
    ///     while let Some(completion) = completions.next() {
    ///         println!("{} is sent", completion.wr_id());
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// What is still deferred when the queue pair is reset or dropped is never sent and makes no
    /// completion; in the error state, it takes a flush to make it complete.
    ///
    /// # Errors
    /// The first request that is refused ends the list; those before it are deferred. A [full
    /// queue](crate::PushError::QueueFull) may be full of deferred requests: flush, then poll.
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
            // SAFETY: the caller vouches for the request.
            && let Some(posted) = unsafe { T::try_post::<P>(self.queue, request, true) }
        {
            return posted.map_err(|error| doorbell_error(error, 1));
        }
        // SAFETY: the caller of `post_send_deferred` vouches for every request; none of them has
        // been posted.
        unsafe { post_send_slow::<T, P>(self.queue, self.state, requests, true) }
    }

    /// How many requests wait for the doorbell.
    #[must_use]
    pub fn deferred(&self) -> usize {
        self.queue.deferred() as usize
    }

    /// Hands all deferred requests to the device with one doorbell; does nothing where there are
    /// none.
    ///
    /// # Errors
    /// The kernel refuses the doorbell; the error says whether they were taken back or count as
    /// posted, and [`PostError::accepted`] how many count.
    #[inline]
    pub fn flush(&mut self) -> Result<(), PostError> {
        let deferred = self.deferred();
        self.queue.ring().map_err(|error| doorbell_error(error, deferred))
    }

    /// Hands all deferred requests to the device as [`SendHalf::flush`] does, then looks at what
    /// has completed as [`Cq::poll`] does.
    ///
    /// # Errors
    /// As for [`SendHalf::flush`].
    #[inline]
    pub fn flush_and_poll<'c>(&mut self, cq: &'c mut Cq<P>) -> Result<Completions<'c, P>, PostError> {
        self.flush()?;
        Ok(cq.poll())
    }

    /// Requests it holds.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// The send that brought the queue pair down, where the device knows more of it than its
    /// completion said: Soft-RoCE from Linux 6.4 on flushes also the request that is at fault.
    #[must_use]
    pub fn failure(&self) -> Option<SendFailure> {
        self.queue.failure().map(SendFailure::from)
    }
}

/// A send that failed on this side, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendFailure {
    /// Of the request.
    pub wr_id: u64,
    /// Why it failed.
    pub status: WcStatus,
}

impl From<(u64, WcStatus)> for SendFailure {
    fn from((wr_id, status): (u64, WcStatus)) -> Self {
        Self { wr_id, status }
    }
}

/// Posts what the fast path declined.
///
/// # Safety
///
/// As for [`SendHalf::post_send`].
#[inline(always)]
unsafe fn post_send_slow<T: Transport, P: Provider>(
    queue: &mut P::Sq,
    state: &QpState,
    requests: &[SendRequest<'_, T::Operation<'_, P>>],
    defer: bool,
) -> Result<(), PostError> {
    match requests {
        // From a copy, so that a request that is known where it is posted need not lie in memory
        // for the fast path. SAFETY: the caller's promise is the same, and a copy of a request
        // names the same memory.
        [request] => unsafe { post_sends::<T, P>(queue, *state, &[*request], defer) },
        // SAFETY: the caller's promise is the same.
        _ => unsafe { post_sends::<T, P>(queue, *state, requests, defer) },
    }
}

/// Posts any requests in any state, with a doorbell now or later.
///
/// # Safety
///
/// As for [`SendHalf::post_send`].
#[inline(never)]
pub(super) unsafe fn post_sends<T: Transport, P: Provider>(
    queue: &mut P::Sq,
    state: QpState,
    requests: &[SendRequest<'_, T::Operation<'_, P>>],
    defer: bool,
) -> Result<(), PostError> {
    let mut result = Ok(());
    let mut pushed = 0;
    loop {
        // SAFETY: the caller vouches for every request, and `pushed` of them have been pushed.
        pushed += unsafe { T::try_push_all::<P>(queue, &requests[pushed..]) };
        let Some(request) = requests.get(pushed) else { break };
        // SAFETY: the caller vouches for every request, and this one was not pushed.
        if let Err(reason) = unsafe { push_slow::<T, P>(queue, state, request) } {
            result = Err(PostError { accepted: pushed, reason });
            break;
        }
        pushed += 1;
    }
    let rung = if defer { queue.defer() } else { queue.ring() };
    rung.map_err(|error| doorbell_error(error, pushed))?;
    result
}

/// The slow path into the queue, for requests of any kind in any state.
///
/// # Safety
///
/// As for [`SendHalf::post_send`].
#[inline(never)]
unsafe fn push_slow<T: Transport, P: Provider>(
    queue: &mut P::Sq,
    state: QpState,
    request: &SendRequest<'_, T::Operation<'_, P>>,
) -> Result<(), PostReason> {
    if matches!(state, QpState::RESET | QpState::INIT | QpState::RTR) {
        return Err(PostReason::State(state));
    }
    // SAFETY: the caller vouches for the request.
    Ok(unsafe { T::push::<P>(queue, request) }?)
}
