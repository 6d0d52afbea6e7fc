//! Threads that wait for results.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use std::{hint, mem};

use bareverbs_provider::device::BeforeWait;
use bareverbs_provider::traits::Provider;
use bareverbs_provider::wake::wake_all;

use super::HubInner;
use super::election::{Election, WaiterId};
use super::reaper::service::Service;
use crate::owned::keepalive::{Alarms, ROUNDS, earlier};
use crate::owned::park::Parker;
use crate::wait::{Caller, is_past};
use crate::{Error, Result};

/// A blocked thread, from when it is about to sleep until it leaves.
struct Waiter<'h> {
    election: &'h Election,
    id: WaiterId,
}

impl<'h> Waiter<'h> {
    fn new(election: &'h Election, waker: &Waker) -> Self {
        Self { election, id: election.join(waker) }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // The thread may unwind.
        wake_all(self.election.leave(self.id));
    }
}

impl<B, P: Provider, S: Service<P>> HubInner<B, P, S> {
    /// Polls for a task, which needs a driver, or blocks a thread. `poll` reaps and registers the
    /// waker of its context.
    pub(crate) fn poll_by<T, E: From<Error>>(
        &self,
        caller: Caller<'_>,
        verb: &'static str,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, E>>,
    ) -> Poll<Result<T, E>> {
        match caller {
            // Most results are there or in the CQ.
            Caller::Thread(end) => match poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => match self.block_on(end, poll) {
                    Ok(polled) => polled.map_or(Poll::Pending, Poll::Ready),
                    Err(error) => Poll::Ready(Err(error.into())),
                },
                polled => polled,
            },
            Caller::Task(waker) => {
                let mut context = Context::from_waker(waker);
                match poll(&mut context) {
                    Poll::Pending if !self.election.has_driver() => {
                        let error = self.no_driver(verb);
                        // A driver that ends because the device was removed has ended the operations
                        // before.
                        let polled = poll(&mut context);
                        if polled.is_pending() { Poll::Ready(Err(error.into())) } else { polled }
                    }
                    polled => polled,
                }
            }
        }
    }

    /// Blocks until `poll` returns a value, at most until `end`. `poll` reaps and registers the
    /// waker of its context.
    pub(crate) fn block_on<T>(
        &self,
        end: Option<Instant>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<Option<T>> {
        Parker::with(|parker, waker| {
            let mut context = Context::from_waker(waker);
            let mut waiter = None;
            let mut spinning = None;
            let mut rounds = 0_u32;
            let (mut is_late, mut alarms) = (false, Alarms::default());
            loop {
                if let Poll::Ready(value) = poll(&mut context) {
                    if let Some(spinning) = spinning {
                        self.spin.end(spinning);
                    }
                    // The result is not lost if the waker of the driver panics. Dropping the payload of
                    // the panic may panic again.
                    mem::forget(catch_unwind(AssertUnwindSafe(|| drop(waiter))));
                    return Ok(Some(value));
                }
                if self.is_removed() {
                    // An operation of a connection that was new at the removal ends here.
                    self.end_removed();
                    return match poll(&mut context) {
                        Poll::Ready(value) => Ok(Some(value)),
                        Poll::Pending => Err(Error::DeviceRemoved { verb: "Hub" }),
                    };
                }
                let spinning = *spinning.get_or_insert_with(|| self.spin.start_on(self.channel.file()));
                // A limit in virtual time ends in `before_sleep` only.
                if is_late || is_past(end) && !self.channel.file().runs_in_waits() {
                    self.spin.timed_out(spinning);
                    return Ok(None);
                }
                if spinning.goes_on() {
                    rounds = rounds.wrapping_add(1);
                    if rounds.is_multiple_of(ROUNDS) {
                        self.keep_alive(self.channel.file().now());
                    }
                    hint::spin_loop();
                    continue;
                }
                // Followers as well: the leader may have begun to sleep before there was a connection.
                let due = self.keep_alive(self.channel.file().now());
                let waiter = waiter.get_or_insert_with(|| Waiter::new(&self.election, waker));
                let leads = self.election.leads(waiter.id);
                if leads && self.arm()? {
                    continue;
                }
                let until = match self.channel.before_sleep(end, alarms.next(due), || parker.is_woken())? {
                    BeforeWait::TimedOut => {
                        is_late = true;
                        continue;
                    }
                    // Woken, an event, or a keepalive in virtual time.
                    BeforeWait::Ready => Some(Instant::now()),
                    BeforeWait::Block => earlier(end, due),
                };
                if !leads {
                    parker.sleep(None, until)?;
                    continue;
                }
                // A completion that another thread reaps meanwhile ends the sleep by the waker.
                if parker.sleep(Some(self.channel.as_fd()), until)? {
                    self.take_events()?;
                }
            }
        })
    }
}
