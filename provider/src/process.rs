//! Fork detection.
//!
//! A forked child inherits its parent's descriptors. Without a check, its inherited handles would
//! destroy the parent's objects. [`ForkGuard`] detects the child by one load from a page that the
//! kernel wipes on fork. [`PerProcess`] is a value of which the child has its own.

use std::fmt;
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

/// A value of which each process has its own, for a `static`. In a forked child, a thread that the child
/// doesn't have may hold a lock in the value of the parent.
///
/// The values are never dropped.
pub struct PerProcess<T: 'static> {
    /// Null, or the value of this process or of a parent.
    current: AtomicPtr<Owned<T>>,
}

/// A value and the process that made it.
struct Owned<T> {
    fork_guard: ForkGuard,
    value: T,
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

impl<T> PerProcess<T> {
    /// No process has a value yet.
    #[must_use]
    pub const fn empty() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T: Default + Sync> PerProcess<T> {
    /// The value of this process. The first call makes it.
    ///
    /// # Errors
    ///
    /// Those of [`ForkGuard::new`].
    pub fn get(&self) -> Result<&'static T, Errno> {
        let known = self.current.load(Ordering::Acquire);
        // SAFETY: the pointer is null or that of a value that is never dropped.
        match unsafe { known.as_ref() } {
            Some(owned) if owned.fork_guard.is_same_process() => return Ok(&owned.value),
            _ => {}
        }
        let new = Box::new(Owned { fork_guard: ForkGuard::new()?, value: T::default() });
        let new = Box::into_raw(new);
        match self.current.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: from here on, the value is never dropped.
            Ok(_) => Ok(unsafe { &(*new).value }),
            // Another thread of this process was faster.
            Err(other) => {
                // SAFETY: `new` is the box of above, which no one else has.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: as for `known`, and it isn't null.
                Ok(unsafe { &(*other).value })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn threads_have_the_same_value() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::empty();
        let places = [(); 4].map(|()| std::thread::spawn(|| ptr::from_ref(VALUE.get().unwrap()).addr()));
        let expected = ptr::from_ref(VALUE.get().unwrap()).addr();
        assert!(places.into_iter().all(|place| place.join().unwrap() == expected));
    }

    #[cfg(not(miri))]
    #[test]
    fn forked_child_has_its_own_value() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::empty();
        let mut value = VALUE.get().unwrap().lock().unwrap();
        *value = 7;
        // SAFETY: glibc makes its allocator usable in the child, which ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = VALUE.get().ok().and_then(|own| own.try_lock().ok().map(|own| *own));
            // SAFETY: `_exit` may be called at any time.
            unsafe { libc::_exit(i32::from(own != Some(0))) }
        }
        let mut status = -1;
        // SAFETY: the status is that of the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, *value), (0, 7));
    }

    #[test]
    fn fork_guard_accepts_all_threads_of_its_process() {
        let guard = ForkGuard::new().unwrap();
        assert!(guard.is_same_process());
        std::thread::spawn(move || assert!(guard.is_same_process())).join().unwrap();
        assert!(ForkGuard::new().unwrap().is_same_process());
    }
}
