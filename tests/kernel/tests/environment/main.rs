//! The environment of a program: events in threads and tasks, forked children, the neighbour table.

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
    access_violation_raises_qp_access_err,
    failed_qp_raises_last_wqe_reached,
    async_events_are_read_by_polling_the_descriptor if device::sqd,
    async_event_wakes_a_blocked_reader if device::sqd,
    destroy_returns_the_count_of_read_events if device::sqd,
    queues_of_a_refused_destroy_are_used_and_destroyed_later,
    cq_in_use_outlives_its_qps,

    arm_then_poll_misses_no_completion,
    unread_events_do_not_block_destroy,

    tokio_example_runs,
    async_io_example_runs,
    completions_of_several_cqs_wake_a_tokio_task,
    completions_of_several_cqs_wake_an_async_io_task,
    results_of_an_endpoint_are_a_stream,
    tasks_wake_with_asynchronous_events if device::sqd,
    dropped_wait_future_loses_no_event,
    streams_and_endpoints_change_their_runtime,
    invalid_waits_are_rejected,

    memory_is_copied_on_fork,
    child_drop_does_not_destroy_parent_objects,
    batch_dropped_in_a_forked_child_is_not_rung,
    message_of_a_server_dropped_in_a_forked_child_stays_with_its_parent,
    child_exit_does_not_destroy_parent_objects,
    commands_in_a_forked_child_fail_with_estale,
    queue_memory_is_not_inherited_over_fork,
    child_writes_to_mr_are_private,
    child_writes_to_odp_mr_are_private,
    forked_child_can_open_its_own_context,

    peer_resolves_by_neighbour_or_gateway if device::ethernet,
    unknown_neighbour_is_solicited if device::has_peer_veth,
    local_gids_resolve_to_the_local_mac if device::ethernet,
    multicast_and_roce_v1_macs_are_derived if device::ethernet,
    silent_neighbour_has_no_address if device::ethernet,
}
