//! The program on soft devices: commands of one process, and two processes over UDP.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The UDP port of RoCE v2.
const ROCE: u16 = 4791;
/// How long a server may take to listen on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// A soft device whose address no other process has. It is not tried: a program that another thread starts
/// would have the socket until it runs.
fn device() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let [_, a, b, c] = std::process::id().wrapping_mul(256).wrapping_add(number).to_be_bytes();
    format!("soft:{}", Ipv4Addr::new(127, a | 2, b, c))
}

fn bareverbs(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

fn run(arguments: &str) -> Output {
    bareverbs(arguments).output().expect("the program starts")
}

/// The results of a command that succeeds.
#[track_caller]
fn results(arguments: &str) -> String {
    success(arguments, &run(arguments))
}

#[track_caller]
fn success(what: &str, output: &Output) -> String {
    let [results, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{what}: {:?}\n{results}{errors}", output.status);
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// A free TCP port of this host. The listener of a server takes it. The kernel gives it to no process that
/// asks for any port: those are from 32768.
fn free_port() -> u16 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + std::process::id().wrapping_mul(64).wrapping_add(number) % 20_000;
        let port = port.try_into().expect("at most 29,999");
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}

/// Whether a process of this host listens on the TCP port.
fn listens(port: u16) -> bool {
    let port = format!(":{port:04X}");
    let is_listener = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields.len() > 3 && fields[1].ends_with(&port) && fields[3] == "0A"
    };
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    tables.iter().any(|table| table.lines().any(is_listener))
}

/// Ends the program when it is dropped.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Starts a server, and waits until it listens.
#[track_caller]
fn serve(arguments: &str, port: u16) -> Running {
    let arguments = format!("{arguments} -p {port} -d {}", device());
    let child = bareverbs(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut server = Running(Some(child));
    let deadline = Instant::now() + LIMIT;
    while !listens(port) {
        let ended = server.0.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some());
        if ended || Instant::now() > deadline {
            let output = server.0.take().unwrap().wait_with_output().unwrap();
            panic!("{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        }
        sleep(Duration::from_millis(5));
    }
    server
}

/// Runs a server and a client, each with a device of its own. Returns their results.
#[track_caller]
fn both(arguments: &str) -> [String; 2] {
    let port = free_port();
    let mut server = serve(arguments, port);
    let client = format!("{arguments} -p {port} -d {} 127.0.0.1", device());
    let client = success(&client, &run(&client));
    let server = server.0.take().unwrap().wait_with_output().unwrap();
    [success(arguments, &server), client]
}

#[test]
fn devinfo_shows_a_soft_device() {
    let device = device();
    let text = results(&format!("devinfo -v -d {device}"));
    assert!(text.contains(&device) && text.contains("PORT_ACTIVE"), "{text}");
    assert!(text.contains(device.trim_start_matches("soft:")), "no GID of the address: {text}");
}

#[test]
fn pingpongs_run_between_two_processes() {
    for kind in ["rc -c", "uc", "ud -s 1024", "srq -q 4"] {
        let [server, client] = both(&format!("pingpong {kind} -e -n 100 --json"));
        for results in [server, client] {
            let json: serde_json::Value =
                serde_json::from_str(&results).unwrap_or_else(|_| panic!("{results}"));
            assert!(json.is_object(), "{results}");
        }
    }
}

#[test]
fn every_operation_of_perf_runs_between_two_processes() {
    for run in [
        "send lat -e -s 64",
        "send bw -e -s 8192",
        "send bw -e -c ud -s 1024",
        "write bw -e -s 8192",
        // It polls the memory.
        "write lat -s 64",
        "write-imm bw -e -s 8192",
        "read bw -e -s 8192",
        "read lat -e -s 64",
        "atomic bw -e",
    ] {
        let [_, client] = both(&format!("perf {run} -n 100 --json"));
        let json: serde_json::Value = serde_json::from_str(&client).unwrap();
        assert_eq!(json["environment"]["nature"], "soft device", "{run}");
    }
}

#[test]
fn doctor_says_what_it_checks_of_a_soft_device() {
    let text = results(&format!("perf doctor -d {}", device()));
    assert!(text.contains("is a soft device of this process"), "{text}");
    assert!(text.contains("loopback"), "{text}");
}

#[test]
fn doctor_finds_the_path_between_two_soft_devices_usable() {
    let port = free_port();
    let _server = serve("perf doctor --serve", port);
    let output = run(&format!("perf doctor --json -p {port} -d {} 127.0.0.1", device()));
    // A busy machine is slow and loses datagrams.
    let of_load = ["latency", "bandwidth", "ud", "counters"];
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    let findings = report["findings"].as_array().unwrap();
    let faults = findings.iter().filter(|finding| finding["level"] == "fault");
    let unexpected: Vec<_> =
        faults.filter(|fault| !of_load.iter().any(|&check| fault["check"] == check)).collect();
    assert_eq!(unexpected, [] as [&serde_json::Value; 0], "{text}");
    assert!(findings.iter().any(|finding| finding["check"] == "rc" && finding["level"] == "ok"), "{text}");
}

#[test]
fn conformance_checks_run_on_a_soft_device() {
    let text = results(&format!("conform -d {} -f parser::QpCreate", device()));
    assert!(text.contains("passed"), "{text}");
}

#[test]
fn commands_of_the_kernels_devices_refuse_soft_devices() {
    for arguments in [
        "status soft:127.0.0.2",
        "link show soft:127.0.0.2/1",
        "dev show soft:127.0.0.2",
        "stat show link soft:127.0.0.2",
        "resources -d soft:127.0.0.2",
    ] {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
        assert!(text.contains("only in the process that opens it"), "{arguments}: {text}");
    }
}

#[test]
fn xrc_is_refused_with_its_name() {
    let output = run(&format!("pingpong xsrq -d {}", device()));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("XRC"), "{text}");
}

#[test]
fn address_of_another_process_is_refused() {
    let device = device();
    let address: Ipv4Addr = device.trim_start_matches("soft:").parse().unwrap();
    let _other = UdpSocket::bind((address, ROCE)).unwrap();
    let output = run(&format!("devinfo -d {device}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&address.to_string()), "{text}");
}

/// Runs a server and a client over the connection manager, until the client has found the server.
#[track_caller]
fn connected(server: &str, client: &str) {
    let (at, from) = (device(), device());
    let address = at.trim_start_matches("soft:");
    let start = |arguments: &str, device: &str| {
        let arguments = format!("{arguments} --ib-dev {device}").replace("ADDRESS", address);
        bareverbs(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut server_process = Running(Some(start(server, &at)));
    let deadline = Instant::now() + LIMIT;
    loop {
        let output = start(client, &from).wait_with_output().unwrap();
        if output.status.success() {
            break;
        }
        // The server may not listen yet.
        assert!(Instant::now() < deadline, "{client}: {}", String::from_utf8_lossy(&output.stderr));
        let ended = server_process.0.as_mut().unwrap().try_wait().unwrap();
        assert!(ended.is_none(), "{server}: {ended:?}");
    }
    // A server of one client ends with it.
    if !["rcopy", "udpong"].contains(&server) {
        let output = server_process.0.take().unwrap().wait_with_output().unwrap();
        success(server, &output);
    }
}

#[test]
fn programs_over_the_connection_manager_run_between_two_processes() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let [original, copy] = ["original", "copy"].map(|name| format!("{folder}/{name}-{}", std::process::id()));
    fs::write(&original, vec![7; 100_000]).unwrap();
    for (server, client) in [
        ("rping -s -a ADDRESS -V", "rping -c -a ADDRESS -C 20 -V"),
        ("ucmatose", "ucmatose -s ADDRESS"),
        ("rdma-server", "rdma-client -s ADDRESS"),
        ("rdma-xserver", "rdma-xclient -s ADDRESS"),
        ("udaddy", "udaddy -s ADDRESS"),
        ("rstream -S 64 -C 20", "rstream -s ADDRESS -S 64 -C 20"),
        ("riostream -S 64 -C 20", "riostream -s ADDRESS -S 64 -C 20"),
        ("rcopy", &format!("rcopy {original} ADDRESS:{copy}")),
        ("pingpong rc --cm -e -n 100", "pingpong rc --cm -e -n 100 ADDRESS"),
        ("pingpong ud --cm -e -n 100", "pingpong ud --cm -e -n 100 ADDRESS"),
        ("udpong", "udpong -s ADDRESS -S 64 -C 20 -T a"),
    ] {
        connected(server, client);
    }
    assert!(fs::read(&copy).unwrap() == fs::read(&original).unwrap());
    fs::remove_file(original).unwrap();
    fs::remove_file(copy).unwrap();
}

#[test]
fn multicast_group_is_reached_from_the_address_of_the_device() {
    results(&format!("mckey -s -m 239.1.1.1 -C 1 -d {}", device()));
}

#[test]
fn device_of_the_kernel_is_no_option_of_connections() {
    for (arguments, status) in [("rping -s --ib-dev rxe0", 2), ("pingpong rc --cm -d rxe0", 1)] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("must be a soft device with an address"), "{arguments}: {text}");
    }
}
