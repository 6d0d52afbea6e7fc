//! Finding and opening the character device of the connection manager.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_netlink::RdmaNetlink;
use bareverbs_provider::process::PerProcess;
use bareverbs_uapi::rdma_cm::ABI_VERSION;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::{Error, Feature, Result};

/// The folder of the node.
const NODES: &str = "/dev/infiniband";
/// What sysfs says about the device.
const SYSFS: &str = "/sys/class/misc/rdma_cm";
/// How long the node may take to appear after the kernel loaded the module. udev creates it.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
const NODE_POLL: Duration = Duration::from_millis(10);

/// The device that was opened last. It changes only when the kernel's module is loaded again.
static KNOWN: PerProcess<Mutex<Option<CmDevice>>> = PerProcess::empty();

/// Opens the connection manager, by the device that was opened last or by the one there is now.
pub(crate) fn open() -> Result<OwnedFd> {
    let known = KNOWN.get().map_err(Error::fork_guard)?;
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(file) =
        known.as_ref().and_then(|device| device.open_in(Path::new(NODES), Duration::ZERO).ok())
    {
        return Ok(file);
    }
    let found = CmDevice::find()?;
    let file = found.open_in(Path::new(NODES), NODE_TIMEOUT)?;
    *known = Some(found);
    Ok(file)
}

/// The character device of the connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmDevice {
    /// Name of its node under `/dev/infiniband`.
    pub name: String,
    /// Major and minor number.
    pub number: (u32, u32),
    /// Version of its ABI.
    pub abi: u64,
}

impl CmDevice {
    /// The device: by RDMA netlink, which also loads the kernel module, or by sysfs.
    ///
    /// # Errors
    /// [`Error::NoConnectionManager`]; [`Error::Unsupported`] if the ABI has another version than
    /// 4; [`Error::Verbs`] if this process has no descriptor left for the query.
    pub fn find() -> Result<Self> {
        let found = match RdmaNetlink::open().and_then(|mut netlink| netlink.global_char_device("rdma_cm")) {
            Ok(Some(found)) => Self { name: found.name, number: found.number, abi: found.abi },
            Err(error) if matches!(error.errno(), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                return Err(bareverbs::Error::from(error).into());
            }
            // The kernel has no RDMA netlink, a filter rejects it, or the module is not loaded.
            _ => Self::in_sysfs(Path::new(SYSFS)).ok_or(Error::NoConnectionManager)?,
        };
        if found.abi != u64::from(ABI_VERSION) {
            return Err(Error::Unsupported {
                verb: "open",
                feature: Feature::AbiVersion { found: found.abi },
            });
        }
        Ok(found)
    }

    fn in_sysfs(folder: &Path) -> Option<Self> {
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let number = read("dev")?;
        let (major, minor) = number.trim().split_once(':')?;
        Some(Self {
            name: "rdma_cm".to_owned(),
            number: (major.parse().ok()?, minor.parse().ok()?),
            abi: read("abi_version")?.trim().parse().ok()?,
        })
    }

    /// Opens the node, non-blocking. Waits for a node that does not exist yet.
    fn open_in(&self, folder: &Path, timeout: Duration) -> Result<OwnedFd> {
        let path = folder.join(&self.name);
        let end = Instant::now() + timeout;
        let file = loop {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
            match rustix::fs::open(&path, flags, Mode::empty()) {
                Ok(file) => break file,
                Err(Errno::NOENT) if Instant::now() < end => sleep(NODE_POLL),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::Open { path, errno }),
            }
        };
        let found = rustix::fs::fstat(&file)
            .map_err(|errno| Error::System { what: "identifying the file of rdma_cm", errno })?;
        let number = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
        // Commands make the kernel write to memory of this process: only that device may get them.
        if FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice || number != self.number {
            let (major, minor) = self.number;
            let reason = format!("{} is not the character device {major}:{minor}", path.display());
            return Err(Error::invalid("open", reason));
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("bareverbs-rdmacm-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn sysfs_names_number_and_abi() {
        let folder = folder("sysfs");
        assert_eq!(CmDevice::in_sysfs(&folder), None);
        fs::write(folder.join("dev"), "10:125\n").unwrap();
        assert_eq!(CmDevice::in_sysfs(&folder), None);
        fs::write(folder.join("abi_version"), "4\n").unwrap();
        let found = CmDevice { name: "rdma_cm".into(), number: (10, 125), abi: 4 };
        assert_eq!(CmDevice::in_sysfs(&folder), Some(found));
        for wrong in ["10", "10:", "a:b", "10:1:2"] {
            fs::write(folder.join("dev"), wrong).unwrap();
            assert_eq!(CmDevice::in_sysfs(&folder), None, "{wrong}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_the_named_character_device_is_opened() {
        let dev = Path::new("/dev");
        let null = CmDevice { name: "null".into(), number: (1, 3), abi: 4 };
        assert!(null.open_in(dev, Duration::ZERO).is_ok());
        let wrong = CmDevice { number: (1, 5), ..null.clone() };
        let refused = wrong.open_in(dev, Duration::ZERO).unwrap_err();
        assert_eq!(refused.to_string(), "open: /dev/null is not the character device 1:5");
        let folder = folder("node");
        let begin = Instant::now();
        let refused = null.open_in(&folder, Duration::from_millis(30)).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::NOENT));
        assert!(begin.elapsed() >= Duration::from_millis(30));
        fs::write(folder.join("null"), "").unwrap();
        assert!(matches!(null.open_in(&folder, Duration::ZERO), Err(Error::Invalid { .. })));
        fs::remove_dir_all(folder).unwrap();
    }
}
