//! Keys and address of regions whose memory is not in this process's address space.

use std::ops::RangeBounds;

use bareverbs_provider::work::{Remote, Sge};

use crate::error::Result;
use crate::range::{check_range, element};

/// Keys, address and length of a region. [`DmMr`](crate::dm::DmMr), [`DmabufMr`](crate::mr::DmabufMr) and
/// [`ImportedMr`](crate::mr::ImportedMr) dereference to it: this process can't access their memory at
/// that address.
#[doc(alias = "ibv_mr")]
#[derive(Debug)]
pub struct MrKeys {
    lkey: u32,
    rkey: u32,
    addr: u64,
    len: usize,
}

impl MrKeys {
    pub(crate) fn new((lkey, rkey): (u32, u32), addr: u64, len: usize) -> Self {
        Self { lkey, rkey, addr, len }
    }

    /// The local key, for operations of this process and of processes that share its context.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The remote key, for operations of peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The address of its first byte in operations of this process and of peers (IOVA).
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes. Only a region of device memory may have 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty MR is of no use")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// A scatter/gather element for a range of it; `..` is all of it.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the range exceeds the region or has 4 GiB or
    /// more.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge> {
        element("MrKeys::sge", self.addr, check_range("MrKeys::sge", range, self.len)?, self.lkey)
    }

    /// The remote address and key of the byte at `offset`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the region has no such byte.
    pub fn remote(&self, offset: usize) -> Result<Remote> {
        check_range("MrKeys::remote", offset..offset.saturating_add(1), self.len)?;
        Ok(Remote { addr: self.addr.wrapping_add(offset as u64), rkey: self.rkey })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn sge_and_remote_are_bounds_checked() {
        let keys = MrKeys::new((7, 8), 0x1000, 100);
        assert_eq!(keys.sge(10..30).unwrap(), Sge { addr: 0x100a, length: 20, lkey: 7 });
        assert_eq!(keys.remote(99).unwrap(), Remote { addr: 0x1063, rkey: 8 });
        for refused in
            [keys.sge(..101).map(drop), keys.remote(100).map(drop), keys.remote(usize::MAX).map(drop)]
        {
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        }
    }
}
