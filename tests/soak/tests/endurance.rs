//! The short versions of `cargo xtask soak`.

use std::time::Duration;

use bareverbs_soak::objects::{self, Costs};
use bareverbs_soak::{attempts, connections, random, traffic};
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{device, kernel_test};

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// On failure, the message has the seed and iteration with which `cargo xtask soak` reproduces it.
#[kernel_test]
fn random_verbs_match_model_and_leak_nothing() {
    let plan = random::Plan { seed: 20, time: Duration::from_secs(20), iteration: None, ops: None };
    let report = random::run(&plan).unwrap_or_else(|error| panic!("{error:?}"));
    println!("{report}");
}

#[kernel_test]
fn thousand_qps_share_one_srq_and_cq() {
    let report = nothing_leaks(|| traffic::run(&traffic::Plan::thousand(32_000))).unwrap();
    assert_eq!((report.qps, report.messages), (1000, 32_000));
}

#[kernel_test]
fn mr_cost_is_independent_of_count() {
    flat(&nothing_leaks(|| objects::regions(20_000)).unwrap());
}

#[kernel_test]
fn qp_cost_is_independent_of_count() {
    flat(&nothing_leaks(|| objects::queue_pairs(1_000)).unwrap());
}

#[kernel_test(device::ethernet)]
fn hundred_connections_leave_no_objects() {
    let report = nothing_leaks(|| connections::run(100)).unwrap();
    assert!(report.growth < 1 << 20, "{report:?}");
}

/// On failure, the message has the seed with which `cargo xtask soak` reproduces it.
#[kernel_test(device::ethernet)]
fn random_attempts_match_model_and_leak_nothing() {
    let plan = attempts::Plan { seed: 30, time: Duration::from_secs(5) };
    let report = attempts::run(&plan).unwrap_or_else(|error| panic!("{error:?}"));
    assert!(report.kills > 0 && report.established > 0 && report.rejected > 0, "{report:?}");
    println!("{report}");
}

/// A cost that grows with the number of objects would grow a hundredfold here.
fn flat(costs: &Costs) {
    let (make, free) = costs.growth();
    assert!(
        make < 3.0 && free < 3.0,
        "making one costs {make:.1} times as much at the end, freeing {free:.1}:\n{costs}"
    );
}
