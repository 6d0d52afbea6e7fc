//! Tests of verbs on a real kernel and on a soft device. The test programs are in `tests`. Their shared
//! code is in [`bareverbs_test_support`].

use std::process::ExitCode;

use bareverbs_rdmacm::Waiting;
pub use bareverbs_test_support::*;

/// Calls that wait, with the time limit of tests.
pub trait InTime {
    /// The result of the call.
    type Output;

    /// Waits for the result.
    ///
    /// # Panics
    /// If it does not come in time.
    #[track_caller]
    fn in_time(self) -> Self::Output;
}

impl<T> InTime for Waiting<'_, T> {
    type Output = T;

    fn in_time(mut self) -> T {
        self.wait_timeout(TIMEOUT).expect("a result in time")
    }
}

/// Parts of the names of tests that wait seconds for retries.
const LONG: [&str; 1] = ["killed"];

/// The `main` of a test binary that is part of the short form: `cargo test` runs its tests on a soft
/// device, except for those that wait for seconds.
///
/// # Panics
/// If two tests have the same name.
pub fn run() -> ExitCode {
    run_anywhere(|name| !LONG.iter().any(|part| name.contains(part)))
}

/// The `main` of a test binary that runs on a soft device by `cargo xtask test --device soft` only.
///
/// # Panics
/// If two tests have the same name.
pub fn run_not_short() -> ExitCode {
    run_anywhere(|_| false)
}
