//! Registers of the port and the host interface (ACCESS_REG).

use super::bits::{Layout, View, ViewMut};
use super::command::{Reply, Request, Result, Status};
use super::layout::port::{AccessRegisterIn, PaosReg, PmtuReg, PtysReg, PvlcReg};
use super::state::{Firmware, NODE_DESCRIPTION};
use crate::engine::{Engine, Link};

/// Register IDs (`MLX5_REG_*` in `include/linux/mlx5/driver.h`).
mod register {
    pub(super) const PMTU: u16 = 0x5003;
    pub(super) const PTYS: u16 = 0x5004;
    pub(super) const PAOS: u16 = 0x5006;
    pub(super) const PFCC: u16 = 0x5007;
    pub(super) const PPCNT: u16 = 0x5008;
    pub(super) const PVLC: u16 = 0x500f;
    pub(super) const NODE_DESCRIPTION: u16 = 0x6001;
    pub(super) const HOST_ENDIANNESS: u16 = 0x7004;
    pub(super) const RESOURCE_DUMP: u16 = 0xc000;
}

const HEADER: usize = 16;
const IB_MTU: u16 = 4096;
const ETHERNET_MTU: u16 = 9978;
/// Status of a port in PAOS (`enum mlx5_port_status`).
const UP: u8 = 1;
const DOWN: u8 = 2;

impl Firmware {
    pub(super) fn access_register(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let header = request.view::<AccessRegisterIn>()?;
        let read = match request.modifier() {
            0 => false,
            1 => true,
            _ => return Err(Status::BadParameter),
        };
        let data = &request.input[HEADER..];
        // The output of a write is the current register, truncated to the output's length.
        reply.put(HEADER, data);
        match header.get32(AccessRegisterIn::REGISTER_ID) as u16 {
            register::PTYS => self.fill::<PtysReg>(data, reply, |register, link| match link {
                Link::InfiniBand => {
                    const WIDTH_4X: u8 = 4;
                    const EDR: u8 = 32;
                    register
                        .set(PtysReg::IB_LINK_WIDTH_CAPABILITY, WIDTH_4X)
                        .set(PtysReg::IB_LINK_WIDTH_ADMIN, WIDTH_4X)
                        .set(PtysReg::IB_LINK_WIDTH_OPER, WIDTH_4X)
                        .set(PtysReg::IB_PROTO_CAPABILITY, EDR)
                        .set(PtysReg::IB_PROTO_ADMIN, EDR)
                        .set(PtysReg::IB_PROTO_OPER, EDR);
                }
                Link::Ethernet => {
                    const CR4_100G: u32 = 1 << 20;
                    register
                        .set(PtysReg::ETH_PROTO_CAPABILITY, CR4_100G)
                        .set(PtysReg::ETH_PROTO_ADMIN, CR4_100G)
                        .set(PtysReg::ETH_PROTO_OPER, CR4_100G);
                }
            }),
            register::PMTU => self.fill::<PmtuReg>(data, reply, |register, link| {
                let mtu = if link == Link::InfiniBand { IB_MTU } else { ETHERNET_MTU };
                register.set(PmtuReg::MAX_MTU, mtu).set(PmtuReg::ADMIN_MTU, mtu).set(PmtuReg::OPER_MTU, mtu);
            }),
            register::PAOS => {
                if !read {
                    set_admin_status(engine, data)?;
                }
                let status = |up| if up { UP } else { DOWN };
                let (enabled, up) = (engine.port().enabled, engine.port().is_up());
                self.fill::<PaosReg>(data, reply, |register, _| {
                    register
                        .set(PaosReg::ADMIN_STATUS, status(enabled))
                        .set(PaosReg::OPER_STATUS, status(up));
                })
            }
            register::PVLC => self.fill::<PvlcReg>(data, reply, |register, _| {
                // The value 4 stands for four data lanes.
                register
                    .set(PvlcReg::VL_HW_CAP, 4u8)
                    .set(PvlcReg::VL_ADMIN, 4u8)
                    .set(PvlcReg::VL_OPERATIONAL, 4u8);
            }),
            register::NODE_DESCRIPTION => {
                if !read {
                    let text = request.bytes(HEADER, NODE_DESCRIPTION)?;
                    self.port.node_description.copy_from_slice(text);
                }
                reply.put(HEADER, &self.port.node_description);
                Ok(())
            }
            // No pause frames in either direction.
            register::PFCC if read => Ok(()),
            register::PPCNT if read => self.port_counters(engine, data, reply, HEADER),
            register::RESOURCE_DUMP => self.dump_resource(engine, request, reply),
            register::HOST_ENDIANNESS if !read => Ok(()),
            _ => Err(Status::BadParameter),
        }
    }

    /// Copies the input to the output and sets some fields.
    fn fill<L: Layout>(
        &self,
        data: &[u8],
        reply: &mut Reply<'_>,
        fill: impl FnOnce(&mut ViewMut<'_, L>, Link),
    ) -> Result<()> {
        let sent = View::<L>::new(data).ok_or(Status::BadInputLength)?;
        let mut register = reply.view_at::<L>(HEADER)?;
        register.fill(sent.raw());
        fill(&mut register, self.link);
        Ok(())
    }
}

/// Executes a write of PAOS. It changes nothing unless the driver selects the administrative status.
fn set_admin_status(engine: &mut Engine, data: &[u8]) -> Result<()> {
    let register = View::<PaosReg>::new(data).ok_or(Status::BadInputLength)?;
    if register.get8(PaosReg::ASE) == 0 {
        return Ok(());
    }
    match register.get8(PaosReg::ADMIN_STATUS) {
        UP => engine.set_enabled(true),
        DOWN => engine.set_enabled(false),
        _ => return Err(Status::BadParameter),
    }
    Ok(())
}
