//! What adapters have beyond Soft-RoCE, through the public API; and that it is refused in so many words elsewhere.

mod clocks;
mod compression;
mod device_memory;
mod doorbells;
mod foreign_memory;
mod huge_pages;
mod imported;
mod large_sends;
mod options;
mod raw_packets;
mod rss;
mod scatter;
mod traffic;
mod xrc;

#[path = "../../../../verbs/examples/hand_built_wqe.rs"]
mod hand_built_wqe;

use bareverbs_kernel_tests::{device, kernel_tests};
use clocks::*;
use compression::*;
use device_memory::*;
use doorbells::*;
use foreign_memory::*;
use huge_pages::*;
use imported::*;
use large_sends::*;
use options::*;
use raw_packets::*;
use rss::*;
use scatter::*;
use traffic::*;
use xrc::*;

kernel_tests! {
    an_extended_connection_reaches_the_queues_that_it_names if device::xrc,
    an_extended_connection_carries_every_operation_of_a_reliable_one if device::xrc,
    a_domain_is_shared_by_its_file if device::xrc,
    a_domain_joined_or_made_is_told_from_the_other if device::xrc,
    a_queue_of_an_extended_domain_tells_once_that_it_runs_low if device::xrc,
    an_extended_request_to_nobody_fails if device::xrc,
    an_extended_connection_refuses_what_it_does_not_carry if device::xrc,
    an_extended_domain_goes_after_all_that_is_in_it if device::xrc,
    extended_objects_of_another_context_are_refused if device::xrc,
    without_extended_connections_their_verbs_say_so if device::no_xrc,
    completions_tell_when_they_were_made if device::timestamps,
    the_clock_runs_at_the_rate_that_the_device_tells if device::timestamps,
    a_failed_request_tells_no_time if device::timestamps,
    without_a_clock_its_verbs_say_so if device::no_timestamps,
    compressed_completions_tell_what_the_others_tell if device::compression,
    what_arrives_together_lies_there_as_one_run if device::compression,
    without_compression_its_verbs_say_so if device::no_compression,
    messages_in_completions_reach_their_memory if device::scatter,
    messages_in_completions_are_refused_where_they_cannot_be,
    device_memory_is_copied_to_and_from if device::device_memory,
    peers_reach_device_memory_with_every_operation if device::device_memory,
    device_memory_is_checked_before_it_is_touched if device::device_memory,
    device_memory_stays_until_its_last_region_goes if device::device_memory,
    device_memory_runs_out_and_comes_back if device::device_memory,
    without_device_memory_its_verbs_say_so if device::no_device_memory,
    what_goes_nowhere_leaves_the_rest_of_a_message if device::null_mr,
    soft_roce_has_no_region_that_is_nowhere if device::soft_roce,
    another_process_uses_a_domain_and_a_region_that_it_imported if device::import,
    events_come_to_the_process_whose_object_they_are_of if device::import,
    another_process_uses_device_memory_that_it_imported if device::import,
    what_a_process_left_behind_goes_with_the_context if device::import,
    handles_of_nothing_are_refused if device::import,
    what_is_no_open_device_is_not_imported if device::import,
    without_sharing_imports_say_so if device::no_import,
    a_frame_comes_to_the_queue_pair_that_a_flow_leads_it_to if device::raw_packets,
    flows_tell_frames_apart_by_their_headers if device::raw_packets,
    the_device_fills_in_checksums if device::raw_packets,
    queues_of_frames_wrap_and_start_anew if device::raw_packets,
    flows_are_checked if device::raw_packets,
    a_large_send_arrives_as_the_frames_of_a_stream if device::raw_packets,
    large_sends_are_checked if device::raw_packets,
    large_sends_are_refused_where_they_cannot_be,
    queues_in_huge_pages_carry_messages if huge_pages,
    work_queues_in_huge_pages_receive_frames if huge_work_queues,
    without_huge_pages_the_error_tells_how_to_get_some if huge_pages,
    queues_of_the_kernels_own_lie_in_no_huge_pages if device::soft_roce,
    both_ends_of_a_connection_agree_on_its_options if options,
    options_of_another_vendor_are_refused if options,
    without_options_their_verbs_say_so if no_options,
    a_rate_is_refused_where_sends_are_held_to_none if no_rates,
    raw_packets_are_for_the_privileged if device::raw_packets,
    without_raw_packets_their_verbs_say_so if device::no_raw_packets,
    rss_spreads_the_published_flows_as_their_hashes_say if device::work_queues,
    rss_brings_each_frame_once_and_those_of_a_flow_to_one_queue if device::work_queues,
    rss_of_one_queue_needs_no_hash if device::work_queues,
    rss_work_queues_go_through_their_states if device::work_queues,
    rss_work_queues_that_failed_begin_anew if device::work_queues,
    rss_work_queues_take_tags_out_where_asked if device::work_queues,
    rss_goes_in_any_order_and_what_is_in_use_stays if device::work_queues,
    rss_is_checked_argument_by_argument if device::work_queues,
    rss_is_for_the_privileged if device::work_queues,
    rss_limits_are_told if device::work_queues,
    without_work_queues_the_verbs_of_rss_say_so if device::no_work_queues,
    the_example_of_requests_built_by_hand_runs if device::connectx,
    a_queue_pair_has_the_doorbell_that_it_was_to_have if device::connectx,
    queue_pairs_work_with_either_doorbell if device::connectx,
    without_doorbells_of_ones_own_asking_for_one_says_so if device::soft_roce,
    a_port_counts_the_packets_and_bytes_that_go_through_it if counted,
    peers_reach_a_dma_buf,
    a_dma_buf_is_checked_before_it_is_registered,
}
