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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_above_its_ceiling_fails_the_table() {
        let mut table = Ceilings::new("figures".to_owned());
        table.row("post", "post 31 (31)", false);
        assert_eq!(table.print(), ExitCode::SUCCESS);
        table.row("poll", "poll 12 (11)", true);
        assert_eq!((table.above.as_slice(), table.print()), (&["poll"][..], ExitCode::FAILURE));
        assert_eq!(table.text, "figures\npost 31 (31)\npoll 12 (11)  ABOVE\n");
    }
}
