//! The short versions of what `cargo xtask soak` does.

use std::time::Duration;

use bareverbs_kernel_tests::kernel_tests;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_soak::objects::{self, Costs};
use bareverbs_soak::{random, traffic};

kernel_tests! {
    random_verbs_come_out_as_the_model_says_and_leave_nothing_behind,
    a_thousand_queue_pairs_send_in_order_through_one_shared_queue_and_one_completion_queue,
    a_region_among_many_costs_what_one_among_few_does,
    a_queue_pair_among_many_costs_what_one_among_few_does,
}

/// Where it fails, it says with which seed and world `cargo xtask soak` does the same verbs again.
fn random_verbs_come_out_as_the_model_says_and_leave_nothing_behind() {
    let plan = random::Plan { seed: 20, time: Duration::from_secs(20), world: None, ops: None };
    let report = random::run(&plan).unwrap_or_else(|error| panic!("{error:?}"));
    println!("{report}");
}

fn a_thousand_queue_pairs_send_in_order_through_one_shared_queue_and_one_completion_queue() {
    let report = nothing_leaks(|| traffic::run(&traffic::Plan::thousand(32_000))).unwrap();
    assert_eq!((report.qps, report.messages), (1000, 32_000));
}

fn a_region_among_many_costs_what_one_among_few_does() {
    flat(&nothing_leaks(|| objects::regions(20_000)).unwrap());
}

fn a_queue_pair_among_many_costs_what_one_among_few_does() {
    flat(&nothing_leaks(|| objects::queue_pairs(1_000)).unwrap());
}

/// Cost that grows with the number of objects would grow a hundredfold here.
fn flat(costs: &Costs) {
    let (make, free) = costs.growth();
    assert!(
        make < 3.0 && free < 3.0,
        "making one costs {make:.1} times as much at the end, freeing {free:.1}:\n{costs}"
    );
}
