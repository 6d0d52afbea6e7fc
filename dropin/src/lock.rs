//! The locks of queues. An object that one thread at a time uses has none.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::hint::black_box;
use std::mem;
use std::ops::{Deref, DerefMut};

use bareverbs::sync::RawMutex;

use crate::object::Holder;

/// A number that no other live thread has, and not 0: the address of what the C library has of the thread.
#[inline(always)]
pub(crate) fn thread() -> usize {
    let thread: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of the block is its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(pure, readonly, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the call has no conditions.
    {
        thread = unsafe { libc::pthread_self() } as usize;
    }
    thread
}

/// A lock, which is elided if the program promises to use the object by one thread at a time.
pub(crate) struct Lock {
    mutex: RawMutex,
    is_elided: bool,
}

impl Lock {
    pub(crate) const fn new(is_elided: bool) -> Self {
        Self { mutex: RawMutex::new(), is_elided }
    }

    /// Whether there is no lock.
    #[inline(always)]
    pub(crate) fn is_elided(&self) -> bool {
        self.is_elided
    }

    pub(crate) fn lock(&self) -> Held<'_> {
        if !self.is_elided {
            self.mutex.lock();
        }
        self.held()
    }

    /// Locks it, unless another thread holds it. It calls no function. A caller that compares
    /// [`is_elided`](Self::is_elided) before compares it once for both lock and unlock.
    #[inline(always)]
    pub(crate) fn try_lock(&self, is_elided: bool) -> Option<Held<'_>> {
        debug_assert_eq!(is_elided, self.is_elided);
        // Only a locked lock has a value, whose drop unlocks.
        if is_elided || self.mutex.try_lock() { Some(Held { lock: self, is_elided }) } else { None }
    }

    #[inline(always)]
    fn held(&self) -> Held<'_> {
        Held { lock: self, is_elided: self.is_elided }
    }
}

/// A locked lock, which its drop unlocks.
#[must_use]
pub(crate) struct Held<'l> {
    lock: &'l Lock,
    is_elided: bool,
}

impl<'l> Held<'l> {
    /// The lock that a forgotten value left locked.
    ///
    /// # Safety
    ///
    /// A value of the lock was forgotten, and has not been taken up since.
    #[inline(always)]
    pub(crate) unsafe fn take_up(lock: &'l Lock) -> Self {
        lock.held()
    }

    /// Unlocks. A function that ends with this keeps `result` in no register while a thread is woken.
    #[inline(always)]
    pub(crate) fn unlock_with(self, result: c_int) -> c_int {
        let Self { lock, is_elided } = self;
        mem::forget(self);
        if !is_elided && lock.mutex.unlock_without_wake() { wake_with(lock, result) } else { result }
    }
}

/// As `fail_with` of the conventions, the result is not known to the compiler.
#[cold]
#[inline(never)]
fn wake_with(lock: &Lock, result: c_int) -> c_int {
    lock.mutex.wake();
    black_box(result)
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_elided {
            self.lock.mutex.unlock();
        }
    }
}

/// A value with a lock.
pub(crate) struct Locked<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used with the lock held, which is elided only if the program uses the object by one
// thread at a time.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    pub(crate) const fn new(value: T, is_elided: bool) -> Self {
        Self { lock: Lock::new(is_elided), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        Guard { held: self.lock.lock(), value: &self.value }
    }

    /// As [`Lock::is_elided`].
    #[inline(always)]
    pub(crate) fn is_elided(&self) -> bool {
        self.lock.is_elided()
    }

    /// As [`Lock::try_lock`].
    #[inline(always)]
    pub(crate) fn try_lock(&self, is_elided: bool) -> Option<Guard<'_, T>> {
        Some(Guard { held: self.lock.try_lock(is_elided)?, value: &self.value })
    }

    /// The guard that was forgotten.
    ///
    /// # Safety
    ///
    /// A guard was forgotten, and has not been taken up since.
    #[inline(always)]
    pub(crate) unsafe fn take_up(&self) -> Guard<'_, T> {
        // SAFETY: by the contract.
        Guard { held: unsafe { Held::take_up(&self.lock) }, value: &self.value }
    }

    /// As [`take_up`](Self::take_up), by a caller that knows whether the lock is elided.
    ///
    /// # Safety
    ///
    /// As for [`take_up`](Self::take_up).
    #[inline(always)]
    pub(crate) unsafe fn take_up_of(&self, is_elided: bool) -> Guard<'_, T> {
        debug_assert_eq!(is_elided, self.is_elided());
        Guard { held: Held { lock: &self.lock, is_elided }, value: &self.value }
    }
}

/// A value whose lock is held. A forgotten guard leaves it locked.
#[must_use]
pub(crate) struct Guard<'l, T> {
    held: Held<'l>,
    value: &'l UnsafeCell<T>,
}

impl<T> Guard<'_, T> {
    /// As [`Held::unlock_with`].
    #[inline(always)]
    pub(crate) fn unlock_with(self, result: c_int) -> c_int {
        self.held.unlock_with(result)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard is borrowed exclusively.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> Holder<T> for Locked<T> {
    fn place(holder: *mut Self) -> *mut T {
        // SAFETY: only the address is computed.
        UnsafeCell::raw_get(unsafe { &raw const (*holder).value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_lock_stays_locked_until_its_value_is_dropped() {
        let lock = Lock::new(false);
        let held = lock.lock();
        for _ in 0..2 {
            assert!(lock.try_lock(false).is_none());
        }
        mem::forget(held);
        assert!(lock.try_lock(false).is_none(), "a forgotten value leaves it locked");
        // SAFETY: the value was forgotten.
        assert_eq!(unsafe { Held::take_up(&lock) }.unlock_with(7), 7);
        assert!(lock.try_lock(false).is_some());
    }

    #[test]
    fn threads_have_numbers_of_their_own() {
        let own = thread();
        assert!(own != 0 && own == thread());
        assert_ne!(std::thread::spawn(thread).join().unwrap(), own);
    }

    #[test]
    fn elided_lock_is_never_locked() {
        let value = Locked::new(1, true);
        let guard = value.lock();
        assert!(value.is_elided());
        assert_eq!(value.try_lock(true).map(|value| *value), Some(1));
        drop(guard);
    }
}
