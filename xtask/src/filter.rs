//! Selects tests by parts of their names.

use std::fmt;

/// Parts of the names of the selected kernel tests. An empty filter selects all tests.
#[derive(Clone, Copy)]
pub(crate) struct Filter<'a>(pub(crate) &'a [String]);

impl Filter<'_> {
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
}

impl fmt::Display for Filter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("`, `"))
    }
}
