//! `cargo xtask loom`: models of shared state between threads, in all interleavings that the memory
//! model allows.

use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::outcome::result_line;
use crate::{build, crates};

#[derive(Args)]
pub(crate) struct Loom {
    /// Run only the models whose names contain this.
    #[arg(default_value = "loom")]
    filter: String,
    /// How often a thread may be preempted (default: as set by each model).
    #[arg(long, value_name = "N")]
    preemptions: Option<u32>,
}

impl Loom {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (passed, failed) = models(&self.filter, self.preemptions)?;
        println!("{passed} passed, {failed} failed");
        Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Runs the models, in modules whose names begin with `loom`. Returns how many passed and failed.
pub(crate) fn models(filter: &str, preemptions: Option<u32>) -> Result<(usize, usize)> {
    let mut cargo = build::cargo();
    cargo.args(["test", "--lib", "--no-fail-fast"]);
    // The models spend most of their time in loom. To optimize the rest takes longer than it saves.
    cargo.args(["--config", "profile.dev.package.loom.opt-level=2"]);
    for package in crates::with_models()? {
        cargo.args(["--package", &package]);
    }
    // A separate target folder: loom's atomics are other types than std's, so other builds can't
    // share it.
    cargo.arg("--target-dir").arg(build::target_folder().join("loom")).args(["--", filter]);
    cargo.env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_ENCODED_RUSTFLAGS");
    if let Some(preemptions) = preemptions {
        cargo.env("LOOM_MAX_PREEMPTIONS", preemptions.to_string());
    }
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("running cargo")?;
    let stdout = child.stdout.take().context("its output is piped")?;
    let (mut passed, mut failed) = (0, 0);
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        let (more, less) = result_line(&line).unwrap_or_default();
        (passed, failed) = (passed + more, failed + less);
    }
    if !child.wait()?.success() && failed == 0 {
        bail!("the models could not be built or run");
    }
    Ok((passed, failed))
}
