//! Queue pairs: what they are made of and the states they go through.

use super::packet::{Route, Transport};
use super::requester::Requester;
use super::responder::Responder;
use super::ring::Ring;

/// What a queue pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// RC, UC or XRC.
    Connected(Transport),
    /// UD; management queue pairs are numbered 0 or 1 on the wire.
    Datagram(Option<Management>),
    /// The kernel's queue for updates of memory keys.
    KeyUpdates,
    /// Frames out: an SQ object.
    Ethernet,
}

/// The two management queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    /// Subnet management, QP 0.
    Subnet,
    /// General services, QP 1.
    General,
}

impl Service {
    /// The transport of its packets.
    pub(crate) fn transport(self) -> Option<Transport> {
        match self {
            Self::Connected(transport) => Some(transport),
            Self::Datagram(_) => Some(Transport::Ud),
            Self::KeyUpdates | Self::Ethernet => None,
        }
    }

    /// Whether a failed send leaves the receive side alone.
    pub(crate) fn send_errors_stay_local(self) -> bool {
        matches!(self, Self::Datagram(_) | Self::Connected(Transport::Uc))
    }
}

/// States, with the firmware's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of the InfiniBand specification")]
pub enum State {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueError = 4,
    SendQueueDrained = 5,
    Error = 6,
}

impl State {
    /// Whether packets are answered.
    pub(crate) fn receives(self) -> bool {
        matches!(
            self,
            Self::ReadyToReceive | Self::ReadyToSend | Self::SendQueueError | Self::SendQueueDrained
        )
    }
}

/// Where receive work requests come from.
#[derive(Clone, Debug, Default)]
pub enum ReceiveQueue {
    /// Nowhere.
    #[default]
    None,
    /// The queue pair's own ring.
    Own {
        /// The number of work requests, as a power of two.
        log_size: u8,
        /// Bytes of one, as a power of two.
        log_stride: u8,
    },
    /// A shared receive queue.
    Shared(u32),
}

/// What stays the same over a queue pair's life.
#[derive(Clone, Debug, Default)]
pub struct QpSetup {
    /// What it is for.
    pub service: Service,
    /// Protection domain.
    pub pd: u32,
    /// The user's index in completions.
    pub user_index: u32,
    /// The buffer: receive ring first, then send ring.
    pub ring: Ring,
    /// Where the send ring begins in it.
    pub send_offset: u64,
    /// Basic blocks in the send ring, as a power of two; `None` without a send queue.
    pub log_send_size: Option<u8>,
    /// Where receive work requests come from.
    pub receive: ReceiveQueue,
    /// Guest address of the doorbell records: receive, then send.
    pub doorbell: u64,
    /// The completion queue of sends.
    pub send_cq: u32,
    /// The completion queue of receives.
    pub receive_cq: u32,
    /// The XRC domain.
    pub xrcd: Option<u32>,
    /// Whether the reserved key may be used.
    pub reserved_lkey: bool,
    /// Answers to reads and atomics of at most so many bytes go into their completions: 0, 32, or
    /// 64 with wide entries.
    pub inline_responses: u8,
    /// And so do received messages.
    pub inline_receives: u8,
}

/// What transitions change.
#[derive(Clone, Debug)]
pub struct QpAttributes {
    /// Path MTU in bytes.
    pub mtu: u32,
    /// The peer.
    pub remote_qp: u32,
    /// Its way.
    pub route: Route,
    /// Partition key.
    pub pkey: u16,
    /// Q_Key.
    pub qkey: u32,
    /// Remote reads allowed.
    pub remote_read: bool,
    /// Remote writes allowed.
    pub remote_write: bool,
    /// Remote atomics allowed.
    pub remote_atomic: bool,
    /// Reads and atomics that may be under way as a requester.
    pub max_rd_atomic: u8,
    /// And as a responder.
    pub max_dest_rd_atomic: u8,
    /// Timer code for peers that find no receive work request, 5 bits.
    pub min_rnr_timer: u8,
    /// Retries after lost packets, 3 bits.
    pub retry_count: u8,
    /// Retries after RNR, 3 bits, 7 for ever.
    pub rnr_retry: u8,
    /// Acknowledge timeout code, 5 bits, 0 for never.
    pub ack_timeout: u8,
    /// The first sequence number to send.
    pub send_psn: u32,
    /// The first sequence number to receive.
    pub receive_psn: u32,
    /// Counter set.
    pub counters: u8,
}

impl Default for Service {
    fn default() -> Self {
        Self::Connected(Transport::Rc)
    }
}

impl Default for QpAttributes {
    /// What a queue pair starts with, before transitions say otherwise: no rights, no patience.
    fn default() -> Self {
        Self {
            mtu: 4096,
            remote_qp: 0,
            route: Route::default(),
            pkey: 0xffff,
            qkey: 0,
            remote_read: false,
            remote_write: false,
            remote_atomic: false,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 0,
            retry_count: 0,
            rnr_retry: 0,
            ack_timeout: 0,
            send_psn: 0,
            receive_psn: 0,
            counters: 0,
        }
    }
}

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) number: u32,
    pub(crate) setup: QpSetup,
    pub(crate) state: State,
    pub(crate) attributes: QpAttributes,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// Whether it stands in the queue of those with work.
    pub(crate) queued: bool,
    /// The earliest entry of the timer heap for it.
    pub(crate) timed: Option<u64>,
}

impl Qp {
    pub(crate) fn new(number: u32, setup: QpSetup, attributes: QpAttributes) -> Self {
        Self {
            number,
            setup,
            state: State::Reset,
            attributes,
            requester: Requester::default(),
            responder: Responder::default(),
            queued: false,
            timed: None,
        }
    }

    /// Forgets everything that was under way.
    pub(crate) fn reset(&mut self) {
        self.state = State::Reset;
        self.requester = Requester::default();
        self.responder = Responder::default();
    }

    pub(crate) fn accessor(&self) -> super::mkey::Accessor {
        super::mkey::Accessor {
            pd: self.setup.pd,
            qp: self.number,
            reserved_lkey: self.setup.reserved_lkey,
            any_pd: self.setup.service == Service::KeyUpdates,
        }
    }

    /// When it next wants to be looked at, whatever happens.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let flush = self.responder.flush_poll;
        [self.requester.deadline, self.requester.rnr_until, flush].into_iter().flatten().min()
    }
}
