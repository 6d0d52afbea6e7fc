//! SIGINT and SIGTERM in the phases of the tools.

use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;

use bareverbs_test_support::kernel_test;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;

/// The programs end within a second. The rest is for a busy machine.
const SOON: Duration = Duration::from_secs(3);
/// The time in which the programs come to the phase. On a busy machine, they may be in an earlier one.
const A_WHILE: Duration = Duration::from_millis(1500);

/// Starts commands of `bareverbs`, which come to a phase within the time.
fn start_all(commands: &[&str], time: Duration) -> Vec<Program> {
    let start = |line: &&str| Program::start(Command::new("bareverbs").args(line.split(' ')));
    let programs = commands.iter().map(start).collect();
    std::thread::sleep(time);
    programs
}

/// Asserts that a signal ends all programs.
fn end_all_by(signal: Signal, programs: Vec<Program>) {
    programs.iter().for_each(|program| program.signal(signal));
    programs.into_iter().for_each(|program| expect_end_by(signal, &program.finish_within(SOON)));
}

fn end_one_by(signal: Signal, program: Program) {
    program.signal(signal);
    expect_end_by(signal, &program.finish_within(SOON));
}

/// Asserts that the shell's status of a program is 128 and the number of the signal.
fn expect_end_by(signal: Signal, finished: &Finished) {
    let (number, status) = (signal as i32, finished.status);
    // The signal may come before the program has a handler.
    let ended = status.code() == Some(128 + number) || status.signal() == Some(number);
    let blamed = ["panicked", "the server cannot"].iter().any(|word| finished.stderr.contains(word));
    assert!(ended && !blamed, "{signal}: {finished:#?}");
}

/// The tools whose clients name a host, with the option before it.
const CLIENTS: [&str; 10] = [
    "rstream -S 64 -s",
    "riostream -S 64 -s",
    "udpong -s",
    "rcopy /proc/version",
    "rping -c -a",
    "ucmatose -s",
    "rdma-client -s",
    "rdma-xclient -s",
    "udaddy -s",
    "pingpong rc --cm",
];

#[kernel_test(crate::has_ip)]
fn signals_end_the_resolution_of_addresses() {
    // No host has this address, so that the neighbour discovery takes seconds.
    let absent = host().replace(".0.1", ".0.77");
    nothing_leaks(|| {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let lines = CLIENTS.map(|client| format!("{client} {absent}"));
            // The limit is 2 seconds.
            let mut programs = start_all(&lines.each_ref().map(String::as_str), A_WHILE / 3);
            // On a busy machine, it may have passed.
            programs.retain_mut(|program| !program.has_ended());
            end_all_by(signal, programs);
        }
    });
}

/// A name server that never answers, for all programs of the guest.
struct SilentNameServer(UdpSocket);

impl SilentNameServer {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:53").expect("the test is root");
        fs::write("/tmp/resolv.conf", "nameserver 127.0.0.1\n").expect("the guest's /tmp is writable");
        if !Path::new("/etc/resolv.conf").exists() {
            fs::write("/etc/resolv.conf", "").expect("the guest's root is writable");
        }
        let none = None::<&str>;
        mount(Some("/tmp/resolv.conf"), "/etc/resolv.conf", none, MsFlags::MS_BIND, none).expect("root");
        Self(socket)
    }
}

impl Drop for SilentNameServer {
    fn drop(&mut self) {
        umount2("/etc/resolv.conf", MntFlags::MNT_DETACH).expect("it is mounted");
    }
}

#[kernel_test(crate::has_ip)]
fn signals_end_name_lookups() {
    let server = SilentNameServer::new();
    server.0.set_read_timeout(Some(LIMIT)).expect("the limit is not 0");
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let clients = CLIENTS.into_iter().chain(["pingpong rc", "perf write bw", "cmtime -b 127.0.0.1 -C"]);
        for client in clients {
            let line = format!("{client} host.example");
            let program = Program::start(Command::new("bareverbs").args(line.split(' ')));
            // The program looks the name up now.
            server.0.recv(&mut [0; 512]).expect("a query");
            end_one_by(signal, program);
        }
    }
}

#[kernel_test(crate::has_ip)]
fn signals_end_waits_for_clients() {
    let servers = [
        "rstream -p 7801",
        "riostream -p 7802",
        "udpong -p 7803",
        "rcopy -p 7804",
        "rping -s -p 7805",
        "rping -s -P -p 7806",
        "ucmatose -p 7807",
        "rdma-server -p 7808",
        "rdma-xserver -p 7809",
        "udaddy",
        "pingpong rc -p 7811",
        "pingpong ud --cm -p 7812",
        "perf write bw -p 7813",
        "asyncwatch",
        "monitor",
        "resources -w 60",
    ];
    nothing_leaks(|| {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            end_all_by(signal, start_all(&servers, A_WHILE));
        }
    });
}

/// Servers, and clients without the address of the server, whose transfers take minutes.
const TRANSFERS: [(&str, &str); 7] = [
    ("rstream -S 65536 -C 1000000 -I 1", "-s"),
    ("rstream -S 64 -C 1 -I 1000000000 -T b", "-s"),
    ("rstream -S 65536 -C 1000000 -I 1 -T s", "-s"),
    ("riostream -S 65536 -C 1000000 -I 1", "-s"),
    ("udpong", "-S 512 -C 1000000000 -T e -s"),
    ("rping -s -P", "-c -C 1000000 -a"),
    ("pingpong rc -n 1000000000", ""),
];

/// Starts a server, and clients until one runs for a while: the server listens then.
fn start_pair(server: &str, client: &[&str]) -> (Program, Program) {
    let mut server = Program::start(Command::new("bareverbs").args(server.split(' ')));
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut client = Program::start(Command::new("bareverbs").args(client));
        std::thread::sleep(A_WHILE);
        assert!(!server.has_ended(), "it serves: {:#?}", server.finish());
        if !client.has_ended() {
            return (server, client);
        }
        assert!(Instant::now() < deadline, "it runs: {:#?}", client.finish());
    }
}

#[kernel_test(crate::has_ip)]
fn signals_end_both_sides_of_transfers() {
    for (line, to) in TRANSFERS {
        // Clients have the options of the server, or others.
        let (tool, options) = line.split_once(' ').unwrap_or((line, ""));
        let options = if to.contains("-C") { "" } else { options };
        let client: Vec<_> =
            [tool, options, to, host()].iter().flat_map(|part| part.split_whitespace()).collect();
        let (server, client_side) = start_pair(line, &client);
        end_one_by(Signal::SIGTERM, client_side);
        // It has lost its peer, or waits for the next client.
        drop(server);
        let (server, client_side) = start_pair(line, &client);
        end_one_by(Signal::SIGINT, server);
        drop(client_side);
    }
}

#[kernel_test(crate::has_ip)]
fn signals_end_both_sides_of_a_copy() {
    let folder = Folder::new("/tmp/rcopy-signals");
    let source = folder.path("source");
    fs::File::create(&source).and_then(|file| file.set_len(1 << 40)).expect("the file is sparse");
    let to = format!("{}:/dev/null", host());
    let start = || start_pair("rcopy --json", &["rcopy", &source, &to]);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (server, client) = start();
        end_one_by(signal, client);
        end_one_by(signal, server);
        let (server, client) = start();
        end_one_by(signal, server);
        client.finish().expect_failure("the server cannot write");
        // The peer neither reads nor answers.
        let (server, client) = start();
        server.signal(Signal::SIGSTOP);
        std::thread::sleep(A_WHILE);
        end_one_by(signal, client);
        drop(server);
    }
}
