//! Locks of the standard library, or locks that ThreadSanitizer can follow.
//!
//! With `--cfg bareverbs_tsan` (`cargo xtask tsan`), the standard library may not be compiled for
//! ThreadSanitizer. The code that waits for a lock is part of the standard library, so
//! ThreadSanitizer does not see it. For that reason the lock has a word of its own, which each
//! holder stores last and loads first.

#[cfg(not(bareverbs_tsan))]
#[cfg_attr(loom, allow(unused_imports, reason = "loom models use loom's locks"))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(bareverbs_tsan)]
pub(crate) use self::visible::{Mutex, MutexGuard};

#[cfg(bareverbs_tsan)]
mod visible {
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{LockResult, PoisonError};

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T> {
        lock: std::sync::Mutex<T>,
        released: AtomicU32,
    }

    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T> {
        guard: std::sync::MutexGuard<'a, T>,
        released: &'a AtomicU32,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { lock: std::sync::Mutex::new(value), released: AtomicU32::new(0) }
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            let locked = self.lock.lock();
            self.released.load(Ordering::Acquire);
            let released = &self.released;
            match locked {
                Ok(guard) => Ok(MutexGuard { guard, released }),
                Err(poisoned) => {
                    let guard = poisoned.into_inner();
                    Err(PoisonError::new(MutexGuard { guard, released }))
                }
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.guard
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            // The inner guard unlocks after this store.
            self.released.store(1, Ordering::Release);
        }
    }
}
