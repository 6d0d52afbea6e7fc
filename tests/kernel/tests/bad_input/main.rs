//! Failures of the environment, and invalid arguments. Each is reported as an error, and no object
//! leaks. The modules, by verb:
//!
//! - `devices`, `Device::find`, `open`, `RdmaNetlink`: names that are empty, long, paths or have
//!   special bytes; numbers; no node, no permission, no descriptor: `names`, `devices`, `limits`
//! - `query_port`, `gid`, `pkey`, `port_speed`, `object_count`: port, index, class: `devices`,
//!   `regions`
//! - `register`, `register_raw`, `register_borrowed`: null, empty, unmapped, not writable, wrapping
//!   memory; access rights; address for peers; locked memory: `memory`, `regions`
//! - `Mr`: ranges; advice; changes of access rights and PD: `regions`, `contexts`
//! - `alloc_mw`, `Mw::bind`: type; PD, access rights, length, range: `contexts`, `failures`
//! - `create_cq`, `create_srq`, `create_qp`, resizes: depths, widths, vectors, limits; objects of
//!   another context: `devices`, `contexts`, `random`
//! - `init`, `ready_to_receive`, `ready_to_send`, `modify`: state, mask, every attribute:
//!   `attributes`, `states`, `random`
//! - `drain`, `resume`, `set_error`, `reset`: state: `states`
//! - `create_ah`, `ah_attr_from_wc`, `attach_mcast`, `detach_mcast`: port, GID and its index,
//!   header; group; members: `attributes`, `datagrams`, `groups`
//! - `post_send`, `post_recv`, inline data and datagrams: state; SGEs, lengths, sums; payload of
//!   the wrong type; full queue; keys and ranges, local and remote; no receive, too short receive:
//!   `posting`, `states`, `failures`, `cookbook`, `datagrams`, `zero`, `random`
//! - `Endpoint`: port, depth, peer, range, PD; use after a failure: `endpoints`
//! - all verbs: device removal: `removal`
//! - `provider::command`: handles that never existed, freed handles, handles of another type or
//!   file; descriptors; files: `commands`

mod attributes;
mod commands;
mod contexts;
mod cookbook;
mod datagrams;
mod devices;
mod endpoints;
mod failures;
mod groups;
mod limits;
mod memory;
mod names;
mod posting;
mod processes;
mod random;
mod refusals;
mod regions;
mod removal;
mod states;
mod tool;
mod zero;

use attributes::*;
use bareverbs_kernel_tests::{device, kernel_tests};
use commands::*;
use contexts::*;
use cookbook::*;
use datagrams::*;
use devices::*;
use endpoints::*;
use failures::*;
use groups::*;
use limits::*;
use memory::*;
use names::*;
use posting::*;
use processes::*;
use random::*;
use regions::*;
use removal::*;
use states::*;
use tool::*;
use zero::*;

kernel_tests! {
    missing_device_is_reported_by_every_entry_point if device::soft_roce,
    device_without_node_is_skipped_unless_it_is_named if device::has_peer_veth,
    open_without_permission_names_the_device_node,
    every_verb_rejects_invalid_ports,
    invalid_gid_index_leaves_qp_in_init,
    queues_above_device_limits_name_the_limit,

    unknown_device_names_are_rejected,
    new_link_rejects_invalid_names,
    open_rejects_non_device_paths,
    netlink_error_names_the_device_index,

    reset_to_init_attributes_are_validated,
    privileged_qkey_is_rejected_without_privilege,
    ah_attr_is_validated_in_init_to_rtr,
    init_to_rtr_attributes_are_validated,
    rtr_to_rts_attributes_are_validated,
    modify_rejects_out_of_range_values,
    modify_names_missing_and_disallowed_attributes,
    max_dest_rd_atomic_above_the_first_value_is_rejected_on_rxe,

    handles_of_another_class_are_rejected,
    unknown_handles_are_rejected,
    freed_handles_are_rejected,
    objects_in_use_are_not_destroyed,
    objects_of_another_file_are_not_seen,
    create_cq_rejects_other_descriptors_as_channel,
    device_file_without_context_rejects_commands,
    queries_handle_any_buffer_size,

    create_qp_rejects_queues_of_another_context,
    rereg_mr_rejects_pd_of_another_context,
    srq_of_another_pd_uses_its_own_mrs,
    mw_bind_validates_pd_and_access,
    ah_of_another_pd_fails_the_send if device::soft_roce_validates_ah,

    reg_mr_failure_names_the_cause,
    memory_needs_no_alignment,
    reg_mr_above_rlimit_memlock_names_the_limit,
    rlimit_memlock_of_zero_is_named,
    rlimit_memlock_that_queues_exceed_is_named,
    mappings_that_cannot_be_pinned_are_named,
    lkey_violations_complete_with_protection_errors,
    rkey_violations_complete_with_access_errors,

    full_send_queue_frees_exactly_the_completed_slots,
    full_recv_queue_frees_exactly_the_completed_slots,
    rejected_request_in_a_list_keeps_earlier_ones_posted,
    invalid_requests_are_rejected_before_posting,
    total_length_overflow_is_rejected,
    flush_with_invalid_level_or_placement_is_rejected,
    duplicate_wr_ids_are_returned_for_each_request,
    forgotten_batch_is_sent_with_the_next_doorbell,

    statuses_are_those_of_the_cookbook,
    granted_depths_are_those_of_the_cookbook,
    short_receive_fails_on_both_sides,
    receive_with_wrong_lkey_fails_on_both_sides,
    rnr_and_missing_peer_exhaust_the_retries,
    each_remote_operation_requires_its_access_flag,
    rkey_is_valid_only_while_its_mr_exists,
    local_inv_and_bind_mw_with_invalid_keys_fail if device::soft_roce_validates_binds,
    send_with_invalid_rkey_to_invalidate_fails_at_the_peer,
    max_rd_atomic_zero_rejects_reads_and_atomics if device::soft_roce,
    max_dest_rd_atomic_zero_rejects_remote_reads,

    every_operation_accepts_zero_bytes,
    zero_length_sges_change_nothing,
    zero_length_receives_accept_only_empty_messages,
    empty_datagram_arrives_with_its_grh,
    datagram_above_the_mtu_is_rejected,
    undeliverable_datagrams_are_dropped,
    ah_attr_from_wc_validates_the_grh,
    zero_byte_uc_messages_and_writes_arrive,
    uc_message_too_long_writes_nothing_out_of_bounds,

    multicast_verbs_reject_other_gids if device::multicast_by_gid,
    multicast_attach_limits_are_enforced if device::multicast_by_gid,
    open_without_free_descriptors_reports_emfile,

    invalid_access_flags_name_the_remedy,
    iova_must_match_the_page_offset,
    set_access_rejects_invalid_flags,
    every_method_rejects_ranges_outside_the_mr,
    advise_mr_requires_on_demand,
    unsupported_queries_return_typed_errors,

    random_modify_qp_on_rc,
    random_modify_qp_on_uc_and_ud,
    queues_are_created_as_requested_or_rejected,
    random_requests_are_rejected_or_complete,

    endpoint_new_and_connect_validate_arguments,
    refused_operation_returns_its_buffer,
    mr_of_another_pd_is_rejected_and_returned,
    failed_endpoint_returns_all_buffers_and_rejects_posts,

    out_of_order_transitions_are_rejected,
    typed_transitions_check_the_current_state if device::sqd,
    posting_is_checked_in_every_state,
    err_state_flushes_in_order,
    qp_in_err_can_be_queried_and_flushes_new_sends,
    qp_works_after_error_and_reset,

    device_removal_under_traffic_is_reported if device::unbindable,
    device_removal_ends_each_wait_and_returns_the_buffers if device::unbindable,
    deleted_soft_roce_works_until_it_is_closed if device::soft_roce,

    killed_process_leaks_no_objects,
    forgotten_handles_leak_no_objects_after_exit,

    tool_rejects_unsupported_options,
    tool_names_the_inaccessible_device_node if device::not_instrumented,
}
