//! Fork detection.
//!
//! A forked child inherits its parent's descriptors. Without a check, its inherited handles would
//! destroy the parent's objects. [`ForkGuard`] detects the child by one load from a page that the
//! kernel wipes on fork.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::io::Errno;

use crate::pages;

/// The page of the process that last mapped one. In a child of that process, the page is zero.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The process that created an object.
///
/// Threads, and children that share its memory (as between `vfork` and `exec`), count as the same
/// process.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    live: &'static AtomicU32,
}

impl ForkGuard {
    /// A guard for the current process.
    ///
    /// # Errors
    ///
    /// The kernel's error for `mmap` or for `MADV_WIPEONFORK`, which Linux has since 4.14.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: the pointer is null or points to a page that is never unmapped.
        let known = unsafe { PAGE.load(Ordering::Acquire).as_ref() }.map(|live| Self { live });
        known.filter(Self::is_same_process).map_or_else(Self::map_page, Ok)
    }

    /// Whether the current process is the one that created the guard.
    #[inline]
    #[must_use]
    pub fn is_same_process(&self) -> bool {
        self.live.load(Ordering::Relaxed) != 0
    }

    /// Maps a page for this process and stores it in `PAGE`. If two threads do so at once, both
    /// pages are valid.
    fn map_page() -> Result<Self, Errno> {
        let live = pages::map_wiped_on_fork()?;
        live.store(1, Ordering::Relaxed);
        PAGE.store(ptr::from_ref(live).cast_mut(), Ordering::Release);
        Ok(Self { live })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_guard_accepts_all_threads_of_its_process() {
        let guard = ForkGuard::new().unwrap();
        assert!(guard.is_same_process());
        std::thread::spawn(move || assert!(guard.is_same_process())).join().unwrap();
        assert!(ForkGuard::new().unwrap().is_same_process());
    }
}
