//! The address exchange over TCP: bytes and system calls.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use bareverbs_interop_tests::lines::{Address, RECORD};
use bareverbs_interop_tests::pingpong::{Bareverbs, HOST, PORT, Pingpong, RdmaCore, record_of_absent_qp};
use bareverbs_interop_tests::program::Program;
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{device, kernel_test};
use nix::sys::signal::Signal;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

const SOON: Duration = Duration::from_secs(20);

/// All bytes of one read.
fn read_once(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut bytes = vec![0; 4096];
    let count = stream.read(&mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Returns the records of a server, and its address. The server, which then waits for messages, is
/// killed.
fn server_output(server: Pingpong<'_>) -> (Vec<u8>, Vec<u8>, Option<Address>) {
    let server = server.serve(PORT);
    let mut stream = TcpStream::connect((HOST, PORT)).unwrap();
    stream.write_all(&record_of_absent_qp()).unwrap();
    let record = read_once(&mut stream);
    stream.write_all(b"done\0").unwrap();
    let rest = rest(stream);
    let address = record.len().eq(&RECORD).then(|| record_address(&record)).flatten();
    server.signal(Signal::SIGTERM);
    server.finish();
    (record, rest, address)
}

/// Parses a record as an address, in the C program's format.
fn record_address(record: &[u8]) -> Option<Address> {
    let text = std::str::from_utf8(record).ok()?.strip_suffix('\0')?;
    let fields: Vec<&str> = text.split(':').collect();
    let [lid, qpn, psn, gid] = fields[..] else { return None };
    let address = Address {
        lid: u16::from_str_radix(lid, 16).ok()?,
        qpn: u32::from_str_radix(qpn, 16).ok()?,
        psn: u32::from_str_radix(psn, 16).ok()?,
        gid: u128::from_str_radix(gid, 16).ok()?.into(),
    };
    (address.record() == record).then_some(address)
}

#[kernel_test]
fn server_record_matches_ibv_rc_pingpong() {
    nothing_leaks(|| {
        for server in [Bareverbs(&[]), RdmaCore(&[])] {
            let (record, rest, address) = server_output(server);
            assert_eq!(record.len(), RECORD, "{server:?}: {}", record.escape_ascii());
            let address = address.unwrap_or_else(|| panic!("{server:?}: {}", record.escape_ascii()));
            let gid = if device::is_infiniband() { "::" } else { "::ffff:10.1.0.1" };
            assert_eq!(address.gid.to_string(), gid, "{server:?}");
            assert_eq!(rest, b"", "{server:?} says nothing more");
        }
    });
}

#[kernel_test]
fn client_record_and_done_match_ibv_rc_pingpong() {
    nothing_leaks(|| {
        for client in [Bareverbs(&["-n", "1"]), RdmaCore(&["-n", "1"])] {
            let listener = TcpListener::bind((HOST, PORT)).unwrap();
            let program = Program::start(&mut client.command(Some(HOST)));
            let (mut stream, _) = listener.accept().unwrap();
            let record = read_once(&mut stream);
            let address =
                record_address(&record).unwrap_or_else(|| panic!("{client:?}: {}", record.escape_ascii()));
            stream.write_all(&record_of_absent_qp()).unwrap();
            assert_eq!(rest(stream), b"done\0", "{client:?}");
            // The first message is never answered. The C program retries it without limit.
            if client.is_bareverbs() {
                let finished =
                    program.finish().expect_failure("Failed status transport retry counter exceeded");
                let line = finished.stdout.lines().next().unwrap_or_default();
                assert_eq!(Address::read("local", line), Some(address), "{finished:#?}");
            }
        }
    });
}

/// The writes to TCP connections, as `(length, written)`.
fn writes(trace: &str) -> Vec<(usize, usize)> {
    let written = trace.lines().filter(|line| line.contains("<TCP"));
    let written = written.filter(|line| line.contains("write") || line.contains("send"));
    let number = |text: &str| text.trim_matches(|c: char| !c.is_ascii_digit()).parse().ok();
    written
        .map(|line| {
            // sendto(3<TCP…>, "…", 52, MSG_NOSIGNAL, NULL, 0) = 52
            let (call, result) = line.rsplit_once(" = ").unwrap_or_else(|| panic!("{line}"));
            let after_text = call.rsplit_once("\", ").map_or("", |(_, rest)| rest);
            let asked = after_text.split([',', ')']).next().and_then(number);
            asked.zip(number(result)).unwrap_or_else(|| panic!("{line}"))
        })
        .collect()
}

#[kernel_test]
fn each_part_is_written_in_one_call() {
    let traced = |log: &str, client: Option<&str>| {
        let mut command = Command::new("strace");
        command.args(["-f", "-yy", "-s", "200", "--seccomp-bpf", "-o", log]);
        command.args(["-e", "trace=write,writev,pwrite64,sendto,sendmsg,sendmmsg,sendfile,splice"]);
        command.args(["bareverbs", "pingpong", "rc", "-n", "5"]).args(client);
        Program::start(&mut command)
    };
    let mut server = traced("/tmp/server.strace", None);
    server.line("  local address:");
    traced("/tmp/client.strace", Some(HOST)).finish().expect_success();
    server.finish().expect_success();
    for (log, wanted) in
        [("/tmp/server.strace", &[(52, 52)][..]), ("/tmp/client.strace", &[(52, 52), (5, 5)])]
    {
        let trace = std::fs::read_to_string(log).unwrap();
        assert_eq!(writes(&trace), wanted, "{log}:\n{trace}");
    }
}
