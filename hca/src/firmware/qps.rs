//! Commands that create, query and destroy QPs, and commands about multicast groups.

use super::bits::{Layout, View, ViewMut};
use super::command::{Reply, Request, Result, Status};
use super::layout::command::{CreateQpIn, CreateQpOut, QueryQpOut};
use super::layout::object::{AddressPath, Qpc};
use super::opcode;
use super::state::{Firmware, QpEntry};
use super::work_queue::{PAGES, ring};
use crate::engine::packet::{PSN_MASK, Transport};
use crate::engine::{Engine, ManagementQp, Migration, QpAttributes, QpSetup, ReceiveQueue, Service, State};

/// Receive queue types in the context.
mod receive {
    pub(super) const OWN: u8 = 0;
    pub(super) const SHARED: u8 = 1;
    pub(super) const NONE: u8 = 3;
}

fn service(kind: u8) -> Result<Service> {
    Ok(match kind {
        0x0 => Service::Connected(Transport::Rc),
        0x1 => Service::Connected(Transport::Uc),
        0x2 => Service::Datagram(None),
        0x3 => Service::Connected(Transport::Xrc),
        0x7 => Service::Datagram(Some(ManagementQp::Smi)),
        0x8 => Service::Datagram(Some(ManagementQp::Gsi)),
        0xc => Service::RegUmr,
        _ => return Err(Status::BadParameter),
    })
}

/// The negotiated ECE options. The device supports version 1 of the format and none of the options.
pub(super) fn supported_ece(asked: u32) -> u32 {
    const FIRST_VERSION: u32 = 1 << 28;
    if asked >> 28 == 1 { FIRST_VERSION } else { 0 }
}

/// Most bytes of a response that is scattered to the CQE (`MLX5_REQ_SCAT_DATA*_CQE` in mlx5_ib).
fn inline_responses(code: u8) -> Result<u8> {
    match code {
        0 => Ok(0),
        0x11 => Ok(32),
        0x22 => Ok(64),
        _ => Err(Status::BadParameter),
    }
}

/// Most bytes of a message that is scattered to the CQE (`MLX5_RES_SCAT_DATA*_CQE` in mlx5_ib).
fn inline_receives(code: u8) -> Result<u8> {
    match code {
        0 => Ok(0),
        1 => Ok(32),
        2 => Ok(64),
        _ => Err(Status::BadParameter),
    }
}

impl Firmware {
    pub(super) fn create_qp(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let input = request.view::<CreateQpIn>()?;
        let view = input.part(CreateQpIn::QPC);
        let service = service(view.get8(Qpc::ST))?;
        let (pd, uar) = (view.get32(Qpc::PD), view.get32(Qpc::UAR_PAGE));
        if service != Service::RegUmr {
            self.resources.require_pd(pd)?;
        }
        let log_send_size = (!view.flag(Qpc::NO_SQ)).then(|| view.get8(Qpc::LOG_SQ_SIZE));
        if log_send_size.is_some() {
            self.resources.require_uar(uar)?;
        }
        let (log_size, log_stride) = (view.get8(Qpc::LOG_RQ_SIZE), view.get8(Qpc::LOG_RQ_STRIDE) + 4);
        let receive = match view.get8(Qpc::RQ_TYPE) {
            receive::OWN => ReceiveQueue::Own { log_size, log_stride },
            receive::SHARED => ReceiveQueue::Shared(view.get32(Qpc::SRQN_RMPN_XRQN)),
            receive::NONE => ReceiveQueue::None,
            _ => return Err(Status::BadParameter),
        };
        let send_offset =
            if let ReceiveQueue::Own { .. } = receive { 1 << (log_size + log_stride) } else { 0 };
        let length = send_offset + log_send_size.map_or(0, |log_size| 64 << log_size);
        let xrcd = if service == Service::Connected(Transport::Xrc) {
            let xrcd = view.get32(Qpc::XRCD);
            self.resources.require_xrcd(xrcd)?;
            Some(xrcd)
        } else {
            None
        };
        let mut umems = Vec::new();
        let ring = if input.flag(CreateQpIn::WQ_UMEM_VALID) {
            umems.push(input.get32(CreateQpIn::WQ_UMEM_ID));
            self.umem(umems[0])?.ring(input.get(CreateQpIn::WQ_UMEM_OFFSET), length)?
        } else {
            let pages = request.pages(PAGES)?;
            ring(pages, view.get32(Qpc::LOG_PAGE_SIZE), view.get(Qpc::PAGE_OFFSET), length)?
        };
        let mut doorbell = view.get(Qpc::DBR_ADDR);
        if view.flag(Qpc::DBR_UMEM_VALID) {
            let memory = view.get32(Qpc::DBR_UMEM_ID);
            doorbell = self.umem(memory)?.record(doorbell)?;
            umems.push(memory);
        }
        let setup = QpSetup {
            service,
            pd,
            user_index: self.user_index(view.get32(Qpc::USER_INDEX))?,
            ring,
            send_offset,
            log_send_size,
            receive,
            doorbell,
            send_cq: view.get32(Qpc::CQN_SND),
            receive_cq: view.get32(Qpc::CQN_RCV),
            xrcd,
            blocks_own_multicast: view.flag(Qpc::BLOCK_LB_MC),
            reserved_lkey: view.flag(Qpc::RLKY),
            inline_responses: inline_responses(view.get8(Qpc::CS_REQ))?,
            inline_receives: inline_receives(view.get8(Qpc::CS_RES))?,
        };
        let ece = supported_ece(input.get32(CreateQpIn::ECE));
        reply.view::<CreateQpOut>()?.set(CreateQpOut::ECE, ece);
        let number = engine.create_qp(setup, QpAttributes::default())?;
        self.qps.insert(number, QpEntry { context: view.raw().to_vec(), uar, umems });
        reply.object(number)
    }

    pub(super) fn query_qp(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        const CONTEXT: usize = 0x18;
        let number = request.object()?;
        let (state, attributes) = engine.qp_attributes(number)?;
        let progress = engine.qp_progress(number)?;
        let entry = self.qps.get(&number).ok_or(Status::BadResource)?;
        reply.view::<QueryQpOut>()?;
        let mut context = reply.view_at::<Qpc>(CONTEXT)?;
        context.fill(&entry.context).set(Qpc::STATE, state_code(state));
        context.set(Qpc::PM_STATE, migration_code(attributes.migration));
        if attributes.on_alternate {
            use_alternate_path(&mut context);
        }
        if state != State::Reset && state != State::Init {
            context
                .set(Qpc::NEXT_SEND_PSN, progress.next_psn)
                .set(Qpc::LAST_ACKED_PSN, progress.acknowledged_psn)
                .set(Qpc::NEXT_RCV_PSN, progress.expected_psn)
                .set(Qpc::RMSN, progress.messages & PSN_MASK)
                .set(Qpc::HW_SQ_WQEBB_COUNTER, progress.done)
                .set(Qpc::SW_SQ_WQEBB_COUNTER, progress.posted)
                .set(Qpc::HW_RQ_COUNTER, progress.received);
        }
        Ok(())
    }

    pub(super) fn destroy_qp(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let number = request.object()?;
        if !self.qps.contains_key(&number) {
            return Err(Status::BadResource);
        }
        engine.destroy_qp(number)?;
        self.qps.remove(&number);
        Ok(())
    }

    pub(super) fn multicast(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let group = request.bytes(16, 16)?.try_into().map_err(|_| Status::BadInputLength)?;
        let number = request.object()?;
        if request.opcode() == opcode::ATTACH_TO_MCG {
            engine.attach(group, number)?;
        } else {
            engine.detach(group, number)?;
        }
        Ok(())
    }
}

/// Copies the alternate path of a context to the primary one.
pub(super) fn use_alternate_path(context: &mut ViewMut<'_, Qpc>) {
    let path = context.part(Qpc::SECONDARY_ADDRESS_PATH).raw().to_vec();
    context.part(Qpc::PRIMARY_ADDRESS_PATH).fill(&path);
}

/// The code of a state (`MLX5_QP_STATE_*` in `include/linux/mlx5/qp.h`).
fn state_code(state: State) -> u8 {
    match state {
        State::Reset => 0,
        State::Init => 1,
        State::ReadyToReceive => 2,
        State::ReadyToSend => 3,
        State::SendQueueError => 4,
        State::SendQueueDrained => 5,
        State::Error => 6,
    }
}

/// The code of a path migration state (`MLX5_QP_PM_*` in `include/linux/mlx5/qp.h`).
pub(super) fn migration_code(state: Migration) -> u8 {
    match state {
        Migration::Armed => 0,
        Migration::Rearm => 1,
        Migration::Migrated => 3,
    }
}

/// The address vector of an address path.
pub(super) fn address(path: &View<'_, AddressPath>) -> crate::engine::AddressVector {
    let mac = path.get(AddressPath::RMAC_47_32) << 32 | path.get(AddressPath::RMAC_31_0);
    let udp_port = path.get32(AddressPath::UDP_SPORT) as u16;
    let lid = path.get32(AddressPath::RLID) as u16;
    crate::engine::AddressVector {
        qkey: 0,
        qp: 0,
        service_level: path.get8(AddressPath::SL),
        lid: if udp_port != 0 { udp_port } else { lid },
        mac: mac.to_be_bytes()[2..].try_into().unwrap_or_default(),
        traffic_class: path.get8(AddressPath::TCLASS),
        hop_limit: path.get8(AddressPath::HOP_LIMIT),
        global: path.flag(AddressPath::GRH),
        gid_index: path.get8(AddressPath::SRC_ADDR_INDEX),
        flow_label: path.get32(AddressPath::FLOW_LABEL),
        gid: path.bytes(AddressPath::RGID_RIP).try_into().unwrap_or_default(),
    }
}

const _: () = assert!(Qpc::SIZE == 0xe8);
