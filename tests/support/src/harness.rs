//! The harness of tests that need a kernel with an RDMA device.
//!
//! A function with the attribute [`kernel_test`](crate::kernel_test) is a test of its binary, whose
//! `main` calls [`run`]. The tests run in a guest of the lab. Elsewhere they are reported as ignored,
//! because they need root, an RDMA device and a kernel that they may crash. `cargo xtask test` runs
//! them on every kernel, each test in a process of its own, as root, with one device up
//! ([`device`](crate::device); on Ethernet at 10.1.0.1) and the Debian root with rdma-core.
//!
//! ```
//! use bareverbs_test_support::{Outcome, kernel_test, skip};
//!
//! #[kernel_test]
//! fn device_has_a_node() {
//!     assert!(std::path::Path::new("/dev/infiniband/uverbs0").exists());
//! }
//!
//! #[kernel_test]
//! fn a_test_for_newer_kernels() -> Outcome {
//!     skip("this kernel has no DMA handles")
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     bareverbs_test_support::run()
//! }
//! ```

use std::collections::HashSet;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
pub use libtest_mimic::{Completion, Failed};

/// The result of a test: passed, skipped with a reason, or failed.
pub type Outcome = Result<Completion, Failed>;

/// The return type of a test function: `()`, if the function panics on failure, or an [`Outcome`].
pub trait Verdict {
    /// Converts the result into an outcome.
    fn outcome(self) -> Outcome;
}

impl Verdict for () {
    fn outcome(self) -> Outcome {
        Ok(Completion::Completed)
    }
}

impl Verdict for Outcome {
    fn outcome(self) -> Outcome {
        self
    }
}

/// Ends a test as skipped, because this kernel lacks the tested feature.
///
/// # Errors
/// None; the result is the return value of a test function.
pub fn skip(reason: impl Into<String>) -> Outcome {
    Ok(Completion::ignored_with(reason.into()))
}

/// A named test.
#[doc(hidden)]
pub struct Test {
    name: &'static str,
    /// File and line. Reports list the tests in this order.
    place: (&'static str, u32),
    run: fn() -> Outcome,
}

inventory::collect!(Test);

impl Test {
    /// Creates a test. Reports print its name.
    pub const fn new(name: &'static str, place: (&'static str, u32), run: fn() -> Outcome) -> Self {
        Self { name, place, run }
    }
}

/// Whether this process runs in a guest of the lab.
pub fn in_lab() -> bool {
    let command_line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    command_line.split_whitespace().any(|word| word == "bareverbs.lab")
}

/// The `main` of a test binary: runs the tests that the command line selects in the lab. Elsewhere
/// all are reported as ignored.
///
/// # Panics
/// If two tests have the same name.
pub fn run() -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials(tests(), in_lab())).exit_code()
}

/// The tests of this binary, by file and line.
fn tests() -> Vec<&'static Test> {
    let mut tests: Vec<&Test> = inventory::iter::<Test>().collect();
    tests.sort_by_key(|test| test.place);
    let mut names = HashSet::new();
    for test in &tests {
        assert!(names.insert(test.name), "two tests are named `{}`", test.name);
    }
    tests
}

fn trials(tests: Vec<&'static Test>, in_lab: bool) -> Vec<Trial> {
    let trials = tests.into_iter().map(|test| match in_lab {
        true => Trial::ignorable_test(test.name, test.run),
        false => Trial::test(test.name, || Err(Failed::from("needs the lab: `cargo xtask test`")))
            .with_kind("left out, needs the lab")
            .with_ignored_flag(true),
    });
    trials.collect()
}

#[cfg(test)]
mod tests {
    use bareverbs_test_macros::kernel_test;

    use super::*;

    #[kernel_test]
    fn passes() {}

    #[kernel_test]
    fn skips() -> Outcome {
        skip("not on this kernel")
    }

    fn is_lacking() -> Result<(), String> {
        Err("the feature".into())
    }

    #[kernel_test(is_lacking)]
    fn needs_what_is_lacking() {
        panic!("it runs");
    }

    #[test]
    fn tests_are_registered_in_the_order_of_their_file() {
        let names: Vec<_> = tests().iter().map(|test| test.name).collect();
        assert_eq!(names, ["passes", "skips", "needs_what_is_lacking"]);
    }

    #[test]
    fn a_test_is_skipped_with_the_reason_of_its_condition() {
        let last = tests().pop().unwrap();
        let outcome = (last.run)();
        assert!(
            matches!(outcome, Ok(Completion::Ignored { reason: Some(reason) }) if reason == "the feature")
        );
    }

    #[test]
    fn outside_the_lab_all_tests_are_skipped() {
        let trials = trials(tests(), false);
        assert_eq!(trials.len(), 3);
        assert!(
            trials.iter().all(|trial| trial.has_ignored_flag() && trial.kind().contains("needs the lab"))
        );
    }

    #[test]
    fn in_the_lab_every_test_runs() {
        assert!(trials(tests(), true).iter().all(|trial| !trial.has_ignored_flag()));
    }
}
