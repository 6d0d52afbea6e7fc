//! Threads that wait for results.

use std::hint;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bareverbs_provider::traits::Provider;

use super::HubInner;
use super::election::{Election, WaiterId};
use super::park::Parker;
use crate::Result;
use crate::owned::Spin;

/// The spin policy of a hub, and the smoothed length of its waits.
pub(crate) struct Spinning {
    policy: Spin,
    /// Smoothed length of waits in nanoseconds.
    smoothed: AtomicU64,
}

impl Spinning {
    pub(super) fn new(policy: Spin) -> Self {
        Self { policy, smoothed: AtomicU64::new(0) }
    }

    /// Whether the wait that began at `start` goes on without sleep. Sets `start` the first time.
    pub(super) fn goes_on(&self, start: &mut Option<Instant>) -> bool {
        match self.policy {
            Spin::Never => false,
            Spin::Always => true,
            Spin::Adaptive(max) => {
                let now = Instant::now();
                let begin = *start.get_or_insert(now);
                self.smoothed.load(Ordering::Relaxed) <= nanoseconds(max) && now - begin < max
            }
        }
    }

    /// Records the end of a wait.
    pub(super) fn ended(&self, start: &mut Option<Instant>) {
        if let Some(begin) = start.take() {
            let length = nanoseconds(begin.elapsed());
            let smoothed = self.smoothed.load(Ordering::Relaxed);
            // Concurrent updates may lose one.
            self.smoothed.store(smoothed - smoothed / 8 + length / 8, Ordering::Relaxed);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2)
}

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
        if let Some(waker) = self.election.leave(self.id) {
            waker.wake();
        }
    }
}

impl<B, P: Provider> HubInner<B, P> {
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
            let mut start = None;
            loop {
                if let Poll::Ready(value) = poll(&mut context) {
                    self.spinning.ended(&mut start);
                    return Ok(Some(value));
                }
                if end.is_some_and(|end| Instant::now() >= end) {
                    return Ok(None);
                }
                if self.spinning.goes_on(&mut start) {
                    hint::spin_loop();
                    continue;
                }
                let waiter = waiter.get_or_insert_with(|| Waiter::new(&self.election, waker));
                if !self.election.leads(waiter.id) {
                    parker.sleep(None, end)?;
                    continue;
                }
                // A completion that another thread reaps meanwhile ends the sleep by the waker.
                if !self.arm()? && parker.sleep(Some(self.channel.as_fd()), end)? {
                    self.take_events()?;
                }
            }
        })
    }
}
