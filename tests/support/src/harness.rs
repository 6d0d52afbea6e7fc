//! The harness of tests that need a kernel with an RDMA device.
//!
//! A test binary lists its tests with [`kernel_tests!`](crate::kernel_tests). The tests run in a
//! guest of the lab. Elsewhere they are reported as ignored, because they need root, an RDMA device
//! and a kernel that they may crash. `cargo xtask test` runs them on every kernel, each test in a
//! process of its own, as root, with one device up ([`device`](crate::device); on Ethernet at
//! 10.1.0.1) and the Debian root with rdma-core.
//!
//! ```
//! use bareverbs_test_support::{Outcome, skip};
//!
//! fn counters_start_at_zero() {
//!     assert!(std::path::Path::new("/dev/infiniband/uverbs0").exists());
//! }
//!
//! fn a_test_for_newer_kernels() -> Outcome {
//!     skip("this kernel has no DMA handles")
//! }
//!
//! bareverbs_test_support::kernel_tests! { counters_start_at_zero, a_test_for_newer_kernels }
//! ```

use std::process::ExitCode;

use libtest_mimic::Trial;
pub use libtest_mimic::{Arguments, Completion, Failed};

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
pub struct Test {
    name: &'static str,
    run: fn() -> Outcome,
}

impl Test {
    /// Creates a test. Reports print its name.
    pub const fn new(name: &'static str, run: fn() -> Outcome) -> Self {
        Self { name, run }
    }
}

/// Whether this process runs in a guest of the lab.
pub fn in_lab() -> bool {
    let command_line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    command_line.split_whitespace().any(|word| word == "bareverbs.lab")
}

/// Runs the tests that the command line selects in the lab. Elsewhere all are reported as ignored.
pub fn run(arguments: &Arguments, tests: &[Test]) -> ExitCode {
    libtest_mimic::run(arguments, trials(tests, in_lab())).exit_code()
}

fn trials(tests: &[Test], in_lab: bool) -> Vec<Trial> {
    let trials = tests.iter().map(|test| match in_lab {
        true => Trial::ignorable_test(test.name, test.run),
        false => Trial::test(test.name, || Err(Failed::from("needs the lab: `cargo xtask test`")))
            .with_kind("left out, needs the lab")
            .with_ignored_flag(true),
    });
    trials.collect()
}

/// The `main` of a test binary: the names of its test functions, each with an optional condition on
/// the device.
#[macro_export]
macro_rules! kernel_tests {
    ($($test:ident $(if $need:path)?),+ $(,)?) => {
        fn main() -> ::std::process::ExitCode {
            $crate::run(&$crate::Arguments::from_args(), &[
                $($crate::Test::new(::core::stringify!($test), || {
                    $(if let ::core::result::Result::Err(lacking) = $need() {
                        return $crate::skip(lacking);
                    })?
                    $crate::Verdict::outcome($test())
                })),+
            ])
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: [Test; 2] =
        [Test::new("passes", || ().outcome()), Test::new("skips", || skip("not on this kernel"))];

    #[test]
    fn outside_the_lab_all_tests_are_skipped() {
        let trials = trials(&TESTS, false);
        assert_eq!(trials.len(), 2);
        assert!(
            trials.iter().all(|trial| trial.has_ignored_flag() && trial.kind().contains("needs the lab"))
        );
    }

    #[test]
    fn in_the_lab_every_test_runs() {
        assert!(trials(&TESTS, true).iter().all(|trial| !trial.has_ignored_flag()));
    }
}
