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

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run()
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
