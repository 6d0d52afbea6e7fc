//! Receives.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bareverbs_provider::contract::{Provider, RecvQueue};
use bareverbs_uapi::uverbs::types::QpType;

use super::{PostError, PostReason};
use crate::qp::Transport;
use crate::{AnyProvider, QpState, RecvRequest};

/// The receive half of a queue pair.
pub struct RecvHalf<T: Transport, P: Provider = AnyProvider> {
    /// The queue pair frees it, after the kernel let go of it. None where a shared queue takes its place.
    pub(in crate::qp) queue: Option<ManuallyDrop<P::Rq>>,
    pub(in crate::qp) state: QpState,
    pub(in crate::qp) _transport: PhantomData<T>,
}

impl<T: Transport, P: Provider> RecvHalf<T, P> {
    /// The half of a queue pair in RTS that there is no more of than this queue. It is never freed.
    #[cfg(feature = "test-utils")]
    pub fn over(queue: P::Rq) -> Self {
        Self { queue: Some(ManuallyDrop::new(queue)), state: QpState::RTS, _transport: PhantomData }
    }

    /// Posts receives.
    ///
    /// # Errors
    /// The first request that is refused ends the list; those before it are posted and will complete.
    ///
    /// # Safety
    ///
    /// Until a request is complete, or the queue pair is dropped, the memory that its elements name must stay
    /// registered, and nobody may look at it or change it, not even through the region's own safe methods other than
    /// the copying ones. Where completions carry messages ([`QpInit::scatter_to_cqe`](crate::QpInit::scatter_to_cqe)), the
    /// elements' addresses must be those of this process.
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if let ([request], Some(queue)) = (requests, &mut self.queue)
            // SAFETY: the caller vouches for the request.
            && unsafe { queue.try_post(request) }
        {
            return Ok(());
        }
        match requests {
            // From a copy, as sends are, and its element too.
            [RecvRequest { wr_id, sges: [sge] }] => {
                let (wr_id, sge) = (*wr_id, *sge);
                // SAFETY: the same promise.
                unsafe { self.post_list(&[RecvRequest { wr_id, sges: &[sge] }]) }
            }
            // SAFETY: the same promise.
            _ => unsafe { self.post_list(requests) },
        }
    }

    /// Posts any receives in any state.
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    #[inline(never)]
    unsafe fn post_list(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let state = self.state;
        let Some(queue) = self.queue.as_mut().filter(|_| state != QpState::RESET) else {
            let reason = match &self.queue {
                Some(_) => PostReason::State(state),
                None if T::QP_TYPE == QpType::XRC_INI => PostReason::SendsOnly,
                None => PostReason::Shared,
            };
            return if requests.is_empty() { Ok(()) } else { Err(PostError { accepted: 0, reason }) };
        };
        // SAFETY: the same promise.
        unsafe { post_receives(&mut **queue, requests) }
    }

    /// Requests it holds; 0 where a shared queue takes its place.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.as_ref().map_or(0, |queue| queue.capacity())
    }
}

/// Posts any receives to a queue of one queue pair, or to a shared one.
///
/// # Safety
///
/// As for [`RecvHalf::post_recv`].
pub(crate) unsafe fn post_receives(
    queue: &mut impl RecvQueue,
    requests: &[RecvRequest<'_>],
) -> Result<(), PostError> {
    let mut posted = Ok(());
    let mut accepted = 0;
    loop {
        // SAFETY: the caller vouches for every request.
        accepted += unsafe { queue.try_push_all(&requests[accepted..]) };
        let Some(request) = requests.get(accepted) else { break };
        // SAFETY: the same promise.
        if let Err(refusal) = unsafe { queue.push(request) } {
            posted = Err(PostError { accepted, reason: refusal.into() });
            break;
        }
        accepted += 1;
    }
    queue.ring();
    posted
}
