//! What goes wrong outside the program, or is asked wrongly, ends with an error that says so, and leaves nothing behind.

mod devices;
mod memory;
mod posting;
mod processes;
mod states;
mod tool;

use bareverbs_kernel_tests::kernel_tests;
use devices::*;
use memory::*;
use posting::*;
use processes::*;
use states::*;
use tool::*;

kernel_tests! {
    without_a_device_that_is_what_everything_says,
    an_ordinary_user_is_told_of_the_node_he_may_not_open,
    every_verb_that_takes_a_port_refuses_one_that_is_not_there,
    a_gid_index_that_is_empty_or_outside_the_table_keeps_a_queue_pair_in_init,
    queues_beyond_the_device_are_refused_with_the_limit,

    memory_that_cannot_be_registered_is_refused_with_the_reason,
    memory_needs_no_alignment,
    locked_memory_beyond_the_limit_is_refused_with_the_limit,
    what_a_key_does_not_allow_ends_with_a_status_that_says_so,
    what_a_remote_key_does_not_allow_ends_with_a_status_that_says_so,

    a_full_send_queue_takes_again_exactly_what_completed,
    a_full_receive_queue_takes_again_exactly_what_completed,
    a_refused_request_in_a_list_stops_neither_those_before_it_nor_later_posts,
    requests_that_make_no_sense_are_refused_before_the_device_sees_them,
    one_number_for_many_requests_comes_back_with_each,
    a_forgotten_batch_goes_out_with_the_next,

    no_step_out_of_order_is_made,
    the_error_state_flushes_everything_in_order,
    a_queue_pair_in_error_answers_queries_and_flushes_new_sends,
    a_queue_pair_works_again_after_an_error_and_a_reset,

    a_killed_process_leaves_nothing,
    a_process_that_forgets_all_its_handles_leaves_nothing,

    the_tool_refuses_what_the_device_does_not_have,
    the_tool_tells_an_ordinary_user_of_the_node,
}
