//! Commands about RQ objects: those of the netdev, of raw packet QPs and of verbs WQs.

use super::bits::{View, ViewMut};
use super::command::{Reply, Request, Result, Status};
use super::layout::command::{CreateRqIn, ModifyRqIn};
use super::layout::object::{Rqc, Wq};
use super::state::Firmware;
use super::work_queue::{CONTEXT, is_linked, legal, wq_ring, wq_state};
use crate::engine::{Engine, RqSetup, RqState};

impl Firmware {
    pub(super) fn create_rq(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        request.view::<CreateRqIn>()?;
        let context = request.view_at::<Rqc>(CONTEXT)?;
        let wq = context.part(Rqc::WQ);
        if asks_for_more(&context, &wq) {
            return Err(Status::BadParameter);
        }
        let ready = match context.get8(Rqc::STATE) {
            wq_state::RESET => false,
            wq_state::READY => true,
            _ => return Err(Status::BadParameter),
        };
        let (log_size, log_stride) = (wq.get8(Wq::LOG_WQ_SZ), wq.get8(Wq::LOG_WQ_STRIDE));
        let pd = wq.get32(Wq::PD);
        // The driver's drop RQ has no buffers and no PD.
        if pd != 0 {
            self.resources.require_pd(pd)?;
        }
        let setup = RqSetup {
            ring: wq_ring(request, &wq)?,
            log_size,
            log_stride,
            linked: is_linked(wq.get8(Wq::WQ_TYPE))?,
            doorbell: wq.get(Wq::DBR_ADDR),
            pd,
            cq: context.get32(Rqc::CQN),
            user_index: self.user_index(context.get32(Rqc::USER_INDEX))?,
            flushes: context.flag(Rqc::FLUSH_IN_ERROR_EN),
            strips_vlan: !context.flag(Rqc::VSD),
            scatters_fcs: context.flag(Rqc::SCATTER_FCS),
        };
        let number = engine.create_rq(setup)?;
        if ready {
            engine.move_rq(number, RqState::Ready)?;
        }
        self.nic.rqs.insert(number, context.raw().to_vec());
        reply.object(number)
    }

    pub(super) fn modify_rq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        const VLAN: u64 = 1 << 1;
        const FCS: u64 = 1 << 2;
        const COUNTERS: u64 = 1 << 3;
        let view = request.view::<ModifyRqIn>()?;
        let number = view.get32(ModifyRqIn::RQN);
        let (selected, wanted) = (view.get(ModifyRqIn::MODIFY_BITMASK), request.view_at::<Rqc>(CONTEXT)?);
        let context = self.nic.rqs.get_mut(&number).ok_or(Status::BadResource)?;
        let (now, next) = (number_of(engine.rq_state(number)?), wanted.get8(Rqc::STATE));
        if view.get8(ModifyRqIn::RQ_STATE) != now || !legal(now, next) {
            return Err(Status::BadResourceState);
        }
        if selected & !(VLAN | FCS | COUNTERS) != 0 {
            return Err(Status::BadParameter);
        }
        if selected & VLAN != 0 {
            let inline = wanted.flag(Rqc::VSD);
            engine.strip_vlan(number, !inline)?;
            ViewMut::<Rqc>::new(context).ok_or(Status::BadResource)?.set(Rqc::VSD, u8::from(inline));
        }
        if selected & FCS != 0 {
            let scatters = wanted.flag(Rqc::SCATTER_FCS);
            engine.scatter_fcs(number, scatters)?;
            ViewMut::<Rqc>::new(context)
                .ok_or(Status::BadResource)?
                .set(Rqc::SCATTER_FCS, u8::from(scatters));
        }
        if next != now {
            let next = match next {
                wq_state::RESET => RqState::Reset,
                wq_state::READY => RqState::Ready,
                _ => RqState::Error,
            };
            engine.move_rq(number, next)?;
        }
        Ok(())
    }

    pub(super) fn query_rq(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let number = request.object()?;
        let context = self.nic.rqs.get(&number).ok_or(Status::BadResource)?;
        let state = number_of(engine.rq_state(number)?);
        reply.view_at::<Rqc>(CONTEXT)?.fill(context).set(Rqc::STATE, state);
        Ok(())
    }

    pub(super) fn destroy_rq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let number = request.object()?;
        if self.nic.rqs.contains_key(&number) && self.nic.references_rq(number) {
            return Err(Status::BadResourceState);
        }
        engine.destroy_rq(number)?;
        self.nic.rqs.remove(&number);
        Ok(())
    }
}

/// Whether a context requests unsupported features: RMPs, hairpins, delay drop. End padding, which
/// the netdev's driver always requests, changes no byte of a message: the device would write more
/// bytes of the last cache line.
fn asks_for_more(context: &View<'_, Rqc>, wq: &View<'_, Wq>) -> bool {
    /// `MLX5_WQ_END_PAD_MODE_ALIGN`.
    const PADDED: u8 = 1;
    context.get8(Rqc::MEM_RQ_TYPE) != 0
        || context.flag(Rqc::HAIRPIN)
        || context.flag(Rqc::DELAY_DROP_EN)
        || wq.get8(Wq::END_PADDING_MODE) > PADDED
}

fn number_of(now: RqState) -> u8 {
    match now {
        RqState::Reset => wq_state::RESET,
        RqState::Ready => wq_state::READY,
        RqState::Error => wq_state::ERROR,
    }
}
