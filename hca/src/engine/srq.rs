//! Shared receive queues, and receive work requests in general.

use super::recorder::{Queue, Recording};
use super::ring::Ring;
use crate::memory::{DmaFault, DmaMap};

/// One entry of a scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sge {
    pub(crate) length: u32,
    pub(crate) key: u32,
    pub(crate) address: u64,
}

/// A receive work request that a message is being put into.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) wqe_counter: u16,
    /// The shared receive queue it came from.
    pub(crate) srq: Option<u32>,
    pub(crate) sges: Vec<Sge>,
    /// Bytes placed so far.
    pub(crate) placed: u32,
}

/// Reads a scatter list out of a receive work request.
pub(crate) fn scatter_list(bytes: &[u8]) -> Vec<Sge> {
    bytes
        .chunks_exact(16)
        .map(|entry| Sge {
            length: u32::from_be_bytes([entry[0], entry[1], entry[2], entry[3]]),
            key: u32::from_be_bytes([entry[4], entry[5], entry[6], entry[7]]),
            address: u64::from_be_bytes(entry[8..16].try_into().unwrap_or_default()),
        })
        .take_while(|sge| sge.length != 0 || sge.key != super::mkey::TERMINATE_SCATTER_LIST_MKEY)
        .filter(|sge| sge.length != 0)
        .collect()
}

/// What a shared receive queue is made of.
#[derive(Clone, Debug)]
pub struct SrqSetup {
    /// The work requests' buffer.
    pub ring: Ring,
    /// The number of work requests, as a power of two.
    pub log_size: u8,
    /// Bytes of one, as a power of two.
    pub log_stride: u8,
    /// Guest address of the doorbell record.
    pub doorbell: u64,
    /// Protection domain of the scatter lists.
    pub pd: u32,
    /// The user's index in completions.
    pub user_index: u32,
    /// Where completions of XRC go; plain shared queues use their QP's.
    pub cq: Option<u32>,
    /// The XRC domain.
    pub xrcd: Option<u32>,
    /// Whether the work requests are chained rather than cyclic.
    pub linked: bool,
}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) number: u32,
    pub(crate) setup: SrqSetup,
    /// The next work request to use.
    head: u16,
    /// How many were used.
    pub(crate) consumed: u16,
    /// Below how many an event is wanted; 0 for never.
    pub(crate) limit: u16,
    pub(crate) failed: bool,
}

/// What came of asking for a receive work request.
pub(crate) enum RecvFetch {
    Receive(Receive),
    Empty,
    /// The queue's memory could not be read.
    Fault,
}

impl Srq {
    pub(crate) fn new(number: u32, setup: SrqSetup, limit: u16) -> Self {
        Self { number, setup, head: 0, consumed: 0, limit, failed: false }
    }

    fn posted(&self, memory: &DmaMap) -> Result<u16, DmaFault> {
        Ok(memory.read_be32(self.setup.doorbell)? as u16)
    }

    /// Takes the next work request, and whether the limit was just crossed.
    pub(crate) fn take(&mut self, memory: &DmaMap, recording: &mut Recording) -> (RecvFetch, bool) {
        match self.next(memory, recording) {
            Ok(Some((receive, left))) => {
                let crossed = self.limit != 0 && left < self.limit;
                if crossed {
                    self.limit = 0;
                }
                (RecvFetch::Receive(receive), crossed)
            }
            Ok(None) => (RecvFetch::Empty, false),
            Err(DmaFault { .. }) => (RecvFetch::Fault, false),
        }
    }

    fn next(
        &mut self,
        memory: &DmaMap,
        recording: &mut Recording,
    ) -> Result<Option<(Receive, u16)>, DmaFault> {
        let posted = self.posted(memory)?;
        if posted == self.consumed {
            return Ok(None);
        }
        let mask = ((1u32 << self.setup.log_size) - 1) as u16;
        let index = self.head & mask;
        let stride = 1usize << self.setup.log_stride;
        let mut wqe = vec![0; stride];
        self.setup.ring.read(memory, u64::from(index) << self.setup.log_stride, &mut wqe)?;
        recording.record(Queue::Shared(self.number), index, &wqe);
        let sges = if self.setup.linked {
            self.head = u16::from_be_bytes([wqe[2], wqe[3]]);
            scatter_list(&wqe[16..])
        } else {
            self.head = self.head.wrapping_add(1);
            scatter_list(&wqe)
        };
        self.consumed = self.consumed.wrapping_add(1);
        let receive = Receive { wqe_counter: index, srq: Some(self.number), sges, placed: 0 };
        Ok(Some((receive, posted.wrapping_sub(self.consumed))))
    }
}
