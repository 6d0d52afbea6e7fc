//! The operations of the data path, and what they do to memory.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::rxe::{AtomicWr, FlushWr, RdmaWr, SendWqe, Sge};
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::write::types::{PlacementType, WrOpcode};
use zerocopy::FromZeros;

use crate::generate::pair::{LENGTH, RECEIVED, Region};

/// Immediate data of the operations, in network byte order.
pub(crate) const IMMEDIATE: u32 = u32::from_be_bytes([0xda, 0x7a, 0, 1]).to_be();

/// The bytes of both regions.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) local: Vec<u8>,
    pub(crate) remote: Vec<u8>,
}

/// Bytes of the sender's region, and of the receiver's region, before a request.
pub(crate) const LOCAL_BYTE: u8 = 0x5a;
pub(crate) const REMOTE_BYTE: u8 = 0xc3;

/// The addend of a fetch and add, and the new value of the other atomics.
const ADDEND: u64 = 5;
const VALUE: u64 = 0x1122_3344_5566_7788;

/// An operation of the data path.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    pub(crate) opcode: WrOpcode,
    /// The transports that have it.
    pub(crate) on: &'static [QpType],
    /// The right that the peer's QP and its key need.
    pub(crate) right: AccessFlags,
    /// The first kernel series that has it on rxe.
    pub(crate) since: Since,
    /// Whether it consumes a receive.
    pub(crate) receives: bool,
    /// Whether its response is stored in the sender's region.
    pub(crate) responds: bool,
    /// Its length in bytes.
    pub(crate) length: u32,
    /// What it does to memory, if it has this length.
    pub(crate) effect: fn(&mut Memory, usize),
}

const RC: &[QpType] = &[QpType::RC];
const RC_UC: &[QpType] = &[QpType::RC, QpType::UC];

const SEND: Operation = Operation {
    name: "SEND",
    opcode: WrOpcode::SEND,
    on: RC_UC,
    right: AccessFlags::empty(),
    since: Since::V6_1,
    receives: true,
    responds: false,
    length: LENGTH,
    effect: |memory, len| memory.remote[RECEIVED..RECEIVED + len].copy_from_slice(&memory.local[..len]),
};

const WRITE: Operation = Operation {
    name: "RDMA_WRITE",
    opcode: WrOpcode::RDMA_WRITE,
    right: AccessFlags::REMOTE_WRITE,
    receives: false,
    effect: |memory, len| memory.remote[..len].copy_from_slice(&memory.local[..len]),
    ..SEND
};

const READ: Operation = Operation {
    name: "RDMA_READ",
    opcode: WrOpcode::RDMA_READ,
    on: RC,
    right: AccessFlags::REMOTE_READ,
    receives: false,
    responds: true,
    effect: |memory, len| memory.local[..len].copy_from_slice(&memory.remote[..len]),
    ..SEND
};

const ATOMIC: Operation = Operation {
    name: "ATOMIC_FETCH_AND_ADD",
    opcode: WrOpcode::ATOMIC_FETCH_AND_ADD,
    right: AccessFlags::REMOTE_ATOMIC,
    length: 8,
    effect: |memory, _| {
        atomic(memory, |value| value.wrapping_add(ADDEND));
    },
    ..READ
};

/// The operations with a peer.
pub(crate) static OPERATIONS: [Operation; 9] = [
    SEND,
    Operation { name: "SEND_WITH_IMM", opcode: WrOpcode::SEND_WITH_IMM, ..SEND },
    WRITE,
    Operation { name: "RDMA_WRITE_WITH_IMM", opcode: WrOpcode::RDMA_WRITE_WITH_IMM, receives: true, ..WRITE },
    READ,
    ATOMIC,
    Operation {
        name: "ATOMIC_CMP_AND_SWP",
        opcode: WrOpcode::ATOMIC_CMP_AND_SWP,
        effect: |memory, _| {
            atomic(memory, |_| VALUE);
        },
        ..ATOMIC
    },
    Operation {
        name: "ATOMIC_WRITE",
        opcode: WrOpcode::ATOMIC_WRITE,
        on: RC,
        since: Since::V6_12,
        length: 8,
        effect: |memory, _| memory.remote[..8].copy_from_slice(&VALUE.to_ne_bytes()),
        ..WRITE
    },
    Operation {
        name: "FLUSH",
        opcode: WrOpcode::FLUSH,
        on: RC,
        right: AccessFlags::FLUSH_GLOBAL,
        since: Since::V6_12,
        effect: |_, _| {},
        ..WRITE
    },
];

/// Changes the first 8 bytes of the receiver's region, and stores their old value in the sender's.
fn atomic(memory: &mut Memory, change: fn(u64) -> u64) {
    let old = memory.remote[..8].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    memory.local[..8].copy_from_slice(&old.to_ne_bytes());
    memory.remote[..8].copy_from_slice(&change(old).to_ne_bytes());
}

impl Operation {
    /// Whether it accesses the peer's memory by a key.
    pub(crate) fn has_key(&self) -> bool {
        !self.right.is_empty()
    }

    pub(crate) fn is_atomic(&self) -> bool {
        [WrOpcode::ATOMIC_FETCH_AND_ADD, WrOpcode::ATOMIC_CMP_AND_SWP].contains(&self.opcode)
    }

    /// Whether its data is that of SGEs.
    pub(crate) fn has_sges(&self) -> bool {
        ![WrOpcode::ATOMIC_WRITE, WrOpcode::FLUSH].contains(&self.opcode)
    }

    /// Sets the remote address and the R_Key of a request.
    pub(crate) fn aim(&self, wqe: &mut SendWqe, remote_addr: u64, rkey: u32) {
        wqe.iova = remote_addr;
        if self.is_atomic() {
            let form = AtomicWr { remote_addr, rkey, ..wqe.wr.get() };
            wqe.wr.set(&form);
        } else if self.opcode == WrOpcode::FLUSH {
            let form = FlushWr { remote_addr, rkey, ..wqe.wr.get() };
            wqe.wr.set(&form);
        } else {
            wqe.wr.set(&RdmaWr { remote_addr, rkey, reserved: 0 });
        }
    }

    /// Fills a request of this length for the first bytes of both regions.
    pub(crate) fn fill(&self, wqe: &mut SendWqe, sge: &mut Sge, length: u32, remote: &Region) {
        wqe.wr.opcode = self.opcode;
        if [WrOpcode::SEND_WITH_IMM, WrOpcode::RDMA_WRITE_WITH_IMM].contains(&self.opcode) {
            wqe.wr.ex = IMMEDIATE;
        }
        (wqe.dma.length, wqe.dma.resid, sge.length) = (length, length, length);
        match self.opcode {
            WrOpcode::ATOMIC_FETCH_AND_ADD => {
                wqe.wr.set(&AtomicWr { compare_add: ADDEND, ..AtomicWr::new_zeroed() });
            }
            WrOpcode::ATOMIC_CMP_AND_SWP => {
                let compare_add = u64::from_ne_bytes([REMOTE_BYTE; 8]);
                wqe.wr.set(&AtomicWr { compare_add, swap: VALUE, ..AtomicWr::new_zeroed() });
            }
            WrOpcode::ATOMIC_WRITE => {
                // The value is in place of the SGEs.
                (wqe.dma.num_sge, sge.addr) = (0, VALUE);
            }
            WrOpcode::FLUSH => {
                wqe.dma.num_sge = 0;
                wqe.wr.set(&FlushWr { length, placement: PlacementType::GLOBAL, ..FlushWr::new_zeroed() });
            }
            _ => {}
        }
        if self.has_key() {
            self.aim(wqe, remote.start, remote.rkey);
        }
    }
}
