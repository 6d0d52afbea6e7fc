//! Peers that end or speak garbage in each phase of a benchmark, and paths that lose or delay packets.
//!
//! Two sides of `bareverbs perf` talk through a proxy of the control connection. It forwards a number
//! of bytes of one side, which is a place in the exchange. Then the fault happens.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use bareverbs_interop_tests::perf::json;
use bareverbs_interop_tests::pingpong::wait_until_listening;
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::wire::{End, Wire, lossy_wire};
use bareverbs_test_support::{device, kernel_test};
use nix::sys::signal::Signal;

const LOCALHOST: &str = "127.0.0.1";
/// The TCP port of the server, and that of the proxy.
const SERVER: u16 = 18515;
const PROXY: u16 = 18520;
/// The time in which a side notices the end of its peer, with a reserve for a slow machine.
const SOON: Duration = Duration::from_secs(20);
/// The same on a path whose packets are lost, where retries come first.
const LATER: Duration = Duration::from_secs(40);
/// Time of traffic before a fault.
const A_WHILE: Duration = Duration::from_secs(1);

/// Bytes of the messages before the records: version, cycle buffer, cache line, MTU, settings.
const PREAMBLE: [usize; 5] = [16, 4, 4, 2, 256];

/// The side that has the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

use Side::{Client, Server};

/// A benchmark whose settings both sides have.
#[derive(Clone, Copy, Debug)]
struct Test(&'static str);

impl Test {
    fn command(self, device: &str, others: &[&str]) -> Command {
        let mut command = Command::new("bareverbs");
        command.arg("perf").args(self.0.split(' ')).args(["--json", "-d", device]).args(others);
        command
    }
}

/// Bytes of an address record: with a GID on RoCE.
fn record() -> usize {
    if device::is_infiniband() { 59 } else { 108 }
}

/// Places in the exchange of a one-way bandwidth test of writes, by the bytes that a side has sent:
/// the phase, the bytes.
fn phases() -> [(&'static str, usize); 6] {
    let (preamble, record) = (PREAMBLE.iter().sum::<usize>(), record());
    [
        ("before the exchange", 0),
        ("within the version", 7),
        ("before the records", preamble),
        ("within a record", preamble + record / 2),
        // Both sides connect their queue pairs after the first record.
        ("after the connection", preamble + record),
        ("before the run", preamble + 2 * record),
    ]
}

/// Forwards bytes from one side to the other: at most `limit`, then `garbage` if there is some, then
/// nothing more. Returns the number of bytes when the limit is reached or a side has ended.
fn forward(mut from: TcpStream, mut to: TcpStream, limit: usize, garbage: &[u8]) -> usize {
    let mut bytes = [0; 512];
    let mut forwarded = 0;
    while forwarded < limit {
        let room = bytes.len().min(limit - forwarded);
        match from.read(&mut bytes[..room]) {
            Ok(0) | Err(_) => {
                let _ = to.shutdown(Shutdown::Write);
                return forwarded;
            }
            Ok(count) if to.write_all(&bytes[..count]).is_err() => return forwarded,
            Ok(count) => forwarded += count,
        }
    }
    let _ = to.write_all(garbage);
    forwarded
}

/// Runs both sides through the proxy, until the faulty one has sent `limit` bytes. Then `fault` is
/// called with the server, the client, and the proxy's connections to the client and to the server.
/// Returns the bytes that the faulty side has sent.
fn through_proxy(
    test: Test,
    faulty: Side,
    limit: usize,
    garbage: &[u8],
    fault: impl FnOnce(Program, Program, TcpStream, TcpStream),
) -> usize {
    let listener = TcpListener::bind((LOCALHOST, PROXY)).unwrap();
    let mut server = Program::start(&mut test.command(device::name(), &[]));
    wait_until_listening(&mut server, SERVER);
    let client = Program::start(&mut test.command(device::name(), &["-p", "18520", LOCALHOST]));
    let (near, _) = listener.accept().unwrap();
    let far = TcpStream::connect((LOCALHOST, SERVER)).unwrap();
    let clone = |stream: &TcpStream| stream.try_clone().unwrap();
    thread::scope(|scope| {
        let (from_client, to_server) = (clone(&near), clone(&far));
        let (from_server, to_client) = (clone(&far), clone(&near));
        let (faulty_from, faulty_to, other_from, other_to) = match faulty {
            Server => (from_server, to_client, from_client, to_server),
            Client => (from_client, to_server, from_server, to_client),
        };
        scope.spawn(move || forward(other_from, other_to, usize::MAX, &[]));
        let sent = forward(faulty_from, faulty_to, limit, garbage);
        fault(server, client, clone(&near), clone(&far));
        let _ = near.shutdown(Shutdown::Both);
        let _ = far.shutdown(Shutdown::Both);
        sent
    })
}

/// Asserts that a side ended with an error message, and soon.
fn expect_error(side: &Finished, case: &str) {
    assert_eq!(side.status.code(), Some(1), "{case}: {side:#?}");
    let message = side.stderr.lines().find(|line| line.starts_with("bareverbs: "));
    assert!(message.is_some_and(|message| message.len() > 30), "{case}: {side:#?}");
    assert!(!side.stderr.contains("panicked"), "{case}: {side:#?}");
}

/// Kills the faulty side after these bytes. The other side must notice.
fn kill_at(test: Test, faulty: Side, phase: &str, limit: usize) {
    through_proxy(test, faulty, limit, &[], |server, client, near, far| {
        let (victim, survivor, to_survivor) = match faulty {
            Server => (server, client, near),
            Client => (client, server, far),
        };
        victim.signal(Signal::SIGKILL);
        victim.finish();
        // The kernel of a killed peer closes its connection.
        let _ = to_survivor.shutdown(Shutdown::Both);
        expect_error(&survivor.finish_within(SOON), &format!("{test:?}, {faulty:?} killed {phase}"));
    });
}

#[kernel_test]
fn short_peer_killed_after_the_connection_is_reported() {
    let (phase, limit) = phases()[4];
    kill_at(Test("write bw"), Server, phase, limit);
}

#[kernel_test]
fn peers_killed_in_each_phase_of_the_exchange_are_reported() {
    for (phase, limit) in phases() {
        for faulty in [Server, Client] {
            kill_at(Test("write bw"), faulty, phase, limit);
        }
    }
}

/// The last phase.
const FINAL: &str = "at the final barrier";

/// Places after the run of a test with messages, as of [`phases`]. The sides exchange a barrier, the
/// report (five values of 8 bytes) and the final barrier.
fn phases_after_the_run(test: Test, faulty: Side) -> [(&'static str, usize); 3] {
    let all = through_proxy(test, faulty, usize::MAX, &[], |server, client, _, _| {
        for side in [server, client] {
            side.finish_within(SOON).expect_success();
        }
    });
    let final_barrier = all - record();
    [
        ("at the barrier after the run", final_barrier - 40 - record() / 2),
        ("within the report", final_barrier - 12),
        (FINAL, final_barrier),
    ]
}

/// A run that ends by itself.
const SHORT: Test = Test("write bw -n 20 -s 512");

#[kernel_test]
fn peers_killed_at_the_final_barrier_are_reported() {
    for faulty in [Server, Client] {
        for (phase, limit) in phases_after_the_run(SHORT, faulty) {
            kill_at(SHORT, faulty, phase, limit);
        }
    }
}

#[kernel_test]
fn peers_killed_in_bidirectional_runs_are_reported() {
    for test in [Test("write bw -b -D 600"), Test("send bw -b -D 600"), Test("read bw -b -e -D 600")] {
        for faulty in [Server, Client] {
            through_proxy(test, faulty, 0, &[], |server, client, near, far| {
                // The rest of the exchange, and some traffic.
                thread::scope(|scope| {
                    let clone = |stream: &TcpStream| stream.try_clone().unwrap();
                    let (from, to) = if faulty == Server { (&far, &near) } else { (&near, &far) };
                    let (from, to) = (clone(from), clone(to));
                    scope.spawn(move || forward(from, to, usize::MAX, &[]));
                    thread::sleep(A_WHILE);
                    let (victim, survivor, to_survivor) = match faulty {
                        Server => (server, client, &near),
                        Client => (client, server, &far),
                    };
                    victim.signal(Signal::SIGKILL);
                    victim.finish();
                    let _ = to_survivor.shutdown(Shutdown::Both);
                    let end = survivor.finish_within(SOON);
                    let _ = (near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both));
                    expect_error(&end, &format!("{test:?}, {faulty:?} killed during traffic"));
                });
            });
        }
    }
}

#[kernel_test]
fn garbage_in_each_phase_is_reported() {
    const GARBAGE: [u8; 300] = [0xa5; 300];
    for faulty in [Server, Client] {
        for (phase, limit) in phases().into_iter().chain(phases_after_the_run(SHORT, faulty)) {
            through_proxy(SHORT, faulty, limit, &GARBAGE, |server, client, near, far| {
                let (sane, survivor) = if faulty == Server { (server, client) } else { (client, server) };
                expect_error(&survivor.finish_within(SOON), &format!("garbage of {faulty:?} {phase}"));
                // The other side loses its peer.
                let _ = (near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both));
                sane.finish_within(SOON);
            });
        }
    }
}

/// Asserts that a side ended by SIGINT, and soon.
fn expect_interruption(side: &Finished, case: &str) {
    assert_eq!(side.status.code(), Some(130), "{case}: {side:#?}");
    assert!(side.stderr.lines().any(|line| line.contains("interrupted")), "{case}: {side:#?}");
    assert!(!side.stderr.contains("panicked"), "{case}: {side:#?}");
}

#[kernel_test]
fn short_interrupted_runs_print_what_they_measured() {
    for (test, interrupted) in [
        (Test("write bw -D 600 -f 1"), Client),
        (Test("send bw -D 600 -f 1 -s 512"), Server),
        (Test("write bw -n 100000000 -q 4 --threads 2"), Client),
        (Test("send lat -n 100000000"), Server),
        (Test("write lat -D 600 -f 1"), Client),
        (Test("read bw -b -e -D 600 -f 1"), Server),
    ] {
        let mut server = Program::start(&mut test.command(device::name(), &[]));
        wait_until_listening(&mut server, SERVER);
        let client = Program::start(&mut test.command(device::name(), &[LOCALHOST]));
        super::wait_until_ready_to_send(&client);
        // The warm-up takes one second of it.
        thread::sleep(3 * A_WHILE);
        let (signalled, other) = if interrupted == Server { (server, client) } else { (client, server) };
        signalled.signal(Signal::SIGINT);
        let (signalled, other) = (signalled.finish_within(SOON), other.finish_within(SOON));
        let case = format!("{test:?}, {interrupted:?} interrupted");
        expect_interruption(&signalled, &case);
        expect_error(&other, &case);
        let json = json(&signalled);
        let result = &json["results"][0];
        assert_eq!(json["interrupted"], true, "{case}: {json:#}");
        assert!(result["messages"].as_u64().is_some_and(|messages| messages > 0), "{case}: {json:#}");
        assert!(result["seconds"].as_f64().is_some_and(|time| time > 0.0 && time < 20.0), "{case}: {json:#}");
    }
}

#[kernel_test]
fn sides_interrupted_in_each_phase_end_soon() {
    for (phase, limit) in phases() {
        for faulty in [Server, Client] {
            interrupt_at(Test("write bw"), faulty, phase, limit);
        }
    }
    for faulty in [Server, Client] {
        for (phase, limit) in phases_after_the_run(SHORT, faulty) {
            let signalled = interrupt_at(SHORT, faulty, phase, limit);
            // The client has measured all messages.
            if faulty == Client {
                let json = json(&signalled);
                assert_eq!(json["results"][0]["messages"], 20, "{phase}: {json:#}");
            }
        }
    }
}

/// Interrupts the faulty side after these bytes. Both sides must end. Returns the faulty one.
fn interrupt_at(test: Test, faulty: Side, phase: &str, limit: usize) -> Finished {
    let mut end = None;
    through_proxy(test, faulty, limit, &[], |server, client, near, far| {
        let (signalled, other, to_other) = match faulty {
            Server => (server, client, near),
            Client => (client, server, far),
        };
        signalled.signal(Signal::SIGINT);
        let case = format!("{test:?}, {faulty:?} interrupted {phase}");
        let signalled = signalled.finish_within(SOON);
        // The server answers the last message, and is done.
        if !(phase == FINAL && faulty == Server && signalled.status.success()) {
            expect_interruption(&signalled, &case);
        }
        // The proxy closes the connection as the kernel does.
        let _ = to_other.shutdown(Shutdown::Both);
        expect_error(&other.finish_within(SOON), &case);
        end = Some(signalled);
    });
    end.expect("the fault happened")
}

/// Runs a test between the ends of a wire. The server is at the far end.
fn over_wire(test: Test) -> (Program, Program) {
    let mut server = Program::start(&mut test.command(End::Far.device(), &[]));
    wait_until_listening(&mut server, SERVER);
    (server, Program::start(&mut test.command(End::Near.device(), &[LOCALHOST])))
}

#[kernel_test(lossy_wire)]
fn lost_and_delayed_packets_end_with_results() {
    let wire = Wire::new();
    for (netem, test) in [
        ("loss 3%", Test("write bw -s 1024 -n 100 -t 8")),
        ("loss 3%", Test("send bw -b -s 1024 -n 50 -t 4")),
        ("delay 20ms", Test("write lat -n 20")),
        ("delay 20ms", Test("read bw -b -s 1024 -n 50 -t 8")),
    ] {
        wire.impair(End::Near, netem);
        let (server, client) = over_wire(test);
        let ends = [client, server].map(|side| side.finish_within(LATER));
        assert!(ends.iter().all(|end| end.status.success()), "{netem}: {ends:#?}");
        assert!(!json(&ends[0])["results"].as_array().unwrap().is_empty(), "{ends:#?}");
        wire.heal();
    }
}

/// All messages complete at once, after 17 s, or one after the other.
#[kernel_test(lossy_wire)]
fn large_messages_on_a_slow_path_complete() {
    let wire = Wire::new();
    for end in [End::Near, End::Far] {
        wire.impair(end, "rate 20mbit");
    }
    for test in [Test("write bw -s 8388608 -n 5 -Q 5 -t 5"), Test("write bw -s 8388608 -n 5 -b")] {
        let (server, client) = over_wire(test);
        let ends = [client, server].map(|side| side.finish_within(2 * LATER));
        assert!(ends.iter().all(|end| end.status.success()), "{test:?}: {ends:#?}");
    }
}

#[kernel_test(lossy_wire)]
fn cut_paths_end_with_errors() {
    let wire = Wire::new();
    for test in [
        Test("write bw -D 600"),
        Test("write bw -b -D 600"),
        Test("send bw -b -D 600"),
        Test("send lat -D 600"),
        Test("read lat -D 600"),
        Test("send bw -c UD -D 600 -s 512"),
    ] {
        wire.heal();
        let (server, client) = over_wire(test);
        thread::sleep(A_WHILE);
        wire.cut(End::Near);
        // A sender of datagrams does not notice; its receiver does.
        let ends = [server, client].map(|side| side.finish_within(LATER));
        for end in ends {
            expect_error(&end, &format!("{test:?} on a cut path"));
        }
    }
}
