//! SRQs, and the scatter lists of receive WQEs.

use bareverbs_transport::{Receive, RecvFetch, Sge};

use super::recorder::{Queue, Recording};
use super::ring::Ring;
use crate::memory::{DmaFault, DmaMap};

/// Parses the SGEs of a receive WQE.
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

/// Parameters of an SRQ.
#[derive(Clone, Debug)]
pub struct SrqSetup {
    /// The ring of WQEs.
    pub ring: Ring,
    /// Number of WQEs, log2.
    pub log_size: u8,
    /// WQE stride in bytes, log2.
    pub log_stride: u8,
    /// Guest address of the doorbell record.
    pub doorbell: u64,
    /// The PD of the SGEs.
    pub pd: u32,
    /// The user index in CQEs.
    pub user_index: u32,
    /// The CQ of an XRC SRQ. Receives of other SRQs complete on the QP's CQ.
    pub cq: Option<u32>,
    /// The XRC domain.
    pub xrcd: Option<u32>,
    /// Whether the WQEs form a linked list rather than a cyclic ring.
    pub linked: bool,
}

/// An SRQ.
pub(crate) struct Srq {
    pub(crate) number: u32,
    pub(crate) setup: SrqSetup,
    /// Index of the next WQE.
    head: u16,
    /// Number of consumed WQEs.
    pub(crate) consumed: u16,
    /// The limit below which the SRQ limit event is raised; 0 if disarmed.
    pub(crate) limit: u16,
    pub(crate) failed: bool,
}

impl Srq {
    pub(crate) fn new(number: u32, setup: SrqSetup, limit: u16) -> Self {
        Self { number, setup, head: 0, consumed: 0, limit, failed: false }
    }

    fn posted(&self, memory: &DmaMap) -> Result<u16, DmaFault> {
        Ok(memory.read_be32(self.setup.doorbell)? as u16)
    }

    /// Takes the next WQE. The second value is whether the limit event is due.
    pub(crate) fn take(&mut self, memory: &DmaMap, recording: &mut Recording) -> (RecvFetch<u16>, bool) {
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
    ) -> Result<Option<(Receive<u16>, u16)>, DmaFault> {
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
        let receive = Receive { wqe: index, srq: Some(self.number), sges, placed: 0 };
        Ok(Some((receive, posted.wrapping_sub(self.consumed))))
    }
}
