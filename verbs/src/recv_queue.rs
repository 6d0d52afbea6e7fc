//! What the receive queues of QPs, SRQs and WQs share: posting, and queues that drop does not free.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::RecvRequest;

use crate::post_error::PostError;

/// Posts any receives to a receive queue of a QP or to a shared one.
///
/// # Safety
///
/// As for [`RecvHalf::post_recv`](crate::qp::RecvHalf::post_recv).
pub(crate) unsafe fn post_receives(
    queue: &mut impl RecvQueue,
    requests: &[RecvRequest<'_>],
) -> Result<(), PostError> {
    let mut posted = Ok(());
    let mut accepted = 0;
    loop {
        // SAFETY: the caller upholds the contract for every request; `accepted` of them have been
        // pushed.
        accepted += unsafe { queue.try_push_all(&requests[accepted..]) };
        let Some(request) = requests.get(accepted) else { break };
        // SAFETY: the caller upholds the contract for every request, and this one was not pushed.
        if let Err(refusal) = unsafe { queue.push(request) } {
            posted = Err(PostError { accepted, reason: refusal.into() });
            break;
        }
        accepted += 1;
    }
    queue.ring();
    posted
}

/// Posts receives one after another, and publishes them together. The first rejected request is the last
/// one that is taken from the iterator.
///
/// # Safety
///
/// As for [`RecvHalf::post_recv`](crate::qp::RecvHalf::post_recv).
#[inline(always)]
pub(crate) unsafe fn post_each<'r>(
    queue: &mut impl RecvQueue,
    requests: impl IntoIterator<Item = RecvRequest<'r>>,
) -> Result<(), PostError> {
    let published = Published(queue);
    for (accepted, request) in requests.into_iter().enumerate() {
        // SAFETY: the caller upholds the contract for every request.
        let is_pushed = unsafe { published.0.try_push(&request) };
        // Copied, so that the fast path need not keep the request in memory.
        // SAFETY: as above, and the request was not pushed.
        if !is_pushed && let Err(refusal) = unsafe { published.0.push(&RecvRequest { ..request }) } {
            return Err(PostError { accepted, reason: refusal.into() });
        }
    }
    Ok(())
}

/// A queue whose pushed requests are published at the end, also if the iterator panics.
struct Published<'q, Q: RecvQueue>(&'q mut Q);

impl<Q: RecvQueue> Drop for Published<'_, Q> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// Leaks the queue that the owner of an SRQ or WQ left, because the device may still use its ring. This
/// process no longer writes the memory of its receives.
pub(crate) fn leak_queue(orphan: &mut Mutex<Option<impl RecvQueue>>) {
    let queue = orphan.get_mut().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(mut queue) = queue.map(ManuallyDrop::new) {
        queue.abandon();
    }
}
