//! Capabilities of the calling thread.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// The effective capabilities of this thread without some of them, until dropped.
pub(crate) struct Dropped {
    before: CapabilitySets,
}

impl Dropped {
    /// Drops capabilities from the effective set.
    ///
    /// # Errors
    /// The error of `capget` or `capset`; `EPERM` if the thread lacks one of them.
    pub(crate) fn new(dropped: CapabilitySet) -> Result<Self, Errno> {
        let before = capabilities(None)?;
        if !before.effective.contains(dropped) {
            return Err(Errno::PERM);
        }
        let mut without = before;
        without.effective -= dropped;
        set_capabilities(None, without)?;
        Ok(Self { before })
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        // The permitted set still has the capability, so the kernel does not refuse it.
        let _ = set_capabilities(None, self.before);
    }
}
