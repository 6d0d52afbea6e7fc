//! `cargo xtask fuzz`: the fuzz targets under libFuzzer and AddressSanitizer.
//!
//! The programs are those of `fuzz/libfuzzer`, built with the flags of cargo-fuzz, which need not
//! be installed. `target/fuzz` has the results: the growing corpus, logs and reproducers.

mod corpus;
mod program;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indicatif::MultiProgress;

use self::program::{Program, Run};
use crate::build;

/// A nightly compiler, by its rustup name.
const TOOLCHAIN: &str = "nightly";

#[derive(Args)]
pub(crate) struct Fuzz {
    /// Targets (default: all).
    targets: Vec<String>,
    /// How long each target runs.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    minutes: u16,
    /// Targets that run side by side.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    jobs: u8,
    /// List the targets.
    #[arg(long)]
    list: bool,
    /// Run one target on this file only, to reproduce a finding.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["list", "merge"])]
    input: Option<PathBuf>,
    /// Run nothing; minimize the repository's corpus without losing coverage.
    #[arg(long, conflicts_with = "list")]
    merge: bool,
}

impl Fuzz {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let all = names()?;
        if self.list {
            all.iter().for_each(|name| println!("{name}"));
            return Ok(ExitCode::SUCCESS);
        }
        let unknown = self.targets.iter().find(|name| !all.contains(name));
        if let Some(unknown) = unknown {
            bail!("unknown target {unknown}; targets: {}", all.join(", "));
        }
        let targets = if self.targets.is_empty() { &all } else { &self.targets };
        if let Some(input) = &self.input {
            let [target] = &self.targets[..] else { bail!("--input requires exactly one target") };
            return build_programs(targets)?.program(target).reproduce(input);
        }
        let programs = build_programs(targets)?;
        if self.merge {
            for target in targets {
                println!("{}", corpus::merge(&programs.program(target))?);
            }
            return Ok(ExitCode::SUCCESS);
        }
        self.fuzz(targets, &programs)
    }

    fn fuzz(&self, targets: &[String], programs: &Programs) -> Result<ExitCode> {
        let width = targets.iter().map(String::len).max().unwrap_or(0);
        println!("{:width$}  {}", "target", Run::HEADING);
        let waiting: Mutex<VecDeque<&String>> = Mutex::new(targets.iter().collect());
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let progress = MultiProgress::new();
        let work = || -> Result<Vec<String>> {
            let mut found = Vec::new();
            while let Some(target) = next() {
                let run = programs.program(target).run(u64::from(self.minutes) * 60, &progress)?;
                progress.suspend(|| println!("{target:width$}  {run}"));
                found.extend(run.report(target));
            }
            Ok(found)
        };
        let found = thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs).map(|_| scope.spawn(work)).collect();
            let found = workers.into_iter().map(|worker| worker.join().expect("a worker does not panic"));
            found.collect::<Result<Vec<_>>>()
        })?
        .concat();
        found.iter().for_each(|report| println!("\n{report}"));
        Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The folder of the programs' sources.
fn source() -> PathBuf {
    build::workspace().join("fuzz/libfuzzer")
}

/// The folder of builds and findings.
fn target_folder() -> PathBuf {
    build::workspace().join("target/fuzz")
}

/// The targets. The files of their programs have the same names.
fn names() -> Result<Vec<String>> {
    let folder = source().join("fuzz_targets");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// The built programs.
struct Programs {
    folder: PathBuf,
}

impl Programs {
    fn program(&self, target: &str) -> Program {
        Program::new(target, self.folder.join(target), &target_folder(), seeds(target))
    }
}

/// The repository's corpus of a target.
fn seeds(target: &str) -> PathBuf {
    build::workspace().join("fuzz/corpus").join(target)
}

/// A command of the nightly toolchain.
fn nightly(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", TOOLCHAIN, program]);
    for inherited in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "CARGO_ENCODED_RUSTFLAGS"] {
        command.env_remove(inherited);
    }
    command
}

/// The nightly compiler's host target, if it is installed.
fn host() -> Result<String> {
    let output = nightly("rustc").args(["--version", "--verbose"]).output();
    let text = match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => {
            bail!(
                "fuzzing requires a nightly compiler: rustup toolchain install {TOOLCHAIN} --profile minimal"
            )
        }
    };
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}

/// Builds the programs of these targets. The flags are those of cargo-fuzz: coverage counters that
/// libFuzzer reads, and AddressSanitizer.
fn build_programs(targets: &[String]) -> Result<Programs> {
    const FLAGS: [&str; 9] = [
        "-Cpasses=sancov-module",
        "-Cllvm-args=-sanitizer-coverage-level=4",
        "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
        "-Cllvm-args=-sanitizer-coverage-pc-table",
        "-Cllvm-args=-sanitizer-coverage-trace-compares",
        "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
        "-Zsanitizer=address",
        "-Ccodegen-units=1",
        "--cfg=fuzzing",
    ];
    let host = host()?;
    let compiler = Command::new("c++").arg("--version").output();
    ensure!(
        compiler.is_ok_and(|output| output.status.success()),
        "libFuzzer is built from source and requires a C++ compiler: apt-get install g++"
    );
    let folder = target_folder().join("build");
    let mut cargo = nightly("cargo");
    cargo.args(["build", "--quiet", "--release", "--target", &host]).arg("--target-dir").arg(&folder);
    cargo.arg("--manifest-path").arg(source().join("Cargo.toml"));
    cargo.args(targets.iter().flat_map(|target| ["--bin", target]));
    cargo.env("RUSTFLAGS", FLAGS.join(" "));
    if !cargo.status().context("running cargo")?.success() {
        bail!("the fuzz targets could not be built");
    }
    Ok(Programs { folder: folder.join(host).join("release") })
}

/// The number of files in a folder; 0 if there is no folder.
fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, |entries| entries.count())
}
