//! Tests indices, owner bits and comparisons of CQEs exhaustively near every wrap.

use bareverbs_provider::mapping::Mapping;

use super::*;

/// Indices around 0, around the wraps of 23 and 24 bits, and beyond 24 bits, as callers may pass
/// them unmasked.
fn indices() -> impl Iterator<Item = u32> {
    let around = |middle: u32| (0..1 << 12).map(move |at| middle.wrapping_add(at).wrapping_sub(1 << 11));
    [0, 1 << 23, 1 << 24, 1 << 25, 5 << 24].into_iter().flat_map(around)
}

#[test]
fn owner_bit_of_the_round_marks_written_cqes() {
    for log in 0..=6 {
        let ring = Ring::new(Mapping::anonymous(CQE << log).unwrap(), log, CQE);
        for index in indices() {
            let round = index / ring.entries();
            let owner = (round % 2) as u8;
            assert_eq!(ring.owner(index), owner, "{index:#x} of {}", ring.entries());
            for opcode in 0..16 {
                for bits in 0..16 {
                    let op_own = opcode << 4 | bits;
                    let expected = bits & 1 == owner && opcode != CqeOpcode::INVALID.0;
                    assert_eq!(ring.written(index, op_own), expected, "{index:#x}: {op_own:#x}");
                }
            }
        }
    }
}

#[test]
fn cqe_address_is_index_modulo_entries() {
    for (log, cqe_size) in (0..=6).flat_map(|log| [(log, 64), (log, 128)]) {
        let ring = Ring::new(Mapping::anonymous(cqe_size << log).unwrap(), log, cqe_size);
        let start = ring.memory().as_ptr().as_ptr().addr() + cqe_size - CQE;
        assert_eq!(ring.address() as usize, ring.memory().as_ptr().as_ptr().addr());
        for index in indices() {
            let slot = (index % ring.entries()) as usize;
            assert_eq!(ring.at(index).addr(), start + slot * cqe_size, "{index:#x}");
            assert_eq!(ring.entry(index).op_own(), NEVER_WRITTEN);
        }
    }
}

#[test]
fn ring_must_fit_its_memory_and_the_24_bit_index() {
    let made = |bytes, log, cqe_size| {
        std::panic::catch_unwind(|| Ring::new(Mapping::anonymous(bytes).unwrap(), log, cqe_size)).is_ok()
    };
    // A mapping consists of whole pages.
    assert!(made(4096, 6, 64) && !made(4096, 7, 64));
    assert!(made(4096, 5, 128) && !made(4096, 6, 128));
    assert!(!made(4096, 0, 32) && !made(4096, 0, 256));
    assert!(!made(4096, 24, 64));
}

#[test]
fn is_before_compares_modulo_2_to_the_24() {
    let distances = (1..1 << 12).chain((1 << 23) - (1 << 12)..1 << 23);
    for distance in distances {
        for until in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_ffff, 0x100_0000, 0x1ff_fffe, u32::MAX] {
            let index = until.wrapping_sub(distance);
            assert!(is_before(index, until), "{index:#x} {until:#x}");
            assert!(!is_before(until, index), "{until:#x} {index:#x}");
            // Only the low 24 bits matter.
            assert!(is_before(counted(index), until) && !is_before(until, counted(index)));
            assert!(is_before(index, counted(until)) && !is_before(counted(until), index));
        }
    }
    for index in indices() {
        assert!(!is_before(index, index));
        assert!(!is_before(counted(index), index));
        assert_eq!(counted(index), index % (1 << 24));
    }
}
