//! CQE version 0: CQEs name queues by QPN and SRQN.
//!
//! Such an entry names the queue pair and, of a receive that came from a shared queue, that queue;
//! a user's number there is not. From both reused the user's number that the queue would have been
//! given, and from there on everything is as in version 1. Only that a number on the wire may be
//! given to another queue while completions of the one that had it are still to be polled: CQEs
//! that were written before the other was created are then those of the destroyed one.

use bareverbs_provider::Errno;

use super::{QueueRecord, QueueRecordRef, Side};
use crate::cqe::Cqe;
use crate::sync::{AtomicU32, Ordering, ZeroedArray};

/// QpnMap that there are, of queue pairs as of shared receive queues.
const NUMBERS: usize = if cfg!(loom) { 1 << 4 } else { 1 << 24 };

/// In place of a number: none.
const NO_NUMBER: u32 = u32::MAX;

/// By each number on the wire the user's number; 0 for none. Memory is used for those that are
/// given.
#[derive(Debug)]
pub(super) struct QpnMap {
    qps: ZeroedArray<AtomicU32>,
    srqs: ZeroedArray<AtomicU32>,
}

fn slot(numbers: &ZeroedArray<AtomicU32>, number: u32) -> &AtomicU32 {
    numbers.get(number as usize & (NUMBERS - 1)).expect("there are so many")
}

/// The shared receive queue that an entry of a receive names; 0 for none.
fn srq_num(cqe: &Cqe<'_>) -> u32 {
    cqe.srqn_uidx() & 0xff_ffff
}

impl QpnMap {
    pub(super) fn new() -> Result<Self, Errno> {
        let words = || ZeroedArray::new(NUMBERS);
        Ok(Self { qps: words()?, srqs: words()? })
    }

    /// The user's number of the queue that an entry names. A shared receive queue has one only
    /// where it completes by itself.
    #[cold]
    pub(super) fn id(&self, cqe: &Cqe<'_>, side: Side) -> u32 {
        if side == Side::Recv && srq_num(cqe) != 0 {
            let id = slot(&self.srqs, srq_num(cqe)).load(Ordering::Acquire);
            if id != 0 {
                return id;
            }
        }
        slot(&self.qps, cqe.qp_num()).load(Ordering::Acquire)
    }
}

/// A queue's numbers on the wire.
#[derive(Debug)]
pub(super) struct WireNumbers {
    qp: AtomicU32,
    srq: AtomicU32,
}

impl Default for WireNumbers {
    fn default() -> Self {
        Self { qp: AtomicU32::new(NO_NUMBER), srq: AtomicU32::new(NO_NUMBER) }
    }
}

impl QueueRecord {
    /// Makes the completions of a queue pair its own: those that name `qp_num` and, of receives,
    /// the shared queue `srq_num`, 0 for none.
    pub(crate) fn store(record: &QueueRecordRef, qp_num: u32, srq_num: u32) {
        let reused = record.table.qpn_map.as_ref().is_some_and(|qpn_map| {
            record.wire_numbers.qp.store(qp_num, Ordering::Relaxed);
            record.wire_numbers.srq.store(srq_num, Ordering::Relaxed);
            slot(&qpn_map.qps, qp_num).swap(record.id, Ordering::AcqRel) != 0
        });
        for side in [Side::Send, Side::Recv] {
            Self::store_side(record, side, reused);
        }
    }

    /// The same for a shared receive queue that completes by itself.
    pub(crate) fn store_srq(record: &QueueRecordRef, srq_num: u32) {
        let reused = record.table.qpn_map.as_ref().is_some_and(|qpn_map| {
            record.wire_numbers.srq.store(srq_num, Ordering::Relaxed);
            slot(&qpn_map.srqs, srq_num).swap(record.id, Ordering::AcqRel) != 0
        });
        Self::store_side(record, Side::Recv, reused);
    }

    fn store_side(record: &QueueRecordRef, side: Side, reused: bool) {
        if reused {
            // The entries that are there already are of the queue that had the number before.
            record.cq(side).clean(record, side, 0);
        } else {
            record.publish(side);
        }
    }

    /// Whether an entry is of this queue, or of another that had its number on the wire; `id` is
    /// what the entry leads to.
    pub(crate) fn matches_cqe(&self, id: u32, side: Side, cqe: &Cqe<'_>) -> bool {
        if self.table.qpn_map.is_none() {
            return self.id == id;
        }
        let (qp, srq) =
            (self.wire_numbers.qp.load(Ordering::Relaxed), self.wire_numbers.srq.load(Ordering::Relaxed));
        match side {
            Side::Send => qp == cqe.qp_num(),
            Side::Recv => srq == srq_num(cqe) && (qp == NO_NUMBER || qp == cqe.qp_num()),
        }
    }

    /// Gives its numbers on the wire back, if no other queue has them by now.
    pub(super) fn clear(&self) {
        let Some(qpn_map) = &self.table.qpn_map else { return };
        let (qp, srq) =
            (self.wire_numbers.qp.load(Ordering::Relaxed), self.wire_numbers.srq.load(Ordering::Relaxed));
        let (names, number) = if qp == NO_NUMBER { (&qpn_map.srqs, srq) } else { (&qpn_map.qps, qp) };
        if number != NO_NUMBER {
            let _ = slot(names, number).compare_exchange(self.id, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}
