//! The survivors that are explained in `xtask/mutants.txt`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};

use super::{Outcome, Verdict};
use crate::build;

const LIST: &str = "xtask/mutants.txt";

/// Reasons by mutant without its position in the file, one for each mutant of that name.
pub(super) struct Explained(BTreeMap<String, Vec<String>>);

impl Explained {
    pub(super) fn read() -> Result<Self> {
        let path = build::workspace().join(LIST);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| LIST)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (mutant, reason) = line.split_once(" => ").with_context(|| format!("no reason: {line}"))?;
            ensure!(!reason.trim().is_empty(), "no reason: {line}");
            all.entry(mutant.trim().to_owned()).or_default().push(reason.trim().to_owned());
        }
        Ok(Self(all))
    }

    /// Prints the survivors, and the explanations that are no longer needed. Returns how many
    /// survivors have no explanation.
    pub(super) fn report(&self, outcomes: &[Outcome]) -> usize {
        let mut left = self.0.clone();
        let mut unexplained = 0;
        for outcome in outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Survived) {
            match left.get_mut(&without_place(&outcome.name)).and_then(Vec::pop) {
                Some(reason) => println!("explained: {}: {reason}", outcome.name),
                None => {
                    println!("SURVIVED: {}", outcome.name);
                    unexplained += 1;
                }
            }
        }
        for outcome in outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Caught) {
            let name = without_place(&outcome.name);
            let same = outcomes.iter().filter(|other| without_place(&other.name) == name);
            // Several mutants of one name can't be told apart.
            if same.count() == 1 && left.contains_key(&name) {
                println!("explained in {LIST}, but a test notices: {}", outcome.name);
            }
        }
        unexplained
    }
}

/// `FILE:LINE:COLUMN: DESCRIPTION` without line and column, which change with edits.
fn without_place(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), Some(_), Some(_), Some(description)) => format!("{file}:{description}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, verdict: Verdict) -> Outcome {
        Outcome { name: name.to_owned(), verdict }
    }

    #[test]
    fn explanation_ignores_line_numbers() {
        let explained = Explained::parse("# why\n\na.rs: replace + with - in f => never called\n").unwrap();
        let survivors = |names: &[&str]| {
            let all: Vec<_> = names.iter().map(|name| outcome(name, Verdict::Survived)).collect();
            explained.report(&all)
        };
        assert_eq!(survivors(&["a.rs:1:2: replace + with - in f"]), 0);
        assert_eq!(survivors(&["a.rs:7:9: replace + with - in f"]), 0);
        assert_eq!(survivors(&["a.rs:1:2: replace + with * in f"]), 1);
        assert_eq!(survivors(&["b.rs:1:2: replace + with - in f"]), 1);
        // One line explains one mutant.
        assert_eq!(survivors(&["a.rs:1:2: replace + with - in f", "a.rs:2:2: replace + with - in f"]), 1);
    }

    #[test]
    fn caught_mutant_needs_no_explanation() {
        let explained = Explained::parse("").unwrap();
        let caught = [
            outcome("a.rs:1:2: replace + with -", Verdict::Caught),
            outcome("a.rs:1:2: replace + with *", Verdict::TimedOut),
            outcome("a.rs:1:2: replace + with /", Verdict::Unviable),
        ];
        assert_eq!(explained.report(&caught), 0);
    }

    #[test]
    fn explanation_requires_reason() {
        assert!(Explained::parse("a.rs: replace + with -").is_err());
        assert!(Explained::parse("a.rs: replace + with - =>  ").is_err());
    }

    #[test]
    fn mutants_txt_is_well_formed() {
        Explained::read().unwrap();
    }
}
