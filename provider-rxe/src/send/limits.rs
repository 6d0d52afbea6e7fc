//! Limits of a send queue.

use bareverbs_uapi::rxe::Sge;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::write::types::{DeviceCapFlags, WrOpcode};

use super::slot::DATA;
use crate::rd_atomic::bits;

/// What a request of a send queue may be.
#[derive(Clone, Copy, Debug)]
pub struct SendLimits {
    /// SGEs.
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// One bit per opcode of the kernel's `ib_wr_opcode` that connections have.
    pub(super) operations: u32,
    /// Bytes of the largest datagram; none where the queue pair sends no datagrams.
    pub(super) max_datagram: Option<u32>,
}

/// Bytes of the largest packet that any port carries.
const MAX_MTU: u32 = 4096;

impl SendLimits {
    /// The limits of a queue pair of type `qp_type`, if this provider makes such.
    #[must_use]
    pub fn new(qp_type: QpType, max_sge: u32, max_inline: u32) -> Option<Self> {
        // The kernel allows unreliable connections a send with invalidate, and then finds no packet
        // for it (`next_opcode_uc` in its `rxe_req.c`).
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

    /// The same with datagrams of at most `mtu` bytes, the port's active MTU. Of a longer one the
    /// kernel would send nothing, and report success (`rxe_requester` in its `rxe_req.c`).
    #[must_use]
    pub fn with_mtu(mut self, mtu: u32) -> Self {
        self.max_datagram = self.max_datagram.map(|_| mtu);
        self
    }

    /// The same with what the device says that its reliable connections can do beyond that: flushes
    /// and atomic writes.
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

    /// Bytes of the largest request. Even one without SGEs has room for the value of an atomic
    /// write.
    pub(super) fn element(&self) -> usize {
        let data =
            (self.max_sge as usize).saturating_mul(size_of::<Sge>()).max(self.max_inline as usize).max(8);
        DATA.saturating_add(data)
    }
}
