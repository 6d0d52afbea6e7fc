//! Parsers of sysfs files, public for fuzzing.

use bareverbs_uapi::nldev::NodeType;

use crate::discovery::sysfs;
use crate::values::Guid;

/// A line of a sysfs file, parsed as each of the types that are read from sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysfsLine {
    /// A GUID, such as `0200:00ff:fe00:0001`.
    pub guid: Option<Guid>,
    /// Major and minor number of a device, such as `231:192`.
    pub number: Option<(u32, u32)>,
    /// A node type, such as `1: CA`.
    pub node_type: NodeType,
    /// A P_Key, such as `0xffff`.
    pub pkey: Option<u16>,
}

/// Parses a line of a sysfs file.
#[must_use]
pub fn read_sysfs_line(line: &str) -> SysfsLine {
    SysfsLine {
        guid: sysfs::guid(line),
        number: sysfs::device_number(line),
        node_type: sysfs::node_type(line),
        pkey: crate::pkey::parse(line),
    }
}
