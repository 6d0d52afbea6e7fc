//! Functions that libmlx5 implements by commands of the firmware: the source port and the LAG port of a
//! QP, and reserved QPNs. They need a context with DEVX.

use bareverbs::qp::QpState;
use bareverbs::raw::RawContext;
use bareverbs::raw::uapi::uverbs::types::QpType;

use super::hca_caps::{
    GENERAL_OBJ_TYPES, HCA_CAP_2, HcaCaps, LAG_TX_PORT_AFFINITY, LOG_RESERVED_QPN_GRANULARITY, NUM_LAG_PORTS,
    RTS2RTS_LAG_TX_PORT_AFFINITY, RTS2RTS_QP_UDP_SPORT, group,
};
use super::{context, devx, export};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, required};
use crate::firmware::{RESPONSE, ReservedQpns, command, refusal};
use crate::object::lock;
use crate::qp::QpObject;

/// Opcodes (`MLX5_CMD_OP_*`).
mod opcode {
    pub(super) const RTS2RTS_QP: u16 = 0x505;
    pub(super) const QUERY_QP: u16 = 0x50b;
    pub(super) const QUERY_LAG: u16 = 0x842;
    pub(super) const MODIFY_TIS: u16 = 0x913;
    pub(super) const QUERY_TIS: u16 = 0x915;
}

/// The context of a QP in its commands and in the response of its query.
const QPC: usize = 0x18;
/// Bytes of the commands that modify a QP, and of the response of its query.
const QP_COMMAND: usize = 0x110;
/// The context of a TIS in its commands.
const TISC: usize = 0x20;
const TIS_COMMAND: usize = TISC + 0xa0;

/// A QP, and its device file.
struct Target<'a> {
    raw: RawContext,
    qp: &'a QpObject,
}

impl<'a> Target<'a> {
    fn new(qp: Option<&'a QpObject>) -> Result<Self, Failure> {
        let qp = required(qp)?;
        Ok(Self { raw: context(ContextArgument::of(qp.kernel_object().0))?.context.raw(), qp })
    }

    fn caps(&self) -> HcaCaps {
        HcaCaps::query(&self.raw, group::GENERAL)
    }

    fn modify(&self, command: &[u8]) -> Result<(), Failure> {
        let mut response = [0; RESPONSE];
        devx::modify_object(&self.raw, self.qp.kernel_object().1, command, &mut response)
            .map_err(|failure| refusal(failure, &response))
    }

    fn query<const N: usize>(&self, opcode: u16, number: u32) -> Result<[u8; N], Failure> {
        let mut response = [0; N];
        let request: [u8; 16] = command(opcode, number);
        devx::query_object(&self.raw, self.qp.kernel_object().1, &request, &mut response)
            .map_err(|failure| refusal(failure, &response))?;
        Ok(response)
    }

    /// The number of the TIS behind a raw packet QP.
    fn tis(&self) -> Result<u32, Failure> {
        let send = self.qp.inner.queues()?.with_core(|core| core.layout()).send;
        send.and_then(|send| send.raw_packet).map(|numbers| numbers.tisn).ok_or(Failure::UNSUPPORTED)
    }

    /// The LAG port that is set, and the one that is in use.
    fn lag_port(&self) -> Result<(u8, u8), Failure> {
        /// Offsets of the state and of the ports in use, one for each LAG port.
        const STATE: usize = 0xb;
        const PORTS: [usize; 2] = [0xf, 0xd];
        let caps = self.caps();
        let (qp_type, ..) = self.qp.numbers();
        let is_known =
            matches!(qp_type, QpType::RC | QpType::UC | QpType::UD | QpType::RAW_PACKET | QpType::XRC_INI);
        if caps.get(NUM_LAG_PORTS) <= 1 || !is_known {
            return Err(Failure::UNSUPPORTED);
        }
        let mut lag = [0; 0x10];
        let request: [u8; 16] = command(opcode::QUERY_LAG, 0);
        devx::execute_general(&self.raw, &request, &mut lag).map_err(|failure| refusal(failure, &lag))?;
        if lag[STATE] & 7 == 0 && !caps.has(LAG_TX_PORT_AFFINITY) {
            return Err(Failure::UNSUPPORTED);
        }
        let configured = if qp_type == QpType::RAW_PACKET {
            self.query::<{ 0x10 + 0xa0 }>(opcode::QUERY_TIS, self.tis()?)?[0x10]
        } else {
            self.query::<QP_COMMAND>(opcode::QUERY_QP, self.qp.numbers().2)?[QPC]
        } & 0xf;
        let active = PORTS.get(usize::from(configured).wrapping_sub(1)).ok_or(Failure::UNSUPPORTED)?;
        Ok((configured, lag[*active] & 0xf))
    }
}

export! {
    fn mlx5dv_modify_qp_udp_sport(qp: Option<&QpObject>, port: u16) -> OrErrno {
        /// The second mask of parameters, and the bit of the source port in it.
        const MASK: usize = 0x108;
        const UDP_SPORT: u64 = 1 << 2;
        /// In the primary path.
        const PORT: usize = QPC + 0x18 + 0x22;
        let target = Target::new(qp)?;
        let (qp_type, state, number) = target.qp.numbers();
        let is_possible = matches!(qp_type, QpType::RC | QpType::UC) && state == QpState::RTS;
        if !is_possible || !target.caps().has(RTS2RTS_QP_UDP_SPORT) {
            return Err(Failure::UNSUPPORTED);
        }
        let mut input: [u8; QP_COMMAND] = command(opcode::RTS2RTS_QP, number);
        input[MASK..][..8].copy_from_slice(&UDP_SPORT.to_be_bytes());
        input[PORT..][..2].copy_from_slice(&port.to_be_bytes());
        target.modify(&input)
    }

    fn mlx5dv_query_qp_lag_port(
        qp: Option<&QpObject>,
        port: Option<&mut u8>,
        active: Option<&mut u8>,
    ) -> OrErrno {
        let target = Target::new(qp)?;
        let (port, active) = (required(port)?, required(active)?);
        (*port, *active) = target.lag_port()?;
        Ok(())
    }

    fn mlx5dv_modify_qp_lag_port(qp: Option<&QpObject>, port: u8) -> OrErrno {
        /// The mask of parameters, and the bit of the LAG port in it.
        const MASK: usize = 0x10;
        const LAG_PORT: u32 = 1 << 15;
        /// That of a TIS.
        const TIS_MASK: usize = 0x14;
        const TIS_LAG_PORT: u32 = 1 << 2;
        let target = Target::new(qp)?;
        if port > 0xf {
            return Err(Failure::INVALID);
        }
        // Without LAG, the firmware might ignore the port without an error.
        target.lag_port()?;
        let (qp_type, state, number) = target.qp.numbers();
        if qp_type == QpType::RAW_PACKET {
            let mut input: [u8; TIS_COMMAND] = command(opcode::MODIFY_TIS, target.tis()?);
            input[TIS_MASK..][..4].copy_from_slice(&TIS_LAG_PORT.to_be_bytes());
            input[TISC] = port;
            return target.modify(&input);
        }
        let is_possible = matches!(qp_type, QpType::RC | QpType::UC | QpType::UD) && state == QpState::RTS;
        if !is_possible || !target.caps().has(RTS2RTS_LAG_TX_PORT_AFFINITY) {
            return Err(Failure::UNSUPPORTED);
        }
        let mut input: [u8; QP_COMMAND] = command(opcode::RTS2RTS_QP, number);
        input[MASK..][..4].copy_from_slice(&LAG_PORT.to_be_bytes());
        input[QPC] = port;
        target.modify(&input)
    }
}

export! {
    fn mlx5dv_reserved_qpn_alloc(argument: ContextArgument<'_>, number: Option<&mut u32>) -> OrErrno {
        /// The bit of reserved QPNs in the high word.
        const RESERVED_QPNS: u32 = 1 << (0x2c - 32);
        let (object, number) = (context(argument)?, required(number)?);
        let raw = object.context.raw();
        let mut blocks = lock(&object.reserved_qpns);
        if let Some(next) = blocks.last_mut().and_then(ReservedQpns::take) {
            *number = next;
            return Ok(());
        }
        let caps = HcaCaps::query(&raw, group::GENERAL);
        if caps.get(GENERAL_OBJ_TYPES[0]) & RESERVED_QPNS == 0 {
            return Err(Failure::UNSUPPORTED);
        }
        let log_count = if caps.has(HCA_CAP_2) {
            HcaCaps::query(&raw, group::GENERAL_2).get(LOG_RESERVED_QPN_GRANULARITY)
        } else {
            0
        };
        let mut block = ReservedQpns::new(&raw, log_count)?;
        *number = required(block.take())?;
        blocks.push(block);
        Ok(())
    }

    /// The firmware's object is destroyed when all of its numbers are free again.
    fn mlx5dv_reserved_qpn_dealloc(argument: ContextArgument<'_>, number: u32) -> OrErrno {
        let mut blocks = lock(&context(argument)?.reserved_qpns);
        let slot = required(blocks.iter_mut().find_map(|block| block.slot(number)).filter(|used| **used))?;
        *slot = false;
        blocks.retain(|block| !block.is_done());
        Ok(())
    }
}
