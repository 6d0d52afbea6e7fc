//! The devices of this process, by index.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bareverbs_provider::process::PerProcess;

use super::{SoftDevice, WeakDevice};

static DEVICES: PerProcess<Mutex<Vec<WeakDevice>>> = PerProcess::empty();

/// `None` if the kernel can't tell this process from its forked children.
fn devices() -> Option<MutexGuard<'static, Vec<WeakDevice>>> {
    Some(DEVICES.get().ok()?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Adds a device.
pub(super) fn add(device: &SoftDevice) {
    if let Some(mut devices) = devices() {
        devices.retain(WeakDevice::exists);
        devices.push(device.downgrade());
    }
}

/// The device with an index.
pub(super) fn find(index: u32) -> Option<SoftDevice> {
    let devices = devices()?;
    let found = devices.iter().find(|device| device.index == index)?.upgrade();
    // Before the device: the drop of its last clone takes other locks.
    drop(devices);
    found
}
