//! Posting: lists and batches of sends, and receives.

mod batch;
mod error;
mod recv;

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bareverbs_provider::contract::{Provider, SendQueue};

pub use batch::Batch;
pub use error::{PostError, PostReason};
pub use recv::RecvHalf;
pub(crate) use recv::post_receives;

use self::error::doorbell_error;
use super::Transport;
use crate::{AnyProvider, Completions, Cq, QpState, SendRequest, WcStatus};

/// The send half of a queue pair.
pub struct SendHalf<T: Transport, P: Provider = AnyProvider> {
    /// The queue pair frees it, after the kernel let go of it.
    pub(super) queue: ManuallyDrop<P::Sq>,
    pub(super) state: QpState,
    pub(super) _transport: PhantomData<T>,
}

impl<T: Transport, P: Provider> SendHalf<T, P> {
    /// The half of a queue pair in RTS that there is no more of than this queue. It is never freed.
    #[cfg(feature = "test-utils")]
    pub fn over(queue: P::Sq) -> Self {
        Self { queue: ManuallyDrop::new(queue), state: QpState::RTS, _transport: PhantomData }
    }

    /// Starts a batch of sends.
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub fn start_send(&mut self) -> Batch<'_, T, P> {
        Batch::<T, P>::new(&mut self.queue, self.state)
    }

    /// Posts sends, all with one doorbell, which is that of deferred ones too.
    ///
    /// # Errors
    /// The first request that is refused ends the list; those before it are posted and will complete.
    ///
    /// # Safety
    ///
    /// Until a request is complete, or the queue pair is dropped, the memory that its elements name must stay
    /// registered; nobody may change the bytes that it sends, nor look at or change those that it fills (reads and
    /// atomics), not even through the region's own safe methods other than the copying ones.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_send(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
    ) -> Result<(), PostError> {
        // The commonest of all lists is written right here.
        if let [request] = requests
            // SAFETY: the caller vouches for the request.
            && let Some(posted) = unsafe { T::try_post::<P>(&mut self.queue, request, false) }
        {
            return posted.map_err(|error| doorbell_error(error, 1));
        }
        // SAFETY: the same promise.
        unsafe { self.post_rest(requests, false) }
    }

    /// Posts what the short way does not take.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(always)]
    unsafe fn post_rest(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
        later: bool,
    ) -> Result<(), PostError> {
        match requests {
            // From a copy, so that a request that is known where it is posted need not lie in memory for the short way.
            // SAFETY: the caller's promise is the same.
            [request] => unsafe { self.post_list(&[*request], later) },
            // SAFETY: as above.
            _ => unsafe { self.post_list(requests, later) },
        }
    }

    /// Posts any requests in any state, with a doorbell now or later.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(never)]
    unsafe fn post_list(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
        later: bool,
    ) -> Result<(), PostError> {
        let mut taken = Ok(());
        let mut pushed = 0;
        loop {
            // SAFETY: the caller vouches for every request.
            pushed += unsafe { T::try_push_all::<P>(&mut self.queue, &requests[pushed..]) };
            let Some(request) = requests.get(pushed) else { break };
            // SAFETY: the same promise.
            if let Err(reason) = unsafe { push_rare::<T, P>(&mut self.queue, self.state, request) } {
                taken = Err(PostError { accepted: pushed, reason });
                break;
            }
            pushed += 1;
        }
        let handed_over = if later { self.queue.defer() } else { self.queue.ring() };
        handed_over.map_err(|error| doorbell_error(error, pushed))?;
        taken
    }

    /// Posts sends and leaves the doorbell, the dear part of posting, to whatever rings it next: [`SendHalf::flush`],
    /// [`SendHalf::flush_and_poll`], or sends that are posted without deferring. Until then the device may not know of
    /// them, and they take up room in the queue.
    ///
    /// Devices whose doorbell costs next to nothing are told at once.
    ///
    /// ```no_run
    /// use bareverbs::{Completion, Cq, Operation, Payload, PostError, Qp, Rc, SendFlags, SendRequest, Sge};
    ///
    /// fn answer(qp: &mut Qp<Rc>, cq: &mut Cq, answers: &[Sge]) -> Result<(), PostError> {
    ///     for (wr_id, answer) in (0..).zip(answers) {
    ///         let payload = Payload::Sges(std::slice::from_ref(answer));
    ///         let request = SendRequest { wr_id, operation: Operation::Send, flags: SendFlags::SIGNALED, payload };
    ///         // SAFETY: the caller keeps the answers as they are until they are complete.
    ///         unsafe { qp.post_send_deferred(&[request]) }?;
    ///     }
    ///     // One system call for all of them.
    ///     let mut completions = qp.flush_and_poll(cq)?;
    ///     while let Some(completion) = completions.next() {
    ///         println!("{} is sent", completion.wr_id());
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// What is still deferred when the queue pair is reset or dropped is never sent and makes no completion; in the error
    /// state, it takes a flush to make it complete.
    ///
    /// # Errors
    /// The first request that is refused ends the list; those before it are deferred. A
    /// [full queue](crate::Refusal::QueueFull) may be full of deferred requests: flush, then poll.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline]
    pub unsafe fn post_send_deferred(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
    ) -> Result<(), PostError> {
        if let [request] = requests
            // SAFETY: the caller vouches for the request.
            && let Some(posted) = unsafe { T::try_post::<P>(&mut self.queue, request, true) }
        {
            return posted.map_err(|error| doorbell_error(error, 1));
        }
        // SAFETY: the same promise.
        unsafe { self.post_rest(requests, true) }
    }

    /// How many requests wait for the doorbell.
    #[must_use]
    pub fn deferred(&self) -> usize {
        self.queue.deferred() as usize
    }

    /// Hands all deferred requests to the device with one doorbell; does nothing where there are none.
    ///
    /// # Errors
    /// The kernel refuses the doorbell; the error says whether they were taken back or count as posted, and
    /// [`PostError::accepted`] how many count.
    #[inline]
    pub fn flush(&mut self) -> Result<(), PostError> {
        let deferred = self.deferred();
        self.queue.ring().map_err(|error| doorbell_error(error, deferred))
    }

    /// Hands all deferred requests to the device as [`SendHalf::flush`] does, then looks at what has completed as
    /// [`Cq::poll`] does.
    ///
    /// # Errors
    /// As for [`SendHalf::flush`].
    #[inline]
    pub fn flush_and_poll<'c>(&mut self, cq: &'c mut Cq<P>) -> Result<Completions<'c, P>, PostError> {
        self.flush()?;
        Ok(cq.poll())
    }

    /// Requests it holds.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// The send that brought the queue pair down, where the device knows more of it than its completion said: Soft-RoCE
    /// from Linux 6.4 on flushes also the request that is at fault.
    #[must_use]
    pub fn failure(&self) -> Option<SendFailure> {
        self.queue.failure().map(|(wr_id, status)| SendFailure { wr_id, status })
    }
}

/// A send that failed on this side, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendFailure {
    /// Of the request.
    pub wr_id: u64,
    /// Why it failed.
    pub status: WcStatus,
}

/// The long way into the queue, for requests of any kind in any state.
///
/// # Safety
///
/// As for [`SendHalf::post_send`].
#[inline(never)]
unsafe fn push_rare<T: Transport, P: Provider>(
    queue: &mut P::Sq,
    state: QpState,
    request: &SendRequest<'_, T::Operation<'_, P>>,
) -> Result<(), PostReason> {
    if matches!(state, QpState::RESET | QpState::INIT | QpState::RTR) {
        return Err(PostReason::State(state));
    }
    // SAFETY: the caller vouches for the request.
    Ok(unsafe { T::push::<P>(queue, request) }?)
}
