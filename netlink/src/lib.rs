//! RDMA netlink: devices, ports, links, resources and counters, without opening a device.
//!
//! ```
//! # fn example() -> Result<(), bareverbs_netlink::Error> {
//! use bareverbs_netlink::RdmaNetlink;
//!
//! let mut netlink = RdmaNetlink::open()?;
//! for device in netlink.devices()? {
//!     let used = netlink.resources(&device.name)?;
//!     println!("{}: {} queue pairs, {} regions", device.name, used.qp, used.mr);
//!     for qp in netlink.queue_pairs(&device.name)? {
//!         println!("QP {} of {:?} is in {:?}", qp.qp_num, qp.owner, qp.state);
//!     }
//!     for counter in netlink.port_counters(&device.name, 1)?.unwrap_or_default() {
//!         println!("{}: {}", counter.name, counter.value);
//!     }
//! }
//! # Ok(())
//! # }
//! # // The kernel has no RDMA subsystem, or no such device.
//! # let result = example();
//! # use bareverbs_netlink::Error::{System, UnknownDevice};
//! # assert!(matches!(result, Ok(()) | Err(System { .. } | UnknownDevice { .. })), "{result:?}");
//! ```
//!
//! [`RdmaNetlink`] is a socket for requests, [`Events`] one for notifications, [`RouteNetlink`]
//! configures the network interface below a software device. Each call sends one request and waits
//! for its response.
#![deny(missing_debug_implementations)]

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod attrs;
mod counters;
mod error;
mod events;
mod links;
#[cfg(feature = "test-utils")]
pub mod parsers;
mod resources;
mod route;
mod socket;
mod system;

use bareverbs_uapi::netlink::{Attributes, Malformed, MessageFlags, MessageWriter};
pub use bareverbs_uapi::nldev::NodeType;
use bareverbs_uapi::nldev::{Attribute, Command};
pub use bareverbs_uapi::uverbs::types::DriverId;
pub use bareverbs_uapi::values::{Guid, PortNum};
pub use bareverbs_uapi::verbs_values::{PortPhysState, PortState};
pub use rustix::io::Errno;
use rustix::net::netlink::RDMA;

use self::attrs::FromAttribute;
pub use self::counters::{
    Counter, CounterBinding, CounterMask, CounterMode, CounterStatus, MrCounters, QpCounters,
};
pub use self::error::{Error, KernelError, Result};
pub use self::events::{
    AddressEvent, Event, EventSources, EventType, Events, NetdevEvent, RdmaEvent, Uevent,
};
pub use self::resources::{
    CmIdResource, ContextResource, CqResource, DriverDetail, DriverValue, MigState, MrResource, Owner,
    PdResource, PollContext, PortSpace, QpResource, QpState, QpType, RawObject, SrqResource, SrqType,
};
pub use self::route::RouteNetlink;
use self::socket::Socket;
pub use self::system::{NetnsMode, SystemInfo};

/// Maximum length of a device name (`IB_DEVICE_NAME_MAX` minus the NUL byte).
const DEVICE_NAME_LEN: usize = 63;

/// Maximum length of a character device type (`RDMA_NLDEV_ATTR_CHARDEV_TYPE_SIZE` minus the NUL
/// byte).
const CHARDEV_TYPE_LEN: usize = 31;

/// Maximum length of a network interface name or a link type (`IFNAMSIZ` minus the NUL byte).
const INTERFACE_NAME_LEN: usize = 15;

/// An RDMA netlink socket.
#[derive(Debug)]
pub struct RdmaNetlink {
    socket: Socket,
}

/// A device, as RDMA netlink reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Number of ports, which are numbered from 1. `ports` lists them; a port above 255 has no
    /// `PortNum`.
    pub port_count: u32,
    /// Capability flags, as the kernel numbers them.
    pub cap_flags: u64,
    /// Version of its firmware; empty if it has none.
    pub fw_ver: String,
    /// Identifier of the node.
    pub node_guid: Guid,
    /// Identifier that devices of one system share.
    pub sys_image_guid: Guid,
    /// Its node type.
    pub node_type: NodeType,
    /// Its protocol: `ib`, `roce`, `iw`, `opa` or `usnic`.
    pub protocol: String,
    /// Whether CQs of the kernel use adaptive moderation (DIM); `None` if the kernel doesn't report
    /// it.
    pub adaptive_moderation: Option<bool>,
    /// Its parent, if it is a sub-device. Linux 6.12 and later.
    pub parent: Option<String>,
}

/// A character device of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CharDevice {
    /// Its name, such as `uverbs0`.
    pub name: String,
    /// Major and minor number.
    pub number: (u32, u32),
    /// Revision of its ABI.
    pub abi: u64,
    /// The driver id. Only uverbs devices have one, and some drivers do not report it because it
    /// does not identify them.
    pub driver_id: Option<DriverId>,
}

/// A port, as RDMA netlink reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Its number, from 1.
    pub port: PortNum,
    /// Logical state.
    pub state: PortState,
    /// Physical state.
    pub phys_state: PortPhysState,
    /// Index of its network interface, if it has one.
    pub netdev_index: Option<u32>,
    /// Name of its network interface, if it has one.
    pub netdev_name: Option<String>,
    /// Its LID; InfiniBand only.
    pub lid: Option<u32>,
    /// The LID of the subnet manager; InfiniBand only.
    pub sm_lid: Option<u32>,
    /// LID mask control (LMC); InfiniBand only.
    pub lmc: Option<u8>,
    /// The subnet prefix; InfiniBand only.
    pub subnet_prefix: Option<u64>,
    /// Capability flags, as the kernel numbers them; InfiniBand only.
    pub cap_flags: Option<u64>,
}

/// Number of objects of each type on a device, of all processes and the kernel together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceSummary {
    /// Protection domains.
    pub pd: u64,
    /// Completion queues.
    pub cq: u64,
    /// Queue pairs.
    pub qp: u64,
    /// CM IDs of rdma_cm.
    pub cm_id: u64,
    /// Memory regions.
    pub mr: u64,
    /// Open contexts.
    pub ctx: u64,
    /// Shared receive queues.
    pub srq: u64,
}

impl RdmaNetlink {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`Error::System`], with [`Errno::PROTONOSUPPORT`] if the kernel has no RDMA netlink.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open("opening an RDMA netlink socket", Some(RDMA))? })
    }

    /// The devices of this network namespace.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel refuses the request; [`Error::Malformed`] if its
    /// response is malformed.
    #[doc(alias = "rdma dev show")]
    #[doc(alias = "RDMA_NLDEV_CMD_GET")]
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>> {
        let mut found = Vec::new();
        self.request(
            "listing devices",
            Command::GET,
            MessageFlags::DUMP,
            |_| {},
            |answer| {
                found.push(DeviceInfo::read(answer)?);
                Ok(())
            },
        )?;
        Ok(found)
    }

    /// The ports of the device with that index, up to port 255: verbs can't name those above, which
    /// only devices with many representors have.
    ///
    /// # Errors
    /// [`Error::Kernel`] if there is no such device; [`Error::Malformed`] if the response is
    /// malformed.
    #[doc(alias = "rdma link show")]
    #[doc(alias = "RDMA_NLDEV_CMD_PORT_GET")]
    pub fn ports(&mut self, device_index: u32) -> Result<Vec<PortInfo>> {
        let mut found = Vec::new();
        self.request(
            &format!("listing the ports of device {device_index}"),
            Command::PORT_GET,
            MessageFlags::DUMP,
            |request| {
                request.put_u32(Attribute::DEV_INDEX.0, device_index);
            },
            |answer| {
                found.extend(PortInfo::read(answer)?);
                Ok(())
            },
        )?;
        Ok(found)
    }

    /// The character device of type `kind`, such as `uverbs`, of the device with that index; `None`
    /// if it has none.
    ///
    /// The character device `rdma_cm` belongs to no device: [`RdmaNetlink::global_char_device`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid type; [`Error::Kernel`] if the kernel refuses the
    /// request; [`Error::Malformed`] if the response is malformed.
    #[doc(alias = "RDMA_NLDEV_CMD_GET_CHARDEV")]
    pub fn char_device(&mut self, device_index: u32, kind: &str) -> Result<Option<CharDevice>> {
        check_name("RdmaNetlink::char_device", "type", kind, CHARDEV_TYPE_LEN)?;
        self.get_char_device(
            &format!("querying the {kind} character device of device {device_index}"),
            Some(device_index),
            kind,
        )
    }

    /// The character device of type `kind` that serves all devices; `None` if the kernel has none.
    /// The only type is `rdma_cm`, the connection manager. If its module is not loaded, the kernel
    /// loads it (`request_module` of alias `rdma-client-rdma_cm`).
    ///
    /// ```
    /// # fn example() -> Result<(), bareverbs_netlink::Error> {
    /// use bareverbs_netlink::RdmaNetlink;
    ///
    /// let found = RdmaNetlink::open()?.global_char_device("rdma_cm")?;
    /// println!("the connection manager: {found:?}");
    /// # Ok(())
    /// # }
    /// # // The kernel has no RDMA subsystem, or no such device.
    /// # let result = example();
    /// # use bareverbs_netlink::Error::{System, UnknownDevice};
    /// # assert!(matches!(result, Ok(()) | Err(System { .. } | UnknownDevice { .. })), "{result:?}");
    /// ```
    ///
    /// # Errors
    /// As for [`RdmaNetlink::char_device`].
    #[doc(alias = "RDMA_NLDEV_CMD_GET_CHARDEV")]
    pub fn global_char_device(&mut self, kind: &str) -> Result<Option<CharDevice>> {
        check_name("RdmaNetlink::global_char_device", "type", kind, CHARDEV_TYPE_LEN)?;
        self.get_char_device(&format!("querying the character device {kind}"), None, kind)
    }

    fn get_char_device(
        &mut self,
        what: &str,
        device_index: Option<u32>,
        kind: &str,
    ) -> Result<Option<CharDevice>> {
        let mut found = None;
        let asked = self.request(
            what,
            Command::GET_CHARDEV,
            MessageFlags::empty(),
            |request| {
                // The kernel rejects the look-up of a global character device with an index.
                if let Some(index) = device_index {
                    request.put_u32(Attribute::DEV_INDEX.0, index);
                }
                request.put_str(Attribute::CHARDEV_TYPE.0, kind);
            },
            |answer| {
                found = Some(CharDevice::read(answer)?);
                Ok(())
            },
        );
        match asked {
            Err(error) if matches!(error.errno(), Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP)) => {
                Ok(None)
            }
            asked => asked.map(|()| found),
        }
    }

    /// Number of objects of each type on the device named `device`.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] if there is no such device; [`Error::Malformed`] if the response is
    /// malformed.
    #[doc(alias = "rdma resource show")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_GET")]
    pub fn resources(&mut self, device: &str) -> Result<ResourceSummary> {
        let index = self.index_of(device)?;
        let mut summary = ResourceSummary::default();
        self.request(
            "counting resources",
            Command::RES_GET,
            MessageFlags::empty(),
            |request| {
                request.put_u32(Attribute::DEV_INDEX.0, index);
            },
            |answer| {
                summary = ResourceSummary::read(answer)?;
                Ok(())
            },
        )?;
        Ok(summary)
    }

    fn index_of(&mut self, device: &str) -> Result<u32> {
        let devices = self.devices()?;
        match devices.iter().find(|found| found.name == device) {
            Some(found) => Ok(found.index),
            None => Err(Error::UnknownDevice {
                name: device.to_owned(),
                known: devices.into_iter().map(|found| found.name).collect(),
            }),
        }
    }

    /// Sends one request and calls `each` for every message of the response.
    fn request(
        &mut self,
        what: &str,
        command: Command,
        flags: MessageFlags,
        fill: impl FnOnce(&mut MessageWriter<'_>),
        each: impl FnMut(&Attributes<'_>) -> Result<(), Malformed>,
    ) -> Result<()> {
        self.socket.request(what, command.message_type(), flags, fill, each)
    }

    /// Sends a request that returns nothing.
    fn change(
        &mut self,
        what: &str,
        command: Command,
        fill: impl FnOnce(&mut MessageWriter<'_>),
    ) -> Result<()> {
        self.request(what, command, MessageFlags::ACK, fill, |_| Ok(()))
    }
}

/// Rejects names that the kernel would truncate or change.
fn check_name(verb: &'static str, what: &str, name: &str, max: usize) -> Result<()> {
    let reason = if name.is_empty() {
        format!("the {what} is empty")
    } else if name.len() > max {
        format!("{what} {name:?} has {} bytes; the maximum is {max}", name.len())
    } else if matches!(name, "." | "..")
        || name.contains(['/', '%', ':', '\0'])
        || name.contains(char::is_whitespace)
    {
        format!(
            "invalid {what} {name:?}: it must not contain '/', '%', ':', whitespace or NUL, or be '.' or '..'"
        )
    } else {
        return Ok(());
    };
    Err(Error::invalid(verb, reason))
}

fn text(attributes: &Attributes<'_>, attribute: Attribute) -> Result<String, Malformed> {
    attributes.find(attribute.0).map_or_else(|| Ok(String::new()), |found| found.str().map(str::to_owned))
}

fn number32(attributes: &Attributes<'_>, attribute: Attribute) -> Result<Option<u32>, Malformed> {
    attributes.find(attribute.0).map(|found| found.u32()).transpose()
}

fn number64(attributes: &Attributes<'_>, attribute: Attribute) -> Result<u64, Malformed> {
    attributes.find(attribute.0).map_or(Ok(0), |found| found.u64())
}

fn number8(attributes: &Attributes<'_>, attribute: Attribute) -> Result<u8, Malformed> {
    attributes.find(attribute.0).map_or(Ok(0), |found| found.u8())
}

impl DeviceInfo {
    fn read(answer: &Attributes<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            index: number32(answer, Attribute::DEV_INDEX)?.unwrap_or(0),
            name: text(answer, Attribute::DEV_NAME)?,
            port_count: number32(answer, Attribute::PORT_INDEX)?.unwrap_or(0),
            cap_flags: number64(answer, Attribute::CAP_FLAGS)?,
            fw_ver: text(answer, Attribute::FW_VERSION)?,
            node_guid: Guid(number64(answer, Attribute::NODE_GUID)?.to_be_bytes()),
            sys_image_guid: Guid(number64(answer, Attribute::SYS_IMAGE_GUID)?.to_be_bytes()),
            node_type: NodeType(number8(answer, Attribute::DEV_NODE_TYPE)?),
            protocol: text(answer, Attribute::DEV_PROTOCOL)?,
            adaptive_moderation: FromAttribute::from_attribute(answer, Attribute::DEV_DIM)?,
            parent: FromAttribute::from_attribute(answer, Attribute::PARENT_NAME)?,
        })
    }
}

impl CharDevice {
    fn read(answer: &Attributes<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            name: text(answer, Attribute::CHARDEV_NAME)?,
            number: split_device_number(number64(answer, Attribute::CHARDEV)?),
            abi: number64(answer, Attribute::CHARDEV_ABI)?,
            driver_id: number32(answer, Attribute::UVERBS_DRIVER_ID)?.map(DriverId),
        })
    }
}

/// Major and minor of a device number as `huge_encode_dev` of the kernel's `include/linux/kdev_t.h`
/// packs it.
fn split_device_number(number: u64) -> (u32, u32) {
    let number = number as u32;
    ((number & 0xf_ff00) >> 8, number & 0xff | (number >> 12) & 0xf_ff00)
}

impl PortInfo {
    /// `None` for a port above 255.
    fn read(answer: &Attributes<'_>) -> Result<Option<Self>, Malformed> {
        let number = number32(answer, Attribute::PORT_INDEX)?.unwrap_or(0);
        let Ok(port) = PortNum::try_from(number) else { return Ok(None) };
        let netdev_name =
            answer.find(Attribute::NDEV_NAME.0).map(|found| found.str().map(str::to_owned)).transpose()?;
        Ok(Some(Self {
            port,
            state: PortState(number8(answer, Attribute::PORT_STATE)?),
            phys_state: PortPhysState(number8(answer, Attribute::PORT_PHYS_STATE)?),
            netdev_index: number32(answer, Attribute::NDEV_INDEX)?,
            netdev_name,
            lid: FromAttribute::from_attribute(answer, Attribute::LID)?,
            sm_lid: FromAttribute::from_attribute(answer, Attribute::SM_LID)?,
            lmc: FromAttribute::from_attribute(answer, Attribute::LMC)?,
            subnet_prefix: FromAttribute::from_attribute(answer, Attribute::SUBNET_PREFIX)?,
            cap_flags: FromAttribute::from_attribute(answer, Attribute::CAP_FLAGS)?,
        }))
    }
}

impl ResourceSummary {
    fn read(answer: &Attributes<'_>) -> Result<Self, Malformed> {
        let mut summary = Self::default();
        let Some(entries) = answer.find(Attribute::RES_SUMMARY.0) else { return Ok(summary) };
        for entry in entries.attributes() {
            let entry = entry?.attributes();
            let count = number64(&entry, Attribute::RES_SUMMARY_ENTRY_CURR)?;
            match text(&entry, Attribute::RES_SUMMARY_ENTRY_NAME)?.as_str() {
                "pd" => summary.pd = count,
                "cq" => summary.cq = count,
                "qp" => summary.qp = count,
                "cm_id" => summary.cm_id = count,
                "mr" => summary.mr = count,
                "ctx" => summary.ctx = count,
                "srq" => summary.srq = count,
                _ => {}
            }
        }
        Ok(summary)
    }
}

#[cfg(test)]
mod tests;
