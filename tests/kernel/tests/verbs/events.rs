use std::time::{Duration, Instant};

use bareverbs::AsyncEvent;
use bareverbs::cq::{Arm, CqInit};
use bareverbs::device::{DeviceAttr, EventType};
use bareverbs::qp::{Payload, QpCap, SendFlags};
use bareverbs_kernel_tests::{Completion, Outcome, device, kernel_test, skip};

use crate::pair::{End, TIMEOUT, join, message, open, region};

const INLINE: QpCap =
    QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };

/// Two connected ends whose CQs share a channel, with user data 1 and 2, and memory for receives.
struct Evented {
    a: End,
    b: End,
    channel: bareverbs::cq::CompChannel,
    target: bareverbs::Mr<bareverbs::Buffer>,
}

impl Evented {
    fn new() -> Self {
        let pd = open().alloc_pd().unwrap();
        let channel = pd.context().create_comp_channel().unwrap();
        let end = |user_data| {
            let init = CqInit { channel: Some(&channel), user_data, ..CqInit::new(32) };
            End::on(&pd, INLINE, pd.context().create_cq(&init).unwrap())
        };
        let (mut a, mut b) = (end(1), end(2));
        join(&mut a, &mut b);
        let target = region(&pd, &[0; 16]);
        Self { a, b, channel, target }
    }

    fn exchange(&mut self, flags: SendFlags) {
        self.b.recv(1, &self.target);
        self.a.send(&bareverbs::qp::SendRequest {
            flags: flags | SendFlags::SIGNALED,
            ..message(2, Payload::Inline(&[b"event"]))
        });
        self.a.completion();
        self.b.completion();
    }

    fn quiet(&self) -> bool {
        self.channel.next().wait_timeout(Duration::from_millis(50)).is_none()
    }
}

#[kernel_test]
fn armed_cq_raises_one_event() {
    let mut evented = Evented::new();
    evented.exchange(SendFlags::empty());
    assert!(evented.quiet(), "the CQ is not armed");

    evented.b.cq.arm(Arm::Any).unwrap();
    evented.exchange(SendFlags::empty());
    evented.exchange(SendFlags::empty());
    assert_eq!(evented.channel.next().wait().unwrap().user_data, 2);
    assert!(evented.quiet(), "one was asked for");
    assert!(evented.channel.try_wait().unwrap().is_none());

    evented.b.cq.arm(Arm::Any).unwrap();
    evented.exchange(SendFlags::empty());
    assert_eq!(evented.channel.next().wait_timeout(TIMEOUT).unwrap().unwrap().user_data, 2);
}

#[kernel_test]
fn completion_events_identify_their_cq() {
    let mut evented = Evented::new();
    evented.a.cq.arm(Arm::Any).unwrap();
    evented.b.cq.arm(Arm::Any).unwrap();
    evented.exchange(SendFlags::empty());
    let mut reported =
        [evented.channel.next().wait().unwrap().user_data, evented.channel.next().wait().unwrap().user_data];
    reported.sort_unstable();
    assert_eq!(reported, [1, 2]);
}

#[kernel_test]
fn cq_moderation_delays_events_by_count_or_period() -> Outcome {
    let DeviceAttr { max_cq_count, max_cq_period, .. } = open().query_device().unwrap();
    if max_cq_count == 0 {
        return skip("the device does not moderate events");
    }
    let period = Duration::from_micros(max_cq_period.into());
    let mut evented = Evented::new();
    // The time until the event of an armed CQ, if so many messages arrive.
    let mut delay = |messages, count, period| {
        evented.b.cq.moderate(count, period).unwrap();
        evented.b.cq.arm(Arm::Any).unwrap();
        let start = Instant::now();
        (0..messages).for_each(|_| evented.exchange(SendFlags::empty()));
        let event = evented.channel.next().wait_timeout(TIMEOUT).transpose().unwrap().expect("an event");
        assert_eq!(event.user_data, 2);
        start.elapsed()
    };
    for _ in 0..8 {
        let delayed = delay(1, 2, period);
        assert!(delayed >= period, "after {delayed:?} with one completion of two");
    }
    // On a busy machine most events may be late for other reasons.
    for (messages, count, longest) in [(2, 2, period), (1, 0, Duration::ZERO)] {
        let is_early = (0..500).any(|_| delay(messages, count, longest) < period);
        assert!(is_early, "{messages} of {count} completions");
    }
    Ok(Completion::Completed)
}

#[kernel_test]
fn pending_event_survives_modify_cq() -> Outcome {
    let DeviceAttr { max_cq_count, max_cq_period, .. } = open().query_device().unwrap();
    if max_cq_count == 0 {
        return skip("the device does not moderate events");
    }
    let longest = Duration::from_micros(max_cq_period.into());
    let mut evented = Evented::new();
    for (count, period) in [(0, Duration::ZERO), (max_cq_count, longest)] {
        evented.b.cq.moderate(max_cq_count, longest).unwrap();
        evented.b.cq.arm(Arm::Any).unwrap();
        evented.exchange(SendFlags::empty());
        evented.b.cq.moderate(count, period).unwrap();
        let event = evented.channel.next().wait_timeout(TIMEOUT).transpose().unwrap();
        assert_eq!(event.map(|event| event.user_data), Some(2), "{count} in {period:?}");
    }
    Ok(Completion::Completed)
}

#[kernel_test]
fn solicited_arm_wakes_on_solicited_messages_only() {
    let mut evented = Evented::new();
    evented.b.cq.arm(Arm::Solicited).unwrap();
    evented.exchange(SendFlags::empty());
    assert!(evented.quiet(), "the message was not solicited");
    evented.exchange(SendFlags::SOLICITED);
    assert_eq!(evented.channel.next().wait().unwrap().user_data, 2);
}

#[kernel_test]
fn cq_overrun_raises_an_async_event() {
    let pd = open().alloc_pd().unwrap();
    let events = pd.context().async_events();
    assert!(events.try_wait().unwrap().is_none());

    // The sender's CQ is smaller than the number of completions.
    let small = pd.context().create_cq(&CqInit { user_data: 0xc0ffee, ..CqInit::new(1) }).unwrap();
    let (mut a, mut b) = (End::on(&pd, INLINE, small), End::new(&pd, INLINE));
    join(&mut a, &mut b);
    let target = region(&pd, &[0; 16]);
    for wr_id in 0..8 {
        b.recv(wr_id, &target);
        a.send(&message(wr_id, Payload::Inline(&[b"overrun"])));
    }
    if device::has_rxe_abi() {
        b.completions(8);
    }
    // On other devices the queue pair fails with its CQ.
    let event = events
        .next()
        .wait_timeout(TIMEOUT)
        .transpose()
        .unwrap()
        .expect("the queue of one completion overran");
    assert_eq!(event, AsyncEvent::Cq { event: EventType::CQ_ERR, user_data: 0xc0ffee });
}
