//! Limits of a send queue.

use bareverbs_uapi::rxe::Sge;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::write::types::{DeviceCapFlags, WrOpcode};

use super::slot::DATA;
use crate::rd_atomic::bits;

/// The limits on requests of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendLimits {
    /// The maximum number of SGEs.
    pub max_sge: u32,
    /// The maximum inline data, in bytes.
    pub max_inline: u32,
    /// The operations of RC and UC: one bit per opcode of the kernel's `ib_wr_opcode`.
    pub(super) operations: u32,
    /// The largest datagram in bytes; `None` unless the QP is UD.
    pub(super) max_datagram: Option<u32>,
}

/// The largest MTU of any port, in bytes.
const MAX_MTU: u32 = 4096;

impl SendLimits {
    /// The limits of a QP of type `qp_type`; `None` if this provider does not support the type.
    #[must_use]
    pub fn new(qp_type: QpType, max_sge: u32, max_inline: u32) -> Option<Self> {
        // The kernel accepts SEND_WITH_INV on UC, but has no packet opcode for it (`next_opcode_uc`
        // in `rxe_req.c`).
        const UC: u32 = bits(&[
            WrOpcode::SEND,
            WrOpcode::SEND_WITH_IMM,
            WrOpcode::RDMA_WRITE,
            WrOpcode::RDMA_WRITE_WITH_IMM,
            WrOpcode::BIND_MW,
        ]);
        const RC: u32 = UC
            | bits(&[
                WrOpcode::SEND_WITH_INV,
                WrOpcode::RDMA_READ,
                WrOpcode::ATOMIC_CMP_AND_SWP,
                WrOpcode::ATOMIC_FETCH_AND_ADD,
                WrOpcode::LOCAL_INV,
            ]);
        let (operations, max_datagram) = match qp_type {
            QpType::RC => (RC, None),
            QpType::UC => (UC, None),
            QpType::UD => (0, Some(MAX_MTU)),
            _ => return None,
        };
        Some(Self { max_sge, max_inline, operations, max_datagram })
    }

    /// Limits datagrams to `mtu` bytes, the port's active MTU. The kernel would not send a longer
    /// one and would report success (`rxe_requester` in `rxe_req.c`).
    #[must_use]
    pub fn with_mtu(mut self, mtu: u32) -> Self {
        self.max_datagram = self.max_datagram.map(|_| mtu);
        self
    }

    /// Adds the optional RC operations of the device: FLUSH and ATOMIC_WRITE.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: DeviceCapFlags) -> Self {
        if self.operations & 1 << WrOpcode::RDMA_READ.0 == 0 {
            return self;
        }
        if capabilities.intersects(DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::FLUSH_PERSISTENT) {
            self.operations |= 1 << WrOpcode::FLUSH.0;
        }
        if capabilities.contains(DeviceCapFlags::ATOMIC_WRITE) {
            self.operations |= 1 << WrOpcode::ATOMIC_WRITE.0;
        }
        self
    }

    /// The size of the largest request in bytes. A request without SGEs still has room for the 8
    /// bytes of an ATOMIC_WRITE.
    pub(super) fn element(&self) -> usize {
        let data =
            (self.max_sge as usize).saturating_mul(size_of::<Sge>()).max(self.max_inline as usize).max(8);
        DATA.saturating_add(data)
    }
}
