//! Lost, reordered and duplicated packets between rxe and a soft device.

use bareverbs::values::Mtu;
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
