//! The benchmarks of perftest on rxe with `bareverbs perf` on a soft device, in both roles.

use bareverbs_interop_tests::namespace::{Namespace, RXE, RXE_IP, SOFT, SOFT_IP, rxe_gid_index};
use bareverbs_interop_tests::perf::{Benchmark, Side, json, rows};
use bareverbs_interop_tests::pingpong::{PORT, wait_until_listening};
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::{device, kernel_test, wire};

const MESSAGES: u64 = 50;

/// Runs both roles: perftest on rxe serves the soft device, then the reverse.
fn run_both_roles(namespace: &Namespace, benchmark: Benchmark, options: &[&str]) {
    let index = rxe_gid_index(RXE_IP.parse().expect("an address")).expect("rxe has the address").to_string();
    let theirs = [&["-x", &index], options].concat();
    let rxe = |host| Program::start(&mut benchmark.command_on(RXE, Side::Perftest, &theirs, host));
    let soft = |host| {
        let mut command = benchmark.command_on(SOFT, Side::Bareverbs, options, host);
        namespace.run(|| Program::start(&mut command))
    };

    let mut server = rxe(None);
    wait_until_listening(&mut server, PORT);
    let client = soft(Some(RXE_IP)).finish();
    expect_success(benchmark, client, server.finish(), true);

    let mut server = soft(None);
    namespace.run(|| wait_until_listening(&mut server, PORT));
    let client = rxe(Some(SOFT_IP)).finish();
    expect_success(benchmark, server.finish(), client, false);
}

/// Asserts that both have ended, and that the client has measured all messages.
fn expect_success(benchmark: Benchmark, ours: Finished, theirs: Finished, is_client: bool) {
    let (ours, theirs) = (ours.expect_success(), theirs.expect_success());
    let report = json(&ours);
    if is_client {
        let results = report["results"].as_array().expect("results are an array");
        let seen = results.iter().any(|result| {
            result["messages"] == MESSAGES || result["latency"]["count"].as_u64() >= Some(MESSAGES - 1)
        });
        assert!(seen, "{report:#}");
    } else {
        let all = rows(&theirs);
        assert!(all.iter().any(|row| row[1] == MESSAGES as f64), "{benchmark:?}: {theirs:#?}");
    }
}

#[kernel_test(device::soft_roce)]
fn benchmarks_run_with_perftest_on_rxe() {
    let namespace = Namespace::new();
    for (operation, test) in [("send", "bw"), ("write", "lat"), ("read", "bw")] {
        run_both_roles(&namespace, Benchmark { operation, test }, &["-s", "4096", "-n", "50"]);
    }
    run_both_roles(&namespace, Benchmark { operation: "atomic", test: "lat" }, &["-n", "50"]);
}

#[kernel_test(device::soft_roce, wire::lossy_wire)]
fn late_and_repeated_datagrams_are_not_corrupt() {
    let namespace = Namespace::new();
    let benchmark = Benchmark { operation: "send", test: "bw" };
    let options = ["-c", "UD", "--verify", "-s", "1000", "-n", "300"];
    for netem in ["delay 500us reorder 90%", "duplicate 10%"] {
        namespace.impair_soft(netem);
        let runs = std::iter::repeat_with(|| {
            let mut server = Program::start(&mut benchmark.command_on(RXE, Side::Bareverbs, &options, None));
            wait_until_listening(&mut server, PORT);
            let mut client = benchmark.command_on(SOFT, Side::Bareverbs, &options, Some(RXE_IP));
            let client = namespace.run(|| Program::start(&mut client)).finish();
            let server = server.finish();
            for side in [&server, &client] {
                assert!(!side.stderr.contains("corrupt"), "{server:#?} {client:#?}");
            }
            // UD does not promise that all datagrams arrive.
            server.status.success() && client.status.success()
        });
        let mut runs = runs.take(3);
        assert!(runs.any(|success| success), "datagrams are lost in each run");
        namespace.heal();
    }
}
