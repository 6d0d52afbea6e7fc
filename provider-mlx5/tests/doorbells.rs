//! Doorbell records and registers in host memory.

use std::sync::Arc;

use bareverbs_mlx5::doorbell::{BlueFlame, DoorbellRecord, DoorbellRecords, SendRegister, Uar, Word};
use proptest::prelude::*;

/// Doorbell records per page, of 64 bytes each.
const RECORDS: usize = 64;

#[test]
fn doorbell_records_are_freed_one_by_one() {
    let pool = DoorbellRecords::default();
    let mut taken: Vec<_> = (0..2 * RECORDS).map(|_| pool.take().expect("memory")).collect();
    for which in 0..taken.len() {
        let address = taken[which].address();
        assert!(address.is_multiple_of(64), "a cache line of its own");
        taken[which].set(Word::First, 1);
        taken[which].set(Word::Second, 2);
        // All other records are in use, so only this one is free.
        drop(taken.swap_remove(which));
        let again = pool.take().expect("memory");
        assert_eq!(again.address(), address, "record {which}");
        assert_eq!((again.get(Word::First), again.get(Word::Second)), (0, 0), "a new record is zero");
        taken.push(again);
        let last = taken.len() - 1;
        taken.swap(which, last);
    }
}

#[test]
fn doorbell_record_words_are_independent() {
    let pool = DoorbellRecords::default();
    let taken: Vec<_> = (0..RECORDS).map(|_| pool.take().expect("memory")).collect();
    for (number, record) in (1..).zip(&taken) {
        record.set(Word::First, number);
        record.set(Word::Second, number << 8);
    }
    for (number, record) in (1..).zip(&taken) {
        assert_eq!((record.get(Word::First), record.get(Word::Second)), (number, number << 8));
    }
}

proptest! {
    #[test]
    fn doorbell_records_in_use_are_distinct(
        steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..400),
    ) {
        let pool = DoorbellRecords::default();
        let mut taken: Vec<DoorbellRecord> = Vec::new();
        for (take, which) in steps {
            if take || taken.is_empty() {
                taken.push(pool.take().expect("memory"));
            } else {
                drop(taken.swap_remove(which.index(taken.len())));
            }
            let mut addresses: Vec<_> = taken.iter().map(DoorbellRecord::address).collect();
            addresses.sort_unstable();
            addresses.dedup();
            prop_assert_eq!(addresses.len(), taken.len());
        }
    }
}

#[test]
fn dedicated_uar_is_exclusive_until_released() {
    let uar = Arc::new(Uar::plain().expect("memory"));
    let register = SendRegister::Shared(Arc::clone(&uar));
    assert!(!register.is_own());
    assert_eq!((uar.page_id(), register.page_id()), (0, 0), "plain memory has no number");
    drop(uar);
    assert!(register.is_own());
    let own = BlueFlame::new(Uar::plain().expect("memory"), 512).expect("room");
    assert_eq!(own.room(), 256);
    let own = SendRegister::Exclusive(own);
    assert!(own.is_own());
    assert_eq!(own.page_id(), 0);
}

#[test]
fn blueflame_room_is_whole_blocks_up_to_512_bytes() {
    for (size, room) in
        [(128, 64), (255, 64), (256, 128), (1000, 448), (1024, 512), (4096, 512), (u32::MAX, 512)]
    {
        let register = BlueFlame::new(Uar::plain().expect("memory"), size).expect("room");
        assert_eq!(register.room(), room, "{size}");
    }
    for size in [0, 1, 64, 127] {
        assert!(BlueFlame::new(Uar::plain().expect("memory"), size).is_err(), "{size}");
    }
}
