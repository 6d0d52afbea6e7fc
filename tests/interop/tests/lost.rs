//! One side is killed during a run: the other side exits with an error, and the kernel releases all
//! objects.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use bareverbs_interop_tests::lines::RECORD;
use bareverbs_interop_tests::pingpong::{Bareverbs, HOST, PORT, Pingpong, RdmaCore};
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::kernel_test;
use bareverbs_test_support::resources::{held, nothing_leaks, settles_at};
use nix::sys::signal::Signal;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// More iterations than a test can complete.
const FOREVER: &[&str] = &["-n", "1000000000"];
const FOREVER_ON_EVENTS: &[&str] = &["-e", "-n", "1000000000"];
/// Time limit of the error. The program probes its peer after 10 s without a completion.
const BOUND: Duration = Duration::from_secs(25);
/// Time before the kill.
const A_WHILE: Duration = Duration::from_secs(1);
/// Seconds before each attempt to kill a peer in the middle of a run. On a busy machine, an early kill
/// comes before the first message.
const KILL_AFTER: [u64; 3] = [1, 4, 12];

#[kernel_test]
fn peer_killed_before_the_first_message() {
    nothing_leaks(|| {
        let server = RdmaCore(&["-p", "4714"]).serve(4714);
        let listener = TcpListener::bind((HOST, PORT)).unwrap();
        let client = Program::start(&mut Bareverbs(&["-r", "100"]).command(Some(HOST)));
        let mut near = listener.accept().unwrap().0;
        let mut far = TcpStream::connect((HOST, 4714)).unwrap();
        let mut record = [0; RECORD];
        near.read_exact(&mut record).unwrap();
        far.write_all(&record).unwrap();
        far.read_exact(&mut record).unwrap();
        // The server is killed when it is ready, before the client has its record.
        server.signal(Signal::SIGKILL);
        server.finish();
        near.write_all(&record).unwrap();
        client.finish().expect_failure(
            "Failed status transport retry counter exceeded (12) for wr_id 2: the peer has exited \
             or is unreachable; 0 messages were sent and 0 received, then 100 requests completed \
             with status Work Request Flushed Error (5)",
        );
    });
}

/// Asserts that `bareverbs` reports the lost peer: the retries of its message are exceeded, or the
/// retries of the probe, which follows 10 s without a completion.
fn expect_lost(finished: Finished) {
    let finished = finished.expect_failure("Failed status transport retry counter exceeded (12) for wr_id 2");
    let after = finished.stderr.split(" received, then ").nth(1).unwrap_or_default();
    let flushed: u32 = after.split(' ').next().unwrap_or_default().parse().unwrap_or_default();
    assert!(flushed >= 2, "its receives were not flushed: {finished:#?}");
}

/// Kills one side of an endless run on this TCP port, in the middle. The other side is `bareverbs`.
fn kill_one(port: u16, server: Pingpong<'_>, client: Pingpong<'_>, victim: Side) {
    let killed = |seconds| kill_after(Duration::from_secs(seconds), port, server, client, victim);
    let mut survivors = KILL_AFTER.into_iter().map(killed);
    let is_in_the_middle = |finished: &Finished| !finished.stderr.contains("; 0 messages were sent");
    expect_lost(survivors.find(is_in_the_middle).expect("a message is sent before the kill"));
}

/// The survivor of a run whose other side is killed after this time.
fn kill_after(
    time: Duration,
    port: u16,
    server: Pingpong<'_>,
    client: Pingpong<'_>,
    victim: Side,
) -> Finished {
    let server = server.serve(port);
    let client = Program::start(&mut client.command(Some(HOST)));
    let (victim, mut survivor) = match victim {
        Side::Server => (server, client),
        Side::Client => (client, server),
    };
    survivor.line("  remote address:");
    std::thread::sleep(time);
    victim.signal(Signal::SIGKILL);
    assert_eq!(victim.finish().status.signal(), Some(Signal::SIGKILL as i32));
    survivor.finish_within(BOUND)
}

#[derive(Clone, Copy)]
enum Side {
    Server,
    Client,
}

/// Runs the cases in parallel, because each may take 10 s.
#[kernel_test]
fn killed_peers_are_reported() {
    let forever = |port| ["-n", "1000000000", "-p", port];
    let on_events = |port| ["-n", "1000000000", "-e", "-p", port];
    nothing_leaks(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                kill_one(4721, RdmaCore(&forever("4721")), Bareverbs(&forever("4721")), Side::Server)
            });
            scope.spawn(|| {
                kill_one(4722, Bareverbs(&on_events("4722")), RdmaCore(&forever("4722")), Side::Client)
            });
            scope.spawn(|| {
                kill_one(4723, Bareverbs(&forever("4723")), Bareverbs(&on_events("4723")), Side::Client)
            });
            scope.spawn(|| {
                kill_one(4724, Bareverbs(&forever("4724")), Bareverbs(&on_events("4724")), Side::Server)
            });
        });
    });
}

#[kernel_test]
fn stopped_and_dead_peers_are_distinguished() {
    nothing_leaks(|| {
        let server = Bareverbs(FOREVER).serve(PORT);
        let mut client = Program::start(&mut Bareverbs(FOREVER_ON_EVENTS).command(Some(HOST)));
        client.line("  remote address:");
        std::thread::sleep(A_WHILE);
        client.signal(Signal::SIGSTOP);
        let silence = "no completion for 10 s; the QP of the peer still exists";
        server.finish_within(BOUND).expect_failure(silence);
        kill(client);
    });
}

fn kill(ours: Program) {
    ours.signal(Signal::SIGKILL);
    assert_eq!(ours.finish().status.signal(), Some(Signal::SIGKILL as i32));
}

#[kernel_test]
fn killed_bareverbs_server_is_reported() {
    nothing_leaks(|| {
        let mut server = Bareverbs(FOREVER).serve(PORT);
        let client = Program::start(&mut RdmaCore(FOREVER).command(Some(HOST)));
        server.line("  remote address:");
        std::thread::sleep(A_WHILE);
        kill(server);
        // The C program might wait for the server without limit.
        drop(client);
    });
}

#[kernel_test]
fn killed_bareverbs_client_is_reported() {
    nothing_leaks(|| {
        let server = RdmaCore(FOREVER).serve(PORT);
        let theirs = held();
        let mut client = Program::start(&mut Bareverbs(FOREVER_ON_EVENTS).command(Some(HOST)));
        client.line("  remote address:");
        std::thread::sleep(A_WHILE);
        assert_eq!((held().qp, held().mr), (theirs.qp + 1, theirs.mr + 1));
        kill(client);
        settles_at(theirs);
        drop(server);
    });
}

#[kernel_test]
fn sigterm_ends_the_server_cleanly() {
    nothing_leaks(|| {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let server = Bareverbs(&[]).serve(PORT);
            server.signal(signal);
            let finished = server.finish();
            assert_eq!(finished.status.code(), Some(128 + signal as i32), "{finished:#?}");
            assert!(finished.stderr.contains("was interrupted"), "{finished:#?}");
        }
    });
}
