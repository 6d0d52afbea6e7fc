//! Runs of `bareverbs pingpong` with `ibv_uc_pingpong`, `ibv_ud_pingpong` and `ibv_srq_pingpong`,
//! in both roles, and with itself.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use bareverbs::values::Mtu;
use bareverbs_interop_tests::calls::trace;
use bareverbs_interop_tests::lines::RECORD;
use bareverbs_interop_tests::pingpong::{
    Bareverbs, BareverbsOf, HOST, Kind, PORT, Pingpong, RdmaCoreOf, record_of_absent_qp, run_all_pairings_of,
    run_pingpong, run_pingpong_on,
};
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{Completion, Outcome, device, kernel_test, skip};
use nix::sys::signal::Signal;
use serde_json::Value;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

const KINDS: [Kind; 3] = [Kind::Uc, Kind::Ud, Kind::Srq];

#[kernel_test]
fn default_runs_match_the_c_programs() {
    nothing_leaks(|| {
        for kind in KINDS {
            run_all_pairings_of(kind, &[], if kind == Kind::Ud { 1024 } else { 4096 }, 1000);
        }
    });
}

#[kernel_test]
fn either_side_of_any_transport_may_sleep_on_events() {
    let (awake, asleep) = (&["-n", "50", "-s", "512"][..], &["-e", "-n", "50", "-s", "512"][..]);
    nothing_leaks(|| {
        for kind in KINDS {
            run_all_pairings_of(kind, asleep, 512, 50);
            for (server, client) in [
                (BareverbsOf(kind, asleep), RdmaCoreOf(kind, awake)),
                (BareverbsOf(kind, awake), RdmaCoreOf(kind, asleep)),
                (RdmaCoreOf(kind, asleep), BareverbsOf(kind, awake)),
                (RdmaCoreOf(kind, awake), BareverbsOf(kind, asleep)),
            ] {
                run_pingpong(server, client).expect_regular(512, 50);
            }
        }
    });
}

#[kernel_test]
fn messages_of_every_size_that_a_transport_carries() {
    for kind in KINDS {
        for size in ["1", "16", "17", "1000", "1024"] {
            run_all_pairings_of(kind, &["-n", "10", "-s", size], size.parse().unwrap(), 10);
        }
    }
    for kind in [Kind::Uc, Kind::Srq] {
        for mtu in ["256", "512", "1024"] {
            run_all_pairings_of(kind, &["-n", "5", "-m", mtu, "-s", "3000"], 3000, 5);
        }
        run_all_pairings_of(kind, &["-n", "2", "-s", "100000"], 100_000, 2);
    }
}

#[kernel_test]
fn checked_data_on_every_transport() {
    for kind in KINDS {
        for size in ["1", "200", "1024", "20000"] {
            if kind == Kind::Ud && size == "20000" {
                continue;
            }
            let options = &["-c", "-n", "30", "-s", size][..];
            let plain = &options[1..];
            for (server, client) in [
                (BareverbsOf(kind, options), RdmaCoreOf(kind, options)),
                (RdmaCoreOf(kind, options), BareverbsOf(kind, options)),
                (BareverbsOf(kind, options), RdmaCoreOf(kind, plain)),
                (RdmaCoreOf(kind, plain), BareverbsOf(kind, options)),
                (BareverbsOf(kind, options), BareverbsOf(kind, options)),
                (BareverbsOf(kind, plain), BareverbsOf(kind, options)),
            ] {
                let run = run_pingpong(server, client).expect_regular(size.parse().unwrap(), 30);
                for (program_under_test, side) in [(server, &run.server), (client, &run.client)] {
                    let said = side.stderr.lines().find_map(|line| line.strip_prefix("all bytes of "));
                    let checked = said.and_then(|said| said.split(' ').next()?.parse::<u32>().ok());
                    match matches!(program_under_test, BareverbsOf(_, ["-c", ..])) {
                        // Some queue pairs may have received more than required.
                        true => assert!(checked.is_some_and(|count| count >= 30), "{run:#?}"),
                        false => assert_eq!(checked, None, "{run:#?}"),
                    }
                }
            }
        }
    }
}

#[kernel_test]
fn service_levels_gid_indices_and_long_names() {
    let options = &[
        "--port=4711",
        "--ib-dev",
        device::name(),
        "--ib-port=1",
        "--iters=20",
        "--size=0x100",
        "--sl=3",
    ][..];
    let link_local = &["-n", "20", "-g", "0", "-s", "64"][..];
    for kind in KINDS {
        for (server, client) in [
            (BareverbsOf(kind, options), RdmaCoreOf(kind, options)),
            (RdmaCoreOf(kind, options), BareverbsOf(kind, options)),
        ] {
            run_pingpong_on(4711, server, client).expect_regular(256, 20);
        }
        // The C program uses the last `-g`, so both sides use the link-local address.
        let run =
            run_pingpong(RdmaCoreOf(kind, link_local), BareverbsOf(kind, link_local)).expect_regular(64, 20);
        assert!(run.client.stdout.contains("GID fe80::"), "{run:#?}");
    }
}

#[kernel_test]
fn small_srq_is_refilled() {
    for receives in ["4", "5", "9"] {
        for check in [&[][..], &["-c"]] {
            let options = [&["-q", "4", "-r", receives, "-n", "100", "-s", "64"], check].concat();
            run_all_pairings_of(Kind::Srq, &options, 64, 100);
        }
    }
}

#[kernel_test]
fn any_number_of_queue_pairs() {
    nothing_leaks(|| {
        run_all_pairings_of(Kind::Srq, &["-q", "1", "-r", "1", "-n", "20", "-s", "64"], 64, 20);
        run_all_pairings_of(Kind::Srq, &["-q", "255", "-n", "300", "-s", "64"], 64, 300);
        // More queue pairs than exchanges.
        run_all_pairings_of(Kind::Srq, &["-q", "16", "-n", "1", "-s", "64"], 64, 1);
    });
}

#[kernel_test]
fn different_qp_counts_are_rejected() {
    let (few, many) = (BareverbsOf(Kind::Srq, &["-q", "3"]), BareverbsOf(Kind::Srq, &["-q", "5"]));
    nothing_leaks(|| {
        let server = few.serve(PORT);
        let client = Program::start(&mut many.command(Some(HOST)));
        let words = "the peer uses 5 QPs, this side 3: both sides need the same -q";
        server.finish().expect_failure(words);
        client.finish().expect_failure("the peer closed the connection");
        // The error also has the number of a client that is the C program.
        let server = few.serve(PORT);
        let client = Program::start(&mut RdmaCoreOf(Kind::Srq, &["-q", "5"]).command(Some(HOST)));
        server.finish().expect_failure(words);
        drop(client);
    });
}

/// A server's answer to the records, and all bytes until it closes the connection.
fn server_output(server: Pingpong<'_>, records: &[u8]) -> Vec<u8> {
    let server = server.serve(PORT);
    let mut stream = TcpStream::connect((HOST, PORT)).unwrap();
    stream.write_all(records).unwrap();
    let mut received = vec![0; records.len()];
    stream.read_exact(&mut received).unwrap();
    stream.write_all(b"done\0").unwrap();
    stream.read_to_end(&mut received).unwrap();
    server.signal(Signal::SIGTERM);
    server.finish();
    received
}

#[kernel_test]
fn records_of_several_qps_match_the_c_program() {
    let somebody = record_of_absent_qp();
    let blank = b"0000:000000:000000:00000000000000000000000000000000\0";
    let records = |numbers: usize| [somebody.repeat(numbers), blank.repeat(256 - numbers)].concat();
    let expect = |who: &str, received: &[u8]| {
        assert_eq!(received.len(), 256 * RECORD, "{who}");
        for (place, record) in received.chunks(RECORD).enumerate() {
            let is_blank = record == blank;
            assert_eq!(is_blank, place >= 2, "{who}: record {place} is {}", record.escape_ascii());
            let gid = &record[19..];
            assert!(is_blank || gid == &somebody[19..], "{who}: {}", record.escape_ascii());
        }
    };
    nothing_leaks(|| {
        let options = &["-q", "2"][..];
        for server in [BareverbsOf(Kind::Srq, options), RdmaCoreOf(Kind::Srq, options)] {
            expect("server", &server_output(server, &records(2)));
        }
        for client in [BareverbsOf(Kind::Srq, options), RdmaCoreOf(Kind::Srq, options)] {
            let listener = TcpListener::bind((HOST, PORT)).unwrap();
            let program = Program::start(&mut client.command(Some(HOST)));
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = vec![0; 256 * RECORD];
            stream.read_exact(&mut received).unwrap();
            expect("client", &received);
            stream.write_all(&records(2)).unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"done\0", "{client:?}");
            drop(program);
        }
    });
}

fn devinfo() -> String {
    let report = Command::new("ibv_devinfo").arg("-v").output().expect("the lab has ibv_devinfo");
    String::from_utf8_lossy(&report.stdout).into_owned()
}

#[kernel_test]
fn shared_receives_on_demand_where_the_kernel_has_it() -> Outcome {
    if !devinfo().contains("SUPPORT_SRQ") {
        return skip("this kernel's Soft-RoCE has no on-demand paging for shared receives");
    }
    run_all_pairings_of(Kind::Srq, &["-o", "-n", "20"], 4096, 20);
    Ok(Completion::Completed)
}

fn refused(kind: Kind, options: &[&str], words: &str) {
    for host in [None, Some(HOST)] {
        let calls = trace(&mut BareverbsOf(kind, options).command(host));
        assert_eq!(calls.status, Some(1), "{options:?}: {calls:#?}");
        assert!(calls.stderr.contains(words), "{options:?} should say `{words}`: {calls:#?}");
        let made = calls.making();
        assert!(made.is_empty() && !calls.network(), "{options:?} made {made:?}: {calls:#?}");
    }
}

#[kernel_test]
fn unsupported_options_of_a_transport_are_refused_first() {
    let mtu = device::open().query_port(1).expect("the port").active_mtu;
    let too_long = (mtu.bytes() + 1).to_string();
    let words = format!("exceeds the MTU of port 1 (active_mtu {mtu})");
    refused(Kind::Ud, &["-s", &too_long], &words);
    if mtu < Mtu::Mtu4096 {
        refused(Kind::Uc, &["-m", "4096"], &format!("exceeds the MTU of port 1 (active_mtu {mtu})"));
    }
    refused(Kind::Uc, &["-r", "2000000"], "exceed the capacity of a QP (max_qp_wr ");
    refused(Kind::Srq, &["-r", "2000000"], "exceed the capacity of an SRQ (max_srq_wr ");
    let attr = device::open().query_device().expect("the device");
    if attr.max_srq_wr >= attr.max_cqe {
        let most = attr.max_cqe.to_string();
        let words = "exceed the capacity of a CQ (max_cqe ";
        refused(Kind::Srq, &["-r", &most], words);
    }
    refused(Kind::Srq, &["-r", "15"], "15 receives (-r) are too few for 16 QPs (-q)");
    for kind in KINDS {
        refused(kind, &["-i", "3"], "port 3");
        refused(kind, &["-g", "200"], "GID");
        refused(kind, &["-d", "rxe7"], "rxe7");
    }
    if !devinfo().contains("ODP_SUPPORT") {
        let words = "-o and -O require on-demand paging (ODP_SUPPORT)";
        refused(Kind::Srq, &["-o"], &format!("{}: {words}", device::name()));
    }
}

/// Kills the client of an endless run on this TCP port. The server is `bareverbs`.
fn kill_client(kind: Kind, port: &str, theirs: bool, words: &str) {
    // The server reports another error if the client is killed before its first message. The
    // client's start time depends on the machine.
    let middle = [1, 4, 16].into_iter().map(Duration::from_secs).find(|time| {
        let finished = kill_client_after(*time, kind, port, theirs).expect_failure(words);
        !finished.stderr.contains("; 0 messages were sent")
    });
    assert!(middle.is_some(), "{kind:?}: a client that has played for 16 s has not exchanged a message");
}

fn kill_client_after(time: Duration, kind: Kind, port: &str, theirs: bool) -> Finished {
    let options = &["-n", "1000000000", "-s", "64", "-p", port][..];
    let client = if theirs { RdmaCoreOf(kind, options) } else { BareverbsOf(kind, options) };
    let mut server = BareverbsOf(kind, options).serve(port.parse().unwrap());
    let client = Program::start(&mut client.command(Some(HOST)));
    server.line("  remote address:");
    std::thread::sleep(time);
    client.signal(Signal::SIGKILL);
    assert_eq!(client.finish().status.signal(), Some(Signal::SIGKILL as i32));
    server.finish_within(Duration::from_secs(25))
}

/// Runs the cases in parallel, because each may take 10 s.
#[kernel_test]
fn killed_peers_are_reported_on_every_transport() {
    let unheard = "no completion for 10 s: the peer has exited, or a message was lost";
    let lost = "Failed status transport retry counter exceeded (12) for wr_id 2";
    nothing_leaks(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| kill_client(Kind::Uc, "4721", true, unheard));
            scope.spawn(|| kill_client(Kind::Ud, "4722", false, unheard));
            scope.spawn(|| kill_client(Kind::Srq, "4723", true, lost));
            scope.spawn(|| kill_client(Kind::Srq, "4724", false, lost));
        });
    });
}

#[kernel_test]
fn peer_with_another_message_size_is_reported_on_every_transport() {
    for kind in KINDS {
        // Shorter messages are an error only if the data is checked.
        let (short, long) = (&["-s", "100", "-n", "10"][..], &["-s", "200", "-n", "10", "-c"][..]);
        nothing_leaks(|| {
            let server = BareverbsOf(kind, long).serve(PORT);
            let client = Program::start(&mut BareverbsOf(kind, short).command(Some(HOST)));
            server.finish().expect_failure(
                "received a message of 100 bytes instead of 200: both sides need the same -s",
            );
            client.signal(Signal::SIGKILL);
            client.finish();
        });
    }
}

#[kernel_test]
fn json_output_of_every_transport() {
    let active = device::open().query_port(1).expect("the port").active_mtu;
    for kind in KINDS {
        let options = &["--json", "-n", "40", "-s", "16", "-e", "-c"][..];
        let run = run_pingpong(BareverbsOf(kind, options), BareverbsOf(kind, options));
        let sides = [run.server, run.client].map(|side| {
            let side = side.expect_success();
            serde_json::from_str::<Value>(&side.stdout).unwrap_or_else(|error| panic!("{error} in {side:#?}"))
        });
        for (side, name) in sides.iter().zip(["server", "client"]) {
            assert_eq!((&side["transport"], &side["side"]), (&kind.name().into(), &name.into()));
            let mtu = if kind == Kind::Ud { active.bytes() } else { 1024 };
            assert_eq!((&side["size"], &side["iters"], &side["mtu"]), (&16.into(), &40.into(), &mtu.into()));
            assert_eq!(side["local"].as_array().map(Vec::len), (kind == Kind::Srq).then_some(16), "{side:#}");
        }
        assert_eq!(sides[0]["local"], sides[1]["remote"]);
        assert_eq!(sides[1]["local"], sides[0]["remote"]);
    }
    let plain = run_pingpong(Bareverbs(&["--json", "-n", "5"]), Bareverbs(&["--json", "-n", "5"]))
        .server
        .expect_success();
    assert!(plain.stdout.contains(r#""transport": "rc""#), "{plain:#?}");
}
