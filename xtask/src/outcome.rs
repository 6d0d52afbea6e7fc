//! Test outcomes by name and kernel.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::print::heading;

/// The outcome of a test on one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Skipped(String),
    Failed,
}

/// Outcomes by test name and kernel.
pub(crate) struct Table {
    pub(crate) kernels: Vec<String>,
    pub(crate) rows: BTreeMap<String, BTreeMap<String, Outcome>>,
}

impl Table {
    /// Prints and stores the outcome of a test on a kernel.
    pub(crate) fn enter(&mut self, kernel: &str, title: &str, outcome: Outcome, log: &str, time: Duration) {
        let seconds = time.as_secs_f64();
        match &outcome {
            Outcome::Passed => println!("{kernel}: {title} ... ok ({seconds:.1} s)"),
            Outcome::Skipped(reason) => println!("{kernel}: {title} ... skipped: {reason}"),
            Outcome::Failed => println!("{kernel}: {title} ... FAILED ({seconds:.1} s)\n{}", log.trim_end()),
        }
        // A test that several guests run fails if it fails in one of them.
        let row = self.rows.entry(title.to_owned()).or_default();
        if row.get(kernel) != Some(&Outcome::Failed) {
            row.insert(kernel.to_owned(), outcome);
        }
    }

    pub(crate) fn print(&self) {
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
        for line in self.skips() {
            println!("{line}");
        }
        // Last, where a reader of a long log looks first.
        for line in self.failures() {
            println!("{line}");
        }
    }

    /// The skipped tests, one line for each reason.
    fn skips(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, row) in &self.rows {
            let mut kernels = BTreeMap::<_, Vec<_>>::new();
            for (kernel, outcome) in row {
                if let Outcome::Skipped(reason) = outcome {
                    kernels.entry(reason).or_default().push(kernel.as_str());
                }
            }
            lines.extend(
                kernels.iter().map(|(reason, on)| format!("skipped on {}: {name}: {reason}", on.join(", "))),
            );
        }
        lines
    }

    /// The failed tests.
    fn failures(&self) -> Vec<String> {
        let failed = |(name, row): (&String, &BTreeMap<String, Outcome>)| {
            let on: Vec<_> = row
                .iter()
                .filter(|(_, outcome)| **outcome == Outcome::Failed)
                .map(|(kernel, _)| kernel.as_str())
                .collect();
            (!on.is_empty()).then(|| format!("FAILED on {}: {name}", on.join(", ")))
        };
        self.rows.iter().filter_map(failed).collect()
    }
}

#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Totals {
    pub(crate) fn add(&mut self, table: &Table) {
        for outcome in table.rows.values().flat_map(|row| row.values()) {
            match outcome {
                Outcome::Passed => self.passed += 1,
                Outcome::Skipped(_) => self.skipped += 1,
                Outcome::Failed => self.failed += 1,
            }
        }
    }
}

/// Parses the output of a test binary that ran one test.
pub(crate) fn judge(status: u8, log: &str) -> (Outcome, String) {
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

/// `test result: ok. 3 passed; 0 failed; 1 ignored; …`
pub(crate) fn result_line(line: &str) -> Option<(usize, usize)> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |what: &str| {
        let part = counts.split("; ").find_map(|part| part.strip_suffix(what))?;
        part.trim().parse().ok()
    };
    Some((count("passed")?, count("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_listed_by_reason_and_failures_by_test() {
        let mut table = Table { kernels: vec!["6.1".into(), "7.2".into()], rows: BTreeMap::new() };
        for (kernel, title, outcome) in [
            ("6.1", "a::b", Outcome::Skipped("no XRC domains".into())),
            ("7.2", "a::b", Outcome::Skipped("no XRC domains".into())),
            ("6.1", "a::c", Outcome::Skipped("before 7.0".into())),
            ("7.2", "a::c", Outcome::Failed),
            ("6.1", "a::d", Outcome::Failed),
            ("7.2", "a::d", Outcome::Failed),
        ] {
            table.enter(kernel, title, outcome, "", Duration::ZERO);
        }
        assert_eq!(
            table.skips(),
            ["skipped on 6.1, 7.2: a::b: no XRC domains", "skipped on 6.1: a::c: before 7.0"]
        );
        assert_eq!(table.failures(), ["FAILED on 7.2: a::c", "FAILED on 6.1, 7.2: a::d"]);
    }

    #[test]
    fn result_line_counts_are_parsed() {
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
    fn skipped_test_has_reason() {
        let log = "test a ... ignored (no DMA handles (before 7.0))\n\n\
                   test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured\n";
        assert_eq!(judge(0, log).0, Outcome::Skipped("no DMA handles (before 7.0)".into()));
    }
}
