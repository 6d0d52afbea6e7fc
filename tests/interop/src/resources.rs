//! The programs' objects in the kernel, as counted by RDMA netlink.

use std::time::{Duration, Instant};

use bareverbs::netlink::{RdmaNetlink, ResourceSummary};
use bareverbs_kernel_tests::device;

/// Timeout for the kernel to release the objects of an ended process.
const PATIENCE: Duration = Duration::from_secs(5);

/// The counts now.
pub fn count() -> ResourceSummary {
    device::warm_up();
    let mut netlink = RdmaNetlink::open().expect("the lab has RDMA netlink");
    netlink.resources(device::name()).expect("the device counts its resources")
}

/// Waits until the counts are the same as before.
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

/// Runs a test and asserts that none of its objects is left in the kernel.
///
/// # Panics
/// If an object is left.
pub fn leaving_nothing<T>(test: impl FnOnce() -> T) -> T {
    let before = count();
    let result = test();
    expect(&before);
    result
}
