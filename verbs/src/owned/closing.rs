//! The orderly end of endpoints and of datagrams.

use std::fmt;
use std::task::{Poll, ready};

use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::QpState;

use super::datagrams::checked;
use super::endpoint::{Delivery, DoneOf, FLUSH_LIMIT, Queues, SafeTransport};
use super::in_flight::QueueKind;
use super::{Completed, DatagramDone, Datagrams, Done, Endpoint, Source};
use crate::Result;
use crate::runtime::not_attached;
use crate::wait::{Caller, waits};

/// The results of all operations that were not polled.
type Closed<B, D> = Result<Vec<Completed<B, D>>>;

/// The end of an [`Endpoint`] or of [`Datagrams`], from [`Endpoint::close`] or [`Datagrams::close`],
/// which a task awaits or a thread [waits for](Closing::wait).
///
/// It owns `E`. Dropping it drops `E`, and the results are lost. In a task with a limit, await a borrow:
/// `timeout(limit, &mut closing)`.
#[must_use = "dropping it loses the results"]
pub struct Closing<E>(pub(super) E);

impl<B, P: Provider> Endpoint<B, P> {
    /// Waits until all sends, writes, reads and atomics are complete, ends the connection and destroys
    /// the QP, when the returned value is awaited or waited for. The result has all operations that
    /// were not polled, receives included: those that received a message, and those that were flushed
    /// with [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
    ///
    /// If the last sends are unsignalled, it posts a write of length 0 behind them, whose completion
    /// shows that they are complete. The peer must permit [`Access::REMOTE_WRITE`](crate::Access), as
    /// [`EndpointOptions::access`](super::EndpointOptions::access) does by default; otherwise the
    /// write fails and moves the peer's QP to ERR.
    ///
    /// On iWARP, a send is complete when the local TCP has it. Closing posts a probe, a read, behind all
    /// sends: the peer's device answers it when it has them.
    ///
    /// A send is complete when the peer's device has acknowledged it. The acknowledgement does not
    /// show that the peer has polled its receive, or that the data is visible in the peer's memory.
    ///
    /// A peer that posts no receive, or is slow, delays the end: give a limit to
    /// [`wait_timeout`](Closing::wait_timeout). When it has passed, wait again, or call
    /// [`abort`](Closing::abort), which ends the sends. No buffer is lost.
    ///
    /// ```
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [endpoint, peer] = example::endpoints::<bareverbs::PoolBuffer>(&pd)?;
    /// for result in endpoint.close().wait()? {
    ///     match result {
    ///         Ok(done) if done.is_recv() => println!("received {:?}", done.message()),
    ///         Ok(done) => println!("operation {} is complete", done.tag),
    ///         Err(failed) if failed.is_recv() => {} // flushed
    ///         Err(failed) => println!("operation {} may be lost: {failed}", failed.tag),
    ///     }
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The errors of the wait:
    ///
    /// - [`Error::Kernel`](crate::Error::Kernel): the kernel refuses to destroy the QP. The buffers
    ///   of outstanding operations are leaked.
    /// - [`Error::Invalid`](crate::Error::Invalid): a task awaits it, and the endpoint is not
    ///   [attached](Self::attach).
    pub fn close(self) -> Closing<Self> {
        Closing(self)
    }
}

impl<B, P: Provider> Datagrams<B, P> {
    /// Waits until the device has sent all signalled datagrams, and destroys the QP, when the returned
    /// value is awaited or waited for. The result has all operations that were not polled, receives
    /// included: those that received a datagram, and those that were flushed.
    ///
    /// It does not wait for unsignalled datagrams behind the last signalled one. Those that were not
    /// sent by then fail with [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
    ///
    /// # Errors
    /// The errors of the wait:
    ///
    /// - [`Error::Kernel`](crate::Error::Kernel): the kernel refuses to destroy the QP. The buffers
    ///   of outstanding operations are leaked.
    /// - [`Error::Invalid`](crate::Error::Invalid): a task awaits it, and the datagrams are not
    ///   [attached](Self::attach).
    pub fn close(self) -> Closing<Self> {
        Closing(self)
    }
}

impl<B, P: Provider> Closing<Endpoint<B, P>> {
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Closed<B, Done<B>>> {
        self.0.queues.poll_close(caller)
    }

    /// Ends the connection, as [`Endpoint::abort`] does. Outstanding sends fail. The wait ends when all
    /// operations are flushed, after 5 seconds at most.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use bareverbs::{Completed, Endpoint, PoolBuffer, Result};
    ///
    /// /// Waits for the sends, at most for 5 seconds.
    /// fn leave(endpoint: Endpoint) -> Result<Vec<Completed<PoolBuffer>>> {
    ///     let mut closing = endpoint.close();
    ///     let in_time = closing.wait_timeout(Duration::from_secs(5));
    ///     in_time.unwrap_or_else(|| closing.abort().wait())
    /// }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [endpoint, _peer] = example::endpoints(&pd)?;
    /// # assert!(leave(endpoint)?.is_empty());
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    pub fn abort(mut self) -> Self {
        self.0.queues.begin_flush();
        self
    }
}

impl<B: Source, P: Provider> Closing<Datagrams<B, P>> {
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Closed<B, DatagramDone<B>>> {
        let closed = self.0.queues.poll_close(caller);
        closed.map_ok(|ended| ended.into_iter().map(|ended| checked(ended?)).collect())
    }

    /// Ends the datagrams, as [`Datagrams::abort`] does. Outstanding sends fail. The wait ends when all
    /// operations are flushed, after 5 seconds at most.
    pub fn abort(mut self) -> Self {
        self.0.queues.begin_flush();
        self
    }
}

waits!([B, P: Provider] Closing<Endpoint<B, P>> => Result<Vec<Completed<B>>>);
waits!([B: Source, P: Provider] Closing<Datagrams<B, P>> => Result<Vec<Completed<B, DatagramDone<B>>>>);

impl<B, P: Provider, T: SafeTransport> Queues<B, P, T> {
    /// As [`Endpoint::close`].
    fn poll_close(&mut self, caller: Caller<'_>) -> Poll<Closed<B, DoneOf<B, P, T>>> {
        if self.attached.is_none() && matches!(caller, Caller::Task(_)) {
            return Poll::Ready(Err(not_attached(T::QueueKind::<P>::CLOSE)));
        }
        // The destruction of the QP ends the operations if a wait fails.
        if self.flush_end.is_none() {
            let _ = ready!(self.poll_drain(caller));
            self.begin_flush();
        }
        let _ = ready!(self.poll_reap(caller, |in_flight| in_flight.in_use() == 0));
        self.destroy_qp()?;
        Poll::Ready(Ok(std::iter::from_fn(|| self.take()).collect()))
    }

    /// Accepts no more operations, and waits until all sends are complete. Without a marker, it does not
    /// wait for unsignalled sends at the end.
    pub(super) fn poll_drain(&mut self, caller: Caller<'_>) -> Poll<Result<bool>> {
        self.in_flight.sends.close();
        self.in_flight.recvs.close();
        if T::MARKER_IS_EXECUTED && self.qp.state() == QpState::RTS {
            self.mark();
        }
        if self.delivery != Delivery::Known {
            let reaped = ready!(self.poll_until(caller, None, |queues| {
                // An unknown completion moves the QP to ERR, which flushes all operations.
                let _ = queues.reap();
                queues.ask_delivery();
                let is_over = queues.delivery == Delivery::Known || queues.qp.state() != QpState::RTS;
                (is_over || queues.is_flush_late() || queues.is_removed()).then_some(())
            }));
            if let Err(error) = reaped {
                return Poll::Ready(Err(error));
            }
        }
        self.poll_reap(caller, |in_flight| {
            in_flight.sends.in_use() == 0 || (!T::MARKER_IS_EXECUTED && in_flight.sends.only_unsignaled())
        })
    }

    /// Ends the connection for this side. Closing it waits for the flush only.
    fn begin_flush(&mut self) {
        self.end();
        self.flush_end = self.channel.file().now().checked_add(FLUSH_LIMIT);
    }
}

impl<E: fmt::Debug> fmt::Debug for Closing<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Closing").field(&self.0).finish()
    }
}
