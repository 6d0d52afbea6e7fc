//! UC, UD, SRQs and multicast through the public API.

mod datagram;
mod host;
mod multicast;
mod neighbours;
mod owned;
mod shared;
mod unreliable;

use bareverbs_kernel_tests::wire::lossy_wire;
use bareverbs_kernel_tests::{device, kernel_tests};
use datagram::*;
use multicast::*;
use neighbours::*;
use owned::*;
use shared::*;
use unreliable::*;

kernel_tests! {
    uc_carries_messages_and_writes,
    uc_connects_by_exchanged_addresses,
    uc_message_of_many_packets_arrives,
    uc_message_without_receive_is_dropped_silently,
    uc_bring_up_sets_exactly_the_required_attributes,
    datagram_payload_follows_the_40_byte_grh,
    datagram_over_ipv6_has_a_parsable_grh if device::ethernet,
    datagram_is_answered_by_ah_attr_from_wc,
    one_qp_sends_to_several_peers_with_one_doorbell,
    datagram_size_is_limited_to_the_mtu,
    datagram_with_wrong_qkey_is_dropped,
    datagram_over_destroyed_ah_fails if device::soft_roce_validates_ah,
    datagram_over_ah_of_another_pd_fails if device::soft_roce_validates_ah,
    ud_bring_up_sets_exactly_the_required_attributes,
    create_ah_requires_a_route if device::ethernet,
    create_ah_validates_attributes,
    srq_serves_several_qps,
    srq_receives_datagrams,
    srq_limit_event_is_raised_once,
    srq_resize_preserves_receives if device::srq_resize,
    srq_is_resized_under_traffic if device::srq_resize,
    srq_resize_below_posted_receives_is_rejected if device::srq_resize,
    create_srq_checks_limits,
    qp_with_srq_rejects_post_recv,
    receive_limits_are_ignored_with_an_srq,
    srq_and_its_qps_drop_in_any_order,
    multicast_datagram_reaches_every_member,
    member_receives_its_own_multicast_datagrams,
    blocked_multicast_loopback_spares_the_sender_only if device::connectx,
    ipv6_multicast_datagram_reaches_every_member if device::ethernet,
    detached_qp_receives_no_multicast,
    ip_group_is_joined_until_the_last_qp_is_detached if device::ethernet,
    qp_is_not_attached_if_the_ip_group_can_not_be_joined if device::ethernet,
    attach_mcast_requires_a_multicast_gid,
    attached_qp_can_be_dropped,
    infiniband_multicast_requires_a_multicast_lid if device::infiniband,

    owned_datagrams_are_received_and_answered,
    owned_datagrams_to_a_group_reach_its_members,
    owned_datagrams_have_the_length_of_a_packet,
    datagram_beyond_its_receive_is_no_message,
    aborted_datagrams_return_their_buffers,
    destination_may_be_dropped_before_its_sends_complete,
    closed_datagrams_return_every_operation,
    full_queues_of_datagrams_accept_posts_after_a_completion,
    datagram_options_out_of_range_are_refused,
    datagrams_of_tokio_tasks_flow,
    datagrams_of_async_io_tasks_flow,
    descriptor_of_datagrams_is_readable_after_a_completion,
    owned_datagrams_join_groups_of_infiniband_by_lid if device::infiniband,

    destination_waits_for_a_late_neighbour if device::ethernet,
    destination_of_a_silent_neighbour_has_a_time_limit if device::ethernet,
    tasks_run_while_a_destination_is_resolved if device::ethernet,
    connect_waits_for_a_late_neighbour if device::ethernet,
    reply_waits_for_a_neighbour_whose_answer_is_lost if lossy_wire,
}
