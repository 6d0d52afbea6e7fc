//! The kernel's answers, and what checks expect.

use std::fmt;

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::verbs_values::WcStatus;
use rustix::io::Errno;

use crate::errno;

/// The result of a system call or of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// The call succeeded.
    Ok,
    /// The call failed with this error number.
    Errno(i32),
    /// The request completed with this status (`ib_wc_status`).
    Status(u32),
    /// The kernel reported this value.
    Value(u64),
    /// Nothing happened within the timeout.
    Nothing,
}

impl Answer {
    pub(crate) const INVAL: Self = Self::errno(Errno::INVAL);
    pub(crate) const NOENT: Self = Self::errno(Errno::NOENT);
    pub(crate) const BADF: Self = Self::errno(Errno::BADF);
    pub(crate) const FAULT: Self = Self::errno(Errno::FAULT);
    pub(crate) const NOSPC: Self = Self::errno(Errno::NOSPC);
    pub(crate) const BUSY: Self = Self::errno(Errno::BUSY);
    pub(crate) const OPNOTSUPP: Self = Self::errno(Errno::OPNOTSUPP);
    pub(crate) const PROTONOSUPPORT: Self = Self::errno(Errno::PROTONOSUPPORT);
    pub(crate) const NOTTY: Self = Self::errno(Errno::NOTTY);
    pub(crate) const AGAIN: Self = Self::errno(Errno::AGAIN);
    pub(crate) const PERM: Self = Self::errno(Errno::PERM);
    pub(crate) const NOSYS: Self = Self::errno(Errno::NOSYS);
    pub(crate) const NODEV: Self = Self::errno(Errno::NODEV);
    pub(crate) const IO: Self = Self::errno(Errno::IO);
    pub(crate) const ADDRNOTAVAIL: Self = Self::errno(Errno::ADDRNOTAVAIL);
    pub(crate) const NODATA: Self = Self::errno(Errno::NODATA);

    pub(crate) const fn errno(errno: Errno) -> Self {
        Self::Errno(errno.raw_os_error())
    }

    pub(crate) fn of<T>(result: &Result<T, Errno>) -> Self {
        match result {
            Ok(_) => Self::Ok,
            Err(errno) => Self::errno(*errno),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("success"),
            Self::Errno(number) => match errno::name(*number) {
                Some(name) => f.write_str(name),
                None => write!(f, "errno {number}"),
            },
            Self::Status(status) => write!(f, "completion {}", WcStatus(*status)),
            Self::Value(value) => write!(f, "{value:#x}"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

/// A documented difference between kernel series.
#[derive(Debug)]
pub struct Change {
    /// Its name, which the page of a finding has too.
    pub name: &'static str,
    /// First checked series with the new behaviour.
    pub since: Since,
    /// The change of the kernel, with its file and function.
    pub why: &'static str,
}

/// The answer that a check expects.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// The same answer on every kernel.
    Is(Answer),
    /// Another answer since a change of the kernel.
    Changed {
        /// The change.
        change: &'static Change,
        /// The answer of kernels without the change.
        before: Answer,
        /// The answer of kernels with the change.
        after: Answer,
    },
}

impl Expect {
    /// The answer on a kernel of this series.
    #[must_use]
    pub fn on(self, series: Since) -> Answer {
        match self {
            Self::Is(answer) => answer,
            Self::Changed { change, after, .. } if series >= change.since => after,
            Self::Changed { before, .. } => before,
        }
    }

    /// Whether an answer is that of kernels with the change, or that of kernels without it.
    pub(crate) fn is_changed(self, got: Answer) -> Option<bool> {
        match self {
            Self::Changed { before, after, .. } if before != after => {
                (got == before || got == after).then_some(got == after)
            }
            _ => None,
        }
    }

    /// The change of the kernel that decides the answer.
    #[must_use]
    pub fn change(self) -> Option<&'static Change> {
        match self {
            Self::Is(_) => None,
            Self::Changed { change, .. } => Some(change),
        }
    }
}

impl From<Answer> for Expect {
    fn from(answer: Answer) -> Self {
        Self::Is(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectation_depends_on_the_series_of_the_change() {
        static CHANGE: Change = Change { name: "test", since: Since::V6_12, why: "" };
        let expect = Expect::Changed { change: &CHANGE, before: Answer::INVAL, after: Answer::Ok };
        assert_eq!(expect.on(Since::V6_1), Answer::INVAL);
        assert_eq!(expect.on(Since::V6_12), Answer::Ok);
        assert_eq!(expect.on(Since::V7_2), Answer::Ok);
        let answers = [Answer::INVAL, Answer::Ok, Answer::FAULT].map(|got| expect.is_changed(got));
        assert_eq!(answers, [Some(false), Some(true), None]);
    }

    #[test]
    fn answers_are_printed_by_name() {
        assert_eq!(Answer::PROTONOSUPPORT.to_string(), "EPROTONOSUPPORT");
        assert_eq!(Answer::Errno(1000).to_string(), "errno 1000");
        assert_eq!(Answer::Status(0).to_string(), "completion SUCCESS");
        assert_eq!(Answer::Value(16).to_string(), "0x10");
    }
}
