//! What the device holds, counted by the kernel.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs::netlink::{RdmaNetlink, ResourceSummary};

use crate::loopback::PATIENCE;

/// How many objects of each sort `rxe0` holds, for all processes and the kernel together.
pub fn held() -> ResourceSummary {
    RdmaNetlink::open().and_then(|mut netlink| netlink.resources("rxe0")).expect("rxe0 counts its resources")
}

/// Runs `work`, after which `rxe0` must hold as many objects of each sort as before.
///
/// The kernel lets go of some of them a moment after it was told to.
pub fn nothing_leaks<T>(work: impl FnOnce() -> T) -> T {
    let before = held();
    let done = work();
    settles_at(before);
    done
}

/// Waits until `rxe0` holds what is expected; fails where it doesn't come to that.
pub fn settles_at(expected: ResourceSummary) {
    let begin = Instant::now();
    loop {
        let now = held();
        if now == expected {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "leaked: rxe0 holds {now:?} in place of {expected:?}");
        sleep(Duration::from_millis(5));
    }
}
