//! `bareverbs perf` with the programs of perftest, in both roles, and with itself.
//!
//! A run of all tests includes only those whose names begin with `short`, on one kernel:
//! `xtask/src/test/selection.rs`.

#[path = "perf/doctor.rs"]
mod doctor;
#[path = "perf/faults.rs"]
mod faults;
#[path = "perf/load.rs"]
mod load;
#[path = "perf/managed.rs"]
mod managed;
#[path = "perf/multicast.rs"]
mod multicast;
#[path = "perf/options.rs"]
mod options;

use std::fs;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use bareverbs::qp::QpState;
use bareverbs_interop_tests::perf::{Benchmark, PAIRINGS, Run, Side, json, rows};
use bareverbs_interop_tests::pingpong::{HOST, PORT, wait_until_connected};
use bareverbs_interop_tests::program::Program;
use bareverbs_netlink::{Owner, QpResource, QpType, RdmaNetlink};

use bareverbs_test_support::{device, kernel_test};
use nix::sys::signal::Signal;
use serde_json::Value;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

const OPERATIONS: [&str; 4] = ["send", "write", "read", "atomic"];

fn size(operation: &str) -> u64 {
    if operation == "atomic" { 8 } else { 4096 }
}

/// The options, with a size unless it is fixed.
fn options<'a>(operation: &str, others: &[&'a str]) -> Vec<&'a str> {
    let size: &[&str] = if operation == "atomic" { &[] } else { &["-s", "4096"] };
    [size, others].concat()
}

/// The results of a size in a side's JSON.
fn result(json: &Value, size: u64) -> &Value {
    let results = json["results"].as_array().expect("results are an array");
    results.iter().find(|result| result["size"] == size).unwrap_or_else(|| panic!("{json:#}"))
}

/// Asserts the figures of a side that measured `messages` messages.
fn expect_measured(json: &Value, size: u64, messages: u64) {
    let result = result(json, size);
    assert_eq!(result["messages"], messages, "{json:#}");
    let seconds = result["seconds"].as_f64().unwrap();
    let average = result["bandwidth"]["gbit_per_second"].as_f64().unwrap();
    let expected = (messages * size * 8) as f64 / seconds / 1e9;
    assert!((average / expected - 1.0).abs() < 1e-6, "{json:#}");
    let nature = if device::is_soft_roce() { "Soft-RoCE" } else { "software model" };
    assert_eq!(json["environment"]["nature"], nature, "{json:#}");
}

fn expect_latencies(json: &Value, size: u64) {
    let latency = &result(json, size)["latency"];
    let names = ["min", "p50", "p90", "p99", "p99.9", "p99.99", "max"];
    let values = names.map(|name| latency[name].as_f64().unwrap_or_else(|| panic!("{name}: {json:#}")));
    assert!(values[0] > 0.0 && values.is_sorted(), "{json:#}");
    assert!((values[0]..=values[6]).contains(&latency["mean"].as_f64().unwrap()), "{json:#}");
}

/// Asserts that perftest's row of a size has the number of messages.
fn expect_row(run: &Run, side: Side, size: u64, messages: u64) {
    for (program, end) in [(run.sides.0, &run.server), (run.sides.1, &run.client)] {
        if program == side {
            let rows = rows(end);
            let found = rows.iter().any(|row| row[0] == size as f64 && row[1] == messages as f64);
            assert!(found, "{run:#?}");
        }
    }
}

/// The pairings with perftest, without that of `bareverbs` with itself.
const WITH_PERFTEST: &[(Side, Side)] = PAIRINGS.split_at(2).0;

#[kernel_test]
fn short_runs_interoperate_with_perftest() {
    for operation in OPERATIONS.into_iter().chain(["write-imm"]) {
        for test in ["bw", "lat"] {
            for pairing in WITH_PERFTEST {
                let run = Benchmark { operation, test }.run(*pairing, &options(operation, &["-n", "20"]));
                if let Some(json) = run.client_json() {
                    expect_latencies(&json, size(operation));
                }
                if test == "bw" {
                    expect_row(&run, Side::Perftest, size(operation), 20);
                }
            }
        }
    }
}

#[kernel_test]
fn short_runs_on_other_transports_interoperate() {
    for (operation, test, transport) in [("send", "lat", "UD"), ("write", "bw", "UC")] {
        for pairing in WITH_PERFTEST {
            let run =
                Benchmark { operation, test }.run(*pairing, &["-c", transport, "-s", "512", "-n", "20"]);
            let json = run.client_json();
            assert!(json.is_none_or(|json| json["transport"] == transport.to_lowercase()), "{run:#?}");
        }
    }
}

#[kernel_test]
fn short_run_reports_a_killed_server() {
    expect_notice(Benchmark { operation: "write", test: "bw" }, (Side::Perftest, Side::Bareverbs), true);
}

#[kernel_test]
fn bandwidth_tests_interoperate_with_perftest() {
    for operation in OPERATIONS.into_iter().chain(["write-imm"]) {
        let benchmark = Benchmark { operation, test: "bw" };
        for pairing in PAIRINGS {
            let run = benchmark.run(pairing, &options(operation, &["-n", "200"]));
            expect_row(&run, Side::Perftest, size(operation), 200);
            if let Some(json) = run.client_json() {
                expect_measured(&json, size(operation), 200);
                expect_latencies(&json, size(operation));
                let peer = if pairing.0 == Side::Perftest { "perftest" } else { "bareverbs" };
                assert_eq!(json["peer"]["program"], peer);
            }
            if let Some(json) = run.server_json() {
                match operation {
                    "send" | "write-imm" => expect_measured(&json, size(operation), 200),
                    _ => assert_eq!(result(&json, size(operation))["peer"]["iterations"], 200, "{json:#}"),
                }
            }
        }
    }
}

#[kernel_test]
fn latency_tests_interoperate_with_perftest() {
    for operation in OPERATIONS.into_iter().chain(["write-imm"]) {
        let benchmark = Benchmark { operation, test: "lat" };
        for pairing in PAIRINGS {
            let run = benchmark.run(pairing, &options(operation, &["-n", "100"]));
            let both = !matches!(operation, "read" | "atomic");
            if both || pairing.1 == Side::Perftest {
                expect_row(&run, Side::Perftest, size(operation), 100);
            }
            for (json, measures) in [(run.client_json(), true), (run.server_json(), both)] {
                if let (Some(json), true) = (json, measures) {
                    expect_latencies(&json, size(operation));
                    let count = result(&json, size(operation))["latency"]["count"].as_u64().unwrap();
                    assert_eq!(count, if both { 99 } else { 100 }, "{json:#}");
                }
            }
        }
    }
}

#[kernel_test]
fn bidirectional_tests_interoperate_with_perftest() {
    for operation in OPERATIONS {
        let benchmark = Benchmark { operation, test: "bw" };
        for pairing in PAIRINGS {
            let run = benchmark.run(pairing, &options(operation, &["-n", "200", "-b"]));
            for json in [run.client_json(), run.server_json()].into_iter().flatten() {
                expect_measured(&json, size(operation), 200);
                assert_eq!(result(&json, size(operation))["peer"]["iterations"], 200, "{json:#}");
            }
        }
    }
}

#[kernel_test]
fn timed_tests_interoperate_with_perftest() {
    for (operation, test) in [("send", "bw"), ("write", "lat")] {
        let benchmark = Benchmark { operation, test };
        for pairing in PAIRINGS {
            let run = benchmark.run(pairing, &options(operation, &["-D", "2"]));
            let Some(json) = run.client_json() else { continue };
            let result = result(&json, size(operation));
            // The first and the last quarter are not measured.
            assert_eq!(result["seconds"], 1.0, "{json:#}");
            expect_measured(&json, size(operation), result["messages"].as_u64().unwrap());
            expect_latencies(&json, size(operation));
        }
    }
}

/// Sends carry 160 MiB, which takes Soft-RoCE half a minute on a busy host.
#[kernel_test]
fn all_sizes_interoperate_with_perftest() {
    const LIMIT: Duration = Duration::from_secs(120);
    for (operation, test, pairings) in [("write", "bw", &PAIRINGS[..]), ("send", "lat", WITH_PERFTEST)] {
        let benchmark = Benchmark { operation, test };
        for pairing in pairings {
            let run = benchmark.run_within(LIMIT, *pairing, &["-a", "-n", "5"]);
            let Some(json) = run.client_json() else { continue };
            assert_eq!(json["results"].as_array().unwrap().len(), 23, "{json:#}");
            for bits in 1..=23 {
                let count = if test == "lat" && operation != "read" { 4 } else { 5 };
                assert_eq!(result(&json, 1 << bits)["messages"], count, "{json:#}");
            }
        }
    }
}

#[kernel_test]
fn all_sizes_in_both_directions_interoperate_with_perftest() {
    const LIMIT: Duration = Duration::from_secs(120);
    for pairing in WITH_PERFTEST {
        let benchmark = Benchmark { operation: "write", test: "bw" };
        let run = benchmark.run_within(LIMIT, *pairing, &["-a", "-b", "-n", "5"]);
        for json in [run.client_json(), run.server_json()].into_iter().flatten() {
            for bits in 1..=23 {
                assert_eq!(result(&json, 1 << bits)["messages"], 5, "{json:#}");
                assert_eq!(result(&json, 1 << bits)["peer"]["iterations"], 5, "{json:#}");
            }
        }
    }
}

#[kernel_test]
fn several_queue_pairs_lists_and_events() {
    for (operation, others) in [
        ("write", &["-q", "4", "-n", "100", "-t", "16"][..]),
        ("send", &["-q", "4", "-n", "100", "-r", "32"]),
        ("read", &["-q", "3", "-n", "100", "-b"]),
        ("write", &["-l", "20", "-n", "200", "-t", "60"]),
        ("write", &["-Q", "7", "-n", "100", "-t", "9"]),
        ("send", &["-e", "-n", "100"]),
        ("send", &["-e", "-b", "-n", "100"]),
        ("read", &["-e", "-n", "100", "-m", "512"]),
        ("write", &["-S", "3", "-u", "15", "-i", "1", "-n", "50", "-I", "0"]),
    ] {
        let benchmark = Benchmark { operation, test: "bw" };
        let number = |option: &str| {
            let at = others.iter().position(|word| *word == option)?;
            others.get(at + 1)?.parse::<u64>().ok()
        };
        let messages = number("-n").unwrap() * number("-q").unwrap_or(1);
        for pairing in PAIRINGS {
            // perftest refuses events of writes.
            let run = benchmark.run(pairing, &options(operation, others));
            if let Some(json) = run.client_json() {
                expect_measured(&json, size(operation), messages);
            }
        }
    }
}

#[kernel_test]
fn other_transports_interoperate_with_perftest() {
    for (operation, test, transport) in [
        ("send", "bw", "UD"),
        ("send", "lat", "UD"),
        ("send", "lat", "UC"),
        ("write", "lat", "UC"),
        ("write", "bw", "UC"),
    ] {
        let benchmark = Benchmark { operation, test };
        for pairing in PAIRINGS {
            let run = benchmark.run(pairing, &["-c", transport, "-s", "512", "-n", "50"]);
            if let Some(json) = run.client_json() {
                assert_eq!(json["transport"], transport.to_lowercase());
                expect_latencies(&json, 512);
            }
        }
    }
}

/// Runs a test on XRC, and asserts that all messages arrived.
fn run_on_xrc(benchmark: Benchmark, pairing: (Side, Side), others: &[&str], messages: u64) {
    let operation = benchmark.operation;
    let run = benchmark.run(pairing, &[&options(operation, others)[..], &["-c", "XRC"]].concat());
    // The server of reads and atomics has no latencies.
    let passive = benchmark.test == "lat" && matches!(operation, "read" | "atomic");
    for (json, measures) in [(run.client_json(), true), (run.server_json(), !passive)] {
        let Some(json) = json else { continue };
        assert_eq!(json["transport"], "xrc", "{json:#}");
        if measures {
            let result = result(&json, size(operation));
            let count = result["messages"].as_u64().filter(|&count| count > 0);
            let count = count.or(result["peer"]["iterations"].as_u64());
            assert_eq!(count, Some(messages), "{run:#?}");
        }
    }
    if let Some(json) = run.client_json() {
        expect_latencies(&json, size(operation));
    }
}

#[kernel_test(device::xrc)]
fn short_xrc_interoperates_with_perftest() {
    for (operation, test, messages) in [("send", "bw", 20), ("write", "bw", 20), ("write", "lat", 19)] {
        for pairing in WITH_PERFTEST {
            run_on_xrc(Benchmark { operation, test }, *pairing, &["-n", "20"], messages);
        }
    }
}

#[kernel_test(device::xrc)]
fn xrc_latency_tests_interoperate_with_perftest() {
    for operation in OPERATIONS.into_iter().chain(["write-imm"]) {
        let both = !matches!(operation, "read" | "atomic");
        let turns = if both { 49 } else { 50 };
        for pairing in PAIRINGS {
            run_on_xrc(Benchmark { operation, test: "lat" }, pairing, &["-n", "50"], turns);
        }
    }
}

#[kernel_test(device::xrc)]
fn xrc_bandwidth_tests_interoperate_with_perftest() {
    for operation in OPERATIONS.into_iter().chain(["write-imm"]) {
        let benchmark = Benchmark { operation, test: "bw" };
        for pairing in WITH_PERFTEST {
            run_on_xrc(benchmark, *pairing, &["-n", "100", "-q", "3"], 300);
            run_on_xrc(benchmark, *pairing, &["-n", "100", "-q", "2", "-b"], 200);
        }
    }
}

#[kernel_test(device::xrc)]
fn verified_xrc_runs_with_every_option() {
    let ours = (Side::Bareverbs, Side::Bareverbs);
    for (operation, others) in [
        ("send", &["-q", "4", "--threads", "2", "-b", "--verify", "-n", "100"][..]),
        ("write-imm", &["-q", "4", "--threads", "2", "--cq", "own", "--verify", "-n", "100"]),
        ("write", &["-q", "4", "-b", "-l", "10", "--verify", "-n", "100"]),
        ("read", &["-q", "4", "-b", "-e", "--verify", "-n", "100"]),
        ("atomic", &["-q", "4", "-b", "--verify", "-n", "100"]),
    ] {
        run_on_xrc(Benchmark { operation, test: "bw" }, ours, others, 400);
    }
}

/// The queue pairs of a program.
fn queue_pairs_of(program: &Program) -> Vec<QpResource> {
    let queue_pairs = RdmaNetlink::open().and_then(|mut netlink| netlink.queue_pairs(device::name()));
    let mut queue_pairs = queue_pairs.expect("the kernel lists queue pairs");
    queue_pairs.retain(|qp| qp.owner == Owner::Process(program.id().as_raw().unsigned_abs()));
    queue_pairs
}

/// The queue pairs of a program that only send on XRC.
fn xrc_requesters(program: &Program) -> usize {
    queue_pairs_of(program).iter().filter(|qp| qp.qp_type == Some(QpType::XRC_INI)).count()
}

/// Waits until a program has a queue pair in RTS.
fn wait_until_ready_to_send(program: &Program) {
    let begin = Instant::now();
    while !queue_pairs_of(program).iter().any(|qp| qp.state == Some(QpState::RTS)) {
        assert!(begin.elapsed() < SOON, "`{program:?}` has no queue pair in RTS");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[kernel_test(device::xrc)]
fn short_receiver_of_xrc_has_no_requester() {
    let benchmark = Benchmark { operation: "send", test: "bw" };
    let options = ["-c", "XRC", "-q", "3", "-D", "600"];
    let server = benchmark.serve(Side::Bareverbs, &options);
    let client = Program::start(&mut benchmark.command(Side::Bareverbs, &options, Some(HOST)));
    let begin = Instant::now();
    while xrc_requesters(&client) < 3 {
        assert!(begin.elapsed() < SOON, "the client has {} requesters", xrc_requesters(&client));
        std::thread::sleep(Duration::from_millis(50));
    }
    // Both sides have created their objects when messages arrive.
    std::thread::sleep(A_WHILE);
    assert_eq!((xrc_requesters(&client), xrc_requesters(&server)), (3, 0));
}

/// A device without XRC is refused at once, not when a peer has come.
#[kernel_test(device::no_xrc)]
fn short_xrc_is_refused_without_support() {
    let benchmark = Benchmark { operation: "send", test: "bw" };
    let server = Program::start(&mut benchmark.command(Side::Bareverbs, &["-c", "XRC"], None));
    server.finish_within(SOON).expect_failure("XRC");
}

/// The time in which a side notices that its peer ended, with a reserve for a slow machine.
const SOON: Duration = Duration::from_secs(20);
/// Time before the kill.
const A_WHILE: Duration = Duration::from_secs(1);

#[kernel_test]
fn killed_peers_are_reported() {
    for (operation, test) in
        [("send", "bw"), ("write", "bw"), ("send", "lat"), ("write", "lat"), ("read", "lat")]
    {
        let benchmark = Benchmark { operation, test };
        for (pairing, server_dies) in [
            ((Side::Bareverbs, Side::Bareverbs), true),
            ((Side::Bareverbs, Side::Perftest), false),
            ((Side::Perftest, Side::Bareverbs), true),
        ] {
            expect_notice(benchmark, pairing, server_dies);
        }
    }
}

/// Kills one side during a run, and asserts that the other one reports it.
fn expect_notice(benchmark: Benchmark, (server, client): (Side, Side), server_dies: bool) {
    let endless = ["-D", "600"];
    let mut server = benchmark.serve(server, &endless);
    let client = Program::start(&mut benchmark.command(client, &endless, Some(HOST)));
    wait_until_connected(&mut server, PORT);
    std::thread::sleep(A_WHILE);
    let (victim, survivor) = if server_dies { (server, client) } else { (client, server) };
    victim.signal(Signal::SIGKILL);
    victim.finish();
    let survivor = survivor.finish_within(SOON);
    assert_eq!(survivor.status.code(), Some(1), "{survivor:#?}");
    let message = survivor.stderr.lines().find(|line| line.starts_with("bareverbs: "));
    let message = message.unwrap_or_else(|| panic!("{survivor:#?}"));
    // A peer that is killed during the exchange with unread bytes resets the connection.
    let causes = ["the peer closed", "retry counter", "Connection reset by peer"];
    assert!(causes.iter().any(|cause| message.contains(cause)), "{message}");
}

#[kernel_test]
fn peers_that_speak_garbage_are_reported() {
    let benchmark = Benchmark { operation: "write", test: "bw" };
    for (bytes, words) in [
        (&b"GET / HTTP/1.1\r\nHost: 10.1.0.1\r\n\r\n"[..], "sent more than the 16 bytes"),
        (b"SSH-2.0-OpenSSH_", "it is not perftest"),
        (b"5.10\0\0\0\0\0\0\0\0\0\0\0\0", "too old"),
        (b"6.2", "closed the connection after 3 of the 16 bytes"),
    ] {
        let server = benchmark.serve(Side::Bareverbs, &[]);
        let mut stream = TcpStream::connect((HOST, PORT)).unwrap();
        stream.write_all(bytes).unwrap();
        // A server that has refused the bytes has reset the connection.
        let _ = stream.shutdown(Shutdown::Write);
        server.finish_within(SOON).expect_failure(words);
    }
}

#[kernel_test]
fn different_settings_are_named_on_both_sides() {
    let server = Benchmark { operation: "write", test: "bw" }.serve(Side::Bareverbs, &["-s", "64"]);
    let read = Benchmark { operation: "read", test: "bw" };
    let client = Program::start(&mut read.command(Side::Bareverbs, &["-s", "128"], Some(HOST)));
    client.finish_within(SOON).expect_failure("the peer has op=write, -s=64, this side op=read, -s=128");
    server.finish_within(SOON).expect_failure("the peer has op=read, -s=128, this side op=write, -s=64");
}

#[kernel_test]
fn expectations_decide_the_exit_status() {
    let benchmark = Benchmark { operation: "write", test: "lat" };
    let options = ["-n", "50"];
    for (expectation, status) in [("p99<10kg", 2), ("p99<10s", 0), ("p99<10000ms", 0), ("p50<1ns", 3)] {
        let server = benchmark.serve(Side::Perftest, &options);
        let junit = format!("/tmp/junit-{status}.xml");
        let asked = [&options[..], &["--expect", expectation, "--junit", &junit]].concat();
        let client = Program::start(&mut benchmark.command(Side::Bareverbs, &asked, Some(HOST))).finish();
        assert_eq!(client.status.code(), Some(status), "{client:#?}");
        if status != 2 {
            server.finish();
            let text = fs::read_to_string(&junit).unwrap();
            assert!(text.contains(&format!("failures=\"{}\"", u8::from(status == 3))), "{text}");
            json(&client);
        }
    }
}

#[kernel_test(device::soft_roce)]
fn counters_of_the_port_agree_with_the_messages() {
    let benchmark = Benchmark { operation: "write", test: "bw" };
    let run = benchmark.run((Side::Bareverbs, Side::Bareverbs), &["-s", "1024", "-n", "1000", "-m", "1024"]);
    let json = run.client_json().unwrap();
    let counters = json["counters"].as_array().unwrap();
    let sent = counters.iter().find(|counter| counter["name"] == "sent_pkts");
    let sent = sent.and_then(|counter| counter["change"].as_u64()).unwrap_or_else(|| panic!("{json:#}"));
    // Both sides are on one device: 1000 packets of data, and acknowledgements.
    assert!((1000..=2100).contains(&sent), "{json:#}");
}
