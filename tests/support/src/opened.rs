//! The guest's device. Public in [`crate::device`].

use std::sync::OnceLock;

use bareverbs::{Context, Device};

/// The name of the device: the first one that can be opened if the guest has several.
///
/// # Panics
/// If the guest has no RDMA device that can be opened.
pub fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        Context::open_first().expect("the guest has an RDMA device").device().name().to_owned()
    })
}

/// The device.
///
/// # Panics
/// If the guest has no RDMA device.
pub fn device() -> Device {
    Device::find(name()).expect("the guest's device")
}

/// Opens the device.
///
/// # Panics
/// If the device can't be opened.
pub fn open() -> Context {
    device().open().expect("the device opens")
}
