//! Polling for a while before sleeping.

use std::time::{Duration, Instant};

/// How long a wait polls the CQ before it sleeps. Sleeping costs system calls and the time to wake
/// up; polling costs processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spin {
    /// Sleeps at once.
    Never,
    /// Polls for at most this time, while recent waits were shorter on average. Otherwise sleeps at
    /// once.
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
pub(super) struct SpinState {
    policy: Spin,
    /// Smoothed length of the waits. It starts at 0: the first wait polls.
    average: Duration,
}

/// A wait that polls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spinning {
    start: Instant,
    /// How long to poll. `None`: no limit.
    limit: Option<Duration>,
}

impl SpinState {
    pub(super) fn new(policy: Spin) -> Self {
        Self { policy, average: Duration::ZERO }
    }

    pub(super) fn start(&self) -> Spinning {
        let limit = match self.policy {
            Spin::Never => Some(Duration::ZERO),
            Spin::Adaptive(max) => Some(if self.average <= max { max } else { Duration::ZERO }),
            Spin::Always => None,
        };
        Spinning { start: Instant::now(), limit }
    }

    /// The wait has ended with a completion.
    pub(super) fn end(&mut self, wait: Spinning) {
        if let Spin::Adaptive(max) = self.policy {
            // A long wait counts as at most 4 × `max`, so that a few short waits lower the average
            // below `max`.
            self.average = (3 * self.average + wait.start.elapsed().min(4 * max)) / 4;
        }
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

    fn ended(state: &mut SpinState, waited: Duration) {
        let start = Instant::now().checked_sub(waited).expect("a clock that started before");
        state.end(Spinning { start, limit: None });
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
    fn adaptive_wait_sleeps_after_long_waits_and_polls_after_short_ones() {
        let mut state = SpinState::new(Spin::Adaptive(MAX));
        for _ in 0..3 {
            ended(&mut state, 100 * MAX);
        }
        assert!(!state.start().goes_on());
        for _ in 0..10 {
            ended(&mut state, Duration::ZERO);
        }
        assert!(state.start().goes_on());
    }
}
