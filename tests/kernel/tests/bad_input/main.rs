//! What goes wrong outside the program, or is asked wrongly, ends with an error that says so, and leaves nothing behind.
//!
//! | verb | wrong in turn | where |
//! |---|---|---|
//! | `devices`, `Device::find`, `open`, `RdmaNetlink` | names: empty, long, paths, bytes with a meaning; numbers; no node, no permission, no descriptor | `names`, `devices`, `limits` |
//! | `query_port`, `gid`, `pkey`, `port_speed`, `object_count` | port, index, class | `devices`, `regions` |
//! | `register`, `register_raw`, `register_borrowed` | null, empty, unmapped, not writable, wrapping; rights; address for peers; locked memory | `memory`, `regions` |
//! | `Mr` | ranges; advice; rights and domains changed | `regions`, `contexts` |
//! | `alloc_mw`, `Mw::bind` | type; domain, rights, length, range | `contexts`, `failures` |
//! | `create_cq`, `create_srq`, `create_qp`, resizes | depths, widths, vectors, limits; objects of another context | `devices`, `contexts`, `random` |
//! | `init`, `ready_to_receive`, `ready_to_send`, `modify` | state, mask, every attribute | `attributes`, `states`, `random` |
//! | `drain`, `resume`, `set_error`, `reset` | state | `states` |
//! | `create_ah`, `address_of_sender`, `attach_mcast`, `detach_mcast` | port, GID and its index, header; group; members | `attributes`, `datagrams`, `groups` |
//! | `post_send`, `post_recv`, inline and datagrams | state; elements, lengths, sums; payload of the wrong kind; full queue; keys and ranges, local and remote; no receive, one too short | `posting`, `states`, `failures`, `datagrams`, `zero`, `random` |
//! | `owned::Endpoint` | port, depth, peer, range, domain; after a failure | `endpoints` |
//! | all of them | the device goes | `removal` |
//! | `provider::command` | handles never made, given back, of another sort or file; descriptors; files | `commands` |

mod attributes;
mod commands;
mod contexts;
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
    without_a_device_that_is_what_everything_says if device::soft_roce,
    an_ordinary_user_is_told_of_the_node_he_may_not_open,
    every_verb_that_takes_a_port_refuses_one_that_is_not_there,
    a_gid_index_that_is_empty_or_outside_the_table_keeps_a_queue_pair_in_init,
    queues_beyond_the_device_are_refused_with_the_limit,

    a_name_that_no_device_has_finds_none,
    a_device_is_made_with_a_name_or_not_at_all,
    a_path_that_is_no_device_is_not_opened,
    a_number_that_no_device_has_is_told_with_the_error,

    every_attribute_of_the_first_step_is_checked,
    a_privileged_queue_key_is_for_the_privileged,
    every_attribute_of_the_way_to_a_peer_is_checked,
    every_number_of_the_second_step_is_checked,
    every_number_of_the_third_step_is_checked,
    the_bare_change_takes_no_number_that_does_not_fit,
    the_bare_change_tells_what_its_mask_lacks_or_should_not_have,
    a_queue_pair_serves_no_more_reads_than_it_first_had_places_for,

    a_handle_of_another_sort_is_refused_by_every_command,
    a_handle_that_never_was_is_refused_by_every_command,
    a_handle_that_was_given_back_is_refused_by_every_command,
    an_object_in_use_is_not_given_back,
    objects_of_another_file_are_not_seen,
    a_descriptor_that_is_no_channel_is_refused,
    a_file_that_is_not_ready_for_commands_refuses_them,
    queries_answer_whatever_room_there_is,

    queues_of_another_context_make_no_queue_pair,
    a_region_does_not_move_to_another_context,
    a_shared_queue_of_another_domain_scatters_into_its_own_memory,
    a_window_is_bound_in_its_own_domain_to_what_it_may_open,
    an_address_handle_of_another_domain_ends_the_request_with_an_error if device::soft_roce_looks_handles_up,

    memory_that_cannot_be_registered_is_refused_with_the_reason,
    memory_needs_no_alignment,
    locked_memory_beyond_the_limit_is_refused_with_the_limit,
    what_a_key_does_not_allow_ends_with_a_status_that_says_so,
    what_a_remote_key_does_not_allow_ends_with_a_status_that_says_so,

    a_full_send_queue_takes_again_exactly_what_completed,
    a_full_receive_queue_takes_again_exactly_what_completed,
    a_refused_request_in_a_list_stops_neither_those_before_it_nor_later_posts,
    requests_that_make_no_sense_are_refused_before_the_device_sees_them,
    sums_beyond_what_a_number_holds_are_not_cut,
    a_flush_of_what_there_is_not_is_refused,
    one_number_for_many_requests_comes_back_with_each,
    a_forgotten_batch_goes_out_with_the_next,

    a_receive_too_short_for_the_message_fails_on_both_sides,
    a_receive_with_a_wrong_key_fails_on_both_sides,
    a_peer_without_receives_and_one_without_a_queue_pair_end_the_retries,
    every_remote_operation_needs_the_right_of_its_own,
    a_remote_key_is_good_for_its_region_while_that_exists,
    an_invalidation_of_no_key_and_a_bind_of_no_window_fail if device::soft_roce_checks_windows,
    a_send_that_invalidates_no_key_fails_at_the_peer,
    where_no_read_may_be_outstanding_reads_and_atomics_are_refused if device::soft_roce,
    a_peer_that_serves_no_reads_refuses_them,

    every_message_may_have_no_bytes,
    elements_of_no_bytes_among_others_change_nothing,
    a_receive_may_have_no_room_and_a_message_no_receive_of_its_size,
    a_datagram_of_no_bytes_arrives_with_its_header_alone,
    a_datagram_is_refused_that_no_packet_can_carry,
    a_datagram_that_nobody_can_take_is_lost_and_nothing_else,
    an_answer_needs_a_header_that_came_to_this_port,
    unreliable_messages_and_writes_of_no_bytes_arrive,
    an_unreliable_message_without_room_is_lost_or_told_and_writes_nothing_beyond,

    what_is_no_group_is_neither_joined_nor_left if device::groups,
    a_group_takes_no_more_members_than_the_device_has_places_for if device::groups,
    without_a_descriptor_nothing_is_opened_and_the_error_says_why,

    rights_that_cannot_be_given_are_refused_with_what_to_change,
    an_address_for_peers_lies_as_the_memory_does_in_its_page,
    a_region_is_not_given_rights_that_it_cannot_have,
    a_range_beyond_the_region_is_refused_by_every_method,
    advice_is_for_regions_on_demand,
    what_a_context_cannot_tell_is_a_typed_error,

    reliable_queue_pairs_survive_changes_at_random,
    unreliable_queue_pairs_survive_changes_at_random,
    queues_are_made_as_asked_or_refused,
    every_request_at_random_is_refused_or_completes,

    an_endpoint_is_made_and_connected_as_it_can_be_or_not_at_all,
    a_refused_operation_gives_its_buffer_back,
    a_region_of_another_protection_domain_is_refused_and_given_back,
    a_failed_endpoint_gives_everything_back_and_takes_nothing_more,

    no_step_out_of_order_is_made,
    every_typed_step_begins_in_its_own_state if device::drains,
    every_post_has_its_states,
    the_error_state_flushes_everything_in_order,
    a_queue_pair_in_error_answers_queries_and_flushes_new_sends,
    a_queue_pair_works_again_after_an_error_and_a_reset,

    a_device_that_goes_under_traffic_says_so_and_everything_is_dropped if device::unbindable,

    a_killed_process_leaves_nothing,
    a_process_that_forgets_all_its_handles_leaves_nothing,

    the_tool_refuses_what_the_device_does_not_have,
    the_tool_tells_an_ordinary_user_of_the_node if device::not_instrumented,
}
