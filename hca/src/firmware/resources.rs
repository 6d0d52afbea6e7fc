//! Objects that are only numbers: PDs, UAR pages, XRC domains, transport domains, user contexts. And user
//! memory.

use super::command::{Result, Status};
use super::umem::UserMemory;
use super::{limits, opcode};
use bareverbs_transport::Table;

/// The first UAR page, after the initialization segment and the MSI-X tables.
pub(crate) const FIRST_UAR: u32 = 8;

pub(super) struct Resources {
    pds: Table<()>,
    uars: Table<()>,
    xrcds: Table<()>,
    transport_domains: Table<()>,
    user_contexts: Table<()>,
    pub(super) umems: Table<UserMemory>,
    pub(super) counters: Table<()>,
}

impl Default for Resources {
    fn default() -> Self {
        // The UAR pages end at the device memory.
        let uars = (crate::memory::DEVICE_MEMORY_START >> 12) as usize - FIRST_UAR as usize;
        Self {
            pds: Table::new(1, 1 << limits::LOG_PDS),
            uars: Table::new(FIRST_UAR, uars),
            xrcds: Table::new(1, 1 << limits::LOG_XRCDS),
            transport_domains: Table::new(1, 1 << limits::LOG_TRANSPORT_DOMAINS),
            user_contexts: Table::new(1, 1 << limits::LOG_USER_CONTEXTS),
            umems: Table::new(1, 1 << limits::LOG_UMEMS),
            counters: Table::new(1, limits::COUNTER_SETS),
        }
    }
}

impl Resources {
    /// The number of allocated objects of each kind.
    pub(super) fn counts(&self) -> String {
        let count = |table: &Table<()>| table.iter().count();
        format!("pds {} uars {} xrcds {}", count(&self.pds), count(&self.uars), count(&self.xrcds))
    }

    /// Returns `BadResource` for a PD that doesn't exist.
    pub(super) fn require_pd(&self, pd: u32) -> Result<()> {
        self.pds.get(pd).copied().ok_or(Status::BadResource)
    }

    /// Returns `BadResource` for a UAR page that doesn't exist.
    pub(super) fn require_uar(&self, uar: u32) -> Result<()> {
        self.uars.get(uar).copied().ok_or(Status::BadResource)
    }

    /// Returns `BadResource` for an XRC domain that doesn't exist.
    pub(super) fn require_xrcd(&self, xrcd: u32) -> Result<()> {
        self.xrcds.get(xrcd).copied().ok_or(Status::BadResource)
    }

    /// The table of the objects that a command allocates or frees.
    pub(super) fn of(&mut self, code: u16) -> Result<&mut Table<()>> {
        use opcode::*;
        match code {
            ALLOC_PD | DEALLOC_PD => Ok(&mut self.pds),
            ALLOC_UAR | DEALLOC_UAR => Ok(&mut self.uars),
            ALLOC_XRCD | DEALLOC_XRCD => Ok(&mut self.xrcds),
            ALLOC_TRANSPORT_DOMAIN | DEALLOC_TRANSPORT_DOMAIN => Ok(&mut self.transport_domains),
            CREATE_UCTX | DESTROY_UCTX => Ok(&mut self.user_contexts),
            _ => Err(Status::BadOpcode),
        }
    }
}
