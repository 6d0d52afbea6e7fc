//! Batches of sends.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bareverbs_provider::contract::{Provider, SendQueue};

use super::error::doorbell_error;
use super::{PostError, PostReason, push_slow};
use crate::qp::transport::UcOperation;
use crate::qp::{Connected, Transport};
use crate::{AnyProvider, Payload, QpState, Remote, SendFlags, SendRequest};

/// Sends being written. The device sees none of them before [`Batch::ring`]; dropped without that
/// and without [`Batch::defer`], they are taken back. A forgotten batch leaves them in the queue,
/// and the next doorbell posts them.
///
/// A queue pair has one batch at a time:
///
/// ```compile_fail,E0499
/// # fn two(qp: &mut bareverbs::Qp<bareverbs::Rc>) {
/// let mut first = qp.start_send();
/// let mut second = qp.start_send();
/// first.ring().unwrap();
/// # }
/// ```
#[must_use = "nothing is sent before `ring`"]
pub struct Batch<'a, T: Transport, P: Provider = AnyProvider> {
    queue: &'a mut P::Sq,
    state: QpState,
    pushed: usize,
    _transport: PhantomData<T>,
}

impl<'a, T: Transport, P: Provider> Batch<'a, T, P> {
    #[inline]
    pub(in crate::qp) fn new(queue: &'a mut P::Sq, state: QpState) -> Self {
        Self { queue, state, pushed: 0, _transport: PhantomData }
    }
}

impl<T: Transport, P: Provider> Batch<'_, T, P> {
    /// Writes a request into the next slot.
    ///
    /// # Errors
    /// The request is refused; those before it stay in the batch.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`](super::SendHalf::post_send). A request that was taken back,
    /// when the batch was dropped, is not in use any more. One of a forgotten batch is.
    #[inline(always)]
    pub unsafe fn push(&mut self, request: &SendRequest<'_, T::Operation<'_, P>>) -> Result<(), PostReason> {
        // SAFETY: the caller vouches for the request.
        if unsafe { T::try_push::<P>(self.queue, request) } {
            self.pushed += 1;
            return Ok(());
        }
        // SAFETY: the caller vouches for the request, which the fast path did not push.
        unsafe { push_slow::<T, P>(self.queue, self.state, request) }?;
        self.pushed += 1;
        Ok(())
    }

    /// The provider's own queue, for requests that it has no word for, such as those that are
    /// [built by hand](bareverbs_mlx5::Mlx5Sq::push_raw_wqe). What is pushed there goes with the
    /// batch, but is not counted in [`Batch::len`].
    ///
    /// # Safety
    ///
    /// The queue pair must be in RTS, SQD or ERR. The queue must stay this queue pair's: it may not
    /// be exchanged for another one, nor reset.
    pub unsafe fn provider_queue(&mut self) -> &mut P::Sq {
        self.queue
    }

    /// How many requests it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pushed
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// Hands all its requests to the device with one doorbell, after those that were deferred
    /// before.
    ///
    /// # Errors
    /// The kernel refuses the doorbell; the error says whether the requests, and the deferred ones
    /// before them, were taken back or count as posted.
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn ring(self) -> Result<(), PostError> {
        let mut batch = ManuallyDrop::new(self);
        batch.queue.ring().map_err(|error| doorbell_error(error, batch.pushed))
    }

    /// Leaves its requests to the next doorbell; see
    /// [`SendHalf::post_send_deferred`](super::SendHalf::post_send_deferred).
    ///
    /// # Errors
    /// As for [`Batch::ring`], where the device is told at once.
    #[inline]
    pub fn defer(self) -> Result<(), PostError> {
        let mut batch = ManuallyDrop::new(self);
        batch.queue.defer().map_err(|error| doorbell_error(error, batch.pushed))
    }
}

impl<T: Connected, P: Provider> Batch<'_, T, P> {
    /// A message whose bytes are copied now, so that nothing has to stay registered.
    ///
    /// # Errors
    /// The request is refused, for instance since the queue pair was made for fewer bytes inline.
    #[inline(always)]
    pub fn send_inline(&mut self, wr_id: u64, bytes: &[u8], flags: SendFlags) -> Result<(), PostReason> {
        self.push_inline(wr_id, UcOperation::Send, bytes, flags)
    }

    /// Bytes for the peer's memory, copied now.
    ///
    /// # Errors
    /// As for [`Batch::send_inline`].
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
        // SAFETY: the request names no memory but what is copied before this returns.
        let pushed = unsafe {
            T::try_push::<P>(
                self.queue,
                &SendRequest { wr_id, operation, flags, payload: Payload::Inline(&[bytes]) },
            )
        };
        if !pushed {
            // The request once more: sharing one would force it into memory on the fast path too.
            let request = SendRequest { wr_id, operation, flags, payload: Payload::Inline(&[bytes]) };
            // SAFETY: the request names no memory but what is copied before this returns.
            unsafe { push_slow::<T, P>(self.queue, self.state, &request) }?;
        }
        self.pushed += 1;
        Ok(())
    }
}

impl<T: Transport, P: Provider> Drop for Batch<'_, T, P> {
    #[doc(alias = "ibv_wr_abort")]
    #[inline]
    fn drop(&mut self) {
        // Also where `pushed` is 0: requests may have been pushed through `provider_queue`.
        self.queue.abort();
    }
}
