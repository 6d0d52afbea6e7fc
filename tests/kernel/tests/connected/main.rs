//! Everything that reliable connections offer: states, queues, keys and events.

mod completions;
mod events;
mod memory;
mod states;

use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs::{
    AsyncEvent, Context, Operation, Payload, QpCap, RecvRequest, SendFlags, SendRequest, Sge, WcStatus,
};
use bareverbs_kernel_tests::loopback::{PATIENCE, Plan, Side};
use bareverbs_kernel_tests::{device, kernel_tests};
use completions::*;
use events::*;
use memory::*;
use states::*;

kernel_tests! {
    a_drained_queue_ends_what_it_began_and_keeps_the_rest_until_it_is_resumed if device::drains,
    a_queue_pair_in_error_flushes_all_that_is_posted_before_and_after,
    a_queue_pair_in_error_flushes_sends_however_many_are_posted_at_a_time,
    a_queue_pair_tells_each_of_its_states,
    a_queue_pair_that_was_reset_starts_anew_wherever_its_rings_stood,
    a_queue_pair_that_was_reset_with_sends_under_way_sends_only_what_is_posted_after,

    long_runs_without_completions_neither_lose_nor_invent_room,
    a_queue_pair_that_signals_all_makes_a_completion_of_each,
    a_fenced_send_carries_what_the_read_before_it_brought,
    only_a_solicited_message_wakes_a_queue_armed_for_such,
    a_queue_resized_under_traffic_loses_nothing_and_keeps_the_order,
    a_resize_below_what_it_holds_is_refused_and_harms_nothing,
    an_armed_queue_stays_armed_through_a_resize,
    two_queue_pairs_share_one_completion_queue,
    a_completion_brings_back_whose_request_it_was,
    sends_and_receives_complete_in_queues_of_their_own,

    a_window_of_type_2_opens_its_region_to_its_queue_pair_until_it_is_invalidated,
    a_window_of_type_2_serves_no_other_queue_pair_and_no_other_region,
    a_peer_takes_a_window_away_with_its_send,
    a_window_of_type_1_is_bound_anew_and_to_nothing,
    a_bind_that_the_region_does_not_allow_fails if device::soft_roce_checks_windows,
    a_region_under_a_window_is_not_given_back if device::soft_roce_checks_windows,
    a_region_is_known_by_the_address_it_was_given,
    a_region_changes_its_rights_in_place,
    a_region_of_raw_memory_changes_its_rights_in_place,
    a_region_moves_to_another_domain,
    many_regions_live_side_by_side,
    a_flush_reaches_the_peers_memory,
    an_atomic_write_changes_eight_bytes,
    operations_without_payload_refuse_one,

    an_overrun_raises_the_queues_error,
    a_port_that_goes_down_and_up_says_so if device::ethernet,
    a_new_address_raises_a_change_of_the_gid_table if device::ethernet,
}

/// A plan with queues of this depth.
fn deep(depth: u32) -> Plan {
    let plan = Plan::default();
    Plan { cap: QpCap { max_send_wr: depth, max_recv_wr: depth, ..plan.cap }, ..plan }
}

/// A request without elements.
fn bare(wr_id: u64, operation: Operation) -> SendRequest<'static> {
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) }
}

fn recv(wr_id: u64, sges: &[Sge]) -> RecvRequest<'_> {
    RecvRequest { wr_id, sges }
}

/// Posts one request and waits for its end.
#[track_caller]
fn end_of(side: &mut Side, request: SendRequest<'_>) -> WcStatus {
    side.send(&[request]).expect("the send queue takes it");
    let [(wr_id, status)] = side.ends(1)[..] else { panic!("one completion") };
    assert_eq!(wr_id, request.wr_id);
    status
}

/// The next event that `wanted` takes; others, as of addresses that come and go, are passed over.
#[track_caller]
fn event(context: &Context, wanted: impl Fn(&AsyncEvent) -> bool) -> AsyncEvent {
    let events = context.async_events();
    let end = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match events.get_timeout(left).expect("the stream can be read") {
            Some(event) if wanted(&event) => return event,
            Some(event) => seen.push(event),
            None => panic!("the event did not come; there were {seen:?}"),
        }
    }
}

/// Long enough for anything that would happen by itself.
fn a_while() {
    sleep(Duration::from_millis(100));
}
