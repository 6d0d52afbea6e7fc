//! Commands about objects that are only numbers.

use super::command::{Reply, Result, Status};
use super::opcode;
use super::state::Firmware;
use crate::engine::Engine;

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
