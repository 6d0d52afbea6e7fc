//! Events of the connection manager.

use super::structs::{ConnParam, EventResp, UdParam};
use crate::uverbs::types::QpType;

abi_enums! {
    header = "include/rdma/rdma_cm.h";

    /// Type of an event of an identifier: [`super::structs::EventResp::event`].
    enum EventType: u32 = "rdma_cm_event_type" {
        /// The peer's address was resolved.
        ADDR_RESOLVED = 0, "RDMA_CM_EVENT_ADDR_RESOLVED";
        /// Address resolution failed.
        ADDR_ERROR = 1, "RDMA_CM_EVENT_ADDR_ERROR";
        /// A route to the peer was resolved.
        ROUTE_RESOLVED = 2, "RDMA_CM_EVENT_ROUTE_RESOLVED";
        /// Route resolution failed.
        ROUTE_ERROR = 3, "RDMA_CM_EVENT_ROUTE_ERROR";
        /// Connection request, or request for a datagram QP.
        CONNECT_REQUEST = 4, "RDMA_CM_EVENT_CONNECT_REQUEST";
        /// Connection response: the peer accepted; the caller must move its QP to RTS.
        CONNECT_RESPONSE = 5, "RDMA_CM_EVENT_CONNECT_RESPONSE";
        /// Connecting failed.
        CONNECT_ERROR = 6, "RDMA_CM_EVENT_CONNECT_ERROR";
        /// The peer is unreachable.
        UNREACHABLE = 7, "RDMA_CM_EVENT_UNREACHABLE";
        /// The peer rejected the connection; the status is its reason.
        REJECTED = 8, "RDMA_CM_EVENT_REJECTED";
        /// The connection is established.
        ESTABLISHED = 9, "RDMA_CM_EVENT_ESTABLISHED";
        /// The connection is disconnected.
        DISCONNECTED = 10, "RDMA_CM_EVENT_DISCONNECTED";
        /// The device is being removed.
        DEVICE_REMOVAL = 11, "RDMA_CM_EVENT_DEVICE_REMOVAL";
        /// The multicast group was joined.
        MULTICAST_JOIN = 12, "RDMA_CM_EVENT_MULTICAST_JOIN";
        /// The multicast group was not joined, or was left because of an error.
        MULTICAST_ERROR = 13, "RDMA_CM_EVENT_MULTICAST_ERROR";
        /// The address of the network device changed.
        ADDR_CHANGE = 14, "RDMA_CM_EVENT_ADDR_CHANGE";
        /// The QP can be reused (TIMEWAIT exit).
        TIMEWAIT_EXIT = 15, "RDMA_CM_EVENT_TIMEWAIT_EXIT";
        /// Services were resolved.
        ADDRINFO_RESOLVED = 16, "RDMA_CM_EVENT_ADDRINFO_RESOLVED" since V7_2;
        /// Service resolution failed.
        ADDRINFO_ERROR = 17, "RDMA_CM_EVENT_ADDRINFO_ERROR" since V7_2;
        /// An event written by the application.
        USER = 18, "RDMA_CM_EVENT_USER" since V7_2;
        /// An event written by the user-space library for internal use.
        INTERNAL = 19, "RDMA_CM_EVENT_INTERNAL" since V7_2;
    }
}

/// Which member of the union `param` an event has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// None: the kernel leaves the union zero.
    None,
    /// Connection parameters, `param.conn`.
    Conn,
    /// Datagram parameters, `param.ud`.
    Ud,
    /// The argument of an event that the application wrote, `param.arg64`.
    Arg,
}

impl ParamKind {
    /// The member that an event of this type has for an identifier with QPs of type `qp_type`
    /// (`ucma_event_handler` and `ucma_copy_*_event` of the kernel's `ucma.c`).
    ///
    /// An event of a multicast membership always has datagram parameters. `CONNECT_REQUEST` counts
    /// for the QP type of the listener.
    #[must_use]
    pub const fn of(event: EventType, qp_type: QpType) -> Self {
        let connected = qp_type.0 != QpType::UD.0;
        match event {
            EventType::CONNECT_REQUEST if connected => Self::Conn,
            EventType::CONNECT_REQUEST => Self::Ud,
            EventType::CONNECT_RESPONSE | EventType::REJECTED => Self::Conn,
            EventType::ESTABLISHED | EventType::UNREACHABLE if connected => Self::None,
            EventType::ESTABLISHED | EventType::UNREACHABLE => Self::Ud,
            EventType::MULTICAST_JOIN | EventType::MULTICAST_ERROR => Self::Ud,
            EventType::USER | EventType::INTERNAL => Self::Arg,
            _ => Self::None,
        }
    }
}

/// The parameters of an event: the member of the union that its type and the QP type select.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum EventParam {
    /// The event has none.
    None,
    /// Of a connected QP.
    Conn(ConnParam),
    /// Of a datagram QP or a multicast group.
    Ud(UdParam),
    /// Of an application event.
    Arg(u64),
}

impl EventResp {
    /// The parameters of the event, of an identifier with QPs of type `qp_type`.
    ///
    /// ```
    /// use bareverbs_uapi::rdma_cm::structs::EventResp;
    /// use bareverbs_uapi::rdma_cm::{EventParam, EventType};
    /// use bareverbs_uapi::uverbs::types::QpType;
    ///
    /// let event = EventResp { event: EventType::CONNECT_REQUEST, ..EventResp::zeroed() };
    /// assert!(matches!(event.param(QpType::RC), EventParam::Conn(_)));
    /// assert!(matches!(event.param(QpType::UD), EventParam::Ud(_)));
    /// ```
    #[must_use]
    pub fn param(&self, qp_type: QpType) -> EventParam {
        match ParamKind::of(self.event, qp_type) {
            ParamKind::None => EventParam::None,
            ParamKind::Conn => EventParam::Conn(self.conn()),
            ParamKind::Ud => EventParam::Ud(self.ud),
            ParamKind::Arg => EventParam::Arg(self.arg()),
        }
    }

    /// The QP type that the parameters suggest, for printing an event of an unknown identifier. The
    /// kernel reports QPN 0 in a `CONNECT_REQUEST` of a datagram QP, and no parameters in other
    /// events of connected QPs that have datagram parameters otherwise.
    #[must_use]
    pub fn likely_qp_type(&self) -> QpType {
        let named = self.ud.qp_num != 0;
        let datagram = match self.event {
            EventType::CONNECT_REQUEST => !named,
            EventType::ESTABLISHED => named,
            EventType::UNREACHABLE => self.ud.private_data_len != 0,
            _ => false,
        };
        if datagram { QpType::UD } else { QpType::RC }
    }
}
