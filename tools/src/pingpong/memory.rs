//! The message memory: host memory or device memory.

use std::ops::Range;

use anyhow::Result;
use bareverbs::dm::{Dm, DmInit, DmMr};
use bareverbs::mr::LocalAccess;
use bareverbs::qp::Sge;
use bareverbs::{Access, Buffer, Mr, Pd};

/// Registered memory.
pub(crate) enum Memory {
    Host(Mr<Buffer>),
    Device(DmMr, Dm),
}

/// The access granularity of device memory, in bytes.
const WORD: usize = 4;

impl Memory {
    /// Memory of the host.
    pub(crate) fn host(pd: &Pd, len: usize, fill: u8, access: Access) -> Result<Self> {
        let mut buffer = Buffer::zeroed(len)?;
        buffer.fill(fill);
        Ok(Self::Host(pd.register(buffer, access)?))
    }

    /// Host memory with an implicit ODP region.
    pub(crate) fn implicit_odp(pd: &Pd, len: usize, fill: u8) -> Result<Self> {
        let mut buffer = Buffer::zeroed(len)?;
        buffer.fill(fill);
        Ok(Self::Host(pd.register_implicit(LocalAccess::ReadWrite)?.part(buffer)?))
    }

    /// Memory of the device.
    pub(crate) fn device(pd: &Pd, len: usize, fill: u8) -> Result<Self> {
        let len = len.next_multiple_of(WORD);
        let mut dm = pd.context().alloc_dm(&DmInit::new(len))?;
        dm.write(0, &vec![fill; len])?;
        Ok(Self::Device(pd.register_dm(&dm, .., Access::LOCAL_WRITE)?, dm))
    }

    pub(crate) fn sge(&self, range: Range<usize>) -> bareverbs::Result<Sge> {
        match self {
            Self::Host(region) => region.sge(range),
            Self::Device(region, _) => region.sge(range),
        }
    }

    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> bareverbs::Result<()> {
        match self {
            Self::Host(region) => region.read(offset, into),
            Self::Device(_, dm) => dm.read(offset, into),
        }
    }

    /// Copies a message in. In device memory, its last word is padded with zeros.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) -> bareverbs::Result<()> {
        match self {
            Self::Host(region) => region.write(offset, from),
            Self::Device(_, dm) => {
                let (words, rest) = from.split_at(from.len() / WORD * WORD);
                dm.write(offset, words)?;
                if rest.is_empty() {
                    return Ok(());
                }
                let mut last = [0; WORD];
                last[..rest.len()].copy_from_slice(rest);
                dm.write(offset + words.len(), &last)
            }
        }
    }

    /// Prefetches the ODP pages.
    pub(crate) fn prefetch(&self) -> bareverbs::Result<()> {
        match self {
            Self::Host(region) => region.prefetch(..),
            Self::Device(..) => Ok(()),
        }
    }
}
