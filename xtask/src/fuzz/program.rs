//! A target's program and its output.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressStyle};

/// Seconds after which an input counts as a hang. The longest messages of `hca_engine` take 6
/// seconds on an idle processor.
const TIMEOUT: u32 = 60;
/// MiB of memory above which an input counts as a finding.
const MEMORY: u32 = 2048;

/// A target as a program of libFuzzer.
pub(super) struct Program {
    pub(super) target: String,
    program: PathBuf,
    /// The corpus that runs have found.
    pub(super) corpus: PathBuf,
    /// The corpus of the repository.
    pub(super) seeds: PathBuf,
    artifacts: PathBuf,
    log: PathBuf,
}

impl Program {
    pub(super) fn new(target: &str, program: PathBuf, folder: &Path, seeds: PathBuf) -> Self {
        Self {
            target: target.to_owned(),
            program,
            corpus: folder.join("corpus").join(target),
            seeds,
            artifacts: folder.join("artifacts").join(target),
            log: folder.join("logs").join(format!("{target}.log")),
        }
    }

    /// The command of the program, without arguments.
    pub(super) fn command(&self) -> Result<Command> {
        for folder in
            [&self.corpus, &self.seeds, &self.artifacts, &self.log.parent().unwrap_or(&self.log).into()]
        {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let mut command = Command::new(&self.program);
        // Leaks are not findings: queues are leaked on purpose while a device may still write to
        // them.
        command.env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=0");
        command.env("RUST_BACKTRACE", "1").stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command)
    }

    /// Runs the program on one input and shows its output.
    pub(super) fn reproduce(&self, input: &Path) -> Result<ExitCode> {
        let status = self.command()?.arg(input).status().context("running the target")?;
        println!("{}", if status.success() { "the property holds for this input" } else { "reproduced" });
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Runs the program for `seconds`, or until it has a finding.
    pub(super) fn run(&self, seconds: u64, progress: &MultiProgress) -> Result<Run> {
        let mut command = self.command()?;
        command.arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-timeout={TIMEOUT}")).arg(format!("-rss_limit_mb={MEMORY}"));
        command.args(["-print_final_stats=1", "-reload=0"]);
        command.arg(format!("-artifact_prefix={}/", self.artifacts.display()));
        command.arg(&self.corpus).arg(&self.seeds).stderr(Stdio::piped());
        let before = super::count(&self.corpus);
        let mut child = command.spawn().with_context(|| self.program.display().to_string())?;
        let style = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {msg}")?;
        let bar = progress.add(ProgressBar::new_spinner().with_style(style).with_prefix(self.target.clone()));
        bar.enable_steady_tick(Duration::from_millis(200));
        let mut log = File::create(&self.log).with_context(|| self.log.display().to_string())?;
        let mut run = Run { log: self.log.clone(), ..Run::default() };
        for line in BufReader::new(child.stderr.take().context("its output is piped")?).split(b'\n') {
            let line = line?;
            log.write_all(&line)?;
            log.write_all(b"\n")?;
            run.parse_line(&String::from_utf8_lossy(&line));
            bar.set_message(run.to_string());
        }
        let status = child.wait()?;
        bar.finish_and_clear();
        run.entries = super::count(&self.corpus).saturating_sub(before);
        run.failed = !status.success();
        Ok(run)
    }
}

/// The results of a run.
#[derive(Default)]
pub(super) struct Run {
    runs: u64,
    per_second: u64,
    /// Coverage as counted by libFuzzer: edges, their hit counts and compared values.
    features: u64,
    /// New entries in the corpus.
    entries: usize,
    failed: bool,
    /// The kind of the finding, in the words of libFuzzer or of the panic.
    reason: Option<String>,
    reproducer: Option<PathBuf>,
    log: PathBuf,
}

impl Run {
    pub(super) const HEADING: &str = "        runs   runs/s  features  new entries  findings";

    /// Parses a line of libFuzzer's output.
    fn parse_line(&mut self, line: &str) {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        if let Some(rest) = line.strip_prefix('#') {
            let words: Vec<_> = rest.split_whitespace().collect();
            let after =
                |key: &str| words.iter().position(|word| *word == key).and_then(|at| words.get(at + 1));
            let Some(runs) = words.first().and_then(|word| number(word)) else { return };
            self.runs = runs;
            self.features = after("ft:").and_then(|word| number(word)).unwrap_or(self.features);
            self.per_second = after("exec/s:").and_then(|word| number(word)).unwrap_or(self.per_second);
        } else if let Some(runs) = line.strip_prefix("stat::number_of_executed_units:") {
            self.runs = number(runs).unwrap_or(self.runs);
        } else if let Some(rate) = line.strip_prefix("stat::average_exec_per_sec:") {
            self.per_second = number(rate).unwrap_or(self.per_second);
        } else if let Some((_, path)) = line.split_once("Test unit written to ") {
            self.reproducer = Some(path.trim().into());
        } else if self.reason.is_none() && (line.contains("panicked at") || line.contains("ERROR: ")) {
            self.reason = Some(line.trim().to_owned());
        }
    }

    /// The finding, if any, and how to reproduce it.
    pub(super) fn report(&self, target: &str) -> Option<String> {
        if !self.failed {
            return None;
        }
        let reason = self.reason.as_deref().unwrap_or("the program failed");
        let log = self.log.display();
        Some(match &self.reproducer {
            Some(path) => {
                let path = path.display();
                format!(
                    "{target}: {reason}\n  reproducer: {path}\n  again:      cargo xtask fuzz {target} --input {path}\n  \
                     log:        {log}"
                )
            }
            None => format!("{target}: {reason}\n  log: {log}"),
        })
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (runs, rate) = (HumanCount(self.runs).to_string(), HumanCount(self.per_second).to_string());
        let (features, findings) = (HumanCount(self.features).to_string(), u8::from(self.failed));
        write!(f, "{runs:>12}  {rate:>7}  {features:>8}  {:>11}  {findings:>8}", self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libfuzzer_output_is_parsed() {
        let mut run = Run { failed: true, log: "log".into(), ..Run::default() };
        run.parse_line("#2\tINITED cov: 5 ft: 6 corp: 1/1b exec/s: 0 rss: 40Mb");
        run.parse_line("#4096\tpulse  cov: 50 ft: 61 corp: 7/120b lim: 43 exec/s: 2048 rss: 41Mb");
        assert_eq!((run.runs, run.features, run.per_second), (4096, 61, 2048));
        run.parse_line("thread '<unnamed>' panicked at fuzz/src/grh_header.rs:40:5:");
        run.parse_line("==7== ERROR: libFuzzer: deadly signal");
        run.parse_line("artifact_prefix='a/'; Test unit written to a/crash-0123");
        run.parse_line("stat::number_of_executed_units: 5000");
        run.parse_line("stat::average_exec_per_sec:     2500");
        assert_eq!((run.runs, run.per_second), (5000, 2500));
        let report = run.report("grh_header").unwrap();
        assert!(
            report.starts_with("grh_header: thread '<unnamed>' panicked at fuzz/src/grh_header.rs:40:5:\n")
        );
        assert!(report.contains("cargo xtask fuzz grh_header --input a/crash-0123"), "{report}");
        run.failed = false;
        assert_eq!(run.report("grh_header"), None);
    }
}
