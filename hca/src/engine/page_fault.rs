//! Page faults, and the events that report them (`struct mlx5_eqe_page_fault` in
//! `include/linux/mlx5/device.h`).

use super::layout::page_fault;
use bareverbs_transport::Table;

/// Fault types, as in the event and in the driver's answer.
pub(crate) mod kind {
    /// `MLX5_WQE_PF_TYPE_*`: the WQE whose SGE lacks a page.
    pub(crate) const SHARED_RECEIVE: u8 = 0;
    pub(crate) const SEND_OR_WRITE: u8 = 1;
    pub(crate) const RECEIVE: u8 = 2;
    pub(crate) const READ_OR_ATOMIC: u8 = 3;
    /// `MLX5_PFAULT_*`: the fault is in memory behind an R_Key, and whether the access writes.
    pub(crate) const REMOTE: u8 = 4;
    pub(crate) const WRITTEN: u8 = 2;
}

/// The faulting access.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PageFaultInfo {
    /// An SGE of a WQE: fault type, number of the queue, WQE index.
    List { kind: u8, queue: u32, index: u16 },
    /// Memory behind an R_Key.
    Remote { key: u32, address: u64, length: u32, written: bool },
}

/// A fault that was reported to the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) token: u32,
    pub(crate) kind: u8,
    /// The number in the driver's answer: that of the work queue, or the token for an R_Key fault.
    pub(crate) queue: u32,
    pub(crate) qp: u32,
}

/// Unanswered faults by token.
pub(crate) type Faults = Table<Fault>;

impl PageFaultInfo {
    /// The fault under its token.
    pub(crate) fn fault(self, token: u32, qp: u32) -> Fault {
        match self {
            Self::List { kind, queue, .. } => Fault { token, kind, queue, qp },
            Self::Remote { written, .. } => Fault { token, kind: remote_kind(written), queue: token, qp },
        }
    }

    /// The event's sub-type.
    pub(crate) fn sub_kind(self) -> u8 {
        const IN_LIST: u8 = 0;
        const REMOTE: u8 = 1;
        if let Self::List { .. } = self { IN_LIST } else { REMOTE }
    }

    /// The event's data. `committed` is the number of bytes of the message that are done, and
    /// `packet` the length of the faulting packet.
    pub(crate) fn event(self, token: u32, committed: u32, packet: usize) -> [u8; page_fault::SIZE] {
        const COMMITTED: usize = 0;
        let mut data = [0; page_fault::SIZE];
        let mut put = |at: usize, bytes: &[u8]| data[at..at + bytes.len()].copy_from_slice(bytes);
        let packet = u16::try_from(packet).unwrap_or(u16::MAX).to_be_bytes();
        put(COMMITTED, &committed.to_be_bytes());
        match self {
            Self::List { kind, queue, index } => {
                put(page_fault::WQE_INDEX, &index.to_be_bytes());
                put(page_fault::WQE_PACKET_LENGTH, &packet);
                put(page_fault::TOKEN, &token.to_be_bytes());
                put(page_fault::PFTYPE_WQ, &(u32::from(kind) << 24 | queue).to_be_bytes());
            }
            Self::Remote { key, address, length, written } => {
                let kind = remote_kind(written);
                put(page_fault::R_KEY, &key.to_be_bytes());
                put(page_fault::RDMA_PACKET_LENGTH, &packet);
                put(page_fault::RDMA_OP_LEN, &length.to_be_bytes());
                put(page_fault::RDMA_VA, &address.to_be_bytes());
                put(page_fault::PFTYPE_TOKEN, &(u32::from(kind) << 24 | token).to_be_bytes());
            }
        }
        data
    }
}

/// The fault type of an access behind an R_Key.
fn remote_kind(written: bool) -> u8 {
    if written { kind::REMOTE | kind::WRITTEN } else { kind::REMOTE }
}
