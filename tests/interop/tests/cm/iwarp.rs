//! The tools over iWARP, with those of librdmacm, in both roles.
//!
//! An RDMA port of iWARP is a TCP port of the host. Clients start when the server
//! listens. Pairs of programs of librdmacm that fail between themselves on siw are in `docs/lab.md`.

use bareverbs_interop_tests::pingpong::wait_until_listening;
use bareverbs_test_support::kernel_test;

use super::*;

/// The ports of the programs.
const PORT: u16 = 7471;
const RPING_PORT: u16 = 7174;
const RSTREAM_PORT: u16 = 7471;
const RCOPY_PORT: u16 = 7427;

/// The time in which a program ends after its peer's process was killed.
const KILLED: Duration = Duration::from_secs(10);

/// The IP address of the siw device.
fn address() -> String {
    device::ip().to_string()
}

/// Runs a server, and a client when the server listens, to their ends.
fn run_at(port: u16, name: &str, server: (Origin, &[&str]), client: (Origin, &[&str])) -> [Finished; 2] {
    let mut running = server.0.start(name, server.1);
    wait_until_listening(&mut running, port);
    let client = client.0.start(name, client.1).finish();
    let server = running.finish();
    assert!(server.status.success() && client.status.success(), "{server:#?} {client:#?}");
    [server, client]
}

#[kernel_test(device::iwarp)]
fn ucmatose_and_cmtime_interoperate_on_iwarp() {
    let host = &*address();
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            // The server's messages come first, and may end a connection that siw establishes.
            let options = ["-c", "4", "-C", "0"];
            let client_options = [&["-s", host], &options[..]].concat();
            let [served, finished] = run_at(PORT, "ucmatose", (server, &options), (client, &client_options));
            let end = ["test complete", "return status 0"];
            let served = plain_lines(&served.stdout);
            assert!(served.ends_with(&[&["disconnected"], &end[..]].concat()), "{served:#?}");
            assert!(plain_lines(&finished.stdout).ends_with(&end), "{finished:#?}");
        }
        // Two clients: between two peers, the C program has a round without queue pairs.
        let options =
            |listens: &'static [&str]| [&["-b", host, "-C", host, "-c", "6", "-P", "3"], listens].concat();
        for (server, client) in PAIRINGS {
            let mut root = server.start("cmtime", &options(&["-L"]));
            wait_for_root(&mut root);
            let clients = [client, Bareverbs].map(|origin| origin.start("cmtime", &options(&[])));
            for client in clients {
                let client = client.finish().expect_success();
                assert_eq!(cmtime_tables(&client.stdout), [("qp_conn", "6")], "{client:#?}");
            }
            let root = root.finish().expect_success();
            assert_eq!(cmtime_tables(&root.stdout), [("qp_conn", "12")], "{root:#?}");
        }
        let mut root = Bareverbs.start("cmtime", &["-b", host, "-C", host, "-c", "7", "-L"]);
        wait_for_root(&mut root);
        let leaf = Bareverbs.start("cmtime", &["-b", host, "-C", host, "-c", "7"]).finish().expect_success();
        for side in [root.finish().expect_success(), leaf] {
            assert_eq!(cmtime_tables(&side.stdout), [("qp_conn", "7")], "{side:#?}");
        }
    });
}

#[kernel_test(device::iwarp)]
fn rping_interoperates_on_iwarp() {
    let host = &*address();
    let lines =
        |start: &str| (0..3).map(|number| format!("{start}: {}\n", ping(number, 64))).collect::<String>();
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            for size in ["64", "65535"] {
                let server_options = ["-s", "-v", "-S", size];
                let client_options = ["-c", "-a", host, "-C", "3", "-v", "-V", "-S", size];
                let [served, finished] =
                    run_at(RPING_PORT, "rping", (server, &server_options), (client, &client_options));
                if size == "64" {
                    assert_eq!(served.stdout, lines("server ping data"), "{served:#?}");
                    assert_eq!(finished.stdout, lines("ping data"), "{finished:#?}");
                }
            }
        }
    });
}

#[kernel_test(device::iwarp)]
fn persistent_rping_server_on_iwarp_serves_one_client_after_the_other() {
    let host = &*address();
    nothing_leaks(|| {
        let mut server = Bareverbs.start("rping", &["-s", "-P", "--json"]);
        wait_until_listening(&mut server, RPING_PORT);
        for client in [Librdmacm, Bareverbs, Librdmacm] {
            client.start("rping", &["-c", "-a", host, "-C", "5", "-V"]).finish().expect_success();
            let served = json(&server.line("{"));
            assert_eq!((&served["role"], &served["pings"]), (&"server".into(), &5.into()));
        }
        server.signal(Signal::SIGTERM);
        let ended = server.finish();
        assert_eq!((ended.status.code(), &*ended.stderr), (Some(128 + 15), "bareverbs: interrupted\n"));
    });
}

#[kernel_test(device::iwarp)]
fn rping_ends_after_its_peer_was_killed_on_iwarp() {
    let host = &*address();
    nothing_leaks(|| {
        for peer in [Librdmacm, Bareverbs] {
            let mut server = peer.start("rping", &["-s"]);
            wait_until_listening(&mut server, RPING_PORT);
            let mut client = Bareverbs.start("rping", &["-c", "-a", host, "-v"]);
            client.line("ping data");
            server.signal(Signal::SIGKILL);
            client.finish_within(KILLED).expect_failure("has ended the connection");
            drop(server);

            let mut server = Bareverbs.start("rping", &["-s", "-v"]);
            wait_until_listening(&mut server, RPING_PORT);
            let client = peer.start("rping", &["-c", "-a", host]);
            server.line("server ping data");
            client.signal(Signal::SIGKILL);
            // Between two pings, a client may end the connection.
            let served = server.finish_within(KILLED);
            let is_named = served.stderr.contains("has ended the connection");
            assert!(served.status.success() || is_named, "{peer:?}: {served:#?}");
        }
    });
}

/// The client of librdmacm is left out: with its own server, too, it may wait for ever on siw.
const STREAM_PAIRINGS: [(Origin, Origin); 2] = [(Librdmacm, Bareverbs), (Bareverbs, Bareverbs)];

#[kernel_test(device::iwarp)]
fn rstream_interoperates_on_iwarp() {
    let host = &*address();
    nothing_leaks(|| {
        for (server, client) in STREAM_PAIRINGS {
            for (sizes, line) in [
                (["-S", "64", "-C", "1", "-I", "20"], ["custom", "64", "1", "20", "2.5k"]),
                (["-S", "5000", "-C", "10", "-I", "2"], ["custom", "4.8k", "10", "2", "195k"]),
                (["-S", "1000000", "-C", "2", "-I", "1"], ["custom", "976k", "2", "1", "3.8m"]),
            ] {
                let server_options = [&sizes[..], &["-T", "v"]].concat();
                let client_options = [&["-s", host], &server_options[..]].concat();
                let sides =
                    run_at(RSTREAM_PORT, "rstream", (server, &server_options), (client, &client_options));
                for side in sides {
                    assert_eq!(stream_tests(&side.stdout), [line], "{side:#?}");
                }
            }
        }
    });
}

#[kernel_test(device::iwarp)]
fn riostream_runs_on_iwarp() {
    let host = &*address();
    nothing_leaks(|| {
        let options = ["-S", "70000", "-C", "4", "-I", "3", "-T", "v", "-p", "7999"];
        let client_options = [&["-s", host], &options[..]].concat();
        for side in run_at(7999, "riostream", (Bareverbs, &options), (Bareverbs, &client_options)) {
            assert_eq!(stream_tests(&side.stdout), [["custom", "68k", "4", "3", "1.6m"]], "{side:#?}");
        }
    });
}

#[kernel_test(device::iwarp)]
fn rcopy_interoperates_on_iwarp() {
    let folder = Folder::new("/tmp/rcopy-iwarp");
    let [source, copied] = ["source", "copy"].map(|name| folder.path(name));
    let bytes = rcopy::noise(700_001);
    fs::write(&source, &bytes).expect("the file is writable");
    let to = format!("{}:{copied}", address());
    nothing_leaks(|| {
        for (server, client) in STREAM_PAIRINGS {
            let mut running = server.start("rcopy", &[]);
            wait_until_listening(&mut running, RCOPY_PORT);
            let finished = client.start("rcopy", &[&source, &to]).finish().expect_success();
            let last = finished.stdout.lines().last().unwrap_or_default();
            assert!(last.starts_with("700001 bytes in "), "{finished:#?}");
            assert!(fs::read(&copied).expect("the copy exists") == bytes, "{server:?} {client:?}");
            fs::remove_file(&copied).expect("the copy exists");
            running.signal(Signal::SIGTERM);
            running.finish();
        }
    });
}

#[kernel_test(device::iwarp)]
fn rdma_client_and_server_interoperate_on_iwarp() {
    let host = &*address();
    nothing_leaks(|| {
        for (server, client) in PAIRINGS {
            let mut running = server.start("rdma_server", &["-p", "7999"]);
            wait_until_listening(&mut running, 7999);
            client.start("rdma_client", &["-s", host, "-p", "7999"]).finish().expect_success();
            let served = running.finish().expect_success();
            assert_eq!(served.stdout, "rdma_server: start\nrdma_server: end 0\n", "{served:#?}");
        }
    });
}

#[kernel_test(device::iwarp)]
fn tools_name_what_iwarp_lacks() {
    let (host, device) = (&*address(), device::name());
    let no_datagrams = "the device is one of iWARP, which has no datagrams";
    let by_manager = &*format!("{device} is an iWARP device, whose queue pairs only the connection manager");
    let cases = [
        (format!("udaddy -s {host}"), no_datagrams),
        (format!("udpong -s {host}"), no_datagrams),
        (format!("udpong -b {host}"), no_datagrams),
        (format!("mckey -m 239.7.7.9 -b {host}"), no_datagrams),
        (format!("pingpong rc -d {device}"), by_manager),
        (format!("pingpong ud -d {device}"), by_manager),
        (format!("pingpong rc --cm {host}"), by_manager),
        (format!("perf write bw -d {device}"), by_manager),
        (format!("perf atomic bw --cm -d {device}"), "the device has no operation `atomic`"),
        (format!("perf write-imm bw --cm -d {device}"), "the device has no operation `write-imm`"),
    ];
    for (line, words) in cases {
        let program = Program::start(Command::new("bareverbs").args(line.split(' ')));
        program.finish().expect_failure(words);
    }
}
