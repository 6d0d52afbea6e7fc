//! The public API on a real kernel with an RDMA device.

mod deferred;
mod devices;
mod events;
mod lifetime;
mod memory;
mod owned;
mod pair;
mod polling;
mod posting;
mod queue_pairs;
mod traffic;

use bareverbs_kernel_tests::{device, kernel_tests};
use deferred::*;
use devices::*;
use events::*;
use lifetime::*;
use memory::*;
use owned::*;
use polling::*;
use posting::*;
use queue_pairs::*;
use traffic::*;

kernel_tests! {
    netlink_tells_the_device_with_its_driver_and_node,
    an_unknown_device_name_is_refused_with_those_there_are,
    a_node_without_permission_is_refused_with_its_path,
    capabilities_are_those_of_the_kernel,
    the_device_tells_its_limits,
    a_port_tells_its_state_and_mtu,
    ports_that_do_not_exist_are_refused_with_the_range,
    the_gid_table_holds_the_address_and_the_default_is_ipv4 if device::ethernet,
    gid_indices_empty_or_outside_are_refused,
    the_default_p_key_is_read,
    netlink_counts_what_a_context_holds,

    memory_of_every_kind_is_registered_and_comes_back,
    a_received_message_lands_in_a_mapped_file,
    memory_that_cannot_be_registered_is_refused_and_comes_back,
    a_range_that_is_not_usable_is_named,
    rights_without_local_write_are_refused_with_what_to_add,
    elements_outside_a_region_are_refused,
    peers_write_a_region_that_only_copies_look_at,

    bring_up_goes_through_the_states_and_the_kernel_agrees,
    steps_out_of_order_are_refused,
    bad_bring_up_attributes_are_refused_by_name,
    depths_and_widths_above_the_device_are_refused_by_name,
    completion_queues_of_impossible_depth_are_refused,
    the_raw_modify_leaves_the_check_to_the_kernel,

    a_message_arrives_with_its_length,
    immediate_data_arrives_as_sent,
    inline_bytes_may_change_after_posting,
    reads_writes_and_atomics_change_what_they_should,
    three_elements_over_two_regions_arrive_in_order_in_two,
    a_region_is_reached_by_the_address_it_was_given,
    a_megabyte_arrives_whole,
    halves_work_on_two_threads,

    slices_of_every_small_length_get_all_completions_in_order,
    structs_that_borrow_a_queue_have_their_defaults,

    a_batch_of_64_completes_in_order,
    a_full_queue_tells_what_it_took_and_completes_it,
    a_batch_that_is_dropped_sends_nothing,
    deferred_sends_go_with_the_flush_in_their_order if device::defers,
    a_batch_that_is_dropped_leaves_deferred_sends_alone,
    deferred_sends_fill_the_queue_until_they_are_flushed if device::defers,
    a_reset_forgets_deferred_sends if device::defers,
    posting_in_reset_is_refused,
    requests_that_do_not_fit_the_queue_are_refused,
    a_key_of_another_domain_completes_with_its_reason,
    a_message_longer_than_its_receive_fails_on_both_sides,
    without_a_receive_the_sender_is_told,
    a_peer_that_is_gone_ends_retries_and_flushes_the_rest,
    the_error_state_flushes_receives,

    an_armed_queue_raises_one_event,
    queues_on_one_channel_are_told_apart,
    an_event_that_waits_survives_a_change_of_moderation,
    solicited_events_are_for_those_who_ask,
    an_overrun_raises_an_asynchronous_event,

    every_order_of_dropping_gives_everything_back,
    refused_requests_leave_nothing_behind,
    a_queue_pair_with_posted_work_is_given_back,

    endpoints_exchange_messages_without_unsafe,
    endpoints_write_and_read_remote_memory,
    a_refused_post_gives_the_buffer_back,
    a_failed_operation_gives_the_buffer_back,
    waiting_for_nothing_is_refused,
    a_wait_with_a_timeout_ends,
    an_endpoint_dropped_with_work_under_way_frees_its_buffers,
    a_forgotten_endpoint_keeps_its_buffers,
}
