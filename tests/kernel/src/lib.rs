//! Tests of verbs on a real kernel. The test programs are in `tests`. Their shared code is in
//! [`bareverbs_test_support`].

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
