//! The traffic counters of a port (`counters` in sysfs, from its performance management agent).

use std::fs;
use std::ops::RangeInclusive;

use bareverbs::qp::{Operation, Payload};
use bareverbs::{Access, WcStatus};
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::kernel_test;
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, domain, pair, region, request};

/// The agent counts data in 4-byte words.
const WORD: u64 = 4;

fn counter(name: &str) -> Result<u64, String> {
    let path = format!("/sys/class/infiniband/{}/ports/1/counters/{name}", device::name());
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    text.trim().parse().map_err(|error| format!("{path}: {text:?}: {error}"))
}

/// For tests of these counters.
///
/// # Errors
/// If the port has no counters.
pub(crate) fn counted() -> Requirement {
    counter("port_xmit_packets").map(drop)
}

#[kernel_test(counted)]
fn port_counters_count_packets_and_bytes() {
    const MESSAGES: u64 = 100;
    const LENGTH: u64 = 1000;
    // Each message is a packet with up to 100 bytes of headers. Acknowledgements and the kernel's
    // own packets are counted too.
    const PACKETS: RangeInclusive<u64> = MESSAGES + 1..=3 * MESSAGES;
    const WORDS: RangeInclusive<u64> = MESSAGES * LENGTH / WORD..=MESSAGES * (LENGTH + 300) / WORD;
    // Soft-RoCE of Linux 7.2, the first with counters, does not distinguish unicast and multicast
    // packets.
    let unicast = if device::has_rxe_abi() { 0..=0 } else { PACKETS };
    let counters = [
        ("port_xmit_packets", PACKETS),
        ("port_rcv_packets", PACKETS),
        ("unicast_xmit_packets", unicast.clone()),
        ("unicast_rcv_packets", unicast),
        ("port_xmit_data", WORDS),
        ("port_rcv_data", WORDS),
    ];
    let look = || counters.each_ref().map(|(name, _)| counter(name).unwrap());
    let pd = domain();
    let (mut a, _b) = pair(&pd, Plan::default());
    let bytes = [7; LENGTH as usize];
    let (from, to) = (region(&pd, &bytes, Access::empty()), region(&pd, &bytes, ALL_REMOTE));
    let before = look();
    for number in 0..MESSAGES {
        let write = Operation::Write(to.remote(0).unwrap());
        a.send(&[request(number, write, Payload::Sges(&[from.sge(..).unwrap()]))]).unwrap();
        assert_eq!(a.ends(1), [(number, WcStatus::SUCCESS)]);
    }
    let after = look();
    for ((name, expected), (before, after)) in counters.into_iter().zip(before.into_iter().zip(after)) {
        let more = after - before;
        assert!(expected.contains(&more), "{name}: {more} more, not {expected:?}");
    }
}
