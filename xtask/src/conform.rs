//! `cargo xtask conform`: the conformance suite on several kernels.

mod bisect;
mod fuzz;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use std::{fmt, fs};

use anyhow::{Context, Result, ensure};
use bareverbs_conform::{Outcome, Results, Rule, Verdict, report};
use bareverbs_lab::{Accelerator, Exec, Failure, Guests, Hca, Series, Setup};
use clap::{Args, Subcommand};

use crate::build;
use crate::experiment::{self, Files, Tested};

/// Timeout of the suite on one kernel.
const LIMIT: Duration = Duration::from_secs(1200);

/// The suite did not end in time.
#[derive(Debug)]
struct Endless;

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the suite did not end in {} s", LIMIT.as_secs())
    }
}

impl std::error::Error for Endless {}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Conform {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    matrix: Matrix,
}

#[derive(Subcommand)]
enum Action {
    /// Find the commit of a kernel tree that changed the result of a check.
    Bisect(bisect::Bisect),
    /// Build the checked-out commit and run a check: exit status 0, 1 or 125 for git bisect run.
    BisectStep(bisect::Step),
}

impl Conform {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.action {
            None => self.matrix.run(),
            Some(Action::Bisect(bisect)) => bisect.run(),
            Some(Action::BisectStep(step)) => Ok(step.run()),
        }
    }
}

#[derive(Args)]
struct Matrix {
    /// Series such as 6.12, rc, built kernel trees, folders with a kernel or bzImages, separated by
    /// commas (default: all series that Debian ships).
    #[arg(long, alias = "kernel", value_name = "KERNEL", value_delimiter = ',')]
    kernels: Vec<String>,
    /// Run the checks whose names contain this or match it with * and ?.
    #[arg(long, value_name = "PATTERN")]
    filter: Option<String>,
    /// Run the checks in the random order of this seed; the seed of --fuzz.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Also run checks that crash or corrupt kernels which break their rule. A kernel that does not
    /// survive a check fails it; the next check gets a new guest.
    #[arg(long)]
    hazard: bool,
    /// Fuzz each kernel for this long instead of running checks.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["filter", "hazard"])]
    fuzz: Option<u64>,
    /// The device of the guests.
    #[arg(long, value_enum, default_value = "rxe")]
    device: Tested,
    /// The folder for the results of each kernel and the page (default: target/conform).
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The accelerator: auto, kvm or tcg.
    #[arg(long, default_value = "auto")]
    accel: Accelerator,
}

/// A guest with its device.
struct Testbed {
    guests: Guests,
    /// The software ConnectX, which runs as long as the guest.
    _hca: Option<Hca>,
    /// The version of the kernel.
    version: String,
}

impl Testbed {
    /// Boots a guest with a kernel.
    fn boot(kernel: &str, device: Tested, accelerator: Accelerator) -> Result<Self> {
        let mut files = Files::fetch(kernel, build::guest_programs()?)?;
        if device == Tested::Siw {
            files.add_siw(kernel)?;
        }
        let hca = experiment::start_hca(device.port(), 1, &[])?;
        let link_type = device.link_type();
        let guests = Guests::boot(&Setup { accelerator, link_type, hca: hca.as_ref(), ..files.setup() })?;
        Ok(Self { guests, _hca: hca, version: files.kernel.version })
    }
}

impl Matrix {
    fn run(self) -> Result<ExitCode> {
        let folder = self.out.clone().unwrap_or_else(|| build::workspace().join("target/conform"));
        fs::create_dir_all(&folder)?;
        let kernels = match self.kernels.as_slice() {
            [] => Series::RELEASED.iter().map(ToString::to_string).collect(),
            kernels => kernels.to_vec(),
        };
        if let Some(seconds) = self.fuzz {
            let Self { seed, device, accel: accelerator, .. } = self;
            return fuzz::Fuzz { seconds, seed, device, accelerator, folder: &folder }.run(&kernels);
        }
        let mut runs = Vec::new();
        for kernel in &kernels {
            let results = self.results(kernel).with_context(|| format!("on kernel {kernel}"))?;
            let file = folder.join(format!("{}-{}.json", results.kernel, results.device));
            fs::write(&file, report::json(&results))
                .with_context(|| format!("writing {}", file.display()))?;
            print!("{}", report::summary(&results));
            runs.push(results);
        }
        let page = folder.join("index.html");
        fs::write(&page, report::html(&runs)).with_context(|| format!("writing {}", page.display()))?;
        println!("the page is {}", page.display());
        let failed = runs.iter().any(|results| results.exit_status() != 0);
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Boots a guest with a kernel.
    fn boot(&self, kernel: &str) -> Result<Testbed> {
        Testbed::boot(kernel, self.device, self.accel)
    }

    /// Runs the suite in fresh guests.
    fn results(&self, kernel: &str) -> Result<Results> {
        let mut testbed = self.boot(kernel)?;
        let selected = self.filter.iter().flat_map(|pattern| ["--filter", pattern]);
        let arguments: Vec<&str> = selected.collect();
        let mut results = testbed.check(self.seed, &arguments)?;
        if self.hazard {
            for name in testbed.hazards(&arguments)? {
                let outcome = testbed.hazardous(self.seed, &name)?.context("a listed check has no result")?;
                let survived = outcome.verdict != Verdict::Failed && !outcome.known_bug;
                results.checks.push(outcome);
                // The kernel may be damaged.
                if !survived {
                    testbed = self.boot(kernel)?;
                }
            }
        }
        testbed.shut_down()?;
        Ok(results)
    }
}

impl Testbed {
    /// Runs `bareverbs conform` to its end. Returns what it prints: nothing if it lists no check or finds
    /// no device.
    fn conform(&mut self, arguments: &[&str]) -> Result<String> {
        let argv = [build::TOOL, "conform"].into_iter().chain(arguments.iter().copied());
        let argv = argv.map(str::to_owned).collect();
        let finished = self.guests.run(0, Exec { argv, ..Exec::default() }, LIMIT)?;
        if finished.timed_out {
            return Err(Endless.into());
        }
        let errors = String::from_utf8_lossy(&finished.stderr);
        ensure!([0, 1, 4].contains(&finished.status), "status {}: {errors}", finished.status);
        // The reason why there is nothing to check.
        if finished.stdout.is_empty() && !errors.is_empty() {
            eprintln!("{}", errors.trim_end());
        }
        Ok(String::from_utf8(finished.stdout)?)
    }

    /// Runs checks.
    fn check(&mut self, seed: u64, arguments: &[&str]) -> Result<Results> {
        let seed = seed.to_string();
        let arguments = [&["--format", "json", "--seed", &seed], arguments].concat();
        serde_json::from_str(&self.conform(&arguments)?).context("the guest printed no results")
    }

    /// The names of the selected checks that run on request only.
    fn hazards(&mut self, arguments: &[&str]) -> Result<Vec<String>> {
        let mut names = |more: &[&str]| -> Result<Vec<String>> {
            let text = self.conform(&[&["--list"], more, arguments].concat())?;
            let names = text.lines().filter_map(|line| line.split_once(": "));
            Ok(names.map(|(name, _)| name.to_owned()).collect())
        };
        let harmless: BTreeSet<String> = names(&[])?.into_iter().collect();
        Ok(names(&["--hazard"])?.into_iter().filter(|name| !harmless.contains(name)).collect())
    }

    /// Runs one check that may end the guest; `None` if there is no such check. A kernel that does not
    /// survive fails it.
    fn hazardous(&mut self, seed: u64, name: &str) -> Result<Option<Outcome>> {
        let error = match self.check(seed, &["--hazard", "--filter", name]) {
            Ok(results) => return Ok(results.checks.into_iter().find(|outcome| outcome.name == name)),
            Err(error) if error.is::<Failure>() || error.is::<Endless>() => error,
            Err(error) => return Err(error),
        };
        let part = name.rsplit("::").next().unwrap_or_default();
        let rules = Rule::ALL.iter().map(|rule| rule.id()).filter(|id| part.starts_with(id));
        Ok(Some(Outcome {
            name: name.to_owned(),
            rule: rules.max_by_key(|id| id.len()).unwrap_or_default().to_owned(),
            verdict: Verdict::Failed,
            expected: String::new(),
            got: String::new(),
            call: String::new(),
            reason: "the kernel did not survive the check".to_owned(),
            change: String::new(),
            is_changed: None,
            known_bug: false,
            kernel_log: error.to_string().lines().map(str::to_owned).collect(),
        }))
    }

    fn shut_down(self) -> Result<()> {
        for warning in self.guests.shut_down()? {
            eprintln!("lab: {warning}");
        }
        Ok(())
    }
}
