//! Removal of the device of the tests, by its driver's bus.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::iproute2::attempt;
use crate::{TIMEOUT, device};

/// The device's driver and its address on the bus.
#[derive(Debug)]
pub struct Bus {
    driver: String,
    place: String,
    netdev: Option<String>,
}

impl Bus {
    /// The bus of the device of the tests, which is bound.
    ///
    /// # Panics
    /// If the device is [virtual](device::unbindable).
    pub fn new() -> Self {
        let last =
            |path: &Path| path.canonicalize().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let folder = device::sysfs("device");
        let driver = folder.join("driver").canonicalize().unwrap().to_str().unwrap().to_owned();
        let netdev = (!device::is_infiniband()).then(device::netdev);
        Self { driver, place: last(&folder), netdev }
    }

    fn write_driver_file(&self, what: &str) {
        fs::write(format!("{}/{what}", self.driver), &self.place).unwrap();
    }

    /// Unbinds the driver, which removes the device.
    pub fn unbind(&self) {
        self.write_driver_file("unbind");
    }

    /// Binds the driver again and waits until the device is as before; panics after the timeout.
    pub fn bind(&self) {
        self.write_driver_file("bind");
        let begin = Instant::now();
        let mut addressed = self.netdev.is_none();
        let is_back = || {
            fs::read_to_string(device::sysfs("ports/1/state"))
                .is_ok_and(|reported| reported.contains("ACTIVE"))
        };
        while !addressed
            || !is_back()
            || device::device().open().and_then(|context| context.default_gid(1)).is_err()
        {
            assert!(begin.elapsed() < 2 * TIMEOUT, "the device does not come back");
            let interfaces = fs::read_dir(format!("/sys/bus/pci/devices/{}/net", self.place));
            if let (false, Some(Ok(name))) = (addressed, interfaces.ok().and_then(|mut names| names.next())) {
                let name = name.file_name().into_string().expect("a name of an interface");
                addressed = attempt("ip", &format!("link set up dev {name}")).is_ok()
                    && attempt("ip", &format!("address add 10.1.0.1/24 dev {name}")).is_ok();
            }
            thread::sleep(Duration::from_millis(20));
        }
        while self.netdev.is_some() && device::gid().ipv4().is_none() {
            assert!(begin.elapsed() < 2 * TIMEOUT, "the device's address does not come back");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Default for Bus {
    fn default() -> Self {
        Self::new()
    }
}
