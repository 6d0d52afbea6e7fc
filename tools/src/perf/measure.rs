//! Measurements of a run: messages, a latency histogram, and intervals.
//!
//! Recording does not allocate. Times are nanoseconds since the start of the run.

use std::sync::OnceLock;
use std::time::Duration;

use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};

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
    pub(crate) bytes: u64,
    /// The smallest and the largest latency; 0 if none was measured.
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Interval {
    fn add_latency(&mut self, latency: u64) {
        self.least = if self.least == 0 { latency } else { self.least.min(latency) };
        self.most = self.most.max(latency);
    }

    /// An interval with the messages of both, from the earlier start to the later end.
    pub(crate) fn merge(first: Self, second: Self) -> Self {
        let least = match (first.least, second.least) {
            (0, least) | (least, 0) => least,
            (one, other) => one.min(other),
        };
        Self {
            start: first.start.min(second.start),
            end: first.end.max(second.end),
            messages: first.messages + second.messages,
            bytes: first.bytes + second.bytes,
            least,
            most: first.most.max(second.most),
        }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.end.saturating_sub(self.start) as f64 / 1e9
    }
}

/// What a recorder measures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The measured part of the run, in nanoseconds.
    from: u64,
    to: u64,
    /// The length of an interval, in nanoseconds.
    length: u64,
}

impl Window {
    /// The part of the run from `margin` to `total - margin`, or all of it.
    pub(crate) fn new(timed: Option<(Duration, Duration)>, interval: Duration) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (from, to) =
            timed.map_or((0, u64::MAX), |(margin, total)| (nanos(margin), nanos(total - margin)));
        Self { from, to, length: nanos(interval).max(1) }
    }
}

/// Messages that completed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// The latency of the last one, and the index of its kind.
    pub(crate) latency: Option<u64>,
    pub(crate) kind: usize,
}

/// Messages of a kind.
#[derive(Clone, Debug)]
pub(crate) struct KindFigures {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) latency: Histogram<u64>,
}

/// Records a run of a thread.
pub(crate) struct Recorder<'r> {
    /// The start of the run by [`clock`], which the threads share.
    origin: &'r OnceLock<u64>,
    begun: Option<u64>,
    window: Window,
    latency: Histogram<u64>,
    messages: u64,
    bytes: u64,
    /// Time of the last message.
    last: u64,
    current: Interval,
    intervals: Vec<Interval>,
    /// The figures by kind, if there are several.
    kinds: Vec<KindFigures>,
    /// Called with each interval that ends.
    on_interval: &'r (dyn Fn(&Interval) + Sync),
}

/// The monotonic clock in nanoseconds. The difference of two `Instant`s takes 80 instructions more.
#[inline]
fn clock() -> u64 {
    // Linux has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the monotonic clock exists");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LARGEST, DIGITS).expect("the bounds are valid")
}

impl<'r> Recorder<'r> {
    /// A recorder of messages of so many kinds.
    pub(crate) fn new(
        window: Window,
        kinds: usize,
        origin: &'r OnceLock<u64>,
        on_interval: &'r (dyn Fn(&Interval) + Sync),
    ) -> Self {
        let figures = || KindFigures { messages: 0, bytes: 0, latency: histogram() };
        let Window { from, length, .. } = window;
        Self {
            origin,
            begun: None,
            window,
            latency: histogram(),
            messages: 0,
            bytes: 0,
            last: 0,
            current: Interval { start: from, end: from.saturating_add(length), ..Interval::default() },
            intervals: Vec::with_capacity(INTERVALS),
            kinds: if kinds > 1 { std::iter::repeat_with(figures).take(kinds).collect() } else { Vec::new() },
            on_interval,
        }
    }

    /// Starts the clock, unless a thread has started it.
    pub(crate) fn begin(&mut self) {
        if self.begun.is_none() {
            self.begun = Some(*self.origin.get_or_init(clock));
        }
    }

    /// The time since the start; 0 before it.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.begun.map_or(0, |begun| clock() - begun)
    }

    /// Records messages that completed at `now`.
    #[inline]
    pub(crate) fn record(&mut self, now: u64, completed: Completed) {
        if now < self.window.from || now >= self.window.to {
            return;
        }
        if now >= self.current.end {
            self.roll(now);
        }
        let Completed { messages, bytes, latency, kind } = completed;
        self.messages += messages;
        self.bytes += bytes;
        self.current.messages += messages;
        self.current.bytes += bytes;
        self.last = now;
        if let Some(latency) = latency {
            self.latency.saturating_record(latency);
            self.current.add_latency(latency);
        }
        if let Some(figures) = self.kinds.get_mut(kind) {
            figures.messages += messages;
            figures.bytes += bytes;
            if let Some(latency) = latency {
                figures.latency.saturating_record(latency);
            }
        }
    }

    /// Ends the intervals before `now`.
    #[cold]
    fn roll(&mut self, now: u64) {
        while now >= self.current.end {
            (self.on_interval)(&self.current);
            self.intervals.push(self.current);
            if self.intervals.len() == INTERVALS {
                halve(&mut self.intervals);
                self.window.length = self.window.length.saturating_mul(2);
            }
            let start = self.current.end;
            let end = start.saturating_add(self.window.length);
            self.current = Interval { start, end, ..Interval::default() };
        }
    }

    /// Ends the measured part of the run now.
    pub(crate) fn end_early(&mut self) {
        let Window { from, to, .. } = self.window;
        if to != u64::MAX {
            self.window.to = self.now().clamp(from, to);
        }
    }

    /// The results.
    pub(crate) fn finish(mut self) -> Measured {
        let whole = self.intervals.len();
        let Window { from, to, length } = self.window;
        let end = if to == u64::MAX { self.last } else { to };
        if self.current.messages > 0 {
            self.current.end = end.min(self.current.end).max(self.current.start);
            (self.on_interval)(&self.current);
            self.intervals.push(self.current);
        }
        Measured {
            messages: self.messages,
            bytes: self.bytes,
            nanos: end.saturating_sub(from),
            latency: self.latency,
            whole,
            length,
            intervals: self.intervals,
            kinds: self.kinds,
        }
    }
}

/// Merges pairs of neighbours. A last one without a neighbour stays.
fn halve(intervals: &mut Vec<Interval>) {
    let merged = intervals.chunks(2).map(|pair| match pair {
        [first, second] => Interval::merge(*first, *second),
        _ => pair[0],
    });
    *intervals = merged.collect();
}

/// The measurements of a finished run.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) nanos: u64,
    /// Times in nanoseconds, before a round trip is halved.
    pub(crate) latency: Histogram<u64>,
    /// The intervals of full length; one more may follow.
    pub(crate) whole: usize,
    length: u64,
    pub(crate) intervals: Vec<Interval>,
    pub(crate) kinds: Vec<KindFigures>,
}

impl Measured {
    /// Adds the measurements of another thread or peer of the same run.
    pub(crate) fn add(&mut self, mut other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.nanos = self.nanos.max(other.nanos);
        // The bounds of all histograms are equal.
        self.latency.add(&other.latency).expect("the histograms have the same bounds");
        for (ours, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            ours.messages += theirs.messages;
            ours.bytes += theirs.bytes;
            ours.latency.add(&theirs.latency).expect("the histograms have the same bounds");
        }
        // One of two runs may have had to merge its intervals.
        while self.length < other.length {
            self.halve();
        }
        while other.length < self.length {
            other.halve();
        }
        // An interval is whole if one of the two runs lasted through it.
        let whole = self.whole.max(other.whole);
        for (index, interval) in other.intervals.into_iter().enumerate() {
            match self.intervals.get_mut(index) {
                Some(ours) => *ours = Interval::merge(*ours, interval),
                None => self.intervals.push(interval),
            }
        }
        self.whole = whole.min(self.intervals.len());
    }

    fn halve(&mut self) {
        halve(&mut self.intervals);
        self.whole /= 2;
        self.length = self.length.saturating_mul(2);
    }
}

/// Processor time of the process, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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

    fn window(timed: Option<(u64, u64)>, interval: u64) -> Window {
        let nanos = Duration::from_nanos;
        Window::new(timed.map(|(margin, total)| (nanos(margin), nanos(total))), nanos(interval))
    }

    /// The measurements of messages: time of completion, number, latency.
    fn measure(window: Window, messages: impl IntoIterator<Item = (u64, u64, Option<u64>)>) -> Measured {
        let origin = OnceLock::new();
        let mut recorder = Recorder::new(window, 1, &origin, &|_| ());
        for (now, messages, latency) in messages {
            recorder.record(now, Completed { messages, bytes: 8 * messages, latency, kind: 0 });
        }
        recorder.finish()
    }

    #[test]
    fn margins_are_not_measured() {
        let times = [99, 100, 500, 899, 900].map(|now| (now, 1, Some(now)));
        let measured = measure(window(Some((100, 1000)), 400), times);
        assert_eq!((measured.messages, measured.nanos, measured.latency.len()), (3, 800, 3));
        let bounds: Vec<_> =
            measured.intervals.iter().map(|one| (one.start, one.end, one.messages)).collect();
        assert_eq!(bounds, [(100, 500, 1), (500, 900, 2)]);
        assert_eq!((measured.intervals[1].least, measured.intervals[1].most), (500, 899));
    }

    #[test]
    fn timed_run_that_ends_early_is_measured_up_to_its_end() {
        let origin = OnceLock::new();
        let on_interval = |_: &Interval| ();
        let mut recorder = Recorder::new(window(Some((0, 1 << 60)), 1 << 50), 1, &origin, &on_interval);
        recorder.begin();
        recorder.record(recorder.now(), Completed { messages: 5, bytes: 40, latency: None, kind: 0 });
        recorder.end_early();
        let end = recorder.now();
        let measured = recorder.finish();
        assert_eq!(measured.messages, 5);
        assert!((1..=end).contains(&measured.nanos), "{} of {end}", measured.nanos);
    }

    #[test]
    fn merged_interval_has_the_extremes_of_the_measured_latencies() {
        let of = |(least, most)| Interval { least, most, ..Interval::default() };
        // 0: no latency was measured.
        for (first, second, expected) in
            [((0, 0), (3, 5), (3, 5)), ((3, 5), (0, 0), (3, 5)), ((4, 9), (3, 5), (3, 9))]
        {
            let merged = Interval::merge(of(first), of(second));
            assert_eq!((merged.least, merged.most), expected);
        }
    }

    #[test]
    fn silence_has_intervals_without_messages() {
        let measured = measure(window(None, 10), [(5, 1, None), (35, 2, None)]);
        assert_eq!(measured.intervals.iter().map(|one| one.messages).collect::<Vec<_>>(), [1, 0, 0, 2]);
        assert_eq!((measured.whole, measured.intervals[3].end, measured.nanos), (3, 35, 35));
    }

    #[test]
    fn kinds_have_figures_of_their_own() {
        let origin = OnceLock::new();
        let mut recorder = Recorder::new(window(None, 100), 2, &origin, &|_| ());
        for (now, bytes, kind) in [(1, 64, 0), (2, 4096, 1), (3, 64, 0)] {
            recorder.record(now, Completed { messages: 1, bytes, latency: Some(now), kind });
        }
        let measured = recorder.finish();
        let figures: Vec<_> = measured.kinds.iter().map(|one| (one.messages, one.bytes)).collect();
        assert_eq!(figures, [(2, 128), (1, 4096)]);
        assert_eq!((measured.bytes, measured.kinds[1].latency.max()), (4224, 2));
    }

    proptest! {
        #[test]
        fn intervals_add_up_to_the_run(steps in proptest::collection::vec((0..2000u64, 0..50u64), 1..6000)) {
            let (mut now, mut total) = (0, 0);
            let messages = steps.into_iter().map(|(step, messages)| {
                now += step;
                total += messages;
                (now, messages, Some(step + 1))
            });
            let measured = measure(window(None, 100), messages.collect::<Vec<_>>());
            prop_assert_eq!((measured.messages, measured.bytes), (total, 8 * total));
            prop_assert_eq!(measured.intervals.iter().map(|one| one.messages).sum::<u64>(), total);
            prop_assert_eq!(measured.intervals.iter().map(|one| one.bytes).sum::<u64>(), 8 * total);
            prop_assert_eq!(measured.nanos, now);
            prop_assert!(measured.intervals.len() <= INTERVALS + 1);
            for pair in measured.intervals.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
            }
        }

        #[test]
        fn threads_add_up_to_the_run(
            first in proptest::collection::vec((1..300_000u64, 0..9u64), 1..200),
            second in proptest::collection::vec((1..300_000u64, 0..9u64), 1..200),
        ) {
            let run = |steps: &[(u64, u64)]| {
                let mut now = 0;
                let messages = steps.iter().map(|&(step, messages)| {
                    now += step;
                    (now, messages, Some(step))
                });
                measure(window(None, 100), messages.collect::<Vec<_>>())
            };
            let (mut sum, other) = (run(&first), run(&second));
            let total: u64 = first.iter().chain(&second).map(|&(_, messages)| messages).sum();
            let nanos = sum.nanos.max(other.nanos);
            sum.add(other);
            prop_assert_eq!((sum.messages, sum.bytes, sum.nanos), (total, 8 * total, nanos));
            prop_assert_eq!(sum.latency.len(), (first.len() + second.len()) as u64);
            prop_assert_eq!(sum.intervals.iter().map(|one| one.messages).sum::<u64>(), total);
            for pair in sum.intervals.windows(2) {
                prop_assert!(pair[0].start < pair[1].start && pair[0].end <= pair[1].end);
            }
        }

        #[test]
        fn percentiles_are_within_the_digits_of_the_histogram(mut times in proptest::collection::vec(1..1u64 << 40, 1..400)) {
            let messages: Vec<_> = times.iter().zip(0..).map(|(time, now)| (now, 1, Some(*time))).collect();
            let measured = measure(window(None, 1 << 50), messages);
            times.sort_unstable();
            for quantile in [0.0, 0.5, 0.9, 0.99, 1.0] {
                let index = ((times.len() as f64 * quantile).ceil() as usize).clamp(1, times.len()) - 1;
                let (exact, found) = (times[index] as f64, measured.latency.value_at_quantile(quantile) as f64);
                prop_assert!((found - exact).abs() <= exact / 1000.0 + 1.0, "{quantile}: {found} for {exact}");
            }
        }
    }
}
