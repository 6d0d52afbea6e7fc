//! `cargo xtask perf-compare`: latencies and bandwidths of `bareverbs perf`, with those of perftest in
//! the same guest; or those of soft devices, with those of Soft-RoCE.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bareverbs_lab::Guests;
use clap::Args;
use serde_json::Value;

use crate::build;
use crate::experiment::command::{self, UNTIL_LISTENING};
use crate::experiment::turns::{Time, Turns, median};
use crate::filter::Filter;

/// Timeout of one run of both sides, by the host's time.
const LIMIT: Duration = Duration::from_secs(300);
/// A difference that does not count.
const TOLERANCE: f64 = 0.03;

/// Runs a server and, once it listens at perftest's port, a client. Prints what the client printed.
const RUN: &str = r#"
server=$1 client=$2
$server > /tmp/server 2>&1 &
child=$!
until_listening 4853
if $client > /tmp/client 2> /tmp/errors; then
    wait $child && cat /tmp/client && exit
else
    kill $child
fi
cat /tmp/server /tmp/client /tmp/errors
exit 1"#;

/// Prepares Soft-RoCE for packets of 4096 bytes.
const LONG_FRAMES: &str = r#"
for link in /sys/class/net/*; do
    # Some kinds of links have shorter frames.
    ip link set "${link##*/}" mtu 9000 || true
done"#;

/// Measures `bareverbs perf` and perftest in turns in one guest.
#[derive(Args)]
pub(crate) struct PerfCompare {
    #[command(flatten)]
    turns: Turns,
    /// Measure `bareverbs perf` on soft devices and on Soft-RoCE instead.
    #[arg(long, conflicts_with = "hca")]
    soft: bool,
    /// Only tests with one of these in their names, such as `send lat` or `65536`.
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    Latency,
    Bandwidth,
}

use Measure::{Bandwidth, Latency};

/// Messages of an operation.
struct Test {
    operation: &'static str,
    measure: Measure,
    size: u32,
    messages: u32,
    /// Options of both sides.
    options: &'static str,
}

const fn test(operation: &'static str, measure: Measure, size: u32, messages: u32) -> Test {
    Test { operation, measure, size, messages, options: "" }
}

const fn with(options: &'static str, test: Test) -> Test {
    Test { options, ..test }
}

const TESTS: [Test; 9] = [
    test("send", Latency, 2, 2000),
    test("write", Latency, 2, 2000),
    test("read", Latency, 2, 2000),
    test("send", Bandwidth, 64 << 10, 500),
    test("write", Bandwidth, 64, 5000),
    test("write", Bandwidth, 4 << 10, 5000),
    test("write", Bandwidth, 64 << 10, 500),
    test("read", Bandwidth, 4 << 10, 5000),
    test("read", Bandwidth, 64 << 10, 500),
];

/// Tests of soft devices and Soft-RoCE. The MTU is the same.
const SOFT_TESTS: [Test; 5] = [
    with("-m 1024", test("write", Bandwidth, 64 << 10, 500)),
    with("-m 4096", test("write", Bandwidth, 64 << 10, 500)),
    with("-m 4096", test("write", Bandwidth, 1 << 20, 50)),
    with("-m 4096 --events", test("send", Latency, 64, 2000)),
    with("-m 4096", test("send", Latency, 64, 2000)),
];

/// A program.
#[derive(Clone, Copy)]
enum Program {
    Bareverbs,
    Perftest,
    /// `bareverbs` with two soft devices.
    Soft,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Bareverbs => "bareverbs",
            Self::Perftest => "perftest",
            Self::Soft => "soft",
        }
    }
}

impl Test {
    fn measure_name(&self) -> &'static str {
        if self.measure == Latency { "lat" } else { "bw" }
    }

    fn name(&self) -> String {
        let Self { operation, size, options, .. } = self;
        format!("{operation} {}, {size} B {options}", self.measure_name()).trim_end().to_owned()
    }

    fn unit(&self) -> &'static str {
        if self.measure == Latency { "µs" } else { "MiB/s" }
    }

    /// The command of a server, or of the client of a host.
    fn command(&self, program: Program, host: &str) -> String {
        let Self { operation, size, messages, options, .. } = self;
        let measure = self.measure_name();
        let program = match program {
            Program::Bareverbs => format!("bareverbs perf {operation} {measure} --json"),
            Program::Perftest => format!("ib_{operation}_{measure} -F"),
            Program::Soft => {
                let address = if host.is_empty() { "127.0.0.2" } else { "127.0.0.3" };
                format!("bareverbs perf {operation} {measure} --json -d soft:{address}")
            }
        };
        format!("{program} {options} -s {size} -n {messages} {host}")
    }

    /// Runs both sides of a program. Returns the figure of its client.
    fn run(&self, guests: &mut Guests, ip: &str, program: Program) -> Result<f64> {
        let ip = if let Program::Soft = program { "127.0.0.1" } else { ip };
        let [server, client] = [self.command(program, ""), self.command(program, ip)];
        let text = if let Program::Soft = program {
            // Soft-RoCE has UDP port 4791 in its own network namespace.
            let script = ["ip link set lo up", UNTIL_LISTENING, RUN].concat();
            command::run(guests, &["unshare", "--net", "sh", "-c", &script, "sh", &server, &client], LIMIT)?
        } else {
            command::script(guests, &[UNTIL_LISTENING, RUN].concat(), &[&server, &client], LIMIT)?
        };
        let figure = match program {
            Program::Bareverbs | Program::Soft => self.ours(&text),
            Program::Perftest => self.perftests(&text),
        };
        figure.with_context(|| format!("{client} printed no figure:\n{text}"))
    }

    /// The median latency, or the average bandwidth, in the JSON of `bareverbs perf`.
    fn ours(&self, text: &str) -> Option<f64> {
        let json: Value = serde_json::from_str(text).ok()?;
        let result = &json["results"][0];
        match self.measure {
            Latency => result["latency"]["p50"].as_f64(),
            Bandwidth => result["bandwidth"]["average"].as_f64(),
        }
    }

    /// The typical latency, which is the median, or the average bandwidth in the table of perftest.
    fn perftests(&self, text: &str) -> Option<f64> {
        let row = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>().ok();
        let row = text.lines().filter_map(row).find(|row| row.first() == Some(&self.size.into()))?;
        row.get(if self.measure == Latency { 4 } else { 3 }).copied()
    }

    /// How much better one figure is than another.
    fn ratio(&self, figure: f64, other: f64) -> f64 {
        if self.measure == Latency { other / figure } else { figure / other }
    }
}

/// The figures of pairs of runs: ours, and those that they are compared with.
struct Pairs {
    ours: Vec<f64>,
    others: Vec<f64>,
}

impl Pairs {
    fn measure(guests: &mut Guests, turns: &Turns, programs: [Program; 2], test: &Test) -> Result<Self> {
        let [ours, others] = turns.run(programs, |program| {
            eprintln!("{}, {}", test.name(), test.command(program, ""));
            test.run(guests, turns.ip(), program)
        })?;
        Ok(Self { ours, others })
    }

    /// The median of the ratios of the pairs. Above 1, ours are better.
    fn ratio(&self, test: &Test) -> f64 {
        let pairs = self.ours.iter().zip(&self.others);
        median_of(pairs.map(|(ours, others)| test.ratio(*ours, *others)))
    }

    /// The median difference between a run of the other program and its next one.
    fn spread(&self) -> f64 {
        median_of(self.others.windows(2).map(|pair| (pair[1] / pair[0] - 1.0).abs()))
    }

    fn row(&self, test: &Test) -> String {
        let (ratio, spread) = (self.ratio(test), self.spread());
        let verdict = if ratio < 1.0 - spread.max(TOLERANCE) { "slower" } else { "" };
        let [ours, others] = [&self.ours, &self.others].map(|runs| median_of(runs.iter().copied()));
        let (name, unit) = (test.name(), test.unit());
        format!("{name:<36} {unit:<6} {ours:>10.2} {others:>10.2} {ratio:>8.2} {spread:>8.2}  {verdict}")
    }
}

/// The median; NaN if there is no figure.
fn median_of(figures: impl Iterator<Item = f64>) -> f64 {
    median(&figures.collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

impl PerfCompare {
    pub(crate) fn run(self) -> Result<ExitCode> {
        ensure!(self.turns.pairs >= 2, "the spread needs two pairs or more (--pairs)");
        let filter = Filter(&self.parts);
        let (programs, tests) = match self.soft {
            true => ([Program::Soft, Program::Bareverbs], &SOFT_TESTS[..]),
            false => ([Program::Bareverbs, Program::Perftest], &TESTS[..]),
        };
        let tests: Vec<&Test> = tests.iter().filter(|test| filter.takes(&test.name())).collect();
        ensure!(!tests.is_empty(), "no test has `{filter}` in its name");
        let figures = if self.soft { figures_of_devices()? } else { String::new() };
        let table = self.turns.in_guest(Time::Real, |guests| {
            if self.soft {
                command::script(guests, LONG_FRAMES, &[], LIMIT)?;
            }
            let mut table = heading(programs);
            for test in tests {
                let pairs = Pairs::measure(guests, &self.turns, programs, test)?;
                let _ = writeln!(table, "{}", pairs.row(test).trim_end());
            }
            Ok(table)
        })?;
        print!("{figures}{table}");
        Ok(ExitCode::SUCCESS)
    }
}

fn heading(programs: [Program; 2]) -> String {
    let [ours, others] = match programs {
        [Program::Soft, Program::Bareverbs] => ["soft", "rxe"],
        programs => programs.map(Program::name),
    };
    format!("{:<43} {ours:>10} {others:>10} {:>8} {:>8}\n", "medians", "ratio", "spread")
}

/// The figures of soft devices in one process, on this machine.
fn figures_of_devices() -> Result<String> {
    let mut cargo = build::cargo();
    cargo.args(["test", "--release", "--package", "bareverbs-soft", "--lib", "figures_of_devices"]);
    let output = cargo.args(["--", "--ignored", "--nocapture"]).output().context("running cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "the figures of devices failed:\n{text}");
    let figures = text.lines().filter(|line| line.contains(": ") && !line.starts_with("test "));
    Ok(figures.map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: Test = test("send", Latency, 2, 3000);
    const BANDWIDTH: Test = test("read", Bandwidth, 64 << 10, 500);

    /// `ib_send_lat -F -s 2 -n 3000 10.1.0.1` of perftest 6.24.
    const PERFTEST_LATENCY: &str = "---------------------------------------------------------------------
                    Send Latency Test
 Dual-port       : OFF\t\tDevice         : rxe0
 Mtu             : 1024[B]
 remote address: LID 0000 QPN 0x0012 PSN 0x9a4b8a
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 2       3000          45.22          62893.82      1410.80  \t       2468.57     \t2816.10\t\t14005.39 \t\t32455.47               
---------------------------------------------------------------------------------------
";

    #[test]
    fn latency_of_perftest_is_the_typical_one() {
        assert_eq!(LATENCY.perftests(PERFTEST_LATENCY), Some(1410.80));
        assert_eq!(test("send", Latency, 4, 1).perftests(PERFTEST_LATENCY), None);
        assert_eq!(LATENCY.perftests("Couldn't connect to 10.1.0.1:18515\n"), None);
    }

    #[test]
    fn figures_of_ours_are_the_median_and_the_average() {
        let json =
            r#"{"results": [{"latency": {"min": 39.5, "p50": 41.5}, "bandwidth": {"average": 66.5}}]}"#;
        assert_eq!((LATENCY.ours(json), BANDWIDTH.ours(json)), (Some(41.5), Some(66.5)));
        assert_eq!((LATENCY.ours("{}"), LATENCY.ours("failed")), (None, None));
    }

    #[test]
    fn ratio_above_one_is_a_shorter_latency_or_a_higher_bandwidth() {
        assert_eq!((LATENCY.ratio(2.0, 4.0), BANDWIDTH.ratio(4.0, 2.0)), (2.0, 2.0));
    }

    #[test]
    fn ratio_is_the_median_of_the_pairs() {
        // The machine is slower during the second pair.
        let pairs = Pairs { ours: vec![10.0, 50.0, 11.0], others: vec![11.0, 40.0, 11.0] };
        assert_eq!(pairs.ratio(&LATENCY), 1.0);
    }

    #[test]
    fn worse_figures_outside_of_the_spread_are_marked() {
        let pairs = |ours, others: [f64; 3]| Pairs { ours: vec![ours; 3], others: others.to_vec() };
        let is_marked = |pairs: Pairs| pairs.row(&LATENCY).ends_with("slower");
        assert!(is_marked(pairs(10.5, [10.0, 10.1, 10.0])));
        assert!(!is_marked(pairs(10.2, [10.0, 10.1, 10.0])), "the difference is below 3 %");
        assert!(!is_marked(pairs(10.5, [10.0, 11.0, 10.0])), "runs of perftest differ more");
    }
}
