//! Commands about the port.

use super::command::{Reply, Request, Result, Status};
use super::layout::port::{
    HcaVportContext, ModifyHcaVportContextIn, QueryHcaVportContextOut, QueryHcaVportGidIn,
    QueryHcaVportGidOut, QueryHcaVportPkeyIn, QueryVportStateOut,
};
use super::state::Firmware;
use crate::engine::Engine;
use crate::engine::packet::Link;
use crate::engine::port::PKEYS;
use crate::fabric::subnet;

const GIDS: u32 = 8;
const ALL: u32 = 0xffff;
impl Firmware {
    pub(super) fn query_hca_vport_context(&self, engine: &Engine, reply: &mut Reply<'_>) -> Result<()> {
        const LINK_UP: u8 = 5;
        const POLLING: u8 = 2;
        const ACTIVE: u8 = 4;
        const DOWN: u8 = 1;
        let port = engine.port();
        reply
            .view::<QueryHcaVportContextOut>()?
            .part(QueryHcaVportContextOut::HCA_VPORT_CONTEXT)
            .set(HcaVportContext::PORT_PHYSICAL_STATE, if port.is_up() { LINK_UP } else { POLLING })
            .set(HcaVportContext::VPORT_STATE, if port.is_up() { ACTIVE } else { DOWN })
            .set(HcaVportContext::PORT_STATE, if port.is_up() { ACTIVE } else { DOWN })
            .set(HcaVportContext::SYSTEM_IMAGE_GUID, port.guid)
            .set(HcaVportContext::PORT_GUID, self.port.port_guid.unwrap_or(port.guid))
            .set(HcaVportContext::NODE_GUID, self.port.node_guid.unwrap_or(port.guid))
            .set(HcaVportContext::CAP_MASK1, self.port.capabilities)
            .set(HcaVportContext::CAP_MASK1_FIELD_SELECT, u32::MAX)
            .set(HcaVportContext::LID, port.lid)
            .set(HcaVportContext::SM_LID, if port.link == Link::InfiniBand { subnet::LID } else { 0 })
            .set(HcaVportContext::SUBNET_TIMEOUT, 18u8)
            .set(HcaVportContext::QKEY_VIOLATION_COUNTER, port.qkey_violations)
            .set(HcaVportContext::PKEY_VIOLATION_COUNTER, port.pkey_violations);
        Ok(())
    }

    pub(super) fn modify_hca_vport_context(&mut self, request: Request<'_>) -> Result<()> {
        /// Field select bits: port GUID, node GUID. The capability mask has its own field select.
        const PORT_GUID: u32 = 1 << 0;
        const NODE_GUID: u32 = 1 << 1;
        let context =
            request.view::<ModifyHcaVportContextIn>()?.part(ModifyHcaVportContextIn::HCA_VPORT_CONTEXT);
        let selected = context.get32(HcaVportContext::FIELD_SELECT);
        if selected & PORT_GUID != 0 {
            self.port.port_guid = Some(context.get(HcaVportContext::PORT_GUID));
        }
        if selected & NODE_GUID != 0 {
            self.port.node_guid = Some(context.get(HcaVportContext::NODE_GUID));
        }
        let mask = context.get32(HcaVportContext::CAP_MASK1_FIELD_SELECT);
        let wanted = context.get32(HcaVportContext::CAP_MASK1);
        self.port.capabilities = self.port.capabilities & !mask | wanted & mask;
        Ok(())
    }

    pub(super) fn query_hca_vport_gid(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let index = request.view::<QueryHcaVportGidIn>()?.get32(QueryHcaVportGidIn::GID_INDEX);
        let (first, count) = if index == ALL { (0, GIDS) } else { (index, 1) };
        if first + count > GIDS {
            return Err(Status::BadIndex);
        }
        reply.view::<QueryHcaVportGidOut>()?.set(QueryHcaVportGidOut::GIDS_NUM, count);
        if first == 0 {
            reply.put(16, &engine.port().own_gid());
        }
        Ok(())
    }

    pub(super) fn query_hca_vport_pkey(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let index = request.view::<QueryHcaVportPkeyIn>()?.get32(QueryHcaVportPkeyIn::PKEY_INDEX);
        let pkeys = &engine.port().pkeys;
        let asked = if index == ALL { 0..PKEYS } else { index as usize..index as usize + 1 };
        for (slot, pkey) in pkeys.get(asked).ok_or(Status::BadIndex)?.iter().enumerate() {
            reply.put(16 + 4 * slot, &u32::from(*pkey).to_be_bytes());
        }
        Ok(())
    }

    pub(super) fn query_vport_state(&self, engine: &Engine, reply: &mut Reply<'_>) -> Result<()> {
        reply
            .view::<QueryVportStateOut>()?
            .set(QueryVportStateOut::ADMIN_STATE, 1u8)
            .set(QueryVportStateOut::STATE, u8::from(engine.port().is_up()))
            .set(QueryVportStateOut::MAX_TX_SPEED, 1000u16);
        Ok(())
    }
}
