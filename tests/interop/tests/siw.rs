//! Soft-iWARP: the lab's module with the library of rdma-core, and the tools.

use std::process::Command;

use bareverbs_interop_tests::program::Program;
use bareverbs_test_support::iproute2::ip;
use bareverbs_test_support::{device, kernel_test};

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// The lab's module works with the library that Debian ships.
#[kernel_test(device::iwarp)]
fn devinfo_of_rdma_core_describes_the_device() {
    let info = Program::start(Command::new("ibv_devinfo").args(["-d", device::name()])).finish();
    let info = info.expect_success();
    assert!(info.stdout.contains("iWARP (1)") && info.stdout.contains("PORT_ACTIVE (4)"), "{info:#?}");
}

/// A pair of network interfaces. Drop removes the device over it too.
struct Netdev;

impl Netdev {
    const NAMES: [&str; 2] = ["siwnew0", "siwnew1"];

    fn new() -> Self {
        let [name, peer] = Self::NAMES;
        ip(&format!("link add {name} type veth peer name {peer}"));
        ip(&format!("link set dev {peer} up"));
        Self
    }
}

impl Drop for Netdev {
    fn drop(&mut self) {
        ip(&format!("link del {}", Self::NAMES[0]));
    }
}

fn bareverbs(arguments: &[&str]) -> String {
    Program::start(Command::new("bareverbs").args(arguments)).finish().expect_success().stdout
}

#[kernel_test(device::iwarp)]
fn tools_add_and_describe_a_device() {
    let _netdev = Netdev::new();
    let add =
        ["link", "add", "--up", "--address", "10.9.9.1/24", "--wait", "siw_new", "type", "siw", "netdev"];
    bareverbs(&[&add[..], &[Netdev::NAMES[0]]].concat());
    let status = bareverbs(&["status", "siw_new"]);
    assert!(status.contains("siw_new/1") && status.contains(Netdev::NAMES[0]), "{status}");
    let info = bareverbs(&["devinfo", "-d", "siw_new"]);
    assert!(info.contains("iWARP (1)") && info.contains("PORT_ACTIVE (4)"), "{info}");
    bareverbs(&["link", "delete", "siw_new"]);
    assert!(!bareverbs(&["devices"]).contains("siw_new"));
}
