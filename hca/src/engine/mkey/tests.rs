//! Access checks of memory keys.

use super::*;

const WHO: Accessor = Accessor { pd: 1, qp: 9, reserved_lkey: false, any_pd: false };

fn key(mode: AccessMode, start: u64, length: u64, translation: Vec<u64>) -> Mkey {
    Mkey {
        variant: 7,
        free: false,
        mode,
        access: access::LOCAL_READ,
        pd: 1,
        qp: ANY_QP,
        start,
        length,
        unbounded: false,
        log_page: 12,
        remote_invalidate: false,
        relaxed_ordering_write: false,
        relaxed_ordering_read: false,
        umr: true,
        capacity: 64,
        translation,
    }
}

fn pieces(keys: &Mkeys, key: u32, address: u64, length: u64) -> Result<Vec<Piece>, AccessError> {
    let mut pieces = Vec::new();
    walk(keys, WHO, key, address, length, access::LOCAL_READ, &mut |piece| {
        pieces.push(piece);
        Ok(())
    })?;
    Ok(pieces)
}

fn with(mkeys: Vec<Mkey>) -> Mkeys {
    let mut keys = Table::new(1, 16);
    for mkey in mkeys {
        keys.insert_with(|_| mkey);
    }
    keys
}

#[test]
fn mtt_index_counts_from_start_page() {
    let keys = with(vec![key(AccessMode::Mtt, 0x1234_5800, 0x1000, vec![0xa003, 0xb003])]);
    assert_eq!(
        pieces(&keys, 0x107, 0x1234_5800, 0x1000),
        Ok(vec![(Place::Guest(0xa800), 0x800), (Place::Guest(0xb000), 0x800)])
    );
}

#[test]
fn klm_entries_are_followed() {
    let inner = key(AccessMode::Pa, 0, u64::MAX, vec![]);
    let list =
        key(AccessMode::Klm, 0x100, 0x30, vec![0x10 << 32 | 0x107, 0x5000, 0x20 << 32 | 0x107, 0x9000]);
    let keys = with(vec![inner, list]);
    assert_eq!(
        pieces(&keys, 0x207, 0x108, 0x10),
        Ok(vec![(Place::Guest(0x5008), 8), (Place::Guest(0x9000), 8)])
    );
    assert_eq!(pieces(&keys, 0x207, 0x108, 0x29), Err(AccessError::Bounds));
}

#[test]
fn rows_of_interleaved_layout_are_followed() {
    let inner = key(AccessMode::Pa, 0, u64::MAX, vec![]);
    // Two rows of 8 and 4 bytes, whose addresses grow by 0x100 and 0x20.
    let entries = vec![0x100 << 48 | 8 << 32 | 0x107, 0x5000, 0x20 << 48 | 4 << 32 | 0x107, 0x9000];
    let layout = |rows: u64, row: u64| {
        let translation = [vec![row << 32 | 0x400, rows << 32 | 2], entries.clone()].concat();
        with(vec![inner.clone(), key(AccessMode::Klm, 0, 0x100, translation)])
    };
    let guest = |address, length| (Place::Guest(address), length);
    assert_eq!(
        pieces(&layout(2, 12), 0x207, 4, 20),
        Ok(vec![guest(0x5004, 4), guest(0x9000, 4), guest(0x5100, 8), guest(0x9020, 4)])
    );
    assert_eq!(pieces(&layout(2, 12), 0x207, 12, 2), Ok(vec![guest(0x5100, 2)]));
    assert_eq!(pieces(&layout(2, 12), 0x207, 4, 21), Err(AccessError::Bounds));
    assert_eq!(pieces(&layout(2, 0), 0x207, 0, 1), Err(AccessError::Bounds));
    let empty = vec![12 << 32 | 0x400, u64::from(u32::MAX) << 32];
    let keys = with(vec![inner.clone(), key(AccessMode::Klm, 0, 0x100, empty)]);
    assert_eq!(pieces(&keys, 0x207, 0, 12), Err(AccessError::Bounds));
}

#[test]
fn self_referencing_key_is_rejected() {
    let keys = with(vec![key(AccessMode::Klm, 0, 0x1000, vec![0x1000 << 32 | 0x107, 0])]);
    assert_eq!(pieces(&keys, 0x107, 0, 8), Err(AccessError::Bounds));
}

#[test]
fn access_errors_name_the_failed_check() {
    let keys = with(vec![key(AccessMode::Pa, 0x1000, 0x1000, vec![])]);
    assert_eq!(pieces(&keys, 0x108, 0x1000, 1), Err(AccessError::Key));
    assert_eq!(pieces(&keys, 0x207, 0x1000, 1), Err(AccessError::Key));
    assert_eq!(pieces(&keys, 0x107, 0xfff, 1), Err(AccessError::Bounds));
    assert_eq!(pieces(&keys, 0x107, 0x1fff, 2), Err(AccessError::Bounds));
    assert_eq!(pieces(&keys, 0x107, u64::MAX, 2), Err(AccessError::Bounds));
    assert_eq!(check(&keys, WHO, 0x107, 0x1000, 1, access::ATOMIC), Err(AccessError::Rights));
    assert_eq!(check(&keys, Accessor { pd: 2, ..WHO }, 0x107, 0x1000, 1, 0), Err(AccessError::Domain));
}

#[test]
fn translation_beyond_key_capacity_is_rejected() {
    let mut mkey = key(AccessMode::Mtt, 0, 0x1000, vec![]);
    assert!(!mkey.translate_from(64 * 16 - 8, &[0; 16]));
    assert!(mkey.translate_from(64 * 16 - 16, &[0; 16]));
    assert!(!mkey.translate_from(u64::MAX - 7, &[0; 16]));
}
