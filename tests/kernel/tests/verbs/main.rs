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
    netlink_lists_the_device_with_driver_and_node,
    unknown_device_name_lists_the_devices,
    a_node_without_permission_is_refused_with_its_path,
    capabilities_are_those_of_the_kernel,
    query_device_reports_limits,
    query_port_reports_state_and_mtu,
    ports_that_do_not_exist_are_refused_with_the_range,
    the_gid_table_holds_the_address_and_the_default_is_ipv4 if device::ethernet,
    gid_indices_empty_or_outside_are_refused,
    the_default_p_key_is_read,
    netlink_counts_objects_of_a_context,

    every_memory_owner_is_registered_and_returned,
    a_received_message_lands_in_a_mapped_file,
    memory_that_cannot_be_registered_is_refused_and_comes_back,
    a_range_that_is_not_usable_is_named,
    rights_without_local_write_are_refused_with_what_to_add,
    elements_outside_a_region_are_refused,
    remotely_writable_mr_is_read_by_copy,

    bring_up_states_match_query_qp,
    steps_out_of_order_are_refused,
    bad_bring_up_attributes_are_refused_by_name,
    depths_and_widths_above_the_device_are_refused_by_name,
    completion_queues_of_impossible_depth_are_refused,
    raw_modify_is_checked_by_the_kernel,

    a_message_arrives_with_its_length,
    immediate_data_arrives_as_sent,
    inline_bytes_may_change_after_posting,
    reads_writes_and_atomics_change_only_their_target,
    three_elements_over_two_regions_arrive_in_order_in_two,
    mr_is_addressed_by_its_iova,
    a_megabyte_arrives_whole,
    halves_work_on_two_threads,

    slices_of_every_small_length_get_all_completions_in_order,
    init_structs_with_borrows_have_defaults,

    a_batch_of_64_completes_in_order,
    full_queue_reports_accepted_count,
    a_batch_that_is_dropped_sends_nothing,
    deferred_sends_go_with_the_flush_in_their_order if device::deferred_doorbells,
    a_batch_that_is_dropped_leaves_deferred_sends_alone,
    deferred_sends_fill_the_queue_until_they_are_flushed if device::deferred_doorbells,
    reset_discards_deferred_sends if device::deferred_doorbells,
    posting_in_reset_is_refused,
    requests_that_do_not_fit_the_queue_are_refused,
    a_key_of_another_domain_completes_with_its_reason,
    a_message_longer_than_its_receive_fails_on_both_sides,
    rnr_retries_end_with_rnr_retry_exc_err,
    unreachable_peer_exhausts_retries_and_flushes,
    the_error_state_flushes_receives,

    an_armed_queue_raises_one_event,
    completion_events_identify_their_cq,
    cq_moderation_delays_events_by_count_or_period,
    pending_event_survives_modify_cq,
    solicited_arm_wakes_on_solicited_messages_only,
    an_overrun_raises_an_asynchronous_event,

    every_drop_order_frees_all_objects,
    refused_requests_leave_nothing_behind,
    rejected_accept_returns_the_qp_with_posted_work,

    endpoints_exchange_messages_without_unsafe,
    endpoints_write_and_read_remote_memory,
    refused_post_returns_its_buffer,
    failed_operation_returns_its_buffer,
    wait_without_pending_operations_is_rejected,
    a_wait_with_a_timeout_ends,
    an_endpoint_dropped_with_work_under_way_frees_its_buffers,
    a_forgotten_endpoint_keeps_its_buffers,
}
