//! `cargo xtask test`: all checks, from formatting to real kernels.

mod scheduler;
mod targets;

use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bareverbs_lab::Accelerator;
use clap::Args;

use crate::filter::Filter;
use crate::guest_tests::{GUEST_TEST_CRATES, guest_test_titles, guest_tests, guest_unit_tests};
use crate::outcome::{Totals, result_line};
use crate::print::heading;
use crate::tsan::{self, Toolchain, Tsan};
use crate::{build, counts, loom, package, pyverbs, spelling};

pub(crate) use self::scheduler::{Instrumented, Lab, Plan, Tested};

#[derive(Args)]
pub(crate) struct Test {
    /// Kernels to test on: series such as 6.12, rc or a folder; may be given more than once.
    /// Without it: each series that Debian ships.
    #[arg(long = "kernel", value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Devices to run the kernel tests on: rxe, or the software HCA with a port of ib or roce; may
    /// be given more than once.
    #[arg(long = "device", value_name = "DEVICE", value_enum, default_value = "rxe")]
    devices: Vec<Tested>,
    /// The accelerator: auto, kvm or tcg.
    #[arg(long, default_value = "auto")]
    accel: Accelerator,
    /// How many guests (or groups of them) run in parallel (default: one for two processors, or one
    /// for each if only HCA tests are selected; at most four).
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Run only the kernel tests whose names contain one of these, and nothing else.
    filter: Vec<String>,
}

impl Test {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let begin = Instant::now();
        let filter = Filter(&self.filter);
        let mut totals = Totals::default();
        let lab = if filter.takes_all() {
            heading("Formatting");
            succeed(build::cargo().args(["fmt", "--all", "--check"]))?;
            thread::scope(|scope| {
                let fetching = scope.spawn(|| Lab::fetch(&self.kernels));
                scope.spawn(|| build::with_low_priority(build_ahead));
                heading("Spelling");
                spelling::check()?;
                heading("Clippy");
                clippy()?;
                heading("What the lab needs");
                let lab = fetching.join().expect("fetching does not panic")?;
                heading("Tests without a kernel");
                plain_tests(&mut totals)?;
                pyverbs::check(&lab.rdma_core, &guest_test_titles()?)?;
                anyhow::Ok(lab)
            })?
        } else {
            heading("What the lab needs");
            Lab::fetch(&self.kernels)?
        };
        heading("Tests on real kernels");
        let plan = Plan::new(&lab, &self.devices, filter)?;
        let jobs = self.jobs.map_or_else(|| side_by_side(plan.processors()), NonZero::get);
        let (table, beside) = thread::scope(|scope| {
            // Guests leave a processor idle most of the time.
            let beside = filter.takes_all().then(|| scope.spawn(|| build::with_low_priority(Beside::check)));
            let table = plan.run(self.accel, jobs);
            (table, beside.map(|beside| beside.join().expect("the checks don't panic")))
        });
        let table = table?;
        if let Some(beside) = beside {
            beside?.print(&mut totals);
        }
        table.print();
        totals.add(&table);
        let Totals { passed, failed, skipped } = totals;
        let seconds = begin.elapsed().as_secs();
        println!(
            "\n{passed} passed, {failed} failed, {skipped} skipped in {} min {} s",
            seconds / 60,
            seconds % 60
        );
        Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Builds the programs of the guests, while other checks leave a processor idle. If a build fails, it
/// fails again where its program is needed.
fn build_ahead() {
    // In parallel: they have different target folders, and the last step of the tool has one thread.
    thread::scope(|scope| {
        scope.spawn(build::guest_programs);
        scope.spawn(guest_tests);
        scope.spawn(build::hca);
    });
}

/// Processors poll completion queues. With fewer processors on the host, two guests take longer in
/// parallel than one after the other.
pub(crate) fn side_by_side(processors: usize) -> usize {
    thread::available_parallelism().map_or(1, |there| (there.get() / processors).clamp(1, 4))
}

/// The results of the checks that run beside the guests. None depends on the load of the machine.
struct Beside {
    totals: Totals,
    /// None: there is no valgrind here.
    counted: Option<counts::Counted>,
}

impl Beside {
    fn check() -> Result<Self> {
        let mut totals = Totals::default();
        timed("selections of features", feature_selections)?;
        timed("documentation", documentation)?;
        timed("other targets", || targets::check(&mut totals))?;
        timed("packages", package::check)?;
        let (passed, failed) = timed("models of what threads share", || loom::models("loom", None))?;
        totals.passed += passed;
        totals.failed += failed;
        timed("data races", || data_races(&mut totals))?;
        let counted = if counts::possible() { Some(timed(counts::TITLE, counts::measure)?) } else { None };
        Ok(Self { totals, counted })
    }

    /// Prints the instruction counts of the data path, and adds the results to others.
    fn print(self, totals: &mut Totals) {
        let Self { totals: Totals { passed, failed, skipped }, counted } = self;
        totals.passed += passed;
        totals.failed += failed;
        totals.skipped += skipped;
        heading("Instructions of the data path");
        match counted {
            Some((table, over)) => {
                print!("{table}");
                *(if over.is_empty() { &mut totals.passed } else { &mut totals.failed }) += 1;
            }
            None => {
                println!("skipped: {}: there is no valgrind here", counts::TITLE);
                totals.skipped += 1;
            }
        }
    }
}

/// Runs a check, and prints how long it took.
fn timed<T>(check: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let result = run().with_context(|| check.to_owned())?;
    println!("{check} ... done ({:.1} s)", begin.elapsed().as_secs_f64());
    Ok(result)
}

/// Runs the threaded tests under ThreadSanitizer, if a compiler on this machine supports it.
fn data_races(totals: &mut Totals) -> Result<()> {
    match Toolchain::find(false, None) {
        Ok(toolchain) => {
            let report = Tsan::default().measure(&toolchain)?;
            println!("{report}");
            *(if report.is_clean() { &mut totals.passed } else { &mut totals.failed }) += 1;
        }
        Err(reason) => {
            println!("skipped: {}: {reason}", tsan::TITLE);
            totals.skipped += 1;
        }
    }
    Ok(())
}

/// The selections of features that are checked besides all: no provider, either provider, and each
/// other feature alone.
const FEATURES: [(&str, &[&str]); 2] = [
    (
        "bareverbs",
        &[
            "",
            "rxe",
            "mlx5",
            "mlx5,rxe,async-io",
            "mlx5,rxe,futures",
            "mlx5,rxe,memmap2",
            "mlx5,rxe,serde",
            "mlx5,rxe,tokio",
        ],
    ),
    ("bareverbs-rdmacm", &["", "rxe", "mlx5", "mlx5,rxe,async-io", "mlx5,rxe,tokio"]),
];

fn clippy() -> Result<()> {
    succeed(build::cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))
}

fn feature_selections() -> Result<()> {
    for (package, selections) in FEATURES {
        for features in selections {
            succeed(build::cargo().args([
                "clippy",
                "--package",
                package,
                "--no-default-features",
                "--features",
                features,
                "--quiet",
                "--",
                "-D",
                "warnings",
            ]))?;
        }
    }
    Ok(())
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

/// Runs `cargo test` and counts the results of its binaries. The crates whose tests run in guests are
/// built once, for the guests: their unit tests are run from there.
fn plain_tests(totals: &mut Totals) -> Result<()> {
    let mut cargo = build::cargo();
    cargo.args(["test", "--workspace", "--all-features", "--no-fail-fast"]);
    cargo.args(GUEST_TEST_CRATES.iter().flat_map(|package| ["--exclude", package]));
    cargo.env("RUSTDOC", build::workspace().join("xtask/rustdoc.sh"));
    run_tests(&mut cargo, totals)?;
    for binary in guest_unit_tests()? {
        run_tests(&mut Command::new(binary), totals)?;
    }
    Ok(())
}

/// Runs a command that runs test binaries, and counts their results.
fn run_tests(command: &mut Command, totals: &mut Totals) -> Result<()> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("running tests")?;
    let stdout = child.stdout.take().context("its output is piped")?;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        let (passed, failed) = result_line(&line).unwrap_or_default();
        totals.passed += passed;
        totals.failed += failed;
    }
    if !child.wait()?.success() {
        bail!("{} failed", command.get_program().display());
    }
    Ok(())
}
