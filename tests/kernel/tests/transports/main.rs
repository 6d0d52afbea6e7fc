//! Unreliable connections, datagrams, shared receive queues and multicast through the public API.

mod datagram;
mod host;
mod multicast;
mod shared;
mod unreliable;

use bareverbs_kernel_tests::{device, kernel_tests};
use datagram::*;
use multicast::*;
use shared::*;
use unreliable::*;

kernel_tests! {
    an_unreliable_connection_carries_messages_and_writes,
    an_unreliable_message_of_many_packets_arrives_whole,
    an_unreliable_message_that_finds_no_receive_is_lost_and_nobody_is_told,
    an_unreliable_connection_sets_just_the_attributes_that_the_kernel_wants,
    a_datagram_arrives_behind_the_room_of_its_header,
    a_datagram_over_ipv6_tells_its_sender_too if device::ethernet,
    a_datagram_is_answered_to_where_it_came_from,
    one_queue_pair_sends_to_several_peers_with_one_doorbell,
    a_datagram_fills_the_mtu_and_no_more,
    a_datagram_with_a_foreign_queue_key_is_dropped,
    a_datagram_over_a_destroyed_handle_fails if device::soft_roce_looks_handles_up,
    a_datagram_over_a_handle_of_another_domain_fails if device::soft_roce_looks_handles_up,
    a_datagram_queue_pair_sets_just_the_attributes_that_the_kernel_wants,
    an_address_handle_needs_a_way_to_its_peer if device::ethernet,
    an_address_handle_is_checked_before_it_is_made,
    a_shared_queue_serves_several_queue_pairs,
    a_shared_queue_serves_datagrams,
    a_shared_queue_tells_once_that_it_runs_low,
    a_shared_queue_keeps_its_receives_when_it_is_resized if device::resizes_shared_queues,
    a_shared_queue_is_resized_under_traffic if device::resizes_shared_queues,
    a_shared_queue_does_not_shrink_below_what_is_posted if device::resizes_shared_queues,
    a_shared_queue_is_made_within_the_limits,
    a_queue_pair_with_a_shared_queue_takes_no_receives_itself,
    a_shared_queue_and_its_queue_pairs_go_in_any_order,
    a_multicast_datagram_reaches_every_member,
    a_multicast_datagram_over_ipv6_reaches_every_member if device::ethernet,
    who_left_a_group_gets_nothing_from_it,
    a_group_is_a_multicast_address,
    a_queue_pair_in_a_group_can_be_dropped,
    a_group_of_infiniband_has_a_lid_of_groups if device::infiniband,
}
