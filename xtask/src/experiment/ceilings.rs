//! Tables of figures with ceilings.

use std::process::ExitCode;

/// The text of a table, and its rows above their ceiling.
pub(crate) struct Ceilings {
    pub(crate) text: String,
    pub(crate) above: Vec<&'static str>,
}

impl Ceilings {
    /// A table with this heading.
    pub(crate) fn new(heading: String) -> Self {
        Self { text: heading + "\n", above: Vec::new() }
    }

    /// Adds a row. `line` has the figures and their ceilings.
    pub(crate) fn row(&mut self, what: &'static str, line: &str, is_above: bool) {
        self.text.push_str(line);
        if is_above {
            self.text.push_str("  ABOVE");
            self.above.push(what);
        }
        self.text.push('\n');
    }

    /// Prints the table. Returns a failure if a row is above its ceiling.
    pub(crate) fn print(&self) -> ExitCode {
        print!("{}", self.text);
        if self.above.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
