//! Packet pacing.

use super::qp_pair::{DATA, Pair, data, remote};
use crate::engine::Rate;
use crate::engine::packet::Transport;
use crate::engine::wqe::opcode;

const FROM: u64 = DATA + 0x100;
const TO: u64 = DATA + 0x4_0000;
/// A kilobyte per millisecond.
const KILOBITS: u32 = 8000;
const MESSAGE: u32 = 1000;
const MILLISECOND: u64 = 1_000_000;

/// The time that four messages of a kilobyte take.
fn time(rate: Option<Rate>) -> u64 {
    let mut pair = Pair::new(Transport::Uc);
    pair.engine.set_rate(pair.qps[0], rate).unwrap();
    let begin = pair.now;
    for _ in 0..4 {
        let key = pair.key;
        pair.post(0, opcode::WRITE, 0, &[remote(key, TO), data(key, FROM, MESSAGE)].concat());
    }
    pair.settle(|packets| packets);
    assert_eq!(pair.poll().iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), [0; 4]);
    pair.now - begin
}

#[test]
fn sends_keep_to_their_rate() {
    assert!(time(None) < MILLISECOND);
    let taken = time(Some(Rate { kilobits: KILOBITS, burst: 0 }));
    assert!((3 * MILLISECOND..=5 * MILLISECOND).contains(&taken), "{taken} ns");
    let taken = time(Some(Rate { kilobits: KILOBITS / 4, burst: 0 }));
    assert!((12 * MILLISECOND..=17 * MILLISECOND).contains(&taken), "{taken} ns");
}

#[test]
fn burst_is_sent_ahead_of_the_rate() {
    let taken = time(Some(Rate { kilobits: KILOBITS, burst: 4 * MESSAGE }));
    assert!(taken < MILLISECOND, "{taken} ns");
    let taken = time(Some(Rate { kilobits: KILOBITS, burst: 2 * MESSAGE }));
    assert!((MILLISECOND..=3 * MILLISECOND).contains(&taken), "{taken} ns");
}
