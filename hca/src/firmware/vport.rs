//! Commands about an Ethernet port: NIC vport context, GID table.

use super::command::{Reply, Request, Result, Status};
use super::layout::command::{RoceAddrLayout, SetRoceAddressIn};
use super::layout::port::{ModifyNicVportContextIn, NicVportContext, QueryNicVportContextOut};
use super::state::Firmware;
use crate::engine::Engine;
use crate::engine::port::{GIDS, Gid};

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
}
