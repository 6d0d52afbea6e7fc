//! Posting: batches of sends, and receives.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bareverbs_provider::contract::{DoorbellError, Provider, RecvQueue, SendQueue};
use bareverbs_uapi::uverbs::types::QpType;

use super::transport::UcOperation;
use super::{Connected, Transport};
use crate::{
    AnyProvider, Completions, Cq, Payload, QpState, RecvRequest, Refusal, Remote, SendFlags, SendRequest,
    WcStatus, WqState,
};

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
        Batch { queue: &mut self.queue, state: self.state, pushed: 0, _transport: PhantomData }
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

/// The receive half of a queue pair.
pub struct RecvHalf<T: Transport, P: Provider = AnyProvider> {
    /// The queue pair frees it, after the kernel let go of it. None where a shared queue takes its place.
    pub(super) queue: Option<ManuallyDrop<P::Rq>>,
    pub(super) state: QpState,
    pub(super) _transport: PhantomData<T>,
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

/// Sends being written. The device sees none of them before [`Batch::ring`]; dropped without that and without
/// [`Batch::defer`], they are taken back.
///
/// A queue pair has one batch at a time:
///
/// ```compile_fail,E0499
/// # fn two(qp: &mut bareverbs::Qp<bareverbs::Rc>) {
/// let mut first = qp.start_send();
/// let mut second = qp.start_send();
/// first.ring().unwrap();
/// # }
/// ```
#[must_use = "nothing is sent before `ring`"]
pub struct Batch<'a, T: Transport, P: Provider = AnyProvider> {
    queue: &'a mut P::Sq,
    state: QpState,
    pushed: usize,
    _transport: PhantomData<T>,
}

impl<T: Transport, P: Provider> Batch<'_, T, P> {
    /// Writes a request into the next slot.
    ///
    /// # Errors
    /// The request is refused; those before it stay in the batch.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(always)]
    pub unsafe fn push(&mut self, request: &SendRequest<'_, T::Operation<'_, P>>) -> Result<(), PostReason> {
        // SAFETY: the caller vouches for the request.
        if unsafe { T::try_push::<P>(self.queue, request) } {
            self.pushed += 1;
            return Ok(());
        }
        // SAFETY: the same promise.
        unsafe { push_rare::<T, P>(self.queue, self.state, request) }?;
        self.pushed += 1;
        Ok(())
    }

    /// The provider's own queue, for requests that it has no word for, such as those that are
    /// [built by hand](bareverbs_mlx5::Mlx5Sq::push_built). What is pushed there goes with the batch, but is not counted in
    /// [`Batch::len`].
    ///
    /// # Safety
    ///
    /// The queue pair must be in RTS, SQD or ERR. The queue must stay this queue pair's: it may not be exchanged for another
    /// one, nor reset.
    pub unsafe fn provider_queue(&mut self) -> &mut P::Sq {
        self.queue
    }

    /// How many requests it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pushed
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// Hands all its requests to the device with one doorbell, after those that were deferred before.
    ///
    /// # Errors
    /// The kernel refuses the doorbell; the error says whether the requests, and the deferred ones before them, were
    /// taken back or count as posted.
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn ring(mut self) -> Result<(), PostError> {
        let pushed = std::mem::take(&mut self.pushed);
        self.queue.ring().map_err(|error| doorbell_error(error, pushed))
    }

    /// Leaves its requests to the next doorbell; see [`SendHalf::post_send_deferred`].
    ///
    /// # Errors
    /// As for [`Batch::ring`], where the device is told at once.
    #[inline]
    pub fn defer(mut self) -> Result<(), PostError> {
        let pushed = std::mem::take(&mut self.pushed);
        self.queue.defer().map_err(|error| doorbell_error(error, pushed))
    }
}

impl<T: Connected, P: Provider> Batch<'_, T, P> {
    /// A message whose bytes are copied now, so that nothing has to stay registered.
    ///
    /// # Errors
    /// The request is refused, for instance since the queue pair was made for fewer bytes inline.
    #[inline(always)]
    pub fn send_inline(&mut self, wr_id: u64, bytes: &[u8], flags: SendFlags) -> Result<(), PostReason> {
        self.push_inline(wr_id, UcOperation::Send, bytes, flags)
    }

    /// Bytes for the peer's memory, copied now.
    ///
    /// # Errors
    /// As for [`Batch::send_inline`].
    #[inline(always)]
    pub fn write_inline(
        &mut self,
        wr_id: u64,
        remote: Remote,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        self.push_inline(wr_id, UcOperation::Write(remote), bytes, flags)
    }

    #[inline(always)]
    fn push_inline(
        &mut self,
        wr_id: u64,
        operation: UcOperation,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        let operation = T::operation::<P>(operation);
        // SAFETY: the request names no memory but what is copied before this returns.
        let short = unsafe {
            T::try_push::<P>(
                self.queue,
                &SendRequest { wr_id, operation, flags, payload: Payload::Inline(&[bytes]) },
            )
        };
        if !short {
            // The request once more: one for both ways would have to lie in memory for the short one too.
            let request = SendRequest { wr_id, operation, flags, payload: Payload::Inline(&[bytes]) };
            // SAFETY: as above.
            unsafe { push_rare::<T, P>(self.queue, self.state, &request) }?;
        }
        self.pushed += 1;
        Ok(())
    }
}

impl<T: Transport, P: Provider> Drop for Batch<'_, T, P> {
    #[doc(alias = "ibv_wr_abort")]
    #[inline]
    fn drop(&mut self) {
        if self.pushed > 0 {
            self.queue.abort();
        }
    }
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

/// `requests` share the doorbell's fate.
#[cold]
fn doorbell_error(error: DoorbellError, requests: usize) -> PostError {
    let accepted = if matches!(error, DoorbellError::Posted(_)) { requests } else { 0 };
    PostError { accepted, reason: PostReason::Doorbell(error) }
}

/// Not all requests were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "bad_wr")]
pub struct PostError {
    /// How many requests were posted and will complete. The request of this index is the refused one.
    pub accepted: usize,
    /// Why it was refused.
    pub reason: PostReason,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.accepted {
            0 => write!(f, "no request was posted: {}", self.reason),
            1 => write!(f, "1 request was posted, the next was refused: {}", self.reason),
            accepted => write!(f, "{accepted} requests were posted, the next was refused: {}", self.reason),
        }
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}

/// Why a request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostReason {
    /// The queue did not take it.
    #[error(transparent)]
    Queue(#[from] Refusal),
    /// The queue pair is in a state that does not take it.
    #[error("the queue pair is in {0:?}; receives can be posted from INIT on, sends from RTS on")]
    State(QpState),
    /// The work queue is in a state that does not take it.
    #[error("the work queue is in {0:?}; receives can be posted in RDY, to which it goes from RESET")]
    WqState(WqState),
    /// Receives go to the shared queue.
    #[error("the queue pair shares a receive queue: post to that one")]
    Shared,
    /// The queue pair is one that sends.
    #[error(
        "an XRC queue pair that sends receives nothing: receives go to the shared queue of an XRC domain"
    )]
    SendsOnly,
    /// The kernel refused the doorbell.
    #[error("the doorbell was refused: {0}")]
    Doorbell(#[source] DoorbellError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_error_tells_what_was_posted_and_why_the_next_was_not() {
        let error = |accepted, reason| PostError { accepted, reason }.to_string();
        assert_eq!(
            error(0, PostReason::State(QpState::RESET)),
            "no request was posted: the queue pair is in RESET; receives can be posted from INIT on, sends from RTS \
             on"
        );
        assert_eq!(
            error(64, Refusal::QueueFull { capacity: 64 }.into()),
            "64 requests were posted, the next was refused: the queue is full (64 requests): poll completions \
             first, or create the queue deeper"
        );
    }
}
