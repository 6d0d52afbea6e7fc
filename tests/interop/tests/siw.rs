//! Soft-iWARP: the lab's module with the C programs of rdma-core, and the tools.

use std::fs;
use std::process::Command;

use bareverbs_interop_tests::connect::run_client;
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::iproute2::ip;
use bareverbs_test_support::wire::{End, Wire};
use bareverbs_test_support::{device, kernel_test};

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// Runs a server and a client of rdma-core to their ends.
fn run(name: &str, server: &[&str], client: &[&str]) -> [Finished; 2] {
    let mut program = Program::start(Command::new(name).args(server));
    let mut command = Command::new(name);
    command.args(client);
    let finished = run_client(&mut program, command).expect_success();
    [program.finish().expect_success(), finished]
}

/// The lab's module works with the libraries that Debian ships.
#[kernel_test(device::iwarp)]
fn programs_of_rdma_core_run() {
    let host = device::ip().to_string();
    let info = Program::start(Command::new("ibv_devinfo").args(["-d", device::name()])).finish();
    let info = info.expect_success();
    assert!(info.stdout.contains("iWARP (1)") && info.stdout.contains("PORT_ACTIVE (4)"), "{info:#?}");
    let client = ["-c", "-a", &host, "-C", "3", "-v", "-V"];
    let [served, finished] = run("rping", &["-s", "-a", &host, "-v"], &client);
    assert_eq!(served.stdout.matches("server ping data: rdma-ping-").count(), 3, "{served:#?}");
    assert_eq!(finished.stdout.matches("ping data: rdma-ping-").count(), 3, "{finished:#?}");
}

/// Packets between two siw devices of a guest leave by their interfaces, where tests impair them.
#[kernel_test(device::iwarp)]
fn wire_carries_the_packets_of_two_devices() {
    let wire = Wire::new();
    let sent = || {
        let count = format!("/sys/class/net/{}/statistics/tx_bytes", End::Near.netdev());
        let count = fs::read_to_string(count).expect("the interface counts its bytes");
        count.trim().parse::<u64>().expect("a number")
    };
    let (near, far) = (End::Near.ip().to_string(), End::Far.ip().to_string());
    let (before, size) = (sent(), 50_000);
    let text = size.to_string();
    let client = ["-c", "-a", &far, "-I", &near, "-C", "2", "-S", &text, "-V"];
    run("rping", &["-s", "-a", &far, "-C", "2", "-S", &text], &client);
    // The server reads each ping from the client.
    assert!(sent() - before >= 2 * size, "{} bytes", sent() - before);
    wire.settle();
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
