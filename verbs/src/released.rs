//! Kernel objects that are destroyed once.

use std::sync::atomic::{AtomicBool, Ordering};

use bareverbs_provider::device::IoctlError;

/// Whether the kernel object of a handle is not destroyed any more: it was destroyed, `into_handle`
/// released it, or it belongs to another process.
#[derive(Debug, Default)]
pub(crate) struct Released(AtomicBool);

impl Released {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Destroys the kernel object by `destroy`, unless it is not destroyed any more.
    pub(crate) fn destroy(&self, destroy: impl FnOnce() -> Result<(), IoctlError>) -> Result<(), IoctlError> {
        if !self.get() {
            destroy()?;
            self.set();
        }
        Ok(())
    }
}
