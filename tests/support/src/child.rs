//! Functions in a child process, which may drop privileges, be killed or be traced.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Gid, Pid, Uid, fork, setgid, setgroups, setuid};

use crate::TIMEOUT;

/// The user id of an unprivileged user.
pub const NOBODY: u32 = 65534;

/// The beginnings of the names of the threads of soft devices.
const SOFT_THREADS: [&str; 2] = ["bareverbs-soft", "bareverbs-wire"];

/// Starts `work` in a child process, which exits with status 0, or with 1 if `work` panics.
///
/// # Panics
/// If the process has several threads, except for those of soft devices.
pub fn start(work: impl FnOnce()) -> Pid {
    // The kernel may still list a thread that was joined.
    let end = Instant::now() + TIMEOUT;
    while threads() > 1 && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(threads(), 1, "only a process of one thread can be doubled");
    // SAFETY: no other thread holds a lock that the child would find locked. Those of soft devices hold
    // locks of the allocator, which `fork` acquires, and of devices of this process.
    match unsafe { fork() }.expect("a process more") {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let ended_well = catch_unwind(AssertUnwindSafe(work)).is_ok();
            // SAFETY: `_exit` may be called at any time. The parent's exit handlers must not run in
            // the child.
            unsafe { nix::libc::_exit(i32::from(!ended_well)) }
        }
    }
}

/// The number of threads of this process, without those of soft devices.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread that has ended has no name.
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| !SOFT_THREADS.iter().any(|of| name.starts_with(of))).count()
}

/// Runs `work` in a child process; panics if it fails.
pub fn run(work: impl FnOnce()) {
    let child = start(work);
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)), "the child process failed");
}

/// Drops root privileges permanently.
pub fn drop_privileges() {
    setgroups(&[]).expect("root may leave its groups");
    setgid(Gid::from_raw(NOBODY)).expect("root may change its group");
    setuid(Uid::from_raw(NOBODY)).expect("root may become anyone");
}
