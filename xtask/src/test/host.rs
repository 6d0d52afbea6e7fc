//! The checks that need no kernel. They run beside the guests, with low priority: none depends on the
//! load of the machine.

use std::io::{BufRead, BufReader};
use std::mem;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::{documentation, soft, stopping, succeed, targets};
use crate::experiment::ceilings::Ceilings;
use crate::filter::Filter;
use crate::guest_tests::{GUEST_TEST_CRATES, guest_unit_tests};
use crate::outcome::{Table, Totals, cause, result_line};
use crate::print::heading;
use crate::tsan::{PROGRAMS, Tsan};
use crate::{build, counts, crates, dropin, imports, loom, package, pyverbs, spelling};

/// What precedes each line of a test's output, as the kernel's name does for tests in guests.
const NAME: &str = "host";

/// Limit of the size of our tool.
const LARGEST_PROGRAM: u64 = 9 << 20;

/// The results.
#[derive(Default)]
pub(super) struct Host {
    pub(super) totals: Totals,
    /// The names of failed tests.
    pub(super) failures: Vec<String>,
    /// None: there is no valgrind here.
    counted: Option<Ceilings>,
    /// The kernel tests on soft devices.
    pub(super) soft: Table,
}

/// A check, and its name.
type Check = (&'static str, fn(&mut Host) -> Result<()>);

/// What finds most errors comes first.
const CHECKS: [Check; 13] = [
    ("spelling", |_| spelling::check()),
    ("imports", |_| imports::check()),
    ("clippy", |_| clippy()),
    ("tests without a kernel", Host::plain_tests),
    ("kernel tests on soft devices", Host::soft_devices),
    ("drop-in library", |_| dropin::check().and_then(|()| pyverbs::check_on_soft_device())),
    // One processor builds and counts: not at the end, when the guests leave two.
    (counts::TITLE, Host::counts),
    ("models of what threads share", Host::models),
    ("data races", Host::data_races),
    ("selections of features", |_| feature_selections()),
    ("documentation", |_| documentation()),
    ("packages", |_| package::check()),
    ("other targets", |host| targets::check(&mut host.totals)),
];

/// The check that only a run of everything has: building with link-time optimization takes minutes.
pub(super) const PUBLISHED: &str = "size of the published program";

/// Runs all checks, or those for each change. Failed tests are counted. Any other error ends the checks,
/// and `stop` ends them and the guests.
pub(super) fn check(everything: bool, stop: &AtomicBool) -> Result<Host> {
    let mut host = Host::default();
    let published: Option<Check> = everything.then_some((PUBLISHED, |_| published_program()));
    for (name, check) in CHECKS.into_iter().chain(published) {
        if stop.load(Ordering::Relaxed) {
            bail!("stopped before: {name}");
        }
        let begin = Instant::now();
        stopping(stop, || check(&mut host).context(name))?;
        println!("{NAME}: {name} ... done ({:.1} s)", begin.elapsed().as_secs_f64());
    }
    Ok(host)
}

impl Host {
    /// Prints the instruction counts of the data path.
    pub(super) fn print(&self) {
        heading("Instructions of the data path");
        match &self.counted {
            Some(table) => print!("{}", table.text),
            None => println!("skipped: {}: there is no valgrind here", counts::TITLE),
        }
    }

    /// Counts the result of a check that is one test.
    fn add(&mut self, title: &str, passed: bool) {
        if passed {
            self.totals.passed += 1;
        } else {
            self.totals.failed += 1;
            self.failures.push(title.to_owned());
        }
    }

    /// Runs `cargo test`. The crates whose tests run in guests are built once, for the guests: their
    /// unit tests are run from there.
    fn plain_tests(&mut self) -> Result<()> {
        let mut cargo = build::cargo();
        cargo.args(["test", "--workspace", "--all-features", "--no-fail-fast"]);
        cargo.args(GUEST_TEST_CRATES.iter().flat_map(|package| ["--exclude", package]));
        cargo.env("RUSTDOC", build::workspace().join("xtask/rustdoc.sh"));
        self.run_tests(&mut cargo)?;
        guest_unit_tests()?.into_iter().try_for_each(|binary| self.run_tests(&mut Command::new(binary)))
    }

    /// Runs a command that runs test binaries, and adds their results.
    fn run_tests(&mut self, command: &mut Command) -> Result<()> {
        let mut child = command.stdout(Stdio::piped()).spawn().context("running tests")?;
        let stdout = child.stdout.take().context("its output is piped")?;
        let failed_before = self.totals.failed;
        let mut section = None;
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            println!("{NAME}: {line}");
            self.failures.extend(failed_test(&mut section, &line));
            let (passed, failed) = result_line(&line).unwrap_or_default();
            self.totals.passed += passed;
            self.totals.failed += failed;
        }
        if !child.wait()?.success() && self.totals.failed == failed_before {
            bail!("{} failed", command.get_program().display());
        }
        Ok(())
    }

    fn soft_devices(&mut self) -> Result<()> {
        self.soft = soft::run(Filter(&[]), &AtomicBool::new(false))?;
        Ok(())
    }

    fn models(&mut self) -> Result<()> {
        let (passed, failed) = loom::models("loom", None)?;
        self.totals.passed += passed;
        self.totals.failed += failed;
        if failed > 0 {
            self.failures.push("a model: `cargo xtask loom`".to_owned());
        }
        Ok(())
    }

    /// Runs the threaded tests under ThreadSanitizer, if a compiler on this machine supports it.
    fn data_races(&mut self) -> Result<()> {
        for program in &PROGRAMS {
            match Tsan::default().measure(program)? {
                Ok(report) => self.add(program.title, report.is_clean()),
                Err(reason) => {
                    println!("skipped: {}: {reason}", program.title);
                    self.totals.skipped += 1;
                }
            }
        }
        Ok(())
    }

    /// Counts the instructions of the data path.
    fn counts(&mut self) -> Result<()> {
        if !counts::possible() {
            self.totals.skipped += 1;
            return Ok(());
        }
        let counted = counts::measure()?;
        self.add(counts::TITLE, counted.above.is_empty());
        self.counted = Some(counted);
        Ok(())
    }
}

/// Takes a line of a test binary's output. Returns the name of a failed test and the cause at the line that
/// ends the section of its output, which begins with `---- a::b stdout ----`.
fn failed_test(section: &mut Option<(String, String)>, line: &str) -> Option<String> {
    let name = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"));
    if name.is_some() || line == "failures:" {
        let begun = name.map(|name| (name.to_owned(), String::new()));
        return mem::replace(section, begun).map(|(name, log)| name + &cause(&log));
    }
    if let Some((_, log)) = section {
        *log += line;
        log.push('\n');
    }
    None
}

/// The tool is one static file below the limit of size.
fn published_program() -> Result<()> {
    let programs = build::released_guest_programs()?;
    let program = build::tool(&programs)?;
    let size = program.metadata()?.len();
    ensure!(size < LARGEST_PROGRAM, "bareverbs has {size} bytes, {LARGEST_PROGRAM} or more");
    let ldd = Command::new("ldd").arg(program).output().context("running ldd")?;
    let said = String::from_utf8_lossy(&[ldd.stdout, ldd.stderr].concat()).into_owned();
    let is_static = said.contains("statically linked") || said.contains("not a dynamic executable");
    ensure!(is_static, "ldd says of bareverbs: {said}");
    Ok(())
}

/// The crates with a feature for each provider.
const SELECTABLE: [&str; 2] = ["bareverbs", "bareverbs-rdmacm"];

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
    let providers = crates::providers()?;
    for found in crates::library()?.iter().filter(|found| SELECTABLE.contains(&found.name.as_str())) {
        for features in selections(&providers, found.features()) {
            succeed(build::cargo().args([
                "clippy",
                "--package",
                &found.name,
                "--no-default-features",
                "--features",
                &features,
                "--quiet",
                "--",
                "-D",
                "warnings",
            ]))?;
        }
    }
    Ok(())
}

/// The selections of features that are checked besides all: no provider, each provider, and each
/// other feature with all providers.
fn selections<'a>(providers: &[String], features: impl Iterator<Item = &'a str>) -> Vec<String> {
    let all = providers.join(",");
    let others = features.filter(|feature| !providers.iter().any(|provider| provider == feature));
    let others = others.map(|feature| format!("{all},{feature}"));
    [String::new()].into_iter().chain(providers.iter().cloned()).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of a command that prints the lines and ends with the status.
    fn results(lines: &str, status: i32) -> Result<Host> {
        let mut host = Host::default();
        let script = format!("printf '{lines}'; exit {status}");
        host.run_tests(Command::new("sh").args(["-c", &script]))?;
        Ok(host)
    }

    #[test]
    fn results_of_tests_are_added() {
        let lines = "test a ... ok\\ntest b ... FAILED\\n---- b stdout ----\\n1 is 2\\nfailures:\\n    b\\n\
                     test result: FAILED. 1 passed; 1 failed; 0 ignored\\n\
                     test result: ok. 5 passed; 0 failed; 0 ignored\\n";
        let host = results(lines, 101).unwrap();
        assert_eq!((host.totals.passed, host.totals.failed), (6, 1));
        assert_eq!(host.failures, ["b\n    1 is 2"]);
    }

    #[test]
    fn command_that_fails_without_a_failed_test_is_an_error() {
        let error = results("test result: ok. 1 passed; 0 failed; 0 ignored\\n", 1).err().unwrap();
        assert_eq!(error.to_string(), "sh failed");
        assert_eq!(results("", 0).unwrap().totals.failed, 0);
    }

    #[test]
    fn check_that_fails_is_counted_and_named() {
        let mut host = Host::default();
        host.add("one", true);
        host.add("two", false);
        assert_eq!((host.totals.passed, host.totals.failed), (1, 1));
        assert_eq!(host.failures, ["two"]);
    }

    #[test]
    fn features_are_selected_one_by_one() {
        let providers = ["a".to_owned(), "b".to_owned()];
        let selected = selections(&providers, ["a", "b", "c", "d"].into_iter());
        assert_eq!(selected, ["", "a", "b", "a,b,c", "a,b,d"]);
    }

    #[test]
    fn failed_tests_have_names_and_causes() {
        let output = "running 3 tests\ntest a::b ... FAILED\ntest a::c ... ok\n\nfailures:\n\n\
                      ---- a::b stdout ----\n\nthread 'a::b' (7) panicked at a.rs:3:5:\nleft: 1\n\
                      note: run with `RUST_BACKTRACE=1`\n\n---- a.rs - d (line 7) stdout ----\n1 is 2\n\n\
                      failures:\n    a::b\n    a.rs - d (line 7)\n";
        let mut section = None;
        let failed: Vec<_> = output.lines().filter_map(|line| failed_test(&mut section, line)).collect();
        assert_eq!(
            failed,
            [
                "a::b\n    thread 'a::b' (7) panicked at a.rs:3:5:\n    left: 1",
                "a.rs - d (line 7)\n    1 is 2"
            ]
        );
        assert_eq!(section, None);
    }
}
