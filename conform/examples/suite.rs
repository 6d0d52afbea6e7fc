//! Runs the suite on the first device and prints the failures.

use std::process::ExitCode;

use bareverbs_conform::{Filter, Suite, SuiteError, Verdict};

fn main() -> Result<ExitCode, SuiteError> {
    let pattern = std::env::args().nth(1);
    let suite = Suite::for_device(None)?;
    let results = suite.run(&Filter::new(pattern.as_deref()), 0, |outcome, _, _| {
        if outcome.verdict == Verdict::Failed {
            println!("{}", suite.explain(outcome));
        }
    });
    let [passed, failed, skipped] =
        [Verdict::Passed, Verdict::Failed, Verdict::Skipped].map(|verdict| results.count(verdict));
    println!(
        "{} (rules of {}): {passed} passed, {failed} failed, {skipped} skipped in {} ms",
        results.kernel, results.series, results.milliseconds
    );
    Ok(results.exit_status().into())
}
