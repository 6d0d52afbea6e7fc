//! ConnectX features that Soft-RoCE lacks, through the public API; other devices return
//! `Error::Unsupported`.

mod alternate_path;
mod clocks;
mod compression;
mod device_memory;
mod device_state;
mod dma_handles;
mod doorbells;
mod foreign_memory;
mod huge_pages;
mod imported;
mod large_sends;
mod options;
mod queue_buffers;
mod raw_packets;
mod rss;
mod scatter;
mod traffic;
mod xrc;

#[path = "../../../../verbs/examples/raw_wqe.rs"]
mod raw_wqe;

use alternate_path::*;
use bareverbs_kernel_tests::{device, kernel_tests};
use clocks::*;
use compression::*;
use device_memory::*;
use device_state::*;
use dma_handles::*;
use doorbells::*;
use foreign_memory::*;
use huge_pages::*;
use imported::*;
use large_sends::*;
use options::*;
use queue_buffers::*;
use raw_packets::*;
use rss::*;
use scatter::*;
use traffic::*;
use xrc::*;

kernel_tests! {
    xrc_send_reaches_the_named_srq if device::xrc,
    xrc_carries_every_rc_operation if device::xrc,
    xrc_operations_reach_odp_mr if device::xrc,
    xrc_domain_is_shared_by_file if device::xrc,
    xrcd_create_and_join_are_distinguished if device::xrc,
    xrc_srq_limit_event_is_raised_once if device::xrc,
    xrc_send_to_unknown_srq_fails if device::xrc,
    xrc_rejects_unsupported_operations if device::xrc,
    xrc_domain_closes_after_its_objects if device::xrc,
    xrc_objects_of_another_context_are_rejected if device::xrc,
    xrc_is_unsupported_without_the_capability if device::no_xrc,
    completions_carry_timestamps if device::timestamps,
    raw_clock_runs_at_hca_core_clock if device::timestamps,
    completions_have_wall_clock_times if device::timestamps,
    error_completions_have_no_timestamp if device::timestamps,
    timestamps_are_unsupported_without_the_capability if device::no_timestamps,
    compressed_cqes_equal_uncompressed_ones if device::compression,
    simultaneous_completions_are_compressed if device::compression,
    compression_is_unsupported_without_the_capability if device::no_compression,
    scatter_to_cqe_copies_messages_to_their_memory if device::scatter,
    scatter_to_cqe_is_rejected_where_unsupported,
    device_memory_is_copied_to_and_from if device::device_memory,
    peers_reach_device_memory_with_every_operation if device::device_memory,
    device_memory_is_checked_before_it_is_touched if device::device_memory,
    device_memory_is_freed_after_its_last_mr if device::device_memory,
    freed_device_memory_can_be_allocated_again if device::device_memory,
    device_memory_is_exported_as_a_dmabuf if device::device_memory,
    dma_handles_are_unsupported_without_tph if no_dma_handles,
    processing_hints_reach_the_mkey if dma_handles,
    regions_with_hints_carry_every_operation if dma_handles,
    dmabuf_with_hints_is_remotely_accessible if dma_handles,
    dma_handle_is_busy_while_a_region_uses_it if dma_handles,
    mlx5_rejects_changes_of_regions_with_hints if dma_handles,
    regions_reject_unsuitable_hints if dma_handles,
    invalid_dma_handles_are_rejected if dma_handles,
    dma_handle_of_a_cpu_needs_a_root_port if dma_handles,
    dma_handle_of_a_forbidden_cpu_is_rejected if dma_handles,
    device_memory_is_unsupported_without_the_capability if device::no_device_memory,
    null_mr_skips_part_of_a_message if device::null_mr,
    rxe_has_no_null_mr if device::soft_roce,
    imported_pd_and_mr_work_in_another_process if device::import,
    async_events_go_to_the_owning_process if device::import,
    imported_dm_works_in_another_process if device::import,
    leaked_objects_are_freed_with_the_shared_context if device::import,
    unknown_import_handles_are_rejected if device::import,
    import_rejects_other_descriptors if device::import,
    import_is_unsupported_without_the_capability if device::no_import,
    flow_steers_frames_to_its_qp if device::raw_packets,
    flows_match_by_headers if device::raw_packets,
    flows_match_vlan_tos_protocol_and_ipv6 if device::raw_packets,
    drop_flow_discards_frames_before_other_flows if device::raw_packets,
    flow_counters_count_frames_of_their_flows if device::raw_packets,
    flow_counters_are_unsupported_without_the_driver if device::soft_roce,
    device_computes_checksums if device::raw_packets,
    cvlan_stripping_qp_moves_the_tag_to_the_completion if device::raw_packets,
    scatter_fcs_qp_receives_the_fcs_behind_the_frame if device::raw_packets,
    end_padding_qp_receives_whole_frames if device::raw_packets,
    creation_flags_that_the_device_reports_create_raw_packet_qps if device::raw_packets,
    raw_packet_queues_wrap_and_restart_after_reset if device::raw_packets,
    invalid_flow_rules_are_rejected if device::raw_packets,
    tso_send_arrives_as_tcp_segments if device::raw_packets,
    invalid_tso_sends_are_rejected if device::raw_packets,
    tso_is_rejected_where_unsupported,
    queues_in_huge_pages_carry_messages if huge_pages,
    work_queues_in_huge_pages_receive_frames if huge_work_queues,
    missing_huge_pages_error_names_the_remedy if huge_pages,
    rxe_rejects_huge_page_queues if device::soft_roce,
    queue_buffers_are_reported_by_mlx5_since_linux_7_2,
    cq_in_caller_memory_carries_completions if queue_buffers,
    cq_in_a_callers_huge_page_carries_completions if queue_buffers,
    qp_in_caller_memory_carries_messages if queue_buffers,
    queues_in_a_dmabuf_carry_messages if queue_buffers,
    raw_packet_queues_in_caller_memory_carry_frames if raw_queue_buffers,
    resized_cq_leaves_the_caller_memory if queue_buffers,
    unsuitable_queue_buffers_are_rejected if queue_buffers,
    queue_buffers_are_unsupported_without_the_capability if no_queue_buffers,
    ece_options_are_negotiated if options,
    ece_rejects_another_vendors_options if options,
    ece_is_unsupported_without_the_capability if no_options,
    rate_limit_is_rejected_without_packet_pacing if no_rates,
    uc_rate_reaches_the_qp_context if uc_rates,
    ud_rate_reaches_the_qp_context if ud_rates,
    raw_packets_keep_to_their_rate if device::raw_packets,
    raw_packet_qp_requires_cap_net_raw if device::raw_packets,
    raw_packets_are_unsupported_without_the_capability if device::no_raw_packets,
    rss_matches_the_published_toeplitz_vectors if device::work_queues,
    rss_delivers_each_flow_to_one_queue_exactly_once if device::work_queues,
    rss_with_one_entry_needs_no_hash_fields if device::work_queues,
    rss_work_queues_go_through_their_states if device::work_queues,
    rss_failed_work_queues_recover_by_reset if device::work_queues,
    rss_work_queues_strip_vlan_tags if device::work_queues,
    rss_objects_drop_in_any_order if device::work_queues,
    rss_invalid_arguments_are_rejected if device::work_queues,
    rss_requires_cap_net_raw if device::work_queues,
    rss_limits_are_reported if device::work_queues,
    rss_is_unsupported_without_the_capability if device::no_work_queues,
    ucontext_limits_match_query_device if device::connectx,
    hand_built_wqe_example_runs if device::connectx,
    qp_uses_the_requested_doorbell if device::connectx,
    qps_work_with_shared_and_dedicated_doorbells if device::connectx,
    dedicated_doorbell_is_unsupported_on_rxe if device::soft_roce,
    port_counters_count_packets_and_bytes if counted,
    armed_qps_migrate_to_the_alternate_path if apm,
    alternate_path_is_rejected_on_ethernet if device::ethernet,
    raw_state_of_a_cq_has_its_size if device::connectx,
    relaxed_ordering_reaches_the_mkey if device::connectx,
    rxe_has_no_raw_state if device::soft_roce,
    dmabuf_mr_is_remotely_accessible,
    invalid_dmabuf_registrations_are_rejected,
}
