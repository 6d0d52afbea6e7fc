//! Posting of receives.

use bareverbs_provider::traits::{Provider, RecvQueue};
use bareverbs_provider::work::RecvRequest;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::QpState;

use crate::post_error::{PostError, PostReason};
use crate::provider::{AnyProvider, BuiltIn};
use crate::qp::transport::Operations;
#[cfg(feature = "test-utils")]
use crate::qp::transport::Transport;
use crate::recv_queue::post_receives;

/// The receive half of a QP. It borrows the QP; see [`Qp::split`](crate::qp::Qp::split).
pub struct RecvHalf<'q, T: Operations, P: Provider = AnyProvider> {
    /// `None` if the QP uses a shared receive queue.
    queue: Option<&'q mut P::Rq>,
    /// By reference, so that the fast path does not load it.
    state: &'q QpState,
    transport: T,
}

impl<'q, T: Operations, P: Provider> RecvHalf<'q, T, P> {
    #[inline(always)]
    pub(crate) fn new(queue: Option<&'q mut P::Rq>, state: &'q QpState, transport: T) -> Self {
        Self { queue, state, transport }
    }
}

impl<'q, T: Operations> RecvHalf<'q, T> {
    /// As [`SendHalf::of_provider`](super::SendHalf::of_provider).
    ///
    /// # Safety
    ///
    /// The device has this provider.
    #[inline(always)]
    #[must_use]
    pub unsafe fn of_provider<P: BuiltIn>(self) -> RecvHalf<'q, T, P> {
        let Self { queue, state, transport } = self;
        // SAFETY: the provider of a device creates its queues, and it is this one by the contract.
        let queue = queue.map(|queue| unsafe { P::rq(queue).unwrap_unchecked() });
        RecvHalf { queue, state, transport }
    }
}

#[cfg(feature = "test-utils")]
impl<'q, T: Transport, P: Provider> RecvHalf<'q, T, P> {
    /// A receive half over a queue without a kernel QP; assumed to be in RTS.
    #[inline(always)]
    #[must_use]
    pub fn from_raw_queue(queue: &'q mut P::Rq) -> Self {
        Self::new(Some(queue), &QpState::RTS, T::VALUE)
    }
}

impl<T: Operations, P: Provider> RecvHalf<'_, T, P> {
    /// Posts receives.
    ///
    /// # Errors
    /// The first rejected request ends the list. Earlier requests are posted and will complete.
    ///
    /// # Safety
    ///
    /// A request is in use until it completes, or until the QP was moved to RESET or destroyed, as
    /// for [`SendHalf::post_send`](super::SendHalf::post_send). If the kernel refuses to destroy
    /// the QP, the request stays in use until the process exits.
    ///
    /// While a request is in use, the memory of its SGEs must stay registered, mapped and
    /// allocated. No code may read or write that memory, except by the copying methods of the MR.
    /// With [`QpInit::scatter_to_cqe`](crate::qp::QpInit::scatter_to_cqe), the SGE addresses must be
    /// virtual addresses of this process. The thread that polls the CQ writes the memory then; the
    /// copying methods of the MR may run at the same time.
    ///
    /// For an on-demand MR ([`Access::ON_DEMAND`](crate::Access::ON_DEMAND)) on Soft-RoCE, the same
    /// holds for the bytes from the start of each page that an SGE touches: the kernel copies to
    /// and from there (`__rxe_odp_mr_copy` of `rxe_odp.c`, Linux 7.2).
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if let ([request], Some(queue)) = (requests, &mut self.queue)
            // SAFETY: the caller upholds the contract for the request.
            && unsafe { queue.try_post(request) }
        {
            return Ok(());
        }
        let queue = self.queue.as_deref_mut();
        match requests {
            // Copied with its SGE, as sends are.
            [RecvRequest { wr_id, sges: [sge] }] => {
                let (wr_id, sge) = (*wr_id, *sge);
                // SAFETY: the caller upholds the contract for the request, which was not posted;
                // the copy names the same memory.
                unsafe {
                    post_receives_in(
                        self.transport,
                        queue,
                        *self.state,
                        &[RecvRequest { wr_id, sges: &[sge] }],
                    )
                }
            }
            // SAFETY: the caller upholds the contract for every request; none of them has been
            // posted.
            _ => unsafe { post_receives_in(self.transport, queue, *self.state, requests) },
        }
    }

    /// Posts a receive by the fast path alone. `false`: it was not posted, and [`RecvHalf::post_recv`]
    /// posts it.
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    #[inline(always)]
    pub unsafe fn try_post_recv(&mut self, request: &RecvRequest<'_>) -> bool {
        // SAFETY: the caller's contract is the same.
        self.queue.as_mut().is_some_and(|queue| unsafe { queue.try_post(request) })
    }

    /// Capacity in requests; 0 if the QP uses a shared receive queue.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.as_ref().map_or(0, |queue| queue.capacity())
    }
}

/// Posts any receives to the receive queue of a QP, in any state.
///
/// # Safety
///
/// As for [`RecvHalf::post_recv`].
#[inline(never)]
pub(crate) unsafe fn post_receives_in<T: Operations, Q: RecvQueue>(
    transport: T,
    queue: Option<&mut Q>,
    state: QpState,
    requests: &[RecvRequest<'_>],
) -> Result<(), PostError> {
    let reason = match queue {
        // SAFETY: the caller's contract is the same.
        Some(queue) if state != QpState::RESET => return unsafe { post_receives(queue, requests) },
        Some(_) => PostReason::State(state),
        None if transport.qp_type() == QpType::XRC_INI => PostReason::XrcInitiator,
        None => PostReason::UsesSrq,
    };
    if requests.is_empty() { Ok(()) } else { Err(PostError { accepted: 0, reason }) }
}
