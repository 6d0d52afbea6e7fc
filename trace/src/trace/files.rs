//! Which interface a descriptor of a traced process belongs to.

use std::collections::HashMap;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bareverbs::devices;
use bareverbs_uapi::netlink::PROTOCOL_RDMA;
use rustix::fs::{major, minor};
use serde::{Deserialize, Serialize};

/// An interface of the kernel's RDMA subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// A uverbs file.
    Uverbs {
        /// The device, for example `rxe0`.
        device: String,
        /// Its driver id; 0 if it is unknown.
        driver: u32,
    },
    /// `/dev/infiniband/rdma_cm`.
    RdmaCm,
    /// A completion channel or an asynchronous event file.
    Events,
    /// A socket of RDMA netlink.
    Netlink,
}

/// The interfaces of descriptors, by the target of their link in `/proc`.
#[derive(Debug, Default)]
pub(super) struct Files {
    known: HashMap<PathBuf, Option<Interface>>,
}

impl Files {
    /// The interface of a descriptor; `None` for other files.
    pub(super) fn interface(&mut self, thread: i32, fd: i32) -> Option<Interface> {
        let path = PathBuf::from(format!("/proc/{thread}/fd/{fd}"));
        let target = fs::read_link(&path).ok()?;
        if let Some(known) = self.known.get(&target) {
            return known.clone();
        }
        let found = interface(thread, &path, &target);
        self.known.insert(target, found.clone());
        found
    }
}

fn interface(thread: i32, path: &Path, target: &Path) -> Option<Interface> {
    let text = target.to_str()?;
    if text == "anon_inode:[infinibandevent]" {
        return Some(Interface::Events);
    }
    if let Some(inode) = text.strip_prefix("socket:[").and_then(|text| text.strip_suffix(']')) {
        let sockets = fs::read_to_string(format!("/proc/{thread}/net/netlink")).ok()?;
        return is_rdma_socket(&sockets, inode).then_some(Interface::Netlink);
    }
    if !text.starts_with("/dev/") {
        return None;
    }
    let number = fs::metadata(path).ok()?.st_rdev();
    let sysfs = PathBuf::from(format!("/sys/dev/char/{}:{}", major(number), minor(number)));
    if let Ok(device) = fs::read_to_string(sysfs.join("ibdev")) {
        // umad files have a port as well.
        let uverbs = !sysfs.join("port").exists();
        let device = device.trim().to_owned();
        return uverbs.then(|| Interface::Uverbs { driver: driver(&device), device });
    }
    let is_cm = text.ends_with("/rdma_cm")
        || fs::read_link(sysfs).is_ok_and(|link| link.file_name().is_some_and(|name| name == "rdma_cm"));
    is_cm.then_some(Interface::RdmaCm)
}

/// The driver id of a device; 0 if it is unknown.
fn driver(device: &str) -> u32 {
    let all = devices().unwrap_or_default();
    let found = all.iter().find(|found| found.name() == device);
    found.and_then(|found| found.driver_id()).map_or(0, |driver| driver.0)
}

/// Whether `/proc/net/netlink` lists a socket with this inode as one of RDMA netlink.
fn is_rdma_socket(sockets: &str, inode: &str) -> bool {
    sockets.lines().any(|line| {
        let mut columns = line.split_whitespace();
        let protocol = columns.nth(1).and_then(|protocol| protocol.parse().ok());
        protocol == Some(PROTOCOL_RDMA) && columns.next_back() == Some(inode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_rdma_netlink_are_found_by_their_inode() {
        let sockets = "\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
0000000000000000 0   0          00000000 0        0        0     2        0        20
0000000000000000 20  4711       00000008 0        0        0     2        0        31415
";
        assert!(is_rdma_socket(sockets, "31415"));
        assert!(!is_rdma_socket(sockets, "20"));
        assert!(!is_rdma_socket(sockets, "1415"));
    }

    #[test]
    fn other_files_are_no_interface() {
        let mut files = Files::default();
        let this = i32::try_from(std::process::id()).unwrap();
        for fd in [0, 1, 2, 9999] {
            assert_eq!(files.interface(this, fd), None);
        }
    }
}
