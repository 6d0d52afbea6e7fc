//! `cargo xtask soak`: long scale and endurance tests.

use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use bareverbs_lab::{Accelerator, Setup};
use clap::{Args, Subcommand, ValueEnum};

use crate::experiment::{self, Files, command};
use crate::{build, plot};

/// Our program's name in the guest.
const PROGRAM: &str = "bareverbs-soak";
/// Timeout of a run, in addition to the minutes of random verbs or attempts.
const LIMIT: Duration = Duration::from_secs(1800);

#[derive(Args)]
pub(crate) struct Soak {
    /// A series such as 6.12, rc, or a folder with a kernel.
    #[arg(long, default_value = experiment::DEFAULT_KERNEL, global = true)]
    kernel: String,
    /// The accelerator: auto, kvm or tcg.
    #[arg(long, default_value = "auto", global = true)]
    accel: Accelerator,
    /// Let guest time count instructions, one nanosecond each.
    #[arg(long, global = true)]
    icount: bool,
    /// On an HCA instead of rxe: ib or roce.
    #[arg(long, value_enum, global = true)]
    hca: Option<experiment::Port>,
    /// Random verbs and faults on soft devices, on this machine: no lab, virtual time, one seed after the
    /// other.
    #[arg(long, value_enum, conflicts_with_all = ["kernel", "hca", "minutes", "seed", "iteration"])]
    device: Option<Device>,
    /// The seeds of soft devices. A failed seed is run again, with a log and a packet capture.
    #[arg(long, value_name = "FIRST..END", value_parser = seeds, default_value = "0..10000", requires = "device")]
    seeds: Range<u64>,
    /// Minutes of random verbs, or of random connection attempts.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The seed of the random verbs or attempts (default: from the clock).
    #[arg(long)]
    seed: Option<u64>,
    /// Run only this iteration of the seed.
    #[arg(long, value_name = "NUMBER")]
    iteration: Option<u64>,
    /// Run only the first verbs of that iteration, or of each seed.
    #[arg(long, value_name = "NUMBER")]
    ops: Option<usize>,
    /// Another test than random verbs.
    #[command(subcommand)]
    what: Option<What>,
}

/// A device that needs no guest.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Device {
    /// RoCE v2 devices in user space.
    Soft,
}

/// Parses a range of seeds, or one seed.
fn seeds(text: &str) -> Result<Range<u64>> {
    let number = |text: &str| text.trim().parse::<u64>().with_context(|| format!("{text:?} is not a seed"));
    match text.split_once("..") {
        Some((first, end)) => Ok(number(first)?..number(end)?),
        None => number(text).map(|seed| seed..seed.saturating_add(1)),
    }
}

#[derive(Subcommand)]
enum What {
    /// 1,000 queue pairs on one shared receive queue and one completion queue, all sending.
    Traffic {
        /// Total number of messages.
        #[arg(long, default_value_t = 1_000_000)]
        messages: u64,
    },
    /// Connections by IP address, made and ended one after the other.
    Connections {
        /// Their number.
        #[arg(long, default_value_t = 10_000)]
        rounds: usize,
    },
    /// Random connects, answers, rejections, ends and kills, compared with a model. Duration and seed
    /// come before the command's name.
    Attempts,
    /// The cost to create and to free MRs and queue pairs, by the number of existing ones.
    Objects {
        /// Memory regions.
        #[arg(long, default_value_t = 100_000)]
        regions: usize,
        /// Queue pairs.
        #[arg(long, default_value_t = 1_000)]
        queue_pairs: usize,
        /// Plot the costs.
        #[arg(long, value_name = "FILE.svg")]
        plot: Option<PathBuf>,
    },
}

impl Soak {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let is_soft = matches!(self.device, Some(Device::Soft));
        ensure!(
            !is_soft || self.what.is_none(),
            "--device soft runs random verbs only, without a subcommand"
        );
        let is_limited = self.ops.is_some();
        ensure!(
            !is_limited || is_soft || self.iteration.is_some(),
            "--ops needs --iteration or --device soft"
        );
        if is_soft {
            return self.on_soft_devices();
        }
        let output = self.in_guest(&self.command())?;
        if let Some(What::Objects { plot: Some(file), .. }) = &self.what {
            let table = plot::Table::parse(&output).context("the guest printed no table")?;
            plot::draw(&table, &self.origin(), file)
                .with_context(|| format!("drawing {}", file.display()))?;
            println!("drawn in {}", file.display());
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Runs the seeds on soft devices.
    fn on_soft_devices(&self) -> Result<ExitCode> {
        let mut command = Command::new(build::native_soak()?);
        let Range { start, end } = &self.seeds;
        command.args(["soft", "--from", &start.to_string(), "--to", &end.to_string()]);
        if let Some(ops) = self.ops {
            command.args(["--ops", &ops.to_string()]);
        }
        let status = command.status().context("running the soak program")?;
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The arguments of the guest's program.
    fn command(&self) -> String {
        let clock = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
        let timed = format!("--seed {} --seconds {}", self.seed.unwrap_or(clock), 60 * self.minutes);
        match &self.what {
            None => {
                let iteration = self.iteration.map(|number| format!("--iteration {number}"));
                let ops = self.ops.map(|number| format!("--ops {number}"));
                format!("random {timed} {} {}", iteration.unwrap_or_default(), ops.unwrap_or_default())
            }
            Some(What::Traffic { messages }) => format!("traffic --messages {messages}"),
            Some(What::Connections { rounds }) => format!("connections --rounds {rounds}"),
            Some(What::Attempts) => format!("attempts {timed}"),
            Some(What::Objects { regions, queue_pairs, .. }) => {
                format!("objects --regions {regions} --queue-pairs {queue_pairs}")
            }
        }
    }

    /// A description of how the figures were measured.
    fn origin(&self) -> String {
        let device = match self.hca {
            Some(_) => "The software ConnectX",
            None => "Soft-RoCE",
        };
        let clock = if self.icount { "; guest time counts instructions, 1,000 to a microsecond" } else { "" };
        format!(
            "{device} on Linux {}, one process{clock}. A dot is the median of a step, a line that of nine dots.",
            self.kernel
        )
    }

    /// Runs the program in a fresh guest to its end and returns its output.
    fn in_guest(&self, arguments: &str) -> Result<String> {
        let mut programs = build::guest_programs()?;
        programs.on_path.insert(PROGRAM.to_owned(), build::soak()?);
        let files = Files::fetch(&self.kernel, programs)?;
        let hca = experiment::start_hca(self.hca, 1, &[])?;
        let setup = Setup { accelerator: self.accel, instruction_clock: self.icount, ..files.setup() };
        let minutes = if matches!(self.what, None | Some(What::Attempts)) { self.minutes } else { 0 };
        let limit = LIMIT + Duration::from_secs(60 * minutes);
        experiment::run(&setup, hca.as_ref(), |guests| {
            let how = experiment::describe(guests.accelerator, self.icount);
            eprintln!("lab: kernel {} ({how})", files.kernel.version);
            let argv = [PROGRAM].into_iter().chain(arguments.split_whitespace()).map(str::to_owned);
            command::show(guests, argv.collect(), limit)
        })
    }
}
