//! Lost, reordered and duplicated packets between rxe and a soft device.

use bareverbs::values::Mtu;
use bareverbs_interop_tests::namespace::{Namespace, RXE, RXE_IP, SOFT, SOFT_IP};
use bareverbs_interop_tests::perf::{Benchmark, Side, json};
use bareverbs_interop_tests::pingpong::{PORT, wait_until_listening};
use bareverbs_interop_tests::program::Program;
use bareverbs_test_support::{device, kernel_test, wire};

use crate::host::{Hosts, Ip, Peer, patient};
use crate::messages::{MEMORY, send_in_order};

/// Messages in each direction while the words of `tc-netem` impair the packets in both.
fn messages_arrive_in_order(impairments: &[&str], count: usize) {
    let hosts = Hosts::new(Ip::V4);
    for netem in impairments {
        for from in [0, 1] {
            let mut peers = [&hosts.rxe, &hosts.soft].map(|pd| Peer::new(pd, MEMORY));
            hosts.connect(&mut peers, Mtu::Mtu1024, patient());
            hosts.namespace.impair_rxe(netem);
            hosts.namespace.impair_soft(netem);
            let [rxe, soft] = &mut peers;
            match from {
                0 => send_in_order(rxe, soft, count),
                _ => send_in_order(soft, rxe, count),
            }
            hosts.namespace.heal();
        }
    }
}

#[kernel_test(device::soft_roce, wire::lossy_wire)]
fn reliable_messages_arrive_once_and_in_order_when_packets_are_lost() {
    messages_arrive_in_order(&["loss 1%"], 1000);
}

#[kernel_test(device::soft_roce, wire::lossy_wire)]
fn reliable_messages_arrive_once_and_in_order_when_packets_are_reordered_or_duplicated() {
    messages_arrive_in_order(&["delay 500us reorder 90%", "duplicate 10%"], 500);
}

/// The programs compare all data that arrives, and accept that messages are missing, but not that they
/// arrive twice or late, which UD and UC of rxe allow.
#[kernel_test(device::soft_roce, wire::lossy_wire)]
fn unreliable_messages_arrive_intact_or_not_at_all_when_packets_are_lost() {
    let namespace = Namespace::new();
    let benchmark = Benchmark { operation: "send", test: "bw" };
    for (transport, size) in [("UD", "700"), ("UC", "3000")] {
        let options = ["-c", transport, "-s", size, "-m", "1024", "-D", "2", "--verify"];
        let program = |device, host| benchmark.command_on(device, Side::Bareverbs, &options, host);
        namespace.impair_rxe("loss 2%");
        namespace.impair_soft("loss 2%");

        let mut server = Program::start(&mut program(RXE, None));
        wait_until_listening(&mut server, PORT);
        let client = namespace.run(|| Program::start(&mut program(SOFT, Some(RXE_IP))));
        let (to_rxe, _) = (server.finish().expect_success(), client.finish().expect_success());

        let mut server = namespace.run(|| Program::start(&mut program(SOFT, None)));
        namespace.run(|| wait_until_listening(&mut server, PORT));
        let client = Program::start(&mut program(RXE, Some(SOFT_IP)));
        let (to_soft, _) = (server.finish().expect_success(), client.finish().expect_success());

        namespace.heal();
        for receiver in [to_rxe, to_soft] {
            let report = json(&receiver);
            let results = report["results"].as_array().expect("results are an array");
            assert!(results.iter().any(|result| result["compared"].as_u64() > Some(20)), "{report:#}");
        }
    }
}
