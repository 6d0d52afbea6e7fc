//! Regions over memory that is not this process's own: what they are named by.

use std::ops::RangeBounds;

use super::{check_range, element};
use crate::{Remote, Result, Sge};

/// What operations and peers name a region's bytes by: its keys, and the address that goes with
/// them. [`DmMr`](crate::DmMr), [`DmabufMr`](crate::DmabufMr) and
/// [`ImportedMr`](crate::ImportedMr), whose memory this process cannot reach by that address, lend
/// theirs.
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

    /// The key by which operations of this process, or of those that share its context, name it.
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
    /// [`Error::Invalid`](crate::Error::Invalid) where the range reaches beyond the region, or
    /// beyond the 4 GiB that an element can name.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge> {
        element(self.addr, check_range("MrKeys::sge", range, self.len)?, self.lkey)
    }

    /// The byte at `offset`, as peers name it.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) where the region has no such byte.
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
