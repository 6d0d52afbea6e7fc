//! The safe layer over queues without a kernel, for measurements.

use std::fmt;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;

use super::endpoint::{Flows, Polled, poll_flows};
use super::flow::{RecvFlow, SendFlow};
use super::{Done, NotPosted, Op, Part, Source, Target};
use crate::context::ContextInner;
use crate::pd::shared::PdShared;
use crate::{Completions, MemoryOwner, Mr, Rc, RecvHalf, SendHalf};

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
        Part::new(Mr::without_kernel(&self.0, memory, lkey))
            .map_err(|failed| failed.error)
            .expect("local rights")
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
        let sends = SendFlow::new(Arc::clone(&domain.0), depth, depth);
        Self { flows: Flows { sends, recvs: RecvFlow::new(Arc::clone(&domain.0), depth) } }
    }

    /// As [`Endpoint::poll`](super::Endpoint::poll).
    ///
    /// # Panics
    /// If an operation failed.
    ///
    /// # Safety
    ///
    /// `cq` must be the CQ of the queues that the endpoint posts to.
    #[inline(always)]
    pub unsafe fn poll<P: Provider>(&mut self, cq: &mut P::Cq) -> Option<Done<B>> {
        match poll_flows::<B, P>(&mut self.flows, Completions::from_raw_queue(cq)) {
            Polled::Empty => None,
            Polled::Ended(Ok(done)) => Some(done),
            Polled::Ended(Err(_)) | Polled::Other(_) => panic!("an operation failed"),
        }
    }
}

impl<B: Source> RawEndpoint<B> {
    /// As [`Endpoint::post`](super::Endpoint::post).
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
        // SAFETY: the flow owns the buffer until the operation is complete, by the caller's
        // contract.
        self.flows.sends.post(op, |request| unsafe { send.post_send(&[*request]) })
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
        // SAFETY: the flow owns the buffer until the operation is complete, by the caller's
        // contract.
        self.flows.recvs.post(buffer, 0, |request| unsafe { recv.post_recv(&[*request]) })
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
