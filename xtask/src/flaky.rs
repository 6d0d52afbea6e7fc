//! The flaky tests that were looked into, listed in `xtask/flaky.txt`, and how many a run may have.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::build;
use crate::outcome::FlakyTest;
use crate::print::heading;

const LIST: &str = "xtask/flaky.txt";
/// A run with more flaky tests fails.
const TOLERATED: usize = 2;

/// What is known of a flaky test.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// Whether the cause was mended. Then the test must not be flaky again.
    mended: bool,
    cause: String,
}

/// The list, by the tests' names.
#[derive(Debug)]
pub(crate) struct FlakyList(BTreeMap<String, Finding>);

impl FlakyList {
    pub(crate) fn read() -> Result<Self> {
        let path = build::workspace().join(LIST);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).context(LIST)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut list = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (title, finding) = entry(line)?;
            ensure!(list.insert(title.to_owned(), finding).is_none(), "{title} has two entries");
        }
        Ok(Self(list))
    }

    /// Fails if an entry names none of these tests.
    pub(crate) fn check_titles(&self, titles: &[String]) -> Result<()> {
        match self.0.keys().find(|title| !titles.contains(title)) {
            Some(title) => bail!("{LIST}: there is no test {title}"),
            None => Ok(()),
        }
    }

    /// Why these flaky tests fail the run, if they do.
    pub(crate) fn failure(&self, flaky: &[FlakyTest<'_>], tolerated: bool) -> Option<String> {
        if !tolerated && !flaky.is_empty() {
            return Some("--all tolerates no flaky test".to_owned());
        }
        if let Some(test) = flaky.iter().find(|test| self.0.get(test.title).is_some_and(|at| at.mended)) {
            return Some(format!("{LIST} lists {} as mended", test.title));
        }
        (flaky.len() > TOLERATED).then(|| format!("{} tests are flaky, more than {TOLERATED}", flaky.len()))
    }

    /// Prints the flaky tests, with both outputs of each.
    pub(crate) fn print(&self, flaky: &[FlakyTest<'_>]) {
        if !flaky.is_empty() {
            heading("Flaky tests: each failed, and passed alone");
        }
        for FlakyTest { kernel, title, first_log, second_log } in flaky {
            println!("FLAKY on {kernel}: {title}: {}", self.describe(title));
            println!("-- first run\n{}\n-- alone\n{}", first_log.trim_end(), second_log.trim_end());
        }
    }

    fn describe(&self, title: &str) -> String {
        match self.0.get(title) {
            Some(Finding { mended: false, cause }) => format!("known: {cause}"),
            Some(Finding { mended: true, cause }) => format!("mended, and back: {cause}"),
            None => format!("new: find its cause, and enter it in {LIST}"),
        }
    }
}

/// `known TITLE => CAUSE` or `mended TITLE => CAUSE`
fn entry(line: &str) -> Result<(&str, Finding)> {
    let (test, cause) = line.split_once(" => ").with_context(|| format!("no cause: {line}"))?;
    ensure!(!cause.trim().is_empty(), "no cause: {line}");
    let (mended, title) = match test.split_once(' ') {
        Some(("known", title)) => (false, title),
        Some(("mended", title)) => (true, title),
        _ => bail!("neither `known` nor `mended`: {line}"),
    };
    Ok((title.trim(), Finding { mended, cause: cause.trim().to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> FlakyList {
        FlakyList::parse("# why\n\nknown a::b => a lost packet\nmended a::c => a race\n").unwrap()
    }

    fn flaky<const N: usize>(titles: [&str; N]) -> [FlakyTest<'_>; N] {
        titles.map(|title| FlakyTest { kernel: "7.2", title, first_log: "", second_log: "" })
    }

    #[test]
    fn up_to_two_flaky_tests_are_tolerated() {
        assert_eq!(list().failure(&flaky([]), true), None);
        assert_eq!(list().failure(&flaky(["a::b", "a::d"]), true), None);
        let failure = list().failure(&flaky(["a::b", "a::d", "a::e"]), true);
        assert_eq!(failure.as_deref(), Some("3 tests are flaky, more than 2"));
    }

    #[test]
    fn mended_test_must_not_be_flaky_again() {
        let failure = list().failure(&flaky(["a::c"]), true);
        assert_eq!(failure.as_deref(), Some("xtask/flaky.txt lists a::c as mended"));
    }

    #[test]
    fn run_of_everything_tolerates_no_flaky_test() {
        assert_eq!(list().failure(&flaky([]), false), None);
        let failure = list().failure(&flaky(["a::b"]), false);
        assert_eq!(failure.as_deref(), Some("--all tolerates no flaky test"));
    }

    #[test]
    fn flaky_tests_are_described_by_their_entry() {
        assert_eq!(list().describe("a::b"), "known: a lost packet");
        assert_eq!(list().describe("a::c"), "mended, and back: a race");
        assert_eq!(list().describe("a::d"), "new: find its cause, and enter it in xtask/flaky.txt");
    }

    #[test]
    fn malformed_entries_are_errors() {
        for (text, error) in [
            ("known a::b", "no cause: known a::b"),
            ("known a::b =>  ", "no cause: known a::b =>  "),
            ("a::b => a race", "neither `known` nor `mended`: a::b => a race"),
            ("known a::b => one\nmended a::b => two", "a::b has two entries"),
        ] {
            assert_eq!(FlakyList::parse(text).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn entries_name_existing_tests() {
        let titles = ["a::b", "a::c"].map(str::to_owned);
        list().check_titles(&titles).unwrap();
        let error = list().check_titles(&titles[..1]).unwrap_err();
        assert_eq!(error.to_string(), "xtask/flaky.txt: there is no test a::c");
        FlakyList::read().unwrap();
    }
}
