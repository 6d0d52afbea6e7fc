//! Thread domains.

use std::any::Any;
use std::sync::Arc;

use crate::device::DeviceFile;

/// A doorbell register for the QPs of one thread. Only QPs that are created with
/// [`DoorbellChoice::Domain`](crate::request::DoorbellChoice::Domain) share it.
///
/// Clones name the same register. It is freed when the domain and its last QP are dropped.
///
/// Threads may post to the QPs at the same time. None waits for another.
#[doc(alias = "ibv_td")]
#[derive(Clone, Debug)]
pub struct ThreadDomain {
    file: Arc<DeviceFile>,
    register: Arc<dyn Any + Send + Sync>,
}

impl ThreadDomain {
    /// The domain of a register of this context.
    #[must_use]
    pub fn new<R: Any + Send + Sync>(file: Arc<DeviceFile>, register: Arc<R>) -> Self {
        Self { file, register }
    }

    /// The device file of its context.
    #[must_use]
    pub fn file(&self) -> &Arc<DeviceFile> {
        &self.file
    }

    /// The register, if it is of this type.
    #[must_use]
    pub fn register<R: Any + Send + Sync>(&self) -> Option<Arc<R>> {
        Arc::clone(&self.register).downcast().ok()
    }
}
