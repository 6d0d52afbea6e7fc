//! `cargo xtask conform --fuzz`: fuzzing of kernels by system call, each in a fresh guest.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bareverbs_conform::fuzz::Report;
use bareverbs_conform::replay;
use bareverbs_lab::{Accelerator, Cache, Exec, Guests, Hca, HcaPort, Setup, Tools};
use clap::ValueEnum;

use crate::{build, lab};

/// The device of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// Soft-RoCE.
    Rxe,
    /// The software ConnectX on Ethernet.
    Roce,
    /// The software ConnectX on InfiniBand.
    Ib,
}

/// Time for the start, and for shrinking a failure.
const MORE: Duration = Duration::from_secs(400);

/// What to fuzz.
pub(crate) struct Fuzz<'a> {
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    pub(crate) device: Device,
    pub(crate) accelerator: Accelerator,
    /// The folder for reports and failing programs.
    pub(crate) folder: &'a Path,
}

impl Fuzz<'_> {
    /// Fuzzes each kernel. A kernel that fails ends the run: the same seed repeats it.
    pub(crate) fn run(&self, kernels: &[String]) -> Result<ExitCode> {
        let mut failed = false;
        for kernel in kernels {
            let report = self.in_guest(kernel)?;
            print!("{report}");
            failed |= report.failure.is_some();
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn in_guest(&self, kernel: &str) -> Result<Report> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        let kernel = lab::kernel(&cache, &tools, kernel)?;
        let programs = build::guest_programs()?;
        let port = match self.device {
            Device::Rxe => None,
            Device::Roce => Some(HcaPort::Roce),
            Device::Ib => Some(HcaPort::Ib),
        };
        let hca = port.map(|port| Hca::start(&build::hca()?, port, 1, &[])).transpose()?;
        let mut guests = Guests::boot(&Setup {
            cache: &cache,
            tools: &tools,
            kernel: &kernel,
            programs: &programs,
            hosts: 1,
            rdma_core: None,
            shares: Vec::new(),
            accelerator: self.accelerator,
            instruction_clock: false,
            recording: None,
            hca: hca.as_ref(),
        })?;
        let seconds = self.seconds.to_string();
        let seed = self.seed.to_string();
        let argv = [build::TOOL, "conform", "--fuzz", &seconds, "--seed", &seed, "--format", "json"];
        let argv = argv.map(str::to_owned).to_vec();
        let limit = Duration::from_secs(self.seconds) + MORE;
        let about = || format!("seed {seed} on {}", kernel.version);
        let finished = guests.run(0, Exec { argv, ..Exec::default() }, limit).with_context(about)?;
        let errors = String::from_utf8_lossy(&finished.stderr);
        if finished.timed_out {
            bail!("{}: the fuzzer did not end in {} s: {errors}", about(), limit.as_secs());
        }
        let report: Report = serde_json::from_slice(&finished.stdout)
            .with_context(|| format!("{}: status {}: {errors}", about(), finished.status))?;
        let name = format!("fuzz-{}-{}", report.kernel, report.device);
        write(&self.folder.join(format!("{name}.json")), &finished.stdout)?;
        if let Some(failure) = &report.failure {
            let file = self.folder.join(format!("{name}-program.json"));
            let mut program = Vec::new();
            replay::write(&failure.program, &mut program)?;
            write(&file, &program)?;
            println!("the failing program, for `bareverbs replay`: {}", file.display());
        }
        for warning in guests.shut_down()? {
            eprintln!("lab: {warning}");
        }
        Ok(report)
    }
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(file, bytes).with_context(|| format!("writing {}", file.display()))
}
