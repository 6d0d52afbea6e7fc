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
    messages_go_back_and_forth_on_a_reliable_connection,
    datagrams_go_back_and_forth,
    writes_with_immediate_data_go_back_and_forth,
    both_sides_read_and_write,
    operations_of_no_bytes_complete,
    relaxed_ordering_mrs_work,
    two_regions_lie_in_one_buffer,
    rc_messages_with_completion_events,
    datagrams_with_completion_events,

    a_completion_is_read_field_by_field,
    a_datagrams_completion_is_read_field_by_field,

    both_sides_compare_and_swap,
    both_sides_fetch_and_add,
    atomic_with_unknown_rkey_fails,
    atomic_without_remote_atomic_access_fails,

    deallocated_mw_grants_no_access,
    mw_grants_the_bound_access,
    flush_of_a_whole_mr_checks_placement_type,
}
