//! The network interface of the device.

use std::process::Command;
use std::time::Instant;

use bareverbs_test_support::device;

use crate::program::{LIMIT, Program};

/// Brings the network interface of the device down and up again.
///
/// # Panics
/// If that fails.
pub fn cut_the_link() {
    let (link, gid) = (device::netdev(), device::gid());
    for state in ["down", "up"] {
        let mut ip = Command::new("ip");
        ip.args(["link", "set", "dev", &link, state]);
        Program::start(&mut ip).finish().expect_success();
    }
    // Later tests need the address at the same index.
    let context = device::open();
    let begin = Instant::now();
    while context.default_gid(1).map(|entry| entry.gid).ok() != Some(gid) {
        assert!(begin.elapsed() < LIMIT, "the address did not come back");
    }
}
