//! Service types of QPs.

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
}

/// The two management QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementQp {
    /// Subnet management (SMI), QP 0.
    Smi,
    /// General services (GSI), QP 1.
    Gsi,
}

impl Default for Service {
    fn default() -> Self {
        Self::Connected(Transport::Rc)
    }
}

impl Service {
    /// The transport of its packets. `None` for a QP without packets.
    pub(crate) fn transport(self) -> Option<Transport> {
        match self {
            Self::Connected(transport) => Some(transport),
            Self::Datagram(_) => Some(Transport::Ud),
            Self::RegUmr | Self::Ethernet => None,
        }
    }

    /// Whether a failed send moves the QP to SQE rather than ERR, so that it keeps receiving.
    pub(crate) fn send_errors_stay_local(self) -> bool {
        matches!(self, Self::Datagram(_) | Self::Connected(Transport::Uc))
    }
}
