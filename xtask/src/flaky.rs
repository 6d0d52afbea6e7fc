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
    /// Whether the cause was mended. Then the test must not be flaky for it again.
    mended: bool,
    /// What the output contains if the test fails for this cause.
    sign: String,
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
        if let Some(test) = flaky.iter().find(|test| self.finding(test).is_some_and(|at| at.mended)) {
            return Some(format!("{LIST} lists {} as mended", test.title));
        }
        (flaky.len() > TOLERATED).then(|| format!("{} tests are flaky, more than {TOLERATED}", flaky.len()))
    }

    /// What is known of the cause of which a test has failed.
    fn finding(&self, test: &FlakyTest<'_>) -> Option<&Finding> {
        self.0.get(test.title).filter(|finding| test.first_log.contains(&finding.sign))
    }

    /// Prints the flaky tests, with both outputs of each.
    pub(crate) fn print(&self, flaky: &[FlakyTest<'_>]) {
        if !flaky.is_empty() {
            heading("Flaky tests: each failed, and passed alone");
        }
        for test @ FlakyTest { kernel, title, first_log, second_log } in flaky {
            println!("FLAKY on {kernel}: {title}: {}", self.describe(test));
            println!("-- first run\n{}\n-- alone\n{}", first_log.trim_end(), second_log.trim_end());
        }
    }

    fn describe(&self, test: &FlakyTest<'_>) -> String {
        match self.finding(test) {
            Some(Finding { mended: false, cause, .. }) => format!("known: {cause}"),
            Some(Finding { mended: true, cause, .. }) => format!("mended, and back: {cause}"),
            None => format!("new: find its cause, and enter it in {LIST}"),
        }
    }
}

/// `known TITLE => CAUSE` or `mended TITLE => CAUSE`. `TITLE (SIGN)` is of failures with this text in their
/// output only.
fn entry(line: &str) -> Result<(&str, Finding)> {
    let (test, cause) = line.split_once(" => ").with_context(|| format!("no cause: {line}"))?;
    ensure!(!cause.trim().is_empty(), "no cause: {line}");
    let (mended, title) = match test.split_once(' ') {
        Some(("known", title)) => (false, title),
        Some(("mended", title)) => (true, title),
        _ => bail!("neither `known` nor `mended`: {line}"),
    };
    let (title, sign) = match title.trim().strip_suffix(')') {
        Some(title) => title.split_once(" (").with_context(|| format!("no sign: {line}"))?,
        None => (title.trim(), ""),
    };
    Ok((title, Finding { mended, sign: sign.to_owned(), cause: cause.trim().to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> FlakyList {
        let text = "# why\n\nknown a::b => a lost packet\nmended a::c => a race\nmended a::e (no answer) => a hang\n";
        FlakyList::parse(text).unwrap()
    }

    fn flaky<const N: usize>(titles: [&str; N]) -> [FlakyTest<'_>; N] {
        titles.map(|title| FlakyTest { kernel: "7.2", title, first_log: "failed", second_log: "" })
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
    fn mended_cause_is_known_by_its_sign() {
        let [other] = flaky(["a::e"]);
        let same = FlakyTest { first_log: "there was no answer", ..other };
        assert_eq!(list().failure(&[other], true), None);
        assert_eq!(list().failure(&[same], true).as_deref(), Some("xtask/flaky.txt lists a::e as mended"));
    }

    #[test]
    fn run_of_everything_tolerates_no_flaky_test() {
        assert_eq!(list().failure(&flaky([]), false), None);
        let failure = list().failure(&flaky(["a::b"]), false);
        assert_eq!(failure.as_deref(), Some("--all tolerates no flaky test"));
    }

    #[test]
    fn flaky_tests_are_described_by_their_entry() {
        for (test, description) in flaky(["a::b", "a::c", "a::d", "a::e"]).iter().zip([
            "known: a lost packet",
            "mended, and back: a race",
            "new: find its cause, and enter it in xtask/flaky.txt",
            "new: find its cause, and enter it in xtask/flaky.txt",
        ]) {
            assert_eq!(list().describe(test), description);
        }
    }

    #[test]
    fn malformed_entries_are_errors() {
        for (text, error) in [
            ("known a::b", "no cause: known a::b"),
            ("known a::b =>  ", "no cause: known a::b =>  "),
            ("known a::b) => a race", "no sign: known a::b) => a race"),
            ("a::b => a race", "neither `known` nor `mended`: a::b => a race"),
            ("known a::b => one\nmended a::b => two", "a::b has two entries"),
        ] {
            assert_eq!(FlakyList::parse(text).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn entries_name_existing_tests() {
        let titles = ["a::b", "a::e", "a::c"].map(str::to_owned);
        list().check_titles(&titles).unwrap();
        let error = list().check_titles(&titles[..2]).unwrap_err();
        assert_eq!(error.to_string(), "xtask/flaky.txt: there is no test a::c");
        FlakyList::read().unwrap();
    }
}
