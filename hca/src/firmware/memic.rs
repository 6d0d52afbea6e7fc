//! Commands about device memory (MEMIC).

use super::command::{Reply, Request, Result, Status};
use super::layout::command::{AllocMemicIn, AllocMemicOut, DeallocMemicIn};
use super::state::Firmware;
use crate::engine::Engine;
use crate::memory::{NoMemory, UNIT};

impl Firmware {
    pub(super) fn alloc_memic(
        &self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        /// Log2 of an alignment that exceeds the window.
        const TOO_LARGE: u32 = 32;
        let input = request.view::<AllocMemicIn>()?;
        let mut output = reply.view::<AllocMemicOut>()?;
        let log_alignment = input.get32(AllocMemicIn::LOG_MEMIC_ADDR_ALIGNMENT);
        if log_alignment >= TOO_LARGE {
            return Err(Status::BadParameter);
        }
        let range = (input.get(AllocMemicIn::RANGE_START_ADDR), input.get(AllocMemicIn::RANGE_SIZE));
        let length = input.get(AllocMemicIn::MEMIC_SIZE);
        let at = engine.memory().device_memory_mut().allocate(range, length, UNIT << log_alignment);
        let at = at.map_err(|error| match error {
            NoMemory::Invalid => Status::BadParameter,
            NoMemory::Taken => Status::NoResources,
            NoMemory::Exhausted => Status::Limit,
        })?;
        output.set(AllocMemicOut::MEMIC_START_ADDR, at);
        Ok(())
    }

    pub(super) fn dealloc_memic(&self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let input = request.view::<DeallocMemicIn>()?;
        let (start, length) =
            (input.get(DeallocMemicIn::MEMIC_START_ADDR), input.get(DeallocMemicIn::MEMIC_SIZE));
        if engine.uses_device_memory(start, length) {
            return Err(Status::BadResourceState);
        }
        if engine.memory().device_memory_mut().free(start, length) {
            Ok(())
        } else {
            Err(Status::BadResource)
        }
    }
}
