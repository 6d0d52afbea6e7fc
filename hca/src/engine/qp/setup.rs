//! Parameters, attributes and states of QPs.

use super::migration::{AlternatePath, Migration};
use super::pacing::Rate;
use crate::engine::packet::Route;
use crate::engine::ring::Ring;
use crate::engine::service::Service;

/// QP states, numbered as in the firmware interface.
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
    /// Whether the QP receives packets in this state.
    pub(crate) fn receives(self) -> bool {
        matches!(
            self,
            Self::ReadyToReceive | Self::ReadyToSend | Self::SendQueueError | Self::SendQueueDrained
        )
    }
}

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

/// Attributes that transitions change.
#[derive(Clone, Debug)]
pub struct QpAttributes {
    /// Path MTU in bytes.
    pub mtu: u32,
    /// The peer's QPN.
    pub remote_qp: u32,
    /// The path to the peer.
    pub route: Route,
    /// The alternate path; `None` if none was loaded or the QP has migrated to it.
    pub alternate: Option<AlternatePath>,
    /// The path migration state.
    pub migration: Migration,
    /// Whether the path was the alternate one when it was loaded.
    pub on_alternate: bool,
    /// The P_Key.
    pub pkey: u16,
    /// Q_Key.
    pub qkey: u32,
    /// Whether remote READs are allowed.
    pub remote_read: bool,
    /// Whether remote WRITEs are allowed.
    pub remote_write: bool,
    /// Whether remote atomics are allowed.
    pub remote_atomic: bool,
    /// Maximum outstanding READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// Maximum outstanding READs and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// Timer code of RNR NAKs, 5 bits.
    pub min_rnr_timer: u8,
    /// Retries after timeouts and sequence errors, 3 bits.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 3 bits; 7 is unlimited.
    pub rnr_retry: u8,
    /// Local ACK timeout code, 5 bits: 4.096 µs × 2^n; 0 is infinite.
    pub ack_timeout: u8,
    /// First PSN to send.
    pub send_psn: u32,
    /// First PSN to expect.
    pub receive_psn: u32,
    /// The counter set.
    pub counters: u8,
    /// The rate limit of sends.
    pub rate: Option<Rate>,
}

impl Default for QpAttributes {
    /// Attributes of a new QP: no access rights, no retries, no timeout.
    fn default() -> Self {
        Self {
            mtu: 4096,
            remote_qp: 0,
            route: Route::default(),
            alternate: None,
            migration: Migration::Migrated,
            on_alternate: false,
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
            rate: None,
        }
    }
}

impl QpAttributes {
    /// The ACK timeout in nanoseconds: 4.096 µs × 2^code. `None` if it is infinite.
    pub(crate) fn ack_timeout_nanos(&self) -> Option<u64> {
        (self.ack_timeout != 0).then(|| 4096u64 << self.ack_timeout)
    }
}
