//! Descriptors that a forked child doesn't keep.
//!
//! A child of `fork` inherits its parent's sockets, and so would keep the parent's address in use after the
//! parent's end. Descriptors that are opened by [`open`] are closed in the child by a handler of
//! `pthread_atfork`. Children that execute another program lose them by `O_CLOEXEC`.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::io::Errno;

/// Most descriptors at a time.
const CAPACITY: usize = 1024;
const NONE: RawFd = -1;

static DESCRIPTORS: [AtomicI32; CAPACITY] = [const { AtomicI32::new(NONE) }; CAPACITY];
/// Held while the descriptors change, and during a fork: the child's list is that of its descriptors.
static LOCKED: AtomicBool = AtomicBool::new(false);

// The functions below run within `fork`: they neither allocate nor use a lock of the standard library.

extern "C" fn lock() {
    while LOCKED.swap(true, Ordering::Acquire) {
        rustix::thread::sched_yield();
    }
}

extern "C" fn unlock() {
    LOCKED.store(false, Ordering::Release);
}

extern "C" fn close_in_child() {
    for descriptor in &DESCRIPTORS {
        let descriptor = descriptor.swap(NONE, Ordering::Relaxed);
        if descriptor != NONE {
            // SAFETY: the descriptor is open, and its owner in the child's memory neither uses nor closes
            // it (the obligation of `open`).
            unsafe { rustix::io::close(descriptor) };
        }
    }
    unlock();
}

/// Opens a descriptor. A forked child must neither use nor release it: pass it to [`close`] in the process
/// that opened it only.
///
/// # Errors
///
/// Those of `create`; `EMFILE` if there are 1,024 descriptors.
pub(super) fn open(create: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the handlers call async-signal-safe functions only. They end, because a lock is held
        // for a few system calls of a thread that exists while the parent forks.
        unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(close_in_child)) };
    });
    lock();
    let opened = match DESCRIPTORS.iter().find(|place| place.load(Ordering::Relaxed) == NONE) {
        Some(place) => create().inspect(|descriptor| place.store(descriptor.as_raw_fd(), Ordering::Relaxed)),
        None => Err(Errno::MFILE),
    };
    unlock();
    opened
}

/// Closes a descriptor of [`open`].
pub(super) fn close(descriptor: OwnedFd) {
    lock();
    let number = descriptor.as_raw_fd();
    if let Some(place) = DESCRIPTORS.iter().find(|place| place.load(Ordering::Relaxed) == number) {
        place.store(NONE, Ordering::Relaxed);
    }
    drop(descriptor);
    unlock();
}
