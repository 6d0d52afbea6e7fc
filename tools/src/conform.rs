//! `bareverbs conform`: checks of the kernel's ABI.

use std::fs;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bareverbs::Error;
use bareverbs_conform::fuzz::{self, FuzzError, Progress};
use bareverbs_conform::{Filter, Outcome, Results, Suite, SuiteError, Verdict, report};

use crate::cli::conform::{Conform, ConformAction, ResultsFormat};
use crate::output;

/// `bareverbs conform`. Returns the exit status.
pub(crate) fn run(options: &Conform) -> Result<u8> {
    match &options.action {
        None if options.list => list(options),
        None if options.fuzz.is_some() => fuzz_device(options),
        None => check(options),
        Some(ConformAction::Diff { before, after }) => {
            let text = report::diff(&read(before)?, &read(after)?);
            output::write(&text)?;
            Ok(0)
        }
        Some(ConformAction::Page { results }) => {
            let results = results.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
            output::write(&report::html(&results))?;
            Ok(0)
        }
    }
}

fn read(path: &Path) -> Result<Results> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    serde_json::from_str(&text).with_context(|| format!("{name} has no results of conform --format json"))
}

/// Exit status of a run in which everything is skipped (`KSFT_SKIP` of the kernel's selftests).
const SKIPPED: u8 = 4;

/// The suite for the device of the options.
fn suite(options: &Conform) -> Result<Suite, SuiteError> {
    let suite = Suite::for_device(options.device.as_deref())?;
    Ok(if options.hazard { suite.with_hazards() } else { suite })
}

/// Whether there is nothing to check: no RDMA device, or no user interface of it.
fn is_absent(error: &SuiteError) -> bool {
    match error {
        SuiteError::Device(Error::NoneOpened { reasons }) => {
            reasons.iter().all(|reason| matches!(reason, Error::NoUverbs { .. }))
        }
        SuiteError::Device(error) => matches!(error, Error::NoDevice | Error::UnknownDevice { .. }),
        error => matches!(error, SuiteError::NoUverbs { .. }),
    }
}

fn list(options: &Conform) -> Result<u8> {
    let suite = suite(options)?;
    let mut text = String::new();
    for check in Filter::new(options.filter.as_deref()).select(suite.checks()) {
        let expected = check.expect.on(suite.series());
        text += &format!("{}: {} Expected: {expected}.\n", check.name, check.rule.text());
    }
    output::write(&text)?;
    Ok(0)
}

/// Fuzzes the device. The exit status is 1 if a rule is broken.
fn fuzz_device(options: &Conform) -> Result<u8> {
    let how = fuzz::Options {
        duration: Duration::from_secs(options.fuzz.unwrap_or(0)),
        seed: options.seed,
        out: options.fuzz_out.clone(),
        ..fuzz::Options::default()
    };
    // A line in place on a terminal, else one for each tenth of the time.
    let terminal = stderr().is_terminal();
    let mut next = how.duration / 10;
    let report = fuzz::fuzz(options.device.as_deref(), &how, |Progress { elapsed, programs }| {
        let text = format!("{programs} programs in {} s", elapsed.as_secs());
        if terminal {
            output::progress(&text);
        } else if *elapsed >= next {
            next += how.duration / 10;
            output::diagnostic(&text);
        }
    });
    if terminal {
        output::diagnostic("");
    }
    let report = match report {
        Err(FuzzError::Device(error)) if is_absent(&error) => {
            output::diagnostic(&format!("nothing to fuzz: {error}"));
            return Ok(SKIPPED);
        }
        report => report?,
    };
    output::write(&match options.format {
        ResultsFormat::Json => serde_json::to_string(&report)? + "\n",
        _ => report.to_string(),
    })?;
    Ok(u8::from(report.failure.is_some()))
}

fn check(options: &Conform) -> Result<u8> {
    let suite = match suite(options) {
        Err(error) if is_absent(&error) => {
            if options.format == ResultsFormat::Ktap {
                output::write(&report::ktap_skipped(&error.to_string()))?;
            }
            output::diagnostic(&format!("nothing to check: {error}"));
            return Ok(SKIPPED);
        }
        suite => suite?,
    };
    let human = options.format == ResultsFormat::Human;
    let terminal = stderr().is_terminal();
    let filter = Filter::new(options.filter.as_deref());
    let mut printed = Ok(());
    let results = suite.run(&filter, options.seed, |outcome: &Outcome, position, all| {
        if human && outcome.verdict == Verdict::Failed && printed.is_ok() {
            printed = output::write(&suite.explain(outcome));
        }
        // A line in place on a terminal, else one for each tenth.
        if terminal {
            output::progress(&format!("{position}/{all}"));
        } else if position * 10 / all.max(1) != (position - 1) * 10 / all.max(1) {
            output::diagnostic(&format!("{position} of {all} checks"));
        }
    });
    if terminal {
        output::diagnostic("");
    }
    printed?;
    if let (Some(pattern), true) = (&options.filter, results.checks.is_empty()) {
        output::diagnostic(&format!(
            "no check of {} matches {pattern:?}: `bareverbs conform --list` names the checks, `--hazard` \
             adds some",
            results.device
        ));
    }
    if let Some(path) = &options.html {
        let page = report::html(std::slice::from_ref(&results));
        output::file(path, page.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    output::write(&match options.format {
        ResultsFormat::Human => report::summary(&results),
        ResultsFormat::Ktap => report::ktap(&results),
        ResultsFormat::Junit => report::junit(&results),
        ResultsFormat::Json => report::json(&results),
    })?;
    Ok(results.exit_status())
}
