//! Waiting in tasks: one implementation for all async runtimes.
//!
//! The types are generic over a sealed [`Readiness`], by which a runtime waits
//! for a file descriptor. The modules of the runtimes name them.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::RangeBounds;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bareverbs_provider::traits::Provider;
use rustix::io::Errno;

use crate::ah::AhAttr;
use crate::alarm::Alarm;
use crate::cq::{Arm, CompEvent, Cq, WorkCompletion};
use crate::owned::endpoint::{DoneOf, Flowing, Queues};
use crate::owned::flow::Kind;
use crate::owned::hub::reaper::Direction;
use crate::owned::{
    Address, BUDGET, Batch, DatagramAddress, DatagramDone, Destination, DestinationRequest, Done, Failed,
    NotPosted, Op, PoolBuffer, ROUNDS, ReceivedDatagram, Source, Spinning, Target, checked, received,
    spend_budget,
};
use crate::{AnyProvider, AsyncEvent, Error, Remote, Result, owned};

pub(crate) fn failed(error: io::Error) -> Error {
    Error::system("waiting for events in an async task", Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

use crate::readiness::sealed::{Events, Readiness};

/// A [completion channel](crate::cq::CompChannel) that tasks wait on.
///
/// A channel can have one wrapper at a time.
pub struct CompChannel<R> {
    channel: crate::cq::CompChannel,
    readiness: R,
}

impl<R: Readiness> CompChannel<R> {
    /// Registers the channel with the runtime.
    ///
    /// # Errors
    /// There is no runtime, or the channel is registered already (`EEXIST`).
    pub fn new(channel: crate::cq::CompChannel) -> Result<Self> {
        Ok(Self { readiness: R::new(Events(channel.events()))?, channel })
    }

    /// Unregisters the channel from the runtime and returns it.
    #[must_use]
    pub fn into_inner(self) -> crate::cq::CompChannel {
        self.channel
    }

    /// Waits for an event. The future is cancel-safe: dropping it loses no event.
    ///
    /// # Errors
    /// As for [`CompChannel::wait`](crate::cq::CompChannel::wait).
    pub async fn wait(&self) -> Result<CompEvent> {
        self.readiness.until(|| self.channel.try_wait()).await
    }

    /// Polls one completion of `cq`, and waits if the CQ is empty. It polls, arms the CQ, polls
    /// again and then sleeps, so it misses no completion.
    ///
    /// It discards events of other CQs on the channel. One task waits at a time and polls first, so
    /// this is correct with any number of CQs. To wait for several CQs at once, arm them, poll them
    /// all once more and wait for [an event](Self::wait).
    ///
    /// The future is cancel-safe: dropping it loses no completion.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the CQ was not created with this channel.
    /// - The errors of [`Cq::arm`] and [`wait`](Self::wait).
    pub async fn completion<P: Provider>(&mut self, cq: &mut Cq<P>) -> Result<WorkCompletion> {
        if !cq.channel().is_some_and(|channel| channel.is(&self.channel)) {
            let reason = "the CQ does not use this channel: create the CQ with it";
            return Err(Error::invalid("CompChannel::completion", reason));
        }
        loop {
            if let Some(completion) = cq.poll_one() {
                return Ok(completion);
            }
            cq.arm(Arm::Any)?;
            // Completions before the arm raise no event.
            if let Some(completion) = cq.poll_one() {
                return Ok(completion);
            }
            self.wait().await?;
        }
    }
}

/// A stream of [asynchronous events](crate::AsyncEvents) that tasks wait for.
///
/// The stream of a context can have one wrapper at a time.
pub struct AsyncEvents<R> {
    events: crate::AsyncEvents,
    readiness: R,
}

impl<R: Readiness> AsyncEvents<R> {
    /// Registers the stream with the runtime.
    ///
    /// # Errors
    /// There is no runtime, or the stream is registered already (`EEXIST`).
    pub fn new(events: crate::AsyncEvents) -> Result<Self> {
        Ok(Self { readiness: R::new(Events(events.events()))?, events })
    }

    /// Unregisters the stream from the runtime and returns it.
    #[must_use]
    pub fn into_inner(self) -> crate::AsyncEvents {
        self.events
    }

    /// Waits for an event. The future is cancel-safe: dropping it loses no event.
    ///
    /// # Errors
    /// As for [`AsyncEvents::wait`](crate::AsyncEvents::wait).
    pub async fn wait(&self) -> Result<AsyncEvent> {
        self.readiness.until(|| self.events.try_wait()).await
    }
}

/// An [endpoint](owned::Endpoint) that tasks wait on.
pub struct Endpoint<R, B = PoolBuffer, P: Provider = AnyProvider> {
    endpoint: owned::Endpoint<B, P>,
    channel: crate::cq::CompChannel,
    readiness: R,
    /// Rings when a keepalive is due.
    alarm: Alarm<R>,
    /// Awaits until the next one yields to the scheduler (see [`BUDGET`]).
    budget: u32,
}

impl<R: Readiness, B, P: Provider> Endpoint<R, B, P> {
    /// Registers the endpoint with the runtime.
    ///
    /// # Errors
    /// There is no runtime.
    pub fn new(endpoint: owned::Endpoint<B, P>) -> Result<Self> {
        let channel = endpoint.queues.channel().clone();
        let alarm = Alarm::new(channel.file());
        Ok(Self { readiness: R::new(Events(channel.events()))?, endpoint, channel, alarm, budget: BUDGET })
    }

    /// Unregisters the endpoint from the runtime and returns it.
    #[must_use]
    pub fn into_inner(self) -> owned::Endpoint<B, P> {
        self.endpoint
    }

    /// The endpoint.
    #[must_use]
    pub fn get_ref(&self) -> &owned::Endpoint<B, P> {
        &self.endpoint
    }

    /// The endpoint, for all that this type does not forward.
    ///
    /// The caller must not replace it by another endpoint: [`Endpoint::wait`] then fails.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut owned::Endpoint<B, P> {
        &mut self.endpoint
    }

    /// Waits until an operation completes. If one is complete already, it returns without a system
    /// call, but yields to the scheduler once in 128 such waits. Before it sleeps, it polls for a while
    /// as [`Spin`](owned::Spin) says, and yields between two polls.
    ///
    /// The future is cancel-safe: dropping it loses no operation. Operations are not ended by
    /// dropping a future: their buffers stay in the endpoint until they complete.
    ///
    /// # Errors
    /// - The errors of [`owned::Endpoint::wait`].
    /// - [`Error::Invalid`]: the endpoint was replaced through [`get_mut`](Self::get_mut).
    #[inline(always)]
    pub fn wait(&mut self) -> Wait<'_, R, B, P> {
        Wait { endpoint: self, spin: None }
    }
}

/// The future of [`Endpoint::wait`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct Wait<'e, R, B = PoolBuffer, P: Provider = AnyProvider> {
    endpoint: &'e mut Endpoint<R, B, P>,
    /// `None` until a poll has found nothing.
    spin: Option<SpinRounds>,
}

impl<R: Readiness, B, P: Provider> Future for Wait<'_, R, B, P> {
    type Output = Result<Done<B>, Failed<B>>;

    // It is inlined, so that an operation that has ended is returned in registers. The slow path leaves
    // its result in the endpoint: the result of a function would force that of the fast path into the
    // same memory.
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.spin.is_none() {
            this.endpoint.budget -= 1;
            if this.endpoint.budget > 0
                && let Some(done) = this.endpoint.endpoint.queues.poll_done()
            {
                return Poll::Ready(Ok(done));
            }
        }
        this.poll_slow(cx);
        this.endpoint.endpoint.queues.slow().take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<R: Readiness, B, P: Provider> Wait<'_, R, B, P> {
    /// Leaves the result in the endpoint. Otherwise the task will be woken.
    #[cold]
    #[inline(never)]
    fn poll_slow(&mut self, cx: &mut Context<'_>) {
        let Self { endpoint, spin } = self;
        let Endpoint { endpoint, channel, readiness, alarm, budget } = &mut **endpoint;
        if *budget == 0 {
            *budget = BUDGET;
            cx.waker().wake_by_ref();
            return;
        }
        let queues = &mut endpoint.queues;
        match poll_wait(queues, None, channel, readiness, alarm, spin, cx) {
            Poll::Ready(ended) => *queues.slow() = Some(ended),
            // Other tasks run now.
            Poll::Pending => *budget = BUDGET,
        }
    }
}

/// [Datagrams](owned::Datagrams) that tasks wait for.
pub struct Datagrams<R, B = PoolBuffer, P: Provider = AnyProvider> {
    datagrams: owned::Datagrams<B, P>,
    channel: crate::cq::CompChannel,
    readiness: R,
    alarm: Alarm<R>,
    /// Awaits until the next one yields to the scheduler (see [`BUDGET`]).
    budget: u32,
}

impl<R: Readiness, B, P: Provider> Datagrams<R, B, P> {
    /// Registers the datagrams with the runtime.
    ///
    /// # Errors
    /// There is no runtime.
    pub fn new(datagrams: owned::Datagrams<B, P>) -> Result<Self> {
        let channel = datagrams.queues.channel().clone();
        let alarm = Alarm::new(channel.file());
        Ok(Self { readiness: R::new(Events(channel.events()))?, datagrams, channel, alarm, budget: BUDGET })
    }

    /// Unregisters the datagrams from the runtime and returns them.
    #[must_use]
    pub fn into_inner(self) -> owned::Datagrams<B, P> {
        self.datagrams
    }

    /// The datagrams.
    #[must_use]
    pub fn get_ref(&self) -> &owned::Datagrams<B, P> {
        &self.datagrams
    }

    /// The datagrams, for posting.
    ///
    /// The caller must not replace them by others: [`Datagrams::wait`] then fails.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut owned::Datagrams<B, P> {
        &mut self.datagrams
    }
}

/// Creates a destination beside the tasks of the runtime.
async fn created<R: Readiness, P: Provider>(
    request: Result<DestinationRequest<P>>,
) -> Result<Destination<P>> {
    let request = request?;
    R::blocking(move || request.create()).await
}

impl<R: Readiness, B, P: Provider> Datagrams<R, B, P> {
    /// Creates the destination of an address, as [`owned::Datagrams::destination`] does. The kernel's
    /// resolution of the peer blocks no task: it runs in a thread for blocking calls. If the future is
    /// dropped, it ends by itself.
    ///
    /// # Errors
    /// As for [`owned::Datagrams::destination`]. [`Error::Invalid`]: there is no runtime.
    #[doc(alias = "ibv_create_ah")]
    pub fn destination(
        &self,
        peer: &DatagramAddress,
    ) -> impl Future<Output = Result<Destination<P>>> + Send + use<R, B, P> {
        created::<R, P>(Ok(self.datagrams.request_to(peer)))
    }

    /// Creates the destination of the QP `qp_num` on a path, as [`destination`](Self::destination) does.
    ///
    /// # Errors
    /// As for [`owned::Datagrams::destination_with_path`]. [`Error::Invalid`]: there is no runtime.
    pub fn destination_with_path(
        &self,
        path: &AhAttr,
        qp_num: u32,
        qkey: u32,
    ) -> impl Future<Output = Result<Destination<P>>> + Send + use<R, B, P> {
        created::<R, P>(Ok(self.datagrams.request_on_path(path, qp_num, qkey)))
    }

    /// Creates the destination of a reply to the sender of a datagram, as [`ReceivedDatagram::reply_to`]
    /// does. It blocks no task, as [`destination`](Self::destination).
    ///
    /// # Errors
    /// As for [`ReceivedDatagram::reply_to`]. [`Error::Invalid`]: there is no runtime.
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn reply_to<A: Source>(
        &self,
        received: &ReceivedDatagram<A>,
    ) -> impl Future<Output = Result<Destination<P>>> + Send + use<R, B, P, A> {
        created::<R, P>(received.reply_request(&self.datagrams))
    }
}

impl<R: Readiness, B: Source, P: Provider> Datagrams<R, B, P> {
    /// Waits until an operation completes, as [`Endpoint::wait`] does. The future is cancel-safe:
    /// dropping it loses no operation.
    ///
    /// # Errors
    /// - The errors of [`owned::Datagrams::wait`].
    /// - [`Error::Invalid`]: the datagrams were replaced through [`get_mut`](Self::get_mut).
    pub async fn wait(&mut self) -> Result<DatagramDone<B>, Failed<B>> {
        yield_in_turn(&mut self.budget).await;
        let Self { datagrams, channel, readiness, alarm, .. } = self;
        let mut spin = None;
        let wait = |cx: &mut Context<'_>| {
            poll_wait(&mut datagrams.queues, None, channel, readiness, alarm, &mut spin, cx)
        };
        checked(poll_fn(wait).await?)
    }

    /// Waits until a datagram was received. Sends stay outstanding until
    /// [`poll_send`](owned::Datagrams::poll_send) or [`wait`](Self::wait) returns them. The future
    /// is cancel-safe: dropping it loses no datagram.
    ///
    /// # Errors
    /// - The errors of [`owned::Datagrams::wait_recv`].
    /// - [`Error::Invalid`]: the datagrams were replaced through [`get_mut`](Self::get_mut).
    pub async fn wait_recv(&mut self) -> Result<ReceivedDatagram<B>, Failed<B>> {
        yield_in_turn(&mut self.budget).await;
        let Self { datagrams, channel, readiness, alarm, .. } = self;
        let (direction, mut spin) = (Some(Direction::Recv), None);
        let queues = &mut datagrams.queues;
        let wait =
            |cx: &mut Context<'_>| poll_wait(queues, direction, channel, readiness, alarm, &mut spin, cx);
        received(poll_fn(wait).await?)
    }
}

/// The datagrams that are received. It ends when no receive is posted. Between two items, the
/// program posts receives through [`Datagrams::get_mut`].
#[cfg(feature = "futures")]
impl<R: Readiness, B: Source, P: Provider> futures_core::Stream for Datagrams<R, B, P> {
    type Item = Result<ReceivedDatagram<B>, Failed<B>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { datagrams, channel, readiness, alarm, budget } = self.get_mut();
        if spend_budget(budget) {
            return yielded(cx);
        }
        let direction = Some(Direction::Recv);
        let ended = poll_ended(&mut datagrams.queues, direction, channel, readiness, alarm, cx);
        ended.map(|ended| ended.map(|ended| ended.and_then(received)))
    }
}

// It contains no pinned values.
impl<R, B, P: Provider> Unpin for Datagrams<R, B, P> {}

impl<R: Readiness, B, P: Provider> Endpoint<R, B, P> {
    /// As [`owned::Endpoint::poll`].
    ///
    /// # Errors
    /// As for [`owned::Endpoint::poll`].
    #[inline]
    pub fn poll(&mut self) -> Option<Result<Done<B>, Failed<B>>> {
        self.endpoint.poll()
    }

    /// As [`owned::Endpoint::pending`].
    #[must_use]
    pub fn pending(&self) -> usize {
        self.endpoint.pending()
    }

    /// As [`owned::Endpoint::address`].
    #[must_use]
    pub fn address(&self) -> Address {
        self.endpoint.address()
    }

    /// As [`owned::Endpoint::connect`], which may block the thread on RoCE.
    ///
    /// # Errors
    /// As for [`owned::Endpoint::connect`].
    pub fn connect(&mut self, peer: &Address) -> Result<()> {
        self.endpoint.connect(peer)
    }

    /// As [`owned::Endpoint::batch`].
    pub fn batch(&mut self) -> Batch<'_, B, P> {
        self.endpoint.batch()
    }
}

/// Posting methods of the wrapped types.
macro_rules! forward {
    ($($of:ident.$inner:ident, $bound:ident { $($name:ident $(<$generic:ident>)? ($($argument:ident: $ty:ty),*);)* })*) => {$(
        impl<R: Readiness, B: $bound, P: Provider> $of<R, B, P> {
            $(#[doc = concat!("As [`owned::", stringify!($of), "::", stringify!($name), "`].")]
            ///
            /// # Errors
            /// [Errors of posting](owned::Endpoint#errors-of-posting). The error returns the buffer.
            #[inline]
            pub fn $name $(<$generic: Target + Into<B>>)? (&mut self, $($argument: $ty),*) -> Result<(), NotPosted<B>> {
                self.$inner.$name($($argument),*)
            })*
        }
    )*};
}

forward! {
    Endpoint.endpoint, Source {
        post(op: Op<'_, B>);
        post_send(buffer: B, range: impl RangeBounds<usize>);
        post_send_inline(bytes: &[u8]);
        post_write(buffer: B, range: impl RangeBounds<usize>, remote: Remote);
        post_write_inline(bytes: &[u8], remote: Remote);
        post_recv_tagged<T>(buffer: T, tag: u64);
    }
    Endpoint.endpoint, Target {
        post_recv(buffer: B);
        post_read(buffer: B, range: impl RangeBounds<usize>, remote: Remote);
    }
}

// It contains no pinned values.
impl<R, B, P: Provider> Unpin for Endpoint<R, B, P> {}

/// The results of an endpoint's operations, in the order of completion.
///
/// An item is as [`Endpoint::wait`] returns it. The stream ends when no operation is outstanding; after
/// another post it continues. It sleeps at once, without the polling of [`Spin`](owned::Spin).
#[cfg(feature = "futures")]
impl<R: Readiness, B, P: Provider> futures_core::Stream for Endpoint<R, B, P> {
    type Item = Result<Done<B>, Failed<B>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { endpoint, channel, readiness, alarm, budget } = self.get_mut();
        if spend_budget(budget) {
            return yielded(cx);
        }
        poll_ended(&mut endpoint.queues, None, channel, readiness, alarm, cx)
    }
}

/// The polling of a wait before it sleeps.
struct SpinRounds {
    spinning: Spinning,
    rounds: u32,
}

/// Polls for an operation of the direction, or of any. `channel` is that of the wrapped queues. `spin`
/// is `None` in the first poll of a wait.
fn poll_wait<R: Readiness, B, P: Provider, T: Flowing>(
    queues: &mut Queues<B, P, T>,
    direction: Option<Direction>,
    channel: &crate::cq::CompChannel,
    readiness: &R,
    alarm: &mut Alarm<R>,
    spin: &mut Option<SpinRounds>,
    cx: &mut Context<'_>,
) -> Poll<Ended<B, P, T>> {
    loop {
        if let Some(ended) = queues.poll_ended_slow(direction) {
            if let Some(SpinRounds { spinning, .. }) = spin {
                queues.end_spin(*spinning);
            }
            return Poll::Ready(ended);
        }
        check_channel(queues, channel)?;
        queues.check_wait(direction)?;
        let SpinRounds { spinning, rounds } =
            spin.get_or_insert_with(|| SpinRounds { spinning: queues.start_spin(), rounds: 0 });
        if spinning.goes_on() {
            *rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(ROUNDS) {
                queues.keep_alive(Instant::now());
            }
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !queues.is_armed() {
            // Completions before the arm raise no event: poll once more.
            queues.arm_cq()?;
            continue;
        }
        match poll_event(queues, readiness, alarm, cx) {
            Poll::Ready(event) => event?,
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// Reads the events of the armed CQ. Otherwise the task is woken by the next event, or when a keepalive
/// is due.
fn poll_event<R: Readiness, B, P: Provider, T: Flowing>(
    queues: &mut Queues<B, P, T>,
    readiness: &R,
    alarm: &mut Alarm<R>,
    cx: &mut Context<'_>,
) -> Poll<Result<()>> {
    let due = queues.keep_alive(Instant::now());
    match readiness.poll_drain(cx, &mut || queues.take_events()) {
        Poll::Pending => alarm.poll(cx, due),
        drained => drained,
    }
}

/// The result of an operation.
type Ended<B, P, T> = Result<DoneOf<B, P, T>, Failed<B>>;

/// Polls for an operation of the direction, or of any; `None` if none is outstanding. Otherwise the
/// task is woken by the next completion, or when a keepalive is due.
#[cfg(feature = "futures")]
fn poll_ended<R: Readiness, B, P: Provider, T: Flowing>(
    queues: &mut Queues<B, P, T>,
    direction: Option<Direction>,
    channel: &crate::cq::CompChannel,
    readiness: &mut R,
    alarm: &mut Alarm<R>,
    cx: &mut Context<'_>,
) -> Poll<Option<Ended<B, P, T>>> {
    loop {
        if let Some(ended) = queues.poll_ended(direction) {
            return Poll::Ready(Some(ended));
        }
        if !queues.has_pending(direction) {
            return Poll::Ready(None);
        }
        if let Err(error) = check_channel(queues, channel).and_then(|()| queues.check_wait(direction)) {
            return Poll::Ready(Some(Err(error.into())));
        }
        if !queues.is_armed() {
            // Completions before the arm raise no event: poll once more.
            match queues.arm_cq() {
                Ok(()) => continue,
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
        match poll_event(queues, readiness, alarm, cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// Rejects queues that replaced the wrapped ones.
fn check_channel<B, P: Provider, T: Flowing>(
    queues: &Queues<B, P, T>,
    channel: &crate::cq::CompChannel,
) -> Result<()> {
    if queues.channel().is(channel) {
        return Ok(());
    }
    let reason = "the wrapped value was replaced by another one: wrap the new one";
    Err(Error::invalid(<T::Kind<P> as Kind>::WAIT, reason))
}

/// Yields to the scheduler if the budget is spent.
#[inline(always)]
async fn yield_in_turn(budget: &mut u32) {
    if !spend_budget(budget) {
        return;
    }
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The result of a poll that yields: the task is polled again.
#[cfg(feature = "futures")]
fn yielded<T>(cx: &Context<'_>) -> Poll<T> {
    cx.waker().wake_by_ref();
    Poll::Pending
}

impl<R: Readiness> fmt::Debug for CompChannel<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompChannel").field("channel", &self.channel).field("runtime", &R::RUNTIME).finish()
    }
}

impl<R: Readiness> fmt::Debug for AsyncEvents<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEvents").field("events", &self.events).field("runtime", &R::RUNTIME).finish()
    }
}

impl<R: Readiness, B, P: Provider> fmt::Debug for Endpoint<R, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("endpoint", &self.endpoint).field("runtime", &R::RUNTIME).finish()
    }
}

impl<R: Readiness, B, P: Provider> fmt::Debug for Datagrams<R, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams").field("datagrams", &self.datagrams).field("runtime", &R::RUNTIME).finish()
    }
}

impl<R: Readiness, B, P: Provider> fmt::Debug for Wait<'_, R, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    /// Requires a `Send` future, as multi-threaded runtimes do.
    fn can_move<T: Send>(_: &T) {}

    macro_rules! futures_can_move {
        ($name:ident, $runtime:ident) => {
            #[test]
            fn $name() {
                #[expect(dead_code, reason = "compiling it is the test")]
                fn futures(
                    channel: &mut crate::$runtime::CompChannel,
                    cq: &mut crate::cq::Cq,
                    events: &crate::$runtime::AsyncEvents,
                    endpoint: &mut crate::$runtime::Endpoint,
                    datagrams: &mut crate::$runtime::Datagrams,
                ) {
                    can_move(&channel.wait());
                    can_move(&channel.completion(cq));
                    can_move(&events.wait());
                    can_move(&endpoint.wait());
                    can_move(&datagrams.wait());
                    can_move(&datagrams.wait_recv());
                }
            }
        };
    }

    #[cfg(feature = "tokio")]
    futures_can_move!(tokio_futures_are_send, tokio);
    #[cfg(feature = "async-io")]
    futures_can_move!(async_io_futures_are_send, async_io);
}
