//! Finding devices, by RDMA netlink or sysfs.

pub(crate) mod sysfs;

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use bareverbs_netlink::{CharDevice, DeviceInfo, RdmaNetlink};
#[cfg(feature = "soft")]
use bareverbs_soft::SoftDevice;
use bareverbs_uapi::nldev::NodeType;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::values::Guid;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Folder of the device nodes.
const NODES: &str = "/dev/infiniband";

/// Source of a device's properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FoundBy {
    /// RDMA netlink.
    Netlink,
    /// `/sys/class/infiniband`.
    Sysfs,
    /// A soft device of this process (cargo feature `soft`).
    Soft,
}

/// An RDMA device of this machine or of this process.
///
/// ```
/// for device in bareverbs::devices()? {
///     println!("{} {}", device.name(), device.node_guid());
/// }
/// let context = bareverbs::Device::find("soft0")?.open()?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
#[doc(alias = "ibv_device")]
#[derive(Clone, Debug)]
pub struct Device {
    name: String,
    index: Option<u32>,
    node_guid: Guid,
    node_type: NodeType,
    fw_ver: String,
    port_count: u8,
    source: Source,
    found_by: FoundBy,
}

/// What opens the device.
#[derive(Clone, Debug)]
enum Source {
    /// A node of the kernel; `None` if the kernel has none.
    Kernel(Option<Uverbs>),
    #[cfg(feature = "soft")]
    Soft(SoftDevice),
}

/// The uverbs character device.
#[derive(Clone, Debug)]
struct Uverbs {
    path: PathBuf,
    /// Major and minor number.
    number: (u32, u32),
    driver_id: Option<DriverId>,
}

/// As [`devices`](crate::devices).
pub(crate) fn list() -> Result<Vec<Device>> {
    match by_netlink() {
        Ok(devices) => Ok(devices),
        // If no socket can be created, sysfs can't be read either: the list would be empty.
        Err(error) if matches!(error.errno(), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(error),
        // The kernel has no RDMA netlink, or a filter rejects it.
        Err(error) if error.errno().is_some() => Ok(sysfs::devices(Path::new("/sys"))),
        Err(error) => Err(error),
    }
}

fn by_netlink() -> Result<Vec<Device>> {
    let mut netlink = RdmaNetlink::open()?;
    let mut devices = Vec::new();
    for info in netlink.devices()? {
        let uverbs = netlink.char_device(info.index, "uverbs")?;
        devices.push(Device::from_netlink(info, uverbs));
    }
    Ok(devices)
}

impl Device {
    /// A device that does not exist.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn for_test() -> Self {
        Self {
            name: "plain".to_owned(),
            index: None,
            node_guid: Guid::default(),
            node_type: NodeType::RNIC,
            fw_ver: String::new(),
            port_count: 1,
            source: Source::Kernel(None),
            found_by: FoundBy::Sysfs,
        }
    }

    fn from_netlink(info: DeviceInfo, uverbs: Option<CharDevice>) -> Self {
        Self {
            name: info.name,
            index: Some(info.index),
            node_guid: info.node_guid,
            node_type: info.node_type,
            fw_ver: info.fw_ver,
            port_count: u8::try_from(info.port_count).unwrap_or(u8::MAX),
            source: Source::Kernel(uverbs.map(|found| Uverbs {
                path: node(Path::new(NODES), &found.name, found.number),
                number: found.number,
                driver_id: found.driver_id,
            })),
            found_by: FoundBy::Netlink,
        }
    }

    /// The device named `name`. With the cargo feature `soft`, names such as `soft0` and
    /// `soft:127.0.0.2` create soft devices: see module `soft`.
    ///
    /// # Errors
    /// - [`Error::UnknownDevice`] if there is no such device, with the names of the devices there
    ///   are.
    /// - Of a soft device: [`Error::Invalid`] if the name has no IP address;
    ///   [`Error::System`] with `EADDRINUSE` if another process or the kernel has UDP port 4791 of the
    ///   address, with `EADDRNOTAVAIL` if it is no address of this host.
    pub fn find(name: &str) -> Result<Self> {
        let devices = list()?;
        match devices.iter().find(|device| device.name == name) {
            Some(device) => Ok(device.clone()),
            None => {
                #[cfg(feature = "soft")]
                if let Some(device) = crate::soft::find(name) {
                    return device.map(|device| Self { name: name.to_owned(), ..Self::from(device) });
                }
                Err(Error::UnknownDevice {
                    name: name.to_owned(),
                    known: devices.into_iter().map(|device| device.name).collect(),
                })
            }
        }
    }

    /// The first device in the list of [`devices`](crate::devices). It may be one that can't be opened:
    /// [`Context::open_first`](crate::Context::open_first) opens the first device that can be.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is none; those of [`devices`](crate::devices).
    pub fn first() -> Result<Self> {
        list()?.into_iter().next().ok_or(Error::NoDevice)
    }

    /// The device of an open device file.
    pub(crate) fn from_fd(verb: &'static str, file: BorrowedFd<'_>) -> Result<Self> {
        let number =
            char_device_number(file).map_err(|errno| Error::system("identifying the descriptor", errno))?;
        let device = match number {
            Some(number) => list()?.into_iter().find(|device| device.has_number(number)),
            None => None,
        };
        device.ok_or_else(|| Error::invalid(verb, "the descriptor is not an RDMA device file"))
    }

    /// Whether RDMA netlink names `file` as the uverbs character device of this device now. An
    /// earlier answer may be of a device that was removed since.
    pub(crate) fn is_named_by_netlink(&self, file: BorrowedFd<'_>) -> bool {
        let named = || {
            let index = self.index.filter(|_| self.found_by == FoundBy::Netlink)?;
            RdmaNetlink::open().ok()?.char_device(index, "uverbs").ok()?
        };
        let number = char_device_number(file).ok().flatten();
        number.is_some() && number == named().map(|named| named.number)
    }

    fn has_number(&self, number: (u32, u32)) -> bool {
        self.uverbs().is_some_and(|uverbs| uverbs.number == number)
    }

    fn uverbs(&self) -> Option<&Uverbs> {
        match &self.source {
            Source::Kernel(uverbs) => uverbs.as_ref(),
            #[cfg(feature = "soft")]
            Source::Soft(_) => None,
        }
    }

    /// The soft device that it is; `None` for a device of the kernel.
    #[cfg(feature = "soft")]
    #[must_use]
    pub fn soft(&self) -> Option<&SoftDevice> {
        match &self.source {
            Source::Kernel(_) => None,
            Source::Soft(device) => Some(device),
        }
    }

    /// Its name, such as `rxe0`.
    #[doc(alias = "ibv_get_device_name")]
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its index in the kernel. `None` without RDMA netlink.
    #[doc(alias = "ibv_get_device_index")]
    #[must_use]
    pub fn index(&self) -> Option<u32> {
        self.index
    }

    /// Identifier of the node.
    #[doc(alias = "ibv_get_device_guid")]
    #[must_use]
    pub fn node_guid(&self) -> Guid {
        self.node_guid
    }

    /// Its node type.
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        self.node_type
    }

    /// Its kernel driver, if RDMA netlink names it. Otherwise the driver is determined at open.
    #[must_use]
    pub fn driver_id(&self) -> Option<DriverId> {
        match &self.source {
            Source::Kernel(uverbs) => uverbs.as_ref()?.driver_id,
            #[cfg(feature = "soft")]
            Source::Soft(_) => Some(DriverId::RXE),
        }
    }

    /// Version of its firmware; empty if it has none.
    #[must_use]
    pub fn fw_ver(&self) -> &str {
        &self.fw_ver
    }

    /// Number of ports, at most 255: verbs name no port above. Ports are numbered from 1.
    /// [`bareverbs_netlink::DeviceInfo::port_count`] has the number of a device with more.
    #[doc(alias = "phys_port_cnt")]
    #[must_use]
    pub fn port_count(&self) -> u8 {
        self.port_count
    }

    /// Path of its uverbs device node; the node may be missing. `None` if the kernel has no uverbs
    /// device for it, and for a soft device.
    #[must_use]
    pub fn uverbs_path(&self) -> Option<&Path> {
        self.uverbs().map(|uverbs| uverbs.path.as_path())
    }

    /// Source of its properties.
    #[must_use]
    pub fn found_by(&self) -> FoundBy {
        self.found_by
    }
}

#[cfg(feature = "soft")]
impl From<SoftDevice> for Device {
    fn from(device: SoftDevice) -> Self {
        Self {
            name: device.name().to_owned(),
            index: None,
            node_guid: device.node_guid(),
            node_type: NodeType::CHANNEL_ADAPTER,
            fw_ver: String::new(),
            port_count: 1,
            source: Source::Soft(device),
            found_by: FoundBy::Soft,
        }
    }
}

/// Major and minor number of a character device; `None` for other files.
fn char_device_number(file: BorrowedFd<'_>) -> std::result::Result<Option<(u32, u32)>, Errno> {
    let found = rustix::fs::fstat(file)?;
    let is_device = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
    let number = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
    Ok(is_device.then_some(number))
}

/// The node of the character device `name` with that number. udev's path is tried first, then all
/// nodes of the folder: containers may name them differently.
fn node(folder: &Path, name: &str, number: (u32, u32)) -> PathBuf {
    let is_it = |path: &Path| {
        fs::metadata(path).is_ok_and(|found| {
            let device = found.rdev();
            found.file_type().is_char_device()
                && (rustix::fs::major(device), rustix::fs::minor(device)) == number
        })
    };
    let usual = folder.join(name);
    if is_it(&usual) {
        return usual;
    }
    let others = fs::read_dir(folder).into_iter().flatten().flatten();
    others.map(|entry| entry.path()).find(|path| is_it(path)).unwrap_or(usual)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn device_nodes_are_found_by_device_number() {
        let folder = std::env::temp_dir().join(format!("bareverbs-node-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let other = folder.join("verbs-of-the-container");
        // /dev/null is 1:3 everywhere.
        std::os::unix::fs::symlink("/dev/null", &other).unwrap();
        assert_eq!(node(&folder, "uverbs0", (1, 3)), other);
        assert_eq!(node(&folder, "uverbs0", (1, 5)), folder.join("uverbs0"));
        assert_eq!(node(Path::new("/dev"), "null", (1, 3)), Path::new("/dev/null"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn earlier_answers_of_netlink_are_not_trusted() {
        let uverbs = Uverbs { path: PathBuf::new(), number: (1, 3), driver_id: None };
        let by_netlink = Device {
            index: Some(u32::MAX),
            source: Source::Kernel(Some(uverbs)),
            found_by: FoundBy::Netlink,
            ..Device::for_test()
        };
        let file = |path: &str| fs::File::open(path).unwrap();
        for other in ["/dev/null", "/dev/zero", "/proc/self/exe", "/"] {
            assert!(!by_netlink.is_named_by_netlink(file(other).as_fd()), "{other}");
        }
    }

    #[test]
    fn missing_device_node_gives_the_default_path() {
        let folder = Path::new("/nonexistent");
        assert_eq!(node(folder, "uverbs7", (231, 199)), Path::new("/nonexistent/uverbs7"));
    }
}
