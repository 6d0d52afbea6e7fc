//! Commands about an Ethernet port: NIC vport context, GID table, SQ and TIS objects.

use std::collections::BTreeMap;

use super::bits::View;
use super::layout::command::{CreateSqIn, ModifySqIn, RoceAddrLayout, SetRoceAddressIn, Tisc};
use super::layout::object::{Sqc, Wq};
use super::layout::port::{ModifyNicVportContextIn, NicVportContext, QueryNicVportContextOut};
use super::tirs::{Rqt, Tir};
use super::{Firmware, Reply, Request, Result, Status, srqs};
use crate::engine::port::{GIDS, Gid};
use crate::engine::table::Table;
use crate::engine::{Engine, QpAttributes, QpSetup, ReceiveQueue, Service, State};

/// Offsets of the context and the page list in commands about work queues.
pub(super) const CONTEXT: usize = 0x20;
const PAGES: usize = 0x110;
const MTU: u16 = 9978;

/// States of RQ and SQ objects.
pub(super) mod state {
    pub(in crate::firmware) const RESET: u8 = 0;
    pub(in crate::firmware) const READY: u8 = 1;
    pub(in crate::firmware) const ERROR: u8 = 3;
}

/// The netdev's objects.
pub(super) struct Nic {
    roce: bool,
    mtu: u16,
    /// Contexts of RQs.
    pub(super) rqs: BTreeMap<u32, Vec<u8>>,
    sqs: BTreeMap<u32, (Vec<u8>, u8, u32)>,
    pub(super) tirs: Table<Tir>,
    pub(super) rqts: Table<Rqt>,
    /// The transport domain of each TIS.
    tises: Table<u32>,
}

impl Default for Nic {
    fn default() -> Self {
        Self {
            roce: false,
            mtu: MTU,
            rqs: BTreeMap::new(),
            sqs: BTreeMap::new(),
            tirs: Table::new(1, 1 << 12),
            rqts: Table::new(1, 1 << 10),
            tises: Table::new(1, 1 << 8),
        }
    }
}

impl Nic {
    #[cfg(test)]
    pub(super) fn first_sq(&self) -> Option<u32> {
        self.sqs.keys().next().copied()
    }

    /// The transport domain of a send queue.
    pub(super) fn domain_of(&self, sq: u32) -> Option<u32> {
        self.tises.get(tis_of(&self.sqs.get(&sq)?.0)?).copied()
    }

    pub(super) fn uses_uar(&self, uar: u32) -> bool {
        self.sqs.values().any(|(_, _, page)| *page == uar)
    }

    pub(super) fn may_ring(&self, sq: u32, uar: u32) -> bool {
        self.sqs.get(&sq).is_some_and(|(_, _, page)| *page == uar)
    }
}

impl Firmware {
    pub(super) fn query_nic_vport_context(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        request.bytes(0, 16)?;
        let port = engine.port();
        let mut mac = [0; 8];
        mac[2..].copy_from_slice(&port.mac);
        reply
            .view::<QueryNicVportContextOut>()?
            .part(QueryNicVportContextOut::NIC_VPORT_CONTEXT)
            .set(NicVportContext::MTU, self.nic.mtu)
            .set(NicVportContext::MIN_WQE_INLINE_MODE, 1u8)
            .set(NicVportContext::ROCE_EN, u8::from(self.nic.roce))
            .set(NicVportContext::SYSTEM_IMAGE_GUID, port.guid)
            .set(NicVportContext::PORT_GUID, port.guid)
            .set(NicVportContext::NODE_GUID, port.guid)
            .set(NicVportContext::PERMANENT_ADDRESS, u64::from_be_bytes(mac));
        Ok(())
    }

    pub(super) fn modify_nic_vport_context(&mut self, request: Request<'_>) -> Result<()> {
        const ROCE: u64 = 1 << 1;
        const MTU: u64 = 1 << 6;
        const CONTEXT: usize = 0x100;
        let view = request.view::<ModifyNicVportContextIn>()?;
        let selected = view.get(ModifyNicVportContextIn::FIELD_SELECT);
        let context = request.view_at::<NicVportContext>(CONTEXT)?;
        if selected & ROCE != 0 {
            self.nic.roce = context.flag(NicVportContext::ROCE_EN);
        }
        if selected & MTU != 0 {
            self.nic.mtu = context.get32(NicVportContext::MTU) as u16;
        }
        // Address lists and promiscuous mode have no effect: the port accepts frames to its own MAC
        // and all broadcasts.
        Ok(())
    }

    pub(super) fn set_roce_address(&self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        const ADDRESS: usize = 16;
        let index = request.view::<SetRoceAddressIn>()?.get(SetRoceAddressIn::ROCE_ADDRESS_INDEX) as usize;
        let view = request.view_at::<RoceAddrLayout>(ADDRESS)?;
        let address: [u8; 16] = request.bytes(ADDRESS, 16)?.try_into().map_err(|_| Status::BadInputLength)?;
        let mac =
            view.get(RoceAddrLayout::SOURCE_MAC_47_32) << 32 | view.get(RoceAddrLayout::SOURCE_MAC_31_0);
        let gid = Gid {
            address,
            mac: mac.to_be_bytes()[2..].try_into().unwrap_or_default(),
            version: view.get8(RoceAddrLayout::ROCE_VERSION),
        };
        let slot = engine.port_mut().gids.get_mut(index).ok_or(Status::BadIndex)?;
        *slot = (address != [0; 16]).then_some(gid);
        Ok(())
    }

    pub(super) fn query_roce_address(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let index = request.word(8)? as usize >> 16;
        if index >= GIDS {
            return Err(Status::BadIndex);
        }
        let gid = engine.port().gids.get(index).copied().flatten().unwrap_or_default();
        reply.put(16, &gid.address);
        let mut mac = [0; 8];
        mac[2..].copy_from_slice(&gid.mac);
        let mac = u64::from_be_bytes(mac);
        reply
            .view_at::<RoceAddrLayout>(16)?
            .set(RoceAddrLayout::SOURCE_MAC_47_32, mac >> 32)
            .set(RoceAddrLayout::SOURCE_MAC_31_0, mac & u64::from(u32::MAX))
            .set(RoceAddrLayout::ROCE_VERSION, gid.version);
        Ok(())
    }

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
        if context.get(Sqc::TIS_LST_SZ) > 0 && self.nic.tises.get(context.get32(Sqc::TIS_NUM_0)).is_none() {
            return Err(Status::BadResource);
        }
        let setup = QpSetup {
            service: Service::Ethernet,
            pd,
            user_index: self.user_index(context.get32(Sqc::USER_INDEX))?,
            ring: ring(request, &wq)?,
            send_offset: 0,
            log_send_size: Some(wq.get8(Wq::LOG_WQ_SZ)),
            receive: ReceiveQueue::None,
            doorbell: wq.get(Wq::DBR_ADDR),
            send_cq: context.get32(Sqc::CQN),
            reserved_lkey: true,
            ..QpSetup::default()
        };
        let number = engine.create_qp(setup, QpAttributes::default())?;
        self.nic.sqs.insert(number, (context.raw().to_vec(), state::RESET, uar));
        reply.object(number)
    }

    pub(super) fn modify_sq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let view = request.view::<ModifySqIn>()?;
        let number = view.get32(ModifySqIn::SQN);
        let wanted = request.view_at::<Sqc>(CONTEXT)?.get8(Sqc::STATE);
        let (_, state, _) = self.nic.sqs.get_mut(&number).ok_or(Status::BadResource)?;
        if view.get8(ModifySqIn::SQ_STATE) != *state || !legal(*state, wanted) {
            return Err(Status::BadResourceState);
        }
        let next = match wanted {
            state::RESET => State::Reset,
            state::READY => State::ReadyToSend,
            _ => State::Error,
        };
        if wanted != *state {
            engine.move_qp(number, next, QpAttributes::default())?;
        }
        *state = wanted;
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
        let state = if failed { state::ERROR } else { *state };
        reply.view_at::<Sqc>(CONTEXT)?.fill(context).set(Sqc::STATE, state);
        Ok(())
    }

    pub(super) fn destroy_sq(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let number = request.object()?;
        self.nic.sqs.remove(&number).ok_or(Status::BadResource)?;
        Ok(engine.destroy_qp(number)?)
    }

    pub(super) fn create_tis(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        let domain = request.view_at::<Tisc>(CONTEXT)?.get32(Tisc::TRANSPORT_DOMAIN);
        reply.object(self.nic.tises.insert_with(|_| domain).ok_or(Status::Limit)?)
    }

    pub(super) fn modify_tis(&mut self, request: Request<'_>) -> Result<()> {
        self.nic.tises.get(request.object()?).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn destroy_tis(&mut self, request: Request<'_>) -> Result<()> {
        let number = request.object()?;
        if self.nic.sqs.values().any(|(context, ..)| tis_of(context) == Some(number)) {
            return Err(Status::BadResourceState);
        }
        self.nic.tises.remove(number).map(drop).ok_or(Status::BadResource)
    }
}

/// The TIS in the context of an SQ.
fn tis_of(context: &[u8]) -> Option<u32> {
    let context = View::<Sqc>::new(context)?;
    (context.get(Sqc::TIS_LST_SZ) > 0).then(|| context.get32(Sqc::TIS_NUM_0))
}

/// Whether a state transition is legal.
pub(super) fn legal(from: u8, to: u8) -> bool {
    matches!(
        (from, to),
        (_, state::RESET)
            | (state::RESET | state::READY, state::READY)
            | (state::READY | state::ERROR, state::ERROR)
    )
}

pub(super) fn ring(request: Request<'_>, wq: &View<'_, Wq>) -> Result<crate::engine::Ring> {
    const MOST: u8 = 15;
    let (log_size, log_stride) = (wq.get8(Wq::LOG_WQ_SZ), wq.get8(Wq::LOG_WQ_STRIDE));
    if log_size > MOST || log_stride > 12 || wq.flag(Wq::WQ_SIGNATURE) {
        return Err(Status::BadParameter);
    }
    let length = 1 << (log_size + log_stride);
    srqs::ring(request.pages(PAGES)?, wq.get32(Wq::LOG_WQ_PG_SZ), wq.get(Wq::PAGE_OFFSET), length)
}
