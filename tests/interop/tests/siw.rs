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

/// The device that the tools create.
const NEW: &str = "siw_new";

/// A pair of network interfaces. Drop removes the device over it too.
struct Netdev;

impl Netdev {
    const NAMES: [&str; 2] = ["siwnew0", "siwnew1"];

    fn new() -> Self {
        let [name, peer] = Self::NAMES;
        ip(&format!("link add {name} address 02:00:00:00:79:01 type veth peer name {peer}"));
        ip(&format!("link set dev {peer} up"));
        Self
    }
}

impl Drop for Netdev {
    fn drop(&mut self) {
        ip(&format!("link del {}", Self::NAMES[0]));
    }
}

fn program(arguments: &[&str]) -> Program {
    Program::start(Command::new("bareverbs").args(arguments))
}

fn bareverbs(arguments: &[&str]) -> String {
    program(arguments).finish().expect_success().stdout
}

/// The words of each line.
fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[kernel_test(device::iwarp)]
fn tools_add_and_describe_a_device() {
    let netdev = Netdev::NAMES[0];
    let _netdev = Netdev::new();
    let add = ["link", "add", "--up", "--address", "10.9.9.1/24", "--wait", NEW, "type", "siw", "netdev"];
    bareverbs(&[&add[..], &[netdev]].concat());
    program(&["link", "add", "siw_other", "type", "siw", "netdev", netdev])
        .finish()
        .expect_failure("the network interface has a device of this type already");

    let link = format!("link {NEW}/1 state ACTIVE physical_state LINK_UP netdev {netdev}\n");
    assert_eq!(bareverbs(&["link", "show", NEW]), link);
    // The GID is the MAC address.
    let gid = "200:0:7901::";
    assert_eq!(
        words(&bareverbs(&["status", NEW])),
        [
            vec!["DEVICE/PORT", "STATE", "NETDEV", "GID", "INDEX", "RATE", "MTU", "DRIVER"],
            vec![&*format!("{NEW}/1"), "ACTIVE", netdev, gid, "0", "10", "Gbit/s", "1024", "siw"],
        ]
    );
    let info = bareverbs(&["devinfo", "-d", NEW, "-v"]);
    let lines = words(&info);
    for expected in [
        &["transport:", "iWARP", "(1)"][..],
        &["state:", "PORT_ACTIVE", "(4)"],
        &["active_mtu:", "1024", "(3)"],
        &["port_lid:", "0"],
        &["link_layer:", "Ethernet"],
        &["max_qp_rd_atom:", "128"],
        &["atomic_cap:", "ATOMIC_NONE", "(0)"],
        &["max_mw:", "0"],
    ] {
        assert!(lines.iter().any(|line| line == expected), "no {expected:?} in {info}");
    }
    assert!(info.contains("0200:0000:7901:0000:0000:0000:0000:0000"), "{info}");
    // siw has no counters, and no program has objects of the device.
    assert_eq!(bareverbs(&["stat", "show", "link", &format!("{NEW}/1")]), format!("link {NEW}/1\n"));
    let unused = format!("{NEW}: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0\n");
    assert_eq!(bareverbs(&["resources", "-d", NEW]), unused);

    bareverbs(&["link", "delete", NEW]);
    assert!(!bareverbs(&["devices"]).contains(NEW));
}
