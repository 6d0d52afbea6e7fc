//! Conformance checks of the Linux kernel's RDMA user ABI.
//!
//! A [`Suite`] has the checks for one device. Most of them are generated from the tables of
//! [`bareverbs_uapi`]: each [`Rule`] of the ABI at every place where a kernel could break it. After
//! each check, the kernel must have the same objects as before, and no new warning.
//!
//! The expected answers were derived from the kernel's source and confirmed on each checked kernel
//! series. A difference between series is a [`Change`] with a name and a reason.
//!
//! ```
//! use bareverbs_conform::{Filter, Suite};
//!
//! let suite = Suite::for_device(Some("soft0"))?;
//! let results = suite.run(&Filter::new(Some("parser::QpCreate")), 0, |outcome, position, all| {
//!     println!("{position} of {all}: {} {:?}", outcome.name, outcome.verdict);
//! });
//! println!("exit status {}", results.exit_status());
//! # Ok::<(), bareverbs_conform::SuiteError>(())
//! ```

mod answer;
mod base;
mod call;
mod check;
mod environment;
mod errno;
#[cfg(any(test, feature = "test-utils"))]
mod fault;
mod filter;
pub mod fuzz;
mod generate;
mod guard;
pub mod junit;
mod kernel;
mod map;
#[cfg(any(test, feature = "soft", feature = "test-utils"))]
mod own_memory;
pub mod page;
mod privilege;
mod probe;
mod provided;
pub mod report;
mod request;
mod rules;
mod session;
#[cfg(any(test, feature = "soft"))]
mod soft;
mod step;
mod suite;
mod target;
mod write_buffer;

pub use answer::{Answer, Change, Expect};
pub use check::{Bug, Check};
pub use filter::Filter;
pub use rules::Rule;
pub use suite::{Outcome, Results, Suite, Verdict};

/// The suite can't run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// There is no such device.
    #[error(transparent)]
    Device(#[from] bareverbs::Error),
    /// RDMA netlink is unavailable.
    #[error(transparent)]
    Netlink(#[from] bareverbs_netlink::Error),
    /// The device has no uverbs file: the kernel module `ib_uverbs` is missing.
    #[error("device {device} has no uverbs file: load the kernel module ib_uverbs")]
    NoUverbs {
        /// The device.
        device: String,
    },
    /// The answers are those of no known kernel series.
    #[error("the kernel series that {device} is checked against can't be found by its answers: {reason}")]
    Probe {
        /// The device.
        device: String,
        /// The unexpected answer.
        reason: String,
    },
}
