//! Objects that are only numbers: PDs, UAR pages, XRC domains, transport domains.

use super::{Firmware, Reply, Result, Status, opcode};
use crate::engine::{Engine, table::Table};

/// The first UAR page, after the initialization segment and the MSI-X tables.
pub(crate) const FIRST_UAR: u32 = 8;

pub(super) struct Resources {
    pds: Table<()>,
    uars: Table<()>,
    xrcds: Table<()>,
    transport_domains: Table<()>,
    pub(super) counters: Table<()>,
}

impl Default for Resources {
    fn default() -> Self {
        // The UAR pages end at the device memory.
        let uars = (crate::memory::DEVICE_MEMORY_START >> 12) as usize - FIRST_UAR as usize;
        Self {
            pds: Table::new(1, 1 << 16),
            uars: Table::new(FIRST_UAR, uars),
            xrcds: Table::new(1, 1 << 16),
            transport_domains: Table::new(1, 1 << 16),
            counters: Table::new(1, 255),
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

    fn of(&mut self, code: u16) -> Result<&mut Table<()>> {
        use opcode::*;
        match code {
            ALLOC_PD | DEALLOC_PD => Ok(&mut self.pds),
            ALLOC_UAR | DEALLOC_UAR => Ok(&mut self.uars),
            ALLOC_XRCD | DEALLOC_XRCD => Ok(&mut self.xrcds),
            ALLOC_TRANSPORT_DOMAIN | DEALLOC_TRANSPORT_DOMAIN => Ok(&mut self.transport_domains),
            _ => Err(Status::BadOpcode),
        }
    }
}

impl Firmware {
    pub(super) fn allocate(&mut self, code: u16, reply: &mut Reply<'_>) -> Result<()> {
        let number = self.resources.of(code)?.insert_with(|_| ()).ok_or(Status::Limit)?;
        reply.object(number)
    }

    pub(super) fn deallocate(&mut self, engine: &Engine, code: u16, number: u32) -> Result<()> {
        let used = match code {
            opcode::DEALLOC_PD => engine.uses_pd(number),
            opcode::DEALLOC_XRCD => engine.uses_xrcd(number),
            opcode::DEALLOC_UAR => {
                self.qps.values().any(|qp| qp.uar == number)
                    || self.cqs.values().any(|cq| cq.uar == number)
                    || self.eqs.values().any(|eq| eq.uar == number)
                    || self.nic.uses_uar(number)
            }
            _ => false,
        };
        if used {
            return Err(Status::BadResourceState);
        }
        self.resources.of(code)?.remove(number).map(drop).ok_or(Status::BadResource)
    }
}
