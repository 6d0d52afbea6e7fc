//! Devices: those of the kernel, and soft devices that `BAREVERBS_SOFT` names.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, Once};

use bareverbs::device::NodeType;
use bareverbs::{AnyProvider, Device, Provider};

use crate::abi::Function;
use crate::abi::device::{_ibv_device_ops, ibv_device};
use crate::abi::values::{
    IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, IBV_TRANSPORT_UNKNOWN, IBV_TRANSPORT_UNSPECIFIED,
    IBV_TRANSPORT_USNIC, IBV_TRANSPORT_USNIC_UDP,
};
use crate::convention::{Failure, OrMinusOne, OrNull, Value, export, required};
use crate::environment::{SOFT, environment, variable};
use crate::fork;
use crate::object::lock;

/// The class of uverbs devices, without which the kernel has no verbs.
const UVERBS_CLASS: &str = "class/infiniband_verbs";

/// A limit of locked memory, in bytes, that is too small for most programs.
const SMALL_MEMLOCK: u64 = 32768;

/// A device of C. It begins with the struct of the ABI, which `verbs_device` of the provider libraries
/// extends: those compare its `ops`, at this offset, with their own.
#[repr(C)]
pub(crate) struct DeviceObject {
    pub(crate) abi: ibv_device,
    provider_ops: *const c_void,
    refcount: c_int,
    entry: [*const c_void; 2],
    sysfs: *const c_void,
    core_support: u64,
    pub(crate) device: Device,
}

// SAFETY: the pointers are null, and nothing changes the struct.
unsafe impl Send for DeviceObject {}
// SAFETY: as for `Send`.
unsafe impl Sync for DeviceObject {}

/// The devices that were listed last. A device keeps its address while it is listed or open.
static DEVICES: Mutex<Vec<Arc<DeviceObject>>> = Mutex::new(Vec::new());

impl DeviceObject {
    /// A reference of its own to a device of a list.
    pub(crate) fn reference(&'static self) -> Arc<Self> {
        // SAFETY: each device of a list came from an `Arc`, which exists now.
        unsafe {
            Arc::increment_strong_count(self);
            Arc::from_raw(self)
        }
    }

    /// A device that C knows by this name.
    pub(crate) fn new(name: &str, device: Device) -> Self {
        let uverbs = device.uverbs_path().and_then(Path::file_name).map(|name| name.to_string_lossy());
        let uverbs = uverbs.as_deref().unwrap_or_default();
        // UCX lists devices that have a character device of this name in `/dev/infiniband`.
        let dev_name = if device.soft().is_some() { name } else { uverbs };
        let in_sysfs = |class: &str, name: &str| match device.soft() {
            None if !name.is_empty() => format!("{}/{class}/{name}", sysfs().display()),
            // No file of the kernel has the path.
            _ => String::new(),
        };
        let node_type = c_int::from(device.node_type().0);
        Self {
            abi: ibv_device {
                _ops: _ibv_device_ops { _dummy1: Function::NULL, _dummy2: Function::NULL },
                node_type,
                transport_type: transport(device.node_type()),
                name: text(name),
                dev_name: text(dev_name),
                dev_path: text(&in_sysfs(UVERBS_CLASS, uverbs)),
                ibdev_path: text(&in_sysfs("class/infiniband", name)),
            },
            provider_ops: ptr::null(),
            refcount: 0,
            entry: [ptr::null(); 2],
            sysfs: ptr::null(),
            core_support: 0,
            device,
        }
    }

    /// Whether it is the device that was found now.
    fn is(&self, name: &str, device: &Device) -> bool {
        let name_is = self.abi.name == text::<64>(name);
        name_is && self.device.index() == device.index() && self.device.node_guid() == device.node_guid()
    }
}

/// The transport follows from the type of the node.
fn transport(node_type: NodeType) -> c_int {
    match node_type {
        NodeType::CHANNEL_ADAPTER | NodeType::SWITCH | NodeType::ROUTER => IBV_TRANSPORT_IB,
        NodeType::RNIC => IBV_TRANSPORT_IWARP,
        NodeType::USNIC => IBV_TRANSPORT_USNIC,
        NodeType::USNIC_UDP => IBV_TRANSPORT_USNIC_UDP,
        NodeType::UNSPECIFIED => IBV_TRANSPORT_UNSPECIFIED,
        _ => IBV_TRANSPORT_UNKNOWN,
    }
}

/// The text with a zero byte at its end, truncated to the array.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    array
}

fn sysfs() -> &'static Path {
    Path::new(OsStr::from_bytes(environment().sysfs.to_bytes()))
}

/// The soft devices that the environment names, `soft0` and so on for C. The first call creates them. An
/// address that can't be had is reported on standard error, as libibverbs reports a device without a
/// driver.
fn soft_devices(kernel: &[Device]) -> Vec<(String, Device)> {
    let addresses = variable(SOFT).unwrap_or_default();
    let addresses = addresses.to_string_lossy();
    let taken = |name: &String| kernel.iter().any(|device| device.name() == name);
    let names = (0..).map(|number| format!("soft{number}")).filter(|name| !taken(name));
    let addresses = addresses.split(',').map(str::trim).filter(|address| !address.is_empty());
    let found =
        names.zip(addresses).filter_map(|(name, address)| match Device::find(&format!("soft:{address}")) {
            Ok(device) => Some((name, device)),
            Err(error) => {
                eprintln!("libibverbs: {SOFT}: {error}");
                None
            }
        });
    found.collect()
}

/// Reports on standard error what will fail later, as libibverbs does once.
fn warn() {
    if environment().is_fork_safe && fork::init().is_err() {
        eprintln!("libibverbs: Warning: fork()-safety requested but init failed");
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read the user and a limit of this process.
    let (is_root, failed) =
        unsafe { (libc::geteuid() == 0, libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) != 0) };
    if !is_root && !failed && limit.rlim_cur <= SMALL_MEMLOCK {
        eprintln!(
            "libibverbs: Warning: RLIMIT_MEMLOCK is {} bytes.\n    \
             This will severely limit memory registrations.",
            limit.rlim_cur
        );
    }
}

/// Whether the device can be opened. A driver that only the open file names is not known before.
fn has_provider(device: &Device) -> bool {
    let has = device.driver_id().is_none_or(|driver| AnyProvider::drives(driver.0));
    if !has && environment().shows_warnings {
        eprintln!("libibverbs: Warning: no userspace device-specific driver found for {}", device.name());
    }
    has
}

/// Lists the devices. Those that were listed before keep their objects.
fn list() -> Result<Vec<Arc<DeviceObject>>, Failure> {
    static FIRST: Once = Once::new();
    FIRST.call_once(warn);
    let mut kernel = bareverbs::devices()?;
    kernel.retain(has_provider);
    let soft = soft_devices(&kernel);
    let found = kernel.into_iter().map(|device| (device.name().to_owned(), device)).chain(soft);
    let mut listed = lock(&DEVICES);
    let now: Vec<_> = found
        .map(|(name, device)| match listed.iter().find(|known| known.is(&name, &device)) {
            Some(known) => Arc::clone(known),
            None => Arc::new(DeviceObject::new(&name, device)),
        })
        .collect();
    if now.is_empty() && !sysfs().join(UVERBS_CLASS).exists() {
        return Err(bareverbs::Errno::NOSYS.into());
    }
    listed.clone_from(&now);
    Ok(now)
}

/// The object of a device that was opened.
pub(crate) fn listed(device: &Device) -> Result<Arc<DeviceObject>, Failure> {
    let found = list()?.into_iter().find(|known| known.is(device.name(), device));
    found.ok_or(Failure::NO_DEVICE)
}

export! {
    /// The list ends with null. It has a reference to each device.
    fn ibv_get_device_list(number: Option<&mut c_int>) -> OrNull<*const DeviceObject> {
        let devices = list();
        let count = devices.as_ref().map_or(0, Vec::len);
        if let Some(number) = number {
            *number = c_int::try_from(count).unwrap_or(c_int::MAX);
        }
        let pointers = devices?.into_iter().map(Arc::into_raw).chain([ptr::null()]);
        Ok(Box::leak(pointers.collect::<Box<[_]>>()).as_mut_ptr())
    }

    fn ibv_free_device_list(list: *mut *const DeviceObject) -> Value<()> {
        let mut length = 0;
        // SAFETY: the list is one of `ibv_get_device_list`, which ends with null; null is none.
        while !list.is_null() && !unsafe { *list.add(length) }.is_null() {
            // SAFETY: the list has a reference of its own to the device.
            drop(unsafe { Arc::from_raw(*list.add(length)) });
            length += 1;
        }
        if !list.is_null() {
            // SAFETY: the list is a leaked slice with null at its end.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, length + 1)) });
        }
        Ok(())
    }

    fn ibv_get_device_name(device: Option<&DeviceObject>) -> OrNull<c_char> {
        Ok(required(device)?.abi.name.as_ptr().cast_mut())
    }

    /// In network byte order.
    fn ibv_get_device_guid(device: Option<&DeviceObject>) -> Value<u64> {
        Ok(u64::from_ne_bytes(required(device)?.device.node_guid().0))
    }

    fn ibv_get_device_index(device: Option<&DeviceObject>) -> OrMinusOne {
        let index = required(device)?.device.index().and_then(|index| c_int::try_from(index).ok());
        index.ok_or(Failure::NO_DEVICE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_has_the_place_of_the_providers_functions() {
        assert_eq!(std::mem::offset_of!(DeviceObject, provider_ops), 664);
        assert!(size_of::<DeviceObject>() >= 712);
    }

    #[test]
    fn text_is_truncated_before_its_zero_byte() {
        assert_eq!(text::<4>("ab"), [97, 98, 0, 0]);
        assert_eq!(text::<3>("abcdef"), [97, 98, 0]);
    }
}
