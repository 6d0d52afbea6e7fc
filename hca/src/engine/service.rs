//! Service types of QPs.

use bareverbs_transport::ManagementQp;

use super::packet::Transport;

/// Service type of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// RC, UC or XRC.
    Connected(Transport),
    /// UD. Management QPs have QPN 0 or 1 on the wire.
    Datagram(Option<ManagementQp>),
    /// The kernel's UMR QP.
    RegUmr,
    /// An SQ object, which sends Ethernet frames.
    Ethernet,
    /// An SQ object whose TIS names an underlay QP. It sends datagrams with the number of that QP.
    Ipoib {
        /// The number of the underlay QP.
        underlay_qp: u32,
    },
}

impl Default for Service {
    fn default() -> Self {
        Self::Connected(Transport::Rc)
    }
}

impl Service {
    /// The service type on the wire. `None` for a QP without packets.
    pub(crate) fn with_packets(self) -> Option<bareverbs_transport::Service> {
        match self {
            Self::Connected(transport) => Some(bareverbs_transport::Service::Connected(transport)),
            Self::Datagram(management) => Some(bareverbs_transport::Service::Datagram(management)),
            Self::Ipoib { .. } => Some(bareverbs_transport::Service::Datagram(None)),
            Self::RegUmr | Self::Ethernet => None,
        }
    }
}
