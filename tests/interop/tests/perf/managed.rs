//! Runs that the connection manager connects (`--cm`, perftest's `-R`).

use std::path::Path;
use std::time::Instant;

use bareverbs::qp::QpState;
use bareverbs_interop_tests::perf::{Benchmark, PAIRINGS, Run, Side};
use bareverbs_interop_tests::program::{Finished, LIMIT, Program};
use bareverbs_test_support::device::{self, Requirement};
use bareverbs_test_support::kernel_test;
use nix::sys::signal::Signal;

use crate::{
    SOON, WITH_PERFTEST, expect_latencies, expect_measured, expect_row, options, queue_pairs_of, size,
};

/// For tests with an IP address of the device.
///
/// # Errors
/// If the port is InfiniBand and the kernel has no IPoIB.
fn has_ip() -> Requirement {
    let there = !device::is_infiniband() || Path::new("/sys/class/net/ib0").exists();
    if there { Ok(()) } else { Err("this kernel has no IPoIB, so the device has no IP address".into()) }
}

/// The IP address of the device.
fn host() -> &'static str {
    if device::is_infiniband() { "10.2.0.1" } else { "10.1.0.1" }
}

/// Whether a program has a queue pair in RTS beside that of its control connection.
fn is_ready_to_send(program: &Program) -> bool {
    queue_pairs_of(program).iter().filter(|qp| qp.state == Some(QpState::RTS)).count() >= 2
}

/// Starts a client, again if it comes before the server listens.
fn client(server: &mut Program, benchmark: Benchmark, side: Side, options: &[&str]) -> Finished {
    let deadline = Instant::now() + LIMIT;
    loop {
        let client = Program::start(&mut benchmark.command(side, options, Some(host()))).finish();
        if client.status.success() || server.has_ended() || Instant::now() > deadline {
            return client;
        }
    }
}

fn run(benchmark: Benchmark, (server, other): (Side, Side), options: &[&str]) -> Run {
    let options = [&["-R"], options].concat();
    let mut running = Program::start(&mut benchmark.command(server, &options, None));
    let client = client(&mut running, benchmark, other, &options);
    let run = Run { sides: (server, other), server: running.finish(), client };
    assert!(run.server.status.success() && run.client.status.success(), "{run:#?}");
    run
}

#[kernel_test(has_ip)]
fn short_managed_runs_interoperate_with_perftest() {
    for pairing in WITH_PERFTEST {
        let benchmark = Benchmark { operation: "send", test: "lat" };
        let run = run(benchmark, *pairing, &options("send", &["-n", "20"]));
        if let Some(json) = run.client_json() {
            expect_latencies(&json, size("send"));
            assert_eq!(json["options"]["cm"], true, "{json:#}");
        }
    }
}

#[kernel_test(has_ip)]
fn managed_runs_interoperate_for_every_operation() {
    for operation in ["send", "write", "read", "atomic"] {
        for pairing in PAIRINGS {
            let both = options(operation, &["-n", "100", "-q", "2"]);
            let bandwidth = run(Benchmark { operation, test: "bw" }, pairing, &both);
            expect_row(&bandwidth, Side::Perftest, size(operation), 200);
            if let Some(json) = bandwidth.client_json() {
                expect_measured(&json, size(operation), 200);
            }
            let latency =
                run(Benchmark { operation, test: "lat" }, pairing, &options(operation, &["-n", "50"]));
            if let Some(json) = latency.client_json() {
                expect_latencies(&json, size(operation));
            }
        }
    }
}

#[kernel_test(has_ip)]
fn managed_runs_work_in_both_directions_and_with_threads() {
    let ours = (Side::Bareverbs, Side::Bareverbs);
    for pairing in PAIRINGS {
        run(Benchmark { operation: "write", test: "bw" }, pairing, &["-s", "512", "-n", "100", "-b"]);
    }
    for others in [&["--threads", "2", "--verify", "-b"][..], &["-e", "--srq"]] {
        let options = [&["-s", "512", "-n", "100", "-q", "4"], others].concat();
        let run = run(Benchmark { operation: "send", test: "bw" }, ours, &options);
        expect_measured(&run.client_json().unwrap(), 512, 400);
    }
}

/// Another operation at the other end is named, as over TCP.
#[kernel_test(has_ip)]
fn managed_runs_compare_the_settings() {
    let benchmark = |operation| Benchmark { operation, test: "bw" };
    let options = ["-R", "-n", "20", "-s", "64"];
    let mut server = Program::start(&mut benchmark("write").command(Side::Bareverbs, &options, None));
    let client = client(&mut server, benchmark("read"), Side::Bareverbs, &options);
    client.expect_failure("the peer has op=write, this side op=read");
    server.finish_within(SOON).expect_failure("the peer has op=read, this side op=write");
}

#[kernel_test(has_ip)]
fn end_of_a_managed_peer_is_noticed() {
    for killed in [true, false] {
        let benchmark = Benchmark { operation: "write", test: "bw" };
        let options = ["-R", "-D", "600", "-s", "4096"];
        let server = Program::start(&mut benchmark.command(Side::Bareverbs, &options, None));
        let client = loop {
            let mut client = Program::start(&mut benchmark.command(Side::Bareverbs, &options, Some(host())));
            while !client.has_ended() && !is_ready_to_send(&client) {
                std::thread::yield_now();
            }
            // It ends if it comes before the server listens.
            if !client.has_ended() {
                break client;
            }
        };
        let (victim, survivor) = if killed { (server, client) } else { (client, server) };
        victim.signal(Signal::SIGKILL);
        victim.finish();
        let survivor = survivor.finish_within(SOON);
        assert_eq!(survivor.status.code(), Some(1), "{survivor:#?}");
    }
}

#[kernel_test(has_ip)]
fn managed_client_without_a_server_is_rejected() {
    let benchmark = Benchmark { operation: "write", test: "bw" };
    let client = Program::start(&mut benchmark.command(Side::Bareverbs, &["-R"], Some(host())));
    client.finish_within(SOON).expect_failure("rejected");
}
