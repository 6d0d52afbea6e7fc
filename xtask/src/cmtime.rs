//! `cargo xtask cmtime`: the time and the system calls of each step of a connection, with those of
//! librdmacm in the same guest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bareverbs_lab::{Accelerator, Cache, Exec, Guests, Hca, RdmaCore, Setup, Tools};
use clap::Args;

use crate::{build, lab};

/// Timeout of one run of both sides, by the host's time.
const LIMIT: Duration = Duration::from_secs(300);

/// Connections of the runs whose system calls are counted. The difference is divided by that of the
/// connections.
const COUNTED: [u32; 2] = [20, 120];

/// A guest with both programs, and how often they run.
#[derive(Args)]
pub(crate) struct Bench {
    /// A series such as 6.12, rc or a folder.
    #[arg(long, default_value = lab::DEFAULT_KERNEL)]
    kernel: String,
    /// On an HCA instead of rxe: ib or roce.
    #[arg(long, value_enum)]
    hca: Option<lab::Port>,
    /// Runs of each program, in turns.
    #[arg(long, default_value_t = 5)]
    pub(crate) pairs: u32,
}

/// What the time of a guest counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    /// Instructions of its one processor.
    Instructions,
    Real,
}

impl Bench {
    /// Boots the guest and runs `work` in it.
    pub(crate) fn run<T>(&self, time: Time, work: impl FnOnce(&mut Guests) -> Result<T>) -> Result<T> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        let kernel = lab::kernel(&cache, &tools, &self.kernel)?;
        let rdma_core = RdmaCore::fetch(&cache, false)?;
        let programs = build::released_guest_programs()?;
        let port = self.hca.map(Into::into);
        let hca = port.map(|port| Hca::start(&build::hca()?, port, 1, &[])).transpose()?;
        let mut guests = Guests::boot(&Setup {
            cache: &cache,
            tools: &tools,
            kernel: &kernel,
            programs: &programs,
            hosts: 1,
            rdma_core: Some(rdma_core.root.clone()),
            shares: Vec::new(),
            accelerator: Accelerator::Auto,
            instruction_clock: time == Time::Instructions,
            recording: None,
            hca: hca.as_ref(),
        })?;
        let result = work(&mut guests)?;
        guests.shut_down()?;
        Ok(result)
    }

    /// The IP address of the guest's device.
    pub(crate) fn ip(&self) -> &'static str {
        if matches!(self.hca, Some(lab::Port::Ib)) { "10.2.0.1" } else { "10.1.0.1" }
    }
}

/// Runs a shell script with arguments. Returns its output.
pub(crate) fn script(guests: &mut Guests, script: &str, arguments: &[&str]) -> Result<String> {
    let words = ["sh", "-c", script, "sh"].into_iter().chain(arguments.iter().copied());
    let exec = Exec { argv: words.map(str::to_owned).collect(), ..Exec::default() };
    let finished = guests.run(0, exec, LIMIT)?;
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    if finished.timed_out || finished.status != 0 {
        let errors = String::from_utf8_lossy(&finished.stderr);
        bail!("{arguments:?} failed with status {}:\n{text}{errors}", finished.status);
    }
    Ok(text)
}

#[derive(Args)]
pub(crate) struct Cmtime {
    #[command(flatten)]
    bench: Bench,
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

const PROGRAMS: [Program; 2] = [("bareverbs", "bareverbs cmtime"), ("librdmacm", "cmtime")];

/// Shell functions that count system calls of programs by the kernel's tracepoints, one trace instance
/// for each side. A traced program is not stopped: under ptrace, the threads of librdmacm's program
/// that poll until others are done would take most of the one processor's time.
///
/// Their `sched_yield` is not counted for the same reason: its number says how long they poll.
pub(crate) const COUNTING: &str = r#"
instances=/sys/kernel/tracing/instances
# A thread of the kernel that calls nothing.
nobody=2
prepare() {
    [ -e $instances ] || mount -t tracefs tracefs /sys/kernel/tracing
    for side in client server; do
        if mkdir $instances/$side 2> /dev/null; then
            echo $nobody > $instances/$side/set_event_pid
            echo 1 > $instances/$side/options/event-fork
            echo 16384 > $instances/$side/buffer_size_kb
            for call in $instances/$side/events/syscalls/sys_enter_*; do
                case $call in *_sched_yield) ;; *) echo 1 > $call/enable ;; esac
            done
        fi
        echo > $instances/$side/trace
    done
}
# Becomes a program of side $1.
become() {
    side=$1; shift
    [ $counted = yes ] || exec "$@"
    exec sh -c 'echo $$ > "$0"; exec "$@"' $instances/$side/set_event_pid "$@"
}
show_calls() {
    for side in client server; do
        echo "== $side"
        grep -m 1 entries-in-buffer $instances/$side/trace
        sed -n 's/.*: sys_\([a-z0-9_]*\)(.*/\1/p' $instances/$side/trace | sort | uniq -c
    done
}
[ $counted = no ] || prepare
"#;

/// Runs both sides of `$program`. Their simulated queue pairs have different numbers, because one
/// kernel takes a number for that of one connection. The root has the controller's port once the kernel
/// lists the listener.
const RUN: &str = r#"
(become server $program -L -b $ip -C $ip -c $count -q $base "$@") > /tmp/server 2>&1 &
server=$!
for _ in $(seq 200); do
    grep -q ' [0-9A-F]*:1D2F 00000000:0000 0A ' /proc/net/tcp && break
    sleep 0.1
done
(become client $program -b $ip -C $ip -c $count -q $((base + 0x1000)) "$@") > /tmp/client 2>&1
client=$?
if [ $client != 0 ]; then kill $server; fi
wait $server && [ $client = 0 ] || { cat /tmp/server /tmp/client; exit 1; }
if [ $counted = yes ]; then show_calls; exit; fi
for side in client server; do
    echo "== $side"
    cat /tmp/$side
done"#;

/// Microseconds for a connection, and those of the shortest one, by round, side and step.
type Times = BTreeMap<(&'static str, &'static str, String), [f64; 2]>;

/// Steps of which only the sum over the connections is measured, because they happen between
/// others.
const SUMMED: [&str; 6] = ["init qp attr", "rtr qp attr", "rtr qp", "rts qp attr", "rts qp", "establish"];

/// Steps in the order of the programs' table.
const STEPS: [&str; 17] = [
    "full connect",
    "create id",
    "bind addr",
    "resolve addr",
    "resolve route",
    "create qp",
    "init qp attr",
    "init qp",
    "rtr qp attr",
    "rtr qp",
    "rts qp attr",
    "rts qp",
    "cm connect",
    "establish",
    "disconnect",
    "destroy id",
    "destroy qp",
];

impl Cmtime {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.bench.run(Time::Instructions, |guests| {
            let mut lab = Lab { guests, options: &self, runs: 0 };
            let mut times: [Vec<Times>; 2] = Default::default();
            // The first run of each loads the program and the kernel's modules.
            for pair in 0..=self.bench.pairs {
                for (at, program) in PROGRAMS.into_iter().enumerate() {
                    let text = lab.run(program, self.connections, false, &[])?;
                    if pair > 0 {
                        times[at].push(parse_times(&text).with_context(|| format!("{}: {text}", program.0))?);
                    }
                }
            }
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

/// Calls for a connection or a message, by name.
pub(crate) type Calls = BTreeMap<String, f64>;

impl Lab<'_> {
    /// Runs both sides of a program. Simulated queue pairs have other numbers in each run, because
    /// the kernel holds a number for a while after its connection has ended.
    fn run(&mut self, program: Program, count: u32, counted: bool, extra: &[&str]) -> Result<String> {
        self.runs += 1;
        let (count, base) = (count.to_string(), (self.runs * 0x2000).to_string());
        let threads = self.options.threads.to_string();
        let counted = if counted { "yes" } else { "no" };
        let ip = self.options.bench.ip();
        let text = ["program=$1 count=$2 ip=$3 counted=$4 base=$5; shift 5", COUNTING, RUN];
        let arguments = [program.1, &count, ip, counted, &base, "-n", &threads];
        eprintln!("run {}: {}, {count} connections, system calls counted: {counted}", self.runs, program.0);
        script(self.guests, &text.concat(), &[&arguments, extra].concat())
    }

    /// The calls of both sides for a connection with a queue pair and for one without.
    fn calls(&mut self, program: Program, extra: &[&str]) -> Result<[Calls; 2]> {
        let mut runs = Vec::new();
        for count in COUNTED {
            runs.push(parse_calls(&self.run(program, count, true, extra)?)?);
        }
        let [few, many] = &runs[..] else { bail!("there are two runs") };
        Ok(calls_of_each(few, many, COUNTED[1] - COUNTED[0]))
    }

    fn calls_table(&mut self) -> Result<String> {
        let mut all = Vec::new();
        for program in PROGRAMS {
            all.push(self.calls(program, &[])?);
        }
        let mut text = String::from("\nsystem calls for a connection with a queue pair and one without\n");
        for (side, title) in ["client", "server"].into_iter().enumerate() {
            text.push_str(&calls_rows(title, &all[0][side], &all[1][side]));
        }
        Ok(text)
    }
}

/// The calls of both sides for one of `count` connections or messages, by which two runs differ.
pub(crate) fn calls_of_each(few: &[Calls; 2], many: &[Calls; 2], count: u32) -> [Calls; 2] {
    [0, 1].map(|side| {
        let few = &few[side];
        let difference = |(name, calls): (&String, &f64)| {
            (name.clone(), (calls - few.get(name).copied().unwrap_or(0.0)) / f64::from(count))
        };
        many[side].iter().map(difference).collect()
    })
}

/// A table of the calls of both programs.
pub(crate) fn calls_rows(title: &str, ours: &Calls, theirs: &Calls) -> String {
    let mut text = format!("{title:<24} {:>10} {:>10} {:>8}\n", PROGRAMS[0].0, PROGRAMS[1].0, "ratio");
    let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        let get = |calls: &Calls| calls.get(name).copied().unwrap_or(0.0);
        if get(ours).max(get(theirs)) >= 0.05 {
            let _ = writeln!(text, "  {name:<22} {:>10.2} {:>10.2}", get(ours), get(theirs));
        }
    }
    let total = |calls: &Calls, without: &[&str]| -> f64 {
        calls.iter().filter(|(name, _)| !without.contains(&name.as_str())).map(|(_, calls)| calls).sum()
    };
    for (title, without) in [("all", &[][..]), ("without futex", &["futex"])] {
        let (ours, theirs) = (total(ours, without), total(theirs, without));
        let _ = writeln!(text, "  {title:<26} {ours:>6.1} {theirs:>10.1} {:>8.2}", theirs / ours);
    }
    text
}

/// The parts of the output for each side.
fn sides(text: &str) -> Result<[&str; 2]> {
    let client = text.split_once("== client\n").context("there is no client")?.1;
    let (client, server) = client.split_once("== server\n").context("there is no server")?;
    Ok([client, server])
}

fn parse_times(text: &str) -> Result<Times> {
    let mut times = Times::new();
    for (side, text) in ["client", "server"].into_iter().zip(sides(text)?) {
        let mut round = None;
        let mut count = 0.0;
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [name @ ("qp_conn" | "cm_conn"), connections] => {
                    round = Some(if name == "qp_conn" { "qp" } else { "none" });
                    count = connections.parse()?;
                }
                _ => {
                    let name = line.get(..13).unwrap_or_default().trim_end();
                    let (Some(round), true) = (round, STEPS.contains(&name)) else { continue };
                    let figures: Vec<f64> =
                        line[13..].split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
                    let [_, total, _, sum, _, min] = figures[..] else { bail!("a row is short: {line}") };
                    let time = if SUMMED.contains(&name) { sum } else { total };
                    times.insert((round, side, name.to_owned()), [time / count, min]);
                }
            }
        }
    }
    ensure!(!times.is_empty(), "there is no table");
    Ok(times)
}

/// The calls of both sides, as `show_calls` prints them.
pub(crate) fn parse_calls(text: &str) -> Result<[Calls; 2]> {
    let [client, server] = sides(text)?.map(|text| {
        let (head, rows) = text.split_once('\n').context("there is no trace")?;
        let words: Vec<_> = head.split([' ', '/']).collect();
        let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
        let [in_buffer, written] = numbers[..] else { bail!("{head}") };
        ensure!(in_buffer == written, "the trace has lost events: {head}");
        rows.lines()
            .map(|row| {
                let (calls, name) = row.trim().split_once(' ').with_context(|| row.to_owned())?;
                Ok((name.to_owned(), calls.parse()?))
            })
            .collect()
    });
    Ok([client?, server?])
}

/// The geometric mean; `None` if there is no figure, or one is 0.
pub(crate) fn mean(figures: &[f64]) -> Option<f64> {
    let all = !figures.is_empty() && figures.iter().all(|figure| *figure > 0.0);
    all.then(|| (figures.iter().map(|figure| figure.ln()).sum::<f64>() / figures.len() as f64).exp())
}

/// The median; `None` if there is no figure.
pub(crate) fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    Some(f64::midpoint(sorted[(sorted.len() - 1) / 2], *upper))
}

/// The table of the times, which are medians of the runs: in some runs, the scheduler runs the peer for
/// milliseconds during a step. With a ratio above 1, ours are shorter. The shortest times are those of
/// steps during which neither the peer nor a thread of the kernel ran.
fn times_table([ours, theirs]: &[Vec<Times>; 2]) -> String {
    let mut text = String::new();
    for (round, title) in [("qp", "with queue pairs"), ("none", "without queue pairs")] {
        for side in ["client", "server"] {
            let _ = writeln!(
                text,
                "{:<47} {:>10} {:>10} {:>8} {:>12}",
                format!("µs for a connection, {side}, {title}"),
                PROGRAMS[0].0,
                PROGRAMS[1].0,
                "ratio",
                "shortest"
            );
            let mut ratios = Vec::new();
            for step in STEPS {
                let key = (round, side, step.to_owned());
                let of = |times: &[Times]| {
                    let figures: Vec<f64> =
                        times.iter().filter_map(|times| times.get(&key)).map(|[time, _]| *time).collect();
                    median(&figures).filter(|time| *time > 0.0)
                };
                let shortest = [ours, theirs].map(|times| {
                    let shortest = times.iter().filter_map(|times| times.get(&key)).map(|[_, min]| *min);
                    shortest.fold(f64::INFINITY, f64::min)
                });
                let (Some(ours), Some(theirs)) = (of(ours), of(theirs)) else { continue };
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
        let get = |round, side, step: &str| times[&(round, side, step.to_owned())];
        assert_eq!(get("qp", "client", "full connect"), [1002.5, 1000.0]);
        assert_eq!(get("qp", "client", "rtr qp attr"), [25.0, 10.0]);
        assert_eq!(get("none", "client", "full connect"), [502.5, 1000.0]);
        assert_eq!(get("qp", "server", "cm connect"), [10.0, 1000.0]);
        parse_times("== client\n== server\n").unwrap_err();
    }

    #[test]
    fn calls_are_rows_of_a_complete_trace() {
        let text = "== client
# entries-in-buffer/entries-written: 120/120   #P:1
    100 write
     20 ioctl
== server
# entries-in-buffer/entries-written: 0/0   #P:1
";
        let [client, server] = parse_calls(text).unwrap();
        assert_eq!(client, BTreeMap::from([("write".to_owned(), 100.0), ("ioctl".to_owned(), 20.0)]));
        assert!(server.is_empty());
        let lost = text.replace("120/120", "120/121");
        assert!(parse_calls(&lost).unwrap_err().to_string().contains("lost events"));
    }

    #[test]
    fn median_of_an_even_number_is_between_the_middle_ones() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn slice_of_the_peer_in_one_run_does_not_change_the_table() {
        let run = |step: f64| {
            let key = ("qp", "server", "destroy id".to_owned());
            Times::from([(key, [step, 5.0])])
        };
        let table = times_table(&[vec![run(5.0), run(16.0), run(5.5)], vec![run(5.5), run(5.5), run(5.5)]]);
        let row = table.lines().find(|line| line.contains("destroy id")).unwrap();
        assert_eq!(row.split_whitespace().nth(4), Some("1.00"), "{table}");
    }

    #[test]
    fn mean_is_geometric() {
        assert_eq!(mean(&[2.0, 8.0]).map(f64::round), Some(4.0));
        assert_eq!((mean(&[]), mean(&[0.0])), (None, None));
    }
}
