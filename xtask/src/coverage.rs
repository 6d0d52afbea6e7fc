//! `cargo xtask coverage`: the lines of the product crates that the tests reach, and the public
//! functions that no test calls.

mod functions;
mod instrument;
mod profiles;
mod uncalled;

use std::fs;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use bareverbs_lab::{Accelerator, Cache, Llvm, Since};
use clap::Args;

use self::functions::{Function, Sources};
pub(crate) use self::instrument::compile_if_wrapper;
use self::profiles::Coverage;
use crate::crates::{self, Crate};
use crate::experiment::Tested;
use crate::filter::Filter;
use crate::outcome::Totals;
use crate::print::heading;
use crate::test::{Lab, Plan, side_by_side};

#[derive(Args)]
pub(crate) struct Measure {
    /// Kernels to test on: series such as 6.12, rc or a folder; may be given more than once.
    #[arg(long = "kernel", value_name = "KERNEL", default_value = Since::V7_2.name())]
    kernels: Vec<String>,
    /// Devices to run the kernel tests on: rxe, or the software HCA with a port of ib or roce; may
    /// be given more than once. Without it: all three.
    #[arg(long = "device", value_name = "DEVICE", value_enum)]
    devices: Vec<Tested>,
    /// The accelerator: auto, kvm or tcg.
    #[arg(long, default_value = "auto")]
    accel: Accelerator,
    /// Only the tests that need no guest. Functions that no test calls are listed then, but fail
    /// nothing.
    #[arg(long)]
    no_guests: bool,
    /// Add to the profiles of the previous runs instead of starting over.
    #[arg(long)]
    add: bool,
    /// Run nothing; report the profiles of the previous runs.
    #[arg(long, conflicts_with_all = ["no_guests", "add", "filter"])]
    report: bool,
    /// Run only the kernel tests whose names contain one of these, and nothing else.
    #[arg(conflicts_with = "no_guests")]
    filter: Vec<String>,
}

impl Measure {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let llvm = Llvm::fetch(&Cache::open()?, instrument::llvm_major()?, false)?;
        println!("LLVM {}", llvm.version);
        let folder = instrument::profile_folder();
        if !self.add && !self.report && folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;

        heading("Instrumented programs");
        let library = crates::library()?;
        let built = instrument::build()?;
        let mut totals = Totals::default();
        if !self.report {
            let filter = Filter(&self.filter);
            if filter.takes_all() {
                heading("Tests without a kernel");
                instrument::run_plain_tests(&mut totals)?;
            }
            if !self.no_guests {
                self.run_guests(&built, filter, &mut totals)?;
            }
            println!("\n{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
        }

        heading("Coverage");
        let coverage = Coverage::read(&llvm, &built, &library)?;
        let sources = Sources::read(&library)?;
        let functions = sources.called(&coverage);
        print_table(&library, &sources, &coverage, &functions);
        let violations = uncalled::violations(&functions);
        if self.no_guests {
            println!("\nwithout the kernel tests, {} public functions are called by none", violations.len());
        }
        for violation in &violations {
            println!("{violation}");
        }
        let judged = self.no_guests || violations.is_empty();
        Ok(if judged && totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn run_guests(&self, built: &instrument::Built, filter: Filter<'_>, totals: &mut Totals) -> Result<()> {
        heading("What the lab needs");
        let lab = Lab::fetch(&self.kernels)?;
        heading("Tests on real kernels");
        let devices = if self.devices.is_empty() { &Tested::ALL[..] } else { &self.devices };
        let plan = Plan::instrumented(&lab, devices, filter, built.for_guests()?);
        let table = plan.run(self.accel, side_by_side(plan.processors()), &AtomicBool::new(false))?;
        table.print();
        totals.add(&table);
        Ok(())
    }
}

fn print_table(library: &[Crate], sources: &Sources, coverage: &Coverage, functions: &[(Function, bool)]) {
    println!("{:15}{:>22}{:>26}", "crate", "lines reached", "public functions called");
    let share = |(reached, all): (usize, usize)| {
        let percent = if all == 0 { 100.0 } else { 100.0 * reached as f64 / all as f64 };
        format!("{reached} of {all} {percent:5.1} %")
    };
    let mut sums = [(0, 0); 2];
    for name in library.iter().map(Crate::folder) {
        let lines = coverage.lines(name, |file, line| sources.is_test(file, line));
        let of_crate = functions.iter().filter(|(function, _)| function.is_in(name));
        let called = of_crate.clone().filter(|(_, called)| *called).count();
        let figures = [lines, (called, of_crate.count())];
        println!("{name:15}{:>22}{:>26}", share(figures[0]), share(figures[1]));
        for (sum, figure) in sums.iter_mut().zip(figures) {
            *sum = (sum.0 + figure.0, sum.1 + figure.1);
        }
    }
    println!("{:15}{:>22}{:>26}", "all", share(sums[0]), share(sums[1]));
}
