//! The results: a table or JSON.

use std::fs;
use std::path::Path;

use bareverbs::{Device, DriverId, PortAttr};
use serde::Serialize;

use super::counters::{self, Change};
use super::measure::{CpuTime, Interval, Labels, Measured};
use super::session::{Preamble, Role};
use super::wire::{BandwidthReport, KeyRecord};
use crate::cli::perf::{Connection, Length, Measure, Plan, Verb};
use crate::output;

/// What the device is, so that no one takes the figures of one for those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, Serialize)]
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
            link_layer: if attr.link_layer == bareverbs::LinkLayer::ETHERNET {
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
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PeerInfo {
    pub(crate) program: &'static str,
    /// The version of perftest's exchange.
    pub(crate) version: String,
    pub(crate) addresses: Vec<KeyRecord>,
}

/// The options of a run, resolved.
#[derive(Clone, Debug, Serialize)]
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
        }
    }
}

/// A finished benchmark.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) program: &'static str,
    pub(crate) version: &'static str,
    pub(crate) operation: Verb,
    pub(crate) test: Measure,
    pub(crate) transport: Connection,
    pub(crate) role: Role,
    pub(crate) environment: Environment,
    pub(crate) options: Options,
    pub(crate) peer: PeerInfo,
    pub(crate) addresses: Vec<KeyRecord>,
    pub(crate) results: Vec<SizeResult>,
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
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Bandwidth {
    pub(crate) unit: &'static str,
    pub(crate) average: f64,
    /// The lowest and the highest bandwidth of a full interval; the average if no interval is full.
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) gbit_per_second: f64,
    pub(crate) messages_per_second: f64,
}

/// Latencies in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Latency {
    /// What was measured: `half round trip`, `request to response` or `post to completion`.
    pub(crate) of: &'static str,
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
}

/// An interval of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
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

impl IntervalFigures {
    pub(crate) fn new(interval: &Interval, labels: &Labels) -> Self {
        let bytes = interval.messages as f64 * f64::from(labels.size);
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

/// Prints an interval as a line of JSON.
pub(crate) fn print_interval(interval: &Interval, labels: &Labels) {
    #[derive(Serialize)]
    struct Line {
        interval: IntervalFigures,
    }
    let line = serde_json::to_string(&Line { interval: IntervalFigures::new(interval, labels) });
    // A closed output is reported when the result is printed.
    let _ = line.map(|line| output::line(&line));
}

/// Processor time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Cpu {
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
    /// Of one processor.
    pub(crate) percent: f64,
}

/// The results of a message size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SizeResult {
    pub(crate) size: u32,
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
    /// Absent if this side only served memory.
    pub(crate) bandwidth: Option<Bandwidth>,
    pub(crate) latency: Option<Latency>,
    pub(crate) cpu: Cpu,
    pub(crate) intervals: Vec<IntervalFigures>,
    /// The peer's figures, in the peer's unit.
    pub(crate) peer: Option<BandwidthReport>,
}

/// What the latencies of a test are.
fn latency_kind(plan: &Plan<'_>) -> (&'static str, u64) {
    match (plan.measure, plan.verb) {
        (Measure::Bandwidth, _) => ("post to completion", 1),
        (Measure::Latency, Verb::Read | Verb::Atomic) => ("request to response", 1),
        (Measure::Latency, _) => ("half round trip", 2),
    }
}

/// The labels of the intervals of a run.
pub(crate) fn labels(plan: &Plan<'_>, size: u32) -> Labels {
    Labels { size, divisor: latency_kind(plan).1 }
}

impl SizeResult {
    pub(crate) fn new(plan: &Plan<'_>, size: u32, measured: &Measured, cpu: CpuTime, elapsed: f64) -> Self {
        let seconds = measured.nanos as f64 / 1e9;
        let labels = labels(plan, size);
        let unit = Unit::of(plan);
        let bytes = |messages: u64| messages as f64 * f64::from(size);
        let average = per_second(bytes(measured.messages), seconds);
        let rates = || {
            measured.intervals[..measured.whole]
                .iter()
                .map(|interval| per_second(bytes(interval.messages), interval.seconds()))
        };
        let bandwidth = Bandwidth {
            unit: unit.name(),
            average: unit.rate(average),
            min: unit.rate(rates().reduce(f64::min).unwrap_or(average)),
            max: unit.rate(rates().reduce(f64::max).unwrap_or(average)),
            gbit_per_second: Unit::GigabitsPerSecond.rate(average),
            messages_per_second: per_second(measured.messages as f64, seconds),
        };
        let used = cpu.user + cpu.system;
        Self {
            size,
            messages: measured.messages,
            seconds,
            bandwidth: (measured.messages > 0).then_some(bandwidth),
            latency: Latency::new(latency_kind(plan).0, measured),
            cpu: Cpu {
                user_seconds: cpu.user,
                system_seconds: cpu.system,
                percent: 100.0 * per_second(used, elapsed),
            },
            intervals: measured.intervals.iter().map(|one| IntervalFigures::new(one, &labels)).collect(),
            peer: None,
        }
    }

    /// The results of a side that only served memory.
    pub(crate) fn of_peer(size: u32, theirs: BandwidthReport) -> Self {
        Self {
            size,
            messages: 0,
            seconds: 0.0,
            bandwidth: None,
            latency: None,
            cpu: Cpu { user_seconds: 0.0, system_seconds: 0.0, percent: 0.0 },
            intervals: Vec::new(),
            peer: Some(theirs),
        }
    }

    /// The report for the peer.
    pub(crate) fn to_peer(&self) -> BandwidthReport {
        let (peak, average, rate) = self
            .bandwidth
            .as_ref()
            .map_or((0.0, 0.0, 0.0), |figures| (figures.max, figures.average, figures.messages_per_second));
        BandwidthReport {
            size: self.size.into(),
            iterations: self.messages,
            peak,
            average,
            message_rate: rate / 1e6,
        }
    }
}

impl Latency {
    fn new(of: &'static str, measured: &Measured) -> Option<Self> {
        let histogram = &measured.latency;
        if histogram.is_empty() {
            return None;
        }
        let micros = |nanos: f64| nanos / 1e3 / measured.divisor as f64;
        let quantile = |quantile| micros(histogram.value_at_quantile(quantile) as f64);
        Some(Self {
            of,
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
        })
    }
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
            format!("peer: {} {}", self.peer.program, self.peer.version),
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
        let mut rows = vec![["#bytes", "#iterations"].map(str::to_owned).to_vec()];
        rows[0].extend(["peak", "average"].map(|what| format!("BW {what}[{unit}]")));
        rows[0].push("MsgRate[Mpps]".into());
        rows[0].extend(["p50[us]", "p99[us]", "p99.9[us]"].map(str::to_owned));
        for result in &self.results {
            let total = result.total();
            let mut row = vec![
                result.size.to_string(),
                total.iterations.to_string(),
                number(total.peak),
                number(total.average),
                format!("{:.6}", total.message_rate),
            ];
            let latency = |value: fn(&Latency) -> f64| {
                result.latency.as_ref().map_or_else(|| "-".to_owned(), |latency| number(value(latency)))
            };
            row.extend([latency(|one| one.p50), latency(|one| one.p99), latency(|one| one.p99_9)]);
            rows.push(row);
        }
        let mut lines = align(&rows);
        lines.extend(self.results.last().and_then(SizeResult::remarks));
        lines
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
        for result in &self.results {
            let Some(latency) = &result.latency else { continue };
            of = Some(latency.of);
            let Latency { count, min, mean, stdev, p50, p99, p99_9, max, .. } = *latency;
            let mut row = vec![result.size.to_string(), count.to_string()];
            row.extend([min, p50, mean, stdev, p99, p99_9, max].map(number));
            rows.push(row);
        }
        let Some(of) = of else {
            return vec!["the client has the results".into()];
        };
        let mut lines = align(&rows);
        lines.push(format!("latency: {of}"));
        lines.extend(self.results.last().and_then(SizeResult::remarks));
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

    /// The line after the table.
    fn remarks(&self) -> Option<String> {
        let Cpu { user_seconds, system_seconds, percent } = self.cpu;
        let cpu = format!("CPU: {user_seconds:.2} s user, {system_seconds:.2} s system ({percent:.0} %)");
        let over_time = self.bandwidth.as_ref().filter(|_| self.intervals.len() > 1).map(|figures| {
            format!(
                "; over {} intervals: {:.2} to {:.2} {}",
                self.intervals.len(),
                figures.min,
                figures.max,
                figures.unit
            )
        });
        Some(cpu + &over_time.unwrap_or_default())
    }
}

/// Two decimals, or more for small values.
fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.1 { format!("{value:.6}") } else { format!("{value:.2}") }
}

/// Aligns columns to the left.
fn align(rows: &[Vec<String>]) -> Vec<String> {
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
