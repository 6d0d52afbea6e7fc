//! What threads and tasks wait for.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use bareverbs_provider::traits::Provider;

use super::super::hub::park::Parker;
use super::super::hub::reaper::Direction;
use super::super::wait::Waiting;
use super::super::{Done, Failed, PoolBuffer, Source};
use super::received::{checked, received, sent};
use super::{DatagramDone, Datagrams, Destination, ReceivedDatagram};
use crate::qp::Ud;
use crate::runtime::{Runtime, failed, not_attached};
use crate::wait::{Caller, waits};
use crate::{AnyProvider, Error, Result};

/// What a wait of [`Datagrams`] returns. It is sealed.
pub trait Ending<B>: Sized {
    /// The direction of the operations; `None`: both.
    #[doc(hidden)]
    const DIRECTION: Option<Direction>;

    #[doc(hidden)]
    fn of(done: DatagramDone<B>) -> Result<Self, Failed<B>>;
}

impl<B: Source> Ending<B> for DatagramDone<B> {
    const DIRECTION: Option<Direction> = None;

    #[inline]
    fn of(done: DatagramDone<B>) -> Result<Self, Failed<B>> {
        checked(done)
    }
}

impl<B: Source> Ending<B> for ReceivedDatagram<B> {
    const DIRECTION: Option<Direction> = Some(Direction::Recv);

    #[inline]
    fn of(done: DatagramDone<B>) -> Result<Self, Failed<B>> {
        received(done)
    }
}

impl<B: Source> Ending<B> for Done<B> {
    const DIRECTION: Option<Direction> = Some(Direction::Send);

    #[inline]
    fn of(done: DatagramDone<B>) -> Result<Self, Failed<B>> {
        Ok(sent(done))
    }
}

/// The next operation of [`Datagrams`], from [`Datagrams::next`], [`Datagrams::next_recv`] or
/// [`Datagrams::next_send`], which a task awaits or a thread [waits for](Self::wait).
///
/// Dropping it loses no operation. It ends none either: the buffers of outstanding operations stay in
/// the datagrams until they complete.
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct NextDatagram<'d, B = PoolBuffer, P: Provider = AnyProvider, D = DatagramDone<B>> {
    waiting: Waiting<'d, B, P, Ud>,
    _done: PhantomData<fn() -> D>,
}

impl<'d, B, P: Provider, D: Ending<B>> NextDatagram<'d, B, P, D> {
    #[inline]
    pub(super) fn new(datagrams: &'d mut Datagrams<B, P>) -> Self {
        Self { waiting: Waiting::new(&mut datagrams.queues), _done: PhantomData }
    }

    #[inline(always)]
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<D, Failed<B>>> {
        self.waiting.poll_by(D::DIRECTION, caller).map(|ended| ended.and_then(D::of))
    }
}

waits!([B, P: Provider, D: Ending<B>] NextDatagram<'_, B, P, D> => Result<D, Failed<B>>);

impl<B, P: Provider, D> fmt::Debug for NextDatagram<'_, B, P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextDatagram").finish_non_exhaustive()
    }
}

type Call<P> = Box<dyn FnOnce() -> Result<Destination<P>> + Send>;

/// The destination of an address, from [`Datagrams::destination`], which a task awaits or a thread
/// [waits for](Self::wait).
///
/// The kernel's call begins with the first wait. If this is dropped, it ends by itself.
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct PendingDestination<P: Provider = AnyProvider> {
    runtime: Option<Arc<dyn Runtime>>,
    state: State<P>,
}

enum State<P: Provider> {
    Idle(Call<P>),
    /// It was refused.
    Failed(Error),
    /// Another thread carries it out.
    Running(Arc<Mutex<Answer<P>>>),
    /// The result was taken.
    Ended,
}

struct Answer<P: Provider> {
    /// `None`: the call has not returned.
    result: Option<Result<Destination<P>>>,
    waker: Option<Waker>,
}

/// Answers when the call has ended, or was dropped.
struct Answering<P: Provider>(Arc<Mutex<Answer<P>>>);

impl<P: Provider> Drop for Answering<P> {
    fn drop(&mut self) {
        let waker = {
            let mut answer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            answer.result.get_or_insert_with(|| {
                Err(Error::invalid(
                    "Datagrams::destination",
                    "its call has panicked, or the runtime has ended",
                ))
            });
            answer.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<P: Provider> PendingDestination<P> {
    pub(super) fn new(
        runtime: Option<Arc<dyn Runtime>>,
        call: impl FnOnce() -> Result<Destination<P>> + Send + 'static,
    ) -> Self {
        Self { runtime, state: State::Idle(Box::new(call)) }
    }

    pub(super) fn failed(error: Error) -> Self {
        Self { runtime: None, state: State::Failed(error) }
    }

    /// A thread without a time limit makes the call itself. Otherwise another thread does.
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<Destination<P>>> {
        self.state = match std::mem::replace(&mut self.state, State::Ended) {
            State::Failed(error) => return Poll::Ready(Err(error)),
            State::Idle(call) if matches!(caller, Caller::Thread(None)) => return Poll::Ready(call()),
            State::Idle(call) => self.start(call, caller)?,
            state => state,
        };
        match caller {
            Caller::Task(waker) => self.poll_answer(waker),
            Caller::Thread(end) => Parker::block_on(end, |waker| self.poll_answer(waker)),
        }
    }

    fn start(&self, call: Call<P>, caller: Caller<'_>) -> Result<State<P>> {
        let answer = Arc::new(Mutex::new(Answer { result: None, waker: None }));
        let answering = Answering(Arc::clone(&answer));
        let work = Box::new(move || {
            let result = call();
            answering.0.lock().unwrap_or_else(PoisonError::into_inner).result = Some(result);
        });
        let started = match (&self.runtime, caller) {
            (Some(runtime), _) => runtime.blocking(work),
            (None, Caller::Task(_)) => return Err(not_attached("Datagrams::destination")),
            (None, Caller::Thread(_)) => {
                std::thread::Builder::new().name("bareverbs-blocking".into()).spawn(work).map(drop)
            }
        };
        started.map_err(|error| failed("Datagrams::destination", &error))?;
        Ok(State::Running(answer))
    }

    fn poll_answer(&mut self, waker: &Waker) -> Poll<Result<Destination<P>>> {
        let State::Running(answer) = &self.state else {
            return Poll::Ready(Err(Error::invalid("Datagrams::destination", "its result was taken before")));
        };
        let mut answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
        match answer.result.take() {
            Some(result) => {
                drop(answer);
                self.state = State::Ended;
                Poll::Ready(result)
            }
            None => {
                answer.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }
}

waits!([P: Provider] PendingDestination<P> => Result<Destination<P>>);

impl<P: Provider> Unpin for PendingDestination<P> {}

impl<P: Provider> fmt::Debug for PendingDestination<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Idle(_) => "idle",
            State::Failed(_) => "failed",
            State::Running(_) => "running",
            State::Ended => "ended",
        };
        f.debug_tuple("PendingDestination").field(&state).finish()
    }
}
