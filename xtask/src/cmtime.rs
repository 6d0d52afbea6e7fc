//! `cargo xtask cmtime`: the time and the system calls of each step of a connection, with those of
//! librdmacm in the same guest.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bareverbs_lab::Guests;
use clap::Args;

use crate::experiment::calls::{COUNTING, Calls, calls_of_each, calls_rows, parse_calls, sides};
use crate::experiment::command::{self, UNTIL_LISTENING};
use crate::experiment::turns::{NAMES, Time, Turns, mean, median};

/// Timeout of one run of both sides, by the host's time.
const LIMIT: Duration = Duration::from_secs(300);

/// Connections of the runs whose system calls are counted. The difference is divided by that of the
/// connections.
const COUNTED: [u32; 2] = [20, 120];

#[derive(Args)]
pub(crate) struct Cmtime {
    #[command(flatten)]
    turns: Turns,
    /// Connections of a run.
    #[arg(long, default_value_t = 100)]
    connections: u32,
    /// Threads of each program.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Only the times, without the system calls.
    #[arg(long)]
    times_only: bool,
}

/// A program: its name in tables, and the command.
type Program = (&'static str, &'static str);

const PROGRAMS: [Program; 2] = [(NAMES[0], "bareverbs cmtime"), (NAMES[1], "cmtime")];

/// Runs both sides of `$program`. Their simulated queue pairs have different numbers, because one
/// kernel takes a number for that of one connection. The root has the controller's port once the kernel
/// lists the listener.
const RUN: &str = r#"
(become server $program -L -b $ip -C $ip -c $count -q $base "$@") > /tmp/server 2>&1 &
server=$!
until_listening 1D2F
(become client $program -b $ip -C $ip -c $count -q $((base + 0x1000)) "$@") > /tmp/client 2>&1
client=$?
if [ $client != 0 ]; then kill $server; fi
wait $server && [ $client = 0 ] || { cat /tmp/server /tmp/client; exit 1; }
if [ $counted = yes ]; then show_calls; exit; fi
for side in client server; do
    echo "== $side"
    cat /tmp/$side
done"#;

/// Steps of which only the sum over the connections is measured, because they happen between
/// others.
const SUMMED: [&str; 6] = ["init qp attr", "rtr qp attr", "rtr qp", "rts qp attr", "rts qp", "establish"];

/// A step of connections: whether they have queue pairs, the side, and the name.
type Step = (bool, &'static str, String);

/// Microseconds for a connection, and those of the shortest one, by step.
#[derive(Debug, Default)]
struct Times {
    /// The names of the steps in the order of the program's table.
    steps: Vec<String>,
    figures: BTreeMap<Step, [f64; 2]>,
}

impl Cmtime {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.turns.in_guest(Time::Instructions, |guests| {
            let mut lab = Lab { guests, options: &self, runs: 0 };
            let times = self.turns.run(PROGRAMS, |program| {
                let text = lab.run(program, self.connections, false)?;
                parse_times(&text).with_context(|| format!("{}: {text}", program.0))
            })?;
            print!("{}", times_table(&times));
            if !self.times_only {
                print!("{}", lab.calls_table()?);
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

struct Lab<'a> {
    guests: &'a mut Guests,
    options: &'a Cmtime,
    runs: u32,
}

impl Lab<'_> {
    /// Runs both sides of a program. Simulated queue pairs have other numbers in each run, because
    /// the kernel holds a number for a while after its connection has ended.
    fn run(&mut self, program: Program, count: u32, counted: bool) -> Result<String> {
        self.runs += 1;
        let (count, base) = (count.to_string(), (self.runs * 0x2000).to_string());
        let threads = self.options.threads.to_string();
        let counted = if counted { "yes" } else { "no" };
        let ip = self.options.turns.ip();
        let text = ["program=$1 count=$2 ip=$3 counted=$4 base=$5; shift 5", COUNTING, UNTIL_LISTENING, RUN];
        let arguments = [program.1, &count, ip, counted, &base, "-n", &threads];
        eprintln!("run {}: {}, {count} connections, system calls counted: {counted}", self.runs, program.0);
        command::script(self.guests, &text.concat(), &arguments, LIMIT)
    }

    /// The calls of both sides for a connection with a queue pair and for one without.
    fn calls(&mut self, program: Program) -> Result<[Calls; 2]> {
        let mut runs = Vec::new();
        for count in COUNTED {
            runs.push(parse_calls(&self.run(program, count, true)?)?);
        }
        let [few, many] = &runs[..] else { bail!("there are two runs") };
        Ok(calls_of_each(few, many, COUNTED[1] - COUNTED[0]))
    }

    fn calls_table(&mut self) -> Result<String> {
        let mut all = Vec::new();
        for program in PROGRAMS {
            all.push(self.calls(program)?);
        }
        let mut text = String::from("\nsystem calls for a connection with a queue pair and one without\n");
        for (side, title) in ["client", "server"].into_iter().enumerate() {
            text.push_str(&calls_rows(title, &all[0][side], &all[1][side]));
        }
        Ok(text)
    }
}

/// Parses the tables of both sides.
fn parse_times(text: &str) -> Result<Times> {
    let mut times = Times::default();
    for (side, text) in ["client", "server"].into_iter().zip(sides(text)?) {
        let mut round = None;
        for line in text.lines() {
            if let [name @ ("qp_conn" | "cm_conn"), connections] =
                line.split_whitespace().collect::<Vec<_>>()[..]
            {
                round = Some((name == "qp_conn", connections.parse::<f64>()?));
                continue;
            }
            let (Some((has_qps, count)), Some((name, figures))) = (round, row(line)) else { continue };
            let [_, total, _, sum, _, min] = figures[..] else { bail!("a row is short: {line}") };
            let time = if SUMMED.contains(&name.as_str()) { sum } else { total };
            if !times.steps.contains(&name) {
                times.steps.push(name.clone());
            }
            times.figures.insert((has_qps, side, name), [time / count, min]);
        }
    }
    ensure!(!times.steps.is_empty(), "there is no table");
    Ok(times)
}

/// The name and the figures of a step. Its name has at most 13 characters, and there are several figures.
fn row(line: &str) -> Option<(String, Vec<f64>)> {
    let (name, figures) = line.split_at_checked(13)?;
    let figures: Vec<f64> =
        figures.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    (figures.len() > 1).then(|| (name.trim_end().to_owned(), figures))
}

/// The table of the times, which are medians of the runs: in some runs, the scheduler runs the peer for
/// milliseconds during a step. With a ratio above 1, ours are shorter. The shortest times are those of
/// steps during which neither the peer nor a thread of the kernel ran.
fn times_table([ours, theirs]: &[Vec<Times>; 2]) -> String {
    let mut text = String::new();
    // The first run has all steps.
    let Some(steps) = ours.first().map(|times| &times.steps) else { return text };
    for (has_qps, title) in [(true, "with queue pairs"), (false, "without queue pairs")] {
        for side in ["client", "server"] {
            let _ = writeln!(
                text,
                "{:<47} {:>10} {:>10} {:>8} {:>12}",
                format!("µs for a connection, {side}, {title}"),
                NAMES[0],
                NAMES[1],
                "ratio",
                "shortest"
            );
            let mut ratios = Vec::new();
            for step in steps {
                let key = (has_qps, side, step.clone());
                let of = |times: &[Times]| -> Vec<[f64; 2]> {
                    times.iter().filter_map(|times| times.figures.get(&key).copied()).collect()
                };
                let runs = [ours, theirs].map(|times| of(times));
                let shortest = runs
                    .each_ref()
                    .map(|runs| runs.iter().map(|[_, min]| *min).fold(f64::INFINITY, f64::min));
                let medians = runs.map(|runs| {
                    median(&runs.iter().map(|[time, _]| *time).collect::<Vec<_>>()).filter(|time| *time > 0.0)
                });
                let [Some(ours), Some(theirs)] = medians else { continue };
                ratios.push(theirs / ours);
                let ratio = theirs / ours;
                let _ = writeln!(
                    text,
                    "  {step:<45} {ours:>10.1} {theirs:>10.1} {ratio:>8.2} {:>5.0} {:>6.0}",
                    shortest[0], shortest[1]
                );
                if step == "full connect" {
                    let [ours, theirs] = [ours, theirs].map(|micros| 1e6 / micros);
                    let name = "connections per second";
                    let _ = writeln!(text, "  {name:<45} {ours:>10.0} {theirs:>10.0}");
                }
            }
            if let Some(ratio) = mean(&ratios) {
                let _ = writeln!(text, "  {:<67} {ratio:>8.2}", "geometric mean of the steps");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "== client
Client warmup
qp_conn                 4
threads                 1
step             avg/conn  total(us)    us/conn    sum(us)    max(us)    min(us)
full connect         1002       4010          0          0       4000       1000
rtr qp attr             0          0         25        100         40         10
cm_conn                 4
full connect          502       2010          0          0       4000       1000
== server
qp_conn                 4
cm connect             10         40          0          0       4000       1000
";

    #[test]
    fn times_are_totals_or_sums_for_each_connection() {
        let times = parse_times(OUTPUT).unwrap();
        assert_eq!(times.steps, ["full connect", "rtr qp attr", "cm connect"]);
        let get = |has_qps, side, step: &str| times.figures[&(has_qps, side, step.to_owned())];
        assert_eq!(get(true, "client", "full connect"), [1002.5, 1000.0]);
        assert_eq!(get(true, "client", "rtr qp attr"), [25.0, 10.0]);
        assert_eq!(get(false, "client", "full connect"), [502.5, 1000.0]);
        assert_eq!(get(true, "server", "cm connect"), [10.0, 1000.0]);
        parse_times("== client\n== server\n").unwrap_err();
    }

    #[test]
    fn slice_of_the_peer_in_one_run_does_not_change_the_table() {
        let run = |step: f64| {
            let name = "destroy id".to_owned();
            Times {
                steps: vec![name.clone()],
                figures: BTreeMap::from([((true, "server", name), [step, 5.0])]),
            }
        };
        let table = times_table(&[vec![run(5.0), run(16.0), run(5.5)], vec![run(5.5), run(5.5), run(5.5)]]);
        let row = table.lines().find(|line| line.contains("destroy id")).unwrap();
        assert_eq!(row.split_whitespace().nth(4), Some("1.00"), "{table}");
    }
}
