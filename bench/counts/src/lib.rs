//! A queue pair on a card in the same process, and marks for valgrind to count between.

#[path = "../../../provider-mlx5/tests/card/bench.rs"]
#[allow(dead_code, reason = "the provider's own tests use all of it")]
mod bench;
#[cfg(target_arch = "x86_64")]
pub mod marks;
pub mod stage;
