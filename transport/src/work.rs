//! Work requests, which a device has parsed from its own formats.

use crate::packet::{ExtendedAtomicMasks, Flush};

/// The operation of a send WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the InfiniBand specification")]
pub enum Action<L> {
    /// An operation that the device executes, without packets of a QP.
    Local(L),
    Send {
        immediate: bool,
        invalidate: bool,
    },
    Write {
        immediate: bool,
    },
    Read,
    /// A fetch-and-add (`add`) or compare-and-swap.
    Atomic {
        add: bool,
        masks: Option<ExtendedAtomicMasks>,
    },
    /// A FLUSH of the remote range, whose length is [`Work::length`]. It has no segments.
    Flush(Flush),
    /// An ATOMIC WRITE of eight bytes.
    AtomicWrite,
}

/// The earlier WQEs that a WQE waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// None.
    None,
    /// READs and atomics.
    Responses,
    /// All.
    Everything,
}

/// A segment of the data to send, or of the destination of a response.
#[derive(Clone, Copy, Debug)]
pub enum Segment {
    /// A range of [`Work::bytes`].
    Inline {
        /// Offset of its first byte.
        at: usize,
        /// Length in bytes.
        length: u32,
    },
    /// A range of a memory key.
    Memory(Sge),
}

impl Segment {
    /// Length in bytes.
    pub fn length(&self) -> u32 {
        match self {
            Self::Inline { length, .. } => *length,
            Self::Memory(sge) => sge.length,
        }
    }
}

/// A scatter-gather element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Length in bytes.
    pub length: u32,
    /// The L_Key.
    pub key: u32,
    /// Virtual address.
    pub address: u64,
}

/// The address vector of a datagram.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddressVector {
    /// The Q_Key. One with its top bit set selects the QP's own Q_Key.
    pub qkey: u32,
    /// The receiver's QPN.
    pub qp: u32,
    /// Service level.
    pub service_level: u8,
    /// The receiver's LID on InfiniBand; the UDP source port on Ethernet.
    pub lid: u16,
    /// The receiver's MAC on Ethernet.
    pub mac: [u8; 6],
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Whether packets carry a GRH.
    pub global: bool,
    /// Index of the sender's GID.
    pub gid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The receiver's or the group's GID.
    pub gid: [u8; 16],
}

/// A parsed send WQE. Each QP has one and reuses it. `L` is the type of local operations.
#[derive(Clone, Debug)]
pub struct Work<L> {
    /// The operation.
    pub action: Action<L>,
    /// Whether a CQE is posted if it succeeds.
    pub signaled: bool,
    /// Solicited event.
    pub solicited: bool,
    /// The fence.
    pub fence: Fence,
    /// Immediate data or the R_Key to invalidate, in the byte order of guest memory.
    pub immediate: u32,
    /// Remote address and R_Key.
    pub remote: (u64, u32),
    /// Swap or add operand.
    pub swap_or_add: u64,
    /// Compare operand.
    pub compare: u64,
    /// The remote SRQ of XRC.
    pub srq: u32,
    /// The destination of a datagram.
    pub address: AddressVector,
    /// The segments.
    pub segments: Vec<Segment>,
    /// Total length of the segments in bytes, or of the range of a FLUSH.
    pub length: u64,
    /// Bytes of the WQE. Inline segments are ranges of them.
    pub bytes: Vec<u8>,
}

impl<L: Default> Default for Work<L> {
    fn default() -> Self {
        Self {
            action: Action::Local(L::default()),
            signaled: false,
            solicited: false,
            fence: Fence::None,
            immediate: 0,
            remote: (0, 0),
            swap_or_add: 0,
            compare: 0,
            srq: 0,
            address: AddressVector::default(),
            segments: Vec::new(),
            length: 0,
            bytes: Vec::new(),
        }
    }
}

/// A receive WQE in use by a message. `W` is the device's name of it.
#[derive(Clone, Debug)]
pub struct Receive<W> {
    /// The WQE.
    pub wqe: W,
    /// The SRQ that it was taken from.
    pub srq: Option<u32>,
    /// The SGEs.
    pub sges: Vec<Sge>,
    /// Bytes placed so far.
    pub placed: u32,
}

impl<W> Receive<W> {
    /// Total length of the SGEs in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// Result of fetching a receive WQE.
#[derive(Debug)]
pub enum RecvFetch<W> {
    /// A receive WQE.
    Receive(Receive<W>),
    /// The queue is empty, or there is none.
    Empty,
    /// The queue's memory is unreadable.
    Fault,
}
