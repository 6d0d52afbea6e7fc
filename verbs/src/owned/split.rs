//! The halves of an endpoint, for two threads or two tasks.

use std::fmt;
use std::mem;
use std::ops::RangeBounds;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bareverbs_provider::traits::Provider;
use bareverbs_provider::wake::wake_all;

use super::endpoint::{Polled, Queues};
use super::flow::Ranged;
use super::hub::park::Parker;
use super::hub::reaper::Direction;
use super::keepalive::{ROUNDS, earlier};
use super::{Address, Done, Endpoint, Failed, NotPosted, NotPostedParts, Op, Source, Spinning, Target};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::{AnyProvider, Buffer, CompChannel, Mr, Operation, Remote, Result};

/// What both halves share.
struct Shared<B, P: Provider> {
    state: Mutex<State<B, P>>,
    channel: CompChannel,
    /// What the thread of each half sleeps on, with its waker. They belong to the halves and not to the
    /// threads, so that no wait allocates.
    parkers: [(Arc<Parker>, Waker); 2],
}

/// What one half at a time uses.
struct State<B, P: Provider> {
    endpoint: Endpoint<B, P>,
    /// The wakers of the halves that wait. The CQ is armed while one is registered, or the half was
    /// woken.
    wakers: [Option<Waker>; 2],
}

/// A half of an endpoint.
struct Half<B, P: Provider> {
    shared: Arc<Shared<B, P>>,
    direction: Direction,
}

impl<B, P: Provider> Half<B, P> {
    #[inline(always)]
    fn lock(&self) -> MutexGuard<'_, State<B, P>> {
        lock(&self.shared.state)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Endpoint<B, P>) -> T) -> T {
        work(&mut self.lock().endpoint)
    }

    fn pending(&self) -> usize {
        self.with(|endpoint| match self.direction {
            Direction::Send => endpoint.pending_sends(),
            Direction::Recv => endpoint.pending_recvs(),
        })
    }

    /// The waker of the other half, if it waits and has a result.
    fn other(&self, state: &mut State<B, P>) -> Option<Waker> {
        let other = match self.direction {
            Direction::Send => Direction::Recv,
            Direction::Recv => Direction::Send,
        };
        state.endpoint.queues.has_result(other).then(|| state.wakers[other as usize].take()).flatten()
    }

    #[inline(always)]
    fn poll(&self) -> Option<Result<Done<B>, Failed<B>>> {
        let mut state = self.lock();
        match state.endpoint.queues.poll_direction_fast(self.direction) {
            Polled::Done(done) => Some(Ok(done)),
            Polled::Empty => None,
            Polled::Slow => self.poll_slow(state).endpoint.queues.flows.slow.take(),
        }
    }

    /// Polls what the fast path declined. The result is in `Flows::slow`.
    #[inline(never)]
    fn poll_slow<'s>(&'s self, state: MutexGuard<'s, State<B, P>>) -> MutexGuard<'s, State<B, P>> {
        let (mut state, reaped) = self.reap(state);
        let queues = &mut state.endpoint.queues;
        queues.flows.slow = queues.take_direction(self.direction, reaped);
        state
    }

    /// Reaps completions until this half has a result, or the CQ is empty. If the other half waits and
    /// has a result, it is woken.
    fn reap<'s>(
        &'s self,
        mut state: MutexGuard<'s, State<B, P>>,
    ) -> (MutexGuard<'s, State<B, P>>, Result<()>) {
        let reaped = state.endpoint.queues.reap_direction(self.direction);
        let Some(other) = self.other(&mut state) else { return (state, reaped) };
        // A waker is called without the lock. If it panics, this half has not taken its result yet.
        drop(state);
        other.wake();
        (self.lock(), reaped)
    }

    /// Polls. If there is no result, it arms the CQ and registers the waker of `cx`.
    fn poll_wait(&self, cx: &Context<'_>) -> Poll<Result<Done<B>, Failed<B>>> {
        let mut waker = Some(cx.waker().clone());
        let mut state = self.lock();
        loop {
            let reaped;
            (state, reaped) = self.reap(state);
            let queues = &mut state.endpoint.queues;
            if let Some(ended) = queues.take_direction(self.direction, reaped) {
                return Poll::Ready(ended);
            }
            if let Err(error) = queues.check_wait_for(self.direction) {
                return Poll::Ready(Err(error.into()));
            }
            if queues.is_armed() {
                mem::swap(&mut state.wakers[self.direction as usize], &mut waker);
                // The earlier waker is dropped without the lock.
                drop(state);
                return Poll::Pending;
            }
            // Completions before the arm raise no event: poll once more.
            if let Err(error) = queues.arm_cq() {
                return Poll::Ready(Err(error.into()));
            }
        }
    }

    /// Reads the events of the channel. Returns whether there was one.
    fn take_events(&self) -> Result<bool> {
        let mut state = self.lock();
        let taken = state.endpoint.queues.take_events();
        // The CQ is not armed any more: a half that waits arms it again.
        let wakers =
            if matches!(taken, Ok(false)) { [const { None }; 2] } else { mem::take(&mut state.wakers) };
        drop(state);
        wake_all(wakers.into_iter().flatten());
        taken
    }

    /// Probes the peer if the connection was idle. Returns when to call it again.
    fn keep_alive(&self) -> Option<Instant> {
        self.with(|endpoint| endpoint.queues.keep_alive(Instant::now()))
    }

    fn start_spin(&self) -> Spinning {
        self.with(|endpoint| endpoint.queues.start_spin())
    }

    fn end_spin(&self, spin: Spinning) {
        self.with(|endpoint| endpoint.queues.end_spin(spin));
    }

    fn wait_until(&self, end: Option<Instant>) -> Result<Option<Done<B>>, Failed<B>> {
        let spin = self.start_spin();
        let (mut in_time, mut rounds) = (true, 0_u32);
        loop {
            if let Some(ended) = self.poll() {
                self.end_spin(spin);
                return ended.map(Some);
            }
            if !in_time || !spin.goes_on() {
                break;
            }
            std::hint::spin_loop();
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(ROUNDS) {
                self.keep_alive();
            }
            in_time = end.is_none_or(|end| Instant::now() < end);
        }
        let Shared { channel, parkers, .. } = &*self.shared;
        let (parker, waker) = &parkers[self.direction as usize];
        let cx = Context::from_waker(waker);
        loop {
            if let Poll::Ready(ended) = self.poll_wait(&cx) {
                self.end_spin(spin);
                return ended.map(Some);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                self.with(|endpoint| endpoint.queues.spin_timed_out(spin));
                return Ok(None);
            }
            if parker.sleep(Some(channel.as_fd()), earlier(end, self.keep_alive()))? {
                self.take_events()?;
            }
        }
    }
}

/// Handles a refused post, and unlocks. The post that succeeds unlocks by itself, so that its result stays
/// in a register.
#[cold]
#[inline(never)]
fn post_refused<B, P: Provider>(
    mut state: MutexGuard<'_, State<B, P>>,
    refused: NotPosted<B>,
) -> NotPosted<B> {
    state.endpoint.queues.refused(refused)
}

/// The send half of an [`Endpoint`], from [`Endpoint::split`].
pub struct EndpointSender<B = Mr<Buffer>, P: Provider = AnyProvider> {
    half: Half<B, P>,
}

/// The receive half of an [`Endpoint`], from [`Endpoint::split`].
pub struct EndpointReceiver<B = Mr<Buffer>, P: Provider = AnyProvider> {
    half: Half<B, P>,
}

/// Two halves that belong to different endpoints.
#[derive(thiserror::Error)]
#[error("Endpoint::unsplit: the halves belong to different endpoints")]
#[non_exhaustive]
#[must_use = "it holds both halves"]
pub struct UnsplitError<S, R> {
    /// The send half.
    pub sender: S,
    /// The receive half.
    pub receiver: R,
}

impl<S, R> fmt::Debug for UnsplitError<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnsplitError").finish_non_exhaustive()
    }
}

impl<B, P: Provider> Endpoint<B, P> {
    /// Divides the endpoint into a send half and a receive half, for two threads or two tasks.
    ///
    /// Each half posts and returns the operations of its direction. Both use the QP and the CQ of
    /// the endpoint, behind one lock: a call of one half waits while a call of the other half posts
    /// or polls. It does not wait while the other half sleeps. Operations that are outstanding
    /// belong to the half of their direction.
    ///
    /// [`EndpointSender::unsplit`] makes the endpoint again, for [`close`](Self::close),
    /// [`scope`](Self::scope) and [`connect`](Self::connect). The endpoint is dropped with its
    /// second half. A half that is dropped does not end the operations of its direction, but their
    /// results are lost.
    ///
    /// `bareverbs::tokio::Endpoint` and `bareverbs::async_io::Endpoint` have the same method, for
    /// tasks.
    ///
    /// ```no_run
    /// use bareverbs::owned::{Endpoint, Lease, Pool};
    /// use bareverbs::{Error, Pd, Result};
    ///
    /// /// Sends 1000 messages while another thread receives as many.
    /// fn exchange(endpoint: Endpoint<Lease>, pd: &Pd) -> Result<Endpoint<Lease>> {
    ///     let pool = Pool::new(pd, 32, 64)?;
    ///     let (mut sender, mut receiver) = endpoint.split();
    ///     let room: Vec<_> = (0..16).filter_map(|_| pool.take()).collect();
    ///     let thread = std::thread::spawn(move || -> Result<_> {
    ///         room.into_iter().try_for_each(|lease| receiver.post_recv(lease))?;
    ///         for _ in 0..1000 {
    ///             let done = receiver.wait()?;
    ///             println!("received {} bytes", done.len);
    ///             receiver.post_recv(done.into_buffer())?;
    ///         }
    ///         Ok(receiver)
    ///     });
    ///     let mut message = pool.take().expect("a free buffer");
    ///     for _ in 0..1000 {
    ///         sender.post_send(message, ..)?;
    ///         message = sender.wait()?.into_buffer();
    ///     }
    ///     let receiver = thread.join().expect("no panic")?;
    ///     Ok(sender.unsplit(receiver).expect("the halves of one endpoint"))
    /// }
    /// ```
    #[must_use]
    pub fn split(self) -> (EndpointSender<B, P>, EndpointReceiver<B, P>) {
        let channel = self.queues.channel().clone();
        let state = Mutex::new(State { endpoint: self, wakers: [None, None] });
        let parkers = [Parker::new(), Parker::new()];
        let shared = Arc::new(Shared { state, channel, parkers });
        let sender = Half { shared: Arc::clone(&shared), direction: Direction::Send };
        let receiver = Half { shared, direction: Direction::Recv };
        (EndpointSender { half: sender }, EndpointReceiver { half: receiver })
    }
}

/// What both halves do.
macro_rules! halves {
    ($($half:ident: $operations:literal, $outstanding:literal;)*) => {$(
        impl<B, P: Provider> $half<B, P> {
            /// The address of the endpoint, for the peer.
            #[must_use]
            pub fn address(&self) -> Address {
                self.half.with(|endpoint| endpoint.address())
            }

            #[doc = concat!("The number of ", $operations, " that were not returned yet.")]
            #[must_use]
            pub fn pending(&self) -> usize {
                self.half.pending()
            }

            #[doc = concat!("Polls one of the ", $operations, " that has ended, or returns `None` if there is none.")]
            /// They end in the order of posting.
            ///
            /// # Errors
            /// As for [`Endpoint::poll`]. A completion that matches no operation is reported to the
            /// half that polls it.
            #[inline]
            pub fn poll(&mut self) -> Option<Result<Done<B>, Failed<B>>> {
                self.half.poll()
            }

            #[doc = concat!("Blocks until one of the ", $operations, " completes.")]
            ///
            /// # Errors
            #[doc = concat!("As for [`Endpoint::wait`], where only ", $operations, " count: it fails with [`Error::Invalid`](crate::Error::Invalid) if ", $outstanding, ".")]
            pub fn wait(&mut self) -> Result<Done<B>, Failed<B>> {
                loop {
                    // Without a timeout, it returns only with an operation.
                    if let Some(done) = self.half.wait_until(None)? {
                        return Ok(done);
                    }
                }
            }

            #[doc = concat!("Blocks until one of the ", $operations, " completes, at most for `timeout`.")]
            /// Returns `Ok(None)` on a timeout.
            ///
            /// # Errors
            #[doc = concat!("As for [`", stringify!($half), "::wait`].")]
            pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<Done<B>>, Failed<B>> {
                self.half.wait_until(Instant::now().checked_add(timeout))
            }

            /// Ends the connection, as [`Endpoint::abort`] does: the operations of both halves fail.
            pub fn abort(&mut self) {
                self.half.with(Endpoint::abort);
            }

            /// Probes the peer, as [`Endpoint::probe`] does.
            ///
            /// # Errors
            /// As for [`Endpoint::probe`].
            pub fn probe(&mut self) -> Result<()> {
                self.half.with(Endpoint::probe)
            }

            #[cfg(any(feature = "async-io", feature = "tokio"))]
            pub(crate) fn keep_alive(&self) -> Option<Instant> {
                self.half.keep_alive()
            }

            #[cfg(any(feature = "async-io", feature = "tokio"))]
            pub(crate) fn channel(&self) -> &CompChannel {
                &self.half.shared.channel
            }

            #[cfg(any(test, feature = "async-io", feature = "tokio"))]
            pub(crate) fn poll_wait(&self, cx: &Context<'_>) -> Poll<Result<Done<B>, Failed<B>>> {
                self.half.poll_wait(cx)
            }

            #[cfg(any(feature = "async-io", feature = "tokio"))]
            pub(crate) fn take_events(&self) -> Result<Option<()>> {
                Ok(self.half.take_events()?.then_some(()))
            }

            #[cfg(any(feature = "async-io", feature = "tokio"))]
            pub(crate) fn start_spin(&self) -> Spinning {
                self.half.start_spin()
            }

            #[cfg(any(feature = "async-io", feature = "tokio"))]
            pub(crate) fn end_spin(&self, spin: Spinning) {
                self.half.end_spin(spin);
            }
        }

        impl<B, P: Provider> fmt::Debug for $half<B, P> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($half))
                    .field("address", &self.address())
                    .field("pending", &self.pending())
                    .finish_non_exhaustive()
            }
        }
    )*};
}

halves! {
    EndpointSender: "sends, writes, reads and atomics",
        "none is outstanding, or all outstanding ones are unsignalled";
    EndpointReceiver: "receives", "none is posted";
}

impl<B, P: Provider> EndpointSender<B, P> {
    /// Makes the endpoint again.
    ///
    /// # Errors
    /// The halves belong to different endpoints. The error returns both.
    pub fn unsplit(
        self,
        receiver: EndpointReceiver<B, P>,
    ) -> Result<Endpoint<B, P>, UnsplitError<Self, EndpointReceiver<B, P>>> {
        if !Arc::ptr_eq(&self.half.shared, &receiver.half.shared) {
            return Err(UnsplitError { sender: self, receiver });
        }
        drop(receiver);
        match Arc::into_inner(self.half.shared) {
            Some(shared) => Ok(shared.state.into_inner().endpoint),
            None => unreachable!("an endpoint has two halves, and only they share it"),
        }
    }
}

impl<B: Source, P: Provider> EndpointSender<B, P> {
    /// Posts an operation. [`Op`] has a constructor for each.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer.
    #[inline(always)]
    pub fn post(&mut self, op: Op<'_, B>) -> Result<(), NotPosted<B>> {
        // Not a closure, which would not be inlined.
        let mut state = self.half.lock();
        let Queues { qp, flows, .. } = &mut state.endpoint.queues;
        match flows.sends.post(qp, op) {
            Ok(()) => {
                drop(state);
                Ok(())
            }
            Err(refused) => Err(post_refused(state, refused)),
        }
    }

    /// Whether another operation can be posted.
    #[cfg(all(feature = "futures", any(feature = "async-io", feature = "tokio")))]
    pub(crate) fn has_room(&self) -> bool {
        self.half.with(|endpoint| endpoint.queues.flows.sends.queue().credits() > 0)
    }

    /// Posts all of `ops` in order with one doorbell, and empties `ops`.
    ///
    /// If an operation is refused, the ones before it are posted, and the ones behind it stay in
    /// `ops`. If the doorbell is refused, polling returns the operations that were added.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer of the operation
    /// that was refused; if the doorbell was refused, it has none.
    pub fn post_all(&mut self, ops: &mut Vec<Op<'_, B>>) -> Result<(), NotPosted<B>> {
        let mut refused = None;
        let mut drained = ops.drain(..);
        let rung = self.half.with(|endpoint| {
            let mut batch = endpoint.batch();
            refused = drained.by_ref().find_map(|op| batch.post(op).err());
            batch.ring()
        });
        let behind: Vec<_> = drained.collect();
        ops.extend(behind);
        match (refused, rung) {
            (Some(refused), _) => Err(refused),
            (None, Err(error)) => Err(NotPosted { error, buffer: None, tag: 0 }),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Posts the bytes of `buffer` in `range` as one message.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer.
    pub fn post_send(&mut self, buffer: B, range: impl RangeBounds<usize>) -> Result<(), NotPosted<B>> {
        self.post(Op::send(buffer, range))
    }

    /// Posts a write of the bytes of `buffer` in `range` to the peer's memory.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer.
    pub fn post_write(
        &mut self,
        buffer: B,
        range: impl RangeBounds<usize>,
        remote: Remote,
    ) -> Result<(), NotPosted<B>> {
        self.post(Op::write(buffer, range, remote))
    }

    /// Posts the bytes of several buffers as one message: see [`Endpoint::post_send_parts`].
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffers.
    pub fn post_send_parts<R: RangeBounds<usize>, const N: usize>(
        &mut self,
        parts: [(B, R); N],
        tag: u64,
    ) -> Result<(), NotPostedParts<B, R, N>> {
        let parts = Ranged::new(parts);
        self.half.with(|endpoint| endpoint.post_ranged(Operation::Send, parts, tag)).map(drop)
    }

    /// Posts a write of the bytes of several buffers: see [`Endpoint::post_write_parts`].
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffers.
    pub fn post_write_parts<R: RangeBounds<usize>, const N: usize>(
        &mut self,
        parts: [(B, R); N],
        remote: Remote,
        tag: u64,
    ) -> Result<(), NotPostedParts<B, R, N>> {
        let parts = Ranged::new(parts);
        self.half.with(|endpoint| endpoint.post_ranged(Operation::Write(remote), parts, tag)).map(drop)
    }
}

impl<B: Target, P: Provider> EndpointSender<B, P> {
    /// Posts a read of the peer's memory into the bytes of `buffer` in `range`.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer.
    pub fn post_read(
        &mut self,
        buffer: B,
        range: impl RangeBounds<usize>,
        remote: Remote,
    ) -> Result<(), NotPosted<B>> {
        self.post(Op::read(buffer, range, remote))
    }
}

impl<B: Source, P: Provider> EndpointReceiver<B, P> {
    /// Posts `buffer` for one message of up to its whole length, as
    /// [`Endpoint::post_recv_tagged`] does.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer.
    pub fn post_recv_tagged<T: Target + Into<B>>(&mut self, buffer: T, tag: u64) -> Result<(), NotPosted<B>> {
        self.half.with(|endpoint| endpoint.post_recv_tagged(buffer, tag))
    }

    /// Posts several buffers for one message: see [`Endpoint::post_recv_parts`].
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffers.
    pub fn post_recv_parts<T: Target + Into<B>, R: RangeBounds<usize>, const N: usize>(
        &mut self,
        parts: [(T, R); N],
        tag: u64,
    ) -> Result<(), NotPostedParts<B, R, N>> {
        let parts = Ranged::new(parts);
        self.half.with(|endpoint| endpoint.post_ranged_recv(parts, tag)).map(drop)
    }
}

impl<B: Target, P: Provider> EndpointReceiver<B, P> {
    /// Posts `buffer` for one message of up to its whole length.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer.
    pub fn post_recv(&mut self, buffer: B) -> Result<(), NotPosted<B>> {
        self.post_recv_tagged(buffer, 0)
    }
}
