//! The number of the device's objects, as the kernel or the soft device counts them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs::soft::Resources;
use bareverbs_netlink::{RdmaNetlink, ResourceSummary};

use crate::{TIMEOUT, cm, device};

/// The number of objects by type, of all processes and the kernel, without the CM IDs of [`cm`]. A soft
/// device has no CM IDs.
pub fn held() -> ResourceSummary {
    device::warm_up();
    let own_ids = cm::end_disconnected();
    if let Some(soft) = device::device().soft() {
        return of_soft_device(soft.resources());
    }
    let counted = RdmaNetlink::open().and_then(|mut netlink| netlink.resources(device::name()));
    let mut summary = counted.expect("the device counts its resources");
    summary.cm_id = summary.cm_id.saturating_sub(own_ids as u64);
    summary
}

pub(crate) fn of_soft_device(held: Resources) -> ResourceSummary {
    let mut summary = ResourceSummary::default();
    summary.ctx = held.contexts as u64;
    summary.pd = held.pds as u64;
    summary.cq = held.cqs as u64;
    summary.qp = held.qps as u64;
    summary.srq = held.srqs as u64;
    summary.mr = held.mrs as u64;
    summary
}

/// Runs `work` and asserts that the device then holds as many objects of each type as before.
///
/// The kernel releases some objects shortly after they are destroyed, so the assertion has a
/// timeout ([`TIMEOUT`]).
pub fn nothing_leaks<T>(work: impl FnOnce() -> T) -> T {
    let before = held();
    let done = work();
    settles_at(before);
    done
}

/// Waits until the device holds the expected number of objects. Panics after [`TIMEOUT`].
pub fn settles_at(expected: ResourceSummary) {
    let begin = Instant::now();
    loop {
        let now = held();
        if now == expected {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT, "leaked: the device holds {now:?} in place of {expected:?}");
        sleep(Duration::from_millis(5));
    }
}
