//! Soft-iWARP, with the C programs of rdma-core.

use std::fs;
use std::process::Command;

use bareverbs_interop_tests::connect::run_client;
use bareverbs_interop_tests::program::{Finished, Program};
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
    let options = ["-b", &host, "-S", "5000", "-C", "10", "-I", "2", "-T", "v"];
    let [_, finished] = run("rstream", &options, &[&["-s", &host], &options[..]].concat());
    assert!(finished.stdout.contains("xfers"), "{finished:#?}");
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
