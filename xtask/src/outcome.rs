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
    /// It failed, and passed when it was run once more.
    Flaky,
}

/// Outcomes by test name and kernel.
#[derive(Default)]
pub(crate) struct Table {
    kernels: Vec<String>,
    rows: BTreeMap<String, BTreeMap<String, Entry>>,
}

/// The outcome of a test on one kernel, and its output.
struct Entry {
    outcome: Outcome,
    log: String,
    /// The output of the second run of a flaky test.
    second_log: String,
}

/// A test that failed on a kernel and passed there when it was run once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlakyTest<'a> {
    pub(crate) kernel: &'a str,
    pub(crate) title: &'a str,
    pub(crate) first_log: &'a str,
    pub(crate) second_log: &'a str,
}

impl Table {
    pub(crate) fn new(kernels: Vec<String>) -> Self {
        Self { kernels, rows: BTreeMap::new() }
    }

    /// Prints and stores the outcome of a test on a kernel.
    pub(crate) fn enter(&mut self, kernel: &str, title: &str, outcome: Outcome, log: &str, time: Duration) {
        let seconds = time.as_secs_f64();
        match &outcome {
            Outcome::Passed => println!("{kernel}: {title} ... ok ({seconds:.1} s)"),
            Outcome::Skipped(reason) => println!("{kernel}: {title} ... skipped: {reason}"),
            Outcome::Failed | Outcome::Flaky => {
                println!("{kernel}: {title} ... FAILED ({seconds:.1} s)\n{}", log.trim_end());
            }
        }
        // A test that several guests run fails if it fails in one of them.
        let row = self.rows.entry(title.to_owned()).or_default();
        if row.get(kernel).is_none_or(|entry| entry.outcome != Outcome::Failed) {
            let entry = Entry { outcome, log: log.to_owned(), second_log: String::new() };
            row.insert(kernel.to_owned(), entry);
        }
    }

    /// Adds the outcomes on other kernels.
    pub(crate) fn merge(&mut self, other: Table) {
        self.kernels.extend(other.kernels);
        for (title, row) in other.rows {
            self.rows.entry(title).or_default().extend(row);
        }
    }

    /// The reasons of skipped tests and their numbers, the most frequent first.
    pub(crate) fn skips_by_reason(&self) -> Vec<(usize, &str)> {
        let mut numbers = BTreeMap::<&str, usize>::new();
        for entry in self.rows.values().flat_map(BTreeMap::values) {
            if let Outcome::Skipped(reason) = &entry.outcome {
                *numbers.entry(reason).or_default() += 1;
            }
        }
        let mut numbers: Vec<_> = numbers.into_iter().map(|(reason, number)| (number, reason)).collect();
        numbers.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        numbers
    }

    /// The failed tests: kernel and name.
    pub(crate) fn failed(&self) -> Vec<(String, String)> {
        let entries = self.rows.iter().flat_map(|(title, row)| row.iter().map(move |at| (title, at)));
        entries
            .filter(|(_, (_, entry))| entry.outcome == Outcome::Failed)
            .map(|(title, (kernel, _))| (kernel.clone(), title.clone()))
            .collect()
    }

    /// Classifies the failed tests that pass in a second run as flaky.
    pub(crate) fn classify(&mut self, second: &Table) {
        for (title, row) in &mut self.rows {
            for (kernel, entry) in row.iter_mut().filter(|(_, entry)| entry.outcome == Outcome::Failed) {
                let again = second.rows.get(title).and_then(|row| row.get(kernel));
                if let Some(again) = again.filter(|again| again.outcome == Outcome::Passed) {
                    entry.outcome = Outcome::Flaky;
                    entry.second_log.clone_from(&again.log);
                }
            }
        }
    }

    /// The flaky tests.
    pub(crate) fn flaky(&self) -> Vec<FlakyTest<'_>> {
        let entries = self.rows.iter().flat_map(|(title, row)| row.iter().map(move |at| (title, at)));
        entries
            .filter(|(_, (_, entry))| entry.outcome == Outcome::Flaky)
            .map(|(title, (kernel, entry))| FlakyTest {
                kernel,
                title,
                first_log: &entry.log,
                second_log: &entry.second_log,
            })
            .collect()
    }

    /// Whether a test was skipped on a kernel.
    pub(crate) fn is_skipped(&self, kernel: &str, title: &str) -> bool {
        let entry = self.rows.get(title).and_then(|row| row.get(kernel));
        matches!(entry, Some(Entry { outcome: Outcome::Skipped(_), .. }))
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
            let cell = |kernel: &String| match row.get(kernel).map(|entry| &entry.outcome) {
                Some(Outcome::Passed) => "ok",
                Some(Outcome::Skipped(_)) => "skipped",
                Some(Outcome::Failed) => "FAILED",
                Some(Outcome::Flaky) => "flaky",
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
            for (kernel, entry) in row {
                if let Outcome::Skipped(reason) = &entry.outcome {
                    kernels.entry(reason).or_default().push(kernel.as_str());
                }
            }
            lines.extend(
                kernels.iter().map(|(reason, on)| format!("skipped on {}: {name}: {reason}", on.join(", "))),
            );
        }
        lines
    }

    /// The failed tests, each with its cause on the first kernel.
    fn failures(&self) -> Vec<String> {
        let failed = |(name, row): (&String, &BTreeMap<String, Entry>)| {
            let failed = row.iter().filter(|(_, entry)| entry.outcome == Outcome::Failed);
            let on: Vec<_> = failed.clone().map(|(kernel, _)| kernel.as_str()).collect();
            let cause = failed.map(|(_, entry)| cause(&entry.log)).next()?;
            Some(format!("FAILED on {}: {name}{cause}", on.join(", ")))
        };
        self.rows.iter().filter_map(failed).collect()
    }
}

#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    pub(crate) flaky: usize,
}

impl Totals {
    pub(crate) fn add(&mut self, table: &Table) {
        for entry in table.rows.values().flat_map(|row| row.values()) {
            match entry.outcome {
                Outcome::Passed => self.passed += 1,
                Outcome::Skipped(_) => self.skipped += 1,
                Outcome::Failed => self.failed += 1,
                Outcome::Flaky => self.flaky += 1,
            }
        }
    }
}

/// The lines of a failed test's log that tell why, each after a newline: the first panic's message,
/// or the last lines.
pub(crate) fn cause(log: &str) -> String {
    const LINES: usize = 6;
    const AFTER: [&str; 2] = ["note: run with", "stack backtrace:"];
    let lines: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let begin = lines.iter().position(|line| line.contains("panicked at"));
    let begin = begin.unwrap_or(lines.len().saturating_sub(LINES));
    let told = lines[begin..].iter().take_while(|line| !AFTER.iter().any(|after| line.starts_with(after)));
    told.take(LINES).map(|line| format!("\n    {line}")).collect()
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
        let mut table = Table::new(vec!["6.1".into(), "7.2".into()]);
        for (kernel, title, outcome) in [
            ("6.1", "a::b", Outcome::Skipped("no XRC domains".into())),
            ("7.2", "a::b", Outcome::Skipped("no XRC domains".into())),
            ("6.1", "a::c", Outcome::Skipped("before 7.0".into())),
            ("7.2", "a::c", Outcome::Failed),
            ("6.1", "a::d", Outcome::Failed),
            ("7.2", "a::d", Outcome::Failed),
        ] {
            let log = if title == "a::d" { format!("the cause on {kernel}") } else { String::new() };
            table.enter(kernel, title, outcome, &log, Duration::ZERO);
        }
        assert_eq!(
            table.skips(),
            ["skipped on 6.1, 7.2: a::b: no XRC domains", "skipped on 6.1: a::c: before 7.0"]
        );
        assert_eq!(
            table.failures(),
            ["FAILED on 7.2: a::c", "FAILED on 6.1, 7.2: a::d\n    the cause on 6.1"]
        );
    }

    /// The outcomes of two tests on two kernels.
    fn table(outcomes: [(&str, &str, Outcome); 3], log: &str) -> Table {
        let mut table = Table::new(vec!["6.1".into(), "7.2".into()]);
        for (kernel, title, outcome) in outcomes {
            table.enter(kernel, title, outcome, log, Duration::ZERO);
        }
        table
    }

    #[test]
    fn failed_test_that_passes_when_run_again_is_flaky_on_that_kernel() {
        let failed = || Outcome::Failed;
        let mut first =
            table([("6.1", "a::b", failed()), ("7.2", "a::b", failed()), ("7.2", "a::c", failed())], "first");
        assert_eq!(first.failed().len(), 3);
        let skipped = Outcome::Skipped("no device".into());
        let second = table(
            [("6.1", "a::b", failed()), ("7.2", "a::b", Outcome::Passed), ("7.2", "a::c", skipped)],
            "second",
        );
        first.classify(&second);
        let flaky = FlakyTest { kernel: "7.2", title: "a::b", first_log: "first", second_log: "second" };
        assert_eq!(first.flaky(), [flaky]);
        assert_eq!(first.failures(), ["FAILED on 6.1: a::b\n    first", "FAILED on 7.2: a::c\n    first"]);
        let mut totals = Totals::default();
        totals.add(&first);
        let Totals { passed, failed, skipped, flaky } = totals;
        assert_eq!((passed, failed, skipped, flaky), (0, 2, 0, 1));
    }

    #[test]
    fn outcomes_of_other_kernels_are_merged_and_reasons_counted() {
        let skipped = |reason: &str| Outcome::Skipped(reason.to_owned());
        let mut first = Table::new(vec!["7.2".into()]);
        first.enter("7.2", "a::b", Outcome::Passed, "", Duration::ZERO);
        let mut second = Table::new(vec!["soft".into()]);
        for (title, reason) in [("a::a", "one"), ("a::b", "two"), ("a::c", "two")] {
            second.enter("soft", title, skipped(reason), "", Duration::ZERO);
        }
        first.merge(second);
        assert_eq!(first.kernels, ["7.2", "soft"]);
        assert!(first.is_skipped("soft", "a::b") && !first.is_skipped("7.2", "a::b"));
        assert_eq!(first.skips_by_reason(), [(2, "two"), (1, "one")]);
    }

    #[test]
    fn test_that_passed_at_once_is_not_classified() {
        let outcomes = || {
            [
                ("6.1", "a::b", Outcome::Passed),
                ("7.2", "a::b", Outcome::Passed),
                ("7.2", "a::c", Outcome::Passed),
            ]
        };
        let mut first = table(outcomes(), "");
        first.classify(&table(outcomes(), ""));
        assert_eq!((first.failed(), first.flaky()), (vec![], vec![]));
    }

    #[test]
    fn cause_is_the_first_panic_or_the_last_lines() {
        let log = "running 1 test\n\nthread 'server' panicked at a.rs:3:5:\nleft: 1\nright: 2\n\
                   note: run with `RUST_BACKTRACE=1`\nthread 'main' panicked at b.rs:1:1:\n";
        assert_eq!(cause(log), "\n    thread 'server' panicked at a.rs:3:5:\n    left: 1\n    right: 2");
        assert_eq!(cause("1\n2\n3\n4\n5\n6\n7\n"), "\n    2\n    3\n    4\n    5\n    6\n    7");
        assert_eq!(cause(""), "");
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
