//! Devices and their objects: attributes, parameters and actual capacities.

mod completion_queues;
mod devices;
mod domains;
mod options;
mod queue_pairs;

use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::kernel_tests;
use completion_queues::*;
use devices::*;
use domains::*;
use options::*;
use queue_pairs::*;

kernel_tests! {
    query_device_limits_are_plausible,
    get_pkey_index_finds_the_default_pkey,

    pds_are_allocated_and_freed_repeatedly,
    pd_in_use_is_returned_by_dealloc,
    ah_is_created_and_destroyed,
    unknown_mw_type_is_rejected,

    cqs_accept_any_depth_and_vector,
    cqs_of_any_depth_share_a_channel,
    cq_moderation_is_limited_by_the_device,

    new_qp_is_in_reset_with_requested_caps,
    bring_up_of_each_transport_matches_query_qp,
    bring_up_is_generic_over_transports,
    qp_caps_above_device_limits_are_rejected,
    privileged_qkey_is_rejected_without_privilege,
    max_rd_atomic_is_kept,
    cq_sized_for_the_granted_depths_loses_no_completion,
    reset_qp_rejects_posts,

    cq_that_ignores_overruns_raises_no_error,
    qp_creation_flags_work_or_are_unsupported,
    rate_limit_works_or_is_unsupported if device::raw_packets,
    advice_covers_several_regions,
    replaced_memory_of_an_mr_is_used_or_the_mr_is_unchanged,
}
