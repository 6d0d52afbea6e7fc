//! `cargo xtask test`: everything that must hold, from formatting to real kernels.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bareverbs_lab::{
    Accelerator, Cache, Exec, Failure, Guests, HcaPort, Kernel, Peers, Programs, Series, Setup, Tools,
    fetch_headers,
};
use clap::Args;
use serde::Deserialize;

use crate::hca::{self, Bench};
use crate::print::heading;
use crate::{build, fastpath, lab, pyverbs, two_hosts};

/// The crates whose test binaries run in the lab.
const GUEST_TEST_CRATES: [&str; 3] = ["bareverbs-kernel-tests", "bareverbs-interop-tests", "bareverbs-soak"];
/// Kinds of cards to test.
const PORTS: [HcaPort; 2] = [HcaPort::Ib, HcaPort::Roce];
/// Where the guest sees the test binaries.
const GUEST_FOLDER: &str = "/lab/tests";
/// How long one test may take in a guest.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Args)]
pub(crate) struct Test {
    /// Kernels to test on: 6.1, 6.12, 7.2, rc or a folder; may be given more than once. Without it: the three releases.
    #[arg(long = "kernel", value_name = "KERNEL")]
    kernels: Vec<String>,
    /// What executes the guests: auto, kvm or tcg.
    #[arg(long, default_value = "auto")]
    accel: Accelerator,
    /// Run only the kernel tests whose names contain this, and nothing else.
    filter: Option<String>,
}

impl Test {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut totals = Totals::default();
        if self.filter.is_none() {
            static_checks()?;
        }
        heading("What the lab needs");
        let lab = Lab::fetch(&self.kernels)?;
        if self.filter.is_none() {
            heading("Tests without a kernel");
            plain_tests(&mut totals)?;
            pyverbs::check(&lab.peers, &guest_test_titles()?)?;
        }
        heading("Tests on real kernels");
        let table = lab.run(self.accel, self.filter.as_deref())?;
        table.print();
        totals.add(&table);
        println!("\n{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
        Ok(if totals.failed == 0 && totals.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn static_checks() -> Result<()> {
    heading("Formatting");
    succeed(build::cargo().args(["fmt", "--all", "--check"]))?;
    heading("Clippy");
    succeed(build::cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))?;
    succeed(build::cargo().args([
        "clippy",
        "--package",
        "bareverbs",
        "--no-default-features",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))?;
    heading("Documentation");
    succeed(
        build::cargo()
            .args(["doc", "--workspace", "--all-features", "--no-deps", "--quiet"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().context("running cargo")?;
    if !status.success() {
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        bail!("cargo {} failed", arguments.join(" "));
    }
    Ok(())
}

/// Runs `cargo test` and counts what its binaries report. What they ignore is for the lab.
fn plain_tests(totals: &mut Totals) -> Result<()> {
    let mut cargo = build::cargo();
    cargo.args(["test", "--workspace", "--all-features", "--no-fail-fast"]).stdout(Stdio::piped());
    let mut child = cargo.spawn().context("running cargo")?;
    let stdout = child.stdout.take().context("its output is piped")?;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        let (passed, failed) = result_line(&line).unwrap_or_default();
        totals.passed += passed;
        totals.failed += failed;
    }
    if !child.wait()?.success() {
        bail!("cargo test --workspace failed");
    }
    Ok(())
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; …`
fn result_line(line: &str) -> Option<(usize, usize)> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |what: &str| {
        let part = counts.split("; ").find_map(|part| part.strip_suffix(what))?;
        part.trim().parse().ok()
    };
    Some((count("passed")?, count("failed")?))
}

#[derive(Default)]
struct Totals {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Totals {
    fn add(&mut self, table: &Table) {
        for outcome in table.rows.values().flat_map(|row| row.values()) {
            match outcome {
                Outcome::Passed => self.passed += 1,
                Outcome::Skipped(_) => self.skipped += 1,
                Outcome::Failed => self.failed += 1,
            }
        }
    }
}

/// How a test ended on one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped(String),
    Failed,
}

/// Outcomes by test name and kernel.
struct Table {
    kernels: Vec<String>,
    rows: BTreeMap<String, BTreeMap<String, Outcome>>,
}

impl Table {
    fn print(&self) {
        heading("By test and kernel");
        let width = self.rows.keys().map(String::len).max().unwrap_or(0).max(4);
        let line = |name: &str, cells: &[&str]| {
            let cells: String = cells.iter().map(|cell| format!("  {cell:8}")).collect();
            println!("{name:width$}{}", cells.trim_end());
        };
        line("test", &self.kernels.iter().map(String::as_str).collect::<Vec<_>>());
        for (name, row) in &self.rows {
            let cell = |kernel: &String| match row.get(kernel) {
                Some(Outcome::Passed) => "ok",
                Some(Outcome::Skipped(_)) => "skipped",
                Some(Outcome::Failed) => "FAILED",
                None => "-",
            };
            line(name, &self.kernels.iter().map(cell).collect::<Vec<_>>());
        }
        for (name, row) in &self.rows {
            for (kernel, outcome) in row {
                if let Outcome::Skipped(reason) = outcome {
                    println!("skipped on {kernel}: {name}: {reason}");
                }
            }
        }
    }
}

/// A test in a binary.
struct GuestTest {
    binary: String,
    name: String,
}

impl GuestTest {
    fn title(&self) -> String {
        let crate_name = self.binary.rsplit_once('-').map_or(self.binary.as_str(), |(name, _)| name);
        format!("{crate_name}::{}", self.name)
    }
}

struct Lab {
    cache: Cache,
    tools: Tools,
    kernels: Vec<(String, Kernel)>,
    peers: Peers,
}

impl Lab {
    fn fetch(wanted: &[String]) -> Result<Self> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        println!("QEMU {}", tools.version);
        let wanted = if wanted.is_empty() {
            Series::RELEASED.iter().map(Series::to_string).collect()
        } else {
            wanted.to_vec()
        };
        let mut kernels = Vec::new();
        for name in wanted {
            let kernel = lab::kernel(&cache, &tools, &name)?;
            println!("kernel {}", kernel.version);
            kernels.push((name, kernel));
        }
        let peers = Peers::fetch(&cache, false)?;
        println!("rdma-core {}", peers.version);
        for series in Series::RELEASED {
            println!("headers {}", fetch_headers(&cache, series, false)?.version);
        }
        Ok(Self { cache, tools, kernels, peers })
    }

    fn run(&self, accelerator: Accelerator, filter: Option<&str>) -> Result<Table> {
        let programs = build::guest_programs()?;
        // Tests of cards need no binaries.
        let cards_only = filter.is_some_and(|filter| filter.starts_with(hca::PREFIX));
        let (folder, mut tests) = if cards_only { Default::default() } else { guest_tests()? };
        tests.retain(|test| filter.is_none_or(|filter| test.title().contains(filter)));
        let mut hosts_tests = two_hosts::TESTS.to_vec();
        hosts_tests.retain(|(name, _)| filter.is_none_or(|filter| name.contains(filter)));
        let fastpath = filter.is_none_or(|filter| fastpath::TITLE.contains(filter));
        if tests.is_empty()
            && hosts_tests.is_empty()
            && !fastpath
            && !(cards_only && PORTS.iter().any(|port| !hca::tests(*port, true, filter).is_empty()))
        {
            bail!("no kernel test is named like `{}`", filter.unwrap_or_default());
        }
        let mut table = Table {
            kernels: self.kernels.iter().map(|(name, _)| name.clone()).collect(),
            rows: BTreeMap::new(),
        };
        for (name, kernel) in &self.kernels {
            println!("\non kernel {}:", kernel.version);
            let mut runner =
                Runner { lab: self, kernel, programs: &programs, folder: &folder, accelerator, guests: None };
            for test in &tests {
                runner.boot_if_needed()?;
                let begin = Instant::now();
                let (outcome, log) = runner.run(test)?;
                report(&test.title(), name, &outcome, &log, begin.elapsed())?;
                table.rows.entry(test.title()).or_default().insert(name.clone(), outcome);
            }
            if let Some(Err(error)) = runner.guests.take().map(Guests::shut_down) {
                println!("FAILED: the kernel at the end: {error:#}");
                table
                    .rows
                    .entry("the kernel stays sound".into())
                    .or_default()
                    .insert(name.clone(), Outcome::Failed);
            }
            if name == fastpath::KERNEL && fastpath {
                let begin = Instant::now();
                let (figures, above) = fastpath::measure(&self.cache, &self.tools, kernel, &self.peers)?;
                let outcome = if above.is_empty() { Outcome::Passed } else { Outcome::Failed };
                report(fastpath::TITLE, name, &outcome, &figures, begin.elapsed())?;
                table.rows.entry(fastpath::TITLE.to_owned()).or_default().insert(name.clone(), outcome);
            }
            if name == two_hosts::KERNEL {
                for &(title, test) in &hosts_tests {
                    let begin = Instant::now();
                    let result = test(&self.setup(kernel, &programs, accelerator));
                    let log = result.as_ref().err().map_or_else(String::new, |error| format!("{error:#}"));
                    let outcome = if result.is_ok() { Outcome::Passed } else { Outcome::Failed };
                    report(title, name, &outcome, &log, begin.elapsed())?;
                    table.rows.entry(title.to_owned()).or_default().insert(name.clone(), outcome);
                }
            }
            // The cards' turn takes minutes for each kernel and kind of port: only where they are asked for.
            for port in PORTS.into_iter().filter(|_| cards_only) {
                let tests = hca::tests(port, name == two_hosts::KERNEL, filter);
                if !tests.is_empty() {
                    let setup = self.setup(kernel, &programs, accelerator);
                    run_card_tests(&mut Bench::new(&setup, port)?, &tests, name, &mut table)?;
                }
            }
        }
        Ok(table)
    }

    /// One host with the Debian root.
    fn setup<'a>(
        &'a self,
        kernel: &'a Kernel,
        programs: &'a Programs,
        accelerator: Accelerator,
    ) -> Setup<'a> {
        Setup {
            cache: &self.cache,
            tools: &self.tools,
            kernel,
            programs,
            hosts: 1,
            peers: Some(self.peers.root.clone()),
            shares: Vec::new(),
            accelerator,
            instruction_clock: false,
            recording: None,
            hca: None,
        }
    }
}

fn run_card_tests(
    bench: &mut Bench<'_>,
    tests: &[(String, hca::Test)],
    kernel: &str,
    table: &mut Table,
) -> Result<()> {
    for (title, test) in tests {
        let begin = Instant::now();
        let result = bench.run(*test);
        let log = result.as_ref().err().map_or_else(String::new, |error| format!("{error:#}"));
        let outcome = if result.is_ok() { Outcome::Passed } else { Outcome::Failed };
        report(title, kernel, &outcome, &log, begin.elapsed())?;
        table.rows.entry(title.clone()).or_default().insert(kernel.to_owned(), outcome);
    }
    if let Err(error) = bench.end() {
        println!("FAILED: the kernels at the end: {error:#}");
        table
            .rows
            .entry("the kernel stays sound".into())
            .or_default()
            .insert(kernel.to_owned(), Outcome::Failed);
    }
    Ok(())
}

fn report(title: &str, kernel: &str, outcome: &Outcome, log: &str, time: Duration) -> Result<()> {
    let seconds = time.as_secs_f64();
    match outcome {
        Outcome::Passed => println!("{kernel}: {title} ... ok ({seconds:.1} s)"),
        Outcome::Skipped(reason) => println!("{kernel}: {title} ... skipped: {reason}"),
        Outcome::Failed => println!("{kernel}: {title} ... FAILED ({seconds:.1} s)\n{}", log.trim_end()),
    }
    Ok(std::io::stdout().flush()?)
}

/// Runs tests in one guest, and in a new one after a test has broken it.
struct Runner<'a> {
    lab: &'a Lab,
    kernel: &'a Kernel,
    programs: &'a Programs,
    folder: &'a Path,
    accelerator: Accelerator,
    guests: Option<Guests>,
}

impl Runner<'_> {
    fn run(&mut self, test: &GuestTest) -> Result<(Outcome, String)> {
        let mut guests = self.guests.take().context("a guest was booted")?;
        let program = format!("{GUEST_FOLDER}/{}", test.binary);
        let argv = [&program, "--exact", &test.name, "--test-threads=1", "--color=never"].map(str::to_owned);
        match guests.run(0, Exec { argv: argv.into(), ..Exec::default() }, LIMIT) {
            Ok(finished) => {
                self.guests = Some(guests);
                let log = format!(
                    "{}{}",
                    String::from_utf8_lossy(&finished.stdout),
                    String::from_utf8_lossy(&finished.stderr)
                );
                Ok(if finished.timed_out {
                    (Outcome::Failed, format!("{log}killed after {} s", LIMIT.as_secs()))
                } else {
                    judge(finished.status, &log)
                })
            }
            // The guest is lost; the tests that follow get a new one.
            Err(error) if error.is::<Failure>() => Ok((Outcome::Failed, error.to_string())),
            Err(error) => Err(error),
        }
    }

    fn boot_if_needed(&mut self) -> Result<()> {
        if self.guests.is_some() {
            return Ok(());
        }
        let begin = Instant::now();
        let guests = Guests::boot(&Setup {
            shares: vec![(self.folder.to_owned(), GUEST_FOLDER.to_owned())],
            ..self.lab.setup(self.kernel, self.programs, self.accelerator)
        })?;
        println!("up in {:.1} s", begin.elapsed().as_secs_f64());
        self.guests = Some(guests);
        Ok(())
    }
}

/// Reads what the test binary said about its one test.
fn judge(status: u8, log: &str) -> (Outcome, String) {
    let counts = log.lines().rev().find_map(result_line);
    let outcome = match (status, counts) {
        (0, Some((1, 0))) => Outcome::Passed,
        (0, Some((0, 0))) => {
            match log.rsplit_once("ignored (").and_then(|(_, rest)| rest.split_once(")\n")) {
                Some((reason, _)) => Outcome::Skipped(reason.to_owned()),
                None => Outcome::Failed,
            }
        }
        _ => Outcome::Failed,
    };
    let ended = if counts.is_none() {
        format!("\nthe test binary ended with status {status}")
    } else {
        String::new()
    };
    (outcome, format!("{}{ended}", log.trim_end()))
}

/// A message of `cargo test --message-format=json`, as far as it matters here.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

/// Builds the test binaries for the guest: the folder they are in, and their tests.
fn guest_tests() -> Result<(PathBuf, Vec<GuestTest>)> {
    let mut cargo = build::static_cargo("test");
    cargo.args(["--no-run", "--quiet", "--message-format=json"]).args(build::GUEST_PROFILE);
    for name in GUEST_TEST_CRATES {
        cargo.args(["--package", name]);
    }
    let output = cargo.stderr(Stdio::inherit()).output().context("running cargo")?;
    if !output.status.success() {
        bail!("the kernel tests could not be built");
    }
    let mut folder = None;
    let mut tests = Vec::new();
    for line in output.stdout.split(|&byte| byte == b'\n') {
        let Ok(Artifact { executable: Some(binary), target: Some(target) }) = serde_json::from_slice(line)
        else {
            continue;
        };
        if target.kind != ["test"] {
            continue;
        }
        folder = binary.parent().map(Path::to_owned);
        tests.extend(list(&binary)?);
    }
    Ok((folder.context("no crate has kernel tests")?, tests))
}

/// What the tests that run in guests are called.
pub(crate) fn guest_test_titles() -> Result<Vec<String>> {
    Ok(guest_tests()?.1.iter().map(GuestTest::title).collect())
}

fn list(binary: &Path) -> Result<Vec<GuestTest>> {
    let output = Command::new(binary).arg("--list").output();
    let output = output.with_context(|| format!("starting {}", binary.display()))?;
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .filter_map(listed_name)
        .map(|test| GuestTest { binary: name.clone().into_owned(), name: test.to_owned() })
        .collect())
}

/// `name: test`, or `[kind] name: test`
fn listed_name(line: &str) -> Option<&str> {
    let name = line.strip_suffix(": test")?;
    Some(name.rsplit_once("] ").map_or(name, |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_result_line() {
        let line =
            "test result: ok. 30 passed; 0 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(result_line(line), Some((30, 0)));
        assert_eq!(
            result_line("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured"),
            Some((1, 2))
        );
        assert_eq!(result_line("test a ... ok"), None);
    }

    #[test]
    fn only_a_test_that_ran_and_succeeded_has_passed() {
        let passed = "test a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!(judge(0, passed).0, Outcome::Passed);
        assert_eq!(judge(101, passed).0, Outcome::Failed);
        assert_eq!(judge(139, "test a ... ").0, Outcome::Failed);
        assert_eq!(
            judge(0, "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured\n").0,
            Outcome::Failed
        );
    }

    #[test]
    fn a_skipped_test_carries_its_reason() {
        let log = "test a ... ignored (no DMA handles (before 7.0))\n\n\
                   test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured\n";
        assert_eq!(judge(0, log).0, Outcome::Skipped("no DMA handles (before 7.0)".into()));
    }

    #[test]
    fn listed_tests_may_have_a_kind() {
        assert_eq!(listed_name("[left out, needs the lab] a::b: test"), Some("a::b"));
        assert_eq!(listed_name("plain: test"), Some("plain"));
        assert_eq!(listed_name("2 tests, 0 benchmarks"), None);
    }
}
