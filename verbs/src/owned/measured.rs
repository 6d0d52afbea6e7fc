//! The safe layer over queues without a kernel, for measurements.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;

use super::endpoint::{Flows, Polled, poll_flows};
use super::{Done, Failed, NotPosted, Op, Part, Pool, Source, Target};
use crate::context::ContextInner;
use crate::pd::shared::PdShared;
use crate::{Buffer, Completions, MemoryOwner, Mr, Rc, RecvHalf, SendHalf};

/// A protection domain without a kernel object.
pub struct RawDomain(Arc<PdShared>);

impl RawDomain {
    /// Creates the domain. Commands on it fail.
    #[expect(clippy::new_without_default, reason = "it opens a file")]
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(PdShared::without_kernel(ContextInner::without_kernel())))
    }

    /// A part of all bytes of a region with the L_Key `lkey`.
    ///
    /// # Panics
    /// Never: a region without a kernel has local rights only.
    #[must_use]
    pub fn part<M: MemoryOwner>(&self, memory: M, lkey: u32) -> Part<M> {
        Part::new(self.mr(memory, lkey)).map_err(|failed| failed.error).expect("local rights")
    }

    /// A region with the L_Key `lkey`.
    #[must_use]
    pub fn mr<M: MemoryOwner>(&self, memory: M, lkey: u32) -> Mr<M> {
        Mr::without_kernel(&self.0, memory, lkey)
    }

    /// A pool of one buffer, with the L_Key `lkey`.
    ///
    /// # Safety
    ///
    /// The bytes must be valid until the process ends, and only this pool accesses them.
    #[must_use]
    pub unsafe fn pool(&self, start: NonNull<u8>, len: usize, lkey: u32) -> Pool {
        // SAFETY: the bytes stay valid by the caller's contract. The buffer is never dropped,
        // because the region can't be deregistered.
        let memory = unsafe { Buffer::from_raw_parts(start, len) };
        Pool::of(self.mr(memory, lkey), 1, len, len)
    }
}

/// An endpoint whose queues the caller keeps.
pub struct RawEndpoint<B> {
    flows: Flows<B>,
}

impl<B> RawEndpoint<B> {
    /// An endpoint for `depth` operations in each direction.
    #[must_use]
    pub fn new(domain: &RawDomain, depth: u32) -> Self {
        Self { flows: Flows::new(&domain.0, depth, depth, depth) }
    }

    /// As [`Endpoint::poll`](super::Endpoint::poll). Completions that need more work are dropped.
    ///
    /// # Safety
    ///
    /// `cq` must be the CQ of the queues that the endpoint posts to.
    #[inline(always)]
    pub unsafe fn poll<P: Provider>(&mut self, cq: &mut P::Cq) -> Option<Result<Done<B>, Failed<B>>> {
        match poll_flows::<B, P>(&mut self.flows, Completions::from_raw_queue(cq)) {
            Polled::Done(done) => Some(Ok(done)),
            Polled::Empty => None,
            Polled::Slow => self.poll_slow(),
        }
    }

    #[cold]
    #[inline(never)]
    fn poll_slow(&mut self) -> Option<Result<Done<B>, Failed<B>>> {
        self.flows.take()
    }

    #[cold]
    #[inline(never)]
    fn refused(&mut self, refused: NotPosted<B>) -> NotPosted<B> {
        self.flows.sends.close();
        refused
    }
}

impl<B: Source> RawEndpoint<B> {
    /// As [`Endpoint::post`](super::Endpoint::post). An error closes the endpoint.
    ///
    /// # Errors
    /// As for `Endpoint::post`.
    ///
    /// # Safety
    ///
    /// The endpoint must exist until the device has finished with all operations. `send` must
    /// belong to the endpoint's queue.
    #[inline(always)]
    pub unsafe fn post<P: Provider>(
        &mut self,
        send: &mut SendHalf<'_, Rc, P>,
        op: Op<'_, B>,
    ) -> Result<(), NotPosted<B>> {
        self.flows.sends.post(send, op).map_err(|refused| self.refused(refused))
    }
}

impl<B: Target> RawEndpoint<B> {
    /// As [`Endpoint::post_recv`](super::Endpoint::post_recv).
    ///
    /// # Errors
    /// As for `Endpoint::post_recv`.
    ///
    /// # Safety
    ///
    /// As for [`RawEndpoint::post`].
    #[inline(always)]
    pub unsafe fn post_recv<P: Provider>(
        &mut self,
        recv: &mut RecvHalf<'_, Rc, P>,
        buffer: B,
    ) -> Result<(), NotPosted<B>> {
        self.flows.recvs.post(recv, buffer, 0)
    }
}

impl fmt::Debug for RawDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawDomain").finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for RawEndpoint<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawEndpoint").finish_non_exhaustive()
    }
}
