//! Locks, and errors of the C library.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// Locks a value that no panic leaves in an invalid state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error of the last call of the C library.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
