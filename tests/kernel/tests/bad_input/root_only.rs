//! A device node that other users can't open.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use bareverbs_kernel_tests::device;

/// Makes the device node accessible to root only, until it is dropped.
pub(crate) struct RootOnly {
    node: String,
    before: fs::Permissions,
}

impl RootOnly {
    pub(crate) fn new() -> Self {
        let node = device::device().uverbs_path().unwrap().to_str().unwrap().to_owned();
        let before = fs::metadata(&node).unwrap().permissions();
        fs::set_permissions(&node, fs::Permissions::from_mode(0o600)).unwrap();
        Self { node, before }
    }

    /// The required start and end of the error message.
    pub(crate) fn words(&self) -> [String; 2] {
        [
            format!("cannot open {} of device {}: Permission denied", self.node, device::name()),
            "grant this user read and write access by a udev rule or a group".to_owned(),
        ]
    }
}

impl Drop for RootOnly {
    fn drop(&mut self) {
        fs::set_permissions(&self.node, self.before.clone()).unwrap();
    }
}
