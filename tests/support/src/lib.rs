//! What test crates share.
//!
//! Without features: [`allocations`] and [`TIMEOUT`]. The feature `kernel` adds the harness of tests
//! that need a kernel with an RDMA device.

use std::time::Duration;

pub mod allocations;
#[cfg(feature = "kernel")]
pub mod child;
#[cfg(feature = "kernel")]
pub mod device;
#[cfg(feature = "kernel")]
pub mod exchange;
#[cfg(feature = "kernel")]
mod harness;
#[cfg(feature = "kernel")]
pub mod loopback;
#[cfg(feature = "kernel")]
pub mod resources;

#[cfg(feature = "kernel")]
pub use crate::harness::{Arguments, Completion, Failed, Outcome, Test, Verdict, in_lab, run, skip};

/// How long a test waits for an event that must come. It is far longer than any takes, because
/// guests without KVM are slow.
pub const TIMEOUT: Duration = Duration::from_secs(30);
