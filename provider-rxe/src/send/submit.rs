//! Submission to the kernel: publishes the requests and rings the doorbell by a system call.

use bareverbs_provider::Errno;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::DoorbellError;
use bareverbs_provider::ring::Published;
use bareverbs_uapi::rxe::SendWqe;
use bareverbs_uapi::verbs_values::WcStatus;

use super::{Publishing, RxeSq};
use crate::memory::QueueMemory;
use bareverbs_provider::doorbell::Doorbell;

impl<D: Doorbell, M: QueueMemory> RxeSq<D, M> {
    /// Whether the last published request has failed. The QP is in ERR then.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        let wqe = self.ring.last_published().as_ptr().cast::<SendWqe>();
        // SAFETY: a slot has room for a `SendWqe` and is aligned to 64 bytes. The kernel may be
        // writing the word.
        unsafe { (&raw const (*wqe).status).read_volatile() != WcStatus::SUCCESS.0 }
    }

    /// Publishes all pushed and deferred requests with one doorbell.
    #[inline]
    pub(super) fn ring_once(&mut self) -> Result<(), DoorbellError> {
        let batch = self.ring.publish();
        self.deferred = self.ring.position();
        match self.doorbell.ring() {
            Ok(()) => Ok(()),
            // SAFETY: `batch` was published last, and the kernel rejected the doorbell after that.
            Err(errno) => Err(unsafe { self.refused(batch, errno) }),
        }
    }

    /// Publishes the requests of a queue whose QP was reset or has failed.
    #[cold]
    pub(super) fn ring_slow(&mut self) -> Result<(), DoorbellError> {
        if self.publishing == Publishing::AfterDoorbell {
            self.probe()?;
        }
        if self.publishing == Publishing::OneByOne || self.has_failed() {
            self.ring_one_by_one()
        } else {
            self.ring_once()
        }
    }

    /// Rings the doorbell before anything is published. If the kernel refuses it, discards all
    /// requests.
    ///
    /// Workaround: docs/kernel-bugs.md, "Reset leaves timers armed".
    ///
    /// The requester may run at any time after a reset, and it reads the ring in INIT and RTR. From
    /// RTS on, only a reset leads below RTS.
    fn probe(&mut self) -> Result<(), DoorbellError> {
        if let Err(errno) = self.doorbell.ring() {
            self.ring.abort();
            self.deferred = self.ring.position();
            return Err(DoorbellError::TakenBack(self.doorbell_error(errno)));
        }
        self.publishing = Publishing::AtOnce;
        Ok(())
    }

    /// Publishes requests one by one, with a doorbell for each and one before.
    ///
    /// Workaround: docs/kernel-bugs.md, "Sends posted in ERR are not flushed".
    ///
    /// Before Linux 6.4, requests posted in ERR are flushed only if the requester finds a request
    /// at its own index. Each doorbell advances this index by one, however many requests are
    /// flushed. At the end of the queue the requester does nothing (`rxe_requester` in
    /// `rxe_req.c`).
    ///
    /// If N is the number of slots, a batch of k requests would end exactly at an index that lags
    /// by N - k. The index may lag even if the last request succeeded: retries move it back, and
    /// responses may complete the requests before it catches up. The first doorbell moves the index
    /// if it is one past the end. After that, no single request ends at it.
    fn ring_one_by_one(&mut self) -> Result<(), DoorbellError> {
        // If this doorbell fails, so does the next one.
        let _ = self.doorbell.ring();
        let first = self.ring.publish_next();
        let mut answer = self.doorbell.ring().map_err(|errno| {
            // SAFETY: `first` was published last, and the kernel rejected the doorbell after that.
            unsafe { self.refused(first, errno) }
        });
        while answer.is_ok() && self.ring.pending() > 0 {
            self.ring.publish_next();
            answer = self.doorbell.ring().map_err(|errno| DoorbellError::Posted(self.doorbell_error(errno)));
        }
        // A batch that counts as posted is published completely. A batch that was taken back has no
        // requests left.
        self.ring.publish();
        self.deferred = self.ring.position();
        answer
    }

    /// Handles a failed doorbell: takes the batch back if possible.
    ///
    /// # Safety
    ///
    /// `batch` must be the last published batch, and `errno` the kernel's error of a doorbell rung
    /// after that.
    #[cold]
    unsafe fn refused(&mut self, batch: Published, errno: Errno) -> DoorbellError {
        // Below RTS the kernel does not read the ring. But a QP that entered ERR meanwhile may have
        // flushed part of the batch, which then can't be taken back.
        if errno == Errno::INVAL && self.ring.outstanding() >= batch.count() {
            // SAFETY: `batch` was published last, by the contract of `refused`. `EINVAL` means that
            // the kernel did not read the ring and that the QP is below RTS. The QP never was in
            // RTS: after a reset, `probe` has shown that it is. So no timer, packet or response
            // schedules the requester, and only a transition to ERR makes the kernel read the ring;
            // in ERR it flushes slots and accesses no memory that they name. Older point releases may also
            // return `EINVAL` if another command has locked the handle exclusively (`ib_uverbs_post_send`
            // in `uverbs_cmd.c`). Premise: no safe command does that. Commands that do, such as destroy, are
            // `unsafe`, and their caller owns the QP, so no other thread rings its doorbell meanwhile.
            unsafe { self.ring.take_back(batch) };
            self.deferred = self.ring.position();
            DoorbellError::TakenBack(self.doorbell_error(errno))
        } else {
            DoorbellError::Posted(self.doorbell_error(errno))
        }
    }

    /// The error of the doorbell.
    #[cold]
    pub(super) fn doorbell_error(&self, errno: Errno) -> IoctlError {
        let origin = self.doorbell.error_origin();
        IoctlError { method: "PostSend (doorbell)", errno, origin }
    }
}
