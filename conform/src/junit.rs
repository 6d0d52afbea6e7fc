//! Results as JUnit's XML, for CI systems. The reports of this crate and of `bareverbs perf` are such files.

use std::fmt::Write as _;

use crate::page::escape;

/// A check of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case<'a> {
    /// The group of the check.
    pub class: &'a str,
    /// The name of the check in its group.
    pub name: &'a str,
    /// What the check ended with.
    pub result: CaseResult<'a>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseResult<'a> {
    /// As expected.
    Passed,
    /// Not run.
    Skipped {
        /// Why not.
        reason: &'a str,
    },
    /// Not as expected.
    Failed {
        /// The difference.
        reason: &'a str,
        /// More about it. May be empty.
        details: &'a str,
    },
}

/// The XML of a suite. `seconds` is how long it took, if that is known.
#[must_use]
pub fn junit(suite: &str, seconds: Option<f64>, cases: &[Case<'_>]) -> String {
    let count = |is_it: fn(&CaseResult<'_>) -> bool| cases.iter().filter(|case| is_it(&case.result)).count();
    let failed = count(|result| matches!(result, CaseResult::Failed { .. }));
    let skipped = count(|result| matches!(result, CaseResult::Skipped { .. }));
    let time = seconds.map_or_else(String::new, |seconds| format!(" time=\"{seconds}\""));
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\" skipped=\"{skipped}\"{time}>\n",
        escape(suite),
        cases.len(),
    );
    for Case { class, name, result } in cases {
        let _ = write!(text, "  <testcase classname=\"{}\" name=\"{}\"", escape(class), escape(name));
        let _ = match result {
            CaseResult::Passed => writeln!(text, "/>"),
            CaseResult::Skipped { reason } => {
                writeln!(text, "><skipped message=\"{}\"/></testcase>", escape(reason))
            }
            CaseResult::Failed { reason, details } => {
                let (reason, details) = (escape(reason), escape(details));
                writeln!(text, "><failure message=\"{reason}\">{details}</failure></testcase>")
            }
        };
    }
    text + "</testsuite>\n"
}
