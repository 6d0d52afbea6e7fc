//! Batches of sends.

use std::mem::ManuallyDrop;

use bareverbs_provider::traits::{Provider, SendQueue};
use bareverbs_provider::work::{Payload, Remote, SendFlags, SendRequest};
use bareverbs_uapi::verbs_values::QpState;

use super::push_slow;
use crate::post_error::{PostError, PostReason, doorbell_error};
use crate::provider::AnyProvider;
use crate::qp::datagram::Datagram;
use crate::qp::transport::{Connected, Operations, UcOperation, Ud};

/// A batch of sends. The device sees none of them before [`Batch::ring`]. Drop without
/// [`Batch::ring`] or [`Batch::defer`] takes them back. `mem::forget` leaves them in the queue, and
/// the next doorbell posts them.
///
/// A queue pair has one batch at a time:
///
/// ```compile_fail,E0499
/// # fn two(qp: &mut bareverbs::qp::Qp<bareverbs::qp::Rc>) {
/// let mut first = qp.start_send();
/// let mut second = qp.start_send();
/// first.ring().unwrap();
/// # }
/// ```
#[doc(alias = "ibv_qp_ex")]
#[must_use = "requests are sent by `ring`"]
pub struct Batch<'a, T: Operations, P: Provider = AnyProvider> {
    queue: &'a mut P::Sq,
    state: QpState,
    pushed: usize,
    transport: T,
}

impl<'a, T: Operations, P: Provider> Batch<'a, T, P> {
    #[inline]
    pub(crate) fn new(queue: &'a mut P::Sq, state: QpState, transport: T) -> Self {
        Self { queue, state, pushed: 0, transport }
    }
}

impl<T: Operations, P: Provider> Batch<'_, T, P> {
    /// Writes a request into the next slot.
    ///
    /// # Errors
    /// The [`PostReason`] of the rejection. Earlier requests stay in the batch.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`](super::SendHalf::post_send). A request that was taken back
    /// when the batch was dropped is no longer in use. A request of a forgotten batch is in use.
    #[inline(always)]
    pub unsafe fn push(&mut self, request: &SendRequest<'_, T::Operation<'_, P>>) -> Result<(), PostReason> {
        // SAFETY: the caller upholds the contract for the request.
        if unsafe { self.try_push(request) } {
            return Ok(());
        }
        // SAFETY: the caller upholds the contract for the request, which the fast path did not
        // push.
        unsafe { push_slow::<T, P>(self.transport, self.queue, self.state, request) }?;
        self.pushed += 1;
        Ok(())
    }

    /// Writes a request by the fast path alone. `false`: it was not written, and [`Batch::push`] writes
    /// or rejects it.
    ///
    /// # Safety
    ///
    /// As for [`Batch::push`].
    #[inline(always)]
    pub unsafe fn try_push(&mut self, request: &SendRequest<'_, T::Operation<'_, P>>) -> bool {
        // SAFETY: the caller upholds the contract for the request.
        let is_pushed = unsafe { self.transport.try_push::<P>(self.queue, request) };
        self.pushed += usize::from(is_pushed);
        is_pushed
    }

    /// The provider's own queue, for requests that the verbs API does not cover, such as [raw
    /// WQEs](bareverbs_mlx5::Mlx5Sq::push_raw_wqe). Requests that are pushed there are posted with
    /// the batch, but [`Batch::len`] does not count them.
    ///
    /// # Safety
    ///
    /// The QP must be in RTS, SQD or ERR. The queue must stay this QP's: the caller may not
    /// exchange it for another one, nor reset it.
    pub unsafe fn provider_queue(&mut self) -> &mut P::Sq {
        self.queue
    }

    /// The number of requests in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pushed
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// Posts the batch, after earlier deferred requests, with one doorbell.
    ///
    /// # Errors
    /// [`PostReason::Doorbell`]: the kernel refuses the doorbell. The error says whether the
    /// requests, including the earlier deferred ones, were taken back or count as posted.
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn ring(self) -> Result<(), PostError> {
        let mut batch = ManuallyDrop::new(self);
        batch.queue.ring().map_err(|error| doorbell_error(error, batch.pushed))
    }

    /// Defers the batch to the next doorbell; see
    /// [`SendHalf::post_send_deferred`](super::SendHalf::post_send_deferred).
    ///
    /// # Errors
    /// As for [`Batch::ring`], if the provider rings the doorbell at once.
    #[inline]
    pub fn defer(self) -> Result<(), PostError> {
        let mut batch = ManuallyDrop::new(self);
        batch.queue.defer().map_err(|error| doorbell_error(error, batch.pushed))
    }
}

impl<T: Connected, P: Provider> Batch<'_, T, P> {
    /// A send whose bytes are copied now. They need not be registered.
    ///
    /// # Errors
    /// The [`PostReason`] of the rejection, for instance if the bytes exceed the QP's
    /// `max_inline_data`.
    #[doc(alias = "ibv_wr_send")]
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[inline(always)]
    pub fn send_inline(&mut self, wr_id: u64, bytes: &[u8], flags: SendFlags) -> Result<(), PostReason> {
        self.push_inline(wr_id, UcOperation::Send, bytes, flags)
    }

    /// An RDMA write whose bytes are copied now.
    ///
    /// # Errors
    /// As for [`Batch::send_inline`].
    #[doc(alias = "ibv_wr_rdma_write")]
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[inline(always)]
    pub fn write_inline(
        &mut self,
        wr_id: u64,
        remote: Remote,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        self.push_inline(wr_id, UcOperation::Write(remote), bytes, flags)
    }

    #[inline(always)]
    fn push_inline(
        &mut self,
        wr_id: u64,
        operation: UcOperation,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        let operation = T::operation::<P>(operation);
        // SAFETY: the request names no memory except bytes that are copied before this returns.
        let pushed = unsafe {
            T::VALUE.try_push::<P>(
                self.queue,
                &SendRequest { wr_id, operation, flags, payload: Payload::Inline(&[bytes]) },
            )
        };
        if !pushed {
            // Built again: sharing one request would force it into memory on the fast path.
            let request = SendRequest { wr_id, operation, flags, payload: Payload::Inline(&[bytes]) };
            // SAFETY: the request names no memory except bytes that are copied before this returns.
            unsafe { push_slow::<T, P>(self.transport, self.queue, self.state, &request) }?;
        }
        self.pushed += 1;
        Ok(())
    }
}

impl<P: Provider> Batch<'_, Ud, P> {
    /// A datagram whose bytes are copied now. They need not be registered.
    ///
    /// # Errors
    /// The [`PostReason`] of the rejection, for instance if the bytes exceed the QP's
    /// `max_inline_data`.
    #[doc(alias = "ibv_wr_send")]
    #[doc(alias = "ibv_wr_set_ud_addr")]
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[inline]
    pub fn send_to_inline(
        &mut self,
        wr_id: u64,
        to: Datagram<'_, P>,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        let request = SendRequest { wr_id, operation: to, flags, payload: Payload::Inline(&[bytes]) };
        // SAFETY: the request names no memory except bytes that are copied before this returns.
        unsafe { self.push(&request) }
    }
}

impl<T: Operations, P: Provider> Drop for Batch<'_, T, P> {
    #[doc(alias = "ibv_wr_abort")]
    #[inline]
    fn drop(&mut self) {
        // Also if `pushed` is 0: requests may have been pushed through `provider_queue`.
        self.queue.abort();
    }
}
