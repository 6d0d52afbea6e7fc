//! Memory regions of another process, imported into this one.

use std::ops::Deref;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::error::CreateError;

use crate::error::Feature;
use crate::mr::MrKeys;
use crate::pd::shared::PdShared;
use crate::{Error, Result};

/// The error of a failed import.
pub(crate) fn error(verb: &'static str, handle: u32, reason: CreateError) -> Error {
    Error::create(verb, format!("handle {handle}"), reason)
}

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
