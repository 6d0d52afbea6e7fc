//! The send queue of a queue pair.

use crate::error::DoorbellError;
use crate::layout::QueueLayout;
use crate::work::{Datagram, Frame, PushError, SendRequest, WcStatus, XrcOperation};

/// The send queue of a queue pair.
///
/// Requests are written one by one and published together: [`SendQueue::push`] fills the next free
/// slot, [`SendQueue::ring`] publishes all filled slots and rings the doorbell once.
///
/// # Safety
///
/// Code that posts relies on these obligations. "The device" executes the requests: the adapter, or
/// the kernel for a software device. An implementation may assume that the device and the kernel
/// adhere to their specifications, and that each caller of an `unsafe` method adheres to its
/// contract. All methods must fulfil the obligations even if they panic: a panic must not leave a
/// half-written request that is published later.
///
/// 1. **Memory.** The memory that the device reads or writes for the queue (slots, doorbell record,
///    inline data), other than the memory that requests name, stays valid and in place from
///    creation until the value is dropped, even if the value moves. `verbs`' `Qp::drop` relies on
///    it: it destroys the queue pair before it drops the queues.
/// 2. **Requests** ([`push`](Self::push), [`push_datagram`](Self::push_datagram),
///    [`push_xrc`](Self::push_xrc), [`push_frame`](Self::push_frame), [`try_push`](Self::try_push),
///    [`try_push_all`](Self::try_push_all), [`try_post`](Self::try_post)). For an accepted request,
///    the device accesses only the memory that its SGEs name, under their keys, and only as the
///    operation specifies. Inline data and headers are copied before the method returns. A request
///    that is rejected (`Err`) or declined (`false`, `None`, beyond the count) is not published,
///    now or later. `verbs`' `post_send` and `Batch` rely on it: they report such requests to the
///    caller as not posted.
/// 3. **No overwriting.** A slot is written only if no request in it may still be read by the
///    device. A full queue rejects requests. Every caller relies on it: an overwritten request may
///    name memory that was freed.
/// 4. **Publishing** ([`ring`](Self::ring), [`defer`](Self::defer), [`try_post`](Self::try_post)).
///    The device sees a request during one of these calls, and not before. During
///    [`QpControl::resume`](super::QpControl::resume) it may see requests that they published.
/// 5. **Abort** ([`abort`](Self::abort)). The device never sees requests that were pushed and
///    neither published nor deferred. `verbs`' `Batch::drop` relies on it: afterwards the caller
///    may reuse or free the memory of such requests.
/// 6. **Failed doorbells** ([`DoorbellError`]). After [`DoorbellError::TakenBack`], the device
///    accesses no memory for any request of the batch in any later state of the queue pair; it may
///    at most report them as failed. In all other cases each request of the batch counts as posted.
///    `verbs`' `Endpoint` relies on it: it returns the buffers of a batch on `TakenBack` and keeps
///    them otherwise.
/// 7. **Reset** ([`reset`](Self::reset)). The device sees no request that was pushed before.
///    `verbs`' `Qp::reset` relies on it: afterwards the caller may reuse or free the memory of the
///    requests.
///
/// No code may rely on the results of [`capacity`](Self::capacity),
/// [`owns_doorbell`](Self::owns_doorbell), [`deferred`](Self::deferred) and
/// [`failure`](Self::failure) for soundness: they are informative.
///
/// Safe code can't implement the trait:
///
/// ```compile_fail,E0200
/// # use bareverbs_provider::error::DoorbellError;
/// # use bareverbs_provider::traits::SendQueue;
/// # use bareverbs_provider::work::{Datagram, PushError, SendRequest};
/// struct Noop;
/// impl SendQueue for Noop {
///     type Ah = ();
///     fn capacity(&self) -> u32 { 1 }
///     unsafe fn push(&mut self, _: &SendRequest<'_>) -> Result<(), PushError> { Ok(()) }
///     unsafe fn push_datagram(
///         &mut self,
///         _: &SendRequest<'_, Datagram<'_, ()>>,
///     ) -> Result<(), PushError> { Ok(()) }
///     fn ring(&mut self) -> Result<(), DoorbellError> { Ok(()) }
///     fn abort(&mut self) {}
///     unsafe fn reset(&mut self) {}
/// }
/// ```
///
/// Nor can it reset a queue whose queue pair still executes requests:
///
/// ```compile_fail,E0133
/// # use bareverbs_provider::traits::SendQueue;
/// fn reset(queue: &mut impl SendQueue) {
///     queue.reset();
/// }
/// ```
pub unsafe trait SendQueue: Send {
    /// The part of an address handle that requests need.
    type Ah;

    /// Capacity in requests.
    fn capacity(&self) -> u32;

    /// Fast path: writes a request of the most frequent kinds into the next free slot, or does
    /// nothing and returns `false`. Then [`SendQueue::push`] (slow path) writes or rejects it.
    /// Default: declines every request.
    ///
    /// A provider keeps it free of calls and of rare branches. It declines in every doubtful case, and
    /// each request that `push` would reject: also the operations that the QP's transport lacks.
    /// After creation and after reset it declines until a push has succeeded, so that a caller
    /// checks the QP's state on the slow path only.
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &SendRequest<'_>) -> bool {
        let _ = request;
        false
    }

    /// Writes requests as [`SendQueue::try_push`] does, until it declines one. Returns their
    /// number.
    ///
    /// An enum over providers branches once here, not once for each request. Default: one
    /// `try_push` for each request.
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    #[inline(always)]
    unsafe fn try_push_all(&mut self, requests: &[SendRequest<'_>]) -> usize {
        let mut rest = requests;
        while let [request, more @ ..] = rest {
            // SAFETY: the caller guarantees the memory of each request, as `push` requires.
            if !unsafe { self.try_push(request) } {
                break;
            }
            rest = more;
        }
        requests.len() - rest.len()
    }

    /// Writes a request as [`SendQueue::try_push`] does and publishes it with all pushed and
    /// deferred ones; if `defer`, defers it instead. Returns `None` if it was declined.
    ///
    /// An enum over providers branches once here, not once for each step. Default: `try_push`, then
    /// [`SendQueue::defer`] or [`SendQueue::ring`].
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    #[inline(always)]
    unsafe fn try_post(
        &mut self,
        request: &SendRequest<'_>,
        defer: bool,
    ) -> Option<Result<(), DoorbellError>> {
        // SAFETY: the caller guarantees the memory of the request, as `push` requires.
        if !unsafe { self.try_push(request) } {
            return None;
        }
        Some(if defer { self.defer() } else { self.ring() })
    }

    /// Slow path: writes a request into the next free slot. The device does not see it before
    /// [`SendQueue::ring`].
    ///
    /// # Errors
    ///
    /// The reason of the rejection, such as [`PushError::QueueFull`].
    ///
    /// # Safety
    ///
    /// Memory named by the request's SGEs must stay registered, and unaliased as the operation
    /// requires, until the request completes or the queue pair is destroyed.
    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PushError>;

    /// Writes a datagram into the next free slot, as [`SendQueue::push`] does with connected
    /// requests.
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    unsafe fn push_datagram(
        &mut self,
        request: &SendRequest<'_, Datagram<'_, Self::Ah>>,
    ) -> Result<(), PushError>;

    /// Writes an XRC request, which names a shared receive queue of the peer, into the next free
    /// slot, as [`SendQueue::push`] does. Default: [`PushError::Unsupported`].
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    unsafe fn push_xrc(&mut self, request: &SendRequest<'_, XrcOperation>) -> Result<(), PushError> {
        let _ = request;
        Err(PushError::Unsupported { operation: "an XRC request" })
    }

    /// Writes a raw packet into the next free slot, as [`SendQueue::push`] does. Default:
    /// [`PushError::Unsupported`].
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    unsafe fn push_frame(&mut self, request: &SendRequest<'_, Frame<'_>>) -> Result<(), PushError> {
        let _ = request;
        Err(PushError::Unsupported { operation: "a raw packet" })
    }

    /// Whether no other queue uses this queue's doorbell register. Then a provider can copy
    /// requests to the device with the doorbell (BlueFlame). Default: `false`.
    fn owns_doorbell(&self) -> bool {
        false
    }

    /// Defers pushed requests to the next [`SendQueue::ring`]: [`SendQueue::abort`] no longer
    /// discards them. Default: publishes them at once, for cheap doorbells.
    fn defer(&mut self) -> Result<(), DoorbellError> {
        self.ring()
    }

    /// Requests that [`SendQueue::defer`] left for the next [`SendQueue::ring`]. Default: 0.
    fn deferred(&self) -> u32 {
        0
    }

    /// Publishes pushed and deferred requests and rings the doorbell. Does nothing if there are
    /// none.
    ///
    /// # Errors
    ///
    /// [`DoorbellError::TakenBack`] or [`DoorbellError::Posted`], for the whole batch.
    fn ring(&mut self) -> Result<(), DoorbellError>;

    /// Discards requests that were pushed and neither published nor deferred.
    fn abort(&mut self);

    /// The `wr_id` and status of a request that failed locally, if the queue has more information
    /// than the completion. Default: `None`.
    fn failure(&self) -> Option<(u64, WcStatus)> {
        None
    }

    /// The addresses of the ring, its indices and its doorbell, for programs that access them
    /// directly. Informative: no code relies on it for soundness. Default: `None`.
    fn layout(&self) -> Option<QueueLayout> {
        None
    }

    /// Resets the queue to empty after the kernel has moved the queue pair to RESET.
    ///
    /// # Safety
    ///
    /// The kernel must have executed at least one request to move the QP to RESET, and the QP must
    /// not have left RESET since. Obligation 7 holds only if the kernel has executed two such
    /// requests where [`QpControl::needs_second_reset`](super::QpControl::needs_second_reset)
    /// returns `true`. With fewer, the caller must keep the memory of earlier requests unchanged.
    unsafe fn reset(&mut self);
}
