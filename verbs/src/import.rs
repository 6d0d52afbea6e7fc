//! What another process registered, used in this one.

use std::ops::Deref;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::contract::CreateError;

use crate::pd::Domain;
use crate::{Error, MrKeys, Result};

/// Why something of another process is not to be had.
pub(crate) fn error(verb: &'static str, handle: u32, reason: CreateError) -> Error {
    match reason {
        CreateError::Unsupported { .. } => {
            Error::Unsupported { verb, what: "objects of other processes are" }
        }
        reason => Error::create(verb, format!("handle {handle}"), reason),
    }
}

/// Memory that another process registered, by [`Pd::import_mr`](crate::Pd::import_mr).
///
/// Operations of this process reach it, as far as that process's rights allow, although it is not in this process's
/// address space. It is usable for as long as that one keeps it; afterwards operations fail.
pub struct ImportedMr {
    _domain: Arc<Domain>,
    keys: MrKeys,
}

impl ImportedMr {
    pub(crate) fn import(domain: &Arc<Domain>, handle: u32) -> Result<Self> {
        const VERB: &str = "import_mr";
        if !domain.session.capabilities.import {
            return Err(Error::Unsupported { verb: VERB, what: "objects of other processes are" });
        }
        let told = command::query_mr(&domain.session.file, handle)
            .map_err(|refused| Error::refused(VERB, format!("handle {handle}"), refused))?;
        let command::MrInfo { lkey, rkey, length, iova } = told;
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
