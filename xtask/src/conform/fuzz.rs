//! `cargo xtask conform --fuzz`: fuzzing of kernels by system call, each in a fresh guest.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bareverbs_conform::fuzz::Report;
use bareverbs_lab::{Accelerator, Exec};
use bareverbs_trace::replay;

use super::Testbed;
use crate::build;
use crate::experiment::Tested;

/// Time for the start, and for shrinking a failure.
const MORE: Duration = Duration::from_secs(400);

/// What to fuzz.
pub(crate) struct Fuzz<'a> {
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    pub(crate) device: Tested,
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
        let mut testbed = Testbed::boot(kernel, self.device, self.accelerator)?;
        let seconds = self.seconds.to_string();
        let seed = self.seed.to_string();
        let argv = [build::TOOL, "conform", "--fuzz", &seconds, "--seed", &seed, "--format", "json"];
        let argv = argv.map(str::to_owned).to_vec();
        let limit = Duration::from_secs(self.seconds) + MORE;
        let version = testbed.version.clone();
        let about = || format!("seed {seed} on {version}");
        let finished = testbed.guests.run(0, Exec { argv, ..Exec::default() }, limit).with_context(about)?;
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
        for warning in testbed.guests.shut_down()? {
            eprintln!("lab: {warning}");
        }
        Ok(report)
    }
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(file, bytes).with_context(|| format!("writing {}", file.display()))
}
