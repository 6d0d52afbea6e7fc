//! `cargo xtask rstream`: the throughput of streams, with that of librdmacm in the same guest.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bareverbs_lab::Guests;
use clap::Args;

use crate::experiment::calls::{COUNTING, calls_of_each, calls_rows, parse_calls};
use crate::experiment::command;
use crate::experiment::turns::{NAMES, Time, Turns, mean};

/// Timeout of one run of both sides, by the host's time.
const LIMIT: Duration = Duration::from_secs(300);

/// Bytes of a transfer, transfers of a round trip, and round trips.
const TESTS: [(u32, u32, u32); 10] = [
    (64, 1, 400),
    (4 << 10, 1, 400),
    (64 << 10, 1, 100),
    (1 << 20, 1, 10),
    (64, 2000, 1),
    (1 << 10, 2000, 1),
    (4 << 10, 1000, 1),
    (16 << 10, 400, 1),
    (64 << 10, 100, 1),
    (1 << 20, 10, 1),
];

const PROGRAMS: [&str; 2] = ["bareverbs rstream", "rstream"];

/// Bytes of a transfer, and transfers of the two runs whose system calls are counted. The difference
/// is divided by that of the transfers.
const COUNTED: [(u32, [u32; 2]); 3] = [(64, [500, 2500]), (4 << 10, [250, 1250]), (64 << 10, [25, 125])];

/// Runs both sides of `$program`; the client again if the server does not listen yet. The sides sleep
/// in their calls, because the guest has one processor.
const RUN: &str = r#"
(become server $program -T b "$@") > /tmp/server 2>&1 &
server=$!
for _ in $(seq 100); do
    if (become client $program -T b -s $ip "$@") > /tmp/client 2>&1 && wait $server; then
        if [ $counted = yes ]; then show_calls; else cat /tmp/client; fi
        exit
    fi
    [ $counted = no ] || echo > $instances/client/trace
    sleep 0.1
done
cat /tmp/server /tmp/client
exit 1"#;

/// Runs both sides of a program with arguments.
fn run(guests: &mut Guests, program: &str, ip: &str, counted: bool, arguments: &[&str]) -> Result<String> {
    let text = ["program=$1 ip=$2 counted=$3; shift 3", COUNTING, RUN];
    let counted = if counted { "yes" } else { "no" };
    command::script(guests, &text.concat(), &[&[program, ip, counted], arguments].concat(), LIMIT)
}

#[derive(Args)]
pub(crate) struct Rstream {
    #[command(flatten)]
    turns: Turns,
    /// Count the system calls of transfers instead.
    #[arg(long)]
    calls: bool,
}

impl Rstream {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.turns.in_guest(Time::Instructions, |guests| {
            if self.calls {
                return self.print_calls(guests);
            }
            println!("{:<24} {:>10} {:>10} {:>8}", "Gb/sec", NAMES[0], NAMES[1], "ratio");
            let mut ratios = Vec::new();
            for (size, transfers, iterations) in TESTS {
                let numbers = [size, transfers, iterations].map(|number| number.to_string());
                let options = ["-S", &numbers[0], "-C", &numbers[1], "-I", &numbers[2]];
                let figures = self.turns.run(PROGRAMS, |program| {
                    let text = run(guests, program, self.turns.ip(), false, &options)?;
                    gigabits(&text, &numbers).with_context(|| format!("{program}: {text}"))
                })?;
                let [ours, theirs] = figures.map(|figures| mean(&figures));
                let (ours, theirs) = ours.zip(theirs).context("a figure is 0")?;
                ratios.push(ours / theirs);
                let name = match transfers {
                    1 => format!("{size} B, round trips"),
                    _ => format!("{size} B, {transfers} at a time"),
                };
                println!("{name:<24} {ours:>10.3} {theirs:>10.3} {:>8.2}", ours / theirs);
            }
            if let Some(ratio) = mean(&ratios) {
                println!("{:<46} {ratio:>8.2}", "geometric mean");
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    /// Prints the system calls of each transfer, all in one direction and then all in the other.
    fn print_calls(&self, guests: &mut Guests) -> Result<ExitCode> {
        for (size, counts) in COUNTED {
            let mut programs = Vec::new();
            for program in PROGRAMS {
                let mut runs = Vec::new();
                for transfers in counts {
                    let numbers = [size, transfers].map(|number| number.to_string());
                    let options = ["-S", &numbers[0], "-C", &numbers[1], "-I", "1"];
                    runs.push(parse_calls(&run(guests, program, self.turns.ip(), true, &options)?)?);
                }
                let [few, many] = &runs[..] else { bail!("there are two runs") };
                programs.push(calls_of_each(few, many, counts[1] - counts[0]));
            }
            println!("system calls for a transfer of {size} B in each direction");
            for (side, title) in ["client", "server"].into_iter().enumerate() {
                print!("{}", calls_rows(title, &programs[0][side], &programs[1][side]));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The throughput, from the microseconds for a transfer in the last column: the other columns are
/// rounded more.
fn gigabits(text: &str, [size, ..]: &[String; 3]) -> Option<f64> {
    let row = text.lines().find(|line| line.starts_with("custom"))?;
    let micros: f64 = row.split_whitespace().last()?.parse().ok()?;
    Some(size.parse::<f64>().ok()? * 8.0 / micros / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_computed_from_the_time_of_a_transfer() {
        let text = "name bytes\ncustom    1000    1k      1       1.9m        0.01s      0.01       8.00\n";
        let numbers = ["1000".to_owned(), "1000".to_owned(), "1".to_owned()];
        assert_eq!(gigabits(text, &numbers), Some(1.0));
        assert_eq!(gigabits("name\n", &numbers), None);
    }
}
