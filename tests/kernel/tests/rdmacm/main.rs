//! The connection manager: connections within this host, their events and their errors.

mod addresses;
mod channels;
mod connections;
mod datagrams;
mod endpoints;
mod faults;
mod host;
mod limits;
mod migration;
mod neighbours;
mod network;
mod options;
mod owned;
mod services;
mod sharing;
mod sockets;
mod states;

use addresses::*;
use bareverbs_kernel_tests::wire::{lossy_wire, wire};
use bareverbs_kernel_tests::{device, kernel_tests};
use channels::*;
use connections::*;
use datagrams::*;
use endpoints::*;
use faults::*;
use host::*;
use limits::*;
use migration::*;
use neighbours::*;
use network::*;
use options::*;
use owned::*;
use services::*;
use sharing::*;
use sockets::*;
use states::*;

kernel_tests! {
    rdma_cm_device_is_found_and_opened,
    peers_connect_with_private_data_and_disconnect if has_ip,
    ipv6_peers_connect if device::ethernet,
    wildcard_listener_takes_a_free_port if has_ip,
    rejection_carries_reason_and_private_data if has_ip,
    dropped_request_is_rejected if has_ip,
    response_can_be_rejected if has_ip,
    connect_without_listener_is_rejected if has_ip,
    private_data_has_the_documented_limits if has_ip,
    request_is_accepted_once if has_ip,
    calls_in_a_wrong_state_are_refused if has_ip,
    hundreds_of_requests_wait_for_an_answer if has_ip,
    requests_above_the_backlog_arrive_when_the_peer_repeats_them if has_ip,
    peer_that_gives_up_is_noticed_by_accept if has_ip,
    notify_establishes_a_connection if has_ip,
    many_connections_leave_no_objects if has_ip,
    ece_options_travel_in_request_and_response if has_ip,
    ib_port_space_connects_unreliable_queue_pairs if has_ip,

    bind_errors_name_their_cause if has_ip,
    port_in_use_beside_a_wildcard_is_no_foreign_address if has_ip,
    listen_names_the_owner_of_a_reused_port if has_ip,
    exhausted_port_range_is_named if has_ip,
    invalid_binds_and_resolutions_name_their_cause if has_ip,
    routes_that_refuse_an_address_are_named if has_ip,
    interface_without_an_rdma_device_is_named if has_ip,
    unresolvable_addresses_are_errors if has_ip,
    loopback_address_has_no_route_on_roce if device::ethernet,
    ports_below_1024_need_a_capability if has_ip,
    paths_and_gids_are_those_of_the_addresses if has_ip,
    infiniband_addresses_connect if device::infiniband,
    commands_for_ip_addresses_bind_resolve_query_and_join if has_ip,

    ids_outlive_their_channel if has_ip,
    destroyed_id_takes_its_events_along if has_ip,
    events_may_outlive_their_id if has_ip,
    requests_of_a_destroyed_listener_are_rejected if has_ip,
    migrated_id_takes_its_events_along if has_ip,
    migration_wakes_a_waiting_reader if has_ip,
    listener_is_not_migrated if has_ip,
    wait_has_a_time_limit,
    threads_share_a_channel if has_ip,
    identifiers_are_destroyed_while_another_thread_reads_their_events if has_ip,
    forked_child_can_not_use_a_channel if has_ip,
    changed_credentials_are_refused,
    raw_commands_return_the_errors_of_the_kernel,

    disconnect_ends_established_connections_only if has_ip,
    end_of_the_peer_follows_its_confirmation if has_ip,
    two_threads_accept_a_request_once if has_ip,
    two_threads_destroy_a_number_once if has_ip,
    rejection_has_any_length_of_private_data if has_ip,
    destroyed_listener_rejects_unread_requests_only if has_ip,
    channel_is_dropped_with_unread_events if has_ip,
    signals_do_not_end_a_wait if has_ip,

    type_of_service_is_that_of_the_path if device::ethernet,
    ack_timeout_is_that_of_the_queue_pair if has_ip,
    reused_port_has_two_owners_until_one_listens if has_ip,
    ipv6_listener_takes_ipv4_peers_unless_ipv6_only if device::ethernet,
    path_option_replaces_route_resolution if has_ip,
    user_events_need_linux_7_2,
    services_are_resolved_on_infiniband_only if has_ip,
    registered_services_are_resolved_by_id_and_name if has_services,
    route_leads_to_a_resolved_service if has_services,
    client_connects_to_a_resolved_service if has_services,
    services_need_a_subnet_administrator,

    datagram_service_is_resolved if has_ip,
    datagram_request_is_refused_with_private_data if has_ip,
    datagram_request_without_listener_is_refused if has_ip,
    datagram_requests_above_the_backlog_are_refused if has_ip,
    multicast_group_is_joined_and_left if has_ip,
    multicast_errors_name_their_cause if has_ip,
    members_of_a_group_receive_its_datagrams if has_ip,

    waits_of_identifiers_get_their_events if has_ip,
    waits_of_identifiers_have_time_limits if has_ip,
    identifiers_of_one_channel_wait_at_a_time if has_ip,
    errors_of_waits_are_typed if has_ip,
    waits_of_datagram_identifiers_get_their_events if has_ip,
    channel_moves_to_another_runtime if has_ip,
    endpoints_connect_and_exchange_messages if has_ip,
    queue_pair_has_the_attributes_of_its_connection if has_ip,
    connections_share_devices_and_can_be_taken_apart if has_ip,
    caller_moves_its_own_queue_pair if has_ip,
    endpoint_takes_attributes_of_a_connection_only,
    listener_and_connector_errors_name_their_cause if has_ip,
    tokio_listener_yields_connections if has_ip,
    async_io_listener_yields_connections if has_ip,
    tasks_wait_for_events_and_are_woken_by_migration if has_ip,
    tasks_without_a_runtime_are_refused if has_ip,
    tasks_look_names_up_and_open_devices if has_ip,
    domain_of_a_local_address_is_known_before_the_first_request if has_ip,
    ipv6_listener_and_connector_connect if device::ethernet,
    connection_agrees_on_ece_options if has_ip,
    unreliable_queue_pairs_connect_by_type if has_ip,
    peer_that_ends_during_the_handshake_has_rejected if has_ip,

    channel_of_its_own_shows_the_end_while_a_thread_reads_the_shared_one if has_ip,
    thousand_connections_share_one_file if has_ip,
    threads_wait_for_their_own_connections if has_ip,
    tasks_of_tokio_get_the_events_of_their_connections if has_ip,
    futures_of_async_io_get_the_events_of_their_connections if has_ip,
    thread_and_task_share_a_channel if has_ip,
    events_of_other_identifiers_stay_on_the_channel if has_ip,
    delivered_requests_of_a_dropped_listener_are_rejected if has_ip,
    listener_needs_an_identifier_that_listens if has_ip,
    options_of_listeners_and_connectors_reach_their_identifiers if has_ip,
    type_of_service_of_a_connector_is_that_of_its_paths if device::ethernet,
    looked_up_addresses_bind_and_connect if has_ip,
    gid_as_text_is_resolved_on_infiniband if device::infiniband,

    connections_of_hubs_are_made_by_ip_address if has_ip,
    clients_are_admitted_by_ip_address if has_ip,
    tasks_connect_hubs_by_ip_address if has_ip,
    private_data_that_is_no_address_is_rejected if has_ip,

    connection_migrates_to_the_paths_that_its_sides_load if migrates,
    migration_is_not_reported_without_an_alternate_path if has_ip,

    datagram_sockets_exchange_messages if has_ip,
    messages_go_by_udp_until_the_peer_answers_the_lookup if has_ip,
    datagram_socket_dropped_in_a_forked_child_polls_nothing if has_ip,
    lookup_is_answered_and_its_message_received if has_ip,
    malformed_messages_are_ignored if has_ip,
    connected_socket_receives_from_its_peer_only if has_ip,
    datagram_socket_errors_name_their_cause if has_ip,
    descriptor_tells_when_a_message_waits if has_ip,
    tasks_exchange_datagrams if has_ip,
    task_without_a_runtime_does_not_wait_for_datagrams,
    full_send_queue_makes_its_sender_wait if has_ip,

    lost_messages_are_unreachable_peers if lossy_wire,
    time_limit_ends_the_wait_for_a_peer_that_is_cut_off if lossy_wire,
    device_removal_ends_each_identifier_with_its_error if removable,
    deleted_device_closes_each_identifier if wire,
    interface_down_ends_connections_and_refuses_new_ones if wire,
    deleted_interface_ends_connections_and_refuses_new_ones if wire,
    repeated_request_is_new_after_its_rejection if lossy_wire,
    listener_answers_after_an_interface_returns if wire,
    request_while_the_interface_is_down_leaves_the_device_without_its_gsi_qp if wire,
    removed_address_refuses_new_connections_until_it_returns if wire,
    renamed_device_keeps_connections_and_takes_new_ones if wire,
    exhausted_descriptors_are_errors_with_the_remedy if has_ip,
    network_namespace_without_the_device_has_no_addresses if has_ip,
    closed_file_ends_its_identifiers_in_each_step if has_ip,
    closed_file_ends_its_listener if has_ip,
    killed_client_is_noticed_in_each_step if has_ip,
    killed_server_is_noticed_in_each_step if has_ip,
    killed_peer_ends_its_stream if has_ip,

    answer_of_a_neighbour_is_not_missed if wire,
    late_neighbour_is_resolved if device::ethernet,
    resolution_without_an_answer_ends_at_its_time_limit if has_ip,
}
