//! `cargo xtask mutants`: mutation testing, one function or operator at a time. Fails if no test
//! notices a mutant.
//!
//! Mutations are made in a copy of the workspace, `target/mutants/tree`. A mutant that no test
//! notices (a survivor) must be explained in `xtask/mutants.txt`.

mod explained;
mod lab;
mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;

use self::explained::Explained;
use self::tree::Tree;
use crate::crates::{self, Crate};
use crate::installed::installed;
use crate::print::heading;

const TOOL: &str = "cargo-mutants";
const VERSION: &str = "27.1.0";

#[derive(Args)]
pub(crate) struct Mutants {
    /// Only this crate, such as bareverbs-uapi; may be given more than once.
    #[arg(long = "package", value_name = "CRATE", conflicts_with = "kernel")]
    packages: Vec<String>,
    /// Only files that match; may be given more than once.
    #[arg(long = "file", value_name = "GLOB")]
    files: Vec<String>,
    /// Only part K (from 0) of N of each crate's mutants.
    #[arg(long, value_name = "K/N", conflicts_with = "sample")]
    shard: Option<String>,
    /// Only about N mutants of each crate, evenly spread.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    sample: Option<u64>,
    /// Mutate the command functions of `provider` instead, and judge them by tests on this kernel:
    /// A series such as 6.12, rc or a folder.
    #[arg(long, value_name = "KERNEL", conflicts_with = "shard")]
    kernel: Option<String>,
}

/// A mutant as cargo-mutants lists it.
#[derive(Clone, Debug, Deserialize)]
struct Mutant {
    /// `FILE:LINE:COLUMN: DESCRIPTION`
    name: String,
    file: String,
    span: Span,
    replacement: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Span {
    start: Position,
    end: Position,
}

/// A position in a file, counted from 1.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

impl Mutants {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let tool = installed(TOOL, TOOL, VERSION)?;
        let tree = Tree::open()?;
        if let Some(kernel) = &self.kernel {
            return lab::run(&tool, &tree, kernel, &self.files, self.sample);
        }
        let explained = Explained::read()?;
        let (mut all, mut unexplained) = (Tally::default(), 0);
        for (package, tests) in self.packages()? {
            heading(&package);
            let Some(outcomes) = self.judge(&tool, &tree, &package, &tests)? else {
                println!("no mutants");
                continue;
            };
            let tally = Tally::of(&outcomes);
            println!("{package}: {tally}");
            unexplained += explained.report(&outcomes);
            all.add(tally);
        }
        println!("\n{all}; {unexplained} survivors without explanation");
        Ok(if unexplained == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The crates that tests without a kernel cover, each with the crates whose tests judge its
    /// mutants.
    fn packages(&self) -> Result<Vec<(String, Vec<String>)>> {
        let covered = |found: Crate| found.judges().map(|judges| (found.name, judges));
        let mut covered: Vec<_> = crates::library()?.into_iter().filter_map(covered).collect();
        let known = |name: &String| covered.iter().any(|(package, _)| package == name);
        if let Some(name) = self.packages.iter().find(|name| !known(name)) {
            bail!("no tests without a kernel cover `{name}`");
        }
        covered.retain(|(package, _)| self.packages.is_empty() || self.packages.contains(package));
        Ok(covered)
    }

    /// Runs the tests against each mutant of a crate. `None` if the files have no mutants.
    fn judge(
        &self,
        tool: &Path,
        tree: &Tree,
        package: &str,
        tests: &[String],
    ) -> Result<Option<Vec<Outcome>>> {
        let mut select = vec!["--package".to_owned(), package.to_owned()];
        select.extend(self.files.iter().flat_map(|file| ["--file".to_owned(), file.clone()]));
        let there = list(tool, tree, &select)?.len() as u64;
        if there == 0 {
            return Ok(None);
        }
        let sampled = self.sample.map(|sample| format!("0/{}", there.div_ceil(sample)));
        if let Some(shard) = self.shard.clone().or(sampled) {
            select.extend(["--shard".to_owned(), shard, "--sharding=round-robin".to_owned()]);
        }
        let mut command = mutants(tool, tree);
        command.args(["--in-place", "--no-shuffle", "--colors=never"]).args(select);
        for test in tests {
            command.args(["--test-package", test]);
        }
        let folder = tree.outcomes();
        command.arg("--output").arg(&folder);
        let status = command.status().context("running cargo-mutants")?;
        // 2: some survived; 3: some timed out. Other statuses are failures of the tool, or of the
        // tests without a mutation.
        ensure!(matches!(status.code(), Some(0 | 2 | 3)), "cargo-mutants failed: {status}");
        outcomes(&folder.join("mutants.out/outcomes.json")).map(Some)
    }
}

/// `cargo mutants` in the copy.
fn mutants(tool: &Path, tree: &Tree) -> Command {
    let mut command = Command::new(tool);
    command.arg("mutants").current_dir(tree.root()).env_remove("CARGO_TARGET_DIR");
    command
}

/// The mutants that `arguments` select.
fn list(tool: &Path, tree: &Tree, arguments: &[String]) -> Result<Vec<Mutant>> {
    let output = mutants(tool, tree).args(["--list", "--json"]).args(arguments).output();
    let output = output.context("running cargo-mutants")?;
    ensure!(
        output.status.success(),
        "cargo-mutants lists nothing:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("reading cargo-mutants' list")
}

/// The result of a mutant.
#[derive(Clone, Debug)]
struct Outcome {
    name: String,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// A test failed.
    Caught,
    /// The tests timed out, which counts as noticed.
    TimedOut,
    /// All tests passed.
    Survived,
    /// It did not compile.
    Unviable,
}

/// The used fields of `outcomes.json` of cargo-mutants.
#[derive(Deserialize)]
struct Written {
    outcomes: Vec<WrittenOutcome>,
}

#[derive(Deserialize)]
struct WrittenOutcome {
    scenario: serde_json::Value,
    summary: String,
}

fn outcomes(path: &PathBuf) -> Result<Vec<Outcome>> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("reading {}", path.display()))
}

fn parse(text: &[u8]) -> Result<Vec<Outcome>> {
    let written: Written = serde_json::from_slice(text)?;
    let mut outcomes = Vec::new();
    for WrittenOutcome { scenario, summary } in written.outcomes {
        // The other scenario is the baseline.
        let Some(name) = scenario["Mutant"]["name"].as_str() else { continue };
        let verdict = match summary.as_str() {
            "CaughtMutant" => Verdict::Caught,
            "Timeout" => Verdict::TimedOut,
            "MissedMutant" => Verdict::Survived,
            "Unviable" => Verdict::Unviable,
            other => bail!("unknown outcome: {other}"),
        };
        outcomes.push(Outcome { name: name.to_owned(), verdict });
    }
    Ok(outcomes)
}

/// Outcomes by their kind.
#[derive(Default)]
struct Tally(BTreeMap<Verdict, usize>);

impl Tally {
    fn of(outcomes: &[Outcome]) -> Self {
        let mut tally = Self::default();
        for outcome in outcomes {
            *tally.0.entry(outcome.verdict).or_default() += 1;
        }
        tally
    }

    fn add(&mut self, other: Self) {
        for (verdict, count) in other.0 {
            *self.0.entry(verdict).or_default() += count;
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = |verdict| self.0.get(&verdict).copied().unwrap_or(0);
        let [caught, timed_out, survived, unviable] =
            [Verdict::Caught, Verdict::TimedOut, Verdict::Survived, Verdict::Unviable].map(count);
        let tried = caught + timed_out + survived;
        write!(
            f,
            "{tried} mutants tried, {caught} caught, {timed_out} timed out, {survived} survived \
             ({unviable} more did not compile)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutation_outcomes_exclude_baseline() {
        let text = br#"{"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            {"scenario": {"Mutant": {"name": "a.rs:1:2: replace a with b"}}, "summary": "MissedMutant"},
            {"scenario": {"Mutant": {"name": "a.rs:3:4: replace c with d"}}, "summary": "Timeout"}
        ]}"#;
        let outcomes = parse(text).unwrap();
        let verdicts: Vec<_> = outcomes.iter().map(|outcome| outcome.verdict).collect();
        assert_eq!(verdicts, [Verdict::Survived, Verdict::TimedOut]);
        assert_eq!(outcomes[0].name, "a.rs:1:2: replace a with b");
        assert_eq!(
            Tally::of(&outcomes).to_string(),
            "2 mutants tried, 0 caught, 1 timed out, 1 survived (0 more did not compile)"
        );
        assert!(
            parse(br#"{"outcomes": [{"scenario": {"Mutant": {"name": "a"}}, "summary": "?"}]}"#).is_err()
        );
    }
}
