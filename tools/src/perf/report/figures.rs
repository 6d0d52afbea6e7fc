//! The figures of a message size: rates, latencies, intervals, processor time.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::cli::perf::choice::{Measure, Verb};
use crate::cli::perf::mix::Kind;
use crate::output;
use crate::perf::measure::{CpuTime, Interval, KindFigures, Measured};
use crate::perf::order::Order;
use crate::perf::plan::Plan;
use crate::perf::wire::BandwidthReport;

/// The unit of bandwidths: that of perftest, or Gbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    MebibytesPerSecond,
    GigabitsPerSecond,
}

impl Unit {
    pub(crate) fn of(plan: &Plan<'_>) -> Self {
        if plan.options.report_gbits { Self::GigabitsPerSecond } else { Self::MebibytesPerSecond }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::MebibytesPerSecond => "MiB/s",
            Self::GigabitsPerSecond => "Gbit/s",
        }
    }

    fn rate(self, bytes_per_second: f64) -> f64 {
        bytes_per_second
            / match self {
                Self::MebibytesPerSecond => f64::from(1 << 20),
                Self::GigabitsPerSecond => 125e6,
            }
    }
}

/// A rate, or 0 if no time was measured.
fn per_second(count: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { count / seconds } else { 0.0 }
}

/// The bandwidth of a side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bandwidth {
    pub(crate) unit: String,
    pub(crate) average: f64,
    /// The lowest and the highest bandwidth of a full interval; the average if no interval is full.
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) gbit_per_second: f64,
    pub(crate) messages_per_second: f64,
}

/// Latencies in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// What was measured: `half round trip`, `request to response`, `post to completion` or
    /// `scheduled time to completion`.
    pub(crate) of: String,
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) mean: f64,
    pub(crate) stdev: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    #[serde(rename = "p99.9")]
    pub(crate) p99_9: f64,
    #[serde(rename = "p99.99")]
    pub(crate) p99_99: f64,
    pub(crate) max: f64,
    /// The distribution, in buckets that grow by an eighth of an octave.
    #[serde(default)]
    pub(crate) histogram: Vec<Bucket>,
}

/// Latencies of a range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    /// Microseconds, inclusive.
    pub(crate) from: f64,
    /// Microseconds, exclusive.
    pub(crate) to: f64,
    pub(crate) count: u64,
}

/// The messages of a kind, of `--mix`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KindResult {
    pub(crate) operation: Verb,
    pub(crate) size: u32,
    pub(crate) messages: u64,
    pub(crate) gbit_per_second: f64,
    pub(crate) latency: Option<Latency>,
}

/// An interval of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct IntervalFigures {
    /// Seconds since the start of the run.
    pub(crate) start: f64,
    pub(crate) seconds: f64,
    pub(crate) size: u32,
    pub(crate) messages: u64,
    pub(crate) gbit_per_second: f64,
    /// Microseconds; absent if no latency was measured.
    pub(crate) latency_min: Option<f64>,
    pub(crate) latency_max: Option<f64>,
}

/// What the figures of an interval need to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Labels {
    size: u32,
    /// A latency is this part of a measured time: 2 for half of a round trip.
    divisor: u64,
}

impl Labels {
    pub(crate) fn new(plan: &Plan<'_>, size: u32) -> Self {
        Self { size, divisor: latency_kind(plan).1 }
    }
}

impl IntervalFigures {
    pub(crate) fn new(interval: &Interval, labels: &Labels) -> Self {
        let bytes = interval.bytes as f64;
        let micros = |nanos: u64| (nanos > 0).then(|| nanos as f64 / 1e3 / labels.divisor as f64);
        Self {
            start: interval.start as f64 / 1e9,
            seconds: interval.seconds(),
            size: labels.size,
            messages: interval.messages,
            gbit_per_second: Unit::GigabitsPerSecond.rate(per_second(bytes, interval.seconds())),
            latency_min: micros(interval.least),
            latency_max: micros(interval.most),
        }
    }
}

/// Prints an interval as a line of JSON, with the peer if there are several.
pub(crate) fn print_interval(interval: &Interval, labels: &Labels, peer: Option<&str>) {
    #[derive(Serialize)]
    struct Line<'p> {
        interval: IntervalFigures,
        #[serde(skip_serializing_if = "Option::is_none")]
        peer: Option<&'p str>,
    }
    let line = serde_json::to_string(&Line { interval: IntervalFigures::new(interval, labels), peer });
    // A closed output is reported when the result is printed.
    let _ = line.map(|line| output::line(&line));
}

/// Processor time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
    /// Of one processor.
    pub(crate) percent: f64,
}

/// The results of a message size, and the measurements that they were computed from. A side that
/// only served memory has none.
#[derive(Debug)]
pub(crate) struct Sized {
    pub(crate) result: SizeResult,
    pub(crate) measured: Option<Measured>,
}

/// The results of a message size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SizeResult {
    /// The largest size, of `--mix`.
    pub(crate) size: u32,
    pub(crate) messages: u64,
    #[serde(default)]
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// Absent if this side only served memory.
    pub(crate) bandwidth: Option<Bandwidth>,
    pub(crate) latency: Option<Latency>,
    pub(crate) cpu: Cpu,
    pub(crate) intervals: Vec<IntervalFigures>,
    /// The figures by kind of message, of `--mix`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mix: Vec<KindResult>,
    /// Messages that were compared with `--verify`, on this side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compared: Option<u64>,
    /// The peer's figures, in the peer's unit.
    pub(crate) peer: Option<BandwidthReport>,
}

/// What the latencies of a test are.
fn latency_kind(plan: &Plan<'_>) -> (&'static str, u64) {
    match (plan.measure, plan.verb) {
        (Measure::Bandwidth, _) if plan.options.rate.is_some() => ("scheduled time to completion", 1),
        (Measure::Bandwidth, _) => ("post to completion", 1),
        (Measure::Latency, Verb::Read | Verb::Atomic) => ("request to response", 1),
        (Measure::Latency, _) => ("half round trip", 2),
    }
}

impl SizeResult {
    pub(crate) fn new(
        plan: &Plan<'_>,
        order: &Order,
        size: u32,
        measured: &Measured,
        cpu: CpuTime,
        elapsed: f64,
    ) -> Self {
        let seconds = measured.nanos as f64 / 1e9;
        let labels = Labels::new(plan, size);
        let unit = Unit::of(plan);
        let average = per_second(measured.bytes as f64, seconds);
        let rates = || {
            measured.intervals[..measured.whole]
                .iter()
                .map(|interval| per_second(interval.bytes as f64, interval.seconds()))
        };
        let bandwidth = Bandwidth {
            unit: unit.name().into(),
            average: unit.rate(average),
            min: unit.rate(rates().reduce(f64::min).unwrap_or(average)),
            max: unit.rate(rates().reduce(f64::max).unwrap_or(average)),
            gbit_per_second: Unit::GigabitsPerSecond.rate(average),
            messages_per_second: per_second(measured.messages as f64, seconds),
        };
        let used = cpu.user + cpu.system;
        let (of, divisor) = latency_kind(plan);
        let kind = |(kind, figures): (&Kind, &KindFigures)| KindResult {
            operation: kind.verb,
            size: kind.size,
            messages: figures.messages,
            gbit_per_second: Unit::GigabitsPerSecond.rate(per_second(figures.bytes as f64, seconds)),
            latency: Latency::new(of, divisor, &figures.latency),
        };
        Self {
            size,
            messages: measured.messages,
            bytes: measured.bytes,
            seconds,
            bandwidth: (measured.messages > 0).then_some(bandwidth),
            latency: Latency::new(of, divisor, &measured.latency),
            cpu: Cpu {
                user_seconds: cpu.user,
                system_seconds: cpu.system,
                percent: 100.0 * per_second(used, elapsed),
            },
            intervals: measured.intervals.iter().map(|one| IntervalFigures::new(one, &labels)).collect(),
            mix: order.kinds().iter().zip(&measured.kinds).map(kind).collect(),
            compared: None,
            peer: None,
        }
    }

    /// The sum of the results of a size with several peers, which ran at the same time.
    pub(super) fn sum(plan: &Plan<'_>, results: &[&Sized]) -> Option<Self> {
        let first = &results.first()?.result;
        let mut sum: Option<Measured> = None;
        for measured in results.iter().filter_map(|one| one.measured.as_ref()) {
            match &mut sum {
                Some(sum) => sum.add(measured.clone()),
                None => sum = Some(measured.clone()),
            }
        }
        let peer = results.iter().filter_map(|one| one.result.peer).reduce(BandwidthReport::plus);
        // The processor time is that of the process, in every run.
        let longest = results.iter().map(|one| one.result.cpu).fold(first.cpu, |one, other| {
            if other.user_seconds + other.system_seconds > one.user_seconds + one.system_seconds {
                other
            } else {
                one
            }
        });
        let compared = results.iter().filter_map(|one| one.result.compared).reduce(|one, other| one + other);
        let result = match sum {
            Some(measured) => {
                let order = plan.order(first.size);
                Self::new(plan, &order, first.size, &measured, CpuTime::default(), 0.0)
            }
            None => first.clone(),
        };
        Some(Self { cpu: longest, compared, peer, ..result })
    }

    /// The results of a side that only served memory.
    pub(crate) fn of_peer(size: u32, theirs: BandwidthReport) -> Self {
        Self {
            size,
            messages: 0,
            bytes: 0,
            seconds: 0.0,
            bandwidth: None,
            latency: None,
            cpu: Cpu { user_seconds: 0.0, system_seconds: 0.0, percent: 0.0 },
            intervals: Vec::new(),
            mix: Vec::new(),
            compared: None,
            peer: Some(theirs),
        }
    }

    /// The report for the peer.
    pub(crate) fn to_peer(&self) -> BandwidthReport {
        let (peak, average, rate) = self
            .bandwidth
            .as_ref()
            // A last interval that is not full may be faster than all full ones.
            .map_or((0.0, 0.0, 0.0), |figures| {
                (figures.max.max(figures.average), figures.average, figures.messages_per_second)
            });
        BandwidthReport {
            size: self.size.into(),
            iterations: self.messages,
            peak,
            average,
            message_rate: rate / 1e6,
        }
    }
}

/// Buckets of a doubling of the latency.
const BUCKETS_PER_OCTAVE: f64 = 8.0;

impl Latency {
    /// The latencies of a histogram of nanoseconds, divided by `divisor`.
    pub(crate) fn new(of: &str, divisor: u64, histogram: &Histogram<u64>) -> Option<Self> {
        if histogram.is_empty() {
            return None;
        }
        let micros = |nanos: f64| nanos / 1e3 / divisor as f64;
        let quantile = |quantile| micros(histogram.value_at_quantile(quantile) as f64);
        Some(Self {
            of: of.into(),
            count: histogram.len(),
            min: micros(histogram.min() as f64),
            mean: micros(histogram.mean()),
            stdev: micros(histogram.stdev()),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p99_9: quantile(0.999),
            p99_99: quantile(0.9999),
            max: micros(histogram.max() as f64),
            histogram: buckets(histogram, micros),
        })
    }
}

/// The recorded values in buckets of equal ratio. Buckets without values are left out.
fn buckets(histogram: &Histogram<u64>, micros: impl Fn(f64) -> f64) -> Vec<Bucket> {
    let mut buckets: Vec<(i32, u64)> = Vec::new();
    for value in histogram.iter_recorded() {
        let nanos = value.value_iterated_to().max(1) as f64;
        let place = (nanos.log2() * BUCKETS_PER_OCTAVE).floor() as i32;
        match buckets.last_mut() {
            Some((last, count)) if *last == place => *count += value.count_at_value(),
            _ => buckets.push((place, value.count_at_value())),
        }
    }
    let bound = |place: i32| micros((f64::from(place) / BUCKETS_PER_OCTAVE).exp2());
    let bucket = |(place, count): (i32, u64)| Bucket { from: bound(place), to: bound(place + 1), count };
    buckets.into_iter().map(bucket).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::time::Duration;

    use clap::Parser;
    use proptest::prelude::*;

    use super::*;
    use crate::cli::perf::PerfCommand;
    use crate::cli::{Cli, Command};
    use crate::perf::measure::{Completed, Recorder, Window};

    /// The result of messages of `size` bytes: time since the last one and latency, in nanoseconds.
    fn result(line: &str, size: u32, interval: u64, messages: &[(u64, u64)]) -> (SizeResult, Measured) {
        let words = ["bareverbs", "perf", "write"].into_iter().chain(line.split_whitespace());
        let Command::Perf(PerfCommand::Benchmark(perf)) = Cli::parse_from(words).command else {
            panic!("{line}");
        };
        let plan = Plan::new(&perf).unwrap();
        let origin = OnceLock::new();
        let window = Window::new(None, Duration::from_nanos(interval));
        let mut recorder = Recorder::new(window, 1, &origin, &|_| ());
        let mut now = 0;
        for &(step, latency) in messages {
            now += step;
            let bytes = size.into();
            recorder.record(now, Completed { messages: 1, bytes, latency: Some(latency), kind: 0 });
        }
        let measured = recorder.finish();
        let cpu = CpuTime { user: 0.5, system: 0.25 };
        (SizeResult::new(&plan, &plan.order(size), size, &measured, cpu, 1.5), measured)
    }

    #[test]
    fn rates_are_those_of_the_units() {
        // 1000 messages of 1 MiB in one second.
        let messages = [(1_000_000, 5000); 1000];
        let figures = |line| result(line, 1 << 20, u64::MAX, &messages).0.bandwidth.unwrap();
        let (mebibytes, gigabits) = (figures("bw"), figures("bw --report_gbits"));
        assert_eq!((mebibytes.unit.as_str(), mebibytes.average), ("MiB/s", 1000.0));
        assert_eq!((gigabits.unit.as_str(), gigabits.average), ("Gbit/s", 8.388608));
        assert_eq!((mebibytes.gbit_per_second, mebibytes.messages_per_second), (8.388608, 1000.0));
    }

    #[test]
    fn processor_time_is_a_share_of_the_time() {
        let cpu = result("bw", 8, 100, &[(10, 10)]).0.cpu;
        assert_eq!((cpu.user_seconds, cpu.system_seconds, cpu.percent), (0.5, 0.25, 50.0));
    }

    #[test]
    fn percentiles_are_those_of_their_names() {
        let mut histogram = Histogram::new_with_bounds(1, 1 << 40, 3).unwrap();
        for (nanos, count) in [(1000, 5100), (2000, 3950), (4000, 870), (8000, 73), (16_000, 7)] {
            histogram.record_n(nanos, count).unwrap();
        }
        let latency = Latency::new("test", 1, &histogram).unwrap();
        let found = [latency.min, latency.p50, latency.p90, latency.p99, latency.p99_9, latency.p99_99];
        assert_eq!(found.map(f64::round), [1.0, 1.0, 2.0, 4.0, 8.0, 16.0]);
        assert_eq!((latency.max.round(), latency.count), (16.0, 10_000));
    }

    #[test]
    fn report_for_the_peer_has_millions_of_messages_per_second() {
        let sent = result("bw", 1 << 20, u64::MAX, &[(1_000_000, 5000); 1000]).0;
        let expected = BandwidthReport {
            size: 1 << 20,
            iterations: 1000,
            peak: 1000.0,
            average: 1000.0,
            message_rate: 0.001,
        };
        assert_eq!(sent.to_peer(), expected);
    }

    #[test]
    fn runs_with_several_peers_are_summed_but_not_the_time_of_the_process() {
        let words = ["bareverbs", "perf", "write", "bw"];
        let Command::Perf(PerfCommand::Benchmark(perf)) = Cli::parse_from(words).command else {
            unreachable!("the command is complete")
        };
        let plan = Plan::new(&perf).unwrap();
        let with_peer = |messages: &[(u64, u64)], compared, user_seconds| {
            let (mut result, measured) = result("bw", 8, u64::MAX, messages);
            (result.compared, result.cpu.user_seconds) = (compared, user_seconds);
            Sized { result, measured: Some(measured) }
        };
        let runs = [
            with_peer(&[(10, 5); 3], Some(3), 0.5),
            with_peer(&[(10, 5); 4], Some(4), 0.75),
            with_peer(&[(10, 5); 2], None, 0.25),
        ];
        let sum = SizeResult::sum(&plan, &runs.each_ref()).unwrap();
        assert_eq!((sum.messages, sum.bytes, sum.compared), (9, 72, Some(7)));
        assert_eq!((sum.seconds, sum.cpu.user_seconds), (40e-9, 0.75));
    }

    #[test]
    fn half_of_a_round_trip_is_a_latency() {
        let latency = result("lat", 8, 1000, &[(5000, 4000), (5000, 6000)]).0.latency.unwrap();
        assert_eq!(
            (latency.of.as_str(), latency.min.round(), latency.max.round()),
            ("half round trip", 2.0, 3.0)
        );
    }

    proptest! {
        #[test]
        fn rate_times_time_is_what_was_sent(
            size in 1..1u32 << 24,
            messages in proptest::collection::vec((1..1u64 << 30, 1..1u64 << 40), 1..300),
            interval in 1..1u64 << 34,
        ) {
            let (result, measured) = result("bw", size, interval, &messages);
            let figures = result.bandwidth.unwrap();
            let near = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-9;
            let bytes = messages.len() as f64 * f64::from(size);
            prop_assert!(near(figures.gbit_per_second * result.seconds * 125e6, bytes));
            prop_assert!(near(figures.average * result.seconds * f64::from(1 << 20), bytes));
            prop_assert!(near(figures.messages_per_second * result.seconds, messages.len() as f64));
            let intervals: f64 =
                result.intervals.iter().map(|one| one.gbit_per_second * one.seconds * 125e6).sum();
            // An interval that begins with the last message has no length.
            let instant = result.intervals.last().filter(|one| one.seconds == 0.0);
            let instant = instant.map_or(0.0, |one| one.messages as f64 * f64::from(size));
            prop_assert!(near(intervals + instant, bytes), "{intervals} {instant} {bytes}");
            if measured.whole > 0 {
                prop_assert!(figures.min <= figures.max);
            } else {
                prop_assert_eq!((figures.min, figures.max), (figures.average, figures.average));
            }
        }

        #[test]
        fn buckets_have_all_latencies_once(
            latencies in proptest::collection::vec(1..1u64 << 41, 1..300),
        ) {
            let messages: Vec<_> = latencies.iter().map(|&latency| (1, latency)).collect();
            let latency = result("bw", 8, u64::MAX, &messages).0.latency.unwrap();
            let count: u64 = latency.histogram.iter().map(|bucket| bucket.count).sum();
            prop_assert_eq!(count, latencies.len() as u64);
            for pair in latency.histogram.windows(2) {
                prop_assert!(pair[0].from < pair[0].to && pair[0].to <= pair[1].from * (1.0 + 1e-12));
            }
            // The histogram of nanoseconds has three digits.
            for nanos in latencies {
                let micros = nanos as f64 / 1e3;
                let found = latency.histogram.iter().any(|bucket| {
                    bucket.from <= micros * 1.002 + 0.001 && micros <= bucket.to * 1.002 + 0.001
                });
                prop_assert!(found, "{micros}: {:?}", latency.histogram);
            }
            let quantiles = [latency.min, latency.p50, latency.p90, latency.p99, latency.p99_9, latency.max];
            prop_assert!(quantiles.is_sorted(), "{quantiles:?}");
        }
    }
}
