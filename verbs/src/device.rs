//! Devices, before they are opened.
//!
//! Devices are listed by RDMA netlink. It needs no permission and no `/sys`, lists the devices of
//! this network namespace only, and names the driver. If the kernel has no RDMA netlink, or rejects
//! the request, sysfs is read.

#[cfg(feature = "test-utils")]
pub(crate) mod testing;

use crate::discovery;
use crate::error::Result;

pub use crate::attributes::{DeviceAttr, PortAttr};
pub use crate::context::{Capabilities, RdAtomicLimits};
pub use crate::discovery::{Device, FoundBy};
pub use crate::gid::GidEntry;
pub use crate::link_down::LinkDown;
pub use bareverbs_provider::clock::ClockInfo;
pub use bareverbs_provider::pci_atomic::{PciAtomicCaps, PciAtomicSizes};
pub use bareverbs_uapi::nldev::NodeType;
pub use bareverbs_uapi::uverbs::types::{DriverId, GidType, PortCapFlags, PortFlags};
pub use bareverbs_uapi::verbs_values::{
    AtomicCap, EventType, LinkLayer, PortPhysState, PortSpeed, PortState, PortWidth, TmCapFlags,
};
pub use bareverbs_uapi::write::types::{
    DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps, PlacementType, RawPacketCaps, SelectivityLevel,
};

/// The RDMA devices of this machine, in the kernel's order. The list is empty if there are none.
///
/// Needs no permission. The list includes devices whose node this process may not open, and devices
/// whose node is missing in a container.
///
/// # Errors
/// [`Error::Netlink`](crate::Error::Netlink) if the kernel's response is malformed, or if this
/// process has no file descriptor left for a socket.
#[doc(alias = "ibv_get_device_list")]
#[doc(alias = "ibv_free_device_list")]
pub fn devices() -> Result<Vec<Device>> {
    discovery::list()
}
