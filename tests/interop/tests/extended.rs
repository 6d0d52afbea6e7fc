//! Runs of `bareverbs pingpong xsrq` with `ibv_xsrq_pingpong`, in both roles and mixed, and with
//! itself.

use std::process::Command;

use bareverbs_interop_tests::pingpong::{HOST, wait_until_listening};
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{device, kernel_test};
use serde_json::Value;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// The command of `bareverbs` if `ours`, else of the C program.
fn program(ours: bool, options: &[&str]) -> Command {
    let mut command = Command::new(if ours { "bareverbs" } else { "ibv_xsrq_pingpong" });
    if ours {
        command.args(["pingpong", "xsrq"]);
    } else if !device::is_infiniband() {
        command.args(["-g", &device::gid_index().to_string()]);
    }
    command.args(options);
    command
}

/// Runs a server and its clients to completion. Each is `bareverbs` (true) or the C program
/// (false).
fn run_pingpong(server: bool, clients: &[bool], options: &[&str]) -> Vec<Finished> {
    let number = clients.len().to_string();
    let mut server = Program::start(program(server, options).args(["-c", &number]));
    wait_until_listening(&mut server, 18515);
    let clients: Vec<_> =
        clients.iter().map(|&ours| Program::start(program(ours, options).arg(HOST))).collect();
    let finished: Vec<_> = std::iter::once(server).chain(clients).map(Program::finish).collect();
    for side in &finished {
        assert!(side.status.success(), "{finished:#?}");
    }
    finished
}

/// The addresses that a side printed, without `local` or `remote`.
fn addresses(side: &Finished, whose: &str) -> Vec<String> {
    let lines = side.stdout.lines().filter_map(|line| line.trim_start().strip_prefix(whose));
    let mut lines: Vec<_> = lines.map(|line| line.trim_start_matches(": ").to_owned()).collect();
    lines.sort();
    lines
}

/// Asserts that both sides print the same addresses, and exactly the lines of the C program.
fn expect_regular(sides: &[Finished]) {
    let (server, clients) = sides.split_first().unwrap();
    for side in sides {
        let lines: Vec<_> = side.stdout.lines().collect();
        assert_eq!(lines.last(), Some(&"success"), "{sides:#?}");
        assert_eq!(lines.len() % 2, 1, "{sides:#?}");
        assert!(lines.iter().all(|line| line.starts_with("   local: LID ")
            || line.starts_with("  remote: LID ")
            || *line == "success"));
    }
    let of_clients = |whose| {
        let mut all: Vec<_> = clients.iter().flat_map(|side| addresses(side, whose)).collect();
        all.sort();
        all
    };
    assert_eq!(addresses(server, "local"), of_clients("remote"), "{sides:#?}");
    assert_eq!(addresses(server, "remote"), of_clients("local"), "{sides:#?}");
}

#[kernel_test(device::xrc)]
fn default_xsrq_runs_match_ibv_xsrq_pingpong() {
    nothing_leaks(|| {
        for (server, client) in [(true, false), (false, true), (true, true)] {
            expect_regular(&run_pingpong(server, &[client], &[]));
        }
    });
}

#[kernel_test(device::xrc)]
fn xsrq_server_serves_several_clients() {
    nothing_leaks(|| {
        for (server, clients) in [
            (true, &[true, true, true][..]),
            (true, &[false, false]),
            (false, &[true, true]),
            (true, &[true, false, true]),
        ] {
            expect_regular(&run_pingpong(server, clients, &["-n", "20", "-s", "64"]));
        }
    });
}

#[kernel_test(device::xrc)]
fn xsrq_runs_with_every_size_and_mtu() {
    for (server, client) in [(true, false), (false, true)] {
        for size in ["1", "4097", "100000"] {
            expect_regular(&run_pingpong(
                server,
                &[client],
                &["-s", size, "-n", "3", "-m", "512", "-l", "3"],
            ));
        }
    }
    // More messages than the depth of the send queue.
    expect_regular(&run_pingpong(true, &[true], &["--num_tests=500", "--size=0x10"]));
}

#[kernel_test(device::xrc)]
fn xsrq_runs_with_events_on_either_side() {
    for (server, client) in [(true, false), (false, true), (true, true)] {
        expect_regular(&run_pingpong(server, &[client], &["-e", "-n", "20"]));
    }
}

#[kernel_test(device::xrc)]
fn xsrq_json_output() {
    let sides = run_pingpong(true, &[true, true], &["--json", "-n", "7"]);
    for (side, number) in sides.iter().zip([2, 1, 1]) {
        let report: Value = serde_json::from_str(&side.stdout).unwrap();
        assert_eq!(report["transport"], "xsrq");
        assert_eq!(report["messages"], 7 * number);
        assert_eq!(report["local"].as_array().unwrap().len(), number);
    }
}

#[kernel_test(device::no_xrc)]
fn xsrq_is_rejected_without_xrc() {
    nothing_leaks(|| {
        let refused = Program::start(&mut program(true, &[])).finish();
        refused.expect_failure("xsrq requires XRC, which the device does not support");
    });
}
