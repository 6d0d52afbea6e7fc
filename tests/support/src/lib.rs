//! Shared code of the test crates.
//!
//! [`allocations`] and [`TIMEOUT`] need no feature. The feature `kernel` adds the harness of tests
//! that need an RDMA device, the feature `example` what the examples of the documentation run
//! on.

// The attribute names this crate by its name.
#[cfg(all(test, feature = "kernel"))]
extern crate self as bareverbs_test_support;

use std::time::Duration;

pub mod allocations;
#[cfg(feature = "kernel")]
pub mod bus;
#[cfg(feature = "kernel")]
pub mod child;
#[cfg(feature = "kernel")]
pub mod cm;
#[cfg(feature = "kernel")]
pub mod device;
#[cfg(feature = "example")]
pub mod example;
#[cfg(feature = "kernel")]
pub mod exchange;
#[cfg(feature = "kernel")]
mod harness;
#[cfg(feature = "kernel")]
pub mod iproute2;
#[cfg(feature = "kernel")]
mod iwarp;
#[cfg(feature = "kernel")]
pub mod loopback;
#[cfg(feature = "kernel")]
pub mod neighbour;
#[cfg(feature = "kernel")]
mod opened;
#[cfg(feature = "kernel")]
pub mod resources;
#[cfg(feature = "kernel")]
pub mod wire;

#[cfg(feature = "kernel")]
pub use bareverbs_test_macros::kernel_test;
#[cfg(feature = "kernel")]
#[doc(hidden)]
pub use inventory::submit;

#[cfg(feature = "kernel")]
pub use crate::harness::{Completion, Failed, Outcome, Test, Verdict, in_lab, run, run_anywhere, skip};
#[cfg(feature = "kernel")]
pub use crate::opened::DEVICE;

/// Timeout of an expected event: 30 s. Guests without KVM are slow, so it is much longer than any
/// event needs.
pub const TIMEOUT: Duration = Duration::from_secs(30);
