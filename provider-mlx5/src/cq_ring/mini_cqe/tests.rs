//! Tests: counting and expansion of runs, from correct and from faulty devices.

use std::cell::Cell;

use bareverbs_provider::mapping::Mapping;

use super::*;

const LOG: u32 = 3;

/// A ring with compressed CQEs of this format.
fn ring(format: MiniCqeFormat) -> Ring {
    Ring::new(Mapping::anonymous(CQE << LOG).expect("memory"), LOG, CQE).compressed(Some(format))
}

/// Writes a CQE of the first round.
fn put(ring: &Ring, index: u32, opcode: CqeOpcode, format: u8, count: u32) -> [u8; CQE] {
    let mut entry = [0x55; CQE];
    entry[BYTE_COUNT..BYTE_COUNT + 4].copy_from_slice(&count.to_be_bytes());
    entry[WQE_COUNTER..WQE_COUNTER + 2].copy_from_slice(&7u16.to_be_bytes());
    entry[OP_OWN] = opcode.0 << 4 | format;
    write(ring, index, &entry);
    entry
}

/// Writes the CQE after a title as an array of mini CQEs.
fn put_array(ring: &Ring, index: u32, mini_cqes: [[u8; MINI_CQE]; 8]) {
    let mut entry = [0; CQE];
    entry.copy_from_slice(mini_cqes.as_flattened());
    write(ring, index, &entry);
}

#[test]
fn byte_counts_of_single_entries_are_no_lengths_of_runs() {
    for written in 0..=1 << LOG {
        let ring = ring(MiniCqeFormat::Checksum);
        for index in 0..written {
            put(&ring, index, CqeOpcode::RESP_SEND, 0, 3);
        }
        assert_eq!(ring.first_unwritten(|| 0), written);
    }
}

#[test]
fn mini_cqes_are_counted_before_and_after_expansion() {
    let ring = ring(MiniCqeFormat::Checksum);
    put(&ring, 0, CqeOpcode::RESP_SEND, 0, 6);
    put(&ring, 1, CqeOpcode::RESP_SEND, COMPRESSED, 4);
    put(&ring, 5, CqeOpcode::RESP_SEND, 0, 6);
    assert_eq!((ring.first_unwritten(|| 0), ring.first_unwritten(|| 1)), (6, 6));
    assert!(ring.expand(1));
    assert_eq!((ring.first_unwritten(|| 0), ring.first_unwritten(|| 3)), (6, 6));
}

#[test]
fn invalid_mini_cqe_count_counts_as_one_cqe() {
    for count in [0, (1 << LOG) + 1, u32::MAX] {
        let ring = ring(MiniCqeFormat::Checksum);
        put(&ring, 0, CqeOpcode::RESP_SEND, COMPRESSED, count);
        assert_eq!(ring.first_unwritten(|| 0), 1);
        assert!(!ring.expand(0));
    }
}

#[test]
fn count_ends_although_titles_keep_changing() {
    let ring = ring(MiniCqeFormat::Checksum);
    let looks = Cell::new(0);
    let look = |index: u32| {
        looks.set(looks.get() + 1);
        assert!(looks.get() <= ring.entries(), "each CQE is read once at most");
        let op_own = CqeOpcode::RESP_SEND.0 << 4 | COMPRESSED | ring.owner(index);
        CqeHeader { op_own, count: 3, has_changed: true }
    };
    assert_eq!(ring.first_unwritten_by(look, || 0), ring.entries());
}

#[test]
fn title_expanded_during_the_count_counts_as_one_cqe() {
    let ring = ring(MiniCqeFormat::Checksum);
    let looks = Cell::new(0);
    let look = |index: u32| {
        looks.set(looks.get() + 1);
        // The first read gets the title and the byte count of the CQE that replaces it.
        let format = if looks.get() == 1 { COMPRESSED } else { 0 };
        let opcode = if index < 2 { CqeOpcode::RESP_SEND } else { CqeOpcode::INVALID };
        CqeHeader { op_own: opcode.0 << 4 | format, count: 7, has_changed: looks.get() == 1 }
    };
    assert_eq!(ring.first_unwritten_by(look, || 0), 2);
}

#[test]
fn count_ends_although_the_consumer_index_keeps_changing() {
    let ring = ring(MiniCqeFormat::Checksum);
    let reads = Cell::new(0u32);
    let consumed = || {
        reads.set(reads.get() + 1);
        assert!(reads.get() <= MAX_COUNTED, "no more than a poller could pass");
        (reads.get() * 0x1000) & COUNT
    };
    ring.first_unwritten(consumed);
}

#[test]
fn overwritten_cqes_are_counted() {
    let ring = ring(MiniCqeFormat::Checksum);
    // CQEs of the second round, which is incomplete.
    for index in 0..3 {
        let mut entry = put(&ring, index, CqeOpcode::RESP_SEND, 0, 3);
        entry[OP_OWN] |= OWNER;
        write(&ring, index, &entry);
    }
    let reads = Cell::new(0);
    // The poller releases the first round after the first read.
    let consumed = || if reads.replace(reads.get() + 1) == 0 { 0 } else { ring.entries() };
    assert_eq!(ring.first_unwritten(consumed), ring.entries() + 3);
}

/// The fields that differ in a run of two CQEs: opcode, checksum, WQE counter and byte count.
fn expanded(format: MiniCqeFormat, opcode: CqeOpcode) -> [(u8, u16, u16, u32); 2] {
    let ring = ring(format);
    put(&ring, 0, opcode, COMPRESSED, 2);
    put_array(
        &ring,
        1,
        [[1, 2, 3, 4, 0, 0, 0, 5], [6, 7, 8, 9, 0, 0, 0, 10], [0; 8], [0; 8], [0; 8], [0; 8], [0; 8], [0; 8]],
    );
    assert!(ring.expand(0));
    [0, 1].map(|index| {
        let entry = ring.entry(index).bytes();
        assert_eq!(entry[OP_OWN], opcode.0 << 4);
        let half = |at: usize| u16::from_be_bytes([entry[at], entry[at + 1]]);
        (entry[OPCODE], half(CHECK_SUM), half(WQE_COUNTER), ring.entry(index).byte_count())
    })
}

#[test]
fn each_format_expands_its_fields() {
    let receive = CqeOpcode::RESP_SEND;
    assert_eq!(expanded(MiniCqeFormat::Hash, receive), [(0x55, 0x5555, 7, 5), (0x55, 0x5555, 8, 10)]);
    assert_eq!(expanded(MiniCqeFormat::Checksum, receive), [(0x55, 0x0102, 7, 5), (0x55, 0x0607, 8, 10)]);
    let with_number = [(0x55, 0x0102, 0x0304, 5), (0x55, 0x0607, 0x0809, 10)];
    assert_eq!(expanded(MiniCqeFormat::ChecksumStrideIndex, receive), with_number);
    for format in [MiniCqeFormat::Hash, MiniCqeFormat::Checksum, MiniCqeFormat::ChecksumStrideIndex] {
        // The opcode of a send is in the first byte of the word that contains the QPN.
        assert_eq!(expanded(format, CqeOpcode::REQ), [(3, 0x5555, 0x0102, 5), (8, 0x5555, 0x0607, 10)]);
    }
}
