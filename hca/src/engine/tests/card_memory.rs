//! Keys that lead to the card's own memory.

use super::bench_pair::{DATA, Pair, data, remote};
use crate::engine::mkey::{ANY_QP, Mkey, Mode};
use crate::engine::packet::Transport;
use crate::engine::wqe::opcode;
use crate::engine::{Refused, State};
use crate::memory::CARD_START;

const RIGHTS: u8 = 0x1f;

fn key(start: u64, length: u64) -> Mkey {
    Mkey {
        variant: 5,
        free: false,
        mode: Mode::OnCard,
        access: RIGHTS,
        pd: 1,
        qp: ANY_QP,
        start,
        length,
        unbounded: false,
        log_page: 0,
        remote_invalidate: false,
        umr: false,
        capacity: 0,
        translation: Vec::new(),
    }
}

#[test]
fn writes_reads_and_atomics_reach_the_cards_memory_counted_from_the_key() {
    let mut pair = Pair::new(Transport::Rc);
    let at = pair.engine.memory().card_mut().allocate((CARD_START, 0x1000), 128, 64).unwrap();
    let on_card = pair.engine.create_mkey(key(at + 64, 64)).unwrap() << 8 | 5;
    let key = pair.key;
    pair.write(DATA, &7u64.to_le_bytes());
    pair.post(0, opcode::WRITE, 0, &[remote(on_card, 8), data(key, DATA, 8)].concat());
    let operands = [5u64.to_be_bytes(), 0u64.to_be_bytes()].concat();
    pair.post(0, opcode::FETCH_ADD, 0, &[remote(on_card, 8), operands, data(key, DATA + 8, 8)].concat());
    pair.post(0, opcode::READ, 0, &[remote(on_card, 8), data(key, DATA + 16, 8)].concat());
    pair.settle(|packets| packets);
    assert_eq!(pair.poll().iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), [0; 3]);
    assert_eq!(pair.read(DATA + 8, 16), [7u64.to_le_bytes(), 12u64.to_le_bytes()].concat());
    let mut bytes = [0; 8];
    pair.engine.memory().card().read(at + 72, &mut bytes).unwrap();
    assert_eq!(bytes, 12u64.to_le_bytes());
}

#[test]
fn a_key_beyond_what_was_allocated_is_refused_and_one_outlives_nothing() {
    let mut pair = Pair::new(Transport::Rc);
    assert_eq!(pair.engine.create_mkey(key(CARD_START, 64)), Err(Refused::Missing));
    let at = pair.engine.memory().card_mut().allocate((CARD_START, 0x1000), 64, 64).unwrap();
    assert_eq!(pair.engine.create_mkey(key(at, 65)), Err(Refused::Missing));
    let on_card = pair.engine.create_mkey(key(at, 64)).unwrap() << 8 | 5;
    assert!(pair.engine.uses_card_memory(at, 64));
    assert!(pair.engine.memory().card_mut().free(at, 64));
    let key = pair.key;
    pair.post(0, opcode::WRITE, 0, &[remote(on_card, 0), data(key, DATA, 8)].concat());
    pair.settle(|packets| packets);
    assert_eq!(pair.engine.qp_attributes(pair.qps[0]).unwrap().0, State::Error);
}
