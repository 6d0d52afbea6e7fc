//! The tools over the connection manager, with those of librdmacm, in both roles.

#[path = "cm/iwarp.rs"]
mod iwarp;
#[path = "cm/rcopy.rs"]
mod rcopy;
#[path = "cm/signals.rs"]
mod signals;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bareverbs_interop_tests::connect::{run_client, was_rejected};
use bareverbs_interop_tests::program::{Finished, LIMIT, Program};
use bareverbs_test_support::device::{self, Requirement};
use bareverbs_test_support::iproute2::ip;
use bareverbs_test_support::kernel_test;
use bareverbs_test_support::resources::nothing_leaks;
use nix::sys::signal::Signal;
use serde_json::Value;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// For tests with an IP address of the device.
///
/// # Errors
/// If the port is InfiniBand and the kernel has no IPoIB.
fn has_ip() -> Requirement {
    let there = !device::is_infiniband() || Path::new("/sys/class/net/ib0").exists();
    if there { Ok(()) } else { Err("this kernel has no IPoIB, so the device has no IP address".into()) }
}

/// For tests of XRC connections.
///
/// # Errors
/// As for [`has_ip`] and [`device::xrc`].
fn has_ip_and_xrc() -> Requirement {
    has_ip()?;
    device::xrc()
}

/// For tests that XRC connections are refused.
///
/// # Errors
/// As for [`has_ip`] and [`device::no_xrc`].
fn has_ip_but_no_xrc() -> Requirement {
    has_ip()?;
    device::no_xrc()
}

/// For tests that give the network interface of the device an address.
///
/// # Errors
/// If the device is not an rxe device.
fn is_soft_roce() -> Requirement {
    if device::is_soft_roce() { Ok(()) } else { Err("the test sets the addresses of rxe's interface".into()) }
}

/// For tests of groups without an IP address.
///
/// # Errors
/// As for [`has_ip`]; on Ethernet, groups have IP addresses.
fn is_infiniband() -> Requirement {
    has_ip()?;
    if device::is_infiniband() { Ok(()) } else { Err("on Ethernet, groups have IP addresses".into()) }
}

/// The IP address of the device.
fn host() -> &'static str {
    if device::is_infiniband() { "10.2.0.1" } else { "10.1.0.1" }
}

/// A program of librdmacm, or the command of `bareverbs` with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Bareverbs,
    Librdmacm,
}

use Origin::{Bareverbs, Librdmacm};

impl Origin {
    fn command(self, name: &str, options: &[&str]) -> Command {
        let mut command = match self {
            Bareverbs => Command::new("bareverbs"),
            Librdmacm => Command::new(name),
        };
        if self == Bareverbs {
            command.arg(name.replace('_', "-"));
        }
        command.args(options);
        command
    }

    fn start(self, name: &str, options: &[&str]) -> Program {
        Program::start(&mut self.command(name, options))
    }
}

/// The pairings of server and client.
const PAIRINGS: [(Origin, Origin); 3] =
    [(Bareverbs, Librdmacm), (Librdmacm, Bareverbs), (Bareverbs, Bareverbs)];

/// Whether the server has accepted before it set its options. A thread of librdmacm accepts from
/// `rlisten` on, and `riostream` sets `RDMA_IOMAPSIZE` later.
fn precedes_options(finished: &Finished) -> bool {
    finished.stderr.contains("all 0 entries of the peer's iomap table are in use")
}

/// Runs a server and a client to their ends.
fn run(name: &str, server: (Origin, &[&str]), client: (Origin, &[&str])) -> [Finished; 2] {
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut program = server.0.start(name, server.1);
        let finished = run_client(&mut program, client.0.command(name, client.1));
        // The server began to listen between two connections of a client. It counts one of them and
        // ends before the next client has all of its own.
        let is_early = !finished.status.success()
            && (was_rejected(&finished) && program.has_ended()
                || server.0 == Librdmacm && precedes_options(&finished));
        if !is_early || Instant::now() > deadline {
            let client = finished.expect_success();
            return [program.finish().expect_success(), client];
        }
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// The text of a ping of `rping`.
fn ping(number: u8, size: usize) -> String {
    let mut text = format!("rdma-ping-{number}: ");
    let letters = (b'A'..=b'z').cycle().skip(number.into());
    text.extend(letters.map(char::from).take(size - 1 - text.len()));
    text
}

#[kernel_test(has_ip)]
fn rping_interoperates_in_both_roles() {
    let lines =
        |start: &str| (0..3).map(|number| format!("{start}: {}\n", ping(number, 64))).collect::<String>();
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            for extra in [&[][..], &["-q"]] {
                let server_options = [&["-s", "-v"], extra].concat();
                let client_options = [&["-c", "-a", host(), "-C", "3", "-v", "-V"], extra].concat();
                let [served, finished] = run("rping", (server, &server_options), (client, &client_options));
                assert_eq!(served.stdout, lines("server ping data"), "{served:#?}");
                assert_eq!(finished.stdout, lines("ping data"), "{finished:#?}");
            }
        }
    });
}

#[kernel_test(has_ip)]
fn rping_carries_its_smallest_and_largest_pings() {
    for (server, client) in PAIRINGS {
        for size in ["26", "65535"] {
            let client_options =
                ["-c", "-a", host(), "-I", host(), "-p", "7999", "-C", "2", "-S", size, "-V"];
            run(
                "rping",
                (server, &["-s", "-a", host(), "-p", "7999", "-S", size]),
                (client, &client_options),
            );
        }
    }
}

#[kernel_test(is_soft_roce)]
fn rping_interoperates_over_ipv6() {
    let netdev =
        fs::read_to_string("/sys/class/infiniband/rxe0/parent").expect("rxe has a network interface");
    ip(&format!("-6 addr add fd00:7::1/64 dev {} nodad", netdev.trim()));
    // The kernel adds a GID for the address by a work queue.
    let deadline = Instant::now() + LIMIT;
    while !device::open()
        .gid_table()
        .expect("the GIDs")
        .iter()
        .any(|entry| entry.gid.0[..4] == [0xfd, 0, 0, 7])
    {
        assert!(Instant::now() < deadline, "the address has no GID");
        std::thread::sleep(Duration::from_millis(10));
    }
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            for server_options in [&["-s", "-v", "-a", "fd00:7::1"][..], &["-s", "-v", "-a", "::"]] {
                let client_options = ["-c", "-a", "fd00:7::1", "-C", "1", "-v", "-V"];
                let [served, finished] = run("rping", (server, server_options), (client, &client_options));
                assert_eq!(served.stdout, format!("server ping data: {}\n", ping(0, 64)), "{served:#?}");
                assert_eq!(finished.stdout, format!("ping data: {}\n", ping(0, 64)), "{finished:#?}");
            }
        }
    });
    ip(&format!("-6 addr del fd00:7::1/64 dev {}", netdev.trim()));
}

#[kernel_test(has_ip)]
fn persistent_rping_server_serves_clients_until_a_signal() {
    nothing_leaks(|| {
        let mut server = Bareverbs.start("rping", &["-s", "-P", "--json"]);
        let options = ["-c", "-a", host(), "-C", "5", "-V"];
        for client in [Librdmacm, Bareverbs, Librdmacm] {
            run_client(&mut server, client.command("rping", &options)).expect_success();
            let served = json(&server.line("{"));
            assert_eq!((&served["role"], &served["pings"]), (&"server".into(), &5.into()));
        }
        server.signal(Signal::SIGTERM);
        let ended = server.finish();
        assert_eq!(ended.status.code(), Some(128 + 15), "{ended:#?}");

        let mut server = Librdmacm.start("rping", &["-s", "-P"]);
        for _ in 0..2 {
            let client = Bareverbs.command("rping", &["-c", "-a", host(), "-C", "5", "--json"]);
            let finished = run_client(&mut server, client).expect_success();
            let report = json(&finished.stdout);
            assert_eq!((&report["size"], &report["pings"]), (&64.into(), &5.into()), "{report}");
            assert_eq!(report["peer"], format!("{}:7174", host()));
        }
    });
}

#[kernel_test(has_ip)]
fn rping_errors_name_the_cause() {
    nothing_leaks(|| {
        let refused = |options: &[&str], words: &str| {
            Bareverbs.start("rping", options).finish().expect_failure(words);
        };
        refused(&["-c"], "a client needs the address of the server (-a)");
        refused(&["-c", "-a", host(), "-p", "7998"], "rejected");
        refused(&["-s", "-a", "192.0.2.1"], "os error 99");
        // The server reads as much as the client says, into a buffer of its own size.
        for client in [Bareverbs, Librdmacm] {
            let mut server = Bareverbs.start("rping", &["-s", "-S", "64"]);
            let options = ["-c", "-a", host(), "-C", "1", "-S", "100"];
            let client = run_until_connected(&mut server, client.command("rping", &options));
            server
                .finish()
                .expect_failure("the client's buffer has 100 bytes, the server's has 64: use -S 100");
            drop(client);
        }
    });
}

/// Starts a client until it runs for a while, because the server listens.
fn run_until_connected(server: &mut Program, mut client: Command) -> Program {
    loop {
        let mut program = Program::start(&mut client);
        let deadline = Instant::now() + Duration::from_secs(1);
        while !program.has_ended() && !server.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        if server.has_ended() || !program.has_ended() {
            return program;
        }
    }
}

/// The lines of `rstream` below its head but those of `-k`: name, and the counts.
fn stream_tests(output: &str) -> Vec<Vec<&str>> {
    let mut lines = output.lines();
    let head: Vec<_> = lines.next().expect("a head").split_whitespace().collect();
    assert_eq!(head, ["name", "bytes", "xfers", "iters", "total", "time", "Gb/sec", "usec/xfer"]);
    let tests = lines.filter(|line| !line.starts_with("Keepalive: ") && !line.starts_with("  time: "));
    tests.map(|line| line.split_whitespace().take(5).collect()).collect()
}

#[kernel_test(has_ip)]
fn rstream_interoperates_in_both_roles() {
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            for (sizes, line) in [
                (["-S", "64", "-C", "1", "-I", "20"], ["custom", "64", "1", "20", "2.5k"]),
                (["-S", "5000", "-C", "10", "-I", "2"], ["custom", "4.8k", "10", "2", "195k"]),
                (["-S", "1000000", "-C", "2", "-I", "1"], ["custom", "976k", "2", "1", "3.8m"]),
            ] {
                let server_options = [&sizes[..], &["-T", "v"]].concat();
                let client_options = [&["-s", host()], &server_options[..]].concat();
                let sides = run("rstream", (server, &server_options), (client, &client_options));
                for side in sides {
                    assert_eq!(stream_tests(&side.stdout), [line], "{side:#?}");
                }
            }
        }
    });
}

#[kernel_test(has_ip)]
fn rstream_sets_keepalive_in_both_roles() {
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            for sockets in [&[][..], &["-T", "s"]] {
                let server_options = [&["-k", "7", "-S", "64", "-C", "1", "-I", "20"], sockets].concat();
                let client_options = [&["-s", host()], &server_options[..]].concat();
                for side in run("rstream", (server, &server_options), (client, &client_options)) {
                    assert!(side.stdout.contains("\nKeepalive: ON\n  time: 7\n"), "{side:#?}");
                    assert_eq!(stream_tests(&side.stdout), [["custom", "64", "1", "20", "2.5k"]]);
                }
            }
        }
    });
}

/// The packets that the device has sent.
fn sent_packets() -> u64 {
    let path = device::sysfs("ports/1/hw_counters/sent_pkts");
    let text = fs::read_to_string(path).expect("rxe counts its packets");
    text.trim().parse().expect("a number")
}

#[kernel_test(is_soft_roce)]
fn rstream_with_keepalive_probes_a_silent_peer() {
    nothing_leaks(|| {
        for (stopped, prober) in [(Librdmacm, Bareverbs), (Bareverbs, Bareverbs)] {
            let options = ["-S", "64", "-C", "1", "-I", "1000000"];
            let mut server = stopped.start("rstream", &options);
            let probing = [&["-k", "1", "-s", host()], &options[..]].concat();
            let client = run_until_connected(&mut server, prober.command("rstream", &probing));
            server.signal(Signal::SIGSTOP);
            // The last transfers and their acknowledgements are a few packets. A probe and its
            // acknowledgement are two.
            let (start, deadline) = (sent_packets(), Instant::now() + LIMIT);
            while sent_packets() < start + 10 {
                assert!(Instant::now() < deadline, "{prober:?} sends no probes");
                std::thread::sleep(Duration::from_millis(100));
            }
            // The programs are killed.
            drop((server, client));
        }
    });
}

#[kernel_test(has_ip)]
fn riostream_interoperates_in_both_roles() {
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            for (sizes, line) in [
                // The markers wrap, and the bytes before the markers of both programs.
                (["-S", "64", "-C", "1", "-I", "300"], ["custom", "64", "1", "300", "37k"]),
                (["-S", "70000", "-C", "4", "-I", "3"], ["custom", "68k", "4", "3", "1.6m"]),
                (["-S", "16", "-C", "2", "-I", "2"], ["custom", "16", "2", "2", "128"]),
            ] {
                let server_options = [&sizes[..], &["-T", "v", "-p", "7999"]].concat();
                let client_options = [&["-s", host()], &server_options[..]].concat();
                let sides = run("riostream", (server, &server_options), (client, &client_options));
                for side in sides {
                    assert_eq!(stream_tests(&side.stdout), [line], "{side:#?}");
                }
            }
        }
        Bareverbs.start("riostream", &["-T", "s"]).finish().expect_failure("riostream has no form for TCP");
    });
}

/// A folder of a test.
struct Folder(&'static Path);

impl Folder {
    fn new(path: &'static str) -> Self {
        fs::create_dir_all(path).expect("the guest's /tmp is writable");
        Self(Path::new(path))
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the paths are text").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

/// The queue pairs of `pingpong`'s connections, sorted: requests of several connections arrive in any
/// order.
fn connected_pairs(report: &Value, first: &str, second: &str) -> Vec<(String, String)> {
    let sides = [first, second].map(|side| match &report[side] {
        Value::Array(records) => records.iter().map(Value::to_string).collect(),
        record => vec![record.to_string()],
    });
    let [firsts, seconds]: [Vec<String>; 2] = sides;
    assert_eq!(firsts.len(), seconds.len(), "{report:#}");
    let mut pairs: Vec<_> = firsts.into_iter().zip(seconds).collect();
    pairs.sort();
    pairs
}

#[kernel_test(has_ip)]
fn pingpong_exchanges_addresses_by_the_connection_manager() {
    nothing_leaks(|| {
        for kind in [&["rc"][..], &["uc"], &["ud"], &["srq"], &["srq", "-q", "3", "-e"]] {
            let options = [kind, &["--cm", "-n", "30", "-c", "-s", "500", "--json"]].concat();
            let client_options = [&options[..], &[host()]].concat();
            let sides = run("pingpong", (Bareverbs, &options), (Bareverbs, &client_options));
            let reports = sides.map(|side| json(&side.stdout));
            let [server, client] = &reports;
            let pairs =
                [connected_pairs(server, "local", "remote"), connected_pairs(client, "remote", "local")];
            assert_eq!(pairs[0], pairs[1], "{reports:#?}");
            assert_eq!(server["iters"], 30, "{reports:#?}");
        }
        let refused = |options: &[&str], words: &str| {
            Bareverbs.start("pingpong", options).finish().expect_failure(words);
        };
        refused(&["rc", "--cm", host()], &format!("the peer {}:", host()));
        refused(
            &["rc", "--cm", host()],
            "rejected the connection: no application listens on the port (reason 8)",
        );
        refused(&["ud", "--cm", host()], "unreachable");
        // The server's -q counts.
        let mut server = Bareverbs.start("pingpong", &["srq", "-q", "2", "--cm"]);
        let client = Bareverbs.command("pingpong", &["srq", "-q", "3", "--cm", host()]);
        assert!(!run_client(&mut server, client).status.success());
        server.finish().expect_failure("");
    });
}

/// The line of `udpong` below its head.
fn datagram_test(output: &str) -> Vec<&str> {
    let mut lines = output.lines();
    let head: Vec<_> = lines.next().expect("a head").split_whitespace().collect();
    assert_eq!(head, ["name", "bytes", "xfers", "total", "time", "Gb/sec", "usec/xfer"]);
    let words = lines.next().expect("a test").split_whitespace().take(4).collect();
    assert_eq!(lines.next(), None, "{output}");
    words
}

/// Runs tests of `udpong` between a server and a client.
fn run_udpong(server: Origin, client: Origin) {
    let mut program = server.start("udpong", &["-b", host(), "-p", "7999"]);
    for (options, line) in [
        (&["-C", "50", "-S", "100", "-T", "e"][..], ["custom", "100", "100", "9.7k"]),
        (&["-C", "30", "-S", "900", "-T", "e", "-T", "b"], ["custom", "900", "60", "52k"]),
        (&["-C", "20", "-S", "16", "-T", "a"], ["custom", "16", "20", "320"]),
    ] {
        let options = [&["-s", host(), "-p", "7999"], options].concat();
        let finished = run_client(&mut program, client.command("udpong", &options)).expect_success();
        let line = if options.contains(&"e") { line.to_vec() } else { line[..2].to_vec() };
        // Datagrams that no receive was posted for are lost. The server tells how many were not.
        assert!(datagram_test(&finished.stdout).starts_with(&line), "{server:?} {client:?}: {finished:#?}");
        // The C program prints its lines when it ends.
        if server == Bareverbs {
            let login = program.line("client login from ");
            assert!(login.ends_with(host()), "{login}");
        }
    }
    program.signal(Signal::SIGTERM);
    program.finish();
}

#[kernel_test(is_infiniband)]
fn udpong_interoperates_in_both_roles() {
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            run_udpong(server, client);
        }
    });
}

#[kernel_test(device::ethernet)]
fn udpong_runs_over_roce() {
    nothing_leaks(|| {
        run_udpong(Bareverbs, Bareverbs);
        // Without an address, the server is at every one.
        let mut server = Bareverbs.start("udpong", &["--json"]);
        let options = ["-s", host(), "-C", "20", "-S", "500", "-T", "e", "--json"];
        let client = run_client(&mut server, Bareverbs.command("udpong", &options)).expect_success();
        let report = json(&client.stdout);
        assert_eq!((&report["name"], &report["xfers"]), (&"custom".into(), &40.into()), "{report}");
        assert_eq!(json(&server.line("{"))["login"], host());
        server.signal(Signal::SIGTERM);
        assert_eq!(server.finish().status.code(), Some(128 + 15));
    });
}

/// A datagram socket of librdmacm creates an address handle for its own QP, without a GRH. The kernel
/// rejects it on RoCE.
#[kernel_test(device::ethernet)]
fn udpong_of_librdmacm_has_no_address_handle_on_roce() {
    nothing_leaks(|| {
        for server in [Librdmacm, Bareverbs] {
            let mut program = server.start("udpong", &["-b", host(), "-p", "7999"]);
            let options = ["-s", host(), "-p", "7999", "-C", "5", "-S", "100", "-T", "e"];
            let finished = run_client(&mut program, Librdmacm.command("udpong", &options));
            // It prints the error of a later call.
            let is_error = finished.status.code() == Some(255) && finished.stderr.starts_with("rconnect: ");
            assert!(is_error, "{server:?}: {finished:#?}");
            program.signal(Signal::SIGTERM);
            program.finish();
        }
        // The C server has no queue pair. It answers nothing.
        let mut program = Librdmacm.start("udpong", &["-b", host(), "-p", "7999"]);
        let options = ["-s", host(), "-p", "7999", "-C", "5", "-S", "100", "-T", "e"];
        let finished = run_client(&mut program, Bareverbs.command("udpong", &options));
        finished.expect_failure("");
        program.signal(Signal::SIGTERM);
        program.finish();
    });
}

#[kernel_test(has_ip)]
fn udpong_errors_name_the_cause() {
    nothing_leaks(|| {
        let refused = |options: &[&str], words: &str| {
            Bareverbs.start("udpong", options).finish().expect_failure(words);
        };
        refused(&["-s", host(), "-p", "7998"], "os error 111");
        refused(&["-b", "192.0.2.1"], "os error 99");
        refused(&["-b", "127.0.0.1"], "the network interface of the route has no RDMA device");
        let mut server = Bareverbs.start("udpong", &["-b", host()]);
        let options = ["-s", host(), "-C", "1", "-S", "2032", "-T", "e"];
        let client = run_client(&mut server, Bareverbs.command("udpong", &options));
        let mtu = device::open().query_port(1).expect("the port").active_mtu.bytes();
        if mtu < 2040 {
            client.expect_failure(&format!("the port carries at most {}", mtu - 8));
        } else {
            client.expect_success();
        }
        server.signal(Signal::SIGTERM);
        server.finish();
    });
}

#[kernel_test(has_ip)]
fn rcopy_interoperates_in_both_roles() {
    let folder = Folder::new("/tmp/rcopy");
    let [source, copy] = [folder.path("source"), folder.path("copy")];
    let bytes: Vec<u8> = (0..700_001u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    fs::write(&source, &bytes).expect("the file is writable");
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            let mut program = server.start("rcopy", &[]);
            // The server serves one client after the other.
            for _ in 0..2 {
                let to = format!("{}:{copy}", host());
                let finished = run_client(&mut program, client.command("rcopy", &[&source, &to]));
                let finished = finished.expect_success();
                let last = finished.stdout.lines().last().unwrap_or_default();
                assert!(last.starts_with("700001 bytes in "), "{finished:#?}");
                assert!(fs::read(&copy).expect("the copy exists") == bytes, "{server:?} {client:?}");
                fs::remove_file(&copy).expect("the copy exists");
            }
            program.signal(Signal::SIGTERM);
            program.finish();
        }
    });
}

#[kernel_test(has_ip)]
fn rcopy_errors_name_the_cause() {
    let folder = Folder::new("/tmp/rcopy-errors");
    let [empty, copy, missing] = ["empty", "copy", "missing/copy"].map(|name| folder.path(name));
    fs::write(&empty, "").expect("the file is writable");
    nothing_leaks(|| {
        for server in [Bareverbs, Librdmacm] {
            let mut program = server.start("rcopy", &["-p", "7999"]);
            let to = |path: &str| format!("{}:{path}", host());
            let copy = |from: &str, to: &str| Bareverbs.command("rcopy", &[from, to, "-p", "7999"]);
            let refused = run_client(&mut program, copy(&empty, &to(&missing)));
            refused.expect_failure(&format!("the server cannot open {missing}: No such file"));
            let absent = run_client(&mut program, copy(&missing, &to(&missing)));
            absent.expect_failure(&format!("cannot open {missing}: No such file"));
        }
        let mut server = Bareverbs.start("rcopy", &["--json"]);
        let copying = Bareverbs.command("rcopy", &[&empty, &format!("{}:{copy}", host()), "--json"]);
        let finished = run_client(&mut server, copying).expect_success();
        for report in [json(&finished.stdout), json(&server.line("{"))] {
            assert_eq!((&report["path"], &report["bytes"]), (&copy.as_str().into(), &0.into()));
        }
        assert_eq!(fs::read(&copy).expect("the copy exists"), b"");
    });
}

/// The lines of a tool without its own name.
fn plain_lines(output: &str) -> Vec<&str> {
    output.lines().filter(|line| !line.contains(": ")).collect()
}

#[kernel_test(has_ip)]
fn ucmatose_interoperates_in_both_roles() {
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            for options in [
                &[][..],
                &["-c", "4", "-C", "20"],
                &["-c", "2", "-C", "0"],
                &["-c", "2", "-C", "3", "-S", "5000", "-m", "-t", "8", "-a", "14", "-p", "7999"],
                &["-P", "ib", "-f", "ip"],
            ] {
                let client_options = [&["-s", host()], options].concat();
                let [served, finished] = run("ucmatose", (server, options), (client, &client_options));
                let moves = options.contains(&"-m");
                let lines = |data: &[&'static str], end: &[&'static str]| {
                    let data = if options.contains(&"0") { &[] } else { data };
                    let moved: &[_] = if moves { &["migrating to new event channel"] } else { &[] };
                    [data, moved, end, &["test complete", "return status 0"]].concat()
                };
                let data = [
                    "initiating data transfers",
                    "completing sends",
                    "receiving data transfers",
                    "data transfers complete",
                ];
                assert_eq!(plain_lines(&served.stdout), lines(&data, &["disconnected"]), "{served:#?}");
                let data = ["receiving data transfers", "sending replies", "data transfers complete"];
                assert_eq!(plain_lines(&finished.stdout), lines(&data, &[]), "{finished:#?}");
            }
        }
        let options = ["-c", "3", "--json", "-b", host()];
        let client_options = [&["-s", host()], &options[..]].concat();
        let sides = run("ucmatose", (Bareverbs, &options), (Bareverbs, &client_options));
        for (side, role) in sides.iter().zip(["server", "client"]) {
            let report = json(&side.stdout);
            assert_eq!((&report["role"], &report["connections"]), (&role.into(), &3.into()), "{report}");
        }
    });
}

#[kernel_test(has_ip)]
fn ucmatose_errors_name_the_cause() {
    nothing_leaks(|| {
        let refused = |options: &[&str], words: &str| {
            Bareverbs.start("ucmatose", options).finish().expect_failure(words);
        };
        let words = format!(
            "the peer {}:7998 rejected the connection: no application listens on the port (reason 8)",
            host()
        );
        refused(&["-s", host(), "-c", "2", "-p", "7998"], &words);
        refused(&["-s", host(), "-f", "gid"], "is not a GID");
        refused(&["-b", "192.0.2.1"], "os error 99");
        // Each side has its own count of connections, and the server counts first.
        let mut server = Bareverbs.start("ucmatose", &["-c", "1", "-C", "0"]);
        let client =
            run_client(&mut server, Bareverbs.command("ucmatose", &["-s", host(), "-c", "2", "-C", "0"]));
        assert!(!client.status.success(), "{client:#?}");
        server.finish().expect_success();
    });
}

#[kernel_test(has_ip)]
fn rdma_client_and_server_interoperate_in_both_roles() {
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            let mut program = server.start("rdma_server", &["-p", "7999"]);
            let options = ["-s", host(), "-p", "7999"];
            let client = run_client(&mut program, client.command("rdma_client", &options)).expect_success();
            let served = program.finish().expect_success();
            assert_eq!(served.stdout, "rdma_server: start\nrdma_server: end 0\n", "{served:#?}");
            assert_eq!(client.stdout, "rdma_client: start\nrdma_client: end 0\n", "{client:#?}");
        }
        let mut server = Bareverbs.start("rdma_server", &["-s", host(), "--json"]);
        let client = Bareverbs.command("rdma_client", &["-s", host(), "--json"]);
        let client = run_client(&mut server, client).expect_success();
        for (side, role) in [(server.finish().expect_success(), "server"), (client, "client")] {
            let report = json(&side.stdout);
            assert_eq!((&report["role"], &report["size"]), (&role.into(), &16.into()), "{report}");
        }
        Bareverbs.start("rdma_client", &["-s", host(), "-p", "7998"]).finish().expect_failure("reject");
        Bareverbs.start("rdma_client", &["-p", "7998"]).finish().expect_failure("");
    });
}

/// Runs rdma_xserver and rdma_xclient over a transport, in all pairings.
fn run_x_programs(transport: &str) {
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            let mut program = server.start("rdma_xserver", &["-p", "7997", "-c", transport]);
            let options = ["-s", host(), "-p", "7997", "-c", transport];
            let client = run_client(&mut program, client.command("rdma_xclient", &options)).expect_success();
            let served = program.finish().expect_success();
            assert_eq!(served.stdout, "rdma_xserver: start\nrdma_xserver: end 0\n", "{served:#?}");
            assert_eq!(client.stdout, "rdma_xclient: start\nrdma_xclient: end 0\n", "{client:#?}");
        }
        let mut server = Bareverbs.start("rdma_xserver", &["-c", transport, "--json"]);
        let client = Bareverbs.command("rdma_xclient", &["-s", host(), "-c", transport, "--json"]);
        let client = run_client(&mut server, client).expect_success();
        for (side, role) in [(server.finish().expect_success(), "server"), (client, "client")] {
            let report = json(&side.stdout);
            assert_eq!((&report["role"], &report["size"]), (&role.into(), &16.into()), "{report}");
        }
        let options = ["-s", host(), "-p", "7996", "-c", transport];
        Bareverbs.start("rdma_xclient", &options).finish().expect_failure("reject");
    });
}

#[kernel_test(has_ip)]
fn rdma_xclient_and_xserver_interoperate_over_rc() {
    run_x_programs("r");
}

#[kernel_test(has_ip_and_xrc)]
fn rdma_xclient_and_xserver_interoperate_over_xrc() {
    run_x_programs("x");
}

#[kernel_test(has_ip_but_no_xrc)]
fn rdma_xclient_names_the_missing_xrc() {
    let refused = Bareverbs.start("rdma_xclient", &["-s", host(), "-c", "x"]).finish();
    refused.expect_failure("XRC");
}

/// Starts a peer of cmtime.
///
/// `base` is the first number of the simulated queue pairs. The kernel holds numbers for a while
/// after their connections have ended, so each run has others. It takes a number for that of one
/// connection, so the sides have different ones.
fn start_cmtime(origin: Origin, base: u32, options: &[&str]) -> Program {
    let base = base.to_string();
    let common = ["-b", host(), "-C", host(), "-q", &base];
    origin.start("cmtime", &[&common, options].concat())
}

/// Waits until a program is the root of cmtime's peers: it listens on TCP port 7471.
fn wait_for_root(root: &mut Program) {
    let deadline = Instant::now() + LIMIT;
    let is_listening = || {
        let sockets = fs::read_to_string("/proc/net/tcp").expect("the kernel lists its sockets");
        sockets.lines().any(|line| line.contains(":1D2F 00000000:0000 0A "))
    };
    while !is_listening() {
        assert!(!root.has_ended() && Instant::now() < deadline, "the root does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The name and the connections of each table of cmtime.
fn cmtime_tables(output: &str) -> Vec<(&str, &str)> {
    let mut tables = Vec::new();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [name @ ("qp_conn" | "cm_conn"), connections] = words[..] {
            tables.push((name, connections));
            let rows: Vec<_> = lines.by_ref().skip(2).take(17).collect();
            assert!(rows.iter().all(|row| row.split_whitespace().count() >= 7), "{rows:#?}");
            assert_eq!(rows.last().and_then(|row| row.get(..10)), Some("destroy qp"), "{output}");
        }
    }
    tables
}

#[kernel_test(has_ip)]
fn cmtime_interoperates_in_both_roles() {
    let mut base = 0x1000;
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            for (options, tables) in [
                (&["-c", "6"][..], [("qp_conn", "6"), ("cm_conn", "6")]),
                (&["-c", "5", "-n", "2"], [("qp_conn", "5"), ("cm_conn", "5")]),
            ] {
                // The root is the server or the client.
                for server_is_root in [true, false] {
                    base += 0x100;
                    let server_options = [&["-L"], options].concat();
                    let mut start_server = || start_cmtime(server, base, &server_options);
                    let mut start_client = || start_cmtime(client, base + 0x80, options);
                    let (first, second): (&mut dyn FnMut() -> Program, &mut dyn FnMut() -> Program) =
                        match server_is_root {
                            true => (&mut start_server, &mut start_client),
                            false => (&mut start_client, &mut start_server),
                        };
                    let mut root = first();
                    wait_for_root(&mut root);
                    let leaf = second().finish().expect_success();
                    for side in [root.finish().expect_success(), leaf] {
                        assert_eq!(cmtime_tables(&side.stdout), tables, "{side:#?}");
                    }
                }
            }
        }
    });
}

#[kernel_test(has_ip)]
fn cmtime_binds_to_an_interface_in_both_roles() {
    let netdev = if device::is_infiniband() { "ib0".to_owned() } else { device::netdev() };
    let picked = format!("Picking source address {} for interface {netdev}\n", host());
    nothing_leaks(|| {
        for (at, (server, client)) in (0x6000..).step_by(0x200).zip(PAIRINGS) {
            let start = |origin: Origin, base: u32, listens: &[&str]| {
                let base = base.to_string();
                let options = ["-B", &netdev, "-C", host(), "-q", &base, "-c", "3"];
                origin.start("cmtime", &[&options, listens].concat())
            };
            let mut root = start(server, at, &["-L"]);
            wait_for_root(&mut root);
            let leaf = start(client, at + 0x100, &[]).finish().expect_success();
            for side in [root.finish().expect_success(), leaf] {
                assert!(side.stdout.starts_with(&picked), "{side:#?}");
                assert_eq!(cmtime_tables(&side.stdout), [("qp_conn", "3"), ("cm_conn", "3")], "{side:#?}");
            }
        }
        let options = ["-B", "none0", "-C", host()];
        Bareverbs.start("cmtime", &options).finish().expect_failure("no interface none0 has an IP address");
    });
}

/// The C program is left out: with `-S`, that of rdma-core 65 stores the sockets in connections that
/// it has not allocated, and crashes.
#[kernel_test(has_ip)]
fn cmtime_measures_sockets() {
    for server_is_root in [true, false] {
        let listening = ["-L", "-S", "-c", "20", "-n", "3"];
        let mut sides = [&listening[..], &listening[1..]];
        if !server_is_root {
            sides.reverse();
        }
        let [first, second] = sides;
        let mut root = start_cmtime(Bareverbs, 0x7000, first);
        wait_for_root(&mut root);
        let leaf = start_cmtime(Bareverbs, 0x7000, second).finish().expect_success();
        for side in [root.finish().expect_success(), leaf] {
            assert!(side.stdout.contains(" baseline socket results:\n"), "{side:#?}");
            assert_eq!(cmtime_tables(&side.stdout), [("cm_conn", "20")], "{side:#?}");
        }
    }
    let refused = start_cmtime(Bareverbs, 0x7000, &["-S", "-P", "3"]).finish();
    refused.expect_failure("sockets (-S) connect two peers");
}

#[kernel_test(has_ip)]
fn cmtime_shares_connections_among_threads_and_listeners() {
    nothing_leaks(|| {
        // Two listeners, and two clients of which each connects 8 times to each listener.
        let options = ["-c", "8", "-P", "4", "--json"];
        let listening = [&["-L", "-n", "3"], &options[..]].concat();
        let mut root = start_cmtime(Bareverbs, 0x4000, &listening);
        wait_for_root(&mut root);
        let others = [
            (Bareverbs, &listening[..]),
            (Bareverbs, &[&["-n", "5"], &options[..]].concat()),
            (Librdmacm, &options[..4]),
        ];
        let others = others.map(|(origin, options)| start_cmtime(origin, 0x4000, options));
        let [listener, client, c_client] = others.map(|other| other.finish().expect_success());
        assert_eq!(cmtime_tables(&c_client.stdout), [("qp_conn", "16")]);
        for (side, role) in
            [(root.finish().expect_success(), "server"), (listener, "server"), (client, "client")]
        {
            let report = json(&side.stdout);
            assert_eq!((&report["role"], &report["connections"]), (&role.into(), &16.into()), "{report}");
            let steps = report["steps"].as_array().expect("the steps");
            let connects = steps.iter().find(|step| step["step"] == "cm connect").expect("the step");
            assert!(connects["total"].as_u64().is_some_and(|total| total > 0), "{report}");
        }
    });
}

#[kernel_test(has_ip)]
fn cmtime_errors_name_the_cause() {
    nothing_leaks(|| {
        for (listens, words) in [(&[][..], "no peer listens (-L)"), (&["-L"], "all peers listen (-L)")] {
            let mut root = start_cmtime(Bareverbs, 0x5000, listens);
            wait_for_root(&mut root);
            let leaf = start_cmtime(Bareverbs, 0x5000, listens).finish();
            for side in [root.finish(), leaf] {
                side.expect_failure(words);
            }
        }
        let mut root = start_cmtime(Bareverbs, 0x5000, &["-L"]);
        wait_for_root(&mut root);
        root.signal(Signal::SIGTERM);
        assert_eq!(root.finish().status.code(), Some(128 + 15));
    });
}

#[kernel_test(has_ip)]
fn udaddy_interoperates_in_both_roles() {
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            for options in [&[][..], &["-c", "3", "-C", "4", "-S", "1000", "-t", "8"], &["-f", "ip"]] {
                let client_options = [&["-s", host()], options].concat();
                let [served, finished] = run("udaddy", (server, options), (client, &client_options));
                let end = ["data transfers complete", "test complete", "return status 0"];
                let lines = [&["receiving data transfers", "sending replies"], &end[..]].concat();
                assert_eq!(plain_lines(&served.stdout), lines, "{served:#?}");
                let lines = [&["initiating data transfers", "receiving data transfers"], &end[..]].concat();
                assert_eq!(plain_lines(&finished.stdout), lines, "{finished:#?}");
            }
        }
        let client_options = ["-s", host(), "-b", host(), "--json"];
        let sides = run("udaddy", (Bareverbs, &["-b", host(), "--json"]), (Bareverbs, &client_options));
        for (side, role) in sides.iter().zip(["server", "client"]) {
            let report = json(&side.stdout);
            assert_eq!((&report["role"], &report["messages"]), (&role.into(), &10.into()), "{report}");
        }
    });
}

#[kernel_test(has_ip)]
fn udaddy_errors_name_the_cause() {
    nothing_leaks(|| {
        let refused = |options: &[&str], words: &str| {
            Bareverbs.start("udaddy", options).finish().expect_failure(words);
        };
        let words = format!("asking for the server's queue pair: the service {}:", host());
        refused(&["-s", host()], &words);
        refused(&["-s", host()], "is unreachable: no application listens on the port");
        let mtu = device::open().query_port(1).expect("the port").active_mtu.bytes();
        let (above, words) = ((mtu + 1).to_string(), format!("exceeds the MTU of the port, {mtu} bytes"));
        if mtu < 4096 {
            refused(&["-s", host(), "-S", &above], &words);
        }
    });
}

#[kernel_test(has_ip)]
fn mckey_interoperates_in_both_roles() {
    let receiving = ["-m", "239.7.7.7", "-b", host(), "-C", "4"];
    let sending = [&receiving[..], &["-s"]].concat();
    nothing_leaks(|| {
        let [sent, received] = run_mckey(
            &[(Bareverbs, &receiving), (Librdmacm, &receiving), (Bareverbs, &receiving)],
            &[(Bareverbs, &sending), (Librdmacm, &sending)],
        );
        let end = ["data transfers complete", "test complete", "return status 0"];
        for (finished, line) in [(sent, "initiating data transfers"), (received, "receiving data transfers")]
        {
            for finished in finished {
                assert_eq!(plain_lines(&finished.stdout), [&[line], &end[..]].concat(), "{finished:#?}");
                assert!(finished.stdout.contains("mckey: joined dgid: "), "{finished:#?}");
            }
        }
    });
}

/// Runs receivers of a group, and senders again and again until the receivers have all messages.
///
/// One run of the senders may not deliver: librdmacm's destroys its QP before its sends are out, and a
/// receiver may join late. A send-only member can't join before a receiver. A run takes 3 seconds, which
/// the programs give a subnet manager, so all run at the same time.
fn run_mckey(receivers: &[(Origin, &[&str])], senders: &[(Origin, &[&str])]) -> [Vec<Finished>; 2] {
    let start = |programs: &[(Origin, &[&str])]| -> Vec<Program> {
        programs.iter().map(|(origin, options)| origin.start("mckey", options)).collect()
    };
    let deadline = Instant::now() + LIMIT;
    let mut receivers = start(receivers);
    loop {
        let sent: Vec<_> = start(senders).into_iter().map(Program::finish).collect();
        if receivers.iter_mut().all(Program::has_ended) {
            let received = receivers.into_iter().map(Program::finish).collect();
            return [sent, received]
                .map(|all: Vec<_>| all.into_iter().map(Finished::expect_success).collect());
        }
        assert!(Instant::now() < deadline, "the messages do not arrive: {sent:#?}");
    }
}

#[kernel_test(has_ip)]
fn mckey_joins_with_several_queue_pairs_and_to_send_only() {
    nothing_leaks(|| {
        let group = ["-m", "239.7.7.8", "-b", host(), "-S", "500", "-C", "4"];
        let with = |options: &'static [&'static str]| [&group[..], options].concat();
        let (two, two_json, send_only) =
            (with(&["-c", "2"]), with(&["-c", "2", "--json"]), with(&["-s", "-o"]));
        let [sent, received] = run_mckey(
            &[(Bareverbs, &two_json), (Librdmacm, &two)],
            &[(Bareverbs, &send_only), (Librdmacm, &send_only)],
        );
        for side in &sent {
            assert!(side.stdout.contains("initiating data transfers\ndata transfers complete"), "{side:#?}");
        }
        assert_eq!(received[1].stdout.matches("mckey: joined dgid: ").count(), 2, "{received:#?}");
        let report = json(&received[0].stdout);
        assert_eq!((&report["role"], &report["connections"]), (&"server".into(), &2.into()), "{report}");
        // On InfiniBand, a group has the lower 28 bits of the IP address.
        let group = report["group"].as_str().expect("a GID");
        assert!(group.ends_with("f07:708") || group.ends_with("239.7.7.8"), "{report}");
        // rxe can't keep a message from its sender.
        if device::is_soft_roce() {
            let options = with(&["-s", "-l"]);
            Bareverbs.start("mckey", &options).finish().expect_failure("create_qp");
        }
    });
}

#[kernel_test(is_infiniband)]
fn mckey_joins_raw_groups() {
    nothing_leaks(|| {
        let options = ["-M", "ff12:401b:ffff::707", "-b", host(), "-C", "4"];
        let sending = [&options[..], &["-s"]].concat();
        let [sent, received] = run_mckey(
            &[(Bareverbs, &options), (Librdmacm, &options)],
            &[(Librdmacm, &sending), (Bareverbs, &sending)],
        );
        for side in sent.iter().chain(&received) {
            assert!(side.stdout.contains("mckey: joined dgid: ff12:401b:ffff::707 mlid 0x"), "{side:#?}");
        }
    });
}
