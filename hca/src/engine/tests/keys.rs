//! UMRs on keys: translations by pages and by other keys; local and remote invalidation.

use super::qp_pair::{DATA, Pair, data, remote};
use crate::engine::packet::Transport;
use crate::engine::wqe::opcode;
use crate::engine::{KeyKind, State};

const FROM: u64 = DATA + 0x100;
const TO: u64 = DATA + 0x4_0000;
const PD: u32 = 1;

/// Mask bits of a UMR: length, start address, access rights, free.
const LENGTH: u64 = 1 << 0;
const START: u64 = 1 << 6;
const RIGHTS: u64 = 0x1f << 17;
const FREE: u64 = 1 << 29;
const INLINE: u8 = 0x80;
/// Presence bits of a page that can be read and written.
const PRESENT: u64 = 3;

/// The body of a UMR: mkey context and translation entries.
fn update(mask: u64, free: bool, start: u64, length: u64, translation: &[u64]) -> Vec<u8> {
    let mut body = vec![0; 48 + 64];
    body[0] = INLINE;
    let words = translation.len().next_multiple_of(8);
    body[4..6].copy_from_slice(&((words / 2) as u16).to_be_bytes());
    body[8..16].copy_from_slice(&mask.to_be_bytes());
    body[48] = if free { 0x40 } else { 0 };
    body[50] = 0x7c;
    body[64..72].copy_from_slice(&start.to_be_bytes());
    body[72..80].copy_from_slice(&length.to_be_bytes());
    body.extend(translation.iter().flat_map(|entry| entry.to_be_bytes()));
    body.resize(112 + words * 8, 0);
    body
}

/// A pair, and a key of this kind over 8 KiB at `TO` whose addresses start at `at`.
fn filled(kind: KeyKind, at: u64) -> (Pair, u32) {
    let mut pair = Pair::new(Transport::Rc);
    let key = pair.engine.create_mkey_free(PD, kind, 8).unwrap();
    let inner = u64::from(pair.key);
    let translation = match kind {
        KeyKind::Mtt => vec![TO | PRESENT, (TO + 0x1000) | PRESENT, 0, 0],
        KeyKind::Klm => vec![0x1000 << 32 | inner, TO, 0x1000 << 32 | inner, TO + 0x1000],
        KeyKind::Ksm => vec![inner, TO, inner, TO + 0x1000],
    };
    let mask = LENGTH | START | RIGHTS | FREE;
    pair.post(0, opcode::UMR, key, &update(mask, false, at, 0x2000, &translation));
    pair.settle(|packets| packets);
    assert_eq!(pair.poll().iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), [0], "{kind:?}");
    (pair, key)
}

const KINDS: [KeyKind; 3] = [KeyKind::Mtt, KeyKind::Klm, KeyKind::Ksm];

#[test]
fn umr_sets_key_translation() {
    const AT: u64 = 0x7000_0000;
    for kind in KINDS {
        let (mut pair, key) = filled(kind, AT);
        let bytes: Vec<u8> = (0..0x1800u32).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        pair.write(FROM, &bytes);
        let local = pair.key;
        pair.post(0, opcode::WRITE, 0, &[remote(key, AT + 0x400), data(local, FROM, 0x1800)].concat());
        pair.settle(|packets| packets);
        assert_eq!(pair.poll()[0].syndrome, 0, "{kind:?}");
        assert_eq!(pair.read(TO + 0x400, 0x1800), bytes, "{kind:?}");
    }
}

#[test]
fn umr_sets_the_relaxed_ordering_bits_that_its_mask_selects() {
    const WRITE: u64 = 1 << 25;
    const READ: u64 = 1 << 47;
    let (mut pair, key) = filled(KeyKind::Mtt, 0);
    let bits = |pair: &Pair| {
        let mkey = pair.engine.mkey(key >> 8).unwrap();
        (mkey.relaxed_ordering_write, mkey.relaxed_ordering_read)
    };
    assert_eq!(bits(&pair), (false, false));
    for (mask, expected) in [(WRITE, (true, false)), (READ, (true, true))] {
        let mut body = update(mask, false, 0, 0, &[]);
        body[49] = 0x04;
        body[107] = 0x40;
        pair.post(0, opcode::UMR, key, &body);
        pair.settle(|packets| packets);
        assert_eq!(pair.poll().iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), [0]);
        assert_eq!(bits(&pair), expected);
    }
}

#[test]
fn umr_sets_key_bounds() {
    for kind in KINDS {
        for (at, length) in [(0x7000_1fff, 2), (0x6fff_ffff, 1), (0x7000_2000, 1)] {
            let (mut pair, key) = filled(kind, 0x7000_0000);
            let local = pair.key;
            pair.post(0, opcode::WRITE, 0, &[remote(key, at), data(local, FROM, length)].concat());
            pair.settle(|packets| packets);
            assert_eq!(pair.poll()[0].syndrome, 0x13, "{kind:?} {at:#x}");
        }
    }
}

#[test]
fn invalidated_key_is_rejected_until_next_umr() {
    let (mut pair, key) = filled(KeyKind::Mtt, 0);
    pair.post(0, opcode::UMR, key, &update(FREE, true, 0, 0, &[]));
    pair.settle(|packets| packets);
    assert_eq!(pair.poll()[0].syndrome, 0);
    pair.post(0, opcode::UMR, key, &update(LENGTH | FREE, false, 0, 0x1000, &[]));
    let local = pair.key;
    pair.post(0, opcode::WRITE, 0, &[remote(key, 0x800), data(local, FROM, 8)].concat());
    // Strong ordering: the preceding WRITE has completed.
    let mut invalidation = pair.wqe(0, opcode::UMR, key, &update(FREE, true, 0, 0, &[]));
    invalidation[11] |= 3 << 5;
    pair.post_raw(0, &invalidation);
    pair.post(0, opcode::WRITE, 0, &[remote(key, 0x800), data(local, FROM, 8)].concat());
    pair.settle(|packets| packets);
    assert_eq!(pair.poll().iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), [0, 0, 0, 0x13]);
}

#[test]
fn remote_invalidate_requires_key_permission() {
    for (which, expected) in [(0u32, 0u8), (1, 0x13)] {
        let (mut pair, key) = filled(KeyKind::Mtt, 0);
        let local = pair.key;
        pair.post_receive(1, TO, 64);
        pair.post(0, opcode::SEND_INVALIDATE, key + which, &data(local, FROM, 8));
        pair.settle(|packets| packets);
        let qp = pair.qps[0];
        let cqe = *pair.poll().iter().find(|cqe| cqe.qp == qp).unwrap();
        assert_eq!(cqe.syndrome, expected);
        pair.connect(|_| {});
        pair.post(0, opcode::WRITE, 0, &[remote(key, 0), data(local, FROM, 8)].concat());
        pair.settle(|packets| packets);
        let syndrome = pair.poll().last().unwrap().syndrome;
        assert_eq!(syndrome, if which == 0 { 0x13 } else { 0 }, "the key is gone only if it was named");
    }
}

#[test]
fn unsupported_umr_is_rejected() {
    const SIGNATURE: u64 = 1 << 12;
    for (mask, number) in [(LENGTH | SIGNATURE, 0), (LENGTH, 0xff_ff00)] {
        let (mut pair, key) = filled(KeyKind::Mtt, 0);
        pair.post(0, opcode::UMR, key + number, &update(mask, false, 0, 0x1000, &[]));
        pair.settle(|packets| packets);
        assert_ne!(pair.poll()[0].syndrome, 0);
        assert_eq!(pair.engine.qp_attributes(pair.qps[0]).unwrap().0, State::Error);
    }
}
