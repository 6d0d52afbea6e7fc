//! Operations that share a doorbell.

use std::fmt;
use std::mem::ManuallyDrop;

use bareverbs_provider::error::DoorbellError;
use bareverbs_provider::traits::Provider;

use super::endpoint::Queues;
use super::in_flight::Unpublished;
use super::operation::{Inline, OpPayload, PostTo};
use super::{Endpoint, Op, Source};
use crate::error::{PostError, PostReason};
use crate::{AnyProvider, Error, Refused, Result};

/// Operations of an [`Endpoint`] that share one doorbell, from [`Endpoint::batch`].
///
/// The device sees them when the batch [rings](Batch::ring). Drop without `ring` takes them back and
/// drops their buffers. `mem::forget` leaves them in the queue, and the next doorbell posts them.
///
/// ```
/// # use bareverbs::{Op, RegionMut};
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let [mut endpoint, mut peer] = example::endpoints::<RegionMut>(&pd)?;
/// # let file = RegionMut::register(&pd, bareverbs::Buffer::zeroed(3 << 20)?)?;
/// # let memory = example::exposed(&pd, 3 << 20)?;
/// # let mut to = memory.remote(0)?;
/// let mut batch = endpoint.batch();
/// for (chunk, tag) in file.chunks(1 << 20).zip(1..) {
///     let len = chunk.len() as u64;
///     batch.post(Op::write(chunk, .., to).tag(tag).unsignaled())?;
///     to.addr += len;
/// }
/// batch.post(Op::send_inline(b"done"))?;
/// batch.ring()?;
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[must_use = "`ring` makes the device execute the operations"]
pub struct Batch<'e, B, P: Provider = AnyProvider> {
    endpoint: &'e mut Endpoint<B, P>,
    pushed: usize,
}

impl<B, P: Provider> Endpoint<B, P> {
    /// Starts operations that share one doorbell.
    pub fn batch(&mut self) -> Batch<'_, B, P> {
        Batch::new(self)
    }
}

impl<'e, B, P: Provider> Batch<'e, B, P> {
    pub(super) fn new(endpoint: &'e mut Endpoint<B, P>) -> Self {
        Self { endpoint, pushed: 0 }
    }

    /// The number of operations in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pushed
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// Rings the doorbell for all operations of the batch, and for those of forgotten batches. Does
    /// nothing if the batch is empty.
    ///
    /// # Errors
    /// [`Error::Post`] with [`PostReason::Doorbell`]: the kernel refuses the
    /// doorbell. The connection has failed. [`Endpoint::poll`] returns the operations, with
    /// [`Outcome::NotExecuted`](super::Outcome::NotExecuted) if the device did not see them.
    #[inline(always)]
    pub fn ring(self) -> Result<()> {
        let mut batch = ManuallyDrop::new(self);
        // The connection may have failed.
        if batch.pushed == 0 {
            return Ok(());
        }
        let Queues { qp, in_flight, .. } = &mut batch.endpoint.queues;
        match qp.start_send().ring() {
            Ok(()) => {
                in_flight.sends.published();
                Ok(())
            }
            Err(error) => batch.refused(error),
        }
    }

    /// The kernel refused the doorbell.
    #[cold]
    #[inline(never)]
    fn refused(&mut self, error: PostError) -> Result<()> {
        let sends = &mut self.endpoint.queues.in_flight.sends;
        if matches!(error.reason, PostReason::Doorbell(DoorbellError::TakenBack(_))) {
            sends.refuse(error.reason);
        } else {
            sends.published();
        }
        self.endpoint.queues.fail();
        Err(error.into())
    }
}

impl<B, P: Provider> Batch<'_, B, P> {
    /// Adds an operation of the send queue with one buffer, or an inline one. Receives and operations of
    /// several buffers are posted by [`Endpoint::post`].
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the operation. Earlier
    /// operations stay in the batch.
    #[inline(always)]
    pub fn post<T: PostTo<Self>>(&mut self, op: T) -> Result<(), T::Refused> {
        op.post_to(self)
    }

    #[expect(clippy::result_large_err, reason = "the error returns the operation without an allocation")]
    #[inline(always)]
    fn push<L: OpPayload<B>>(&mut self, op: Op<L>) -> Result<(), Refused<Op<L>>> {
        let Queues { qp, in_flight, .. } = &mut self.endpoint.queues;
        let posted = in_flight.sends.post(&mut Unpublished(qp), op);
        self.pushed += usize::from(posted.is_ok());
        posted
    }
}

impl<B: Source, P: Provider> PostTo<Batch<'_, B, P>> for Op<B> {
    type Refused = Refused<Self>;

    #[inline(always)]
    fn post_to(self, to: &mut Batch<'_, B, P>) -> Result<(), Refused<Self>> {
        to.push(self)
    }
}

impl<B, P: Provider> PostTo<Batch<'_, B, P>> for Op<Inline<'_>> {
    type Refused = Error;

    #[inline(always)]
    fn post_to(self, to: &mut Batch<'_, B, P>) -> Result<()> {
        Ok(to.push(self)?)
    }
}

impl<B, P: Provider> Drop for Batch<'_, B, P> {
    fn drop(&mut self) {
        let Queues { qp, in_flight, .. } = &mut self.endpoint.queues;
        // A forked child does not inherit the rings.
        if self.pushed == 0 || qp.pd().context().file().check_same_process().is_err() {
            return;
        }
        drop(qp.start_send());
        in_flight.sends.take_back_unpublished();
    }
}

impl<B, P: Provider> fmt::Debug for Batch<'_, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.pushed).finish_non_exhaustive()
    }
}
