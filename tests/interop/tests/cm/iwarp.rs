//! The tools over iWARP, with those of librdmacm, in both roles.
//!
//! An RDMA port of iWARP is a TCP port of the host. Clients start when the server
//! listens. Pairs of programs of librdmacm that fail between themselves on siw are in `docs/lab.md`.

use bareverbs_interop_tests::pingpong::wait_until_listening;
use bareverbs_test_support::kernel_test;

use super::*;

/// The port of `ucmatose`.
const PORT: u16 = 7471;

/// The IP address of the siw device.
fn address() -> String {
    device::ip().to_string()
}

/// Runs a server, and a client when the server listens, to their ends.
fn run_at(port: u16, name: &str, server: (Origin, &[&str]), client: (Origin, &[&str])) -> [Finished; 2] {
    let mut running = server.0.start(name, server.1);
    wait_until_listening(&mut running, port);
    let client = client.0.start(name, client.1).finish().expect_success();
    [running.finish().expect_success(), client]
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
    ];
    for (line, words) in cases {
        let program = Program::start(Command::new("bareverbs").args(line.split(' ')));
        program.finish().expect_failure(words);
    }
}
