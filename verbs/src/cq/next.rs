//! The next completion of a CQ, with the events of its channel.

use std::fmt;
use std::sync::Arc;
use std::task::{Poll, ready};

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::WorkCompletion;

use super::{Arm, Cq};
use crate::channel::{CompChannel, CompEvent};
use crate::error::{Error, Result};
use crate::event_fd::NextEvent;
use crate::provider::AnyProvider;
use crate::wait::{Caller, waits};

impl CompChannel {
    /// The next completion of `cq`, to be awaited or waited for. It polls, arms the CQ, polls again and
    /// then sleeps, so it misses no completion.
    ///
    /// It discards events of other CQs on the channel. It polls first, so one caller at a time may
    /// wait for any number of CQs in turn. A thread that waits on a clone at the same time may lose
    /// its event. To wait for several CQs at once, arm them, poll them all once more and wait for [an
    /// event](Self::next). Two waits on one channel do not compile:
    ///
    /// ```compile_fail,E0499
    /// # use bareverbs::cq::{CompChannel, Cq};
    /// # fn both(channel: &mut CompChannel, one: &mut Cq, other: &mut Cq) {
    /// let waits = (channel.completion(one), channel.completion(other));
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the CQ was not created with this channel.
    /// - The errors of [`Cq::arm`] and [`next`](Self::next).
    pub fn completion<'c, P: Provider>(&'c mut self, cq: &'c mut Cq<P>) -> NextCompletion<'c, P> {
        NextCompletion { event: self.next(), cq, armed: false }
    }
}

/// The next completion of a CQ, from [`CompChannel::completion`], which a task awaits or a thread
/// [waits for](Self::wait).
///
/// Dropping it loses no completion.
#[must_use = "it does nothing unless it is awaited or waited for"]
pub struct NextCompletion<'c, P: Provider = AnyProvider> {
    event: NextEvent<'c, CompEvent>,
    cq: &'c mut Cq<P>,
    armed: bool,
}

impl<P: Provider> NextCompletion<'_, P> {
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<WorkCompletion>> {
        if !self.cq.channel().is_some_and(|channel| Arc::ptr_eq(channel.events(), self.event.events())) {
            let reason = "the CQ does not use this channel: create the CQ with it";
            return Poll::Ready(Err(Error::invalid("CompChannel::completion", reason)));
        }
        loop {
            if let Some(completion) = self.cq.poll_one() {
                return Poll::Ready(Ok(completion));
            }
            if self.armed {
                ready!(self.event.poll_by(caller))?;
                self.armed = false;
            } else {
                // Completions before the arm raise no event: poll once more.
                self.cq.arm(Arm::Any)?;
                self.armed = true;
            }
        }
    }
}

waits!([P: Provider] NextCompletion<'_, P> => Result<WorkCompletion>);

impl<P: Provider> fmt::Debug for NextCompletion<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextCompletion").field("event", &self.event).finish_non_exhaustive()
    }
}
