//! Events of the connection manager.

pub use super::event_type::*;
use super::structs::{ConnParam, EventResp, UdParam};
use crate::uverbs::types::QpType;

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
    /// `ESTABLISHED` of a connected QP has parameters on iWARP only; elsewhere all of them are 0. An
    /// event of a multicast membership always has datagram parameters. `CONNECT_REQUEST` counts
    /// for the QP type of the listener.
    #[must_use]
    pub const fn of(event: EventType, qp_type: QpType) -> Self {
        let connected = qp_type.0 != QpType::UD.0;
        match event {
            EventType::CONNECT_REQUEST if connected => Self::Conn,
            EventType::CONNECT_REQUEST => Self::Ud,
            EventType::CONNECT_RESPONSE | EventType::REJECTED => Self::Conn,
            EventType::ESTABLISHED if connected => Self::Conn,
            EventType::UNREACHABLE if connected => Self::None,
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
