//! Many rounds of all operations, with a check of the data on arrival.

mod atomics;
mod exchanges;
mod fields;
mod windows;

use atomics::*;
use bareverbs_kernel_tests::kernel_tests;
use exchanges::*;
use fields::*;
use windows::*;

kernel_tests! {
    rc_messages_in_both_directions,
    datagrams_in_both_directions,
    writes_with_immediate_in_both_directions,
    both_sides_read_and_write,
    zero_byte_operations_complete,
    relaxed_ordering_mrs_work,
    two_mrs_share_one_buffer,
    rc_messages_with_completion_events,
    datagrams_with_completion_events,

    completion_fields_match_the_message,
    datagram_completion_fields_match_the_message,

    both_sides_compare_and_swap,
    both_sides_fetch_and_add,
    atomic_with_unknown_rkey_fails,
    atomic_without_remote_atomic_access_fails,

    deallocated_mw_grants_no_access,
    mw_grants_the_bound_access,
    flush_of_a_whole_mr_checks_placement_type,
}
