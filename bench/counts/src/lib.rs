//! A queue pair on the software HCA in the same process, and the marks between which valgrind
//! counts.

pub mod harness;
#[cfg(target_arch = "x86_64")]
pub mod marks;
mod provider;
