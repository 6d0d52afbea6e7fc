//! What the kernel holds for the programs, as RDMA netlink counts it.

use std::time::{Duration, Instant};

use bareverbs::netlink::{RdmaNetlink, ResourceSummary};

/// How long the kernel may take to let go of what a dead process had.
const PATIENCE: Duration = Duration::from_secs(5);

/// The device of the lab.
pub const DEVICE: &str = "rxe0";

/// The counts now.
pub fn count() -> ResourceSummary {
    let mut netlink = RdmaNetlink::open().expect("the lab has RDMA netlink");
    netlink.resources(DEVICE).expect("the lab has rxe0")
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
