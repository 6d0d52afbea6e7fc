//! A device that lies to the ConnectX provider: any bytes in its completion rings, in any order
//! with what a program does to its queues.
//!
//! Polling ends, and no completion names a request that was not posted.

pub(crate) fn run(data: &[u8]) {
    bareverbs_mlx5::testing::malicious_device::run(data);
}
