//! The options of `bareverbs perf` that perftest does not have.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use bareverbs_interop_tests::perf::{Benchmark, PAIRINGS, Run, Side, json};
use bareverbs_interop_tests::pingpong::{HOST, wait_until_listening};
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::{device, kernel_test};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

use super::{OPERATIONS, SOON, WITH_PERFTEST, options, result, size, wait_until_ready_to_send};

/// Runs two programs with options of their own to success.
fn run(benchmark: Benchmark, pairing: (Side, Side), server: &[&str], client: &[&str]) -> Run {
    let running = benchmark.serve(pairing.0, server);
    let started = Program::start(&mut benchmark.command(pairing.1, client, Some(HOST)));
    let (client, server) = (started.finish(), running.finish());
    let run = Run { sides: pairing, server, client };
    assert!(run.server.status.success() && run.client.status.success(), "{run:#?}");
    run
}

/// The pairing of `bareverbs` with itself.
const OURS: (Side, Side) = (Side::Bareverbs, Side::Bareverbs);

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// The only result of a side.
fn only(json: &Value) -> &Value {
    let results = json["results"].as_array().expect("results are an array");
    assert_eq!(results.len(), 1, "{json:#}");
    &results[0]
}

/// Asserts that both sides compared the messages that they can compare.
fn expect_compared(run: &Run, operation: &str, messages: u64) {
    let compared = |json: Option<Value>| only(&json.unwrap())["compared"].as_u64();
    let (server, client) = (compared(run.server_json()), compared(run.client_json()));
    match operation {
        // The receiver compares each message.
        "send" | "write-imm" => assert_eq!(server, Some(messages), "{run:#?}"),
        // The client compares each response.
        "read" | "atomic" => assert_eq!(client, Some(messages), "{run:#?}"),
        _ => {}
    }
}

#[kernel_test]
fn short_runs_compare_every_message() {
    for operation in OPERATIONS.into_iter().chain(["write-imm"]) {
        for test in ["bw", "lat"] {
            let run = Benchmark { operation, test }.run(OURS, &options(operation, &["-n", "20", "--verify"]));
            if test == "bw" {
                expect_compared(&run, operation, 20);
            }
        }
    }
}

#[kernel_test]
fn verified_runs_with_every_option() {
    for (operation, others) in [
        ("send", &["-s", "3000", "-q", "3", "-n", "500"][..]),
        ("send", &["-s", "200", "-n", "500", "-c", "UD"]),
        ("send", &["-s", "5000", "-n", "200", "-c", "UC"]),
        ("send", &["-s", "64", "-n", "500", "-q", "4", "--srq", "-r", "200"]),
        ("send", &["--mix", "1:1,7:1,64:3,4096:2", "-n", "1000"]),
        ("send", &["-s", "64", "-b", "-n", "500"]),
        ("write", &["-s", "100", "-n", "1000", "-t", "7"]),
        ("write", &["-s", "100", "-n", "1000", "-b", "-q", "4", "--threads", "2"]),
        ("write", &["-s", "4096", "-D", "2"]),
        ("write", &["--mix", "1:1,7:1,64:3,4096:2", "-n", "1000"]),
        ("write", &["-a", "-n", "5"]),
        ("write", &["-l", "10", "-n", "100", "-s", "512"]),
        ("write", &["-s", "32", "-I", "64", "-n", "100"]),
        ("write-imm", &["-s", "5000", "-n", "1000", "-q", "2"]),
        ("write-imm", &["-s", "64", "-n", "1000", "-q", "4", "--srq"]),
        ("read", &["-s", "5000", "-n", "500", "-q", "2", "--cq", "own"]),
        ("read", &["-s", "64", "-b", "-n", "500"]),
        ("read", &["-D", "2", "-s", "64"]),
        ("atomic", &["-n", "1000", "-q", "3"]),
        ("atomic", &["-D", "2", "-b"]),
    ] {
        let benchmark = Benchmark { operation, test: "bw" };
        let run = benchmark.run_within(Duration::from_secs(120), OURS, &[others, &["--verify"]].concat());
        let compared = [run.client_json(), run.server_json()].into_iter().flatten();
        let compared: u64 = compared
            .flat_map(|json| json["results"].as_array().cloned().unwrap_or_default())
            .filter_map(|result| result["compared"].as_u64())
            .sum();
        assert!(compared > 0, "{run:#?}");
    }
    for (operation, others) in [
        ("send", &["-s", "200", "-c", "UD"][..]),
        ("send", &["-s", "5000", "-c", "UC"]),
        ("write", &["-s", "5000", "-c", "UC"]),
        ("write-imm", &["-s", "5000", "-c", "UC"]),
        ("write", &["-s", "2"]),
        ("read", &["-s", "5000"]),
        ("atomic", &[]),
    ] {
        let benchmark = Benchmark { operation, test: "lat" };
        let run = benchmark.run(OURS, &[others, &["-n", "200", "--verify"]].concat());
        let client = run.client_json().unwrap();
        // Each side compares what it receives.
        assert_eq!(only(&client)["compared"], 200, "{client:#}");
    }
}

/// The data of reads lies in the server's memory and does not change, so that it can be corrupted
/// from outside.
#[kernel_test]
fn short_run_names_a_corrupt_byte() {
    const SIZE: usize = 4096;
    const OFFSET: usize = 1234;
    let benchmark = Benchmark { operation: "read", test: "bw" };
    let options = ["-s", "4096", "-t", "1", "-D", "20", "--verify"];
    let server = benchmark.serve(Side::Bareverbs, &options);
    let client = Program::start(&mut benchmark.command(Side::Bareverbs, &options, Some(HOST)));
    let memory = format!("/proc/{}/mem", server.id());
    let memory = File::options().read(true).write(true).open(memory).unwrap();
    let begin = Instant::now();
    // The server has no data before its client has connected.
    while corrupt(&memory, server.id(), SIZE, OFFSET) == 0 {
        assert!(begin.elapsed() < SOON, "the server's memory has no data");
        std::thread::sleep(Duration::from_millis(100));
    }
    let client = client.finish_within(SOON);
    client.expect_failure("byte 1234 of message 1 of queue pair 0 is ");
    server.finish_within(SOON).expect_failure("the peer closed");
}

/// Changes a byte of each message of this size with number 1 in a process's memory, and returns how many
/// it has changed.
fn corrupt(memory: &File, process: Pid, size: usize, offset: usize) -> usize {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let mut corrupted = 0;
    for line in maps.lines().filter(|line| line.contains("rw-p")) {
        let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        if bytes.len() > 1 << 24 || memory.read_exact_at(&mut bytes, start).is_err() {
            continue;
        }
        // The second message begins with the number 1, XORed with the mark of the numbers.
        let number = (0xb5ad_4ece_da1c_e2a9_u64 ^ 1).to_le_bytes();
        let Some(last) = bytes.len().checked_sub(size) else { continue };
        let places = (0..=last).step_by(64);
        for at in places.filter(|&at| bytes[at..].starts_with(&number)) {
            let byte = bytes[at + offset] ^ 0xff;
            memory.write_all_at(&[byte], start + (at + offset) as u64).unwrap();
            corrupted += 1;
        }
    }
    corrupted
}

/// Without `--verify` at the other end, data can't be compared.
#[kernel_test]
fn short_run_refuses_to_compare_with_perftest() {
    let benchmark = Benchmark { operation: "write", test: "bw" };
    let server = benchmark.serve(Side::Perftest, &["-n", "20"]);
    let options = ["-n", "20", "--verify"];
    let client = Program::start(&mut benchmark.command(Side::Bareverbs, &options, Some(HOST)));
    client.finish_within(SOON).expect_failure("--verify needs this program on both sides");
    server.finish_within(SOON);
}

/// A rate that every machine reaches.
const RATE: f64 = 500.0;

#[kernel_test]
fn short_open_loop_keeps_its_rate() {
    for (operation, pairing) in [("write", WITH_PERFTEST[0]), ("send", OURS)] {
        let benchmark = Benchmark { operation, test: "bw" };
        let messages = ["-s", "64", "-n", "1000"];
        let run = run(benchmark, pairing, &messages, &[&messages[..], &["--rate", "500/s"]].concat());
        let json = run.client_json().unwrap();
        let result = only(&json);
        // The last message is due after 999 intervals.
        let rate = 999.0 / number(&result["seconds"]);
        assert!((rate / RATE - 1.0).abs() < 0.05, "{json:#}");
        assert_eq!(result["latency"]["of"], "scheduled time to completion");
        assert_eq!(result["latency"]["count"], 1000);
    }
}

/// The receiver is stopped for a second. Messages that were due in that time were late, and their
/// latencies say so: in a closed loop, only those of the outstanding messages do.
#[kernel_test]
fn open_loop_counts_the_wait_of_late_messages() {
    const DEPTH: u64 = 8;
    let benchmark = Benchmark { operation: "send", test: "bw" };
    let both = ["-s", "64", "-D", "6", "-f", "0.1", "-r", "8", "-t", "8", "-Q", "1"];
    let late = |paced: &[&str]| {
        let server = benchmark.serve(Side::Bareverbs, &both);
        let client = [&both[..], paced].concat();
        let client = Program::start(&mut benchmark.command(Side::Bareverbs, &client, Some(HOST)));
        wait_until_ready_to_send(&client);
        std::thread::sleep(Duration::from_secs(1));
        server.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_secs(1));
        server.signal(Signal::SIGCONT);
        let client = client.finish().expect_success();
        server.finish().expect_success();
        let json = json(&client);
        let buckets = only(&json)["latency"]["histogram"].as_array().unwrap().clone();
        let slow = buckets.iter().filter(|bucket| number(&bucket["from"]) > 100_000.0);
        slow.map(|bucket| bucket["count"].as_u64().unwrap()).sum::<u64>()
    };
    let (open, closed) = (late(&["--rate", "500"]), late(&[]));
    // 450 messages were due more than 100 ms before the receiver went on, and it takes time to catch
    // up with them. A kernel that retries slowly makes a few more messages late.
    assert!(open >= 400, "{open} late messages");
    let most = (4 * DEPTH).max(open / 8);
    assert!((1..=most).contains(&closed), "{closed} late messages in a closed loop, {open} in an open one");
}

#[kernel_test]
fn short_threads_share_the_queue_pairs() {
    for (operation, pairing, ours) in [
        ("write", WITH_PERFTEST[0], &["--threads", "2"][..]),
        ("send", WITH_PERFTEST[1], &["--threads", "2", "--srq"]),
        ("send", OURS, &["--threads", "4", "--cq", "own"]),
    ] {
        let benchmark = Benchmark { operation, test: "bw" };
        let both = ["-s", "512", "-q", "4", "-n", "100"];
        let options = |side| [&both[..], if side == Side::Bareverbs { ours } else { &[] }].concat();
        let run = run(benchmark, pairing, &options(pairing.0), &options(pairing.1));
        for json in [run.client_json(), run.server_json()].into_iter().flatten() {
            assert_eq!(only(&json)["messages"], 400, "{json:#}");
            assert_eq!(only(&json)["bytes"], 400 * 512, "{json:#}");
        }
    }
}

#[kernel_test]
fn short_mix_has_the_ratio_of_its_weights() {
    let sizes = &["-n", "400", "--mix", "64:3,4096:1"][..];
    let operations = &["-n", "400", "--mix", "write/64:2,read/1024:1,atomic:1"][..];
    for (pairing, server, mix, expected) in [
        // perftest serves the memory of the largest message.
        (
            WITH_PERFTEST[0],
            &["-s", "4096", "-n", "400"][..],
            sizes,
            &[("write", 64, 0.75), ("write", 4096, 0.25)][..],
        ),
        (OURS, operations, operations, &[("write", 64, 0.5), ("read", 1024, 0.25), ("atomic", 8, 0.25)]),
    ] {
        let run = run(Benchmark { operation: "write", test: "bw" }, pairing, server, mix);
        let json = run.client_json().unwrap();
        let result = only(&json);
        let kinds = result["mix"].as_array().unwrap();
        assert_eq!(kinds.len(), expected.len(), "{json:#}");
        let mut bytes = 0;
        for (kind, (operation, size, share)) in kinds.iter().zip(expected) {
            assert_eq!((&kind["operation"], &kind["size"]), (&Value::from(*operation), &Value::from(*size)));
            let messages = kind["messages"].as_u64().unwrap();
            assert!((messages as f64 / 400.0 - share).abs() < 0.1, "{json:#}");
            assert_eq!(kind["latency"]["count"], messages, "{json:#}");
            bytes += messages * size;
        }
        assert_eq!(result["bytes"], bytes, "{json:#}");
    }
}

/// Asserts that the sum of the peers' results is that of all.
fn expect_sum(json: &Value, peers: usize, messages: u64) {
    let found = json["peers"].as_array().expect("there are several peers");
    assert_eq!(found.len(), peers, "{json:#}");
    for peer in found {
        let result = only(peer);
        let count = result["messages"].as_u64().filter(|&count| count > 0);
        assert_eq!(count.or(result["peer"]["iterations"].as_u64()), Some(messages), "{json:#}");
    }
    let all = only(json);
    let count = all["messages"].as_u64().filter(|&count| count > 0);
    assert_eq!(count.or(all["peer"]["iterations"].as_u64()), Some(messages * peers as u64), "{json:#}");
}

#[kernel_test]
fn short_server_runs_with_several_clients() {
    for (operation, sides) in [
        ("write", [Side::Bareverbs, Side::Perftest, Side::Bareverbs]),
        ("send", [Side::Bareverbs, Side::Bareverbs, Side::Perftest]),
    ] {
        let benchmark = Benchmark { operation, test: "bw" };
        let both = ["-s", "512", "-n", "100"];
        let server = benchmark.serve(Side::Bareverbs, &[&both[..], &["--clients", "3"]].concat());
        let clients = sides.map(|side| {
            // The clients that come first wait for the others.
            std::thread::sleep(Duration::from_millis(300));
            Program::start(&mut benchmark.command(side, &both, Some(HOST)))
        });
        for client in clients {
            client.finish().expect_success();
        }
        expect_sum(&json(&server.finish().expect_success()), 3, 100);
    }
}

#[kernel_test]
fn server_ends_with_all_clients_if_one_is_killed() {
    let benchmark = Benchmark { operation: "send", test: "bw" };
    let both = ["-s", "512", "-D", "600"];
    let server = benchmark.serve(Side::Bareverbs, &[&both[..], &["--clients", "2"]].concat());
    let clients =
        [(), ()].map(|()| Program::start(&mut benchmark.command(Side::Bareverbs, &both, Some(HOST))));
    clients.iter().for_each(wait_until_ready_to_send);
    let [victim, survivor] = clients;
    victim.signal(Signal::SIGKILL);
    victim.finish();
    let server = server.finish_within(SOON);
    assert_eq!(server.status.code(), Some(1), "{server:#?}");
    assert!(!server.stderr.contains("another thread"), "{server:#?}");
    let survivor = survivor.finish_within(SOON);
    assert_eq!(survivor.status.code(), Some(1), "{survivor:#?}");
}

#[kernel_test]
fn short_hosts_run_with_each_other() {
    let benchmark = Benchmark { operation: "write", test: "bw" };
    let hosts = [4801, 4802, 4803].map(|port| format!("{HOST}:{port}")).join(",");
    let start = |rank: &str| {
        let options = ["-s", "512", "-n", "100", "-b", "--all-to-all", &hosts, "--rank", rank];
        Program::start(&mut benchmark.command(Side::Bareverbs, &options, None))
    };
    // The hosts need not start in order.
    let programs = ["2", "0", "1"].map(|rank| {
        let program = start(rank);
        std::thread::sleep(Duration::from_millis(200));
        program
    });
    let finished: [Finished; 3] = programs.map(|program| program.finish().expect_success());
    for host in finished {
        expect_sum(&json(&host), 2, 100);
    }
}

/// Runs 2,000 queue pairs in one process on each side.
fn two_thousand_queue_pairs(operation: &'static str, others: &[&str]) {
    let benchmark = Benchmark { operation, test: "bw" };
    let both = ["-s", "64", "-q", "2000", "-n", "10", "-t", "4"];
    let run = benchmark.run_within(Duration::from_secs(300), OURS, &[&both[..], others].concat());
    let json = run.client_json().unwrap();
    let result = only(&json);
    assert_eq!(result["messages"], 20_000, "{json:#}");
    println!("2000 queue pairs, {others:?}: {} s, {}", result["seconds"], result["latency"]["p99"]);
}

#[kernel_test]
fn two_thousand_queue_pairs_share_a_cq() {
    two_thousand_queue_pairs("write", &["--cq", "shared"]);
}

#[kernel_test]
fn two_thousand_queue_pairs_have_their_own_cqs() {
    two_thousand_queue_pairs("write", &["--cq", "own"]);
}

#[kernel_test]
fn two_thousand_queue_pairs_are_served_by_two_threads() {
    two_thousand_queue_pairs("write", &["--threads", "2"]);
}

#[kernel_test]
fn two_thousand_queue_pairs_share_an_srq() {
    // A busy processor may serve a queue pair late: 7 timeouts of 4.3 s end a run, not 7 of 0.27 s.
    two_thousand_queue_pairs("send", &["--cq", "shared", "--srq", "-u", "20"]);
}

#[kernel_test]
fn page_and_comparison_are_written() {
    let benchmark = Benchmark { operation: "write", test: "bw" };
    let mut files = Vec::new();
    for size in ["512", "4096"] {
        let page = format!("/tmp/run-{size}.html");
        let both = ["-s", size, "-n", "100"];
        let run = run(benchmark, OURS, &both, &[&both[..], &["--html", &page]].concat());
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"), "{text}");
        let nature = run.client_json().unwrap()["environment"]["nature"].as_str().unwrap().to_owned();
        assert!(text.contains(&nature), "{text}");
        let file = format!("/tmp/run-{size}.json");
        fs::write(&file, &run.client.stdout).unwrap();
        files.push(file);
    }
    let mut report = std::process::Command::new("bareverbs");
    report.args(["perf", "report", "--html", "/tmp/both.html"]).args(&files);
    let report = Program::start(&mut report).finish().expect_success();
    assert!(report.stdout.contains("512") && report.stdout.contains("4096"), "{report:#?}");
    assert!(fs::read_to_string("/tmp/both.html").unwrap().contains("<svg"));
}

/// All pairings accept the options that concern one side only.
#[kernel_test]
fn options_of_one_side_interoperate_with_perftest() {
    for pairing in PAIRINGS {
        for (operation, ours) in [
            ("write", &["--rate", "2000"][..]),
            ("read", &["--threads", "2", "--cq", "own"]),
            ("send", &["--threads", "2", "--srq"]),
            ("atomic", &["--rate", "1k", "--threads", "2"]),
        ] {
            let benchmark = Benchmark { operation, test: "bw" };
            let both = options(operation, &["-n", "100", "-q", "2"]);
            let of = |side| [&both[..], if side == Side::Bareverbs { ours } else { &[] }].concat();
            let run = run(benchmark, pairing, &of(pairing.0), &of(pairing.1));
            if let Some(json) = run.client_json() {
                assert_eq!(result(&json, size(operation))["messages"], 200, "{json:#}");
            }
        }
    }
}

/// UC has no acknowledgements, so that the device sends the packets of the messages and no others.
#[kernel_test(device::soft_roce)]
fn bytes_agree_with_the_counters_of_the_port() {
    let benchmark = Benchmark { operation: "write", test: "bw" };
    let both = ["-c", "UC", "-s", "8192", "-n", "2000", "-m", "1024"];
    let run = benchmark.run(OURS, &both);
    let json = run.client_json().unwrap();
    let counters = json["counters"].as_array().unwrap();
    let sent = counters.iter().find(|counter| counter["name"] == "sent_pkts");
    let sent = sent.and_then(|counter| counter["change"].as_u64()).unwrap_or_else(|| panic!("{json:#}"));
    let result = only(&json);
    // Gbit/s times seconds, in bytes.
    let bytes = number(&result["bandwidth"]["gbit_per_second"]) * number(&result["seconds"]) * 125e6;
    assert!((bytes / (sent * 1024) as f64 - 1.0).abs() < 0.01, "{bytes} bytes in {sent} packets: {json:#}");
}

/// Waits for a server at the port of a host of `--all-to-all`.
#[kernel_test]
fn missing_host_is_reported() {
    let benchmark = Benchmark { operation: "write", test: "bw" };
    let hosts = format!("{HOST}:4811,{HOST}:4812");
    let options = ["-b", "--all-to-all", &hosts, "--rank", "0"];
    let mut first = Program::start(&mut benchmark.command(Side::Bareverbs, &options, None));
    wait_until_listening(&mut first, 4811);
    // A peer that is not a host of the list.
    std::net::TcpStream::connect((HOST, 4811)).unwrap();
    first.finish_within(SOON).expect_failure("closed the connection");
}
