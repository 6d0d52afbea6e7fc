//! Completions of version 0, which name queues by their numbers on the wire.
//!
//! Such an entry names the queue pair and, of a receive that came from a shared queue, that queue; a user's number there is not.
//! From both follows the user's number that the queue would have been given, and from there on everything is as in version 1.
//! Only that a number on the wire may be given to another queue while completions of the one that had it are still to be polled:
//! what was written before the other was made is then that of the dead.

use bareverbs_provider::Errno;

use super::{Record, RecordRef, Side};
use crate::cqe::Cqe;
use crate::sync::{AtomicU32, Ordering, ZeroedArray};

/// Numbers that there are, of queue pairs as of shared receive queues.
const NUMBERS: usize = if cfg!(loom) { 1 << 4 } else { 1 << 24 };

/// In place of a number: none.
const NOBODY: u32 = u32::MAX;

/// By each number on the wire the user's number; 0 for none. Memory is used for those that are given.
#[derive(Debug)]
pub(super) struct Numbers {
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

impl Numbers {
    pub(super) fn new() -> Result<Self, Errno> {
        let words = || ZeroedArray::new(NUMBERS);
        Ok(Self { qps: words()?, srqs: words()? })
    }

    /// The user's number of the queue that an entry names. A shared receive queue has one only where it completes by itself.
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
pub(super) struct Wire {
    qp: AtomicU32,
    srq: AtomicU32,
}

impl Default for Wire {
    fn default() -> Self {
        Self { qp: AtomicU32::new(NOBODY), srq: AtomicU32::new(NOBODY) }
    }
}

impl Record {
    /// Makes the completions of a queue pair its own: those that name `qp_num` and, of receives, the shared queue `srq_num`, 0
    /// for none.
    pub(crate) fn begin(record: &RecordRef, qp_num: u32, srq_num: u32) {
        let follows = record.table.numbers.as_ref().is_some_and(|numbers| {
            record.wire.qp.store(qp_num, Ordering::Relaxed);
            record.wire.srq.store(srq_num, Ordering::Relaxed);
            slot(&numbers.qps, qp_num).swap(record.id, Ordering::AcqRel) != 0
        });
        for side in [Side::Send, Side::Recv] {
            Self::begin_side(record, side, follows);
        }
    }

    /// The same for a shared receive queue that completes by itself.
    pub(crate) fn begin_srq(record: &RecordRef, srq_num: u32) {
        let follows = record.table.numbers.as_ref().is_some_and(|numbers| {
            record.wire.srq.store(srq_num, Ordering::Relaxed);
            slot(&numbers.srqs, srq_num).swap(record.id, Ordering::AcqRel) != 0
        });
        Self::begin_side(record, Side::Recv, follows);
    }

    fn begin_side(record: &RecordRef, side: Side, follows: bool) {
        if follows {
            // The entries that are there already are of the queue that had the number before.
            record.cq(side).forget(record, side, 0);
        } else {
            record.show(side);
        }
    }

    /// Whether an entry is of this queue, or of another that had its number on the wire; `id` is what the entry leads to.
    pub(crate) fn is_named(&self, id: u32, side: Side, cqe: &Cqe<'_>) -> bool {
        if self.table.numbers.is_none() {
            return self.id == id;
        }
        let (qp, srq) = (self.wire.qp.load(Ordering::Relaxed), self.wire.srq.load(Ordering::Relaxed));
        match side {
            Side::Send => qp == cqe.qp_num(),
            Side::Recv => srq == srq_num(cqe) && (qp == NOBODY || qp == cqe.qp_num()),
        }
    }

    /// Gives its numbers on the wire back, if no other queue has them by now.
    pub(super) fn end(&self) {
        let Some(numbers) = &self.table.numbers else { return };
        let (qp, srq) = (self.wire.qp.load(Ordering::Relaxed), self.wire.srq.load(Ordering::Relaxed));
        let (names, number) = if qp == NOBODY { (&numbers.srqs, srq) } else { (&numbers.qps, qp) };
        if number != NOBODY {
            let _ = slot(names, number).compare_exchange(self.id, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}
