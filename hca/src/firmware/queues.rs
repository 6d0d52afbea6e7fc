//! Commands about EQs and CQs.

use super::bits::{Field, Layout, View, ViewMut};
use super::command::{Reply, Request, Result, Status};
use super::layout::command::{CreateCqIn, CreateEqIn, ModifyCqIn};
use super::layout::object::{Cqc, Eqc};
use super::limits::{LOG_CQ_SIZE, LOG_EQ_SIZE};
use super::state::{CqEntry, EqEntry, Firmware};
use super::work_queue::{LOG_PAGE, PAGES};
use crate::engine::limits::VECTORS;
use crate::engine::{CqSetup, Engine, EqSetup, EventKind, MiniFormat, Moderation, Ring};

const CONTEXT: usize = 0x10;

fn context<const N: usize>(raw: &[u8]) -> [u8; N] {
    let mut context = [0; N];
    context.copy_from_slice(&raw[..N]);
    context
}

impl Firmware {
    pub(super) fn create_eq(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        const EVENTS: usize = 0x58;
        let view = request.view::<CreateEqIn>()?.part(CreateEqIn::EQ_CONTEXT_ENTRY);
        let (log_size, vector, uar) =
            (view.get8(Eqc::LOG_EQ_SIZE), view.get(Eqc::INTR), view.get32(Eqc::UAR_PAGE));
        if log_size > LOG_EQ_SIZE || vector >= u64::from(VECTORS) {
            return Err(Status::BadParameter);
        }
        self.resources.require_uar(uar)?;
        let shift = view.get32(Eqc::LOG_PAGE_SIZE) + LOG_PAGE;
        let ring = Ring::new(request.pages(PAGES)?, shift, 0, 64 << log_size).ok_or(Status::BadParameter)?;
        let mut events = [0; 4];
        for (index, word) in request.bytes(EVENTS, 32)?.chunks_exact(8).enumerate() {
            events[index] = u64::from_be_bytes(word.try_into().unwrap_or_default());
        }
        let number = engine.create_eq(EqSetup { ring, log_size, vector: vector as u16, events })?;
        if events[0] >> EventKind::Command as u8 & 1 != 0 {
            self.command_eq = Some(number);
        }
        self.eqs.insert(number, EqEntry { context: context(view.raw()), uar });
        reply.object(number)
    }

    pub(super) fn destroy_eq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let number = request.object()? & 0xff;
        engine.destroy_eq(number)?;
        self.eqs.remove(&number);
        if self.command_eq == Some(number) {
            self.command_eq = None;
        }
        Ok(())
    }

    pub(super) fn query_eq(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let number = request.object()? & 0xff;
        let producer = engine.eq_producer(number)?;
        let entry = self.eqs.get(&number).ok_or(Status::BadResource)?;
        reply.view_at::<Eqc>(CONTEXT)?.fill(&entry.context).set(Eqc::PRODUCER_COUNTER, producer);
        Ok(())
    }

    pub(super) fn create_cq(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        const WIDE: u8 = 1;
        let input = request.view::<CreateCqIn>()?;
        let view = input.part(CreateCqIn::CQ_CONTEXT);
        let (log_size, size) = (view.get8(Cqc::LOG_CQ_SIZE), view.get8(Cqc::CQE_SZ));
        if log_size > LOG_CQ_SIZE || size > WIDE {
            return Err(Status::BadParameter);
        }
        let uar = view.get32(Cqc::UAR_PAGE);
        self.resources.require_uar(uar)?;
        let mut umems = Vec::new();
        let ring = if input.flag(CreateCqIn::CQ_UMEM_VALID) {
            umems.push(input.get32(CreateCqIn::CQ_UMEM_ID));
            self.umem(umems[0])?.ring(input.get(CreateCqIn::CQ_UMEM_OFFSET), cq_length(&view))?
        } else {
            cq_ring(request, &view)?
        };
        let mut doorbell = view.get(Cqc::DBR_ADDR);
        if view.flag(Cqc::DBR_UMEM_VALID) {
            let memory = view.get32(Cqc::DBR_UMEM_ID);
            doorbell = self.umem(memory)?.record(doorbell)?;
            umems.push(memory);
        }
        let setup = CqSetup {
            ring,
            log_size,
            wide: size == WIDE,
            eq: view.get32(Cqc::C_EQN_OR_APU_ELEMENT) & 0xff,
            doorbell,
            ignore_overrun: view.flag(Cqc::OI),
            compression: compression(&view)?,
        };
        let number = engine.create_moderated_cq(setup, moderation(|field| view.get(field)))?;
        self.cqs.insert(number, CqEntry { context: context(view.raw()), uar, umems });
        reply.object(number)
    }

    pub(super) fn modify_cq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        /// `MLX5_CQ_MODIFY_PERIOD` and `MLX5_CQ_MODIFY_COUNT`.
        const PERIOD: u64 = 1 << 0;
        const COUNT: u64 = 1 << 1;
        let input = request.view::<ModifyCqIn>()?;
        let number = input.get32(ModifyCqIn::CQN);
        let view = input.part(ModifyCqIn::CQ_CONTEXT);
        let entry = self.cqs.get_mut(&number).ok_or(Status::BadResource)?;
        let mut context = ViewMut::<Cqc>::new(&mut entry.context).ok_or(Status::BadResource)?;
        match request.modifier() {
            0 => {
                let selected = input.get(ModifyCqIn::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT);
                if selected & !(PERIOD | COUNT) != 0 {
                    return Err(Status::BadParameter);
                }
                if selected & PERIOD != 0 {
                    context.set(Cqc::CQ_PERIOD, view.get(Cqc::CQ_PERIOD));
                }
                if selected & COUNT != 0 {
                    context.set(Cqc::CQ_MAX_COUNT, view.get(Cqc::CQ_MAX_COUNT));
                }
                if selected != 0 {
                    let rule = moderation(|field| context.get(field));
                    engine.moderate_cq(number, rule)?;
                }
                Ok(())
            }
            1 => {
                let log_size = view.get8(Cqc::LOG_CQ_SIZE);
                let size = log_cq_size(&entry.context);
                // Only buffers in page lists are resized.
                let in_umem = input.flag(ModifyCqIn::CQ_UMEM_VALID) || !entry.umems.is_empty();
                if in_umem || log_size > LOG_CQ_SIZE || view.get8(Cqc::CQE_SZ) != size {
                    return Err(Status::BadParameter);
                }
                let ring = cq_ring(request, &view)?;
                engine.resize_cq(number, ring, log_size)?;
                entry.context = merged(&entry.context, view.raw());
                Ok(())
            }
            _ => Err(Status::BadParameter),
        }
    }

    pub(super) fn query_cq(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        const OVERRUN: u8 = 9;
        let number = request.object()?;
        let (producer, failed) = engine.cq_progress(number)?;
        let entry = self.cqs.get(&number).ok_or(Status::BadResource)?;
        let mut context = reply.view_at::<Cqc>(CONTEXT)?;
        context.fill(&entry.context).set(Cqc::PRODUCER_COUNTER, producer);
        if failed {
            context.set(Cqc::STATUS, OVERRUN);
        }
        Ok(())
    }

    pub(super) fn destroy_cq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let number = request.object()?;
        engine.destroy_cq(number)?;
        self.cqs.remove(&number);
        Ok(())
    }
}

fn log_cq_size(context: &[u8; Cqc::SIZE]) -> u8 {
    View::<Cqc>::new(context).map_or(0, |view| view.get8(Cqc::CQE_SZ))
}

/// A resize sets only the buffer fields. The rest of the context stays.
fn merged(old: &[u8; Cqc::SIZE], new: &[u8]) -> [u8; Cqc::SIZE] {
    let mut bytes = *old;
    if let (Some(mut context), Some(new)) = (ViewMut::<Cqc>::new(&mut bytes), View::<Cqc>::new(new)) {
        context
            .set(Cqc::LOG_CQ_SIZE, new.get(Cqc::LOG_CQ_SIZE))
            .set(Cqc::LOG_PAGE_SIZE, new.get(Cqc::LOG_PAGE_SIZE))
            .set(Cqc::PAGE_OFFSET, new.get(Cqc::PAGE_OFFSET));
    }
    bytes
}

fn moderation(context: impl Fn(Field<Cqc>) -> u64) -> Moderation {
    Moderation::new(context(Cqc::CQ_MAX_COUNT) as u16, context(Cqc::CQ_PERIOD) as u16)
}

/// The mini CQE format of a CQ; only the basic CQE layout is supported.
fn compression(view: &View<'_, Cqc>) -> Result<Option<MiniFormat>> {
    const BASIC: u8 = 0;
    if !view.flag(Cqc::CQE_COMP_EN) {
        return Ok(None);
    }
    match (view.get8(Cqc::CQE_COMPRESSION_LAYOUT), view.get8(Cqc::MINI_CQE_RES_FORMAT)) {
        (BASIC, 0) => Ok(Some(MiniFormat::Hash)),
        (BASIC, 1) => Ok(Some(MiniFormat::Checksum)),
        (BASIC, 3) => Ok(Some(MiniFormat::ChecksumAndIndex)),
        _ => Err(Status::BadParameter),
    }
}

fn cq_ring(request: Request<'_>, view: &View<'_, Cqc>) -> Result<Ring> {
    let shift = view.get32(Cqc::LOG_PAGE_SIZE) + LOG_PAGE;
    let start = view.get(Cqc::PAGE_OFFSET) << shift >> 6;
    Ring::new(request.pages(PAGES)?, shift, start, cq_length(view)).ok_or(Status::BadParameter)
}

/// Length of the buffer in bytes.
fn cq_length(view: &View<'_, Cqc>) -> u64 {
    (64 << view.get(Cqc::CQE_SZ)) << view.get(Cqc::LOG_CQ_SIZE)
}
