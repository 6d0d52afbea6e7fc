//! Polling for a while before sleeping.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bareverbs_provider::device::DeviceFile;

/// How long a wait polls the CQ before it sleeps. Sleeping costs system calls and the time to wake
/// up; polling costs processor time.
///
/// Endpoints, hubs, servers and clients have the same default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spin {
    /// Sleeps at once.
    Never,
    /// Polls for at most this time, while recent waits were shorter on average. Otherwise sleeps at
    /// once. About ten short waits after a long one make it poll again.
    Adaptive(Duration),
    /// Never sleeps.
    Always,
}

impl Default for Spin {
    /// Adaptive, at most 20 µs.
    fn default() -> Self {
        Self::Adaptive(Duration::from_micros(20))
    }
}

/// The policy, and the length of recent waits.
#[derive(Debug)]
pub(crate) struct SpinState {
    policy: Spin,
    /// Smoothed length of the waits in nanoseconds. It starts at 0: the first wait polls. Concurrent
    /// updates may lose one.
    average: AtomicU64,
}

/// A wait that polls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spinning {
    start: Instant,
    /// How long to poll. `None`: no limit.
    limit: Option<Duration>,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl SpinState {
    pub(crate) fn new(policy: Spin) -> Self {
        Self { policy, average: AtomicU64::new(0) }
    }

    pub(crate) fn start(&self) -> Spinning {
        let limit = match self.policy {
            Spin::Never => Some(Duration::ZERO),
            Spin::Adaptive(max) => {
                let short = self.average.load(Ordering::Relaxed) <= nanoseconds(max);
                Some(if short { max } else { Duration::ZERO })
            }
            Spin::Always => None,
        };
        Spinning { start: Instant::now(), limit }
    }

    /// The same on a device, which polling may not let go on.
    pub(crate) fn start_on(&self, file: &DeviceFile) -> Spinning {
        if file.runs_in_waits() {
            return Spinning { start: Instant::now(), limit: Some(Duration::ZERO) };
        }
        self.start()
    }

    /// The wait has ended with a completion.
    pub(crate) fn end(&self, wait: Spinning) {
        if let Spin::Adaptive(max) = self.policy {
            self.record(max, wait.start.elapsed());
        }
    }

    /// The wait has ended without a completion, at its time limit. If that was shorter than the time
    /// to poll, it is unknown whether the wait was long.
    pub(crate) fn timed_out(&self, wait: Spinning) {
        if let Spin::Adaptive(max) = self.policy {
            let waited = wait.start.elapsed();
            if waited >= max {
                self.record(max, waited);
            }
        }
    }

    fn record(&self, max: Duration, waited: Duration) {
        // A long wait counts as at most 4 × `max`, so that a few short waits lower the average below
        // `max`.
        let waited = nanoseconds(waited.min(max.saturating_mul(4)));
        let average = self.average.load(Ordering::Relaxed);
        self.average.store(average - average / 4 + waited / 4, Ordering::Relaxed);
    }
}

impl Spinning {
    /// Whether to poll again rather than sleep.
    pub(crate) fn goes_on(&self) -> bool {
        match self.limit {
            None => true,
            Some(Duration::ZERO) => false,
            Some(limit) => self.start.elapsed() < limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_millis(50);

    fn spinning(waited: Duration) -> Spinning {
        let start = Instant::now().checked_sub(waited).expect("a clock that started before");
        Spinning { start, limit: None }
    }

    #[test]
    fn first_wait_polls_unless_the_policy_is_never() {
        assert!(!SpinState::new(Spin::Never).start().goes_on());
        assert!(SpinState::new(Spin::Always).start().goes_on());
        assert!(SpinState::new(Spin::Adaptive(MAX)).start().goes_on());
    }

    #[test]
    fn adaptive_wait_stops_polling_at_its_limit() {
        let state = SpinState::new(Spin::Adaptive(Duration::from_nanos(1)));
        let wait = state.start();
        std::thread::sleep(Duration::from_micros(1));
        assert!(!wait.goes_on());
    }

    #[test]
    fn ten_short_waits_after_a_long_idle_time_make_the_next_one_poll() {
        let state = SpinState::new(Spin::Adaptive(MAX));
        for _ in 0..100 {
            state.end(spinning(100 * MAX));
        }
        assert!(!state.start().goes_on());
        for _ in 0..10 {
            state.end(spinning(Duration::ZERO));
        }
        assert!(state.start().goes_on());
    }

    #[test]
    fn waits_that_time_out_count_if_they_were_long() {
        let state = SpinState::new(Spin::Adaptive(MAX));
        for _ in 0..10 {
            state.timed_out(spinning(100 * MAX));
        }
        assert!(!state.start().goes_on());
        for _ in 0..100 {
            state.timed_out(spinning(Duration::ZERO));
        }
        assert!(!state.start().goes_on(), "a short time limit shows nothing");
    }
}
