//! Receive queues: the RQ of a QP, and the SRQ.

use std::sync::Arc;

use bareverbs_provider::barrier::before_peer_is_checked;
use bareverbs_provider::elements::ElementProducer;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::{self, PushError, RecvRequest};
use bareverbs_uapi::siw::Rqe;

use crate::control::Control;
use crate::memory::{SharedMemory, locate};
use crate::shared::{QpShared, Queue};

/// The longest message in bytes: the kernel counts bytes in an `int`.
pub(crate) const MAX_MESSAGE: u64 = i32::MAX as u64;

/// A receive queue.
///
/// There is no doorbell: the kernel reads the queue when a message arrives.
#[derive(Debug)]
pub struct SiwRq {
    ring: ElementProducer<false>,
    max_sge: u32,
    /// Whether the fast path is enabled: a request was written since creation.
    fast_path: bool,
    queue: Arc<Queue>,
    /// The QP. `None` of an SRQ: the kernel does not flush it.
    owner: Option<(Arc<QpShared>, Arc<dyn Control>)>,
}

impl SiwRq {
    /// The receive queue of a QP. `None` if the QP has none.
    ///
    /// # Safety
    ///
    /// As for [`SiwSq::new`](crate::SiwSq::new). There must be no other receive queue of the QP.
    pub(crate) unsafe fn of_qp(qp: &Arc<QpShared>, control: Arc<dyn Control>, max_sge: u32) -> Option<Self> {
        let queue = qp.rq.as_ref()?;
        // SAFETY: the queue keeps the memory. The caller guarantees that this is the only producer.
        let ring = unsafe { ElementProducer::new(queue.memory) };
        let owner = Some((Arc::clone(qp), control));
        Some(Self { ring, max_sge, fast_path: false, queue: Arc::clone(queue), owner })
    }

    /// An SRQ in `memory`, which has `count` elements.
    ///
    /// # Errors
    ///
    /// [`CreateError::Layout`] if the elements do not fit into the memory.
    ///
    /// # Safety
    ///
    /// 1. The memory must be the ring of an SRQ that the kernel, or a simulated kernel, shares, and all
    ///    zero.
    /// 2. Until the value is dropped, nothing else in this process may write to the memory, including
    ///    through another mapping of the same pages.
    pub unsafe fn srq(
        memory: SharedMemory,
        count: u32,
        depth: u32,
        max_sge: u32,
    ) -> Result<Self, CreateError> {
        let place = locate::<Rqe>(&memory, "SRQ", count, depth, 0)?;
        // SAFETY: `locate` checked that the elements lie in the memory. They are those of the producer below.
        let queue = Arc::new(unsafe { Queue::new(place, memory) });
        // SAFETY: the queue keeps the memory. The caller guarantees that this is the only producer.
        let ring = unsafe { ElementProducer::new(place) };
        Ok(Self { ring, max_sge, fast_path: false, queue, owner: None })
    }

    /// Completes the published requests of a QP that has failed.
    #[cold]
    #[inline(never)]
    fn flush(&self) {
        if let Some((qp, control)) = &self.owner {
            qp.fail(Some(&**control));
        }
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `queue` keeps the memory, by the contract of `QueueMemory`.
// 2. A request's SGEs are copied into an element unchanged, and the kernel writes to their memory when a
//    message arrives. `advance` makes an element part of the batch. It is the last call in `push` and
//    `try_push`, so a rejected or declined request is in no batch.
// 3. `next_element` returns free elements only.
// 4. The kernel takes elements with the flag `VALID`, which only `publish` stores.
// 5. `abort_to` discards the elements that were not published. Their flags are 0.
// 6. siw has no reset: `SiwSq::modify` refuses it.
// 7. Only the kernel writes to the memory of receives.
//    Nothing panics between the first write to an element and `advance`.
unsafe impl RecvQueue for SiwRq {
    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Encodes requests of one SGE.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
        let [sge] = request.sges else { return false };
        if !self.fast_path || u64::from(sge.length) > MAX_MESSAGE {
            return false;
        }
        let Some(element) = self.ring.next_element() else { return false };
        let rqe = element.cast::<Rqe>().as_ptr();
        // SAFETY: the element is a free `Rqe`, and `max_sge` is at least 1. Nothing else accesses it before
        // it is published.
        unsafe {
            (&raw mut (*rqe).id).write(request.wr_id);
            (&raw mut (*rqe).num_sge).write(1);
            (&raw mut (*rqe).sge).cast::<work::Sge>().write(*sge);
            self.ring.advance();
        }
        true
    }

    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError> {
        let Some(element) = self.ring.next_element() else {
            return Err(PushError::QueueFull { capacity: self.ring.capacity() });
        };
        let sges = request.sges;
        if sges.len() > self.max_sge as usize {
            return Err(PushError::TooManySges { given: sges.len(), max: self.max_sge as usize });
        }
        let given = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if given > MAX_MESSAGE {
            return Err(PushError::MessageTooLong { given, max: MAX_MESSAGE });
        }
        let rqe = element.cast::<Rqe>().as_ptr();
        // SAFETY: the element is a free `Rqe`. It has room for `MAX_SGE` SGEs, which is at least `max_sge`.
        // Nothing else accesses it before it is published.
        unsafe {
            (&raw mut (*rqe).id).write(request.wr_id);
            (&raw mut (*rqe).num_sge).write(sges.len() as u8);
            (&raw mut (*rqe).sge).cast::<work::Sge>().copy_from_nonoverlapping(sges.as_ptr(), sges.len());
            self.ring.advance();
        }
        self.fast_path = self.max_sge > 0;
        Ok(())
    }

    #[inline]
    fn ring(&mut self) {
        self.ring.publish(&self.queue.published);
        if self.owner.is_some() {
            before_peer_is_checked();
            if self.queue.has_failed() {
                self.flush();
            }
        }
    }

    #[inline]
    fn abort(&mut self) {
        self.ring.abort_to(0);
    }

    unsafe fn reset(&mut self) {
        self.ring.abort_to(0);
    }
}
