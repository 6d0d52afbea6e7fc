//! RC features: states, queues, keys and events.

mod completions;
mod events;
mod memory;
mod states;

use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs::qp::{Operation, Payload, QpCap, RecvRequest, SendFlags, SendRequest, Sge};
use bareverbs::{AsyncEvent, Context, WcStatus};
use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::loopback::{Plan, Side};
use bareverbs_kernel_tests::{device, kernel_tests};
use completions::*;
use events::*;
use memory::*;
use states::*;

kernel_tests! {
    sqd_completes_started_sends_and_holds_the_rest if device::sqd,
    err_state_flushes_earlier_and_later_posts,
    err_state_flushes_lists_of_any_length,
    query_qp_reports_every_state,
    reset_restarts_rings_from_any_position,
    reset_with_outstanding_sends_discards_them,

    unsignaled_sends_keep_the_free_slot_count,
    signal_all_completes_every_send,
    fenced_send_waits_for_the_previous_read,
    solicited_only_arm_ignores_other_completions,
    cq_resize_under_traffic_preserves_completions_in_order,
    cq_resize_below_pending_completions_is_rejected,
    armed_cq_stays_armed_over_resize,
    two_qps_share_one_cq,
    wr_id_owner_is_returned_with_completions,
    sends_and_receives_complete_in_separate_cqs,

    type_2_mw_grants_access_until_invalidated,
    type_2_mw_is_limited_to_its_qp_and_mr,
    send_with_invalidate_invalidates_a_mw,
    type_1_mw_is_rebound_and_unbound,
    mw_bind_without_mw_bind_access_fails if device::soft_roce_validates_binds,
    mr_with_bound_mw_is_not_deregistered if device::soft_roce_validates_binds,
    mr_of_a_refused_deregistration_is_deregistered_after_its_mw if device::soft_roce_validates_binds,
    mr_is_addressed_by_its_iova,
    rereg_mr_changes_access,
    rereg_mr_changes_access_of_raw_memory,
    rereg_mr_changes_atomic_access,
    rereg_mr_changes_pd,
    many_mrs_coexist,
    flush_reaches_peer_memory,
    atomic_write_changes_eight_bytes,
    operations_without_payload_reject_a_payload,

    cq_overrun_raises_cq_err,
    port_state_changes_raise_events if device::ethernet,
    failed_operation_names_a_link_that_is_down if device::soft_roce,
    new_ip_address_raises_gid_change if device::ethernet,
}

/// A plan with queues of this depth.
fn plan_with_depth(depth: u32) -> Plan {
    let plan = Plan::default();
    Plan { cap: QpCap { max_send_wr: depth, max_recv_wr: depth, ..plan.cap }, ..plan }
}

/// A request without SGEs.
fn request_without_sges(wr_id: u64, operation: Operation) -> SendRequest<'static> {
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) }
}

fn recv(wr_id: u64, sges: &[Sge]) -> RecvRequest<'_> {
    RecvRequest { wr_id, sges }
}

/// Posts one request and waits for its completion.
#[track_caller]
fn execute(side: &mut Side, request: SendRequest<'_>) -> WcStatus {
    side.send(&[request]).expect("the send queue takes it");
    let [(wr_id, status)] = side.ends(1)[..] else { panic!("one completion") };
    assert_eq!(wr_id, request.wr_id);
    status
}

/// The next event that `wanted` accepts. Others, such as GID changes, are skipped.
#[track_caller]
fn event(context: &Context, wanted: impl Fn(&AsyncEvent) -> bool) -> AsyncEvent {
    let events = context.async_events();
    let end = Instant::now() + TIMEOUT;
    let mut seen = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match events.next().wait_timeout(left).transpose().expect("the stream can be read") {
            Some(event) if wanted(&event) => return event,
            Some(event) => seen.push(event),
            None => panic!("the event did not come; there were {seen:?}"),
        }
    }
}

/// Long enough for any asynchronous change.
fn settle() {
    sleep(Duration::from_millis(100));
}
