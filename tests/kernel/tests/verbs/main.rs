//! The public API on a real kernel with an RDMA device.

mod dead_peer;
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
mod remote_region;
mod scopes;
mod traffic;

use bareverbs_kernel_tests::{device, kernel_tests};
use dead_peer::*;
use deferred::*;
use devices::*;
use events::*;
use lifetime::*;
use memory::*;
use owned::*;
use polling::*;
use posting::*;
use queue_pairs::*;
use remote_region::*;
use scopes::*;
use traffic::*;

kernel_tests! {
    netlink_lists_the_device_with_driver_and_node,
    unknown_device_name_lists_the_devices,
    open_without_permission_names_the_path,
    capabilities_are_those_of_the_kernel,
    query_device_reports_limits,
    query_port_reports_state_and_mtu,
    port_speed_is_reported_or_unsupported,
    nonexistent_ports_are_rejected_with_the_valid_range,
    gid_table_contains_the_ip_address_and_the_default_is_ipv4 if device::ethernet,
    empty_and_out_of_range_gid_indices_are_rejected,
    default_pkey_is_read,
    netlink_counts_objects_of_a_context,

    every_memory_owner_is_registered_and_returned,
    message_is_received_into_a_mapped_file,
    reg_mr_failure_returns_the_memory,
    reg_mr_names_the_unusable_range,
    remote_write_without_local_write_names_the_remedy,
    sges_outside_the_mr_are_rejected,
    remotely_writable_mr_is_read_by_copy,

    bring_up_states_match_query_qp,
    out_of_order_steps_are_rejected,
    invalid_bring_up_attributes_are_rejected_by_name,
    caps_above_device_limits_are_rejected_by_name,
    cqs_of_invalid_depth_are_rejected,
    raw_modify_is_checked_by_the_kernel,

    message_arrives_with_its_length,
    immediate_data_arrives_as_sent,
    inline_data_may_change_after_posting,
    reads_writes_and_atomics_change_only_their_target,
    three_sges_of_two_mrs_arrive_in_two_sges,
    mr_is_addressed_by_its_iova,
    message_of_one_megabyte_arrives,
    split_halves_work_on_two_threads,

    slices_of_every_small_length_get_all_completions_in_order,
    init_structs_with_borrows_have_defaults,

    batch_of_64_completes_in_order,
    full_queue_reports_accepted_count,
    dropped_batch_sends_nothing,
    deferred_sends_are_flushed_in_order if device::deferred_doorbells,
    dropped_batch_keeps_deferred_sends,
    deferred_sends_fill_the_queue_until_they_are_flushed if device::deferred_doorbells,
    reset_discards_deferred_sends if device::deferred_doorbells,
    posting_in_reset_is_rejected,
    requests_that_exceed_the_queue_are_rejected,
    lkey_of_another_pd_completes_with_loc_prot_err,
    message_longer_than_its_receive_fails_both_sides,
    rnr_retries_end_with_rnr_retry_exc_err,
    unreachable_peer_exhausts_retries_and_flushes,
    err_state_flushes_receives,
    failed_qp_is_reported_in_err,
    send_to_a_killed_peer_fails_within_seconds,
    endpoint_of_a_killed_peer_fails_within_seconds,
    cq_of_the_granted_depths_holds_all_completions,

    armed_cq_raises_one_event,
    completion_events_identify_their_cq,
    cq_moderation_delays_events_by_count_or_period,
    pending_event_survives_modify_cq,
    solicited_arm_wakes_on_solicited_messages_only,
    cq_overrun_raises_an_async_event,

    every_drop_order_frees_all_objects,
    failed_creates_leak_no_objects,
    rejected_accept_returns_the_qp_with_posted_work,

    revoked_memory_rejects_peers_and_is_a_slice_again,
    dropped_exposure_rejects_peers,
    exposed_memory_is_sent_without_a_copy,
    key_opens_the_exposed_range_only,
    local_atomics_are_atomic_with_those_of_a_peer,
    local_atomics_lock_a_word_against_a_peer,
    local_atomics_reject_words_that_they_cannot_reach,
    words_are_shared_with_peers,

    endpoints_exchange_messages_without_unsafe,
    header_and_body_are_sent_and_received_as_one_message,
    endpoints_write_and_read_remote_memory,
    refused_post_returns_its_buffer,
    failed_operation_returns_its_buffer,
    wait_without_pending_operations_is_rejected,
    wait_timeout_ends,
    endpoint_dropped_with_outstanding_work_frees_its_buffers,
    forgotten_endpoint_keeps_its_buffers,
    receives_leave_room_for_sends,
    operations_return_tag_length_and_immediate,
    unsignaled_runs_and_batches_complete_in_order,
    operations_of_a_dropped_batch_are_not_sent,
    receive_without_a_buffer_takes_immediate_data,
    aborted_endpoint_returns_all_operations,
    close_is_awaited_by_tasks,
    close_whose_limit_passes_goes_on_or_is_aborted,
    closed_endpoint_returns_messages_and_unused_receives,
    closed_endpoint_waits_for_unsignaled_sends,
    scope_sends_and_receives_borrowed_memory,
    scope_waits_for_operations_that_were_not_polled,
    scope_reads_into_disjoint_ranges_of_a_region,
    lent_odp_range_leaves_its_neighbour_alone,
    scope_borrows_regions_and_pool_buffers_and_posts_all_kinds_of_writes,
    panic_in_a_scope_ends_its_operations,
    scope_ends_at_its_timeout,
    owned_operations_outlive_a_scope,
    scope_of_a_killed_peer_ends_within_seconds,
    endpoints_that_only_receive_notice_a_killed_peer,
    hubs_that_only_receive_notice_a_killed_peer,
    server_notices_a_killed_client,
    client_notices_a_killed_server,
    operations_of_a_hub_to_a_killed_peer_fail_within_seconds,
    messages_to_a_killed_client_fail_and_the_server_shuts_down,
    messages_to_a_killed_server_fail_and_the_client_shuts_down,
    datagrams_to_a_killed_peer_complete_without_an_answer,
}
