//! Handles that drop does not destroy.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether `into_handle` released the handle: drop does not destroy the kernel object.
#[derive(Debug, Default)]
pub(crate) struct Released(AtomicBool);

impl Released {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
