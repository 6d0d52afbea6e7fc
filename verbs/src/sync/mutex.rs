//! A mutex of one word.

#[cfg(not(loom))]
use std::cell::UnsafeCell;
#[cfg(not(loom))]
use std::marker::PhantomData;
#[cfg(not(loom))]
use std::ops::{Deref, DerefMut};
#[cfg(not(loom))]
use std::panic::{RefUnwindSafe, UnwindSafe};

#[cfg(loom)]
use loom::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::Ordering;

use super::futex::Futex;

const LOCKED: u32 = 1;
/// Set while a thread sleeps or is about to.
const CONTENDED: u32 = 2;

/// How often a thread reads the word before it sleeps: about the time of a post or a poll of another
/// thread. In the models a thread sleeps at once.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

/// A lock without a value.
///
/// The word is a set of `LOCKED` and `CONTENDED`. Both fast paths change `LOCKED` only, by an
/// instruction whose flags tell whether it succeeded: on x86-64 `bts` and `dec`, without a register
/// for the old value.
///
/// A thread sleeps only after it has set both bits, and only while both are set. So the thread that
/// unlocks sees `CONTENDED` and wakes one. The woken thread takes the lock with both bits set, because
/// others may sleep as well.
#[derive(Debug)]
pub struct RawMutex(Futex);

impl RawMutex {
    /// An unlocked one.
    #[cfg(not(loom))]
    #[must_use]
    #[allow(clippy::new_without_default, reason = "statics need a constant")]
    pub const fn new() -> Self {
        Self(Futex::new(0))
    }

    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self(Futex::new(0))
    }

    /// Locks it. Blocks while another thread holds it.
    #[inline(always)]
    pub fn lock(&self) {
        if !self.try_lock() {
            self.lock_contended();
        }
    }

    /// Locks it, unless it is locked.
    #[inline(always)]
    #[must_use]
    pub fn try_lock(&self) -> bool {
        self.0.0.fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0
    }

    /// Unlocks it. The caller has locked it.
    #[inline(always)]
    pub fn unlock(&self) {
        if self.unlock_without_wake() {
            self.wake();
        }
    }

    /// Unlocks it. The caller has locked it, and calls [`wake`](Self::wake) next if this returns `true`.
    #[inline(always)]
    #[must_use]
    pub fn unlock_without_wake(&self) -> bool {
        self.0.0.fetch_sub(LOCKED, Ordering::Release) != LOCKED
    }

    #[cold]
    #[inline(never)]
    fn lock_contended(&self) {
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if self.0.0.load(Ordering::Relaxed) & LOCKED == 0 && self.try_lock() {
                return;
            }
        }
        while self.0.0.swap(LOCKED | CONTENDED, Ordering::Acquire) & LOCKED != 0 {
            self.0.wait(LOCKED | CONTENDED);
        }
    }

    /// Wakes a thread after the unlock of a contended mutex.
    #[cold]
    #[inline(never)]
    pub fn wake(&self) {
        // If another thread has locked it meanwhile, that one wakes a thread.
        if self.0.0.compare_exchange(CONTENDED, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.0.wake_one();
        }
    }
}

/// A mutex. A panic of a holder does not poison it.
#[cfg(not(loom))]
pub(crate) struct Mutex<T> {
    raw: RawMutex,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one thread at a time, as a `&mut T` or to be moved out.
#[cfg(not(loom))]
unsafe impl<T: Send> Sync for Mutex<T> {}

// As std's: no holder leaves the value in an invalid state.
#[cfg(not(loom))]
impl<T> UnwindSafe for Mutex<T> {}
#[cfg(not(loom))]
impl<T> RefUnwindSafe for Mutex<T> {}

#[cfg(not(loom))]
impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { raw: RawMutex::new(), value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.raw.lock();
        MutexGuard { mutex: self, of_thread: PhantomData }
    }

    /// Locks it, unless it is locked.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.raw.try_lock().then(|| MutexGuard { mutex: self, of_thread: PhantomData })
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Unlocks a [`Mutex`] when it is dropped.
#[cfg(not(loom))]
#[must_use]
pub(crate) struct MutexGuard<'m, T> {
    mutex: &'m Mutex<T>,
    /// It is neither `Send` nor, without the implementation below, `Sync`.
    of_thread: PhantomData<*mut T>,
}

// SAFETY: a shared guard gives shared access to the value.
#[cfg(not(loom))]
unsafe impl<T: Sync> Sync for MutexGuard<'_, T> {}

#[cfg(not(loom))]
impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock, so no other thread accesses the value. This thread
        // accesses it through the guard only.
        unsafe { &*self.mutex.value.get() }
    }
}

#[cfg(not(loom))]
impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`. The guard is borrowed exclusively.
        unsafe { &mut *self.mutex.value.get() }
    }
}

#[cfg(not(loom))]
impl<T> Drop for MutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.mutex.raw.unlock();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn threads_hold_it_one_at_a_time() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let (mutex, start) = (Mutex::new([0_u64; 2]), Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..rounds {
                        let mut value = mutex.lock();
                        assert_eq!(value[0], value[1]);
                        value[0] += 1;
                        value[1] += 1;
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), [4 * rounds; 2]);
    }

    #[test]
    fn threads_that_sleep_are_woken_by_the_unlock() {
        let (mutex, asleep) = (Mutex::new(0), AtomicBool::new(true));
        std::thread::scope(|scope| {
            let guard = mutex.lock();
            for _ in 0..3 {
                scope.spawn(|| {
                    *mutex.lock() += 1;
                    asleep.store(false, Ordering::Relaxed);
                });
            }
            // Both bits are set from when the first one is about to sleep.
            let end = Instant::now() + Duration::from_secs(20);
            while mutex.raw.0.0.load(Ordering::Relaxed) != LOCKED | CONTENDED {
                assert!(Instant::now() < end, "no thread sleeps");
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(asleep.load(Ordering::Relaxed));
            drop(guard);
        });
        assert_eq!(*mutex.lock(), 3);
    }

    #[test]
    fn locked_mutex_is_not_locked_again() {
        let mut mutex = Mutex::new(7);
        let guard = mutex.try_lock().expect("it is unlocked");
        assert!(mutex.try_lock().is_none());
        drop(guard);
        *mutex.get_mut() += 1;
        assert_eq!(mutex.try_lock().map(|value| *value), Some(8));
    }

    #[test]
    fn panic_of_a_holder_unlocks_without_poison() {
        let mutex = Mutex::new(1);
        catch_unwind(AssertUnwindSafe(|| {
            let mut value = mutex.lock();
            *value = 2;
            panic!("of a holder");
        }))
        .unwrap_err();
        assert_eq!(*mutex.lock(), 2);
    }
}
