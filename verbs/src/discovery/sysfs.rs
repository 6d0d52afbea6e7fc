//! Devices, as sysfs reports them.

use std::fs;
use std::path::Path;

use bareverbs_uapi::nldev::NodeType;

use super::{Device, FoundBy, NODES, Source, Uverbs, node};
use crate::values::Guid;

/// The devices of the sysfs mounted at `root`; empty if the folder does not exist.
///
/// A missing or malformed file leaves its field empty. The list is informative: the authoritative
/// values are queried after the device is opened.
pub(super) fn devices(root: &Path) -> Vec<Device> {
    let uverbs = uverbs_devices(root);
    let class = root.join("class/infiniband");
    let mut devices: Vec<Device> = names(&class)
        .into_iter()
        .map(|name| {
            let folder = class.join(&name);
            let uverbs = uverbs.iter().find(|(device, _)| *device == name).map(|(_, uverbs)| uverbs.clone());
            Device {
                index: None,
                node_guid: guid(&line(&folder.join("node_guid"))).unwrap_or_default(),
                node_type: node_type(&line(&folder.join("node_type"))),
                fw_ver: line(&folder.join("fw_ver")),
                port_count: u8::try_from(names(&folder.join("ports")).len()).unwrap_or(u8::MAX),
                source: Source::Kernel(uverbs),
                found_by: FoundBy::Sysfs,
                name,
            }
        })
        .collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}

/// The uverbs devices, each with the name of its RDMA device.
fn uverbs_devices(root: &Path) -> Vec<(String, Uverbs)> {
    let class = root.join("class/infiniband_verbs");
    names(&class)
        .into_iter()
        .filter_map(|name| {
            let folder = class.join(&name);
            let number = device_number(&line(&folder.join("dev")))?;
            let uverbs = Uverbs { path: node(Path::new(NODES), &name, number), number, driver_id: None };
            Some((line(&folder.join("ibdev")), uverbs))
        })
        .collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn line(file: &Path) -> String {
    fs::read_to_string(file).map(|text| text.trim_end().to_owned()).unwrap_or_default()
}

/// Parses `231:192`.
pub(crate) fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Parses `1: CA`.
pub(crate) fn node_type(text: &str) -> NodeType {
    text.split(':').next().and_then(|number| number.parse().ok()).map_or(NodeType::UNSPECIFIED, NodeType)
}

/// Parses `0200:00ff:fe00:0001`.
pub(crate) fn guid(text: &str) -> Option<Guid> {
    let mut bytes = [0; 8];
    let mut groups = text.split(':');
    for pair in bytes.chunks_exact_mut(2) {
        pair.copy_from_slice(&u16::from_str_radix(groups.next()?, 16).ok()?.to_be_bytes());
    }
    groups.next().is_none().then_some(Guid(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed when the test ends.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("bareverbs-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn missing_sysfs_class_lists_no_device() {
        assert!(devices(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn sysfs_devices_are_listed_by_name_with_their_uverbs_node() {
        let sys = Folder::new("sysfs");
        for (name, guid) in [("rxe1", "0200:00ff:fe00:0002\n"), ("rxe0", "0200:00ff:fe00:0001\n")] {
            sys.write(&format!("class/infiniband/{name}/node_guid"), guid);
            sys.write(&format!("class/infiniband/{name}/node_type"), "1: CA\n");
            sys.write(&format!("class/infiniband/{name}/ports/1/state"), "4: ACTIVE\n");
        }
        sys.write("class/infiniband_verbs/abi_version", "6\n");
        sys.write("class/infiniband_verbs/uverbs7/ibdev", "rxe0\n");
        sys.write("class/infiniband_verbs/uverbs7/dev", "231:199\n");

        let found = devices(&sys.0);
        let listed: Vec<_> =
            found.iter().map(|device| (device.name(), device.node_guid().to_string())).collect();
        assert_eq!(listed, [("rxe0", "0200:00ff:fe00:0001".into()), ("rxe1", "0200:00ff:fe00:0002".into())]);
        assert_eq!(found[0].uverbs_path(), Some(Path::new("/dev/infiniband/uverbs7")));
        assert_eq!(found[1].uverbs_path(), None);
        assert_eq!((found[0].node_type(), found[0].port_count()), (NodeType::CHANNEL_ADAPTER, 1));
    }

    #[test]
    fn malformed_sysfs_lines_leave_fields_empty() {
        assert_eq!(guid("0200:00ff:fe00"), None);
        assert_eq!(guid("0200:00ff:fe00:0001:0002"), None);
        assert_eq!(guid("xyz"), None);
        assert_eq!(node_type(""), NodeType::UNSPECIFIED);
        assert_eq!(device_number("231"), None);
    }
}
