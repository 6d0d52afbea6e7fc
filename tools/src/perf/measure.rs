//! Measurements of a run: messages, a latency histogram, and intervals.
//!
//! Recording does not allocate. Times are nanoseconds since the start of the run.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

/// Largest latency of the histogram, in nanoseconds: an hour.
const LARGEST: u64 = 3_600_000_000_000;
/// Significant decimal digits of the histogram.
const DIGITS: u8 = 3;
/// Intervals that are kept. When all are used, neighbours are merged.
const INTERVALS: usize = 4096;

/// A part of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Interval {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) messages: u64,
    /// The smallest and the largest latency; 0 if none was measured.
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Interval {
    fn add_latency(&mut self, latency: u64) {
        self.least = if self.least == 0 { latency } else { self.least.min(latency) };
        self.most = self.most.max(latency);
    }

    fn merge(first: Self, second: Self) -> Self {
        let least = match (first.least, second.least) {
            (0, least) | (least, 0) => least,
            (one, other) => one.min(other),
        };
        Self {
            start: first.start,
            end: second.end,
            messages: first.messages + second.messages,
            least,
            most: first.most.max(second.most),
        }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.end.saturating_sub(self.start) as f64 / 1e9
    }
}

/// Records a run.
pub(crate) struct Recorder {
    begun: Option<Instant>,
    /// The measured part of the run.
    from: u64,
    to: u64,
    latency: Histogram<u64>,
    messages: u64,
    /// Time of the last message.
    last: u64,
    length: u64,
    current: Interval,
    intervals: Vec<Interval>,
    /// Called with each interval that ends.
    on_interval: fn(&Interval, &Labels),
    labels: Labels,
}

/// What a line about an interval needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Labels {
    pub(crate) size: u32,
    /// A latency is this part of a measured time: 2 for half of a round trip.
    pub(crate) divisor: u64,
}

impl Recorder {
    /// A recorder of the part of the run from `margin` to `total - margin`, or of all of it.
    pub(crate) fn new(
        window: Option<(Duration, Duration)>,
        interval: Duration,
        labels: Labels,
        on_interval: fn(&Interval, &Labels),
    ) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (from, to) =
            window.map_or((0, u64::MAX), |(margin, total)| (nanos(margin), nanos(total - margin)));
        let length = nanos(interval).max(1);
        Self {
            begun: None,
            from,
            to,
            latency: Histogram::new_with_bounds(1, LARGEST, DIGITS).expect("the bounds are valid"),
            messages: 0,
            last: 0,
            length,
            current: Interval { start: from, end: from.saturating_add(length), ..Interval::default() },
            intervals: Vec::with_capacity(INTERVALS),
            on_interval,
            labels,
        }
    }

    /// Starts the clock, once.
    pub(crate) fn begin(&mut self) {
        self.begun.get_or_insert_with(Instant::now);
    }

    /// The time since the start; 0 before it.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.begun.map_or(0, |begun| begun.elapsed().as_nanos() as u64)
    }

    /// Records messages that completed at `now`, one of them with its latency.
    #[inline]
    pub(crate) fn record(&mut self, now: u64, messages: u64, latency: Option<u64>) {
        if now < self.from || now >= self.to {
            return;
        }
        if now >= self.current.end {
            self.roll(now);
        }
        self.messages += messages;
        self.current.messages += messages;
        self.last = now;
        if let Some(latency) = latency {
            self.latency.saturating_record(latency);
            self.current.add_latency(latency);
        }
    }

    /// Ends the intervals before `now`.
    #[cold]
    fn roll(&mut self, now: u64) {
        while now >= self.current.end {
            if self.intervals.len() == INTERVALS {
                self.merge();
            }
            (self.on_interval)(&self.current, &self.labels);
            self.intervals.push(self.current);
            let start = self.current.end;
            self.current = Interval { start, end: start.saturating_add(self.length), ..Interval::default() };
        }
    }

    /// Halves the number of intervals.
    fn merge(&mut self) {
        for index in 0..INTERVALS / 2 {
            self.intervals[index] = Interval::merge(self.intervals[2 * index], self.intervals[2 * index + 1]);
        }
        self.intervals.truncate(INTERVALS / 2);
        self.length = self.length.saturating_mul(2);
    }

    /// The results.
    pub(crate) fn finish(mut self) -> Measured {
        let whole = self.intervals.len();
        let end = if self.to == u64::MAX { self.last } else { self.to };
        if self.current.messages > 0 {
            self.current.end = end.min(self.current.end).max(self.current.start);
            (self.on_interval)(&self.current, &self.labels);
            self.intervals.push(self.current);
        }
        Measured {
            messages: self.messages,
            nanos: end.saturating_sub(self.from),
            latency: self.latency,
            divisor: self.labels.divisor,
            whole,
            intervals: self.intervals,
        }
    }
}

/// The measurements of a finished run.
pub(crate) struct Measured {
    pub(crate) messages: u64,
    pub(crate) nanos: u64,
    pub(crate) latency: Histogram<u64>,
    pub(crate) divisor: u64,
    /// The intervals of full length; one more may follow.
    pub(crate) whole: usize,
    pub(crate) intervals: Vec<Interval>,
}

/// Processor time of the process, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CpuTime {
    pub(crate) user: f64,
    pub(crate) system: f64,
}

impl CpuTime {
    /// The time so far.
    pub(crate) fn now() -> Self {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Self::default() };
        let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        Self { user: seconds(usage.user_time()), system: seconds(usage.system_time()) }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self { user: self.user - before.user, system: self.system - before.system }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LABELS: Labels = Labels { size: 8, divisor: 1 };

    fn recorder(window: Option<(u64, u64)>, interval: u64) -> Recorder {
        let window =
            window.map(|(margin, total)| (Duration::from_nanos(margin), Duration::from_nanos(total)));
        Recorder::new(window, Duration::from_nanos(interval), LABELS, |_, _| {})
    }

    #[test]
    fn margins_are_not_measured() {
        let mut recorder = recorder(Some((100, 1000)), 400);
        for now in [99, 100, 500, 899, 900] {
            recorder.record(now, 1, Some(now));
        }
        let measured = recorder.finish();
        assert_eq!((measured.messages, measured.nanos, measured.latency.len()), (3, 800, 3));
        let bounds: Vec<_> =
            measured.intervals.iter().map(|one| (one.start, one.end, one.messages)).collect();
        assert_eq!(bounds, [(100, 500, 1), (500, 900, 2)]);
        assert_eq!((measured.intervals[1].least, measured.intervals[1].most), (500, 899));
    }

    #[test]
    fn silence_has_intervals_without_messages() {
        let mut recorder = recorder(None, 10);
        recorder.record(5, 1, None);
        recorder.record(35, 2, None);
        let measured = recorder.finish();
        assert_eq!(measured.intervals.iter().map(|one| one.messages).collect::<Vec<_>>(), [1, 0, 0, 2]);
        assert_eq!((measured.whole, measured.intervals[3].end, measured.nanos), (3, 35, 35));
    }

    proptest! {
        #[test]
        fn intervals_add_up_to_the_run(steps in proptest::collection::vec((0..2000u64, 0..50u64), 1..6000)) {
            let mut recorder = recorder(None, 100);
            let (mut now, mut total) = (0, 0);
            for (step, messages) in steps {
                now += step;
                total += messages;
                recorder.record(now, messages, Some(step + 1));
            }
            let measured = recorder.finish();
            prop_assert_eq!(measured.messages, total);
            prop_assert_eq!(measured.intervals.iter().map(|one| one.messages).sum::<u64>(), total);
            prop_assert_eq!(measured.nanos, now);
            prop_assert!(measured.intervals.len() <= INTERVALS + 1);
            for pair in measured.intervals.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
            }
        }

        #[test]
        fn percentiles_are_within_the_digits_of_the_histogram(mut times in proptest::collection::vec(1..1u64 << 40, 1..400)) {
            let mut recorder = recorder(None, 1 << 50);
            for (now, time) in times.iter().enumerate() {
                recorder.record(now as u64, 1, Some(*time));
            }
            let measured = recorder.finish();
            times.sort_unstable();
            for quantile in [0.0, 0.5, 0.9, 0.99, 1.0] {
                let index = ((times.len() as f64 * quantile).ceil() as usize).clamp(1, times.len()) - 1;
                let (exact, found) = (times[index] as f64, measured.latency.value_at_quantile(quantile) as f64);
                prop_assert!((found - exact).abs() <= exact / 1000.0 + 1.0, "{quantile}: {found} for {exact}");
            }
        }
    }
}
