//! `cargo xtask test`: all checks, from formatting to real kernels.

mod host;
mod scheduler;
mod selection;
mod soft;
mod targets;

use std::num::NonZero;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bareverbs_lab::Accelerator;
use clap::{Args, ValueEnum};

use crate::experiment::Tested;
use crate::filter::Filter;
use crate::flaky::FlakyList;
use crate::guest_tests::{guest_test_titles, guest_tests};
use crate::outcome::{FlakyTest, Table, Totals};
use crate::print::heading;
use crate::{build, c_functions, pyverbs};

pub(crate) use self::scheduler::{Instrumented, Lab, Plan};
use self::selection::Selection;

#[derive(Args)]
pub(crate) struct Test {
    /// Kernels to test on: series such as 6.12, rc or a folder; may be given more than once.
    /// Without it: each series that Debian ships.
    #[arg(long = "kernel", value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Devices to run the kernel tests on: soft devices on this machine, without a guest; rxe, siw, or
    /// the software HCA with a port of ib or roce, in guests. May be given more than once. Without it: rxe,
    /// and soft devices if all tests run.
    #[arg(long = "device", value_name = "DEVICE", value_enum)]
    devices: Vec<Choice>,
    /// Every test on every kernel and device, which takes hours. A flaky test fails the run.
    #[arg(long)]
    all: bool,
    /// The accelerator: auto, kvm or tcg.
    #[arg(long, default_value = "auto")]
    accel: Accelerator,
    /// How many guests (or groups of them) run in parallel (default: one for two processors, or one
    /// for each if only HCA tests are selected; at most four). One more runs the tests that mostly
    /// sleep.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Run only the kernel tests whose names contain one of these, and nothing else.
    filter: Vec<String>,
}

/// A device of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Choice {
    /// A soft device.
    Soft,
    /// Soft-RoCE.
    Rxe,
    /// The HCA, with InfiniBand.
    Ib,
    /// The HCA, with Ethernet.
    Roce,
    /// Soft-iWARP.
    Siw,
}

impl Choice {
    /// The device in guests.
    fn in_guests(self) -> Option<Tested> {
        match self {
            Self::Soft => None,
            Self::Rxe => Some(Tested::Rxe),
            Self::Ib => Some(Tested::Ib),
            Self::Roce => Some(Tested::Roce),
            Self::Siw => Some(Tested::Siw),
        }
    }
}

impl Test {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let begin = Instant::now();
        let flaky = FlakyList::read()?;
        let mut totals = Totals::default();
        let mut failures = Vec::new();
        if self.devices == [Choice::Soft] {
            return self.soft_devices(&flaky, begin);
        }
        let Tests { table, left_out } = if self.filter.is_empty() {
            heading("Formatting");
            succeed(build::cargo().args(["fmt", "--all", "--check"]))?;
            let stop = AtomicBool::new(false);
            let (tests, host) = thread::scope(|scope| {
                // Guests leave a processor idle most of the time.
                let host = scope.spawn(|| build::with_low_priority(|| host::check(self.all, &stop)));
                let tests = stopping(&stop, || {
                    let programs = scope.spawn(build_ahead);
                    let lab = self.lab()?;
                    programs.join().expect("builds don't panic");
                    self.guests(&lab, &flaky, &stop)
                });
                (tests, host.join().expect("the checks don't panic"))
            });
            let (tests, host) = (tests?, host?);
            host.print();
            totals = host.totals;
            failures = host.failures;
            tests.merge(host.soft)
        } else {
            let tests = self.guests(&self.lab()?, &flaky, &AtomicBool::new(false))?;
            match self.devices.contains(&Choice::Soft) {
                true => tests.merge(soft::run(Filter(&self.filter), &AtomicBool::new(false))?),
                false => tests,
            }
        };
        table.print();
        let published =
            (self.filter.is_empty() && !self.all).then(|| format!("on the host: {}", host::PUBLISHED));
        for line in left_out.into_iter().chain(published) {
            println!("left out (`--all` runs it) {line}");
        }
        for name in failures {
            println!("FAILED without a kernel: {name}");
        }
        totals.add(&table);
        let refuted = pyverbs::refuted(&table)?;
        for line in &refuted {
            println!("FAILED: {line}");
        }
        totals.failed += refuted.len();
        Ok(self.conclude(totals, &flaky, &table.flaky(), begin))
    }

    /// Prints the flaky tests and the counts. Flaky tests count as passed, or as failed if the run does
    /// not tolerate them.
    fn conclude(
        &self,
        totals: Totals,
        list: &FlakyList,
        tests: &[FlakyTest<'_>],
        begin: Instant,
    ) -> ExitCode {
        list.print(tests);
        let Totals { mut passed, mut failed, skipped, flaky } = totals;
        let (minutes, seconds) = (begin.elapsed().as_secs() / 60, begin.elapsed().as_secs() % 60);
        println!("\n{flaky} flaky, in {minutes} min {seconds} s");
        match list.failure(tests, !self.all) {
            Some(failure) => {
                println!("FAILED: {failure}");
                failed += flaky;
            }
            None => passed += flaky,
        }
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Runs the selected kernel tests on soft devices, and nothing else.
    fn soft_devices(&self, flaky: &FlakyList, begin: Instant) -> Result<ExitCode> {
        heading("Kernel tests on soft devices");
        let table = soft::run(Filter(&self.filter), &AtomicBool::new(false))?;
        table.print();
        heading("Skipped tests by reason");
        for (number, reason) in table.skips_by_reason() {
            println!("{number:5}  {reason}");
        }
        let mut totals = Totals::default();
        totals.add(&table);
        Ok(self.conclude(totals, flaky, &table.flaky(), begin))
    }

    fn lab(&self) -> Result<Lab> {
        heading("What the lab needs");
        Lab::fetch(&self.kernels)
    }

    /// Runs the selected tests in guests until all have run, or until `stop`.
    fn guests(&self, lab: &Lab, flaky: &FlakyList, stop: &AtomicBool) -> Result<Tests> {
        heading("Tests on real kernels");
        let selection = Selection { filter: Filter(&self.filter), everything: self.all };
        let chosen: Vec<_> = self.devices.iter().filter_map(|device| device.in_guests()).collect();
        let devices = match (chosen.as_slice(), self.all) {
            ([], true) => &Tested::ALL[..],
            ([], false) => &[Tested::Rxe],
            (chosen, _) => chosen,
        };
        let plan = Plan::new(lab, devices, selection)?;
        if selection.filter.takes_all() {
            pyverbs::check(&lab.rdma_core, &guest_test_titles()?)?;
            let titles = plan.titles();
            flaky.check_titles(&titles)?;
            selection::check_prefixes(&titles)?;
            c_functions::check(&lab.cache, &lab.rdma_core)?;
        }
        let jobs = self.jobs.map_or_else(|| side_by_side(plan.processors()), NonZero::get);
        let mut table = plan.run(self.accel, jobs, stop)?;
        plan.classify(&mut table, self.accel, stop)?;
        Ok(Tests { table, left_out: plan.left_out() })
    }
}

/// What the tests in guests have resulted in.
struct Tests {
    table: Table,
    /// What the selection left out, one line each.
    left_out: Vec<String>,
}

impl Tests {
    /// Adds the outcomes on other devices.
    fn merge(mut self, other: Table) -> Self {
        self.table.merge(other);
        self
    }
}

/// Runs a part of the checks. An error stops the other parts.
fn stopping<T>(stop: &AtomicBool, run: impl FnOnce() -> Result<T>) -> Result<T> {
    run().inspect_err(|error| {
        eprintln!("{error:#}");
        stop.store(true, Ordering::Relaxed);
    })
}

/// Builds the programs of the guests. If a build fails, it fails again where its program is needed.
fn build_ahead() {
    // In parallel: they have different profiles, and the last step of a program has one thread.
    thread::scope(|scope| {
        scope.spawn(build::guest_programs);
        scope.spawn(|| guest_tests(Filter(&[])));
    });
}

/// Processors poll completion queues. With fewer processors on the host, two guests take longer in
/// parallel than one after the other.
pub(crate) fn side_by_side(processors: usize) -> usize {
    thread::available_parallelism().map_or(1, |there| (there.get() / processors).clamp(1, 4))
}

/// Builds the documentation of all crates, without warnings.
pub(crate) fn documentation() -> Result<()> {
    succeed(
        build::cargo()
            .args(["doc", "--workspace", "--all-features", "--no-deps", "--quiet"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// Checks all crates and their tests with the compiler that runs this.
pub(crate) fn minimum_rust() -> Result<()> {
    succeed(build::cargo().args(["check", "--workspace", "--all-targets", "--all-features", "--locked"]))
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().context("running cargo")?;
    if !status.success() {
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        bail!("cargo {} failed", arguments.join(" "));
    }
    Ok(())
}
