//! Identifiers and memberships.

use std::net::SocketAddr;

use bareverbs_uapi::rdma_cm::PortSpace;
use bareverbs_uapi::uverbs::types::QpType;

use crate::cm::{ConnId, Path};

/// The Q_Key of datagrams, `RDMA_UDP_QKEY` of the kernel.
pub(super) const UDP_QKEY: u32 = 0x0123_4567;

/// The only port of a device.
pub(super) const PORT: u8 = 1;

/// The state of an identifier, as the kernel's `rdma_cm_state`. No resolution lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdState {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Connecting,
    Disconnected,
    Listening,
}

/// The parameters of a connection that a QP needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parameters {
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) peer_qpn: u32,
    /// The PSN of the first request of the peer's choice.
    pub(super) send_psn: u32,
    /// The time-out of the QP.
    pub(super) timeout: u8,
}

#[derive(Debug)]
pub(super) struct Id {
    /// The file that it is on.
    pub(super) file: u64,
    pub(super) uid: u64,
    pub(super) space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) state: IdState,
    /// Whether its request was not delivered yet: commands don't find it.
    pub(super) is_undelivered: bool,
    /// Whether its device was removed.
    pub(super) is_closed: bool,
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
    /// The index of its device.
    pub(super) device: Option<u32>,
    pub(super) path: Option<Path>,
    pub(super) tos: u8,
    pub(super) reuses_address: bool,
    /// The option whether only peers of its family reach it.
    pub(super) family_only: Option<bool>,
    pub(super) ack_timeout: Option<u8>,
    /// Requests that may still be queued.
    pub(super) backlog: u32,
    /// The connection of a listener's child, or of an active identifier, on its device.
    pub(super) connection: Option<ConnId>,
    pub(super) qkey: u32,
    pub(super) parameters: Parameters,
    /// Events that the program has read.
    pub(super) reported: u32,
}

impl Id {
    pub(super) fn new(file: u64, uid: u64, space: PortSpace, qp_type: QpType) -> Self {
        Self {
            file,
            uid,
            space,
            qp_type,
            state: IdState::Idle,
            is_undelivered: false,
            is_closed: false,
            source: None,
            destination: None,
            device: None,
            path: None,
            tos: 0,
            reuses_address: false,
            family_only: None,
            ack_timeout: None,
            backlog: 0,
            connection: None,
            qkey: 0,
            parameters: Parameters::default(),
            reported: 0,
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.qp_type == QpType::UD
    }

    /// Whether a request to this address is for the listener.
    pub(super) fn takes(&self, destination: std::net::IpAddr) -> bool {
        let Some(source) = self.source else { return false };
        if source.ip() == destination {
            return true;
        }
        let same_family = super::address::same_family(source.ip(), destination);
        source.ip().is_unspecified() && (same_family || source.is_ipv6() && !self.is_family_only())
    }

    /// Whether only peers of its family reach it. IPv6 has the default of `net.ipv6.bindv6only` 0.
    pub(super) fn is_family_only(&self) -> bool {
        self.family_only.unwrap_or(self.source.is_some_and(|source| source.is_ipv4()))
    }
}

/// The PSN that the peer begins with.
pub(super) fn psn(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b1) >> 8
}

/// A membership of an identifier in a multicast group.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) id: u32,
    pub(super) uid: u64,
    pub(super) reported: u32,
}
