//! Commands about SRQs: XRC SRQs, and RMPs, which implement plain SRQs.

use super::bits::{Layout, View, ViewMut};
use super::command::{Reply, Request, Result, Status};
use super::layout::command::{ArmXrcSrqIn, CreateRmpIn, CreateXrcSrqIn, ModifyRmpIn, QueryRmpOut};
use super::layout::object::{Rmpc, Wq, XrcSrqc};
use super::state::{Firmware, SrqEntry};
use super::work_queue::{CONTEXT, PAGES, is_linked, ring};
use crate::engine::{Engine, SrqSetup};

const READY: u8 = 1;

impl Firmware {
    pub(super) fn create_xrc_srq(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let view = request.view::<CreateXrcSrqIn>()?.part(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY);
        if view.flag(XrcSrqc::WQ_SIGNATURE) {
            return Err(Status::BadParameter);
        }
        let (pd, xrcd) = (view.get32(XrcSrqc::PD), view.get32(XrcSrqc::XRCD));
        self.resources.require_pd(pd)?;
        self.resources.require_xrcd(xrcd)?;
        let (log_size, log_stride) =
            (view.get8(XrcSrqc::LOG_XRC_SRQ_SIZE), view.get8(XrcSrqc::LOG_RQ_STRIDE) + 4);
        let setup = SrqSetup {
            ring: ring(
                request.pages(PAGES)?,
                view.get32(XrcSrqc::LOG_PAGE_SIZE),
                view.get(XrcSrqc::PAGE_OFFSET),
                1 << (log_size + log_stride),
            )?,
            log_size,
            log_stride,
            doorbell: view.get(XrcSrqc::DB_RECORD_ADDR_H) << 32 | view.get(XrcSrqc::DB_RECORD_ADDR_L) << 2,
            pd,
            user_index: self.user_index(view.get32(XrcSrqc::USER_INDEX))?,
            cq: Some(view.get32(XrcSrqc::CQN)),
            xrcd: Some(xrcd),
            linked: true,
        };
        let number = engine.create_srq(setup, view.get32(XrcSrqc::LWM) as u16)?;
        self.srqs.insert(number, SrqEntry { context: view.raw().to_vec(), pool: false });
        reply.object(number)
    }

    pub(super) fn query_xrc_srq(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let number = request.object()?;
        let entry = self.srq_entry(number, false)?;
        let (limit, _) = engine.srq_progress(number)?;
        reply.view_at::<XrcSrqc>(16)?.fill(&entry.context).set(XrcSrqc::LWM, limit);
        Ok(())
    }

    pub(super) fn arm_xrc_srq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let view = request.view::<ArmXrcSrqIn>()?;
        let number = view.get32(ArmXrcSrqIn::XRC_SRQN);
        self.srq_entry(number, false)?;
        Ok(engine.arm_srq_limit(number, view.get32(ArmXrcSrqIn::LWM) as u16)?)
    }

    pub(super) fn destroy_srq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let number = request.object()?;
        self.srq_entry(number, request.opcode() == super::opcode::DESTROY_RMP)?;
        engine.destroy_srq(number)?;
        self.srqs.remove(&number);
        Ok(())
    }

    fn srq_entry(&self, number: u32, pool: bool) -> Result<&SrqEntry> {
        self.srqs.get(&number).filter(|entry| entry.pool == pool).ok_or(Status::BadResource)
    }

    pub(super) fn create_rmp(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        request.view::<CreateRmpIn>()?;
        let context = request.view_at::<Rmpc>(CONTEXT)?;
        let wq = context.part(Rmpc::WQ);
        let pd = wq.get32(Wq::PD);
        self.resources.require_pd(pd)?;
        let (log_size, log_stride) = (wq.get8(Wq::LOG_WQ_SZ), wq.get8(Wq::LOG_WQ_STRIDE));
        if log_size > 16 || wq.flag(Wq::WQ_SIGNATURE) {
            return Err(Status::BadParameter);
        }
        let setup = SrqSetup {
            ring: ring(
                request.pages(PAGES)?,
                wq.get32(Wq::LOG_WQ_PG_SZ),
                wq.get(Wq::PAGE_OFFSET),
                1 << (log_size + log_stride),
            )?,
            log_size,
            log_stride,
            doorbell: wq.get(Wq::DBR_ADDR),
            pd,
            user_index: 0,
            cq: None,
            xrcd: None,
            linked: is_linked(wq.get8(Wq::WQ_TYPE))?,
        };
        let number = engine.create_srq(setup, wq.get32(Wq::LWM) as u16)?;
        self.srqs.insert(number, SrqEntry { context: context.raw().to_vec(), pool: true });
        reply.object(number)
    }

    pub(super) fn modify_rmp(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        const LIMIT: u8 = 1;
        let view = request.view::<ModifyRmpIn>()?;
        let number = view.get32(ModifyRmpIn::RMPN);
        self.srq_entry(number, true)?;
        let selected = request.bytes(16, 8)?[7];
        if selected & LIMIT != 0 {
            let context = request.view_at::<Rmpc>(CONTEXT)?;
            engine.arm_srq_limit(number, context.part(Rmpc::WQ).get32(Wq::LWM) as u16)?;
        }
        Ok(())
    }

    pub(super) fn query_rmp(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let number = request.object()?;
        let entry = self.srq_entry(number, true)?;
        let (limit, consumed) = engine.srq_progress(number)?;
        reply.view::<QueryRmpOut>()?;
        let mut context = ViewMut::<Rmpc>::new(reply.output.get_mut(CONTEXT..).unwrap_or_default())
            .ok_or(Status::BadOutputLength)?;
        context.fill(&entry.context).set(Rmpc::STATE, READY);
        context.part(Rmpc::WQ).set(Wq::LWM, limit).set(Wq::HW_COUNTER, consumed);
        debug_assert!(View::<Rmpc>::new(&entry.context).is_some());
        debug_assert_eq!(entry.context.len(), Rmpc::SIZE);
        Ok(())
    }
}
