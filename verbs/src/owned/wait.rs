//! Waits for operations: spin, poll, probe, arm, poll again, sleep. Threads and tasks, endpoints and
//! datagrams share them.

use std::fmt;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};
use std::time::Instant;

use bareverbs_provider::device::BeforeWait;
use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::WorkCompletion;

use super::endpoint::{DoneOf, InFlight, Marker, Polled, Queues, SafeTransport};
use super::in_flight::{Direction, QueueKind};
use super::keepalive::{Alarms, ROUNDS, earlier};
use super::{BUDGET, Completed, Endpoint, PoolBuffer, Spinning};
use crate::cq::Arm;
use crate::qp::Rc;
use crate::runtime::{Runtime, not_attached};
use crate::wait::{Caller, is_past, waits};
use crate::wake_sources::WakeSources;
use crate::{AnyProvider, Error, Result};

/// The polling of a wait before it sleeps.
#[derive(Debug)]
pub(super) struct SpinRounds {
    spinning: Spinning,
    rounds: u32,
}

/// A wait for an operation.
pub(super) struct Waiting<'q, B, P: Provider, T: SafeTransport = Rc> {
    queues: &'q mut Queues<B, P, T>,
    /// `None` until a poll has found nothing.
    spin: Option<SpinRounds>,
}

impl<'q, B, P: Provider, T: SafeTransport> Waiting<'q, B, P, T> {
    pub(super) fn new(queues: &'q mut Queues<B, P, T>) -> Self {
        Self { queues, spin: None }
    }

    /// The operation that is the next completion of the CQ, for a thread that begins to wait. Any other
    /// result stays in the queues. A thread returns this one before it calls [`poll_by`](Self::poll_by),
    /// whose result the compiler would move through memory.
    #[inline(always)]
    pub(super) fn poll_first(&mut self) -> Option<DoneOf<B, P, T>> {
        if self.spin.is_some() {
            return None;
        }
        match self.queues.poll_oldest() {
            Polled::Done(done) => return Some(done),
            Polled::Empty => {}
            Polled::Other(completion) => self.poll_other(completion),
        }
        None
    }

    /// Waits for an operation of the direction, or of any.
    #[inline(always)]
    pub(super) fn poll_by(
        &mut self,
        direction: Option<Direction>,
        caller: Caller<'_>,
    ) -> Poll<Completed<B, DoneOf<B, P, T>>> {
        if matches!(caller, Caller::Task(_)) && self.spin.is_none() {
            self.queues.budget -= 1;
            if self.queues.budget > 0 && direction.is_none() {
                match self.queues.poll_oldest() {
                    Polled::Done(done) => return Poll::Ready(Ok(done)),
                    Polled::Empty => {}
                    Polled::Other(completion) => self.poll_other(completion),
                }
            }
        }
        if self.queues.ended.is_none() {
            self.poll_slow(direction, caller);
        }
        self.queues.ended.take().map_or(Poll::Pending, Poll::Ready)
    }

    #[cold]
    #[inline(never)]
    fn poll_other(&mut self, completion: Option<WorkCompletion>) {
        self.queues.ended = self.queues.poll_slow(completion);
    }

    /// Leaves the result in the queues.
    #[cold]
    #[inline(never)]
    fn poll_slow(&mut self, direction: Option<Direction>, caller: Caller<'_>) {
        let Self { queues, spin } = self;
        if queues.yields(caller) {
            return;
        }
        let polled = queues.poll_until(caller, Some(spin), |queues| match queues.poll_ended(direction) {
            None => queues.check_wait(direction).err().map(|error| Err(error.into())),
            ended => ended,
        });
        match polled {
            Poll::Ready(polled) => queues.ended = Some(polled.unwrap_or_else(|error| Err(error.into()))),
            // Other tasks run now.
            Poll::Pending => queues.budget = BUDGET,
        }
    }
}

impl<B, P: Provider, T: SafeTransport> Queues<B, P, T> {
    /// As [`Endpoint::attach`].
    pub(super) fn attach(&mut self, runtime: impl Runtime) -> Result<()> {
        // A runtime accepts no descriptor twice.
        self.attached = None;
        self.attached = Some(Box::new(WakeSources::new(Arc::new(runtime), &self.channel)?));
        Ok(())
    }

    /// Whether the budget of awaits is spent: the task is polled again after others.
    fn yields(&mut self, caller: Caller<'_>) -> bool {
        let Caller::Task(waker) = caller else { return false };
        if self.budget > 0 {
            return false;
        }
        self.budget = BUDGET;
        waker.wake_by_ref();
        true
    }

    /// Waits until `poll` returns a value. It sleeps at once without `spin`. Pending: the task will be
    /// woken, or the time of the thread has passed.
    pub(super) fn poll_until<X>(
        &mut self,
        caller: Caller<'_>,
        mut spin: Option<&mut Option<SpinRounds>>,
        mut poll: impl FnMut(&mut Self) -> Option<X>,
    ) -> Poll<Result<X>> {
        let (mut is_late, mut alarms) = (false, Alarms::default());
        loop {
            if let Some(polled) = poll(self) {
                if let Some(Some(SpinRounds { spinning, .. })) = spin {
                    self.spin.end(*spinning);
                }
                return Poll::Ready(Ok(polled));
            }
            if is_late {
                if let Some(Some(SpinRounds { spinning, .. })) = spin {
                    self.spin.timed_out(*spinning);
                }
                return Poll::Pending;
            }
            if let Some(spin) = &mut spin {
                let start = || SpinRounds { spinning: self.spin.start_on(self.channel.file()), rounds: 0 };
                let SpinRounds { spinning, rounds } = spin.get_or_insert_with(start);
                if spinning.goes_on() {
                    *rounds = rounds.wrapping_add(1);
                    if rounds.is_multiple_of(ROUNDS) {
                        self.keep_alive(self.channel.file().now());
                    }
                    match caller {
                        Caller::Thread(end) => is_late = is_past(end),
                        Caller::Task(waker) => {
                            waker.wake_by_ref();
                            return Poll::Pending;
                        }
                    }
                    std::hint::spin_loop();
                    continue;
                }
            }
            if !self.armed {
                // Completions before the arm raise no event: poll once more.
                self.arm_cq()?;
                continue;
            }
            match caller {
                Caller::Thread(end) => is_late = !self.sleep(end, &mut alarms)?,
                Caller::Task(waker) => ready!(self.poll_events(waker))?,
            }
        }
    }

    /// Sleeps until the armed CQ raises its event, a keepalive is due, or the device is removed. Returns
    /// `false` at `end`.
    fn sleep(&mut self, end: Option<Instant>, alarms: &mut Alarms) -> Result<bool> {
        let due = self.keep_alive(self.channel.file().now());
        if std::mem::take(&mut self.may_have_flushed) {
            return Ok(true);
        }
        let mut in_time = false;
        let event = match self.channel.before_sleep(end, alarms.next(due), || false) {
            Ok(BeforeWait::TimedOut) => return Ok(false),
            Ok(BeforeWait::Ready) => {
                in_time = true;
                self.channel.try_wait()
            }
            Ok(BeforeWait::Block) => self.channel.read(earlier(end, due)),
            Err(error) => Err(error),
        };
        match event {
            Ok(event) => {
                self.armed &= event.is_none();
                Ok(in_time || event.is_some() || end.is_none_or(|end| Instant::now() < end))
            }
            Err(error) => self.check_removed(error).map(|()| true),
        }
    }

    /// Reads the events of the armed CQ. Otherwise the task will be woken by the next one, or when a
    /// keepalive is due.
    fn poll_events(&mut self, waker: &Waker) -> Poll<Result<()>> {
        let due = self.keep_alive(self.channel.file().now());
        if std::mem::take(&mut self.may_have_flushed) {
            return Poll::Ready(Ok(()));
        }
        let Some(attached) = &mut self.attached else {
            return Poll::Ready(Err(not_attached(T::QueueKind::<P>::WAIT)));
        };
        ready!(attached.poll(waker, due))?;
        loop {
            match self.channel.try_wait() {
                Ok(None) => return Poll::Ready(Ok(())),
                Ok(Some(_)) => self.armed = false,
                Err(error) => return Poll::Ready(self.check_removed(error)),
            }
        }
    }

    /// Blocks as [`poll_reap`](Self::poll_reap) does, at most until `end`. Returns `false` then.
    pub(super) fn reap_until(
        &mut self,
        end: Option<Instant>,
        until: impl Fn(&InFlight<B, T::QueueKind<P>>) -> bool,
    ) -> Result<bool> {
        match self.poll_reap(Caller::Thread(end), until) {
            Poll::Ready(reaped) => reaped,
            Poll::Pending => Ok(false),
        }
    }

    /// Reaps until `until`. Returns `false` at the limit of the flush, and if waiting is impossible
    /// because all outstanding operations are unsignalled.
    pub(super) fn poll_reap(
        &mut self,
        caller: Caller<'_>,
        until: impl Fn(&InFlight<B, T::QueueKind<P>>) -> bool,
    ) -> Poll<Result<bool>> {
        self.poll_until(caller, None, |queues| {
            // An unknown completion moves the QP to ERR, which flushes all operations.
            let _ = queues.reap();
            let is_endless = queues.in_flight.sends.only_unsignaled()
                && queues.marker == Marker::None
                && queues.in_flight.recvs.queue().outstanding() == 0;
            let is_done = until(&queues.in_flight);
            (is_done || is_endless || queues.is_flush_late()).then_some(is_done)
        })
    }

    /// Polls an operation of the direction, or of any; `None` if none is outstanding. It sleeps at once.
    #[cfg(feature = "futures")]
    #[expect(clippy::type_complexity, reason = "the poll of a `Stream`")]
    pub(super) fn poll_stream(
        &mut self,
        direction: Option<Direction>,
        waker: &Waker,
    ) -> Poll<Option<Completed<B, DoneOf<B, P, T>>>> {
        let caller = Caller::Task(waker);
        self.budget -= 1;
        if self.yields(caller) {
            return Poll::Pending;
        }
        let polled = self.poll_until(caller, None, |queues| match queues.poll_ended(direction) {
            None if !queues.has_pending(direction) => Some(None),
            None => queues.check_wait(direction).err().map(|error| Some(Err(error.into()))),
            ended => Some(ended),
        });
        polled.map(|ended| ended.unwrap_or_else(|error| Some(Err(error.into()))))
    }

    /// Polls an operation of the direction, or of any.
    fn poll_ended(&mut self, direction: Option<Direction>) -> Option<Completed<B, DoneOf<B, P, T>>> {
        match direction {
            None => self.poll(),
            Some(direction) => self.poll_direction(direction),
        }
    }

    /// Arms the CQ. Poll once more afterwards: completions before the arm raise no event, and a removed
    /// device has ended the operations.
    pub(crate) fn arm_cq(&mut self) -> Result<()> {
        if let Err(error) = self.cq.arm(Arm::Any) {
            self.check_removed(error)?;
        }
        self.armed = true;
        Ok(())
    }

    /// Whether an operation of the direction, or of any, is outstanding.
    #[cfg(feature = "futures")]
    pub(crate) fn has_pending(&self, direction: Option<Direction>) -> bool {
        let InFlight { sends, recvs, .. } = &*self.in_flight;
        let (sends, recvs) = (sends.queue().len(), recvs.queue().len());
        match direction {
            None => sends + recvs > 0,
            Some(Direction::Send) => sends > 0,
            Some(Direction::Recv) => recvs > 0,
        }
    }

    /// Rejects a wait for an operation of the direction, or of any, that no completion would end.
    pub(crate) fn check_wait(&self, direction: Option<Direction>) -> Result<()> {
        let InFlight { sends, recvs, .. } = &*self.in_flight;
        let reason = match direction {
            None | Some(Direction::Recv) if recvs.queue().len() > 0 => return Ok(()),
            Some(Direction::Recv) => "no receive is outstanding: post one first",
            _ if sends.queue().len() == 0 => "no operation is outstanding: post one first",
            _ if sends.only_unsignaled() && self.marker == Marker::None => {
                "all outstanding operations are unsignalled: post a signalled one"
            }
            _ => return Ok(()),
        };
        Err(Error::invalid(T::QueueKind::<P>::WAIT, reason))
    }

    /// As [`Endpoint::arm`].
    pub(super) fn arm(&mut self) -> Result<()> {
        // The CQ is armed once at a time, and raises one event then: a second read would find none.
        match self.channel.try_wait() {
            Ok(event) => self.armed &= event.is_none(),
            Err(error) => self.check_removed(error)?,
        }
        if !self.armed {
            self.arm_cq()?;
        }
        if self.removed { Err(Error::DeviceRemoved { verb: T::QueueKind::<P>::ARM }) } else { Ok(()) }
    }
}

/// The next operation of an [`Endpoint`], from [`Endpoint::next`], which a task awaits or a thread
/// [waits for](Self::wait).
///
/// Dropping it loses no operation. It ends none either: the buffers of outstanding operations stay in
/// the endpoint until they complete.
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct Next<'e, B = PoolBuffer, P: Provider = AnyProvider>(Waiting<'e, B, P>);

impl<B, P: Provider> Endpoint<B, P> {
    /// The next operation that completes, to be awaited or waited for.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use bareverbs::{Done, Endpoint, Failed};
    /// # use bareverbs::{Buffer, Mr};
    ///
    /// # fn thread(endpoint: &mut Endpoint<Mr<Buffer>>) -> Result<(), Failed<Mr<Buffer>>> {
    /// let done = endpoint.next().wait()?;
    /// let in_time = endpoint.next().wait_timeout(Duration::from_millis(100)).transpose()?;
    /// # drop((done, in_time));
    /// # Ok(())
    /// # }
    /// async fn task(endpoint: &mut Endpoint<Mr<Buffer>>) -> Result<Done<Mr<Buffer>>, Failed<Mr<Buffer>>> {
    ///     endpoint.next().await
    /// }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [mut endpoint, _peer] = example::endpoints(&pd)?;
    /// # let memory = example::exposed(&pd, 64)?;
    /// # for _ in 0..3 {
    /// #     let buffer = pd.register(Buffer::zeroed(64)?, bareverbs::Access::LOCAL_WRITE)?;
    /// #     endpoint.post(bareverbs::Op::write(buffer, ..0, memory.remote(0)?))?;
    /// # }
    /// # thread(&mut endpoint).map_err(bareverbs::Error::from)?;
    /// # example::block_on(task(&mut endpoint)).map_err(bareverbs::Error::from)?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// If an operation is complete, it returns without a system call. Otherwise it polls for a while, as
    /// [`Spin`](super::Spin) says, and sleeps then. An await lets other tasks run between two polls, and
    /// once in 128 awaits that end at once.
    ///
    /// # Errors
    /// The errors of the wait:
    ///
    /// - [`Error::Completion`] and [`Error::UnknownCompletion`], as for [`Endpoint::poll`].
    /// - [`Error::DeviceRemoved`]: [the device was removed](Endpoint#device-removal). The error returns
    ///   the buffer.
    /// - [`Error::Invalid`]: no operation is outstanding, or all outstanding operations are
    ///   unsignalled; or a task awaits it, and the endpoint is not [attached](Self::attach).
    /// - [`Error::Kernel`] with `ESTALE`: this process was forked from the one that opened the
    ///   device.
    ///
    /// If the peer is dead, the outstanding operations fail: see
    /// [dead peers](Endpoint#dead-peers).
    #[doc(alias = "wait")]
    #[doc(alias = "wait_timeout")]
    #[expect(clippy::should_implement_trait, reason = "a stream of futures is no `Iterator`")]
    #[inline(always)]
    pub fn next(&mut self) -> Next<'_, B, P> {
        Next::new(self)
    }
}

impl<'e, B, P: Provider> Next<'e, B, P> {
    pub(super) fn new(endpoint: &'e mut Endpoint<B, P>) -> Self {
        Self(Waiting::new(&mut endpoint.queues))
    }

    #[inline(always)]
    fn poll_first(&mut self) -> Option<Completed<B>> {
        self.0.poll_first().map(Ok)
    }

    #[inline(always)]
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Completed<B>> {
        self.0.poll_by(None, caller)
    }
}

waits!([B, P: Provider] Next<'_, B, P> => Completed<B>, first poll_first);

impl<B, P: Provider> fmt::Debug for Next<'_, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("spin", &self.0.spin).finish_non_exhaustive()
    }
}
