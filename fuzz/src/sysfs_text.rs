//! Lines of sysfs: GUIDs, device numbers, node types and P_Keys.
//!
//! Lines in the kernel's format are decoded unchanged. Any other line is decoded or rejected.

use bareverbs::parsers::read_sysfs_line;

use crate::input::Input;

pub(crate) fn run(data: &[u8]) {
    if let Ok(line) = std::str::from_utf8(data) {
        let read = read_sysfs_line(line);
        if let Some(guid) = read.guid {
            assert_eq!(read_sysfs_line(&guid.to_string()).guid, Some(guid));
        }
    }

    let mut input = Input(data);
    let [a, b, c, d] = [input.half(), input.half(), input.half(), input.half()];
    let line = format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}");
    let guid = read_sysfs_line(&line).guid.expect("a GUID");
    assert_eq!(guid.to_string(), line);

    let (major, minor) = (input.word(), input.word());
    assert_eq!(read_sysfs_line(&format!("{major}:{minor}")).number, Some((major, minor)));
    let node_type = input.byte();
    assert_eq!(read_sysfs_line(&format!("{node_type}: CA")).node_type.0, node_type);
    assert_eq!(read_sysfs_line(&format!("{a:#06x}\n")).pkey, Some(a));
}
