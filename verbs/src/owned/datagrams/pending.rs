//! Waits for datagrams and for destinations.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bareverbs_provider::traits::Provider;
use bareverbs_provider::wake::answered;

use super::super::in_flight::Direction;
use super::super::park::Parker;
use super::super::wait::Waiting;
use super::super::{Done, Failed, PoolBuffer, Source};
use super::received::{checked, received, sent};
use super::{DatagramDone, Datagrams, Destination, ReceivedDatagram};
use crate::qp::Ud;
use crate::runtime::{Runtime, failed, not_attached};
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
    fn poll_first(&mut self) -> Option<Result<D, Failed<B>>> {
        if D::DIRECTION.is_some() { None } else { self.waiting.poll_first().map(D::of) }
    }

    #[inline(always)]
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<D, Failed<B>>> {
        self.waiting.poll_by(D::DIRECTION, caller).map(|ended| ended.and_then(D::of))
    }
}

waits!([B, P: Provider, D: Ending<B>] NextDatagram<'_, B, P, D> => Result<D, Failed<B>>, first poll_first);

impl<B, P: Provider, D> fmt::Debug for NextDatagram<'_, B, P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextDatagram").finish_non_exhaustive()
    }
}

type Answer<P> = dyn Future<Output = Option<Result<Destination<P>>>> + Send;

/// The destination of an address, from [`Datagrams::destination`], which a task awaits or a thread
/// [waits for](Self::wait).
///
/// The kernel's call begins with the first wait. If this is dropped, it ends by itself.
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct PendingDestination<P: Provider = AnyProvider> {
    runtime: Option<Arc<dyn Runtime>>,
    /// The call that was not started.
    call: Option<Box<dyn FnOnce() + Send>>,
    answer: Pin<Box<Answer<P>>>,
}

impl<B: Source> ReceivedDatagram<B> {
    /// The destination of a reply to the sender. `datagrams` received the datagram. It costs two
    /// system calls: a server keeps the destinations of its peers in a map of
    /// [senders](Self::sender). It is waited for as that of [`Datagrams::destination`].
    ///
    /// A packet does not carry the Q_Key of the sender's QP. The reply has the Q_Key of `datagrams`;
    /// [`Destination::with_qkey`](super::Destination::with_qkey) sets another one.
    ///
    /// # Errors
    /// The errors of [`ah_attr`](Self::ah_attr) and of [`Datagrams::destination`].
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn reply_to<A, P: Provider>(&self, datagrams: &Datagrams<A, P>) -> PendingDestination<P> {
        match self.ah_attr(datagrams) {
            Ok(path) => datagrams.destination_with_path(&path, self.sender.qp_num, datagrams.address.qkey),
            Err(error) => PendingDestination::failed(error),
        }
    }
}

impl<P: Provider> PendingDestination<P> {
    pub(super) fn new(
        runtime: Option<Arc<dyn Runtime>>,
        call: impl FnOnce() -> Result<Destination<P>> + Send + 'static,
    ) -> Self {
        let (call, answer) = answered(call);
        Self { runtime, call: Some(Box::new(call)), answer: Box::pin(answer) }
    }

    pub(super) fn failed(error: Error) -> Self {
        let (call, answer) = answered(|| Err(error));
        call();
        Self { runtime: None, call: None, answer: Box::pin(answer) }
    }

    /// A thread without a time limit makes the call itself. Otherwise another thread does.
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<Destination<P>>> {
        match (caller, &self.runtime, self.call.take()) {
            (Caller::Task(_), None, Some(call)) => {
                self.call = Some(call);
                return Poll::Ready(Err(not_attached(VERB)));
            }
            (Caller::Thread(None), _, Some(call)) => call(),
            (_, Some(runtime), Some(call)) => runtime.blocking(call).map_err(|error| failed(VERB, &error))?,
            (_, None, Some(call)) => {
                let thread = std::thread::Builder::new().name("bareverbs-blocking".into());
                thread.spawn(call).map_err(|error| failed(VERB, &error))?;
            }
            (_, _, None) => {}
        }
        let mut poll = |waker: &Waker| {
            let answer = self.answer.as_mut().poll(&mut Context::from_waker(waker));
            answer.map(|answer| {
                let reason = "its result was taken before, or the runtime has ended";
                answer.unwrap_or_else(|| Err(Error::invalid(VERB, reason)))
            })
        };
        match caller {
            Caller::Task(waker) => poll(waker),
            Caller::Thread(end) => Parker::block_on(end, poll),
        }
    }
}

waits!([P: Provider] PendingDestination<P> => Result<Destination<P>>);

impl<P: Provider> fmt::Debug for PendingDestination<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingDestination").field("started", &self.call.is_none()).finish_non_exhaustive()
    }
}
