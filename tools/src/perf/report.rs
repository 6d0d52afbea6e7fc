//! The results: a table or JSON.

use std::fs;
use std::path::Path;

use bareverbs::Device;
use bareverbs::device::{DriverId, PortAttr};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::counters::{self, Change};
use super::exchange::{Preamble, Role};
use super::link::{Outcome, Sized};
use super::measure::{CpuTime, Interval, KindFigures, Measured};
use super::mix::Order;
use super::wire::{BandwidthReport, KeyRecord};
use crate::cli::perf::{Connection, CqUse, Length, Measure, Plan, Verb};
use crate::output;

/// What the device is, so that no one takes the figures of one for those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Nature {
    #[serde(rename = "Soft-RoCE")]
    SoftRoce,
    #[serde(rename = "software iWARP")]
    SoftIwarp,
    #[serde(rename = "software model")]
    Model,
    #[serde(rename = "hardware")]
    Hardware,
}

/// The start of the board id of the software ConnectX.
const MODEL_BOARD: &str = "BRV";

impl Nature {
    fn of(driver: DriverId, board: &str) -> Self {
        match driver {
            DriverId::RXE => Self::SoftRoce,
            DriverId::SIW => Self::SoftIwarp,
            _ if board.starts_with(MODEL_BOARD) => Self::Model,
            _ => Self::Hardware,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SoftRoce => "Soft-RoCE",
            Self::SoftIwarp => "software iWARP",
            Self::Model => "software model",
            Self::Hardware => "hardware",
        }
    }
}

/// The device and the machine of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Environment {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) nature: Nature,
    pub(crate) driver: String,
    pub(crate) firmware: String,
    pub(crate) kernel: String,
    /// The processors' frequency governor, if there is one.
    pub(crate) governor: Option<String>,
    pub(crate) link_layer: String,
    /// The rate of the port in Gbit/s, if it is known.
    pub(crate) rate: Option<f64>,
    pub(crate) active_mtu: u32,
    pub(crate) gid: Option<String>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) gid_type: Option<String>,
}

impl Environment {
    pub(crate) fn new(device: &Device, port: u8, driver: DriverId, attr: &PortAttr) -> Self {
        let read = |path: &Path| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
        let board = read(&Path::new("/sys/class/infiniband").join(device.name()).join("board_id"));
        Self {
            device: device.name().into(),
            port,
            nature: Nature::of(driver, &board.unwrap_or_default()),
            driver: driver.name().map_or_else(|| driver.0.to_string(), str::to_lowercase),
            firmware: device.fw_ver().into(),
            kernel: read(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default(),
            governor: read(Path::new("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            link_layer: if attr.link_layer == bareverbs::device::LinkLayer::ETHERNET {
                "Ethernet"
            } else {
                "InfiniBand"
            }
            .into(),
            rate: crate::status::rate(attr),
            active_mtu: attr.active_mtu.bytes(),
            gid: None,
            gid_index: None,
            gid_type: None,
        }
    }

    fn line(&self) -> String {
        let gid = match (&self.gid, self.gid_index, &self.gid_type) {
            (Some(gid), Some(index), Some(kind)) => format!(", GID index {index} ({gid}, {kind})"),
            _ => String::new(),
        };
        format!(
            "{}/{}: {} (driver {}), firmware {}, Linux {}{gid}",
            self.device,
            self.port,
            self.nature.name(),
            self.driver,
            if self.firmware.is_empty() { "-" } else { &self.firmware },
            self.kernel,
        )
    }
}

/// The program at the other end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PeerInfo {
    pub(crate) program: String,
    /// The version of perftest's exchange.
    pub(crate) version: String,
    pub(crate) addresses: Vec<KeyRecord>,
}

/// The options of a run, resolved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Options {
    messages: Option<u64>,
    duration: Option<f64>,
    margin: Option<f64>,
    queue_pairs: u32,
    tx_depth: u32,
    rx_depth: u32,
    cq_mod: u32,
    post_list: u32,
    bidirectional: bool,
    events: bool,
    mtu: u32,
    outstanding_reads: u16,
    pub(crate) threads: u32,
    cq: CqUse,
    srq: bool,
    verify: bool,
    /// Messages per second that were to be started.
    pub(crate) rate: Option<f64>,
    mix: Option<String>,
    /// The clients of a server, or the hosts of `--all-to-all`.
    clients: Option<u32>,
    all_to_all: Option<u32>,
}

impl Options {
    pub(crate) fn new(plan: &Plan<'_>, agreed: &Preamble, outstanding_reads: u16) -> Self {
        let (messages, duration, margin) = match plan.length {
            Length::Messages(messages) => (Some(messages), None, None),
            Length::Time { total, margin } => (None, Some(total.as_secs_f64()), Some(margin.as_secs_f64())),
        };
        Self {
            messages,
            duration,
            margin,
            queue_pairs: plan.num_qp,
            tx_depth: plan.tx_depth,
            rx_depth: plan.rx_depth,
            cq_mod: plan.cq_mod,
            post_list: plan.options.post_list,
            bidirectional: plan.bidirectional(),
            events: plan.options.events,
            mtu: agreed.mtu.bytes(),
            outstanding_reads,
            threads: plan.options.threads,
            cq: plan.options.cq,
            srq: plan.shares_receives(),
            verify: plan.options.verify,
            rate: plan.options.rate,
            mix: plan.options.mix.as_ref().map(ToString::to_string),
            clients: plan.options.clients,
            all_to_all: plan.options.all_to_all.as_ref().map(|hosts| hosts.members().len() as u32),
        }
    }
}

/// The results with one of several peers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PeerResults {
    /// The peer's IP address.
    pub(crate) host: String,
    pub(crate) peer: PeerInfo,
    pub(crate) addresses: Vec<KeyRecord>,
    pub(crate) results: Vec<SizeResult>,
}

/// A finished benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) program: String,
    pub(crate) version: String,
    pub(crate) operation: Verb,
    pub(crate) test: Measure,
    pub(crate) transport: Connection,
    pub(crate) role: Role,
    pub(crate) environment: Environment,
    pub(crate) options: Options,
    /// Whether a signal ended the run: the results are those up to then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) interrupted: bool,
    /// Absent if there are several peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<PeerInfo>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) addresses: Vec<KeyRecord>,
    /// The sums of all peers.
    pub(crate) results: Vec<SizeResult>,
    /// The peers, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) peers: Vec<PeerResults>,
    /// The counters of the port and the device that changed.
    pub(crate) counters: Vec<Change>,
}

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

    fn name(self) -> &'static str {
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
        let kind = |(kind, figures): (&super::mix::Kind, &KindFigures)| KindResult {
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
    fn sum(plan: &Plan<'_>, results: &[&Sized]) -> Option<Self> {
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

/// The results with each peer, and their sums by size.
pub(crate) fn sum(plan: &Plan<'_>, outcomes: &[Outcome]) -> Vec<SizeResult> {
    let sizes = outcomes.iter().map(|outcome| outcome.sizes.len()).max().unwrap_or(0);
    let of_size =
        |index: usize| outcomes.iter().filter_map(|outcome| outcome.sizes.get(index)).collect::<Vec<_>>();
    (0..sizes).filter_map(|index| SizeResult::sum(plan, &of_size(index))).collect()
}

impl Report {
    /// The lines before the results.
    pub(crate) fn heading(&self) -> Vec<String> {
        vec![
            format!(
                "{} {}, {}, {} queue pair{}, MTU {}",
                self.operation.name(),
                self.test.name(),
                self.transport,
                self.options.queue_pairs,
                if self.options.queue_pairs == 1 { "" } else { "s" },
                self.options.mtu
            ),
            self.environment.line(),
            match &self.peer {
                Some(peer) if peer.program == "perftest" => format!("peer: perftest {}", peer.version),
                Some(peer) => format!("peer: {}, exchange of perftest {}", peer.program, peer.version),
                None => format!("peers: {}", self.peers.len()),
            },
        ]
    }

    /// The results as a table.
    pub(crate) fn table(&self, unit: Unit) -> Vec<String> {
        let mut lines = match self.test {
            Measure::Bandwidth => self.bandwidth_table(unit),
            Measure::Latency => self.latency_table(),
        };
        lines.extend(counters::remark(&self.counters));
        lines
    }

    fn bandwidth_table(&self, unit: Unit) -> Vec<String> {
        let unit = unit.name();
        let several = !self.peers.is_empty();
        let mut rows = vec![["#bytes", "#iterations"].map(str::to_owned).to_vec()];
        rows[0].extend(["peak", "average"].map(|what| format!("BW {what}[{unit}]")));
        rows[0].push("MsgRate[Mpps]".into());
        rows[0].extend(["p50[us]", "p99[us]", "p99.9[us]"].map(str::to_owned));
        if several {
            rows[0].push("peer".into());
        }
        for (name, result) in self.rows() {
            let total = result.total();
            let mut row = vec![
                result.size.to_string(),
                total.iterations.to_string(),
                number(total.peak),
                number(total.average),
                format!("{:.6}", total.message_rate),
            ];
            row.extend(result.percentiles());
            row.extend(several.then(|| name.to_owned()));
            rows.push(row);
        }
        let mut lines = align(&rows);
        if let Some(last) = self.results.last() {
            lines.extend(last.mix_table());
            lines.push(last.remarks());
        }
        if let Some((rate, figures)) =
            self.options.rate.zip(self.results.last().and_then(|last| last.bandwidth.as_ref()))
        {
            lines.push(format!(
                "rate: {:.0} of {rate} messages/s; latency: scheduled time to completion",
                figures.messages_per_second
            ));
        }
        lines
    }

    /// The results with each of several peers, then those of all.
    fn rows(&self) -> impl Iterator<Item = (&str, &SizeResult)> {
        let peers = self.peers.iter();
        let each = peers.flat_map(|peer| peer.results.iter().map(|result| (peer.host.as_str(), result)));
        each.chain(self.results.iter().map(|result| ("all", result)))
    }

    fn latency_table(&self) -> Vec<String> {
        let headings = [
            "#bytes",
            "#iterations",
            "min[us]",
            "p50[us]",
            "mean[us]",
            "stdev[us]",
            "p99[us]",
            "p99.9[us]",
            "max[us]",
        ];
        let mut rows = vec![headings.map(str::to_owned).to_vec()];
        let mut of = None;
        if !self.peers.is_empty() {
            rows[0].push("peer".into());
        }
        for (name, result) in self.rows() {
            let Some(latency) = &result.latency else { continue };
            of = Some(&latency.of);
            let Latency { count, min, mean, stdev, p50, p99, p99_9, max, .. } = *latency;
            let mut row = vec![result.size.to_string(), count.to_string()];
            row.extend([min, p50, mean, stdev, p99, p99_9, max].map(number));
            row.extend((!self.peers.is_empty()).then(|| name.to_owned()));
            rows.push(row);
        }
        let Some(of) = of else {
            return vec!["the client has the results".into()];
        };
        let mut lines = align(&rows);
        lines.push(format!("latency: {of}"));
        lines.extend(self.results.last().map(SizeResult::remarks));
        lines
    }
}

impl SizeResult {
    /// This side's figures with those of the peer: a side that only served memory has the peer's.
    fn total(&self) -> BandwidthReport {
        let ours = self.to_peer();
        match self.peer {
            None => ours,
            Some(theirs) if self.bandwidth.is_none() => theirs,
            Some(theirs) => BandwidthReport {
                peak: ours.peak + theirs.peak,
                average: ours.average + theirs.average,
                message_rate: ours.message_rate + theirs.message_rate,
                ..ours
            },
        }
    }

    /// The cells of the median, p99 and p99.9.
    fn percentiles(&self) -> [String; 3] {
        let cell = |value: fn(&Latency) -> f64| {
            self.latency.as_ref().map_or_else(|| "-".to_owned(), |latency| number(value(latency)))
        };
        [cell(|one| one.p50), cell(|one| one.p99), cell(|one| one.p99_9)]
    }

    /// The figures by kind of message.
    fn mix_table(&self) -> Vec<String> {
        if self.mix.is_empty() {
            return Vec::new();
        }
        let headings =
            ["#bytes", "#iterations", "operation", "BW average[Gbit/s]", "p50[us]", "p99[us]", "max[us]"];
        let mut rows = vec![headings.map(str::to_owned).to_vec()];
        for KindResult { operation, size, messages, gbit_per_second, latency } in &self.mix {
            let cell = |value: fn(&Latency) -> f64| {
                latency.as_ref().map_or_else(|| "-".to_owned(), |latency| number(value(latency)))
            };
            rows.push(vec![
                size.to_string(),
                messages.to_string(),
                operation.name().into(),
                number(*gbit_per_second),
                cell(|one| one.p50),
                cell(|one| one.p99),
                cell(|one| one.max),
            ]);
        }
        align(&rows)
    }

    /// The line after the table.
    fn remarks(&self) -> String {
        let Cpu { user_seconds, system_seconds, percent } = self.cpu;
        let cpu = format!("CPU: {user_seconds:.2} s user, {system_seconds:.2} s system ({percent:.0} %)");
        // A latency test carries too little for this unit.
        let shown = |figures: &&Bandwidth| self.intervals.len() > 1 && figures.max >= 0.01;
        let over_time = self.bandwidth.as_ref().filter(shown).map(|figures| {
            format!(
                "; over {} intervals: {:.2} to {:.2} {}",
                self.intervals.len(),
                figures.min,
                figures.max,
                figures.unit
            )
        });
        let compared = self.compared.map(|messages| format!("; {messages} messages compared, none corrupt"));
        cpu + &over_time.unwrap_or_default() + &compared.unwrap_or_default()
    }
}

/// Two decimals, or more for small values.
fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.1 { format!("{value:.6}") } else { format!("{value:.2}") }
}

/// Aligns columns to the left.
pub(crate) fn align(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells: Vec<_> =
                row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
            format!(" {}", cells.join("  ").trim_end())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::time::Duration;

    use clap::Parser;
    use proptest::prelude::*;

    use super::*;
    use crate::cli::perf::{Perf, PerfCommand};
    use crate::cli::{Cli, Command};
    use crate::perf::measure::{Completed, Recorder, Window};

    /// The result of messages of `size` bytes: time since the last one and latency, in nanoseconds.
    fn result(line: &str, size: u32, interval: u64, messages: &[(u64, u64)]) -> (SizeResult, Measured) {
        let words = ["bareverbs", "perf", "write"].into_iter().chain(line.split_whitespace());
        let Command::Perf(PerfCommand::Benchmark(Perf::Write { test })) = Cli::parse_from(words).command
        else {
            panic!("{line}");
        };
        let plan = test.plan(Verb::Write).unwrap();
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
        let Command::Perf(PerfCommand::Benchmark(Perf::Write { test })) =
            Cli::parse_from(["bareverbs", "perf", "write", "bw"]).command
        else {
            unreachable!("the command is complete")
        };
        let plan = test.plan(Verb::Write).unwrap();
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
