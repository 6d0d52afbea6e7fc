//! Locks of the standard library, or of loom.
//!
//! The table of operations and the choice of the thread that reaps use these. With `--cfg loom`
//! they are those of [loom](https://docs.rs/loom), so `cargo xtask loom` explores the orders of
//! their accesses.

#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Locks `mutex`. A panic of another holder is ignored: no holder leaves the value in an invalid
/// state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
