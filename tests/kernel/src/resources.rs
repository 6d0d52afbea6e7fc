//! What the device holds, counted by the kernel.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs::netlink::{RdmaNetlink, ResourceSummary};

use crate::device;
use crate::loopback::PATIENCE;

/// How many objects of each sort the device holds, for all processes and the kernel together.
pub fn held() -> ResourceSummary {
    device::warm_up();
    let counted = RdmaNetlink::open().and_then(|mut netlink| netlink.resources(device::name()));
    counted.expect("the device counts its resources")
}

/// Runs `work`, after which the device must hold as many objects of each sort as before.
///
/// The kernel lets go of some of them a moment after it was told to.
pub fn nothing_leaks<T>(work: impl FnOnce() -> T) -> T {
    let before = held();
    let done = work();
    settles_at(before);
    done
}

/// Waits until the device holds what is expected; fails where it doesn't come to that.
pub fn settles_at(expected: ResourceSummary) {
    let begin = Instant::now();
    loop {
        let now = held();
        if now == expected {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "leaked: the device holds {now:?} in place of {expected:?}");
        sleep(Duration::from_millis(5));
    }
}
