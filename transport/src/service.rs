//! Service types of QPs.

use crate::packet::Transport;

/// Service type of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// RC, UC or XRC.
    Connected(Transport),
    /// UD. Management QPs have QPN 0 or 1 on the wire.
    Datagram(Option<ManagementQp>),
}

/// The two management QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementQp {
    /// Subnet management (SMI), QP 0.
    Smi,
    /// General services (GSI), QP 1.
    Gsi,
}

impl Service {
    /// The transport of its packets.
    pub(crate) fn transport(self) -> Transport {
        match self {
            Self::Connected(transport) => transport,
            Self::Datagram(_) => Transport::Ud,
        }
    }
}
