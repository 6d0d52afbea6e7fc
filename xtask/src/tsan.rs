//! `cargo xtask tsan`: the threaded tests of provider-mlx5 and of the drop-in library under
//! ThreadSanitizer.
//!
//! Any toolchain with ThreadSanitizer's runtime works: `RUSTC_BOOTSTRAP` unlocks the options that
//! need a nightly compiler. If the standard library's source is available (`rustup component add
//! rust-src`, or the folder of `--rust-src`), the standard library is built for ThreadSanitizer
//! too. Otherwise the prebuilt one is linked, and provider-mlx5 makes the synchronisation visible where
//! it relies on the standard library's: `tests/threads/tsan.rs` and the locks of `src/lock.rs`. The
//! drop-in library has soft devices in it, which use the standard library's locks: its tests need the
//! source.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build;
use crate::print::heading;

/// A program with threaded tests.
pub(crate) struct Program {
    /// The name of its check among the tests.
    pub(crate) title: &'static str,
    package: &'static str,
    /// The options of cargo that select it.
    target: &'static [&'static str],
    /// Options of the compiler for it.
    options: &'static [&'static str],
    /// The tests to run have names that contain this.
    tests: Option<&'static str>,
    /// Whether it needs a standard library that is built for ThreadSanitizer.
    needs_source: bool,
}

pub(crate) const PROGRAMS: [Program; 2] = [
    Program {
        title: "tsan::mlx5_threads_have_no_data_race",
        package: "bareverbs-mlx5",
        target: &["--test", "threads"],
        options: &["-Clink-arg=-Wl,--wrap=__tsan_atomic64_fetch_sub"],
        tests: None,
        needs_source: false,
    },
    Program {
        title: "tsan::dropin_threads_have_no_data_race",
        package: "bareverbs-dropin",
        target: &["--lib"],
        options: &[],
        tests: Some("tests::threads::"),
        needs_source: true,
    },
];

/// The target must be named; otherwise build scripts and macros are built for ThreadSanitizer too.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The folder of the standard library's source in a toolchain.
const SOURCE: &str = "lib/rustlib/src/rust/library";

#[derive(Args)]
pub(crate) struct Tsan {
    /// Milliseconds of each test's main loop.
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    milliseconds: u32,
    /// Link the standard library that comes with the compiler even where its source is there.
    #[arg(long)]
    prebuilt: bool,
    /// The `library` folder of the standard library's source, of the toolchain's version.
    #[arg(long, value_name = "FOLDER", conflicts_with = "prebuilt")]
    rust_src: Option<PathBuf>,
    /// Run only the tests whose names contain this.
    filter: Option<String>,
}

impl Default for Tsan {
    fn default() -> Self {
        Self { milliseconds: 2000, prebuilt: false, rust_src: None, filter: None }
    }
}

impl Tsan {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut is_clean = true;
        for program in &PROGRAMS {
            match self.measure(program)? {
                // Another program has the tests that were asked for.
                Ok(report) if report.is_empty() && self.filter.is_some() => {}
                Ok(report) => is_clean &= report.is_clean(),
                Err(reason) => println!("skipped: {}: {reason}", program.title),
            }
        }
        Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Builds a program and runs its tests. The inner error is the reason why they can't be run here.
    pub(crate) fn measure(&self, program: &Program) -> Result<Result<Report, String>> {
        match Toolchain::find(self.prebuilt, self.rust_src.as_deref()) {
            Ok(toolchain) if program.needs_source && toolchain.source.is_none() => {
                Ok(Err("needs the standard library's source: `rustup component add rust-src`".to_owned()))
            }
            Ok(toolchain) => {
                let report = self.measure_with(&toolchain, program)?;
                println!("{report}");
                Ok(Ok(report))
            }
            Err(reason) => Ok(Err(reason)),
        }
    }

    fn measure_with(&self, toolchain: &Toolchain, program: &Program) -> Result<Report> {
        println!("{toolchain}");
        let mut tests = Command::new(toolchain.build(program)?);
        tests
            .args(["--test-threads=1"])
            .args(self.filter.as_deref().or(program.tests))
            .env("BAREVERBS_THREADS_MS", self.milliseconds.to_string())
            // A race is reported once by each test that has it. The tests continue, so that their
            // own checks run too.
            .env("TSAN_OPTIONS", toolchain.options())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = tests.spawn().context("running the threaded tests")?;
        let stderr = child.stderr.take().context("its errors are piped")?;
        let reports = std::thread::spawn(move || {
            let mut races = 0;
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                races += usize::from(is_report(&line));
                eprintln!("{line}");
            }
            races
        });
        let mut report = Report::default();
        for line in BufReader::new(child.stdout.take().context("its output is piped")?).lines() {
            let line = line?;
            println!("{line}");
            if let Some((passed, failed)) = crate::outcome::result_line(&line) {
                (report.passed, report.failed) = (passed, failed);
            }
        }
        report.races = reports.join().unwrap_or_default();
        report.ended_well = child.wait()?.success();
        Ok(report)
    }
}

/// Whether a line is the start of one of ThreadSanitizer's reports.
fn is_report(line: &str) -> bool {
    line.contains("WARNING: ThreadSanitizer:")
}

/// The results of the tests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    passed: usize,
    failed: usize,
    races: usize,
    ended_well: bool,
}

impl Report {
    /// Whether there were no tests.
    fn is_empty(&self) -> bool {
        self.ended_well && self.passed == 0
    }

    /// Whether all tests ran without a failure or a report.
    pub(crate) fn is_clean(&self) -> bool {
        self.ended_well && self.races == 0 && self.failed == 0 && self.passed > 0
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { passed, failed, races, .. } = self;
        write!(f, "ThreadSanitizer: {passed} tests passed, {failed} failed; {races} reports")
    }
}

/// A compiler that can build for ThreadSanitizer.
#[derive(Debug)]
pub(crate) struct Toolchain {
    /// Its root folder.
    sysroot: PathBuf,
    /// The standard library's source, to be built for ThreadSanitizer.
    source: Option<PathBuf>,
}

impl std::fmt::Display for Toolchain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let library = if self.source.is_some() { "built for ThreadSanitizer" } else { "as it comes" };
        write!(f, "{}, standard library {library}", self.sysroot.display())
    }
}

impl Toolchain {
    /// The best toolchain: one with the standard library's source is preferred. `given` is a folder
    /// with that source.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn find(prebuilt: bool, given: Option<&Path>) -> Result<Self, String> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            return Err("the device's accesses are hidden from ThreadSanitizer on x86-64 only".to_owned());
        }
        let sysroots = sysroot("nightly").into_iter().chain(own_sysroot());
        let able: Vec<_> = sysroots.filter(|sysroot| has_runtime(sysroot)).collect();
        let Some(first) = able.first() else {
            return Err("no toolchain here has ThreadSanitizer's runtime (librustc-*_rt.tsan.a)".to_owned());
        };
        let sources = able.iter().map(|sysroot| (sysroot, sysroot.join(SOURCE)));
        let with_source = given.map(|given| (first, given.to_owned())).into_iter().chain(sources);
        let found = with_source.filter(|_| !prebuilt).find(|(_, source)| source.join("Cargo.lock").exists());
        Ok(match found {
            Some((sysroot, source)) => Self { sysroot: sysroot.clone(), source: Some(source) },
            None => Self { sysroot: first.clone(), source: None },
        })
    }

    /// ThreadSanitizer's options.
    fn options(&self) -> String {
        let suppressions = build::workspace().join("xtask/tsan.supp");
        match self.source {
            Some(_) => "history_size=4".to_owned(),
            None => format!("history_size=4 suppressions={}", suppressions.display()),
        }
    }

    /// Builds the tests of a program. Returns its path.
    fn build(&self, program: &Program) -> Result<PathBuf> {
        heading(&format!("Building the threaded tests of {} for ThreadSanitizer", program.package));
        let bin = self.sysroot.join("bin");
        let mut cargo = Command::new(bin.join("cargo"));
        let mut flags = vec![
            "-Zsanitizer=thread",
            // The device's accesses belong to no thread.
            "--cfg=bareverbs_tsan",
            // ThreadSanitizer intercepts libc's mmap and munmap, but not system calls.
            "--cfg=rustix_use_libc",
        ];
        let target = build::workspace().join("target/tsan");
        match &self.source {
            Some(source) => {
                cargo.arg("rustc").arg("-Zbuild-std").arg("--target-dir").arg(target.join("whole"));
                if source != &self.sysroot.join(SOURCE) {
                    // Cargo has no other option to build another standard library.
                    cargo.env("__CARGO_TESTS_ONLY_SRC_ROOT", source);
                }
            }
            None => {
                flags.push("-Cunsafe-allow-abi-mismatch=sanitizer");
                cargo.arg("rustc").arg("--target-dir").arg(target.join("prebuilt"));
            }
        }
        cargo
            .current_dir(build::workspace())
            .args(["--quiet", "--message-format=json-render-diagnostics", "--target", TARGET])
            .args(["--profile", "test", "--package", program.package])
            .args(program.target)
            .arg("--")
            .args(program.options)
            .env("RUSTC", bin.join("rustc"))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .env_remove("RUSTFLAGS")
            .stderr(Stdio::inherit());
        let output = cargo.output().context("running cargo")?;
        if !output.status.success() {
            bail!("the threaded tests could not be built for ThreadSanitizer");
        }
        let messages = String::from_utf8(output.stdout).context("cargo's messages")?;
        messages.lines().rev().find_map(executable).context("cargo built no test program")
    }
}

/// The path of the program in one of cargo's messages.
fn executable(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    message.get("executable")?.as_str().map(PathBuf::from)
}

/// The root folder of one of rustup's toolchains.
fn sysroot(toolchain: &str) -> Option<PathBuf> {
    let rustc = Command::new("rustup").args(["which", "--toolchain", toolchain, "rustc"]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(rustc.stdout).ok()?.trim());
    rustc.status.success().then(|| path.parent()?.parent().map(Path::to_owned)).flatten()
}

/// The root folder of the toolchain that runs this.
fn own_sysroot() -> Option<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

/// Whether a toolchain has ThreadSanitizer's runtime.
fn has_runtime(sysroot: &Path) -> bool {
    let folder = sysroot.join("lib/rustlib").join(TARGET).join("lib");
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().to_string_lossy().ends_with("_rt.tsan.a"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tsan_reports_and_programs_are_parsed() {
        assert!(is_report("WARNING: ThreadSanitizer: data race (pid=1)"));
        assert!(!is_report("ThreadSanitizer: reported 1 warnings"));
        let message = r#"{"reason":"compiler-artifact","executable":"/target/threads-1"}"#;
        assert_eq!(executable(message), Some(PathBuf::from("/target/threads-1")));
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":null}"#), None);
    }

    #[test]
    fn tsan_run_without_tests_or_with_report_fails() {
        let clean = Report { passed: 9, failed: 0, races: 0, ended_well: true };
        assert!(clean.is_clean() && !clean.is_empty());
        for report in [
            Report { passed: 0, ..clean },
            Report { failed: 1, ..clean },
            Report { races: 1, ..clean },
            Report { ended_well: false, ..clean },
        ] {
            assert!(!report.is_clean(), "{report:?}");
        }
    }
}
