//! Data transfer on reliable and faulty wires.

use proptest::prelude::*;

use super::qp_pair::{Cqe, DATA, Pair, data, remote};
use crate::engine::packet::Transport;
use crate::engine::wqe::opcode;
use crate::engine::{Packet, State};

const FROM: u64 = DATA + 0x1000;
const TO: u64 = DATA + 0x8_0000;

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn good(packets: Vec<Packet>) -> Vec<Packet> {
    packets
}

#[test]
fn send_fills_receive_and_completes_on_both_sides() {
    for transport in [Transport::Rc, Transport::Uc] {
        for length in [0usize, 1, 1024, 1025, 5000] {
            let mut pair = Pair::new(transport);
            let bytes = pattern(length, 7);
            pair.write(FROM, &bytes);
            pair.post_receive(1, TO, 8192);
            let segment = if length > 0 { data(pair.key, FROM, length as u32) } else { Vec::new() };
            pair.post(0, opcode::SEND_IMMEDIATE, 0xabcd, &segment);
            pair.settle(good);
            assert_eq!(pair.read(TO, length), bytes);
            let completions = pair.poll();
            assert_eq!(completions.len(), 2, "{transport:?} {length}");
            let receive = completions.iter().find(|cqe| cqe.qp == pair.qps[1]).unwrap();
            assert_eq!((receive.opcode, receive.bytes, receive.immediate), (3, length as u32, 0xabcd));
        }
    }
}

#[test]
fn writes_reads_and_atomics_reach_remote_memory() {
    let mut pair = Pair::new(Transport::Rc);
    let bytes = pattern(3000, 1);
    pair.write(FROM, &bytes);
    let key = pair.key;
    pair.post(0, opcode::WRITE, 0, &[remote(key, TO), data(key, FROM, 3000)].concat());
    pair.settle(good);
    assert_eq!(pair.read(TO, 3000), bytes);

    pair.post(0, opcode::READ, 0, &[remote(key, TO), data(key, FROM + 0x4000, 3000)].concat());
    pair.settle(good);
    assert_eq!(pair.read(FROM + 0x4000, 3000), bytes);

    pair.write(TO, &5u64.to_le_bytes());
    let operands = [7u64.to_be_bytes(), 0u64.to_be_bytes()].concat();
    pair.post(0, opcode::FETCH_ADD, 0, &[remote(key, TO), operands, data(key, FROM, 8)].concat());
    pair.settle(good);
    let operands = [99u64.to_be_bytes(), 12u64.to_be_bytes()].concat();
    pair.post(0, opcode::COMPARE_SWAP, 0, &[remote(key, TO), operands, data(key, FROM + 8, 8)].concat());
    pair.settle(good);
    assert_eq!(pair.read(FROM, 16), [5u64.to_le_bytes(), 12u64.to_le_bytes()].concat());
    assert_eq!(pair.read(TO, 8), 99u64.to_le_bytes());
    assert_eq!(pair.poll().iter().map(|cqe| cqe.opcode).collect::<Vec<_>>(), [0; 4]);
}

#[test]
fn earlier_requests_are_answered_before_nak() {
    const NOBODYS: u32 = 0xdead_be00;
    let bytes = pattern(3000, 9);
    for too_long in [true, false] {
        let mut pair = Pair::new(Transport::Rc);
        let key = pair.key;
        pair.write(TO, &bytes);
        pair.post_receive(1, TO + 0x4000, 8);
        pair.post(0, opcode::READ, 0, &[remote(key, TO), data(key, FROM, 3000)].concat());
        if too_long {
            pair.post(0, opcode::SEND, 0, &data(key, FROM, 64));
        } else {
            pair.post(0, opcode::WRITE, 0, &[remote(NOBODYS, TO), data(key, FROM, 64)].concat());
        }
        pair.post(0, opcode::READ, 0, &[remote(key, TO), data(key, FROM, 8)].concat());
        pair.settle(good);
        assert_eq!(pair.read(FROM, 3000), bytes);
        let of = |completions: &[Cqe], end: u32| {
            syndromes(&completions.iter().filter(|cqe| cqe.qp == end).copied().collect::<Vec<_>>())
        };
        let completions = pair.poll();
        let (refused, receive) = if too_long { (0x12, 0x01) } else { (0x13, 0x05) };
        assert_eq!(of(&completions, pair.qps[0]), [0, refused, 0x05]);
        assert_eq!(of(&completions, pair.qps[1]), [receive]);
    }
}

#[test]
fn send_retries_after_rnr_nak() {
    let mut pair = Pair::new(Transport::Rc);
    let key = pair.key;
    pair.post(0, opcode::SEND, 0, &data(key, FROM, 16));
    let mut turns = 0;
    let mut posted = false;
    for _ in 0..50 {
        pair.engine.run(pair.now);
        let (mut packets, mut frames) = (Vec::new(), Vec::new());
        pair.engine.take_outgoing(&mut packets, &mut frames);
        turns += packets.len();
        for packet in packets {
            pair.engine.receive(packet);
        }
        if turns > 6 && !posted {
            pair.post_receive(1, TO, 16);
            posted = true;
        }
        pair.now += 20_000;
    }
    assert_eq!(pair.poll().len(), 2);
}

#[test]
fn rnr_retry_zero_fails_without_receive() {
    let mut pair = Pair::new(Transport::Rc);
    pair.connect(|attributes| attributes.rnr_retry = 1);
    let key = pair.key;
    pair.post(0, opcode::SEND, 0, &data(key, FROM, 16));
    pair.post(0, opcode::SEND, 0, &data(key, FROM, 16));
    pair.settle(good);
    assert_eq!(syndromes(&pair.poll()), [0x16, 0x05]);
}

fn syndromes(completions: &[Cqe]) -> Vec<u8> {
    completions.iter().map(|cqe| cqe.syndrome).collect()
}

#[test]
fn unreachable_peer_exhausts_retries_and_flushes() {
    let mut pair = Pair::new(Transport::Rc);
    let key = pair.key;
    for _ in 0..3 {
        pair.post(0, opcode::SEND, 0, &data(key, FROM, 16));
    }
    let mut tries = 0;
    pair.settle(|packets| {
        tries += packets.iter().filter(|packet| packet.psn == 0xff_fff0).count();
        Vec::new()
    });
    assert_eq!(syndromes(&pair.poll()), [0x15, 0x05, 0x05]);
    assert_eq!(tries, 8);
    assert_eq!(pair.engine.qp_attributes(pair.qps[0]).unwrap().0, State::Error);
}

#[test]
fn rejected_write_moves_both_sides_to_error() {
    let mut pair = Pair::new(Transport::Rc);
    let key = pair.key;
    pair.post_receive(1, TO, 64);
    pair.post(0, opcode::WRITE, 0, &[remote(key + 1, TO), data(key, FROM, 64)].concat());
    pair.settle(good);
    let completions = pair.poll();
    let of = |qp| completions.iter().filter(|cqe| cqe.qp == qp).map(|cqe| cqe.syndrome).collect::<Vec<_>>();
    assert_eq!(of(pair.qps[0]), [0x13]);
    assert_eq!(of(pair.qps[1]), [0x05]);
    for qp in pair.qps {
        assert_eq!(pair.engine.qp_attributes(qp).unwrap().0, State::Error);
    }
}

#[test]
fn short_receive_fails_both_sides() {
    let mut pair = Pair::new(Transport::Rc);
    let key = pair.key;
    pair.post_receive(1, TO, 8);
    pair.post(0, opcode::SEND, 0, &data(key, FROM, 64));
    pair.settle(good);
    let mut syndromes = syndromes(&pair.poll());
    syndromes.sort_unstable();
    assert_eq!(syndromes, [0x01, 0x12]);
}

#[test]
fn bad_lkey_fails_after_earlier_requests_complete() {
    let mut pair = Pair::new(Transport::Rc);
    let key = pair.key;
    pair.post(0, opcode::WRITE, 0, &[remote(key, TO), data(key, FROM, 64)].concat());
    pair.post(0, opcode::WRITE, 0, &[remote(key, TO), data(key + 1, FROM, 64)].concat());
    pair.post(0, opcode::NOP, 0, &[]);
    pair.settle(good);
    assert_eq!(syndromes(&pair.poll()), [0, 0x04, 0x05]);
}

#[test]
fn cq_overrun_moves_qps_to_error() {
    let mut pair = Pair::new(Transport::Rc);
    for _ in 0..6 {
        for _ in 0..60 {
            pair.post(0, opcode::NOP, 0, &[]);
        }
        pair.settle(good);
    }
    assert_eq!(pair.engine.cq_progress(pair.cq).unwrap(), (256, true));
    assert_eq!(pair.engine.qp_attributes(pair.qps[0]).unwrap().0, State::Error);
}

#[test]
fn armed_eq_interrupts_once() {
    let mut pair = Pair::new(Transport::Rc);
    pair.engine.eq_consumed(1, 0, true);
    let cq = pair.cq;
    pair.engine.arm_cq(cq, 0, false, 0);
    pair.post(0, opcode::NOP, 0, &[]);
    pair.post(0, opcode::NOP, 0, &[]);
    pair.settle(good);
    assert_eq!(pair.interrupts(), 1);
}

/// A wire that drops, duplicates and reorders packets by the given bytes. It drops or reorders
/// fewer packets than there are retries.
fn bad(fates: Vec<u8>) -> impl FnMut(Vec<Packet>) -> Vec<Packet> {
    let mut fates = fates.into_iter();
    let mut faults_left = 6;
    move |packets| {
        let mut arrived: Vec<Packet> = Vec::new();
        for packet in packets {
            match fates.next().unwrap_or(255) {
                0..40 if faults_left > 0 => faults_left -= 1,
                40..70 => arrived.extend([packet.clone(), packet]),
                70..100 if faults_left > 0 => {
                    faults_left -= 1;
                    arrived.insert(0, packet);
                }
                _ => arrived.push(packet),
            }
        }
        arrived
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn lossy_wire_delivers_exactly_once_in_order(
        fates in proptest::collection::vec(any::<u8>(), 0..60),
        kinds in proptest::collection::vec((0u8..4, 0u32..5000), 1..10),
    ) {
        let mut pair = Pair::new(Transport::Rc);
        let key = pair.key;
        let mut expected = Vec::new();
        let mut counter = 0u64;
        for (index, (kind, length)) in kinds.iter().enumerate() {
            let (from, to) = (FROM + index as u64 * 0x2000, TO + index as u64 * 0x2000);
            let bytes = pattern(*length as usize, index as u8);
            match kind {
                0 => {
                    pair.write(from, &bytes);
                    pair.post_receive(1, to, 5000);
                    pair.post(0, opcode::SEND, 0, &data(key, from, *length));
                    expected.push((to, bytes));
                }
                1 => {
                    pair.write(from, &bytes);
                    pair.post(0, opcode::WRITE, 0, &[remote(key, to), data(key, from, *length)].concat());
                    expected.push((to, bytes));
                }
                2 => {
                    pair.write(to, &bytes);
                    pair.post(0, opcode::READ, 0, &[remote(key, to), data(key, from, *length)].concat());
                    expected.push((from, bytes));
                }
                _ => {
                    let operands = [3u64.to_be_bytes(), 0u64.to_be_bytes()].concat();
                    pair.post(0, opcode::FETCH_ADD, 0, &[remote(key, DATA), operands, data(key, from, 8)].concat());
                    expected.push((from, counter.to_le_bytes().to_vec()));
                    counter += 3;
                }
            }
        }
        pair.settle(bad(fates));
        let completions = pair.poll();
        prop_assert!(completions.iter().all(|cqe| cqe.syndrome == 0), "{completions:?}");
        prop_assert_eq!(completions.iter().filter(|cqe| cqe.opcode == 0).count(), kinds.len());
        prop_assert_eq!(pair.read(DATA, 8), counter.to_le_bytes());
        for (at, bytes) in expected {
            prop_assert_eq!(pair.read(at, bytes.len()), bytes);
        }
    }
}
