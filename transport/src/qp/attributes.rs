//! Attributes and states of QPs.

use super::migration::{AlternatePath, Migration};
use super::pacing::Rate;
#[cfg(doc)]
use crate::packet::Flush;
use crate::packet::Route;

/// QP states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the InfiniBand specification")]
pub enum State {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    SendQueueError,
    SendQueueDrained,
    Error,
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
    /// The placement types of remote FLUSHes that are allowed: [`Flush::GLOBAL`] and
    /// [`Flush::PERSISTENT`].
    pub remote_flush: u8,
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
            remote_flush: 0,
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
        let code = self.ack_timeout & 0x1f;
        (code != 0).then(|| 4096u64 << code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeout_is_a_code_of_five_bits() {
        let nanos = |ack_timeout| QpAttributes { ack_timeout, ..QpAttributes::default() }.ack_timeout_nanos();
        assert_eq!([0, 1, 31].map(nanos), [None, Some(8192), Some(4096 << 31)]);
        assert_eq!([32, 33, 255].map(nanos), [None, Some(8192), Some(4096 << 31)]);
    }
}
