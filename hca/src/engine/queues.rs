//! Parameters and queues of QPs.

use bareverbs_transport::Queues;

use super::ring::Ring;
use super::service::Service;
use super::wqe::{SendWqe, units};

/// The receive queue of a QP.
#[derive(Clone, Debug, Default)]
pub enum ReceiveQueue {
    /// No receive queue.
    #[default]
    None,
    /// The QP's own RQ.
    Own {
        /// Number of WQEs, log2.
        log_size: u8,
        /// WQE stride in bytes, log2.
        log_stride: u8,
    },
    /// An SRQ.
    Shared(u32),
}

/// Parameters that are fixed at creation.
#[derive(Clone, Debug, Default)]
pub struct QpSetup {
    /// The service type.
    pub service: Service,
    /// The PD.
    pub pd: u32,
    /// The user index in CQEs.
    pub user_index: u32,
    /// The buffer: RQ first, then SQ.
    pub ring: Ring,
    /// Offset of the SQ in the buffer.
    pub send_offset: u64,
    /// Basic blocks in the SQ, log2; `None` without an SQ.
    pub log_send_size: Option<u8>,
    /// The receive queue.
    pub receive: ReceiveQueue,
    /// Guest address of the doorbell records: receive, then send.
    pub doorbell: u64,
    /// The CQ of sends.
    pub send_cq: u32,
    /// The CQ of receives.
    pub receive_cq: u32,
    /// The XRC domain.
    pub xrcd: Option<u32>,
    /// Whether multicast datagrams of the QP are not delivered to the QP itself.
    pub blocks_own_multicast: bool,
    /// Whether the reserved L_Key may be used.
    pub reserved_lkey: bool,
    /// Scatter to CQE of READ and atomic responses up to this many bytes: 0, 32, or 64 with CQEs of
    /// 128 bytes.
    pub inline_responses: u8,
    /// Scatter to CQE of received messages up to this many bytes, with the same values.
    pub inline_receives: u8,
}

/// The queues of a QP.
#[derive(Debug)]
pub(crate) struct QpQueues {
    pub(crate) number: u32,
    pub(crate) setup: QpSetup,
    /// Index of the next send WQE to fetch.
    pub(crate) next_wqe: u16,
    /// The driver's producer index as last read from the doorbell record.
    pub(crate) posted: u16,
    /// A WQE that was written through a BlueFlame buffer.
    bf_wqe: Option<Box<[u8]>>,
    /// The send WQE that was fetched last.
    pub(crate) fetched: SendWqe,
    /// Index of the send WQE that the QP's `Work` contains.
    pub(crate) loaded: Option<u16>,
    /// Number of consumed receive WQEs of the QP's own RQ.
    pub(crate) consumed: u16,
}

impl QpQueues {
    pub(crate) fn new(number: u32, setup: QpSetup) -> Self {
        Self {
            number,
            setup,
            next_wqe: 0,
            posted: 0,
            bf_wqe: None,
            fetched: SendWqe::default(),
            loaded: None,
            consumed: 0,
        }
    }

    /// Stores a WQE that was written through a BlueFlame buffer.
    pub(crate) fn set_bf_wqe(&mut self, wqe: Box<[u8]>) {
        self.bf_wqe = Some(wqe);
    }

    /// Takes the BlueFlame WQE if it has this index and is complete.
    pub(crate) fn take_bf_wqe(&mut self, index: u16) -> Option<Box<[u8]>> {
        let wqe = self.bf_wqe.as_ref()?;
        let control: [u8; 16] = wqe.get(..16)?.try_into().ok()?;
        let fits = u16::from_be_bytes([control[1], control[2]]) == index
            && usize::from(units(&control)) * 16 <= wqe.len();
        if fits { self.bf_wqe.take() } else { None }
    }
}

impl Queues for QpQueues {
    type SendWqe = SendWqe;

    fn number(&self) -> u32 {
        self.number
    }

    fn service(&self) -> Option<bareverbs_transport::Service> {
        self.setup.service.with_packets()
    }

    fn source_qp(&self) -> Option<u32> {
        match self.setup.service {
            Service::Ipoib { underlay_qp } => Some(underlay_qp),
            _ => None,
        }
    }

    fn has_send_queue(&self) -> bool {
        self.setup.log_send_size.is_some()
    }

    fn receive_queue(&self) -> bareverbs_transport::ReceiveQueue {
        match self.setup.receive {
            ReceiveQueue::None => bareverbs_transport::ReceiveQueue::None,
            ReceiveQueue::Own { log_size, .. } => {
                bareverbs_transport::ReceiveQueue::Own { size: 1 << log_size }
            }
            ReceiveQueue::Shared(_) => bareverbs_transport::ReceiveQueue::Shared,
        }
    }

    fn blocks_own_multicast(&self) -> bool {
        self.setup.blocks_own_multicast
    }

    fn inline_responses(&self) -> u32 {
        self.setup.inline_responses.into()
    }

    fn inline_receives(&self) -> usize {
        self.setup.inline_receives.into()
    }

    fn continue_after(&mut self, wqe: SendWqe) {
        self.next_wqe = wqe.end();
    }

    fn reset(&mut self) {
        *self = Self::new(self.number, std::mem::take(&mut self.setup));
    }
}
