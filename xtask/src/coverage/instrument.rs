//! Builds and runs the project's own crates with coverage counters. Dependencies are not
//! instrumented.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use bareverbs_lab::Programs;

use crate::guest_tests::{PROFILE_FILE, TestBinary, listed, test_binaries};
use crate::outcome::{Totals, result_line};
use crate::test::Instrumented;
use crate::{build, crates};

/// Set if cargo runs this program as the compiler wrapper.
const WRAPPER: &str = "BAREVERBS_COVERAGE_WRAPPER";

/// The packages whose tests run besides those of the library.
const TESTS: [&str; 3] = ["bareverbs-abi-tests", "bareverbs-kernel-tests", "bareverbs-interop-tests"];

/// The folders of the crates whose tests run in guests.
const GUEST_TEST_FOLDERS: [&str; 2] = ["tests/kernel", "tests/interop"];

/// Runs the compiler with instrumentation, if cargo runs this program as the compiler wrapper.
///
/// Cargo uses the wrapper for the workspace's own crates only. All of them are instrumented,
/// because generic and inlined functions of a product crate are compiled into the crates that call
/// them.
pub(crate) fn compile_if_wrapper() -> Option<ExitCode> {
    std::env::var_os(WRAPPER)?;
    let mut arguments = std::env::args_os().skip(1);
    let Some(compiler) = arguments.next() else {
        eprintln!("error: {WRAPPER} is set, but no compiler was named");
        return Some(ExitCode::FAILURE);
    };
    let error = Command::new(&compiler).args(arguments).arg("-Cinstrument-coverage").exec();
    eprintln!("error: running {}: {error}", compiler.display());
    Some(ExitCode::FAILURE)
}

/// The major version of the LLVM in the compiler.
pub(super) fn llvm_major() -> Result<u32> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").current_dir(build::workspace()).output();
    let output = output.context("running rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    let major = version.and_then(|version| version.split('.').next()?.parse().ok());
    major.context("rustc -vV names no LLVM version")
}

/// The folder of the profiles.
pub(super) fn profile_folder() -> PathBuf {
    target_folder().join("profiles")
}

/// A separate target folder: cargo rebuilds everything when the flags change.
pub(super) fn target_folder() -> PathBuf {
    build::workspace().join("target/coverage")
}

/// Instrumented programs.
pub(super) struct Built {
    pub(super) tests: Vec<TestBinary>,
    pub(super) tool: PathBuf,
}

/// Builds the tests and our tool with coverage counters.
pub(super) fn build() -> Result<Built> {
    let mut cargo = cargo("build")?;
    cargo.args(["--quiet", "--package", "bareverbs-tools"]);
    if !cargo.status().context("running cargo")?.success() {
        bail!("the instrumented tool could not be built");
    }
    let tests = test_binaries(test_cargo()?)?;
    Ok(Built { tests, tool: target_folder().join(build::TARGET).join("debug").join(build::TOOL) })
}

impl Built {
    /// All programs that list functions and count their calls.
    pub(super) fn programs(&self) -> impl Iterator<Item = &PathBuf> {
        self.tests.iter().map(|test| &test.path).chain([&self.tool])
    }

    /// The programs for guests.
    pub(super) fn for_guests(&self) -> Result<Instrumented> {
        let folders = GUEST_TEST_FOLDERS.map(|folder| build::workspace().join(folder));
        let in_guests = self
            .tests
            .iter()
            .filter(|test| test.integration && folders.iter().any(|folder| test.source.starts_with(folder)));
        let (folder, tests) = listed(in_guests)?;
        let on_path = BTreeMap::from([(build::TOOL.to_owned(), self.tool.clone())]);
        let programs = Programs { init: build::guest_init()?, on_path };
        Ok(Instrumented { programs, folder, tests, profiles: profile_folder() })
    }
}

/// Runs the tests that need no kernel. The others are reported as ignored.
pub(super) fn run_plain_tests(totals: &mut Totals) -> Result<()> {
    let mut cargo = test_cargo()?;
    cargo.arg("--no-fail-fast").stdout(Stdio::piped());
    cargo.env(PROFILE_FILE, profile_folder().join("host-%m.profraw"));
    let mut child = cargo.spawn().context("running cargo")?;
    let stdout = child.stdout.take().context("its output is piped")?;
    let before = totals.failed;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        let (passed, failed) = result_line(&line).unwrap_or_default();
        totals.passed += passed;
        totals.failed += failed;
    }
    if !child.wait().context("waiting for cargo")?.success() && totals.failed == before {
        bail!("cargo test failed");
    }
    Ok(())
}

/// `cargo test` of all tests except doctests, which only a nightly compiler can instrument.
fn test_cargo() -> Result<Command> {
    let mut cargo = cargo("test")?;
    cargo.args(["--tests", "--all-features"]);
    for found in crates::library()? {
        cargo.args(["--package", &found.name]);
    }
    cargo.args(TESTS.iter().flat_map(|package| ["--package", package]));
    Ok(cargo)
}

/// A cargo command that instruments the workspace's crates.
fn cargo(subcommand: &str) -> Result<Command> {
    let mut cargo = build::static_cargo_in(build::workspace(), &target_folder(), subcommand);
    let wrapper = std::env::current_exe().context("finding this program")?;
    cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper).env(WRAPPER, "1");
    // By default, a program that runs during the build writes its profile to the current folder.
    cargo.env(PROFILE_FILE, "/dev/null");
    cargo.args(build::GUEST_PROFILE);
    Ok(cargo)
}
