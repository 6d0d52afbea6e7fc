//! What the kernel holds for the programs, as RDMA netlink counts it.

use std::time::{Duration, Instant};

use bareverbs::netlink::{RdmaNetlink, ResourceSummary};
use bareverbs_kernel_tests::device;

/// How long the kernel may take to let go of what a dead process had.
const PATIENCE: Duration = Duration::from_secs(5);

/// The counts now.
pub fn count() -> ResourceSummary {
    device::warm_up();
    let mut netlink = RdmaNetlink::open().expect("the lab has RDMA netlink");
    netlink.resources(device::name()).expect("the device counts its resources")
}

/// Waits until the counts are as they were.
///
/// # Panics
/// If they stay different.
pub fn expect(before: &ResourceSummary) {
    let deadline = Instant::now() + PATIENCE;
    while count() != *before {
        assert!(Instant::now() < deadline, "left behind: {:?}, before: {before:?}", count());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a test and then shows that nothing of it is left in the kernel.
///
/// # Panics
/// If something is.
pub fn leaving_nothing<T>(test: impl FnOnce() -> T) -> T {
    let before = count();
    let result = test();
    expect(&before);
    result
}
