//! Sleeping and waking under load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bareverbs::WcStatus;
use bareverbs::cq::{Arm, Cq, CqEventCounts, CqInit};
use bareverbs::qp::{Operation, Payload, QpCap, SendFlags, SendRequest};
use bareverbs_kernel_tests::loopback::{Plan, Side, domain, join, request, side, side_on};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, kernel_test};

const PAIRS: usize = 3;
const DEPTH: u32 = 64;
/// Messages to each pair.
const MESSAGES: u64 = 6000;

const NO_BYTES: Payload<'_> = Payload::Sges(&[]);

/// A pseudo-random generator with the same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Sends in small bursts, with pauses around the time that it takes to fall asleep.
fn send_all(mut senders: Vec<Side>, taken: &[AtomicU64]) -> Vec<Side> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut sent = [0; PAIRS];
    while sent.iter().any(|sent| *sent < MESSAGES) {
        let at = random.below(PAIRS as u64) as usize;
        let room = u64::from(DEPTH) - (sent[at] - taken[at].load(Ordering::Acquire));
        let burst = (1 + random.below(3)).min(room).min(MESSAGES - sent[at]);
        for _ in 0..burst {
            // The receivers wait for other completions. Signalled sends only free the send queue.
            let signalled = sent[at] % 16 == 15;
            let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
            senders[at]
                .send(&[SendRequest { flags, ..request(sent[at], Operation::Send, NO_BYTES) }])
                .unwrap();
            if signalled {
                assert_eq!(senders[at].ends(1), [(sent[at], WcStatus::SUCCESS)]);
            }
            sent[at] += 1;
        }
        match random.below(4) {
            0 => thread::sleep(Duration::from_micros(random.below(300))),
            1 => (0..random.below(2000)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }
    senders
}

/// Polls the available completions, in order, and posts the receives again.
fn take(side: &mut Side, taken: &AtomicU64) -> u64 {
    let mut number = taken.load(Ordering::Relaxed);
    let before = number;
    while let Some(completion) = side.cq.poll_one() {
        assert_eq!((completion.wr_id, completion.status), (number, WcStatus::SUCCESS));
        side.recv_into(number + u64::from(DEPTH), 1, &[]);
        number += 1;
        taken.store(number, Ordering::Release);
    }
    number - before
}

#[kernel_test]
fn arm_then_poll_misses_no_completion() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context().clone();
        let channel = context.create_comp_channel().unwrap();
        let cap = QpCap { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpCap::default() };
        let plan = Plan { cap, ..Plan::long_timeouts() };
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for user_data in 0..PAIRS as u64 {
            let init = CqInit { channel: Some(&channel), user_data, ..CqInit::new(2 * DEPTH) };
            let mut sender = side(&pd, plan);
            let mut receiver = side_on(&pd, plan, context.create_cq(&init).unwrap(), user_data);
            join(&mut sender, &mut receiver);
            receiver.recv_into(0, DEPTH.into(), &[]);
            senders.push(sender);
            receivers.push(receiver);
        }

        let taken = [const { AtomicU64::new(0) }; PAIRS];
        let mut events = [0; PAIRS];
        let mut sleeps = 0;
        let senders = thread::scope(|scope| {
            let sending = scope.spawn(|| send_all(senders, &taken));
            let mut total = 0;
            while total < MESSAGES * PAIRS as u64 {
                let look = |receivers: &mut Vec<Side>| -> u64 {
                    receivers.iter_mut().zip(&taken).map(|(side, taken)| take(side, taken)).sum()
                };
                total += look(&mut receivers);
                receivers.iter_mut().for_each(|side| side.cq.arm(Arm::Any).unwrap());
                let late = look(&mut receivers);
                total += late;
                if late > 0 || total == MESSAGES * PAIRS as u64 {
                    continue;
                }
                sleeps += 1;
                let Some(event) = channel.next().wait_timeout(TIMEOUT).transpose().unwrap() else {
                    panic!("slept through a completion after {total} messages and {sleeps} sleeps");
                };
                events[event.user_data as usize] += 1;
            }
            sending.join().unwrap()
        });
        assert!(sleeps > MESSAGES / 10, "there were only {sleeps} sleeps: nothing was shown");
        while let Some(event) = channel.try_wait().unwrap() {
            events[event.user_data as usize] += 1;
        }
        println!("{sleeps} sleeps, events {events:?}");

        // The kernel's count equals ours.
        drop(senders);
        for (side, events) in receivers.into_iter().zip(events) {
            let Side { qp, cq, .. } = side;
            assert_eq!(qp.destroy().unwrap(), 0);
            let CqEventCounts { completion, asynchronous, .. } = cq.destroy().unwrap();
            assert_eq!((completion, asynchronous), (events, 0));
        }
    });
}

#[kernel_test]
fn unread_events_do_not_block_destroy() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context().clone();
        let (channel, events) = (context.create_comp_channel().unwrap(), context.async_events());
        for round in 0..20 {
            // A depth of one, so that each exchange raises completion and error events.
            let init = CqInit { channel: Some(&channel), user_data: round, ..CqInit::new(1) };
            let cq: Cq = context.create_cq(&init).unwrap();
            let (mut a, mut b) =
                (side(&pd, Plan::long_timeouts()), side_on(&pd, Plan::long_timeouts(), cq, round));
            join(&mut a, &mut b);
            b.recv_into(0, 8, &[]);
            b.cq.arm(Arm::Any).unwrap();
            for number in 0..8 {
                a.send(&[request(number, Operation::Send, NO_BYTES)]).unwrap();
            }
            // On 7.2 the overrun puts the receiver into ERR, and the other sends are never
            // acknowledged.
            a.completions(1);
        }
        // All objects are destroyed, and their events are discarded.
        assert_eq!((channel.try_wait().unwrap(), events.try_wait().unwrap()), (None, None));
    });
}
