//! A malicious device below the mlx5 provider: any bytes in its completion rings, interleaved with
//! the program's operations on its queues.
//!
//! Polling terminates, and no completion names a request that was not posted.

pub(crate) fn run(data: &[u8]) {
    bareverbs_mlx5::testing::malicious_device::run(data);
}
