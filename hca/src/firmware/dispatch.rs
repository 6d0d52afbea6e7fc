//! Dispatch of commands to their handlers.

use super::command::{Reply, Request, Result, Status};
use super::opcode;
use super::state::Firmware;
use crate::engine::{Engine, Link};

impl Firmware {
    /// Executes a command. The output header is set in every case.
    pub(crate) fn execute(
        &mut self,
        engine: &mut Engine,
        input: &[u8],
        output: &mut [u8],
    ) -> std::result::Result<(), Status> {
        let result = match Request::new(input) {
            None => Err(Status::BadInputLength),
            Some(_) if output.len() < 8 => Err(Status::BadOutputLength),
            Some(request) => self.dispatch(engine, request, &mut Reply { output: &mut *output }),
        };
        if let Err(status) = result {
            output.fill(0);
            if let Some(first) = output.first_mut() {
                *first = status as u8;
            }
            if let Some(syndrome) = output.get_mut(4..8) {
                // The syndrome names the failed command in the driver's log.
                let opcode = Request::new(input).map_or(0, Request::opcode);
                syndrome.copy_from_slice(&(u32::from(opcode) << 8 | status as u32).to_be_bytes());
            }
        }
        result
    }

    fn dispatch(&mut self, engine: &mut Engine, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        use opcode::*;
        let code = request.opcode();
        if !self.lifecycle.allows(code) {
            return Err(Status::BadSystemState);
        }
        if self.link != Link::Ethernet && is_for_ethernet(code) {
            return Err(Status::BadOpcode);
        }
        match code {
            ENABLE_HCA => self.enable(),
            DISABLE_HCA => self.disable(engine),
            QUERY_ISSI => self.query_issi(reply),
            SET_ISSI => self.set_issi(request),
            QUERY_PAGES => self.query_pages(request, reply),
            MANAGE_PAGES => self.manage_pages(request, reply),
            QUERY_HCA_CAP => self.query_hca_cap(request, reply),
            SET_HCA_CAP => self.set_hca_cap(request),
            INIT_HCA => self.init(),
            TEARDOWN_HCA => self.teardown(engine),
            NOP => Ok(()),
            QUERY_ADAPTER => self.query_adapter(reply),
            QUERY_SPECIAL_CONTEXTS => self.query_special_contexts(reply),
            ACCESS_REG => self.access_register(engine, request, reply),

            ALLOC_PD | ALLOC_UAR | ALLOC_XRCD | ALLOC_TRANSPORT_DOMAIN | CREATE_UCTX => {
                self.allocate(code, reply)
            }
            DEALLOC_PD | DEALLOC_UAR | DEALLOC_XRCD | DEALLOC_TRANSPORT_DOMAIN | DESTROY_UCTX => {
                self.deallocate(engine, code, request.object()?)
            }
            CREATE_UMEM => self.create_umem(request, reply),
            DESTROY_UMEM => self.destroy_umem(request),
            ALLOC_Q_COUNTER => self.alloc_counters(engine, reply),
            DEALLOC_Q_COUNTER => self.dealloc_counters(request),
            QUERY_Q_COUNTER => self.query_counters(engine, request, reply),
            SET_PP_RATE_LIMIT => self.set_rate_limit(engine, request),
            QUERY_VPORT_COUNTER => self.query_vport_counter(engine, request, reply),

            CREATE_EQ => self.create_eq(engine, request, reply),
            DESTROY_EQ => self.destroy_eq(engine, request),
            QUERY_EQ => self.query_eq(engine, request, reply),
            CREATE_CQ => self.create_cq(engine, request, reply),
            MODIFY_CQ => self.modify_cq(engine, request),
            QUERY_CQ => self.query_cq(engine, request, reply),
            DESTROY_CQ => self.destroy_cq(engine, request),

            CREATE_MKEY => self.create_mkey(engine, request, reply),
            QUERY_MKEY => self.query_mkey(engine, request, reply),
            DESTROY_MKEY => self.destroy_mkey(engine, request),
            PAGE_FAULT_RESUME => self.resume_page_fault(engine, request),

            ALLOC_MEMIC => self.alloc_memic(engine, request, reply),
            DEALLOC_MEMIC => self.dealloc_memic(engine, request),

            CREATE_XRC_SRQ => self.create_xrc_srq(engine, request, reply),
            QUERY_XRC_SRQ => self.query_xrc_srq(engine, request, reply),
            ARM_XRC_SRQ => self.arm_xrc_srq(engine, request),
            DESTROY_XRC_SRQ | DESTROY_RMP => self.destroy_srq(engine, request),
            CREATE_RMP => self.create_rmp(engine, request, reply),
            MODIFY_RMP => self.modify_rmp(engine, request),
            QUERY_RMP => self.query_rmp(engine, request, reply),

            CREATE_QP => self.create_qp(engine, request, reply),
            QUERY_QP => self.query_qp(engine, request, reply),
            DESTROY_QP => self.destroy_qp(engine, request),
            RST2INIT_QP | INIT2INIT_QP | INIT2RTR_QP | RTR2RTS_QP | RTS2RTS_QP | SQERR2RTS_QP
            | SQD_RTS_QP | QP_2ERR | QP_2RST => self.modify_qp(engine, request, reply),
            ATTACH_TO_MCG | DETACH_FROM_MCG => self.multicast(engine, request),

            QUERY_HCA_VPORT_CONTEXT => self.query_hca_vport_context(engine, reply),
            MODIFY_HCA_VPORT_CONTEXT => self.modify_hca_vport_context(request),
            QUERY_HCA_VPORT_GID => self.query_hca_vport_gid(engine, request, reply),
            QUERY_HCA_VPORT_PKEY => self.query_hca_vport_pkey(engine, request, reply),
            QUERY_VPORT_STATE => self.query_vport_state(engine, reply),
            MODIFY_VPORT_STATE => Ok(()),

            ALLOC_FLOW_COUNTER => self.steering.alloc_counter(request, reply),
            DEALLOC_FLOW_COUNTER => self.steering.dealloc_counter(request),
            QUERY_FLOW_COUNTER => self.steering.query_counter(request, reply),
            _ => self.dispatch_nic(engine, request, reply),
        }
    }

    /// Commands about the objects of a netdev, and about those of raw packet and IPoIB QPs.
    fn dispatch_nic(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        use opcode::*;
        let code = request.opcode();
        match code {
            QUERY_NIC_VPORT_CONTEXT => self.query_nic_vport_context(engine, request, reply),
            MODIFY_NIC_VPORT_CONTEXT => self.modify_nic_vport_context(request),
            QUERY_ROCE_ADDRESS => self.query_roce_address(engine, request, reply),
            SET_ROCE_ADDRESS => self.set_roce_address(engine, request),
            // The port accepts frames to its own MAC regardless of the L2 table.
            SET_L2_TABLE_ENTRY | DELETE_L2_TABLE_ENTRY => Ok(()),

            CREATE_RQ => self.create_rq(engine, request, reply),
            MODIFY_RQ => self.modify_rq(engine, request),
            QUERY_RQ => self.query_rq(engine, request, reply),
            DESTROY_RQ => self.destroy_rq(engine, request),
            CREATE_SQ => self.create_sq(engine, request, reply),
            MODIFY_SQ => self.modify_sq(engine, request),
            QUERY_SQ => self.query_sq(engine, request, reply),
            DESTROY_SQ => self.destroy_sq(engine, request),
            CREATE_TIS => self.create_tis(request, reply),
            MODIFY_TIS => self.modify_tis(request),
            DESTROY_TIS => self.destroy_tis(request),
            QUERY_TIS => self.query_tis(request, reply),
            CREATE_TIR => self.create_tir(request, reply),
            MODIFY_TIR => self.modify_tir(request),
            DESTROY_TIR => self.destroy_tir(request),
            CREATE_RQT => self.create_rqt(request, reply),
            MODIFY_RQT => self.modify_rqt(request),
            DESTROY_RQT => self.destroy_rqt(request),

            SET_FLOW_TABLE_ROOT => self.steering.set_root(request),
            CREATE_FLOW_TABLE => self.steering.create_table(request, reply),
            MODIFY_FLOW_TABLE => self.steering.modify_table(request),
            DESTROY_FLOW_TABLE => self.steering.destroy_table(request),
            CREATE_FLOW_GROUP => self.steering.create_group(request, reply),
            DESTROY_FLOW_GROUP => self.steering.destroy_group(request),
            SET_FLOW_TABLE_ENTRY => self.steering.set_entry(request),
            DELETE_FLOW_TABLE_ENTRY => self.steering.delete_entry(request),
            _ => Err(Status::BadOpcode),
        }
    }
}

/// Commands that are unknown to a device with an InfiniBand port. Such a device has SQs, RQs, TISes and TIRs
/// for QPs of IPoIB, and flow tables, which programs create by DEVX, although no packet reaches them.
fn is_for_ethernet(code: u16) -> bool {
    use opcode::*;
    matches!(code, QUERY_NIC_VPORT_CONTEXT..=SET_ROCE_ADDRESS | SET_L2_TABLE_ENTRY..=DELETE_L2_TABLE_ENTRY)
        || matches!(code, CREATE_RQT..=DESTROY_RQT)
}
