//! The kernel object of a protection domain, which all objects of the domain share.

use std::sync::Arc;

use bareverbs_provider::command;

use crate::context::ContextInner;

/// The kernel object.
pub(crate) struct PdShared {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) handle: u32,
    /// It is imported: the process that created it deallocates it.
    pub(super) imported: bool,
}

impl Drop for PdShared {
    fn drop(&mut self) {
        if self.imported {
            return;
        }
        // It fails only if the domain has an object that could not be destroyed or that another
        // process created. Closing the file frees both.
        // SAFETY: all objects that use the domain hold an `Arc` of it, so none is left.
        let _ = unsafe { command::dealloc_pd(&self.context.file, self.handle) };
    }
}
