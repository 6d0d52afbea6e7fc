//! Many rounds of everything that queue pairs exchange, each looked at on arrival.

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
    regions_of_relaxed_ordering_carry_the_same,
    two_regions_lie_in_one_buffer,
    events_tell_of_every_message_of_a_connection,
    events_tell_of_every_datagram,

    a_completion_is_read_field_by_field,
    a_datagrams_completion_is_read_field_by_field,

    both_sides_compare_and_swap,
    both_sides_fetch_and_add,
    an_atomic_with_a_key_that_never_was_fails,
    an_atomic_at_a_queue_pair_closed_to_atomics_fails,

    a_window_that_was_given_back_opens_nothing,
    a_window_lets_through_what_it_was_bound_for,
    a_flush_of_a_whole_region_and_only_of_the_kind_allowed,
}
