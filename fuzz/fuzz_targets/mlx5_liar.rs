//! A device that lies to the ConnectX provider: any bytes in its completion rings, in any order with what a program does
//! to its queues. Nothing panics, polling ends, and no request is named that was not posted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|lies: &[u8]| bareverbs_mlx5::testing::liar::hear(lies));
