//! Failed accesses to memory.

use std::fmt;

/// An access to memory that isn't mapped, or a write to a read-only mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaFault {
    /// Start address of the failed access.
    pub address: u64,
}

impl fmt::Display for DmaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no guest memory mapped for this access at {:#x}", self.address)
    }
}

impl std::error::Error for DmaFault {}
