//! Locks of the safe layer: a mutex on a futex, or loom's.
//!
//! The uncontended lock and unlock are one atomic instruction each, inlined. With `--cfg loom`, the
//! locks are those of [loom](https://docs.rs/loom), so `cargo xtask loom` explores the orders of
//! the accesses of their users. The mutex has models of its own.
//!
//! A panic of a holder unlocks the mutex and does not poison it: no holder leaves the value in an
//! invalid state.

#[cfg(any(not(loom), test))]
mod futex;
#[cfg(all(test, loom))]
pub(crate) mod loom_models;
#[cfg(any(not(loom), test))]
mod mutex;

#[cfg(not(loom))]
pub use self::mutex::RawMutex;
#[cfg(not(loom))]
pub(crate) use self::mutex::{Mutex, MutexGuard};
#[cfg(loom)]
pub(crate) use self::of_loom::{Mutex, MutexGuard};

/// Locks `mutex`. Blocks while another thread holds it.
#[inline(always)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// The mutex of loom with the methods of [`mutex::Mutex`].
#[cfg(loom)]
mod of_loom {
    use std::sync::{PoisonError, TryLockError};

    pub(crate) use loom::sync::MutexGuard;

    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
