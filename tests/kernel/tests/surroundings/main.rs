//! What a program has around it: events to wait for, in threads and in tasks; forked children; neighbours.

mod events;
mod forks;
mod load;
mod neighbours;
mod tasks;

#[path = "../../../../verbs/examples/async_io_echo.rs"]
mod async_io_echo;
#[path = "../../../../verbs/examples/tokio_echo.rs"]
mod tokio_echo;

use bareverbs_kernel_tests::{device, kernel_tests};
use events::*;
use forks::*;
use load::*;
use neighbours::*;
use tasks::*;

kernel_tests! {
    a_forbidden_access_raises_an_event_at_the_queue_pair_that_was_to_allow_it,
    a_failed_queue_pair_says_when_it_takes_no_more_from_its_shared_queue,
    a_stream_is_read_by_polling_its_descriptor if device::drains,
    a_blocked_reader_wakes_with_the_event if device::drains,
    destroyed_objects_tell_how_many_of_their_events_were_read if device::drains,
    a_queue_in_use_is_not_destroyed_before_its_queue_pairs,

    no_completion_is_slept_through,
    unread_events_keep_nothing_from_being_destroyed,

    the_example_of_tokio_runs,
    the_example_of_async_io_runs,
    a_task_of_tokio_wakes_with_completions_of_several_queues,
    a_task_of_async_io_wakes_with_completions_of_several_queues,
    tasks_wake_with_asynchronous_events if device::drains,
    a_wait_that_is_given_up_loses_nothing,
    streams_and_endpoints_come_back_from_a_runtime,
    what_cannot_be_waited_for_is_refused,

    memory_is_copied_on_fork,
    a_child_that_drops_its_handles_takes_nothing_from_its_parent,
    a_child_that_ends_takes_nothing_from_its_parent,
    a_child_cannot_command_what_its_parent_made,
    a_child_has_none_of_its_parents_queues,
    what_a_child_writes_stays_its_own,
    what_a_child_writes_stays_its_own_with_memory_on_demand,
    a_child_may_open_the_device_for_itself,

    a_peer_is_found_in_the_neighbour_table_or_behind_its_gateway if device::ethernet,
    a_neighbour_that_is_not_known_is_asked if device::wired,
    the_own_addresses_are_those_of_the_own_interface if device::ethernet,
    groups_and_link_local_addresses_of_roce_v1_need_no_table if device::ethernet,
    a_peer_that_does_not_answer_has_no_address if device::ethernet,
}
