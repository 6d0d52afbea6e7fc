//! The devices of this process, by index.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use bareverbs_provider::process::ForkGuard;

use super::{SoftDevice, WeakDevice};

/// Those of the process that made the value. In a forked child, a thread that the child doesn't have
/// may hold the lock.
static DEVICES: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

struct Registry {
    fork_guard: ForkGuard,
    devices: Mutex<Vec<WeakDevice>>,
}

impl Registry {
    /// That of this process. `None` if the kernel can't tell it from its forked children.
    fn get() -> Option<&'static Self> {
        let known = DEVICES.load(Ordering::Acquire);
        // SAFETY: the pointer is null or that of a value that is never dropped.
        match unsafe { known.as_ref() } {
            Some(registry) if registry.fork_guard.is_same_process() => return Some(registry),
            _ => {}
        }
        let new = Self { fork_guard: ForkGuard::new().ok()?, devices: Mutex::default() };
        let new = Box::into_raw(Box::new(new));
        match DEVICES.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: from here on, the value is never dropped.
            Ok(_) => Some(unsafe { &*new }),
            // Another thread of this process was faster.
            Err(other) => {
                // SAFETY: `new` is the box of above, which no one else has.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: as for `known`, and it isn't null.
                Some(unsafe { &*other })
            }
        }
    }
}

/// Adds a device.
pub(super) fn add(device: &SoftDevice) {
    if let Some(registry) = Registry::get() {
        let mut devices = registry.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(WeakDevice::exists);
        devices.push(device.downgrade());
    }
}

/// The device with an index.
pub(super) fn find(index: u32) -> Option<SoftDevice> {
    let devices = Registry::get()?.devices.lock().unwrap_or_else(PoisonError::into_inner);
    let found = devices.iter().find(|device| device.index == index)?.upgrade();
    // Before the device: the drop of its last clone takes other locks.
    drop(devices);
    found
}
