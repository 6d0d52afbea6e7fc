//! Ordering: fences and SQD.

use super::qp_pair::{DATA, Pair, data, remote};
use crate::engine::packet::{Operation, Transport};
use crate::engine::wqe::opcode;
use crate::engine::{EventKind, Packet, State};

const FROM: u64 = DATA + 0x1000;
const TO: u64 = DATA + 0x2000;
const SIGNALED: u8 = 0x08;

/// The operations that are sent before any response arrives.
fn leaving(pair: &mut Pair) -> Vec<Operation> {
    pair.engine.run(pair.now);
    outgoing(pair).iter().map(|packet| packet.operation).collect()
}

fn outgoing(pair: &mut Pair) -> Vec<Packet> {
    let (mut packets, mut frames) = (Vec::new(), Vec::new());
    pair.engine.take_outgoing(&mut packets, &mut frames);
    packets
}

/// The operations sent by a READ, a WRITE and a WRITE with this fence.
fn fenced(mode: u8) -> Vec<Operation> {
    let mut pair = Pair::new(Transport::Rc);
    let key = pair.key;
    pair.post(0, opcode::READ, 0, &[remote(key, TO), data(key, FROM, 8)].concat());
    let write = [remote(key, TO), data(key, FROM, 8)].concat();
    pair.post(0, opcode::WRITE, 0, &write);
    pair.post_flagged(0, opcode::WRITE, SIGNALED | mode << 5, &write);
    let left = leaving(&mut pair);
    pair.settle(|packets| packets);
    left
}

#[test]
fn fence_modes_wait_for_their_operations() {
    use Operation::{ReadRequest, WriteOnly};
    assert_eq!(fenced(0), [ReadRequest, WriteOnly, WriteOnly]);
    assert_eq!(fenced(1), [ReadRequest, WriteOnly, WriteOnly], "no key update is under way");
    for waits_for_reads in [2, 4] {
        assert_eq!(fenced(waits_for_reads), [ReadRequest, WriteOnly]);
    }
    assert_eq!(fenced(3), [ReadRequest, WriteOnly]);
}

#[test]
fn strong_ordering_fence_waits_for_writes() {
    for (mode, expected) in [(2, 2), (3, 1)] {
        let mut pair = Pair::new(Transport::Rc);
        let key = pair.key;
        let write = [remote(key, TO), data(key, FROM, 8)].concat();
        pair.post(0, opcode::WRITE, 0, &write);
        pair.post_flagged(0, opcode::WRITE, SIGNALED | mode << 5, &write);
        assert_eq!(leaving(&mut pair).len(), expected, "mode {mode}");
    }
}

#[test]
fn fenced_requests_make_progress() {
    for mode in 0..5 {
        let mut pair = Pair::new(Transport::Rc);
        let key = pair.key;
        for _ in 0..10 {
            let body = [remote(key, TO), data(key, FROM, 8)].concat();
            pair.post_flagged(0, opcode::READ, SIGNALED | mode << 5, &body);
        }
        pair.settle(|packets| packets);
        assert_eq!(pair.poll().iter().filter(|cqe| cqe.syndrome == 0).count(), 10, "mode {mode}");
    }
}

#[test]
fn sqd_completes_started_wqes_and_raises_event() {
    let mut pair = Pair::new(Transport::Rc);
    let key = pair.key;
    let write = [remote(key, TO), data(key, FROM, 200_000)].concat();
    pair.post(0, opcode::WRITE, 0, &write);
    pair.engine.run(pair.now);
    let first = outgoing(&mut pair);
    assert!(!first.is_empty());
    let attributes = pair.engine.qp_attributes(pair.qps[0]).unwrap().1.clone();
    pair.engine.modify_qp(pair.qps[0], State::SendQueueDrained, attributes.clone()).unwrap();
    pair.post(0, opcode::WRITE, 0, &[remote(key, TO), data(key, FROM, 8)].concat());
    assert!(!pair.events().contains(&(EventKind::SendQueueDrained as u8)));

    for packet in first {
        pair.engine.receive(packet);
    }
    pair.settle(|packets| packets);
    assert_eq!(pair.poll().len(), 1, "only what had begun");
    let drained = |pair: &mut Pair| {
        pair.events().iter().filter(|kind| **kind == EventKind::SendQueueDrained as u8).count()
    };
    assert_eq!(drained(&mut pair), 1);
    pair.engine.modify_qp(pair.qps[0], State::ReadyToSend, attributes).unwrap();
    pair.settle(|packets| packets);
    assert_eq!(pair.poll().len(), 1, "the rest");
    assert_eq!(drained(&mut pair), 1);
}
