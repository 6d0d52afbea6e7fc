//! The steps of a check, each of which may end it.

/// Why a check ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It can't run here.
    Skip(String),
    /// The kernel broke a rule.
    Fail(String),
}

/// The result of a step of a check.
pub(crate) type Step<T> = Result<T, Stop>;

/// Ends the check: it can't run here.
pub(crate) fn skip<T>(reason: impl Into<String>) -> Step<T> {
    Err(Stop::Skip(reason.into()))
}

/// Ends the check: the kernel broke a rule.
pub(crate) fn fail<T>(reason: impl Into<String>) -> Step<T> {
    Err(Stop::Fail(reason.into()))
}
