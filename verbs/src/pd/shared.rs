//! The kernel's PD, which all objects of the PD share.

use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;

use crate::context::ContextInner;
use crate::released::Released;

/// The kernel's PD.
pub(crate) struct PdShared {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) handle: u32,
    pub(crate) released: Released,
}

/// Identifies a PD while an `Arc` of it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PdId(usize);

impl PdId {
    /// No PD.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn of(domain: &Arc<PdShared>) -> Self {
        Self(Arc::as_ptr(domain).addr())
    }
}

impl PdShared {
    pub(super) fn dealloc(&mut self) -> Result<(), IoctlError> {
        // SAFETY: nothing shares this. All objects that use the PD hold an `Arc` of it.
        self.released.destroy(|| unsafe { command::dealloc_pd(&self.context.file, self.handle) })
    }
}

impl Drop for PdShared {
    fn drop(&mut self) {
        // The command fails only if the PD has an object that could not be destroyed or that
        // another process created. Closing the file frees both.
        let _ = self.dealloc();
    }
}
