//! Probes of the peers of all connections of a hub.

use std::time::{Duration, Instant};

use bareverbs_provider::traits::Provider;

use super::HubInner;
use super::reaper::service::Service;
use super::reaper::{Failure, SmallList};
use crate::WcStatus;
use crate::error::PostReason;
use crate::owned::removal::Watch;
use crate::sync::{Mutex, lock};

/// When the peers of a hub's connections are probed.
pub(super) struct Sweeps(Mutex<Times>);

#[derive(Default)]
struct Times {
    /// The shortest interval of the connections.
    interval: Option<Duration>,
    next: Option<Instant>,
    /// When a wait looks whether the device was removed.
    watch: Watch,
}

impl Sweeps {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Times::default()))
    }

    /// Whether a sweep is due at `now`. Returns the time of the next one, too.
    fn due(&self, now: Instant) -> (bool, Option<Instant>) {
        let mut times = lock(&self.0);
        let due = times.next.is_some_and(|next| next <= now);
        if due {
            times.next = times.interval.and_then(|interval| now.checked_add(interval));
        }
        (due, times.next)
    }

    /// Whether it is time to look whether the device was removed.
    fn is_look_due(&self, now: Instant) -> bool {
        lock(&self.0).watch.is_due(now)
    }

    /// Shortens the interval. `false`: it was that short.
    fn shorten(&self, interval: Duration, now: Instant) -> bool {
        let mut times = lock(&self.0);
        if times.interval.is_some_and(|known| known <= interval) {
            return false;
        }
        let next = now.checked_add(interval);
        (times.interval, times.next) = (Some(interval), next);
        true
    }
}

impl<B, P: Provider, S: Service<P>> HubInner<B, P, S> {
    /// Probes a connection of the hub every `interval` from now on.
    pub(super) fn probe_every(&self, interval: Duration) {
        if self.sweeps.shorten(interval, self.channel.file().now())
            && let Some(driver) = self.election.driver()
        {
            // It sleeps without a time limit, or with a later one.
            driver.wake();
        }
    }

    /// Probes the peers for which it is time. Returns when to call it again. A removed device is noticed
    /// as well: a wait that polls without limit reads no event.
    pub(super) fn keep_alive(&self, now: Instant) -> Option<Instant> {
        if self.sweeps.is_look_due(now) && self.channel.is_closed() {
            self.end_removed();
        }
        let (due, next) = self.sweeps.due(now);
        if due {
            self.sweep(Some(now));
        }
        next
    }

    /// Probes the peers for which it is time, or all.
    #[cold]
    pub(crate) fn sweep(&self, now: Option<Instant>) {
        let mut from = Some(0);
        while let Some(start) = from {
            let mut conns = SmallList::new();
            from = self.lock().connections(start, &mut conns);
            for conn in conns {
                let state = match now {
                    None => Some(conn.lock()),
                    // Connecting takes the lock while the kernel resolves an address. The other peers
                    // must not wait for it, and the next sweep probes this one.
                    Some(_) => conn.try_lock(),
                };
                let Some(mut state) = state else { continue };
                let probed = state.probe_if_due(now);
                let is_silent = conn.is_silent(&state);
                drop(state);
                if is_silent {
                    self.end(&conn, conn.failure("keepalive", WcStatus::RETRY_EXC_ERR, 0));
                }
                // A full send queue needs no probe: its requests find a dead peer.
                if let Err(error) = probed
                    && matches!(error.reason, PostReason::Doorbell(_))
                {
                    self.end(&conn, Failure::Post(error));
                }
            }
        }
        self.reap_flushed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn sweep_is_due_at_its_time_and_the_next_one_an_interval_later() {
        let (sweeps, start) = (Sweeps::new(), Instant::now());
        assert_eq!(sweeps.due(start), (false, None));
        assert!(sweeps.shorten(SECOND, start));
        let next = start + SECOND;
        assert_eq!(sweeps.due(next - Duration::from_nanos(1)), (false, Some(next)));
        assert_eq!(sweeps.due(next), (true, Some(next + SECOND)));
        assert_eq!(sweeps.due(next), (false, Some(next + SECOND)));
    }

    #[test]
    fn interval_that_is_not_shorter_does_not_delay_the_next_sweep() {
        let (sweeps, start) = (Sweeps::new(), Instant::now());
        assert!(sweeps.shorten(SECOND, start));
        for interval in [SECOND, 2 * SECOND] {
            assert!(!sweeps.shorten(interval, start + SECOND / 2));
            assert_eq!(sweeps.due(start), (false, Some(start + SECOND)));
        }
        assert!(sweeps.shorten(SECOND / 4, start));
        assert_eq!(sweeps.due(start), (false, Some(start + SECOND / 4)));
    }
}
