//! Memory regions of another process, imported into this one.

use std::ops::Deref;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::traits::Provider;

use crate::error::{Error, Feature, Result};
use crate::mr_keys::MrKeys;
use crate::pd::Pd;
use crate::pd::shared::PdShared;

/// Memory that another process registered, by [`Pd::import_mr`](crate::Pd::import_mr).
///
/// Operations of this process can access it, within the access rights of its registration. It is
/// not in this process's address space. Operations fail after the other process deregisters it.
#[doc(alias = "ibv_mr")]
#[doc(alias = "ibv_import_mr")]
#[doc(alias = "ibv_unimport_mr")]
pub struct ImportedMr {
    _domain: Arc<PdShared>,
    keys: MrKeys,
}

impl<P: Provider> Pd<P> {
    /// Imports a region that another process registered in this context. `handle` is
    /// [`Mr::handle`](crate::Mr::handle) of that process, which stays the owner.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the driver does not support imports; [`Error::Kernel`] with
    /// `ENOENT` if the context has no such region.
    #[doc(alias = "ibv_import_mr")]
    #[doc(alias = "ibv_unimport_mr")]
    pub fn import_mr(&self, handle: u32) -> Result<ImportedMr> {
        ImportedMr::import(self.domain(), handle)
    }
}

impl ImportedMr {
    pub(crate) fn import(domain: &Arc<PdShared>, handle: u32) -> Result<Self> {
        const VERB: &str = "import_mr";
        if !domain.context.capabilities.import {
            return Err(Error::unsupported(VERB, Feature::ImportedObjects));
        }
        let resp = command::query_mr(&domain.context.file, handle)
            .map_err(|refused| Error::kernel(VERB, format!("handle {handle}"), refused))?;
        let command::MrInfo { lkey, rkey, length, iova, .. } = resp;
        let len = usize::try_from(length).unwrap_or(usize::MAX);
        Ok(Self { _domain: Arc::clone(domain), keys: MrKeys::new((lkey, rkey), iova, len) })
    }
}

impl Deref for ImportedMr {
    type Target = MrKeys;

    fn deref(&self) -> &MrKeys {
        &self.keys
    }
}
