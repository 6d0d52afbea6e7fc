//! What another process registered, used in this one.

use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::contract::CreateError;

use crate::mr::{check_range, element};
use crate::pd::Domain;
use crate::{Error, Remote, Result, Sge};

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
    lkey: u32,
    rkey: u32,
    addr: u64,
    len: usize,
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
        Ok(Self { _domain: Arc::clone(domain), lkey, rkey, addr: iova, len })
    }

    /// The key by which operations of processes that share the context name it.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key by which peers name it.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The address by which operations and peers name its first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region has at least 1 byte")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// A scatter/gather element over a range of it, `..` for all.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the range reaches beyond the region, or beyond the 4 GiB that an element can name.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge> {
        element(self.addr, check_range("sge", range, self.len)?, self.lkey)
    }

    /// The byte at `offset`, as peers name it.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the region has no such byte.
    pub fn remote(&self, offset: usize) -> Result<Remote> {
        check_range("remote", offset..offset.saturating_add(1), self.len)?;
        Ok(Remote { addr: self.addr.wrapping_add(offset as u64), rkey: self.rkey })
    }
}
