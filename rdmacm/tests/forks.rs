//! Locks of the process and its forked children. One test: it forks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bareverbs::soft::Fabric;
use bareverbs_rdmacm::connection::Domains;
use bareverbs_rdmacm::{CmId, EventChannel, PortSpace};

/// Seconds after which a child that waits for a lock is killed.
const PATIENCE: u32 = 10;

/// Takes each lock of the process.
fn take_locks() {
    drop(Domains::of_process());
    // It fails without a device, after the lock.
    drop(EventChannel::new());
    let channel = EventChannel::on(&Fabric::new()).unwrap();
    CmId::new(&channel, PortSpace::Tcp).unwrap();
}

/// The status of a forked child that does `work`: 0, or 1 after a panic.
fn status_of_child(work: impl FnOnce()) -> i32 {
    // SAFETY: glibc makes its allocator usable in the child, which ends by a signal or `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no handler of the signal is installed.
        unsafe { libc::alarm(PATIENCE) };
        let ended_well = catch_unwind(AssertUnwindSafe(work)).is_ok();
        // SAFETY: `_exit` may be called at any time.
        unsafe { libc::_exit(i32::from(!ended_well)) }
    }
    let mut status = -1;
    // SAFETY: the status is that of the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Threads of the parent, which the child doesn't have, may hold the locks.
#[test]
fn forked_child_waits_for_no_lock_of_its_parent() {
    let stopped = AtomicBool::new(false);
    let uses: [fn(); 3] = [
        || drop(Domains::of_process()),
        || drop(EventChannel::new()),
        || {
            let channel = EventChannel::on(&Fabric::new()).unwrap();
            (0..100).for_each(|_| drop(CmId::new(&channel, PortSpace::Tcp).unwrap()));
        },
    ];
    let statuses: Vec<_> = thread::scope(|scope| {
        for work in uses {
            let stopped = &stopped;
            scope.spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        let children = (0..200).map(|_| status_of_child(take_locks)).take_while(|status| *status == 0);
        let statuses = children.collect();
        stopped.store(true, Ordering::Relaxed);
        statuses
    });
    assert_eq!(statuses.len(), 200, "a child waits or has panicked");
}
