//! `cargo xtask conform`: the conformance suite on several kernels.

mod bisect;
mod fuzz;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bareverbs_conform::{Results, report};
use bareverbs_lab::{Accelerator, Cache, Exec, Guests, Hca, HcaPort, Series, Setup, Tools};
use clap::{Args, Subcommand, ValueEnum};

use crate::{build, lab};

/// Timeout of the suite on one kernel.
const LIMIT: Duration = Duration::from_secs(1200);

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
    /// Also run checks that crash or corrupt kernels which break their rule.
    #[arg(long)]
    hazard: bool,
    /// Fuzz each kernel for this long instead of running checks.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["filter", "hazard"])]
    fuzz: Option<u64>,
    /// The device of the guests.
    #[arg(long, value_enum, default_value = "rxe")]
    device: Device,
    /// The folder for the results of each kernel and the page (default: target/conform).
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The accelerator: auto, kvm or tcg.
    #[arg(long, default_value = "auto")]
    accel: Accelerator,
}

/// The device of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// Soft-RoCE.
    Rxe,
    /// The software ConnectX on Ethernet.
    Roce,
    /// The software ConnectX on InfiniBand.
    Ib,
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
    fn boot(kernel: &str, device: Device, accelerator: Accelerator) -> Result<Self> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        let kernel = lab::kernel(&cache, &tools, kernel)?;
        let programs = build::guest_programs()?;
        let port = match device {
            Device::Rxe => None,
            Device::Roce => Some(HcaPort::Roce),
            Device::Ib => Some(HcaPort::Ib),
        };
        let hca = port.map(|port| Hca::start(&build::hca()?, port, 1, &[])).transpose()?;
        let guests = Guests::boot(&Setup {
            cache: &cache,
            tools: &tools,
            kernel: &kernel,
            programs: &programs,
            hosts: 1,
            rdma_core: None,
            shares: Vec::new(),
            accelerator,
            instruction_clock: false,
            recording: None,
            hca: hca.as_ref(),
        })?;
        Ok(Self { guests, _hca: hca, version: kernel.version })
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
            let testbed = self.boot(kernel)?;
            let (text, results) = self.check(testbed).with_context(|| format!("on kernel {kernel}"))?;
            let file = folder.join(format!("{}-{}.json", results.kernel, results.device));
            fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
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

    /// Runs the suite in a fresh guest. Returns its results, also as JSON.
    fn check(&self, mut testbed: Testbed) -> Result<(String, Results)> {
        let mut argv: Vec<String> =
            [build::TOOL, "conform", "--format", "json", "--seed"].map(str::to_owned).into();
        argv.push(self.seed.to_string());
        argv.extend(self.hazard.then(|| "--hazard".to_owned()));
        argv.extend(self.filter.iter().flat_map(|pattern| ["--filter".to_owned(), pattern.clone()]));
        let finished = testbed.guests.run(0, Exec { argv, ..Exec::default() }, LIMIT)?;
        if finished.timed_out {
            bail!("the suite did not end in {} s", LIMIT.as_secs());
        }
        let errors = String::from_utf8_lossy(&finished.stderr);
        ensure!([0, 1, 4].contains(&finished.status), "status {}: {errors}", finished.status);
        ensure!(!finished.stdout.is_empty(), "no results: {errors}");
        for warning in testbed.guests.shut_down()? {
            eprintln!("lab: {warning}");
        }
        let text = String::from_utf8(finished.stdout)?;
        let results = serde_json::from_str(&text).context("the guest printed no results")?;
        Ok((text, results))
    }
}
