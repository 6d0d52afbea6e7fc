//! Contents of CQEs beyond their common fields.

use super::qp_pair::{DATA, Pair, data, remote};
use crate::engine::packet::Transport;
use crate::engine::wqe::opcode;
use crate::engine::{EngineError, QpSetup};

const FROM: u64 = DATA + 0x1000;
const TO: u64 = DATA + 0x2000;
const RECEIVE: u8 = 2;

/// The inline message of a CQE, and the CQE format.
fn inside(entry: &[u8], length: usize) -> (u8, Vec<u8>) {
    let format = entry[entry.len() - 1] >> 2 & 3;
    let from = if format == 1 { entry.len() - 64 } else { 0 };
    (format, entry[from..from + length].to_vec())
}

fn inline(bytes: u8) -> impl Fn(&mut QpSetup) {
    move |setup| (setup.inline_responses, setup.inline_receives) = (bytes, bytes)
}

#[test]
fn short_receive_is_scattered_to_cqe() {
    for (wide, limit, expected) in [(false, 32, 1), (true, 32, 1), (true, 64, 2)] {
        let mut pair = Pair::with(Transport::Rc, |cq| cq.wide = wide, inline(limit));
        let (key, length) = (pair.key, usize::from(limit));
        let bytes: Vec<u8> = (1..=limit).collect();
        pair.write(FROM, &bytes);
        pair.post_receive(1, TO, 128);
        pair.post(0, opcode::SEND, 0, &data(key, FROM, u32::from(limit)));
        pair.settle(|packets| packets);
        assert_eq!(pair.poll().iter().filter(|cqe| cqe.opcode == RECEIVE).count(), 1);
        // The receiver's CQE comes first.
        let entry = pair.entry(0);
        let expected = if limit == 64 { 2 } else { expected };
        assert_eq!(inside(&entry, length), (expected, bytes));
        assert_eq!(pair.read(TO, length), vec![0; length]);
    }
}

#[test]
fn long_message_is_not_scattered_to_cqe() {
    let mut pair = Pair::with(Transport::Rc, |_| {}, inline(32));
    let key = pair.key;
    pair.write(FROM, &[7; 33]);
    pair.post_receive(1, TO, 128);
    pair.post(0, opcode::SEND, 0, &data(key, FROM, 33));
    pair.settle(|packets| packets);
    assert_eq!(pair.entry(0)[63] >> 2 & 3, 0);
    assert_eq!(pair.read(TO, 33), [7; 33]);
}

#[test]
fn scatter_to_cqe_still_checks_receive_length() {
    let mut pair = Pair::with(Transport::Rc, |_| {}, inline(32));
    let key = pair.key;
    pair.post_receive(1, TO, 8);
    pair.post(0, opcode::SEND, 0, &data(key, FROM, 9));
    pair.settle(|packets| packets);
    let mut syndromes: Vec<_> = pair.poll().iter().map(|cqe| cqe.syndrome).collect();
    syndromes.sort_unstable();
    assert_eq!(syndromes, [0x01, 0x12]);
}

#[test]
fn short_read_responses_scatter_to_requester_cqe() {
    let mut pair = Pair::with(Transport::Rc, |_| {}, inline(32));
    let key = pair.key;
    pair.write(TO, &[9; 32]);
    pair.post(0, opcode::READ, 0, &[remote(key, TO), data(key, FROM, 32)].concat());
    pair.settle(|packets| packets);
    assert_eq!(inside(&pair.entry(0), 32), (1, vec![9; 32]));
    assert_eq!(pair.read(FROM, 32), [0; 32]);

    let operands = [0; 16];
    let add = [remote(key, TO), operands.to_vec(), data(key, FROM, 8)].concat();
    pair.post(0, opcode::FETCH_ADD, 0, &add);
    pair.settle(|packets| packets);
    assert_eq!(inside(&pair.entry(1), 8), (1, vec![9; 8]));

    // Without a CQE there is no scatter to CQE: the data goes to memory.
    pair.post_flagged(0, opcode::READ, 0, &[remote(key, TO), data(key, FROM, 32)].concat());
    pair.settle(|packets| packets);
    assert_eq!(pair.read(FROM, 32), [9; 32]);
}

#[test]
fn scatter_of_64_bytes_requires_128_byte_cqes() {
    let mut pair = Pair::new(Transport::Rc);
    let mut setup = pair.engine.qp_setup(pair.qps[0]).unwrap().clone();
    setup.inline_receives = 64;
    assert_eq!(pair.engine.create_qp(setup, Default::default()), Err(EngineError::Invalid));
}
