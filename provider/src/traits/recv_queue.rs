//! The receive queue of a queue pair or a work queue, and shared receive queues.

use crate::layout::QueueLayout;
use crate::work::{PushError, RecvRequest};

/// A receive queue of a QP or work queue, or a shared receive queue (SRQ).
///
/// # Safety
///
/// The obligations correspond to those of a [`SendQueue`](super::SendQueue). Its assumptions about
/// the device and the kernel, and its rule about panics, apply too:
///
/// 1. **Memory.** The memory that the device reads or writes for the queue, other than the memory
///    that requests name, stays valid and in place until the value is dropped. `verbs`' `Qp::drop`,
///    `Srq::drop` and `Wq::drop` rely on it: they destroy the kernel object before they drop the
///    value.
/// 2. **Requests** ([`push`](Self::push), [`try_push`](Self::try_push),
///    [`try_push_all`](Self::try_push_all), [`try_post`](Self::try_post)). For an accepted request,
///    the device writes only to the memory that its SGEs name, under their keys. A request that is
///    rejected or declined is not published, now or later. `verbs`' `post_recv` functions rely on
///    it.
/// 3. **No overwriting.** A slot is written only if no request in it may still be read by the
///    device.
/// 4. **Publishing** ([`ring`](Self::ring), [`try_post`](Self::try_post)). The device sees a
///    request during one of these calls, and not before.
/// 5. **Abort** ([`abort`](Self::abort)). The device never sees requests that were pushed and not
///    published. `verbs` doesn't abort a list in which one request is rejected: its `post_recv`
///    functions publish the requests before that one.
/// 6. **Reset** ([`reset`](Self::reset)). The device sees no request that was pushed before.
///    `verbs`' `Qp::reset` and `Wq::reset` rely on it.
/// 7. **Memory of requests** ([`abandon`](Self::abandon), dropping). No thread of this process
///    writes to the memory of posted receives after `abandon` has returned, or after the value was
///    dropped. `verbs`' `Qp::drop` relies on it: afterwards the memory may be freed.
///
/// No code may rely on the results of [`capacity`](Self::capacity) and [`posted`](Self::posted)
/// for soundness.
///
/// Safe code can't implement the trait:
///
/// ```compile_fail,E0200
/// # use bareverbs_provider::traits::RecvQueue;
/// # use bareverbs_provider::work::{PushError, RecvRequest};
/// struct Noop;
/// impl RecvQueue for Noop {
///     fn capacity(&self) -> u32 { 1 }
///     unsafe fn push(&mut self, _: &RecvRequest<'_>) -> Result<(), PushError> { Ok(()) }
///     fn ring(&mut self) {}
///     fn abort(&mut self) {}
///     unsafe fn reset(&mut self) {}
/// }
/// ```
///
/// ```compile_fail,E0133
/// # use bareverbs_provider::traits::RecvQueue;
/// fn reset(queue: &mut impl RecvQueue) {
///     queue.reset();
/// }
/// ```
pub unsafe trait RecvQueue: Send {
    /// Capacity in requests.
    fn capacity(&self) -> u32;

    /// Published requests that the device has not consumed yet; it may consume more concurrently. 0
    /// if the number is unknown, or if the driver itself rejects a resize below it. Default: 0.
    fn posted(&self) -> u32 {
        0
    }

    /// Fast path: writes a request of the most frequent kind into the next free slot, or does
    /// nothing and returns `false`, as [`SendQueue::try_push`](super::SendQueue::try_push) does.
    /// Default: declines every request.
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`].
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
        let _ = request;
        false
    }

    /// Writes requests as [`RecvQueue::try_push`] does, until it declines one. Returns their
    /// number. Default: one `try_push` per request.
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`].
    #[inline(always)]
    unsafe fn try_push_all(&mut self, requests: &[RecvRequest<'_>]) -> usize {
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

    /// Writes a request as [`RecvQueue::try_push`] does and publishes it with all pushed ones, or
    /// does nothing and returns `false`. Default: `try_push`, then [`RecvQueue::ring`].
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`].
    #[inline(always)]
    unsafe fn try_post(&mut self, request: &RecvRequest<'_>) -> bool {
        // SAFETY: the caller guarantees the memory of the request, as `push` requires.
        let written = unsafe { self.try_push(request) };
        if written {
            self.ring();
        }
        written
    }

    /// Slow path: writes a request into the next free slot. The device does not see it before
    /// [`RecvQueue::ring`].
    ///
    /// # Errors
    ///
    /// The reason of the rejection, such as [`PushError::QueueFull`].
    ///
    /// # Safety
    ///
    /// Memory named by the request's SGEs must stay registered, and nothing else may access it,
    /// until the request completes or the queue pair is destroyed.
    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError>;

    /// Publishes pushed requests.
    fn ring(&mut self);

    /// Discards requests that were pushed and not yet published.
    fn abort(&mut self);

    /// The addresses of the ring, its indices and its doorbell, for programs that access them
    /// directly. Informative: no code relies on it for soundness. Default: `None`.
    fn layout(&self) -> Option<QueueLayout> {
        None
    }

    /// Resets the queue to empty after the kernel has moved the queue pair or the work queue to
    /// RESET. Does nothing to an SRQ, which has no states.
    ///
    /// # Safety
    ///
    /// The kernel must have executed at least one request to move the QP or the work queue to
    /// RESET, and it must not have left RESET since. Obligation 6 holds only if the kernel has
    /// executed two such requests where
    /// [`QpControl::needs_second_reset`](super::QpControl::needs_second_reset) returns `true`.
    unsafe fn reset(&mut self);

    /// Stops this process's own writes to the memory of posted receives, after the kernel has
    /// refused to destroy the queue. The caller then leaks the queue, because the device may keep
    /// using it.
    ///
    /// After the return, no thread of this process writes to the memory of posted receives, and
    /// neither does a completion that is polled later. The device may still write there. No request
    /// is posted afterwards. Dropping the queue has the same effect. Default: nothing, for
    /// providers whose receive memory is written by the device only.
    fn abandon(&mut self) {}
}
