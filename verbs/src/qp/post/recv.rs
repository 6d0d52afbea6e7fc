//! Receives.

use std::marker::PhantomData;

use bareverbs_provider::contract::{Provider, RecvQueue};
use bareverbs_uapi::uverbs::types::QpType;

use super::{PostError, PostReason};
use crate::qp::Transport;
use crate::{AnyProvider, QpState, RecvRequest};

/// The receive half of a queue pair, which it borrows; see [`Qp::split`](crate::Qp::split).
pub struct RecvHalf<'q, T: Transport, P: Provider = AnyProvider> {
    /// None where a shared receive queue takes its place.
    queue: Option<&'q mut P::Rq>,
    /// By reference, so that the fast path does not load it.
    state: &'q QpState,
    _transport: PhantomData<T>,
}

impl<'q, T: Transport, P: Provider> RecvHalf<'q, T, P> {
    #[inline(always)]
    pub(in crate::qp) fn new(queue: Option<&'q mut P::Rq>, state: &'q QpState) -> Self {
        Self { queue, state, _transport: PhantomData }
    }

    /// A half of no queue pair, whose state is taken to be RTS.
    #[cfg(feature = "test-utils")]
    #[inline(always)]
    pub fn from_raw_queue(queue: &'q mut P::Rq) -> Self {
        Self::new(Some(queue), &QpState::RTS)
    }
}

impl<T: Transport, P: Provider> RecvHalf<'_, T, P> {
    /// Posts receives.
    ///
    /// # Errors
    /// The first request that is refused ends the list; those before it are posted and will
    /// complete.
    ///
    /// # Safety
    ///
    /// A request is in use until it is complete, or the queue pair was brought to RESET or
    /// destroyed, as for [`SendHalf::post_send`](super::SendHalf::post_send): where the kernel
    /// refuses to destroy the queue pair, it stays in use for the life of the process. While it is
    /// in use, the memory that its elements name must stay registered, mapped and allocated, and
    /// nobody may look at it or change it, except by the copying methods of the region. Where
    /// completions carry messages ([`QpInit::scatter_to_cqe`](crate::QpInit::scatter_to_cqe)), the
    /// elements' addresses must be those of this process.
    ///
    /// For a region on demand ([`Access::ON_DEMAND`](crate::Access::ON_DEMAND)) on Soft-RoCE, the
    /// same holds for the bytes from the start of each page that an element touches: the kernel
    /// copies to and from there (`__rxe_odp_mr_copy` of `rxe_odp.c`, Linux 7.2).
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if let ([request], Some(queue)) = (requests, &mut self.queue)
            // SAFETY: the caller vouches for the request.
            && unsafe { queue.try_post(request) }
        {
            return Ok(());
        }
        let queue = self.queue.as_deref_mut();
        match requests {
            // From a copy, as sends are, and its element too.
            [RecvRequest { wr_id, sges: [sge] }] => {
                let (wr_id, sge) = (*wr_id, *sge);
                // SAFETY: the caller vouches for the request, which was not posted; the copy names
                // the same memory.
                unsafe {
                    post_receives_in::<T, _>(queue, *self.state, &[RecvRequest { wr_id, sges: &[sge] }])
                }
            }
            // SAFETY: the caller vouches for every request; none of them has been posted.
            _ => unsafe { post_receives_in::<T, _>(queue, *self.state, requests) },
        }
    }

    /// Requests it holds; 0 where a shared queue takes its place.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.as_ref().map_or(0, |queue| queue.capacity())
    }
}

/// Posts any receives to the queue of a queue pair in any state.
///
/// # Safety
///
/// As for [`RecvHalf::post_recv`].
#[inline(never)]
pub(in crate::qp) unsafe fn post_receives_in<T: Transport, Q: RecvQueue>(
    queue: Option<&mut Q>,
    state: QpState,
    requests: &[RecvRequest<'_>],
) -> Result<(), PostError> {
    let reason = match queue {
        // SAFETY: the caller's promise is the same.
        Some(queue) if state != QpState::RESET => return unsafe { post_receives(queue, requests) },
        Some(_) => PostReason::State(state),
        None if T::QP_TYPE == QpType::XRC_INI => PostReason::SendsOnly,
        None => PostReason::Shared,
    };
    if requests.is_empty() { Ok(()) } else { Err(PostError { accepted: 0, reason }) }
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
        // SAFETY: the caller vouches for every request, and `accepted` of them have been pushed.
        accepted += unsafe { queue.try_push_all(&requests[accepted..]) };
        let Some(request) = requests.get(accepted) else { break };
        // SAFETY: the caller vouches for every request, and this one was not pushed.
        if let Err(refusal) = unsafe { queue.push(request) } {
            posted = Err(PostError { accepted, reason: refusal.into() });
            break;
        }
        accepted += 1;
    }
    queue.ring();
    posted
}
