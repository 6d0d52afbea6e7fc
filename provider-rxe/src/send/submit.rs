//! Submission to the kernel: publishing the requests, and the doorbell, which is a system call.

use bareverbs_provider::Errno;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::DoorbellError;
use bareverbs_provider::ring::Published;
use bareverbs_uapi::rxe::SendWqe;
use bareverbs_uapi::verbs_values::WcStatus;

use super::RxeSq;
use crate::doorbell::Doorbell;
use crate::memory::QueueMemory;

/// What a refused doorbell is called.
pub(super) const DOORBELL: &str = "PostSend (doorbell)";

impl<D: Doorbell, M: QueueMemory> RxeSq<D, M> {
    /// Whether the request that was published last has failed: then the queue pair is in the error
    /// state.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        let wqe = self.ring.last_published().as_ptr().cast::<SendWqe>();
        // SAFETY: a slot has room for a `SendWqe` and is aligned to 64; the kernel may be writing
        // the word.
        unsafe { (&raw const (*wqe).status).read_volatile() != WcStatus::SUCCESS.0 }
    }

    /// Publishes all that was pushed or left, with one doorbell.
    #[inline]
    pub(super) fn ring_once(&mut self) -> Result<(), DoorbellError> {
        let batch = self.ring.publish();
        self.deferred = self.ring.position();
        match self.doorbell.ring() {
            Ok(()) => Ok(()),
            // SAFETY: `batch` was published last, and the kernel refused the doorbell after that.
            Err(errno) => Err(unsafe { self.refused(batch, errno) }),
        }
    }

    /// Before Linux 6.4, what is posted in the error state is flushed only where the kernel's
    /// requester finds a request at its own index, which goes on by one with every doorbell,
    /// however many are flushed; at the end of the queue it does nothing (`rxe_requester` of
    /// `rxe_req.c`). A queue of N slots that takes k more requests would end where an index is that
    /// is N - k behind, which it may be though the last request succeeded: retries take it back,
    /// and answers may end them before it is where it was. The first doorbell takes it from where
    /// it may stand one ahead of the end, and after that no single request reaches it.
    #[cold]
    pub(super) fn ring_one_by_one(&mut self) -> Result<(), DoorbellError> {
        // Where this one is refused, so is the next.
        let _ = self.doorbell.ring();
        let first = self.ring.publish_next();
        let mut answer = self.doorbell.ring().map_err(|errno| {
            // SAFETY: `first` was published last, and the kernel refused the doorbell after that.
            unsafe { self.refused(first, errno) }
        });
        while answer.is_ok() && self.ring.pending() > 0 {
            self.ring.publish_next();
            answer = self.doorbell.ring().map_err(posted);
        }
        // Of a batch that counts as posted, all is published. Of one that was taken back, nothing
        // is left.
        self.ring.publish();
        self.deferred = self.ring.position();
        answer
    }

    /// Takes a batch back where that is possible.
    ///
    /// # Safety
    ///
    /// `batch` must be what was published last, and `errno` the kernel's answer to a doorbell that
    /// was rung after that.
    #[cold]
    unsafe fn refused(&mut self, batch: Published, errno: Errno) -> DoorbellError {
        // Below RTS the kernel does not look at the ring. But a queue pair that fell into the error
        // state meanwhile may have flushed part of the batch, which can't be taken back then.
        if errno == Errno::INVAL && self.ring.outstanding() >= batch.count() {
            // SAFETY: `batch` is what was published last, by the contract of `refused`. By `EINVAL`
            // the kernel says that it did not look at the ring and that the queue pair is below
            // RTS, where nothing else makes it look but a fall into the error state, in which it
            // flushes slots and accesses no memory that they name. It also says so where another
            // command has locked the handle exclusively (`ib_uverbs_post_send` of `uverbs_cmd.c`).
            // Premise: no safe command does that. Commands that do, such as destroying, are
            // `unsafe`, and their caller owns the queue pair, so no other thread rings its doorbell
            // meanwhile.
            unsafe { self.ring.take_back(batch) };
            self.deferred = self.ring.position();
            DoorbellError::TakenBack(IoctlError { method: DOORBELL, errno })
        } else {
            posted(errno)
        }
    }
}

fn posted(errno: Errno) -> DoorbellError {
    DoorbellError::Posted(IoctlError { method: DOORBELL, errno })
}
