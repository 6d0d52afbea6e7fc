//! The devices of guests.

use bareverbs_lab::{HcaPort, LinkType};
use clap::ValueEnum;

/// A device that the kernel tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tested {
    /// Soft-RoCE.
    Rxe,
    /// The HCA, with InfiniBand.
    Ib,
    /// The HCA, with Ethernet.
    Roce,
    /// Soft-iWARP.
    Siw,
}

impl Tested {
    pub(crate) const ALL: [Self; 4] = [Self::Rxe, Self::Ib, Self::Roce, Self::Siw];

    pub(crate) fn port(self) -> Option<HcaPort> {
        match self {
            Self::Rxe | Self::Siw => None,
            Self::Ib => Some(HcaPort::Ib),
            Self::Roce => Some(HcaPort::Roce),
        }
    }

    /// The type of the RDMA link in guests without an HCA.
    pub(crate) fn link_type(self) -> LinkType {
        if self == Self::Siw { LinkType::Siw } else { LinkType::Rxe }
    }
}
