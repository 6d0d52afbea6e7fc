//! Waits for datagrams and for destinations.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
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
use crate::sync::{Mutex, lock};
use crate::wait::{Caller, waits};
use crate::{AnyProvider, Error, Result};

const VERB: &str = "Datagrams::destination";

/// A result of a wait of [`Datagrams`]. It is sealed.
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
    /// The call that was not started.
    call: Option<Call<P>>,
    /// What another thread answers, or an error.
    answer: Arc<Mutex<Answer<P>>>,
}

struct Answer<P: Provider> {
    result: Option<Result<Destination<P>>>,
    waker: Option<Waker>,
    /// Whether no result follows.
    is_over: bool,
}

/// The result of a call. Its drop is the end of the call, also by a panic.
struct Answering<P: Provider>(Arc<Mutex<Answer<P>>>);

impl<P: Provider> Drop for Answering<P> {
    fn drop(&mut self) {
        let mut answer = lock(&self.0);
        answer.is_over = true;
        let waker = answer.waker.take();
        drop(answer);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<P: Provider> PendingDestination<P> {
    pub(super) fn new(runtime: Option<Arc<dyn Runtime>>, call: Call<P>) -> Self {
        let answer = Answer { result: None, waker: None, is_over: false };
        Self { runtime, call: Some(call), answer: Arc::new(Mutex::new(answer)) }
    }

    pub(super) fn failed(error: Error) -> Self {
        let answer = Answer { result: Some(Err(error)), waker: None, is_over: true };
        Self { runtime: None, call: None, answer: Arc::new(Mutex::new(answer)) }
    }

    /// A thread without a time limit makes the call itself. Otherwise another thread does.
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<Destination<P>>> {
        if let Caller::Task(_) = caller
            && self.runtime.is_none()
            && self.call.is_some()
        {
            return Poll::Ready(Err(not_attached(VERB)));
        }
        match (self.call.take(), caller) {
            (Some(call), Caller::Thread(None)) => {
                lock(&self.answer).is_over = true;
                return Poll::Ready(call());
            }
            (Some(call), _) => self.start(call)?,
            (None, _) => {}
        }
        match caller {
            Caller::Task(waker) => self.poll_answer(waker),
            Caller::Thread(end) => Parker::block_on(end, |waker| self.poll_answer(waker)),
        }
    }

    fn start(&self, call: Call<P>) -> Result<()> {
        let answering = Answering(Arc::clone(&self.answer));
        let work = Box::new(move || {
            let result = call();
            lock(&answering.0).result = Some(result);
        });
        let started = match &self.runtime {
            Some(runtime) => runtime.blocking(work),
            None => std::thread::Builder::new().name("bareverbs-blocking".into()).spawn(work).map(drop),
        };
        started.map_err(|error| failed(VERB, &error))
    }

    fn poll_answer(&self, waker: &Waker) -> Poll<Result<Destination<P>>> {
        let mut answer = lock(&self.answer);
        match answer.result.take() {
            Some(result) => Poll::Ready(result),
            None if answer.is_over => {
                let reason =
                    "its result was taken before, or its call has panicked, or the runtime has ended";
                Poll::Ready(Err(Error::invalid(VERB, reason)))
            }
            None => {
                answer.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }
}

waits!([P: Provider] PendingDestination<P> => Result<Destination<P>>);

impl<P: Provider> fmt::Debug for PendingDestination<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingDestination").field("started", &self.call.is_none()).finish_non_exhaustive()
    }
}
