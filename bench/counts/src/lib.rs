//! A queue pair on the software HCA in the same process, and the marks between which valgrind
//! counts.

pub mod harness;
#[cfg(target_arch = "x86_64")]
pub mod marks;
#[path = "../../../provider-mlx5/tests/hca/testbed.rs"]
#[allow(dead_code, reason = "the provider's own tests use all of it")]
mod testbed;
