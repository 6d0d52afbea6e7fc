//! User contexts of DEVX, and commands about user memory.
//!
//! The number of a user context is part of each command of its owner. The device does not check it:
//! commands reach the objects of all contexts.

use super::command::{Reply, Request, Result, Status};
use super::state::Firmware;
use super::umem::UserMemory;

impl Firmware {
    pub(super) fn create_umem(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        let memory = UserMemory::new(request)?;
        let number = self.resources.umems.insert_with(|_| memory).ok_or(Status::Limit)?;
        reply.object(number)
    }

    pub(super) fn destroy_umem(&mut self, request: Request<'_>) -> Result<()> {
        let number = request.object()?;
        let used = self.qps.values().any(|qp| qp.umems.contains(&number))
            || self.cqs.values().any(|cq| cq.umems.contains(&number));
        if used {
            return Err(Status::BadResourceState);
        }
        self.resources.umems.remove(number).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn umem(&self, number: u32) -> Result<&UserMemory> {
        self.resources.umems.get(number).ok_or(Status::BadResource)
    }
}
