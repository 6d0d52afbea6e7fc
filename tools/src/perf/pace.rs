//! The pace of `--rate`: messages are due at fixed times, whether earlier ones have completed or not.
//!
//! A message that had to wait for room in the send queue was late. Its latency counts from the time
//! at which it was due, so that waiting is not omitted from the latencies.

use std::time::Duration;

/// The times at which messages of a thread are due, in nanoseconds since the start of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Nanoseconds between two messages.
    interval: f64,
    first: f64,
    /// Messages that were posted.
    posted: u64,
}

impl Pace {
    /// The pace of a thread that has a `share` of the queue pairs. `place` of 1 are the threads
    /// before it.
    pub(crate) fn new(rate: f64, share: f64, place: f64) -> Self {
        let interval = 1e9 / (rate * share);
        Self { interval, first: interval * place, posted: 0 }
    }

    /// Lets the first message be due after `now`.
    pub(crate) fn start(&mut self, now: u64) {
        self.first += now as f64;
    }

    fn time(&self) -> u64 {
        (self.first + self.posted as f64 * self.interval) as u64
    }

    /// The time at which the next message was due, if that is not after `now`.
    #[inline]
    pub(crate) fn due(&self, now: u64) -> Option<u64> {
        let time = self.time();
        (time <= now).then_some(time)
    }

    /// The queue pair of the next message, of so many.
    #[inline]
    pub(crate) fn turn(&self, count: usize) -> usize {
        (self.posted % count as u64) as usize
    }

    /// Notes that the next message was posted.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.posted += 1;
    }

    /// The time until the next message is due.
    pub(crate) fn wait(&self, now: u64) -> Duration {
        Duration::from_nanos(self.time().saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn late_messages_keep_their_times() {
        let mut pace = Pace::new(1000.0, 1.0, 0.0);
        let mut times = Vec::new();
        // Nothing could be posted for 3.5 ms.
        while let Some(time) = pace.due(3_500_000) {
            times.push(time);
            pace.advance();
        }
        assert_eq!(times, [0, 1_000_000, 2_000_000, 3_000_000]);
        assert_eq!(pace.wait(3_500_000), Duration::from_micros(500));
    }

    #[test]
    fn threads_share_the_rate_and_take_turns() {
        let halves = [0.0, 0.5].map(|place| Pace::new(1000.0, 0.5, place));
        assert_eq!(halves.map(|pace| pace.time()), [0, 1_000_000]);
        let next = halves.map(|mut pace| {
            pace.advance();
            pace.time()
        });
        assert_eq!(next, [2_000_000, 3_000_000]);
    }

    proptest! {
        #[test]
        fn messages_are_due_at_the_rate(rate in 1.0..1e7f64, seconds in 0.001..100.0f64) {
            let mut pace = Pace::new(rate, 1.0, 0.0);
            let count = (rate * seconds) as u64;
            pace.posted = count;
            let expected = count as f64 * 1e9 / rate;
            prop_assert!((pace.time() as f64 - expected).abs() <= 1.0 + expected * 1e-9);
            prop_assert!(pace.due(pace.time()).is_some() && pace.due(pace.time().saturating_sub(1)).is_none() || count == 0);
        }
    }
}
