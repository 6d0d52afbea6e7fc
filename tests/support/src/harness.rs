//! The harness of tests that need a kernel with an RDMA device.
//!
//! A function with the attribute [`kernel_test`](crate::kernel_test) is a test of its binary, whose
//! `main` calls [`run`] or [`run_anywhere`]. The tests run in a guest of the lab. `cargo xtask test`
//! runs them on every kernel, each test in a process of its own, as root, with one device up
//! ([`device`](crate::device); on Ethernet at 10.1.0.1) and the Debian root with rdma-core.
//!
//! Elsewhere the tests of [`run`] are reported as ignored, because they need root, an RDMA device and a
//! kernel that they may crash. Those of [`run_anywhere`] run on a soft device, each in a process of its
//! own, without root. `cargo xtask test --device soft` runs all of them, and `cargo test` those that
//! [`run_anywhere`] selects.
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
use std::env;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};
pub use libtest_mimic::{Completion, Failed};

use crate::iwarp;
use crate::opened::DEVICE;

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

/// The name of the soft device in the processes that [`run_anywhere`] starts.
const SOFT_DEVICE: &str = "soft0";

/// Where a test binary runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a guest of the lab, on a device of the kernel.
    Lab,
    /// In a process with a soft device, whose name [`DEVICE`] has.
    Soft,
    /// In a process without a device.
    Elsewhere,
}

impl Place {
    fn here() -> Self {
        match env::var_os(DEVICE) {
            _ if in_lab() => Self::Lab,
            Some(_) => Self::Soft,
            None => Self::Elsewhere,
        }
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
    let place = if in_lab() { Place::Lab } else { Place::Elsewhere };
    libtest_mimic::run(&Arguments::from_args(), trials(tests(), place, None)).exit_code()
}

/// The `main` of a test binary whose tests also run on a soft device: runs the tests that the command
/// line selects in the lab, or on the soft device that [`DEVICE`] names. Elsewhere those that `is_short`
/// accepts run on a soft device, each in a process of its own, and the others are reported as ignored.
///
/// # Panics
/// If two tests have the same name.
pub fn run_anywhere(is_short: fn(&str) -> bool) -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), trials(tests(), Place::here(), Some(is_short))).exit_code()
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

fn trials(tests: Vec<&'static Test>, place: Place, is_short: Option<fn(&str) -> bool>) -> Vec<Trial> {
    let elsewhere = |test: &'static Test| match is_short {
        Some(is_short) if is_short(test.name) => {
            Trial::ignorable_test(test.name, || in_own_process(test.name))
        }
        Some(_) => left_out(test, "not in the short form, needs `cargo xtask test --device soft`"),
        None => left_out(test, "needs the lab"),
    };
    let trials = tests.into_iter().map(|test| match place {
        Place::Lab | Place::Soft => Trial::ignorable_test(test.name, || {
            iwarp::remove_abandoned_link();
            let _removed_after = RemovedLink;
            (test.run)()
        }),
        Place::Elsewhere => elsewhere(test),
    });
    trials.collect()
}

/// Removes the link of a test of iWARP on drop.
struct RemovedLink;

impl Drop for RemovedLink {
    fn drop(&mut self) {
        iwarp::remove_link();
    }
}

/// A test that is reported as ignored.
fn left_out(test: &Test, reason: &'static str) -> Trial {
    Trial::test(test.name, move || Err(Failed::from(reason)))
        .with_kind(format!("left out, {reason}"))
        .with_ignored_flag(true)
}

/// Runs a test on a soft device in a process of its own: tests count the objects of their device, change
/// properties of their process and fork.
fn in_own_process(name: &str) -> Outcome {
    let mut command = Command::new(env::current_exe()?);
    command.args(["--exact", name, "--test-threads=1", "--color=never"]).env(DEVICE, SOFT_DEVICE);
    let output = command.output()?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match skipped(&text) {
        _ if !output.status.success() => Err(Failed::from(text)),
        Some(reason) => skip(reason),
        None => Ok(Completion::Completed),
    }
}

/// The reason why the test of a process was skipped, if it was.
fn skipped(text: &str) -> Option<&str> {
    Some(text.rsplit_once("ignored (")?.1.split_once(")\n")?.0)
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
        let trials = trials(tests(), Place::Elsewhere, None);
        assert_eq!(trials.len(), 3);
        assert!(
            trials.iter().all(|trial| trial.has_ignored_flag() && trial.kind().contains("needs the lab"))
        );
    }

    #[test]
    fn short_tests_run_without_the_lab() {
        let trials = trials(tests(), Place::Elsewhere, Some(|name| name == "passes"));
        let ignored: Vec<_> = trials.iter().map(Trial::has_ignored_flag).collect();
        assert_eq!(ignored, [false, true, true]);
    }

    #[test]
    fn reason_of_a_skipped_test_is_found_in_its_output() {
        let text = "test a ... ignored (no (such) device)\n\ntest result: ok. 0 passed\n";
        assert_eq!(skipped(text), Some("no (such) device"));
        assert_eq!(skipped("test a ... ok\n"), None);
    }

    #[test]
    fn in_the_lab_and_on_a_named_soft_device_every_test_runs() {
        for place in [Place::Lab, Place::Soft] {
            assert!(trials(tests(), place, None).iter().all(|trial| !trial.has_ignored_flag()));
        }
    }
}
