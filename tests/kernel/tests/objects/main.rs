//! Devices and the objects made on them: what they tell, what can be asked for, what comes back.

mod completion_queues;
mod devices;
mod domains;
mod queue_pairs;

use bareverbs_kernel_tests::kernel_tests;
use completion_queues::*;
use devices::*;
use domains::*;
use queue_pairs::*;

kernel_tests! {
    the_device_tells_limits_that_work_is_possible_in,
    a_p_key_is_found_by_its_value,

    domains_are_made_and_given_back_over_and_over,
    an_address_handle_is_made_and_given_back,
    a_window_of_no_type_is_refused,

    completion_queues_have_any_depth_and_vector,
    completion_queues_of_any_depth_share_a_channel,
    an_event_may_wait_for_more_completions,

    a_new_queue_pair_is_in_reset_with_what_was_asked_for,
    each_transport_is_brought_up_as_the_kernel_says,
    depths_and_widths_beyond_the_device_are_refused_for_each_transport,
    a_privileged_queue_key_is_for_the_privileged,
    a_connection_keeps_as_many_reads_as_it_was_given,
    a_queue_pair_that_was_reset_takes_no_work,
}
