//! Connections of threads and tasks: hubs, servers, streams of endpoints, and waits for buffers.

mod connections;
mod pools;
mod server_buffers;
mod servers;
mod streams;
mod tasks;
mod threads;

use bareverbs_kernel_tests::{device, kernel_tests};
use connections::*;
use pools::*;
use server_buffers::*;
use servers::*;
use streams::*;
use tasks::*;
use threads::*;

kernel_tests! {
    hub_executes_every_operation,
    header_and_body_are_one_message_of_a_hub,
    hub_room_is_reserved_and_released,
    full_cq_at_its_exact_reserve_loses_nothing,
    aborted_connection_returns_its_buffers,
    dead_peer_costs_its_connection_only,
    qp_is_destroyed_with_its_last_handle,
    two_hundred_connections_share_a_cq,

    threads_without_a_driver_share_a_hub,
    threads_with_a_driver_share_a_hub,
    adaptive_and_busy_threads_share_a_hub,
    wait_timeout_leaves_the_operation_posted,
    blocked_thread_takes_over_from_a_dropped_driver,
    awaited_operations_allocate_nothing,

    tokio_tasks_share_a_hub,
    hundreds_of_connections_of_tasks_share_a_hub,
    async_io_tasks_share_a_hub,
    tasks_share_a_hub_with_a_driver_thread,
    thread_of_a_driver_that_is_blocked_gets_its_message,
    cancelled_awaits_lose_no_message,
    tasks_without_a_driver_end_with_an_error,
    driver_ends_with_its_hub,

    ten_clients_ask_a_server_on_tokio,
    threads_use_a_server_without_a_driver,
    ends_that_send_without_reading_do_not_deadlock,
    dead_client_costs_itself_only,
    keepalive_finds_a_dead_idle_client,
    server_accesses_memory_of_its_client,
    client_reads_memory_of_its_server,
    message_is_echoed_in_place,
    a_thousand_clients_share_few_receives if device::soft_roce,
    clients_end_with_their_server,
    shutdown_under_traffic_loses_nothing,
    drain_by_ctrl_c_answers_every_request_that_was_sent,
    two_hundred_clients_ask_one_server,
    full_server_and_foreign_addresses_are_refused,
    message_longer_than_the_peers_buffers_is_refused,
    messages_flow_through_a_sink_and_a_stream,
    qp_uses_an_srq_of_another_pd,
    tasks_wait_for_the_buffers_of_a_client,
    threads_wait_for_the_buffers_of_a_client_without_a_driver,
    cancelled_wait_of_a_client_passes_its_buffer_on,
    death_of_a_peer_ends_the_wait_for_its_buffers,
    end_of_a_server_ends_the_waits_for_its_buffers,
    waits_for_a_buffer_do_not_delay_replies_in_place,

    streams_of_endpoints_carry_both_directions_in_tokio_tasks,
    streams_of_endpoints_carry_both_directions_in_async_io_tasks,
    dropped_await_of_an_endpoint_loses_no_message,
    failure_ends_the_stream_of_an_endpoint_with_its_buffers,

    threads_wait_for_the_buffers_of_detached_sends,
    tasks_wait_for_the_buffers_of_detached_sends,
    cancelled_wait_passes_its_buffer_to_the_next_one,
    wait_for_a_buffer_ends_at_its_time_limit_and_goes_on,
}
