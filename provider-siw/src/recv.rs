//! Receive queues: the RQ of a QP, and the SRQ.

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::barrier::before_peer_is_checked;
use bareverbs_provider::elements::ElementProducer;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::{self, PushError, RecvRequest};
use bareverbs_uapi::siw::{MAX_SGE, Opcode, Rqe};

use crate::control::Control;
use crate::memory::{SharedMemory, locate, request_word};
use crate::shared::{QpShared, Queue};

/// The longest message in bytes: the kernel counts bytes in an `int`.
pub(crate) const MAX_MESSAGE: u64 = i32::MAX as u64;

/// The word of a request of one SGE.
const ONE: u64 = word(1);

/// The word of a request of so many SGEs.
const fn word(num_sge: u8) -> u64 {
    request_word(num_sge, Opcode(0), 0)
}

/// A receive queue.
///
/// There is no doorbell: the kernel reads the queue when a message arrives.
#[derive(Debug)]
pub struct SiwRq {
    ring: ElementProducer,
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
    pub(crate) unsafe fn of_qp(qp: &Arc<QpShared>, control: Arc<dyn Control>) -> Option<Self> {
        let queue = qp.rq.as_ref()?;
        // SAFETY: the queue keeps the memory. The caller guarantees that this is the only producer.
        let ring = unsafe { ElementProducer::new(queue.memory) };
        let owner = Some((Arc::clone(qp), control));
        Some(Self { ring, queue: Arc::clone(queue), owner })
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
    pub unsafe fn srq(memory: SharedMemory, count: u32, depth: u32) -> Result<Self, CreateError> {
        let place = locate::<Rqe>(&memory, "SRQ", count, depth, 0)?;
        // SAFETY: `locate` checked that the elements lie in the memory. They are those of the producer below.
        let queue = Arc::new(unsafe { Queue::new(place, memory) });
        // SAFETY: the queue keeps the memory. The caller guarantees that this is the only producer.
        let ring = unsafe { ElementProducer::new(place) };
        Ok(Self { ring, queue, owner: None })
    }

    /// Looks for a failure of the QP after a publication: then nothing else completes the requests. An SRQ
    /// never fails.
    #[inline(always)]
    fn check_failed(&self, queue: &Queue) {
        before_peer_is_checked();
        if queue.has_failed() {
            self.flush();
        }
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

/// The SGE of a request of the fast path.
#[inline(always)]
fn only_sge<'r>(request: &RecvRequest<'r>) -> Option<&'r work::Sge> {
    match request.sges {
        [sge] if u64::from(sge.length) <= MAX_MESSAGE => Some(sge),
        _ => None,
    }
}

/// Writes a request of one SGE, without its word.
///
/// # Safety
///
/// `element` must be a free `Rqe`, which nothing else accesses before it is published.
#[inline(always)]
unsafe fn write_one(element: NonNull<u8>, wr_id: u64, sge: &work::Sge) {
    let rqe = element.cast::<Rqe>().as_ptr();
    // SAFETY: by this function's contract.
    unsafe {
        (&raw mut (*rqe).id).write(wr_id);
        (&raw mut (*rqe).sge).cast::<work::Sge>().write(*sge);
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `queue` keeps the memory, by the contract of `QueueMemory`.
// 2. A request's SGEs are copied into an element unchanged, and the kernel writes to their memory when a
//    message arrives. `advance` makes an element part of the batch. It is the last call in `push` and
//    `try_push`, so a rejected or declined request is in no batch. `advance_by` does so for the elements that
//    were filled, and `publish_next` publishes the filled element.
// 3. `next_element` returns free elements only.
// 4. The kernel takes elements with the flag `VALID`, which only `publish` and
//    `publish_next` store.
// 5. `abort_to` discards the elements that were not published. Their words have no flags.
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
        let Some(sge) = only_sge(request) else { return false };
        let Some(element) = self.ring.next_element() else { return false };
        // SAFETY: the element is a free `Rqe`.
        unsafe {
            write_one(element, request.wr_id, sge);
            self.ring.advance(ONE);
        }
        true
    }

    #[inline(always)]
    unsafe fn try_push_all(&mut self, requests: &[RecvRequest<'_>]) -> usize {
        // SAFETY: the elements are free `Rqe`s.
        unsafe {
            self.ring.advance_by(requests.len(), |index, element| {
                let request = requests.get(index)?;
                write_one(element, request.wr_id, only_sge(request)?);
                Some(ONE)
            })
        }
    }

    #[inline(always)]
    unsafe fn try_post(&mut self, request: &RecvRequest<'_>) -> bool {
        let Some(sge) = only_sge(request) else { return false };
        let Some(element) = self.ring.only_element() else { return false };
        let queue = &*self.queue;
        // SAFETY: the element is a free `Rqe`.
        unsafe {
            write_one(element, request.wr_id, sge);
            self.ring.publish_next(element, ONE, &queue.published);
        }
        self.check_failed(queue);
        true
    }

    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError> {
        let Some(element) = self.ring.next_element() else {
            return Err(PushError::QueueFull { capacity: self.ring.capacity() });
        };
        let sges = request.sges;
        if sges.len() > MAX_SGE as usize {
            return Err(PushError::TooManySges { given: sges.len(), max: MAX_SGE as usize });
        }
        let given = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if given > MAX_MESSAGE {
            return Err(PushError::MessageTooLong { given, max: MAX_MESSAGE });
        }
        let rqe = element.cast::<Rqe>().as_ptr();
        // SAFETY: the element is a free `Rqe`. It has room for `MAX_SGE` SGEs, of which there are no more.
        // Nothing else accesses it before it is published.
        unsafe {
            (&raw mut (*rqe).id).write(request.wr_id);
            (&raw mut (*rqe).sge).cast::<work::Sge>().copy_from_nonoverlapping(sges.as_ptr(), sges.len());
            self.ring.advance(word(sges.len() as u8));
        }
        Ok(())
    }

    #[inline]
    fn ring(&mut self) {
        self.ring.publish(&self.queue.published, |_| 0);
        self.check_failed(&self.queue);
    }

    #[inline]
    fn abort(&mut self) {
        self.ring.abort_to(0);
    }

    unsafe fn reset(&mut self) {
        self.ring.abort_to(0);
    }
}
