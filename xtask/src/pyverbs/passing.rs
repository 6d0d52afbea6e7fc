//! Where the tests that the table names pass. A test that is skipped on every kernel and device has no
//! entry, and each run of the kernel tests compares the entries with its outcomes.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::outcome;

/// By the title of a test, the columns of `cargo xtask test` in which it passes, such as `7.2 ib`.
pub(super) type Passing = BTreeMap<String, Vec<String>>;

fn path() -> PathBuf {
    build::workspace().join("tests/kernel/passing.txt")
}

pub(super) fn read() -> Result<Passing> {
    let text = fs::read_to_string(path()).with_context(|| format!("reading {}", path().display()))?;
    parse(&text)
}

/// Parses lines `TITLE: COLUMN, COLUMN`. Lines that begin with `#` are comments.
fn parse(text: &str) -> Result<Passing> {
    let mut passing = Passing::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (title, columns) = line.split_once(": ").with_context(|| format!("no column in `{line}`"))?;
        let columns = columns.split(", ").map(str::to_owned).collect();
        ensure!(passing.insert(title.to_owned(), columns).is_none(), "{title} has two lines");
    }
    Ok(passing)
}

/// The entries that a run refutes: tests that it skipped.
pub(crate) fn refuted(table: &outcome::Table) -> Result<Vec<String>> {
    Ok(refuted_of(&read()?, table))
}

fn refuted_of(passing: &Passing, table: &outcome::Table) -> Vec<String> {
    let entries =
        passing.iter().flat_map(|(title, columns)| columns.iter().map(move |column| (title, column)));
    let skipped = entries.filter(|(title, column)| table.is_skipped(column, title));
    skipped
        .map(|(title, column)| format!("{title} is skipped on {column}: remove it from passing.txt"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::outcome::Outcome;

    use super::*;

    #[test]
    fn skipped_tests_refute_their_entries() {
        let passing = parse("# Comment.\na::one: 7.2, 7.2 ib\na::two: 7.2\na::three: 6.1\n").unwrap();
        let mut table = outcome::Table::new(vec!["7.2".into(), "7.2 ib".into()]);
        let mut enter = |column, title, outcome| table.enter(column, title, outcome, "", Duration::ZERO);
        enter("7.2", "a::one", Outcome::Passed);
        enter("7.2 ib", "a::one", Outcome::Skipped("no".into()));
        enter("7.2", "a::two", Outcome::Failed);
        enter("7.2", "a::other", Outcome::Skipped("no".into()));
        assert_eq!(refuted_of(&passing, &table), ["a::one is skipped on 7.2 ib: remove it from passing.txt"]);
    }

    #[test]
    fn malformed_entries_are_rejected() {
        assert!(parse("a::one").is_err());
        assert!(parse("a::one: 7.2\na::one: 6.1").is_err());
    }
}
