//! Commands about TIRs, and about the RQTs over which they spread frames.

use super::command::{Reply, Request, Result, Status};
use super::layout::command::{CreateTirIn, Rqtc, Tirc};
use super::limits::LOG_RQT_SIZE;
use super::nic::{Dispatch, Rqt, Tir};
use super::rss::Hash;
use super::state::Firmware;
use super::work_queue::CONTEXT;

impl Firmware {
    pub(super) fn create_tir(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        request.view::<CreateTirIn>()?;
        let context = request.view_at::<Tirc>(CONTEXT)?;
        if context.flag(Tirc::TUNNELED_OFFLOAD_EN) {
            return Err(Status::BadParameter);
        }
        let dispatch = self.dispatch_of(request)?;
        let (domain, self_loopback) =
            (context.get32(Tirc::TRANSPORT_DOMAIN), context.get8(Tirc::SELF_LB_BLOCK));
        let tir = Tir { dispatch, domain, self_loopback };
        reply.object(self.nic.tirs.insert_with(|_| tir).ok_or(Status::Limit)?)
    }

    fn dispatch_of(&self, request: Request<'_>) -> Result<Dispatch> {
        const DIRECT: u8 = 0;
        const INDIRECT: u8 = 1;
        let context = request.view_at::<Tirc>(CONTEXT)?;
        match context.get8(Tirc::DISP_TYPE) {
            DIRECT => {
                let queue = context.get32(Tirc::INLINE_RQN);
                self.nic.rqs.get(&queue).ok_or(Status::BadResource)?;
                Ok(Dispatch::Direct(queue))
            }
            INDIRECT => {
                let table = context.get32(Tirc::INDIRECT_TABLE);
                self.nic.rqts.get(table).ok_or(Status::BadResource)?;
                Ok(Dispatch::Table { table, hash: Hash::new(&context)? })
            }
            _ => Err(Status::BadParameter),
        }
    }

    pub(super) fn modify_tir(&mut self, request: Request<'_>) -> Result<()> {
        // Bits of `mlx5_ifc_modify_tir_bitmask_bits`. Other changes are not modelled.
        const HASH: u32 = 1 << 2;
        const SELF_LOOPBACK: u32 = 1 << 4;
        let selected = request.word(0x14)?;
        let context = request.view_at::<Tirc>(CONTEXT)?;
        let tir = self.nic.tirs.get_mut(request.object()?).ok_or(Status::BadResource)?;
        if selected & HASH != 0
            && let Dispatch::Table { hash, .. } = &mut tir.dispatch
        {
            *hash = Hash::new(&context)?;
        }
        if selected & SELF_LOOPBACK != 0 {
            tir.self_loopback = context.get8(Tirc::SELF_LB_BLOCK);
        }
        Ok(())
    }

    pub(super) fn destroy_tir(&mut self, request: Request<'_>) -> Result<()> {
        self.nic.tirs.remove(request.object()?).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn create_rqt(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        let room = request.view_at::<Rqtc>(CONTEXT)?.get(Rqtc::RQT_MAX_SIZE) as usize;
        let queues = self.queues_of(request)?;
        if queues.len() > room || room > 1 << LOG_RQT_SIZE {
            return Err(Status::BadParameter);
        }
        let rqt = Rqt { queues, room };
        reply.object(self.nic.rqts.insert_with(|_| rqt).ok_or(Status::Limit)?)
    }

    pub(super) fn modify_rqt(&mut self, request: Request<'_>) -> Result<()> {
        let queues = self.queues_of(request)?;
        let rqt = self.nic.rqts.get_mut(request.object()?).ok_or(Status::BadResource)?;
        if queues.len() > rqt.room {
            return Err(Status::BadParameter);
        }
        rqt.queues = queues;
        Ok(())
    }

    pub(super) fn destroy_rqt(&mut self, request: Request<'_>) -> Result<()> {
        let number = request.object()?;
        let leads_here = |tir: &Tir| matches!(tir.dispatch, Dispatch::Table { table, .. } if table == number);
        if self.nic.tirs.iter().any(leads_here) {
            return Err(Status::BadResourceState);
        }
        self.nic.rqts.remove(number).map(drop).ok_or(Status::BadResource)
    }

    fn queues_of(&self, request: Request<'_>) -> Result<Vec<u32>> {
        const QUEUES: usize = CONTEXT + 0xf0;
        let context = request.view_at::<Rqtc>(CONTEXT)?;
        let count = context.get(Rqtc::RQT_ACTUAL_SIZE) as usize;
        if count == 0 || context.get8(Rqtc::LIST_Q_TYPE) != 0 {
            return Err(Status::BadParameter);
        }
        let queues = request.bytes(QUEUES, count * 4)?.chunks_exact(4);
        let queues: Vec<u32> = queues.map(|entry| crate::engine::be32(entry, 0) & 0xff_ffff).collect();
        if queues.iter().any(|rq| !self.nic.rqs.contains_key(rq)) {
            return Err(Status::BadResource);
        }
        Ok(queues)
    }
}
