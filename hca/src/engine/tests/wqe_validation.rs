//! WQE validation: required fields and reserved bits of the control segment.

use super::qp_pair::{DATA, Pair, data, remote};
use crate::engine::State;
use crate::engine::packet::Transport;
use crate::engine::wqe::opcode;

const OPERATION: u8 = 0x02;

/// The syndromes after a modified WRITE.
fn corrupted_wqe(corrupt: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut pair = Pair::new(Transport::Rc);
    let key = pair.key;
    let body = [remote(key, DATA), data(key, DATA + 64, 8)].concat();
    let mut wqe = pair.wqe(0, opcode::WRITE, 0, &body);
    corrupt(&mut wqe);
    pair.post_raw(0, &wqe);
    pair.settle(|packets| packets);
    let failed = pair.engine.qp_attributes(pair.qps[0]).unwrap().0 == State::Error;
    let syndromes: Vec<_> = pair.poll().iter().map(|cqe| cqe.syndrome).collect();
    assert_eq!(failed, syndromes != [0]);
    syndromes
}

#[test]
fn valid_wqe_is_executed() {
    assert_eq!(corrupted_wqe(|_| {}), [0]);
}

#[test]
fn control_segment_must_match_index_and_qpn() {
    assert_eq!(corrupted_wqe(|wqe| wqe[2] ^= 1), [OPERATION], "the index");
    assert_eq!(corrupted_wqe(|wqe| wqe[6] ^= 1), [OPERATION], "the queue pair");
}

#[test]
fn reserved_bits_must_be_zero() {
    for (byte, bit) in [(0, 1), (7, 0x40), (7, 0x80), (11, 0x01), (11, 0x10), (28, 1), (31, 1)] {
        assert_eq!(corrupted_wqe(|wqe| wqe[byte] |= bit), [OPERATION], "byte {byte}, bit {bit:#x}");
    }
    for fence in 5..8 {
        assert_eq!(corrupted_wqe(|wqe| wqe[11] |= fence << 5), [OPERATION], "fence {fence}");
    }
}

#[test]
fn inline_length_field_has_ten_bits() {
    let inline =
        |head: u32| corrupted_wqe(|wqe| wqe[32..36].copy_from_slice(&(0x8000_0000 | head).to_be_bytes()));
    assert_eq!(inline(8), [0]);
    assert_eq!(inline(8 | 1 << 10), [OPERATION]);
    assert_eq!(inline(8 | 1 << 30), [OPERATION]);
}

#[test]
fn unknown_opcode_and_excess_ds_are_rejected() {
    assert_eq!(corrupted_wqe(|wqe| wqe[3] = 0x3e), [OPERATION]);
    assert_eq!(corrupted_wqe(|wqe| wqe[7] = 63), [OPERATION], "more than was posted");
    assert_eq!(corrupted_wqe(|wqe| wqe[7] = 0), [OPERATION]);
}
