//! Commands about SQ and TIS objects.

use super::bits::ViewMut;
use super::command::{Reply, Request, Result, Status};
use super::layout::command::{CreateSqIn, ModifySqIn, Tisc};
use super::layout::object::{Sqc, Wq};
use super::nic::Tis;
use super::state::Firmware;
use super::work_queue::{CONTEXT, legal, wq_ring, wq_state};
use crate::engine::{Engine, Link, QpAttributes, QpSetup, ReceiveQueue, Service, State};

impl Firmware {
    pub(super) fn create_sq(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        request.view::<CreateSqIn>()?;
        let context = request.view_at::<Sqc>(CONTEXT)?;
        if context.flag(Sqc::HAIRPIN) {
            return Err(Status::BadParameter);
        }
        let wq = context.part(Sqc::WQ);
        let (pd, uar) = (wq.get32(Wq::PD), wq.get32(Wq::UAR_PAGE));
        self.resources.require_pd(pd)?;
        self.resources.require_uar(uar)?;
        let underlay_qp = if context.get(Sqc::TIS_LST_SZ) > 0 {
            self.nic.tises.get(context.get32(Sqc::TIS_NUM_0)).ok_or(Status::BadResource)?.underlay_qp
        } else {
            None
        };
        let service = match (underlay_qp, self.link) {
            (Some(underlay_qp), _) => Service::Ipoib { underlay_qp },
            (None, Link::Ethernet) => Service::Ethernet,
            // There are no frames on InfiniBand.
            (None, Link::InfiniBand) => return Err(Status::BadParameter),
        };
        let setup = QpSetup {
            service,
            pd,
            user_index: self.user_index(context.get32(Sqc::USER_INDEX))?,
            ring: wq_ring(request, &wq)?,
            send_offset: 0,
            log_send_size: Some(wq.get8(Wq::LOG_WQ_SZ)),
            receive: ReceiveQueue::None,
            doorbell: wq.get(Wq::DBR_ADDR),
            send_cq: context.get32(Sqc::CQN),
            reserved_lkey: true,
            ..QpSetup::default()
        };
        let number = engine.create_qp(setup, QpAttributes::default())?;
        self.nic.sqs.insert(number, (context.raw().to_vec(), wq_state::RESET, uar));
        reply.object(number)
    }

    pub(super) fn modify_sq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let view = request.view::<ModifySqIn>()?;
        let number = view.get32(ModifySqIn::SQN);
        /// Modify bitmask: the index into the rate table.
        const RATE: u64 = 1 << 0;
        let given = request.view_at::<Sqc>(CONTEXT)?;
        let wanted = given.get8(Sqc::STATE);
        let changed = if view.get(ModifySqIn::MODIFY_BITMASK) & RATE != 0 {
            let index = given.get(Sqc::PACKET_PACING_RATE_LIMIT_INDEX);
            Some((index, self.rate(index)?))
        } else {
            (wanted == wq_state::RESET).then_some((0, None))
        };
        let (context, state, _) = self.nic.sqs.get_mut(&number).ok_or(Status::BadResource)?;
        if view.get8(ModifySqIn::SQ_STATE) != *state || !legal(*state, wanted) {
            return Err(Status::BadResourceState);
        }
        let next = match wanted {
            wq_state::RESET => State::Reset,
            wq_state::READY => State::ReadyToSend,
            _ => State::Error,
        };
        if wanted != *state {
            let rate = engine.qp_attributes(number)?.1.rate;
            engine.modify_qp(number, next, QpAttributes { rate, ..underlay_attributes(engine, number)? })?;
        }
        *state = wanted;
        if let Some((index, rate)) = changed {
            if let Some(mut context) = ViewMut::<Sqc>::new(context) {
                context.set(Sqc::PACKET_PACING_RATE_LIMIT_INDEX, index);
            }
            engine.set_rate(number, rate)?;
        }
        Ok(())
    }

    pub(super) fn query_sq(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let number = request.object()?;
        let (context, state, _) = self.nic.sqs.get(&number).ok_or(Status::BadResource)?;
        let failed = engine.qp_attributes(number)?.0 == State::Error;
        let state = if failed { wq_state::ERROR } else { *state };
        reply.view_at::<Sqc>(CONTEXT)?.fill(context).set(Sqc::STATE, state);
        Ok(())
    }

    pub(super) fn destroy_sq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let number = request.object()?;
        self.nic.sqs.remove(&number).ok_or(Status::BadResource)?;
        Ok(engine.destroy_qp(number)?)
    }

    pub(super) fn create_tis(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        let context = request.view_at::<Tisc>(CONTEXT)?;
        let underlay_qp = Some(context.get32(Tisc::UNDERLAY_QPN)).filter(|number| *number != 0);
        if underlay_qp.is_some() && self.link == Link::Ethernet {
            return Err(Status::BadParameter);
        }
        let tis = Tis { domain: context.get32(Tisc::TRANSPORT_DOMAIN), underlay_qp };
        reply.object(self.nic.tises.insert_with(|_| tis).ok_or(Status::Limit)?)
    }

    pub(super) fn modify_tis(&mut self, request: Request<'_>) -> Result<()> {
        self.nic.tises.get(request.object()?).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn query_tis(&self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        /// Offset of the context in the output.
        const CONTEXT: usize = 0x10;
        let tis = self.nic.tises.get(request.object()?).ok_or(Status::BadResource)?;
        let mut context = reply.view_at::<Tisc>(CONTEXT)?;
        context.set(Tisc::TRANSPORT_DOMAIN, tis.domain);
        context.set(Tisc::UNDERLAY_QPN, tis.underlay_qp.unwrap_or(0));
        Ok(())
    }

    pub(super) fn destroy_tis(&mut self, request: Request<'_>) -> Result<()> {
        let number = request.object()?;
        if self.nic.references_tis(number) {
            return Err(Status::BadResourceState);
        }
        self.nic.tises.remove(number).map(drop).ok_or(Status::BadResource)
    }
}

/// Attributes of an SQ. An SQ of IPoIB has the P_Key and the Q_Key of its underlay QP, if that exists.
fn underlay_attributes(engine: &Engine, sq: u32) -> Result<QpAttributes> {
    let Service::Ipoib { underlay_qp } = engine.qp_setup(sq)?.service else {
        return Ok(QpAttributes::default());
    };
    Ok(engine.qp_attributes(underlay_qp).map_or_else(
        |_| QpAttributes::default(),
        |(_, underlay)| QpAttributes { pkey: underlay.pkey, qkey: underlay.qkey, ..QpAttributes::default() },
    ))
}
