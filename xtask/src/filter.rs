//! Selects tests by parts of their names.

use std::collections::BTreeSet;
use std::fmt;

/// Parts of the names of the selected kernel tests. An empty filter selects all tests.
#[derive(Clone, Copy)]
pub(crate) struct Filter<'a>(pub(crate) &'a [String]);

impl<'a> Filter<'a> {
    pub(crate) fn takes_all(self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn takes(self, title: &str) -> bool {
        self.takes_all() || self.0.iter().any(|part| title.contains(part.as_str()))
    }

    /// Whether the filter only selects tests with this prefix.
    pub(crate) fn only(self, prefix: &str) -> bool {
        !self.takes_all() && self.0.iter().all(|part| part.starts_with(prefix))
    }

    /// The test programs that have the selected tests, if each part begins with the name of one.
    pub(crate) fn targets(self, is_target: impl Fn(&str) -> bool) -> Option<BTreeSet<&'a str>> {
        let target =
            |part: &'a String| part.split_once("::").map(|(name, _)| name).filter(|name| is_target(name));
        if self.takes_all() { None } else { self.0.iter().map(target).collect() }
    }
}

impl fmt::Display for Filter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("`, `"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_known_if_each_part_names_one() {
        let targets = |parts: &[&str]| {
            let parts: Vec<_> = parts.iter().map(|&part| part.to_owned()).collect();
            let found = Filter(&parts).targets(|name| ["cm", "perf"].contains(&name));
            found.map(|names| names.into_iter().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(targets(&["perf::", "cm::one", "cm::two"]).as_deref(), Some("cm perf"));
        assert_eq!(targets(&["perf::", "one"]), None, "any program may have such a test");
        assert_eq!(targets(&["hca::ib::"]), None);
        assert_eq!(targets(&[]), None);
    }
}
