//! Messages to a multicast group (`-g`), with perftest and with itself.

use std::net::{Ipv4Addr, UdpSocket};

use bareverbs::Gid;
use bareverbs::device::GidType;
use bareverbs_interop_tests::perf::{Benchmark, PAIRINGS, Run, Side};
use bareverbs_interop_tests::pingpong::HOST;
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::{device, kernel_test};

use crate::options::{OURS, option, ours, refusal};
use crate::{SOON, WITH_PERFTEST, expect_latencies, expect_measured, expect_row};

/// The groups of the server and of the client.
fn groups() -> [Gid; 2] {
    [1, 2].map(|last| match device::is_infiniband() {
        true => Gid([255, 1, 0, 0, 0, 2, 201, 133, 0, 0, 0, 0, 0, 0, 9, last]),
        false => Ipv4Addr::new(239, 9, 9, last).into(),
    })
}

/// A group as perftest takes it.
fn numbers(group: Gid) -> String {
    group.0.map(|byte| byte.to_string()).join(":")
}

/// Makes the host a member of the groups, until the socket is closed. perftest does not on RoCE, and
/// Soft-RoCE receives nothing without it.
fn join() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    for group in groups().iter().filter_map(Gid::ipv4) {
        socket.join_multicast_v4(&group, &HOST.parse().unwrap()).unwrap();
    }
    socket
}

/// Runs a server and a client to their ends, with a group each.
fn run_to_end(
    test: &'static str,
    (server, client): (Side, Side),
    options: [&[&str]; 2],
) -> (Finished, Finished) {
    let benchmark = Benchmark { operation: "send", test };
    let running = benchmark.serve(server, options[0]);
    let client = Program::start(&mut benchmark.command(client, options[1], Some(HOST))).finish();
    (running.finish(), client)
}

/// Runs to success. On InfiniBand, `ib_send_lat` frees the name of the device before it leaves its groups,
/// and so fails after its results.
fn run_to_success(test: &'static str, sides: (Side, Side), options: [&[&str]; 2]) -> Run {
    let (server, client) = run_to_end(test, sides, options);
    for (side, end) in [(sides.0, &server), (sides.1, &client)] {
        let may_fail = side == Side::Perftest && test == "lat" && device::is_infiniband();
        let has_not_left = may_fail && end.stderr.contains("Couldn't Unregister the Mcast group on the SM");
        assert!(end.status.success() || has_not_left, "{server:#?} {client:#?}");
    }
    Run { sides, server, client }
}

/// Runs to success with a group for each side.
fn run(test: &'static str, sides: (Side, Side), others: &[&str]) -> Run {
    let index = device::gid_index().to_string();
    let [server, client] = groups().map(numbers);
    let options = |group| [&["-c", "UD", "-g", "-x", &index, "-M", group, "-s", "64"], others].concat();
    run_to_success(test, sides, [&options(&server), &options(&client)])
}

/// Asserts that sides receive from their groups: both, or only the server.
fn expect_groups(run: &Run, both: bool) {
    let (server, client) = (run.server_json(), run.client_json());
    let ends = [(&server, &client), (&client, &server)];
    for ((own, other), group) in ends.into_iter().zip(groups()).take(if both { 2 } else { 1 }) {
        let group = group.to_string();
        if let Some(json) = own {
            assert_eq!(json["addresses"][0]["gid"], *group, "{json:#}");
            assert_eq!(json["addresses"][0]["qpn"], 0xff_ffff, "{json:#}");
            assert_eq!((option(json, "mcg"), option(json, "mgid")), (&true.into(), &group.clone().into()));
        }
        if let Some(json) = other {
            assert_eq!(json["peer"]["addresses"][0]["gid"], *group, "{json:#}");
        }
    }
}

#[kernel_test]
fn short_multicast_interoperates_with_perftest() {
    let _member = join();
    for pairing in WITH_PERFTEST {
        let run = run("bw", *pairing, &["-n", "20"]);
        expect_row(&run, Side::Perftest, 64, 20);
        expect_groups(&run, false);
    }
}

#[kernel_test]
fn multicast_interoperates_in_every_mode() {
    let _member = join();
    for pairing in PAIRINGS {
        let latency = run("lat", pairing, &["-n", "50"]);
        expect_row(&latency, Side::Perftest, 64, 50);
        expect_groups(&latency, true);
        for others in [&["-n", "100"][..], &["-n", "100", "-e"]] {
            let bandwidth = run("bw", pairing, others);
            expect_groups(&bandwidth, false);
            for json in ours(&bandwidth) {
                expect_measured(&json, 64, 100);
            }
        }
        for json in ours(&latency) {
            expect_latencies(&json, 64);
        }
    }
}

/// Two sides of this program join the default groups, also of IPv6, and need no other option.
#[kernel_test(device::ethernet)]
fn multicast_joins_default_groups() {
    let table = device::open().gid_table().unwrap();
    let ipv6 = table.iter().find(|entry| entry.gid.ipv4().is_none() && entry.gid_type == GidType::ROCE_V2);
    let ipv6 = ipv6.expect("the port has an IPv6 address").index.to_string();
    for (path, groups) in [
        (&[][..], ["::ffff:239.2.201.133", "::ffff:239.2.201.134"]),
        (&["-x", &ipv6], ["ff02::2:c985", "ff02::2:c986"]),
    ] {
        let options = [&["-g", "-s", "64", "-n", "50", "--verify"], path].concat();
        let run = Benchmark { operation: "send", test: "lat" }.run(OURS, &options);
        for (json, group) in ours(&run).zip(groups) {
            assert_eq!(json["transport"], "ud", "{json:#}");
            assert_eq!(json["addresses"][0]["gid"], group, "{json:#}");
            assert!(json["results"][0]["compared"].as_u64().unwrap() >= 50, "{json:#}");
        }
    }
}

#[kernel_test(device::ethernet)]
fn multicast_with_a_peer_that_can_not_receive_is_refused() {
    let ends = run_to_end("lat", OURS, [&["-g", "-M", "239.9.9.1"]; 2]);
    for end in [ends.0, ends.1] {
        end.expect_failure("both sides receive from the group ::ffff:239.9.9.1");
    }
    let (server, client) = run_to_end("bw", OURS, [&["-c", "ud"], &["-g"]]);
    server.expect_failure("the peer has -g, this side nothing more");
    client.expect_failure("the peer has nothing more, this side -g");
    let index = device::gid_index().to_string();
    let unicast = ["-c", "UD", "-s", "64", "-x", &index];
    let benchmark = Benchmark { operation: "send", test: "bw" };
    let _server = benchmark.serve(Side::Perftest, &unicast);
    let client = Program::start(&mut benchmark.command(Side::Bareverbs, &["-g", "-s", "64"], Some(HOST)));
    client.finish_within(SOON).expect_failure("the peer receives from no multicast group");
}

#[kernel_test(device::ethernet)]
fn multicast_group_of_another_family_is_refused() {
    let text = refusal("send bw -g -M ff02::7");
    assert!(
        text.contains("the group ff02::7 (-M) and the GID ::ffff:10.1.0.1 are of different families"),
        "{text}"
    );
}

/// perftest has the same default.
#[kernel_test(device::infiniband)]
fn multicast_joins_the_default_group_of_perftest_on_infiniband() {
    let text = refusal("send bw -g");
    assert!(text.contains("-g needs a GID index (-x)"), "{text}");
    for pairing in PAIRINGS {
        let options = ["-g", "-x", "0", "-s", "64", "-n", "50"];
        let run = run_to_success("lat", pairing, [&options; 2]);
        for (json, group) in [(run.server_json(), "ff01:0:2:c985::"), (run.client_json(), "ff01:0:2:c985::1")]
        {
            assert!(json.is_none_or(|json| json["addresses"][0]["gid"] == group), "{run:#?}");
        }
    }
}
