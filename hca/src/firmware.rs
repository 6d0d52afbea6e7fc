//! The firmware's command interface: it decodes commands and creates the engine's objects.

mod adapter;
pub(crate) mod bits;
mod caps;
mod counters;
pub(crate) mod example;
mod keys;
pub(crate) mod layout;
mod lifecycle;
mod memic;
mod nic;
pub(crate) mod opcode;
mod port;
mod qps;
mod queue;
mod queues;
mod registers;
mod resources;
mod rqs;
mod rss;
mod srqs;
mod steering;
mod tirs;
mod traffic;
mod transitions;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::engine::{Engine, EngineError, Link, NO_USER_INDEX};
use bits::{Layout, View, ViewMut};
use lifecycle::Lifecycle;
pub(crate) use queue::{Delivery, LOG_SLOTS, LOG_STRIDE, Outcome, execute_slot};
pub(crate) use resources::FIRST_UAR;
use resources::Resources;
use steering::Steering;

/// Command status (`MLX5_CMD_STAT_*` in `include/linux/mlx5/device.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    BadOpcode = 0x02,
    BadParameter = 0x03,
    BadSystemState = 0x04,
    BadResource = 0x05,
    Limit = 0x08,
    BadResourceState = 0x09,
    BadIndex = 0x0a,
    NoResources = 0x0f,
    BadQpState = 0x10,
    TooManyOutstanding = 0x40,
    BadInputLength = 0x50,
    BadOutputLength = 0x51,
}

impl From<EngineError> for Status {
    fn from(refused: EngineError) -> Self {
        match refused {
            EngineError::Missing => Self::BadResource,
            EngineError::Busy => Self::BadResourceState,
            EngineError::Full => Self::Limit,
            EngineError::Invalid => Self::BadParameter,
            EngineError::Outstanding => Self::TooManyOutstanding,
        }
    }
}

type Result<T> = std::result::Result<T, Status>;

/// The input of a command.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    input: &'a [u8],
}

impl<'a> Request<'a> {
    /// Returns `None` if the input is shorter than the header.
    pub(crate) fn new(input: &'a [u8]) -> Option<Self> {
        (input.len() >= 8).then_some(Self { input })
    }

    pub(crate) fn opcode(self) -> u16 {
        u16::from_be_bytes([self.input[0], self.input[1]])
    }

    pub(crate) fn modifier(self) -> u16 {
        u16::from_be_bytes([self.input[6], self.input[7]])
    }

    fn view<L: Layout>(self) -> Result<View<'a, L>> {
        View::new(self.input).ok_or(Status::BadInputLength)
    }

    /// A view of the bytes from offset `from` on.
    fn view_at<L: Layout>(self, from: usize) -> Result<View<'a, L>> {
        self.input.get(from..).and_then(View::new).ok_or(Status::BadInputLength)
    }

    /// The object number: the low 24 bits of the third word in most commands.
    fn object(self) -> Result<u32> {
        Ok(self.word(8)? & 0xff_ffff)
    }

    fn word(self, at: usize) -> Result<u32> {
        let bytes = self.input.get(at..at + 4).ok_or(Status::BadInputLength)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn bytes(self, from: usize, length: usize) -> Result<&'a [u8]> {
        self.input.get(from..from + length).ok_or(Status::BadInputLength)
    }

    /// The page list from offset `from` on. The low 12 bits of each entry are flags and are
    /// cleared.
    fn pages(self, from: usize) -> Result<Vec<u64>> {
        const FLAGS: u64 = 0xfff;
        let list = self.input.get(from..).ok_or(Status::BadInputLength)?;
        Ok(list
            .chunks_exact(8)
            .map(|entry| u64::from_be_bytes(entry.try_into().unwrap_or_default()) & !FLAGS)
            .collect())
    }
}

/// The zeroed output of a command. The first eight bytes are status and syndrome.
pub(crate) struct Reply<'a> {
    output: &'a mut [u8],
}

impl Reply<'_> {
    fn view<L: Layout>(&mut self) -> Result<ViewMut<'_, L>> {
        ViewMut::new(self.output).ok_or(Status::BadOutputLength)
    }

    fn view_at<L: Layout>(&mut self, from: usize) -> Result<ViewMut<'_, L>> {
        self.output.get_mut(from..).and_then(ViewMut::new).ok_or(Status::BadOutputLength)
    }

    /// Writes as many bytes as fit.
    fn put(&mut self, from: usize, bytes: &[u8]) {
        if let Some(room) = self.output.get_mut(from..) {
            let length = room.len().min(bytes.len());
            room[..length].copy_from_slice(&bytes[..length]);
        }
    }

    /// Sets the object number: the low 24 bits of the third word.
    fn object(&mut self, number: u32) -> Result<()> {
        let room = self.output.get_mut(9..12).ok_or(Status::BadOutputLength)?;
        room.copy_from_slice(&number.to_be_bytes()[1..]);
        Ok(())
    }

    fn length(&self) -> usize {
        self.output.len()
    }
}

/// The state of the firmware.
pub(crate) struct Firmware {
    link: Link,
    /// CQE version, 0 or 1.
    cqe_version: u8,
    lifecycle: Lifecycle,
    /// Guest pages that the driver gave to the device.
    pages: Vec<u64>,
    resources: Resources,
    /// QP contexts as the driver wrote them, for QUERY_QP.
    qps: BTreeMap<u32, qps::QpEntry>,
    cqs: BTreeMap<u32, queues::CqEntry>,
    eqs: BTreeMap<u32, queues::EqEntry>,
    srqs: BTreeMap<u32, srqs::SrqEntry>,
    keys: BTreeMap<u32, [u8; 64]>,
    /// The EQ of command completion events.
    command_eq: Option<u32>,
    port: port::State,
    nic: nic::Nic,
    steering: Steering,
}

impl Firmware {
    /// The user index of a context. In CQE version 0 the field is reserved, and the result is
    /// [`NO_USER_INDEX`].
    fn user_index(&self, user_index: u32) -> Result<u32> {
        match (self.cqe_version, user_index) {
            (0, 0) => Ok(NO_USER_INDEX),
            (0, _) => Err(Status::BadParameter),
            _ => Ok(user_index),
        }
    }

    pub(crate) fn new(link: Link) -> Self {
        Self::of_version(link, 1)
    }

    /// Firmware of a device with a CQE version, 0 or 1.
    pub(crate) fn of_version(link: Link, cqe_version: u8) -> Self {
        Self {
            link,
            cqe_version,
            lifecycle: Lifecycle::default(),
            pages: Vec::new(),
            resources: Resources::default(),
            qps: BTreeMap::new(),
            cqs: BTreeMap::new(),
            eqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            keys: BTreeMap::new(),
            command_eq: None,
            port: port::State::default(),
            nic: nic::Nic::default(),
            steering: Steering::default(),
        }
    }

    /// The EQ of command completion events.
    pub(crate) fn command_eq(&self) -> Option<u32> {
        self.command_eq
    }

    #[cfg(test)]
    pub(crate) fn send_queue(&self) -> Option<u32> {
        self.nic.first_sq()
    }

    /// The number of the driver's objects of each kind.
    pub(crate) fn objects(&self) -> String {
        format!(
            "eqs {} cqs {} qps {} srqs {} keys {} {} pages {}",
            self.eqs.len(),
            self.cqs.len(),
            self.qps.len(),
            self.srqs.len(),
            self.keys.len(),
            self.resources.counts(),
            self.pages.len(),
        )
    }

    /// Whether a send queue belongs to this UAR page.
    pub(crate) fn may_ring(&self, qp: u32, uar: u32) -> bool {
        self.qps.get(&qp).is_some_and(|known| known.uar == uar) || self.nic.may_ring(qp, uar)
    }

    /// Whether a CQ belongs to this UAR page.
    pub(crate) fn may_arm(&self, cq: u32, uar: u32) -> bool {
        self.cqs.get(&cq).is_some_and(|known| known.uar == uar)
    }

    /// Whether an EQ belongs to this UAR page.
    pub(crate) fn may_serve(&self, eq: u32, uar: u32) -> bool {
        self.eqs.get(&eq).is_some_and(|known| known.uar == uar)
    }

    /// The receive queues that a received frame is steered to.
    pub(crate) fn steer(&self, engine: &Engine, frame: &[u8]) -> Vec<u32> {
        self.steering.find(&self.nic, engine, None, frame)
    }

    /// The receive queues of this port that a frame of its own send queue is looped back to.
    pub(crate) fn steer_back(&self, engine: &Engine, sq: u32, frame: &[u8]) -> Vec<u32> {
        let local =
            frame.first_chunk().is_some_and(|to: &[u8; 6]| to[0] & 1 != 0 || *to == engine.port().mac);
        match self.nic.domain_of(sq).filter(|_| local) {
            Some(domain) => self.steering.find(&self.nic, engine, Some(domain), frame),
            None => Vec::new(),
        }
    }

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

            ALLOC_PD | ALLOC_UAR | ALLOC_XRCD | ALLOC_TRANSPORT_DOMAIN => self.allocate(code, reply),
            DEALLOC_PD | DEALLOC_UAR | DEALLOC_XRCD | DEALLOC_TRANSPORT_DOMAIN => {
                self.deallocate(engine, code, request.object()?)
            }
            ALLOC_Q_COUNTER => self.alloc_counters(engine, reply),
            DEALLOC_Q_COUNTER => self.dealloc_counters(request),
            QUERY_Q_COUNTER => self.query_counters(engine, request, reply),
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
            | SQD_RTS_QP | QP_2ERR | QP_2RST => self.move_qp(engine, request, reply),
            ATTACH_TO_MCG | DETACH_FROM_MCG => self.multicast(engine, request),

            QUERY_HCA_VPORT_CONTEXT => self.query_hca_vport_context(engine, reply),
            MODIFY_HCA_VPORT_CONTEXT => self.modify_hca_vport_context(request),
            QUERY_HCA_VPORT_GID => self.query_hca_vport_gid(engine, request, reply),
            QUERY_HCA_VPORT_PKEY => self.query_hca_vport_pkey(engine, request, reply),
            QUERY_VPORT_STATE => self.query_vport_state(engine, reply),
            MODIFY_VPORT_STATE => Ok(()),
            _ if is_for_ethernet(code) => self.dispatch_ethernet(engine, request, reply),
            _ => Err(Status::BadOpcode),
        }
    }

    fn dispatch_ethernet(
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

/// Commands that are unknown to a device with an InfiniBand port.
fn is_for_ethernet(code: u16) -> bool {
    use opcode::*;
    matches!(code, QUERY_NIC_VPORT_CONTEXT..=SET_ROCE_ADDRESS | SET_L2_TABLE_ENTRY..=DELETE_L2_TABLE_ENTRY)
        || matches!(code, CREATE_TIR..=QUERY_RQ | CREATE_TIS..=MODIFY_FLOW_TABLE)
}
