//! The device of the tests. Public in [`crate::device`].

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use bareverbs::{Context, Device};
use bareverbs_provider::device::DeviceFile;

/// The environment variable with the name of the soft device that the tests of this process run on.
pub const DEVICE: &str = "BAREVERBS_TEST_DEVICE";

/// `Err` with the reason if a test can't run.
pub type Requirement = Result<(), String>;

/// Whether the test has several processes.
static BETWEEN_PROCESSES: AtomicBool = AtomicBool::new(false);

/// The names of the device that were found, of each process that has its own.
static NAMES: Mutex<Vec<(Option<u32>, &'static str)>> = Mutex::new(Vec::new());

/// Makes this device the device of the tests, before its name is first used.
pub(crate) fn choose(name: &str) {
    NAMES.lock().expect("no thread panics with it").push((None, name.to_owned().leak()));
}

/// The name of the device: that of the environment, or the first one of the guest that can be opened.
///
/// # Panics
/// If the guest has no RDMA device that can be opened.
pub fn name() -> &'static str {
    let mut names = NAMES.lock().expect("no thread panics with it");
    // The device of a forked child is that of its parent, unless each process has its own.
    let device = std::env::var(DEVICE);
    let own = (device.is_ok() && BETWEEN_PROCESSES.load(Ordering::Relaxed)).then(std::process::id);
    if let Some((_, name)) = names.iter().find(|(of, _)| *of == own) {
        return name;
    }
    let name = match (device, own) {
        (Ok(_), Some(process)) => name_on_loopback(process),
        (Ok(name), None) => name,
        (Err(_), _) => {
            Context::open_first().expect("the guest has an RDMA device").device().name().to_owned()
        }
    };
    let name = name.leak();
    names.push((own, name));
    name
}

/// A soft device with an address that no other process has: process ids have 22 bits.
fn name_on_loopback(process: u32) -> String {
    let [high, middle, low] = [process >> 16 | 0x80, process >> 8 & 0xff, process & 0xff];
    format!("soft:127.{high}.{middle}.{low}")
}

/// For tests with messages between processes. If the tests run on a soft device, which belongs to one
/// process, each process has its own from here on.
///
/// # Errors
/// None.
pub fn between_processes() -> Requirement {
    BETWEEN_PROCESSES.store(true, Ordering::Relaxed);
    Ok(())
}

/// Opens the file of the device.
///
/// # Panics
/// If the device can't be opened.
pub fn file() -> DeviceFile {
    let device = device();
    match (device.soft(), device.uverbs_path()) {
        (Some(soft), _) => soft.open().expect("a soft device"),
        (None, path) => {
            let driver = device.driver_id().expect("a driver id from RDMA netlink");
            DeviceFile::open(path.expect("a device node"), driver.0).expect("the device node")
        }
    }
}

/// The device.
///
/// # Panics
/// If there is no RDMA device.
pub fn device() -> Device {
    Device::find(name()).expect("the device of the tests")
}

/// Opens the device.
///
/// # Panics
/// If the device can't be opened.
pub fn open() -> Context {
    device().open().expect("the device opens")
}
