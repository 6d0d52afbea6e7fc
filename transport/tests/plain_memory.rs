//! The transport on a device of plain memory: messages over a sound and a faulty wire.

mod plain;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use bareverbs_transport::packet::{Flush, Operation, Packet, Transport};
use bareverbs_transport::{
    Action, Device, Event, Fault, FaultInjector, Fence, QpAttributes, Segment, Service, Sge, State, Status,
};
use plain::{Completion, FIRST_PSN, KEY, Local, Pair, Plain, Request, Side};
use proptest::prelude::*;

const FROM: u64 = 0x1000;
const TO: u64 = 0x8000;
const SEND: Action<Local> = Action::Send { immediate: false, invalidate: false };
const WRITE: Action<Local> = Action::Write { immediate: false };

fn pattern(length: u32, seed: u32) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + seed) as u8).collect()
}

/// A FLUSH of `length` bytes.
fn flush_of(length: u64, flush: Flush) -> Request {
    let (action, remote) = (Action::Flush(flush), (TO, KEY));
    Request { action, signaled: true, remote, length, ..Request::default() }
}

#[test]
fn messages_of_all_sizes_arrive() {
    for transport in [Transport::Rc, Transport::Uc] {
        for length in [0, 1, 255, 256, 257, 3000] {
            let mut pair = Pair::new(Service::Connected(transport));
            pair.write(0, FROM as usize, &pattern(length, 1));
            pair.post_receive(1, 9, TO, 4096);
            pair.post(0, SEND, FROM, 0, length);
            pair.post(0, Action::Write { immediate: false }, FROM, TO + 0x2000, length);
            pair.settle(|_| {});
            for at in [TO, TO + 0x2000] {
                assert_eq!(pair.read(1, at as usize, length as usize), pattern(length, 1));
            }
            assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(())), Completion::Send(1, Ok(()))]);
            let last = if length <= pair.mtu { Operation::SendOnly } else { Operation::SendLast };
            assert_eq!(pair.take_completions(1), [Completion::Receive(9, Ok((last, length)))]);
        }
    }
}

#[test]
fn datagram_is_preceded_by_its_ip_header() {
    let mut pair = Pair::new(Service::Datagram(None));
    pair.write(0, FROM as usize, &pattern(100, 2));
    pair.post_receive(1, 1, TO, 140);
    pair.post_receive(1, 2, TO, 139);
    for _ in 0..2 {
        let mut request = Request { action: SEND, signaled: true, ..Request::default() };
        request.bytes = pattern(100, 2);
        request.segments.push(Segment::Inline { at: 0, length: 100 });
        request.length = 100;
        (request.address.qp, request.address.qkey) = (0x11, 0x1111);
        pair.post_request(0, request);
    }
    pair.settle(|_| {});
    assert_eq!(pair.read(1, TO as usize + 40, 100), pattern(100, 2));
    assert_eq!(pair.read(1, TO as usize + 20, 1), [0x45]);
    let arrived = Completion::Receive(1, Ok((Operation::SendOnly, 140)));
    assert_eq!(pair.take_completions(1), [arrived, Completion::Receive(2, Err(Status::LocalLength))]);
}

#[test]
fn packet_of_another_partition_is_dropped() {
    let mut pair = Pair::rc();
    pair.post(0, WRITE, FROM, TO, 8);
    let mut sent = 0;
    pair.settle(|packets| {
        for packet in packets.iter_mut().filter(|packet| packet.operation == Operation::WriteOnly) {
            if sent == 0 {
                packet.pkey = 0x9234;
            }
            sent += 1;
        }
    });
    assert_eq!(sent, 2, "it is sent again");
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(()))]);
}

#[test]
fn datagram_with_another_qkey_is_dropped() {
    let mut pair = Pair::new(Service::Datagram(None));
    for wqe in 0..2 {
        pair.post_receive(1, wqe, TO, 48);
        let mut request = Request { action: SEND, signaled: true, bytes: vec![1; 8], ..Request::default() };
        request.segments.push(Segment::Inline { at: 0, length: 8 });
        request.length = 8;
        (request.address.qp, request.address.qkey) = (0x11, 0x1111 + wqe as u32);
        pair.post_request(0, request);
    }
    pair.settle(|_| {});
    assert_eq!(pair.take_completions(1), [Completion::Receive(0, Ok((Operation::SendOnly, 48)))]);
}

#[test]
fn datagram_above_the_largest_mtu_is_dropped() {
    let mut pair = Pair::new(Service::Datagram(None));
    // A sender of another kind may have a larger MTU.
    [0, 1].into_iter().for_each(|side| pair.change(side, |attributes| attributes.mtu = 8192));
    for (wqe, length) in [(1, 4097), (2, 4096)] {
        pair.post_receive(1, wqe, TO, 8192);
        let mut request = Request { action: SEND, signaled: true, ..Request::default() };
        request.segments.push(Segment::Memory(Sge { key: KEY, address: FROM, length }));
        request.length = length.into();
        (request.address.qp, request.address.qkey) = (0x11, 0x1111);
        pair.post_request(0, request);
    }
    pair.settle(|_| {});
    assert_eq!(pair.take_completions(0), [0, 1].map(|index| Completion::Send(index, Ok(()))));
    // The first datagram has used no receive.
    assert_eq!(pair.take_completions(1), [Completion::Receive(1, Ok((Operation::SendOnly, 40 + 4096)))]);
}

#[test]
fn message_above_the_largest_is_not_received() {
    const LARGEST: u32 = Plain::MAX_MESSAGE as u32;
    let mut pair = Pair::rc();
    for side in [0, 1] {
        let device = &mut pair.sides[side].device;
        device.memory.borrow_mut().resize(2 * LARGEST as usize, 0);
        device.keys.get_mut(&KEY).unwrap().length = 2 * LARGEST as usize;
        pair.change(side, |attributes| attributes.mtu = 4096);
    }
    pair.post_receive(1, 1, 0, 2 * LARGEST);
    pair.post_receive(1, 2, 0, 2 * LARGEST);
    for _ in 0..2 {
        pair.post(0, SEND, 0, 0, LARGEST);
    }
    // The peer joins the second message to the first one.
    pair.settle(|packets| {
        for packet in packets {
            match packet.operation {
                Operation::SendLast => packet.operation = Operation::SendMiddle,
                Operation::SendFirst if packet.psn != FIRST_PSN => packet.operation = Operation::SendMiddle,
                _ => {}
            }
        }
    });
    let failed = Completion::Receive(1, Err(Plain::POLICY.short_receive));
    assert_eq!(pair.take_completions(1)[0], failed);
    assert_eq!(pair.state(1), State::Error);
}

#[test]
fn change_of_the_mtu_during_a_read_fails_the_read() {
    let mut pair = Pair::rc();
    pair.change(0, |attributes| attributes.ack_timeout = 0);
    pair.post(0, Action::Read, FROM, TO, 1000);
    let mut late = Vec::new();
    pair.settle(|packets| {
        let is_late = |packet: &mut Packet| packet.operation.is_response() && packet.psn != FIRST_PSN;
        late.extend(packets.extract_if(.., is_late));
    });
    late.truncate(1);
    assert_eq!(late[0].operation, Operation::ReadResponseMiddle);
    pair.change(0, |attributes| attributes.mtu = 4096);
    let mut turns = 0;
    pair.settle(|packets| {
        // The second turn is that of the responder.
        turns += 1;
        if turns == 2 {
            packets.append(&mut late);
        }
    });
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Err(Status::BadResponse))]);
}

#[test]
fn local_operations_run_in_the_order_of_the_queue() {
    let mut pair = Pair::rc();
    for action in [
        Action::Local(Local::Nop),
        Action::Write { immediate: false },
        Action::Local(Local::Invalidate(KEY)),
        Action::Write { immediate: false },
    ] {
        pair.post(0, action, FROM, TO, 8);
    }
    pair.settle(|_| {});
    let failed = Completion::Send(3, Err(Status::LocalProtection));
    let done = |index| Completion::Send(index, Ok(()));
    assert_eq!(pair.take_completions(0), [done(0), done(1), done(2), failed]);
    assert_eq!((pair.state(0), pair.state(1)), (State::Error, State::ReadyToSend));
}

#[test]
fn local_operation_between_requests_that_are_sent_again_runs_once() {
    const OTHER: u32 = KEY + 1;
    let mut pair = Pair::rc();
    let keys = &mut pair.sides[0].device.keys;
    let key = keys[&KEY].clone();
    keys.insert(OTHER, key);
    for action in [WRITE, Action::Local(Local::Invalidate(OTHER)), WRITE] {
        pair.post(0, action, FROM, TO, 8);
    }
    let mut lost = false;
    pair.settle(|packets| {
        let is_first = |packet: &mut Packet| packet.psn == FIRST_PSN && !std::mem::replace(&mut lost, true);
        packets.extract_if(.., is_first).for_each(drop);
    });
    assert!(lost);
    assert_eq!(pair.take_completions(0), [0, 1, 2].map(|index| Completion::Send(index, Ok(()))));
}

#[test]
fn access_to_an_unknown_key_moves_both_sides_to_error() {
    let mut pair = Pair::rc();
    pair.sides[1].device.keys.clear();
    pair.post(0, Action::Write { immediate: false }, FROM, TO, 8);
    pair.post(0, Action::Read, FROM, TO, 8);
    pair.settle(|_| {});
    let failures =
        [Completion::Send(0, Err(Status::RemoteAccess)), Completion::Send(1, Err(Status::Flushed))];
    assert_eq!(pair.take_completions(0), failures);
    assert_eq!((pair.state(0), pair.state(1)), (State::Error, State::Error));
    assert_eq!(pair.sides[1].device.events, [bareverbs_transport::Event::AccessError]);
}

#[test]
fn flush_reaches_the_device_after_the_writes_before_it() {
    let mut pair = Pair::rc();
    let flush = Flush { placement: Flush::GLOBAL | Flush::PERSISTENT, whole_key: false };
    pair.write(0, FROM as usize, &pattern(600, 4));
    pair.post(0, Action::Write { immediate: false }, FROM, TO, 600);
    pair.post_request(0, flush_of(600, flush));
    pair.post_request(0, flush_of(1 << 17, Flush { whole_key: true, ..flush }));
    pair.settle(|_| {});
    let done: Vec<_> = (0..3).map(|index| Completion::Send(index, Ok(()))).collect();
    assert_eq!(pair.take_completions(0), done);
    let flushed = pair.sides[1].device.flushes.take();
    assert_eq!(flushed, [(TO, 600, flush), (TO, 1 << 17, Flush { whole_key: true, ..flush })]);
    assert_eq!(pair.read(1, TO as usize, 600), pattern(600, 4));

    pair.post_request(0, flush_of(1 << 17, flush));
    pair.settle(|_| {});
    assert_eq!(pair.take_completions(0), [Completion::Send(3, Err(Status::RemoteAccess))]);
}

#[test]
fn flushes_are_not_counted_as_outstanding_reads() {
    let mut pair = Pair::rc();
    pair.change(1, |attributes| attributes.max_dest_rd_atomic = 1);
    // The peer gets all of them before it answers.
    for _ in 0..3 {
        pair.post_request(0, flush_of(8, Flush { placement: Flush::GLOBAL, whole_key: true }));
    }
    pair.post(0, Action::Read, FROM, TO, 8);
    pair.settle(|_| {});
    assert_eq!(pair.take_completions(0), [0, 1, 2, 3].map(|index| Completion::Send(index, Ok(()))));
}

#[test]
fn flush_of_a_placement_type_that_the_qp_lacks_is_an_invalid_request() {
    let mut pair = Pair::rc();
    pair.change(1, |attributes| attributes.remote_flush = Flush::GLOBAL);
    pair.post_request(0, flush_of(8, Flush { placement: Flush::GLOBAL, whole_key: false }));
    pair.post_request(0, flush_of(8, Flush { placement: Flush::PERSISTENT, whole_key: false }));
    pair.settle(|_| {});
    let failed = Completion::Send(1, Err(Status::RemoteInvalidRequest));
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(())), failed]);
}

#[test]
fn losses_halve_the_packets_in_flight() {
    let mut pair = Pair::rc();
    pair.post(0, Action::Write { immediate: false }, FROM, TO, 129 * pair.mtu);
    let mut bursts: Vec<u32> = Vec::new();
    let mut first = None;
    pair.settle(|packets| {
        for packet in packets.drain(..) {
            if packet.psn == *first.get_or_insert(packet.psn) {
                bursts.push(0);
            }
            *bursts.last_mut().unwrap() += 1;
        }
    });
    assert_eq!(bursts[..5], [128, 64, 32, 32, 32]);
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Err(Status::RetriesExceeded))]);
}

#[test]
fn progress_after_losses_enlarges_the_packets_in_flight() {
    let mut pair = Pair::rc();
    pair.post(0, WRITE, FROM, TO, 8);
    let mut lost = 0;
    // Two losses leave the smallest window.
    pair.settle(|packets| {
        if lost < 2 && !packets.is_empty() {
            lost += 1;
            packets.clear();
        }
    });
    // Each ACK adds one packet.
    for _ in 0..128 {
        pair.post(0, WRITE, FROM, TO, 8);
        pair.settle(|_| {});
    }
    pair.post(0, WRITE, FROM, TO, 129 * pair.mtu);
    let mut psns = BTreeSet::new();
    pair.settle(|packets| {
        psns.extend(packets.iter().map(|packet| packet.psn));
        packets.clear();
    });
    assert_eq!(psns.len(), 128);
}

#[test]
fn packets_that_were_acknowledged_late_are_not_sent_again() {
    const PACKETS: u32 = 4;
    let mut pair = Pair::rc();
    pair.post(0, WRITE, FROM, TO, PACKETS * pair.mtu);
    let late = RefCell::new(None);
    let keep = |packets: &mut Vec<Packet>| {
        let found = packets.iter().position(|packet| packet.operation == Operation::Acknowledge);
        late.replace(found.map(|at| packets.remove(at)));
    };
    pair.settle_until(keep, || late.borrow().is_some());
    // It acknowledges half of the packets. The timeout has expired, but the requester had no turn yet.
    let acknowledgement = Packet { psn: FIRST_PSN + PACKETS / 2 - 1, ..late.take().expect("an ACK") };
    let Side { device, qps, .. } = &mut pair.sides[0];
    pair.now = qps.next_timer().expect("the ACK timeout");
    device.now = pair.now;
    qps.expire_timers(device);
    qps.receive(device, &acknowledgement);
    let mut sent = Vec::new();
    pair.settle(|packets| {
        let requests = packets.iter().filter(|packet| packet.operation != Operation::Acknowledge);
        sent.extend(requests.map(|packet| packet.psn));
    });
    assert_eq!(sent, [FIRST_PSN + 2, FIRST_PSN + 3]);
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(()))]);
}

#[test]
fn acknowledgement_of_packets_that_were_not_sent_is_ignored() {
    let mut pair = Pair::rc();
    pair.post(0, WRITE, FROM, TO, 8);
    let (mut sent, mut acknowledged) = (0, 0);
    pair.settle(|packets| {
        for packet in packets {
            if packet.operation == Operation::WriteOnly {
                sent += 1;
            } else {
                // The first one is wrong.
                packet.psn = (packet.psn + 3 * u32::from(acknowledged == 0)) & 0xff_ffff;
                acknowledged += 1;
            }
        }
    });
    assert_eq!((sent, acknowledged), (2, 2));
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(()))]);
}

#[test]
fn write_of_another_length_than_its_header_has_is_an_invalid_request() {
    for length in [0, 7, 9, 1000] {
        let mut pair = Pair::rc();
        pair.post(0, WRITE, FROM, TO, 8);
        pair.settle(|packets| {
            for remote in packets.iter_mut().filter_map(|packet| packet.headers.remote.as_mut()) {
                remote.length = length;
            }
        });
        let failed = Completion::Send(0, Err(Status::RemoteInvalidRequest));
        assert_eq!(pair.take_completions(0), [failed], "{length}");
    }
}

#[test]
fn destroyed_qp_is_in_no_group() {
    let mut pair = Pair::new(Service::Datagram(None));
    let Side { qps, qp, .. } = &mut pair.sides[0];
    qps.attach([1; 16], *qp);
    assert!(qps.destroy(*qp));
    assert_eq!((qps.groups(), qps.group(&[1; 16])), (0, &[][..]));
}

#[test]
fn atomic_write_has_eight_bytes() {
    let mut pair = Pair::rc();
    pair.post(0, Action::AtomicWrite, FROM, TO, 16);
    pair.settle(|_| {});
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Err(Status::LocalLength))]);
    assert_eq!(pair.sides[1].device.updates.get(), 0);
}

#[test]
fn atomic_write_of_an_unaligned_operand_is_an_invalid_request() {
    let mut pair = Pair::rc();
    let operand = [1, 2, 3, 4, 5, 6, 7, 8];
    pair.write(0, FROM as usize, &operand);
    pair.post(0, Action::AtomicWrite, FROM, TO, 8);
    pair.post(0, Action::AtomicWrite, FROM, TO + 4, 8);
    pair.settle(|_| {});
    let failed = Completion::Send(1, Err(Status::RemoteInvalidRequest));
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(())), failed]);
    assert_eq!(pair.read(1, TO as usize, 12), [operand.as_slice(), &[0; 4]].concat());
}

#[test]
fn repeated_atomic_write_is_not_executed_again() {
    let mut pair = Pair::rc();
    pair.write(0, FROM as usize, &[1; 8]);
    pair.write(0, FROM as usize + 8, &[2; 8]);
    pair.post(0, Action::AtomicWrite, FROM, TO, 8);
    pair.post(0, Action::AtomicWrite, FROM + 8, TO, 8);
    // The first responses are lost, so that both requests are repeated.
    let mut lost = 0;
    pair.settle(|packets| {
        packets.retain(|packet| {
            let loses = packet.operation == Operation::ReadResponseOnly && lost < 2;
            lost += u32::from(loses);
            !loses
        });
    });
    assert_eq!(lost, 2);
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(())), Completion::Send(1, Ok(()))]);
    assert_eq!(pair.read(1, TO as usize, 8), [2; 8]);
    assert_eq!(pair.sides[1].device.updates.get(), 2);
}

#[test]
fn failed_send_and_short_receive_follow_the_policy() {
    let mut pair = Pair::new(Service::Connected(Transport::Uc));
    pair.sides[0].device.keys.clear();
    pair.post(0, SEND, FROM, 0, 8);
    pair.settle(|_| {});
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Err(Status::LocalProtection))]);
    assert_eq!(pair.state(0), State::Error);

    let mut pair = Pair::rc();
    pair.post_receive(1, 5, TO, 7);
    pair.post(0, SEND, FROM, 0, 8);
    pair.settle(|_| {});
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Err(Status::RemoteInvalidRequest))]);
    assert_eq!(pair.take_completions(1), [Completion::Receive(5, Err(Status::RemoteInvalidRequest))]);
}

#[test]
fn unanswered_request_is_sent_again_retry_count_times() {
    for retry_count in [0, 1, 3] {
        let mut pair = Pair::rc();
        pair.change(0, |attributes| attributes.retry_count = retry_count);
        // An answer refills the retries.
        pair.post(0, WRITE, FROM, TO, 8);
        pair.settle(|_| {});
        pair.post(0, WRITE, FROM, TO, 8);
        let mut sent = 0;
        pair.settle(|packets| {
            sent += packets.iter().filter(|packet| packet.operation == Operation::WriteOnly).count();
            packets.clear();
        });
        assert_eq!(sent, 1 + usize::from(retry_count));
        let failed = Completion::Send(1, Err(Status::RetriesExceeded));
        assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(())), failed]);
    }
}

#[test]
fn send_without_a_receive_is_repeated_rnr_retry_times_after_the_delay() {
    /// That of the timer code of the responder, in nanoseconds.
    const DELAY: u64 = 10_000;
    let mut pair = Pair::rc();
    pair.change(0, |attributes| attributes.rnr_retry = 2);
    // An answer refills the retries.
    pair.post(0, WRITE, FROM, TO, 8);
    pair.settle(|_| {});
    let begin = pair.now;
    pair.post(0, SEND, FROM, 0, 8);
    let mut sent = 0;
    pair.settle(|packets| {
        sent += packets.iter().filter(|packet| packet.operation == Operation::SendOnly).count();
    });
    assert_eq!((sent, pair.now - begin), (3, 2 * DELAY));
    let failed = Completion::Send(1, Err(Status::RnrRetriesExceeded));
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(())), failed]);
}

#[test]
fn number_of_unacknowledged_packets_is_limited() {
    let mut pair = Pair::rc();
    pair.post(0, WRITE, FROM, FROM, 200 * pair.mtu);
    let mut psns = BTreeSet::new();
    pair.settle(|packets| {
        psns.extend(packets.iter().map(|packet| packet.psn));
        packets.clear();
    });
    assert_eq!(psns.len(), 128);
}

#[test]
fn long_message_is_acknowledged_before_its_end() {
    const PACKETS: u32 = 200;
    let mut pair = Pair::rc();
    pair.post(0, WRITE, FROM, FROM, PACKETS * pair.mtu);
    let mut sent = 0;
    pair.settle(|packets| {
        let of_message = packets.iter().filter(|packet| packet.operation != Operation::Acknowledge);
        sent += of_message.count();
    });
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(()))]);
    assert_eq!(sent, PACKETS as usize, "no packet is sent again");
}

#[test]
fn request_without_the_right_of_the_qp_is_invalid() {
    type Change = fn(&mut QpAttributes);
    let requests: [(Action<Local>, Change); 4] = [
        (WRITE, |attributes| attributes.remote_write = false),
        (Action::AtomicWrite, |attributes| attributes.remote_write = false),
        (Action::Read, |attributes| attributes.remote_read = false),
        (Action::Atomic { add: true, masks: None }, |attributes| attributes.remote_atomic = false),
    ];
    for (action, change) in requests {
        let mut pair = Pair::rc();
        pair.change(1, change);
        pair.write(0, FROM as usize, &[7; 8]);
        pair.post(0, action, FROM, TO, 8);
        pair.settle(|_| {});
        let failed = Completion::Send(0, Err(Status::RemoteInvalidRequest));
        assert_eq!(pair.take_completions(0), [failed], "{action:?}");
        assert_eq!(pair.read(1, TO as usize, 8), [0; 8], "{action:?}");
    }
}

#[test]
fn read_above_the_outstanding_reads_of_the_responder_is_invalid() {
    let mut pair = Pair::rc();
    pair.change(1, |attributes| attributes.max_dest_rd_atomic = 2);
    // The peer gets all of them before it answers.
    for _ in 0..3 {
        pair.post(0, Action::Read, FROM, TO, 8);
    }
    pair.settle(|_| {});
    let failed = Completion::Send(2, Err(Status::RemoteInvalidRequest));
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(())), Completion::Send(1, Ok(())), failed]);
}

#[test]
fn fenced_request_waits_for_the_responses_to_earlier_ones() {
    use Operation::{ReadRequest, ReadResponseOnly, WriteOnly};
    for (fence, order) in [
        (Fence::None, [ReadRequest, WriteOnly, ReadResponseOnly]),
        (Fence::Responses, [ReadRequest, ReadResponseOnly, WriteOnly]),
    ] {
        let mut pair = Pair::rc();
        pair.post(0, Action::Read, FROM, TO, 8);
        let (action, remote) = (WRITE, (TO, KEY));
        pair.post_request(0, Request { action, signaled: true, remote, fence, ..Request::default() });
        let mut operations = Vec::new();
        pair.settle(|packets| operations.extend(packets.iter().map(|packet| packet.operation)));
        operations.retain(|operation| *operation != Operation::Acknowledge);
        assert_eq!(operations, order);
    }
}

#[test]
fn rnr_nak_follows_the_responses_to_earlier_requests() {
    let mut pair = Pair::rc();
    pair.change(0, |attributes| attributes.rnr_retry = 0);
    // An answer refills the retries.
    pair.post(0, WRITE, FROM, TO, 8);
    pair.settle(|_| {});
    pair.post(0, Action::Read, FROM, TO, 3000);
    pair.post(0, SEND, FROM, 0, 8);
    let mut sent = 0;
    pair.settle(|packets| {
        sent += packets.iter().filter(|packet| packet.operation == Operation::SendOnly).count();
    });
    let failed = Completion::Send(2, Err(Status::RnrRetriesExceeded));
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(())), Completion::Send(1, Ok(())), failed]);
    assert_eq!(sent, 1, "the timeout of the ACK has not expired");
}

#[test]
fn timers_that_were_brought_forward_do_not_add_up() {
    let mut pair = Pair::rc();
    // The delay after an RNR NAK ends long before the ACK timeout. 7 retries are unlimited.
    pair.change(0, |attributes| (attributes.ack_timeout, attributes.rnr_retry) = (25, 7));
    pair.post(0, SEND, FROM, 0, 8);
    let naks = Cell::new(0);
    let count = |packets: &mut Vec<Packet>| {
        naks.set(naks.get() + packets.iter().filter(|packet| packet.headers.acknowledge.is_some()).count());
    };
    pair.settle_until(count, || naks.get() > 200);
    let scheduler = format!("{:?}", pair.sides[0].qps);
    assert!((1..=66).any(|timers| scheduler.contains(&format!("timers: {timers},"))), "{scheduler}");
}

#[test]
fn unreliable_message_beyond_the_window_drains() {
    let mut pair = Pair::new(Service::Connected(Transport::Uc));
    // 256 packets.
    pair.post(0, WRITE, 0, 0, 0x1_0000);
    let Side { device, qps, qp } = &mut pair.sides[0];
    assert!(qps.run(device));
    let attributes = qps.get(*qp).unwrap().attributes.clone();
    assert!(qps.modify(device, *qp, State::SendQueueDrained, attributes));
    pair.settle(|_| {});
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(()))]);
    assert_eq!(pair.sides[0].device.events, [Event::SendQueueDrained]);
}

/// Sends two messages of `length` bytes over UC with their packets in this order, and returns the receives
/// that have a message, with its number.
fn received_over_uc(length: u32, order: &[usize]) -> Vec<(u64, u32)> {
    let mut pair = Pair::new(Service::Connected(Transport::Uc));
    for message in 0..2 {
        let from = FROM + 0x1000 * u64::from(message);
        pair.write(0, from as usize, &pattern(length, message));
        pair.post(0, SEND, from, 0, length);
    }
    for receive in 0..4 {
        pair.post_receive(1, receive, TO + 0x1000 * receive, length);
    }
    pair.settle(|packets| {
        if !packets.is_empty() {
            *packets = order.iter().map(|&at| packets[at].clone()).collect();
        }
    });
    let completions = pair.take_completions(1);
    let received = completions.iter().map(|completion| match completion {
        Completion::Receive(receive, Ok((_, received))) if *received == length => {
            let bytes = pair.read(1, (TO + 0x1000 * receive) as usize, length as usize);
            let number = (0..2).find(|&message| bytes == pattern(length, message));
            (*receive, number.expect("a message that was sent"))
        }
        other => panic!("{other:?}"),
    });
    received.collect()
}

#[test]
fn uc_message_begins_at_any_psn() {
    let both = [(0, 0), (1, 1)];
    for (order, received) in [
        (&[0, 1][..], &both[..]),
        (&[1], &[(0, 1)]),
        (&[1, 0], &[(0, 1), (1, 0)]),
        (&[0, 1, 0], &[(0, 0), (1, 1), (2, 0)]),
        (&[0, 0, 1], &[(0, 0), (1, 0), (2, 1)]),
    ] {
        assert_eq!(received_over_uc(256, order), received, "{order:?}");
    }
    for order in [&[0, 1, 2, 3, 4, 5][..], &[0, 0, 1, 2, 3, 4, 5], &[0, 1, 2, 2, 3, 4, 5]] {
        assert_eq!(received_over_uc(700, order), both, "{order:?}");
    }
}

#[test]
fn uc_message_whose_packets_are_not_consecutive_is_dropped_and_its_receive_used_again() {
    for order in [
        &[1, 2, 3, 4, 5][..],
        &[0, 2, 3, 4, 5],
        &[0, 1, 3, 4, 5],
        &[0, 1, 1, 2, 3, 4, 5],
        &[0, 2, 1, 3, 4, 5],
        &[1, 0, 2, 3, 4, 5],
    ] {
        assert_eq!(received_over_uc(700, order), [(0, 1)], "{order:?}");
    }
    assert_eq!(received_over_uc(700, &[0, 1, 3, 2, 4, 5]), []);
}

#[test]
fn packets_after_an_rnr_nak_are_dropped_without_a_nak() {
    let mut pair = Pair::rc();
    pair.change(0, |attributes| attributes.rnr_retry = 2);
    // An answer refills the retries.
    pair.post(0, WRITE, FROM, TO, 8);
    pair.settle(|_| {});
    pair.post(0, SEND, FROM, 0, 8);
    pair.post(0, SEND, FROM, 0, 8);
    let mut naks = Vec::new();
    pair.settle(|packets| {
        naks.extend(packets.iter().filter_map(|packet| packet.headers.acknowledge).map(|nak| nak.syndrome));
    });
    // RNR, with the timer code of the responder.
    assert_eq!(naks, [0x21; 3]);
}

#[test]
fn number_of_queued_responses_is_limited() {
    let mut pair = Pair::rc();
    pair.post_request(0, flush_of(8, Flush { placement: Flush::GLOBAL, whole_key: false }));
    // A peer that does not limit its requests.
    pair.settle(|packets| {
        if let [packet] = &packets[..]
            && packet.operation == Operation::Flush
        {
            let packet = packet.clone();
            packets.extend(
                (1..=200).map(|ahead| Packet { psn: (packet.psn + ahead) & 0xff_ffff, ..packet.clone() }),
            );
        }
    });
    assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(()))]);
    assert_eq!(pair.sides[1].device.flushes.take().len(), 128);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_operation_executes_once_and_in_order_over_a_faulty_wire(
        seed: u64,
        operations in proptest::collection::vec((0u8..5, 1u32..1500), 1..20),
    ) {
        let mut pair = Pair::rc();
        let mut injector = FaultInjector::new(seed);
        for fault in [Fault::drop(), Fault::duplicate(), Fault::reorder()] {
            injector.inject(fault.probability(0.05));
        }
        pair.write(0, FROM as usize, &pattern(1500, 3));
        let mut adds = 0;
        for (index, &(kind, length)) in operations.iter().enumerate() {
            match kind {
                0 => {
                    pair.post_receive(1, index as u64, TO, 1500);
                    pair.post(0, SEND, FROM, 0, length);
                }
                1 => pair.post(0, Action::Write { immediate: false }, FROM, TO, length),
                2 => pair.post(0, Action::Read, 0x4000, TO, length),
                3 => pair.post(0, Action::AtomicWrite, FROM, 0x6000, 8),
                _ => {
                    let mut add = Request {
                        action: Action::Atomic { add: true, masks: None },
                        signaled: true,
                        remote: (0, KEY),
                        swap_or_add: 1,
                        length: 8,
                        ..Request::default()
                    };
                    add.segments.push(bareverbs_transport::Segment::Memory(bareverbs_transport::Sge {
                        key: KEY, address: 0x4000, length: 8,
                    }));
                    pair.post_request(0, add);
                    adds += 1;
                }
            }
        }
        pair.settle(|packets| injector.pass(packets, &mut Vec::<(Duration, _)>::new()));
        let done: Vec<_> = (0..operations.len()).map(|index| Completion::Send(index, Ok(()))).collect();
        prop_assert_eq!(pair.take_completions(0), done);
        let received: Vec<_> = pair.take_completions(1).into_iter().map(|completion| match completion {
            Completion::Receive(wqe, Ok((_, length))) => (wqe, length),
            other => panic!("{other:?}"),
        }).collect();
        let sent: Vec<_> = operations.iter().enumerate()
            .filter(|(_, (kind, _))| *kind == 0)
            .map(|(index, (_, length))| (index as u64, *length))
            .collect();
        prop_assert_eq!(received, sent);
        prop_assert_eq!(pair.read(1, 0, 8), u64::to_le_bytes(adds));
    }
}
