//! Reads and atomics that may be outstanding, on either side of a queue pair.

use bareverbs_uapi::verbs_values::QpAttrMask;
use bareverbs_uapi::write::structs::ModifyQpReq;
use bareverbs_uapi::write::types::WrOpcode;

/// Operations that count as outstanding reads and atomics (`check_init_depth` of `rxe_req.c`).
const READS: u32 = bits(&[
    WrOpcode::RDMA_READ,
    WrOpcode::ATOMIC_CMP_AND_SWP,
    WrOpcode::ATOMIC_FETCH_AND_ADD,
    WrOpcode::ATOMIC_WRITE,
]);

/// One bit per opcode.
pub(crate) const fn bits(opcodes: &[WrOpcode]) -> u32 {
    let (mut bits, mut i) = (0, 0);
    while i < opcodes.len() {
        bits |= 1 << opcodes[i].0;
        i += 1;
    }
    bits
}

/// What a queue pair has of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    /// Its operations among [`READS`], also while it may have none outstanding.
    own: u32,
    /// The peer's that the kernel has places for, once it was told a number.
    places: Option<u8>,
}

impl Reads {
    /// Of a queue pair with these operations that was just made.
    pub(crate) fn new(operations: u32) -> Self {
        Self { own: operations & READS, places: None }
    }

    /// Whether the queue pair has the operation, and could use it if some might be outstanding.
    pub(crate) fn has(&self, opcode: WrOpcode) -> bool {
        self.own & 1 << opcode.0 != 0
    }

    /// Kernels before 7.2 clear as many places for the peer's reads as there shall be, in memory for as many as there
    /// were (`rxe_qp_from_attr` and `free_rd_atomic_resources` of `rxe_qp.c`), also where a reset lies between.
    pub(crate) fn check_change(&self, change: &ModifyQpReq) -> Result<(), &'static str> {
        match (self.places, places(change)) {
            (Some(has), Some(asked)) if asked > has => Err(
                "max_dest_rd_atomic is above what the queue pair had before, which Soft-RoCE may not survive: make a new \
                 queue pair, or ask for as many the first time",
            ),
            _ => Ok(()),
        }
    }

    /// Takes note of a change that was made, in `operations` too: where none may be outstanding, the kernel would wait
    /// for the first for ever.
    pub(crate) fn changed(&mut self, change: &ModifyQpReq, operations: &mut u32) {
        self.places = places(change).or(self.places);
        if change.attr_mask.contains(QpAttrMask::MAX_QP_RD_ATOMIC) {
            let possible = if change.max_rd_atomic == 0 { 0 } else { self.own };
            *operations = *operations & !READS | possible;
        }
    }
}

/// The places for the peer's reads that a change makes, if it does: the kernel has powers of two.
fn places(change: &ModifyQpReq) -> Option<u8> {
    let asked = change.max_dest_rd_atomic;
    change.attr_mask.contains(QpAttrMask::MAX_DEST_RD_ATOMIC).then(|| match asked {
        0 => 0,
        _ => asked.checked_next_power_of_two().unwrap_or(u8::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(max_dest_rd_atomic: u8) -> ModifyQpReq {
        let attr_mask = QpAttrMask::MAX_DEST_RD_ATOMIC;
        ModifyQpReq { attr_mask, max_dest_rd_atomic, ..ModifyQpReq::zeroed() }
    }

    #[test]
    fn the_peers_reads_may_become_fewer_but_not_more_than_the_kernel_has_places_for() {
        let mut operations = READS;
        let mut reads = Reads::new(operations);
        for (asked, possible) in
            [(3, true), (4, true), (5, false), (255, false), (1, true), (2, false), (0, true)]
        {
            assert_eq!(reads.check_change(&peers(asked)).is_ok(), possible, "{asked}");
            if possible {
                reads.changed(&peers(asked), &mut operations);
            }
        }
        assert!(reads.check_change(&peers(1)).is_err(), "there are no places at all");
        let other = ModifyQpReq { attr_mask: QpAttrMask::STATE, ..peers(9) };
        assert!(reads.check_change(&other).is_ok(), "what the mask leaves out is not asked for");
    }

    #[test]
    fn where_none_may_be_outstanding_there_are_no_reads_until_some_may() {
        let others = bits(&[WrOpcode::SEND, WrOpcode::RDMA_WRITE]);
        let read = bits(&[WrOpcode::RDMA_READ]);
        let mut operations = others | read;
        let mut reads = Reads::new(operations);
        let own = |max_rd_atomic| {
            let attr_mask = QpAttrMask::MAX_QP_RD_ATOMIC;
            ModifyQpReq { attr_mask, max_rd_atomic, ..ModifyQpReq::zeroed() }
        };
        reads.changed(&own(0), &mut operations);
        assert_eq!(operations, others);
        assert!(reads.has(WrOpcode::RDMA_READ) && !reads.has(WrOpcode::ATOMIC_WRITE));
        reads.changed(&own(1), &mut operations);
        assert_eq!(operations, others | read, "and no more than there were");
    }
}
